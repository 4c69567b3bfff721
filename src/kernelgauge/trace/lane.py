"""What a trace ran: the launches of a profiler step in order, the host ops behind them, and when the device waited.

Steps that launched the same kernels are one measurement repeated. Where they differ, those that launched what most of
the steps did stand for the trace.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from .kernel import KernelIdentity, identity_of_op, identity_of_record
from .model import REGION, WHOLE, ApiCall, DeviceRecord, Op, Trace, Window
from .names import Kind

__all__ = [
    "METADATA_OPS",
    "Activity",
    "Lane",
    "LaneKernel",
    "activity_of",
    "computing_ops",
    "dispatcher_ops",
    "host_time_us",
    "is_compile_op",
    "lane_of",
    "metadata_ops_that_launched",
]


# --- host ops as a tree: which compute, which only rewrite metadata, which belong to the compiler --------------------

# Ops that return a view or rewrite sizes and strides: no data is read or written (aten/src/ATen/native/TensorShape.cpp,
# each is declared as a view or alias in native_functions.yaml).
METADATA_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "t transpose as_strided view reshape _unsafe_view expand detach alias squeeze unsqueeze permute select slice "
        "narrow split chunk unbind resolve_conj resolve_neg _reshape_alias numpy_T flatten unflatten"
    ).split()
)
# Ops that only obtain memory.
_ALLOCATION_OPS = frozenset(
    f"aten::{name}" for name in "empty empty_like empty_strided new_empty new_empty_strided".split()
)
# Ops that only choose which other op does the work (CompositeImplicitAutograd in native_functions.yaml).
_COMPOSITE_OPS = frozenset(
    f"aten::{name}" for name in "linear matmul to _to_copy zeros ones ones_like reshape flatten".split()
)  # reshape and flatten are metadata ops on what is contiguous, and copy what is not: what they call tells which
# Rows that torch.compile adds to the host lane (torch/_dynamo, torch/_functorch; seen with torch 2.11 and 2.13).
_COMPILE_PREFIXES = (
    "TorchDynamo Cache Lookup",
    "Torch-Compiled Region",
    "Pregraph bytecode",
    "AOTDispatcher Runtime Wrapper",
    "## Call CompiledFxGraph",
    "CompiledFunction",
    "CompiledAutograd",
)
# Autograd's own rows wrap the ops of the backward pass.
_AUTOGRAD_PREFIXES = ("autograd::engine", "torch::autograd")


def is_compile_op(name: str) -> bool:
    return name.startswith(_COMPILE_PREFIXES)


def dispatcher_ops(window: Window) -> list[Op]:
    """Return the ops that went through the dispatcher (`namespace::name`), in order, nested ones too."""
    return [op for op in window.ops if "::" in op.name and not op.name.startswith(_AUTOGRAD_PREFIXES)]


def computing_ops(window: Window) -> list[Op]:
    """Return the outermost ops that compute, in order: what takes the place of kernels on a machine without a GPU."""
    found: list[Op] = []
    # Of each thread, the ops that are open: when they end, and whether what is inside is hidden, because an op is
    # counted already or computes nothing.
    stacks: dict[int | str, list[tuple[float, bool]]] = {}
    for op in window.ops:
        stack = stacks.setdefault(op.thread, [])
        while stack and op.start_us >= stack[-1][0]:
            stack.pop()
        is_hidden = bool(stack) and stack[-1][1]
        only_wraps = not is_hidden and _only_wraps(op.name)
        if not (is_hidden or only_wraps or op.name in METADATA_OPS or op.name in _ALLOCATION_OPS):
            found.append(op)
        stack.append((op.end_us, not only_wraps))
    return found


def _only_wraps(name: str) -> bool:
    if name in _COMPOSITE_OPS or is_compile_op(name) or name.startswith(_AUTOGRAD_PREFIXES):
        return True
    # "MmBackward0" and "LigerGELUMulFunction" wrap the ops they call; a generated C++ kernel does not.
    return "::" not in name and "cpp_" not in name and "triton_" not in name


def metadata_ops_that_launched(window: Window) -> list[str]:
    """Return the names of metadata ops that launched something: a `reshape` that had to copy, for example."""
    starts = sorted(launch.call.start_us for launch in window.launches)
    return [
        op.name
        for op in window.ops
        if op.name in METADATA_OPS and bisect_left(starts, op.start_us) < bisect_right(starts, op.end_us)
    ]


# --- the launch sequence ---------------------------------------------------------------------------------------------


class _Execution(NamedTuple):
    """One kernel that ran, and the op that launched it; on a CPU, the op is the kernel."""

    identity: KernelIdentity
    duration_us: float
    op: Op | None


@dataclass(frozen=True)
class LaneKernel:
    """One launch of the sequence. `durations_us`: one for each step."""

    identity: KernelIdentity
    durations_us: tuple[float, ...]
    op: str | None
    input_shapes: tuple[Any, ...] = ()
    input_types: tuple[str, ...] = ()
    does_the_op: bool = True  # the op launched no other kernel to do its work

    @property
    def device_time_us(self) -> float:
        return fmean(self.durations_us)


@dataclass(frozen=True)
class Lane:
    """The launch sequence that stands for a trace.

    `windows` are the steps whose times it has; `all_windows` those of the trace, among them some that launched
    something else. Without profiler steps there is one window, the whole trace.
    """

    kernels: tuple[LaneKernel, ...]
    windows: tuple[Window, ...]
    all_windows: tuple[Window, ...]
    on_cpu: bool

    @property
    def device_time_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.kernels)

    @property
    def is_whole_trace(self) -> bool:
        """Tell whether there were no profiler steps: then all is of the trace, and of no step."""
        return self.all_windows[0].name == WHOLE


def lane_of(trace: Trace, windows: Sequence[Window] | None = None) -> Lane:
    """Return the launch sequence of the most frequent windows.

    `windows`: default the calls that `pytest perf` marks, else the profiler's steps, else the whole trace.
    """
    chosen = tuple(windows if windows is not None else trace.regions(REGION) or trace.steps()) or (trace.whole(),)
    # Launches without a single record are records that were lost, and no CPU. So are records that could not be read.
    lost = trace.not_read or trace.malformed.keys() & {"kernel", "gpu_memset", "gpu_memcpy"}
    on_cpu = not trace.records and not lost and not any(call.is_launch for call in trace.calls)
    ran = [_executions(window, on_cpu=on_cpu) for window in chosen]
    sequences = [tuple(execution.identity for execution in each) for each in ran]
    # The last of equally frequent ones: the first steps of a session are those that warm up. A step in which nothing was
    # launched stands for the trace only if nothing ever was.
    most, _ = Counter(filter(None, reversed(sequences))).most_common(1)[0] if any(sequences) else ((), 0)
    alike = [index for index, sequence in enumerate(sequences) if sequence == most]
    return Lane(
        kernels=_kernels([ran[index] for index in alike]),
        windows=tuple(chosen[index] for index in alike),
        all_windows=chosen,
        on_cpu=on_cpu,
    )


def _executions(window: Window, *, on_cpu: bool) -> list[_Execution]:
    """Return the kernels of a window, in launch order; those whose launch is not in the trace come last."""
    if on_cpu:
        return [_Execution(identity_of_op(op), max(0.0, op.duration_us), op) for op in computing_ops(window)]
    ran = [(launch.record, launch.op) for launch in window.launches]
    ran += [(record, None) for record in window.orphans if record.category == "kernel"]
    return [_Execution(identity_of_record(record, op), record.time_us, op) for record, op in ran]


def _kernels(ran: Sequence[Sequence[_Execution]]) -> tuple[LaneKernel, ...]:
    last = ran[-1]
    # What adds up the parts of a split-K product belongs to it: the product itself has done the op's work.
    launched = Counter(id(one.op) for one in last if one.identity.kind != Kind.SPLITK_REDUCE.value)
    return tuple(
        LaneKernel(
            one.identity,
            tuple(each[place].duration_us for each in ran),
            one.op.name if one.op else None,
            one.op.input_shapes if one.op else (),
            one.op.input_types if one.op else (),
            does_the_op=launched[id(one.op)] == 1 and one.identity.kind != Kind.SPLITK_REDUCE.value,
        )
        for place, one in enumerate(last)
    )


# --- when the device worked and when it waited, and for whom ---------------------------------------------------------

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


def activity_of(windows: Sequence[Window], records: Sequence[DeviceRecord]) -> list[Activity]:
    """Return one for each device that ran something for these windows, mean over them. `records`: all, by start."""
    lanes: dict[int, list[DeviceRecord]] = {}
    for record in records:
        if record.duration_us >= 0:  # NaN fails too
            lanes.setdefault(record.device, []).append(record)
    found: dict[int, list[Activity]] = {}
    for window in windows:
        for activity in _of_window(window, lanes):
            found.setdefault(activity.device, []).append(activity)
    return [
        Activity(
            device=device,
            streams=max(activity.streams for activity in activities),
            span_us=sum(activity.span_us for activity in activities) / len(windows),
            busy_us=sum(activity.busy_us for activity in activities) / len(windows),
            waiting_us=sum(activity.waiting_us for activity in activities) / len(windows),
        )
        for device, activities in sorted(found.items())
    ]


def host_time_us(window: Window) -> float:
    """Return the time from the first op or call of a window to the end of its last launch, less the host's waits."""
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


