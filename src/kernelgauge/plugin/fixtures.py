"""The fixtures that a suite's tests ask for, and how a test of a workload ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import pytest

from ..errors import KernelgaugeError, WorkloadUnavailable
from ..judge import MEASUREMENT, Status, Verdict
from ..report.findings import in_full
from ..report.words import headline
from ..run import Run
from ..workload import Workload
from .session import Session

SESSION = pytest.StashKey[Session]()
SUBJECT = pytest.StashKey["str | None"]()  # of the verdict that a phase of a test ended with
_T = TypeVar("_T")


class Sibling(Protocol):
    """Return the run of the workload that differs in these fields only: ``sibling(variant="eager")``."""

    def __call__(self, **fields: object) -> Run: ...


@pytest.fixture
def run(kernelgauge_test: WorkloadTest) -> Run:
    """Return the measurements of the workload. All workloads are built, profiled and timed at first demand, once a session."""
    return kernelgauge_test.ask(kernelgauge_test.session.run, kernelgauge_test.workload)


@pytest.fixture
def sibling(kernelgauge_test: WorkloadTest) -> Sibling:
    """Return the run of another workload of the suite, which differs in the given fields only: ``sibling(variant="eager")``."""
    session, workload = kernelgauge_test.session, kernelgauge_test.workload
    name = kernelgauge_test.item.name.partition("[")[0]  # its failure is no verdict on this workload's own run

    return lambda **fields: kernelgauge_test.ask(
        lambda: session.run(session.suites.sibling(workload, **fields)), subject=name
    )


@pytest.fixture
def trace_file(run: Run, kernelgauge_test: WorkloadTest) -> Path:
    """Return the path of the workload's trace, ``.json.gz``. The profiler's table lies beside it, ``.txt``, for a trace below 1 MB."""
    assert run.workload == kernelgauge_test.workload.id
    return kernelgauge_test.session.artifacts.trace(kernelgauge_test.workload)


@pytest.fixture
def kernelgauge_test(request: pytest.FixtureRequest, workload: Workload) -> WorkloadTest:
    """Private: what the standard tests are made of."""
    session = request.config.stash[SESSION]
    if not isinstance(workload, Workload) or workload.id not in session.suites.workloads:
        pytest.fail("another fixture called `workload` hides that of kernelgauge: rename it", pytrace=False)
    if request.config.option.setuponly:
        pytest.skip("--setup-only measures nothing")
    return WorkloadTest(request.node, session, workload)


@pytest.fixture
def kernelgauge_ratio(kernelgauge_test: WorkloadTest) -> WorkloadTest:
    """Private: likewise, for the workloads alone that say which variant they are faster than."""
    return kernelgauge_test


@pytest.fixture
def kernelgauge_compile(kernelgauge_test: WorkloadTest) -> WorkloadTest:
    """Private: likewise, for the workloads alone that are compiled, with --perf-compile."""
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
            self.skip_or_fail(error.one_line, detail=str(error))
        self._end(self.session.conclude_error(self.workload, subject, error))
        shown, node, name = self.session.errors_shown, self.item.nodeid, self.item.name
        first = shown.setdefault((self.workload.id, str(error)), node)
        # One failure of each workload; but a first test that may fail (xfail) has none.
        if first != node and any(test.outcome == "failed" for test in self.session.tests.get(first, ())):
            pytest.skip(f"{error.what}: see {first.rpartition('::')[2]}")
        first = shown.setdefault(("", str(error)), node)  # of any workload
        see = first.rpartition("::")[2]
        pytest.fail(str(error) if see == name else f"{error.what}: see {see}", pytrace=False)

    def judge(self, function: Callable[..., Verdict], *arguments: Any, subject: str = MEASUREMENT) -> None:
        """End the test with the verdict of a function on its workload."""
        self.conclude(self.ask(function, self.workload, *arguments, subject=subject))

    def conclude(self, verdict: Verdict) -> None:
        """Keep a verdict, and end the test with it: passed, failed or skipped."""
        self._end(self.session.conclude(verdict))
        change = verdict.change
        for name, value in (  # of a time: pytest's --junitxml has them
            ("us", verdict.after_us),
            ("baseline_us", verdict.before_us),
            ("change_percent", change and 100 * change.estimate),
            ("sensitivity_percent", change and change.sensitivity and 100 * change.sensitivity),
        ):
            if value is not None:
                self.item.user_properties.append((f"kernelgauge_{name}", f"{value:.6g}"))
        if self.session.judge.fails(verdict):
            is_verbose = self.item.config.get_verbosity() > 0
            text = in_full(verdict) if is_verbose else self.session.failure(verdict, self.item.name)
            pytest.fail(text, pytrace=False)
        accepts = self.session.options.accepts
        if verdict.status is Status.NO_BASELINE and not accepts:
            pytest.skip(
                self.session.judge.how_to_record(self.session.fingerprint)
            )  # the same words for each test: pytest folds them into one line
        if verdict.status is Status.NOT_JUDGED or (not verdict.status.decided and not accepts):
            pytest.skip(in_full(verdict))

    def _end(self, verdict: Verdict) -> None:
        self.item.stash[SUBJECT] = verdict.subject
        self.item.user_properties.append(("kernelgauge_verdict", verdict.status.value))
        self.item.user_properties.append(("kernelgauge_reason", headline(verdict)))

    def skip_or_fail(self, reason: str, *, detail: str | None = None) -> NoReturn:
        """Skip a test of what cannot be done here; with --perf-strict, fail it. Neither is a verdict."""
        self.item.user_properties.append(("kernelgauge_not_run", reason))
        if self.session.options.strict:
            pytest.fail(detail or reason, pytrace=False)
        pytest.skip(reason)
