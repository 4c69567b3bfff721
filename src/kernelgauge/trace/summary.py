"""What a trace says: launches in order, the host ops behind them, where the time of a step went, and what is missing.

Steps that launched the same kernels are one measurement repeated. Where they differ, those that launched what most of
the steps did stand for the trace.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from math import inf
from operator import attrgetter
from statistics import fmean, median
from typing import Any, TypeAlias

import msgspec

from .kernel import KernelIdentity, identity_of, identity_of_op, kind_of_launch
from .model import (
    DEVICE_CATEGORIES,
    MODULE_PREFIX,
    REGION,
    WHOLE,
    ApiCall,
    DeviceRecord,
    Op,
    Trace,
    Window,
    busy_us,
    grouped,
    number_streams,
)
from .names import Kind, decode
from .ops import ALLOCATION_OPS, COMPOSITE_OPS, METADATA_OPS

_START = attrgetter("start_us")

# --- host ops as a tree: which compute, which only rewrite metadata, which belong to the compiler --------------------


# Rows that torch.compile adds to the host lane (torch/_dynamo, torch/_functorch; seen with torch 2.11 and 2.13).
_COMPILE_PREFIXES = (
    "TorchDynamo Cache Lookup", "Torch-Compiled Region", "Pregraph bytecode", "AOTDispatcher Runtime Wrapper",
    "## Call CompiledFxGraph", "CompiledFunction", "CompiledAutograd",
)  # fmt: skip
_AUTOGRAD_PREFIXES = ("autograd::engine", "torch::autograd")  # they wrap the ops of the backward pass
# flex_attention: torch/_inductor/codegen/cpp_flex_attention_template.py
_CPP_TEMPLATE = re.compile(r"graph_\d+_kernel")


def dispatcher_ops(window: Window) -> list[Op]:
    """Return the ops that went through the dispatcher (`namespace::name`), in order, nested ones too."""
    return [op for op in window.ops if is_dispatched(op.name)]


def is_dispatched(name: str) -> bool:
    """Tell whether a row of the host lane is an op of the dispatcher."""
    return "::" in name and not name.startswith(_AUTOGRAD_PREFIXES)


def computing_ops(window: Window) -> list[Op]:
    """Return the outermost ops that compute, in order: what takes the place of kernels on a machine without a GPU."""
    found: list[Op] = []
    hiding: set[int] = set()  # ids of ops in which nothing counts: they are counted already, or compute nothing
    for op, around in _nested(window.ops):
        is_hidden = bool(around) and id(around[-1]) in hiding
        only_wraps = op.name in COMPOSITE_OPS or op.name.startswith((*_COMPILE_PREFIXES, *_AUTOGRAD_PREFIXES))
        # "MmBackward0" and "LigerGELUMulFunction" wrap the ops they call; a generated C++ kernel does not.
        is_generated = "cpp_" in op.name or "triton_" in op.name or _CPP_TEMPLATE.fullmatch(op.name)
        if is_hidden or not (only_wraps or not ("::" in op.name or is_generated)):
            hiding.add(id(op))
            if not (is_hidden or op.name in METADATA_OPS or op.name in ALLOCATION_OPS):
                found.append(op)
    return found


def _nested(rows: Iterable[Op]) -> Iterator[tuple[Op, list[Op]]]:
    """Yield each row with those that are open around it on its thread, the outermost first. `rows`: parents first."""
    stacks = defaultdict[int | str, list[Op]](list)
    for row in rows:
        stack = stacks[row.thread]
        while stack and stack[-1].end_us <= row.start_us:
            stack.pop()
        yield row, stack
        stack.append(row)


def metadata_ops_that_launched(window: Window) -> list[str]:
    """Return the names of metadata ops that launched something: a `reshape` that had to copy, for example."""
    starts = sorted(launch.call.start_us for launch in window.launches)
    return [
        op.name
        for op in window.ops
        if op.name in METADATA_OPS and bisect_left(starts, op.start_us) < bisect_right(starts, op.end_us)
    ]


# --- the launch sequence ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaneKernel:
    """One launch of the sequence. `durations_us`: one for each step."""

    identity: KernelIdentity
    durations_us: tuple[float, ...]
    op: str | None
    input_shapes: tuple[Any, ...] = ()
    input_types: tuple[str, ...] = ()
    module: str | None = None  # the nn.Modules around the op, the outermost first
    frame: str = ""  # the Python function around the op, as the trace has it: the deepest that is not torch's
    stream: int = 0  # as `KernelRecord.stream`

    @property
    def kind(self) -> str:
        return kind_of_launch(self.identity, self.op)

    @property
    def device_time_us(self) -> float:
        return fmean(self.durations_us)


@dataclass(frozen=True)
class Execution:
    """One kernel of a window: what ran, when, and for how many microseconds. `op`: what launched it; on a CPU, what it is."""

    identity: KernelIdentity
    duration_us: float
    start_us: float
    op: Op | None
    stream: int = 0


def executions(window: Window, *, on_cpu: bool) -> list[Execution]:
    """Return the kernels of a window, in launch order; those whose launch is not in the trace come last."""
    if on_cpu:
        return [Execution(identity_of_op(op), op.duration_us, op.start_us, op) for op in computing_ops(window)]
    ran: list[tuple[DeviceRecord, Op | None]] = [(launch.record, launch.op) for launch in window.launches]
    ran += [(record, None) for record in window.orphans if record.category == "kernel"]
    return [Execution(identity_of(row, op), row.duration_us, row.start_us, op, row.stream) for row, op in ran]


def _kernels(ran: Sequence[Sequence[Execution]], modules: Sequence[Op]) -> tuple[LaneKernel, ...]:
    places = _places(modules, [each.op for each in ran[-1] if each.op])
    streams = number_streams(each.stream for each in ran[-1])
    found = []
    for launches in zip(*ran, strict=True):
        identities, ops = [each.identity for each in launches], [each.op for each in launches]
        identity, last = identities[-1], ops[-1]
        # What the steps have in common: where its grids vary, none is known.
        vary = [name for name in identity.__struct_fields__ if len({getattr(one, name) for one in identities}) > 1]
        # A persistent kernel has one grid for every shape.
        has_shapes = last and len({(op.input_shapes, op.input_types) if op else None for op in ops}) == 1
        module, frame = places.get(id(last), ("", ""))
        found.append(
            LaneKernel(
                msgspec.structs.replace(identity, **dict.fromkeys(vary)) if vary else identity,
                tuple(max(0.0, each.duration_us) for each in launches),
                last.name if last else None,
                last.input_shapes if has_shapes else (),
                last.input_types if has_shapes else (),
                module=module or None,
                frame=frame,
                stream=streams[launches[-1].stream],
            )
        )
    return tuple(found)


def _places(frames: Sequence[Op], ops: Iterable[Op]) -> dict[int, tuple[str, str]]:
    """Return by id of an op the modules that were open on its thread, and the deepest Python function."""
    found: dict[int, tuple[str, str]] = {}
    rows = sorted((*frames, *ops), key=lambda row: (row.start_us, -row.duration_us)) if frames else ()
    are_frames = set(map(id, frames))
    for row, around in _nested(rows):
        if id(row) not in are_frames:
            names = [each.name for each in around if id(each) in are_frames]
            modules = [name.removeprefix(MODULE_PREFIX) for name in names if name.startswith(MODULE_PREFIX)]
            functions = [name for name in names if not name.startswith(MODULE_PREFIX)]
            found[id(row)] = ".".join(modules), functions[-1] if functions else ""
    return found


# --- where the time of a step went -----------------------------------------------------------------------------------

_STILL_RUNNING = 128  # records before a moment that are looked at: as many as a device has streams
_LOADER = "enumerate(DataLoader)"  # how torch names the rows of fetching a batch
_MOST_BETWEEN_STEPS = 0.5  # of the step before: a longer time between two steps was not profiled
_Span: TypeAlias = "tuple[float, float]"  # from, until


@dataclass(frozen=True)
class StepTime:
    """Where the time of one step went on one device, mean over the steps. All parts add up to `wall_us`."""

    device: int
    streams: int
    wall_us: float
    compute_us: float  # with a kernel running
    communication_us: float  # with communication running, and no other kernel
    copy_us: float  # with nothing but copies and memsets running
    launch_us: float  # idle: the host had not launched yet what ran next
    input_us: float  # idle: the host was between two steps, or fetched a batch
    copy_wait_us: float  # idle: a copy was launched and had not begun
    unknown_us: float  # idle: for another stream, on the launch's way to the device, ...

    @property
    def busy_us(self) -> float:
        return self.compute_us + self.communication_us + self.copy_us

    @property
    def idle_us(self) -> float:
        return self.wall_us - self.busy_us


def _step_times(lane: Summary, trace: Trace) -> list[StepTime]:
    """Return one for each device that ran something for the steps of a lane."""
    spans, waits = [_span(run, trace) for run in _runs(lane)], _input_waits(lane, trace)
    # By their name, or by the op that launched them.
    talking = {name for name in {record.name for record in trace.records} if decode(name).kind is Kind.COMMUNICATION}
    talking |= {kernel.identity.name for kernel in lane.kernels if kernel.kind == Kind.COMMUNICATION.value}
    found = []
    for device in sorted({record.device for window in lane.windows for record in window.records}):
        records = [record for record in trace.records if record.device == device and record.duration_us >= 0]
        parts, streams = defaultdict[str, float](float), set[int]()
        for start, end in spans:
            until = dict.fromkeys(("all", "kernels", "computing"), start)  # when the last of these ends
            for record in _running_between(start, end, records):
                streams.add(record.stream)
                if record.start_us > until["all"]:
                    _add_causes(parts, until["all"], record, trace.launch_of(record), waits)
                kinds = ["all"]
                if record.category == "kernel":
                    kinds += ["kernels"] if record.name in talking else ["kernels", "computing"]
                last = min(record.end_us, end)
                for kind in kinds:
                    parts[kind] += max(0.0, last - max(until[kind], record.start_us))
                    until[kind] = max(until[kind], last)
            parts["wall_us"] += end - start
            parts["input_us" if lane.windows[0].is_step else "unknown_us"] += end - until["all"]
        parts["compute_us"] = parts["computing"]
        parts["communication_us"] = parts["kernels"] - parts["computing"]
        parts["copy_us"] = parts["all"] - parts["kernels"]
        means = [parts[field.name] / len(lane.windows) for field in fields(StepTime)[2:]]
        found.append(StepTime(device, len(streams), *means))
    return found


def _runs(lane: Summary) -> list[list[Window]]:
    """Return the windows of a lane: steps that follow one another together, other windows alone."""
    runs: list[list[Window]] = []
    chosen = set(map(id, lane.windows))
    until = -inf  # the latest start of a step that follows the one before
    for window in lane.all_windows:
        if id(window) not in chosen:
            until = -inf
            continue
        if window.start_us <= until:
            runs[-1].append(window)
        else:
            runs.append([window])
        until = window.end_us + _MOST_BETWEEN_STEPS * window.duration_us if window.is_step else -inf
    return runs


def _span(run: Sequence[Window], trace: Trace) -> _Span:
    """Return when steps that follow one another began and ended.

    Steps begin and end on the host, unless the device is behind it at the end. Then they end with their last record, and
    begin as far behind the host, at most when the device had done what was launched before. A region begins when it had.
    """
    own = [record for window in run for record in window.records if record.duration_us >= 0]
    start, end = run[0].start_us, run[-1].end_us
    if not own:
        return start, end
    first, last = min(record.start_us for record in own), max(record.end_us for record in own)
    if run[0].name == WHOLE:
        return first, last
    # None of these is one of theirs: they start before the first of those.
    earlier = _running_between(start, first, trace.records)
    drained = max(start, min(first, max((record.end_us for record in earlier), default=start)))
    behind = max(0.0, last - end)
    return min(drained, start + behind) if run[0].is_step else drained, max(end, last)


def _running_between(start_us: float, end_us: float, records: Sequence[DeviceRecord]) -> list[DeviceRecord]:
    """Return those that start there, and those that were launched before the window and still ran."""
    first, last = (bisect_left(records, at, key=_START) for at in (start_us, end_us))
    earlier = records[max(0, first - _STILL_RUNNING) : first]
    return [*(record for record in earlier if record.end_us > start_us), *records[first:last]]


def _input_waits(lane: Summary, trace: Trace) -> list[_Span]:
    """Return when the host fetched batches, or was between two steps: until the first op of a step behind the loader's rows."""
    loading = [row for row in chain(trace.ops, trace.annotations) if row.name.startswith(_LOADER)]
    loading.sort(key=_START)
    waits = [(row.start_us, row.end_us) for row in loading]
    launched = -inf  # the last one of the step before
    for window in lane.windows if lane.windows[0].is_step else ():
        asking = [call for call in window.calls if call.asks]
        if asking:
            first_us = asking[0].start_us
            inside = [bisect_left(loading, at, key=_START) for at in (window.start_us, first_us)]
            since = max((row.end_us for row in loading[slice(*inside)]), default=window.start_us)
            working = bisect_left(window.ops, since, key=_START)
            waits.append((launched, min([first_us, *(op.start_us for op in window.ops[working : working + 1])])))
            launched = asking[-1].end_us
    apart: list[_Span] = []
    for start, end in sorted(waits):
        overlaps = apart and start <= apart[-1][1]
        before, until = apart.pop() if overlaps else (start, end)
        apart.append((before, max(end, until)))
    return apart


