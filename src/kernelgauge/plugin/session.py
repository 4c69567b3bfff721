"""One run of pytest with a suite: measure, judge, measure what looks slower further, judge again, record.

This state has one owner, `Session`. It measures all selected workloads together, at the first test that asks for one.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..baselines import BaselineStore
from ..errors import BaselineError, KernelgaugeError, OtherKernelsError, StorageError, WorkloadUnavailable
from ..judge import (
    DECLARED,
    MEASUREMENT,
    NUMERICS,
    REASON_WIDTH,
    STRUCTURE,
    Baseline,
    Comparison,
    Limits,
    Reason,
    Status,
    Verdict,
    cause_reasons,
    compare,
    count_causes,
    judge_ratio,
    judge_structure,
    judge_time,
    mismatches,
    not_measured,
)
from ..measure.nvml import digest_of, visible_gpus
from ..measure.settings import Settings
from ..results import SCHEMA_VERSION, Artifacts, Results, TestResult, WorkloadResult, revision
from ..results.files import FolderLock, GpuLock
from ..run import Fingerprint, Run, Sample, Timer
from ..workload import Workload
from .options import Options
from .suites import Suites

if TYPE_CHECKING:
    from ..measure.device import Device, DeviceChoice
    from ..measure.latency import Rounds
    from ..measure.runner import Measured, MeasuredGroup, Result

__all__ = ["Session"]

_COST = re.compile(r" \([+-][\d.]+ us\)")  # of a cause: another test may have timed it


class Session:
    """What one run of pytest measured and concluded.

    Args:
        progress: shows what is measured now.
        waiting: shows what is waited for.

    Attributes:
        selected: the workloads that this process has tests for.
        is_timed: whether one of these tests judges or reads times.
        planned: how many workloads the suites have, selected or not: `-k` changes no verdict.
        pytest: pytest's own session, for its exit status.
        errors_shown: texts of errors that were shown in full, with the name of that test.
    """

    def __init__(
        self,
        options: Options,
        *,
        progress: Callable[[str], None] = lambda _: None,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.progress, self.waiting = progress, waiting
        self.settings = Settings.of(options.replicates)
        self.suites = Suites(options)
        self.store = BaselineStore(options.baselines)
        self.artifacts = Artifacts(options.reports / "latest")
        if options.worker is not None:
            self.artifacts = self.artifacts.of_worker(options.worker.id)
        self.selected: list[Workload] = []
        self.is_timed = False
        self.planned = 0
        self.pytest: Any = None
        self.started = datetime.now(timezone.utc)
        self.warnings: list[str] = []
        self.errors_shown: dict[str, str] = {}
        self._gpu_lock = GpuLock()
        self._folder_lock = FolderLock(options.reports) if options.worker is None else None
        self._measured: dict[str, Result] = {}
        self._latencies: dict[str, Sample | OtherKernelsError] = {}  # or why a latency was not kept
        self._confirmed: dict[str, KernelgaugeError | None] = {}  # latencies: why one could not be; None: it was
        self._unavailable: dict[str, str] = {}  # why a workload cannot run here
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # by workload and subject
        self._causes_shown: dict[
            str, tuple[str, set[str]]
        ] = {}  # by workload: the first test that named some, and which
        self._tests: dict[str, list[TestResult]] = {}  # by pytest's id: of a test, its last attempt

    # -- what imports torch: when something is measured. A test puts stand-ins in their place -----------------------

    def choose_device(self, choice: DeviceChoice) -> Device:
        from ..measure.device import choose_device

        return choose_device(choice)

    def measure_groups(self, *arguments: Any, **named: Any) -> Iterable[MeasuredGroup]:
        from ..measure.runner import measure_groups

        return measure_groups(*arguments, **named)

    # -- the machine ----------------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> Device:
        """The device. Nobody else of ours uses it until the run ends: what compiles disturbs what is timed."""
        if self.options.device != "cpu":
            # Before CUDA starts: a process that waits on the GPU would be a stranger to the one that times there.
            first = next(iter(visible_gpus()), None)
            gpu = digest_of(first) if first is not None else None
            if gpu is not None:
                self._gpu_lock.hold(gpu, self.waiting)
        device = self.choose_device(self.options.device)
        if device.gpu is None:  # a torch without CUDA beside a driver
            self._gpu_lock.release()
        else:  # without NVML, or with other numbers than CUDA's
            self._gpu_lock.hold(device.gpu, self.waiting)
        return device

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return msgspec.structs.replace(self.device.fingerprint(), deterministic=self.options.deterministic)

    @cached_property
    def commit(self) -> str | None:
        """The commit that is measured; None: not known."""
        return revision(self.options.root)

    def prepare(self) -> None:
        """Find out before minutes of measuring whether the results can be written. Raises `StorageError`."""
        if self._folder_lock is not None:
            self._folder_lock.hold(self.waiting)
        self.artifacts.prepare()
        _ = self.commit  # that of now: it may move while the suite runs
        if self.options.update:
            with self.store.locked():
                pass

    def release_gpu(self) -> None:
        self._gpu_lock.release()

    def release_folder(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.release()

    # -- measure --------------------------------------------------------------------------------------------------

    def run(self, workload: Workload) -> Run:
        """Return what was measured of a workload so far, its latency included.

        All selected workloads are measured together, once. Raises the error that ended this one's measurement.
        """
        return self._with_latency(self._result(workload).run)

    def runs(self) -> list[Run]:
        """Return every run so far, in the order in which the workloads are declared."""
        runs = {
            name: self._with_latency(result.run)
            for name, result in self._measured.items()
            if not isinstance(result, KernelgaugeError)
        }
        return [runs[workload.id] for workload in self.suites.in_order(map(self.suites.workload, runs))]

    def _result(self, workload: Workload) -> Measured:
        if workload.id not in self._measured:
            together = [each for each in self.selected if each.id not in self._measured]
            # Another one to compare with, which this run has no tests for, is measured alone.
            self._measure(together if workload in together else [workload])
        result = self._measured[workload.id]
        if isinstance(result, KernelgaugeError):
            raise result
        return result

    def _measure(self, workloads: Sequence[Workload]) -> None:
        groups = self.measure_groups(
            workloads,
            self.device,
            self.fingerprint,
            self.settings,
            self.progress,
            timed=self.is_timed,
            deterministic=self.options.deterministic,
        )
        for group in groups:
            group.confirm(
                name
                for name, result in group.results.items()
                if not isinstance(result, KernelgaugeError) and self._looks_slower(result.run)
            )
            for name, result in group.results.items():
                self._measured[name] = result
                self._keep(self.suites.workload(name), result)

    def _keep(self, workload: Workload, result: Result) -> None:
        if isinstance(result, WorkloadUnavailable):
            self._unavailable[workload.id] = result.one_line
        elif isinstance(result, KernelgaugeError):
            self.conclude_error(workload, MEASUREMENT, result)
        else:
            try:
                self.artifacts.write(workload, result.trace_json, result.table)
            except StorageError as error:
                self.warnings.append(str(error))  # the measurement itself is sound, and is judged

    def _looks_slower(self, run: Run) -> bool:
        """Whether a time of a selected workload looks slower, so that it is measured further before it fails."""
        if self.options.accepts or not any(each.id == run.workload for each in self.selected):
            return False
        return any(
            self._time_verdict(run, timer).status is Status.REGRESSED
            for timer in (Timer.DEVICE, Timer.HOST)
            if run.sample(timer) is not None
        )

    def _with_latency(self, run: Run) -> Run:
        worker, latency = self.options.worker, self._latencies.get(run.workload)
        samples = {**run.samples, Timer.END_TO_END: latency} if isinstance(latency, Sample) else run.samples
        lost = latency.what if isinstance(latency, OtherKernelsError) else None
        return msgspec.structs.replace(
            run,
            samples=samples,
            incomplete=run.incomplete or lost,
            neighbours=worker.others if worker else 0,
        )

    # -- latency, which the test itself times ------------------------------------------------------------------------

    def rounds(self, workload: Workload, *, first: int = 0, replicates: int | None = None) -> Rounds:
        """Return rounds of end-to-end latency, to be timed."""
        from ..measure.latency import Rounds

        measured = self._result(workload)
        return Rounds(
            workload,
            self.device,
            replicates=replicates or measured.latency_replicates,
            iterations=measured.latency_iterations,
            first=first,
            profiled=[kernel.identity for kernel in measured.run.kernels],
            one_instance=measured.one_instance,
            deterministic=self.options.deterministic,
        )

    def time_latency(self, workload: Workload) -> None:
        """Time the rounds here, where pytest-benchmark does not. Raises what `keep_latency` raises."""
        rounds = self.rounds(workload)
        self.keep_latency(workload, rounds, rounds.durations_s())

    def keep_latency(self, workload: Workload, rounds: Rounds, durations_s: Sequence[float]) -> None:
        """Keep the durations of the rounds in place of earlier ones; if the machine spoilt them, time others.

        Those of other kernels than were profiled are not kept. Raises `DisturbedError` if the machine spoils the others
        too, and what else `Rounds.require_profiled_kernels` raises.
        """
        sample = rounds.sample(durations_s)
        self._latencies.pop(workload.id, None)
        try:
            if rounds.disturbed_by():
                self.progress(f"{workload.id}: the machine was disturbed: timing the latency again")
                sample = self.rounds(workload, first=len(sample.replicates_us)).time()
            else:
                rounds.require_profiled_kernels()
            self.set_latency(workload, sample)
        except OtherKernelsError as error:
            self.set_latency(workload, error)

    def set_latency(self, workload: Workload, latency: Sample | OtherKernelsError) -> None:
        """Keep a latency, or why it could not be kept, in place of an earlier one."""
        self._latencies[workload.id] = latency
        self._confirmed.pop(workload.id, None)

    def _confirm_latency(self, workload: Workload) -> None:
        """Measure a latency that looks slower further, once: what was measured before counts as well."""
        before = self._latencies.get(workload.id)
        if workload.id in self._confirmed or not isinstance(before, Sample):
            return
        self._confirmed[workload.id] = None
        self.progress(f"{workload.id}: latency looks slower: measuring again")
        count = len(before.replicates_us)
        try:
            again = self.rounds(workload, first=count, replicates=2 * count).time()
        except KernelgaugeError as error:
            self._confirmed[workload.id] = error
        else:
            self._latencies[workload.id] = before.joined(again)

    # -- judge ----------------------------------------------------------------------------------------------------

    def judge_declared(self, workload: Workload) -> Verdict:
        """Judge what the workload declares: every expectation that holds for this machine, and no recompile."""
        run = self.run(workload)
        wrong = [
            line
            for expectation in workload.expectations
            if expectation.holds_for(run.fingerprint)
            for line in mismatches(expectation, run)
        ]
        declare = ["another Expectation"] if wrong else []
        if run.counts.graph_breaks != workload.graph_breaks:
            wrong.append(f"graph breaks: got {run.counts.graph_breaks}, expected {workload.graph_breaks}")
            declare.append(f"Workload(..., graph_breaks={run.counts.graph_breaks})")
        if run.counts.recompiles:
            wrong.append(f"recompiles: got {run.counts.recompiles}, expected 0 on fresh allocations of one shape")
        if not wrong:
            return self.conclude(Verdict(Status.PASS, workload.id, DECLARED, "as declared"))
        # Beside the results, as they name it: a path of this machine says nothing to who reads them elsewhere.
        trace = self.artifacts.trace(workload).relative_to(self.artifacts.folder).as_posix()
        declared = msgspec.structs.replace(run.counts, graph_breaks=workload.graph_breaks, recompiles=0)
        reasons = (
            *cause_reasons(count_causes(run, declared)),
            *(Reason("why", line) for line in wrong),
            Reason("trace", trace),
            *([Reason("next", f"if you want this, declare it: {', '.join(declare)}")] if declare else []),
        )
        return self.conclude(
            Verdict(Status.REGRESSED, workload.id, DECLARED, "differs from what the workload declares", reasons)
        )

    def judge_numerics(self, workload: Workload, *, seed: int) -> Verdict:
        """Compare the workload with its reference in float64, on random input of this seed.

        Raises what `measure.numerics.compare_with_float64` raises.
        """
        from ..measure.numerics import NotComparedError, compare_with_float64

        try:
            errors = compare_with_float64(workload, self.device, seed=seed, deterministic=self.options.deterministic)
        except WorkloadUnavailable as error:
            self._unavailable[workload.id] = error.one_line
            raise
        except NotComparedError as error:
            reasons = tuple(Reason(label, text) for label, text in error.details)
            return self.conclude(
                Verdict(Status.NOT_JUDGED, workload.id, NUMERICS, f"not judged: {error.what}", reasons)
            )
        wrong = [error for error in errors if not error.within_bound]  # NaN is within no bound
        reference = errors[0].reference
        if not wrong:
            return self.conclude(Verdict(Status.PASS, workload.id, NUMERICS, f"within bounds of {reference}"))
        headline = f"result differs from the {reference} reference"
        reasons = (*(Reason("why", str(error)) for error in wrong), Reason("seed", f"--perf-seed {seed}"))
        return self.conclude(Verdict(Status.REGRESSED, workload.id, NUMERICS, headline, reasons))

    def judge_ratio(self, workload: Workload) -> Verdict:
        """Judge the GPU time of a workload against that of the variant that it says it is faster than.

        Raises `KernelgaugeError` if no suite declares that variant, and the error that ended a measurement.
        """
        assert workload.faster_than is not None
        other = self.suites.sibling(workload, variant=workload.faster_than)
        run, beside = self.run(workload), self.run(other)
        verdict = judge_ratio(run, beside, other.variant, by=workload.by, comparisons=self._comparisons)
        if verdict.status is Status.PASS:
            return self.conclude(verdict)
        traces = (_shown(self.artifacts.trace(each), self.options.root) for each in (other, workload))
        return self.conclude(verdict.because(Reason("next", shlex.join(["kernelgauge", "diff", *traces]))))

    def judge_structure(self, workload: Workload) -> Verdict:
        """Judge kernels and counts against the baseline."""
        return self.conclude(self._against_baseline(self.run(workload), STRUCTURE, judge_structure))

    def judge_time(self, workload: Workload, timer: Timer) -> Verdict:
        """Judge one time against the baseline. A latency that looks slower is measured further first."""
        run = self.run(workload)
        latency = self._latencies.get(workload.id)
        if timer is Timer.END_TO_END and isinstance(latency, OtherKernelsError):
            return self.conclude(_not_judged(run, timer, "not compared", latency))
        if run.incomplete is not None and run.sample(timer) is None:  # with a baseline or without one
            return self.conclude(not_measured(timer, run))
        verdict = self._time_verdict(run, timer)
        if verdict.status is Status.REGRESSED and not self.options.accepts:
            if timer is Timer.END_TO_END:
                self._confirm_latency(workload)
                error = self._confirmed.get(workload.id)
            else:
                error = self._result(workload).not_confirmed
            verdict = (
                self._time_verdict(self.run(workload), timer)
                if error is None
                else _not_judged(run, timer, "not confirmed", error)
            )
        return self.conclude(verdict)

    def _time_verdict(self, run: Run, timer: Timer) -> Verdict:
        def judge(run: Run, baseline: Baseline, comparison: Comparison) -> Verdict:
            limits = self._limits(self.suites.workload(run.workload))
            return judge_time(timer, run, baseline, comparison, comparisons=self._comparisons, limits=limits)

        return self._against_baseline(run, run.label(timer), judge)

    def _against_baseline(
        self, run: Run, subject: str, judge: Callable[[Run, Baseline, Comparison], Verdict]
    ) -> Verdict:
        """Judge a run, and say where its baseline is and what to do next.

        A baseline that cannot be used is INVALID, one that is missing NO_BASELINE.
        """
        root, workload = self.options.root, self.suites.workload(run.workload)
        try:
            baseline = self.store.load(run.fingerprint.device, run.workload)
        except BaselineError as error:
            # An update is about to replace the file, so it is no reason to refuse the run.
            status = Status.NO_BASELINE if self.options.accepts else Status.INVALID
            details = (
                Reason(label, _shown(Path(text), root) if label == "where" else text) for label, text in error.details
            )
            return Verdict(status, run.workload, subject, error.what, tuple(details))
        path = _shown(self.store.path(run.fingerprint.device, run.workload), root)
        if baseline is None:
            reasons = (Reason("expected", path), Reason("record", self.suites.command(workload)))
            headline = f"no baseline for {subject} on this machine"
            return Verdict(Status.NO_BASELINE, run.workload, subject, headline, reasons)
        comparison = compare(baseline.fingerprint, run.fingerprint)
        verdict = judge(run, baseline, comparison)
        if verdict.status in (Status.PASS, Status.NOT_JUDGED):
            return verdict
        between = "   " if len(f"{path}   environment: {comparison}") <= REASON_WIDTH else "\n"
        verdict = verdict.because(Reason("baseline", f"{path}{between}environment: {comparison}"))
        if verdict.status not in (Status.UNDECIDED, Status.INVALID):
            accept = self.how_to_accept("-k", self.suites.selector(workload))
            if not self.is_timed:
                accept = f"{self.suites.command(workload, update=False)}   (measures its times too)\n{accept}"
            return verdict.because(Reason("accept", accept))
        if any(reason.label == "next" for reason in verdict.reasons):
            return verdict
        return verdict.because(Reason("next", "run it again on a quiet machine"))

    def conclude(self, verdict: Verdict) -> Verdict:
        """Keep a verdict, in place of an earlier one on the same subject."""
        about = verdict.workload, verdict.subject
        self._verdicts.pop(about, None)
        self._verdicts[about] = verdict
        return verdict

    def conclude_error(self, workload: Workload, subject: str, error: KernelgaugeError) -> Verdict:
        """Keep the verdict that something could not be measured."""
        reasons = tuple(Reason(label, text) for label, text in error.details)
        return self.conclude(Verdict(Status.INVALID, workload.id, subject, error.what, reasons))

    def failure(self, verdict: Verdict, test: str, *, in_full: bool) -> str:
        """Return how a failing test ends: in a few lines, and the causes only where no test of the workload has named them yet.

        `in_full`: every line. The results have them in any case.
        """
        if in_full:
            return str(verdict)
        causes = {_COST.sub("", reason.text) for reason in verdict.reasons if reason.label == "cause"}
        first = self._causes_shown.setdefault(verdict.workload, (test, set()))
        if first[0] != test and causes and causes <= first[1]:
            return verdict.brief(see=first[0])
        first[1].update(causes)
        return verdict.brief()

    def fails(self, verdict: Verdict) -> bool:
        """Whether a verdict fails its test, with the strictness that is asked for."""
        if self.options.accepts and verdict.is_by_baseline:
            return verdict.status is Status.INVALID  # what differs is about to be accepted; what is not valid cannot be
        return verdict.status.fails or (self.options.strict and not verdict.status.decided)

    @property
    def _comparisons(self) -> int:
        """How many times the suites of this run have, selected or not, and how many ratios of times."""
        return max(1, self.planned) * len(self.device.timers) + self.suites.count_ratios()

    def _limits(self, workload: Workload) -> Limits:
        """Return the workload's limits, and the project's where it has none."""
        asked = self.options.limits

        def merged(of_project: dict[Timer, float], of_workload: Any) -> dict[Timer, float]:
            return {**of_project, **{Timer(name): value for name, value in of_workload.items()}}

        return Limits(merged(asked.gate, workload.gate), merged(asked.sensitivity, workload.sensitivity))

    # -- record ---------------------------------------------------------------------------------------------------

    def add_test(self, result: TestResult) -> None:
        """Keep the end of a test: once or more, since a test may fail after its call too."""
        self._tests.setdefault(result.node, []).append(result)

    def forget_test(self, node: str) -> None:
        """Drop what is known of a test that runs again."""
        self._tests.pop(node, None)

    @property
    def tests(self) -> list[TestResult]:
        return [each for results in self._tests.values() for each in results]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to record. A part of a suite says that it is there, even if it is empty."""
        a_part = self.options.share is not None and self.suites
        return not (self._verdicts or self._unavailable or a_part or self.runs())

    def results(self) -> Results:
        """Return what was measured and concluded so far."""
        runs = {run.workload: run for run in self.runs()}
        names = dict.fromkeys([*runs, *(workload for workload, _ in self._verdicts), *self._unavailable])
        monitor = self.device.monitor if runs else None
        watched = monitor is None or monitor.available or self.fingerprint.arch == "cpu"
        return Results(
            schema_version=SCHEMA_VERSION,
            kernelgauge=__version__,
            started_at=self.started.isoformat(timespec="seconds"),
            seconds=(datetime.now(timezone.utc) - self.started).total_seconds(),
            arguments=self.options.arguments,
            fingerprint=self.fingerprint if runs else None,
            gpu=next((run.gpu for run in runs.values()), None),
            not_watched="" if monitor is None or watched else monitor.why_not,
            workloads=tuple(self._workload_result(name, runs.get(name)) for name in names),
            tests=tuple(self.tests),
            warnings=tuple(self.warnings),
            exit_status=int(self.pytest.exitstatus),
            host=platform.node(),
            commit=self.commit,
            timers=tuple(self.device.timers) if runs else (),
            comparisons=self._comparisons if runs else 0,
            declared=self.suites.declared(),
            # The process that calibrates knows no root; nobody else reads its results.
            baselines=(
                self.options.baselines
                if self.options.calibrating
                else Path(_shown(self.options.baselines, self.options.root))
            ).as_posix(),
        )

    def _workload_result(self, name: str, run: Run | None) -> WorkloadResult:
        workload = self.suites.workload(name)
        trace = self.artifacts.trace(workload)
        return WorkloadResult(
            id=name,
            suite=self.suites.suite_of(name),
            module=workload.module,
            variant=workload.variant,
            dtype=workload.dtype or "",
            pass_=workload.pass_,
            shape=workload.shape,
            run=run,
            baseline=self._baseline(run) if run else None,
            verdicts=tuple(verdict for (of, _), verdict in self._verdicts.items() if of == name),
            unavailable=self._unavailable.get(name),
            trace=trace.relative_to(self.artifacts.folder).as_posix() if run and trace.exists() else None,
            limits=self._limits(workload),
        )

    def _baseline(self, run: Run) -> Baseline | None:
        try:
            return self.store.load(run.fingerprint.device, run.workload)
        except BaselineError:
            return None  # the verdicts say what is wrong with it

    def how_to_record(self, results: Results | None = None) -> str:
        """Return which folder has no baseline, and the command that records one.

        `results`: of the workers of pytest-xdist, where this process itself has measured nothing.
        """
        fingerprint = results.fingerprint if results and results.fingerprint else self.fingerprint
        folder = _shown(self.store.path(fingerprint.device, "x").parent, self.options.root)
        command = self.suites.command(suites=results.declared) if results else self.suites.command()
        return f"no baseline in {folder}/; record one with: {command}"

    def how_to_accept(self, *arguments: str) -> str:
        """Return the command that stores this run as the baselines, without measuring again."""
        options = self.options
        places = []
        if options.reports != options.root / "reports":
            places = [os.path.relpath(self.artifacts.folder, options.invoked_from)]
        if not options.baselines.is_relative_to(options.root):  # the results record one in the project
            places += ["--baselines", str(options.baselines)]
        return shlex.join(["kernelgauge", "accept", *arguments, *places])


def _shown(path: Path, root: Path) -> str:
    """Return a path as messages say it: from the root of the project where it lies in it."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _not_judged(run: Run, timer: Timer, what: str, error: KernelgaugeError) -> Verdict:
    """Return the verdict on a time that cannot be compared with the baseline."""
    # What a compiler chose anew is no fault of the code, nor of the machine: the time that was asked for is not known.
    status = Status.UNDECIDED if isinstance(error, OtherKernelsError) else Status.INVALID
    reasons = tuple(Reason(label, text) for label, text in error.details)
    why = error.what.removeprefix(f"{run.workload}: ")  # the verdict says it
    return Verdict(status, run.workload, run.label(timer), f"{run.label(timer)} {what}: {why}", reasons)
