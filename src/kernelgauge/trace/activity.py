"""When the device worked and when it waited, and for whom. Times in microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .model import ApiCall, DeviceRecord, Window

__all__ = ["Activity", "activity_of", "host_time_us"]


@dataclass(frozen=True)
class Activity:
    """One device, from the start of its first record of a window to the end of its last.

    `waiting_us` is that part of the idle time in which the next record's launch had not returned yet: the device
    waited for the host. The rest is the launch's way to the device, or a wait for another stream.
    """

    device: int
    streams: int
    span_us: float
    busy_us: float  # at least one record running
    waiting_us: float

    @property
    def idle_us(self) -> float:
        return self.span_us - self.busy_us


def activity_of(windows: Sequence[Window]) -> list[Activity]:
    """One for each device that ran something, mean over the windows."""
    found: dict[int, list[Activity]] = {}
    for window in windows:
        for activity in _of_window(window):
            found.setdefault(activity.device, []).append(activity)
    return [_mean(activities, len(windows)) for _, activities in sorted(found.items())]


def host_time_us(window: Window) -> float:
    """From the first op or call of a window to the end of its last launch, less what the host spent in waiting."""
    launching = [call for call in window.calls if call.is_launch or call.is_transfer]
    if not launching:
        return 0.0
    start = min([op.start_us for op in window.ops[:1]] + [call.start_us for call in window.calls[:1]])
    end = max(call.start_us + call.duration_us for call in launching)
    waited = sum(
        min(call.start_us + call.duration_us, end) - call.start_us
        for call in window.calls
        if call.is_synchronization and call.start_us < end
    )
    return max(0.0, end - start - waited)


def _of_window(window: Window) -> Iterable[Activity]:
    by_device: dict[int, list[tuple[DeviceRecord, ApiCall | None]]] = {}
    for record, call in window.executed:
        if record.duration_us >= 0:  # NaN fails too
            by_device.setdefault(record.device, []).append((record, call))
    for device, executed in by_device.items():
        executed.sort(key=lambda pair: pair[0].start_us)
        busy = waiting = 0.0
        end = start = executed[0][0].start_us
        for record, call in executed:
            if record.start_us > end and call is not None:
                returned = call.start_us + call.duration_us
                waiting += max(0.0, min(record.start_us, returned) - end)
            busy += max(0.0, record.start_us + record.duration_us - max(end, record.start_us))
            end = max(end, record.start_us + record.duration_us)
        streams = len({record.stream for record, _ in executed})
        yield Activity(device, streams, end - start, busy, waiting)


def _mean(activities: Sequence[Activity], windows: int) -> Activity:
    def mean(values: Iterable[float]) -> float:
        return sum(values) / windows

    return Activity(
        device=activities[0].device,
        streams=max(activity.streams for activity in activities),
        span_us=mean(activity.span_us for activity in activities),
        busy_us=mean(activity.busy_us for activity in activities),
        waiting_us=mean(activity.waiting_us for activity in activities),
    )
