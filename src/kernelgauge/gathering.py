"""What the workers of pytest-xdist have left, brought together as if one process had measured it all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from .artifacts import Artifacts
from .errors import ResultsError
from .results import Results, TestResult, WorkloadResult
from .results_file import NAME, read_results

if TYPE_CHECKING:
    from .gauge import Gauge

__all__ = ["Gathered", "gather"]

# Results, and where their files and traces are: one for each kind of machine.
Gathered = list[tuple[Results, Artifacts]]


def gather(gauge: Gauge, *, started: datetime, ended: datetime) -> Gathered:
    """Empty if no worker measured or judged anything. What a worker that died has left counts as far as it goes.

    The workers' parts stay: until what was made of them is written, they are all that there is.

    Raises `OSError` if a trace cannot be moved.
    """
    folder = gauge.artifacts.folder
    parts = list(_parts(gauge))
    if not parts:
        return []
    merged = merge(parts)
    found: Gathered = []
    crashed = [_of_its_workload(test, each) for each in merged[:1] for test in gauge.tests]  # all declare the same
    for place, (results, name) in enumerate(zip(merged, machine_names(merged), strict=True)):
        artifacts = Artifacts(folder / name)
        first = place == 0
        whole = msgspec.structs.replace(
            results,
            started_at=started.isoformat(timespec="seconds"),
            seconds=(ended - started).total_seconds(),
            arguments=gauge.options.arguments,
            exit_status=int(gauge.session.exitstatus),
            workloads=tuple(_taken(workload, folder, artifacts) for workload in results.workloads),
            # What only the controller knows, once.
            tests=(*results.tests, *(test for test in crashed if _place_of(test, merged) == place)),
            warnings=(*results.warnings, *(gauge.warnings if first else ())),
        )
        found.append((whole, artifacts))
    return found


def _place_of(test: TestResult, merged: list[Results]) -> int:
    """Which machine's: the one that has its workload; where none has, the first."""
    has = (place for place, each in enumerate(merged) if any(test.workload == one.id for one in each.workloads))
    return next(has, 0)


def _of_its_workload(test: TestResult, results: Results) -> TestResult:
    """A test whose worker died in it, known by its id alone, with the workload that its parameters name."""
    parameters = test.node.partition("[")[2].rpartition("]")[0]  # pytest-xdist may put @group behind it
    ids = [each for names in results.declared.values() for each in names if f"-{each}-" in f"-{parameters}-"]
    return msgspec.structs.replace(test, workload=max(ids, key=len)) if ids else test


def _parts(gauge: Gauge) -> Iterator[Results]:
    """Of each worker, with its traces named from the folder of all."""
    for path in sorted(gauge.artifacts.workers.glob(f"*/{NAME}")):
        try:
            part = read_results(path)
        except ResultsError as error:
            gauge.warnings.append(f"{path.parent.name}: {error.one_line}")
            gauge.session.exitstatus = gauge.session.exitstatus or 1  # what it measured is lost
            continue
        inside = PurePosixPath(gauge.artifacts.workers.name, path.parent.name)
        workloads = tuple(
            msgspec.structs.replace(workload, trace=str(inside / workload.trace)) if workload.trace else workload
            for workload in part.workloads
        )
        yield msgspec.structs.replace(part, workloads=workloads)


def _taken(workload: WorkloadResult, folder: Path, artifacts: Artifacts) -> WorkloadResult:
    """With its trace and table moved to where those of all are."""
    if workload.trace is None:
        return workload
    trace = folder / workload.trace
    table = trace.with_name(f"{workload.id}.txt")
    artifacts.traces.mkdir(parents=True, exist_ok=True)
    for path in (trace, table):
        if path.exists():
            os.replace(path, artifacts.traces / path.name)
    moved = (artifacts.traces / trace.name).relative_to(artifacts.folder)
    return msgspec.structs.replace(workload, trace=moved.as_posix())
