"""One run of pytest with a suite: measure, judge, measure what looks slower in a fresh process,
judge again, keep the verdicts.

All of that happens at the first demand of a test, for all that is selected; each test looks up its
verdict. This state has one owner, `Session`. What a test calls is a suite of one, which is done
when its test runs.
"""

from __future__ import annotations

import platform
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property, partial
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import (
    BaselineError,
    KernelgaugeError,
    MeasurementError,
    NoKernelsError,
    WorkloadError,
    WorkloadUnavailable,
)
from ..judge import (
    DECLARED,
    MEASUREMENT,
    NUMERICS,
    RATIO,
    STRUCTURE,
    Status,
    Verdict,
    without_doubtful_improvements,
)
from ..judge import evidence as e
from ..judge.baseline import Baseline
from ..judge.host import unseen_in, with_needed_callers
from ..judge.structure import other_code
from ..judge.time_verdict import Context, is_as_fast, not_measured, same_code
from ..judge.timing import FALSE_ALARMS_PER_RUN, SUSPECTS_PER_RUN
from ..measure import Settings
from ..measure.nvml import digest_of, visible_gpus
from ..report.text import named
from ..results import (
    SCHEMA_VERSION,
    Artifacts,
    Results,
    TestResult,
    WorkloadResult,
    __version__,
    nearest_tag,
    revision,
    sources_of,
)
from ..results.files import GpuLock, folder_lock, handed_choices, slug, worker_lock
from ..run import COMPILE_TIMERS, Fingerprint, Run, Sample, Timer
from ..trace import grouped
from ..workload import Workload
from . import judging
from .options import Options
from .suites import (
    MADE_BY_TEST,
    SKIPPED,
    Suites,
    is_conditional,
    subjects_of,
    workload_of,
    workloads_of,
)

if TYPE_CHECKING:
    import pytest

    from ..measure.choices import Replay
    from ..measure.device import Device, DeviceChoice
    from ..measure.measurement import Measured
    from ..measure.runner import Result

_Say = Callable[[str], None]
_LEAST_PATIENCE_S = 120.0  # with a fresh process, which imports and compiles anew
_LOOKS = 3  # at the latency of the same code: other jobs disturb one
_MOST_AFRESH_S = 600.0  # for all fresh processes of a run: each test of a fixture starts its own


