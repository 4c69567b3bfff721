"""Files and locks: replace files whole, and let one run at a time use a GPU or a folder."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from ..errors import StorageError, printable
from ..run import KernelChoice

# -- names -----------------------------------------------------------------------------------------

# What a workload's id is made of. Results may come from a stranger: nothing else becomes a path.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
LONGEST_NAME = 200  # of 255 bytes that a file system takes, for what a temporary file adds


def is_file_name(workload: str) -> bool:
    """Return whether an id can name a file of the baselines."""
    return len(workload) <= LONGEST_NAME and _FILE_NAME.fullmatch(workload) is not None


def slug(device: str) -> str:
    """Return the folder name of a device: ``NVIDIA H200`` -> ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:LONGEST_NAME] or "unknown"


# -- reading ---------------------------------------------------------------------------------------

_MOST_BYTES = 2**28  # of a file with results, or a baseline: it is damaged if it has more


def read_file(path: Path) -> bytes:
    """Return the content of a file.

    Raises `OSError` for one that is no file of ours: a device or a pipe has no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > _MOST_BYTES:
            raise OSError(f"too large: {status.st_size} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_MOST_BYTES)
    finally:
        os.close(descriptor)


def require_inside(path: Path, root: Path) -> None:
    """Raise `OSError` if a path leads out of a folder by a link, and out of the repository that the
    folder is in.

    Somebody else may have committed the link. A repository's own files, in `.git`, are outside too.
    """
    home, target = Path(os.path.abspath(root)), Path(os.path.realpath(path))
    home = Path(os.path.realpath(home.parent), home.name)  # it may be a link itself
    top = next((each for each in (home, *home.parents) if (each / ".git").exists()), None)
    if top is None:  # the user's own folder
        home = top = Path(os.path.realpath(home))
    if not any(map(target.is_relative_to, (home, top))) or ".git" in target.relative_to(top).parts:
        raise OSError(
            f"a link to {printable(str(target))}, which is outside of {printable(str(top))}"
        )


# -- writing ---------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole. Raises what `write_files` raises."""
    write_files({path: content})


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write each file beside its target, then rename all: a reader sees an old file or a new one,
    never a part.

    All contents are on the disk before the first file is replaced: a full disk leaves the old
    files. A kill leaves each file old or new, and perhaps a temporary one (`remove_temporary`).
    Raises `StorageError` if one cannot be written.
    """
    written: list[tuple[str, Path]] = []
    try:
        for link, content in contents.items():
            path = Path(os.path.realpath(link))  # a link stays one
            # renaming over a device would replace it by a file
            if path.exists() and not path.is_file():
                raise OSError("not a regular file")
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(
                dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
            )
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


def remove_temporary(folder: Path) -> None:
    """Remove the temporary files that a killed process left. Call it where nobody else writes."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError, *, elsewhere: str | None = None) -> StorageError:
    """Return the error of a file that cannot be written.

    `elsewhere`: the command that writes to another place.
    """
    return StorageError(
        "cannot write",
        where=str(path),
        got=str(error),
        expected="a folder that can be written",
        next_command=elsewhere
        or f"ls -ld {path} {path.parent}; df -h {path.parent}   (who may write? is there room?)",
    )


# -- locks -----------------------------------------------------------------------------------------

# Prefixes of lines on the standard error of a process without a terminal: that it waits, and how
# far it is.
WAITING, DOING = "kernelgauge: ", "kernelgauge measures: "
# of a process that measures for its parent: the parent's number, and the lock that it holds
_HELD = "KERNELGAUGE_HELD"
LOCKS = "KERNELGAUGE_LOCKS"  # folder of the lock files, to share it between containers
_PATIENCE_S = 3600.0  # of a nightly job: a suite takes minutes
_POLL_S = 0.2
_QUIET_S, _SAY_EVERY_S = 5.0, 60.0  # a wait of seconds is no news


