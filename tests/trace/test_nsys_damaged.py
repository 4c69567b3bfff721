"""Files that are no export of Nsight Systems, and exports with something wrong inside: refused by name, or read."""

from __future__ import annotations

import os
import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace.nsys import NSYS_REPORT_MAGIC, SQLITE_MAGIC, is_nsys, read_nsys
from kernelgauge.trace.nsys_tables import CallRow, CopyRow, CudaDeviceRow, GpuRow, KernelRow, MemsetRow, RangeRow
from tests.builders import waits_for_a_writer
from tests.trace.nsys_exports import (
    CALLS,
    GEMM,
    KERNELS,
    NOW,
    ONE_OF_EACH,
    RANGES,
    TableRow,
    call,
    changed,
    graph,
    kernel,
    nvtx,
    refusal,
    use,
    written,
)

TIMES = int(os.environ.get("KERNELGAUGE_FUZZ_TIMES", "1"))

# -- what is no export -----------------------------------------------------------------------------------------------


def test_a_report_says_how_it_is_exported(tmp_path: Path) -> None:
    report = tmp_path / "my run.nsys-rep"
    report.write_bytes(NSYS_REPORT_MAGIC + b" 2025@5@2@266-255236693005v0.\n\x0bLocal (CLI)")
    assert is_nsys(report)
    assert refusal(report).next_command == f"nsys export --type sqlite '{report}'"


@pytest.mark.parametrize("content", [b"", b'{"traceEvents": []}', b"\x1f\x8b\x08", SQLITE_MAGIC[:-1]])
def test_another_file_is_not_taken_for_an_export(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert not is_nsys(path)
    assert refusal(path).got == "no SQLite file"


def test_another_database_is_told_from_an_export(tmp_path: Path) -> None:
    path = changed(tmp_path / "notes.sqlite", "CREATE TABLE notes (start, end)")
    assert is_nsys(path)
    assert "no export of Nsight Systems" in refusal(path).what


@pytest.mark.parametrize(
    ("path", "got"), [("missing.sqlite", "No such file"), (".", "not a regular file"), ("a\0b", "embedded null")]
)
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, path: str, got: str) -> None:
    assert not is_nsys(tmp_path / path)
    with pytest.raises(TraceError, match=got):
        read_nsys(tmp_path / path)


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "trace.sqlite"
    os.mkfifo(fifo)
    waits, caught = waits_for_a_writer(fifo, lambda: read_nsys(fifo))
    assert not waits
    assert isinstance(caught, TraceError)
    assert not is_nsys(fifo)


@pytest.mark.parametrize("suffix", ["-journal", "-wal"])
def test_an_export_that_is_being_written_is_refused(export: Any, suffix: str) -> None:
    path = export(*ONE_OF_EACH)
    Path(f"{path}{suffix}").write_bytes(b"x")
    assert "being written" in (refusal(path).got or "")


def test_reading_leaves_the_file_and_its_folder_as_they_are(export: Any) -> None:
    path = changed(export(*ONE_OF_EACH), "PRAGMA journal_mode = WAL")  # whose readers write beside the file
    before = path.read_bytes()
    assert len(read_nsys(path).records) == 3
    assert (path.read_bytes(), list(path.parent.iterdir())) == (before, [path])


def test_a_name_that_means_something_in_a_uri_is_a_name(tmp_path: Path) -> None:
    path = written(tmp_path / "100%41?mode=rwc#1.sqlite", *ONE_OF_EACH)
    assert len(read_nsys(path).records) == 3


# -- what is wrong inside --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(kernel(1, 5, demangledName=999), id="kernel"),
        pytest.param(call(1, 5, nameId=999), id="call"),
        pytest.param(nvtx(None, 0, 9, textId=999), id="range"),
    ],
)
def test_a_name_that_is_not_there_is_said(export: Any, row: TableRow) -> None:
    error = refusal(export(*ONE_OF_EACH, row))
    assert (error.what, error.got) == ("a name is missing in the export", "a name with the id 999")
    assert row[0] in (error.where or "")


@pytest.mark.parametrize(
    ("table", "column"), [(KERNELS, "start"), (KERNELS, "demangledName"), (CALLS, "nameId"), (RANGES, "eventType")]
)
def test_a_column_that_a_trace_cannot_do_without_is_missed(export: Any, table: str, column: str) -> None:
    path = changed(export(*ONE_OF_EACH), f"ALTER TABLE {table} DROP COLUMN {column}")
    error = refusal(path)
    assert (error.where, error.got) == (f"{path}: {table}", f"no column {column}")


def test_columns_that_a_trace_can_do_without_may_be_missing(export: Any) -> None:
    gone = [f"ALTER TABLE {KERNELS} DROP COLUMN {column}" for column in ("gridX", "streamId", "deviceId", "globalPid")]
    found = read_nsys(changed(export(*ONE_OF_EACH), *gone))
    assert (found.records[0].grid, found.records[0].stream) == (None, 0)
    assert found.pairing_problems() == ()


def test_a_value_of_another_type_is_said_with_its_place(export: Any) -> None:
    path = changed(export(*ONE_OF_EACH), f"UPDATE {KERNELS} SET gridY = 'many'")
    error = refusal(path)
    assert (error.where, error.got) == (f"{path}: {KERNELS}.gridY", "Expected `int | null`, got `str`")


