"""Trends as text for a terminal, and as one HTML page that needs no network and no script."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

from markupsafe import Markup

from ..errors import printable
from ..results.history import Chart, Series, Shift, Trends
from .html import render_page
from .wording import counted, kernel_us, short_commit

__all__ = ["trend_html", "trend_lines"]

_T = TypeVar("_T")
_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_HEIGHTS = "▁▂▃▄▅▆▇█"
_SPARKS = 8
_MOST_LINES = 12  # of one kind in the text form
_MOST_POINTS = 150  # of a line: 100 workloads on 4 GPUs are a page of 1 MB
_COLOURS = 8

# -- both forms -------------------------------------------------------------------------------------------------------


def _notes(chart: Chart) -> list[tuple[str, list[str]]]:
    """Return (title, lines) of what changed in the environment, of the change points, and of the corrections."""
    changes: dict[tuple[str, str], list[str]] = {}
    for each in chart.series:
        for index, texts in each.marks.items():
            for text in texts:
                changes.setdefault((_day(each, index), text), []).append(each.gpu)
    environment = [
        f"{day}  {text}  ({gpus[0] if len(gpus) == 1 else counted(len(gpus), gpus[0].partition(' ')[0])})"
        for (day, text), gpus in sorted(changes.items())
    ]
    shifts = sorted(_shift_text(each, shift) for each in chart.series for shift in each.shifts)
    reasons = sorted({reason for each in chart.series for reason in each.corrected_for}, reverse=True)
    notes = [("The environment changed", environment)] if environment else []
    if shifts or reasons:
        corrected = f"; corrected for {' and '.join(reasons)}" if reasons else ""
        notes.append((f"Change points (advisory{corrected})", shifts or ["none"]))
    return notes


def _shift_text(series: Series, shift: Shift) -> str:
    """Return ``2026-03-01  GPU 0f1e2d3c  205.1 -> 221.8 us (+8.1 %), commit 1a2b -> 3c4d, with driver 580.1 -> 580.2``."""
    change = f"({100 * shift.change:+.1f} %)"
    where = f"{_day(series, shift.index)}  {series.gpu}"
    if shift.nights:
        per_night = f"{100 * shift.per_night:+#.2g}".rstrip(".")
        return f"{where}  drift: {per_night} % a night for {shift.nights} nights {change}"
    before, after = (
        short_commit(night.commit or "(unknown)") for night in series.nights[shift.index - 1 : shift.index + 1]
    )
    # A change point may be found a night too early or too late.
    near = [text for index in range(shift.index - 1, shift.index + 2) for text in series.marks.get(index, ())]
    levels = f"{kernel_us(shift.before_us)} -> {kernel_us(shift.after_us)} us {change}"
    return f"{where}  {levels}, commit {before} -> {after}" + (f", with {', '.join(near)}" if near else "")


def _day(series: Series, index: int) -> str:
    return series.nights[index].started_at.date().isoformat()


def _parts(values: Sequence[_T], most: int) -> list[Sequence[_T]]:
    """Return neighbours together, in at most so many parts."""
    count = min(most, len(values))
    edges = [len(values) * index // count for index in range(count + 1)]
    return [values[start:end] for start, end in pairwise(edges)]


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower end and the length of an axis that has all values."""
    middle = (min(values) + max(values)) / 2
    span = max(max(values) - min(values), _LEAST_SPAN * middle)
    return middle - span / 2, span


# -- text -------------------------------------------------------------------------------------------------------------


def trend_lines(trends: Trends, *, with_details: bool, width: int) -> Iterator[str]:
    """Yield a line for each workload, under the kind of machine. A long id has a line of its own.

    `with_details`: below each, its GPUs, the changes of the environment, and its change points.
    """
    room = max(20, width - 47)
    for machine in sorted({chart.machine for chart in trends.charts}):
        yield printable(f"{machine}, {trends.timer.label}")
        yield f"{'workload':<{room}} {'history':<{_SPARKS}} {'last us':>7} {'change':>7} change point"
        for chart in (each for each in trends.charts if each.machine == machine):
            name = printable(chart.workload)
            if len(name) > room:
                yield name
                name = ""
            change = f"{100 * chart.change:+.1f} %"
            spark = _spark(chart.series, _SPARKS)
            yield f"{name:<{room}} {spark:<{_SPARKS}} {kernel_us(chart.last_us):>7} {change:>7} {_latest(chart)}"
            if with_details:
                yield from _details(chart, width)
    yield from _limited([f"not shown: {line}" for line in trends.not_shown], "more")


