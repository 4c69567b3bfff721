"""Measured for real on the CPU: how long workloads take to compile, with empty caches and with full ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelgauge.report.findings import in_full
from kernelgauge.results import WorkloadResult, read_results
from kernelgauge.run import COMPILE_TIMERS

pytestmark = pytest.mark.timeout(600)

SUITE = """
import os, time
import torch
from torch import nn
from kernelgauge import Workload

def backend(graph, inputs):
    time.sleep(1.0 if "FAULT" in os.environ else 0.05)
    return graph.forward

def workload(variant, compile):
    inputs = lambda: (torch.randn(4, 8),)
    return Workload("layer", variant, lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()), inputs, dtype="fp32", compile=compile)

def pytest_kernelgauge_workloads():
    return [workload("eager", None), workload("inductor", {}), workload("own", {"backend": backend})]
"""
EAGER, INDUCTOR, OWN = (f"layer-{variant}-fp32" for variant in ("eager", "inductor", "own"))


Measured = dict[str, WorkloadResult]  # by workload


def measured(folder: Path, **environment: str) -> Measured:
    """The results of a run of the suite with all compile times."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--perf-compile", "-k", "compile"]
    command[-1] += " or structure or declared"
    subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, check=False)
    return {each.id: each for each in read_results(folder / "reports" / "latest" / "results.json").workloads}


@pytest.fixture(scope="module")
def sound_and_planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Measured]:
    """The runs of a suite without and with a slow backend and a compiler without its cache."""
    folder = tmp_path_factory.mktemp("compiles")
    (folder / "conftest.py").write_text(SUITE)
    (folder / "test_suite.py").write_text("from kernelgauge.standard import *\n")
    (folder / "pytest.ini").write_text("[pytest]\nkernelgauge_replicates = 2\n")
    sound = measured(folder)
    accept = [sys.executable, "-m", "kernelgauge", "accept", "--force"]  # also of a busy machine
    subprocess.run(accept, cwd=folder, capture_output=True, check=True)
    return sound, measured(folder, FAULT="1", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")


def test_compile_is_timed_and_counted_where_code_is_compiled(sound_and_planted: tuple[Measured, Measured]) -> None:
    sound, _ = sound_and_planted
    eager, inductor = sound[EAGER].run, sound[INDUCTOR].run
    assert eager is not None
    assert inductor is not None
    assert not set(COMPILE_TIMERS) & set(eager.samples)
    cold, warm = (inductor.time_us(timer) for timer in COMPILE_TIMERS)
    assert warm < cold
    assert (inductor.counts.generated_kernels, inductor.counts.uncached_graphs) == (1, 0)


def test_compile_that_became_worse_fails(sound_and_planted: tuple[Measured, Measured]) -> None:
    _, planted = sound_and_planted
    said = {(each.id, verdict.subject): in_full(verdict) for each in planted.values() for verdict in each.verdicts}
    assert "uncached graphs 0 -> 1" in said[INDUCTOR, "structure"]
    for name, subject in ((OWN, "cold compile"), (OWN, "warm compile"), (INDUCTOR, "warm compile")):
        assert "REGRESSED" in said[name, subject]
