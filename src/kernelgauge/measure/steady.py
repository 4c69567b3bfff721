"""Passes in which everything else took longer as well: the machine was slower then, whatever the code did. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

__all__ = ["Series", "slower_passes"]

Series = Mapping[int, float]  # by pass: the time of one workload or control, in any unit

_Name = TypeVar("_Name", bound=Hashable)

_LEAST_PASSES = 8  # fewer have no usual speed
_LEAST_SERIES = 2  # one of them alone is that workload, and not the machine
# Less is not worth replicates: half of the passes at such a speed move the mean by half of it, 0.1 %, which a device time has to
# exceed three times before it is called slower (judge/policy.py).
_TOLERATED = 0.002
# What a change of speed has to explain, in variances of a pass. Twice the logarithm of 32 passes (Schwarz, "Estimating the
# dimension of a model", 1978) is 7; but a replicate is now and then far off, and one pass takes two changes to stand out.
_PENALTY = 20.0
# Of few replicates, chance may leave hardly any noise: an H200's own is 0.001 to 0.002 (docs/measuring.md).
_LEAST_NOISE = 0.0005


def slower_passes(measured: Mapping[_Name, Series]) -> dict[_Name, dict[int, float]]:
    """Of each workload or control the passes in which the machine was slower than in the fastest quarter of them, and by
    how much (0.01 is 1 %), by what all others took in them: no time decides whether it counts.

    A GPU loses speed to heat, to its power cap and to its neighbours, and nothing makes it faster than it is: its fast passes
    are the usual ones. The speed of a pass is what all series have in common there, each weighed by its noise; where it
    changes is found by optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data on an
    interval", 2005). What is found must be found without any one of the series as well, so that none speaks for all.

    Only passes in which all of them took part are compared: once some are pinned down and drop out, the GPU has less to do
    and is faster, in one recorded run by 0.3 to 0.4 %.
    """
    return {
        name: _slower(own, [series for other, series in measured.items() if other != name])
        for name, own in measured.items()
    }


def _slower(own: Collection[int], others: Sequence[Series]) -> dict[int, float]:
    known = [series for series in others if len(series) >= _LEAST_PASSES]
    together = sorted(set(own).intersection(*known))
    if len(known) < _LEAST_SERIES or len(together) < _LEAST_PASSES:
        return {}
    logs = [[math.log(series[at]) for at in together] for series in known]
    found = _slower_than_usual(logs)
    for place in range(len(logs)) if any(found) else ():
        without = _slower_than_usual([*logs[:place], *logs[place + 1 :]])
        found = [by if also else 0.0 for by, also in zip(found, without, strict=True)]
    return {at: by for at, by in zip(together, found, strict=True) if by}


def _slower_than_usual(logs: Sequence[Sequence[float]]) -> list[float]:
    """By pass; 0: not by more than is tolerated."""
    levels = _levels(*_speeds(logs))
    usual = sorted(levels)[(len(levels) - 1) // 4]
    return [by if by > _TOLERATED else 0.0 for by in (math.expm1(level - usual) for level in levels)]


def _speeds(series: Sequence[Sequence[float]]) -> tuple[list[float], float]:
    """By pass, how much longer everything took than in the mean pass (a logarithm); and the variance of that."""
    weights = [1 / _noise(each) ** 2 for each in series]
    means = [math.fsum(each) / len(each) for each in series]
    total = math.fsum(weights)
    passes = zip(*series, strict=True)
    longer = [
        math.fsum(weight * (time - mean) for weight, time, mean in zip(weights, times, means, strict=True)) / total
        for times in passes
    ]
    return longer, 1 / total


def _noise(values: Sequence[float]) -> float:
    """Standard deviation, from the mean square successive difference: a step adds little to that.

    von Neumann, "Distribution of the ratio of the mean square successive difference to the variance", 1941.
    """
    squares = [(after - before) ** 2 for before, after in itertools.pairwise(values)]
    return max(math.sqrt(math.fsum(squares) / len(squares) / 2), _LEAST_NOISE)


def _levels(values: Sequence[float], variance: float) -> list[float]:
    """Of each pass the mean over the passes around it between which the speed did not change."""
    sums = [(0.0, 0.0)]  # of the values and of their squares, before each pass
    for value in values:
        first, second = sums[-1]
        sums.append((first + value, second + value**2))

    def mean(start: int, end: int) -> float:
        return (sums[end][0] - sums[start][0]) / (end - start)

    def cost(start: int, end: int) -> float:
        about_mean = sums[end][1] - sums[start][1] - (end - start) * mean(start, end) ** 2
        return about_mean / variance + _PENALTY

    best, begins = [0.0], [0]
    for end in range(1, len(values) + 1):
        least, start = min((best[start] + cost(start, end), start) for start in range(end))
        best.append(least)
        begins.append(start)
    levels: list[float] = []
    end = len(values)
    while end:
        start = begins[end]
        levels = [mean(start, end)] * (end - start) + levels
        end = start
    return levels
