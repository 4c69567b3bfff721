"""Trends as text for a terminal, and as one HTML page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median
from typing import Any, TypeVar

from markupsafe import Markup

from ..history import Chart, Series, Shift, Trends
from ..printable import printable
from ..revision import short
from .html import render_page
from .wording import counted, kernel_us

__all__ = ["trend_html", "trend_lines"]

_T = TypeVar("_T")
_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_SPARKS = 8
_MOST_LINES = 12  # of one kind under a chart, and of what is not shown
_MOST_POINTS = 150  # of a line: 100 workloads on 4 GPUs are a page of 1 MB
_COLOURS = 8


def trend_lines(trends: Trends, *, with_details: bool, width: int, encoding: str) -> Iterator[str]:
    """Yield a line for each workload, under the kind of machine. An id that leaves no room has a line of its own.

    `with_details`: below each, its GPUs, what changed in the environment and when, and its change points.
    """
    heights = "▁▂▃▄▅▆▇█"
    try:
        heights.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        heights = "_.,-=+*#"
    room = max(20, width - 47)
    for machine in sorted({chart.machine for chart in trends.charts}):
        yield printable(f"{machine}, {trends.timer.label}")
        yield f"{'workload':<{room}} {'history':<{_SPARKS}} {'last us':>7} {'change':>7} change point"
        for chart in (each for each in trends.charts if each.machine == machine):
            name = printable(chart.workload)
            if len(name) > room:
                yield name
                name = ""
            spark = _spark(chart.series, _SPARKS, heights)
            change = f"{100 * chart.change:+.1f} %"
            yield f"{name:<{room}} {spark:<{_SPARKS}} {kernel_us(chart.last_us):>7} {change:>7} {_latest(chart)}"
            if with_details:
                yield from _details(chart, width - 2, heights)
                yield ""
    for line in trends.not_shown[:_MOST_LINES]:
        yield f"not shown: {line}"
    if len(trends.not_shown) > _MOST_LINES:
        yield f"not shown: and {len(trends.not_shown) - _MOST_LINES} more"


def _latest(chart: Chart) -> str:
    """Return the day and size of the latest change point, or the size of the latest drift.

    Where not all GPUs have it, how many do.
    """
    last = [(_day(each, each.shifts[-1].index), each.shifts[-1]) for each in chart.series if each.shifts]
    if not last:
        return "-"
    day = max(day for day, _ in last)
    shifts = [shift for each, shift in last if each == day]
    change = f"{100 * median(shift.change for shift in shifts):+.1f} %"
    part = "" if len(shifts) == len(chart.series) else f" {len(shifts)}/{len(chart.series)}"
    return f"{'drift' if shifts[0].nights else day} {change}{part}"


def _spark(series: Sequence[Series], parts: int, heights: str) -> str:
    """Return the median over the GPUs of their nights in so many parts, each as a fraction of the GPU's median."""
    rows = []
    for each in series:
        middle = median(each.values_us)
        rows.append([median(part) / middle for part in _parts(each.values_us, parts)])
    longest = max(map(len, rows))
    levels = [median(row[index] for row in rows if index < len(row)) for index in range(longest)]
    low, span = _scale(levels)
    return "".join(heights[round((len(heights) - 1) * (level - low) / span)] for level in levels)


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


def _details(chart: Chart, width: int, heights: str) -> Iterator[str]:
    for each in chart.series:
        yield f"  {_spark([each], width, heights)}"
        runs, days = counted(len(each.nights), "run"), f"{_day(each, 0)} to {_day(each, -1)}"
        yield printable(f"  {each.gpu}: {runs}, {days}, last {kernel_us(each.values_us[-1])} us")
    changes = _environment_changes(chart)
    if changes:
        yield "  The environment changed:"
        yield from _latest_lines([[f"{day}  {_line(change)}  ({_line(gpus)})"] for day, change, gpus in changes])
    found = [_shift_lines(each, shift) for each in chart.series for shift in each.shifts]
    if found:
        yield "  Change points (advisory):"
        ordered = sorted(found, key=lambda lines: (lines[0][:10], lines[1:], lines[0]))
        same = [list(group) for _, group in groupby(ordered, key=lambda lines: lines[1:])]
        yield from _latest_lines(
            [[*(first for first, *_ in group), *(f"  {more}" for more in group[0][1:])] for group in same]
        )
    if correction := _correction(chart):
        yield f"  {correction}"


def _latest_lines(blocks: Sequence[Sequence[str]]) -> Iterator[str]:
    if len(blocks) > _MOST_LINES:
        yield f"    and {len(blocks) - _MOST_LINES} earlier"
    for block in blocks[-_MOST_LINES:]:
        yield from (printable(f"    {line}") for line in block)


