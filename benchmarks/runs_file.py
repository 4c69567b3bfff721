"""The runs of one process as a file: how benchmarks keep their data. An earlier version of pytest perf wrote such files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kernelgauge.errors import StorageError
from kernelgauge.files import write_atomically
from kernelgauge.run import Run, Timer

__all__ = ["RunsFile", "read_runs", "write_runs"]


class RunsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs, the suite that declares each, and where the baselines of their run of pytest are."""

    baselines: str
    suites: dict[str, str]  # by workload id
    runs: tuple[Run, ...]
    timers_per_workload: int
    started_at: str = ""  # when the first of them was measured: UTC, ISO 8601
    commit: str | None = None  # as in the results of a run
    kernelgauge: str = ""  # the version that wrote it
    sensitivities: dict[str, dict[Timer, float]] = {}  # by workload id: what was asked for, as in the results


def write_runs(path: Path, content: RunsFile) -> None:
    """Raises `StorageError` if it cannot be written."""
    write_atomically(path, msgspec.json.encode(content))


def read_runs(path: Path) -> RunsFile:
    """Raises `StorageError` if it is not there or is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunsFile)
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError("the runs cannot be read", where=str(path), got=str(error)) from error
