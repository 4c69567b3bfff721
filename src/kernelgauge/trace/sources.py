"""The forms of a trace, by a pattern that the first block of each has."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import TypeAlias

from ..errors import TraceError
from .model import DeviceRecord, Trace
from .reader import parse_blocks

Parse: TypeAlias = Callable[[Iterable[bytes], str], Trace]  # of blocks, and where they are
_Row: TypeAlias = Mapping[str, str]
_DEVICE = re.compile(r"(.*) \((\d+)\)")


def read_blocks(blocks: Iterable[bytes], where: str) -> Trace:
    """Parse a trace of any form, in blocks, best of `BLOCK_BYTES` each. Raises `TraceError`."""
    first = next(blocks := iter(blocks), b"")
    parse = next((parse for begins, parse in SOURCES.items() if begins.search(first)), parse_blocks)
    return parse(chain([first], blocks), where)


def _parse_csv(
    header: re.Pattern[bytes],
    record: Callable[[_Row], DeviceRecord],
    blocks: Iterable[bytes],
    where: str,
    *,
    of: str,
    columns: str,
    command: str,
) -> Trace:
    """Parse a row for each piece of a GPU's work, without calls of the host. Raises `TraceError`
    if the file is cut off, or a row lacks a time or a stream.

    `of`, `columns`, `command`: for an error: the profiler, what a file needs, and what makes one. A
    column ``Device`` names the GPU.
    """
    content = b"".join(blocks)
    found = header.search(content)
    text = content[found.start() if found else 0 :].decode(errors="replace")
    try:
        if not text.endswith("\n"):
            raise ValueError("the last row has no end")
        rows = list(csv.DictReader(text.splitlines(), restval="", strict=True))
        records = sorted(map(record, rows), key=lambda each: (each.start_us, -each.duration_us))
    except (KeyError, ValueError, csv.Error) as error:
        raise TraceError(
            f"not a trace of {of} that kernelgauge can read",
            where=where,
            got=f"{type(error).__name__}: {error}",
            expected=f"the columns {columns}",
            next_command=command,
        ) from error
    names = dict.fromkeys(_DEVICE.sub(r"\1", row["Device"]) for row in rows if "Device" in row)
    devices = tuple(dict[str, object](name=name) for name in names)
    return Trace((), (), (), tuple(records), devices, has_calls=False)


def _number(row: _Row, column: str) -> int | None:
    return int(row[column]) if row.get(column) else None


def _sizes(row: _Row, columns: str) -> tuple[int, int, int] | None:
    """Return the numbers of three columns: ``{}`` stands for X, Y and Z."""
    x, y, z = (_number(row, columns.format(axis)) for axis in "XYZ")
    return None if x is None or y is None or z is None else (x, y, z)


# -- Nsight Systems --------------------------------------------------------------------------------

# Lines of `nsys stats` itself may stand before it.
_NSYS = re.compile(rb"^Start \(\w+\),Duration \(\w+\),", re.MULTILINE)
_TRANSFER = re.compile(r"\[CUDA (memcpy|memset)\b")


def _nsys_record(row: _Row) -> DeviceRecord:  # sizes of memory are rounded there, and left out
    transfer, device = _TRANSFER.match(row["Name"]), _DEVICE.fullmatch(row["Device"])
    return DeviceRecord(
        row["Name"],
        int(row["Start (ns)"]) / 1e3,
        int(row["Duration (ns)"]) / 1e3,
        f"gpu_{transfer[1]}" if transfer else "kernel",
        int(device[2]) if device else 0,
        int(row["Strm"]),
        _number(row, "CorrId"),
        grid=_sizes(row, "Grd{}"),
        block=_sizes(row, "Blk{}"),
        registers=_number(row, "Reg/Trd"),
    )


# Any other file is parsed as JSON of torch.profiler.
SOURCES: Mapping[re.Pattern[bytes], Parse] = {
    _NSYS: partial(
        _parse_csv,
        _NSYS,
        _nsys_record,
        of="Nsight Systems",
        columns="Start (ns), Duration (ns), Device, Strm and Name",
        command="nsys stats --report cuda_gpu_trace --format csv REPORT",
    ),
}
