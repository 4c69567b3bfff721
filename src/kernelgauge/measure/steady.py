"""Passes in which everything else took longer as well: the machine was slower then, whatever the code did. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

__all__ = ["Series", "slower_passes"]

Series = Mapping[int, float]  # by pass: the time of one workload or control, in any unit

_LEAST_PASSES = 8  # fewer have no usual speed
# Less is not worth replicates: half of the passes at such a speed move the mean by half of it.
_TOLERATED = 0.002
# What a change of speed has to explain, in variances of a pass. Twice the logarithm of 32 passes (Schwarz, "Estimating the
# dimension of a model", 1978) is 7; but a replicate is now and then far off, and one pass takes two changes to stand out.
_PENALTY = 20.0
_LEAST_NOISE = 0.0005  # of few replicates, chance may leave none


def slower_passes(own: Collection[int], others: Sequence[Series]) -> dict[int, float]:
    """The passes in which the machine was slower than in the fastest quarter of them, and by how much (0.01 is 1 %).

    A GPU loses speed to heat, to its power cap and to its neighbours, and nothing makes it faster than it is: its fast passes
    are the usual ones. The speed of a pass is what all series have in common there, each weighed by its noise; where it
    changes is found by optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data on an
    interval", 2005).

    Args:
        own: the passes that a workload was measured in.
        others: what was measured beside it, by pass. Not the workload itself: what is left out of its times then does not
            depend on them. Only passes in which all of them took part are compared: once some are pinned down and drop
            out, the GPU has less to do, is cooler and faster by 0.2 to 0.4 %.
    """
    known = [series for series in others if len(series) >= _LEAST_PASSES]
    together = sorted(set(own).intersection(*known))
    if not known or len(together) < _LEAST_PASSES:
        return {}
    levels = _levels(*_speeds([[math.log(series[at]) for at in together] for series in known]))
    usual = sorted(levels)[(len(levels) - 1) // 4]
    slower = {at: math.expm1(level - usual) for at, level in zip(together, levels, strict=True)}
    return {at: by for at, by in slower.items() if by > _TOLERATED}


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
