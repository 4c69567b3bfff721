"""What each method catches, and how often it raises a false alarm. Pure: processes in, shares and
intervals out.

A suite is all workloads of one process, compared with a baseline. Without an injected slowdown,
every alarm is false. Every method gets the same baselines: all other processes of the same GPU, one
of them, or all of another GPU.

kernelgauge decides as it judges a suite. Each peer has a score that grows with the slowdown, and
says "slower" where the score is above a threshold: the relative change of one statistic, or for
Mann-Whitney the negative logarithm of its p-value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from scipy.stats import mannwhitneyu

from kernelgauge.judge import Status
from kernelgauge.judge.timing import (
    COPY,
    FALSE_ALARMS_PER_RUN,
    GEMM,
    Scatter,
    decide,
    prior_for,
    scatter,
)
from kernelgauge.run import CALL_TIMERS, Fingerprint, ProcessTime, Sample, observe, summarize

from .data import (
    NONE,
    OURS,
    TIMERS,
    Level,
    Measured,
    Process,
    Values,
    by_gpu,
    dispatch_in_controls,
    replicate_times_us,
)

__all__ = [
    "DESIGNS",
    "KERNEL_FLOOR_US",
    "OUR_NAME",
    "TIE",
    "Achieved",
    "Alarms",
    "BaselineKind",
    "Caught",
    "Evaluation",
    "Peer",
    "Share",
    "Tie",
    "Where",
    "alarms_of",
    "caught_by",
    "comparisons",
    "evaluate",
    "is_slower",
    "mann_whitney",
    "matched_threshold",
    "our_detector",
    "peers",
    "relative_change",
    "ties",
    "wilson",
]

BaselineKind = Literal["all others", "one process"]
Where = Literal["same GPU", "other GPU"]
DESIGNS: tuple[tuple[BaselineKind, Where], ...] = (
    ("all others", "same GPU"),
    ("one process", "same GPU"),
    ("all others", "other GPU"),
)
OUR_NAME = "kernelgauge"
TIE = 0.05  # of all trials

_Z95 = 1.959963984540054
ALPHA = 0.01  # of one suite, shared out over its comparisons: as kernelgauge's
# a percentage alone would flag a kernel of 4 us for one step of the profiler's clock
KERNEL_FLOOR_US = 0.1
# Profiler sessions of 12 calls, and the change above which their mean is slower: 4 to 5 standard
# deviations of unchanged MLPs in an earlier recording of 24 processes. None: all sessions.
_SESSIONS: tuple[tuple[int | None, float], ...] = (
    (1, 0.01),
    (1, 0.009),
    (3, 0.006),
    (6, 0.0045),
    (None, 0.0035),
)

# Whether a workload is slower than its baseline's processes, by a timer ("device" or "host").
# Inconclusive is False.
Decide = Callable[[str, str, Sequence[Measured], Measured], bool]
Score = Callable[[Sequence[Values], Values], float]
Slower = Callable[[str, Sequence[Measured], Measured], bool | None]


@dataclass(frozen=True)
class Detector:
    """A method with its threshold.

    `slower` is None where its data are missing, or where it cannot see that level.
    """

    name: str
    slower: Slower


@dataclass(frozen=True)
class Share:
    """How many hits of how many trials.

    The workloads of one process share its machine, and pairs share a process. The interval is
    therefore that of as many trials as there are test processes, which is never too narrow.
    """

    hits: int
    trials: int
    processes: int

    @property
    def share(self) -> float:
        return self.hits / self.trials if self.trials else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.share, self.processes)


@dataclass(frozen=True)
class Alarms:
    """Unslowed suites that one method flagged."""

    method: str
    baseline: BaselineKind
    where: Where
    suites: Share


@dataclass(frozen=True)
class Caught:
    """Slowdowns of one level that one method flagged, over the workloads of one module."""

    method: str
    baseline: BaselineKind
    where: Where
    module: str
    level: Level
    share: Share


@dataclass(frozen=True)
class Achieved:
    """How large a level was: quantiles over processes and workloads of slowed / unslowed - 1."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Tie:
    """A peer that catches about as much at one level, and raises no more false alarms."""

    method: str
    baseline: BaselineKind
    module: str
    level: Level


