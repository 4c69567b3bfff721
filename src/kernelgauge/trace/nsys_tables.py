"""The tables of an SQLite export of Nsight Systems, as typed rows.

Tables are created lazily and columns come and go with the version, so a table that is missing is an empty one, and a
column that is missing is NULL where a trace can do without it. A row class says which: its fields are the columns.

Nothing in the file is trusted. Views and virtual tables could run anything and generated columns hide a computation,
so only plain tables and stored columns are read (sqlite.org/security.html); each value is held against its type.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec

from ..errors import TraceError

__all__ = [
    "GRAPHS",
    "CallRow",
    "CopyRow",
    "CudaDeviceRow",
    "DeviceRow",
    "Export",
    "GpuRow",
    "KernelRow",
    "MemsetRow",
    "RangeRow",
    "Row",
]

GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"  # of which only whether there are rows is asked

_ROWS_AT_ONCE = 1024
_PLACE = re.compile(r"\$\[(\d+)\]\[(\d+)\]")  # where msgspec found a value of another type: row, column


class Row(msgspec.Struct, array_like=True, rename="camel", gc=False):
    """Of one table. Times in nanoseconds; `global_pid` and `global_tid` are Nsight's own serialised ids."""

    TABLE: ClassVar[str]


class DeviceRow(Row):
    """What ran on a device. In a CUDA graph, the correlation is that of the graph's launch."""

    start: int
    end: int
    device_id: int | None = None
    stream_id: int | None = None
    correlation_id: int | None = None
    global_pid: int | None = None


class KernelRow(DeviceRow, kw_only=True):
    """`demangled_name`: an id in StringIds."""

    TABLE: ClassVar[str] = "CUPTI_ACTIVITY_KIND_KERNEL"
    demangled_name: int
    grid_x: int | None = None
    grid_y: int | None = None
    grid_z: int | None = None
    block_x: int | None = None
    block_y: int | None = None
    block_z: int | None = None


class MemsetRow(DeviceRow):
    """`mem_kind`: ENUM_CUDA_MEM_KIND."""

    TABLE: ClassVar[str] = "CUPTI_ACTIVITY_KIND_MEMSET"
    bytes: int | None = None
    mem_kind: int | None = None


class CopyRow(DeviceRow):
    """`copy_kind`: ENUM_CUDA_MEMCPY_OPER; `src_kind`, `dst_kind`: ENUM_CUDA_MEM_KIND."""

    TABLE: ClassVar[str] = "CUPTI_ACTIVITY_KIND_MEMCPY"
    bytes: int | None = None
    copy_kind: int | None = None
    src_kind: int | None = None
    dst_kind: int | None = None


class CallRow(Row):
    """A call of the runtime or the driver: both are in this table. `event_class`: ENUM_NSYS_EVENT_CLASS."""

    TABLE: ClassVar[str] = "CUPTI_ACTIVITY_KIND_RUNTIME"
    start: int
    end: int
    name_id: int
    event_class: int | None = None
    correlation_id: int | None = None
    global_tid: int | None = None


class RangeRow(Row):
    """Of NVTX, also marks and names of threads: `event_type` tells. The message is `text`, or `text_id` names it."""

    TABLE: ClassVar[str] = "NVTX_EVENTS"
    start: int
    event_type: int
    end: int | None = None
    global_tid: int | None = None
    text: str | None = None
    text_id: int | None = None


class GpuRow(Row):
    """A GPU of the machine. `cu_device` is its number in CUDA, which the tables of what ran have."""

    TABLE: ClassVar[str] = "TARGET_INFO_GPU"
    id: int
    name: str | None = None
    sm_count: int | None = None
    cu_device: int | None = None


class CudaDeviceRow(Row):
    """Which GPU a process knows by which number. In exports since 2025."""

    TABLE: ClassVar[str] = "TARGET_INFO_CUDA_DEVICE"
    cuda_id: int
    gpu_id: int | None = None
    num_multiprocessors: int | None = None


class _TextRow(Row):
    TABLE: ClassVar[str] = "StringIds"
    id: int
    value: str


