"""How a time of the host follows the host's speed: the slope of its logarithm on that of its control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

__all__ = ["EXPECTED_SLOPE", "Slope", "fitted_slope"]


@dataclass(frozen=True)
class Slope:
    """1: where the control takes twice as long, so does the time.

    `variance`: of the value itself, with its degrees. `fitted`: the part of it that comes from the points, 0 to 1, and
    with it from the degrees that say how far they scatter.
    """

    value: float
    variance: float
    degrees: float
    fitted: float = 0.0


# Thirteen workloads on two H200 hosts: 0.97 to 1.06 on one, 1.06 to 1.22 on the other (mean 1.08, docs/measuring.md), and
# up to 1.36 on a third.
EXPECTED_SLOPE = Slope(1.08, 0.12**2, 10.0)


def fitted_slope(groups: Sequence[Sequence[tuple[float, float]]], variance: float) -> Slope:
    """The slope of points (logarithm of the control, logarithm of the time), each about the mean of its group.

    What is expected weighs as much as it is known, as in ridge regression (Hoerl and Kennard, 1970): points at one
    speed of the host leave it where it was.

    Args:
        groups: the processes of each GPU.
        variance: of a process's logarithm, at equal speed.
    """
    along = across = 0.0
    for points in groups:
        mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
        along += math.fsum((x - mean_x) ** 2 for x, _ in points)
        across += math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    expected = EXPECTED_SLOPE
    if not variance > 0 or not along > 0:
        return expected
    precision = along / variance + 1 / expected.variance
    value = (across / variance + expected.value / expected.variance) / precision
    own = sum(len(points) - 1 for points in groups)
    return Slope(value, 1 / precision, expected.degrees + own, fitted=along / variance / precision)
