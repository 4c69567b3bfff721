"""From what was measured of a workload to what was observed of it: a `Run`, or why there is none."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from ..errors import KernelgaugeError, MeasurementError, TimesError
from ..run import ControlTime, Counts, Fingerprint, OpRecord, Run, Sample, Timer, on_the_fastest_host
from ..trace import KernelRecord, dispatcher_ops, metadata_ops_that_launched
from ..trace.lane import lane_of
from ..trace.summary import kernel_work
from ..workload import Workload
from .conditions import conditions_of_all
from .controls import roof
from .device import Device
from .nvml import digest
from .settings import Settings
from .subject import DeviceLost, Subject

__all__ = ["Measured", "Result", "observed"]


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


def observed(
    subject: Subject,
    controls: Mapping[str, ControlTime],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
) -> Result:
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
            controls=dict(controls),
            conditions=conditions_of_all([each.readings for each in subject.replicates]),
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
            work=tuple(kernel_work(kernel) for kernel in lane_of(session.trace, [window]).kernels),
            roof=roof(controls),
        ),
        latency_replicates=own.latency_replicates,
        latency_iterations=own.latency_iterations_for(subject.pace.call_us),
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
        kept = on_the_fastest_host(len(subject.replicates), _references_us(subject))
        timed = [subject.replicates[place].kernel_us for place in kept]
    return tuple(
        KernelRecord(execution.identity, fmean(times[place] for times in timed))
        for place, execution in enumerate(subject.structure.executions[0])
    )


def _samples(subject: Subject, settings: Settings) -> dict[Timer, Sample]:
    call_us = subject.pace.call_us
    device = tuple(each.device_us for each in subject.replicates)
    samples = {Timer.DEVICE: Sample(device, settings.iterations_for(call_us), _references_us(subject))}
    host = [each.host for each in subject.replicates if each.host is not None]
    if host:
        samples[Timer.HOST] = Sample(
            tuple(each.dispatch_us for each in host),
            settings.host_iterations_for(call_us),
            tuple(each.control_us for each in host),
        )
    return samples


def _references_us(subject: Subject) -> tuple[float, ...]:
    """Return the host reference beside each replicate; empty on a GPU."""
    return tuple(each.reference_us for each in subject.replicates if each.reference_us is not None)


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
