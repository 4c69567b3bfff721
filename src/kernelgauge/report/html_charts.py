"""Where things stand in the charts of the HTML report: positions in percent of a chart's width, drawn by a template.

Percent, because an SVG that is sized in them keeps its letters legible on a telephone and on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..judge import Baseline, RelativeChange
from ..run import Run, Sample, Timer
from ..trace.kernel import KernelRecord
from .wording import counted, us

__all__ = [
    "Bar",
    "Distribution",
    "Interval",
    "Lane",
    "Process",
    "Tick",
    "distribution",
    "interval",
    "lane",
    "shown_us",
    "ticks",
]

_MOST_BARS = 80
_SHORT_US = 10.0
_DESIGN_WIDTH_PX = 1180  # of a lane on a screen of 1440: what a bar's text is cut for
_CHARACTER_PX = 6.4
_SPOKEN_KERNELS = 30
_LONGEST_KIND = 30
_LARGEST_SPREAD = 3.0  # of logarithms, a factor of 20: no file may say more than can be drawn


@dataclass(frozen=True)
class Tick:
    """A mark of an axis."""

    x: float
    text: str
    anchor: str  # "start", "middle" or "end", so that no label leaves the chart


@dataclass(frozen=True)
class Bar:
    """One launch in a lane, or several short ones together."""

    x: float
    width: float
    kind: str
    heading: str  # what fits into the bar; empty where nothing does
    name: str
    time: str
    title: str
    mark: str = ""  # "new", "gone", "other configuration"


@dataclass(frozen=True)
class Lane:
    """The kernels of one call, end to end, drawn to scale. `spoken`: the same for who does not see it."""

    bars: tuple[Bar, ...]
    total_us: float
    spoken: str


@dataclass(frozen=True)
class Interval:
    """A change and its confidence interval on an axis with zero in the middle. None: not known."""

    estimate: float
    low: float | None
    high: float | None
    cut_low: bool  # the axis ends before it does
    cut_high: bool
    limit: str  # what the ends of the axis mean


@dataclass(frozen=True)
class Process:
    """One process of the baseline: its mean, and one standard deviation of its replicates to both sides."""

    x: float
    low: float
    high: float
    y: int
    same_gpu: bool


@dataclass(frozen=True)
class Distribution:
    """The replicates of this run beside the processes of the baseline, on one axis of microseconds."""

    replicates: tuple[tuple[float, int], ...]  # x, y
    mean: float
    processes: tuple[Process, ...]
    ticks: tuple[Tick, ...]
    spoken: str


def shown_us(value: float) -> str:
    """Two decimals for a short kernel: a profiler tells 2.98 from 3.01 us, and so must its reader."""
    return f"{value:.2f}" if abs(value) < _SHORT_US else us(value)


def ticks(low: float, high: float, *, most: int = 6) -> tuple[Tick, ...]:
    """Round numbers from `low` to `high`, as positions between them."""
    span = high - low
    if not 1e-9 < span < 1e15:
        return ()
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= most)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    values = (index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1))
    return tuple(_tick(100 * (value - low) / span, f"{value:.{decimals}f}") for value in values)


def _tick(x: float, text: str) -> Tick:
    return Tick(x, text, "start" if x < 3 else "end" if x > 97 else "middle")


def lane(kernels: Sequence[KernelRecord], *, scale_us: float, marks: Sequence[str] = ()) -> Lane:
    """`scale_us`: what the whole width stands for. `marks`: how each launch differs from its partner; default not."""
    bars: list[Bar] = []
    start = 0.0
    for group in _grouped(list(zip(kernels, marks or [""] * len(kernels), strict=True))):
        time_us = sum(kernel.device_time_us for kernel, _ in group)
        x, width = (100 * _share(value, scale_us) for value in (start, time_us))
        bars.append(_bar(group, x, width, time_us))
        start += time_us
    spoken = ", ".join(
        f"{_fitted(kernel.identity.kind, _LONGEST_KIND)} {shown_us(kernel.device_time_us)}"
        for kernel in kernels[:_SPOKEN_KERNELS]
    )
    left = len(kernels) - _SPOKEN_KERNELS
    more = f" and {left} more" if left > 0 else ""
    return Lane(tuple(bars), start, f"{counted(len(kernels), 'kernel')}, {shown_us(start)} us: {spoken}{more}")


def _share(value: float, scale: float) -> float:
    """From 0 to 1, whatever numbers a file holds."""
    return max(0.0, min(1.0, value / scale)) if 0 < scale < math.inf else 0.0


def _grouped(kernels: Sequence[tuple[KernelRecord, str]]) -> Iterable[list[tuple[KernelRecord, str]]]:
    """Launches one by one; of very many, neighbours that are too short to be seen alone are taken together."""
    if len(kernels) <= _MOST_BARS:
        yield from ([kernel] for kernel in kernels)
        return
    least_us = sum(kernel.device_time_us for kernel, _ in kernels) / _MOST_BARS
    group: list[tuple[KernelRecord, str]] = []
    together_us = 0.0
    for kernel, mark in kernels:
        if group and (kernel.device_time_us >= least_us or together_us >= least_us):
            yield group
            group, together_us = [], 0.0
        group.append((kernel, mark))
        together_us += kernel.device_time_us
    if group:
        yield group


def _bar(group: Sequence[tuple[KernelRecord, str]], x: float, width: float, time_us: float) -> Bar:
    (first, mark), *others = group
    room = int((width / 100 * _DESIGN_WIDTH_PX - 12) / _CHARACTER_PX)
    if others:
        kinds = {kernel.identity.kind for kernel, _ in group}
        title = f"{len(group)} short launches: {shown_us(time_us)} us"
        return Bar(x, width, kinds.pop() if len(kinds) == 1 else "other", "", "", "", title)
    identity, kind = first.identity, _fitted(first.identity.kind, _LONGEST_KIND)
    heading = f"{mark}: {kind}" if mark else kind
    return Bar(
        x,
        width,
        kind,
        _fitted(heading, room) if room >= 4 else "",
        _fitted(identity.shown, room) if room >= 8 else "",
        f"{shown_us(time_us)} us" if room >= 8 else shown_us(time_us) if room >= 4 else "",
        f"{identity.shown}: {shown_us(time_us)} us, {heading}",
        mark,
    )


def _fitted(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"


def interval(change: RelativeChange, *, limit: float) -> Interval:
    """`limit`: the change, as a fraction, at both ends of the axis."""
    low, high = change.low, change.high
    return Interval(
        estimate=_place(change.estimate, limit),
        low=None if low is None else _place(low, limit),
        high=None if high is None else _place(high, limit),
        cut_low=(change.estimate if low is None else low) < -limit,
        cut_high=(change.estimate if high is None else high) > limit,
        limit=f"{100 * limit:.0f} %" if limit >= 0.02 else f"{100 * limit:.1f} %",
    )


def _place(value: float, limit: float) -> float:
    return 50 + 50 * max(-1.0, min(1.0, value / limit))


def distribution(timer: Timer, run: Run, sample: Sample, mean_us: float, baseline: Baseline | None) -> Distribution:
    """`mean_us`: of the replicates that are judged."""
    spans = _processes(timer, run, baseline)
    ends = [mean * math.exp(sign * spread) for mean, spread, _ in spans for sign in (-1, 1)]
    low, high = min([*sample.replicates_us, *ends]), max([*sample.replicates_us, *ends])
    pad = max(0.04 * (high - low), 0.002 * high)
    low, high = low - pad, high + pad
    span = high - low

    def at(value: float) -> float:
        return 100 * (value - low) / span if 0 < span < math.inf else 50.0

    processes = tuple(
        Process(at(mean), at(mean * math.exp(-spread)), at(mean * math.exp(spread)), 5 + 5 * (index % 5), same)
        for index, (mean, spread, same) in enumerate(spans)
    )
    replicates = tuple((at(value), 6 + 6 * (index % 4)) for index, value in enumerate(sample.replicates_us))
    range_us = f"{shown_us(min(sample.replicates_us))} to {shown_us(max(sample.replicates_us))} us"
    beside = ""
    if spans:
        means = [mean for mean, _, _ in spans]
        beside = f"; processes of the baseline: {len(spans)}, means {shown_us(min(means))} to {shown_us(max(means))} us"
    spoken = f"this run: {counted(len(sample.replicates_us), 'replicate')}, {range_us}{beside}"
    return Distribution(replicates, at(mean_us), processes, ticks(low, high), spoken)


def _processes(timer: Timer, run: Run, baseline: Baseline | None) -> list[tuple[float, float, bool]]:
    """Mean, spread, and whether on this GPU: of the processes that the timer is compared with (`Baseline.seen`)."""
    if baseline is None or not baseline.entries:
        return []
    entries = baseline.entries if timer is Timer.HOST else (baseline.entry_like(run.kernels)[0],)
    return [
        (seen.mean_us, min(seen.spread or 0.0, _LARGEST_SPREAD), process.gpu == run.gpu)
        for entry in entries
        for process in entry.processes
        if (seen := process.timers.get(timer)) is not None and seen.mean_us > 0
    ]
