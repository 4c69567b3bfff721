"""What each method catches, and how often it raises a false alarm. Pure: processes in, shares and intervals out.

A suite is all workloads of one process, compared with a baseline. Without an injected slowdown, every alarm is false.
Every method gets the same baselines: all other processes of the same GPU, one of them, or all of another GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from .data import OURS, Measured, Process, Values, by_gpu, dispatch_in_controls, replicate_times_us
from .judge_peers import Peer, matched_threshold
from .judge_peers import peers as all_peers
from .levels import NONE, Level

__all__ = [
    "DESIGNS",
    "OUR_NAME",
    "TIE",
    "Achieved",
    "Alarms",
    "BaselineKind",
    "Caught",
    "Decide",
    "Detector",
    "Evaluation",
    "Share",
    "Tie",
    "Timer",
    "Where",
    "achieved_levels",
    "comparisons",
    "evaluate",
    "ties",
    "wilson",
]

Timer = Literal["device", "host"]
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


class Decide(Protocol):
    """Our own decision: is this workload slower, by this timer?

    `baseline_processes` are unslowed, all of one GPU; there may be one of them or many. `timer` is only asked for
    where the test process has its data, and with those baseline processes that have them too: ``values(workload,
    "ours-device")`` or ``"ours-host"`` of `data.Measured`. What cannot be decided is not slower: False.
    """

    def __call__(
        self, workload: str, timer: Timer, baseline_processes: Sequence[Measured], test_process: Measured, /
    ) -> bool: ...


Slower = Callable[[str, Sequence[Measured], Measured], bool | None]


@dataclass(frozen=True)
class Detector:
    """A method with its threshold. `slower` is None where its data are missing, or where it cannot see that level."""

    name: str
    slower: Slower


@dataclass(frozen=True)
class Share:
    """How many hits of how many trials.

    The workloads of one process share its machine, and pairs share a process. The interval is therefore that of as
    many trials as there are test processes, which is never too narrow.
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


def evaluate(processes: Sequence[Process], decide: Decide, peers: Sequence[Peer] | None = None) -> Evaluation:
    """Judge every comparison that the processes allow, by our own decision and by the peers (None: all)."""
    if peers is None:
        peers = all_peers(max(len(process.workloads) for process in processes))
    alarms: list[Alarms] = []
    caught: list[Caught] = []
    rates: dict[BaselineKind, float] = {}
    for baseline in get_args(BaselineKind):
        ours = our_detector(decide)
        suites = alarms_of(ours, processes, baseline, "same GPU").suites
        rates[baseline] = min(suites.share, 0.99) if suites.trials else 0.0
        detectors = [ours]
        for peer in peers:
            detectors += [_detector(peer, label, threshold) for label, threshold in peer.thresholds]
            if peer.is_matched:
                detectors.append(_matched(peer, matched_thresholds(peer, processes, baseline, rates[baseline])))
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
    """Return ours: an unslowed suite is judged by both timers, a slowed workload by the timer that was slowed."""

    def slower(workload: str, baseline: Sequence[Measured], test: Measured) -> bool | None:
        answers = []
        for timer, method in OURS.items():
            known = [process for process in baseline if process.values(workload, method) is not None]
            if known and test.values(workload, method) is not None and test.level.kind in ("none", timer):
                answers.append(decide(workload, timer, known, test))  # type: ignore[arg-type]  # its keys are Timer's
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
        return None if pair is None or workload not in thresholds else peer.score(*pair) > thresholds[workload]

    return Detector(f"{peer.name}, matched", slower)


def matched_thresholds(
    peer: Peer, processes: Sequence[Process], baseline: BaselineKind, rate: float
) -> dict[str, float]:
    """Return a threshold for each workload, so that a noisy one does not blind the peer to the others."""
    scores: dict[str, list[float]] = {}
    for expected, test in comparisons(processes, baseline, "same GPU"):
        for workload in test.workloads:
            pair = _pair(workload, peer.method, expected, test.at(NONE))
            if pair is not None:
                scores.setdefault(workload, []).append(peer.score(*pair))
    return {workload: matched_threshold(found, len(scores), rate) for workload, found in scores.items()}


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


def alarms_of(detector: Detector, processes: Sequence[Process], baseline: BaselineKind, where: Where) -> Alarms:
    """Judge every suite without a slowdown."""
    answers: list[tuple[int, bool]] = []
    for expected, test in comparisons(processes, baseline, where):
        found = [detector.slower(workload, expected, test.at(NONE)) for workload in test.workloads]
        known = [answer for answer in found if answer is not None]
        if known:
            answers.append((test.number, any(known)))
    return Alarms(detector.name, baseline, where, _share(answers))


def caught_by(detector: Detector, processes: Sequence[Process], baseline: BaselineKind, where: Where) -> list[Caught]:
    """Judge every slowed workload."""
    answers: dict[tuple[str, Level], list[tuple[int, bool]]] = {}
    for expected, test in comparisons(processes, baseline, where):
        for level in test.levels:
            for workload in test.workloads:
                answer = None if level == NONE else detector.slower(workload, expected, test.at(level))
                if answer is not None:
                    answers.setdefault((module_of(workload), level), []).append((test.number, answer))
    return [
        Caught(detector.name, baseline, where, module, level, _share(found))
        for (module, level), found in sorted(answers.items())
    ]


def ties(evaluation: Evaluation) -> list[Tie]:
    """Return peers on the same GPU that catch at most `TIE` less than ours, with no larger share of false alarms.

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
        no_more_alarms = alarms[row.method, row.baseline, row.where] <= alarms[OUR_NAME, row.baseline, row.where]
        if no_more_alarms and row.share.share >= mine.share - TIE:
            found.append(Tie(row.method, row.baseline, row.module, row.level))
    return found


def achieved_levels(processes: Sequence[Process]) -> dict[tuple[str, Level], Achieved]:
    """Return the achieved slowdown of each module and level, by the timer that was slowed.

    Slowed and unslowed were measured in the same passes of one process. Dispatch times are compared at equal host
    speed: each in units of the host's control beside it.
    """
    found: dict[tuple[str, Level], list[float]] = {}
    for process in processes:
        for level in process.levels:
            for workload in process.workloads if level != NONE else []:
                pair = _pair(workload, OURS[level.kind], [process.at(NONE)], process.at(level))
                if pair is not None:
                    change = _typical(level, pair[1]) / _typical(level, pair[0][0]) - 1
                    found.setdefault((module_of(workload), level), []).append(change)
    return {key: Achieved(*np.quantile(changes, (0.1, 0.5, 0.9)).tolist()) for key, changes in sorted(found.items())}


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a proportion (Wilson, 1927): it holds at 0 and at 1, and for few trials."""
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
    return float(np.median(replicate_times_us(values)))  # not of all calls: it would stay on a step of the clock


def _pair(
    workload: str, method: str, baseline: Sequence[Measured], test: Measured
) -> tuple[list[Values], Values] | None:
    """Return the values of a method; None if some are missing, or if it reads the GPU's time and the host was slowed."""
    if method == OURS["device"] and test.level.kind == "host":
        return None
    tested = test.values(workload, method)
    expected = [values for process in baseline if (values := process.values(workload, method)) is not None]
    return None if tested is None or not expected else (expected, tested)


def _share(answers: Sequence[tuple[int, bool]]) -> Share:
    return Share(sum(answer for _, answer in answers), len(answers), len({number for number, _ in answers}))
