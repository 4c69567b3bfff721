"""A trace file -> `Trace`: the Chrome trace of torch.profiler (`.json`, `.json.gz`), read piece by piece.

A trace of any size is never in memory as a whole. Decoding in one go would be simpler, at five times the memory
(docs/design/trace-reader.md).

A piece ends behind an event. Where that is is guessed from the right, and a guess is proved: "[" + piece + "]" is JSON
only where an event ends, because a JSON parser that has come that far is in one state. Inside a string or an event the
parser refuses it. Where the first guesses are wrong, as in an event with many objects inside, the brackets are counted.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain, islice
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec

from ..errors import TraceError
from .model import DEVICE_CATEGORIES, MODULE_PREFIX, STEP_PREFIX, ApiCall, DeviceRecord, Op, Trace

__all__ = ["BLOCK_BYTES", "FILE_BLOCK_BYTES", "LONGEST_BYTES", "parse", "parse_blocks"]

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
    return _read((content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)), where)


def parse_blocks(blocks: Iterator[bytes], *, where: str) -> Trace:
    """Parse the blocks of a file, gzip or JSON, at most `FILE_BLOCK_BYTES` each. Raises `TraceError` as `parse`."""
    start = next(blocks, b"")
    content = chain([start], blocks)
    return _read(_inflate(content, where) if start.startswith(_GZIP) else content, where)


def _read(blocks: Iterable[bytes], where: str) -> Trace:
    document, rows = _Document(), _Rows()
    try:
        for first, events in document.pieces(_joined(blocks)):
            rows.add(first, events)
        return rows.trace(_devices(document.rest.get("deviceProperties", msgspec.Raw(b"[]"))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            "not a torch.profiler trace",
            where=where,
            got=str(error),
            expected="a JSON object with a list `traceEvents`, as export_chrome_trace writes it",
            next_command="torch.profiler.profile(...).export_chrome_trace(PATH)   (in the program to explain)",
        ) from error


# --- from a file to blocks of JSON -----------------------------------------------------------------------------------

# Bytes of a file that are read at once. Few, because zlib copies what stands behind a member, and a file may have a
# member in every 20 bytes.
FILE_BLOCK_BYTES = 1 << 14
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP_WINDOW = 31  # zlib: the largest window, and gzip's own header
# The profiler's JSON shrinks 10 to 40 times (the recorded ones: 14 to 27); deflate can reach 1030. What claims more
# than this is no trace, and is refused before it fills the memory.
_MOST_RATIO = 200
_RATIO_FROM = 64 << 20


def _inflate(blocks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Yield the content of a gzip file in blocks of at most `BLOCK_BYTES`.

    A file is one gzip member after another; zeros between and behind them are padding. Raises `TraceError` if a member
    is damaged or incomplete, or holds far more than a trace would.
    """
    engine = zlib.decompressobj(_GZIP_WINDOW)
    read = made = 0
    for block in blocks:
        read += len(block)
        left = block
        while True:
            if engine.eof:
                left = left.lstrip(b"\0")
                if not left:
                    break
                engine = zlib.decompressobj(_GZIP_WINDOW)
            try:
                piece = engine.decompress(left, BLOCK_BYTES)
            except zlib.error as error:
                raise _refusal(where, f"damaged gzip: {error}", "a whole gzip file") from error
            made += len(piece)
            if made > max(_RATIO_FROM, _MOST_RATIO * read):
                most = f"at most {_MOST_RATIO} times as many: this is no trace"
                raise _refusal(where, f"{made} bytes out of {read} compressed ones", most)
            left = engine.unused_data if engine.eof else engine.unconsumed_tail
            if piece:
                yield piece
            elif not left:  # with no input left, what it still holds comes out first
                break
    if not engine.eof:
        raise _refusal(where, "the gzip stream ends in the middle", "a whole gzip file")


def _refusal(where: str, got: str, expected: str) -> TraceError:
    return TraceError("cannot read the trace", where=where, got=got, expected=expected)


