"""One run at a time on a GPU and in a folder of reports, across processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernelgauge.errors import StorageError
from kernelgauge.results.files import GpuLock, folder_lock

pytestmark = pytest.mark.timeout(120)

HOLD = """
import sys
from pathlib import Path
from kernelgauge.results.files import GpuLock
lock = GpuLock(Path(sys.argv[1]))
lock.hold("a")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> GpuLock:
    """Another run's lock, which holds a GPU."""
    lock = GpuLock(tmp_path)
    lock.hold("a")
    return lock


def test_gpu_lock_waits_aloud_until_the_other_ends(tmp_path: Path, other: GpuLock) -> None:
    messages: list[str] = []
    GpuLock(tmp_path).hold("a", lambda message: (messages.append(message), other.release()))
    assert messages == ["another run times on GPU a: waiting for it (0 s so far)"]


def test_lock_of_killed_process_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    lock = GpuLock(tmp_path, patience_s=0.0)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StorageError):
            lock.hold("a")
        process.kill()
    GpuLock(tmp_path, patience_s=0.0).hold("a")


def test_gpu_lock_waits_in_vain_once(tmp_path: Path, other: GpuLock) -> None:
    lock = GpuLock(tmp_path, patience_s=0.1)
    with pytest.raises(StorageError, match=r"timed out after 0\.1 s: another run times on GPU a") as caught:
        lock.hold("a")
    assert caught.value.where == str(tmp_path / "kernelgauge-gpu-a.lock")
    with pytest.raises(StorageError, match="another run times on GPU a"):
        lock.hold("a", pytest.fail)  # the next test must not wait another hour
    other.release()
    lock.hold("a")


def test_gpu_lock_frees_one_gpu_before_it_waits(tmp_path: Path, other: GpuLock) -> None:
    lock = GpuLock(tmp_path, patience_s=0.0)
    lock.hold("b")
    lock.hold("b")  # its own is no reason to wait
    with pytest.raises(StorageError):
        lock.hold("a")
    GpuLock(tmp_path, patience_s=0.0).hold("b")


def test_gpu_lock_is_open_to_other_users(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        GpuLock(tmp_path).hold("a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "kernelgauge-gpu-a.lock").stat().st_mode) == 0o666


def test_gpu_lock_without_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write") as caught:
        GpuLock(tmp_path / "file").hold("a")
    assert "KERNELGAUGE_LOCKS=DIR" in str(caught.value)


def test_folder_lock_lets_one_run_write(tmp_path: Path) -> None:
    first, second = (folder_lock(tmp_path / "reports", patience_s=0.0) for _ in range(2))
    first.hold()
    first.hold(pytest.fail)  # its own is no reason to wait
    with pytest.raises(StorageError, match="kernelgauge_reports=DIR writes elsewhere"):
        second.hold(pytest.fail)
    first.release()
    second.hold(pytest.fail)
    second.release()
