"""What a run leaves for its reader: a trace and a table of each workload."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from gzip import compress
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import StorageError
from .storage import write_atomically

if TYPE_CHECKING:
    from .workload import Workload

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
        return self.folder / "results.json"

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
        try:  # parts of a run that was killed: they would be gathered with this one's
            shutil.rmtree(self.workers)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(
                "cannot remove what another run has left", where=str(self.workers), got=str(error)
            ) from error

    def empty(self) -> None:
        """Remove what another run has left: it would pass for this one's. Raises `StorageError`."""
        shutil.rmtree(self.traces, ignore_errors=True)
        for path in (self.results, self.markdown, self.html):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(
                    "cannot remove what another run has left", where=str(path), got=str(error)
                ) from error

    def remove_workers(self) -> None:
        shutil.rmtree(self.workers, ignore_errors=True)

    def write_results(self, content: bytes) -> None:
        """Raises `StorageError` if it cannot be written."""
        write_atomically(self.results, content)

    def write_markdown(self, content: str) -> None:
        """Raises `StorageError` if it cannot be written."""
        write_atomically(self.markdown, content.encode())

    def write_html(self, content: str) -> None:
        """Raises `StorageError` if it cannot be written."""
        write_atomically(self.html, content.encode())

    def write(self, workload: Workload, trace_json: bytes, table: str) -> None:
        """Raises `StorageError` if it cannot be written."""
        write_atomically(self.trace(workload), compress(trace_json, mtime=0))
        write_atomically(self.table(workload), table.encode())
