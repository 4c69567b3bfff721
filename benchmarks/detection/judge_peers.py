"""When each peer says "slower". Pure.

Each peer has a score that grows with the slowdown, and says "slower" where the score is above a threshold. For most of
them the score is the relative change of one statistic; for Mann-Whitney it is the standardised U, and the threshold is
the normal quantile of alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu, norm

from .data import Values

__all__ = [
    "ALPHA",
    "PEERS",
    "THRESHOLDS",
    "Peer",
    "alpha_threshold",
    "mann_whitney_peer",
    "mann_whitney_z",
    "matched_threshold",
    "median_peer",
    "relative_change",
]

Score = Callable[[Sequence[Values], Values], float]

THRESHOLDS = (0.05, 0.10)
ALPHA = 0.05


@dataclass(frozen=True)
class Peer:
    """One way to say "slower" of what one process measured, given a baseline of one or more processes.

    `thresholds` holds those that its users set, by the name they go under in a table.
    """

    name: str
    method: str  # what it reads of the raw data
    score: Score
    thresholds: tuple[tuple[str, float], ...]

    def flags(self, baseline: Sequence[Values], test: Values, threshold: float) -> bool:
        return self.score(baseline, test) > threshold


def relative_change(statistic: Callable[[Values], float]) -> Score:
    """Change of the statistic against the baseline: the median over its processes, of each one's statistic.

    With the mean, and a baseline of one process, this is what pytest-benchmark compares with the X of
    ``--benchmark-compare-fail=mean:X%``: ``current / compared * 100 - 100 > X``.
    """

    def score(baseline: Sequence[Values], test: Values) -> float:
        expected = float(np.median([statistic(values) for values in baseline]))
        return float(statistic(test)) / expected - 1

    return score


def mann_whitney_z(baseline: Sequence[Values], test: Values) -> float:
    """Standardised U of "the test's values are larger", with the correction for ties (Mann and Whitney, 1947).

    `scipy.stats.mannwhitneyu(test, baseline, alternative="greater", method="asymptotic")` has its p-value; this number
    can still be ordered where that p-value is 0. The processes of a baseline are pooled.
    """
    pooled, tested = np.concatenate([values.ravel() for values in baseline]), test.ravel()
    u = float(mannwhitneyu(tested, pooled, alternative="greater", method="asymptotic").statistic)
    pairs, total = len(tested) * len(pooled), len(tested) + len(pooled)
    ties = np.unique(np.concatenate([pooled, tested]), return_counts=True)[1].astype(float)
    variance = pairs / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    if variance <= 0:  # every value is the same
        return 0.0
    return float((u - pairs / 2 - 0.5) / math.sqrt(variance))  # 0.5: scipy's correction for continuity


def alpha_threshold(alpha: float) -> float:
    return float(norm.isf(alpha))


def matched_threshold(aa_statistics: Sequence[float], suite_size: int, rate: float) -> float:
    """The lowest threshold that would have kept a suite of such comparisons at or below a rate of false alarms.

    In hindsight: it is chosen on the A/A comparisons that it is then judged by, which favours the peer.

    Args:
        aa_statistics: the scores of one workload's A/A comparisons.
        suite_size: how many such workloads a suite compares.
        rate: share of suites without any slowdown that may raise an alarm.
    """
    if not len(aa_statistics) or suite_size < 1 or not 0 <= rate < 1:
        raise ValueError(f"got {len(aa_statistics)} statistics, a suite of {suite_size}, a rate of {rate}")
    rate_of_one = 1 - (1 - rate) ** (1 / suite_size)
    allowed = math.floor(rate_of_one * len(aa_statistics) + 1e-9)
    highest_first = sorted(aa_statistics, reverse=True)
    return max(0.0, highest_first[allowed])  # a threshold below 0 would flag what is not slower


def _mean(values: Values) -> float:
    return float(np.mean(values))


def _median(values: Values) -> float:
    return float(np.median(values))


def _percents(*thresholds: float) -> tuple[tuple[str, float], ...]:
    return tuple((f"> {threshold * 100:g} %", threshold) for threshold in thresholds)


def median_peer(name: str, method: str) -> Peer:
    return Peer(name, method, relative_change(_median), _percents(*THRESHOLDS))


def mann_whitney_peer(name: str, method: str) -> Peer:
    return Peer(name, method, mann_whitney_z, ((f"p < {ALPHA:g}", alpha_threshold(ALPHA)),))


PEERS = (
    median_peer("do_bench, median", "do_bench"),
    median_peer("blocked_autorange, median", "blocked_autorange"),
    Peer("pytest-benchmark, mean", "pytest_benchmark", relative_change(_mean), _percents(*THRESHOLDS)),
    mann_whitney_peer("Mann-Whitney on rounds", "pytest_benchmark"),
)
