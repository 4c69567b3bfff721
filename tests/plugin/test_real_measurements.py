"""Measured for real on the CPU: functions, odd workloads, ratios, the README, choices without timing, planted causes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config as inductor

from tests.commands.conftest import Command
from tests.planted import failure, line_of, longest_failure, run_suite
from tests.plugin.inner_project import VERDICT, Case, junit_cases, text_of

pytestmark = pytest.mark.timeout(600)  # compiling takes seconds, and many on a busy machine

SUITE = """
from dataclasses import dataclass, replace
import torch
from torch import nn
from torch.nn.functional import cross_entropy, rms_norm
from kernelgauge import Workload

@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    tokens: torch.Tensor

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x, *, target, bias):
        logits = self.linear(x) + bias[0]
        return Output(cross_entropy(logits, target), logits, logits.argmax(-1))

def head_inputs():
    return (torch.randn(5, 8),), {"target": torch.randint(16, (5,)), "bias": (torch.randn(16, requires_grad=True),)}

def power(x, times):
    for _ in range(times):
        x = x @ x
    return x

def breaks(x):
    return x + 1 if x.sum() > 0 else x - 1

class Broken(nn.Module):
    def forward(self, x):
        return breaks(x)

def workload(name, build, **fields):
    return Workload(name, "eager", build, **{"inputs": lambda: (torch.rand(64, 8),), "dtype": "fp32"} | fields)

def pytest_kernelgauge_workloads():
    square = torch.rand(256, 256) / 256
    once, often = (Workload.from_callable(power, square, times) for times in (1, 8))
    return [
        workload("head", Head, inputs=head_inputs, pass_="train"),
        workload("closure", lambda: lambda: square + 1, inputs=tuple, dtype=None),
        Workload.from_callable(rms_norm, torch.randn(4, 8), (8,), eps=1e-6),
        replace(once, variant="once", faster_than="often", by=0.2),
        replace(often, variant="often", faster_than="once"),
        workload("breaks", Broken, compile={}),
        workload("known_break", Broken, compile={}, graph_breaks=1),
        workload("nan", lambda: lambda x: (x - x) / (x - x), reference=lambda: lambda x: x),
        workload("wrong", lambda: lambda x: 1.5 * x, reference=lambda: lambda x: x),
    ]
