"""A workload over its history, as plain data: what `report/trend_text.py` and `report/trend_html.py` show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median

from ..judge.fingerprint import compare
from ..run import Fingerprint, Timer

__all__ = ["Chart", "Environment", "Mark", "Moment", "Series", "Shift", "Trends", "changes", "marks"]


@dataclass(frozen=True)
class Environment:
    """What times depend on beside the code under test."""

    fingerprint: Fingerprint
    host: str
    kernelgauge: str


@dataclass(frozen=True)
class Moment:
    """One run of pytest on one GPU. `started_at` is in UTC."""

    started_at: datetime
    commit: str | None
    environment: Environment  # the same object for the same environment


@dataclass(frozen=True)
class Mark:
    """The environment changed: `index` is the first of the series after it."""

    index: int
    changes: tuple[str, ...]  # "driver 580.1 -> 580.2"


@dataclass(frozen=True)
class Shift:
    """A change point: at `index` a new level starts, or a drift of so many `nights`. Levels are in microseconds."""

    index: int
    before_us: float
    after_us: float
    nights: int = 0  # of a drift; 0: a step

    @property
    def change(self) -> float:
        """As a fraction."""
        return self.after_us / self.before_us - 1

    @property
    def per_night(self) -> float:
        """Change of a drift from one night to the next, as a fraction."""
        return math.expm1(math.log1p(self.change) / (self.nights - 1))


@dataclass(frozen=True)
class Series:
    """Times of one workload on one GPU, in order of time. At least one. `gpu`: its digest; of a CPU, the host.

    `corrected_us`: the times that the change points were looked for in; `corrected_for`: what differs from `values_us`.
    """

    gpu: str
    moments: tuple[Moment, ...]
    values_us: tuple[float, ...]
    marks: tuple[Mark, ...]
    corrected_us: tuple[float, ...]
    corrected_for: tuple[str, ...]
    shifts: tuple[Shift, ...]

    @property
    def noun(self) -> str:
        """What `gpu` is the name of."""
        return "host" if self.moments[0].environment.fingerprint.arch == "cpu" else "GPU"

    @property
    def named(self) -> str:
        return f"{self.noun} {self.gpu}"

    def changes_beside(self, shift: Shift) -> tuple[str, ...]:
        """What changed in the environment with it. A change point may be a night too early or too late."""
        near = [mark.changes for mark in self.marks if abs(mark.index - shift.index) <= 1]
        return tuple(change for changes in near for change in changes)


@dataclass(frozen=True)
class Chart:
    """A workload on one kind of machine: a series for each GPU."""

    workload: str
    machine: str
    series: tuple[Series, ...]

    @property
    def noun(self) -> str:
        """What each of the series is of: machines of one kind have one."""
        return self.series[0].noun

    @property
    def corrected_for(self) -> list[str]:
        """What any of the series is corrected for."""
        return sorted({name for each in self.series for name in each.corrected_for}, reverse=True)

    @property
    def latest_shifts(self) -> list[tuple[Series, Shift]]:
        """Of the GPUs whose last change point is as late as any's, to the day."""
        last = [(each, each.shifts[-1]) for each in self.series if each.shifts]
        days = [each.moments[shift.index].started_at.date() for each, shift in last]
        return [pair for pair, day in zip(last, days, strict=True) if day == max(days)]

    @property
    def last_us(self) -> float:
        """Median over the GPUs."""
        return median(each.values_us[-1] for each in self.series)

    @property
    def change(self) -> float:
        """From the first to the last value, as a fraction: the median over the GPUs."""
        return median(each.values_us[-1] / each.values_us[0] - 1 for each in self.series)


@dataclass(frozen=True)
class Trends:
    """What was asked of a history. `entries`: the files that were read; `set_aside`: what is not shown, and why."""

    timer: Timer
    charts: tuple[Chart, ...]
    entries: int
    set_aside: tuple[str, ...]


def marks(moments: Sequence[Moment]) -> tuple[Mark, ...]:
    """Where the environment changed. Pure."""
    return tuple(
        Mark(index, changes(before.environment, after.environment))
        for index, (before, after) in enumerate(pairwise(moments), start=1)
        if before.environment is not after.environment
    )


def changes(before: Environment, after: Environment) -> tuple[str, ...]:
    """``driver 580.1 -> 580.2``: what moved between two environments of one kind of machine."""
    moved = [str(change).replace("_", "-") for change in compare(before.fingerprint, after.fingerprint).moved]
    for name in ("kernelgauge", "host"):
        old, new = getattr(before, name), getattr(after, name)
        moved += [f"{name} {old or '(not known)'} -> {new or '(not known)'}"] if old != new else []
    return tuple(moved)
