"""When the device worked and when it waited, and for whom. Times in microseconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .model import ApiCall, DeviceRecord, Window

__all__ = ["Activity", "activity_of", "host_time_us"]

_STILL_RUNNING = 128  # records before a window that are looked at: as many as a device has streams


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


def activity_of(windows: Sequence[Window], records: Sequence[DeviceRecord] = ()) -> list[Activity]:
    """One for each device that ran something for these windows, mean over them.

    `records`: all of the trace, by start. What was launched before a window may still run in it.
    """
    lanes = {device: _Lane.of(device, records) for device in {record.device for record in records}}
    found: dict[int, list[Activity]] = {}
    for window in windows:
        for activity in _of_window(window, lanes):
            found.setdefault(activity.device, []).append(activity)
    return [_mean(activities, len(windows)) for _, activities in sorted(found.items())]


@dataclass(frozen=True)
class _Lane:
    """The records of one device, by start."""

    records: Sequence[DeviceRecord]
    starts: Sequence[float]

    @classmethod
    def of(cls, device: int, records: Sequence[DeviceRecord]) -> _Lane:
        own = [record for record in records if record.device == device and record.duration_us >= 0]  # NaN fails too
        return cls(own, [record.start_us for record in own])

    def between(self, start_us: float, end_us: float) -> Sequence[DeviceRecord]:
        """Those that start there, and those that started shortly before and still ran."""
        first, last = bisect_left(self.starts, start_us), bisect_left(self.starts, end_us)
        running = self.records[max(0, first - _STILL_RUNNING) : first]
        return [*(r for r in running if r.start_us + r.duration_us > start_us), *self.records[first:last]]


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


def _of_window(window: Window, lanes: Mapping[int, _Lane]) -> Iterable[Activity]:
    by_device: dict[int, dict[int, tuple[DeviceRecord, ApiCall | None]]] = {}
    for record, call in window.executed:
        if record.duration_us >= 0:  # NaN fails too
            by_device.setdefault(record.device, {})[id(record)] = (record, call)
    for device, launched in by_device.items():
        own = [record for record, _ in launched.values()]
        first = min(record.start_us for record in own)
        last = max(record.start_us + record.duration_us for record in own)
        ran = lanes[device].between(first, last) if device in lanes else sorted(own, key=lambda r: r.start_us)
        busy = waiting = 0.0
        end = first
        for record in ran:
            call = launched.get(id(record), (record, None))[1]
            if record.start_us > end and call is not None:
                returned = call.start_us + call.duration_us
                waiting += max(0.0, min(record.start_us, returned) - end)
            until = min(record.start_us + record.duration_us, last)
            busy += max(0.0, until - max(end, record.start_us))
            end = max(end, until)
        streams = len({record.stream for record in ran})
        yield Activity(device, streams, last - first, busy, waiting)


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
