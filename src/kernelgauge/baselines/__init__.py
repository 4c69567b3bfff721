"""The store of baselines: atomic, locked, validated. The only module that writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import BaselineError, StorageError
from ..judge.baseline import Baseline, decode_baseline, encode_baseline
from ..judge.review import PlannedChange
from ..results.files import LONGEST_NAME, Lock, is_file_name, remove_temporary, slug, write_files

_LOCK_TIMEOUT_SECONDS = 30.0  # an update writes a few small files: one that holds the lock longer hangs


class BaselineStore:
    """The files `<root>/<gpu>/<workload>.json`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, device: str, workload: str) -> Path:
        """Return the file of a baseline. Raises `StorageError` for an id that is no file name."""
        if not is_file_name(workload):
            expected = f"at most {LONGEST_NAME} letters, digits, '_', '-' and '.'"
            raise StorageError("a workload's id becomes a file name", got=repr(workload), expected=expected)
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
            raise _unreadable("the baseline cannot be read", path, error) from error
        where = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        return decode_baseline(content, where=where, workload=workload)

    def stored(self, device: str) -> dict[str, Baseline | BaselineError]:
        """Return every baseline of a device by workload id, or the error if its file cannot be used.

        Files whose names are no ids are somebody else's. Raises `BaselineError` if the folder cannot be listed: it is never
        taken for an empty one.
        """
        folder = self.root / slug(device)
        try:
            names = sorted(name.removesuffix(".json") for name in os.listdir(folder) if name.endswith(".json"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unreadable("the baselines cannot be listed", folder, error) from error
        found: dict[str, Baseline | BaselineError] = {}
        for name in filter(is_file_name, names):
            try:
                if (baseline := self.load(device, name)) is not None:  # else it went away since the folder was listed
                    found[name] = baseline
            except BaselineError as error:
                found[name] = error
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

    def apply(self, plans: Mapping[str, Iterable[PlannedChange]]) -> None:
        """Carry out the plans of all devices together. Call it inside `locked`.

        A full disk leaves all of the old files. A kill may leave some of them new. Raises `StorageError` if one of them cannot be written.
        """
        changes = [(self.path(device, change.workload), change) for device, plan in plans.items() for change in plan]
        for folder in {path.parent for path, _ in changes}:
            remove_temporary(folder)
        write_files({path: encode_baseline(each.baseline) for path, each in changes if each.baseline is not None})


def _unreadable(what: str, path: Path, error: OSError) -> BaselineError:
    return BaselineError(what, where=str(path), got=str(error), next_command=f"ls -ld {path}")
