"""Measures workloads together: from what is asked to what was observed.

Passes go round all workloads: a drift of the machine then meets each of them alike, and shows between passes instead of
between workloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from torch import nn

from ..conditions import highest_clock_mhz, summarize
from ..errors import KernelgaugeError, MeasurementError, WorkloadError
from ..run import ControlTime, Counts, Fingerprint, KernelRecord, OpRecord, Run, Sample, Timer
from ..trace import dispatcher_ops, metadata_ops_that_launched
from ..workload import Workload
from .cold import require_cold_cache
from .compiler import compile_counts, kernel_profile_on_cpu, reset_compiler
from .device import Device
from .instance import Instance, build, first_call, reporting
from .profile import Session, profile_session
from .replicate import Pace, Replicate, replicate
from .settings import WARM_UP_CALLS, Settings
from .timing import call_duration_us, warm_up

__all__ = ["Measured", "Result", "confirm", "measure"]

_STRUCTURE_ITERATIONS = 3  # the seeds' schedule: wait=1, warmup=1, active=3
_CONTROL_ITERATIONS = 12  # enough for 0.1 %: a control has one kernel, and its replicates are as many as the passes
# Replicates that the machine spoilt are made again, up to as many as are kept at least.
_SPOILT_SHARE = 1.0
# The control pair may drift by this much between the first passes and the last. Nothing that a GPU does by itself
# moves it further: between processes on one H200 it spreads by 0.07 %.
_CONTROL_DRIFT = 0.03


@dataclass(frozen=True)
class Measured:
    """A run, its artifacts, and what a confirmation adds to.

    `latency_iterations`: calls in each replicate of what is timed later.
    """

    run: Run
    latency_iterations: int
    trace_json: bytes
    table: str
    subject: Subject


Result = Measured | KernelgaugeError
Progress = Callable[[str], None]


@dataclass
class Subject:
    """One workload while it is measured. Owned by the pass that measures it."""

    workload: Workload
    structure: Session
    pace: Pace
    graph_breaks: int
    peak: int | None
    is_control: bool = False
    recompiles: int = 0
    replicates: list[Replicate] = field(default_factory=list)
    spoilt: list[Replicate] = field(default_factory=list)
    error: KernelgaugeError | None = None

    def is_done(self, settings: Settings) -> bool:
        if self.error is not None:
            return True
        times = [each.device_us for each in self.replicates]
        seconds = math.fsum(each.seconds for each in (*self.replicates, *self.spoilt))
        return settings.is_enough(times, seconds)


def measure(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
) -> Mapping[str, Result]:
    """Profile and time workloads, interleaved; by id, each with its run or with why there is none.

    The error is a `WorkloadUnavailable` if it cannot run here, a `WorkloadError` if it fails, a `MeasurementError` if
    what was seen cannot be trusted.
    """
    if device.most_replicates is not None:
        most = device.most_replicates
        settings = replace(
            settings, replicates=min(settings.replicates, most), most_replicates=min(settings.most_replicates, most)
        )
    kernel_profile_on_cpu()
    results: dict[str, Result] = {}
    waiting = list(workloads)
    if device.cache_bytes:
        try:
            require_cold_cache(device, device.cache_bytes)
        except KernelgaugeError as error:
            return dict.fromkeys((workload.id for workload in workloads), _told(error, device))
    while waiting:
        subjects, waiting = _prepare_together(waiting, device, results, progress)
        if not subjects:
            continue
        controls = _time_together(subjects, device, settings, progress)
        for subject in subjects:
            results[subject.workload.id] = _result(subject, controls, device, fingerprint, settings)
    return results


def confirm(
    measured: Measured,
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
) -> Result:
    """Measure a workload again, on fresh allocations and twice as long; what was measured before counts as well."""
    subject = measured.subject
    workload = subject.workload
    reset_compiler()
    with reporting(workload, "measuring again"):
        instance = build(workload, device)
        with instance.grad_mode():
            first_call(instance)
            warm_up(device, instance, calls=WARM_UP_CALLS, seconds=0)
        del instance
    before = len(subject.replicates)
    wanted = 3 * before
    larger = replace(settings, replicates=wanted, most_replicates=wanted, budget_seconds=math.inf)
    progress("suspicious: measuring again, twice as long")
    controls = _time_together([subject], device, larger, progress)
    return _result(subject, {**measured.run.controls, **controls}, device, fingerprint, settings)


# -- structure ----------------------------------------------------------------------------------------------------------


def _prepare_together(
    waiting: Sequence[Workload], device: Device, results: dict[str, Result], progress: Progress
) -> tuple[list[Subject], list[Workload]]:
    """Compile and profile as many workloads as can share a process's compiled code; (those, the others)."""
    reset_compiler()
    subjects: list[Subject] = []
    deferred: list[Workload] = []
    roots: set[object] = set()
    for workload in waiting:
        instance: Instance | None = None  # gone before the next one is built
        try:
            instance = build(workload, device)
            root = None if workload.compile is None else _compiled_root(instance.module)
            # After a graph break functions are compiled on their own that the next workload may call too.
            if root is not None and (root in roots or compile_counts().graph_breaks):
                deferred.append(workload)
                continue
            if root is not None:
                roots.add(root)  # before it runs: one that fails may have compiled as well
            progress(f"{workload.id}: {'profiling' if root is None else 'compiling and profiling'}")
            subjects.append(_prepare(workload, instance, device))
        except KernelgaugeError as error:
            results[workload.id] = _told(error, device)
    return subjects, deferred


