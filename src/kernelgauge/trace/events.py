"""The events of a Chrome trace out of its bytes, piece by piece: a trace of any size is never in memory as a whole.

A piece ends behind an event, where one `}` is followed by a comma. Whether a cut is such a place is not guessed:
"[" + piece + "]" is JSON only if it is, because a JSON parser that has come that far is in one state. A cut inside a
string or inside an event leaves it open, the parser refuses it, and the next place to the left is tried.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from .blocks import BLOCK_BYTES

__all__ = ["Args", "Event", "Piece", "TraceParser"]

_MOST_CUTS = 16  # tried before more is read
_MOST_ENDS = 4  # tried before the end is looked for from the start
# One event is at most this long: what has none in so many bytes is not read to its end to find out.
_LONGEST_EVENT = 64 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,")
_SPACE = b" \t\r\n"


class Args(msgspec.Struct, gc=False, rename={"external_id": "External id", "older_id": "external id",
           "input_dims": "Input Dims", "input_types": "Input type"}):  # fmt: skip
    """Of an event: those that a trace is read for."""

    external_id: int | None = None
    older_id: int | None = None  # before torch 2.0
    input_dims: msgspec.Raw = msgspec.Raw()
    input_types: msgspec.Raw = msgspec.Raw()
    correlation: int | None = None
    device: int | None = None
    stream: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    bytes: int | None = None
    kernel_kwargs: str | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    kernel_hash: str | None = None


class Event(msgspec.Struct, gc=False):
    """A row of a trace. Times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
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
        source = iter(blocks)
        buffer, bare = self._head(source)
        wanted = BLOCK_BYTES
        for block in source:
            buffer += block
            if len(buffer) < wanted:
                continue
            found = self._cut(buffer)
            if isinstance(found, str):
                if len(buffer) > _LONGEST_EVENT:
                    raise msgspec.DecodeError(self._place(found))
                wanted = 2 * len(buffer)  # not more often than it doubles: what cannot be cut is tried in vain
                continue
            events, end = found
            yield self._piece(events, end)
            buffer, wanted = buffer[end:], BLOCK_BYTES
        last = self._last(buffer, bare)
        if bare and self._first == len(last.events) and not any(event.ph for event in last.events):
            raise msgspec.ValidationError("a list without an event")
        yield last

    def _head(self, source: Iterator[bytes]) -> tuple[bytes, bool]:
        """(what follows the bracket that opens the events, whether nothing but the events is there)."""
        buffer = b""
        for block in source:
            buffer += block
            if buffer.lstrip(_SPACE)[:1] == b"[":  # Chrome's other form: the events alone
                self._offset = buffer.index(b"[") + 1
                return buffer[self._offset :], True
            for match in _EVENTS.finditer(buffer):
                try:
                    self._take_rest(buffer[: match.end()] + b"]}")
                except msgspec.DecodeError:
                    continue  # the word in a string, or not at the top
                self._offset = match.end()
                return buffer[self._offset :], False
            if len(buffer) > _LONGEST_EVENT:
                break
        rest = _decode_rest(buffer)  # says what is wrong with the JSON, if anything is
        if "traceEvents" in rest:
            raise msgspec.ValidationError("Expected `array` - at `$.traceEvents`")
        raise msgspec.ValidationError("Object missing required field `traceEvents`")

    def _take_rest(self, text: bytes) -> None:
        self.rest |= {key: msgspec.Raw(bytes(value)) for key, value in _decode_rest(text).items()}
        self.rest.pop("traceEvents", None)

    def _cut(self, buffer: bytes) -> tuple[list[Event], int] | str:
        """The events up to the last place where one ends, and where the next begins; or why there is no such place."""
        at, why = len(buffer), ""
        for _ in range(_MOST_CUTS):
            at = buffer.rfind(b"}", 0, at)
            if at < 0:
                break
            comma = _CUT.match(buffer, at)
            if comma is None:
                continue
            try:
                return self._events(buffer[: at + 1]), comma.end()
            except _NotCutHereError as error:
                why = why or str(error)
        return why or "no end of an event"

    def _last(self, buffer: bytes, bare: bool) -> Piece:
        """The events before the bracket that closes their list. Little stands behind it: it is one of the last."""
        for at in (*_last_places(buffer), None):
            end = self._end_of_list(buffer) if at is None else at
            try:
                if bare and buffer[end + 1 :].strip(_SPACE):
                    raise msgspec.DecodeError("text behind the list of events")
                events = self._events(buffer[:end])
                if not bare:
                    self._take_rest(b'{"traceEvents":[]' + buffer[end + 1 :])
            except _NotCutHereError as error:
                if at is None:
                    raise msgspec.DecodeError(self._place(str(error))) from error
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                if at is None:
                    raise
            else:
                return self._piece(events, end)
        raise AssertionError("the loop returns or raises at its last turn")

    def _end_of_list(self, buffer: bytes) -> int:
        """Where the list of events is closed, found from its start."""
        try:
            # One character for each byte, so that places are those of the bytes.
            _, end = json.JSONDecoder().raw_decode("[" + buffer.decode("latin-1"))
        except ValueError as error:
            raise msgspec.DecodeError(self._place(f"the file ends within the list of events ({error})")) from error
        return int(end) - 2

    def _place(self, what: str) -> str:
        return f"traceEvents[{self._first}] or later, from byte {self._offset} of the JSON: {what}"

    def _piece(self, events: list[Event], length: int) -> Piece:
        piece = Piece(self._first, events)
        self._first += len(events)
        self._offset += length
        return piece

    def _events(self, text: bytes) -> list[Event]:
        """Raises `_NotCutHereError` where `text` is no sequence of JSON values."""
        content = b"[" + text + b"]"
        try:
            return _decode_piece(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._events_one_by_one(content)

    def _events_one_by_one(self, content: bytes) -> list[Event]:
        """The same, slower: names the event that is wrong, and minds none that is not looked into."""
        try:
            rows = _decode_rows(content)
        except UnicodeDecodeError:
            # A name that is not UTF-8: shown as such, and no reason to refuse the rest.
            content = content.decode(errors="replace").encode()
            rows = self._rows(content)
        except msgspec.DecodeError as error:
            raise _NotCutHereError(str(error)) from error
        return [self._event(self._first + index, row) for index, row in enumerate(rows)]

    def _rows(self, content: bytes) -> list[msgspec.Raw]:
        try:
            return _decode_rows(content)
        except msgspec.DecodeError as error:
            raise _NotCutHereError(str(error)) from error

    def _event(self, index: int, row: msgspec.Raw) -> Event:
        try:
            return _decode_event(row)
        except msgspec.DecodeError as error:
            try:
                kind = _decode_loose(row)
            except msgspec.DecodeError:  # no object
                kind = None
            if kind is None or self._looked_into(kind.ph, kind.cat):
                raise msgspec.ValidationError(f"traceEvents[{index}]: {error}") from error
            return Event(ph="?")  # of a kind that nobody reads


def _last_places(buffer: bytes) -> list[int]:
    places: list[int] = []
    at = len(buffer)
    while len(places) < _MOST_ENDS and (at := buffer.rfind(b"]", 0, at)) >= 0:
        places.append(at)
    return places


class _NotCutHereError(Exception):
    """The bytes are no sequence of whole JSON values."""
