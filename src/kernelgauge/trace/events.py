"""The events of a Chrome trace out of its bytes, piece by piece: a trace of any size is never in memory as a whole.

Decoding in one go would be simpler, at five times the memory (docs/design/trace-reader.md).

A piece ends behind an event. Where that is is guessed from the right, and a guess is proved: "[" + piece + "]" is JSON
only where an event ends, because a JSON parser that has come that far is in one state. Inside a string or an event the
parser refuses it. Where the first guesses are wrong, as in an event with many objects inside, the brackets are counted.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any

import msgspec

from ..errors import TraceError

__all__ = ["GZIP_BYTES", "Args", "Event", "Piece", "TraceParser", "in_utf8", "inflate"]

# Large enough that what is done once for each block costs nothing, small enough not to show in the memory used.
BLOCK_BYTES = 1 << 18
# Compressed bytes read at once. Small, because zlib copies what stands behind a member, and a file may have a member in
# every 20 bytes.
GZIP_BYTES = 1 << 14
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib: the largest window, and gzip's own header
# The profiler's JSON shrinks 10 to 40 times (the recorded ones: 14 to 27); deflate can reach 1030. What claims more
# than this is no trace, and is refused before it fills the memory.
_MOST_RATIO = 200
_RATIO_FROM = 64 << 20

_MOST_GUESSES = 4
# One event is at most this long, and so is what stands before the events and behind them: what has no end in so many
# bytes is not read on to find out.
LONGEST_BYTES = 16 << 20
# JSON's white space: `\s` has two characters more.
_SPACE = b" \t\r\n"
_KEY = b'"traceEvents"'
_EVENTS = re.compile(_KEY + rb"[ \t\r\n]*:[ \t\r\n]*\[")
_END = re.compile(rb"\}[ \t\r\n]*,")
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
    # On rows of the host texts: ROCm writes the stream as an address, torch 2.6 the grid as Triton's source has it.
    device: _Int | str | None = None
    stream: _Int | str | None = None
    grid: tuple[_Int, _Int, _Int] | str | None = None
    block: tuple[_Int, _Int, _Int] | str | None = None
    bytes: _Int | None = None
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


class _Loose(msgspec.Struct):
    """An event of which only what says whether it is looked into has been read."""

    ph: Any = None
    cat: Any = None


@dataclass(frozen=True)
class Piece:
    """Events that follow one another in the file; `first` is the index of the first one."""

    first: int
    events: list[Event]


_decode_piece = msgspec.json.Decoder(list[Event]).decode
_decode_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_loose = msgspec.json.Decoder(_Loose).decode
_decode_rest = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def inflate(blocks: Iterator[bytes], where: str) -> Iterator[bytes]:
    """Yield the content of a file, decompressed if it is gzip, in blocks of at most `BLOCK_BYTES`.

    A file is one gzip member after another; zeros between and behind them are padding. Raises `TraceError` if a member
    is damaged or incomplete, or holds far more than a trace would.
    """
    start = next(blocks, b"")
    blocks = chain([start], blocks)
    return _inflated(blocks, where) if start.startswith(_GZIP) else blocks


def _inflated(blocks: Iterable[bytes], where: str) -> Iterator[bytes]:
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
                raise _damaged(where, f"damaged gzip: {error}", "a whole gzip file") from error
            made += len(piece)
            if made > max(_RATIO_FROM, _MOST_RATIO * read):
                most = f"at most {_MOST_RATIO} times as many: this is no trace"
                raise _damaged(where, f"{made} bytes out of {read} compressed ones", most)
            left = engine.unused_data if engine.eof else engine.unconsumed_tail
            if piece:
                yield piece
            elif not left:  # with no input left, what it still holds comes out first
                break
    if not engine.eof:
        raise _damaged(where, "the gzip stream ends in the middle", "a whole gzip file")


def _damaged(where: str, got: str, expected: str) -> TraceError:
    return TraceError("cannot read the trace", where=where, got=got, expected=expected)


def _of_one_size(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in blocks of `size`, but for the last: a gzip member may hold a single byte."""
    held: list[bytes] = []
    room = size
    for block in blocks:
        start = 0
        while len(block) - start >= room:
            held.append(block[start : start + room])
            yield b"".join(held)
            start += room
            held, room = [], size
        if start < len(block):
            held.append(block[start:])
            room -= len(block) - start
    if held:
        yield b"".join(held)


