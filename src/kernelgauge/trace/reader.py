"""The JSON of a Chrome trace, as torch.profiler writes it -> `Trace`, read piece by piece.

A trace as Kineto writes it is never in memory as a whole. Decoding in one go would be simpler, at five times the memory
(docs/design/trace-reader.md).

A piece ends behind an event. Where that is is guessed from the right, and a guess is proved: "[" + piece + "]" is JSON
only where an event ends, because a JSON parser that has come that far is in one state. Inside a string or an event the
parser refuses it. If all guesses are wrong, the piece grows.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import compress, count, islice
from operator import attrgetter, eq
from typing import Annotated, Any, TypeVar

import msgspec

from ..errors import TraceError
from .model import DEVICE_CATEGORIES, MODULE_PREFIX, STEP_PREFIX, ApiCall, DeviceRecord, Op, Trace

# Large enough that what is done once for each block costs nothing, small enough not to show in the memory used.
BLOCK_BYTES = 1 << 18
# The longest event, and the most that stands before the events or behind them: what has no end in so many bytes is not
# read on to find out.
LONGEST_BYTES = 16 << 20

_API_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"})
_CATEGORIES = _API_CATEGORIES | DEVICE_CATEGORIES | {"cpu_op", "user_annotation"}
# The same before torch 1.11. A profiler step was an `Operator`, too.
_OLD_CATEGORIES = {
    "Operator": "cpu_op", "Runtime": "cuda_runtime", "Kernel": "kernel", "Memset": "gpu_memset", "Memcpy": "gpu_memcpy",
}  # fmt: skip
# Kineto's other accelerators: nobody here has seen enough of them.
_NOT_READ = frozenset(
    {"mtia_ccp_events", "mtia_runtime", "mtia_workloadd", "hpu_op", "xpu_runtime", "xpu_driver",
     "privateuse1_runtime", "privateuse1_driver"}
)  # fmt: skip
# Kineto's other rows. They are not needed, but only PyTorch writes them.
_OF_PYTORCH = frozenset(
    {"gpu_user_annotation", "cpu_instant_event", "ac2g", "fwdbwd", "overhead", "cuda_sync", "Trace",
     "PyTorch Profiler"}
)  # fmt: skip


def parse(content: bytes, *, where: str = "<bytes>") -> Trace:
    """Parse the JSON of a Chrome trace. Raises `TraceError` with the place, what was got and what was expected."""
    return parse_blocks((content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)), where=where)


def parse_blocks(blocks: Iterable[bytes], *, where: str) -> Trace:
    """Parse JSON in blocks, best of `BLOCK_BYTES` each. Raises `TraceError` as `parse`."""
    rows = _Rows()
    try:
        beside = _read(iter(blocks), rows)
        return rows.trace(_devices(beside.get("deviceProperties", msgspec.Raw(b"[]"))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            "not a torch.profiler trace",
            where=where,
            got=str(error),
            expected="a JSON object with a list `traceEvents`, as export_chrome_trace writes it",
            next_command="torch.profiler.profile(...).export_chrome_trace(PATH)   (in the program to explain)",
        ) from error


# --- from blocks to events -------------------------------------------------------------------------------------------

_MOST_GUESSES = 50
_MOST_MENDED = 1 << 20  # bytes: mending takes ten times the memory of a text
_SPACE = b" \t\r\n"  # JSON's white space: `\s` has two characters more
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENTS = re.compile(rb'"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
_END = re.compile(rb"\}[ \t\r\n]*,")
# What Kineto writes and JSON does not allow: numbers that are none, line ends in strings, backslashes of Windows paths.
_STRING_OR_NUMBER = re.compile(rb'"(?:[^"\\]+|\\.)*"?|-?\b(?:NaN|Infinity|nan|inf)\b', re.DOTALL)
_NOT_IN_A_STRING = re.compile(rb'[\0-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(?P<wrong>))')
# Python's integers have no bound, but their hashes have: keys of a dict that are chosen to collide would stop it.
_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Args(msgspec.Struct, gc=False, rename={"external_id": "External id", "older_id": "external id",
           "input_dims": "Input Dims", "input_types": "Input type"}):  # fmt: skip
    """Of an event: those that a trace is read for."""

    external_id: _Int | None = None
    older_id: _Int | None = None  # before torch 2.0
    input_dims: msgspec.Raw = msgspec.Raw()
    input_types: msgspec.Raw = msgspec.Raw()
    correlation: _Int | None = None
    # On rows of the host texts: ROCm writes the stream as an address and bytes as a text, torch 2.6 the grid as Triton's
    # source has it.
    device: _Int | str | None = None
    stream: _Int | str | None = None
    grid: tuple[_Int, _Int, _Int] | str | None = None
    block: tuple[_Int, _Int, _Int] | str | None = None
    bytes: _Int | str | None = None
    kernel_kwargs: str | None = None
    num_warps: _Int | None = None
    num_stages: _Int | None = None
    kernel_hash: str | None = None


class Event(msgspec.Struct, gc=False):
    """A row of a trace. Times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: _Int | str = 0
    args: Args | None = None


