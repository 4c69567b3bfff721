"""Files that are no ordinary files, and files made to fill the memory or the day of whoever reads them."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

import kernelgauge
from kernelgauge.errors import TraceError
from kernelgauge.files import ChangedFileError, blocks_of_file
from kernelgauge.trace import events, parse, read, reader
from kernelgauge.trace.events import BLOCK_BYTES, TraceParser
from tests.builders import call, chrome, kernel, op, step, waits_for_a_writer

CONTENT = chrome(step(1, 0, 9), op("aten::mm", 1, 2), call(1, 2), kernel(1, 5), traceName="x")
TRACE = parse(CONTENT)
MEBIBYTE = 1 << 20


def refusal(path: Path) -> TraceError:
    """Whole: where, got, expected."""
    with pytest.raises(TraceError) as caught:
        read(path)
    assert caught.value.where == str(path)
    assert caught.value.got
    assert caught.value.expected
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json.gz"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# -- gzip -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_members_of_any_size_are_one_content(path: Path, size: int) -> None:
    members = [gzip.compress(CONTENT[at : at + size]) for at in range(0, len(CONTENT), size)]
    assert read(written(path, b"".join(members))) == TRACE


def test_an_empty_member_is_nothing(path: Path) -> None:
    empty = gzip.compress(b"")
    assert read(written(path, empty + gzip.compress(CONTENT) + empty)) == TRACE


@pytest.mark.parametrize("zeros", [1, 511, 40_000, 3 * MEBIBYTE])
def test_zeros_between_members_and_behind_them_are_padding(path: Path, zeros: int) -> None:
    padding = bytes(zeros)
    members = [gzip.compress(CONTENT[:200]), padding, gzip.compress(CONTENT[200:]), padding]
    assert read(written(path, b"".join(members))) == TRACE


@pytest.mark.parametrize("garbage", [b"x", b"\x1f", b"\x1f\x8b", b"\x00\x00x", bytes(3 * MEBIBYTE) + b"x", CONTENT])
def test_what_stands_behind_the_last_member_and_is_none_is_refused(path: Path, garbage: bytes) -> None:
    assert "gzip" in str(refusal(written(path, gzip.compress(CONTENT) + garbage)).got)


def test_a_compressed_file_that_ends_early_is_refused_wherever_it_ends(path: Path) -> None:
    whole = gzip.compress(CONTENT)
    assert read(written(path, whole)) == TRACE
    for length in range(len(whole)):
        refusal(written(path, whole[:length]))


def test_a_plain_file_that_ends_early_is_refused_wherever_it_ends(path: Path) -> None:
    for length in range(len(CONTENT)):
        refusal(written(path, CONTENT[:length]))


def test_a_changed_bit_of_a_compressed_file_is_noticed_or_changes_nothing(path: Path) -> None:
    whole = gzip.compress(CONTENT, mtime=0)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        try:
            trace = read(written(path, bytes(changed)))
        except TraceError:
            continue
        assert trace == TRACE  # a bit of the header: the time, the system


# -- files that are no files, or change -----------------------------------------------------------------------------


def test_a_link_to_a_file_is_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(written(tmp_path / "target", CONTENT))
    assert read(path) == TRACE


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("absent"))


def to_itself(path: Path) -> None:
    path.symlink_to(path)


def to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_a_folder(path: Path) -> None:
    path.symlink_to("/")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, dangling, to_itself, to_a_device, to_a_folder])
def test_what_is_no_file_is_refused_at_once(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    waits, caught = waits_for_a_writer(path, lambda: read(path))
    assert not waits
    assert isinstance(caught, TraceError)
    assert caught.where == str(path)
    assert caught.got
    assert caught.expected


def test_a_path_that_no_file_can_have_is_refused() -> None:
    refusal(Path("a\0b"))
    refusal(Path("n" * 5000))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(path: Path) -> None:
    written(path, CONTENT).chmod(0)
    assert "ermission" in str(refusal(path).got)


def append(file: IO[bytes]) -> None:
    file.seek(0, os.SEEK_END)
    file.write(bytes(BLOCK_BYTES))


def shorten(file: IO[bytes]) -> None:
    file.truncate(BLOCK_BYTES + 5)


def rewrite(file: IO[bytes]) -> None:
    file.write(b"x")
    file.flush()
    os.utime(file.name, (1, 1))  # where the clock of the files is too coarse to see it


@pytest.mark.parametrize("change", [append, shorten, rewrite])
def test_file_changed_while_read_is_refused(path: Path, change: Callable[[IO[bytes]], None]) -> None:
    blocks = blocks_of_file(written(path, bytes(3 * BLOCK_BYTES)), BLOCK_BYTES)
    next(blocks)
    with path.open("r+b") as file:
        change(file)
    with pytest.raises(ChangedFileError):
        list(blocks)


def test_growing_file_is_read_once(path: Path) -> None:
    blocks = blocks_of_file(written(path, bytes(3 * BLOCK_BYTES)), BLOCK_BYTES)
    with path.open("ab") as file:
        for _ in range(3):
            file.write(next(blocks) * 2)
            file.flush()
    with pytest.raises(ChangedFileError):
        next(blocks)


def test_changed_trace_is_refused_with_both_sizes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(path: Path, size: int) -> Iterator[bytes]:
        blocks = blocks_of_file(path, size)
        yield next(blocks)
        path.write_bytes(CONTENT * 2)
        yield from blocks

    monkeypatch.setattr(reader, "blocks_of_file", changed)
    error = refusal(written(path, CONTENT))
    assert error.what == "the trace changed while it was read"
    assert error.got == f"{len(CONTENT)} bytes when it was opened, {2 * len(CONTENT)} at the end"


# -- bombs ----------------------------------------------------------------------------------------------------------

UNDER_A_LIMIT = """
import resource, sys
from kernelgauge.errors import TraceError
from kernelgauge.trace import read
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
try:
    read(sys.argv[1])
