"""Statistics of two samples, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RelativeChange", "relative_change"]

_MINIMUM_REPLICATES = 2  # below two there is no variance to estimate


@dataclass(frozen=True)
class RelativeChange:
    """Change of the second sample against the first, as a fraction (0.05: 5 % slower), with a confidence interval.

    `low` and `high` are None when a sample has fewer than two replicates: then nothing is known about the noise.
    """

    estimate: float
    low: float | None
    high: float | None
    confidence: float


def relative_change(before: Sequence[float], after: Sequence[float], *, confidence: float = 0.95) -> RelativeChange:
    """Ratio of two sets of replicate medians, with a Welch interval on the logarithm.

    The replicate (fresh allocations) is the unit, not the iteration: iterations of one replicate share their
    addresses and are not independent (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013).
    Logarithms make the interval one of the ratio (Fieller's problem avoided), and slower and faster symmetric. Welch,
    "The generalization of Student's problem when several different population variances are involved", 1947.
    """
    before_mean, before_error = _mean_and_squared_error([math.log(value) for value in before])
    after_mean, after_error = _mean_and_squared_error([math.log(value) for value in after])
    difference = after_mean - before_mean
    if before_error is None or after_error is None:
        return RelativeChange(math.expm1(difference), None, None, confidence)
    margin = _t_quantile(confidence, before_error, len(before), after_error, len(after))
    margin *= math.sqrt(before_error + after_error)
    return RelativeChange(
        math.expm1(difference), math.expm1(difference - margin), math.expm1(difference + margin), confidence
    )


def _mean_and_squared_error(values: Sequence[float]) -> tuple[float, float | None]:
    mean = math.fsum(values) / len(values)
    if len(values) < _MINIMUM_REPLICATES:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, variance / len(values)


def _t_quantile(confidence: float, error_a: float, n_a: int, error_b: float, n_b: int) -> float:
    from scipy.special import stdtrit  # here, because importing scipy costs more than all of kernelgauge.judge

    total = error_a + error_b
    if total == 0:
        return 0.0
    degrees = total**2 / (error_a**2 / (n_a - 1) + error_b**2 / (n_b - 1))  # Welch-Satterthwaite
    return float(stdtrit(degrees, 0.5 + confidence / 2))
