"""The JSON of a Chrome trace, as torch.profiler writes it -> `Trace`, read piece by piece.

A trace as Kineto writes it is never in memory as a whole. Decoding in one go would be simpler, at
five times the memory (docs/design/trace-reader.md).

A piece ends behind an event. Where that is is guessed from the right, and a guess is proved: "[" +
piece + "]" is JSON only where an event ends, because a JSON parser that has come that far is in one
state. Inside a string or an event the parser refuses it. If all guesses are wrong, the piece grows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from ..errors import TraceError
from .model import DEVICE_CATEGORIES, STEP_PREFIX, ApiCall, DeviceRecord, Op, Trace

# Large enough that what is done once for each block costs nothing, small enough not to show in the
# memory used.
BLOCK_BYTES = 1 << 18
# The longest event, and the most that stands before the events: what has no end in so many bytes is
# not read on.
LONGEST_BYTES = 16 << 20
# as a file of 5 GB has them: a small one that is compressed may say any number
MOST_EVENTS = 20_000_000

_HOST_LANES = ("cpu_op", "user_annotation", "python_function")
_API_CATEGORIES = {
    f"{api}_{side}" for api in ("cuda", "hip", "xpu") for side in ("runtime", "driver")
}
_CATEGORIES = frozenset({*_HOST_LANES, *_API_CATEGORIES, *DEVICE_CATEGORIES})
# The same before torch 1.11. A profiler step was an `Operator`, too.
_OLD_CATEGORIES = {
    "Operator": "cpu_op", "Runtime": "cuda_runtime", "Kernel": "kernel", "Memset": "gpu_memset", "Memcpy": "gpu_memcpy",
}  # fmt: skip
# Rows that may be work of a device: Kineto's other accelerators, and what is called like them
# elsewhere.
_NOT_READ = re.compile(
    r"(?:mtia|hpu|privateuse1|npu)_|.*(?<!glow)_(?:runtime|driver)$|.*kernel", re.IGNORECASE
)
# The process of all rows that `torch.profiler.profile(...).events().export_chrome_trace` writes,
# which have no category. If a GPU ran, its kernels and the calls of its runtime are among them.
_LISTED = "CPU functions"
# Processes and threads of what a device ran, as JAX's profiler names them.
_DEVICE, _DEVICE_LANE = re.compile(r"/device:(?:GPU|TPU):(\d+)"), re.compile(r"Stream #|XLA Ops$")
_LISTED_GPU = re.compile(r"(?:cuda|cu|hip|ur)[A-Z]\w+|Mem(?:cpy|set)\b|cpu_to_|\w+ functions$")


def parse(content: bytes, *, where: str = "<bytes>", has_ops: bool = True) -> Trace:
    """Parse the JSON of a Chrome trace. Without `has_ops`, leave out the ops of the CPU: most rows
    of a whole model.

    Raises `TraceError` for anything else.
    """
    blocks = (content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES))
    return parse_blocks(blocks, where=where, has_ops=has_ops)


def parse_blocks(blocks: Iterable[bytes], where: str, *, has_ops: bool = True) -> Trace:
    """Parse JSON in blocks, best of `BLOCK_BYTES` each. Raises `TraceError` as `parse`."""
    rows = _Rows(has_ops=has_ops)
    try:
        return rows.trace(_read(iter(blocks), rows))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            "not a trace that kernelgauge can read",
            where=where,
            got=str(error),
            expected=(
                "a JSON object with a list `traceEvents`, as export_chrome_trace writes it, or a "
                "list of such events"
            ),
            next_command=(
                "torch.profiler.profile(...).export_chrome_trace(PATH)   (in the program to "
                "explain)"
            ),
        ) from error


# --- from blocks to events
# -------------------------------------------------------------------------------------------

_MOST_GUESSES = 8  # where a piece ends
_MOST_MENDED = 1 << 20  # bytes: mending takes ten times the memory of a text
_SPACE = b" \t\r\n"  # JSON's white space: `\s` has two characters more
_EVENTS = re.compile(rb'"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
_END = re.compile(rb"\}[ \t\r\n]*,")
# What Kineto writes and JSON does not allow: numbers that are none, line ends in strings,
# backslashes of Windows paths.
_STRING_OR_NUMBER = re.compile(rb'"(?:[^"\\]+|\\.)*"?|-?\b(?:NaN|Infinity|nan|inf)\b', re.DOTALL)
_CONTROL = re.compile(rb"[\0-\x1f]")
_TRAILING_COMMA = re.compile(rb"(?<=\}),[ \t\r\n]*\]")
_BACKSLASH = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
# What ends a name, also one with quotes that Kineto did not escape (pytorch/kineto#1459): the next
# key of an event, or its end.
_NAME = re.compile(
    rb'("name"\s*:\s*")((?:[^"\\]+|\\.|"(?!\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|id|bp|s|args)"\s*:|\}\s*(?:,\s*\{|\}|\]\s*[,}]|\]?\s*$))))*)',
    re.DOTALL,
)
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_Shape = tuple[int, ...]  # of a tensor; of a list of tensors there is a tuple of them


class Args(msgspec.Struct, gc=False, rename={"external_id": "External id", "older_id": "external id",
           "input_dims": "Input Dims", "input_types": "Input type", "input_strides": "Input Strides",
           "concrete_inputs": "Concrete Inputs",
           "registers": "registers per thread",
           "shared_bytes": "shared memory", "in_elements": "In msg nelems",
           "group_size": "Group size"}):  # fmt: skip
    """Of an event: those that a trace is read for."""

    external_id: int | None = None
    older_id: int | None = None  # before torch 2.0
    input_dims: tuple[tuple[int | _Shape, ...], ...] | None = None
    input_types: tuple[str, ...] | None = None
    input_strides: tuple[tuple[int | _Shape, ...], ...] | None = None
    concrete_inputs: tuple[Any, ...] | None = None  # texts of numbers, lists and switches
    correlation: int | None = None
    # On rows of the host texts: ROCm writes the stream as an address and bytes as a text, torch 2.6
    # the grid as Triton's source has it.
    device: int | str | None = None
    stream: int | str | None = None
    grid: tuple[int, int, int] | str | None = None
    block: tuple[int, int, int] | str | None = None
    bytes: int | str | None = None
    registers: Any = None  # of these two, a number of another type is not known, and no odd row
    shared_bytes: Any = None
    kernel_kwargs: str | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    kernel_hash: str | None = None
    labels: Any = None  # of a process
    name: Any = None  # of a process or a thread
    in_elements: Any = None  # of a collective, as are the next two
    dtype: Any = None
    group_size: Any = None


class Event(msgspec.Struct, gc=False):
    """A row of a trace. Times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    pid: Any = 0
    args: Args | None = None