class Lock:
    """A lock file. Held until `release`, or until the process ends, however it ends: the system
    frees it then.

    Args:
        reason: why somebody else holds it, for whoever waits.
        elsewhere: the command to run where there can be no lock.
        ignores_folder: let git ignore its folder where the lock makes that.
    """

    def __init__(
        self,
        path: Path,
        reason: str,
        *,
        elsewhere: str | None = None,
        patience_s: float,
        ignores_folder: bool = False,
    ) -> None:
        self.path = path
        self._ignores_folder = ignores_folder
        self._reason = reason
        self._elsewhere = elsewhere
        self._patience_s = patience_s
        # Readable and writable for all: whoever comes first makes the file, others must be able to
        # lock it.
        self._lock = FileLock(path, mode=0o666, poll_interval=_POLL_S)

    def hold(self, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Wait until nobody else holds it. Say why after five seconds, then every minute. If it is
        held already, do nothing.

        Raises `StorageError` if it is not free in time, or where there can be no lock.
        """
        started, waited = time.monotonic(), 0.0
        while not self._lock.is_locked:
            try:
                if self._ignores_folder and not self.path.parent.exists():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    (self.path.parent / ".gitignore").write_text("*\n")
                if self.path.is_symlink():  # locking empties the file
                    raise OSError(f"{self.path.name} is a link")
                self._lock.acquire(
                    timeout=min(
                        _SAY_EVERY_S if waited else _QUIET_S, max(0.0, self._patience_s - waited)
                    )
                )
            except Timeout as error:
                waited = time.monotonic() - started
                if waited < self._patience_s:
                    waiting(f"{self._reason}: waiting for it ({waited:.0f} s so far)")
                    continue
                what = f"timed out after {self._patience_s:g} s: {self._reason}"
                self._patience_s = 0.0  # the next test must not wait another hour
                # Deleting the file would let two runs hold it.
                command = f"fuser -v {self.path}   (which process holds it?)"
                raise StorageError(what, where=str(self.path), next_command=command) from error
            except OSError as error:
                raise unwritable(self.path.parent, error, elsewhere=self._elsewhere) from error

    def release(self) -> None:
        self._lock.release()


class GpuLock:
    """On one GPU at a time: two runs that each wait for the other's second GPU would wait for
    ever.
    """

    def __init__(self, folder: Path | None = None, *, patience_s: float = _PATIENCE_S) -> None:
        # /tmp, and not the user's own folder: other users time on the same GPUs.
        self._folder = folder or Path(os.environ.get(LOCKS) or tempfile.gettempdir())
        self._patience_s = patience_s
        self._lock: Lock | None = None
        parent, _, held = os.environ.get(_HELD, "").partition(":")
        # nobody else inherits it
        self._held_by_parent = Path(held) if parent == str(os.getppid()) else None

    def hold(self, gpu: str, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Hold this GPU, given by its digest, and no other.

        Raises `StorageError` after an hour, or as `Lock.hold`.
        """
        path = self._folder / f"kernelgauge-gpu-{gpu}.lock"
        if path == self._held_by_parent:  # which waits for this process
            return
        if self._lock is None or self._lock.path != path:
            self.release()
            elsewhere = f"export {LOCKS}=DIR   (the same DIR for all who use the GPU)"
            reason = f"another run times on GPU {gpu}"
            self._lock = Lock(path, reason, elsewhere=elsewhere, patience_s=self._patience_s)
        self._lock.hold(waiting)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def environment_of_child(self) -> dict[str, str]:
        """Return what lets a child process use the GPU that this process holds, as long as it waits
        for the child.
        """
        return {} if self._lock is None else {_HELD: f"{os.getpid()}:{self._lock.path}"}


CHOICES = "KERNELGAUGE_CHOICES"  # names a file: what an earlier process hands to a fresh one


@cache
def handed_choices() -> dict[str, tuple[KernelChoice, ...]]:
    """Return the choices of autotuners that this process was started with, by workload."""
    file = os.environ.get(CHOICES)
    if not file:
        return {}
    return msgspec.json.decode(Path(file).read_bytes(), type=dict[str, tuple[KernelChoice, ...]])


def folder_lock(folder: Path, *, patience_s: float = _PATIENCE_S) -> Lock:
    """Return the lock on a folder of reports: two runs that write there at once would mix what they
    found.
    """
    elsewhere = "pytest ... -o kernelgauge_reports=DIR   (writes elsewhere)"
    reason = f"another run writes to {folder}; -o kernelgauge_reports=DIR writes elsewhere"
    return Lock(
        folder / ".lock",
        reason,
        elsewhere=elsewhere,
        patience_s=patience_s,
        ignores_folder=True,
    )


def worker_lock(folder: Path, *, patience_s: float = _PATIENCE_S) -> Lock:
    """Return the lock by which workers of one run measure one after another on a CPU, where no GPU
    keeps them apart.
    """
    return Lock(
        folder / ".worker.lock", "another worker of this run measures", patience_s=patience_s
    )