class _OddEvent(Event, gc=False):
    """A row with a field of another type. `name` is the error; the phase is none."""


class _Loose(msgspec.Struct):
    """An event of which only what says whether it is read has been decoded."""

    ph: Any = None
    cat: Any = None


_decode_piece = msgspec.json.Decoder(list[Event]).decode
_decode_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_event = msgspec.json.Decoder(Event, strict=False).decode  # "12" is a number too
_decode_loose = msgspec.json.Decoder(_Loose).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _read(blocks: Iterator[bytes], rows: _Rows) -> dict[str, msgspec.Raw]:
    """Add the events to `rows`. Return what stands beside them, undecoded, by key."""
    beside, buffer = _head(blocks)
    wanted = 0
    for block in blocks:
        buffer += block
        if len(buffer) < wanted:
            continue
        piece = _before_last(buffer, 2)
        if piece is None:
            piece = _before_last(_mended(buffer) if len(buffer) <= _MOST_MENDED else buffer, _MOST_GUESSES)
        if piece is not None:
            events, buffer = piece
            rows.add(events)
            wanted = 0
        elif len(buffer) > LONGEST_BYTES:
            raise msgspec.DecodeError(f"behind traceEvents[{rows.events}] no event ends in {LONGEST_BYTES} bytes")
        else:  # to look at each byte a few times, however long an event is
            wanted = min(4 * len(buffer), LONGEST_BYTES + 1)
    try:
        try:
            events, behind = _last(_in_utf8(b"[" + buffer), is_list=beside is None)
        except msgspec.DecodeError:
            events, behind = _last(_in_utf8(b"[" + _mended(buffer)), is_list=beside is None)
    except msgspec.DecodeError as error:
        raise msgspec.DecodeError(f"traceEvents[{rows.events}] or later: {error}") from error
    if rows.events and not events:
        raise msgspec.DecodeError("a comma behind the last event")
    rows.add(events)
    if beside is None and not rows.has_phase:
        raise msgspec.ValidationError("a list without an event")
    return {**(beside or {}), **behind}


def _head(blocks: Iterator[bytes]) -> tuple[dict[str, msgspec.Raw] | None, bytes]:
    """Read up to the bracket that opens the events. Return what stands before it, and the bytes that follow.

    None: it is Chrome's other form, the events alone.
    """
    content = buffer = b""
    for block in blocks:
        content += block
        if len(content) < len(_BYTE_ORDER_MARK):
            continue
        buffer = content.removeprefix(_BYTE_ORDER_MARK).lstrip(_SPACE)
        if buffer[:1] == b"[":
            return None, buffer[1:]
        # One that does not end like this is a part of something else.
        ends = [match.end() for match in islice(_EVENTS.finditer(buffer), _MOST_GUESSES)]
        for mend in (bytes, _mended):
            for end in ends:
                with suppress(msgspec.DecodeError):
                    beside = _decode_object(_in_utf8(mend(buffer[:end]) + b"]}"))
                    return {key: msgspec.Raw(bytes(value)) for key, value in beside.items()}, buffer[end:]
        if len(content) > LONGEST_BYTES:
            raise msgspec.DecodeError(f"no list `traceEvents` in the first {LONGEST_BYTES} bytes")
        if buffer and buffer[:1] != b"{":
            break
    _decode_object(_in_utf8(buffer or content))  # says what is wrong with the JSON, if anything is
    raise msgspec.ValidationError("Object missing required field `traceEvents`, a list")


def _before_last(buffer: bytes, guesses: int) -> tuple[list[Event], bytes] | None:
    """Return the events before the last one, and the bytes from there on. None if no guess is right."""
    at = len(buffer)
    while guesses and (at := buffer.rfind(b"}", 0, at)) >= 0:
        if end := _END.match(buffer, at):
            guesses -= 1
            with suppress(msgspec.DecodeError, RecursionError):
                return _events(b"".join((b"[", memoryview(buffer)[: at + 1], b"]"))), buffer[end.end() :]
    return None


def _last(content: bytes, *, is_list: bool) -> tuple[list[Event], dict[str, msgspec.Raw]]:
    """Return the events of a list, and what stands behind them in the object that they are in."""
    if is_list:
        return _events(content), {}
    behind = _decode_object(b'{"traceEvents":' + content)
    events = bytes(behind.pop("traceEvents"))
    if not content.startswith(events) or "traceEvents" in _decode_object(b'{"":0' + content[len(events) :]):
        raise msgspec.ValidationError("a second list `traceEvents`")
    return _events(events), {key: msgspec.Raw(bytes(value)) for key, value in behind.items()}