def _compiled_root(module: Any) -> object:
    """What Dynamo keeps the compiled code under. Two workloads of one root would see each other's: another shape of the
    same code compiles for dynamic shapes, with other kernels."""
    if isinstance(module, nn.Module):
        # A module of torch itself is compiled through a wrapper that all of them share (torch/_dynamo/eval_frame.py).
        if type(module).__module__.startswith("torch.nn."):
            return "torch.nn"
        return getattr(getattr(type(module), "forward", None), "__code__", type(module))
    return getattr(module, "__code__", type(module))


def _prepare(workload: Workload, instance: Instance, device: Device) -> Subject:
    with reporting(workload, "measuring"), instance.grad_mode():
        before = compile_counts()
        first_call(instance)
        after = compile_counts()
        warm_up(device, instance, calls=WARM_UP_CALLS, seconds=0)
        call_us = call_duration_us(device, instance)
        session = profile_session(
            device, instance, iterations=_STRUCTURE_ITERATIONS, record_shapes=True, keep_table=True
        )
        if not session.executions[0]:
            raise WorkloadError(f"{workload.id}: it runs no kernel, so there is nothing to measure")
        instance.prepare()
        return Subject(
            workload=workload,
            structure=session,
            pace=Pace.of(call_us, session),
            graph_breaks=after.graph_breaks - before.graph_breaks,
            recompiles=compile_counts().graphs - after.graphs,
            peak=device.peak_allocated_bytes(instance.call),
        )


# -- times --------------------------------------------------------------------------------------------------------------


def _time_together(
    subjects: Sequence[Subject], device: Device, settings: Settings, progress: Progress
) -> dict[str, ControlTime]:
    """Passes over all subjects and the control pair, until each is pinned down or out of budget."""
    try:
        controls = [_control(workload, device) for workload in device.controls]
    except KernelgaugeError as error:
        for subject in subjects:
            subject.error = _told(error, device)
        return {}
    first = len(subjects[0].replicates) + len(subjects[0].spoilt)  # a confirmation goes on to other addresses
    index = first
    while active := [subject for subject in subjects if not subject.is_done(settings)]:
        progress(f"timing, pass {index - first + 1}: {len(active)} of {len(subjects)} workloads")
        for subject in (*controls, *active):
            _one_replicate(subject, device, settings, index, usual_clock_mhz=_usual_clock((*controls, *subjects)))
        if device.lost():
            for subject in active:
                subject.error = subject.error or _DeviceLost()
            break
        index += 1
    drifts = [drift for control in controls if (drift := _drift(control))]
    if drifts:
        drifted = MeasurementError(
            "the machine changed its speed while it measured",
            got=", ".join(drifts),
            expected=f"a copy and a GEMM of our own to stay within {100 * _CONTROL_DRIFT:g} %",
            next_command="nvidia-smi -q -d PERFORMANCE,CLOCK   (is it throttled, or shared?)",
        )
        for subject in subjects:
            if subject.error is None or isinstance(subject.error, _DeviceLost):
                subject.error = drifted
    return {control.workload.module: _control_time(control) for control in controls if control.replicates}


def _control(workload: Workload, device: Device) -> Subject:
    control = _prepare(workload, build(workload, device), device)
    control.is_control = True
    return control


def _usual_clock(subjects: Sequence[Subject]) -> int | None:
    return highest_clock_mhz(
        reading for subject in subjects for each in subject.replicates for reading in each.readings
    )


