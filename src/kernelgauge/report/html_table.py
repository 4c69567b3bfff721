"""The workloads of the HTML report side by side: the table of all, and the variants of one module as lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..judge import Verdict
from ..results import WorkloadResult
from ..run import Timer
from .html_charts import Interval, interval
from .html_kernels import Lanes, Strip, lane_note, lanes
from .html_status import rank
from .html_tests import clipped
from .html_workload import WorkloadView, axis_limit, change_percent

__all__ = ["Group", "TableRow", "groups", "table_rows"]

_WIDEST_AXIS = 0.25  # of the table's intervals: one workload that is ten times slower must not flatten the others


@dataclass(frozen=True)
class TableRow:
    """One line of the table. Numbers beside the texts are what it is sorted by."""

    workload: WorkloadView
    machine: str
    rank: int
    change: Interval | None
    change_text: str
    change_status: str


@dataclass(frozen=True)
class Group:
    """The variants of one module, pass, dtype and shape: they compute the same function."""

    title: str
    machine: str
    lanes: Lanes | None
    workloads: tuple[WorkloadView, ...]


def table_rows(entries: Sequence[tuple[str, WorkloadView]]) -> tuple[TableRow, ...]:
    judged = [view.source.verdict(Timer.DEVICE.label) for _, view in entries]
    limit = min(_WIDEST_AXIS, axis_limit([verdict.change for verdict in judged if verdict and verdict.change]))
    rows = [_row(machine, view, verdict, limit) for (machine, view), verdict in zip(entries, judged, strict=True)]
    return tuple(sorted(rows, key=lambda row: row.rank))


def _row(machine: str, view: WorkloadView, verdict: Verdict | None, limit: float) -> TableRow:
    change = verdict.change if verdict else None
    return TableRow(
        workload=view,
        machine=clipped(machine),
        rank=rank(view.status),
        change=interval(change, limit=limit) if change else None,
        change_text=change_percent(change),
        change_status=verdict.status.value if verdict else "",
    )


def groups(entries: Sequence[tuple[str, WorkloadView]], *, several: bool) -> Iterator[Group]:
    found: dict[tuple[object, ...], list[WorkloadView]] = {}
    for machine, view in entries:
        source = view.source
        key: tuple[object, ...] = (machine, source.suite, source.module, source.pass_, source.dtype, source.shape)
        found.setdefault(key, []).append(view)
    for key, views in found.items():
        source = views[0].source
        shape = "x".join(map(str, source.shape))
        title = " · ".join(clipped(part) for part in (source.module, source.pass_, source.dtype, shape) if part)
        yield Group(title, clipped(str(key[0])) if several else "", _lanes(views), tuple(views))


def _lanes(views: Sequence[WorkloadView]) -> Lanes | None:
    first: WorkloadResult | None = None
    strips: list[Strip] = []
    for view in views:
        run = view.source.run
        if run is None or not run.kernels:
            continue
        first = first or view.source
        total = sum(kernel.device_time_us for kernel in run.kernels)
        note = lane_note(run.kernels)
        of_first = sum(kernel.device_time_us for kernel in first.run.kernels) if first.run else 0.0
        if first is not view.source and of_first:
            note += f", {100 * (total / of_first - 1):+.1f} % against {clipped(first.variant)}"
        strips.append(Strip(clipped(view.source.variant), run.kernels, note, view.status, view.anchor))
    return lanes(strips) if strips else None
