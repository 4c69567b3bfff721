"""One run at a time on a GPU and in a folder of reports, across processes."""

import os
import stat
from pathlib import Path

import pytest

from kernelgauge.errors import StorageError
from kernelgauge.results.files import GpuLock, folder_lock

pytestmark = pytest.mark.timeout(120)


def test_gpu_lock_waits_once_holding_no_other_gpu(tmp_path: Path) -> None:
    other, lock = GpuLock(tmp_path), GpuLock(tmp_path, patience_s=0.1)
    other.hold("a")
    lock.hold("b")
    lock.hold("b")  # its own is no reason to wait
    for waiting in (lambda _: GpuLock(tmp_path, patience_s=0.0).hold("b"), pytest.fail):
        with pytest.raises(StorageError, match="another run times on GPU a"):
            lock.hold("a", waiting)  # the next test must not wait another hour
    other.release()
    lock.hold("a", pytest.fail)


def test_gpu_lock_of_the_parent_is_no_reason_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, other = GpuLock(tmp_path), GpuLock(tmp_path)
    assert parent.environment_of_child() == {}
    parent.hold("a")
    other.hold("b")
    ((name, value),) = parent.environment_of_child().items()
    assert value == f"{os.getpid()}:{tmp_path}/kernelgauge-gpu-a.lock"
    # Not the child of the holder, but a process that has its environment; and a child on another
    # GPU.
    for pid, gpu in ((os.getpid(), "a"), (os.getppid(), "b")):
        monkeypatch.setenv(name, value.replace(str(os.getpid()), str(pid), 1))
        with pytest.raises(StorageError, match=f"another run times on GPU {gpu}"):
            GpuLock(tmp_path, patience_s=0.0).hold(gpu)
    GpuLock(tmp_path, patience_s=0.0).hold("a", pytest.fail)


def test_gpu_lock_is_open_to_other_users(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        GpuLock(tmp_path).hold("a")
    finally:
        os.umask(before)
    file = tmp_path / "kernelgauge-gpu-a.lock"
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    with pytest.raises(StorageError, match=r"(?s)cannot write.*KERNELGAUGE_LOCKS=DIR"):
        GpuLock(file).hold("a")


def test_folder_lock_lets_one_run_write(tmp_path: Path) -> None:
    first, second = (folder_lock(tmp_path / "reports", patience_s=0.0) for _ in range(2))
    first.hold()
    first.hold(pytest.fail)  # its own is no reason to wait
    with pytest.raises(StorageError, match="kernelgauge_reports=DIR writes elsewhere"):
        second.hold(pytest.fail)
    first.release()
    second.hold(pytest.fail)
    second.release()