def _details(chart: Chart, width: int) -> Iterator[str]:
    for each in chart.series:
        yield f"  {_spark([each], width - 2)}"
        days = f"{_day(each, 0)} to {_day(each, -1)}"
        yield printable(
            f"  {each.gpu}: {counted(len(each.nights), 'run')}, {days}, last {kernel_us(each.values_us[-1])} us"
        )
    for title, lines in _notes(chart):
        yield f"  {title}:"
        for line in _limited([printable(line) for line in reversed(lines)], "earlier"):
            yield textwrap.fill(line, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
    yield ""


def _limited(lines: Sequence[str], others: str) -> Iterator[str]:
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"and {len(lines) - _MOST_LINES} {others}"


def _latest(chart: Chart) -> str:
    """Return date and size of the latest change point, or the size of the latest drift, and how many GPUs have it."""
    last = [(_day(each, each.shifts[-1].index), each.shifts[-1]) for each in chart.series if each.shifts]
    if not last:
        return "-"
    latest = max(day for day, _ in last)
    shifts = [shift for day, shift in last if day == latest]
    change = f"{100 * median(shift.change for shift in shifts):+.1f} %"
    part = "" if len(shifts) == len(chart.series) else f" {len(shifts)}/{len(chart.series)}"
    return f"{'drift' if shifts[0].nights else latest} {change}{part}"


def _spark(series: Sequence[Series], parts: int) -> str:
    """Draw each GPU's nights in so many parts, as a fraction of its median: the median over the GPUs."""
    rows = []
    for each in series:
        middle = median(each.values_us)
        rows.append([median(part) / middle for part in _parts(each.values_us, parts)])
    longest = max(map(len, rows))
    levels = [median(row[index] for row in rows if index < len(row)) for index in range(longest)]
    low, span = _scale(levels)
    return "".join(_HEIGHTS[round((len(_HEIGHTS) - 1) * (level - low) / span)] for level in levels)


# -- HTML -------------------------------------------------------------------------------------------------------------


def trend_html(trends: Trends) -> str:
    """Return one page with a chart of each workload. `report/html.py` says how it is escaped and guarded."""
    return render_page(
        "trend.html",
        styles=["report.css", "trend.css"],
        figures=[_figure(chart) for chart in trends.charts],
        timer=trends.timer.label,
        sentence=f"{counted(len(trends.charts), 'workload')}, {trends.timer.label}, "
        f"{counted(trends.files, 'file')} of the history",
        not_shown=trends.not_shown,
    )


def _figure(chart: Chart) -> dict[str, Any]:
    """Return what the template draws. Places are in percent; of very many times, medians of neighbours are drawn."""
    first = min(each.nights[0].started_at for each in chart.series)
    last = max(each.nights[-1].started_at for each in chart.series)
    thinned = [[median(part) for part in _parts(each.values_us, _MOST_POINTS)] for each in chart.series]
    low, span = _scale([value for values in thinned for value in values])

    def x(when: datetime) -> float:
        return round(1 + 98 * ((when - first) / (last - first)), 1) if last > first else 50.0

    lines = []
    uprights: dict[tuple[float, str], str] = {}
    for number, (each, values) in enumerate(zip(chart.series, thinned, strict=True)):
        places = [x(part[len(part) // 2].started_at) for part in _parts(each.nights, _MOST_POINTS)]
        points = [f"{place:.1f},{95 - 90 * (us - low) / span:.1f}" for place, us in zip(places, values, strict=True)]
        lines.append({"series": each, "colour": number % _COLOURS, "points": Markup(" ".join(points))})
        for index, changes in each.marks.items():
            uprights[x(each.nights[index].started_at), "upgrade"] = ", ".join(changes)
        for shift in each.shifts:
            uprights[x(each.nights[shift.index].started_at), "shift"] = _shift_text(each, shift)
    return {
        "chart": chart,
        "lines": lines,
        "uprights": [(*place, title) for place, title in sorted(uprights.items())],
        "highest": max(map(max, thinned)),
        "lowest": min(map(min, thinned)),
        "first": first.date(),
        "last": last.date(),
        "change": f"{100 * chart.change:+.1f} %",
        "notes": _notes(chart),
    }
