"""Measures workloads together: from what is asked to what was observed.

Passes go round all workloads: a drift of the machine then meets each of them alike, and shows between passes instead of
between workloads.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from ..errors import DisturbedError, KernelgaugeError, MeasurementError, TimesError
from ..run import ControlTime, Counts, Fingerprint, OpRecord, Run, Sample, Timer, on_the_fastest_host
from ..trace import KernelRecord, dispatcher_ops, metadata_ops_that_launched
from ..trace.summary import kernel_work, summarize_trace
from ..workload import Workload
from .compiler import compile_counts, torch_set_up
from .conditions import conditions_of, highest_clock_mhz
from .device import Device, roof
from .instance import build
from .nvml import digest
from .replicate import Replicate, replicate
from .settings import Settings
from .subject import DeviceLost, Subject, prepare, prepare_together, told

Progress = Callable[[str], None]

_CONTROL_ITERATIONS = 12  # enough for 0.1 %: a control has one kernel, and its replicates are as many as the passes
_TOLD_EVERY_S = 2.0  # a pass over a few workloads takes a tenth of that, and a log keeps every line


@dataclass(frozen=True)
class Measured:
    """A run and its artifacts.

    `latency_replicates`, `latency_iterations`: of what is timed later, and calls in each. `one_instance`: whether all
    replicates are made on one (`Subject.only_instance`). `not_confirmed`: why a time that looks slower could not be measured again.
    """

    run: Run
    latency_replicates: int
    latency_iterations: int
    trace_json: bytes
    table: str
    one_instance: bool = False
    not_confirmed: KernelgaugeError | None = None


Result = Measured | KernelgaugeError


@dataclass
class MeasuredGroup:
    """Workloads whose compiled code is there together, so that they can be measured further.

    `results`: by workload id, each with its run or with why there is none: a `WorkloadUnavailable` if it cannot run here,
    a `WorkloadError` if it fails, a `MeasurementError` if what was seen cannot be trusted.
    """

    results: dict[str, Result]
    _passes: Passes
    _fingerprint: Fingerprint

    def confirm(self, slower: Iterable[str]) -> None:
        """Measure these workloads further, three times as long in all: what was measured before counts as well."""
        named = set(slower)
        passes = self._passes
        subjects = [each for each in passes.subjects if each.workload.id in named and each.error is None]
        for subject in subjects:
            passes.progress(f"{subject.workload.id}: looks slower: measuring again, twice as long")
        if subjects:
            passes.confirm(subjects)
        for subject in subjects:
            name = subject.workload.id
            before = self.results[name]
            if subject.error is None:
                self.results[name] = _observed(passes, subject, self._fingerprint)
            elif isinstance(before, Measured):
                passes.progress(f"{name}: not measured again: {subject.error.what}")
                self.results[name] = replace(before, not_confirmed=subject.error)


def measure_groups(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
    *,
    timed: bool = True,
    deterministic: bool = False,
) -> Iterator[MeasuredGroup]:
    """Profile and time workloads, interleaved, as many at once as can share compiled code.

    A group's compiled code is gone when the next one is asked for.

    Args:
        timed: whether to time them; else only their structure is measured.
        deterministic: let Inductor choose launch configurations without timing them.
    """
    settings = settings.limited(device.most_replicates, device.most_busy_seconds)
    waiting = list(workloads)
    with torch_set_up(deterministic=deterministic):
        while waiting:
            failed: dict[str, KernelgaugeError] = {}
            subjects, waiting = prepare_together(waiting, device, failed, progress)
            passes = Passes(subjects, device, settings, progress)
            if subjects and timed:
                passes.make()
            results: dict[str, Result] = {
                subject.workload.id: _observed(passes, subject, fingerprint) for subject in subjects
            }
            yield MeasuredGroup({**results, **failed}, passes, fingerprint)
            for subject in subjects:
                subject.only_instance = None  # the next ones are built before these subjects are gone


# -- passes over all workloads ------------------------------------------------------------------------------------------


@dataclass
class Passes:
    """Passes over workloads and the reference kernels, each in its turn, until each is pinned down. Owns the controls.

    `confirm` goes on with the compiled code: code that was compiled again differed by 0.3 %.
    """

    subjects: Sequence[Subject]
    device: Device
    settings: Settings
    progress: Callable[[str], None]
    _controls: list[Subject] = field(default_factory=list)
    _made: int = 0
    _usual_mhz: int | None = None  # the highest clock that any of them has shown

    def make(self) -> None:
        """Until each is pinned down or out of budget."""
        try:
            for workload in self.device.controls:
                self._controls.append(prepare(workload, build(workload, self.device), self.device))
                self._controls[-1].is_control = True
        except KernelgaugeError as error:
            for subject in self.subjects:
                subject.error = told(error, self.device)
            return
        self._make(self.subjects)

    def confirm(self, slower: Sequence[Subject]) -> None:
        """Measure these further, in twice as many replicates again."""
        for subject in slower:
            subject.wanted = 3 * len(subject.replicates)
        ending = _ends_all(self._controls, self.device)
        if ending is None:
            self._make(slower)
        else:
            for subject in slower:
                subject.error = ending

    @property
    def controls(self) -> dict[str, ControlTime]:
        """What the reference kernels took; without one that was not measured."""
        return {control.workload.module: _control_time(control) for control in self._controls if control.replicates}

    def _make(self, subjects: Sequence[Subject]) -> None:
        first, told_at = self._made, -math.inf
        while active := [subject for subject in subjects if not subject.is_done(self.settings)]:
            now = time.perf_counter()
            if now - told_at >= _TOLD_EVERY_S:
                pass_ = self._made - first + 1
                self.progress(f"timing, pass {pass_}: {len(active)} of {len(subjects)} workloads")
                told_at = now
            for subject in (*self._controls, *active):
                kept = self._one_replicate(subject)
                seen = highest_clock_mhz(kept.readings) if kept is not None else None
                self._usual_mhz = max((mhz for mhz in (self._usual_mhz, seen) if mhz is not None), default=None)
            ending = _ends_all(self._controls, self.device)
            if ending is not None:
                for subject in subjects:
                    if not subject.is_done(self.settings):
                        subject.error = ending
                break
            self._made += 1
        _refuse_drift(self._controls, subjects, self.device.tolerated_drift)

    def _one_replicate(self, subject: Subject) -> Replicate | None:
        """Measure once more. None: it failed, or was disturbed and does not count."""
        settings = self.settings
        chosen = replace(settings, iterations=_CONTROL_ITERATIONS) if subject.is_control else settings
        before = compile_counts()
        try:
            measured = replicate(
                subject.workload,
                self.device,
                chosen,
                index=self._made,
                structure=subject.structure,
                pace=subject.pace,
                usual_clock_mhz=self._usual_mhz,
                is_control=subject.is_control,
                only_instance=subject.only_instance,
            )
        except KernelgaugeError as error:
            subject.end(told(error, self.device))
            return None
        finally:  # other kernels than were profiled may come of a recompile
            after = compile_counts()
            subject.recompiles += after.recompiles_since(before)
            subject.compile_events += subject.modules.located(after.events_since(before))
        if not measured.disturbed_by or subject.is_control:
            subject.replicates.append(measured)
            return measured
        subject.spoilt.append(measured)
        if len(subject.spoilt) > max(
            settings.replicates, subject.wanted or 0
        ):  # repeated as often as are kept at least
            subject.end(
                DisturbedError(
                    subject.workload.id,
                    (reason for each in subject.spoilt for reason in each.disturbed_by),
                    expected="a GPU of its own at its usual clock: each such replicate was repeated, "
                    f"{len(subject.spoilt)} times in all",
                )
            )
        return None


def _ends_all(controls: Sequence[Subject], device: Device) -> KernelgaugeError | None:
    """Why nothing more can be measured: the device is gone, or nobody watches the machine any more."""
    if device.lost():
        return DeviceLost()
    return next((control.error for control in controls if control.error is not None), None)


def _refuse_drift(controls: Sequence[Subject], subjects: Sequence[Subject], tolerated: float) -> None:
    """Believe nothing that was measured on a machine that changed its speed meanwhile."""
    drifts = {control.workload.module: _drift(control) for control in controls}
    too_far = [f"{name} {100 * drift:+.1f} %" for name, drift in drifts.items() if abs(drift) > tolerated]
    if not too_far:
        return
    drifted = TimesError(
        "the machine changed its speed while it measured",
        got=", ".join(too_far),
        expected=f"a copy and a GEMM of our own to stay within {100 * tolerated:g} %",
        next_command="nvidia-smi -q -d PERFORMANCE,CLOCK   (is it throttled, or shared?)",
    )
    for subject in subjects:
        if subject.error is None or isinstance(subject.error, DeviceLost):
            subject.error = drifted


def _drift(control: Subject) -> float:
    """Return how far a control moved from its first replicates to its last, as a fraction."""
    times = [each.device_us for each in control.replicates]
    third = len(times) // 3
    return median(times[-third:]) / median(times[:third]) - 1 if third else 0.0


def _control_time(control: Subject) -> ControlTime:
    # A GEMM may split K: two kernels.
    names = [execution.identity.name for execution in control.structure.executions[0]]
    return ControlTime(" + ".join(names), median(each.device_us for each in control.replicates))


# -- the run of one workload ------------------------------------------------------------------------------------------


def _observed(passes: Passes, subject: Subject, fingerprint: Fingerprint) -> Result:
    """Return what was observed of a workload, or why there is nothing."""
    device, settings, controls = passes.device, passes.settings, passes.controls
    own = subject.own(settings)
    kept = len(subject.replicates) >= own.replicates
    error = subject.error
    if error is not None and not isinstance(error, (DeviceLost, TimesError)):
        return error
    # The structure is sound, whatever disturbed the times. If the device fell off, times are sound if there are enough.
    incomplete = (
        None if error is None or (kept and isinstance(error, DeviceLost)) else _sentence(error, subject.workload)
    )
    if not subject.replicates and incomplete is None:
        incomplete = "no test of a time was selected"
    session, window = subject.structure, subject.structure.windows[-1]
    try:
        samples = {} if incomplete else _samples(subject, settings)
    except ValueError as error:  # of a `Sample`: a clock or a profiler that gives zero
        return MeasurementError(
            f"{subject.workload.id}: a time that no call takes",
            got=str(error),
            expected="kernels and calls that take at least a nanosecond",
            next_command="run again in a fresh process; no other profiler (CUPTI has one subscriber) may be attached",
        )
    return Measured(
        run=Run(
            workload=subject.workload.id,
            fingerprint=fingerprint,
            kernels=_kernels(subject),
            counts=_counts(subject),
            samples=samples,
            incomplete=incomplete,
            gpu=device.gpu,
            host=digest(platform.node()) if platform.node() else None,
            controls=controls,
            conditions=conditions_of([each.readings for each in subject.replicates]),
            ops=tuple(OpRecord(op.name, op.input_shapes) for op in window.ops),
            launch_apis=tuple(launch.call.name for launch in window.launches),
            occupancy_queries=window.occupancy_queries,
            metadata_ops_that_launched=tuple(metadata_ops_that_launched(window)),
            steps=len(session.trace.steps()),
            transfers_us=fmean(
                sum(record.time_us for record in (*each.copies, *each.memsets)) for each in session.windows
            ),
            synchronizing_ops=tuple(text for text, _ in window.synchronizing_ops),
            copying_ops=tuple(text for text, _ in window.copying_ops),
            origins=subject.origins.kernels,
            synchronization_origins=subject.origins.synchronizations,
            copy_origins=subject.origins.copies,
            compile_events=subject.compile_events,
            work=tuple(kernel_work(kernel) for kernel in summarize_trace(session.trace, [window]).kernels),
            roof=roof(controls),
        ),
        latency_replicates=own.latency_replicates,
        latency_iterations=own.iterations_for(subject.pace.call_us, Timer.END_TO_END),
        trace_json=session.trace_json,
        table=session.table,
        one_instance=subject.structure.replays_graphs,
    )


def _sentence(error: KernelgaugeError, workload: Workload) -> str:
    """Return why times are missing, without the workload's name."""
    what = error.what.removeprefix(f"{workload.id}: ")
    return f"{what}: {error.got}" if isinstance(error, TimesError) else what


