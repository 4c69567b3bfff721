"""The tests that every suite gets: ``from kernelgauge.standard import *`` in a test file beside its `conftest.py`.

Their marks select them: ``pytest perf -m "not timing"`` needs no quiet machine.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from .judge import NUMERICS, RATIO
from .plugin.fixtures import WorkloadTest, skip_or_fail
from .run import Timer

if TYPE_CHECKING:
    from .workload import Workload

__all__ = [
    "test_device_time",
    "test_end_to_end_latency",
    "test_faster_than_other_variant",
    "test_host_dispatch_time",
    "test_kernels_and_graphs_are_as_declared",
    "test_result_matches_float64",
    "test_structure_is_that_of_the_baseline",
]


@pytest.mark.structure
@pytest.mark.usefixtures("run")
def test_kernels_and_graphs_are_as_declared(workload: Workload, kernelgauge_test: WorkloadTest) -> None:
    """Every expectation that holds for this machine, and nothing compiled again on fresh allocations."""
    kernelgauge_test.conclude(kernelgauge_test.session.judge_declared(workload))


@pytest.mark.structure
@pytest.mark.usefixtures("run")
def test_structure_is_that_of_the_baseline(workload: Workload, kernelgauge_test: WorkloadTest) -> None:
    """Kernels (names, order, launches) and counts, exactly."""
    kernelgauge_test.conclude(kernelgauge_test.session.judge_structure(workload))


@pytest.mark.timing
@pytest.mark.usefixtures("run")
def test_device_time(workload: Workload, kernelgauge_test: WorkloadTest) -> None:
    """Sum of kernel durations, cold L2."""
    kernelgauge_test.conclude(kernelgauge_test.session.judge_time(workload, Timer.DEVICE))


@pytest.mark.timing
@pytest.mark.usefixtures("run")
def test_faster_than_other_variant(workload: Workload, kernelgauge_ratio: WorkloadTest) -> None:
    """GPU time against that of another variant in this run, for each workload with `Workload.faster_than`. No baseline."""
    kernelgauge_ratio.conclude(kernelgauge_ratio.ask(kernelgauge_ratio.session.judge_ratio, workload, subject=RATIO))


@pytest.mark.timing
@pytest.mark.usefixtures("run")
def test_host_dispatch_time(workload: Workload, kernelgauge_test: WorkloadTest) -> None:
    """Host time until the call returns, on an idle device."""
    if Timer.HOST not in kernelgauge_test.session.device.timers:
        pytest.skip("host dispatch time has no meaning here: the host does the work itself")
    kernelgauge_test.conclude(kernelgauge_test.session.judge_time(workload, Timer.HOST))


@pytest.mark.timing
@pytest.mark.usefixtures("run")
@pytest.mark.benchmark(disable_gc=True)
def test_end_to_end_latency(
    workload: Workload, kernelgauge_test: WorkloadTest, benchmark: Any, request: pytest.FixtureRequest
) -> None:
    """Host time from the call to its synchronised result, cold L2: pytest-benchmark's rounds."""
    session, subject = kernelgauge_test.session, Timer.END_TO_END.label
    if benchmark.disabled and session.options.worker is not None and not request.config.getoption("benchmark_disable"):
        # pytest-benchmark switches itself off in every worker of pytest-xdist, and calls once what it is given.
        kernelgauge_test.ask(benchmark.pedantic, session.time_latency, (workload,), subject=subject)
        kernelgauge_test.conclude(session.judge_time(workload, Timer.END_TO_END))
        return
    rounds = session.rounds(workload)

    def measure() -> None:
        with rounds.torch_set_up():
            benchmark.pedantic(rounds.call, setup=rounds.setup, rounds=rounds.total, iterations=1, warmup_rounds=0)

    kernelgauge_test.ask(measure, subject=subject)
    if benchmark.disabled:
        skip_or_fail(request.node, session, "pytest-benchmark is disabled, so nothing was timed")
    durations_s = benchmark.stats.stats.data
    kernelgauge_test.ask(session.keep_latency, workload, rounds, durations_s, subject=subject)
    verdict = session.judge_time(workload, Timer.END_TO_END)
    benchmark.extra_info["kernelgauge_verdict"] = verdict.status.value
    kernelgauge_test.conclude(verdict)


@pytest.mark.numerics
def test_result_matches_float64(workload: Workload, kernelgauge_test: WorkloadTest) -> None:
    """The workload computes the same function as its reference in float64, on fresh random input."""
    session = kernelgauge_test.session
    seed = secrets.randbits(32) if session.options.seed is None else session.options.seed

    def judge() -> Any:
        return session.judge_numerics(workload, seed=seed)

    kernelgauge_test.conclude(kernelgauge_test.ask(judge, subject=NUMERICS))
