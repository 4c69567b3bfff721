"""One run at a time, on a GPU and in a folder of reports: by lock files, across processes and users of a machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import MeasurementError, StorageError

__all__ = ["LOCKS", "FolderLock", "GpuLock", "who_holds"]

LOCKS = "KERNELGAUGE_LOCKS"  # folder of the lock files, to share it between containers
_PATIENCE_S = 3600.0  # of a nightly job: a suite takes minutes
_POLL_S = 0.2
_SAY_EVERY_S = 60.0


class GpuLock:
    """Held until `release`, or until the process ends, however it ends: the system frees it then."""

    def __init__(self, folder: Path | None = None, *, patience_s: float = _PATIENCE_S) -> None:
        # /tmp, and not the user's own folder: other users time on the same GPUs.
        self._folder = folder or Path(os.environ.get(LOCKS) or tempfile.gettempdir())
        self._patience_s = patience_s
        self._held: dict[str, FileLock] = {}
        self._given_up: set[str] = set()

    def path(self, gpu: str) -> Path:
        return self._folder / f"kernelgauge-gpu-{gpu}.lock"

    def hold(self, gpu: str, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Wait until nobody else holds this GPU, given by its digest (`gpus.digest`). Held already: nothing happens.

        Raises `MeasurementError` after an hour, `StorageError` where there can be no lock.
        """
        if gpu in self._held:
            return
        # Readable and writable for all: whoever comes first makes the file, others must be able to lock it.
        lock = FileLock(self.path(gpu), mode=0o666, poll_interval=_POLL_S)
        if gpu in self._given_up:  # the next test must not wait another hour
            raise self._too_long(gpu)

        def say(waited_s: float) -> None:
            waiting(f"another run times on GPU {gpu}: waiting for it ({waited_s:.0f} s so far)")

        try:
            if not _acquired(lock, self._patience_s, say):
                self._given_up.add(gpu)
                raise self._too_long(gpu)
        except OSError as error:
            raise StorageError(
                "the GPU cannot be locked",
                where=str(self.path(gpu)),
                got=str(error),
                expected="a folder for lock files that every user of the GPU can write",
                next_command=f"{LOCKS}=DIR pytest perf   (the same DIR for all who use the GPU)",
            ) from error
        self._held[gpu] = lock

    def hold_only(self, gpu: str, waiting: Callable[[str], None] = lambda _: None) -> None:
        """As `hold`, and no other. Nobody waits for a GPU while he holds another: two who do would wait for ever."""
        if gpu not in self._held:
            self.release()
        self.hold(gpu, waiting)

    def release(self) -> None:
        while self._held:
            _, lock = self._held.popitem()
            lock.release()

    def _too_long(self, gpu: str) -> MeasurementError:
        return MeasurementError(
            "another run of kernelgauge times on this GPU, and does not end",
            where=str(self.path(gpu)),
            got=f"the lock is held for more than {self._patience_s:g} s",
            expected="one run at a time on a GPU",
            next_command=who_holds(self.path(gpu)),
        )


class FolderLock:
    """On a folder of reports: two runs that write there at once would mix what they found. Held like `GpuLock`."""

    def __init__(self, folder: Path, *, patience_s: float = _PATIENCE_S) -> None:
        self._path = folder / ".lock"
        self._patience_s = patience_s
        self._lock = FileLock(self._path, poll_interval=_POLL_S)

    def hold(self, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Wait until no other run writes there. Raises `StorageError` after an hour, or where there can be no lock."""
        elsewhere = "--perf-reports=DIR writes elsewhere"

        def say(waited_s: float) -> None:
            where = self._path.parent
            waiting(f"another run writes to {where}: waiting for it ({waited_s:.0f} s so far; {elsewhere})")

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._lock.is_locked or _acquired(self._lock, self._patience_s, say):
                return
            got = f"another run holds {self._path.name} for more than {self._patience_s:g} s"
        except OSError as error:
            got = str(error)
        raise StorageError(
            "cannot write",
            where=str(self._path.parent),
            got=got,
            expected="a folder that can be written, by one run at a time",
            next_command=f"pytest perf --perf-reports=DIR   ({elsewhere})",
        )

    def release(self) -> None:
        self._lock.release()


def who_holds(path: Path) -> str:
    """The next command where a lock is held for too long.

    Nobody needs to delete the file: the lock is the system's, which frees it when the process ends. Without the file, a second
    one would get a lock of its own beside the first.
    """
    return f"fuser -v {path}   (which process holds it?)"


def _acquired(lock: FileLock, patience_s: float, say: Callable[[float], None]) -> bool:
    """Whether it was, in time. `say` is called with the seconds waited so far, at once and then every minute."""
    started, waited = time.monotonic(), 0.0
    while True:
        try:
            lock.acquire(timeout=min(_SAY_EVERY_S if waited else 0.0, max(0.0, patience_s - waited)))
            return True
        except Timeout:
            waited = time.monotonic() - started
            if waited >= patience_s:
                return False
            say(waited)
