"""Trends -> one HTML page that needs nothing else: no network and no script. Escaped and guarded as `report/html.py` says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median

from markupsafe import Markup

from .html import asset, environment, source
from .html_charts import shown_us
from .trend import Chart, Series, Trends
from .trend_text import correction_line, shift_lines, told_marks
from .wording import counted

__all__ = ["trend_html"]

_LEAST_SPAN = 0.02  # of the value, as in the report of a run
_MOST_POINTS = 150  # of a line: 100 workloads on 4 GPUs are a page of 1 MB
_COLOURS = 8


@dataclass(frozen=True)
class _Line:
    name: str  # "GPU 0f1e2d3c"
    colour: int
    points: str  # "x,y x,y ..." in percent
    last: str


@dataclass(frozen=True)
class _Upright:
    """A change in the chart: where, what, and of which kind ("upgrade", "shift")."""

    x: float
    title: str
    kind: str


@dataclass(frozen=True)
class _Figure:
    workload: str
    machine: str
    lines: tuple[_Line, ...]
    uprights: tuple[_Upright, ...]
    highest: str
    lowest: str
    first: str
    last: str
    spoken: str
    upgrades: tuple[tuple[str, str, str], ...]
    shifts: tuple[str, ...]
    correction: str


def trend_html(trends: Trends) -> str:
    style = asset("report.css") + asset("trend.css")
    policy = f"default-src 'none'; style-src {source(style)}; base-uri 'none'; form-action 'none'"
    return (
        environment()
        .get_template("trend.html")
        .render(
            figures=[_figure(chart, trends.timer.label) for chart in trends.charts],
            sentence=f"{counted(len(trends.charts), 'workload')}, {trends.timer.label}, "
            f"{counted(trends.entries, 'file')} of the history",
            set_aside=trends.set_aside,
            style=Markup(style),
            policy=policy,
        )
    )


def _figure(chart: Chart, what: str) -> _Figure:
    first = min(series.moments[0].started_at for series in chart.series)
    last = max(series.moments[-1].started_at for series in chart.series)
    thinned = [_thinned(series, first, last) for series in chart.series]
    values = [value for points in thinned for _, value in points]
    middle = (min(values) + max(values)) / 2
    span = max(max(values) - min(values), _LEAST_SPAN * middle)
    lines = tuple(
        _Line(
            series.named,
            number % _COLOURS,
            " ".join(f"{x:.1f},{50 - 90 * (value - middle) / span:.1f}" for x, value in points),
            shown_us(series.values_us[-1]),
        )
        for number, (series, points) in enumerate(zip(chart.series, thinned, strict=True))
    )
    shifts = sorted(", ".join(shift_lines(series, shift)) for series in chart.series for shift in series.shifts)
    return _Figure(
        chart.workload,
        chart.machine,
        lines,
        tuple(_uprights(chart, first, last)),
        shown_us(max(values)),
        shown_us(min(values)),
        f"{first:%Y-%m-%d}",
        f"{last:%Y-%m-%d}",
        f"{what} of {chart.workload} on {counted(len(lines), chart.noun)}, from {first:%Y-%m-%d} to {last:%Y-%m-%d}: last "
        f"{shown_us(chart.last_us)} us, {100 * chart.change:+.1f} % since the first",
        tuple(told_marks(chart)),
        tuple(shifts),
        correction_line(chart) if chart.corrected_for else "",
    )


def _thinned(series: Series, first: datetime, last: datetime) -> list[tuple[float, float]]:
    """Place in percent and time of each night; of very many, the medians of neighbours."""
    count = min(_MOST_POINTS, len(series.values_us))
    edges = [len(series.values_us) * index // count for index in range(count + 1)]
    return [
        (_place(series.moments[(start + end) // 2].started_at, first, last), median(series.values_us[start:end]))
        for start, end in pairwise(edges)
    ]


def _uprights(chart: Chart, first: datetime, last: datetime) -> list[_Upright]:
    found: dict[tuple[float, str], list[str]] = {}
    for series in chart.series:
        for mark in series.marks:
            place = round(_place(series.moments[mark.index].started_at, first, last), 1)
            found.setdefault((place, "upgrade"), []).extend(mark.changes)
        for shift in series.shifts:
            place = round(_place(series.moments[shift.index].started_at, first, last), 1)
            found.setdefault((place, "shift"), []).append(", ".join(shift_lines(series, shift)))
    return [_Upright(place, "; ".join(dict.fromkeys(titles)), kind) for (place, kind), titles in sorted(found.items())]


def _place(when: datetime, first: datetime, last: datetime) -> float:
    return 1 + 98 * ((when - first) / (last - first)) if last > first else 50.0
