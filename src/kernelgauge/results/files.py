"""Files and locks: replace files whole, and let one run at a time use a GPU or a folder."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import MeasurementError, StorageError

__all__ = [
    "LOCKS",
    "LONGEST_NAME",
    "WAITING",
    "FolderLock",
    "GpuLock",
    "is_file_name",
    "slug",
    "unwritable",
    "who_holds",
    "write_atomically",
    "write_files",
]

# -- names ------------------------------------------------------------------------------------------------------------

# What a workload's id is made of. Results may come from a stranger: nothing else becomes a path.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
LONGEST_NAME = 200  # of 255 bytes that a file system takes, for what a temporary file adds


def is_file_name(workload: str) -> bool:
    """Return whether an id can name a file of the baselines."""
    return len(workload) <= LONGEST_NAME and _FILE_NAME.fullmatch(workload) is not None


def slug(device: str) -> str:
    """Return the folder name of a device: ``NVIDIA H200`` -> ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:LONGEST_NAME] or "unknown"


# -- writing ----------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole. Raises what `write_files` raises."""
    write_files({path: content})


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write each file beside its target, then rename all: a reader sees an old file or a new one, never a part.

    All contents are on the disk before the first file is replaced: a kill or a full disk leaves the old files.
    Raises `StorageError` if one cannot be written.
    """
    written: list[tuple[str, Path]] = []
    try:
        for path, content in contents.items():
            if path.exists() and not path.is_file():  # renaming over a device would replace it by a file
                raise OSError("not a regular file")
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
            written.append((temporary, path))
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp makes it private; a baseline is for everybody
        for temporary, path in written:
            os.replace(temporary, path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        for temporary, _ in written:
            with suppress(FileNotFoundError):  # gone once it was renamed
                os.unlink(temporary)


def unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        "cannot write",
        where=str(path),
        got=str(error),
        expected="a folder that can be written",
        next_command=f"ls -ld {path} {path.parent}; df -h {path.parent}   (who may write there? is there room?)",
    )


# -- locks ------------------------------------------------------------------------------------------------------------

WAITING = "kernelgauge: "  # prefix of messages about waiting, on the standard error of a process without a terminal
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
        self._given_up: set[str] = set()  # the next test must not wait another hour

    def hold(self, gpu: str, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Wait until nobody else holds this GPU, given by its digest. Held already: nothing happens.

        Raises `MeasurementError` after an hour, `StorageError` where there can be no lock.
        """
        if gpu in self._held:
            return
        path = self._folder / f"kernelgauge-gpu-{gpu}.lock"
        # Readable and writable for all: whoever comes first makes the file, others must be able to lock it.
        lock = FileLock(path, mode=0o666, poll_interval=_POLL_S)
        reason = f"another run times on GPU {gpu}"
        try:
            is_held = gpu not in self._given_up and _acquire(lock, self._patience_s, reason, waiting)
        except OSError as error:
            raise StorageError(
                "the GPU cannot be locked",
                where=str(path),
                got=str(error),
                expected="a folder for lock files that every user of the GPU can write",
                next_command=f"{LOCKS}=DIR pytest perf   (the same DIR for all who use the GPU)",
            ) from error
        if not is_held:
            self._given_up.add(gpu)
            raise MeasurementError(
                f"timed out after {self._patience_s:g} s waiting for the GPU lock",
                where=str(path),
                got="another run of kernelgauge holds it",
                expected="one run at a time on a GPU",
                next_command=who_holds(path),
            )
        self._held[gpu] = lock

    def hold_only(self, gpu: str, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Hold this GPU and release all others first: two runs that each wait for the other's GPU would wait for ever."""
        if gpu not in self._held:
            self.release()
        self.hold(gpu, waiting)

    def release(self) -> None:
        while self._held:
            _, lock = self._held.popitem()
            lock.release()


class FolderLock:
    """On a folder of reports: two runs that write there at once would mix what they found. Held like `GpuLock`."""

    def __init__(self, folder: Path, *, patience_s: float = _PATIENCE_S) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._lock = FileLock(folder / ".lock", poll_interval=_POLL_S)

    def hold(self, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Wait until no other run writes there. Raises `StorageError` after an hour, or where there can be no lock."""
        reason = f"another run writes to {self._folder}; -o kernelgauge_reports=DIR writes elsewhere"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._lock.is_locked or _acquire(self._lock, self._patience_s, reason, waiting):
                return
            got = f"another run holds .lock for more than {self._patience_s:g} s"
        except OSError as error:
            got = str(error)
        raise StorageError(
            "cannot write",
            where=str(self._folder),
            got=got,
            expected="a folder that can be written, by one run at a time",
            next_command="pytest perf -o kernelgauge_reports=DIR   (writes elsewhere)",
        )

    def release(self) -> None:
        self._lock.release()


def who_holds(path: Path) -> str:
    """Return the next command where a lock is held for too long. Deleting the file would let two runs hold it."""
    return f"fuser -v {path}   (which process holds it?)"


def _acquire(lock: FileLock, patience_s: float, reason: str, waiting: Callable[[str], None]) -> bool:
    """Return whether the lock was free in time. Say why it is waited for, at once and then every minute."""
    started, waited = time.monotonic(), 0.0
    while True:
        try:
            lock.acquire(timeout=min(_SAY_EVERY_S if waited else 0.0, max(0.0, patience_s - waited)))
            return True
        except Timeout:
            waited = time.monotonic() - started
            if waited >= patience_s:
                return False
            waiting(f"{reason}: waiting for it ({waited:.0f} s so far)")
