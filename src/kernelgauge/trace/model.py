"""What ran: the records of one torch.profiler trace, paired, and cut into windows.

A `Trace` holds every record. A `Window` is a stretch of host time (a profiler step, or a named
region) with what was dispatched and launched in it. Device records belong to the window that
*launched* them, by correlation id: on an asynchronous device the time at which a kernel ran says
nothing about who asked for it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby, zip_longest
from math import inf, prod
from operator import attrgetter
from typing import Any, TypeGuard, TypeVar

import msgspec

STEP_PREFIX = "ProfilerStep#"  # of the annotation that torch.profiler makes of each step
MODULE_PREFIX = "nn.Module: "  # of a row of a Python function
# Name of the row of another Python function, with the line of its definition.
FRAME = re.compile(r"(?P<file>[^<>]+\.py)\((?P<line>\d{1,9})\): (?P<function>.+)")
WHOLE = "the whole trace"  # name of the window of everything
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memset", "gpu_memcpy"})
# What `pytest perf` marks the call with, inside each profiler step: flushing and waiting stay
# outside of it.
REGION = "kernelgauge.call"
CALL = "kernelgauge.call "  # and its number: one call of a sequence

# Host calls (CUDA runtime, CUDA driver, HIP; SYCL's Unified Runtime, its predecessor PI, and Level
# Zero). A host function is queued on a stream like a kernel, but runs on the host and leaves no
# device record.
_GRAPH_LAUNCH = re.compile(r"(?:cuda|cu|hip)GraphLaunch")
_LAUNCH = re.compile(
    r"(?:cuda|cu|hip)(?:Graph|Module|ExtModule|Ext)?Launch(?!.*HostFunc)|(?:ur|pi)Enqueue\w*Launch|ze\w+AppendLaunch"
)
_TRANSFER = re.compile(
    r"(?:cuda|cu|hip)Mem(?:set|cpy)|(?:ur|pi)\w*Enqueue\w*(?:Memcpy|Memset|Fill|Copy)|ze\w+AppendMemory(?:Copy|Fill)"
)
# A copy without a stream blocks the host.
_SYNCHRONIZATION = re.compile(
    r"(?:cuda|cu|hip)(?:Device|Ctx|Stream|Event)Synchronize|(?:cuda|hip)Memcpy"
    r"|(?:ur|pi)(?:QueueFinish|Events?Wait)|ze\w+Synchronize"
)
# The caching allocator of torch makes none of them in a steady call.
_ALLOCATION = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|Host(?:Alloc|Malloc|Free|Register|Unregister))\w*"
    r"|cuMem(?:Alloc|Free|Create|Map|Unmap|Release|Address|Host(?:Alloc|Register|Unregister))\w*"
)
# What the profiler writes for an argument: a switch, an integer or a list of integers; or other
# numbers, as ``2.`` and ``0.10000000000000001`` (C++ with all digits), or a list of them.
_INTEGERS, _COMPUTED = (
    re.compile(r"True|False|-?\d+|\[[-\d, ]*\]"),
    re.compile(r"(?:\d\.?){12}"),
)
_NUMBERS, _FLOAT = (
    re.compile(r"\[?(?:[-+.,\dej ]|inf|nan)+\]?"),
    re.compile(r"\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+"),
)

# torch's numbers of dtypes (torch/headeronly/core/ScalarType.h)
DTYPES = {
    str(number): name
    for number, name in enumerate(
        "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool "
        "qint8 quint8 qint32 bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 "
        "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64".split()
    )
}

_LIST = "TensorList"  # begins the type of one; the dtypes of its tensors follow, where known
_MOST_TEXTS = 8  # of tensors in their order

_START = attrgetter("start_us")


# Structs, and not tracked by the garbage collector: a trace of 500 MB has a million of them, and no
# cycle.
class _Row(msgspec.Struct, frozen=True, gc=False):
    """What all rows have. Times in microseconds."""

    name: str
    start_us: float
    duration_us: float

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us


class Op(_Row, frozen=True, gc=False):
    """A row of the host lane: a dispatcher op, a compile pre-op, an annotation's child."""

    thread: int | str
    external_id: int | None = None
    input_shapes: tuple[Any, ...] = ()  # nested tuples of ints, as recorded
    input_types: tuple[str, ...] = ()  # "c10::BFloat16", "ScalarList", ""
    input_strides: tuple[Any, ...] = ()  # as `input_shapes`
    # texts of numbers, lists of them and switches; empty for a tensor
    concrete_inputs: tuple[str, ...] = ()
    kernel_kwargs: str | None = None  # the Triton keys are on the op, not on the kernel record
    num_warps: int | None = None
    num_stages: int | None = None
    kernel_hash: str | None = None

    def arguments(
        self, parameters: Mapping[int, tuple[str, bool]], *, follows_data: bool
    ) -> dict[str, str]:
        """Return the text of each switch, number, list of numbers, dtype, and list of tensors.

        `parameters`: by place, the name of a parameter, and whether it is a dtype. Another one has
        its place for a name. `follows_data`: as of `number_text`.
        """
        found = {}
        columns = self.concrete_inputs, self.input_types, self.input_shapes
        for place, (text, kind, shape) in enumerate(zip_longest(*columns, fillvalue="")):
            name, is_dtype = parameters.get(place, (str(place), False))
            if is_dtype and text in DTYPES:
                found[name] = DTYPES[text]
            elif _INTEGERS.fullmatch(text):
                found[name] = text
            elif _NUMBERS.fullmatch(text):
                found[name] = _FLOAT.sub(
                    lambda each: number_text(float(each[0]), follows_data=follows_data), text
                )
            elif is_list(kind):
                found[name] = _text_of_list(shape, kind.split()[1:])
        return found

    def with_list(
        self, place: int, shapes: Sequence[Any], dtypes: Sequence[str], strides: Sequence[Any]
    ) -> Op:
        """Return it with the tensors of one input, if that is a list: a trace lacks their dtypes."""
        if self.input_types[place : place + 1] != (_LIST,):
            return self
        kind = " ".join((_LIST, *dtypes))
        news = {"input_shapes": tuple(shapes), "input_types": kind, "input_strides": tuple(strides)}
        changes = {
            name: tuple(new if at == place else old for at, old in enumerate(getattr(self, name)))
            for name, new in news.items()
        }
        return msgspec.structs.replace(self, **changes)


