"""The CSV of Nsight Systems -> `Trace`: ``nsys stats --report cuda_gpu_trace --format csv``.

It has what a GPU ran, and no calls of the host. Sizes of memory are rounded there, and left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ..errors import TraceError
from .model import DeviceRecord, Trace

# Lines of `nsys stats` itself may stand before it.
HEADER = re.compile(rb"^Start \(\w+\),Duration \(\w+\),", re.MULTILINE)
_TRANSFER = re.compile(r"\[CUDA (memcpy|memset)\b")
_DEVICE = re.compile(r"(.*) \((\d+)\)")
_Row: TypeAlias = Mapping[str, str]


def parse_csv(blocks: Iterable[bytes], where: str) -> Trace:
    """Parse a file. Raises `TraceError` if it is cut off, or a row lacks a time or a stream."""
    content = b"".join(blocks)
    found = HEADER.search(content)
    text = content[found.start() if found else 0 :].decode(errors="replace")
    try:
        if not text.endswith("\n"):
            raise ValueError("the last row has no end")
        rows = list(csv.DictReader(text.splitlines(), restval="", strict=True))
        records = sorted(map(_record, rows), key=lambda each: (each.start_us, -each.duration_us))
    except (KeyError, ValueError, csv.Error) as error:
        raise TraceError(
            "not a trace of Nsight Systems that kernelgauge can read",
            where=where,
            got=f"{type(error).__name__}: {error}",
            expected="the columns Start (ns), Duration (ns), Device, Strm and Name",
            next_command="nsys stats --report cuda_gpu_trace --format csv REPORT",
        ) from error
    names = dict.fromkeys(_DEVICE.sub(r"\1", row["Device"]) for row in rows)
    devices = tuple(dict[str, object](name=name) for name in names)
    return Trace((), (), (), tuple(records), devices, has_calls=False)


def _record(row: _Row) -> DeviceRecord:
    transfer, device = _TRANSFER.match(row["Name"]), _DEVICE.fullmatch(row["Device"])
    return DeviceRecord(
        row["Name"],
        int(row["Start (ns)"]) / 1e3,
        int(row["Duration (ns)"]) / 1e3,
        f"gpu_{transfer[1]}" if transfer else "kernel",
        int(device[2]) if device else 0,
        int(row["Strm"]),
        _number(row, "CorrId"),
        grid=_sizes(row, "Grd"),
        block=_sizes(row, "Blk"),
        registers=_number(row, "Reg/Trd"),
    )


def _number(row: _Row, column: str) -> int | None:
    return int(row[column]) if row.get(column) else None


def _sizes(row: _Row, of: str) -> tuple[int, int, int] | None:
    x, y, z = (_number(row, f"{of}{axis}") for axis in "XYZ")
    return None if x is None or y is None or z is None else (x, y, z)
