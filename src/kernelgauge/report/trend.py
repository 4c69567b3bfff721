"""Trends as text for a terminal, and as one HTML page that needs no network and no script."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from ..errors import printable
from ..judge import worst
from ..results.history import Chart, Night, Series, Trends
from ..run import Timer
from .html import render_page
from .page import Column, table_text
from .wording import counted, cut, kernel_us, short_commit

__all__ = ["trend_html", "trend_text"]

_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_MOST_LINES = 12  # of one kind in the text form
_COLOURS = 8
_MOST_TICKS = 4
_MOST_POINTS = 200  # of one chart
_LEFT = 9.0  # percent of the width: the labels stand there

# -- both forms -------------------------------------------------------------------------------------------------------


def _notes(chart: Chart) -> list[tuple[str, list[str]]]:
    """Return (title, lines) of what changed beside the times, and of each change of a verdict."""
    changes = sorted(
        f"{_day(each, index)}  {each.place}  {text}" for each in chart.series for index, text in each.changes
    )
    verdicts = sorted(text for each in chart.series for _, text in _verdict_changes(each))
    return [(title, lines) for title, lines in (("What changed", changes), ("Verdicts", verdicts)) if lines]


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


# -- text -------------------------------------------------------------------------------------------------------------


def trend_text(trends: Trends, *, with_details: bool, width: int, color: bool) -> str:
    """Return a table for each kind of machine, with a line for each workload.

    `with_details`: below it, the GPUs of each workload, the changes of the environment, and those of its verdict.
    """
    columns = [
        *(Column(title, number=True) for title in ("first us", "last us", "change")),
        *(Column(title, is_whole=True) for title in ("verdict", "since")),
        Column("workload"),  # the last: no line begins with a part of a name, which GitHub could take for a command
    ]
    parts: list[str] = []
    for machine in sorted({chart.machine for chart in trends.charts}):
        charts = [each for each in trends.charts if each.machine == machine]
        cells = [_cells(chart) for chart in charts]
        table = table_text(columns, cells, width=width, color=color, gap=2)
        details = [_wrapped(line, width) for chart in charts for line in _details(chart)] if with_details else []
        parts.append(
            "\n".join([printable(f"{machine}, {_time_name(trends.timer, charts)}"), table + "\n".join(details)])
        )
    parts += _limited([f"not shown: {line}" for line in trends.not_shown], "more")
    return "\n".join(parts)


def _time_name(timer: Timer, charts: Sequence[Chart]) -> str:
    """Return what the time is called on the machines of these charts."""
    machines = [chart.series[0].nights[0].file.fingerprint for chart in charts]
    return " or ".join(dict.fromkeys(timer.label_on(machine) for machine in machines if machine)) or timer.label


def _cells(chart: Chart) -> tuple[str, ...]:
    """Return the first and the last time, the worst of the last verdicts, and the first day that had it."""
    status = worst([last for each in chart.series if (last := each.nights[-1].status) is not None])
    since = min(each.since.file.started_at for each in chart.series if each.nights[-1].status is status)
    times = (kernel_us(chart.first_us), kernel_us(chart.last_us))
    return (*times, _percent(chart), _status(status), str(since.date()), chart.workload)


def _details(chart: Chart) -> Iterator[str]:
    yield f"workload {chart.workload}"
    for each in chart.series:
        days = f"{_day(each, 0)} to {_day(each, -1)}"
        yield f"  {each.place}: {counted(len(each.nights), 'run')}, {days}, last {kernel_us(each.nights[-1].us)} us"
    for title, lines in _notes(chart):
        yield f"  {title}:"
        yield from (f"    {line}" for line in _limited(lines[::-1], "earlier"))


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(printable(line), width, subsequent_indent="      ", break_on_hyphens=False)


def _limited(lines: Sequence[str], others: str) -> list[str]:
    left = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"and {left} {others}"] if left > 0 else [])]


def _percent(chart: Chart) -> str:
    return f"{100 * chart.change:+.1f} %"


# -- HTML -------------------------------------------------------------------------------------------------------------


def trend_html(trends: Trends) -> str:
    """Return one page with a chart of each workload. `report/html.py` says how it is escaped and guarded."""
    return render_page(
        "trend.html",
        styles=["report.css", "trend.css"],
        figures=[_figure(chart) for chart in trends.charts],
        timer=_time_name(trends.timer, trends.charts),
        sentence=f"{counted(len(trends.charts), 'workload')}, {_time_name(trends.timer, trends.charts)}, "
        f"{counted(trends.files, 'file')} of the history",
        not_shown=trends.not_shown,
    )


def _figure(chart: Chart) -> dict[str, Any]:
    """Return what the template draws. Places are in percent."""
    first = min(each.nights[0].file.started_at for each in chart.series)
    length = max(each.nights[-1].file.started_at for each in chart.series) - first
    nights = [night for each in chart.series for night in each.nights]
    low, span = _scale([us for night in nights for us in (night.us, night.baseline_us) if us is not None])

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
                "baseline": _path(_steps([(place, y(us)) for place, night in placed if (us := night.baseline_us)])),
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
        "values": [(round(95 - 0.9 * place, 1), f"{text} us") for place, text in _ticks(low, low + span)],
        "dates": [(first + length * part / 4).strftime(form) for part in (range(5) if length else (0,))],
        "change": _percent(chart),
        "notes": _notes(chart),
    }


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower end and the length of an axis that has all values."""
    middle = (min(values) + max(values)) / 2
    span = max(max(values) - min(values), _LEAST_SPAN * middle)
    return middle - span / 2, span


def _ticks(low: float, high: float) -> Iterator[tuple[float, str]]:
    """Yield position (in percent) and text of at most five round numbers from `low` to `high`."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= _MOST_TICKS)
    decimals = max(0, -math.floor(math.log10(step)))
    for index in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield 100 * (index * step - low) / span, f"{index * step:.{decimals}f}"


def _path(points: Sequence[tuple[float, float]]) -> Markup:
    return Markup(" ".join(f"{x},{y}" for x, y in points))


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of a line that keeps its height until the next point."""
    return [*points[:1], *(one for (_, y), new in pairwise(points) for one in ((new[0], y), new))]


def _point_text(place: str, night: Night) -> str:
    when, commit = night.file.started_at.strftime("%Y-%m-%d %H:%M"), short_commit(night.file.commit)
    stored = f", baseline {kernel_us(night.baseline_us)} us" if night.baseline_us else ""
    return cut(f"{when}  {kernel_us(night.us)} us  {_status(night.status)}  commit {commit}{stored}  {place}")