def number_text(value: float, *, follows_data: bool) -> str:
    """Return a number as it is compared.

    One of so many digits that no constant has them was computed: the last ones depend on a library
    of mathematics. Empty where it may follow from data, of which another process has others.
    """
    text = repr(value)
    return text if not _COMPUTED.search(text) else "" if follows_data else f"{value:.7g}"


def is_list(kind: str) -> bool:
    """Tell whether an input of this type is a list of tensors."""
    return kind.startswith(_LIST)


def _text_of_list(shapes: Sequence[Any], dtypes: Sequence[str]) -> str:
    """Return the text of a list of tensors; without dtypes, as older baselines have it."""
    texts = [
        f"{dtype}[{','.join(map(str, shape))}]"
        for shape, dtype in zip(shapes, dtypes, strict=bool(dtypes))
    ]
    runs = [(text, len(list(those))) for text, those in groupby(texts)]
    if len(runs) > _MOST_TEXTS:
        runs = [*Counter(texts).items()]
    whole = f"{len(shapes)} tensors of {sum(map(prod, shapes))} numbers"
    return ", ".join([whole, *(f"{text} x{count}" if count > 1 else text for text, count in runs)])


class ApiCall(_Row, frozen=True, gc=False):
    """A call into the CUDA (or HIP) runtime or driver, seen on the host."""

    correlation: int | None
    external_id: int | None = None
    thread: int | str = 0

    @property
    def is_graph_launch(self) -> bool:
        return bool(_GRAPH_LAUNCH.match(self.name))

    @property
    def is_launch(self) -> bool:
        return bool(_LAUNCH.match(self.name))

    @property
    def asks(self) -> bool:
        """Tell whether the device gets work: a launch, a memset or a copy."""
        return _gives_work(self.name)

    @property
    def is_synchronization(self) -> bool:
        return bool(_SYNCHRONIZATION.fullmatch(self.name))


@lru_cache(maxsize=1024)  # there are few names, and many calls
def _gives_work(name: str) -> bool:
    return bool(_LAUNCH.match(name) or _TRANSFER.match(name))


