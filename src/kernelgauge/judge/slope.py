"""How a time of the host follows the host's speed: the slope of its logarithm on that of its control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

__all__ = ["DISPATCH_SLOPE", "LATENCY_SLOPE", "Slope", "SlopePrior", "fitted_slope"]


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


@dataclass(frozen=True)
class SlopePrior:
    """What is expected of a slope before a baseline has told.

    Attributes:
        value: its mean over workloads and hosts.
        deviation: its standard deviation over them.
        between_hosts: and of the difference between two hosts, of one workload: a baseline knows one, and the run may be on
            another. However many processes tell of the one, none tells of the other.
        degrees: how many observations it counts as.
    """

    value: float
    deviation: float
    between_hosts: float = 0.0
    degrees: float = 10.0

    def expected(self) -> Slope:
        return Slope(self.value, self.deviation**2, self.degrees)


# Thirteen workloads on two H200 hosts: 0.97 to 1.06 on one, 1.06 to 1.22 on the other (mean 1.08), and up to 1.36 on a third.
DISPATCH_SLOPE = SlopePrior(1.08, 0.12)
# Of what the device does not fill of a latency, some waits for the GPU and not for the host: 0.6 to 1.1 on one H200 host, 0.3 to
# 1.3 on two others (docs/measuring.md).
LATENCY_SLOPE = SlopePrior(0.85, 0.35, between_hosts=0.3)


def fitted_slope(groups: Sequence[Sequence[tuple[float, float]]], variance: float, prior: SlopePrior) -> Slope:
    """The slope of points (logarithm of the control, logarithm of the time), each about the mean of its group.

    What is expected weighs as much as it is known, as in ridge regression (Hoerl and Kennard, 1970): points at one
    speed of the host leave it where it was.

    Args:
        groups: the processes of each GPU.
        variance: of a process's logarithm, at equal speed.
        prior: what is expected.
    """
    along = across = 0.0
    for points in groups:
        mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
        along += math.fsum((x - mean_x) ** 2 for x, _ in points)
        across += math.fsum((x - mean_x) * (y - mean_y) for x, y in points)
    expected = prior.expected()
    if not variance > 0 or not along > 0:
        return expected
    precision = along / variance + 1 / expected.variance
    value = (across / variance + expected.value / expected.variance) / precision
    own = sum(len(points) - 1 for points in groups)
    left = min(expected.variance, 1 / precision + prior.between_hosts**2)
    degrees = expected.degrees if prior.between_hosts else expected.degrees + own
    return Slope(value, left, degrees, fitted=along / variance / precision)
