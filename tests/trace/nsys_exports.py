"""Exports of Nsight Systems made by hand: two versions of the schema, rows for them, and what is asked of their traces."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace import Trace, computing_ops, dispatcher_ops, metadata_ops_that_launched
from kernelgauge.trace.nsys import read_nsys

# Columns of the schema reference, "!" where NOT NULL, text where ":text": 3.28 (2026.4), and what 2.9 (2022.2) has not.
NOW = {
    "StringIds": "id! value!:text",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid "
    "demangledName! shortName! mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! "
    "blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! "
    "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig graphId clusterX clusterY clusterZ "
    "tensorSizeMinusOneElements!:text",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid "
    "value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid "
    "bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause "
    "graphNodeId virtualAddress copyCount",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start! end! deviceId! contextId! streamId! correlationId globalPid graphId! "
    "graphExecId!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:text globalTid endGlobalTid textId domainId "
    "uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText:text binaryData:text",
    "TARGET_INFO_GPU": "vmId! id! name:text busLocation:text isDiscrete l2CacheSize totalMemory smCount uuid:text "
    "cuDevice computeMajor computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid! uuid:text numMultiprocessors",
}
SINCE = {"greenContextId", "graphId", "clusterX", "clusterY", "clusterZ", "tensorSizeMinusOneElements", "copyCount"}
BEFORE = {
    table: " ".join(column for column in columns.split() if re.split("[!:]", column)[0] not in SINCE)
    for table, columns in NOW.items()
    if table != "TARGET_INFO_CUDA_DEVICE"
}
NAMED = {"demangledName", "shortName", "nameId", "textId"}  # columns of ids into StringIds

Columns = dict[str, Any]
TableRow = tuple[str, Columns]
KERNELS, CALLS, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"

PROCESS, OTHER_PROCESS = (1 << 48) + (404 << 24), (1 << 48) + (405 << 24)
MAIN, BACKWARD = PROCESS + 404, PROCESS + 509
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(T1::Params)"


def kernel(correlation: int | None, start: int, **more: Any) -> TableRow:
    grid = {"gridX": 2, "gridY": 64, "gridZ": 1, "blockX": 384, "blockY": 1, "blockZ": 1}
    row = {"start": start, "end": start + 2145, "streamId": 7, "correlationId": correlation, "globalPid": PROCESS}
    return KERNELS, {**row, **grid, "demangledName": GEMM, "shortName": "Kernel2", **more}


def call(correlation: int | None, start: int, name: str = "cudaLaunchKernel_v7000", **more: Any) -> TableRow:
    row = {"start": start, "end": start + 1000, "correlationId": correlation, "globalTid": MAIN, "nameId": name}
    return CALLS, {**row, **more}


def nvtx(text: str | None, start: int, end: int | None, **more: Any) -> TableRow:
    return RANGES, {"start": start, "end": end, "eventType": 59, "globalTid": MAIN, "text": text, **more}


def memset(correlation: int | None, start: int, **more: Any) -> TableRow:
    row = {"start": start, "end": start + 800, "correlationId": correlation, "globalPid": PROCESS, "bytes": 4}
    return "CUPTI_ACTIVITY_KIND_MEMSET", {**row, "memKind": 2, **more}


def copy(
    correlation: int | None, start: int, kind: int = 1, source: int | None = 0, target: int | None = 2
) -> TableRow:
    row = {"start": start, "end": start + 900, "correlationId": correlation, "globalPid": PROCESS, "bytes": 64}
    return "CUPTI_ACTIVITY_KIND_MEMCPY", {**row, "copyKind": kind, "srcKind": source, "dstKind": target}


def graph(correlation: int, start: int) -> TableRow:
    row = {"start": start, "end": start + 5000, "correlationId": correlation, "globalPid": PROCESS}
    return "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", row


def gpu(number: int, name: str | None, **more: Any) -> TableRow:
    return "TARGET_INFO_GPU", {"id": number, "name": name, **more}


def written(path: Path, *rows: TableRow, schema: dict[str, str] = NOW, lazy: bool = True) -> Path:
    """An export with these rows. Lazily, as by default, tables without a row are not there."""
    numbers: dict[str, int] = {}
    kept: dict[str, list[Columns]] = {} if lazy else {table: [] for table in schema}
    for table, columns in rows:
        ids = {
            column: numbers.setdefault(value, len(numbers) + 1)
            for column, value in columns.items()
            if column in NAMED and isinstance(value, str)
        }
        kept.setdefault(table, []).append({**columns, **ids})
    kept["StringIds"] = [{"id": number, "value": value} for value, number in numbers.items()]
    with closing(sqlite3.connect(path)) as database:
        for table, found in kept.items():
            create(database, table, schema[table])
            for row in found:
                insert(database, table, schema[table], row)
        database.commit()
    return path


def create(database: sqlite3.Connection, table: str, columns: str) -> None:
    declared = []
    for column in columns.split():
        name, not_null, kind = re.fullmatch(r"(\w+)(!?)(:text)?", column).groups()  # type: ignore[union-attr]
        key = " PRIMARY KEY" if (table, name) == ("StringIds", "id") else ""
        declared.append(f'"{name}" {"TEXT" if kind else "INTEGER"}{" NOT NULL" if not_null else ""}{key}')
    database.execute(f"CREATE TABLE {table} ({', '.join(declared)})")


def insert(database: sqlite3.Connection, table: str, columns: str, row: Columns) -> None:
    required = {column.partition("!")[0]: "" if ":" in column else 0 for column in columns.split() if "!" in column}
    values = {**required, **row}
    quoted = ", ".join(f'"{column}"' for column in values)
    database.execute(f"INSERT INTO {table} ({quoted}) VALUES ({', '.join('?' * len(values))})", list(values.values()))


def changed(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


ONE_OF_EACH = (
    nvtx("forward, op_id = 1", 1_000, 90_000),
    nvtx("aten::mm, seq = 3, op_id = 2, sizes = [[8, 16], [16, 32]]", 2_000, 9_000),
    call(1, 3_000),
    kernel(1, 20_000),
    call(2, 5_000, "cudaMemsetAsync_v3020"),
    memset(2, 30_000),
    call(3, 12_000, "cudaMemcpyAsync_v3020"),
    copy(3, 40_000),
    gpu(0, "NVIDIA H200", smCount=132, cuDevice=0),
)
SCHEMAS = pytest.mark.parametrize("schema", [BEFORE, NOW], ids=["2.9", "3.28"])


def refusal(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_nsys(path)
    assert caught.value.where is not None
    assert str(path) in caught.value.where
    assert caught.value.got
    assert caught.value.expected
    assert all(line.isprintable() for line in str(caught.value).splitlines())
    return caught.value


def use(found: Trace) -> None:
    """Nothing that is asked of a trace raises."""
    found.pairing_problems()
    names = {mark.name for mark in found.annotations}
    for window in [found.whole(), *found.steps(), *(one for name in names for one in found.regions(name))]:
        computing_ops(window)
        dispatcher_ops(window)
        metadata_ops_that_launched(window)
        assert window.device_time_us is not None
    for lane in (found.ops, found.annotations, found.calls, found.records):
        assert [row.start_us for row in lane] == sorted(row.start_us for row in lane)
    hash(found.ops + found.annotations)