def _environment_changes(chart: Chart) -> list[tuple[str, str, str]]:
    """Return day, change, and GPUs, in order of time: the same change of a day once."""
    found: dict[tuple[str, str], list[str]] = {}
    for series in chart.series:
        for index, changes in series.marks.items():
            for change in changes:
                found.setdefault((_day(series, index), change), []).append(series.gpu)
    return [
        (day, change, gpus[0] if len(gpus) == 1 else counted(len(gpus), gpus[0].partition(" ")[0]))
        for (day, change), gpus in sorted(found.items())
    ]


def _shift_lines(series: Series, shift: Shift) -> list[str]:
    """Return a change point with its commits and what changed beside it, or a drift.

    The first line is ``2026-03-01  GPU 0f1e2d3c  205.1 -> 221.8 us (+8.1 %)``.
    """
    change = f"({100 * shift.change:+.1f} %)"
    where = f"{_day(series, shift.index)}  {_line(series.gpu)}"
    if shift.nights:
        per_night = f"{100 * shift.per_night:+#.2g}".rstrip(".")
        return [f"{where}  drift: {per_night} % a night for {shift.nights} nights {change}"]
    before, after = (short(night.commit or "(not known)") for night in series.nights[shift.index - 1 : shift.index + 1])
    near = [series.marks.get(index, ()) for index in (shift.index - 1, shift.index, shift.index + 1)]
    beside = _line(", ".join(each for changes in near for each in changes))  # it may be a night too early or too late
    return [
        f"{where}  {kernel_us(shift.before_us)} -> {kernel_us(shift.after_us)} us {change}",
        f"commit {before} -> {after}",
        *([f"with {beside}"] if beside else []),
    ]


def _correction(chart: Chart) -> str:
    """Return ``Change points are corrected for launch configuration and GPU speed.``"""
    reasons = sorted({reason for each in chart.series for reason in each.corrected_for}, reverse=True)
    return f"Change points are corrected for {' and '.join(reasons)}." if reasons else ""


def _line(text: str) -> str:
    return " ".join(text.split())


def _day(series: Series, index: int) -> str:
    return series.nights[index].started_at.date().isoformat()


def trend_html(trends: Trends) -> str:
    """Return one page with a chart of each workload. `report/html.py` says how it is escaped and guarded."""
    return render_page(
        "trend.html",
        styles=["report.css", "trend.css"],
        figures=[_figure(chart, trends.timer.label) for chart in trends.charts],
        sentence=f"{counted(len(trends.charts), 'workload')}, {trends.timer.label}, "
        f"{counted(trends.files, 'file')} of the history",
        not_shown=trends.not_shown,
    )


def _figure(chart: Chart, timer: str) -> dict[str, Any]:
    """Return what the template draws of a chart; places are in percent."""
    first = min(each.nights[0].started_at for each in chart.series)
    last = max(each.nights[-1].started_at for each in chart.series)
    low, span = _scale([value for each in chart.series for value in _thinned(each)])

    def x(when: datetime) -> float:
        return round(1 + 98 * ((when - first) / (last - first)), 1) if last > first else 50.0

    lines = []
    for number, each in enumerate(chart.series):
        moments = [part[len(part) // 2].started_at for part in _parts(each.nights, _MOST_POINTS)]
        points = zip(map(x, moments), _thinned(each), strict=True)
        drawn = " ".join(f"{place:.1f},{95 - 90 * (us - low) / span:.1f}" for place, us in points)
        lines.append(
            {
                "gpu": each.gpu,
                "colour": number % _COLOURS,
                "points": Markup(drawn),  # numbers alone, and not to be cut as a text is
                "last": kernel_us(each.values_us[-1]),
            }
        )
    uprights: dict[tuple[float, str], list[str]] = {}
    for each in chart.series:
        for index, changes in each.marks.items():
            uprights.setdefault((x(each.nights[index].started_at), "upgrade"), []).extend(changes)
        for shift in each.shifts:
            title = ", ".join(_shift_lines(each, shift))
            uprights.setdefault((x(each.nights[shift.index].started_at), "shift"), []).append(title)
    return {
        "chart": chart,
        "lines": lines,
        "uprights": [(*place, "; ".join(dict.fromkeys(titles))) for place, titles in sorted(uprights.items())],
        "highest": kernel_us(max(value for each in chart.series for value in _thinned(each))),
        "lowest": kernel_us(min(value for each in chart.series for value in _thinned(each))),
        "first": first.date(),
        "last": last.date(),
        "spoken": f"{timer} of {chart.workload}, from {first:%Y-%m-%d} to {last:%Y-%m-%d}: "
        f"last {kernel_us(chart.last_us)} us, {100 * chart.change:+.1f} % since the first",
        "changes": _environment_changes(chart),
        "shifts": sorted(", ".join(_shift_lines(each, shift)) for each in chart.series for shift in each.shifts),
        "correction": _correction(chart),
    }


def _thinned(series: Series) -> list[float]:
    """Return the times; of very many, medians of neighbours."""
    return [median(part) for part in _parts(series.values_us, _MOST_POINTS)]
