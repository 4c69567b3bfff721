"""Statistics of a change, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NO_INTERVAL", "RelativeChange", "Source", "change", "quantile", "standard_error"]

_NO_BOUND = 500.0  # of logarithms: an interval that wide bounds nothing, and its exponential would be no number


@dataclass(frozen=True)
class RelativeChange:
    """Change against the baseline, as a fraction (0.05: 5 % slower), with a confidence interval.

    `low` and `high` are None where nothing is known about the noise.
    """

    estimate: float
    low: float | None
    high: float | None
    confidence: float


@dataclass(frozen=True)
class Source:
    """One source of noise in a difference of logarithms.

    Attributes:
        variance: its part of the variance of the difference.
        degrees: degrees of freedom of that variance: how many observations it comes from, less those used up.
    """

    variance: float
    degrees: float


NO_INTERVAL: tuple[Source, ...] = (Source(math.inf, 1.0),)


def standard_error(sources: Sequence[Source]) -> float:
    """Of the difference: variances of independent sources add."""
    return math.sqrt(math.fsum(source.variance for source in sources))


def change(difference: float, sources: Sequence[Source], *, confidence: float) -> RelativeChange:
    """The relative change that a difference of logarithms is, with the interval that its sources of noise allow.

    Logarithms make the interval one of the ratio (Fieller's problem avoided), and slower and faster symmetric. The
    sources are the levels of the experiment (replicate, process, GPU: Kalibera and Jones, "Rigorous Benchmarking in
    Reasonable Time", ISMM 2013); Student's t with the degrees of freedom of Satterthwaite, "An approximate
    distribution of estimates of variance components", 1946.
    """
    error = standard_error(sources)
    if not math.isfinite(error):
        return RelativeChange(math.expm1(difference), None, None, confidence)
    margin = quantile(sources, confidence) * error
    if margin > _NO_BOUND:
        return RelativeChange(math.expm1(difference), None, None, confidence)
    return RelativeChange(
        math.expm1(difference), math.expm1(difference - margin), math.expm1(difference + margin), confidence
    )


def quantile(sources: Sequence[Source], confidence: float) -> float:
    """Two-sided quantile of Student's t for these sources together."""
    from scipy.special import stdtrit  # here, because importing scipy costs more than all of kernelgauge.judge

    total = math.fsum(source.variance for source in sources)
    if total == 0:
        return 0.0
    degrees = total**2 / math.fsum(source.variance**2 / source.degrees for source in sources)
    return float(stdtrit(degrees, 0.5 + confidence / 2))