"""
DECLARED, NUMERICS = "test_kernels_and_graphs_are_as_declared", "test_result_matches_float64"
RATIO = "test_faster_than_other_variant"
Cases = dict[str, dict[str, Case]]  # by workload and test


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """The tests of one real run."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "conftest.py").write_text(SUITE)
    (folder / "test_perf.py").write_text("from kernelgauge.standard import *\n")
    (folder / "pytest.ini").write_text("[pytest]\nkernelgauge_device = cpu\nkernelgauge_replicates = 3\n")
    command = [sys.executable, "-m", "pytest", "--junitxml=junit.xml", "-p", "kernelgauge.plugin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "INTERNALERROR" not in done.stdout
    found: Cases = {}
    for case in junit_cases(folder / "junit.xml"):
        found.setdefault(case.parameters, {})[case.name] = case
    return found


@pytest.mark.parametrize("workload", ["head-eager-train-fp32", "rms_norm-torch-4x8", "breaks-eager-fp32"])
def test_keywords_dataclasses_and_functions_are_compared(cases: Cases, workload: str) -> None:
    assert cases[workload][NUMERICS].properties[VERDICT] == "PASS"
    assert cases[workload]["test_device_time"].properties[VERDICT] == "NO_BASELINE"


def test_numerics_without_a_reference_are_not_judged(cases: Cases) -> None:
    case = cases["closure-eager"][NUMERICS]
    assert (case.outcome, case.properties[VERDICT]) == ("skipped", "NOT_JUDGED")
    assert "nothing to be compared with" in case.message


def test_ratio_is_judged_without_a_baseline(cases: Cases) -> None:
    slow, fast = (cases[f"power-{variant}-256x256"][RATIO] for variant in ("often", "once"))
    assert (slow.outcome, slow.properties[VERDICT]) == ("failure", "REGRESSED")
    assert "not faster than once: CPU time" in slow.message
    assert "kernelgauge diff reports/latest/traces/power-once-256x256.json.gz" in slow.message
    assert (fast.outcome, fast.properties[VERDICT]) == ("passed", "PASS")
    assert sum(RATIO in tests for tests in cases.values()) == 2  # no such test of a workload without a ratio


def test_graph_break_fails_unless_declared(cases: Cases) -> None:
    declared = cases["breaks-eager-fp32"][DECLARED]
    assert (declared.outcome, "graph breaks: got 1, expected 0" in declared.message) == ("failure", True)
    assert cases["known_break-eager-fp32"][DECLARED].outcome == "passed"


def test_wrong_result_fails_numerics(cases: Cases) -> None:
    nan, wrong = (cases[f"{name}-eager-fp32"][NUMERICS] for name in ("nan", "wrong"))
    assert (nan.outcome, nan.properties[VERDICT]) == ("failure", "INVALID")
    texts = ("result differs from the float64 reference", "output 0: error nan, allowed", "seed")
    assert all(text in nan.message for text in texts)
    assert "Workload(..., tolerance=0." in wrong.message


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
"""


def test_readme_quick_start_catches_a_slower_module(pytester: pytest.Pytester, kernelgauge: Command) -> None:
    pytester.mkdir("perf")
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", README, re.DOTALL):
        (pytester.path / name).write_text(text)
    pytester.makeini("[pytest]\npythonpath = .\nkernelgauge_device = cpu\n")
    model = pytester.path / "my_model.py"
    model.write_text(MODEL)
    commands = re.search(r"```sh\n(.*?)```", README, re.DOTALL)[1].splitlines()
    (_, *record), (_, *check), (_, *accept) = (command.split() for command in commands)
    recorded = pytester.runpytest_inprocess(*record)
    assert recorded.ret == pytest.ExitCode.OK
    recorded.stdout.fnmatch_lines(["1 written to *"])
    model.write_text(MODEL.replace("self.up(x))", "self.up(x)).clone()"))
    checked = pytester.runpytest_inprocess(*check)
    assert checked.ret == pytest.ExitCode.TESTS_FAILED
    checked.stdout.fnmatch_lines(["*REGRESSED  kernels differ from the baseline", "*launches 3 -> 4*"])
    checked.stdout.no_fnmatch_line("*benchmark: 1 tests*")  # pytest-benchmark's table comes with -v
    assert kernelgauge(*accept)[0] == 0
    assert pytester.runpytest_inprocess(*check, "-m", "structure").ret == pytest.ExitCode.OK


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


def measure_deterministic(pytester: pytest.Pytester) -> pytest.RunResult:
    pytester.makeconftest(SHOWS_SWITCH)
    pytester.makepyfile(SHOWS_CHOICE)
    return pytester.runpytest_inprocess("--perf-device", "cpu", "-rP", "-o", "kernelgauge_deterministic=true")


def test_deterministic_switch_is_set_on_demand(pytester: pytest.Pytester) -> None:
    result = measure_deterministic(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["deterministic: True"] * 2)
    assert not inductor.deterministic  # after the session, as before it


def test_older_torch_without_the_switch_is_an_error(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    older = SimpleNamespace()
    monkeypatch.setattr(torch._inductor, "config", older)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", older)
    result = measure_deterministic(pytester)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in text_of(result)
    result.stdout.fnmatch_lines(["*this torch cannot choose without timing", "*expected *torch 2.10 or newer"])
    assert vars(older) == {}


PLANTED = {
    "clone-eager-forward": ("1 new kernel: clone", "mlp", "u = u.clone()"),
    "more_work-eager-train": (
        "6 new kernels, in 2 places: sigmoid, mul",
        "mlp (forward and backward)",
        "h = h * torch.sigmoid(h)",
    ),
    "graph_break-compiled-forward": ("graph break: ", "mlp", "torch._dynamo.graph_break()"),
    "loop_break-compiled-forward": ("graph break: ", "mlp", 'print(end="")'),  # Dynamo leaves all of `forward` alone
    "item-compiled-forward": ("graph break: ", "mlp", "u[0, 0, 0].item()"),  # and warns of it
    "contiguous-compiled-forward": ("another kernel: cpp_fused_", "mlp", "u = u.transpose(1, 2).contiguous()"),
}


def test_failure_names_the_cause_first_and_the_line_second(tmp_path: Path) -> None:
    said, results = run_suite(tmp_path, [*PLANTED, "error-eager-forward"], "-m", "not timing")
    for workload, (cause, module, code) in PLANTED.items():
        found = failure(results, workload)
        assert found.cause.startswith(cause), found
        assert found.code.startswith(f"{module}  {line_of(code)}  "), found
    longest = longest_failure(said)
    assert len(longest) <= 12, "\n".join(longest)
    assert "profiler_st" not in said  # libkineto says that to the standard error
    assert "torch/_dynamo/" not in said  # and Dynamo this, to the log too
    assert "torch._dynamo.variables" not in said
    assert said.count(f"{line_of('h = h.view')} in forward: h = h.view(-1, 3, 7)") == 1
