"""One run of pytest with a suite: measure, judge, measure what looks slower further, judge again, record.

This state has one owner, `Session`. It measures all selected workloads together, at the first test that asks for one.
"""

from __future__ import annotations

import os
import platform
import secrets
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..baselines import BaselineStore
from ..errors import BaselineError, KernelgaugeError, OtherKernelsError, SuitesError, WorkloadUnavailable
from ..judge import evidence as e
from ..judge.baseline import compare
from ..judge.cause import compile_causes
from ..judge.structure import judge_structure, mismatches
from ..judge.time_verdict import judge_ratio, judge_time, not_measured
from ..judge.timing import Limits
from ..judge.verdict import DECLARED, MEASUREMENT, NUMERICS, STRUCTURE, Status, Verdict, settled
from ..measure.nvml import digest_of, visible_gpus
from ..measure.settings import Settings
from ..report.words import CAUSES_WITH_CODE, brief
from ..results import SCHEMA_VERSION, Artifacts, Results, TestResult, WorkloadResult, revision
from ..results.files import GpuLock, folder_lock
from ..run import Fingerprint, Run, Sample, Timer
from ..workload import Workload
from .options import Options
from .suites import Suites

if TYPE_CHECKING:
    from ..measure.device import Device, DeviceChoice
    from ..measure.latency import Rounds
    from ..measure.runner import MeasuredGroup, Result
    from ..measure.subject import Measured


