"""A file of a history: its content, one line of JSON, and its name. Pure.

The name says when, on which GPU, what the content is (a part of its SHA-256) and which schema: the same results make the
same file, whoever adds them and however often, and a file that is not whole is known by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256

import msgspec

from ..run import Timer, is_duration
from .rows import Entry, Header

__all__ = ["FileName", "Stored", "decode_entry", "encode_entry", "file_name", "parse_name"]

_DIGEST_LENGTH = 16
_NAME = re.compile(
    r"(?P<stamp>[0-9]{8}T[0-9]{6}Z)-(?P<gpu>[a-z0-9]{1,40})-(?P<digest>[0-9a-f]{16})\.v(?P<version>[0-9]{1,9})\.json"
)


class Stored(Header, frozen=True):
    """What is read: a column is decoded when it is asked for. All of them would take a year's files a second."""

    rows: dict[str, msgspec.Raw]

    def times(self, timer: Timer) -> tuple[list[str], list[float | None], list[str | None]]:
        """Workloads, and of each the time in microseconds and its verdict. Raises `ValueError` if they are none."""
        try:
            workloads = _TEXTS.decode(self.rows["workload"])
            judged = _JUDGED.decode(self.rows[timer.value])
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            raise ValueError(f"no columns of a history: {error}") from error
        means_us = judged.mean_us
        if not len(workloads) == len(means_us) == len(judged.status):
            raise ValueError("no columns of a history: they differ in length")
        if not all(mean is None or is_duration(mean) for mean in means_us):
            raise ValueError("no columns of a history: a time is not from 0.001 to 10^12 us")
        return workloads, means_us, judged.status


class _Judged(msgspec.Struct):
    mean_us: list[float | None]
    status: list[str | None]


_STORED = msgspec.json.Decoder(Stored)
_TEXTS = msgspec.json.Decoder(list[str])
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
    """``2026/11/20261120T191012Z-0f1e2d3c-5f0c...d1.v1.json``: below the history, with slashes."""
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
