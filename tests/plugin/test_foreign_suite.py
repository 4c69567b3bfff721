"""Somebody else's suite, measured for real on the CPU: a hook of a few lines, and the standard tests."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.inner_project import Case, junit_cases

pytestmark = pytest.mark.timeout(600)  # compiling takes seconds, and many on a busy machine

STANDARD_TESTS = "from kernelgauge.standard import *\n"

CONFTEST = """
import torch
from kernelgauge import Expectation, Workload

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * 2

def block(variant, **fields):
    return Workload("block", variant, build=Block, inputs=lambda: (torch.randn(4, 8),), shape=(4, 8), dtype="fp32", **fields)

WORKLOADS = [
    block("eager", expectations=(Expectation("by hand", kinds=("gemm", "pointwise", "pointwise")),)),
    block("compiled", compile={}, expectations=(Expectation("by hand", kinds=("gemm", "pointwise")),)),
    Workload("gelu", "function", build=lambda: torch.nn.functional.gelu, inputs=lambda: (torch.randn(64),), shape=(64,)),
]

def pytest_kernelgauge_workloads():
    return WORKLOADS
"""

EAGER, COMPILED, FUNCTION = "block-eager-fp32-4x8", "block-compiled-fp32-4x8", "gelu-function-bf16-64"
JUDGED = {"PASS", "IMPROVED", "UNDECIDED", "REGRESSED", "NOT_JUDGED"}  # times of a busy CPU may be any of these


def write_suite(root: Path, conftest: str) -> None:
    (root / "perf").mkdir()
    (root / "perf" / "conftest.py").write_text(conftest)
    (root / "perf" / "test_perf.py").write_text(STANDARD_TESTS)


def by_test(root: Path, workload: str) -> dict[str, Case]:
    """The cases of one workload by the name of their test."""
    return {case.name: case for case in junit_cases(root / "junit.xml") if case.parameters == workload}


def test_foreign_suite_is_recorded_and_judged(pytester: pytest.Pytester) -> None:
    write_suite(pytester.path, CONFTEST)
    recorded = pytester.runpytest_subprocess("perf", "--perf-device", "cpu", "--perf-update")
    assert recorded.ret == pytest.ExitCode.OK
    recorded.assert_outcomes(passed=15, skipped=3)  # host dispatch has no meaning on a CPU
    recorded.stdout.fnmatch_lines(["*create*block-compiled*", "3 written to *"])
    baselines = {path.stem: json.loads(path.read_text()) for path in pytester.path.glob("baselines/cpu-*/*.json")}
    assert set(baselines) == {EAGER, COMPILED, FUNCTION}
    entries = {workload: baseline["entries"][0] for workload, baseline in baselines.items()}
    assert [kernel["identity"]["name"] for kernel in entries[EAGER]["kernels"]] == [
        "aten::mm",
        "aten::tanh",
        "aten::mul",
    ]
    assert baselines[COMPILED]["counts"]["launches"] == 2
    for entry in entries.values():
        (process,) = entry["processes"]
        assert set(process["timers"]) == {"device_time", "end_to_end"}
        assert all(timer["mean_us"] > 0 and timer["replicates"] >= 2 for timer in process["timers"].values())

    judged = pytester.runpytest_subprocess("perf", "--perf-device", "cpu", "--junitxml=junit.xml")
    assert judged.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    for workload in baselines:
        cases = by_test(pytester.path, workload)
        verdicts = {name: case.properties.get("kernelgauge_verdict") for name, case in cases.items()}
        assert verdicts["test_kernels_and_graphs_are_as_declared"] == "PASS"
        assert verdicts["test_structure_is_that_of_the_baseline"] == "PASS"
        assert {verdicts["test_device_time"], verdicts["test_end_to_end_latency"]} <= JUDGED
        assert cases["test_host_dispatch_time"].outcome == "skipped"
        assert cases["test_result_matches_float64"].outcome == "passed"
    traces = pytester.path / "reports" / "latest" / "traces"
    for workload in baselines:
        events = json.loads(gzip.decompress((traces / f"{workload}.json.gz").read_bytes()))["traceEvents"]
        assert any(event["name"].startswith("ProfilerStep#") for event in events)
        assert "Self CPU" in (traces / f"{workload}.txt").read_text()


ODD = """
import torch
from torch import nn
from kernelgauge import Workload

