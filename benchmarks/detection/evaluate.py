"""What each method catches, and how often it cries wolf. Pure: processes in, shares with their intervals out.

A suite is all workloads of one process, compared with a baseline; without an injected slowdown, anything it says is a
false alarm. Every method is given the same baselines: all other processes of the same GPU, or one of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from .data import OURS, Measured, Process, Values, by_gpu, replicate_times_us
from .judge_peers import PEERS, Peer, matched_threshold
from .levels import NONE, Level

__all__ = [
    "Alarms",
    "BaselineKind",
    "Caught",
    "Decide",
    "Detector",
    "Evaluation",
    "Share",
    "Timer",
    "Where",
    "comparisons",
    "evaluate",
    "wilson",
]

Timer = Literal["device", "host"]
BaselineKind = Literal["all others", "one process"]
Where = Literal["same GPU", "other GPU"]
OUR_NAME = "kernelgauge"

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


@dataclass(frozen=True)
class Detector:
    """A method with its threshold. `slower` is None where its data are not there."""

    name: str
    slower: Callable[[str, Sequence[Measured], Measured], bool | None]


@dataclass(frozen=True)
class Share:
    """How many of how many.

    Trials that share a test process and a workload, and differ in the baseline alone, are not independent: the
    interval is that of `independent` trials.
    """

    hits: int
    trials: int
    independent: int

    @property
    def share(self) -> float:
        return self.hits / self.trials if self.trials else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.share, self.independent)


@dataclass(frozen=True)
class Alarms:
    """False alarms of one method: over suites, and over their single comparisons."""

    method: str
    baseline: BaselineKind
    where: Where
    suites: Share
    single: Share


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
class Evaluation:
    """Everything that a table or a plot shows."""

    alarms: list[Alarms]
    caught: list[Caught]
    matched: dict[tuple[str, BaselineKind], dict[str, float]]  # threshold by workload, of a peer
    matched_rate: dict[BaselineKind, float]
    seen: dict[tuple[str, Level], float]  # by module: the injected slowdown as our own timers read it, a share
    processes: dict[str, int]  # by GPU

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(alarms.method for alarms in self.alarms))


def evaluate(
    processes: Sequence[Process], decide: Decide, peers: Sequence[Peer] = PEERS, rate: float | None = None
) -> Evaluation:
    """Judge every comparison that the processes allow.

    Args:
        processes: at least two of one GPU; each with the unslowed twin and some levels of the workloads.
        decide: our own decision.
        peers: who is compared with it.
        rate: false alarms per suite that the peers' matched thresholds are chosen for. None: what ours had.
    """
    alarms: list[Alarms] = []
    caught: list[Caught] = []
    matched: dict[tuple[str, BaselineKind], dict[str, float]] = {}
    rates: dict[BaselineKind, float] = {}
    for baseline in get_args(BaselineKind):
        ours = our_detectors(decide)
        rates[baseline] = _rate_of(ours[0], processes, baseline) if rate is None else rate
        detectors = [*ours]
        for peer in peers:
            thresholds = matched_thresholds(peer, processes, baseline, rates[baseline])
            matched[peer.name, baseline] = thresholds
            without = {
                left_out.number: matched_thresholds(
                    peer, [process for process in processes if process is not left_out], baseline, rates[baseline]
                )
                for left_out in processes
            }
            detectors += peer_detectors(peer, thresholds, without)
        for detector in detectors:
            alarms += [alarms_of(detector, processes, baseline, where) for where in get_args(Where)]
            caught += [row for where in get_args(Where) for row in caught_by(detector, processes, baseline, where)]
    return Evaluation(
        alarms=alarms,
        caught=caught,
        matched=matched,
        matched_rate=rates,
        seen=seen_slowdowns(processes),
        processes={gpu: len(members) for gpu, members in by_gpu(processes).items()},
    )


def our_detectors(decide: Decide) -> list[Detector]:
    """Both timers together, as a suite is judged; then each alone."""

    def by_timers(*timers: Timer) -> Callable[[str, Sequence[Measured], Measured], bool | None]:
        def slower(workload: str, baseline: Sequence[Measured], test: Measured) -> bool | None:
            said = []
            for timer in timers:
                known = [process for process in baseline if process.values(workload, OURS[timer]) is not None]
                if known and test.values(workload, OURS[timer]) is not None:
                    said.append(decide(workload, timer, known, test))
            return any(said) if said else None

        return slower

    return [
        Detector(OUR_NAME, by_timers("device", "host")),
        Detector(f"{OUR_NAME}, device time alone", by_timers("device")),
        Detector(f"{OUR_NAME}, host time alone", by_timers("host")),
    ]


def peer_detectors(
    peer: Peer, matched: Mapping[str, float], matched_without: Mapping[int, Mapping[str, float]]
) -> list[Detector]:
    """A peer at each threshold that its users set, at the matched ones, and at those matched without the process tested.

    `matched_without`: thresholds by workload, by the number of the process that they were not chosen on.
    """

    def above(
        threshold_of: Callable[[str, Process], float | None],
    ) -> Callable[[str, Sequence[Measured], Measured], bool | None]:
        def slower(workload: str, baseline: Sequence[Measured], test: Measured) -> bool | None:
            pair, threshold = _pair(workload, peer.method, baseline, test), threshold_of(workload, test.process)
            return None if pair is None or threshold is None else peer.flags(*pair, threshold)

        return slower

    def fixed(threshold: float) -> Callable[[str, Process], float]:
        return lambda *_: threshold

    return [
        *(Detector(f"{peer.name} {label}", above(fixed(threshold))) for label, threshold in peer.thresholds),
        Detector(f"{peer.name}, matched", above(lambda workload, _: matched.get(workload))),
        Detector(
            f"{peer.name}, matched on the others",
            above(lambda workload, tested: matched_without[tested.number].get(workload)),
        ),
    ]


def matched_thresholds(
    peer: Peer, processes: Sequence[Process], baseline: BaselineKind, rate: float
) -> dict[str, float]:
    """By workload, so that a noisy one does not blind the peer to the others; from pairs on the same GPU."""
    scores: dict[str, list[float]] = {}
    for expected, test in comparisons(processes, baseline, "same GPU"):
        for workload in test.workloads:
            score = _unslowed(peer, workload, tuple(one.process for one in expected), test)
            if score is not None:
                scores.setdefault(workload, []).append(score)
    return {workload: matched_threshold(found, len(scores), rate) for workload, found in scores.items()}


@functools.lru_cache(maxsize=1 << 16)
def _unslowed(peer: Peer, workload: str, baseline: tuple[Process, ...], test: Process) -> float | None:
    pair = _pair(workload, peer.method, [process.at(NONE) for process in baseline], test.at(NONE))
    return None if pair is None else peer.score(*pair)


def comparisons(
    processes: Sequence[Process], baseline: BaselineKind, where: Where
) -> Iterator[tuple[list[Measured], Process]]:
    """Every baseline of that kind, and the process to test against it."""
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
    suites: list[bool] = []
    single: list[bool] = []
    tested: set[int] = set()
    workloads: set[tuple[int, str]] = set()
    for expected, test in comparisons(processes, baseline, where):
        found = {workload: detector.slower(workload, expected, test.at(NONE)) for workload in test.workloads}
        said = {workload: answer for workload, answer in found.items() if answer is not None}
        if said:
            suites.append(any(said.values()))
            single += said.values()
            tested.add(test.number)
            workloads |= {(test.number, workload) for workload in said}
    return Alarms(
        detector.name,
        baseline,
        where,
        Share(sum(suites), len(suites), len(tested)),
        Share(sum(single), len(single), len(workloads)),
    )


def caught_by(detector: Detector, processes: Sequence[Process], baseline: BaselineKind, where: Where) -> list[Caught]:
    said: dict[tuple[str, Level], list[tuple[tuple[int, str], bool]]] = {}
    for expected, test in comparisons(processes, baseline, where):
        for level in test.levels:
            for workload in test.workloads:
                answer = None if level == NONE else detector.slower(workload, expected, test.at(level))
                if answer is not None:
                    said.setdefault((module_of(workload), level), []).append(((test.number, workload), answer))
    return [
        Caught(detector.name, baseline, where, module, level, _share(answers))
        for (module, level), answers in sorted(said.items())
    ]


def seen_slowdowns(processes: Sequence[Process]) -> dict[tuple[str, Level], float]:
    """Median over processes and workloads of (slowed / unslowed - 1) in one process, by the timer that was slowed."""
    found: dict[tuple[str, Level], list[float]] = {}
    for process in processes:
        for level in process.levels:
            for workload in process.workloads if level != NONE else []:
                pair = _pair(workload, OURS[level.kind], [process.at(NONE)], process.at(level))
                if pair is not None:
                    change = _typical(level, pair[1]) / _typical(level, pair[0][0]) - 1
                    found.setdefault((module_of(workload), level), []).append(change)
    return {key: float(np.median(changes)) for key, changes in sorted(found.items())}


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion (Wilson, 1927): it holds at 0 and at 1, and for few trials."""
    if trials == 0:
        return 0.0, 1.0
    z2 = _Z95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def module_of(workload: str) -> str:
    """Workloads of one module are shown together: they have the same levels."""
    return workload.split("-")[0]


def _typical(level: Level, values: Values) -> float:
    """A dispatch time in units of the host's control, of each the lower decile of a replicate: as it is judged."""
    if level.kind == "device":
        return float(np.median(replicate_times_us(values)))  # not of all calls: it would stay on a step of the clock
    deciles = np.quantile(values, 0.1, axis=1)
    return float(np.median(deciles[:, 0] / deciles[:, 1]))


def _pair(
    workload: str, method: str, baseline: Sequence[Measured], test: Measured
) -> tuple[list[Values], Values] | None:
    tested = test.values(workload, method)
    expected = [values for process in baseline if (values := process.values(workload, method)) is not None]
    return None if tested is None or not expected else (expected, tested)


def _rate_of(detector: Detector, processes: Sequence[Process], baseline: BaselineKind) -> float:
    suites = alarms_of(detector, processes, baseline, "same GPU").suites
    return min(suites.share, 0.99) if suites.trials else 0.0


def _share(answers: Sequence[tuple[tuple[int, str], bool]]) -> Share:
    return Share(sum(answer for _, answer in answers), len(answers), len({what for what, _ in answers}))
