"""A history of results that is nothing but files: one for each run of pytest and GPU, written once, never changed.

Histories of several machines are merged by copying them into one folder or bucket: names do not collide. What cannot be
trusted is set aside, with the reason, and nothing is guessed from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..printable import printable
from ..results import Results
from .file import FileName, Stored, decode_entry, encode_entry, file_name, parse_name
from .places import Place, place
from .rows import READ_VERSIONS, SCHEMA_VERSION, entries

__all__ = ["Added", "SetAside", "add_to_history", "whole_entries"]

_CLOCKS_DIFFER = timedelta(minutes=10)  # between two machines; more is a clock that is wrong


@dataclass(frozen=True)
class Added:
    """Files below the history. `there`: those that it had already, with the same content."""

    written: tuple[str, ...]
    there: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """For the terminal."""
        return [
            *(f"added: {printable(key)}" for key in self.written),
            *(f"was there: {printable(key)}" for key in self.there),
        ]


@dataclass(frozen=True)
class SetAside:
    """A file that is not used."""

    key: str
    why: str

    def __str__(self) -> str:
        return printable(f"{self.key}: {self.why}")


def add_to_history(results: Results, location: str) -> Added:
    """Add results to a folder or a URL of fsspec: one file for each GPU. The same results again add nothing.

    Each file is whole at every moment, and there once this returns. Any number of processes may add at the same time.

    Raises `ResultsError` for results that have no place in a history, `StorageError` if a file cannot be written.
    """
    where = place(location)
    written: list[str] = []
    there: list[str] = []
    for entry in entries(results):
        content = encode_entry(entry)
        key = file_name(entry, content)
        (written if where.add(key, content) else there).append(key)
    return Added(tuple(written), tuple(there))


def whole_entries(
    where: Place, *, now: datetime, since: datetime | None = None, gpu: str = ""
) -> Iterator[tuple[str, Stored] | SetAside]:
    """Key and entry of every file, in order of `started_at`; in between, what is set aside.

    A file that was copied to several places is one. `gpu`: how its digest starts; "cpu" is where there was none. Raises
    `ResultsError` if there is no history there.
    """
    wanted: dict[str, FileName] = {}
    slug = re.sub(r"[^a-z0-9]", "", gpu.lower())
    for key in sorted(where.keys()):
        name = parse_name(_last(key))
        if key.endswith("/"):
            yield SetAside(key, "this folder cannot be listed")
        elif name is None or name.version not in READ_VERSIONS:
            yield SetAside(key, _not_ours(name))
        elif name.started_at > now + _CLOCKS_DIFFER:
            yield SetAside(key, "it was measured in the future: a clock was wrong, there or here")
        elif (since is None or name.started_at >= since) and name.gpu.startswith(slug):
            wanted[key] = name
    seen: set[str] = set()
    for key, content in where.read(sorted(wanted, key=lambda key: (_last(key), key))):
        if _last(key) in seen:
            continue
        found = _entry(key, content, wanted[key])
        if isinstance(found, SetAside):
            yield found
            continue
        seen.add(_last(key))
        if (found.gpu or wanted[key].gpu).lower().startswith(gpu.lower()):  # of no GPU, what its name says: "cpu"
            yield key, found


def _last(key: str) -> str:
    """The name of a file, wherever it lies."""
    return key.rpartition("/")[2]


def _not_ours(name: FileName | None) -> str:
    if name is None:
        return "no file of a history"
    age = "a newer" if name.version > SCHEMA_VERSION else "another"
    return f"written by {age} version of kernelgauge (schema {name.version}, this one reads {' and '.join(map(str, READ_VERSIONS))})"


def _entry(key: str, content: bytes | str, name: FileName) -> Stored | SetAside:
    if isinstance(content, str):
        return SetAside(key, f"it cannot be read: {content}")
    try:
        return decode_entry(content, name)
    except ValueError as error:
        return SetAside(key, str(error))
