"""The fixtures that a suite's tests ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from .errors import KernelgaugeError, WorkloadUnavailable
from .gauge import Gauge
from .judge import Status, Verdict
from .workload import Workload

if TYPE_CHECKING:
    from .run import Run

__all__ = [
    "GAUGE_KEY",
    "attach_verdict",
    "available",
    "bare_name",
    "conclude",
    "gauge",
    "not_run",
    "run",
    "workload",
    "workload_of",
]

GAUGE_KEY = pytest.StashKey[Gauge]()
_VERDICT, _NOT_RUN = "kernelgauge_verdict", "kernelgauge_not_run"  # properties of a test


def workload_of(item: pytest.Item) -> Workload | None:
    """The workload that a test runs for; None for a test of something else."""
    callspec = getattr(item, "callspec", None)
    value = callspec.params.get("workload") if callspec else None
    return value if isinstance(value, Workload) else None


def bare_name(item: pytest.Item) -> str:
    """A test's name without its parameters."""
    return item.name.partition("[")[0]


def attach_verdict(item: pytest.Item, status: Status) -> None:
    item.user_properties.append((_VERDICT, status.value))


def not_run(item: pytest.Item, gauge: Gauge, why: str, *, told: str | None = None) -> NoReturn:
    """Ends a test of what cannot be done here: skipped, and failed under --perf-strict. Neither is a verdict.

    `told`: what the failure says, if it is more than `why`.
    """
    item.user_properties.append((_NOT_RUN, why))
    if gauge.options.strict:
        pytest.fail(told or why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def gauge(request: pytest.FixtureRequest) -> Gauge:
    """What this run of pytest measured and concluded so far."""
    return request.config.stash[GAUGE_KEY]


@pytest.fixture(scope="session")
def workload(request: pytest.FixtureRequest) -> Workload:
    """One workload of the suite of this folder. Ask for it, and the test runs once for each."""
    if not hasattr(request, "param"):
        pytest.fail("no pytest_kernelgauge_workloads in a conftest.py of this folder or above it", pytrace=False)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def run(workload: Workload, gauge: Gauge, available: Callable[[Callable[[], Run]], Run]) -> Run:
    """What was observed of the workload: it is built, profiled and timed at first demand, once a session."""
    return available(lambda: gauge.observed.run(workload))


@pytest.fixture
def available(request: pytest.FixtureRequest, gauge: Gauge) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function; what it cannot do on this machine skips the test, and fails it under --perf-strict."""

    def call(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except KernelgaugeError as raised:
            error = raised
        # Outside of the handler: within it pytest would print the error and then its own failure, both in full.
        if isinstance(error, WorkloadUnavailable):
            not_run(request.node, gauge, error.one_line, told=str(error))
        attach_verdict(request.node, Status.INVALID)
        workload = workload_of(request.node)
        if workload is not None:
            gauge.conclude(Verdict(Status.INVALID, workload.id, bare_name(request.node), error.what))
        pytest.fail(str(error), pytrace=False)

    return call


@pytest.fixture
def conclude(request: pytest.FixtureRequest, gauge: Gauge) -> Callable[[Verdict], None]:
    """Ends a test with a verdict: passed, failed or skipped, and the verdict attached to the test's report."""

    def end(verdict: Verdict, *, by_baseline: bool = True) -> None:
        attach_verdict(request.node, verdict.status)
        request.node.user_properties += [("kernelgauge_reason", verdict.headline), *_times(verdict)]
        if gauge.must_fail(verdict.status, by_baseline=by_baseline):
            pytest.fail(str(verdict), pytrace=False)
        if verdict.status is Status.NO_BASELINE and not gauge.options.accepts:
            pytest.skip(gauge.how_to_record())  # the same words for each test, so that pytest folds them into one line
        if verdict.status is Status.NOT_JUDGED or (not verdict.status.decided and not gauge.options.accepts):
            pytest.skip(str(verdict))

    return end


def _times(verdict: Verdict) -> list[tuple[str, str]]:
    """Return what a time's verdict adds to the test's properties, and so to pytest's --junitxml."""
    change = verdict.change
    values = {
        "us": verdict.after_us,
        "baseline_us": verdict.before_us,
        "change_percent": change and 100 * change.estimate,
        "sensitivity_percent": change and change.sensitivity and 100 * change.sensitivity,
    }
    return [(f"kernelgauge_{name}", f"{value:.6g}") for name, value in values.items() if value is not None]