def _add_causes(
    parts: dict[str, float], since: float, record: DeviceRecord, call: ApiCall | None, waits: Sequence[_Span]
) -> None:
    """Add to `parts` for what a device waited from `since` until this record began."""
    launched, rest = since, "unknown_us"
    if call is not None:
        is_copy = record.category == "gpu_memcpy"
        launched = max(since, min(record.start_us, call.start_us if is_copy else call.end_us))
        rest = "copy_wait_us" if is_copy else rest
    near = waits[max(0, bisect_left(waits, (since, since)) - 1) : bisect_left(waits, (launched, -inf))]
    fetching = sum(max(0.0, min(end, launched) - max(start, since)) for start, end in near)
    parts["input_us"] += fetching
    parts["launch_us"] += launched - since - fetching
    parts[rest] += record.start_us - launched


def host_time_us(window: Window) -> float:
    """Return the time from the first op or call of a window to the end of its last launch, less the host's waits."""
    launching = [call for call in window.calls if call.asks]
    if not launching:
        return 0.0
    start = min(row.start_us for row in (*window.ops[:1], *window.calls[:1]))
    end = max(call.end_us for call in launching)
    waits = [call for call in window.calls if call.is_synchronization and call.start_us < end]
    return max(0.0, end - start - sum(min(call.end_us, end) - call.start_us for call in waits))