except TraceError as error:
    print(error.got)
"""


def refused_with_little_memory(path: Path, limit: int) -> str:
    """What was got, in a process that may use `limit` bytes, its code included."""
    environment = os.environ | {"PYTHONPATH": str(Path(kernelgauge.__file__).parents[1])}
    command = [sys.executable, "-c", UNDER_A_LIMIT, str(path), str(limit)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


EVENT = b'{"ph":"X","cat":"cpu_op"},'
BOMBS = [
    pytest.param(b"", b" ", id="spaces"),
    pytest.param(b'{"traceEvents":[', b" ", id="spaces for events"),
    pytest.param(b'{"traceEvents":[{}]', b" ", id="spaces behind the events"),
    pytest.param(b'{"traceEvents":[{"name":"', b"x", id="one name"),
    pytest.param(b'{"traceEvents":[{"name":"', b"},{", id="one name that looks like events"),
    pytest.param(b'{"traceEvents":[', b'{"args":', id="one event, nested"),
    pytest.param(b'{"traceEvents":[{"args":[', b'{"a":{}},', id="one event of many objects"),
    pytest.param(b'{"a":"', b"x", id="a text before the events"),
    pytest.param(b"[", b"1,", id="numbers"),
]


@pytest.mark.parametrize(("start", "unit"), BOMBS)
def test_a_gzip_bomb_is_refused_in_little_memory(path: Path, start: bytes, unit: bytes) -> None:
    block = gzip.compress(unit * (MEBIBYTE // len(unit)))
    written(path, gzip.compress(start) + block * 400)
    assert path.stat().st_size < 4 * MEBIBYTE
    assert refused_with_little_memory(path, 600 * MEBIBYTE)


@pytest.mark.parametrize("start", [b"[", b'{"traceEvents":['])
def test_a_gzip_bomb_of_events_is_refused_by_how_much_it_holds(path: Path, start: bytes) -> None:
    block = gzip.compress(EVENT * (MEBIBYTE // len(EVENT)))
    written(path, gzip.compress(start) + block * 400)
    assert "compressed ones" in refused_with_little_memory(path, 900 * MEBIBYTE)


@pytest.mark.parametrize(("start", "unit"), BOMBS[3:7])
def test_a_long_event_is_refused_in_little_memory(path: Path, start: bytes, unit: bytes) -> None:
    with path.open("wb") as file:
        file.write(start)
        file.writelines([unit * (MEBIBYTE // len(unit))] * 100)
    assert refused_with_little_memory(path, 600 * MEBIBYTE)


def test_a_name_of_a_few_megabytes_is_read() -> None:
    (only,) = parse(chrome(op("},{" * MEBIBYTE, 1, 2))).ops
    assert len(only.name) == 3 * MEBIBYTE


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(chrome(op("x" * 5000, 1, 2), op("y", 1, 2)), id="an event"),
        pytest.param(chrome(op("y", 1, 2))[:-2] + b" " * 5000 + b"]}", id="spaces"),
        pytest.param(chrome(op("y", 1, 2), more="x" * 5000), id="what stands behind the events"),
        pytest.param(b'{"more":"' + b"x" * 5000 + b'",' + chrome(op("y", 1, 2))[1:], id="what stands before them"),
    ],
)
def test_what_is_longer_than_the_longest_event_is_refused(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(events, "BLOCK_BYTES", 100)
    monkeypatch.setattr(events, "_LONGEST", 6000)
    assert parse(content).ops[-1].name == "y"
    monkeypatch.setattr(events, "_LONGEST", 4000)
    with pytest.raises(TraceError, match="4000 bytes"):
        parse(content)


# -- what took the square of its length -----------------------------------------------------------------------------

OBJECT = b'{"a":{}},'
HEAD, REST = b'{"traceEvents":[', CONTENT.removeprefix(b'{"traceEvents": [')
SLOW = [
    pytest.param(b'{"a":{' + b'"traceEvents":[],' * 400_000 + b'"b":0},' + CONTENT[1:], id="lists that are not it"),
    pytest.param(b'{"a":"' + b"x" * (12 * MEBIBYTE) + b'",' + CONTENT[1:], id="a text before the events"),
    pytest.param(b" " * (60 * MEBIBYTE) + CONTENT, id="spaces"),
    pytest.param(HEAD + (b'{"args":[' + OBJECT * 1000 + b"0]},") * 1000 + REST, id="events of many objects"),
    pytest.param(HEAD + b'{"args":[' + OBJECT * MEBIBYTE + b"0]}," + REST, id="one event of many objects"),
    pytest.param(HEAD + b'{"args":"' + b'\\"},' * MEBIBYTE + b'"},' + REST, id="one text of many escapes"),
    pytest.param(HEAD + b"{}," * MEBIBYTE + REST, id="empty events"),
]


@pytest.mark.timeout(60)  # seconds each; what is not linear takes minutes
@pytest.mark.parametrize("content", SLOW)
def test_a_long_file_is_read_in_a_time_like_its_length(content: bytes) -> None:
    assert parse(content) == TRACE


@pytest.mark.timeout(60)
def test_members_of_one_byte_are_read_in_a_time_like_their_number(path: Path) -> None:
    assert read(written(path, gzip.compress(b" ") * 300_000 + gzip.compress(CONTENT))) == TRACE


@pytest.mark.timeout(60)
def test_blocks_of_one_byte_are_read_in_a_time_like_their_number() -> None:
    content = chrome(*[op("aten::mm", start, 1) for start in range(20_000)])
    parser = TraceParser(lambda phase, category: True)
    blocks = (content[at : at + 1] for at in range(len(content)))
    assert sum(len(piece.events) for piece in parser.pieces(blocks)) == 20_000
