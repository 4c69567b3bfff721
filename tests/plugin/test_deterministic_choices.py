"""kernelgauge_deterministic: Inductor chooses launch configurations without timing them, where this torch can."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config as inductor

SUITE = """
import torch
import torch._inductor.config
from kernelgauge import Workload

def build():
    print("deterministic:", torch._inductor.config.deterministic)
    return torch.nn.Linear(4, 4)

def pytest_kernelgauge_workloads():
    return [Workload("tiny", "eager", build=build, inputs=lambda: (torch.randn(2, 4),))]
"""
TEST = """
def test_choices(workload, run):
    print("deterministic:", run.fingerprint.deterministic)
"""


def measure(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    pytester.makeconftest(SUITE)
    pytester.makepyfile(TEST)
    return pytester.runpytest_inprocess("--perf-device", "cpu", "-rP", *options)


@pytest.mark.parametrize("asked", [False, True])
def test_deterministic_switch_is_set_on_demand(pytester: pytest.Pytester, asked: bool) -> None:
    result = measure(pytester, *(["-o", "kernelgauge_deterministic=true"] if asked else []))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"deterministic: {asked}"] * 2)
    assert not inductor.deterministic  # after the session, as before it


def test_older_torch_is_named_and_measures_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    older = SimpleNamespace()
    monkeypatch.setattr(torch._inductor, "config", older)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", older)
    result = measure(pytester, "-o", "kernelgauge_deterministic=true")
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