def _events(content: bytes) -> list[Event]:
    """Decode a list of events. Raises `msgspec.DecodeError` if it is no JSON, or an event is no object."""
    try:
        return _decode_piece(content)
    except (msgspec.DecodeError, UnicodeDecodeError):  # one by one: a row that nobody reads may be odd
        return [_event(_in_utf8(bytes(row))) for row in _decode_rows(content)]


def _event(row: bytes) -> Event:
    try:
        return _decode_event(row)
    except msgspec.DecodeError as error:
        kind = _decode_loose(row)
        return _OddEvent("?", kind.cat if kind.ph == "X" and isinstance(kind.cat, str) else "", str(error))


def _mended(text: bytes) -> bytes:
    """Make JSON of what Kineto writes. Of a number that is none it makes what no field that is read may hold."""
    return _STRING_OR_NUMBER.sub(lambda match: _mended_string(match[0]) if match[0][:1] == b'"' else b"[{}]", text)


def _mended_string(text: bytes) -> bytes:
    def mend(match: re.Match[bytes]) -> bytes:
        return b" " if match[0] < b" " else match[0] if match["wrong"] is None else b"\\\\"

    return _NOT_IN_A_STRING.sub(mend, text)


def _in_utf8(text: bytes) -> bytes:
    """Replace what is not UTF-8: a name that is not is no reason to refuse the rest."""
    return text.decode(errors="replace").encode()


# --- from events to rows ---------------------------------------------------------------------------------------------

_NO_ARGS = Args()
# A list of tensors is a list of lists in the list of the arguments; what is deeper by far is no shape.
_DEEPEST_SHAPE = 16
_MOST_ELEMENTS = 2**63 - 1  # torch counts in int64
_MOST_DIGITS = 18
_START = attrgetter("start_us")
_Timed = TypeVar("_Timed", Op, ApiCall, DeviceRecord)
_decode_any = msgspec.json.Decoder(list[Any]).decode
_decode_types = msgspec.json.Decoder(list[str]).decode
_decode_devices = msgspec.json.Decoder(list[dict[str, Any]]).decode


class _Lists(dict[bytes, tuple[Any, ...]]):
    """Lists of arguments by their JSON, each decoded once: there are few of them."""

    def __init__(self, field: str, decode: Callable[[bytes], Iterable[Any]]) -> None:
        super().__init__({b"": (), b"null": ()})
        self._field, self._decode = field, decode

    def __missing__(self, raw: bytes) -> tuple[Any, ...]:
        try:
            found = self[raw] = tuple(self._decode(_in_utf8(raw)))
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(f"{self._field}: {error}") from error
        return found


