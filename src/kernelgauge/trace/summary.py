"""What one trace says, put together for a reader: kernels in order and in groups, host ops, activity, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median
from typing import Any, TypeAlias

from .kernel import KernelIdentity
from .lane import (
    Lane,
    LaneKernel,
    StepTime,
    dispatcher_ops,
    host_time_us,
    is_compile_op,
    lane_of,
    metadata_ops_that_launched,
    step_times,
)
from .model import DeviceRecord, Trace, Window
from .names import decode
from .work import DeviceLimits, LimitShare, Work, limits_of, share_of_limit, work_of

__all__ = [
    "GROUPINGS",
    "ORDERS",
    "Bound",
    "HostLane",
    "KernelGroup",
    "Summary",
    "Transfers",
    "kernel_work",
    "summarize_trace",
]

# What takes more than this share of a step is worth naming before the kernels.
_MOST_BESIDE_COMPUTE = 0.25
_LEAST_BUSY = 0.5  # of a step that its kernels make as long as it is

Size: TypeAlias = "tuple[int, int, int] | None"


@dataclass(frozen=True)
class KernelGroup:
    """Launches of a step that are shown as one. Times are means per step."""

    title: str
    kernels: tuple[LaneKernel, ...]
    limit: LimitShare | None  # None where it is not known, or they are several kernels

    @property
    def identities(self) -> tuple[KernelIdentity, ...]:
        return tuple(dict.fromkeys(kernel.identity for kernel in self.kernels))

    @property
    def device_time_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.kernels)

    @property
    def ops(self) -> tuple[str, ...]:
        """Return those that launched it, the most frequent first."""
        return tuple(name for name, _ in Counter(kernel.op for kernel in self.kernels if kernel.op).most_common())

    @property
    def shapes(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(dict.fromkeys(kernel.input_shapes for kernel in self.kernels if kernel.input_shapes))

    @property
    def work(self) -> Work | None:
        return _work_of_all(self.kernels)


# What a row of `kernelgauge show --by` has in common, and in what order rows stand.
GROUPINGS: Mapping[str, Callable[[LaneKernel], object]] = {
    "launch": id,
    "config": lambda kernel: kernel.identity,
    "name": lambda kernel: kernel.identity.name,
    "op": lambda kernel: kernel.op or "(no op)",
    "module": lambda kernel: kernel.module or "(no module)",
}
ORDERS: Mapping[str, Callable[[KernelGroup], Any]] = {
    "time": lambda group: -group.device_time_us,
    "launches": lambda group: -len(group.kernels),
    "name": lambda group: group.title,
    "order": lambda _: 0,
}


@dataclass(frozen=True)
class Transfers:
    """Memsets or copies of one name. Per step."""

    name: str
    count: float
    time_us: float
    bytes: float


@dataclass(frozen=True)
class HostLane:
    """The host's side of one step: how often each op ran."""

    duration_us: float  # median over the steps: the host stumbles in one now and then
    launching_us: float  # until the last launch returned, less waiting
    dispatcher_ops: Mapping[str, int]
    metadata_ops_that_launched: tuple[str, ...]
    compile_ops: tuple[str, ...]
    synchronizations: int


@dataclass(frozen=True)
class Bound:
    """What makes the step as long as it is, on the busiest device: `share` of its time goes there."""

    by: str  # "compute", "communication", "copy", "input" or "overhead"
    share: float


@dataclass(frozen=True)
class Summary:
    """All of it. Of a step: device times are means over the steps of the lane, host times medians, ops the last one's."""

    lane: Lane
    totals: Mapping[tuple[str, Size, Size], Sequence[float]]  # durations over the whole trace, the longest first
    memsets: tuple[Transfers, ...]
    copies: tuple[Transfers, ...]
    host: HostLane
    times: tuple[StepTime, ...]  # one for each device
    problems: tuple[str, ...]  # launches without kernels, kernels without launches, anywhere in the trace
    problems_inside: int  # of them, launches inside the windows whose kernels are missing
    not_read: Mapping[str, int]  # rows of other devices, and rows with an odd field, by category
    devices: tuple[str, ...]
    limits: DeviceLimits | None

    def groups(self, by: str = "config", order: str = "time") -> list[KernelGroup]:
        """Return the kernels of a step in groups. `by` is one of `GROUPINGS`, `order` one of `ORDERS`."""
        found: dict[object, list[LaneKernel]] = {}
        for kernel in self.lane.kernels:
            found.setdefault(GROUPINGS[by](kernel), []).append(kernel)
        groups = [
            KernelGroup(
                key if isinstance(key, str) else kernels[0].identity.name,
                tuple(kernels),
                _share(kernels, self.limits) if by in ("launch", "config") else None,
            )
            for key, kernels in found.items()
        ]
        return sorted(groups, key=ORDERS[order])

    @property
    def busiest(self) -> StepTime | None:
        """Return where the time of a step went on the device that worked most."""
        return max(self.times, key=lambda time: time.busy_us, default=None)

    @property
    def bound(self) -> Bound | None:
        """Return what makes the step so long; None where nothing ran, records are lost, or the trace does not show it."""
        time = self.busiest
        if self.problems_inside or time is None or not time.wall_us:
            return None
        causes = {
            "overhead": time.launch_us,
            "input": time.input_us,
            "communication": time.communication_us,
            "copy": time.copy_us + time.copy_wait_us,
        }
        most = max(causes, key=lambda cause: causes[cause])
        share, busy = causes[most] / time.wall_us, time.busy_us / time.wall_us
        if share <= _MOST_BESIDE_COMPUTE and busy > _LEAST_BUSY:
            return Bound("compute", busy)
        return Bound(most, share) if causes[most] >= time.unknown_us else None

    @property
    def wall_us(self) -> float:
        """Return the time of one step."""
        return max((time.wall_us for time in self.times), default=fmean(each.duration_us for each in self.lane.windows))