def _one_replicate(
    subject: Subject, device: Device, settings: Settings, index: int, usual_clock_mhz: float | None
) -> None:
    chosen = replace(settings, iterations=_CONTROL_ITERATIONS) if subject.is_control else settings
    compiled = compile_counts().graphs
    try:
        measured = replicate(
            subject.workload,
            device,
            chosen,
            index=index,
            structure=subject.structure,
            pace=subject.pace,
            usual_clock_mhz=usual_clock_mhz,
            with_host=not subject.is_control,
        )
    except KernelgaugeError as error:
        subject.error = _told(error, device)
        return
    subject.recompiles += compile_counts().graphs - compiled
    if not measured.disturbed_by or subject.is_control:
        subject.replicates.append(measured)
        return
    subject.spoilt.append(measured)
    if len(subject.spoilt) > _SPOILT_SHARE * settings.replicates:
        subject.error = MeasurementError(
            f"{subject.workload.id}: the machine cannot be trusted now",
            got="; ".join(dict.fromkeys(reason for each in subject.spoilt for reason in each.disturbed_by)),
            expected="a GPU of its own at its usual clock: each such replicate was repeated, "
            f"{len(subject.spoilt)} times in all",
            next_command="nvidia-smi   (who uses it?)   nvidia-smi -q -d PERFORMANCE   (is it throttled?)",
        )


def _told(error: KernelgaugeError, device: Device) -> KernelgaugeError:
    """The error as it is reported: without the frames, which hold a workload's memory while others are measured."""
    if device.lost():
        return _DeviceLost(error)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class _DeviceLost(MeasurementError):
    def __init__(self, error: KernelgaugeError | None = None) -> None:
        super().__init__(
            "the GPU no longer answers",
            got=None if error is None else str(error),
            expected="no CUDA error: after one, nothing in this process can be measured",
            next_command="dmesg | grep -i xid   (what happened to it?)",
        )


def _drift(control: Subject) -> str | None:
    """How far a control moved from its first replicates to its last, if that is too far."""
    times = [each.device_us for each in control.replicates]
    third = len(times) // 3
    if not third:
        return None
    moved = median(times[-third:]) / median(times[:third]) - 1
    return f"{control.workload.module} {100 * moved:+.1f} %" if abs(moved) > _CONTROL_DRIFT else None


def _control_time(control: Subject) -> ControlTime:
    (execution,) = control.structure.executions[0]
    return ControlTime(execution.identity.name, median(each.device_us for each in control.replicates))


# -- what was observed --------------------------------------------------------------------------------------------------


def _result(
    subject: Subject,
    controls: Mapping[str, ControlTime],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
) -> Result:
    kept = len(subject.replicates) >= settings.replicates
    if subject.error is not None and not isinstance(subject.error, _DeviceLost):
        return subject.error
    # What was measured before the device fell off is sound: the structure in any case, the times if there are enough.
    incomplete = None if kept or subject.error is None else subject.error.what
    session, window = subject.structure, subject.structure.windows[-1]
    readings = [reading for each in subject.replicates for reading in each.readings]
    return Measured(
        run=Run(
            workload=subject.workload.id,
            fingerprint=fingerprint,
            kernels=_kernels(subject),
            counts=_counts(subject),
            samples={} if incomplete else _samples(subject, settings),
            incomplete=incomplete,
            gpu=device.gpu,
            controls=dict(controls),
            conditions=summarize(readings),
            ops=tuple(OpRecord(op.name, op.input_shapes) for op in window.ops),
            launch_apis=tuple(launch.call.name for launch in window.launches),
            occupancy_queries=window.occupancy_queries,
            metadata_ops_that_launched=tuple(metadata_ops_that_launched(window)),
            steps=len(session.trace.steps()),
        ),
        latency_iterations=settings.latency_iterations_for(subject.pace.call_us),
        trace_json=session.trace_json,
        table=session.table,
        subject=subject,
    )


def _kernels(subject: Subject) -> tuple[KernelRecord, ...]:
    timed = [each.kernel_us for each in subject.replicates] or [
        tuple(execution.duration_us for execution in executions) for executions in subject.structure.executions
    ]
    return tuple(
        KernelRecord(execution.identity, fmean(times[place] for times in timed))
        for place, execution in enumerate(subject.structure.executions[0])
    )


def _samples(subject: Subject, settings: Settings) -> dict[Timer, Sample]:
    call_us = subject.pace.call_us
    device = tuple(each.device_us for each in subject.replicates)
    samples = {Timer.DEVICE: Sample(device, settings.iterations_for(call_us))}
    host = [each.host for each in subject.replicates if each.host is not None]
    if host:
        samples[Timer.HOST] = Sample(
            tuple(each.dispatch_us for each in host),
            settings.host_iterations_for(call_us),
            tuple(each.control_us for each in host),
        )
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
