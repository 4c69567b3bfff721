"""One run of pytest with a suite: measure, judge, measure what looks slower in a fresh process, judge again.

This state has one owner, `Session`. It measures all selected workloads together, at the first test that asks for one.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import (
    BaselineError,
    KernelgaugeError,
    MeasurementError,
    NoKernelsError,
    OtherKernelsError,
    WorkloadUnavailable,
)
from ..judge import DECLARED, MEASUREMENT, Status, Verdict, settled
from ..judge import evidence as e
from ..judge.time_verdict import Context, not_measured
from ..measure import Settings
from ..measure.nvml import digest_of, visible_gpus
from ..report.findings import CAUSES_WITH_CODE, brief
from ..results import SCHEMA_VERSION, Artifacts, Results, TestResult, WorkloadResult, __version__, nearest_tag, revision
from ..results.files import GpuLock, folder_lock, slug, worker_lock
from ..run import COMPILE_TIMERS, Fingerprint, Run, Sample, Timer
from ..workload import Workload
from .judging import Judge, not_judged, reasons_of
from .options import Options
from .suites import SKIPPED, Suites, is_conditional, workload_of

if TYPE_CHECKING:
    import pytest

    from ..measure.device import Device, DeviceChoice
    from ..measure.runner import Result, Rounds
    from ..measure.subject import Measured

_Say = Callable[[str], None]
_LEAST_PATIENCE_S = 120.0  # with a fresh process, which imports and compiles anew


class Session:
    """What one run of pytest measured and concluded. `progress` and `waiting` show what it measures, and waits for."""

    def __init__(self, options: Options, *, progress: _Say = lambda _: None, waiting: _Say = lambda _: None) -> None:
        self.options = options
        self.progress, self.waiting = progress, waiting
        self.settings = Settings.of(options.replicates)
        self.suites = Suites(options)
        self.artifacts = Artifacts(options.reports / "latest", options.worker)
        self.judge = Judge(options, self.suites, self.artifacts)
        self.selected: list[Workload] = []  # this process has tests for them
        self.timing_tests: list[pytest.Item] = []  # selected
        self.tests: dict[str, list[TestResult]] = {}  # by pytest's id; two of one that failed after its call too
        self.width: int | None = None  # of the terminal, in columns; None: there is none
        self.errors_shown: dict[tuple[str, str], str] = {}  # by workload and text: the first test that showed it
        self.latencies: dict[str, Sample | OtherKernelsError] = {}  # or why a latency was not kept
        self._started = datetime.now(timezone.utc)
        self._commit: str | None = None
        self._release: str | None = None
        self._gpu_lock = GpuLock()
        self._folder_lock = folder_lock(options.reports)
        self._measured: dict[str, Result] = {}
        self._may_lack_kernels: set[str] = set()  # workloads of tests
        self._not_compiled: dict[str, KernelgaugeError] = {}  # why compile times are missing
        self._fresh: dict[str, Run | KernelgaugeError] = {}  # of a fresh process, or why there is none
        self._context = Context(1)  # of what is measured so far
        self._measuring_s = 0.0  # how long all that is measured took
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # by workload and subject
        self._causes_shown: dict[tuple[str, e.Cause], str] = {}  # by workload and cause: the first test that named it

    # -- what imports torch: when something is measured. A test puts stand-ins in their place -----------------------

    def choose_device(self, choice: DeviceChoice) -> Device:
        from ..measure.device import choose_device

        return choose_device(choice)

    def measure_groups(self, *arguments: Any, **named: Any) -> Iterable[dict[str, Result]]:
        from ..measure.runner import measure_groups

        return measure_groups(*arguments, **named)

    def run_process(self, arguments: Sequence[str], **named: Any) -> Results:
        from ..processes import run_process

        return run_process(arguments, **named)

    # -- the machine ----------------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> Device:
        """The device. Nobody else of ours uses it until the run ends: what compiles disturbs what is timed."""
        self.progress("starting torch and the device")
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
        return self.device.fingerprint()

    def prepare(self) -> None:
        """Find out before minutes of measuring whether the results can be written. Raises `StorageError`."""
        if not self.options.worker:
            self._folder_lock.hold(self.waiting)
            self.artifacts.prepare()
        self._commit = revision(self.options.root)  # that of now: it may move while the suite runs
        self._release = nearest_tag(self.options.root)
        if self.options.update:
            with self.judge.store.locked():
                pass

    def release(self) -> None:
        """Let other runs use the GPU and the folder."""
        self._gpu_lock.release()
        self._folder_lock.release()

    # -- measure --------------------------------------------------------------------------------------------------

    @property
    def shows_tests(self) -> bool:
        """Whether a line that says what a single test does is rewritten: in a log, its dot says enough."""
        return self.width is not None or self.options.calibrating

    def run(self, workload: Workload) -> Run:
        """Return what was measured of a workload so far, its latency included.

        All selected workloads are measured together, once.
        Raises the error that ended this one's measurement.
        """
        return self._with_latency(self._result(workload).run)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other worker measure meanwhile, where several measure what tests make on one CPU."""
        with ExitStack() as held:
            if self.options.worker and self.options.share is None and self.device.gpu is None:
                lock = worker_lock(self.options.reports)
                lock.hold(self.waiting)
                held.callback(lock.release)
            yield

    def measure_made(self, workload: Workload, may_lack_kernels: bool, other: Workload | None) -> Run:
        """Measure what a test calls, and its latency. Raises what `run` and `keep_latency` raise.

        `may_lack_kernels`: without a kernel its latency alone is measured. Else `run` raises a `NoKernelsError`.
        `other`: is measured in turns with it.
        """
        if may_lack_kernels:
            self._may_lack_kernels.add(workload.id)
        if other is not None and workload.id not in self._measured:
            self._measure([workload, other])
        self._result(workload)
        if self.judge.is_timed(workload):
            rounds = self.rounds(workload)
            self.keep_latency(workload, rounds, rounds.durations_s())
        return self.run(workload)

    def compile_made(self, workload: Workload, target: str) -> Run:
        """Compile what a test calls for a GPU by its name. Raises what `compile_call` raises."""
        from ..measure.code import compile_call
        from ..measure.subject import Measured

        if self.shows_tests:
            self.progress(f"{workload.id}: compiling for {target}")
        self._measured[workload.id] = Measured(compile_call(workload, target, self.fingerprint), 0, 0, b"", "")
        return self.run(workload)

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
        now = self.device.fingerprint().device  # of a CPU with its threads
        if now != self.fingerprint.device:
            raise MeasurementError(
                "a test changed torch's threads, and did not restore them",
                got=f"{self.fingerprint.device} -> {now}",
                expected="one number for the whole run: OMP_NUM_THREADS, or torch.set_num_threads in conftest.py",
            )
        started, machine = time.monotonic(), (self.device, self.fingerprint, self.settings)
        is_shown = self.shows_tests or any(each.id not in self.suites.made for each in workloads)
        say = self.progress if is_shown else lambda _: None
        timed, by_id = any(map(self.judge.is_timed, workloads)), {each.id: each for each in workloads}
        for results in self.measure_groups(workloads, *machine, say, timed=timed):
            self._measured |= results
            self._context = self.judge.context(self._measured, self.device)
            for name, result in results.items():
                if isinstance(result, NoKernelsError) and name in self._may_lack_kernels:
                    from ..measure.subject import without_kernels

                    self._measured[name] = without_kernels(by_id[name], result, *machine)
                elif not isinstance(result, KernelgaugeError):
                    self.artifacts.write(by_id[name], result.trace_json, result.table)
                    result.trace_json, result.table = b"", ""
                elif not isinstance(result, WorkloadUnavailable):
                    self.conclude_error(by_id[name], MEASUREMENT, result)
        for workload in workloads if self.options.compiles else ():  # when nothing of the others is in memory
            self._measure_compile(workload)
        self._measuring_s += time.monotonic() - started

    def _measure_compile(self, workload: Workload) -> None:
        """Add the compile times and counts of a workload to its run."""
        from ..measure.runner import compile_starts

        result = self._measured[workload.id]
        if workload.compile is None or isinstance(result, KernelgaugeError):
            return
        self.progress(f"{workload.id}: compiling with empty caches")
        try:
            samples, counts = compile_starts(workload, self.device)
        except KernelgaugeError as error:
            self._not_compiled[workload.id] = error
            return
        run = result.run
        counted = msgspec.structs.replace(run.counts, **counts)
        result.run = msgspec.structs.replace(run, samples=run.samples | samples, counts=counted)

    def _with_latency(self, run: Run) -> Run:
        latency = self.latencies.get(run.workload)
        incomplete = None if run.workload in self.judge.without_times else run.incomplete
        return msgspec.structs.replace(
            run,
            samples={**run.samples, Timer.END_TO_END: latency} if isinstance(latency, Sample) else run.samples,
            incomplete=incomplete or (latency.what if isinstance(latency, OtherKernelsError) else None),
            neighbours=self.options.neighbours,
        )

    # -- latency, which the test itself times ------------------------------------------------------------------------

    def rounds(self, workload: Workload, *, first: int = 0) -> Rounds:
        """Return rounds of end-to-end latency, to be timed."""
        from ..measure.runner import Rounds

        measured = self._result(workload)
        if self.shows_tests and not first:
            self.progress(f"{workload.id}: timing the end-to-end latency")
        return Rounds(
            workload,
            self.device,
            replicates=measured.latency_replicates,
            iterations=measured.latency_iterations,
            first=first,
            profiled=[kernel.identity for kernel in measured.run.kernels],
            one_instance=measured.one_instance,
        )

    def keep_latency(self, workload: Workload, rounds: Rounds, durations_s: Sequence[float]) -> None:
        """Keep the durations of the rounds in place of earlier ones; if the machine spoilt them, time others.

        Those of other kernels than were profiled are not kept. Raises `DisturbedError` if the machine spoils the others
        too, and what else `Rounds.require_profiled_kernels` raises.
        """
        sample = rounds.sample(durations_s)
        self.latencies.pop(workload.id, None)
        try:
            if rounds.disturbed_by():
                self.progress(f"{workload.id}: the machine was disturbed: timing the latency again")
                sample = self.rounds(workload, first=len(sample.replicates_us)).time()
            else:
                rounds.require_profiled_kernels()
            self.latencies[workload.id] = sample
        except OtherKernelsError as error:
            self.latencies[workload.id] = error

    # -- judge ----------------------------------------------------------------------------------------------------

    def has_baseline(self, workload: Workload) -> bool:
        """Whether this machine has a baseline of a workload, or any machine has one: of kernels that are compiled only."""
        names = (
            f"{cases}*" if (cases := workload.id.removesuffix("NOTSET")) != workload.id else cases
        )  # of no case: any of its cases
        return self._is_of_this_machine(folder for folder, _ in self.suites.stored(names))

    def require_tests(self, skipped_files: dict[str, str]) -> None:
        """Raise `KernelgaugeError` for an empty suite, or a file of tests that was skipped (why, by its name) and has baselines."""
        self.suites.require_workloads()
        stored = list(self.suites.stored("*")) if skipped_files else []
        for skipped, why in skipped_files.items():
            if self._is_of_this_machine(folder for folder, suite in stored if f"{suite}/".startswith(f"{skipped}/")):
                raise KernelgaugeError(f"{skipped}: {SKIPPED}", got=why)

    def _is_of_this_machine(self, folders: Iterable[str]) -> bool:
        found = set(folders)
        try:
            return any(each.startswith("compiled-for-") or each == slug(self.fingerprint.device) for each in found)
        except KernelgaugeError:  # no device: it cannot be ruled out
            return True

    def judge_declared(self, workload: Workload) -> Verdict:
        """Judge what the workload declares."""
        return self.judge.declared(workload, self.run(workload))

    def judge_structure(self, workload: Workload) -> Verdict:
        """Judge kernels and counts against the baseline."""
        return self._by_baseline(self.run(workload))

    def judge_time(self, workload: Workload, timer: Timer) -> Verdict:
        """Judge one time against the baseline. A fresh process must confirm a slower one."""
        run = self.run(workload)
        latency = self.latencies.get(workload.id) if timer is Timer.END_TO_END else None
        if isinstance(latency, OtherKernelsError):
            return not_judged(run, timer, "not compared", latency)
        if timer in COMPILE_TIMERS and (error := self._not_compiled.get(workload.id)) is not None:
            return not_judged(run, timer, "not measured", error)
        if run.incomplete is not None and run.sample(timer) is None:  # with a baseline or without one
            return not_measured(timer, run)
        verdict = self._by_baseline(run, timer)
        if verdict.status is Status.REGRESSED and not self.options.accepts and timer not in COMPILE_TIMERS:
            return self._confirmed_afresh(workload, timer, verdict)
        return verdict

    def _confirmed_afresh(self, workload: Workload, timer: Timer, verdict: Verdict) -> Verdict:
        """Return the verdict on a time that is slower after a fresh process has measured the workload, once."""
        if not self.options.confirms or self.judge_structure(workload).status is not Status.PASS:
            return verdict  # other structure explains the time
        if workload.id not in self._fresh:
            self.progress(f"{workload.id}: looks slower: measuring in a fresh process")
            self.device.free_memory()
            self._fresh[workload.id] = self._measure_afresh(workload)
            self.device.monitor.forget_others()
        fresh, run = self._fresh[workload.id], self.run(workload)
        return self.judge.confirmed(verdict, timer, fresh, run, self._context)

    def _measure_afresh(self, workload: Workload) -> Run | KernelgaugeError:
        """Measure all times of a workload in a fresh process. Return the error if that is not possible."""
        # Those of ratios need another workload, and compile times are not confirmed.
        tests = [each for each in self.timing_tests if workload_of(each) == workload and not is_conditional(each)]
        nodes = [f"{each.path}::{each.nodeid.partition('::')[2]}" for each in tests]
        # Ten times its share, and as much as all took: its caches are empty.
        patience_s = max(_LEAST_PATIENCE_S, self._measuring_s * (1 + 10 / len(self._measured)))
        variables = {"PYTEST_ADDOPTS": "", **self._gpu_lock.environment_of_child()}
        try:
            results = self.run_process(
                [*self.options.process_arguments, *nodes], may_fail=True, variables=variables, patience_s=patience_s
            )
        except (KernelgaugeError, OSError) as error:
            return error if isinstance(error, KernelgaugeError) else MeasurementError(str(error))
        runs = {each.workload: each for each in results.runs}
        return runs.get(workload.id) or MeasurementError("it could not measure the workload")

    def judge_ratio(self, workload: Workload, other: Workload | None = None) -> Verdict:
        """Judge the GPU time of a workload against that of another one, or of the variant that it says it is faster than."""
        other = other or self.suites.sibling(workload, variant=workload.faster_than)
        return self.judge.ratio(workload, self.run(workload), other, self.run(other), self.device)

    def judge_numerics(self, workload: Workload) -> Verdict:
        """Compare the workload with its reference in float64, on random input."""
        if self.shows_tests:
            self.progress(f"{workload.id}: comparing the result with float64")
        return self.judge.numerics(workload, self.device)

    def _by_baseline(self, run: Run, timer: Timer | None = None) -> Verdict:
        declared = self._verdicts.get((run.workload, DECLARED))
        return self.judge.by_baseline(run, timer, self.device, self._context, declared=declared)

    def conclude(self, verdict: Verdict) -> Verdict:
        """Keep a verdict, in place of an earlier one on the same subject."""
        self._verdicts[verdict.workload, verdict.subject] = verdict
        return verdict

    def conclude_error(self, workload: Workload, subject: str, error: KernelgaugeError) -> Verdict:
        """Keep the verdict that something could not be measured."""
        return self.conclude(Verdict(Status.INVALID, workload.id, subject, e.Failed(error.what), reasons_of(error)))

    def failure(self, verdict: Verdict, test: str) -> str:
        """Return how a failing test ends: in a few lines, and the causes only where no test of the workload has named them yet."""
        causes = [each.identity for each in verdict.reasons if isinstance(each, e.Cause)][:CAUSES_WITH_CODE]
        named_in = [self._causes_shown.setdefault((verdict.workload, cause), test) for cause in causes]
        see = "" if test in named_in else next(iter(named_in), "")
        return brief(verdict, see=see, more="in the report, or with pytest -v", width=self.width)

    # -- results --------------------------------------------------------------------------------------------------

    def results(self, exit_status: int, *, only: Workload | None = None) -> Results:
        """Return what was measured and concluded so far. `exit_status`: pytest's. `only`: of this workload."""
        names = {*self._measured, *(name for name, _ in self._verdicts)}
        names &= names if only is None else {only.id}
        workloads = [self._workload_result(name) for name in self.suites.workloads if name in names]
        runs = [each.run for each in workloads if each.run is not None]
        measured = [each for each in self._measured.values() if not isinstance(each, KernelgaugeError)]
        monitor = self.device.monitor if runs else None
        # The command that calibrates knows no root; nobody else reads these results.
        shown = str if self.options.calibrating else self.options.shown
        return Results(
            schema_version=SCHEMA_VERSION,
            kernelgauge=__version__,
            started_at=self._started.isoformat(timespec="seconds"),
            seconds=(datetime.now(timezone.utc) - self._started).total_seconds(),
            arguments=self.options.arguments,
            fingerprint=self.fingerprint if runs else None,
            gpu=runs[0].gpu if runs else None,
            not_watched="" if monitor is None or self.fingerprint.arch == "cpu" else monitor.why_not,
            workloads=tuple(workloads),
            tests=tuple(
                each for several in self.tests.values() for each in several if only is None or each.workload == only.id
            ),
            warnings=tuple(dict.fromkeys(each.problem for each in measured if each.problem)),
            exit_status=exit_status,
            host=platform.node(),
            commit=self._commit,
            release=self._release,
            timers=tuple(self.device.timers) if runs else (),
            comparisons=self.judge.comparisons(self.device) if runs else 0,
            declared=self.suites.declared(),
            baselines=shown(self.options.baselines),
        )

    def _workload_result(self, name: str) -> WorkloadResult:
        workload, result, baseline = self.suites.workloads[name], self._measured.get(name), None
        run = self._with_latency(result.run) if result and not isinstance(result, KernelgaugeError) else None
        with suppress(BaselineError):  # the verdicts say what is wrong with it
            baseline = self.judge.store.load(run.fingerprint.device, name) if run is not None else None
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
            trace=self.artifacts.trace_name(workload) if run and self.artifacts.trace(workload).exists() else None,
            limits=self.judge.limits(workload),
        )
