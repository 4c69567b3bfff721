"""Baselines on disk: atomic, locked, validated. The only module that writes them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from .errors import BaselineError, StorageError
from .judge.baseline import Baseline, decode_baseline, encode_baseline
from .judge.update import Action, PlannedChange

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BaselineStore", "is_file_name", "slug", "write_atomically"]

_LOCK_TIMEOUT_SECONDS = 30.0  # an update writes a few small files: one that holds the lock longer hangs


# What a workload's id is made of. Results may come from a stranger: nothing else becomes a path.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LONGEST_NAME = 200  # of 255 bytes that a file system takes, for what a temporary file adds


def is_file_name(workload: str) -> bool:
    """Whether an id can name a file of the baselines."""
    return len(workload) <= _LONGEST_NAME and _FILE_NAME.fullmatch(workload) is not None


def slug(device: str) -> str:
    """Folder name of a device: ``NVIDIA H200`` -> ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:_LONGEST_NAME] or "unknown"


class BaselineStore:
    """`<root>/<gpu>/<workload>.json`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, device: str, workload: str) -> Path:
        """Raises `StorageError` for an id that is no file name."""
        if not is_file_name(workload):
            raise StorageError(
                "a workload's id becomes a file name",
                got=repr(workload),
                expected=f"at most {_LONGEST_NAME} letters, digits, '_', '-' and '.'",
            )
        return self.root / slug(device) / f"{workload}.json"

    def load(self, device: str, workload: str) -> Baseline | None:
        """The stored baseline; None if there is no file.

        Raises `BaselineError` if there is a file that cannot be used.
        """
        path = self.path(device, workload)
        if path.exists() and not path.is_file():  # a FIFO would block for ever
            raise BaselineError("the baseline cannot be read", where=str(path), got="not a regular file")
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BaselineError("the baseline cannot be read", where=str(path), got=str(error)) from error
        return decode_baseline(content, where=str(path), workload=workload)

    def stored(self, device: str) -> dict[str, Baseline | None]:
        """Every baseline of a device by workload id; None for a file that cannot be read."""
        found = self.stored_or_wrong(device)
        return {name: old if isinstance(old, Baseline) else None for name, old in found.items()}

    def stored_or_wrong(self, device: str) -> dict[str, Baseline | BaselineError]:
        """The same, with what is wrong with a file that cannot be read."""
        found: dict[str, Baseline | BaselineError] = {}
        for path in sorted((self.root / slug(device)).glob("*.json")):
            try:
                loaded = self.load(device, path.stem)
            except BaselineError as error:
                found[path.stem] = error
            else:
                if loaded is not None:  # else it went away since the folder was listed
                    found[path.stem] = loaded
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the update lock, across processes. Raises `StorageError` if another update holds it for too long."""
        lock = FileLock(self.root / ".update.lock", timeout=_LOCK_TIMEOUT_SECONDS)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise StorageError(
                "another update of these baselines is running",
                where=str(self.root),
                expected=f"the lock within {_LOCK_TIMEOUT_SECONDS:g} s",
                next_command="wait for it, or delete the lock file if no such run is alive",
            ) from error
        except OSError as error:
            raise _unwritable(self.root, error) from error
        try:
            yield
        finally:
            lock.release()

    def apply(self, device: str, plan: Iterable[PlannedChange]) -> None:
        """Carry out a plan, file by file. Each file is whole at every moment. Call it inside `locked`.

        Raises `StorageError` for the first file that cannot be written: those before it are, and the same plan made
        again goes on from there.
        """
        for change in plan:
            path = self.path(device, change.workload)
            if change.baseline is not None:
                _sweep(path)
                write_atomically(path, encode_baseline(change.baseline))
            elif change.action is Action.TRIM:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise _unwritable(path, error) from error


def _sweep(path: Path) -> None:
    """Remove what writers of this file left that were killed. Whoever holds the lock knows that none is at work."""
    with suppress(OSError):
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            left.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, then rename: a reader sees the old file or the new one, never a part.

    Raises `StorageError` if the folder cannot be written.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes it private; a baseline is for everybody
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if temporary is not None:
            with suppress(FileNotFoundError):  # gone once it was renamed; left if anything, Ctrl-C too, came between
                os.unlink(temporary)


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        "cannot write",
        where=str(path),
        got=str(error),
        expected="a folder that can be written",
        next_command="pytest perf --perf-reports=DIR --perf-baselines=DIR   (to write elsewhere)",
    )
