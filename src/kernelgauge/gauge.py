"""The state of one session: what was concluded of what was observed, what would be stored. It has this one owner."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .artifacts import Artifacts
from .baselines import BaselineStore
from .concluding import Judge, Stored, shown
from .errors import (
    KernelgaugeError,
    OtherKernelsError,
    StorageError,
    WorkloadUnavailable,
)
from .files import FolderLock
from .judge import (
    Baseline,
    Comparison,
    Reason,
    Status,
    Verdict,
    judge_structure,
    judge_time,
    not_measured,
)
from .observing import CONFIRMED_WHERE_MEASURED, Observed
from .results import Results, TestResult
from .run import Run, Timer
from .suites import Options, Suites
from .workload import Workload

if TYPE_CHECKING:
    from .measure.numerics import RelativeError
    from .measure.runner import Result

__all__ = ["Gauge"]


@dataclass
class Gauge:
    """Judges what is observed, and keeps what was concluded."""

    options: Options
    observed: Observed
    folder_lock: FolderLock | None = None  # None: another process of this run holds it, or nobody else is there
    verdicts: list[Verdict] = field(default_factory=list)
    _tests: dict[str, list[TestResult]] = field(default_factory=dict)  # by pytest's id: of a test, its last attempt
    unavailable: dict[str, str] = field(default_factory=dict)  # why a workload cannot run here, by id
    warnings: list[str] = field(default_factory=list)
    session: Any = None  # pytest's, for its exit status
    started: datetime | None = None  # UTC
    to_judge: set[str] = field(default_factory=set)  # ids of those of which a test may judge a device or dispatch time
    planned_workloads: int = 0  # in the suites, selected or not: -k changes no verdict
    suites: Suites = field(init=False)
    artifacts: Artifacts = field(init=False)

    def __post_init__(self) -> None:
        self.suites = Suites(self.options)
        self.artifacts = Artifacts(self.options.reports / "latest")
        if self.options.worker is not None:
            self.artifacts = self.artifacts.of_worker(self.options.worker.id)
        self.observed.suspects = self._suspects
        self.observed.arrived = self._arrived

    def _arrived(self, workload: Workload, result: Result) -> None:
        if isinstance(result, WorkloadUnavailable):
            self._cannot_run(workload, result)
        elif isinstance(result, KernelgaugeError):
            self.conclude(Verdict(Status.INVALID, workload.id, "measurement", result.what))
        else:
            try:
                self.artifacts.write(workload, result.trace_json, result.table)
            except StorageError as error:
                self.warnings.append(str(error))  # the measurement itself is sound, and is judged

    def _cannot_run(self, workload: Workload, error: WorkloadUnavailable) -> None:
        self.unavailable[workload.id] = error.one_line

    # -- what is concluded --------------------------------------------------------------------------------------

    @cached_property
    def store(self) -> BaselineStore:
        return BaselineStore(self.options.baselines)

    def errors_of_result(self, workload: Workload, *, seed: int) -> list[RelativeError]:
        """Against float64, as `compare_with_float64`; it builds the workload itself, so that it cannot run here is kept."""
        from .measure.numerics import compare_with_float64

        try:
            return compare_with_float64(workload, self.observed.device, seed=seed)
        except WorkloadUnavailable as error:
            self._cannot_run(workload, error)
            raise

    def judge_structure(self, workload: Workload) -> Verdict:
        """Judge kernels and counts against the baseline. One that cannot be used is INVALID."""
        return self._judge(workload, "structure", judge_structure)

    def judge_time(self, workload: Workload, timer: Timer) -> Verdict:
        """Judge one time against the baseline. A latency that looks slower is measured further first, once; all data count.

        The other times were confirmed where they were measured. A baseline that cannot be used is INVALID.
        """

        def judge(run: Run, baseline: Baseline, comparison: Comparison) -> Verdict:
            verdict = self._judged(timer, run, baseline, comparison)
            if verdict.status is not Status.REGRESSED or self.options.accepts:
                return verdict
            error = self.observed.confirm(workload, timer)
            if error is None:
                return self._judged(timer, self.observed.run(workload), baseline, comparison)
            return _not_judged(workload, timer, "not confirmed", error)

        run = self.observed.run(workload)
        other = self.observed.of_other_kernels(workload, timer)
        if other is not None:
            return self.conclude(_not_judged(workload, timer, "not compared", other))
        if run.incomplete is not None and run.sample(timer) is None:  # with a baseline or without one
            return self.conclude(not_measured(timer, run))
        return self._judge(workload, timer.label, judge)

    def _judged(self, timer: Timer, run: Run, baseline: Baseline, comparison: Comparison) -> Verdict:
        workload = self.suites.workload(run.workload)
        return judge_time(
            timer,
            run,
            baseline,
            comparison,
            comparisons=self.comparisons,
            sensitivity=self.sensitivity(workload).get(timer),
        )

    def sensitivity(self, workload: Workload) -> dict[Timer, float]:
        """Return the slowdown that a PASS may miss, as a fraction, by timer: the workload's, else the project's."""
        return {**self.options.sensitivity, **{Timer(name): value for name, value in workload.sensitivity.items()}}

    @property
    def comparisons(self) -> int:
        """How many times the suites of this run have, selected or not."""
        return max(1, self.planned_workloads) * len(self.observed.device.timers)

    def _suspects(self, runs: Mapping[str, Run]) -> set[str]:
        """Return the ids of those with a time that looks slower: it is measured further before it fails."""
        if self.options.accepts:
            return set()
        return {identifier for identifier in self.to_judge & runs.keys() if self._looks_slower(runs[identifier])}

    def _looks_slower(self, run: Run) -> bool:
        stored = self._stored(self.suites.workload(run.workload))
        return any(
            stored.verdict(run, timer.label, functools.partial(self._judged, timer)).status is Status.REGRESSED
            for timer in CONFIRMED_WHERE_MEASURED
            if run.sample(timer) is not None
        )

    def _judge(self, workload: Workload, subject: str, judge: Judge) -> Verdict:
        return self.conclude(self._stored(workload).verdict(self.observed.run(workload), subject, judge))

    def _stored(self, workload: Workload) -> Stored:
        return Stored(self.store, self.options.root, self.suites.command(workload), self.options.accepts)

    def conclude(self, verdict: Verdict) -> Verdict:
        """Keep a verdict for the summary, in place of an earlier one on the same subject."""
        about = verdict.workload, verdict.subject
        self.verdicts = [each for each in self.verdicts if (each.workload, each.subject) != about]
        self.verdicts.append(verdict)
        return verdict

    # -- how the tests ended ------------------------------------------------------------------------------------

    @property
    def tests(self) -> list[TestResult]:
        """Return each test that was called, skipped or failed, once or more: a test may fail after its call too."""
        return [each for results in self._tests.values() for each in results]

    def add_test(self, result: TestResult) -> None:
        self._tests.setdefault(result.node, []).append(result)

    def forget(self, node: str) -> None:
        """Drop what is known of a test: a plugin runs it again."""
        self._tests.pop(node, None)

    def must_fail(self, status: Status, *, by_baseline: bool = True) -> bool:
        """Whether a verdict fails its test, with the strictness that was asked for.

        `by_baseline`: what is declared in code is not accepted by an update.
        """
        if self.options.accepts and by_baseline:
            return status is Status.INVALID  # what differs is about to be accepted; what is not valid cannot be
        missing = status in (Status.NO_BASELINE, Status.INCOMPARABLE) and self.options.require_baseline
        return status.fails or missing or (self.options.strict and not status.decided)

    # -- what is written ----------------------------------------------------------------------------------------

    def prepare_folders(self) -> None:
        """Find out before minutes of measuring whether the results can be written. Raises `StorageError`."""
        if self.folder_lock is not None:
            self.folder_lock.hold(self.observed.waiting)
        self.artifacts.prepare()
        _ = self.observed.commit  # that of now: it may move while the suite runs
        if self.options.update:
            with self.store.locked():
                pass

    def how_to_record(self, results: Results | None = None) -> str:
        """What a test without a baseline says: which folder has none, and the command that records one.

        `results`: of the workers of pytest-xdist, where this process itself has measured nothing.
        """
        fingerprint = results.fingerprint if results and results.fingerprint else self.observed.fingerprint
        folder = shown(self.store.path(fingerprint.device, "x").parent, self.options.root)
        command = self.suites.command(suites=results.declared) if results else self.suites.command()
        return f"no baseline in {folder}/; record one with: {command}"

    def how_to_add(self) -> str:
        """Return the command that adds this run to the baselines."""
        options, latest = self.options, self.artifacts.folder
        places = [] if options.reports == options.root / "reports" else [shown(latest, options.root)]
        if not options.baselines.is_relative_to(options.root):  # the results record one in the project
            places += ["--baselines", str(options.baselines)]
        return shlex.join(["kernelgauge", "accept", "--add", *places])


def _not_judged(workload: Workload, timer: Timer, what: str, error: KernelgaugeError) -> Verdict:
    """What is said of a time that cannot be held against the baseline."""
    # What a compiler chose anew is no fault of the code, nor of the machine: nothing is known of the time that was asked for.
    status = Status.UNDECIDED if isinstance(error, OtherKernelsError) else Status.INVALID
    reasons = tuple(Reason(label, text) for label, text in error.details)
    why = error.what.removeprefix(f"{workload.id}: ")  # the verdict says it
    return Verdict(status, workload.id, timer.label, f"{timer.label} {what}: {why}", reasons)