@dataclass(frozen=True)
class Evaluation:
    """Everything that a table or a plot shows."""

    alarms: list[Alarms]
    caught: list[Caught]
    matched_rate: dict[BaselineKind, float]
    achieved: dict[tuple[str, Level], Achieved]  # by module
    processes: dict[str, int]  # by GPU

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(alarms.method for alarms in self.alarms))


def evaluate(processes: Sequence[Process], decide: Decide) -> Evaluation:
    """Judge every comparison that the processes allow, by our own decision and by the peers."""
    workloads = max(len(process.workloads) for process in processes)
    alarms: list[Alarms] = []
    caught: list[Caught] = []
    rates: dict[BaselineKind, float] = {}
    for baseline in get_args(BaselineKind):
        ours = our_detector(decide)
        suites = alarms_of(ours, processes, baseline, "same GPU").suites
        rates[baseline] = min(suites.share, 0.99) if suites.trials else 0.0
        detectors = [ours]
        for peer in peers(workloads):
            detectors += [_detector(peer, label, threshold) for label, threshold in peer.thresholds]
            if peer.is_matched:
                detectors.append(
                    _matched(peer, matched_thresholds(peer, processes, baseline, rates[baseline]))
                )
        for detector in detectors:
            for where in (where for kind, where in DESIGNS if kind == baseline):
                alarms.append(alarms_of(detector, processes, baseline, where))
                caught += caught_by(detector, processes, baseline, where)
    return Evaluation(
        alarms=alarms,
        caught=caught,
        matched_rate=rates,
        achieved=achieved_levels(processes),
        processes={gpu: len(members) for gpu, members in by_gpu(processes).items()},
    )


def our_detector(decide: Decide) -> Detector:
    """Return ours: an unslowed suite is judged by both timers, a slowed workload by the timer that
    was slowed.
    """

    def slower(workload: str, baseline: Sequence[Measured], test: Measured) -> bool | None:
        answers = []
        for timer, method in OURS.items():
            known = [
                process for process in baseline if process.values(workload, method) is not None
            ]
            if (
                known
                and test.values(workload, method) is not None
                and test.level.kind in ("none", timer)
            ):
                answers.append(decide(workload, timer, known, test))
        return any(answers) if answers else None

    return Detector(OUR_NAME, slower)


def _detector(peer: Peer, label: str, threshold: float) -> Detector:
    def slower(workload: str, baseline: Sequence[Measured], test: Measured) -> bool | None:
        pair = _pair(workload, peer.method, baseline, test)
        return None if pair is None else peer.score(*pair) > threshold

    return Detector(f"{peer.name} {label}", slower)


def _matched(peer: Peer, thresholds: Mapping[str, float]) -> Detector:
    def slower(workload: str, baseline: Sequence[Measured], test: Measured) -> bool | None:
        pair = _pair(workload, peer.method, baseline, test)
        return (
            None
            if pair is None or workload not in thresholds
            else peer.score(*pair) > thresholds[workload]
        )

    return Detector(f"{peer.name}, matched", slower)


def matched_thresholds(
    peer: Peer, processes: Sequence[Process], baseline: BaselineKind, rate: float
) -> dict[str, float]:
    """Return a threshold for each workload, so that a noisy one does not blind the peer to the
    others.
    """
    scores: dict[str, list[float]] = {}
    for expected, test in comparisons(processes, baseline, "same GPU"):
        for workload in test.workloads:
            pair = _pair(workload, peer.method, expected, test.at(NONE))
            if pair is not None:
                scores.setdefault(workload, []).append(peer.score(*pair))
    return {
        workload: matched_threshold(found, len(scores), rate) for workload, found in scores.items()
    }


