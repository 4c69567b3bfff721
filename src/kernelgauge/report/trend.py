"""Trends as text for a terminal, and as one HTML page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from itertools import groupby, pairwise, takewhile
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from markupsafe import Markup

from ..judge.verdict import Status, worst
from ..results.history import Night
from .html import render_page
from .page import Column, Grid, Section, text
from .wording import cut, short_commit, us
from .words import counted, said

_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_MOST_LINES = 12  # of one kind in the text form
_COLOURS = 8
_MOST_POINTS = 200  # of one chart
_LEFT = 9.0  # percent of the width: the labels stand there
_COLUMNS = (
    *(Column(title, number=True) for title in ("first us", "last us", "change")),
    *(Column(title, is_whole=True) for title in ("verdict", "since")),
    Column("workload"),  # the last: no line begins with a part of a name, which GitHub could take for a command
)


class _Change(NamedTuple):
    """From one night of a GPU to the next. `kind`: ``upgrade`` of the environment, or ``verdict``."""

    at: datetime
    place: str
    kind: str
    line: str


class _Chart:
    """A workload on one kind of machine. Times are medians over its GPUs."""

    def __init__(self, nights: Iterable[Night]) -> None:
        self.series = {place: list(each) for place, each in groupby(nights, key=attrgetter("place"))}
        series = self.series.values()
        self.nights = [night for each in series for night in each]
        self.machine, self.workload, *_ = self.nights[0]
        self.first, self.last = (us(median(each[place].us for each in series)) for place in (0, -1))
        self.change = f"{100 * median(each[-1].us / each[0].us - 1 for each in series):+.1f} %"

    @cached_property
    def changes(self) -> list[_Change]:
        pairs = (pair for nights in self.series.values() for pair in pairwise(nights))
        return sorted(change for pair in pairs for change in _changes(*pair))

    @property
    def cells(self) -> tuple[str, ...]:
        """Return a line of the table. `since`: the first day that had the last verdict, the worst, without a break."""
        series = self.series.values()
        status = worst([nights[-1].status for nights in series if nights[-1].status is not None])
        with_it = [list(takewhile(lambda night: night.status is status, reversed(nights))) for nights in series]
        since = min(nights[-1].at for nights in with_it if nights)
        return (self.first, self.last, self.change, _status(status), str(since.date()), self.workload)


def _changes(before: Night, after: Night) -> Iterator[_Change]:
    def change(kind: str, text: str) -> _Change:
        return _Change(after.at, after.place, kind, cut(f"{after.at.date()}  {after.place}  {text}"))

    old, new = before.environment, after.environment
    if old != new:
        yield from (change("upgrade", f"{name} {old[name]} -> {new[name]}") for name in old if old[name] != new[name])
    if before.kernels != after.kernels:
        yield change("upgrade", "other kernels")
    if before.status is not after.status:
        commits = f"commit {short_commit(before.commit)} -> {short_commit(after.commit)}"
        words = f"{_status(before.status)} -> {_status(after.status)}, {commits}"
        why = said(after.verdict) if after.verdict is not None and after.status is not Status.PASS else ""
        yield change("verdict", f"{words}: {why}" if why else words)


def _status(status: Status | None) -> str:
    return "no verdict" if status is None else status.value


def _charts(nights: Iterable[Night]) -> list[_Chart]:
    return [_Chart(each) for _, each in groupby(nights, key=attrgetter("machine", "workload"))]


# -- text -------------------------------------------------------------------------------------------------------------


def trend_text(
    nights: Iterable[Night], not_shown: Sequence[str], *, with_details: bool, width: int, color: bool
) -> str:
    """Return a table for each kind of machine, with a line for each workload.

    `with_details`: below it, the GPUs of each workload, and what changed: the environment, the kernels, the verdict.
    """
    sections: list[Section] = []
    for machine, group in groupby(_charts(nights), key=attrgetter("machine")):
        charts = list(group)
        sections.append(Section(machine, grid=Grid(_COLUMNS, tuple(chart.cells for chart in charts))))
        if with_details:
            sections += [Section(f"workload {chart.workload}", tuple(_details(chart))) for chart in charts]
    if not_shown:
        sections.append(Section(lines=tuple(_limited([f"not shown: {each}" for each in not_shown]))))
    return text(sections, width=width, color=color)


def _details(chart: _Chart) -> Iterator[str]:
    for place, nights in chart.series.items():
        days = f"{nights[0].at.date()} to {nights[-1].at.date()}"
        yield f"  {place}: {counted(len(nights), 'run')}, {days}, last {us(nights[-1].us)} us"
    yield from (f"    {line}" for line in _limited([each.line for each in reversed(chart.changes)]))


def _limited(lines: list[str]) -> list[str]:
    left = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"and {left} more"] if left > 0 else [])]


# -- HTML -------------------------------------------------------------------------------------------------------------


def trend_html(nights: Iterable[Night], not_shown: Sequence[str]) -> str:
    """Return one page with a chart of each workload. `report/html.py` says how it is escaped and guarded."""
    figures = [_figure(chart) for chart in _charts(nights)]
    styles = ["report.css", "trend.css"]
    sentence = counted(len(figures), "workload")
    return render_page("trend.html", styles=styles, figures=figures, sentence=sentence, not_shown=not_shown)


def _figure(chart: _Chart) -> dict[str, Any]:
    """Return what the template draws. Places are in percent."""
    nights = chart.nights
    begin = min(night.at for night in nights)
    length = max(night.at for night in nights) - begin
    values = [time for night in nights for time in (night.us, night.baseline_us) if time is not None]
    middle = (min(values) + max(values)) / 2
    span = max(max(values) - min(values), _LEAST_SPAN * middle)

    def x(at: datetime) -> float:
        return round(_LEFT + (98 - _LEFT) * ((at - begin) / length), 1) if length else 50.0

    def y(time_us: float) -> float:
        return round(50 - 90 * (time_us - middle) / span, 1)

    turns = {(each.place, each.at) for each in chart.changes if each.kind == "verdict"}
    lines = [
        {
            "place": place,
            "last": us(each[-1].us),
            "colour": number % _COLOURS,
            # Numbers only; escaping each by itself takes ten seconds of a year.
            "times": Markup(" ".join(f"{x(night.at)},{y(night.us)}" for night in each)),
            "baseline": Markup(
                " ".join(f"{x(night.at)},{y(night.baseline_us)}" for night in each if night.baseline_us)
            ),
            "points": [
                (x(night.at), y(night.us), _status(night.status), _point_text(night))
                for night in each  # of very many, where the verdict changed
                if len(nights) <= _MOST_POINTS or (place, night.at) in turns
            ],
        }
        for number, (place, each) in enumerate(chart.series.items())
    ]
    return {
        "chart": chart,
        "lines": lines,
        "uprights": sorted((each.kind, x(each.at), each.line) for each in chart.changes),
        "values": [(place, f"{us(middle + (50 - place) / 90 * span)} us") for place in (5, 27.5, 50, 72.5, 95)],
        "dates": [str((begin + length * part / 4).date()) for part in (range(5) if length else (0,))],
    }


def _point_text(night: Night) -> str:
    stored = f", baseline {us(night.baseline_us)} us" if night.baseline_us else ""
    words = f"{us(night.us)} us  {_status(night.status)}  commit {short_commit(night.commit)}{stored}"
    return cut(f"{night.at:%Y-%m-%d %H:%M}  {words}  {night.place}")