def summarize_trace(trace: Trace, windows: Sequence[Window] | None = None) -> Summary:
    """Summarize some windows; default the profiler's steps, or the whole trace if there are none."""
    lane = lane_of(trace, windows)
    used = {record.device for record in trace.records}
    named = {
        str(device.get("name", ""))
        for device in trace.device_properties
        if isinstance(device.get("id"), int) and device["id"] in used
    }
    limits = limits_of(named.pop()) if len(named) == 1 else None
    return Summary(
        lane=lane,
        totals=_totals(trace),
        memsets=_transfers([window.memsets for window in lane.windows]),
        copies=_transfers([window.copies for window in lane.windows]),
        host=_host(lane.windows),
        times=tuple(step_times(lane, trace)),
        problems=trace.pairing_problems(),
        problems_inside=sum(window.lost for window in lane.windows),
        not_read={**trace.not_read, **trace.malformed},
        devices=tuple(str(device.get("name", "")) for device in trace.device_properties),
        limits=limits,
    )


def kernel_work(kernel: LaneKernel) -> Work | None:
    """Return the work of one launch: that of the op, where this kernel did all of it."""
    if kernel.op is None or not kernel.does_the_op:
        return None
    return work_of(kernel.op, kernel.input_shapes, kernel.input_types)


def _share(kernels: Sequence[LaneKernel], limits: DeviceLimits | None) -> LimitShare | None:
    """Return the share of the limit that launches of one kernel reached together."""
    work = _work_of_all(kernels)
    if work is None or limits is None:
        return None
    dtype = decode(kernels[0].identity.name).dtype
    dtype = dtype or next((_DTYPES[name] for name in kernels[0].input_types if name in _DTYPES), None)
    return share_of_limit(work, sum(kernel.device_time_us for kernel in kernels), dtype, limits)


_DTYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}


def _work_of_all(kernels: Sequence[LaneKernel]) -> Work | None:
    """Return the sum; None where one is not known: half of the work in all of the time would be a wrong rate."""
    known = [work for work in map(kernel_work, kernels) if work is not None]
    if len(known) < len(kernels):
        return None
    flops = [work.flops for work in known if work.flops is not None]
    moved = [work.bytes for work in known if work.bytes is not None]
    return Work(sum(flops) if len(flops) == len(known) else None, sum(moved) if len(moved) == len(known) else None)


def _totals(trace: Trace) -> dict[tuple[str, Size, Size], list[float]]:
    found: dict[tuple[str, Size, Size], list[float]] = {}
    for record in trace.records:
        if record.category == "kernel":
            found.setdefault((record.name, record.grid, record.block), []).append(record.time_us)
    return dict(sorted(found.items(), key=lambda item: -sum(item[1])))


def _transfers(windows: Sequence[Sequence[DeviceRecord]]) -> tuple[Transfers, ...]:
    found: dict[str, list[DeviceRecord]] = {}
    for record in chain.from_iterable(windows):
        found.setdefault(record.name, []).append(record)
    steps = len(windows)
    return tuple(
        Transfers(
            name,
            len(records) / steps,
            sum(record.time_us for record in records) / steps,
            sum(record.bytes or 0 for record in records) / steps,
        )
        for name, records in found.items()
    )


def _host(windows: Sequence[Window]) -> HostLane:
    last = windows[-1]
    return HostLane(
        duration_us=median(window.duration_us for window in windows),
        launching_us=median(host_time_us(window) for window in windows),
        dispatcher_ops=Counter(op.name for op in dispatcher_ops(last)),
        metadata_ops_that_launched=tuple(metadata_ops_that_launched(last)),
        compile_ops=tuple(op.name for op in last.ops if is_compile_op(op.name)),
        synchronizations=last.synchronizations,
    )