def comparisons(
    processes: Sequence[Process], baseline: BaselineKind, where: Where
) -> Iterator[tuple[list[Measured], Process]]:
    """Yield every baseline of that kind with the process to test against it."""
    for test in processes:
        for gpu, members in by_gpu(processes).items():
            if (gpu == test.gpu) != (where == "same GPU"):
                continue
            others = [process.at(NONE) for process in members if process is not test]
            if baseline == "one process":
                yield from (([other], test) for other in others)
            elif others:
                yield others, test


def alarms_of(
    detector: Detector, processes: Sequence[Process], baseline: BaselineKind, where: Where
) -> Alarms:
    """Judge every suite without a slowdown."""
    answers: list[tuple[int, bool]] = []
    for expected, test in comparisons(processes, baseline, where):
        found = [detector.slower(workload, expected, test.at(NONE)) for workload in test.workloads]
        known = [answer for answer in found if answer is not None]
        if known:
            answers.append((test.number, any(known)))
    return Alarms(detector.name, baseline, where, _share(answers))


def caught_by(
    detector: Detector, processes: Sequence[Process], baseline: BaselineKind, where: Where
) -> list[Caught]:
    """Judge every slowed workload."""
    answers: dict[tuple[str, Level], list[tuple[int, bool]]] = {}
    for expected, test in comparisons(processes, baseline, where):
        for level in test.levels:
            for workload in test.workloads:
                answer = (
                    None if level == NONE else detector.slower(workload, expected, test.at(level))
                )
                if answer is not None:
                    answers.setdefault((module_of(workload), level), []).append(
                        (test.number, answer)
                    )
    return [
        Caught(detector.name, baseline, where, module, level, _share(found))
        for (module, level), found in sorted(answers.items())
    ]


def ties(evaluation: Evaluation) -> list[Tie]:
    """Return peers on the same GPU that catch at most `TIE` less than ours, with no larger share of
    false alarms.

    Levels at which ours catches nothing are left out.
    """
    alarms = {(row.method, row.baseline, row.where): row.suites.share for row in evaluation.alarms}
    ours = {
        (row.baseline, row.module, row.level): row.share
        for row in evaluation.caught
        if row.method == OUR_NAME and row.where == "same GPU"
    }
    found = []
    for row in evaluation.caught:
        mine = ours.get((row.baseline, row.module, row.level))
        if row.method == OUR_NAME or row.where != "same GPU" or mine is None or not mine.hits:
            continue
        no_more_alarms = (
            alarms[row.method, row.baseline, row.where] <= alarms[OUR_NAME, row.baseline, row.where]
        )
        if no_more_alarms and row.share.share >= mine.share - TIE:
            found.append(Tie(row.method, row.baseline, row.module, row.level))
    return found