class DeviceRecord(_Row, frozen=True, gc=False):
    """One execution on the device, as the profiler recorded it: a kernel, a memset or a copy."""

    category: str  # "kernel", "gpu_memset" or "gpu_memcpy"
    device: int
    stream: int
    correlation: int | None
    external_id: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    bytes: int | None = None
    registers: int | None = None  # of a thread
    shared_bytes: int | None = None  # of a block, static and dynamic together
    sent: str = ""  # of a collective: elements, dtype, and ranks of its group

    @property
    def time_us(self) -> float:
        """Return the duration that sums have: a negative one, or none that is a number, counts
        nothing.
        """
        return self.duration_us if self.duration_us > 0 else 0.0


# CUPTI's number of CUDA's default stream, which torch runs on unless told otherwise; ROCm's
_DEFAULT_STREAMS = (7, 0)


def number_streams(streams: Iterable[int]) -> dict[int, int]:
    """Return a number for each stream, as its own differs between processes: 0 for the default one,
    then by first launch.
    """
    found = dict.fromkeys(streams)
    return {
        stream: place
        for place, stream in enumerate(sorted(found, key=lambda each: each not in _DEFAULT_STREAMS))
    }


_Grouped = TypeVar("_Grouped")
_Key = TypeVar("_Key", bound=Hashable)


