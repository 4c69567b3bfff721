"""Times of one replicate. Structure is `profile`'s business; here only durations matter."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..run import Timer, summarize
from .device import Device
from .instance import Instance

__all__ = ["HostTime", "call_duration_us", "collector_paused", "host_calls", "host_dispatch", "warm_up"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection in the middle of a host time."""
    was_enabled = gc.isenabled()
    gc.disable()  # without collecting first: with Inductor loaded that takes longer than the measurement
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def warm_up(device: Device, instance: Instance, *, calls: int, seconds: float) -> None:
    """Call at least `calls` times and for at least `seconds`: an idle GPU's clock is a sixth of a busy one's."""
    until = time.perf_counter() + seconds
    done = 0
    while done < calls or time.perf_counter() < until:
        instance.prepare()
        device.flush_cache()
        instance.call()
        device.synchronize()
        done += 1


def call_duration_us(device: Device, instance: Instance) -> float:
    """One synchronised call, in microseconds: to choose a number of iterations by, not to report."""
    instance.prepare()
    device.synchronize()
    start = time.perf_counter_ns()
    instance.call()
    device.synchronize()
    return (time.perf_counter_ns() - start) / 1000


@dataclass(frozen=True)
class HostTime:
    """One replicate of the host dispatch time, and of the control that was taken call by call beside it.

    Lower deciles, in microseconds.
    """

    dispatch_us: float
    control_us: float


def host_dispatch(device: Device, instance: Instance, *, iterations: int) -> HostTime:
    """Host time until a call returns, and the control's. The device is idle at each call, so no queue fills."""
    return HostTime(*(summarize(each, Timer.HOST.statistic) for each in host_calls(device, instance, iterations)))


def host_calls(device: Device, instance: Instance, iterations: int) -> tuple[list[float], list[float]]:
    """Every dispatch and every control, in microseconds.

    Waits first while the control says that the host is slow, as long as there is patience. After each call comes the
    control: the host changes speed within milliseconds, and only what is interleaved sees the same host.
    """
    device.host.wait_until_fast()
    dispatches: list[float] = []
    controls: list[float] = []
    with collector_paused():
        for _ in range(iterations):
            instance.prepare()
            device.synchronize()
            start = time.perf_counter_ns()
            instance.call()
            dispatches.append((time.perf_counter_ns() - start) / 1000)
            controls.append(device.host.once_us())
        device.synchronize()
    return dispatches, controls
