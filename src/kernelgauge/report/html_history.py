"""A workload over several runs, for the HTML report: a line of device times, a point for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..judge import compare, observe
from ..results import Results, WorkloadResult
from ..run import Fingerprint, Timer
from .html_charts import shown_us
from .wording import counted, status_text

__all__ = ["History", "Point", "histories", "moment"]

_LEAST_SPAN = 0.02  # of the value: noise of a tenth of a percent is drawn flat
_SPOKEN = 8


@dataclass(frozen=True)
class Point:
    """One run."""

    x: float  # percent
    y: float
    status: str
    title: str


@dataclass(frozen=True)
class History:
    """Device time over the runs of one kind of machine, in order of time. `baseline_y`: what it is compared with now.

    `upgrades`: where the software or the driver changed, between two runs.
    """

    points: tuple[Point, ...]
    line: str  # "x,y x,y ..." in percent
    baseline_y: float | None
    upgrades: tuple[float, ...]
    highest: str
    lowest: str
    first: str
    last: str
    spoken: str


def moment(started_at: str) -> str:
    """``2026-11-20 19:10`` of an ISO time, which is UTC."""
    return started_at[:16].replace("T", " ")


def histories(results: Sequence[Results]) -> Mapping[str, History]:
    """One for each workload that was measured more than once in these results, which are of one kind of machine."""
    found: dict[str, list[tuple[Results, WorkloadResult, float]]] = {}
    for one in results:
        for workload in one.workloads:
            sample = workload.run.sample(Timer.DEVICE) if workload.run else None
            if sample is not None:
                found.setdefault(workload.id, []).append((one, workload, observe(sample).mean_us))
    places = {id(one): _place(index, len(results)) for index, one in enumerate(results)}
    return {
        identifier: _history(measured, places, results) for identifier, measured in found.items() if len(measured) > 1
    }


def _place(index: int, count: int) -> float:
    return 2 + 96 * index / max(1, count - 1)


def _history(
    measured: Sequence[tuple[Results, WorkloadResult, float]], places: Mapping[int, float], results: Sequence[Results]
) -> History:
    values = [value for _, _, value in measured]
    judged = measured[-1][1].verdict(Timer.DEVICE.label)
    baseline_us = judged.before_us if judged else None
    ends = [*values, *([] if baseline_us is None else [baseline_us])]
    middle = min(ends) + (max(ends) - min(ends)) / 2
    span = max(max(ends) - min(ends), _LEAST_SPAN * middle)

    def height(value: float) -> float:
        return 50 - 80 * (value - middle) / span

    points = tuple(
        Point(
            places[id(one)],
            height(value),
            status_text(workload),
            f"{moment(one.started_at)}: {shown_us(value)} us, {status_text(workload)}",
        )
        for one, workload, value in measured
    )
    said = ", ".join(shown_us(value) for value in values[-_SPOKEN:])
    last = "" if len(values) <= _SPOKEN else f"the last {_SPOKEN}: "
    return History(
        points=points,
        line=" ".join(f"{point.x:.2f},{point.y:.2f}" for point in points),
        baseline_y=None if baseline_us is None else height(baseline_us),
        upgrades=_upgrades(results, places),
        highest=shown_us(max(values)),
        lowest=shown_us(min(values)),
        first=moment(measured[0][0].started_at),
        last=moment(measured[-1][0].started_at),
        spoken=f"device time in {counted(len(values), 'run')}, in us: {last}{said}",
    )


def _upgrades(results: Sequence[Results], places: Mapping[int, float]) -> tuple[float, ...]:
    return tuple(
        (places[id(old)] + places[id(new)]) / 2
        for old, new in pairwise(results)
        if changed(old.fingerprint, new.fingerprint)
    )


def changed(old: Fingerprint | None, new: Fingerprint | None) -> list[str]:
    """``driver 580.1 -> 580.2``: what differs between two machines; nothing where one is not known."""
    if old is None or new is None:
        return []
    comparison = compare(old, new)
    return [str(change).replace("_", " ") for change in (*comparison.foreign, *comparison.moved)]
