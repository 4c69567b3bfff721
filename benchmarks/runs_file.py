"""The runs of one process as a file, with gzip if its name ends in .gz: how benchmarks keep their
data.

An earlier version of pytest perf wrote such files. The results of a run (`results.json`) are read
as one.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec

from kernelgauge.errors import StorageError
from kernelgauge.results import NAME, Results, read_results
from kernelgauge.run import Run, Timer

__all__ = ["keep_runs", "read_bytes", "read_runs"]


class RunsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs, the suite that declares each, and where the baselines of their run of pytest are."""

    baselines: str
    suites: dict[str, str]  # by workload id
    runs: tuple[Run, ...]
    timers_per_workload: int
    started_at: str = ""  # when the first of them was measured: UTC, ISO 8601
    commit: str | None = None  # as in the results of a run
    kernelgauge: str = ""  # the version that wrote it
    # by workload id: what was asked for, as in the results
    sensitivities: dict[str, dict[Timer, float]] = {}


def read_runs(path: Path) -> RunsFile:
    """Read a file of runs, or of results. Raise `StorageError` if it is missing or invalid."""
    if path.name == NAME:
        return _runs_of(read_results(path))
    try:
        return msgspec.json.decode(read_bytes(path), type=RunsFile)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise StorageError("the runs cannot be read", where=str(path), got=str(error)) from error


def _runs_of(results: Results) -> RunsFile:
    """Return the runs of results: what a judgement of times needs of them."""
    runs = tuple(
        Run(
            workload=each.workload,
            fingerprint=each.fingerprint,
            kernels=each.kernels,
            counts=each.counts,
            samples=each.samples,
            gpu=each.gpu,
            host=each.host,
            controls=each.controls,
            day=each.day,
            trains=each.trains,
        )
        for each in results.runs
    )
    suites = {each.id: each.suite for each in results.workloads}
    return RunsFile("baselines", suites, runs, 3, results.started_at, results.commit)


def keep_runs(found: RunsFile, path: Path) -> None:
    """Write a file of runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(msgspec.json.encode(found), mtime=0))


def read_bytes(path: Path) -> bytes:
    """Read a file; one whose name ends in .gz is decompressed."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content
