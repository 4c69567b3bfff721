"""The summary that a run of pytest ends with, made from its results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.text import Text

from ..errors import printable
from ..judge.baseline import compare
from ..judge.evidence import Choice
from ..judge.verdict import Status
from ..results import Results
from ..run import Timer
from .findings import verdicts
from .page import Column, render, table
from .wording import (
    Row,
    conditions_text,
    describe,
    device_name,
    is_partial,
    notes,
    overall,
    rows,
    unjudged_text,
)
from .words import brief, in_full, only, reasons

_STYLES: dict[Status | None, str] = {
    Status.PASS: "green",
    Status.IMPROVED: "cyan",
    Status.REGRESSED: "bold red",
    Status.CHANGED: "bold red",
    Status.INVALID: "bold red",
    Status.UNDECIDED: "yellow",
    Status.INCOMPARABLE: "yellow",
    Status.NO_BASELINE: "yellow",
}


def summary(results: Results, *, width: int, color: bool, failures: bool, recorded: Collection[str] = ()) -> str:
    """Return the machine, the table, and what the table has no room for.

    `failures`: every failing verdict, in full. `recorded`: workloads that had no baseline, and get this run as theirs.
    """
    lines: list[str] = []
    if results.fingerprint is not None and results.runs:  # without a device there is none, and the verdicts say so
        lines += [describe(results.fingerprint), *conditions_text(results.runs, results.not_watched)]
    if listed := rows(results):
        lines.append(_table(listed, recorded, device=device_name(results), width=width, color=color))
    if failures:
        lines += map(in_full, verdicts(results, failing=True))
    lines += _remarks(results)
    return "\n".join([*lines, *notes(results), *(f"warning: {printable(warning)}" for warning in results.warnings)])


def _table(listed: Sequence[Row], recorded: Collection[str], *, device: str, width: int, color: bool) -> str:
    """Return one line for each workload: launches, their time, baseline, change, verdict, and what the verdict is about.

    Where that would break lines, the last column is left out, since the failures name the tests.
    """
    # Titles of two lines: a default id and all columns fit in 80.
    titles = ("launches", f"{device}\nus", "base-\nline us", "change")
    columns = [Column("workload"), *(Column(title, number=True) for title in titles), Column("verdict", is_whole=True)]
    cells = []
    for row in listed:
        is_recorded = row.result.status is Status.NO_BASELINE and row.result.id in recorded
        style = "green" if is_recorded else _STYLES.get(row.result.status, "dim")
        verdict = Text("RECORDED" if is_recorded else row.status, style=style)
        cells.append((row.result.id, *row.cells, verdict, row.about))
    if any(row.about for row in listed):
        text = render(table([*columns, Column("about")], cells), width=width, color=color)
        if text.count("\n") == len(listed) + 2:  # one line each, below two of titles
            return text.removesuffix("\n")
    return render(table(columns, [row[:-1] for row in cells]), width=width, color=color).removesuffix("\n")


def _remarks(results: Results) -> Iterator[str]:
    """Yield what the table has no room for: verdicts that fail no test, and facts about the machine."""
    yield from (brief(verdict) for verdict in verdicts(results, failing=False))
    passing = [verdict for verdict in results.verdicts if verdict.status is Status.PASS]
    choices = [only(verdict, Choice) for verdict in passing if verdict.subject in Timer.DEVICE.labels]
    yield from (in_full(verdict) for verdict in choices if verdict.reasons)
    unjudged = unjudged_text([results])
    if is_partial([results]):
        yield f"{overall([results])}: {unjudged or 'no time was measured'}"
    elif unjudged:
        yield unjudged
    lines = [line for verdict in passing for line in reasons(verdict) if line.label == "machine"]
    yield from dict.fromkeys(f"machine: {printable(line.text)}" for line in lines)


def unknown_machines(results: Results) -> list[str]:
    """Return the GPUs, or hosts of CPUs, that passed and that the baselines do not know."""
    if results.status is not None and (results.status.fails or results.status is Status.INCOMPARABLE):
        return []
    pairs = [(each.run, each.baseline) for each in results.workloads]
    judged = [(run, baseline) for run, baseline in pairs if run is not None and baseline is not None]
    if not all(compare(baseline.fingerprint, run.fingerprint).identical for run, baseline in judged):
        return []  # another software joins no baseline
    known = [(run.place, {each.place for entry in old.entries for each in entry.processes}) for run, old in judged]
    return sorted({place for place, places in known if place is not None and place not in places})