def _kernels(subject: Subject) -> tuple[KernelRecord, ...]:
    timed = [tuple(execution.duration_us for execution in executions) for executions in subject.structure.executions]
    if subject.replicates:  # those that the time of the whole is a mean of
        kept = on_the_fastest_host(len(subject.replicates), _sample_of_device(subject, 1).controls_us)
        timed = [subject.replicates[place].kernel_us for place in kept]
    return tuple(
        KernelRecord(execution.identity, fmean(times[place] for times in timed))
        for place, execution in enumerate(subject.structure.executions[0])
    )


def _sample_of_device(subject: Subject, iterations: int) -> Sample:
    """Return the device times. On a CPU, the host reference is beside them."""
    device_us = tuple(each.device_us for each in subject.replicates)
    host_us = (each.host_us for each in subject.replicates if each.dispatch_us is None)
    return Sample(device_us, iterations, tuple(us for us in host_us if us is not None))


def _samples(subject: Subject, settings: Settings) -> dict[Timer, Sample]:
    call_us = subject.pace.call_us
    samples = {Timer.DEVICE: _sample_of_device(subject, settings.iterations_for(call_us))}
    host = [(each.dispatch_us, each.host_us) for each in subject.replicates if each.dispatch_us is not None]
    if host:
        dispatches_us, hosts_us = zip(*host, strict=True)
        samples[Timer.HOST] = Sample(dispatches_us, settings.iterations_for(call_us, Timer.HOST), hosts_us)
    return samples


def _counts(subject: Subject) -> Counts:
    window, executions = subject.structure.windows[-1], subject.structure.executions[-1]
    return Counts(
        launches=len(executions),
        kernels=len({execution.identity.name for execution in executions}),
        memsets=len(window.memsets),
        copies=len(window.copies),
        synchronizations=window.synchronizations,
        dispatcher_ops=len(dispatcher_ops(window)),
        graph_breaks=subject.graph_breaks,
        recompiles=subject.recompiles,
        peak_allocated_bytes=subject.peak,
    )