def _joined(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of `BLOCK_BYTES` or more, without a byte order mark: a gzip member may hold a byte."""
    blocks = iter(blocks)
    head = b""
    while len(head) < len(_BYTE_ORDER_MARK) and (block := next(blocks, b"")):
        head += block
    held = [head.removeprefix(_BYTE_ORDER_MARK)]
    length = len(held[0])
    for block in blocks:
        if length >= BLOCK_BYTES:
            yield b"".join(held)
            held, length = [], 0
        held.append(block)
        length += len(block)
    yield b"".join(held)


# --- from blocks to events -------------------------------------------------------------------------------------------

_MOST_GUESSES = 4
_MOST_OTHER_LISTS = 100  # with the name of the events, in something else that stands before them
_SPACE = b" \t\r\n"  # JSON's white space: `\s` has two characters more
_KEY = b'"traceEvents"'
_EVENTS = re.compile(_KEY + rb"[ \t\r\n]*:[ \t\r\n]*\[")
_END = re.compile(rb"\}[ \t\r\n]*,")
_TOKEN = re.compile(rb'"[^"]*"?|[{\[]+|[}\]]+')  # of text without escapes: a string, or brackets in a row
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
_decode_event = msgspec.json.Decoder(Event).decode
_decode_loose = msgspec.json.Decoder(_Loose).decode
_decode_rest = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _NotTheEndError(Exception):
    """The bytes are no sequence of whole JSON values."""


class _Document:
    """Take a trace apart while it is read.

    After `pieces` is exhausted, `rest` holds what stands beside the events, undecoded, by key. Raises
    `msgspec.DecodeError`: not JSON, no events in it, or a field of another type.
    """

    def __init__(self) -> None:
        self.rest: dict[str, msgspec.Raw] = {}
        self._is_list = False  # Chrome's other form: the events alone
        self._first = 0  # index of the next event
        self._offset = 0  # where it begins in the file

    def pieces(self, blocks: Iterator[bytes]) -> Iterator[tuple[int, list[Event]]]:
        """Yield events that follow one another, with the index of the first."""
        buffer, any_phase, wanted = self._head(blocks), False, 0
        for block in chain(blocks, [None]):
            buffer += block or b""
            if block is not None and len(buffer) < wanted:
                continue
            found = self._last(buffer) if block is None else self._before_last(buffer)
            if found is None:
                # To look at each byte a few times, however long an event is.
                wanted = min(4 * len(buffer), LONGEST_BYTES + 1)
                continue
            events, end = found
            any_phase = any_phase or any(event.ph for event in events)
            yield self._first, events
            self._first += len(events)
            self._offset += end
            buffer, wanted = buffer[end:], 0
        if self._is_list and not any_phase:
            raise msgspec.ValidationError("a list without an event")

    def _head(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the bracket that opens the events, and return what follows it."""
        buffer, seen, others = b"", 0, 0
        for block in blocks:
            space = 0 if buffer else len(block) - len(block.lstrip(_SPACE))
            self._offset += space
            buffer += block[space:]
            self._is_list = buffer[:1] == b"["
            if self._is_list:
                self._offset += 1
                return buffer[1:]
            for match in _EVENTS.finditer(buffer, seen):
                seen = match.end()
                if self._takes_rest(
                    buffer[:seen] + b"]}", mend=others < _MOST_GUESSES
                ):  # else it is a part of something else
                    del self.rest["traceEvents"]
                    self._offset += seen
                    return buffer[seen:]
                others += 1
            begun = buffer.rfind(_KEY, seen)
            seen = begun if begun >= 0 else max(seen, len(buffer) - len(_KEY))
            if len(buffer) > LONGEST_BYTES or others > _MOST_OTHER_LISTS:
                raise msgspec.DecodeError(f"no list `traceEvents` in the first {LONGEST_BYTES} bytes")
            if buffer and buffer[:1] != b"{":
                break
        rest = _decode_rest(_in_utf8(buffer))  # says what is wrong with the JSON, if anything is
        if "traceEvents" in rest:
            raise msgspec.ValidationError("Expected `array` - at `$.traceEvents`")
        raise msgspec.ValidationError("Object missing required field `traceEvents`")

    def _takes_rest(self, text: bytes, *, mend: bool = True) -> bool:
        try:
            rest = _decode_rest(_in_utf8(text))
        except msgspec.DecodeError:
            return mend and self._takes_rest(_mended(text), mend=False)
        self.rest |= {key: msgspec.Raw(bytes(value)) for key, value in rest.items()}
        return True

    def _before_last(self, buffer: bytes) -> tuple[list[Event], int] | None:
        """Return the events before the last one, and where that begins. None if it is the first, or the list ends."""
        for end, next_one in islice(_ends_of_events(buffer), _MOST_GUESSES):
            try:
                if events := self._events(buffer[:end]):
                    return events, next_one
            except _NotTheEndError:
                continue
            break
        begin, closed = _count(buffer)
        before = buffer[:begin].rstrip(_SPACE)
        if not before or closed is not None:
            if len(buffer) > LONGEST_BYTES:
                what = "an event that does not end" if closed is None else "text behind the list of events"
                raise msgspec.DecodeError(self._place(f"{what} in {LONGEST_BYTES} bytes"))
            return None
        events = self._proved(before[:-1]) if before.endswith(b",") else []
        if not events:
            raise msgspec.DecodeError(self._place("events are not parted by commas"))
        return events, begin

    def _last(self, buffer: bytes) -> tuple[list[Event], int]:
        """Return the events before the bracket that closes their list, and where that ends."""
        _, closed = _count(buffer)
        if closed is None or buffer[closed : closed + 1] != b"]":
            self._proved(buffer)  # says what is wrong, if it is more than this
            raise msgspec.DecodeError(self._place("the file ends within the list of events"))
        events, end = self._proved(buffer[:closed]), closed + 1
        if self._first and not events:
            raise msgspec.DecodeError(self._place("a comma behind the last event"))
        if self._is_list and buffer[end:].strip(_SPACE):
            raise msgspec.DecodeError("text behind the list of events")
        tail = b'{"":0' + buffer[end:]
        if not self._is_list and not self._takes_rest(tail):
            _decode_rest(_in_utf8(tail))  # says what is wrong
        if "traceEvents" in self.rest:
            raise msgspec.ValidationError("a second list `traceEvents`")
        return events, end

    def _place(self, what: str) -> str:
        return f"traceEvents[{self._first}] or later, from byte {self._offset} of the JSON: {what}"

    def _proved(self, text: bytes) -> list[Event]:
        try:
            return self._events(text)
        except _NotTheEndError as error:
            try:
                return self._events(_mended(text))
            except _NotTheEndError:
                raise msgspec.DecodeError(self._place(str(error))) from error

    def _events(self, text: bytes) -> list[Event]:
        """Decode events. Raises `_NotTheEndError` where `text` is no sequence of JSON values."""
        content = b"[" + text + b"]"
        try:
            return _decode_piece(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # one by one, to name the event that is wrong, and to pass over those that nobody reads
        try:
            rows = _decode_rows(content)
        except msgspec.DecodeError as error:
            raise _NotTheEndError(str(error)) from error
        except RecursionError as error:
            raise msgspec.DecodeError(self._place("JSON nested too deeply")) from error
        return [self._event(self._first + index, _in_utf8(bytes(row))) for index, row in enumerate(rows)]

    def _event(self, index: int, row: bytes) -> Event:
        try:
            return _decode_event(row)
        except msgspec.DecodeError as error:
            try:
                kind = _decode_loose(row)
            except msgspec.DecodeError:
                raise msgspec.ValidationError(f"traceEvents[{index}]: {error}") from error
            category = kind.cat if kind.ph == "X" and isinstance(kind.cat, str) else ""
            return _OddEvent("?", category, f"traceEvents[{index}]: {error}")


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


def _ends_of_events(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield where an event may end, from the right, and where the next begins."""
    at = len(text)
    while (at := text.rfind(b"}", 0, at)) >= 0:
        if end := _END.match(text, at):
            yield at + 1, end.end()


def _count(text: bytes) -> tuple[int, int | None]:
    """Count brackets: return where the last event begins, and where the list of events is closed (None: nowhere).

    It is slower than a guess, but finds every end. Of what is no JSON it may say anything: the decoder refuses that.
    """
    text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        at, end = token.span()
        if text[at] in b"{[":
            begin = at if depth == 0 else begin
            depth += end - at
        elif text[at] in b"}]":
            depth -= end - at
            if depth < 0:
                return begin, end + depth
    return begin, None


# --- from events to rows ---------------------------------------------------------------------------------------------

_NO_ARGS = Args()
# Steps follow one another. Each holds what happened in it: if all were open at once, the square of the trace.
_MOST_STEPS_AT_ONCE = 64
# A list of tensors is a list of lists in the list of the arguments; what is deeper by far is no shape.
_DEEPEST_SHAPE = 16
_MOST_ELEMENTS = 2**63 - 1  # torch counts in int64
_START = attrgetter("start_us")
_Timed = TypeVar("_Timed", Op, ApiCall, DeviceRecord)
_decode_any = msgspec.json.Decoder(list[Any]).decode
_decode_types = msgspec.json.Decoder(list[str]).decode
_decode_devices = msgspec.json.Decoder(list[dict[str, Any]]).decode


class _Rows:
    """Collect the rows of a trace. Names, threads, shapes and types are kept once: there are few of them."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._annotations: list[Op] = []
        self._modules: list[Op] = []
        self._calls: list[ApiCall] = []
        self._records: list[DeviceRecord] = []
        self._not_read: Counter[str] = Counter()
        self._malformed: Counter[str] = Counter()
        self._first_malformed = ""
        self._is_of_pytorch = False
        self._foreign: Counter[str] = Counter()  # rows that are not needed, by category
        self._names: dict[str, str] = {}
        self._threads: dict[int | str, int | str] = {}
        self._shapes: dict[bytes, tuple[Any, ...]] = {b"": (), b"null": ()}
        self._types: dict[bytes, tuple[Any, ...]] = {b"": (), b"null": ()}

    def add(self, first: int, events: list[Event]) -> None:
        """Add events; `first` is the index of the first one in the file."""
        ops, names = self._ops, self._names
        for index, event in enumerate(events, start=first):
            category = event.cat
            if category not in _CATEGORIES or event.ph != "X":
                if category in _OF_PYTORCH:
                    self._is_of_pytorch = True
                    continue
                event.cat = category = self._category_of_other(event)
                if not category:
                    continue
            name = names.setdefault(event.name, event.name)
            args = event.args or _NO_ARGS
            external_id = args.older_id if args.external_id is None else args.external_id
            if category in _API_CATEGORIES:
                self._calls.append(ApiCall(name, event.ts, event.dur, args.correlation, external_id))
                continue
            try:
                if category in DEVICE_CATEGORIES:
                    self._records.append(_record(event, name, args, external_id))
                else:
                    lane = {"cpu_op": ops, "python_function": self._modules}.get(category, self._annotations)
                    lane.append(self._op(event, name, args, external_id))
            except msgspec.DecodeError as error:
                self._add_malformed(category, f"traceEvents[{index}].args: {error}")

    def _category_of_other(self, event: Event) -> str:
        """Return the category that a row of torch < 1.11 would have today. Count a row that is not read: "" """
        old = _OLD_CATEGORIES.get(event.cat, "")
        if isinstance(event, _OddEvent):
            if old or event.cat in _CATEGORIES:
                self._add_malformed(old or event.cat, event.name)
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
            self._ops or self._annotations or self._modules or self._calls or self._records or self._not_read
            or self._malformed or self._is_of_pytorch
            or self._foreign.keys() & {"python_function", *_CATEGORIES, *_OLD_CATEGORIES}
        ):  # fmt: skip
            if "" in self._foreign:
                raise msgspec.ValidationError(
                    "rows without `cat`, as the torch.autograd.profiler before Kineto wrote them"
                )
            found = ", ".join(repr(category) for category, _ in self._foreign.most_common(3))
            raise msgspec.ValidationError(f"the trace of another program: no row of PyTorch, but of {found}")
        annotations = _by_start(self._annotations)
        _refuse_crowded_steps(annotations)
        lanes = (_by_start(self._ops), annotations, _by_start(self._calls), _by_start(self._records))
        modules = _by_start(self._modules)
        return Trace(*lanes, devices, self._not_read, self._malformed, self._first_malformed, modules)

    def _op(self, event: Event, name: str, args: Args, external_id: int | None) -> Op:
        return Op(
            name,
            event.ts,
            event.dur,
            self._threads.setdefault(event.tid, event.tid),
            external_id,
            _listed(self._shapes, bytes(args.input_dims), "Input Dims", _decode_shapes),
            _listed(self._types, bytes(args.input_types), "Input type", _decode_types),
            args.kernel_kwargs,
            args.num_warps,
            args.num_stages,
            args.kernel_hash,
        )


def _devices(raw: msgspec.Raw) -> tuple[dict[str, object], ...]:
    try:
        return tuple(_decode_devices(_in_utf8(bytes(raw))))
    except msgspec.DecodeError as error:
        raise msgspec.DecodeError(f"deviceProperties: {error}") from error


def _record(event: Event, name: str, args: Args, external_id: int | None) -> DeviceRecord:
    place: tuple[Any, ...] = (args.device, args.stream, args.grid, args.block, args.bytes)
    if str in map(type, place):
        wrong = ("device", "stream", "grid", "block", "bytes")[list(map(type, place)).index(str)]
        raise msgspec.ValidationError(f"{wrong} of a device record: got `str`")
    device, stream, *sizes = place
    when = (event.ts, event.dur, device or 0, stream or 0, args.correlation)
    return DeviceRecord(event.cat, name, *when, external_id, *sizes)


def _listed(
    known: dict[bytes, tuple[Any, ...]], raw: bytes, field: str, decode: Callable[[bytes], Iterable[Any]]
) -> tuple[Any, ...]:
    found = known.get(raw)
    if found is None:
        try:
            found = known[raw] = tuple(decode(_in_utf8(raw)))
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(f"{field}: {error}") from error
    return found


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
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].start_us != rows[start].start_us:
            if end - start > 1:
                rows[start:end] = sorted(rows[start:end], key=lambda row: -row.duration_us)
            start = end
    return tuple(rows)


def _refuse_crowded_steps(annotations: Iterable[Op]) -> None:
    """Raise where more steps are open at once than a profiler writes. `annotations`: in order of start."""
    ends: list[float] = []  # a heap
    for mark in annotations:
        if mark.name.startswith(STEP_PREFIX):
            while ends and ends[0] <= mark.start_us:
                heappop(ends)
            heappush(ends, mark.end_us)
            if len(ends) > _MOST_STEPS_AT_ONCE:
                raise msgspec.ValidationError(f"more than {_MOST_STEPS_AT_ONCE} steps at once, at {mark.start_us} us")
