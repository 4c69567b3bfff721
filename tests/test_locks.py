"""One run at a time on a GPU, across real processes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelgauge.errors import MeasurementError, StorageError
from kernelgauge.files import LOCKS, FolderLock, GpuLock

pytestmark = pytest.mark.timeout(120)

HOLD = """
import sys, time
from pathlib import Path
from kernelgauge.files import GpuLock
lock = GpuLock(Path(sys.argv[1]))
lock.hold(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""

# Everybody writes when it begins and ends to time: nobody else's line may stand between the two.
TAKE_TURNS = """
import sys, time
from pathlib import Path
from kernelgauge.files import GpuLock
lock = GpuLock(Path(sys.argv[1]))
lock.hold("a")
with open(sys.argv[3], "a", buffering=1) as log:
    log.write(f"begin {sys.argv[2]}\\n")
    time.sleep(0.05)
    log.write(f"end {sys.argv[2]}\\n")
lock.release()
"""


def holder(folder: Path, gpu: str = "a") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), gpu], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_two_runs_never_time_on_one_gpu_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    runs = [
        subprocess.Popen([sys.executable, "-c", TAKE_TURNS, str(tmp_path), str(number), str(log)])
        for number in range(8)
    ]
    assert [run.wait(60) for run in runs] == [0] * 8
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) == 16
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert begin.replace("begin", "end") == end


def test_who_waits_says_so_and_goes_on_when_the_other_is_done(tmp_path: Path) -> None:
    other = holder(tmp_path)
    said: list[str] = []

    def waiting(what: str) -> None:
        said.append(what)
        other.communicate("")  # it ends, and is gone when this returns

    GpuLock(tmp_path).hold("a", waiting)
    assert said == ["another run times on GPU a: waiting for it (0 s so far)"]


def test_a_holder_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    other = holder(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait(30)
    GpuLock(tmp_path, patience_s=0.0).hold("a")


def test_another_gpu_is_free(tmp_path: Path) -> None:
    other = holder(tmp_path)
    GpuLock(tmp_path, patience_s=0.0).hold("b")
    other.communicate("")


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    other = holder(tmp_path)
    started = time.monotonic()
    with pytest.raises(MeasurementError, match="does not end") as caught:
        GpuLock(tmp_path, patience_s=0.5).hold("a")
    assert 0.4 < time.monotonic() - started < 10
    assert str(tmp_path / "kernelgauge-gpu-a.lock") in str(caught.value)
    other.communicate("")


def test_who_gave_up_does_not_wait_again(tmp_path: Path) -> None:
    other = holder(tmp_path)
    lock = GpuLock(tmp_path, patience_s=0.5)
    for patient in (True, False):
        started = time.monotonic()
        with pytest.raises(MeasurementError, match="does not end"):
            lock.hold("a")
        assert (time.monotonic() - started > 0.4) == patient
    other.communicate("")


def test_nobody_holds_one_gpu_while_he_waits_for_another(tmp_path: Path) -> None:
    lock = GpuLock(tmp_path, patience_s=0.0)
    lock.hold("a")
    other = holder(tmp_path, "b")
    with pytest.raises(MeasurementError):
        lock.hold_only("b")
    GpuLock(tmp_path, patience_s=0.0).hold("a")
    other.communicate("")


def test_what_is_held_already_is_not_waited_for(tmp_path: Path) -> None:
    lock = GpuLock(tmp_path, patience_s=0.0)
    lock.hold("a")
    lock.hold("a")
    lock.release()
    GpuLock(tmp_path, patience_s=0.0).hold("a")


def test_other_users_can_lock_the_file_too(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        GpuLock(tmp_path).hold("a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "kernelgauge-gpu-a.lock").stat().st_mode) == 0o666


def test_the_folder_of_the_locks_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCKS, str(tmp_path))
    lock = GpuLock()
    lock.hold("a")
    assert lock.path("a").parent == tmp_path
    assert lock.path("a").exists()


def test_where_no_lock_can_be_made_nothing_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be locked"):
        GpuLock(tmp_path / "file").hold("a")


def test_two_runs_never_write_to_one_folder_of_reports_at_once(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "reports"), FolderLock(tmp_path / "reports", patience_s=0.5)
    first.hold()
    first.hold()  # its own is no reason to wait
    said: list[str] = []
    with pytest.raises(StorageError, match="cannot write") as caught:
        second.hold(said.append)
    assert "kernelgauge_reports=DIR" in str(caught.value)
    assert said
    assert said[0].startswith(f"another run writes to {tmp_path / 'reports'}: waiting for it (0 s so far")
    first.release()
    second.hold()
    second.release()
