"""One replicate: a workload on fresh allocations as a rule, its kernels timed, then its dispatch."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..errors import OTHER_KERNELS, TimesError
from ..run import Timer, summarize
from ..workload import Workload
from .conditions import Reading, disturbances, highest_clock_mhz
from .device import Device
from .instance import Instance, build, host_calls, reporting, warm_up
from .profile import ProfilerSession, listed, profile_session, told_apart, without
from .settings import Settings

# Dispatch under the profiler varies with the host's speed; a hold that is too short is found out and doubled.
_HOLD_FACTOR = 1.5
_HOLD_LEAST_US = 50.0
# Longer than this, a call has more launches than a queue holds (1024), and no hold makes it follow without a gap.
_HOLD_MOST_US = 20_000.0
_SHOWN_KERNELS = 2  # of those that differ, in an error


@dataclass
class Pace:
    """How one workload is called: learnt from its first sessions, corrected by later ones."""

    call_us: float
    hold_us: float
    is_settled: bool = False

    @classmethod
    def of(cls, call_us: float, structure: ProfilerSession) -> Pace:
        return cls(call_us, min(_HOLD_MOST_US, max(_HOLD_LEAST_US, _HOLD_FACTOR * structure.dispatch_us)))

    def hold_longer(self) -> bool:
        """Hold longer. Return False if it is as long as it may be."""
        self.is_settled = True
        if self.hold_us >= _HOLD_MOST_US:
            return False
        self.hold_us = min(_HOLD_MOST_US, 2 * self.hold_us)
        return True

    def settle(self, held: ProfilerSession) -> None:
        """No longer than needed, once: the first session's slowest call is often several times slower than the rest."""
        if not self.is_settled:
            self.hold_us = min(self.hold_us, max(_HOLD_LEAST_US, _HOLD_FACTOR * held.usual_dispatch_us))
            self.is_settled = True


@dataclass(frozen=True)
class Replicate:
    """What one replicate gave.

    Attributes:
        kernel_us: interquartile mean over the calls of each kernel, in launch order.
        readings: of the GPU's state, before, during and after.
        disturbed_by: reasons not to count it; empty if there are none.
        seconds: what it took.
        dispatch_us: lower decile of the host dispatch time; None where that has no meaning.
        host_us: the host reference beside it, likewise.
    """

    kernel_us: tuple[float, ...]
    readings: tuple[Reading, ...]
    disturbed_by: tuple[str, ...]
    seconds: float
    dispatch_us: float | None
    host_us: float | None

    @property
    def device_us(self) -> float:
        """Sum over the kernels, so that what each of them gained or lost adds up to the change of the whole."""
        return sum(self.kernel_us)


def replicate(
    workload: Workload,
    device: Device,
    settings: Settings,
    *,
    index: int,
    structure: ProfilerSession,
    pace: Pace,
    usual_clock_mhz: float | None,
    is_control: bool = False,
    only_instance: Instance | None = None,
) -> Replicate:
    """Measure one replicate, on fresh allocations (`index` tells their addresses) or on the `only_instance` of all.

    A control's dispatch time is not measured, nor who else computes on the GPU: each such reading takes 2 to 3 ms.

    Raises `WorkloadError` if it fails, `TimesError` if it runs other kernels than `structure`, `MeasurementError` if the
    profiler cannot be trusted.
    """
    started = time.perf_counter()
    instance = build(workload, device, replicate=index) if only_instance is None else only_instance
    before = device.monitor.read(processes=not is_control)
    during: list[Reading] = []
    with reporting(workload, "measuring"), instance.grad_mode():
        warm_up(device, instance, calls=device.warm_up_calls, seconds=settings.warm_up_seconds)
        session = held_session(device, instance, settings, pace, during)
        _require_same_kernels(workload, structure, session)
        after = device.monitor.read(processes=not is_control)
        dispatch_us = host_us = None
        if Timer.HOST not in device.timers:
            host_us = device.host.control_us()
        elif not is_control:  # after the session: a hot loop heats the device, and its clock falls for a while
            calls = host_calls(device, instance, settings.iterations_for(pace.call_us, Timer.HOST))
            dispatch_us, host_us = (summarize(each, Timer.HOST.statistic) for each in calls)
    durations = [[execution.duration_us for execution in executions] for executions in session.executions]
    seconds = time.perf_counter() - started
    readings = (before, *during, after)
    usual = max(filter(None, (usual_clock_mhz, highest_clock_mhz(during))), default=None)
    return Replicate(
        kernel_us=tuple(summarize(column, Timer.DEVICE.statistic) for column in zip(*durations, strict=True)),
        readings=readings,
        disturbed_by=disturbances(readings, usual_clock_mhz=usual, tolerated_drift=device.tolerated_drift),
        seconds=seconds,
        dispatch_us=dispatch_us,
        host_us=host_us,
    )


def held_session(
    device: Device, instance: Instance, settings: Settings, pace: Pace, during: list[Reading]
) -> ProfilerSession:
    """Make a session in whose calls the device had all launches before it began; `during`: what the monitor saw then."""
    iterations = settings.iterations_for(pace.call_us)
    while True:
        during.clear()
        session = profile_session(
            device,
            instance,
            iterations=iterations,
            warmup=settings.warm_up_calls_for(pace.call_us),
            hold_us=pace.hold_us,
            look=lambda: during.append(device.monitor.read()),
        )
        if any(window.synchronizations for window in session.windows):
            return session  # a call that waits for the device itself cannot be dispatched ahead of it
        if session.was_held:
            pace.settle(session)
            return session
        if not pace.hold_longer():
            return session


def _require_same_kernels(workload: Workload, structure: ProfilerSession, timed: ProfilerSession) -> None:
    expected, got = ([execution.identity for execution in session.executions[0]] for session in (structure, timed))
    if told_apart(got) != told_apart(expected):
        raise TimesError(
            f"{workload.id}: {OTHER_KERNELS}",
            got=listed(without(got, expected)[:_SHOWN_KERNELS]),
            expected=listed(without(expected, got)[:_SHOWN_KERNELS]),
        )
