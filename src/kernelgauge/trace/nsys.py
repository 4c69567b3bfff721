"""An SQLite export of Nsight Systems (`nsys export --type sqlite`, `nsys profile --stats=true`) -> `Trace`.

The tables and columns are those of NVIDIA's SQLite Schema Reference (docs.nvidia.com/nsight-systems, Analysis Guide; in
older releases nsys-exporter/exported_data.html), as of release 2026.4, schema 3.28. Tried on exports of releases 2022.2
to 2026.2, schemas 2.9 to 3.25.

What is as torch's profiler has it, and what is not:

* A kernel in a CUDA graph has the correlation of the graph's launch, as in Kineto. That needs
  `--cuda-graph-trace=node`: else a graph is one row of CUPTI_ACTIVITY_KIND_GRAPH_TRACE, which says nothing of its
  kernels. Such rows are left out, and their launches are reported as lost by `Trace.pairing_problems`; a file with
  nothing else is refused.
* Kernel names are Nsight's demangled ones (`(int)4` for Kineto's `4`): the names of the two tools are not equal.
* Migrations of managed memory are left out: nobody called for them.
* Each process counts its own correlations. Those of a second process are raised by 2**32 to keep them apart.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ..errors import TraceError
from ..regular_file import IrregularFileError, regular_file
from .model import ApiCall, Op, Trace
from .nsys_ranges import Clock, innermost, ranges_of
from .nsys_records import Correlations, records_of
from .nsys_tables import (
    GRAPHS,
    CallRow,
    CopyRow,
    CudaDeviceRow,
    Export,
    GpuRow,
    KernelRow,
    MemsetRow,
    RangeRow,
)

__all__ = ["NSYS_REPORT_MAGIC", "SQLITE_MAGIC", "is_nsys", "read_nsys"]

SQLITE_MAGIC = b"SQLite format 3\0"  # sqlite.org/fileformat.html, section 1.3
# Of .nsys-rep and .qdrep; a version follows ("... Report 1.", and "... Report 2025@5@2@266-..." since 2023).
NSYS_REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"

_BACKTRACE = 67  # ENUM_NSYS_EVENT_CLASS: a call for a second time, by `--cudabacktrace`
# `cudaLaunchKernel_v7000`, `cudaMemcpy_ptds_v7000`, `cuMemcpyHtoDAsync_v2_ptsz`: a version, and the default stream that
# the caller was compiled for. Kineto has none of them on calls of the runtime.
_SUFFIXES = re.compile(r"(?:_v\d{1,6}|_ptsz|_ptds){1,3}\Z")
_EXACT_NS = 2**53  # up to here a float of microseconds still tells nanoseconds apart


def is_nsys(path: Path | str) -> bool:
    """Whether a file is for `read_nsys`: any SQLite file, or a report that has yet to be exported."""
    try:
        return _first_bytes(Path(path)).startswith((SQLITE_MAGIC, NSYS_REPORT_MAGIC))
    except TraceError:
        return False


def read_nsys(path: Path) -> Trace:
    """Read an export. Times count in microseconds from the start of the session.

    Raises `TraceError` if the file is a report before export, no SQLite file, none of Nsight Systems, has nothing of
    CUDA, is damaged, still being written, or has values that the schema does not allow.
    """
    with _opened(path) as export:
        _refuse_without_cuda(export)
        clock = _clock(export)
        correlations = Correlations()
        ops, annotations = ranges_of(export, clock)
        calls = _calls(export, clock, correlations, ops)
        records = records_of(export, clock, correlations, calls)
        return Trace(ops, annotations, calls, records, tuple(_devices(export)))


def _calls(export: Export, clock: Clock, correlations: Correlations, ops: tuple[Op, ...]) -> tuple[ApiCall, ...]:
    names = {number: _SUFFIXES.sub("", name) for number, name in export.texts(CallRow, "nameId").items()}
    rows = [row for row in export.rows(CallRow) if row.event_class != _BACKTRACE]
    rows.sort(key=lambda row: (row.start, -row.end))
    return tuple(
        ApiCall(
            export.text(names, row.name_id, CallRow),
            clock.us(row.start),
            (row.end - row.start) / 1000,
            correlations.of(row.correlation_id, row.global_tid),
            external_id,
        )
        for row, external_id in zip(rows, innermost(ops, rows, clock), strict=True)
    )


def _devices(export: Export) -> Iterator[dict[str, object]]:
    """By the numbers that kernels have: those of CUDA, which need not be those of the GPUs."""
    gpus: dict[int | None, GpuRow] = {gpu.id: gpu for gpu in export.rows(GpuRow)}
    known = [(row.cuda_id, gpus.get(row.gpu_id), row.num_multiprocessors) for row in export.rows(CudaDeviceRow)]
    known = known or [(gpu.id if gpu.cu_device is None else gpu.cu_device, gpu, None) for gpu in gpus.values()]
    # Once each: every process has a row.
    described = dict.fromkeys(
        (number, gpu.name if gpu else None, multiprocessors or (gpu.sm_count if gpu else None))
        for number, gpu, multiprocessors in known
    )
    for number, name, multiprocessors in described:
        device = {"id": number, "name": name, "numSms": multiprocessors}
        yield {key: value for key, value in device.items() if value is not None}


def _clock(export: Export) -> Clock:
    """Nsight counts from the start of the session. `--ts-normalize` counts from 1970, too far for a float."""
    first, last = export.span_ns((KernelRow, MemsetRow, CopyRow, CallRow, RangeRow))
    return Clock(first if abs(first) >= _EXACT_NS else 0, last)


def _refuse_without_cuda(export: Export) -> None:
    if not {KernelRow.TABLE, CallRow.TABLE} & set(export.tables):
        raise TraceError(
            "an SQLite file, but no export of Nsight Systems with CUDA in it",
            where=export.where,
            got=f"neither {KernelRow.TABLE} nor {CallRow.TABLE} among its tables",
            expected="an export of what `nsys profile --trace=cuda,nvtx` recorded",
        )
    if export.has_rows(GRAPHS) and not export.has_rows(KernelRow.TABLE):
        raise TraceError(
            "the kernels of the CUDA graphs were not recorded",
            where=f"{export.where}: {GRAPHS}",
            got="each launch of a graph as one row, and no kernel",
            expected="a row for each kernel",
            next_command="nsys profile --trace=cuda,nvtx --cuda-graph-trace=node ...",
        )


@contextmanager
def _opened(path: Path) -> Iterator[Export]:
    where = str(path)
    first = _first_bytes(path)
    if first.startswith(NSYS_REPORT_MAGIC):
        raise TraceError(
            "a report of Nsight Systems that has yet to be exported",
            where=where,
            got="a .nsys-rep file",
            expected="its SQLite export",
            next_command=shlex.join(["nsys", "export", "--type", "sqlite", where]),
        )
    if not first.startswith(SQLITE_MAGIC):
        raise _unreadable(where, "no SQLite file", "what `nsys export --type sqlite` writes")
    for suffix in ("-journal", "-wal"):  # what is in them is not read: an immutable file has none
        beside = Path(where + suffix)
        if beside.is_file() and beside.stat().st_size:
            raise _unreadable(where, f"{beside.name} beside it: it is being written", "a finished export")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            yield Export.of(connection, where)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter, of a message in which SQLite quotes the file
        raise _unreadable(where, f"SQLite: {str(error)!a}", "a whole export of Nsight Systems") from error


def _first_bytes(path: Path) -> bytes:
    try:
        with regular_file(path) as descriptor:
            return os.read(descriptor, len(NSYS_REPORT_MAGIC))
    except IrregularFileError as error:
        raise _unreadable(str(path), str(error), "a file") from error
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        raise _unreadable(str(path), str(error), "a file that can be read") from error


def _unreadable(where: str, got: str, expected: str) -> TraceError:
    return TraceError("cannot read the trace", where=where, got=got, expected=expected)
