"""The fixtures that a suite's tests ask for, and how a test of a workload ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import pytest

from ..errors import KernelgaugeError, WorkloadUnavailable
from ..judge import MEASUREMENT, Status, Verdict
from ..run import Run
from ..workload import Workload
from .session import Session

__all__ = [
    "SESSION",
    "SUBJECT",
    "Sibling",
    "WorkloadTest",
    "kernelgauge_ratio",
    "kernelgauge_test",
    "run",
    "sibling",
    "skip_or_fail",
    "trace_file",
    "workload",
]

SESSION = pytest.StashKey[Session]()
SUBJECT = pytest.StashKey["str | None"]()  # of the verdict that a phase of a test ended with
_T = TypeVar("_T")


class Sibling(Protocol):
    """Return the run of the workload that differs in these fields only: ``sibling(variant="eager")``."""

    def __call__(self, **fields: object) -> Run: ...


@pytest.fixture(scope="session")
def workload(request: pytest.FixtureRequest) -> Workload:
    """One workload of the suite of this folder. Ask for it, and the test runs once for each."""
    if not hasattr(request, "param"):
        pytest.fail("no pytest_kernelgauge_workloads in a conftest.py of this folder or above it", pytrace=False)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def run(kernelgauge_test: WorkloadTest) -> Run:
    """Return the measurements of the workload. All workloads are built, profiled and timed at first demand, once a session."""
    return kernelgauge_test.ask(kernelgauge_test.session.run, kernelgauge_test.workload)


@pytest.fixture
def sibling(kernelgauge_test: WorkloadTest) -> Sibling:
    """Return the run of another workload of the suite, which differs in the given fields only: ``sibling(variant="eager")``."""
    session, workload = kernelgauge_test.session, kernelgauge_test.workload

    def sibling_run(**fields: object) -> Run:
        name = kernelgauge_test.item.name.partition("[")[
            0
        ]  # if it fails, that is no verdict on this workload's own run
        return kernelgauge_test.ask(lambda: session.run(session.suites.sibling(workload, **fields)), subject=name)

    return sibling_run


@pytest.fixture
def trace_file(run: Run, kernelgauge_test: WorkloadTest) -> Path:
    """Return the path of the workload's trace, ``.json.gz``. The profiler's own table lies beside it, with ``.txt``."""
    assert run.workload == kernelgauge_test.workload.id
    return kernelgauge_test.session.artifacts.trace(kernelgauge_test.workload)


@pytest.fixture
def kernelgauge_test(request: pytest.FixtureRequest, workload: Workload) -> WorkloadTest:
    """Private: what the standard tests are made of."""
    return WorkloadTest(request.node, request.config.stash[SESSION], workload)


@pytest.fixture
def kernelgauge_ratio(kernelgauge_test: WorkloadTest) -> WorkloadTest:
    """Private: likewise, for the workloads alone that say which variant they are faster than."""
    return kernelgauge_test


@dataclass(frozen=True)
class WorkloadTest:
    """One test of one workload, and how it ends."""

    item: pytest.Item
    session: Session
    workload: Workload

    def ask(self, function: Callable[..., _T], *arguments: Any, subject: str = MEASUREMENT) -> _T:
        """Call a function that measures.

        If the workload cannot run here, the test is skipped. If measuring fails, the test fails with an INVALID verdict
        on `subject`.
        """
        try:
            return function(*arguments)
        except KernelgaugeError as raised:
            error = raised
        # Outside of the handler: within it pytest would print the error and then its own failure, both in full.
        if isinstance(error, WorkloadUnavailable):
            skip_or_fail(self.item, self.session, error.one_line, detail=str(error))
        self._end(self.session.conclude_error(self.workload, subject, error))
        first = self.session.errors_shown.setdefault(str(error), self.item.name)
        pytest.fail(str(error) if first == self.item.name else f"{error.what}: see {first}", pytrace=False)

    def conclude(self, verdict: Verdict) -> None:
        """End the test with a verdict: passed, failed or skipped."""
        self._end(verdict)
        self.item.user_properties += [("kernelgauge_reason", verdict.headline), *_times(verdict)]
        accepts = self.session.options.accepts
        if self.session.fails(verdict):
            in_full = self.item.config.get_verbosity() > 0
            pytest.fail(self.session.failure(verdict, self.item.name, in_full=in_full), pytrace=False)
        if verdict.status is Status.NO_BASELINE and not accepts:
            pytest.skip(self.session.how_to_record())  # the same words for each test: pytest folds them into one line
        if verdict.status is Status.NOT_JUDGED or (not verdict.status.decided and not accepts):
            pytest.skip(str(verdict))

    def _end(self, verdict: Verdict) -> None:
        self.item.stash[SUBJECT] = verdict.subject
        self.item.user_properties.append(("kernelgauge_verdict", verdict.status.value))


def skip_or_fail(item: pytest.Item, session: Session, reason: str, *, detail: str | None = None) -> NoReturn:
    """Skip a test of what cannot be done here; with --perf-strict, fail it. Neither is a verdict."""
    item.user_properties.append(("kernelgauge_not_run", reason))
    if session.options.strict:
        pytest.fail(detail or reason, pytrace=False)
    pytest.skip(reason)


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
