"""The tests that every suite gets: ``from kernelgauge.standard import *`` in a test file beside its `conftest.py`.

Their marks select them: ``pytest perf -m "not timing"`` needs no quiet machine.
"""

from __future__ import annotations

from typing import Any

import pytest

from .judge import NUMERICS, RATIO
from .plugin.fixtures import WorkloadTest
from .run import Timer

__all__ = [
    "test_cold_compile_time",
    "test_device_time",
    "test_end_to_end_latency",
    "test_faster_than_other_variant",
    "test_host_dispatch_time",
    "test_kernels_and_graphs_are_as_declared",
    "test_result_matches_float64",
    "test_structure_is_that_of_the_baseline",
    "test_warm_compile_time",
]


@pytest.mark.structure
def test_kernels_and_graphs_are_as_declared(kernelgauge_test: WorkloadTest) -> None:
    """Every expectation that holds for this machine, and nothing compiled again on fresh allocations."""
    kernelgauge_test.judge(kernelgauge_test.session.judge_declared)


@pytest.mark.structure
def test_structure_is_that_of_the_baseline(kernelgauge_test: WorkloadTest) -> None:
    """Kernels (names, order, launches) and counts, exactly."""
    kernelgauge_test.judge(kernelgauge_test.session.judge_structure)


@pytest.mark.timing
def test_device_time(kernelgauge_test: WorkloadTest) -> None:
    """Sum of kernel durations, cold L2."""
    kernelgauge_test.ask(kernelgauge_test.session.run, kernelgauge_test.workload)
    if Timer.DEVICE not in kernelgauge_test.session.device.timers:
        pytest.skip("a CPU has no GPU time: that of its ops is shown, and no verdict")
    kernelgauge_test.judge(kernelgauge_test.session.judge_time, Timer.DEVICE)


@pytest.mark.timing
def test_faster_than_other_variant(kernelgauge_ratio: WorkloadTest) -> None:
    """GPU time against that of another variant in this run, for each workload with `Workload.faster_than`. No baseline."""
    kernelgauge_ratio.judge(kernelgauge_ratio.session.judge_ratio, subject=RATIO)


@pytest.mark.timing
@pytest.mark.usefixtures("run")
def test_host_dispatch_time(kernelgauge_test: WorkloadTest) -> None:
    """Host time until the call returns, on an idle device."""
    if Timer.HOST not in kernelgauge_test.session.device.timers:
        pytest.skip("host dispatch time has no meaning here: the host does the work itself")
    kernelgauge_test.judge(kernelgauge_test.session.judge_time, Timer.HOST)


@pytest.mark.timing
@pytest.mark.usefixtures("run")
@pytest.mark.benchmark(disable_gc=True)
def test_end_to_end_latency(kernelgauge_test: WorkloadTest, benchmark: Any, request: pytest.FixtureRequest) -> None:
    """Host time from the call to its synchronised result, cold L2: pytest-benchmark's rounds."""
    session, workload = kernelgauge_test.session, kernelgauge_test.workload
    # pytest-benchmark switches itself off in every worker of pytest-xdist, and calls once what it is given.
    times_here = session.options.worker and not request.config.getoption("benchmark_disable")

    def measure() -> None:
        rounds = session.rounds(workload)
        if times_here:
            durations_s = benchmark.pedantic(rounds.durations_s)
        else:
            with rounds.torch_set_up():
                benchmark.pedantic(rounds.call, setup=rounds.setup, rounds=rounds.total, iterations=1, warmup_rounds=0)
            durations_s = [] if benchmark.disabled else benchmark.stats.stats.data
        if durations_s:
            session.keep_latency(workload, rounds, durations_s)

    kernelgauge_test.ask(measure, subject=Timer.END_TO_END.label)
    if benchmark.disabled and not times_here:
        kernelgauge_test.skip_or_fail("pytest-benchmark is disabled, so nothing was timed")
    kernelgauge_test.judge(session.judge_time, Timer.END_TO_END)


@pytest.mark.timing
def test_cold_compile_time(kernelgauge_compile: WorkloadTest) -> None:
    """Host time of a first call that compiles with empty caches: --perf-compile measures it."""
    kernelgauge_compile.judge(kernelgauge_compile.session.judge_time, Timer.COLD_COMPILE)


@pytest.mark.timing
def test_warm_compile_time(kernelgauge_compile: WorkloadTest) -> None:
    """Host time of a first call that finds its code in the caches: --perf-compile measures it."""
    kernelgauge_compile.judge(kernelgauge_compile.session.judge_time, Timer.WARM_COMPILE)


@pytest.mark.numerics
def test_result_matches_float64(kernelgauge_test: WorkloadTest) -> None:
    """The workload computes the same function as its reference in float64, on fresh random input."""
    kernelgauge_test.judge(kernelgauge_test.session.judge_numerics, subject=NUMERICS)
