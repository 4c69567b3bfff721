"""The history of workloads as a table: as text for a terminal, and as one HTML page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, pairwise, takewhile
from operator import attrgetter, itemgetter
from statistics import median

from markupsafe import Markup

from ..judge.verdict import Status, worst
from ..results.history import Night
from .findings import in_one_line
from .html import render_page
from .text import Column, Grid, Section, as_text, counted, cut, first, short_commit, us

_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_MOST_LINES = 12  # of one kind in the text form
_COLUMNS = (
    *(Column(title, number=True) for title in ("first us", "last us", "change")),
    *(Column(title, is_whole=True) for title in ("verdict", "since")),
    Column("workload"),  # the last: no line begins with a part of a name, which GitHub could take for a command
)


class _Trend:
    """A workload on one kind of machine. Times are medians over its GPUs."""

    def __init__(self, nights: Iterable[Night]) -> None:
        self.series = {place: list(each) for place, each in groupby(nights, key=attrgetter("place"))}
        self.machine, self.workload, *_ = next(iter(self.series.values()))[0]

    @property
    def cells(self) -> tuple[str, ...]:
        """Return a line of the table. `since`: the first day that had the last verdict, the worst, without a break."""
        series = self.series.values()
        before, after = (us(median(nights[place].us for nights in series)) for place in (0, -1))
        change = f"{100 * median(nights[-1].us / nights[0].us - 1 for nights in series):+.1f} %"
        status = worst([nights[-1].status for nights in series if nights[-1].status is not None])
        with_it = [list(takewhile(lambda night: night.status is status, reversed(nights))) for nights in series]
        since = min(nights[-1].at for nights in with_it if nights)
        return before, after, change, _status(status), str(since.date()), self.workload

    @property
    def places(self) -> list[str]:
        """Return a line for each GPU."""
        return [
            f"{place}: {counted(len(nights), 'run')}, {nights[0].at.date()} to {nights[-1].at.date()}, "
            f"last {us(nights[-1].us)} us"
            for place, nights in self.series.items()
        ]

    @cached_property
    def changes(self) -> list[str]:
        """Return what changed from one night of a GPU to the next, the latest first."""
        pairs = ((place, *pair) for place, nights in self.series.items() for pair in pairwise(nights))
        found = [(after.at, place, line) for place, before, after in pairs for line in _changes(before, after)]
        found.sort(key=itemgetter(0, 1))  # of one night the verdict last, which is what the rest led to
        return [cut(f"{at.date()}  {place}  {line}") for at, place, line in reversed(found)]

    @property
    def lines(self) -> list[Markup]:
        """Return the points of a line for each GPU, from 0 to 100 in both directions."""
        nights = [night for each in self.series.values() for night in each]
        begin, end = (pick(night.at for night in nights) for pick in (min, max))
        low, high = (pick(night.us for night in nights) for pick in (min, max))
        span = max(high - low, _LEAST_SPAN * high)
        bottom = (low + high - span) / 2
        return [
            Markup(
                " ".join(
                    f"{100 * ((night.at - begin) / (end - begin) if end > begin else 0.5):.1f},"
                    f"{100 - 100 * (night.us - bottom) / span:.1f}"
                    for night in each
                )
            )
            for each in self.series.values()
        ]


def _changes(before: Night, after: Night) -> Iterator[str]:
    old, new = before.environment, after.environment
    yield from (f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name])
    if before.kernels != after.kernels:
        yield "other kernels"
    if before.status is not after.status:
        commits = f"commit {short_commit(before.commit)} -> {short_commit(after.commit)}"
        why = in_one_line(after.verdict) if after.verdict is not None and after.status is not Status.PASS else ""
        yield f"{_status(before.status)} -> {_status(after.status)}, {commits}" + (f": {why}" if why else "")


def _status(status: Status | None) -> str:
    return "no verdict" if status is None else status.value


def _by_machine(nights: Iterable[Night]) -> list[tuple[str, list[_Trend]]]:
    trends = [_Trend(each) for _, each in groupby(nights, key=attrgetter("machine", "workload"))]
    return [(machine, list(group)) for machine, group in groupby(trends, key=attrgetter("machine"))]


def trend_text(
    nights: Iterable[Night], not_shown: Sequence[str], *, with_details: bool, width: int, color: bool
) -> str:
    """Return a table for each kind of machine, with a line for each workload.

    `with_details`: below it, the GPUs of each workload, and what changed: the environment, the kernels, the verdict.
    """
    sections: list[Section] = []
    for machine, trends in _by_machine(nights):
        sections.append(Section(machine, grid=Grid(_COLUMNS, tuple(trend.cells for trend in trends))))
        for trend in trends if with_details else ():
            details = [
                *(f"  {line}" for line in trend.places),
                *(f"    {x}" for x in first(trend.changes, _MOST_LINES)),
            ]
            sections.append(Section(f"workload {trend.workload}", tuple(details)))
    if not_shown:
        sections.append(Section(lines=tuple(first([f"not shown: {each}" for each in not_shown], _MOST_LINES))))
    return as_text(sections, width=width, color=color)


def trend_html(nights: Iterable[Night], not_shown: Sequence[str]) -> str:
    """Return one page with the same tables, and a line chart in each row. `report/html.py` says how it is escaped."""
    machines, titles = _by_machine(nights), [column.title for column in _COLUMNS]
    return render_page("trend.html", machines=machines, titles=titles, not_shown=not_shown)
