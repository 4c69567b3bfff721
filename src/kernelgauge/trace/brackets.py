"""Where values of JSON end, found by counting brackets."""

from __future__ import annotations

import re

__all__ = ["Brackets"]

# Of text without escapes: a string, or what there is of it; brackets in a row.
_QUOTE, _OPENING = ord('"'), b"{["
_TOKEN = re.compile(rb'"[^"]*"?|[{\[]+|[}\]]+')


class Brackets:
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