class Session:
    """What one run of pytest measured and concluded.

    `progress` and `waiting` show what it measures, and waits for.
    """

    def __init__(
        self, options: Options, *, progress: _Say = lambda _: None, waiting: _Say = lambda _: None
    ) -> None:
        self.options = options
        self.progress, self.waiting = progress, waiting
        self.settings = Settings.of(options.replicates)
        self.suites = Suites(options)
        self.artifacts = Artifacts(options.reports / "latest", options.worker)
        self.selected: list[Workload] = []  # of the suites: this process has tests for them
        # by pytest's id; two of one that failed after its call too
        self.tests: dict[str, list[TestResult]] = {}
        self.without_times: set[str] = set()  # workloads that their tests want no times of
        self.profiled: dict[str, bool] = {}  # of the plugin's `PROFILED`
        self.width: int | None = None  # of the terminal, in columns; None: there is none
        # files of tests that are all collected; without --perf-strict, all selected too
        self.whole_files: set[str] = set()
        # By workload and cause or error: the first test that showed it.
        self.shown_in: dict[tuple[str, e.Cause | str], str] = {}
        # called when something of a workload is final
        self.on_freeze: Callable[[Workload], None] = lambda _: None
        self._started = datetime.now(timezone.utc)
        self._commit: str | None = None
        self._release: str | None = None
        self._gpu_lock = GpuLock()
        self._folder_lock = folder_lock(options.reports)
        # how many tests ask for a verdict, by workload and subject
        self._asked = Counter[tuple[str, str]]()
        self._timing_tests: dict[str, list[str]] = {}  # by workload
        self._has_timing_tests = False  # of a suite: then all of its workloads are timed
        # modules whose times a test reads from their runs, or from those of their variants and shapes
        self._modules_read: set[str] = set()
        # with --perf-changed: workloads that keep the times of their baselines
        self._keeping_times: set[str] = set()
        self._needs_run: set[str] = set()  # the others are only compared with float64
        self._measured: dict[str, Measured] = {}
        self._others: dict[str, Workload] = {}  # what tests say that their calls are faster than
        # by workload and subject: why there is no other verdict
        self._errors: dict[tuple[str, str], Exception] = {}
        self._missing: dict[tuple[str, Timer], KernelgaugeError] = {}  # why a time is
        # The baselines of what was measured, as they were then, or why they cannot be used.
        self._stored: dict[str, Baseline | KernelgaugeError | None] = {}
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # by workload and subject
        # of a fresh process, or why there is none
        self._fresh: dict[str, Run | KernelgaugeError] = {}
        self._frozen: set[str] = set()  # workloads that all verdicts are known of
        # how long all that was measured took, here and in fresh processes
        self._measuring_s = self._afresh_s = 0.0

    # -- what imports torch: when something is measured. A test puts stand-ins in their place ------

    def choose_device(self, choice: DeviceChoice) -> Device:
        from ..measure.device import choose_device

        return choose_device(choice)

    def measure_groups(self, *arguments: Any, **named: Any) -> Iterable[dict[str, Result]]:
        from ..measure.runner import measure_groups

        return measure_groups(*arguments, **named)

    def time_latency(self, workload: Workload, measured: Measured) -> Sample:
        from ..measure.runner import time_latency

        return time_latency(workload, self.device, measured, self.progress)

    def judge_result(self, workload: Workload) -> Verdict:
        if self.shows_tests:
            self.progress(f"{workload.id}: comparing the result with float64")
        stored = self._stored.get(workload.id) or self._load(workload, self.fingerprint.device)
        replay = self._replay(workload.id, stored)
        was_compared = isinstance(stored, Baseline) and stored.is_compared is True
        return judging.judge_result(
            self.suites, workload, self.device, replay, was_compared=was_compared
        )

    def run_process(self, arguments: Sequence[str], **named: Any) -> Results:
        from ..processes import run_process

        return run_process(arguments, **named)

    # -- the machine -------------------------------------------------------------------------------

    @cached_property
    def device(self) -> Device:
        """The device.

        Nobody else of ours uses it until the run ends: what compiles disturbs what is timed.
        """
        if self.shows_tests:
            self.progress("starting torch and the device")
        names = visible_gpus() if self.options.device != "cpu" else ()
        # Before CUDA starts: a process that waits on the GPU would be a stranger to the one that
        # times there.
        if names and (gpu := digest_of(names[0])) is not None:
            # takes seconds, in which another run may use the GPU
            import_module("kernelgauge.measure.runner")
            self._gpu_lock.hold(gpu, self.waiting)
        device = self.choose_device(self.options.device)
        # without NVML, or with other numbers than CUDA's, another one than was held
        if device.gpu is not None:
            self._gpu_lock.hold(device.gpu, self.waiting)
        return device

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return self.device.fingerprint()

    def prepare(self) -> None:
        """Find out before minutes of measuring whether the device is there, and the results can be
        written.

        Raises `KernelgaugeError`.
        """
        if self.options.device == "cuda":
            from ..measure.device import require_cuda

            require_cuda()
        if not self.options.worker:
            self._folder_lock.hold(self.waiting)
            self.artifacts.prepare()
        self._commit = revision(self.options.root)  # that of now: it may move while the suite runs
        self._release = nearest_tag(self.options.root)
        if self.options.update:
            with self.suites.store.locked():
                pass

    def release(self) -> None:
        """Let other runs use the GPU and the folder."""
        self._gpu_lock.release()
        self._folder_lock.release()

    # -- which tests ask for what ------------------------------------------------------------------

    def select(self, items: Iterable[pytest.Item]) -> bool:
        """Take note of the tests of this process: what nobody asks for gets no verdict.

        Return whether any measures.
        """
        pairs = [
            (each, it)
            for each in items
            if (it := workload_of(each)) and it.id in self.suites.workloads
        ]
        self.selected = workloads_of(item for item, _ in pairs if MADE_BY_TEST not in item.stash)
        for item, workload in pairs:
            subjects, is_timing = subjects_of(item), item.get_closest_marker("timing") is not None
            self._asked.update((workload.id, subject) for subject in subjects)
            self._has_timing_tests |= is_timing
            if is_timing and not subjects:
                self._modules_read.add(workload.module)
            # Ratios need another workload, and no fresh process confirms compile times.
            if (is_timing or MADE_BY_TEST in item.stash) and not is_conditional(item):
                node = f"{item.path}::{item.nodeid.partition('::')[2]}"
                self._timing_tests.setdefault(workload.id, []).append(node)
            if subjects != [NUMERICS] and not {"kernelgauge_test", "run"}.isdisjoint(
                getattr(item, "fixturenames", ())
            ):
                self._needs_run.add(workload.id)
        return bool(pairs)

    @property
    def _is_profiled_by_user(self) -> bool:
        """Whether the session has a profiler for all tests, and no tested code has left it on.

        A plugin starts its own behind the imports.
        """
        asked = self.profiled.get
        is_around = asked("imports", asked("imported", False))
        return is_around or (asked("imported") is False and asked("tests", False))

    def withdraw(self, item: pytest.Item) -> None:
        """Forget the verdict of a test that was skipped, if no other one asks for it."""
        for key in ((str(workload_of(item)), subject) for subject in subjects_of(item)):
            self._asked[key] -= 1
            if self._asked[key] <= 0:
                self._verdicts.pop(key, None)

    def _asks(self, workload: Workload, subject: str) -> bool:
        return self._asked[workload.id, subject] > 0

    # -- what tests look up ------------------------------------------------------------------------

    def run(self, workload: Workload) -> Run:
        """Return what was measured of a workload. At first demand, all selected ones are measured
        and judged.

        Raises the error that ended this one's measurement.
        """
        self._require(workload)
        return self._run(workload)

    def _run(self, workload: Workload) -> Run:
        if not self._is_known(workload):
            self._measure([workload])
        if error := self._errors.get((workload.id, MEASUREMENT)):
            raise error
        return self._measured[workload.id].run

    def _is_known(self, workload: Workload) -> bool:
        return workload.id in self._measured or (workload.id, MEASUREMENT) in self._errors

    def verdict(self, workload: Workload, subject: str) -> Verdict | None:
        """Return a verdict that a test asks for; None for a time that has no meaning on this
        device.

        Raises the error that stands in its place.
        """
        self._require(workload)
        if error := self._errors.get((workload.id, MEASUREMENT)) or self._errors.get(
            (workload.id, subject)
        ):
            raise error
        return self._verdicts.get((workload.id, subject))

    def durations_s(self, workload: Workload) -> Sequence[float]:
        """Return how long each round of the end-to-end latency took."""
        self._require(workload)
        return self._measured[workload.id].durations_s if workload.id in self._measured else ()

    def keep(self, verdict: Verdict) -> Verdict:
        """Keep a verdict, in place of an earlier one on the same subject."""
        self._verdicts[verdict.workload, verdict.subject] = verdict
        return verdict

    def keep_error(self, workload: Workload, subject: str, error: Exception) -> Verdict | None:
        """Keep why something could not be measured, and the verdict on it; None if the workload
        cannot run here.

        A fault of ours is INVALID too: no table says PASS beside it.
        """
        # all tests of the workload get it
        if error is self._errors.get((workload.id, MEASUREMENT)):
            subject = MEASUREMENT
        self._errors[workload.id, subject] = error
        if isinstance(error, WorkloadUnavailable):
            return None
        if not isinstance(error, KernelgaugeError):
            what = f"{workload.id}: {type(error).__name__} in kernelgauge"
            error = MeasurementError(what, got=str(error))
        reasons = judging.reasons_of(error)
        return self.keep(
            Verdict(Status.INVALID, workload.id, subject, e.Failed(error.what), reasons)
        )

    def fails(self, verdict: Verdict) -> bool:
        """Whether a verdict fails its test, with the strictness that is asked for."""
        if self.options.accepts and verdict.is_by_baseline:
            # what differs is about to be accepted; what is not valid cannot be
            return verdict.status is Status.INVALID
        return verdict.status.fails or (self.options.strict and not verdict.status.decided)

    # -- measure, judge, measure afresh, judge again -----------------------------------------------

    def _require(self, workload: Workload) -> None:
        if workload.id not in self._frozen:
            together = [each for each in self.selected if each.id not in self._frozen]
            # Another one to compare with, which this run has no tests for, is measured alone.
            self._push(together if workload in together else [workload])

    def _push(self, workloads: Sequence[Workload]) -> None:
        """Measure workloads, judge them, and keep the verdicts that tests ask for.

        What was interrupted goes on.
        """
        self._measure(
            [each for each in workloads if each.id in self._needs_run and not self._is_known(each)]
        )
        measured = [each for each in workloads if each.id in self._measured]
        for each in measured:
            if self._asks(each, Timer.END_TO_END.label) and each.id not in self._keeping_times:
                self._time_latency(each)
        self._judge(measured)
        for each in workloads:
            if each in measured and self._asks(each, RATIO):
                with self._blaming(each, RATIO):
                    self.keep(self._judge_ratio(each))
            self.on_freeze(each)
        for each in workloads:  # at the end: a CUDA error spoils all that follows
            is_sound = each in measured or each.id not in self._needs_run
            if (
                is_sound
                and self._asks(each, NUMERICS)
                and (each.id, NUMERICS) not in self._verdicts
            ):
                with self._blaming(each, NUMERICS):
                    self.keep(self.judge_result(each))
                self.on_freeze(each)
            self._frozen.add(each.id)

    @contextmanager
    def _blaming(self, workload: Workload, subject: str) -> Iterator[None]:
        """Keep an error in place of a verdict: the test that asks for it raises it, and all others
        go on.
        """
        try:
            yield
        except KernelgaugeError as error:
            error.__cause__ = error.__context__ = None  # their frames hold memory
            self.keep_error(workload, subject, error.with_traceback(None))
        except Exception as error:  # a fault of ours: pytest shows where
            self.keep_error(workload, subject, error)

    def judge_made(
        self,
        workload: Workload,
        subjects: Iterable[str],
        *,
        may_lack_kernels: bool = False,
        target: str | None = None,
        other: Workload | None = None,
    ) -> None:
        """Measure what a test calls, and judge it: a suite of one.

        `may_lack_kernels`: without a kernel its latency alone is measured. Else that is an error.
        `target`: is compiled for this GPU, and not run. `other`: is measured in turns with it.
        """
        if workload.id in self._frozen:
            return
        self._asked.update((workload.id, each) for each in subjects)
        self._needs_run.add(workload.id)
        if other is not None:
            self._others[workload.id] = other
        if target is not None:
            with self._blaming(workload, MEASUREMENT):
                self._compile(workload, target)
        elif not self._is_known(workload):  # else it was interrupted then
            self._measure(
                [workload, *([other] if other else [])], may_lack_kernels=may_lack_kernels
            )
        measured = self._measured.get(workload.id)
        if measured is not None and not measured.run.kernels:
            for each in (Timer.DEVICE.label, Timer.HOST.label, NUMERICS):
                del self._asked[workload.id, each]
        self._push([workload])

    # -- measure -----------------------------------------------------------------------------------

    @property
    def shows_tests(self) -> bool:
        """Whether a line that says what a single test does is rewritten: in a log, its dot says
        enough.
        """
        return self.width is not None or self.options.calibrating

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other worker measure meanwhile, where several measure what tests make on one CPU."""
        with ExitStack() as held:
            if self.options.worker and self.options.share is None and self.device.gpu is None:
                lock = worker_lock(self.options.reports)
                lock.hold(self.waiting)
                held.callback(lock.release)
            yield

    def _compile(self, workload: Workload, target: str) -> None:
        """Compile what a test calls for a GPU by its name."""
        from ..measure.code import compile_call
        from ..measure.measurement import Measured

        if self.shows_tests:
            self.progress(f"{workload.id}: compiling for {target}")
        run = compile_call(workload, target, self.fingerprint)
        stored = self._load(workload, run.fingerprint.device)
        self._keep_measured(workload, Measured(run, 0, 0, b"", ""), stored)

    def _measure(self, workloads: Sequence[Workload], *, may_lack_kernels: bool = False) -> None:
        """Profile workloads and time them, if a test asks for times.

        Keep what ended those that fail.
        """
        if not workloads:
            return
        started = time.monotonic()
        try:
            self._require_threads()
            machine = (self.device, self.fingerprint, self.settings)
            is_shown = self.shows_tests or any(
                each.id not in self.suites.made for each in workloads
            )
            say = self.progress if is_shown else lambda _: None
            timed, by_id = (
                any(map(self._is_timed, workloads)),
                {each.id: each for each in workloads},
            )
            stored = {each.id: self._load(each, self.fingerprint.device) for each in workloads}
            replays = {name: self._replay(name, each) for name, each in stored.items()}
            keeps = partial(self._keeps_times, stored) if self.options.changed else None
            how = {"timed": timed, "keeps_times": keeps, "replays": replays}
            for results in self.measure_groups(workloads, *machine, say, **how):
                for name, result in results.items():
                    if isinstance(result, NoKernelsError) and may_lack_kernels:
                        from ..measure.measurement import without_kernels

                        empty = without_kernels(by_id[name], result, *machine)
                        self._keep_measured(by_id[name], empty, stored[name])
                    elif isinstance(result, KernelgaugeError):
                        self.keep_error(by_id[name], MEASUREMENT, result)
                    else:
                        self._keep_measured(by_id[name], result, stored[name])
        except Exception as error:  # no device, no room for a trace, or a fault of ours
            for each in workloads:
                if not self._is_known(each):
                    self.keep_error(each, MEASUREMENT, error)
        # when nothing of the others is in memory
        for workload in workloads if self.options.compiles else ():
            self._measure_compile(workload)
        self._measuring_s += time.monotonic() - started

    def _load(self, workload: Workload, device: str) -> Baseline | KernelgaugeError | None:
        """Return the baseline of a workload, or why it cannot be used: no other line decodes one."""
        try:
            stored = self.suites.store.load(device, workload.id)
            self.suites.require_own(stored)
        except (BaselineError, WorkloadError) as error:
            return error
        return stored

    def _replay(self, name: str, stored: Baseline | KernelgaugeError | None) -> Replay:
        """Return the choices of autotuners that a workload must take: those of its run, those that
        another process has handed over, else those of its baseline.
        """
        from ..measure.choices import Replay

        if (measured := self._measured.get(name)) is not None:
            return Replay(measured.run.choices)
        if (handed := handed_choices().get(name)) is not None:
            return Replay(handed)
        made = stored.choices_to_replay() if isinstance(stored, Baseline) else ()
        return Replay(made, tunes=self.options.tunes)

    def _require_threads(self) -> None:
        now = self.device.fingerprint().device  # of a CPU with its threads
        if now != self.fingerprint.device:
            raise MeasurementError(
                "a test changed torch's threads, and did not restore them",
                got=f"{self.fingerprint.device} -> {now}",
                expected="one number for the whole run: OMP_NUM_THREADS, or torch.set_num_threads in conftest.py",
            )

    def _is_timed(self, workload: Workload) -> bool:
        if workload.id in self.suites.made:
            return any(self._asks(workload, timer.label) for timer in Timer)
        return self._has_timing_tests

    def _keeps_times(
        self,
        every: Mapping[str, Baseline | KernelgaugeError | None],
        run: Run,
        latency: Callable[[], Sample],
    ) -> bool:
        """Return whether a run has the code of its baseline, and no test reads its times or compares
        a variant with them. Remember it; else say why it is timed.
        """
        asked = [each for each in self.device.timers if self._asked[run.workload, each.label] > 0]
        of_ratios = {
            name for (name, subject), n in self._asked.items() if subject == RATIO and n > 0
        }
        for name in [*of_ratios]:
            with suppress(KernelgaugeError):  # the test of the ratio raises it
                of_ratios.add(self._other(self.suites.workloads[name]).id)
        workload, stored = self.suites.workloads[run.workload], every[run.workload]
        limits, why = self.suites.limits(workload), ""
        if not isinstance(stored, Baseline):
            why = "no baseline"
        elif workload.module in self._modules_read or run.workload in of_ratios:
            why = "a test reads its times"
        elif not all(stored.times(each) for each in asked):
            why = "the baseline lacks a time"
        elif not (why := other_code(run, stored)):
            is_as_usual = any(is_as_fast(latency(), stored, limits) for _ in range(_LOOKS))
            why = "" if is_as_usual else "a short look was slower"
        if not why:
            self._keeping_times.add(run.workload)
        else:
            self.progress(f"{run.workload}: timing: {why}")
        return not why

    def _keep_measured(
        self, workload: Workload, measured: Measured, stored: Baseline | KernelgaugeError | None
    ) -> None:
        """Keep a run, its trace and what is stored of it."""
        if measured.trace_json:
            self.artifacts.write(workload, measured.trace_json, measured.table)
            measured.trace_json, measured.table = b"", ""
        has_none = workload.id in self.without_times | self._keeping_times
        incomplete = None if has_none else measured.run.incomplete
        neighbours = self.options.neighbours
        measured.run = msgspec.structs.replace(
            measured.run, incomplete=incomplete, neighbours=neighbours
        )
        self._stored[workload.id], self._measured[workload.id] = stored, measured

    def _measure_compile(self, workload: Workload) -> None:
        """Add the compile times and counts of a workload to its run."""
        from ..measure.runner import compile_starts

        if workload.compile is None or workload.id not in self._measured:
            return
        self.progress(f"{workload.id}: compiling with empty caches")
        try:
            samples, counts = compile_starts(workload, self.device)
        except KernelgaugeError as error:
            self._missing |= {(workload.id, timer): error for timer in COMPILE_TIMERS}
            return
        measured = self._measured[workload.id]
        counted = msgspec.structs.replace(measured.run.counts, **counts)
        measured.run = msgspec.structs.replace(
            measured.run, samples=measured.run.samples | samples, counts=counted
        )

    def _time_latency(self, workload: Workload) -> None:
        """Add the end-to-end latency of a workload to its run, or why it has none: it has a loop of
        its own.
        """
        measured, timer = self._measured[workload.id], Timer.END_TO_END
        if timer in measured.run.samples or (workload.id, timer) in self._missing:
            return
        if self.shows_tests:
            self.progress(f"{workload.id}: timing the end-to-end latency")
        try:
            samples = {**measured.run.samples, timer: self.time_latency(workload, measured)}
            measured.run = msgspec.structs.replace(measured.run, samples=samples)
        except KernelgaugeError as error:
            self._missing[workload.id, timer] = error
            measured.run = msgspec.structs.replace(
                measured.run, incomplete=measured.run.incomplete or error.what
            )

    # -- judge -------------------------------------------------------------------------------------

    def _judge(self, workloads: Sequence[Workload]) -> None:
        """Judge runs by what they declare and by their baselines, and what looks slower once more,
        afresh.
        """
        if not workloads:
            return
        pairs = ((each.run, self._stored[name]) for name, each in self._measured.items())
        known = ((run, stored) for run, stored in pairs if isinstance(stored, Baseline))
        level = SUSPECTS_PER_RUN if self.options.confirms else FALSE_ALARMS_PER_RUN
        context = Context(self._comparisons, known, level=level)
        suspects: list[Verdict] = []
        for each in workloads:
            with self._blaming(each, MEASUREMENT):
                suspects += self._judge_run(each, context)
        self._measure_afresh(dict.fromkeys(each.workload for each in suspects))
        for verdict in suspects:
            run, baseline = self._measured[verdict.workload].run, self._stored[verdict.workload]
            assert isinstance(baseline, Baseline)  # the time is slower than its
            with self._blaming(self.suites.workloads[run.workload], MEASUREMENT):
                fresh = self._fresh[run.workload]
                self.keep(judging.confirmed(self.suites, verdict, run, fresh, baseline, context))

    def _judge_run(self, workload: Workload, context: Context) -> list[Verdict]:
        """Judge a run, and return the verdicts on times that a fresh process must find slower too."""
        run, stored = self._measured[workload.id].run, self._stored[workload.id]
        declared: Verdict | None = None
        if self._asks(workload, DECLARED):
            trace = self.artifacts.trace_name(workload)
            declared = self.keep(judging.judge_declared(self.suites, run, trace))
        every = (*self.device.timers, *COMPILE_TIMERS)
        # structure depends on all of them
        timers = [each for each in every if run.sample(each) is not None]
        for timer in every:
            # with a baseline or without one
            if timer not in timers and self._asks(workload, timer.label):
                error = self._missing.get((workload.id, timer))
                if workload.id in self._keeping_times and timer not in COMPILE_TIMERS:
                    self.keep(same_code(timer, run))
                else:
                    self.keep(
                        not_measured(timer, run)
                        if error is None
                        else judging.not_judged(run, timer, error)
                    )
        subjects = [
            each
            for each in (STRUCTURE, *(each.label for each in timers))
            if self._asks(workload, each)
        ]
        if not subjects:
            return []
        path = self.options.shown(self.suites.store.path(run.fingerprint.device, run.workload))
        if not isinstance(stored, Baseline):
            problem = judging.unusable(self.suites, run, stored, path)
            for each in subjects:
                self.keep(replace(problem, subject=each))
            return []
        why = self._measured[workload.id].problem
        if self._is_profiled_by_user:
            stored = msgspec.structs.replace(stored, host_work={})
        verdicts = judging.judge_by_baseline(self.suites, run, stored, timers, context, why)
        is_same_code = verdicts[0].status is Status.PASS
        advised = partial(judging.advised, self.suites, is_same_code=is_same_code)
        kept = [
            self.keep(advised(each, run, stored, path, declared))
            for each in verdicts
            if each.subject in subjects
        ]
        # Other structure explains a time.
        is_confirmed = self.options.confirms and not self.options.accepts and is_same_code
        return [each for each in kept if is_confirmed and judging.needs_confirmation(each, run)]

    def _judge_ratio(self, workload: Workload) -> Verdict:
        """Judge the GPU time of a workload against that of another one, or of the variant that it
        says it is faster than.
        """
        other = self._other(workload)
        traces = [self.options.shown(self.artifacts.trace(each)) for each in (other, workload)]
        comparisons = self._comparisons + len(self.suites.made)  # any test may make one
        run, by = self._run(workload), workload.by
        return judging.judge_variants(
            run, self._run(other), other.variant, traces, by=by, comparisons=comparisons
        )

    def _other(self, workload: Workload) -> Workload:
        """Return what a workload says that it is faster than."""
        return self._others.get(workload.id) or self.suites.sibling(
            workload, variant=workload.faster_than
        )

    @property
    def _comparisons(self) -> int:
        return self.suites.comparisons(self.device.timers)

    # -- afresh ------------------------------------------------------------------------------------

    def _measure_afresh(self, names: Iterable[str]) -> None:
        """Measure all times of workloads in one fresh process; if it fails, each of them once in
        its own.
        """
        names = [each for each in names if each not in self._fresh]
        if not names:
            return
        who = (
            f"{len(names)} of {len(self.selected)} workloads look"
            if len(names) > 1
            else f"{names[0]}: looks"
        )
        self.progress(f"{who} slower: measuring in a fresh process")
        self.device.free_memory()
        found = self._run_afresh(names)
        for name in names if len(names) > 1 else ():
            # one of them may have taken the process with it
            if isinstance(found[name], KernelgaugeError):
                found |= self._run_afresh([name])
        self.device.monitor.forget_others()
        self._fresh |= found

    def _run_afresh(self, names: Sequence[str]) -> dict[str, Run | KernelgaugeError]:
        """Return what a fresh process measures of workloads, or why it does not."""
        started = time.monotonic()
        # Ten times its share, and as much as all took: its caches are empty.
        patience_s = max(_LEAST_PATIENCE_S, self._measuring_s * (1 + 10 / len(self._measured)))
        variables = {"PYTEST_ADDOPTS": "", **self._gpu_lock.environment_of_child()}
        arguments = [
            *self.options.process_arguments,
            *(node for name in names for node in self._timing_tests[name]),
        ]
        choices = {name: self._measured[name].run.choices for name in names}
        how: dict[str, Any] = {"may_fail": True, "variables": variables, "patience_s": patience_s}
        how["choices"] = choices
        found: dict[str, Run | KernelgaugeError] = {}
        failed: KernelgaugeError = MeasurementError("it could not measure the workload")
        try:
            if self._afresh_s > _MOST_AFRESH_S:
                raise OSError(
                    f"fresh processes took {self._afresh_s:.0f} s of this run, so no other one starts"
                )
            found |= {each.workload: each for each in self.run_process(arguments, **how).runs}
        except (KernelgaugeError, OSError) as error:
            failed = error if isinstance(error, KernelgaugeError) else MeasurementError(str(error))
        self._afresh_s += time.monotonic() - started
        return {name: found.get(name, failed) for name in names}

    # -- what is stored ----------------------------------------------------------------------------

    def has_baseline(self, workload: Workload) -> bool:
        """Whether this machine has a baseline of a workload, or any machine has one: of kernels
        that are compiled only.
        """
        cases = workload.id.removesuffix("NOTSET")  # of no case: any of its cases
        names = cases + "*" * (cases != workload.id)
        return self._is_of_this_machine(folder for folder, *_ in self.suites.stored(names))

    def require_tests(self, skipped_files: dict[str, str]) -> None:
        """Raise `KernelgaugeError` for an empty suite, a file of tests that was skipped (why, by its
        name) and has baselines, or a baseline of a file without its test.
        """
        self.suites.require_workloads()
        if self.options.strict and not self.options.accepts and (error := self._unasked()):
            raise error
        stored = list(self.suites.stored("*")) if skipped_files else []
        for skipped, why in skipped_files.items():
            if self._is_of_this_machine(
                folder for folder, suite, _ in stored if f"{suite}/".startswith(f"{skipped}/")
            ):
                raise KernelgaugeError(f"{skipped}: {SKIPPED}", got=why)

    def _gone(self) -> list[tuple[str, str, str]]:
        """Return folder, file and name of each baseline of this machine whose test is gone from its
        file.
        """
        return (
            [
                each
                for each in self.suites.stored("*", but=self.suites.workloads)
                if each[1] in self.whole_files and self._is_of_this_machine(each[:1])
            ]
            if self.whole_files
            else []
        )

    def _unasked(self) -> KernelgaugeError | None:
        """Return an error about the baselines that are `_gone`."""
        if not (gone := self._gone()):
            return None
        baselines = self.options.shown(self.options.baselines)
        paths = [f"{baselines}/{folder}/{name}.json" for folder, _, name in gone]
        remove = shlex.join(["git", "rm", *paths])
        return KernelgaugeError(
            "no test asks for these baselines any more",
            got=", ".join(name for *_, name in gone),
            next_command=f"{remove}   (after a rename, first record it: --perf-update)",
        )

    def _is_of_this_machine(self, folders: Iterable[str]) -> bool:
        found = set(folders)
        try:
            return any(
                each.startswith("compiled-for-") or each == slug(self.fingerprint.device)
                for each in found
            )
        except KernelgaugeError:  # no device: it cannot be ruled out
            return True

    # -- results -----------------------------------------------------------------------------------

    def results(self, exit_status: int, *, only: Workload | None = None) -> Results:
        """Return what was measured and concluded so far.

        `exit_status`: pytest's. `only`: of this workload.
        """
        names = {*self._measured, *(name for name, _ in (*self._verdicts, *self._errors))}
        names &= names if only is None else {only.id}
        workloads = [self._workload_result(name) for name in self.suites.workloads if name in names]
        runs = [each.run for each in workloads if each.run is not None]
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
            not_watched=""
            if monitor is None or self.fingerprint.arch == "cpu"
            else monitor.why_not,
            workloads=tuple(workloads),
            tests=tuple(
                each
                for several in self.tests.values()
                for each in several
                if only is None or each.workload == only.id
            ),
            warnings=tuple(self._warnings(names)),
            exit_status=exit_status,
            host=platform.node(),
            commit=self._commit,
            release=self._release,
            timers=tuple(self.device.timers) if runs else (),
            comparisons=self._comparisons if runs else 0,
            declared=self.suites.declared({file for _, file, _ in ([] if only else self._gone())}),
            baselines=shown(self.options.baselines),
            sources=sources_of(self.options.root),
        )

    def _warnings(self, names: Collection[str]) -> Iterator[str]:
        """Yield each problem beside the measurement, with the workloads that have it."""
        found = [(name, it.problem) for name, it in self._measured.items() if name in names]
        for name, _ in found[:]:
            if isinstance(stored := self._stored.get(name), Baseline):
                found.append((name, unseen_in(stored, self._measured[name].run)))
        for problem, cases in grouped(found, itemgetter(1)).items():
            if problem:
                yield f"{named(name for name, _ in cases)}: {problem}"
        is_said = self.options.strict and not self.options.accepts  # by `require_tests`
        if found and not (is_said or self.options.calibrating) and (error := self._unasked()):
            yield error.one_line

    def _workload_result(self, name: str) -> WorkloadResult:
        workload, baseline = self.suites.workloads[name], self._stored.get(name)
        run = self._measured[name].run if name in self._measured else None
        if run is not None and isinstance(baseline, Baseline) and not self.options.calibrating:
            run = with_needed_callers(run, baseline)
        error = self._errors.get((name, MEASUREMENT))
        return WorkloadResult(
            id=name,
            suite=self.suites.suite_of[name],
            module=workload.module,
            variant=workload.variant,
            dtype=workload.dtype or "",
            pass_=workload.pass_,
            shape=workload.shape,
            run=run,
            # the verdicts say what is wrong with it
            baseline=baseline if isinstance(baseline, Baseline) else None,
            verdicts=tuple(
                without_doubtful_improvements(
                    verdict for (of, _), verdict in self._verdicts.items() if of == name
                )
            ),
            unavailable=error.one_line if isinstance(error, WorkloadUnavailable) else None,
            trace=self.artifacts.trace_name(workload)
            if run and self.artifacts.trace(workload).exists()
            else None,
            limits=self.suites.limits(workload),
        )