def grouped(
    rows: Iterable[_Grouped], key: Callable[[_Grouped], _Key]
) -> dict[_Key, list[_Grouped]]:
    """Return the rows that have something in common, in order."""
    found: dict[_Key, list[_Grouped]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


_Nested = TypeVar("_Nested", "Op", "Op | ApiCall")


def nested(rows: Iterable[_Nested]) -> Iterator[tuple[_Nested, list[_Nested]]]:
    """Yield each row with those that are open around it on its thread, the outermost first.

    `rows`: parents first.
    """
    stacks = defaultdict[int | str, list[_Nested]](list)
    for row in rows:
        stack = stacks[row.thread]
        while stack and stack[-1].end_us <= row.start_us:
            stack.pop()
        yield row, stack
        stack.append(row)


def busy_us(kernels: Sequence[Any]) -> float:
    """Return how long at least one of these records or executions ran.

    Those of one stream may touch: they count in full.
    """
    if len({each.stream for each in kernels}) <= 1:
        return float(sum(max(0.0, each.duration_us) for each in kernels))
    total = until = 0.0
    for each in sorted(kernels, key=_START):
        end = each.start_us + max(0.0, each.duration_us)
        total += max(0.0, end - max(until, each.start_us))
        until = max(until, end)
    return total


class Launch(msgspec.Struct, frozen=True, gc=False):
    """One execution on the device, with the host call that asked for it and the op that made the
    call, where known.
    """

    record: DeviceRecord
    call: ApiCall
    op: Op | None


@dataclass(frozen=True)
class Window:
    """What the host dispatched between two moments, and what the device ran for it, in launch
    order.
    """

    name: str
    start_us: float
    duration_us: float
    ops: tuple[Op, ...]
    calls: tuple[ApiCall, ...]
    executed: tuple[Launch, ...]  # kernels, memsets and copies
    trace: Trace = field(compare=False, repr=False)
    orphans: tuple[DeviceRecord, ...] = ()  # of the whole trace: records without a call
    lost: int = 0  # launches of kernels that left no record

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us

    @property
    def is_step(self) -> bool:
        return self.name.startswith(STEP_PREFIX)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(launch for launch in self.executed if launch.record.category == "kernel")

    @cached_property
    def records(self) -> tuple[DeviceRecord, ...]:
        return (*(launch.record for launch in self.executed), *self.orphans)

    @property
    def memsets(self) -> tuple[DeviceRecord, ...]:
        return tuple(record for record in self.records if record.category == "gpu_memset")

    @property
    def copies(self) -> tuple[DeviceRecord, ...]:
        return tuple(record for record in self.records if record.category == "gpu_memcpy")

    @property
    def synchronizations(self) -> int:
        return sum(call.is_synchronization for call in self.calls)

    @cached_property
    def synchronizing_ops(self) -> list[tuple[str, int | None]]:
        """Return the outermost op around each synchronising call, with the call; and the id of the
        innermost op.
        """
        return [
            self.trace.described(call, call.name) for call in self.calls if call.is_synchronization
        ]

    @cached_property
    def copying_ops(self) -> list[tuple[str, int | None]]:
        """Return the outermost op around each copy, with its direction and bytes; and the id of the
        innermost op.
        """
        copies = [launch for launch in self.executed if launch.record.category == "gpu_memcpy"]
        sizes = [
            "" if each.record.bytes is None else f", {each.record.bytes} bytes" for each in copies
        ]
        pairs = zip(copies, sizes, strict=True)
        return [
            self.trace.described(each.call, f"{each.record.name}{size}") for each, size in pairs
        ]

    @cached_property
    def allocating_ops(self) -> list[tuple[str, int | None]]:
        """Return the outermost op around each call that allocates or frees memory of the device, or
        pins the host's.
        """
        return [
            self.trace.described(call, call.name)
            for call in self.calls
            if _ALLOCATION.fullmatch(call.name)
        ]

    @property
    def graph_launches(self) -> int:
        return sum(call.is_graph_launch for call in self.calls)

    @property
    def occupancy_queries(self) -> int:
        return sum("Occupancy" in call.name for call in self.calls)


@dataclass(frozen=True)
class Trace:
    """Every record of one profiler session. Tuples are sorted by start time."""

    ops: tuple[Op, ...]
    annotations: tuple[Op, ...]
    calls: tuple[ApiCall, ...]
    records: tuple[DeviceRecord, ...]
    device_properties: tuple[dict[str, object], ...] = ()
    # rows of devices that nobody here knows, by category
    not_read: Mapping[str, int] = field(default_factory=dict)
    # rows with a field of another type, by category
    malformed: Mapping[str, int] = field(default_factory=dict)
    first_malformed: str = field(default="", compare=False)
    # calls of an nn.Module, and of Python functions; only with_stack=True records them
    modules: tuple[Op, ...] = ()
    # of torch.distributed: rank, world_size
    job: Mapping[str, object] = field(default_factory=dict)
    began_us: float = 0.0  # what its times are relative to, since 1970
    has_calls: bool = True  # whether its profiler records what the host asks for

    @cached_property
    def _records_by_correlation(self) -> dict[int | None, list[DeviceRecord]]:
        return grouped(
            (record for record in self.records if record.correlation is not None),
            attrgetter("correlation"),
        )

    @cached_property
    def _asking_by_correlation(self) -> dict[int | None, ApiCall]:
        # The first call that asks: where several have one correlation, a record is still one
        # execution.
        asking = (
            call for call in reversed(self.calls) if call.correlation is not None and call.asks
        )
        return {call.correlation: call for call in asking}

    @cached_property
    def _named_ops(self) -> dict[int | None, Op]:
        # By External id. Later ops overwrite earlier ones: within one id the innermost op starts
        # last.
        wanted = {row.external_id for lane in (self.records, self.calls) for row in lane} - {
            None,
            0,
        }
        return {op.external_id: op for op in self.ops if op.external_id in wanted}

    @cached_property
    def _open_ops(self) -> dict[int, tuple[Op, Op | None]]:
        """Return by `id` of a call the innermost op around it on its thread, and the outermost of
        the dispatcher's.
        """
        found: dict[int, tuple[Op, Op | None]] = {}
        rows: list[Op | ApiCall] = [*self.ops, *self.calls]
        for row, around in nested(sorted(rows, key=_START)):
            if isinstance(row, ApiCall):
                ops = [op for op in around if isinstance(op, Op) and _encloses(op, row)]
                if ops:
                    found[id(row)] = ops[-1], next((op for op in ops if "::" in op.name), None)
        return found

    def _op_of(self, call: ApiCall, external_id: int | None) -> Op | None:
        """Return the op that made a call: that of the id if it is around the call, else the
        innermost one that is.

        In some files the ids of records and calls are correlations, and name the ops of others, or
        none.
        """
        named, around = self._named_ops.get(external_id), self._open_ops.get(id(call))
        if _encloses(named, call):
            return named
        return around[0] if around else None

    def described(self, call: ApiCall, text: str) -> tuple[str, int | None]:
        """Return a text behind the outermost dispatcher op around a call; and the id of the op that
        made the call.
        """
        op, (_, outer) = (
            self._op_of(call, call.external_id),
            self._open_ops.get(id(call), (None, None)),
        )
        return (
            f"{outer.name}: {text}" if outer else text,
            op.external_id if op else call.external_id,
        )

    def pairing_problems(self) -> tuple[str, ...]:
        """Return every way in which launches and device records fail to pair; empty if the session
        can be trusted.

        The profiler can drop records at the start of a session (pytorch#192021, Fuser#3753), so a
        count is believed only when each launch has its record and each record its launch.
        """
        rows = ", ".join(f"{count} of {category}" for category, count in self.malformed.items())
        problems = (
            [f"malformed: rows that were not read: {rows}; the first: {self.first_malformed}"]
            if rows
            else []
        )
        asking = [call for call in self.calls if call.asks]
        asked: Counter[int | None] = Counter(
            call.correlation for call in asking if call.correlation is not None
        )
        for call in asking:
            records, calls = (
                self._records_by_correlation.get(call.correlation, ()),
                asked[call.correlation],
            )
            if not records:
                problems.append(
                    f"lost: {call.name} (correlation {call.correlation}) has no device record"
                )
            elif call is self.launch_of(records[0]) and (
                calls > 1 or (len(records) > 1 and not call.is_graph_launch)
            ):
                counts = f"{len(records)} records, and belongs to {calls} launching calls"
                problems.append(
                    f"duplicated: {call.name} (correlation {call.correlation}) has {counts}"
                )
        for record in self.records:
            if self.has_calls and record.correlation not in asked:
                problems.append(
                    f"orphan: {record.name} (correlation {record.correlation}) has no launch"
                )
            if not 0 <= record.duration_us < inf:  # NaN fails too
                problems.append(f"bad duration: {record.name} took {record.duration_us} us")
        return tuple(problems)

    def launch_of(self, record: DeviceRecord) -> ApiCall | None:
        """Return the call that asked for this record; None if the trace does not have it."""
        return self._asking_by_correlation.get(record.correlation)

    def steps(self) -> list[Window]:
        """Return one window for each profiler step, in order."""
        return [
            self._starting_in(mark)
            for mark in self.annotations
            if mark.name.startswith(STEP_PREFIX)
        ]

    def regions(self, name: str) -> list[Window]:
        """Return one window for each `record_function(name)` annotation, in order."""
        return [self._starting_in(mark) for mark in self.annotations if mark.name == name]

    def whole(self) -> Window:
        """Return one window of everything, records without a launch too."""
        lanes = (self.ops, self.annotations, self.calls, self.records)
        start = min((lane[0].start_us for lane in lanes if lane), default=0.0)
        end = max((row.end_us for lane in lanes for row in lane), default=start)
        orphans = tuple(record for record in self.records if self.launch_of(record) is None)
        return self._window(_Row(WHOLE, start, end - start), self.ops, self.calls, orphans)

    def _starting_in(self, mark: _Row) -> Window:
        """Return what starts in a mark.

        Half open: what starts where one ends and the next begins belongs to the next.
        """
        ops, calls = (
            slice(*(bisect_left(rows, at, key=_START) for at in (mark.start_us, mark.end_us)))
            for rows in (self.ops, self.calls)
        )
        return self._window(mark, self.ops[ops], self.calls[calls])

    def _window(
        self,
        mark: _Row,
        ops: tuple[Op, ...],
        calls: tuple[ApiCall, ...],
        orphans: tuple[DeviceRecord, ...] = (),
    ) -> Window:
        asking, records = self._asking_by_correlation, self._records_by_correlation
        executed = tuple(
            Launch(record, call, self._op_of(call, record.external_id))
            for call in calls
            if call is asking.get(call.correlation)
            for record in records.get(call.correlation, ())
        )
        lost = sum(call.correlation not in records and call.is_launch for call in calls)
        return Window(
            mark.name, mark.start_us, mark.duration_us, ops, calls, executed, self, orphans, lost
        )


def _encloses(op: Op | None, row: _Row) -> TypeGuard[Op]:
    """Tell whether an op was open when a row began, on whatever thread: by its id it may have
    worked for another.
    """
    return op is not None and op.start_us <= row.start_us <= op.end_us
