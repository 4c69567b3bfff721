"""Measured for real on the CPU: other people's functions, their arguments and outputs, and ratios of variants."""

from __future__ import annotations

import pytest

from tests.plugin.inner_project import VERDICT, Case, junit_cases

pytestmark = pytest.mark.timeout(600)

SUITE = """
from dataclasses import dataclass, replace
from functools import partial
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

def inputs():
    return (torch.randn(64, 8),)

def nothing():
    return ()

def pytest_kernelgauge_workloads():
    square = torch.rand(256, 256) / 256
    once, often = (Workload.from_callable(power, square, times) for times in (1, 8))
    return [
        Workload("head", "eager", Head, head_inputs, dtype="fp32", pass_="train"),
        Workload("dropout", "train", lambda: nn.Dropout(0.5), inputs, dtype="fp32"),
        Workload("dropout", "eval", lambda: nn.Dropout(0.5).eval(), inputs, dtype="fp32"),
        Workload("in_place", "eager", lambda: partial(torch.mul, other=2), inputs, dtype="fp32"),
        Workload("closure", "eager", lambda: lambda: square + 1, nothing, dtype=None),
        Workload.from_callable(rms_norm, torch.randn(4, 8), (8,), eps=1e-6),
        replace(once, variant="once", faster_than="often", by=0.2),
        replace(often, variant="often", faster_than="once"),
    ]
"""
NUMERICS, RATIO = "test_result_matches_float64", "test_faster_than_other_variant"


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Case]:
    """The tests of one real run, by their names and workloads."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("suite")
    (folder / "conftest.py").write_text(SUITE)
    (folder / "test_perf.py").write_text("from kernelgauge.standard import *\n")
    (folder / "pytest.ini").write_text("[pytest]\nkernelgauge_device = cpu\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--junitxml=junit.xml",
        "-p",
        "kernelgauge.plugin",
        "-m",
        "not structure",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    return {(case.name, case.parameters): case for case in junit_cases(folder / "junit.xml")}


@pytest.mark.parametrize(
    "workload", ["head-eager-train-fp32", "dropout-eval-fp32", "in_place-eager-fp32", "rms_norm-torch-4x8"]
)
def test_keywords_dataclasses_and_functions_are_compared(cases: dict[tuple[str, str], Case], workload: str) -> None:
    assert cases[NUMERICS, workload].properties[VERDICT] == "PASS"
    assert cases["test_device_time", workload].properties[VERDICT] == "NO_BASELINE"


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("dropout-train-fp32", ["its result is random", "eval() mode"]),
        ("closure-eager", ["nothing to be compared with", "a reference, or the tensors among its inputs"]),
    ],
)
def test_numerics_without_a_reference_are_not_judged(
    cases: dict[tuple[str, str], Case], workload: str, said: list[str]
) -> None:
    case = cases[NUMERICS, workload]
    assert (case.outcome, case.properties[VERDICT]) == ("skipped", "NOT_JUDGED")
    assert all(text in case.message for text in said)


def test_slower_variant_fails_its_ratio(cases: dict[tuple[str, str], Case]) -> None:
    slow = cases[RATIO, "power-often-256x256"]
    assert (slow.outcome, slow.properties[VERDICT]) == ("failure", "REGRESSED")
    assert "not faster than once: CPU time" in slow.message
    assert "kernelgauge diff reports/latest/traces/power-once-256x256.json.gz" in slow.message


def test_faster_variant_passes_without_a_baseline(cases: dict[tuple[str, str], Case]) -> None:
    fast = cases[RATIO, "power-once-256x256"]
    assert (fast.outcome, fast.properties[VERDICT]) == ("passed", "PASS")


def test_workload_without_a_ratio_has_no_such_test(cases: dict[tuple[str, str], Case]) -> None:
    assert {workload for name, workload in cases if name == RATIO} == {"power-once-256x256", "power-often-256x256"}