def forward_of(function):
    class Module(nn.Module):
        def forward(self, x):
            return function(x)
    return Module

def raises(x):
    raise ValueError("no such head")

CALLS = []

def raises_later(x):
    CALLS.append(x)
    if len(CALLS) > 1:
        raise KeyError("no second time")
    return x + 1

def raises_later_without_a_word(x):
    raise_it = getattr(x, "seen", False)
    x.seen = True
    if raise_it:
        raise RuntimeError
    return x + 1

def breaks(x):
    return x + 1 if x.sum() > 0 else x - 1

class Gelu(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x)

def floats():
    return (torch.rand(4, 4),)

def workload(name, function, **fields):
    return Workload(name, "eager", **{"build": forward_of(function), "inputs": floats, "dtype": "fp32"} | fields)

WORKLOADS = [
    workload("breaks", breaks, compile={}),
    workload("known_break", breaks, compile={}, graph_breaks=1),
    workload("uncompilable", breaks, compile={"fullgraph": True}),
    workload("misspelt_option", breaks, compile={"no_such_option": True}),
    workload("raises", raises),
    workload("raises_later", raises_later),
    workload("raises_silently", raises_later_without_a_word),
    workload("nan", lambda x: (x - x) / (x - x)),
    workload("zeros", lambda x: torch.relu(-x)),
    workload("embedding", None, build=lambda: nn.Embedding(16, 8), inputs=lambda: (torch.randint(16, (4,)),)),
    workload("no_parameters", None, build=Gelu, reference=nn.GELU),
    workload("function", None, build=lambda: nn.functional.gelu, reference=lambda: nn.functional.gelu),
]

def pytest_kernelgauge_workloads():
    return WORKLOADS
"""

DECLARED, NUMERICS = "test_kernels_and_graphs_are_as_declared", "test_result_matches_float64"


FAILING = {
    "uncompilable": "uncompilable-eager-fp32: compiling or running failed",
    "misspelt_option": "misspelt_option-eager-fp32: ",
    "raises": "ValueError: no such head",
    "raises_later": "KeyError: 'no second time'",
    "raises_silently": "RuntimeError",
}


def test_odd_workloads_end_their_own_tests_only(tmp_path: Path) -> None:
    write_suite(tmp_path, ODD)
    command = [sys.executable, "-m", "pytest", "perf", "--perf-device", "cpu", "--junitxml=junit.xml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout + result.stderr
    assert "INTERNALERROR" not in result.stdout
    names = re.findall(r'workload\("(\w+)"', ODD)
    cases = {name: by_test(tmp_path, f"{name}-eager-fp32") for name in names}
    assert len(names) == 12
    assert all(len(each) == 6 for each in cases.values())
    assert cases["breaks"][DECLARED].outcome == "failure"
    assert "graph breaks: got 1, expected 0" in cases["breaks"][DECLARED].message
    assert cases["breaks"]["test_device_time"].properties["kernelgauge_verdict"] == "NO_BASELINE"
    assert cases["known_break"][DECLARED].outcome == "passed"
    for name, said in FAILING.items():
        assert all(case.outcome in ("failure", "error") for case in cases[name].values())
        measured = [case for test, case in cases[name].items() if test != NUMERICS]
        assert {case.properties.get("kernelgauge_verdict") for case in measured} == {"INVALID"}
        assert said in cases[name]["test_device_time"].message
        assert name in cases[name]["test_device_time"].message
    assert cases["nan"][NUMERICS].outcome == "failure"
    assert "relative error nan" in cases["nan"][NUMERICS].message
    assert "seed" in cases["nan"][NUMERICS].message
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("nan-eager-fp32 ")]
    assert row.split()[-1] in ("REGRESSED", "INVALID")
    for name in ("breaks", "zeros", "no_parameters", "function"):
        assert cases[name][NUMERICS].outcome == "passed"
    assert {case.outcome for case in cases["embedding"].values()} == {"passed", "skipped"}  # inputs keep their dtype