class TraceParser:
    """Takes a trace apart while it is read.

    `looked_into` says of (ph, cat) whether an event's fields matter: the others may hold anything.
    After `pieces` is exhausted, `rest` holds what stands beside the events, undecoded, by key.

    Raises `msgspec.DecodeError`: not JSON, no events in it, or a field of another type.
    """

    def __init__(self, looked_into: Callable[[object, object], bool]) -> None:
        self.rest: dict[str, msgspec.Raw] = {}
        self._looked_into = looked_into
        self._first = 0  # index of the next event
        self._offset = 0  # where it begins in the file

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[Piece]:
        source = _of_one_size(blocks, BLOCK_BYTES)
        buffer, bare = self._head(source)
        brackets, any_phase = _Brackets(), False
        for block in source:
            buffer += block
            found = None if brackets.at else self._guess(buffer, _ends_of_events(buffer))
            events, end = found or self._counted(buffer, brackets)
            if not events:
                if len(buffer) > LONGEST_BYTES:
                    what = "an event that does not end" if brackets.closed is None else "text behind the list of events"
                    raise msgspec.DecodeError(self._place(f"{what} in {LONGEST_BYTES} bytes"))
                continue
            any_phase = any_phase or any(event.ph for event in events)
            yield self._piece(events, end)
            buffer, brackets = buffer[end:], _Brackets()
        last = self._last(buffer, bare, brackets)
        if bare and not any_phase and not any(event.ph for event in last.events):
            raise msgspec.ValidationError("a list without an event")
        yield last

    def _head(self, source: Iterator[bytes]) -> tuple[bytes, bool]:
        """(what follows the bracket that opens the events, whether nothing but the events is there)."""
        buffer, brackets, seen = b"", _Brackets(), 0
        for block in source:
            if not buffer:
                buffer = block.lstrip(_SPACE)
                self._offset += len(block) - len(buffer)
            else:
                buffer += block
            if buffer[:1] == b"[":  # Chrome's other form: the events alone
                self._offset += 1
                return buffer[1:], True
            for match in _EVENTS.finditer(buffer, seen):
                brackets.count(buffer, match.start())
                if brackets.depth == 1 and not brackets.quoted:  # else in something else, of which it is a part
                    self._take_rest(buffer[: match.end()] + b"]}")
                    del self.rest["traceEvents"]
                    self._offset += match.end()
                    return buffer[match.end() :], False
                seen = match.end()
            begun = buffer.rfind(_KEY, seen)
            seen = begun if begun >= 0 else max(seen, len(buffer) - len(_KEY))
            if len(buffer) > LONGEST_BYTES:
                raise msgspec.DecodeError(f"no list `traceEvents` in the first {LONGEST_BYTES} bytes")
            if buffer and buffer[:1] != b"{":
                break
        rest = _decode_rest(in_utf8(buffer))  # says what is wrong with the JSON, if anything is
        if "traceEvents" in rest:
            raise msgspec.ValidationError("Expected `array` - at `$.traceEvents`")
        raise msgspec.ValidationError("Object missing required field `traceEvents`")

    def _take_rest(self, text: bytes) -> None:
        try:
            rest = _decode_rest(text)
        except UnicodeDecodeError:
            rest = _decode_rest(in_utf8(text))
        self.rest |= {key: msgspec.Raw(bytes(value)) for key, value in rest.items()}

    def _guess(self, buffer: bytes, ends: Iterable[tuple[int, int]]) -> tuple[list[Event], int] | None:
        """`ends`: where events may end, and where it goes on."""
        for end, next_one in islice(ends, _MOST_GUESSES):
            try:
                return self._events(buffer[:end]), next_one
            except _NotTheEndError:
                continue
        return None

    def _counted(self, buffer: bytes, brackets: _Brackets) -> tuple[list[Event], int]:
        """The events before the last that begins, and where that is. None if it is the first, or the list is closed."""
        brackets.count(buffer, len(buffer))
        before = buffer[: brackets.begin].rstrip(_SPACE)
        if not before or brackets.closed is not None:
            return [], 0
        events = self._proved(before[:-1]) if before.endswith(b",") else []
        if not events:
            raise msgspec.DecodeError(self._place("events are not parted by commas"))
        return events, brackets.begin

    def _last(self, buffer: bytes, bare: bool, brackets: _Brackets) -> Piece:
        """The events before the bracket that closes their list. Little stands behind it: it is one of the last."""
        found = None if brackets.at else self._guess(buffer, _ends_of_list(buffer))
        if found is None:
            brackets.count(buffer, len(buffer))
            if brackets.closed is None or buffer[brackets.closed : brackets.closed + 1] != b"]":
                self._proved(buffer)  # says what is wrong, if it is more than this
                raise msgspec.DecodeError(self._place("the file ends within the list of events"))
            found = self._proved(buffer[: brackets.closed]), brackets.closed + 1
        events, end = found
        if self._first and not events:
            raise msgspec.DecodeError(self._place("a comma behind the last event"))
        if not bare:
            self._take_rest(b'{"":0' + buffer[end:])
            if "traceEvents" in self.rest:
                raise msgspec.ValidationError("a second list `traceEvents`")
        elif buffer[end:].strip(_SPACE):
            raise msgspec.DecodeError("text behind the list of events")
        return self._piece(events, end)

    def _place(self, what: str) -> str:
        return f"traceEvents[{self._first}] or later, from byte {self._offset} of the JSON: {what}"

    def _piece(self, events: list[Event], length: int) -> Piece:
        piece = Piece(self._first, events)
        self._first += len(events)
        self._offset += length
        return piece

    def _proved(self, text: bytes) -> list[Event]:
        try:
            return self._events(text)
        except _NotTheEndError as error:
            raise msgspec.DecodeError(self._place(str(error))) from error

    def _events(self, text: bytes) -> list[Event]:
        """Raises `_NotTheEndError` where `text` is no sequence of JSON values."""
        content = b"[" + text + b"]"
        try:
            return _decode_piece(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._events_one_by_one(content)

    def _events_one_by_one(self, content: bytes) -> list[Event]:
        """The same, slower: names the event that is wrong, and minds none that is not looked into."""
        try:
            rows = _decode_rows(content)
        except msgspec.DecodeError as error:
            raise _NotTheEndError(str(error)) from error
        except RecursionError as error:
            raise msgspec.DecodeError(self._place("JSON nested too deeply")) from error
        return [self._event(self._first + index, bytes(row)) for index, row in enumerate(rows)]

    def _event(self, index: int, row: bytes) -> Event:
        try:
            return _decode_event(row)
        except UnicodeDecodeError:
            return self._event(index, in_utf8(row))
        except msgspec.DecodeError as error:
            try:
                kind = _decode_loose(in_utf8(row))
            except msgspec.DecodeError:  # no object
                kind = None
            if kind is None or self._looked_into(kind.ph, kind.cat):
                raise msgspec.ValidationError(f"traceEvents[{index}]: {error}") from error
            return Event(ph="?")  # of a kind that nobody reads


def in_utf8(text: bytes) -> bytes:
    """A name that is not UTF-8 is shown as such, and is no reason to refuse the rest."""
    return text.decode(errors="replace").encode()


def _ends_of_events(text: bytes) -> Iterator[tuple[int, int]]:
    at = len(text)
    while (at := text.rfind(b"}", 0, at)) >= 0:
        if end := _END.match(text, at):
            yield at + 1, end.end()


def _ends_of_list(text: bytes) -> Iterator[tuple[int, int]]:
    at = len(text)
    while (at := text.rfind(b"]", 0, at)) >= 0:
        yield at, at + 1


class _NotTheEndError(Exception):
    """The bytes are no sequence of whole JSON values."""


# Of text without escapes: a string, or what there is of it; brackets in a row.
_QUOTE, _OPENING = ord('"'), b"{["
_TOKEN = re.compile(rb'"[^"]*"?|[{\[]+|[}\]]+')


class _Brackets:
    """Counts the brackets of JSON from its start: slower than a guess, but it finds every end.

    Of what is no JSON it may say anything: the decoder refuses that.
    """

    def __init__(self) -> None:
        self.at = 0  # counted up to here
        self.depth = 0
        self.quoted = False
        self.begin = 0  # of the last object or list that is in no other
        self.closed: int | None = None  # where one is closed that was opened before

    def count(self, text: bytes, end: int) -> None:
        """`text` begins as it did the last time."""
        if self.closed is not None:
            return
        new = text[self.at : end]
        if (len(new) - len(new.rstrip(b"\\"))) % 2:  # what the last one escapes is still to come
            new = new[:-1]
        begin, self.at = self.at, self.at + len(new)
        new = new.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        self._count(new, begin)

    def _count(self, new: bytes, begin: int) -> None:
        start = 0
        if self.quoted:
            start = new.find(b'"') + 1
            self.quoted = not start
            if self.quoted:
                return
        depth = self.depth
        for token in _TOKEN.finditer(new, start):
            at, end = token.span()
            if new[at] == _QUOTE:
                self.quoted = end == len(new) and (end == at + 1 or new[end - 1] != _QUOTE)
            elif new[at] in _OPENING:
                if depth == 0:
                    self.begin = begin + at
                depth += end - at
            elif end - at > depth:
                self.closed = begin + at + depth
                return
            else:
                depth -= end - at
        self.depth = depth
