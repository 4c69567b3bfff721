"""The summary table and the plan of an update, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..judge import Action, PlannedChange, Status, Verdict
from ..printable import printable
from ..run import Fingerprint, Run
from .rows import Row
from .wording import change_of_one, us_or_dash

__all__ = ["conditions_text", "describe", "notes", "plan_text", "remarks", "summary_text"]

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
_ACTION_STYLES = {Action.CREATE: "green", Action.UPDATE: "yellow", Action.TRIM: "red", Action.KEEP: "dim"}


def describe(fingerprint: Fingerprint) -> str:
    """The machine and the software in one line."""
    versions = [
        ("driver", fingerprint.driver),
        ("CUDA", fingerprint.cuda),
        ("torch", fingerprint.torch),
        ("triton", fingerprint.triton),
        ("liger-kernel", fingerprint.liger_kernel),
    ]
    parts = [fingerprint.device, *(f"{name} {version}" for name, version in versions if version)]
    return printable(", ".join(parts))


def summary_text(rows: Sequence[Row], *, width: int, color: bool) -> str:
    """One line for each workload: kernels, device time, baseline, change, verdict."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("workload", overflow="fold")
    for title in ("kernels", "device\nus", "stored\nus", "change"):  # two lines: a default id and all columns fit in 80
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(printable(row.workload)),
            "-" if row.launches is None else str(row.launches),
            us_or_dash(row.device_time_us),
            us_or_dash(row.baseline_us),
            change_of_one(row.change),
            "-" if row.status is None else Text(row.status.value, style=_STYLES[row.status]),
        )
    return render(table, width=width, color=color)


def remarks(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> list[str]:
    """Return what the table has no room for: subjects of verdicts, those that fail no test, and facts about the machine."""
    quiet = (Status.PASS, Status.NO_BASELINE, Status.NOT_JUDGED)
    subjects = [
        printable(f"{row.status.value}  {row.workload}: {', '.join(row.subjects)}")
        for row in rows
        if row.status is not None and row.status not in quiet
    ]
    shown = (Status.IMPROVED, Status.UNDECIDED, Status.INCOMPARABLE)
    machine = dict.fromkeys(
        f"machine: {reason.text}"
        for verdict in verdicts
        if verdict.status.passes
        for reason in verdict.reasons
        if reason.label == "machine"
    )
    choices = [verdict.only("tuning") for verdict in verdicts if verdict.status.passes]
    return [
        *subjects,
        *(str(verdict) for verdict in verdicts if verdict.status in shown),
        *(str(verdict) for verdict in choices if verdict.reasons),
        *map(printable, machine),
    ]


def conditions_text(runs: Sequence[Run], not_watched: str) -> list[str]:
    """What the GPU went through while it was measured, over all runs; or why nobody watched it."""
    seen = [run.conditions for run in runs if run.conditions is not None]
    if not seen:
        return [f"conditions not watched: {not_watched}"] if not_watched and runs else []
    parts: list[str] = []
    medians = [each.median_sm_clock_mhz for each in seen if each.median_sm_clock_mhz is not None]
    lowest = min((each.lowest_sm_clock_mhz for each in seen if each.lowest_sm_clock_mhz is not None), default=None)
    if medians:
        usual = round(median(medians))
        parts.append(f"SM clock {usual} MHz" + (f", lowest {lowest}" if lowest is not None and lowest < usual else ""))
    temperatures = [each.max_temperature_c for each in seen if each.max_temperature_c is not None]
    powers = [each.max_power_watts for each in seen if each.max_power_watts is not None]
    parts += [f"{max(temperatures)} C"] if temperatures else []
    parts += [f"{max(powers):.0f} W"] if powers else []
    throttled: dict[str, float] = {}
    for each in seen:
        for cause, milliseconds in (each.throttled_ms or {}).items():
            throttled[cause] = throttled.get(cause, 0.0) + milliseconds
    parts += [f"{cause} for {milliseconds:.0f} ms" for cause, milliseconds in throttled.items() if milliseconds >= 1]
    return [printable("conditions: " + ", ".join(parts))] if parts else []


def notes(unavailable: Mapping[str, str]) -> list[str]:
    """One line for each reason why workloads did not run, with the workloads that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for workload, reason in unavailable.items():
        by_reason.setdefault(reason, []).append(workload)
    return [printable(f"not run: {', '.join(workloads)}: {reason}") for reason, workloads in by_reason.items()]


def plan_text(plan: Sequence[PlannedChange], *, width: int, color: bool) -> str:
    """What an update would write, file by file."""
    if not plan:
        return "nothing to update\n"
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for change in plan:
        details = "\n".join(map(printable, change.details)) or "unchanged within noise: the file stays as it is"
        action = Text(change.action.value, style=_ACTION_STYLES[change.action])
        table.add_row(action, Text(printable(change.workload)), Text(details))
    return render(table, width=width, color=color)


def render(table: Table, *, width: int, color: bool) -> str:
    stream = StringIO()
    # legacy_windows off: the output is a string, no console is written to.
    Console(
        file=stream, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    ).print(table)
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().split("\n")[:-1])