class _Rows:
    """Collect the rows of a trace. Names, threads, shapes and types are kept once: there are few of them."""

    def __init__(self) -> None:
        self.events = 0  # that were added
        self.has_phase = False  # one of them
        self._ops: dict[str, list[Op]] = {"cpu_op": [], "user_annotation": [], "python_function": []}
        self._calls: list[ApiCall] = []
        self._records: list[DeviceRecord] = []
        self._not_read: Counter[str] = Counter()
        self._malformed: Counter[str] = Counter()
        self._first_malformed = ""
        self._is_of_pytorch = False
        self._foreign: Counter[str] = Counter()  # rows that are not needed, by category
        self._names: dict[str, str] = {}
        self._threads: dict[int | str, int | str] = {}
        self._shapes = _Lists("Input Dims", _decode_shapes)
        self._types = _Lists("Input type", _decode_types)

    def add(self, events: list[Event]) -> None:
        """Add events, in the order of the file. Its loop takes a third of the time of reading: it calls little."""
        names, threads, shapes, types, lanes = self._names, self._threads, self._shapes, self._types, self._ops
        first, self.events = self.events, self.events + len(events)
        self.has_phase = self.has_phase or any(event.ph for event in events)
        for index, event in enumerate(events, start=first):
            category = event.cat
            if category not in _CATEGORIES or event.ph != "X":
                if category in _OF_PYTORCH:
                    self._is_of_pytorch = True
                    continue
                event.cat = category = self._category_of_other(event, index)
                if not category:
                    continue
            name = names.setdefault(event.name, event.name)
            args = event.args or _NO_ARGS
            external_id = args.older_id if args.external_id is None else args.external_id
            try:
                if category in lanes:
                    op = Op(
                        name,
                        event.ts,
                        event.dur,
                        threads.setdefault(event.tid, event.tid),
                        external_id,
                        shapes[bytes(args.input_dims)],
                        types[bytes(args.input_types)],
                        args.kernel_kwargs,
                        args.num_warps,
                        args.num_stages,
                        args.kernel_hash,
                    )
                    lanes[category].append(op)
                elif category in DEVICE_CATEGORIES:
                    self._records.append(_record(event, name, args, external_id))
                else:
                    self._calls.append(ApiCall(name, event.ts, event.dur, args.correlation, external_id))
            except msgspec.DecodeError as error:
                self._add_malformed(category, f"traceEvents[{index}].args: {error}")

    def _category_of_other(self, event: Event, index: int) -> str:
        """Return the category that a row of torch < 1.11 would have today. Count a row that is not read: "" """
        old = _OLD_CATEGORIES.get(event.cat, "")
        if isinstance(event, _OddEvent):
            if old or event.cat in _CATEGORIES:
                self._add_malformed(old or event.cat, f"traceEvents[{index}]: {event.name}")
        elif event.cat in _NOT_READ:
            self._not_read[event.cat] += 1
        elif event.cat == "python_function" and event.ph == "X" and event.name.startswith(MODULE_PREFIX):
            return event.cat
        elif old and event.ph == "X":
            return "user_annotation" if old == "cpu_op" and event.name.startswith(STEP_PREFIX) else old
        elif event.ph not in ("", "M"):
            self._foreign[event.cat] += 1
        return ""

    def _add_malformed(self, category: str, error: str) -> None:
        self._malformed[category] += 1
        self._first_malformed = self._first_malformed or error

    def trace(self, devices: tuple[dict[str, object], ...]) -> Trace:
        """Return the trace of all rows that were added."""
        if self._foreign.total() and not (
            any(self._ops.values()) or self._calls or self._records or self._not_read or self._malformed
            or self._is_of_pytorch
            or self._foreign.keys() & {"python_function", *_CATEGORIES, *_OLD_CATEGORIES}
        ):  # fmt: skip
            if "" in self._foreign:
                raise msgspec.ValidationError(
                    "rows without `cat`, as the torch.autograd.profiler before Kineto wrote them"
                )
            found = ", ".join(repr(category) for category, _ in self._foreign.most_common(3))
            raise msgspec.ValidationError(f"the trace of another program: no row of PyTorch, but of {found}")
        ops, annotations, modules = map(_by_start, self._ops.values())
        calls, records = _by_start(self._calls), _by_start(self._records)
        left_out = (self._not_read, self._malformed, self._first_malformed)
        return Trace(ops, annotations, calls, records, devices, *left_out, modules)


def _devices(raw: msgspec.Raw) -> tuple[dict[str, object], ...]:
    try:
        return tuple(_decode_devices(_in_utf8(bytes(raw))))
    except msgspec.DecodeError as error:
        raise msgspec.DecodeError(f"deviceProperties: {error}") from error


_PLACE = ("device", "stream", "grid", "block", "bytes")
_place_of = attrgetter(*_PLACE)


def _record(event: Event, name: str, args: Args, external_id: int | None) -> DeviceRecord:
    place = _place_of(args)
    if str in map(type, place):
        place = tuple(map(_number, _PLACE, place))
    device, stream, *sizes = place
    when = (event.ts, event.dur, device or 0, stream or 0, args.correlation)
    return DeviceRecord(event.cat, name, *when, external_id, *sizes)


def _number(field: str, value: Any) -> Any:
    """Return the number that a text says; what is no text stays."""
    if not isinstance(value, str):
        return value
    if not value.isdecimal() or len(value) > _MOST_DIGITS or field in ("grid", "block"):
        raise msgspec.ValidationError(f"{field} of a device record: got `str`")
    return int(value)


def _decode_shapes(raw: bytes) -> Iterator[object]:
    return map(_frozen, _decode_any(raw))


def _frozen(value: object, depth: int = 1) -> object:
    """Return lists as tuples: what is shown and compared later is hashable, small and not deep."""
    if depth > _DEEPEST_SHAPE:
        raise msgspec.ValidationError("nested too deeply")
    if isinstance(value, list):
        return tuple(_frozen(item, depth + 1) for item in value)
    if isinstance(value, dict) or (isinstance(value, int) and abs(value) > _MOST_ELEMENTS):
        raise msgspec.ValidationError(f"Expected lists of sizes, got {type(value).__name__}")
    return value


def _by_start(rows: list[_Timed]) -> tuple[_Timed, ...]:
    """Sort by start, the longest first at equal starts, so that a parent precedes its child."""
    rows.sort(key=_START)
    starts = list(map(_START, rows))
    end = 0
    for place in compress(count(1), map(eq, starts, islice(starts, 1, None))):  # each that starts with the one before
        if place > end:
            end = bisect_right(starts, starts[place])
            rows[place - 1 : end] = sorted(rows[place - 1 : end], key=lambda row: -row.duration_us)
    return tuple(rows)
