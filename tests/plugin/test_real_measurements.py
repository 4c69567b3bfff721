"""Measured for real on the CPU: odd workloads, a calibration, and choices without timing."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config as inductor

from kernelgauge.cli import main
from tests.plugin.inner_project import Case, junit_cases

pytestmark = pytest.mark.timeout(600)  # compiling takes seconds, and many on a busy machine

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

def breaks(x):
    return x + 1 if x.sum() > 0 else x - 1

def workload(name, function, **fields):
    default = {"build": forward_of(function), "inputs": lambda: (torch.rand(4, 4),), "dtype": "fp32"}
    return Workload(name, "eager", **default | fields)

WORKLOADS = [
    workload("breaks", breaks, compile={}),
    workload("known_break", breaks, compile={}, graph_breaks=1),
    workload("uncompilable", breaks, compile={"fullgraph": True}),
    workload("misspelt_option", breaks, compile={"no_such_option": True}),
    workload("raises", raises),
    workload("nan", lambda x: (x - x) / (x - x)),
    workload("embedding", None, build=lambda: nn.Embedding(16, 8), inputs=lambda: (torch.randint(16, (4,)),)),
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
}


def test_odd_workloads_end_their_own_tests_only(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ODD)
    pytester.makepyfile("from kernelgauge.standard import *\n")
    result = pytester.runpytest_subprocess("--perf-device", "cpu", "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in result.stdout.str()
    cases: dict[str, dict[str, Case]] = {}
    for case in junit_cases(pytester.path / "junit.xml"):
        cases.setdefault(case.parameters.partition("-")[0], {})[case.name] = case
    assert [len(each) for each in cases.values()] == [6] * 8
    assert cases["breaks"][DECLARED].outcome == "failure"
    assert "graph breaks: got 1, expected 0" in cases["breaks"][DECLARED].message
    assert cases["breaks"]["test_device_time"].properties["kernelgauge_verdict"] == "NO_BASELINE"
    assert cases["known_break"][DECLARED].outcome == "passed"
    for name, said in FAILING.items():
        assert all(case.outcome in ("failure", "error") for case in cases[name].values())
        measured = [case for test, case in cases[name].items() if test != NUMERICS]
        assert {case.properties.get("kernelgauge_verdict") for case in measured} == {"INVALID"}
        assert said in cases[name]["test_device_time"].message
    nan = cases["nan"][NUMERICS]
    assert (nan.outcome, "relative error nan" in nan.message, "seed" in nan.message) == ("failure", True, True)
    assert cases["breaks"][NUMERICS].outcome == cases["function"][NUMERICS].outcome == "passed"
    assert {case.outcome for case in cases["embedding"].values()} == {"passed", "skipped"}  # inputs keep their dtype


CALIBRATED = """
import torch
from kernelgauge import Workload

def pytest_kernelgauge_workloads():
    return [Workload("one", "eager", build=lambda: torch.nn.Linear(8, 8), inputs=lambda: (torch.randn(4, 8),), dtype="fp32")]
"""


def test_suite_is_calibrated_and_judged_by_it(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    perf = pytester.mkdir("perf")
    (perf / "conftest.py").write_text(CALIBRATED)
    (perf / "test_perf.py").write_text("from kernelgauge.standard import *\n")
    assert main(["calibrate", "perf", "--perf-device", "cpu", "--processes", "2"]) == 0
    assert capsys.readouterr().err.splitlines() == ["process 1 of 2", "process 2 of 2"]
    assert not (pytester.path / "reports").exists()  # those of the processes went with them
    (path,) = pytester.path.glob("baselines/cpu-*/one-eager-fp32.json")
    (entry,) = json.loads(path.read_text())["entries"]
    assert [set(process["timers"]) for process in entry["processes"]] == [{"device_time", "end_to_end"}] * 2
    times = [process["timers"]["device_time"]["mean_us"] for process in entry["processes"]]
    assert times[0] != times[1]  # two measurements, not one twice

    pytester.runpytest_subprocess("perf", "--perf-device", "cpu", "--junitxml=junit.xml", "-k", "structure or device")
    cases = junit_cases(pytester.path / "junit.xml")
    verdicts = {case.name: case.properties.get("kernelgauge_verdict") for case in cases}
    assert verdicts["test_structure_is_that_of_the_baseline"] == "PASS"
    # The time of a busy CPU may be any of these, but it is compared.
    assert verdicts["test_device_time"] in ("PASS", "IMPROVED", "UNDECIDED", "REGRESSED", "NOT_JUDGED")


SHOWS_SWITCH = """
import torch
import torch._inductor.config
from kernelgauge import Workload

def build():
    print("deterministic:", torch._inductor.config.deterministic)
    return torch.nn.Linear(4, 4)

def pytest_kernelgauge_workloads():
    return [Workload("tiny", "eager", build=build, inputs=lambda: (torch.randn(2, 4),))]
"""
SHOWS_CHOICE = """
def test_choices(workload, run):
    print("deterministic:", run.fingerprint.deterministic)
"""


def measure_deterministic(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    pytester.makeconftest(SHOWS_SWITCH)
    pytester.makepyfile(SHOWS_CHOICE)
    return pytester.runpytest_inprocess("--perf-device", "cpu", "-rP", *options)


@pytest.mark.parametrize("asked", [False, True])
def test_deterministic_switch_is_set_on_demand(pytester: pytest.Pytester, asked: bool) -> None:
    result = measure_deterministic(pytester, *(["-o", "kernelgauge_deterministic=true"] if asked else []))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"deterministic: {asked}"] * 2)
    assert not inductor.deterministic  # after the session, as before it


def test_older_torch_is_named_and_measures_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    older = SimpleNamespace()
    monkeypatch.setattr(torch._inductor, "config", older)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", older)
    result = measure_deterministic(pytester, "-o", "kernelgauge_deterministic=true")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(
        [
            "*kernelgauge_deterministic: this torch cannot choose without timing",
            f"*got *torch {torch.__version__}*",
            "*expected *torch 2.10 or newer",
            "*next *kernelgauge calibrate*",
        ]
    )
    assert vars(older) == {}
