"""Measured for real on the CPU: how long workloads take to compile, with empty caches and with full
ones.
"""

import pytest

from kernelgauge.measure import runner
from kernelgauge.report.findings import in_full
from kernelgauge.results import WorkloadResult, read_results
from kernelgauge.run import COMPILE_TIMERS
from tests.commands.conftest import Command

pytestmark = pytest.mark.timeout(600)

SUITE = """
import os, time
import torch
from torch import nn
from kernelgauge import Workload

IS_FAULTY = "FAULT" in os.environ

def backend(graph, inputs):
    time.sleep(1.0 if IS_FAULTY else 0.05)
    return graph.forward

def lost(graph, inputs):
    lost.calls = getattr(lost, "calls", 0) + 1
    if lost.calls > 1:
        raise RuntimeError("no second compile")
    return graph.forward

def workload(variant, compile):
    inputs = lambda: (torch.randn(4, 8),)
    build = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return Workload("layer", variant, build, inputs, dtype="fp32", compile=compile)

def pytest_kernelgauge_workloads():
    inductor = {"options": {"fx_graph_cache": not IS_FAULTY}}
    return [workload("eager", None), workload("inductor", inductor), workload("own", {"backend": backend}),
            workload("lost", {"backend": lost})]
"""
EAGER, INDUCTOR, OWN, LOST = (
    f"layer-{variant}-fp32" for variant in ("eager", "inductor", "own", "lost")
)


def test_compile_is_timed_and_counted_and_fails_where_it_became_worse(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kernelgauge: Command
) -> None:
    def measured(but: str = "none") -> dict[str, WorkloadResult]:
        pytester.runpytest_inprocess(
            "--perf-compile", "-k", f"(compile or structure or declared) and not ({but})"
        )
        return {
            each.id: each
            for each in read_results(pytester.path / "reports/latest/results.json").workloads
        }

    monkeypatch.setattr(runner, "_START_SECONDS", 0.0)  # the fewest starts
    pytester.makeconftest(SUITE)
    pytester.makepyfile(test_suite="from kernelgauge.standard import *")
    pytester.makeini("[pytest]\nkernelgauge_replicates = 2\naddopts = --perf-device=cpu\n")
    sound = measured()
    runs = {name: each.run for name, each in sound.items() if each.run is not None}
    assert not set(COMPILE_TIMERS) & set(runs[EAGER].samples)
    cold, warm = (runs[INDUCTOR].time_us(timer) for timer in COMPILE_TIMERS)
    assert warm < cold
    assert (runs[INDUCTOR].counts.generated_kernels, runs[INDUCTOR].counts.uncached_graphs) == (
        1,
        0,
    )
    assert LOST in runs  # what was measured before stays
    assert "no second compile" in str(sound[LOST].verdict("cold compile"))

    kernelgauge("accept", "--force")  # also of a busy machine
    monkeypatch.setenv("FAULT", "1")
    planted = measured(but="lost or eager")
    said = {
        (each.id, one.subject): in_full(one) for each in planted.values() for one in each.verdicts
    }
    assert "uncached graphs 0 -> 1" in said[INDUCTOR, "structure"]
    for name, subject in ((OWN, "cold compile"), (OWN, "warm compile"), (INDUCTOR, "warm compile")):
        assert "REGRESSED" in said[name, subject]
