"""A file of a history: its content, one line of JSON, and its name. Pure.

The name says when, on which GPU, what the content is (a part of its SHA-256) and which schema: the same results make the
same file, whoever adds them and however often, and a file that is not whole is known by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

import msgspec

from ..run import Timer, is_duration
from .rows import Entry, Header

__all__ = [
    "CONTEXT_NAMES",
    "FileName",
    "Measurements",
    "Stored",
    "decode_entry",
    "encode_entry",
    "file_name",
    "parse_name",
]

_DIGEST_LENGTH = 16
_NAME = re.compile(
    r"(?P<stamp>[0-9]{8}T[0-9]{6}Z)-(?P<gpu>[a-z0-9]{1,40})-(?P<digest>[0-9a-f]{16})\.v(?P<version>[0-9]{1,9})\.json"
)


@dataclass(frozen=True)
class Measurements:
    """A value for each workload. `context`: columns by name that change points are corrected with. None: unknown."""

    workload: list[str]
    mean_us: list[float | None]
    status: list[str | None]
    context: dict[str, list[Any]]


class Stored(Header, frozen=True):
    """What is read: a column is decoded when it is asked for. All of them would take a year's files a second."""

    rows: dict[str, msgspec.Raw]

    def columns(self, timer: Timer) -> Measurements:
        """Decode the columns of one timer. Raises `ValueError` if they are none."""
        try:
            workload = _TEXTS.decode(self.rows["workload"])
            own, device = (_JUDGED.decode(self.rows[each.value]) for each in (timer, Timer.DEVICE))
            numbers = {name: _NUMBERS.decode(self.rows.get(name, _NONE)) for name in ("gemm_us", "copy_us")}
            names = {name: _NAMES.decode(self.rows.get(name, _NONE)) for name in CONTEXT_NAMES}
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            raise ValueError(f"no columns of a history: {error}") from error
        numbers |= {"mean_us": own.mean_us, "device_us": device.mean_us, "host_us": own.host_us}
        unknown: list[Any] = [None] * len(workload)  # schema 1
        filled = {name: unknown if column is None else column for name, column in (numbers | names).items()}
        if not all(len(column) == len(workload) for column in (own.status, *filled.values())):
            raise ValueError("no columns of a history: they differ in length")
        known = [us for name in numbers for us in filled[name] if us is not None]
        if known and not (is_duration(min(known)) and is_duration(max(known))):
            raise ValueError("no columns of a history: a time is not from 0.001 to 10^12 us")
        return Measurements(workload, filled.pop("mean_us"), own.status, filled)


class _Judged(msgspec.Struct):
    mean_us: list[float | None]
    status: list[str | None]
    host_us: list[float | None] | None = None


CONTEXT_NAMES = ("gemm_kernel", "copy_kernel", "kernels", "configuration")

_NONE = msgspec.Raw(b"null")
_STORED = msgspec.json.Decoder(Stored)
_TEXTS = msgspec.json.Decoder(list[str])
_NUMBERS = msgspec.json.Decoder(list[float | None] | None)
_NAMES = msgspec.json.Decoder(list[str | None] | None)
_JUDGED = msgspec.json.Decoder(_Judged)


@dataclass(frozen=True)
class FileName:
    """What the name of a file says."""

    started_at: datetime  # in whole seconds
    gpu: str
    digest: str
    version: int


def encode_entry(entry: Entry) -> bytes:
    """The content of a file: the same bytes for equal entries."""
    return msgspec.json.encode(entry) + b"\n"


def decode_entry(content: bytes, name: FileName) -> Stored:
    """Raises `ValueError`, with the reason, for a content that is not what the name says."""
    if not sha256(content).hexdigest().startswith(name.digest):
        raise ValueError("its content is not what was written: its digest differs from the one in its name")
    try:
        entry = _STORED.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no entry of a history: {error}") from error
    if entry.schema_version != name.version or _stamp(entry) != name.started_at:
        raise ValueError("its name and its content disagree")
    return entry


def file_name(entry: Entry, content: bytes) -> str:
    """``2026/11/20261120T191012Z-0f1e2d3c-5f0c...d1.v2.json``: below the history, with slashes."""
    when = entry.started_at
    gpu = re.sub(r"[^a-z0-9]", "", (entry.gpu or "").lower())[:40]
    if not gpu:
        gpu = "cpu" if entry.fingerprint is not None and entry.fingerprint.arch == "cpu" else "unknown"
    stamp = f"{when.year:04}{when.month:02}{when.day:02}T{when.hour:02}{when.minute:02}{when.second:02}Z"
    digest = sha256(content).hexdigest()[:_DIGEST_LENGTH]
    return f"{when.year:04}/{when.month:02}/{stamp}-{gpu}-{digest}.v{entry.schema_version}.json"


def parse_name(name: str) -> FileName | None:
    """Of the last part of a path; None for a file that is none of a history's."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        return None
    try:
        started_at = datetime.strptime(parts["stamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:  # month 13
        return None
    return FileName(started_at, parts["gpu"], parts["digest"], int(parts["version"]))


def _stamp(entry: Stored) -> datetime | None:
    """None for a time of no zone, and for one that UTC has not: it is in the year 0, or 10000."""
    if entry.started_at.tzinfo is None:
        return None
    try:
        return entry.started_at.astimezone(timezone.utc).replace(microsecond=0)
    except OverflowError:
        return None