# --- all of it, put together for a reader ------------------------------------------------------------------------------

# What takes more than this share of a step is worth naming before the kernels.
_MOST_BESIDE_COMPUTE = 0.25
_LEAST_BUSY = 0.5  # of a step that its kernels make as long as it is

Size: TypeAlias = "tuple[int, int, int] | None"


@dataclass(frozen=True)
class KernelGroup:
    """Launches of a step that are shown as one. Times are means per step."""

    title: str
    kind: str
    launches: int
    device_time_us: float
    launched_by: list[str]  # ops, the most frequent first
    input_shapes: list[tuple[Any, ...]]
    identities: list[KernelIdentity]


# What a row of `kernelgauge show --by` has in common.
GROUPINGS: Mapping[str, Callable[[LaneKernel], object]] = {
    "launch": id,
    "config": lambda kernel: kernel.identity,
    "name": lambda kernel: kernel.identity.name,
    "op": lambda kernel: kernel.op or "(no op)",
    "module": lambda kernel: kernel.module or "(no module)",
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
    """What a trace says, by the launch sequence that stands for it.

    `windows` are the steps whose times it has; `all_windows` those of the trace, among them some that launched something
    else. Without profiler steps there is one window, the whole trace. Of a step, device times are means over `windows`,
    host times medians, and ops those of the last one.
    """

    trace: Trace
    kernels: tuple[LaneKernel, ...]
    windows: tuple[Window, ...]
    all_windows: tuple[Window, ...]
    on_cpu: bool

    @property
    def device_time_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.kernels)

    @property
    def noun(self) -> str:
        """Return what a window is: "step", "call", or "trace" if there were no steps."""
        first = self.all_windows[0]
        return "trace" if first.name == WHOLE else "step" if first.is_step else "call"

    def groups(self, by: str = "config") -> list[KernelGroup]:
        """Return the kernels of a step in groups by one of `GROUPINGS`: launches in order, else the longest first."""
        groups = [_group(key, kernels) for key, kernels in grouped(self.kernels, GROUPINGS[by]).items()]
        return groups if by == "launch" else sorted(groups, key=lambda group: -group.device_time_us)

    @property
    def totals(self) -> dict[tuple[str, Size, Size], list[float]]:
        """Return the durations of each kernel and launch configuration in the whole trace, the longest first."""
        kernels = (record for record in self.trace.records if record.category == "kernel")
        found = grouped(kernels, attrgetter("name", "grid", "block"))
        durations_us = {key: [record.time_us for record in records] for key, records in found.items()}
        return dict(sorted(durations_us.items(), key=lambda item: -sum(item[1])))

    def transfers(self, *categories: str) -> list[Transfers]:
        """Return memsets ("gpu_memset") or copies ("gpu_memcpy"), by their name."""
        moved = (record for window in self.windows for record in window.records if record.category in categories)
        steps = len(self.windows)
        return [
            Transfers(
                name,
                len(records) / steps,
                sum(record.time_us for record in records) / steps,
                sum(record.bytes or 0 for record in records) / steps,
            )
            for name, records in grouped(moved, attrgetter("name")).items()
        ]

    @cached_property
    def host(self) -> HostLane:
        windows, last = self.windows, self.windows[-1]
        return HostLane(
            duration_us=median(window.duration_us for window in windows),
            launching_us=median(host_time_us(window) for window in windows),
            dispatcher_ops=Counter(op.name for op in dispatcher_ops(last)),
            metadata_ops_that_launched=tuple(metadata_ops_that_launched(last)),
            compile_ops=tuple(op.name for op in last.ops if op.name.startswith(_COMPILE_PREFIXES)),
            synchronizations=last.synchronizations,
        )

    @cached_property
    def times(self) -> list[StepTime]:
        """Return where the time of a step went, for each device."""
        return _step_times(self, self.trace)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Return wrong ids, launches without kernels and kernels without launches, anywhere in the trace."""
        return (*self.trace.naming_problems(), *self.trace.pairing_problems())

    @property
    def problems_inside(self) -> int:
        """Return how many launches in the windows have no kernel."""
        return sum(window.lost for window in self.windows)

    @property
    def not_read(self) -> Mapping[str, int]:
        """Return the number of rows of other devices, and of rows with an odd field, by category."""
        return {**self.trace.not_read, **self.trace.malformed}

    @property
    def devices(self) -> list[str]:
        return [str(device.get("name", "")) for device in self.trace.device_properties]

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
        return max((time.wall_us for time in self.times), default=self.elapsed_us)

    @property
    def elapsed_us(self) -> float:
        """Return the time of one step from its begin on the host until host and device are done: a CPU has the same span."""
        ends = [
            max([run[-1].end_us, *(record.end_us for window in run for record in window.records)])
            for run in _runs(self)
        ]
        return sum(end - run[0].start_us for run, end in zip(_runs(self), ends, strict=True)) / len(self.windows)

    @property
    def busy_us(self) -> float:
        """Return how long at least one kernel of a step ran, summed over the devices: less than their times if streams overlap."""
        ran = [record for window in self.windows for record in window.records if record.category == "kernel"]
        lanes = [[each for each in ran if each.device == device] for device in {each.device for each in ran}]
        total_us = sum(record.time_us for record in ran)
        return self.device_time_us * (sum(map(busy_us, lanes)) / total_us if total_us else 1.0)

    @cached_property
    def places(self) -> dict[int | None, tuple[str, str]]:
        """Return by External id of an op of the last step the modules and the Python function around it."""
        ops = self.windows[-1].ops
        found = _places(self.trace.modules, ops)
        return {op.external_id: found[id(op)] for op in ops if id(op) in found}


def summarize_trace(trace: Trace, windows: Sequence[Window] | None = None) -> Summary:
    """Summarize the most frequent windows.

    `windows`: default the calls that `pytest perf` marks, else the profiler's steps, else the whole trace.
    """
    chosen = tuple(windows if windows is not None else trace.regions(REGION) or trace.steps()) or (trace.whole(),)
    # Launches without a single record are records that were lost, and no CPU. So are records that could not be read.
    lost = trace.not_read or trace.malformed.keys() & DEVICE_CATEGORIES
    on_cpu = not trace.records and not lost and not any(call.is_launch for call in trace.calls)
    ran = [executions(window, on_cpu=on_cpu) for window in chosen]
    sequences = [tuple(each.identity.name for each in kernels) for kernels in ran]
    # The last of equally frequent ones: the first steps of a session are those that warm up. A step in which nothing was
    # launched stands for the trace only if nothing ever was.
    most, _ = Counter(filter(None, reversed(sequences))).most_common(1)[0] if any(sequences) else ((), 0)
    alike = [index for index, sequence in enumerate(sequences) if sequence == most]
    kernels = _kernels([ran[index] for index in alike], trace.modules)
    return Summary(trace, kernels, tuple(chosen[index] for index in alike), chosen, on_cpu)


def _group(key: object, kernels: Sequence[LaneKernel]) -> KernelGroup:
    first = kernels[0]
    return KernelGroup(
        title=key if isinstance(key, str) else first.identity.name,
        kind=first.kind,
        launches=len(kernels),
        device_time_us=sum(kernel.device_time_us for kernel in kernels),
        launched_by=[name for name, _ in Counter(kernel.op for kernel in kernels if kernel.op).most_common()],
        input_shapes=list(dict.fromkeys(kernel.input_shapes for kernel in kernels if kernel.input_shapes)),
        identities=list(dict.fromkeys(kernel.identity for kernel in kernels)),
    )
