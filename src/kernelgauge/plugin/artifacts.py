"""What a run leaves for its reader: a trace and a table of each workload."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from gzip import compress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ResultsError, StorageError
from ..files import write_atomically
from ..results import NAME, folder_name, read_results

if TYPE_CHECKING:
    from ..workload import Workload

__all__ = ["Artifacts"]


@dataclass(frozen=True)
class Artifacts:
    """`folder`: that of the latest run's reports."""

    folder: Path

    @property
    def traces(self) -> Path:
        return self.folder / "traces"

    @property
    def results(self) -> Path:
        return self.folder / NAME

    @property
    def markdown(self) -> Path:
        return self.folder / "report.md"

    @property
    def html(self) -> Path:
        return self.folder / "report.html"

    @property
    def workers(self) -> Path:
        """What the workers of pytest-xdist leave until it is brought together: a folder like this one for each."""
        return self.folder / "workers"

    def of_worker(self, identifier: str) -> Artifacts:
        return Artifacts(self.workers / identifier)

    def trace(self, workload: Workload) -> Path:
        return self.traces / f"{workload.id}.json.gz"

    def table(self, workload: Workload) -> Path:
        return self.traces / f"{workload.id}.txt"

    def prepare(self) -> None:
        """Find out whether the folder can be written. Raises `StorageError`."""
        write_atomically(self.folder / ".writable", b"")
        (self.folder / ".writable").unlink(missing_ok=True)
        _remove(shutil.rmtree, self.workers)  # parts of a run that was killed: they would be gathered with this one's

    def empty(self) -> None:
        """Remove what another run has left, of each machine: it would pass for this one's. Raises `StorageError`.

        Whatever else somebody keeps in these folders stays.
        """
        for machine in self._machines():
            machine._remove_files()
            with suppress(OSError):  # something else is in it
                machine.folder.rmdir()
        self._remove_files()

    def _machines(self) -> list[Artifacts]:
        """Return a folder like this one for each machine of a run on several."""
        return [
            Artifacts(path.parent)
            for path in sorted(self.folder.glob(f"*/{NAME}"))
            if not path.parent.is_symlink() and _is_of_its_machine(path)
        ]

    def _remove_files(self) -> None:
        _remove(shutil.rmtree, self.traces)
        for path in (self.results, self.markdown, self.html):
            _remove(Path.unlink, path)

    def remove_workers(self) -> None:
        shutil.rmtree(self.workers, ignore_errors=True)

    def write_results(self, content: bytes) -> None:
        """Write the file. Raises `StorageError` if it cannot be written."""
        write_atomically(self.results, content)

    def write_markdown(self, content: str) -> None:
        """Write the file. Raises `StorageError` if it cannot be written."""
        write_atomically(self.markdown, content.encode())

    def write_html(self, content: str) -> None:
        """Write the file. Raises `StorageError` if it cannot be written."""
        write_atomically(self.html, content.encode())

    def write(self, workload: Workload, trace_json: bytes, table: str) -> None:
        """Write the file. Raises `StorageError` if it cannot be written."""
        write_atomically(self.trace(workload), compress(trace_json, mtime=0))
        write_atomically(self.table(workload), table.encode())


def _is_of_its_machine(path: Path) -> bool:
    """Whether results lie where a run leaves a machine's. A copy that somebody keeps under another name is his."""
    try:
        own = folder_name(read_results(path))
    except ResultsError:
        return False
    return path.parent.name == own or path.parent.name.startswith(f"{own}--")  # a slug has no double dash


def _remove(how: Callable[[Path], object], path: Path) -> None:
    """Remove what another run has left. Raises `StorageError`."""
    try:
        how(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError("cannot remove what another run has left", where=str(path), got=str(error)) from error
