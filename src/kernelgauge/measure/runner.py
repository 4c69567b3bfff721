"""Measures one workload: from what is asked to what was observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import WorkloadError
from ..run import Counts, Fingerprint, KernelRecord, OpRecord, Run, Sample, Timer
from ..trace import dispatcher_ops, metadata_ops_that_launched
from ..workload import Workload
from .compiler import compile_counts, kernel_profile_on_cpu, reset_compiler
from .device import Device
from .instance import Instance, build, first_call, reporting
from .profile import Session, profile_session
from .settings import WARM_UP_CALLS, Settings
from .timing import HostTime, call_duration_us, host_dispatch, warm_up

__all__ = ["Measured", "measure"]

_STRUCTURE_ITERATIONS = 3  # the seeds' schedule: wait=1, warmup=1, active=3


@dataclass(frozen=True)
class Measured:
    """A run and its artifacts. `iterations`: calls in each replicate, for what is timed later."""

    run: Run
    iterations: int
    trace_json: bytes
    table: str


def measure(
    workload: Workload,
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Profile and time one workload.

    Raises `WorkloadUnavailable` if it cannot run here, `WorkloadError` if it fails, `MeasurementError` if what the
    profiler saw cannot be trusted.
    """
    kernel_profile_on_cpu()
    reset_compiler()
    progress("building" if workload.compile is None else "compiling")
    instance = build(workload, device)
    with reporting(workload, "measuring"):
        with instance.grad_mode():
            first_call(instance)
            compiled = compile_counts()
            warm_up(device, instance, calls=WARM_UP_CALLS, seconds=0)
            call_us = call_duration_us(device, instance)
            progress("profiling")
            session = profile_session(
                device, instance, iterations=_STRUCTURE_ITERATIONS, record_shapes=True, keep_table=True
            )
            if not session.executions[0]:
                raise WorkloadError(f"{workload.id}: it runs no kernel, so there is nothing to measure")
            instance.prepare()
            peak = device.peak_allocated_bytes(instance.call)
        del instance
        times = []
        for index in range(settings.replicates):
            progress(f"timing, replicate {index + 1} of {settings.replicates}")
            times.append(_replicate(workload, device, settings, index, call_us, session))
        after = compile_counts()
        window = session.windows[-1]
        return Measured(
            run=Run(
                workload=workload.id,
                fingerprint=fingerprint,
                kernels=_kernels(times, session),
                counts=_counts(session, peak, compiled.graph_breaks, after.graphs - compiled.graphs),
                samples=_samples(times, settings, call_us),
                ops=tuple(OpRecord(op.name, op.input_shapes) for op in window.ops),
                launch_apis=tuple(launch.call.name for launch in window.launches),
                occupancy_queries=window.occupancy_queries,
                metadata_ops_that_launched=tuple(metadata_ops_that_launched(window)),
                steps=len(session.trace.steps()),
            ),
            iterations=settings.iterations_for(call_us),
            trace_json=session.trace_json,
            table=session.table,
        )


@dataclass(frozen=True)
class _Replicate:
    device_us: float  # median over iterations of the sum over kernels
    kernel_us: tuple[float, ...]  # median over iterations of each kernel, in launch order
    host: HostTime | None


def _replicate(
    workload: Workload,
    device: Device,
    settings: Settings,
    index: int,
    call_us: float,
    structure: Session,
) -> _Replicate:
    instance = build(workload, device, replicate=index)
    iterations = settings.iterations_for(call_us)
    with instance.grad_mode():
        warm_up(device, instance, calls=WARM_UP_CALLS, seconds=settings.warm_up_seconds)
        session = profile_session(device, instance, iterations=iterations, warmup=1 + iterations // 2)
        _require_same_kernels(workload, structure, session)
        # After the session, not before: a hot loop heats the device, and its clock falls for a while.
        host = _host(device, instance, settings, call_us)
    durations = [[execution.duration_us for execution in executions] for executions in session.executions]
    return _Replicate(
        device_us=median(sum(row) for row in durations),
        kernel_us=tuple(median(column) for column in zip(*durations, strict=True)),
        host=host,
    )


def _host(device: Device, instance: Instance, settings: Settings, call_us: float) -> HostTime | None:
    if Timer.HOST not in device.timers:
        return None
    return host_dispatch(device, instance, iterations=settings.host_iterations_for(call_us))


def _require_same_kernels(workload: Workload, structure: Session, timed: Session) -> None:
    expected = [execution.identity.name for execution in structure.executions[0]]
    got = [execution.identity.name for execution in timed.executions[0]]
    if got != expected:
        raise WorkloadError(
            f"{workload.id}: other kernels on fresh allocations than when it was profiled",
            got=", ".join(got),
            expected=", ".join(expected),
        )


def _kernels(times: Sequence[_Replicate], session: Session) -> tuple[KernelRecord, ...]:
    return tuple(
        KernelRecord(execution.identity, median(replicate.kernel_us[place] for replicate in times))
        for place, execution in enumerate(session.executions[0])
    )


def _samples(times: Sequence[_Replicate], settings: Settings, call_us: float) -> dict[Timer, Sample]:
    device = tuple(replicate.device_us for replicate in times)
    samples = {Timer.DEVICE: Sample(device, settings.iterations_for(call_us))}
    host = [replicate.host for replicate in times if replicate.host is not None]
    if host:
        samples[Timer.HOST] = Sample(
            tuple(each.dispatch_us for each in host),
            settings.host_iterations_for(call_us),
            median(each.control_us for each in host),
        )
    return samples


def _counts(session: Session, peak: int | None, graph_breaks: int, recompiles: int) -> Counts:
    window, executions = session.windows[-1], session.executions[-1]
    return Counts(
        launches=len(executions),
        kernels=len({execution.identity.name for execution in executions}),
        memsets=len(window.memsets),
        copies=len(window.copies),
        synchronizations=window.synchronizations,
        dispatcher_ops=len(dispatcher_ops(window)),
        graph_breaks=graph_breaks,
        recompiles=recompiles,
        peak_allocated_bytes=peak,
    )
