"""What the machines of a fleet say together: as text for a terminal, as Markdown above the report of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING

from ..judge import Status
from ..revision import short
from .failures import cut
from .page import Column, Grid, Section, markdown, text, unlinked
from .wording import change_of_one, counted, status_text

if TYPE_CHECKING:
    from ..fleet import Fleet, FleetWorkload, Machine
    from ..results import WorkloadResult

__all__ = ["fleet_markdown", "fleet_text"]

_MOST_ROWS = 200  # of a table in Markdown

_MACHINES = (
    Column("machine"),
    Column("commit"),
    *(Column(title, number=True) for title in ("work-\nloads", "copy\n%", "gemm\n%")),
    Column("verdict"),
)
_WORKLOADS = (Column("workload"), Column("machine"), Column("change", number=True), Column("verdict"))


def fleet_text(fleet: Fleet, *, width: int, color: bool) -> str:
    return text(_sections(fleet), width=width, color=color)


def fleet_markdown(fleet: Fleet) -> str:
    return unlinked(markdown(_sections(fleet, most_rows=_MOST_ROWS)))


def _sections(fleet: Fleet, *, most_rows: int | None = None) -> list[Section]:
    sections = [Section(_headline(fleet), tuple(map(cut, _lines(fleet))))]
    if fleet.machines:
        shown = tuple(_machine(machine) for machine in fleet.machines)
        sections.append(_cut("machines", _MACHINES, shown, most_rows))
    rows = tuple(row for workload in fleet.workloads if _is_told(workload) for row in _rows(workload))
    if rows:
        sections.append(_cut("workloads that did not pass on every machine", _WORKLOADS, rows, most_rows))
    return sections


def _cut(title: str, columns: tuple[Column, ...], rows: tuple[tuple[str, ...], ...], most: int | None) -> Section:
    shown = rows if most is None else rows[:most]
    left = len(rows) - len(shown)
    return Section(title + (f" ({counted(left, 'row')} left out)" if left else ""), grid=Grid(columns, shown))


def _headline(fleet: Fleet) -> str:
    counts = Counter(workload.status for workload in fleet.workloads)
    said = [f"{counts[status]} {status.value}" for status in Status if counts[status]]
    said += [f"{counts[None]} not judged"] if counts[None] else []
    workloads = counted(len(fleet.workloads), "workload") + (f" ({', '.join(said)})" if said else "")
    return f"{_word(fleet)}  {counted(len(fleet.machines), 'machine')}, {workloads}"


def _word(fleet: Fleet) -> str:
    if fleet.passes:
        return "PASS"
    if fleet.fails:
        return "FAILED"
    return "UNDECIDED" if fleet.judged else "NOTHING JUDGED"


def _lines(fleet: Fleet) -> Iterator[str]:
    if fleet.conclusion is not None:
        yield f"where to look: {fleet.conclusion.cause.value}"
        yield from (f"- {line}" for line in fleet.conclusion.evidence)
    yield from (f"failed: {problem}" for problem in fleet.problems)
    yield from (f"note: {note}" for note in fleet.notes)


def _machine(machine: Machine) -> tuple[str, ...]:
    counts = Counter(status_text(workload) for workload in machine.workloads)
    return (
        cut(machine.name),
        cut(short(machine.commit or "-")),
        str(len(machine.workloads)),
        *(_percent(machine.among.get(name)) for name in ("copy", "gemm")),
        "\n".join(f"{count} {status}" for status, count in sorted(counts.items())),
    )


def _percent(change: float | None) -> str:
    return "-" if change is None else f"{100 * change:+.1f}"


def _is_told(workload: FleetWorkload) -> bool:
    quiet = (Status.PASS, Status.IMPROVED)
    return any(
        result.status not in quiet and not (result.status is None and result.unavailable) for _, result in workload.seen
    )


def _rows(workload: FleetWorkload) -> Iterator[tuple[str, ...]]:
    """A line for each machine; beside the second, where to look."""
    cause = f"  {workload.conclusion.cause.value}" if workload.conclusion is not None else ""
    heads = chain([cut(workload.id), cause], repeat(""))
    for head, (machine, result) in zip(heads, workload.seen, strict=False):
        yield head, cut(machine.name), _change(result), status_text(result)


def _change(result: WorkloadResult) -> str:
    """Of the device time, or of the time that failed."""
    timed = [verdict for verdict in result.verdicts if verdict.change is not None]
    timed.sort(key=lambda verdict: (not verdict.status.fails, verdict.subject != "device time"))
    return change_of_one(timed[0].change) if timed else "-"