_ODD = "?"  # phase of a row with a field of another type; its name is the error


class _File(msgspec.Struct, rename="camel"):
    """The object that the events are in."""

    trace_events: msgspec.Raw = msgspec.Raw()
    device_properties: list[dict[str, Any]] = []
    distributed_info: dict[str, Any] = {}
    base_time_nanoseconds: Any = 0


_decode_piece = msgspec.json.Decoder(list[Event]).decode
_decode_event = msgspec.json.Decoder(Event, strict=False).decode  # "12" is a number too
_decode_file = msgspec.json.Decoder(_File).decode


def _read(blocks: Iterator[bytes], rows: _Rows) -> tuple[_File, _File]:
    """Add the events to `rows`. Return what stands before and behind them."""
    head, buffer, closing = _head(blocks)
    wanted = 0
    for block in blocks:
        buffer += block
        if len(buffer) < wanted:
            continue
        repairs = _REPAIRS if len(buffer) <= _MOST_MENDED else _REPAIRS[:1]
        piece = next(filter(None, (_before_last(repair(buffer)) for repair in repairs)), None)
        if rows.events > MOST_EVENTS:
            raise msgspec.ValidationError(f"more than {MOST_EVENTS:,} events")
        if piece is not None:
            events, buffer = piece
            rows.add(events)
            wanted = 0
        elif len(buffer) > LONGEST_BYTES:
            raise msgspec.DecodeError(
                f"behind traceEvents[{rows.events}] no event ends in {LONGEST_BYTES} bytes"
            )
        else:  # to look at each byte a few times, however long an event is
            wanted = min(4 * len(buffer), LONGEST_BYTES + 1)
    try:
        events, tail = _last_of(buffer, closing)
    except msgspec.DecodeError as error:
        no_end = "the JSON has no end: the file was cut off, or a text in it is not closed"
        got = no_end if "truncated" in str(error) else str(error)
        raise msgspec.DecodeError(f"traceEvents[{rows.events}] or later: {got}") from error
    rows.add(events)
    if closing and not rows.events:
        raise msgspec.ValidationError("an empty list")
    return tail, head


