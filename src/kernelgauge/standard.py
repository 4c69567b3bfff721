"""The tests that every suite gets: ``from kernelgauge.standard import *`` in a test file beside its `conftest.py`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from .fixtures import not_run
from .judge import DECLARED, Reason, Status, Verdict, applicable, mismatches
from .run import Run, Timer

if TYPE_CHECKING:
    from .gauge import Gauge
    from .workload import Workload

__all__ = [
    "test_device_time",
    "test_end_to_end_latency",
    "test_host_dispatch_time",
    "test_kernels_and_graphs_are_as_declared",
    "test_result_matches_float64",
    "test_structure_is_that_of_the_baseline",
]

# What a calibration runs of a suite: each timer, and the check that the workload is what it is meant to be.
MEASURING = frozenset(
    {
        "test_device_time",
        "test_end_to_end_latency",
        "test_host_dispatch_time",
        "test_kernels_and_graphs_are_as_declared",
    }
)

# Ours that judge no time which is confirmed where it is measured: for them alone nothing needs to be.
JUDGING_OTHERS = frozenset(
    {
        "test_end_to_end_latency",
        "test_kernels_and_graphs_are_as_declared",
        "test_result_matches_float64",
        "test_structure_is_that_of_the_baseline",
    }
)

Conclude = Callable[..., None]
Available = Callable[[Callable[[], Any]], Any]


def test_kernels_and_graphs_are_as_declared(workload: Workload, run: Run, gauge: Gauge, conclude: Conclude) -> None:
    """Every expectation that holds for this machine, and nothing compiled again on fresh allocations."""
    wrong = [
        line
        for expectation in applicable(workload.expectations, run.fingerprint)
        for line in mismatches(expectation, run)
    ]
    if run.counts.graph_breaks != workload.graph_breaks:
        wrong.append(f"graph breaks: got {run.counts.graph_breaks}, expected {workload.graph_breaks}")
    if run.counts.recompiles:
        wrong.append(f"recompiles: got {run.counts.recompiles}, expected 0 on fresh allocations of one shape")
    status = Status.REGRESSED if wrong else Status.PASS
    headline = "not what the workload declares" if wrong else "as declared"
    # Beside the results, as they name it: a path of this machine says nothing to who reads them elsewhere.
    trace = Reason("trace", gauge.artifacts.trace(workload).relative_to(gauge.artifacts.folder).as_posix())
    reasons = (*(Reason("why", line) for line in wrong), trace) if wrong else ()
    verdict = gauge.conclude(Verdict(status, workload.id, DECLARED, headline, reasons))
    conclude(verdict, by_baseline=False)  # what is declared is code, and no baseline overrules it


@pytest.mark.usefixtures("run")
def test_structure_is_that_of_the_baseline(workload: Workload, gauge: Gauge, conclude: Conclude) -> None:
    """Kernels (names, order, launches) and counts, exactly."""
    conclude(gauge.judge_structure(workload))


@pytest.mark.usefixtures("run")
def test_device_time(workload: Workload, gauge: Gauge, conclude: Conclude) -> None:
    """Sum of kernel durations, cold L2."""
    conclude(gauge.judge_time(workload, Timer.DEVICE))


@pytest.mark.usefixtures("run")
def test_host_dispatch_time(workload: Workload, gauge: Gauge, conclude: Conclude) -> None:
    """Host time until the call returns, on an idle device."""
    if Timer.HOST not in gauge.observed.device.timers:
        pytest.skip("host dispatch time has no meaning here: the host does the work itself")
    conclude(gauge.judge_time(workload, Timer.HOST))


@pytest.mark.usefixtures("run")
@pytest.mark.benchmark(disable_gc=True)
def test_end_to_end_latency(
    workload: Workload,
    gauge: Gauge,
    conclude: Conclude,
    available: Available,
    benchmark: Any,
    request: pytest.FixtureRequest,
) -> None:
    """Host time from the call to its synchronised result, cold L2: pytest-benchmark's rounds."""
    if benchmark.disabled and gauge.options.worker is not None and not request.config.getoption("benchmark_disable"):
        # pytest-benchmark switches itself off in every worker of pytest-xdist, and calls once what it is given.
        available(lambda: benchmark.pedantic(gauge.observed.time_latency, args=(workload,)))
        conclude(gauge.judge_time(workload, Timer.END_TO_END))
        return
    rounds = gauge.observed.rounds(workload)

    def measure() -> None:
        with rounds.grad_mode():
            benchmark.pedantic(rounds.call, setup=rounds.setup, rounds=rounds.total, iterations=1, warmup_rounds=0)

    available(measure)
    if benchmark.disabled:
        not_run(request.node, gauge, "pytest-benchmark is disabled, so nothing was timed")
    available(lambda: gauge.observed.keep_latency(workload, rounds, benchmark.stats.stats.data))
    verdict = gauge.judge_time(workload, Timer.END_TO_END)
    benchmark.extra_info["kernelgauge_verdict"] = verdict.status.value
    conclude(verdict)


def test_result_matches_float64(workload: Workload, gauge: Gauge, available: Available, conclude: Conclude) -> None:
    """The workload computes the same function as its reference in float64, on fresh random input."""
    seed = secrets.randbits(32)
    errors = available(lambda: gauge.errors_of_result(workload, seed=seed))
    wrong = [error for error in errors if not error.within_bound]  # NaN is within no bound
    status = Status.REGRESSED if wrong else Status.PASS
    headline = "not the function of its reference in float64" if wrong else "within bounds of float64"
    reasons = (*(Reason("why", str(error)) for error in wrong), Reason("seed", str(seed))) if wrong else ()
    conclude(gauge.conclude(Verdict(status, workload.id, "numerics", headline, reasons)), by_baseline=False)
