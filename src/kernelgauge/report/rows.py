"""Verdicts and runs -> one row for each workload. Every form of report is made from these rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..judge import RelativeChange, Status, Verdict, observe, worst
from ..run import Run, Timer

__all__ = ["Row", "rows"]


@dataclass(frozen=True)
class Row:
    """What is said of one workload. None: not measured, or nothing to compare with."""

    workload: str
    launches: int | None
    device_time_us: float | None
    baseline_us: float | None
    change: RelativeChange | None
    status: Status | None
    subjects: tuple[str, ...]  # those that the status comes from: "device time", "structure", ...


def rows(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> list[Row]:
    """One row for each workload that was measured or judged, in order of first appearance."""
    by_id = {run.workload: run for run in runs}
    identifiers = dict.fromkeys([*by_id, *(verdict.workload for verdict in verdicts)])
    return [
        _row(identifier, by_id.get(identifier), [v for v in verdicts if v.workload == identifier])
        for identifier in identifiers
    ]


def _row(identifier: str, run: Run | None, verdicts: Sequence[Verdict]) -> Row:
    status = worst([verdict.status for verdict in verdicts])
    timed = next((verdict for verdict in verdicts if verdict.subject == Timer.DEVICE.label), None)
    sample = run.sample(Timer.DEVICE) if run else None
    return Row(
        workload=identifier,
        launches=run.counts.launches if run else None,
        device_time_us=observe(sample).mean_us if sample else None,
        baseline_us=timed.before_us if timed else None,
        change=timed.change if timed else None,
        status=status,
        subjects=tuple(dict.fromkeys(v.subject for v in verdicts if v.status is status and status is not Status.PASS)),
    )
