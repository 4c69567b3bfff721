"""The store of baselines: atomic, locked, validated. The only module that writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BaselineError, StorageError
from ..judge.baseline import Baseline, decode_baseline, encode_baseline
from ..judge.review import Action, PlannedChange
from ..results.files import LONGEST_NAME, Lock, is_file_name, slug, unwritable, write_files

__all__ = ["BaselineStore"]

_LOCK_TIMEOUT_SECONDS = 30.0  # an update writes a few small files: one that holds the lock longer hangs


class BaselineStore:
    """The files `<root>/<gpu>/<workload>.json`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, device: str, workload: str) -> Path:
        """Return the file of a baseline. Raises `StorageError` for an id that is no file name."""
        if not is_file_name(workload):
            raise StorageError(
                "a workload's id becomes a file name",
                got=repr(workload),
                expected=f"at most {LONGEST_NAME} letters, digits, '_', '-' and '.'",
            )
        return self.root / slug(device) / f"{workload}.json"

    def load(self, device: str, workload: str) -> Baseline | None:
        """Return the stored baseline; None if there is no file.

        Raises `BaselineError` if there is a file that cannot be used.
        """
        path = self.path(device, workload)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BaselineError(
                "the baseline cannot be read",
                where=str(path),
                got=str(error),
                expected="a regular file",
                next_command=f"ls -l {path}",
            ) from error
        where = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        return decode_baseline(content, where=where, workload=workload)

    def stored(self, device: str) -> dict[str, Baseline | BaselineError]:
        """Return every baseline of a device by workload id, or the error if its file cannot be used.

        Raises `BaselineError` if the folder cannot be listed: it is never taken for an empty one.
        """
        found: dict[str, Baseline | BaselineError] = {}
        for name in _names(self.root / slug(device)):
            try:
                loaded = self.load(device, name)
            except BaselineError as error:
                found[name] = error
            else:
                if loaded is not None:  # else it went away since the folder was listed
                    found[name] = loaded
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the update lock, across processes. Raises `StorageError` if another update holds it for too long."""
        reason = "another update of these baselines is running"
        lock = Lock(self.root / ".update.lock", reason, patience_s=_LOCK_TIMEOUT_SECONDS)
        lock.hold()
        try:
            yield
        finally:
            lock.release()

    def apply(self, device: str, plan: Iterable[PlannedChange]) -> None:
        """Carry out the plan of one device. See `apply_all`."""
        self.apply_all([(device, plan)])

    def apply_all(self, plans: Iterable[tuple[str, Iterable[PlannedChange]]]) -> None:
        """Carry out the plans of several devices together. Call it inside `locked`.

        A kill or a full disk leaves all of the old files. Raises `StorageError` if one of them cannot be written.
        """
        changes = [(self.path(device, change.workload), change) for device, plan in plans for change in plan]
        contents = {path: encode_baseline(each.baseline) for path, each in changes if each.baseline is not None}
        for path in contents:
            _sweep(path)
        write_files(contents)
        for path, change in changes:
            if change.action is Action.TRIM:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise unwritable(path, error) from error


def _names(folder: Path) -> list[str]:
    """Return the ids of the workloads that a folder has a file of. Other files are somebody else's."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BaselineError(
            "the baselines cannot be listed",
            where=str(folder),
            got=str(error),
            expected="a folder that can be read",
            next_command=f"ls -ld {folder}",
        ) from error
    return list(filter(is_file_name, names))


def _sweep(path: Path) -> None:
    """Remove what killed writers of this file left. Call it inside `locked`: no writer is at work then."""
    with suppress(OSError):
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            left.unlink(missing_ok=True)
