"""When each peer says "slower". Pure.

Each peer has a score that grows with the slowdown, and says "slower" where the score is above a threshold: the relative
change of one statistic, or for Mann-Whitney the negative logarithm of its p-value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu

from .data import OURS, Values

__all__ = [
    "ALPHA",
    "KERNEL_FLOOR_US",
    "Peer",
    "kernel_peers",
    "mann_whitney",
    "matched_threshold",
    "peers",
    "relative_change",
]

Score = Callable[[Sequence[Values], Values], float]

ALPHA = 0.01  # of one suite, shared out over its comparisons: as kernelgauge's
KERNEL_FLOOR_US = 0.1  # a percentage alone would flag a kernel of 4 us for one step of the profiler's clock
# Profiler sessions of 12 calls, and the change above which their mean is slower: 4 to 5 standard deviations of
# unchanged MLPs in detection_h200.npz, chosen in hindsight. None: all sessions.
_SESSIONS: tuple[tuple[int | None, float], ...] = ((1, 0.01), (1, 0.009), (3, 0.006), (6, 0.0045), (None, 0.0035))


@dataclass(frozen=True)
class Peer:
    """One way to call a process slower than a baseline of one or more processes.

    Attributes:
        method: what it reads of the raw data.
        thresholds: by the name they have in a table.
        is_matched: whether it is also given the best thresholds in hindsight.
    """

    name: str
    method: str
    score: Score
    thresholds: tuple[tuple[str, float], ...]
    is_matched: bool = False


def peers(workloads: int) -> tuple[Peer, ...]:
    """Return all peers of a suite of so many workloads."""
    percents = (("> 1 %", 0.01), ("> 5 %", 0.05))
    return (
        Peer("do_bench, median", "do_bench", relative_change(np.median), percents, is_matched=True),
        Peer("blocked_autorange, median", "blocked_autorange", relative_change(np.median), percents, is_matched=True),
        Peer("pytest-benchmark, mean", "pytest_benchmark", relative_change(np.mean), percents, is_matched=True),
        _mann_whitney_peer("Mann-Whitney, rounds", "pytest_benchmark", workloads),
        *kernel_peers(workloads),
    )


def kernel_peers(workloads: int) -> tuple[Peer, ...]:
    """Return those that read kernel durations, as a user of torch.profiler can: from kernelgauge's own sessions."""
    fixed = (
        Peer(
            f"kernel durations, {_sessions(count)}",
            OURS["device"],
            relative_change(_mean_of_sessions(count), KERNEL_FLOOR_US),
            ((f"> {threshold * 100:g} %", threshold),),
        )
        for count, threshold in _SESSIONS
    )
    return (*fixed, _mann_whitney_peer("Mann-Whitney, kernel durations", OURS["device"], workloads))


def relative_change(statistic: Callable[[Values], object], floor_us: float = 0.0) -> Score:
    """Score the change of a statistic against the median of it over the baseline's processes.

    A change of `floor_us` or less scores 0. With the mean, and a baseline of one process, this is what
    ``--benchmark-compare-fail=mean:X%`` of pytest-benchmark compares with X.
    """

    def score(baseline: Sequence[Values], test: Values) -> float:
        expected = float(np.median([statistic(values) for values in baseline]))
        change = float(statistic(test)) - expected  # type: ignore[arg-type]  # numpy's functions return a number
        return change / expected if change > floor_us else min(0.0, change / expected)

    return score


def mann_whitney(baseline: Sequence[Values], test: Values) -> float:
    """Score ``-log10(p)`` of "the test's values are larger"; the baseline's processes are pooled.

    Values of sessions are one for each session: the median of its calls.
    """
    pooled = np.concatenate([_one_each(values) for values in baseline])
    p = float(mannwhitneyu(_one_each(test), pooled, alternative="greater").pvalue)
    return -math.log10(p) if p > 0 else math.inf


def matched_threshold(unchanged_scores: Sequence[float], suite_size: int, rate: float) -> float:
    """Return the lowest threshold that keeps unchanged suites of such comparisons at or below a rate of false alarms.

    It is chosen in hindsight, on the comparisons that it is then judged by. That favours the peer.

    Args:
        unchanged_scores: the scores of one workload's comparisons without a slowdown.
        suite_size: how many such workloads a suite compares.
        rate: share of suites without any slowdown that may raise an alarm.
    """
    if not len(unchanged_scores) or suite_size < 1 or not 0 <= rate < 1:
        raise ValueError(f"got {len(unchanged_scores)} statistics, a suite of {suite_size}, a rate of {rate}")
    rate_of_one = 1 - (1 - rate) ** (1 / suite_size)
    allowed = math.floor(rate_of_one * len(unchanged_scores) + 1e-9)
    highest_first = sorted(unchanged_scores, reverse=True)
    return max(0.0, highest_first[allowed])  # a threshold below 0 would flag faster processes


def _mann_whitney_peer(name: str, method: str, workloads: int) -> Peer:
    alpha = ALPHA / workloads
    return Peer(name, method, mann_whitney, ((f"p < {ALPHA:g}/{workloads}", -math.log10(alpha)),))


def _mean_of_sessions(count: int | None) -> Callable[[Values], float]:
    return lambda sessions: float(np.mean(_one_each(sessions[:count])))


def _one_each(values: Values) -> Values:
    """Return one value for each round, or for each session of (session, call)."""
    return values if values.ndim == 1 else np.median(values, axis=1)


def _sessions(count: int | None) -> str:
    if count is None:
        return "all sessions"
    return "1 session" if count == 1 else f"{count} sessions"
