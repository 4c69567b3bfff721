"""The summary that a run of pytest ends with, made from its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..judge import Status, compare
from ..printable import printable
from ..results import Results
from .rows import rows
from .terminal import conditions_text, describe, notes, remarks, summary_text

__all__ = ["Block", "summary", "unknown_machines"]


class Block(NamedTuple):
    """Some lines, without the newline of the last. `warns`: they say what is missing or odd."""

    text: str
    warns: bool = False


def summary(results: Results, *, width: int, color: bool, failures: bool) -> Iterator[Block]:
    """The machine, the table, and what the table has no room for. `failures`: every failing verdict, in full."""
    runs = [workload.run for workload in results.workloads if workload.run is not None]
    verdicts = [verdict for workload in results.workloads for verdict in workload.verdicts]
    if results.fingerprint is not None and runs:  # without a device there is none, and the verdicts say so
        yield Block(describe(results.fingerprint))
        yield from map(Block, map(printable, conditions_text(runs, results.not_watched)))
    table = rows(runs, verdicts)
    if table:
        yield Block(summary_text(table, width=width, color=color).removesuffix("\n"))
    if failures:
        yield from (Block(str(verdict)) for verdict in verdicts if verdict.status.fails)
    yield from map(Block, remarks(table, verdicts))
    unavailable = {workload.id: workload.unavailable for workload in results.workloads if workload.unavailable}
    yield from (Block(note, warns=True) for note in notes(unavailable))
    yield from (Block(f"warning: {printable(warning)}", warns=True) for warning in results.warnings)


def unknown_machines(results: Results) -> list[str]:
    """Return the GPUs, or hosts of CPUs, that passed and that the baselines do not know."""
    if results.status is not None and (results.status.fails or results.status is Status.INCOMPARABLE):
        return []
    unknown: set[str] = set()
    for workload in results.workloads:
        run, baseline = workload.run, workload.baseline
        if run is None or baseline is None:
            continue
        if not compare(baseline.fingerprint, run.fingerprint).identical:  # another software joins no baseline
            return []
        known = {process.place for entry in baseline.entries for process in entry.processes}
        unknown |= {place} if (place := run.place) is not None and place not in known else set()
    return sorted(unknown)
