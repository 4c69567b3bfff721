"""Killed writers: no file is half written or lost, and no temporary file stays."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelgauge.history import add_to_history
from tests.history.nights import ROOT, night, shown, stored, timed


def temporary_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]


WRITERS = """
import os, random, signal, sys, time
sys.path[:0] = sys.argv[3:5]
from kernelgauge.history import add_to_history
from tests.history.nights import night, timed

history, acknowledged = sys.argv[1:3]
COUNT, KILLED, FINISHED_NIGHTS = 200, 150, 3
log = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
waiting, go = os.pipe()

def write(number):
    os.close(go)
    os.read(waiting, 1)  # until all are there
    gpu = f"{number:08x}"
    last = 10_000 if number < KILLED else FINISHED_NIGHTS  # those that are killed never end by themselves
    for each in range(last):
        for key in add_to_history(night(each % 300, timed(200.0 + each, gpu=gpu), gpu=gpu), history).written:
            os.write(log, f"{key}\\n".encode())

pids = []
for number in range(COUNT):
    pid = os.fork()
    if not pid:
        try:
            write(number)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    pids.append(pid)
os.close(go)
while os.fstat(log).st_size < 200 * 50:  # all are busy: those that end by themselves write 150 of these lines
    time.sleep(0.01)
chance = random.Random(0)
for pid in chance.sample(pids[:KILLED], KILLED):
    time.sleep(chance.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
ends = [os.waitpid(pid, 0)[1] for pid in pids]
print(sum(os.WIFSIGNALED(end) for end in ends), sum(end == 0 for end in ends))
"""


def test_200_writers_killed_at_random_lose_no_file(tmp_path: Path) -> None:
    history, acknowledged = tmp_path / "history", tmp_path / "acknowledged"
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, history, acknowledged, ROOT / "src", ROOT],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stderr == ""
    assert done.stdout == "150 50\n"
    told = acknowledged.read_text().splitlines()
    found = shown(history)
    assert found.not_shown == ()  # every file that has a name is whole
    files = stored(history)
    assert found.files == len(files)
    assert set(told) <= set(files)  # and every one that was acknowledged is there
    assert len(told) >= 50 * 3
    assert any(int(entry["gpu"], 16) < 150 for entry in files.values())  # those that were killed had written
    add_to_history(night(301, timed()), str(history))
    assert temporary_files(history) == []


WITHIN_A_WRITE = """
import resource, signal, sys
sys.path[:0] = sys.argv[4:6]
from kernelgauge.errors import StorageError
from kernelgauge.history import add_to_history
from tests.history.nights import night, timed

told = night(1, timed())
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL if sys.argv[3] == "kill" else signal.SIG_IGN)
try:
    add_to_history(told, sys.argv[1])
except StorageError as error:
    print(error.what)
"""


@pytest.mark.parametrize("written_bytes", [0, 1, 700])
@pytest.mark.parametrize("how", ["kill", "fail"])
def test_write_ended_at_any_byte_leaves_history_as_it_was(tmp_path: Path, written_bytes: int, how: str) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    before = stored(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WITHIN_A_WRITE, tmp_path, str(written_bytes), how, ROOT / "src", ROOT],
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended = (-signal.SIGXFSZ, "") if how == "kill" else (0, "cannot add to the history\n")
    assert (done.returncode, done.stdout) == ended
    assert (stored(tmp_path), shown(tmp_path).not_shown) == (before, ())
    assert len(temporary_files(tmp_path)) == (1 if how == "kill" else 0)
    assert len(add_to_history(night(0, timed()), str(tmp_path)).there) == 1
    assert temporary_files(tmp_path) == []


def test_temporary_file_of_another_writer_at_work_stays(tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    left = tmp_path / "2026" / "01" / ".20260105T023000Z-aa-0123456789abcdef.v2.json.x.tmp"
    left.touch()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as a writer holds it
    add_to_history(night(1, timed()), str(tmp_path))
    assert temporary_files(tmp_path) == [left]
    os.close(descriptor)
    add_to_history(night(2, timed()), str(tmp_path))
    assert temporary_files(tmp_path) == []