_KINDS: tuple[type[Row], ...] = (KernelRow, MemsetRow, CopyRow, CallRow, RangeRow, GpuRow, CudaDeviceRow, _TextRow)
_TABLES = frozenset(kind.TABLE for kind in _KINDS) | {GRAPHS}

_AnyRow = TypeVar("_AnyRow", bound=Row)


@dataclass(frozen=True)
class Export:
    """An open export. `tables` has the stored columns of each plain table."""

    where: str
    connection: sqlite3.Connection
    tables: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, connection: sqlite3.Connection, where: str) -> Export:
        connection.text_factory = _text
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        return cls(where, connection, _tables(connection))

    def rows(self, kind: type[_AnyRow], condition: str = "") -> Iterator[_AnyRow]:
        """The rows of a table in any order. Raises `TraceError` for a missing column and a value of another type."""
        if kind.TABLE not in self.tables:
            return
        chosen = self._chosen(kind)
        cursor = self.connection.execute(f'SELECT {", ".join(chosen)} FROM "{kind.TABLE}" {condition}')
        while batch := cursor.fetchmany(_ROWS_AT_ONCE):
            yield from self._typed(batch, kind)

    def texts(self, kind: type[Row], column: str) -> dict[int, str]:
        """Of `StringIds`, those that a column refers to: the others can be whole files."""
        if column not in self.tables.get(kind.TABLE, ()):
            return {}
        used = f'WHERE "id" IN (SELECT "{column}" FROM "{kind.TABLE}")'
        return {row.id: row.value for row in self.rows(_TextRow, used)}

    def text(self, texts: Mapping[int, str], number: int, kind: type[Row]) -> str:
        found = texts.get(number)
        if found is None:
            place, got = f"{self.where}: {kind.TABLE}", f"a name with the id {number}"
            raise TraceError("a name is missing in the export", where=place, got=got, expected="an id in StringIds")
        return found

    def span_ns(self, kinds: Iterable[type[Row]]) -> tuple[int, int]:
        """The first start and the last end."""
        starts, ends = [], []
        for kind in kinds:
            if {"start", "end"} <= self.tables.get(kind.TABLE, frozenset()):
                start, end = self.connection.execute(f'SELECT min("start"), max("end") FROM "{kind.TABLE}"').fetchone()
                starts.append(start)
                ends.append(end)
        return min(filter(_is_whole, starts), default=0), max(filter(_is_whole, ends), default=0)

    def has_rows(self, table: str) -> bool:
        return table in self.tables and self.connection.execute(f'SELECT 1 FROM "{table}"').fetchone() is not None

    def _chosen(self, kind: type[Row]) -> list[str]:
        there = self.tables[kind.TABLE]
        fields = msgspec.structs.fields(kind)
        missing = [field.encode_name for field in fields if field.required and field.encode_name not in there]
        if missing:
            raise TraceError(
                "a table of the export is not as Nsight Systems writes it",
                where=f"{self.where}: {kind.TABLE}",
                got=f"no column {' and no column '.join(missing)}",
                expected="the columns of NVIDIA's SQLite Schema Reference",
            )
        return [f'"{field.encode_name}"' if field.encode_name in there else "NULL" for field in fields]

    def _typed(self, batch: list[Any], kind: type[_AnyRow]) -> list[_AnyRow]:
        try:
            return msgspec.convert(batch, list[kind])  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            place = _PLACE.search(str(error))
            column = "." + msgspec.structs.fields(kind)[int(place[2])].encode_name if place else ""
            raise TraceError(
                "a value in the export is not of its column's type",
                where=f"{self.where}: {kind.TABLE}{column}",
                got=str(error).partition(" - at")[0],
                expected="the types of NVIDIA's SQLite Schema Reference",
            ) from error


def _tables(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    # A view and a virtual table have no root page. `table_info` leaves generated columns out.
    plain = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
    return {
        name: frozenset(column for _, column, *_ in connection.execute(f'PRAGMA table_info("{name}")'))
        for (name,) in plain
        if name in _TABLES
    }


def _text(content: bytes) -> str:
    return content.decode(errors="backslashreplace")


def _is_whole(value: object) -> bool:
    return isinstance(value, int)
