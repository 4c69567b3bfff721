"""The summary that a run of pytest ends with, made from its results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from ..errors import printable
from ..judge import Status, compare, observe
from ..results import Results, WorkloadResult
from ..run import Timer
from .opportunities import opportunities
from .page import Column, table_text
from .wording import (
    about,
    change_text,
    conditions_text,
    describe,
    device_name,
    host_times_text,
    notes,
    status_text,
    us_or_dash,
)

__all__ = ["Block", "Row", "rows", "summary", "unknown_machines"]

_STYLES = {
    Status.PASS: "green",
    Status.IMPROVED: "cyan",
    Status.REGRESSED: "bold red",
    Status.INVALID: "bold red",
    Status.UNDECIDED: "yellow",
    Status.INCOMPARABLE: "yellow",
    Status.NO_BASELINE: "yellow",
    Status.NOT_JUDGED: "dim",
}
_MOST_FASTER = 3
_NOTE = "*"  # of a verdict whose words have no room


class Block(NamedTuple):
    """Some lines, without the newline of the last. `warns`: they say what is missing or odd."""

    text: str
    warns: bool = False


class Row(NamedTuple):
    """What a table says about one workload.

    Attributes:
        cells: launches, the device's time, baseline and change; a dash for what is not known.
        verdict: the status, and what it leaves out.
        about: subjects of the verdicts that the status comes from: "GPU time", "structure", ...
    """

    workload: str
    cells: tuple[str, str, str, str]
    status: Status | None
    verdict: str
    about: str


def rows(results: Results) -> list[Row]:
    """Return one row for each workload that was measured or judged."""
    return [_row(workload) for workload in results.workloads if workload.run is not None or workload.verdicts]


def _row(workload: WorkloadResult) -> Row:
    run = workload.run
    timed = workload.time_verdict(Timer.DEVICE)
    sample = run.sample(Timer.DEVICE) if run else None
    cells = (
        str(run.counts.launches) if run else "-",
        us_or_dash(observe(sample).mean_us if sample else None),
        us_or_dash(timed.before_us if timed else None),
        change_text(timed) or "-",
    )
    verdict = "-" if workload.status is None else status_text(workload)
    return Row(workload.id, cells, workload.status, verdict, about(workload))


def summary(
    results: Results, *, width: int, color: bool, failures: bool, recorded: Collection[str] = ()
) -> Iterator[Block]:
    """Yield the machine, the table, and what the table has no room for.

    `failures`: every failing verdict, in full. `recorded`: workloads that had no baseline, and get this run as theirs.
    """
    if results.fingerprint is not None and results.runs:  # without a device there is none, and the verdicts say so
        yield Block(describe(results.fingerprint))
        yield from map(Block, conditions_text(results))
    table = rows(results)
    if table:
        yield Block(_table(table, recorded, device=device_name(results), width=width, color=color))
    if failures:
        yield from (Block(str(verdict)) for verdict in results.verdicts if verdict.status.fails)
    yield from map(Block, _remarks(results))
    faster = opportunities(results)
    if faster:
        more = f", {len(faster) - _MOST_FASTER} more in the report" if len(faster) > _MOST_FASTER else ""
        yield Block(f"could be faster (nothing of this fails a test{more}):")
        yield from (Block("  " + str(one).replace("\n", "\n  ")) for one in faster[:_MOST_FASTER])
    yield from (Block(note, warns=True) for note in notes(results))
    yield from (Block(f"warning: {printable(warning)}", warns=True) for warning in results.warnings)


def _table(rows: Sequence[Row], recorded: Collection[str], *, device: str, width: int, color: bool) -> str:
    """Return one line for each workload: launches, their time, baseline, change, verdict, and what the verdict is about.

    Where that would break lines, the last column is left out, since the failures name the tests; then a note is left to a line
    below.
    """
    # Titles of two lines: a default id and all columns fit in 80.
    titles = ("launches", f"{device}\nus", "base-\nline us", "change")
    columns = [Column("workload"), *(Column(title, number=True) for title in titles), Column("verdict", is_whole=True)]
    forms = [(True, False)] if any(row.about for row in rows) else []
    for has_about, is_narrow in (*forms, (False, False), (False, True)):
        shown = [*columns, *([Column("about")] if has_about else [])]
        cells = [_table_row(row, recorded, is_narrow=is_narrow)[: len(shown)] for row in rows]
        text = table_text(shown, cells, width=width, color=color).removesuffix("\n")
        if text.count("\n") == len(rows) + 1:  # one line each, below two of titles
            break
    left = next((row.verdict.partition(" ")[2] for row in rows if is_narrow and " (" in row.verdict), "")
    return f"{text}\n{_NOTE} {left.strip('()')}" if left else text


def _table_row(row: Row, recorded: Collection[str], *, is_narrow: bool) -> tuple[str | Text, ...]:
    if row.status is Status.NO_BASELINE and row.workload in recorded:
        return (row.workload, *row.cells, Text("RECORDED", style="green"), "")
    status, space, left = row.verdict.partition(" ")
    verdict = Text(status, style="" if row.status is None else _STYLES[row.status])
    verdict.append(space + (_NOTE if left and is_narrow else left), style="dim")
    return (row.workload, *row.cells, verdict, row.about)


def _remarks(results: Results) -> list[str]:
    """Return what the table has no room for: verdicts that fail no test, and facts about the machine."""
    verdicts = results.verdicts
    shown = (Status.IMPROVED, Status.UNDECIDED, Status.INCOMPARABLE)
    machine = dict.fromkeys(
        f"machine: {reason.text}"
        for verdict in verdicts
        if verdict.status.passes
        for reason in verdict.reasons
        if reason.label == "machine"
    )
    # A choice that the baseline knows is among what could be faster.
    choices = [
        verdict.only("tuning")
        for workload in results.workloads
        if not _knows_choice(workload)
        for verdict in workload.verdicts
        if verdict.status.passes
    ]
    return [
        *(verdict.brief() for verdict in verdicts if verdict.status in shown),
        *(str(verdict) for verdict in choices if verdict.reasons),
        *host_times_text(results),
        *map(printable, machine),
    ]


def _knows_choice(workload: WorkloadResult) -> bool:
    run, baseline = workload.run, workload.baseline
    return run is None or baseline is None or baseline.entry_like(run.kernels)[1].same_configuration


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