def _of_window(window: Window, lanes: Mapping[int, Sequence[DeviceRecord]]) -> Iterable[Activity]:
    by_device: dict[int, list[DeviceRecord]] = {}
    calls: dict[int, ApiCall | None] = {}
    for record, call in window.executed:
        if record.duration_us >= 0:  # NaN fails too
            by_device.setdefault(record.device, []).append(record)
            calls[id(record)] = call
    for device, own in by_device.items():
        first = min(record.start_us for record in own)
        last = max(_end_us(record) for record in own)
        ran = _running_between(first, last, lanes[device])
        busy = waiting = 0.0
        end = first
        for record in ran:
            call = calls.get(id(record))
            if record.start_us > end and call is not None:
                returned = call.start_us + call.duration_us
                waiting += max(0.0, min(record.start_us, returned) - end)
            until = min(_end_us(record), last)
            busy += max(0.0, until - max(end, record.start_us))
            end = max(end, until)
        yield Activity(device, len({record.stream for record in ran}), last - first, busy, waiting)


def _running_between(start_us: float, end_us: float, records: Sequence[DeviceRecord]) -> list[DeviceRecord]:
    """Return those that start there, and those that were launched before the window and still ran."""
    first, last = (bisect_left(records, at, key=attrgetter("start_us")) for at in (start_us, end_us))
    earlier = records[max(0, first - _STILL_RUNNING) : first]
    return [*(record for record in earlier if _end_us(record) > start_us), *records[first:last]]


def _end_us(record: DeviceRecord) -> float:
    return record.start_us + record.duration_us
