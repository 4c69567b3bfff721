"""No file of a history is half written or lost, whoever is killed and whatever is full."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelgauge.errors import StorageError
from kernelgauge.history import add_to_history
from tests.history.nights import ROOT, night, read, timed

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


def test_of_200_writers_at_once_killed_at_any_moment_no_file_is_half_written_or_lost(tmp_path: Path) -> None:
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
    found, aside = read(history)
    assert aside == []  # every file that has a name is whole
    assert set(told) <= set(found)  # and every one that was acknowledged is there
    assert len(told) >= 50 * 3
    assert any(int(str(entry.gpu), 16) < 150 for entry in found.values())  # those that were killed had written
    assert {str(path.relative_to(history)) for path in history.rglob("[!.]*.json")} == set(found)


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
def test_a_write_that_the_system_ends_at_any_byte_leaves_the_history_as_it_was(
    tmp_path: Path, written_bytes: int, how: str
) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    before, _ = read(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WITHIN_A_WRITE, tmp_path, str(written_bytes), how, ROOT / "src", ROOT],
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended = (-signal.SIGXFSZ, "") if how == "kill" else (0, "cannot add to the history\n")
    assert (done.returncode, done.stdout) == ended
    assert read(tmp_path) == (before, [])
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert len(left) == (1 if how == "kill" else 0)
    assert len(add_to_history(night(1, timed()), str(tmp_path)).written) == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_is_full_at_the_last_moment_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(StorageError, match="cannot add") as caught:
            add_to_history(night(0, timed()), str(tmp_path))
    assert "No space left" in (caught.value.got or "")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