def achieved_levels(processes: Sequence[Process]) -> dict[tuple[str, Level], Achieved]:
    """Return the achieved slowdown of each module and level, by the timer that was slowed.

    Slowed and unslowed were measured in the same passes of one process. Dispatch times are compared
    at equal host speed: each in units of the host's control beside it.
    """
    found: dict[tuple[str, Level], list[float]] = {}
    for process in processes:
        for level in process.levels:
            for workload in process.workloads if level != NONE else []:
                pair = _pair(workload, OURS[level.kind], [process.at(NONE)], process.at(level))
                if pair is not None:
                    change = _typical(level, pair[1]) / _typical(level, pair[0][0]) - 1
                    found.setdefault((module_of(workload), level), []).append(change)
    return {
        key: Achieved(*np.quantile(changes, (0.1, 0.5, 0.9)).tolist())
        for key, changes in sorted(found.items())
    }


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a proportion (Wilson, 1927): it holds at 0 and at 1,
    and for few trials.
    """
    if trials == 0:
        return 0.0, 1.0
    z2 = _Z95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def module_of(workload: str) -> str:
    """Return the module: its workloads are shown together, they have the same levels."""
    return workload.split("-")[0]


def _typical(level: Level, values: Values) -> float:
    if level.kind == "host":
        return dispatch_in_controls(values)
    # not of all calls: it would stay on a step of the clock
    return float(np.median(replicate_times_us(values)))


def _pair(
    workload: str, method: str, baseline: Sequence[Measured], test: Measured
) -> tuple[list[Values], Values] | None:
    """Return the values of a method; None if some are missing, or if it reads the GPU's time and
    the host was slowed.
    """
    if method == OURS["device"] and test.level.kind == "host":
        return None
    tested = test.values(workload, method)
    expected = [
        values for process in baseline if (values := process.values(workload, method)) is not None
    ]
    return None if tested is None or not expected else (expected, tested)


def _share(answers: Sequence[tuple[int, bool]]) -> Share:
    return Share(
        sum(answer for _, answer in answers), len(answers), len({number for number, _ in answers})
    )


# -- kernelgauge -----------------------------------------------------------------------------------


_SHORT_US = 20.0  # below, a workload is bound by memory or by launching, above by GEMMs


def is_slower(
    workload: str, timer: str, baseline_processes: Sequence[Measured], test_process: Measured, /
) -> bool:
    """Judge by the suite's rule with `--perf-no-confirm`: without a fresh process.

    The data do not say which kernels ran: on a GPU that the baseline does not know, each workload
    counts as one kernel, there are no twins, and short calls follow the copy.
    """
    prior = prior_for(TIMERS[timer], _fingerprint(test_process.process))
    after = _time(workload, timer, test_process)
    decision = decide(
        [_time(workload, timer, process) for process in baseline_processes],
        [after],
        replace(prior, level=FALSE_ALARMS_PER_RUN),
        comparisons=len(test_process.process.workloads) * len(CALL_TIMERS),
        follows=COPY if after.observation.mean_us < _SHORT_US else GEMM,
        shown=_shown(workload, timer, tuple(baseline_processes), test_process.gpu),
    )
    return decision.status is Status.REGRESSED


@functools.lru_cache(maxsize=4096)
def _shown(workload: str, timer: str, processes: tuple[Measured, ...], gpu: str | None) -> Scatter:
    """Return how far the other workloads scatter on this GPU."""
    here = [each for each in processes if each.gpu == gpu]
    found = [Scatter()]
    for other in here[0].process.workloads if here else ():
        times = [
            _time(other, timer, each)
            for each in here
            if each.values(other, OURS[timer]) is not None
        ]
        if other != workload and times:
            prior = prior_for(TIMERS[timer], _fingerprint(here[0].process))
            found.append(scatter(times, prior, 1))
    return Scatter(*map(math.fsum, zip(*found, strict=True)))


def _fingerprint(process: Process) -> Fingerprint:
    """Return the machine.

    Older recordings hold what the rule needs of it, and the rest is not known.
    """
    known: Mapping[str, str] = process.meta.get("machine", {})
    fields: dict[str, Any] = dict.fromkeys(Fingerprint.__struct_fields__)
    return Fingerprint(
        **(fields | {"device": "NVIDIA H200", "arch": "", "torch": "", "python": ""} | dict(known))
    )


def _time(workload: str, timer: str, process: Measured) -> ProcessTime:
    values = process.values(workload, OURS[timer])
    assert values is not None  # decide is asked only where there are data
    statistic = TIMERS[timer].timing.statistic
    if timer == "device":
        sample = Sample(tuple(replicate_times_us(values)), values.shape[1])
        return ProcessTime(
            observe(sample), place=process.gpu, references_us=_references_us(process.process)
        )
    times, controls = (
        tuple(summarize(row, statistic) for row in values[..., index]) for index in (0, 1)
    )
    observed = observe(Sample(times, values.shape[1], controls), is_by_host=True)
    return ProcessTime(observed, place=process.gpu, is_host_clock=True, is_by_host=True)


@functools.lru_cache(maxsize=1024)
def _references_us(process: Process) -> Mapping[str, float]:
    """Return the times of the reference kernels by name; empty where they were not measured beside
    the workloads.
    """
    found: dict[str, list[float]] = process.meta.get("control_pair_us", {})
    return {name: float(np.median(times_us)) for name, times_us in found.items()}


# -- peers -----------------------------------------------------------------------------------------


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
    """Return all peers of a suite of so many workloads.

    Those that read kernel durations take kernelgauge's own sessions, as a user of torch.profiler
    can.
    """
    percents = (("> 1 %", 0.01), ("> 5 %", 0.05))
    p_value = ((f"p < {ALPHA:g}/{workloads}", -math.log10(ALPHA / workloads)),)
    sessions = (
        Peer(
            f"kernel durations, {_sessions(count)}",
            OURS["device"],
            relative_change(_mean_of_sessions(count), KERNEL_FLOOR_US),
            ((f"> {threshold * 100:g} %", threshold),),
        )
        for count, threshold in _SESSIONS
    )
    return (
        Peer("do_bench, median", "do_bench", relative_change(np.median), percents, is_matched=True),
        Peer(
            "do_bench, median, mean of processes",
            "do_bench",
            relative_change(np.median, usual=np.mean),
            percents[:1],
        ),
        Peer(
            "blocked_autorange, median",
            "blocked_autorange",
            relative_change(np.median),
            percents,
            is_matched=True,
        ),
        Peer(
            "pytest-benchmark, mean",
            "pytest_benchmark",
            relative_change(np.mean),
            percents,
            is_matched=True,
        ),
        Peer("Mann-Whitney, rounds", "pytest_benchmark", mann_whitney, p_value),
        *sessions,
        Peer("Mann-Whitney, kernel durations", OURS["device"], mann_whitney, p_value),
    )


def relative_change(
    statistic: Callable[[Values], object],
    floor_us: float = 0.0,
    usual: Callable[[Values], object] = np.median,
) -> Score:
    """Score the change of a statistic against what is usual of it over the baseline's processes:
    the median.

    A change of `floor_us` or less scores 0. With the mean, and a baseline of one process, this is
    what ``--benchmark-compare-fail=mean:X%`` of pytest-benchmark compares with X.
    """

    def score(baseline: Sequence[Values], test: Values) -> float:
        expected = float(usual(np.array([statistic(values) for values in baseline])))  # type: ignore[arg-type]
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
    """Return the lowest threshold that keeps unchanged suites of such comparisons at or below a
    rate of false alarms.

    It is chosen in hindsight, on the comparisons that it is then judged by. That favours the peer.

    Args:
        unchanged_scores: the scores of one workload's comparisons without a slowdown.
        suite_size: how many such workloads a suite compares.
        rate: share of suites without any slowdown that may raise an alarm.
    """
    if not len(unchanged_scores) or suite_size < 1 or not 0 <= rate < 1:
        raise ValueError(
            f"got {len(unchanged_scores)} statistics, a suite of {suite_size}, a rate of {rate}"
        )
    rate_of_one = 1 - (1 - rate) ** (1 / suite_size)
    allowed = math.floor(rate_of_one * len(unchanged_scores) + 1e-9)
    highest_first = sorted(unchanged_scores, reverse=True)
    # a threshold below 0 would flag faster processes
    return max(0.0, float(highest_first[allowed]))


def _mean_of_sessions(count: int | None) -> Callable[[Values], float]:
    return lambda sessions: float(np.mean(_one_each(sessions[:count])))


def _one_each(values: Values) -> Values:
    """Return one value for each round, or for each session of (session, call)."""
    return values if values.ndim == 1 else np.median(values, axis=1)


def _sessions(count: int | None) -> str:
    if count is None:
        return "all sessions"
    return "1 session" if count == 1 else f"{count} sessions"