def test_names_that_are_not_utf_8_are_read(export: Any) -> None:
    path = changed(export(*ONE_OF_EACH), f"UPDATE StringIds SET value = CAST(x'61FF62' AS TEXT) WHERE value = '{GEMM}'")
    assert read_nsys(path).records[0].name == r"a\xffb"


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i AS start, i AS end, i AS demangledName"


FILLED = f"INSERT INTO {KERNELS} VALUES (1, 2, 1)"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "instead",
    [
        pytest.param([f"CREATE VIEW {KERNELS} AS {ENDLESS} FROM n"], id="a view without end"),
        pytest.param([f"CREATE VIRTUAL TABLE {KERNELS} USING fts5(start, end, demangledName)", FILLED], id="virtual"),
    ],
)
def test_only_plain_tables_are_read(export: Any, instead: list[str]) -> None:
    found = read_nsys(changed(export(*ONE_OF_EACH), f"DROP TABLE {KERNELS}", *instead))
    assert [record.category for record in found.records] == ["gpu_memset", "gpu_memcpy"]


def test_generated_columns_are_not_computed(export: Any) -> None:
    made = "streamId INTEGER GENERATED ALWAYS AS (abs(-9223372036854775807 - 1)) VIRTUAL"  # an overflow, if computed
    path = changed(
        export(*ONE_OF_EACH),
        f"ALTER TABLE {KERNELS} DROP COLUMN streamId",
        f"ALTER TABLE {KERNELS} ADD COLUMN {made}",
    )
    assert read_nsys(path).records[0].stream == 0


@pytest.mark.parametrize("name", ["'a\x1b[31m\u202eb'", "CAST(x'61FF62' AS TEXT)"])
def test_a_schema_that_is_damaged_is_said_in_printable_words(export: Any, name: str) -> None:
    path = changed(
        export(*ONE_OF_EACH),
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET name = {name}, sql = 'CREATE \x1b' WHERE name = '{RANGES}'",
    )
    assert "SQLite: " in (refusal(path).got or "")


VALUES = [
    None,
    -1,
    0,
    1,
    2**63 - 1,
    -(2**63),
    1.5,
    1e308,
    "",
    "aten::mm, op_id = 1",
    "ProfilerStep#1",
    "7",
    b"",
    b"\xff",
]


ROWS = (KernelRow, MemsetRow, CopyRow, CallRow, RangeRow, GpuRow, CudaDeviceRow)
LOOKED_AT = {(kind.TABLE, field.encode_name) for kind in ROWS for field in msgspec.structs.fields(kind)}
LOOKED_AT |= {("StringIds", "id"), ("StringIds", "value")}
LOOKED_AT -= {(RANGES, "eventType")}  # is only compared: what is no range is left out, whatever it is
CELLS = [(table, re.split("[!:]", column)[0]) for table, columns in NOW.items() for column in columns.split()]


@pytest.mark.parametrize(("table", "column"), CELLS)
def test_any_value_in_any_column_is_read_or_refused(export: Any, table: str, column: str) -> None:
    """Of tables without declared types: SQLite keeps in them what it is given."""
    devices = ("TARGET_INFO_CUDA_DEVICE", {"gpuId": 0, "cudaId": 0, "pid": 404})
    path = export(*ONE_OF_EACH, call(9, 50_000, "cudaGraphLaunch"), graph(9, 60_000), devices)
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(f"SELECT * FROM {table}").fetchall()
        names = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
        database.execute(f"DROP TABLE {table}")
        untyped = ", ".join(f'"{name}"' for name in names)
        database.execute(f"CREATE TABLE {table} ({untyped})")
        database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", rows)
        database.commit()
    read = 0
    for value in VALUES:
        with closing(sqlite3.connect(path)) as database:
            database.execute(f'UPDATE {table} SET "{column}" = ?', [value])
            database.commit()
        try:
            use(read_nsys(path))
            read += 1
        except TraceError:
            refusal(path)
    # No column holds both numbers and texts, and what is not looked at may hold anything.
    assert (read == len(VALUES)) == ((table, column) not in LOOKED_AT)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_is_read_or_refused(export: Any, seed: int) -> None:
    draw = random.Random(seed)
    # More than one page of rows, so that tables have inner pages, and a text that runs over several pages.
    rows = [row for number in range(10, 130) for row in (call(number, number * 100), kernel(number, number * 1_000))]
    path = export(*ONE_OF_EACH, *rows, nvtx("long " * 2_000, 0, 9))
    whole = path.read_bytes()
    refused = 0
    for _ in range(60 * TIMES):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(16, len(content))
            # Where pages begin are the lengths and pointers of SQLite's trees.
            at = at - at % 4096 + draw.randrange(120) if draw.random() < 0.6 else at
            content[at : at + draw.choice([1, 2, 4])] = draw.choice(
                [b"\0", b"\xff", b"\x7f\xff\xff\xff", draw.randbytes(2)]
            )
        if draw.random() < 0.2:
            del content[draw.randrange(100, len(content)) :]
        path.write_bytes(content)
        try:
            use(read_nsys(path))
        except TraceError:
            refused += 1
    assert refused
