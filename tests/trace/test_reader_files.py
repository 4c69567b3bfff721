"""Files that are damaged or no ordinary files, and files made to fill the memory of whoever reads them."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kernelgauge
from kernelgauge.cli.traces import read_trace as read
from kernelgauge.errors import TraceError
from kernelgauge.trace import parse
from tests.builders import call, chrome, kernel, op, step

CONTENT = chrome(step(1, 0, 9), op("aten::mm", 1, 2), call(1, 2), kernel(1, 5), traceName="x")
TRACE = parse(CONTENT)
WHOLE = gzip.compress(CONTENT, mtime=0)
MEBIBYTE = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json.gz"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refusal(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read(path)
    assert caught.value.where == str(path)
    assert caught.value.got
    assert caught.value.expected
    return caught.value


@pytest.mark.parametrize(
    "garbage",
    [b"x", b"\x1f\x8b", bytes(3 * MEBIBYTE) + b"x", CONTENT],
    ids=lambda garbage: f"{len(garbage)} bytes",
)
def test_read_garbage_behind_gzip_is_refused(path: Path, garbage: bytes) -> None:
    assert "gzip" in str(refusal(written(path, WHOLE + garbage)).got)


@pytest.mark.parametrize("content", [WHOLE, CONTENT, gzip.compress(b"")], ids=["gzip", "plain", "gzip of nothing"])
def test_read_file_cut_anywhere_is_refused(path: Path, content: bytes) -> None:
    for length in range(len(content)):
        refusal(written(path, content[:length]))


def test_read_pipe_is_read(path: Path) -> None:
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(WHOLE,), daemon=True).start()
    assert read(path) == TRACE


@pytest.mark.parametrize("name", ["absent.json.gz", "a\0b", "n" * 5000])
def test_read_file_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    refusal(tmp_path / name)


UNDER_A_LIMIT = """
import resource, sys
from kernelgauge.errors import TraceError
from kernelgauge.cli.traces import read_trace as read
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
try:
    read(sys.argv[1])
except TraceError as error:
    print(error.got)
"""


@pytest.mark.parametrize(
    ("start", "unit"),
    [
        pytest.param(b'{"traceEvents":[{"name":"', b"},{", id="one name that looks like events"),
        pytest.param(b'{"traceEvents":[', b'{"args":', id="one event, nested"),
        pytest.param(b'{"traceEvents":[{"args":[', b'{"a":{}},', id="one event of many objects"),
        pytest.param(b"", b" ", id="spaces"),
        pytest.param(b'{"traceEvents":[', b" ", id="spaces for events"),
        pytest.param(b'{"traceEvents":[{}]', b" ", id="spaces behind the events"),
        pytest.param(b'{"a":"', b"x", id="a text before the events"),
        pytest.param(b"[", b"1,", id="numbers"),
    ],
)
def test_read_gzip_bomb_is_refused_in_little_memory(path: Path, start: bytes, unit: bytes) -> None:
    block = gzip.compress(unit * (MEBIBYTE // len(unit)))
    written(path, gzip.compress(start) + block * 400)
    assert path.stat().st_size < 4 * MEBIBYTE
    environment = os.environ | {"PYTHONPATH": str(Path(kernelgauge.__file__).parents[1])}
    command = [sys.executable, "-c", UNDER_A_LIMIT, str(path), str(600 * MEBIBYTE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