def _head(blocks: Iterator[bytes]) -> tuple[_File, bytes, bytes]:
    """Read up to the bracket that opens the events. Return what stands before it, the bytes that
    follow, and what ends them.

    Events without an object around them end like those of one that has nothing else.
    """
    head = b""
    for block in blocks:
        head = (head + block).lstrip(_SPACE)
        if head[:1] == b"[":
            return _File(), head[1:], b"}"
        if match := _EVENTS.search(head):
            return _decode_file(_mended(head[: match.end()] + b"]}")), head[match.end() :], b""
        if len(head) > LONGEST_BYTES:
            raise msgspec.DecodeError(f"no list `traceEvents` in the first {LONGEST_BYTES} bytes")
        if head and head[:1] != b"{":
            break
    _decode_file(_mended(head))  # says what is wrong with the JSON, if anything is
    raise msgspec.ValidationError("Object missing required field `traceEvents`, a list")


def _before_last(buffer: bytes) -> tuple[list[Event], bytes] | None:
    """Return the events before the last one, and the bytes from there on.

    None if no guess is right.
    """
    at, guesses = len(buffer), _MOST_GUESSES
    while guesses and (at := buffer.rfind(b"}", 0, at)) >= 0:
        if end := _END.match(buffer, at):
            guesses -= 1
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return _events(b"".join((b"[", memoryview(buffer)[: at + 1], b"]"))), buffer[
                    end.end() :
                ]
    return None


def _last_of(buffer: bytes, closing: bytes) -> tuple[list[Event], _File]:
    """Return the last events, and what stands behind them, mended as far as it takes."""
    for repair in _REPAIRS[:-1]:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _last(repair(buffer) + closing)
    # A comma behind the last event is no loss.
    return _last(_TRAILING_COMMA.sub(b"]", _requoted(buffer)) + closing)


def _last(content: bytes) -> tuple[list[Event], _File]:
    """Return the last events, and what stands behind them."""
    content = b'{"traceEvents":[' + content
    file = _decode_file(content)
    events = bytes(file.trace_events)
    if not content.startswith(b'{"traceEvents":' + events):
        raise msgspec.ValidationError("a second list `traceEvents`")
    return _events(events), file


def _events(content: bytes) -> list[Event]:
    """Decode a list of events.

    Raises `msgspec.DecodeError` if it is no JSON, or an event is no object.
    """
    try:
        return _decode_piece(content)
    except msgspec.DecodeError:  # one by one: a row that nobody reads may be odd
        return [_event(bytes(row)) for row in msgspec.json.decode(content, type=list[msgspec.Raw])]


def _event(row: bytes) -> Event:
    try:
        return _decode_event(row)
    except msgspec.DecodeError as error:
        fields = msgspec.json.decode(row, type=dict[str, Any])
        return Event(_ODD, str(fields.get("cat")) if fields.get("ph") == "X" else "", str(error))


def _mended(text: bytes) -> bytes:
    """Make JSON in UTF-8 of what Kineto writes.

    A number that is none becomes what no field that is read may hold.
    """

    def mend(match: re.Match[bytes]) -> bytes:
        if match[0][:1] != b'"':
            return b"[{}]"
        return _BACKSLASH.sub(
            lambda escape: escape[0] if escape[1] else rb"\\", _CONTROL.sub(b" ", match[0])
        )

    return _STRING_OR_NUMBER.sub(mend, text.decode(errors="replace").encode())


def _requoted(text: bytes) -> bytes:
    """Escape the quotes within names too: with them a text is no JSON.

    A name that does not end here stays as it is.
    """

    def requote(name: re.Match[bytes]) -> bytes:
        escaped = _QUOTE.sub(lambda match: b'\\"' if match[0] == b'"' else match[0], name[2])
        return name[0] if name.end() == len(text) else name[1] + escaped

    return _mended(_NAME.sub(requote, text))


