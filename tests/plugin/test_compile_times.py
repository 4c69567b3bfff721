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


def measured(folder: Path, *arguments: str, **environment: str) -> dict[str, WorkloadResult]:
    """The results of a run of the suite with all compile times, by workload."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--perf-compile", *arguments]
    subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False)
    return {each.id: each for each in read_results(folder / "reports" / "latest" / "results.json").workloads}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose baselines have compile times."""
    folder = tmp_path_factory.mktemp("compiles")
    (folder / "conftest.py").write_text(SUITE)
    (folder / "test_suite.py").write_text("from kernelgauge.standard import *\n")
    (folder / "pytest.ini").write_text("[pytest]\nkernelgauge_replicates = 2\n")
    measured(folder, "--perf-update")
    return folder


def test_compile_is_timed_and_counted_where_code_is_compiled(project: Path) -> None:
    results = measured(project, "-k", "structure or compile")
    runs = {name: each.run for name, each in results.items()}
    inductor = runs[INDUCTOR]
    assert inductor is not None
    cold, warm = (inductor.time_us(timer) for timer in COMPILE_TIMERS)
    assert warm < cold
    assert (inductor.counts.generated_kernels or 0) > 0
    assert inductor.counts.uncached_graphs == 0
    assert runs[EAGER] is not None
    assert not set(COMPILE_TIMERS) & set(runs[EAGER].samples)


def test_compile_that_becomes_slower_fails(project: Path) -> None:
    verdicts = measured(project, "-k", "own", FAULT="1")[OWN].verdicts
    compiles = [in_full(each) for each in verdicts if "compile" in each.subject]
    assert all("REGRESSED" in text for text in compiles)
    assert len(compiles) == len(COMPILE_TIMERS)


def test_compile_that_finds_no_cache_fails(project: Path) -> None:
    verdicts = measured(project, "-k", "inductor", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")[INDUCTOR].verdicts
    texts = {each.subject: in_full(each) for each in verdicts}
    assert "uncached graphs 0 -> 1" in texts["structure"]
    assert "REGRESSED" in texts["warm compile"]