class Session:
    """What one run of pytest measured and concluded. `progress` and `waiting` show what it measures, and waits for."""

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
        self.artifacts = Artifacts(options.reports / "latest", options.worker)
        self.selected: list[Workload] = []  # this process has tests for them
        self.is_timed = False  # whether one of these tests judges or reads times
        self.tests: dict[str, list[TestResult]] = {}  # by pytest's id; two of one that failed after its call too
        self.width: int | None = None  # of the terminal, in columns; None: there is none
        self.errors_shown: dict[str, str] = {}  # by text: the first test that showed it
        self.latencies: dict[str, Sample | OtherKernelsError] = {}  # or why a latency was not kept
        self._started = datetime.now(timezone.utc)
        self._commit: str | None = None
        self._gpu_lock = GpuLock()
        self._folder_lock = folder_lock(options.reports)
        self._measured: dict[str, Result] = {}
        self._confirmed: dict[str, KernelgaugeError | None] = {}  # latencies: why one could not be; None: it was
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # by workload and subject
        self._causes_shown: dict[tuple[str, e.Cause], str] = {}  # by workload and cause: the first test that named it

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
        names = visible_gpus() if self.options.device != "cpu" else ()
        # Before CUDA starts: a process that waits on the GPU would be a stranger to the one that times there.
        if names and (gpu := digest_of(names[0])) is not None:
            import_module("kernelgauge.measure.runner")  # takes seconds, in which another run may use the GPU
            self._gpu_lock.hold(gpu, self.waiting)
        device = self.choose_device(self.options.device)
        if device.gpu is not None:  # without NVML, or with other numbers than CUDA's, another one than was held
            self._gpu_lock.hold(device.gpu, self.waiting)
        return device

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return msgspec.structs.replace(self.device.fingerprint(), deterministic=self.options.deterministic)

    def prepare(self) -> None:
        """Find out before minutes of measuring whether the results can be written. Raises `StorageError`."""
        if not self.options.worker:
            self._folder_lock.hold(self.waiting)
            self.artifacts.prepare()
        self._commit = revision(self.options.root)  # that of now: it may move while the suite runs
        if self.options.update:
            with self.store.locked():
                pass

    def require_workloads(self) -> None:
        """Raise `KernelgaugeError` if a suite is empty where that must not pass: with --perf-strict and --perf-update."""
        if self.options.strict or self.options.update:
            self.suites.require_workloads()

    def release(self) -> None:
        """Let other runs use the GPU and the folder."""
        self._gpu_lock.release()
        self._folder_lock.release()

    # -- measure --------------------------------------------------------------------------------------------------

    def run(self, workload: Workload) -> Run:
        """Return what was measured of a workload so far, its latency included.

        All selected workloads are measured together, once.
        Raises the error that ended this one's measurement.
        """
        return self._with_latency(self._result(workload).run)

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
            if not self.options.accepts:
                group.confirm([name for name, result in group.results.items() if self._looks_slower(result)])
            self._measured |= group.results
            for name, result in group.results.items():
                if not isinstance(result, KernelgaugeError):
                    self.artifacts.write(self.suites.workloads[name], result.trace_json, result.table)
                    result.trace_json, result.table = b"", ""
                elif not isinstance(result, WorkloadUnavailable):
                    self.conclude_error(self.suites.workloads[name], MEASUREMENT, result)

    def _looks_slower(self, result: Result) -> bool:
        """Whether a time looks slower, so that it is measured further before it fails."""
        return not isinstance(result, KernelgaugeError) and any(
            self._against_baseline(result.run, timer).status is Status.REGRESSED
            for timer in (Timer.DEVICE, Timer.HOST)
            if result.run.sample(timer) is not None
        )

    def _with_latency(self, run: Run) -> Run:
        latency = self.latencies.get(run.workload)
        return msgspec.structs.replace(
            run,
            samples={**run.samples, Timer.END_TO_END: latency} if isinstance(latency, Sample) else run.samples,
            incomplete=run.incomplete or (latency.what if isinstance(latency, OtherKernelsError) else None),
            neighbours=self.options.neighbours,
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

    def keep_latency(self, workload: Workload, rounds: Rounds, durations_s: Sequence[float]) -> None:
        """Keep the durations of the rounds in place of earlier ones; if the machine spoilt them, time others.

        Those of other kernels than were profiled are not kept. Raises `DisturbedError` if the machine spoils the others
        too, and what else `Rounds.require_profiled_kernels` raises.
        """
        sample = rounds.sample(durations_s)
        for earlier in (self.latencies, self._confirmed):
            earlier.pop(workload.id, None)
        try:
            if rounds.disturbed_by():
                self.progress(f"{workload.id}: the machine was disturbed: timing the latency again")
                sample = self.rounds(workload, first=len(sample.replicates_us)).time()
            else:
                rounds.require_profiled_kernels()
            self.latencies[workload.id] = sample
        except OtherKernelsError as error:
            self.latencies[workload.id] = error

    def _confirm_latency(self, workload: Workload, before: Sample) -> None:
        """Measure a latency that looks slower further, once: what was measured before counts as well."""
        self._confirmed[workload.id] = None
        self.progress(f"{workload.id}: latency looks slower: measuring again")
        count = len(before.replicates_us)
        try:
            again = self.rounds(workload, first=count, replicates=2 * count).time()
            self.latencies[workload.id] = before.joined(again)
        except KernelgaugeError as error:
            self._confirmed[workload.id] = error

    # -- judge ----------------------------------------------------------------------------------------------------

    def judge_declared(self, workload: Workload) -> Verdict:
        """Judge what the workload declares: every expectation that holds for this machine, and no recompile."""
        run = self.run(workload)
        holding = [each for each in workload.expectations if each.holds_for(run.fingerprint)]
        wrong: list[e.Reason] = [mismatch for each in holding for mismatch in mismatches(each, run)]
        if run.counts.graph_breaks != workload.graph_breaks:
            wrong.append(e.Mismatch("graph breaks", run.counts.graph_breaks, workload.graph_breaks))
        if run.counts.recompiles:
            wrong.append(e.Mismatch("recompiles", run.counts.recompiles, 0))
        if not wrong:
            return Verdict(Status.PASS, workload.id, DECLARED, e.DeclaredCompared())
        reasons = (*compile_causes(run.compile_events), *wrong, e.Detail("trace", self._trace(workload)))
        return Verdict(Status.REGRESSED, workload.id, DECLARED, e.DeclaredCompared(), reasons)

    def judge_numerics(self, workload: Workload) -> Verdict:
        """Compare the workload with its reference in float64, on random input."""
        from ..measure.numerics import NotComparedError, compare_with_float64

        seed = secrets.randbits(32) if self.options.seed is None else self.options.seed
        try:
            errors = compare_with_float64(workload, self.device, seed=seed, deterministic=self.options.deterministic)
        except NotComparedError as error:
            return Verdict(
                Status.NOT_JUDGED, workload.id, NUMERICS, e.Failed(error.what, "not judged"), _reasons(error)
            )
        wrong, reference = [error for error in errors if not error.within_bound], errors[0].reference
        if not wrong:
            judged = [error for error in errors if error.is_judged]
            worst = max(judged or errors, key=lambda each: each.error / each.bound)
            conclusion = e.NumericsCompared(reference, str(worst), len(errors) - len(judged))
            return Verdict(Status.PASS, workload.id, NUMERICS, conclusion)
        largest = 1.5 * max(each.error for each in wrong)
        allow = [e.Next(e.Step.TOLERATE, f"Workload(..., tolerance={largest:.1g})")] if largest < 1 else []
        reasons: tuple[e.Reason, ...] = (
            *(e.Detail("why", str(error)) for error in wrong),
            e.Detail("seed", f"--perf-seed {seed}"),
            *allow,
        )
        return Verdict(Status.INVALID, workload.id, NUMERICS, e.NumericsCompared(reference), reasons)

    def judge_ratio(self, workload: Workload) -> Verdict:
        """Judge the GPU time of a workload against that of the variant that it says it is faster than."""
        assert workload.faster_than is not None
        other = self.suites.sibling(workload, variant=workload.faster_than)
        run, beside = self.run(workload), self.run(other)
        verdict = judge_ratio(run, beside, other.variant, by=workload.by, comparisons=self._comparisons)
        if verdict.status is Status.PASS:
            return verdict
        traces = (self.shown(self.artifacts.trace(each)) for each in (other, workload))
        return verdict.because(e.Next(e.Step.COMMAND, shlex.join(["kernelgauge", "diff", *traces])))

    def judge_structure(self, workload: Workload) -> Verdict:
        """Judge kernels and counts against the baseline."""
        return self._against_baseline(self.run(workload))

    def judge_time(self, workload: Workload, timer: Timer) -> Verdict:
        """Judge one time against the baseline. A latency that looks slower is measured further first."""
        run = self.run(workload)
        latency = self.latencies.get(workload.id) if timer is Timer.END_TO_END else None
        if isinstance(latency, OtherKernelsError):
            return _not_judged(run, timer, "not compared", latency)
        if run.incomplete is not None and run.sample(timer) is None:  # with a baseline or without one
            return not_measured(timer, run)
        verdict = self._against_baseline(run, timer)
        if verdict.status is Status.REGRESSED and not self.options.accepts:
            if latency is not None and workload.id not in self._confirmed:
                self._confirm_latency(workload, latency)
                verdict = self._against_baseline(self.run(workload), timer)
            error = self._confirmed[workload.id] if latency is not None else self._result(workload).not_confirmed
            if error is not None:
                return _not_judged(run, timer, "not confirmed", error)
        return verdict

    def _against_baseline(self, run: Run, timer: Timer | None = None) -> Verdict:
        """Judge a time of a run, or its structure, and say where its baseline is and what to do next.

        A baseline that cannot be used is INVALID, one that is missing NO_BASELINE.
        """
        workload, subject = self.suites.workloads[run.workload], STRUCTURE if timer is None else run.label(timer)
        try:
            baseline = self.store.load(run.fingerprint.device, run.workload)
            self.suites.require_own(baseline)
        except SuitesError as error:
            return Verdict(Status.INVALID, run.workload, subject, e.Failed(error.what), _reasons(error))
        except BaselineError as error:
            # An update is about to replace the file, so it is no reason to refuse the run.
            status = Status.NO_BASELINE if self.options.accepts else Status.INVALID
            error.where = self.shown(Path(error.where or ""))
            return Verdict(status, run.workload, subject, e.Failed(error.what), _reasons(error))
        path = self.shown(self.store.path(run.fingerprint.device, run.workload))
        if baseline is None:
            missing = (e.Detail("expected", path), e.Next(e.Step.RECORD, self.suites.command(workload)))
            return Verdict(Status.NO_BASELINE, run.workload, subject, e.NoBaseline(), missing)

        def judged(of: Timer) -> Verdict:
            return judge_time(of, run, baseline, comparisons=self._comparisons, limits=self._limits(workload))

        if timer is None:  # its verdict depends on those of the times
            verdict = judge_structure(run, baseline, [judged(each) for each in self.device.timers if run.sample(each)])
        else:
            verdict = judged(timer)
        if verdict.status in (Status.PASS, Status.NOT_JUDGED):
            return verdict
        comparison = compare(baseline.fingerprint, run.fingerprint)
        verdict = verdict.because(e.BaselineFile(path, (*comparison.foreign, *comparison.moved)))
        declared = self._verdicts.get((workload.id, DECLARED))
        if verdict.status not in (Status.UNDECIDED, Status.INVALID):
            if declared and declared.status.fails:
                return verdict.because(e.Next(e.Step.MEND))
            accept = self.how_to_accept("-k", self.suites.selector(workload))
            measure = "" if self.is_timed else self.suites.command(workload, update=False)
            return verdict.because(e.Next(e.Step.ACCEPT, accept, measure))
        if any(isinstance(reason, e.Next) for reason in verdict.reasons):
            return verdict
        return verdict.because(e.Next(e.Step.AGAIN))

    def conclude(self, verdict: Verdict) -> Verdict:
        """Keep a verdict, in place of an earlier one on the same subject."""
        self._verdicts[verdict.workload, verdict.subject] = verdict
        return verdict

    def conclude_error(self, workload: Workload, subject: str, error: KernelgaugeError) -> Verdict:
        """Keep the verdict that something could not be measured."""
        return self.conclude(Verdict(Status.INVALID, workload.id, subject, e.Failed(error.what), _reasons(error)))

    def failure(self, verdict: Verdict, test: str) -> str:
        """Return how a failing test ends: in a few lines, and the causes only where no test of the workload has named them yet."""
        causes = [each.identity for each in verdict.reasons if isinstance(each, e.Cause)][:CAUSES_WITH_CODE]
        named_in = [self._causes_shown.setdefault((verdict.workload, cause), test) for cause in causes]
        see = "" if test in named_in else next(iter(named_in), "")
        return brief(verdict, see=see, width=self.width)

    def fails(self, verdict: Verdict) -> bool:
        """Whether a verdict fails its test, with the strictness that is asked for."""
        if self.options.accepts and verdict.is_by_baseline:
            return verdict.status is Status.INVALID  # what differs is about to be accepted; what is not valid cannot be
        return verdict.status.fails or (self.options.strict and not verdict.status.decided)

    @property
    def _comparisons(self) -> int:
        """How many times and ratios the suites have, selected or not: `-k` changes no verdict."""
        workloads = self.suites.workloads.values()
        planned = sum(map(self.suites.is_in_matrix, workloads))
        ratios = sum(workload.faster_than is not None for workload in workloads)
        return max(1, planned) * len(self.device.timers) + ratios

    def _limits(self, workload: Workload) -> Limits:
        """Return the workload's limits, and the project's where it has none."""
        project = self.options.limits
        return Limits(
            gate={**project.gate, **{Timer(name): value for name, value in workload.gate.items()}},
            sensitivity={**project.sensitivity, **{Timer(name): value for name, value in workload.sensitivity.items()}},
        )

    # -- record ---------------------------------------------------------------------------------------------------

    def results(self, exit_status: int) -> Results:
        """Return what was measured and concluded so far. `exit_status`: pytest's."""
        names = {*self._measured, *(name for name, _ in self._verdicts)}
        workloads = [self._workload_result(name) for name in self.suites.workloads if name in names]
        runs = [each.run for each in workloads if each.run is not None]
        measured = [each for each in self._measured.values() if not isinstance(each, KernelgaugeError)]
        monitor = self.device.monitor if runs else None
        is_watched = monitor is None or monitor.available or self.fingerprint.arch == "cpu"
        return Results(
            schema_version=SCHEMA_VERSION,
            kernelgauge=__version__,
            started_at=self._started.isoformat(timespec="seconds"),
            seconds=(datetime.now(timezone.utc) - self._started).total_seconds(),
            arguments=self.options.arguments,
            fingerprint=self.fingerprint if runs else None,
            gpu=runs[0].gpu if runs else None,
            not_watched="" if monitor is None or is_watched else monitor.why_not,
            workloads=tuple(workloads),
            tests=tuple(each for results in self.tests.values() for each in results),
            warnings=tuple(dict.fromkeys(each.problem for each in measured if each.problem)),
            exit_status=exit_status,
            host=platform.node(),
            commit=self._commit,
            timers=tuple(self.device.timers) if runs else (),
            comparisons=self._comparisons if runs else 0,
            declared=self.suites.declared(),
            # The process that calibrates knows no root; nobody else reads its results.
            baselines=str(self.options.baselines) if self.options.calibrating else self.shown(self.options.baselines),
        )

    def _workload_result(self, name: str) -> WorkloadResult:
        workload, result, baseline = self.suites.workloads[name], self._measured.get(name), None
        run = self._with_latency(result.run) if result and not isinstance(result, KernelgaugeError) else None
        with suppress(BaselineError):  # the verdicts say what is wrong with it
            baseline = self.store.load(run.fingerprint.device, name) if run is not None else None
        return WorkloadResult(
            id=name,
            suite=self.suites.suite_of[name],
            module=workload.module,
            variant=workload.variant,
            dtype=workload.dtype or "",
            pass_=workload.pass_,
            shape=workload.shape,
            run=run,
            baseline=baseline,
            verdicts=tuple(settled(verdict for (of, _), verdict in self._verdicts.items() if of == name)),
            unavailable=result.one_line if isinstance(result, WorkloadUnavailable) else None,
            trace=self._trace(workload) if run and self.artifacts.trace(workload).exists() else None,
            limits=self._limits(workload),
        )

    def _trace(self, workload: Workload) -> str:
        """Return the path beside the results: one of this machine says nothing to who reads them elsewhere."""
        return self.artifacts.trace(workload).relative_to(self.artifacts.folder).as_posix()

    def how_to_record(self, results: Results | None = None) -> str:
        """Return which folder has no baseline, and the command that records one.

        `results`: of the workers of pytest-xdist, where this process itself has measured nothing.
        """
        fingerprint = results.fingerprint if results and results.fingerprint else self.fingerprint
        folder = self.shown(self.store.path(fingerprint.device, "x").parent)
        return f"no baseline in {folder}/; record one with: {self.suites.command(suites=results.declared if results else ())}"

    def how_to_accept(self, *arguments: str) -> str:
        """Return the command that stores this run as the baselines, without measuring again."""
        options = self.options
        places = []
        if options.reports != options.root / "reports":
            places = [os.path.relpath(self.artifacts.folder, options.invoked_from)]
        if not options.baselines.is_relative_to(options.root):  # the results record one in the project
            places += ["--baselines", str(options.baselines)]
        return shlex.join(["kernelgauge", "accept", *arguments, *places])

    def shown(self, path: Path) -> str:
        """Return a path as messages say it: from the root of the project where it lies in it."""
        root = self.options.root
        return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _reasons(error: KernelgaugeError) -> tuple[e.Reason, ...]:
    return tuple(e.Detail(label, text) for label, text in error.details)


def _not_judged(run: Run, timer: Timer, what: str, error: KernelgaugeError) -> Verdict:
    """Return the verdict on a time that cannot be compared with the baseline."""
    # What a compiler chose anew is no fault of the code, nor of the machine: the time that was asked for is not known.
    status = Status.UNDECIDED if isinstance(error, OtherKernelsError) else Status.INVALID
    why = error.what.removeprefix(f"{run.workload}: ")  # the verdict says it
    conclusion = e.Failed(why, f"{run.label(timer)} {what}")
    return Verdict(status, run.workload, run.label(timer), conclusion, _reasons(error))