_REPAIRS: tuple[Callable[[bytes], bytes], ...] = (bytes, _mended, _requoted)

# --- from events to rows
# ---------------------------------------------------------------------------------------------

_NO_ARGS = Args()
_PLACE = attrgetter("device", "stream", "grid", "block", "bytes")
_TUNING = attrgetter("kernel_kwargs", "num_warps", "num_stages", "kernel_hash")
_NEEDS = attrgetter("registers", "shared_bytes")
_Timed = TypeVar("_Timed", Op, ApiCall, DeviceRecord)


# What is kept of Python functions: modules, and what is neither torch's nor Python's own. Kineto
# leaves out `sys.path`.
_KEPT = re.compile(
    r"nn\.Module: |(?!(?:.*-packages/)?(?:torch|triton)/|.*lib/python[\d.]+/(?!\w+-packages/))[^<>]+\.py\(\d+\): "
)


# What begins a recording. A function that was open then has the line that it was at, and not that
# of its definition.
_BEGINS = re.compile(r"torch/profiler/profiler\.py\(\d+\): start_trace")
_LINE = re.compile(r"(?<=\.py\()\d+(?=\): )")


def _sent(args: Args) -> str:
    return f"{args.in_elements} {args.dtype} in {args.group_size} ranks"


class _Rows:
    """Collect the rows of a trace.

    Names, threads, shapes and types are kept once: there are few of them.
    """

    def __init__(self, *, has_ops: bool) -> None:
        self.events = 0  # that were added
        self._categories = _CATEGORIES if has_ops else _CATEGORIES - {"cpu_op"}
        self._ops: dict[str, list[Op]] = {lane: [] for lane in _HOST_LANES}
        self._calls: list[ApiCall] = []
        self._records: list[DeviceRecord] = []
        self._malformed: Counter[str] = Counter()
        self._first_malformed = ""
        self._others: Counter[str] = Counter()  # rows of other categories
        self._bare: Counter[str] = Counter()  # rows without a category, by process
        self._labels: dict[str, str] = {}  # of processes
        self._devices: dict[str, int] = {}  # number of the device, by process
        self._lanes: dict[tuple[str, int | str], str] = {}  # names of the threads of these
        # when the profiler began, on the thread that asked it to
        self._began_us: dict[int | str, float] = {}
        self._kept: dict[Any, Any] = {}  # names, threads, shapes and types

    def add(self, events: list[Event]) -> None:
        """Add events, in the order of the file.

        Its loop takes a third of the time of reading: it calls little.
        """
        keep, lanes = self._kept.setdefault, self._ops
        first, self.events = self.events, self.events + len(events)
        for index, event in enumerate(events, start=first):
            category = event.cat or self._category(event)
            if category in _OLD_CATEGORIES:
                is_step = event.name.startswith(STEP_PREFIX)
                category = "user_annotation" if is_step else _OLD_CATEGORIES[category]
            if event.ph != "X" or category not in self._categories:
                self._add_other(category, event, index)
                continue
            name = keep(event.name, event.name)
            args = event.args or _NO_ARGS
            external_id = args.older_id if args.external_id is None else args.external_id
            if category == "python_function" and not _KEPT.match(name):
                if _BEGINS.match(name):
                    self._began_us[event.tid] = event.ts
                continue
            if category in lanes:
                thread = keep(event.tid, event.tid)
                shapes = keep(args.input_dims, args.input_dims or ())
                types = keep(args.input_types, args.input_types or ())
                strides = keep(args.input_strides, args.input_strides or ())
                concrete = tuple(map(str, args.concrete_inputs)) if args.concrete_inputs else ()
                inputs = (shapes, types, strides, keep(concrete, concrete))
                op = Op(name, event.ts, event.dur, thread, external_id, *inputs, *_TUNING(args))
                lanes[category].append(op)
            elif category not in DEVICE_CATEGORIES:
                thread = keep(event.tid, event.tid)
                self._calls.append(
                    ApiCall(name, event.ts, event.dur, args.correlation, external_id, thread)
                )
            elif str in map(type, place := _PLACE(args)):
                self._add_malformed(
                    category,
                    f"traceEvents[{index}].args: device, stream, grid, block or bytes: got `str`",
                )
            else:
                device, stream, *sizes = place
                if stream is None:  # Kineto shows a stream as a thread
                    stream = event.tid if isinstance(event.tid, int) else 0
                device = self._devices.get(str(event.pid), 0) if device is None else device
                ran = (name, event.ts, event.dur, category, device, stream, args.correlation)
                needs = [it if type(it) is int else None for it in _NEEDS(args)]
                record = DeviceRecord(*ran, external_id, *sizes, *needs)
                sent = _sent(args) if args.in_elements else ""
                self._records.append(
                    msgspec.structs.replace(record, sent=keep(sent, sent)) if sent else record
                )

    def _category(self, event: Event) -> str:
        """Return the category of a row that has none; keep what its process is."""
        process = str(event.pid)
        if event.ph == "X" and process in self._devices:
            copied = event.name[:6].lower()
            ran = f"gpu_{copied}" if copied in ("memcpy", "memset") else "kernel"
            return ran if (process, event.tid) in self._lanes else "device"
        if event.ph == "X":
            self._bare[process] += 1
            return "Operator" if event.pid == _LISTED else ""
        if event.ph == "M" and event.args is not None and event.args.labels:
            self._labels[process] = str(event.args.labels)
        if event.ph == "M" and event.args is not None:
            if event.name == "process_name" and (device := _DEVICE.match(str(event.args.name))):
                self._devices[process] = int(device[1])
            if event.name == "thread_name" and _DEVICE_LANE.match(str(event.args.name)):
                self._lanes[process, event.tid] = str(event.args.name)
        return ""

    def _add_other(self, category: str, event: Event, index: int) -> None:
        if event.ph == _ODD and category in _CATEGORIES:
            self._add_malformed(category, f"traceEvents[{index}]: {event.name}")
        else:
            self._others[category] += 1

    def _add_malformed(self, category: str, error: str) -> None:
        self._malformed[category] += 1
        self._first_malformed = self._first_malformed or error

    def trace(self, files: tuple[_File, _File]) -> Trace:
        """Return the trace of all rows that were added.

        Raises `msgspec.ValidationError` if it is of another program.
        """
        not_read = {
            category: count for category, count in self._others.items() if _NOT_READ.match(category)
        }
        for process, count in self._bare.items():
            if (label := self._labels.get(process, "CPU")) != "CPU":  # Ascend
                not_read[label] = not_read.get(label, 0) + count
        marks = {op.name for op in self._ops["cpu_op"]} if _LISTED in self._bare else set[str]()
        if any(map(_LISTED_GPU.match, marks | self._others.keys() | self._bare.keys() - {_LISTED})):
            rows = "rows without categories, as `prof.events().export_chrome_trace` writes them"
            raise msgspec.ValidationError(f"{rows}: they do not say what the GPU ran")
        if self._others and not any(
            (*self._ops.values(), self._calls, self._records, self._malformed, not_read)
        ):
            found = ", ".join(repr(category) for category, _ in self._others.most_common(3))
            raise msgspec.ValidationError(
                f"no row of an op, a launch or a kernel, but rows of category {found}"
            )
        ops, annotations, modules = map(_by_start, self._ops.values())
        modules = tuple(
            msgspec.structs.replace(row, name=_LINE.sub("0", row.name))
            if row.start_us < self._began_us.get(row.thread, -math.inf)
            else row
            for row in modules
        )
        calls, records = _by_start(self._calls), _by_start(self._records)
        left_out = (not_read, self._malformed, self._first_malformed)
        devices = next((file.device_properties for file in files if file.device_properties), [])
        job = next((file.distributed_info for file in files if file.distributed_info), {})
        bases = [
            file.base_time_nanoseconds
            for file in files
            if isinstance(file.base_time_nanoseconds, int)
        ]
        began_us = max(bases, default=0) / 1e3
        return Trace(
            ops, annotations, calls, records, tuple(devices), *left_out, modules, job, began_us
        )


def _by_start(rows: list[_Timed]) -> tuple[_Timed, ...]:
    """Sort by start, the longest first at equal starts, so that a parent precedes its child."""
    return tuple(sorted(rows, key=lambda row: (row.start_us, -row.duration_us)))
