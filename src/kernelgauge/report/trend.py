"""Trends as text for a terminal, and as one HTML page that needs no network and no script."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from markupsafe import Markup

from ..errors import printable
from ..judge import worst
from ..results.history import Chart, Night, Series, Trends
from .html import render_page, ticks
from .wording import counted, cut, kernel_us, short_commit

__all__ = ["trend_html", "trend_lines"]

_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_HEIGHTS = "▁▂▃▄▅▆▇█"
_SPARKS = 8
_MOST_LINES = 12  # of one kind in the text form
_COLOURS = 8
_MOST_POINTS = 200  # of one chart
_LEFT = 9.0  # percent of the width: the labels stand there
_FURTHEST = 2.0  # factor between a time and the baseline that is drawn with it

# -- both forms -------------------------------------------------------------------------------------------------------


def _notes(chart: Chart) -> list[tuple[str, list[str]]]:
    """Return (title, lines) of what changed beside the times, and of each change of a verdict."""
    changes: dict[tuple[str, str], list[str]] = {}
    for each in chart.series:
        for index, text in each.changes:
            changes.setdefault((_day(each, index), text), []).append(each.place)
    environment = [
        f"{day}  {text}  ({places[0] if len(places) == 1 else counted(len(places), places[0].partition(' ')[0])})"
        for (day, text), places in sorted(changes.items())
    ]
    verdicts = sorted(text for each in chart.series for _, text in _verdict_changes(each))
    notes = [("What changed", environment), ("Verdicts", verdicts)]
    return [(title, lines) for title, lines in notes if lines]


def _verdict_changes(series: Series) -> Iterator[tuple[int, str]]:
    """Yield ``2026-03-01  GPU 0f1e2d3c  PASS -> REGRESSED, commit 1a2b -> 3c4d: GPU time 205.1 -> 221.8 us`` with its night."""
    for index, (before, after) in enumerate(pairwise(series.nights), start=1):
        if before.status is not after.status:
            commits = " -> ".join(short_commit(night.file.commit) for night in (before, after))
            said = f": {after.said}" if after.said else ""
            words = f"{_status(before.status)} -> {_status(after.status)}, commit {commits}{said}"
            yield index, cut(f"{_day(series, index)}  {series.place}  {words}")


def _status(status: Any) -> str:
    return "no verdict" if status is None else str(status.value)


def _day(series: Series, index: int) -> str:
    return series.nights[index].file.started_at.date().isoformat()


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower end and the length of an axis that has all values."""
    middle = (min(values) + max(values)) / 2
    span = max(max(values) - min(values), _LEAST_SPAN * middle)
    return middle - span / 2, span


# -- text -------------------------------------------------------------------------------------------------------------


def trend_lines(trends: Trends, *, with_details: bool, width: int) -> Iterator[str]:
    """Yield a line for each workload, under the kind of machine. A long id has a line of its own.

    `with_details`: below each, its GPUs, the changes of the environment, and those of its verdict.
    """
    room = max(20, width - 49)
    for machine in sorted({chart.machine for chart in trends.charts}):
        yield printable(f"{machine}, {trends.timer.label}")
        yield f"{'workload':<{room}} {'history':<{_SPARKS}} {'last us':>7} {'change':>7} verdict since"
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
            f"  {each.place}: {counted(len(each.nights), 'run')}, {days}, last {kernel_us(each.nights[-1].us)} us"
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
    """Return the worst of the last verdicts, and the first day that had it."""
    status = worst([last for each in chart.series if (last := each.nights[-1].status) is not None])
    days = [each.since.file.started_at for each in chart.series if each.nights[-1].status is status]
    return f"{_status(status)} {min(days).date()}"


def _spark(series: Sequence[Series], parts: int) -> str:
    """Draw each GPU's nights in so many parts, as a fraction of its median: the median over the GPUs."""
    rows = []
    for each in series:
        values = [night.us for night in each.nights]
        middle, count = median(values), min(parts, len(values))
        edges = [len(values) * index // count for index in range(count + 1)]
        rows.append([median(values[start:end]) / middle for start, end in pairwise(edges)])
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
    """Return what the template draws. Places are in percent."""
    first = min(each.nights[0].file.started_at for each in chart.series)
    length = max(each.nights[-1].file.started_at for each in chart.series) - first
    nights = [night for each in chart.series for night in each.nights]
    low, span = _scale([us for night in nights for us in (night.us, _baseline_us(night)) if us is not None])

    def x(when: datetime) -> float:
        return round(_LEFT + (98 - _LEFT) * ((when - first) / length), 1) if length else 50.0

    def y(us: float) -> float:
        return round(95 - 90 * (us - low) / span, 1)

    lines = []
    uprights: dict[tuple[float, str], str] = {}
    for number, each in enumerate(chart.series):
        placed = [(x(night.file.started_at), night) for night in each.nights]
        verdicts = dict(_verdict_changes(each))
        lines.append(
            {
                "series": each,
                "colour": number % _COLOURS,
                "line": _path([(place, y(night.us)) for place, night in placed]),
                "baseline": _path(_steps([(place, y(us)) for place, night in placed if (us := _baseline_us(night))])),
                "points": [
                    (place, y(night.us), _status(night.status), _point_text(each.place, night))
                    for index, (place, night) in enumerate(placed)
                    if len(nights) <= _MOST_POINTS or index in verdicts  # of very many, where something happened
                ],
            }
        )
        for index, text in each.changes:
            old = uprights.get((placed[index][0], "upgrade"))
            uprights[placed[index][0], "upgrade"] = f"{old}, {text}" if old else text
        uprights |= {(placed[index][0], "verdict"): text for index, text in verdicts.items()}
    form = "%Y-%m-%d" if length > timedelta(days=3) else "%Y-%m-%d %H:%M"
    return {
        "chart": chart,
        "lines": lines,
        "uprights": [(*place, title) for place, title in sorted(uprights.items())],
        "values": [(round(95 - 0.9 * place, 1), f"{text} us") for place, text, _ in ticks(low, low + span, most=4)],
        "dates": [(first + length * part / 4).strftime(form) for part in (range(5) if length else (0,))],
        "change": f"{100 * chart.change:+.1f} %",
        "notes": _notes(chart),
    }


def _baseline_us(night: Night) -> float | None:
    """Return what a time was compared with; None if that would flatten the chart."""
    us = night.baseline_us
    return us if us is not None and night.us / _FURTHEST < us < night.us * _FURTHEST else None


def _path(points: Sequence[tuple[float, float]]) -> Markup:
    return Markup(" ".join(f"{x},{y}" for x, y in points))


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of a line that keeps its height until the next point."""
    return [*points[:1], *(one for (_, y), new in pairwise(points) for one in ((new[0], y), new))]


def _point_text(place: str, night: Night) -> str:
    when, commit = night.file.started_at.strftime("%Y-%m-%d %H:%M"), short_commit(night.file.commit)
    stored = f", baseline {kernel_us(night.baseline_us)} us" if night.baseline_us else ""
    return cut(f"{when}  {kernel_us(night.us)} us  {_status(night.status)}  commit {commit}{stored}  {place}")
