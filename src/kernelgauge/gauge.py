"""The state of one session: what was measured, what was concluded, what would be stored. It has this one owner."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from .artifacts import Artifacts
from .concluding import Judge, Stored, shown
from .errors import (
    KernelgaugeError,
    StorageError,
    WorkloadUnavailable,
)
from .gpus import digest_of, visible_gpus
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
from .locks import FolderLock, GpuLock
from .results import Results, TestResult
from .revision import revision
from .run import Fingerprint, Run, Sample, Timer
from .storage import BaselineStore
from .suites import Options, Suites
from .workload import Workload

if TYPE_CHECKING:
    from .measure.device import Device, DeviceChoice
    from .measure.latency import Rounds
    from .measure.runner import Measured, Result
    from .measure.settings import Settings

__all__ = ["Gauge"]

_CONFIRMED_WHERE_MEASURED = (Timer.DEVICE, Timer.HOST)  # by one session of the profiler, which gives both


@dataclass
class Gauge:
    """Measures all selected workloads together, on first demand, and keeps what was observed and concluded.

    `measurer` is `measure.runner.measure`, or a stand-in for it in a test.
    """

    options: Options
    measurer: Callable[..., Mapping[str, Result]]
    choose: Callable[[DeviceChoice], Device]
    settings: Settings
    progress: Callable[[str], None] = lambda _: None
    waiting: Callable[[str], None] = lambda _: None  # says what is waited for
    lock: GpuLock | None = None  # None: whoever asks knows that nobody else is there
    folder_lock: FolderLock | None = None  # None: another process of this run holds it, or nobody else is there
    verdicts: list[Verdict] = field(default_factory=list)
    tests: list[TestResult] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)  # why a workload cannot run here, by id
    warnings: list[str] = field(default_factory=list)
    session: Any = None  # pytest's, for its exit status
    started: datetime | None = None  # UTC
    selected: list[Workload] = field(default_factory=list)  # those that this process has tests for
    to_judge: set[str] = field(default_factory=set)  # ids of those of which a test may judge a device or dispatch time
    asked: int = 0  # how many the run has tests for, over all its workers and machines
    suites: Suites = field(init=False)
    artifacts: Artifacts = field(init=False)
    _measured: dict[str, Result] = field(default_factory=dict)
    _latency_confirmed: dict[str, KernelgaugeError | None] = field(default_factory=dict)  # or why it could not be
    _samples: dict[str, dict[Timer, Sample]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.suites = Suites(self.options)
        self.artifacts = Artifacts(self.options.reports / "latest")
        if self.options.worker is not None:
            self.artifacts = self.artifacts.of_worker(self.options.worker.id)

    # -- what is observed ---------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> Device:
        """Nobody else of ours uses it from now on, until the run of pytest ends: what compiles disturbs what is timed."""
        if self.lock is not None and self.options.device != "cpu":
            # Before CUDA starts: a process that waits on the GPU would be a stranger to the one that times there.
            first = next(iter(visible_gpus()), None)
            gpu = digest_of(first) if first is not None else None
            if gpu is not None:
                self.lock.hold(gpu, self.waiting)
        device = self.choose(self.options.device)
        if self.lock is not None and device.gpu is not None:  # without NVML, or with other numbers than CUDA's
            self.lock.hold_only(device.gpu, self.waiting)
        return device

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return self.device.fingerprint()

    @cached_property
    def commit(self) -> str | None:
        """That is measured; None: not known."""
        return revision(self.options.root)

    @property
    def not_watched(self) -> str:
        """Why nothing is known of the GPU's clocks and of its other users; empty if it is, or if there is no GPU."""
        monitor = self.device.monitor
        return "" if monitor.available or self.fingerprint.arch == "cpu" else monitor.why_not

    def measured(self, workload: Workload) -> Measured:
        """What was measured of a workload, with all that are selected. A failure is kept, and not tried again."""
        if workload.id not in self._measured:
            self._measure_with(workload)
        result = self._measured[workload.id]
        if isinstance(result, KernelgaugeError):
            raise result
        return result

    def _measure_with(self, workload: Workload) -> None:
        together = [each for each in self.selected if each.id not in self._measured]
        if workload not in together:  # another one to compare with, which this run has no tests for
            together = [workload]
        results = self.measurer(together, self.device, self.fingerprint, self.settings, self.progress, self._suspects)
        for each in together:
            self._keep(each, results[each.id])

    def _keep(self, workload: Workload, result: Result) -> None:
        if isinstance(result, KernelgaugeError):
            self._keep_failure(workload, result)
        else:
            try:
                self.artifacts.write(workload, result.trace_json, result.table)
            except StorageError as error:
                self.warnings.append(str(error))  # the measurement itself is sound, and is judged
        self._measured[workload.id] = result

    def rounds(self, workload: Workload, *, first: int = 0, replicates: int | None = None) -> Rounds:
        """Rounds of end-to-end latency, to be timed."""
        from .measure.latency import Rounds

        measured = self.measured(workload)
        return Rounds(
            workload,
            self.device,
            replicates=replicates or measured.latency_replicates,
            iterations=measured.latency_iterations,
            first=first,
        )

    def run(self, workload: Workload) -> Run:
        """What was observed of a workload so far, the times that were taken since included."""
        run = self.measured(workload).run
        worker = self.options.worker
        return msgspec.structs.replace(
            run,
            samples={**run.samples, **self._samples.get(workload.id, {})},
            neighbours=worker.others if worker else 0,
        )

    def add_sample(self, workload: Workload, timer: Timer, sample: Sample) -> None:
        """Add a time that was taken outside of the measurer."""
        self._samples.setdefault(workload.id, {})[timer] = sample

    def keep_latency(self, workload: Workload, rounds: Rounds, durations_s: Sequence[float]) -> None:
        """Keep what the rounds took; if the machine spoilt them, take others in their place.

        Raises `DisturbedError` if it spoils those as well.
        """
        sample = rounds.sample(durations_s)
        if rounds.disturbed_by():
            self.progress(f"{workload.id}: the machine was disturbed: timing the latency again")
            sample = self.rounds(workload, first=len(sample.replicates_us)).time()
        self.add_sample(workload, Timer.END_TO_END, sample)

    def time_latency(self, workload: Workload) -> None:
        """Time the rounds here, where pytest-benchmark does not. Raises `DisturbedError` as `keep_latency`."""
        rounds = self.rounds(workload)
        self.keep_latency(workload, rounds, rounds.durations_s())

    def runs(self) -> list[Run]:
        """Every run so far, in order of measurement."""
        return [
            self.run(self.suites.workload(identifier))
            for identifier, result in self._measured.items()
            if not isinstance(result, KernelgaugeError)
        ]

    def _keep_failure(self, workload: Workload, error: KernelgaugeError) -> None:
        if isinstance(error, WorkloadUnavailable):
            self.unavailable[workload.id] = error.one_line
        else:
            self.conclude(Verdict(Status.INVALID, workload.id, "measurement", error.what))

    # -- what is concluded --------------------------------------------------------------------------------------

    @cached_property
    def store(self) -> BaselineStore:
        return BaselineStore(self.options.baselines)

    def judge_structure(self, workload: Workload) -> Verdict:
        """Judge kernels and counts against the baseline. One that cannot be used is INVALID."""
        return self._judge(workload, "structure", judge_structure)

    def judge_time(self, workload: Workload, timer: Timer) -> Verdict:
        """Judge one time against the baseline; a suspicious latency is confirmed by a larger measurement, once.

        Both sets of data count. The other times were confirmed where they were measured, among the others. A baseline that
        cannot be used is INVALID.
        """

        def judge(run: Run, baseline: Baseline, comparison: Comparison) -> Verdict:
            verdict = self._judged(timer, run, baseline, comparison)
            if not verdict.suspicious or self.options.accepts:
                return verdict
            error = self._why_not_confirmed(workload, timer)
            if error is None:
                return self._judged(timer, self.run(workload), baseline, comparison)
            reasons = tuple(Reason(label, text) for label, text in error.details)
            return Verdict(Status.INVALID, workload.id, timer.label, f"not confirmed: {error.what}", reasons)

        run = self.run(workload)
        if run.incomplete is not None and run.sample(timer) is None:  # with a baseline or without one
            return self.conclude(not_measured(timer, run))
        return self._judge(workload, timer.label, judge)

    def _judged(self, timer: Timer, run: Run, baseline: Baseline, comparison: Comparison) -> Verdict:
        comparisons = max(1, self.asked) * len(self.device.timers)
        return judge_time(timer, run, baseline, comparison, comparisons=comparisons)

    def _suspects(self, runs: Mapping[str, Run]) -> set[str]:
        """Ids of those with a time that is worth a larger measurement before anything is said of it."""
        if self.options.accepts:
            return set()
        return {identifier for identifier in self.to_judge & runs.keys() if self._is_suspicious(runs[identifier])}

    def _is_suspicious(self, run: Run) -> bool:
        stored = self._stored(self.suites.workload(run.workload))
        return any(
            stored.verdict(run, timer.label, functools.partial(self._judged, timer)).suspicious
            for timer in _CONFIRMED_WHERE_MEASURED
            if run.sample(timer) is not None
        )

    def _why_not_confirmed(self, workload: Workload, timer: Timer) -> KernelgaugeError | None:
        """None: more of the same was measured, now or before."""
        if timer in _CONFIRMED_WHERE_MEASURED:
            return self.measured(workload).not_confirmed
        if workload.id not in self._latency_confirmed:
            self._latency_confirmed[workload.id] = None
            try:
                self._confirm_latency(workload)
            except KernelgaugeError as error:
                self._latency_confirmed[workload.id] = error
        return self._latency_confirmed[workload.id]

    def _confirm_latency(self, workload: Workload) -> None:
        """Measure again, so that what follows judges more of the same. Raises what measuring raises."""
        self.progress(f"{workload.id}: suspicious latency: measuring again")
        before = self._samples[workload.id][Timer.END_TO_END]
        count = len(before.replicates_us)
        again = self.rounds(workload, first=count, replicates=2 * count).time()
        self.add_sample(workload, Timer.END_TO_END, before.joined(again))

    def _judge(self, workload: Workload, subject: str, judge: Judge) -> Verdict:
        return self.conclude(self._stored(workload).verdict(self.run(workload), subject, judge))

    def _stored(self, workload: Workload) -> Stored:
        return Stored(self.store, self.options.root, self.suites.command(workload), self.options.accepts)

    def conclude(self, verdict: Verdict) -> Verdict:
        """Keep a verdict for the summary."""
        self.verdicts.append(verdict)
        return verdict

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
            self.folder_lock.hold(self.waiting)
        self.artifacts.prepare()
        _ = self.commit  # that of now: it may move while the suite runs
        if self.options.update:
            with self.store.locked():
                pass

    def how_to_record(self, results: Results | None = None) -> str:
        """What a test without a baseline says: which folder has none, and the command that records one.

        `results`: of the workers of pytest-xdist, where this process itself has measured nothing.
        """
        fingerprint = results.fingerprint if results and results.fingerprint else self.fingerprint
        folder = shown(self.store.path(fingerprint.device, "x").parent, self.options.root)
        command = self.suites.command(suites=results.declared) if results else self.suites.command()
        return f"no baseline in {folder}/; record one with: {command}"
