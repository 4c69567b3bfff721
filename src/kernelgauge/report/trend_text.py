"""Trends as plain text for a terminal: a table of all workloads, or a chart of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median

from ..printable import printable
from ..revision import short
from .html_charts import shown_us
from .trend import Chart, Series, Shift, Trends
from .wording import counted

__all__ = [
    "Letters",
    "chart_lines",
    "correction_line",
    "letters",
    "set_aside_lines",
    "shift_lines",
    "short_commit",
    "table_lines",
    "told_marks",
]

_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_SPARKS = 8
_HEIGHT = 9
_MARGIN = 11
_DATE = 10  # letters
_MOST_LINES = 12  # of one kind under a chart
_MOST_SET_ASIDE = 10
_NAMES = "123456789abcdefghijklmnopqrstuvwxyz"
_SEVERAL = "#"


@dataclass(frozen=True)
class Letters:
    """What a terminal can show: eight heights, and the lines of a frame."""

    heights: str
    upright: str
    corner: str
    level: str


def letters(encoding: str) -> Letters:
    fine = Letters("▁▂▃▄▅▆▇█", "│", "└", "─")
    try:
        "".join((fine.heights, fine.upright, fine.corner, fine.level)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return Letters("_.,-=+*#", "|", "+", "-")
    return fine


# -- the table --------------------------------------------------------------------------------------------------------


def table_lines(charts: Sequence[Chart], *, width: int, letters: Letters) -> Iterator[str]:
    """A line for each workload, under the kind of machine. An id that leaves no room has a line of its own."""
    machines = dict.fromkeys(chart.machine for chart in charts)
    room = max(20, width - 47)
    for machine in machines:
        yield printable(machine)
        yield f"{'workload':<{room}} {'history':<{_SPARKS}} {'last us':>7} {'change':>7} change point"
        for chart in (each for each in charts if each.machine == machine):
            name = printable(chart.workload)
            if len(name) > room:
                yield name
                name = ""
            spark = _spark(chart, letters)
            change = f"{100 * chart.change:+.1f} %"
            yield f"{name:<{room}} {spark:<{_SPARKS}} {shown_us(chart.last_us):>7} {change:>7} {_latest(chart)}".rstrip()


def _latest(chart: Chart) -> str:
    """Date and size of the latest change point, or the size of the latest drift; how many GPUs have it where not all do."""
    found = chart.latest_shifts
    if not found:
        return "-"
    series, shift = found[0]
    change = median(each.change for _, each in found)
    part = "" if len(found) == len(chart.series) else f" {len(found)}/{len(chart.series)}"
    return f"{'drift' if shift.nights else _day(series, shift.index)} {100 * change:+.1f} %{part}"


def _spark(chart: Chart, letters: Letters) -> str:
    """Each GPU's nights in eight parts, as a fraction of its median: the median over the GPUs."""
    rows = []
    for series in chart.series:
        middle = median(series.values_us)
        count = min(_SPARKS, len(series.values_us))
        edges = [len(series.values_us) * index // count for index in range(count + 1)]
        rows.append([median(series.values_us[start:end]) / middle for start, end in pairwise(edges)])
    longest = max(map(len, rows))
    levels = [median(row[index] for row in rows if index < len(row)) for index in range(longest)]
    low, high = _span(levels)
    return "".join(letters.heights[_step(level, low, high, _SPARKS)] for level in levels)


def _span(values: Sequence[float]) -> tuple[float, float]:
    middle = (min(values) + max(values)) / 2
    half = max(max(values) - min(values), _LEAST_SPAN * middle) / 2
    return middle - half, middle + half


def _step(value: float, low: float, high: float, count: int) -> int:
    """Which of `count` steps from `low` to `high`. Rounding may leave nothing between these, or a value beyond them."""
    return min(count - 1, max(0, round((count - 1) * (value - low) / (high - low)))) if high > low else 0


# -- a chart ----------------------------------------------------------------------------------------------------------


def chart_lines(chart: Chart, what: str, *, width: int, letters: Letters) -> Iterator[str]:
    """`what`: "device time". Every column is the median of its nights."""
    columns = max(20, width - _MARGIN)
    first = min(series.moments[0].started_at for series in chart.series)
    last = max(series.moments[-1].started_at for series in chart.series)
    yield printable(chart.workload)
    yield printable(f"{what} in us, {chart.machine}")
    values = [_columns(series, first, last, columns) for series in chart.series]
    low, high = _span([value for each in values for value in each.values()])
    grid = [[" "] * columns for _ in range(_HEIGHT)]
    for number, each in enumerate(values):
        name = _NAMES[number] if number < len(_NAMES) else _SEVERAL
        for column, value in each.items():
            row = grid[_HEIGHT - 1 - _step(value, low, high, _HEIGHT)]
            row[column] = name if row[column] in (" ", name) else _SEVERAL
    for index, row in enumerate(grid):
        level = high - (high - low) * index / (_HEIGHT - 1)
        label = shown_us(level) if index % 4 == 0 else ""
        yield f"{label:>{_MARGIN - 2}} {letters.upright}{''.join(row)}".rstrip()
    yield f"{'':>{_MARGIN - 1}}{letters.corner}{letters.level * columns}"
    yield f"{'':>{_MARGIN}}{_marks(chart, first, last, columns)}".rstrip()
    ends = f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"
    yield f"{'':>{_MARGIN}}{ends[0]}{ends[1]:>{columns - len(ends[0])}}"
    yield from _legend(chart)


def _columns(series: Series, first: datetime, last: datetime, columns: int) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for moment, value in zip(series.moments, series.values_us, strict=True):
        found.setdefault(_column(moment.started_at, first, last, columns), []).append(value)
    return {column: median(values) for column, values in found.items()}


def _column(when: datetime, first: datetime, last: datetime, columns: int) -> int:
    return round((columns - 1) * ((when - first) / (last - first))) if last > first else 0


def _marks(chart: Chart, first: datetime, last: datetime, columns: int) -> str:
    row = [" "] * columns
    for series in chart.series:
        for letter, indices in (("E", series.marks), ("C", series.shifts)):
            for each in indices:
                column = _column(series.moments[each.index].started_at, first, last, columns)
                row[column] = letter if row[column] in (" ", letter) else "B"
    return "".join(row)


def _legend(chart: Chart) -> Iterator[str]:
    for number, series in enumerate(chart.series):
        name = _NAMES[number] if number < len(_NAMES) else _SEVERAL
        runs = counted(len(series.values_us), "run")
        yield printable(f"  {name}  {series.named}: {runs}, last {shown_us(series.values_us[-1])} us")
    if len(chart.series) > 1:
        yield f"  {_SEVERAL}  several {chart.noun}s"
    marks = told_marks(chart)
    if marks:
        yield "  E  the environment changed"
        yield from _latest_lines([f"     {day}  {_line(change)}  ({_line(who)})" for day, change, who in marks])
    found = [shift_lines(series, shift) for series in chart.series for shift in series.shifts]
    if found:
        yield "  C  change point (advisory)"
        yield from _latest_lines(list(_together(found)))
    if chart.corrected_for:
        yield f"     {correction_line(chart)}"


def correction_line(chart: Chart) -> str:
    """``Change points are corrected for launch configuration and GPU speed.``"""
    return f"Change points are corrected for {' and '.join(chart.corrected_for)}."


def _together(found: Sequence[Sequence[str]]) -> Iterator[str]:
    """What was the same on several GPUs, once."""
    ordered = sorted(found, key=lambda lines: (lines[0][:_DATE], lines[1:], lines[0]))
    for rest, group in groupby(ordered, key=lambda lines: lines[1:]):
        yield "\n".join([*(f"     {first}" for first, *_ in group), *(f"       {line}" for line in rest)])


def _latest_lines(lines: Sequence[str]) -> Iterator[str]:
    left = len(lines) - _MOST_LINES
    if left > 0:
        yield f"     and {left} earlier"
    for each in lines[-_MOST_LINES:]:
        yield from map(printable, each.split("\n"))


def told_marks(chart: Chart) -> list[tuple[str, str, str]]:
    """Day, what changed, and on which GPUs, in order of time: the same change of a day once."""
    found: dict[tuple[str, str], list[str]] = {}
    for series in chart.series:
        for mark in series.marks:
            for change in mark.changes:
                found.setdefault((_day(series, mark.index), change), []).append(series.named)
    return [
        (day, change, names[0] if len(names) == 1 else counted(len(names), chart.noun))
        for (day, change), names in sorted(found.items())
    ]


def shift_lines(series: Series, shift: Shift) -> list[str]:
    """``2026-03-01  GPU 0f1e2d3c  205.1 -> 221.8 us (+8.1 %)``, the commits, and what changed beside it; or the drift."""
    before, after = series.moments[shift.index - 1], series.moments[shift.index]
    if shift.nights:
        per_night = f"{100 * shift.per_night:+#.2g}".rstrip(".")
        times = f"drift: {per_night} % a night for {shift.nights} nights ({100 * shift.change:+.1f} %)"
        return [f"{_day(series, shift.index)}  {_line(series.named)}  {times}"]
    times = f"{shown_us(shift.before_us)} -> {shown_us(shift.after_us)} us ({100 * shift.change:+.1f} %)"
    beside = series.changes_beside(shift)
    return [
        f"{_day(series, shift.index)}  {_line(series.named)}  {times}",
        f"commit {short_commit(before.commit)} -> {short_commit(after.commit)}",
        *([f"with {_line(', '.join(beside))}"] if beside else []),
    ]


def _line(text: str) -> str:
    return " ".join(text.split())


def short_commit(commit: str | None) -> str:
    return "(not known)" if commit is None else short(commit)


def _day(series: Series, index: int) -> str:
    return f"{series.moments[index].started_at:%Y-%m-%d}"


def set_aside_lines(trends: Trends) -> Iterator[str]:
    """What is not shown."""
    for line in trends.set_aside[:_MOST_SET_ASIDE]:
        yield f"not shown: {line}"
    left = len(trends.set_aside) - _MOST_SET_ASIDE
    if left > 0:
        yield f"not shown: and {left} more"
