"""The command that records what has no baseline yet, beside a test that fails."""

import re
import shlex

import pytest

from tests.plugin.inner_project import Run

TESTS = """
import os, pytest, torch

pytestmark = pytest.mark.kernelgauge(timing=False)

def test_{first}(kernelgauge):
    kernelgauge(torch.relu, torch.ones(8))

def test_worse(kernelgauge):
    kernelgauge(lambda x: x.sin().cos() if "WORSE" in os.environ else x.sin(), torch.ones(8))
"""


def test_command_stores_no_other_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    pytester.makepyfile(test_x=TESTS.format(first="one"))
    assert "2 written" in run("--perf-update")
    pytester.makepyfile(test_x=TESTS.format(first="renamed"))
    monkeypatch.setenv("WORSE", "1")
    said = run()
    assert "test_x-test_worse: REGRESSED" in said
    (command,) = set(re.findall(r"record one with: pytest (.+)", said.partition("CPU ")[2]))
    assert "1 written" in run(*shlex.split(command))
    assert "1 failed, 1 passed" in run()
