"""Times of one machine compared without a baseline: two sets of processes, and the nights of a
history.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from ..run import Run, Sample, Timer
from . import MEASUREMENT, Status, Verdict, settled, worst
from .baseline import Baseline, by_configuration, combined, from_run
from .evidence import NothingToCompare, ProcessesDiffer, RelativeChange, SlowerInPairs
from .structure import judge_structure
from .time_verdict import Context, judge_time, not_measured
from .timing import Limits

# processes of each side: from then on their own spread says more than what is known of other
# machines
FEWEST = 3
# the rule is applied at most so often; each look has its share of the false alarms (Bonferroni)
LOOKS = 3
# A GPU time is decided once a change of so many microseconds is excluded: the profiler's clock has
# steps of 0.032 us.
_WANTED_US = 0.1
# A GPU time that is slower by this after the first look is measured in pairs until the last one,
# and decided by them.
_SUSPECT = 0.001
_PAIRED_LEVEL = 0.01  # of false alarms of a time in pairs, whatever the distribution of its noise
_MOST_PAIRS = 16  # of the test, which tries all signs: 65,536
# Student's t of 6 degrees of freedom, the fewest, at 1 - 0.05 / LOOKS, over that at 0.95: the looks
# share 5 in 100.
_OF_ONE_LOOK = 1.42


@dataclass(frozen=True)
class JudgedSet:
    """The verdicts on a set of processes."""

    verdicts: tuple[Verdict, ...]
    # labels of the times that need more processes; none where structure differs
    undecided: tuple[str, ...] = ()
    # one of them, with the samples of all that ran in its launch configuration
    run: Run | None = None
    baseline: Baseline | None = None  # of the other set. None: it cannot be one


def looks(processes: int) -> set[int]:
    """Return after how many processes of each side the rule is asked: 3, 6 and 12, or as many as
    there are.
    """
    return {FEWEST * 2**number for number in range(LOOKS - 1)} | {processes}


def judge_sets(
    workload: str,
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    comparisons: int,
    limits: Limits | None = None,
    names: tuple[str, str],
    are_pairs: bool = False,
) -> JudgedSet:
    """Judge the second set of runs of a workload by the first one.

    Args: comparisons: how often the rule is asked, over all times. limits: what the suite asks for;
        a gate that it leaves open is smaller here than between nights. names: of the sets, for
        messages. are_pairs: processes of the same place ran one after the other, in random order.
    """

    def unjudged(conclusion: NothingToCompare, status: Status = Status.INVALID) -> JudgedSet:
        return JudgedSet((Verdict(status, workload, MEASUREMENT, conclusion),))

    timed_before, timed_after = (
        [run for run in runs if run.incomplete is None] for runs in (before, after)
    )
    if after and not before:
        return unjudged(NothingToCompare(names[0], "missing"), Status.NO_BASELINE)
    if not before or not after:
        return unjudged(NothingToCompare(names[1] if before else names[0], "failed"))
    try:
        baseline = combined([from_run(run) for run in timed_before or before])
    except ValueError as error:
        return unjudged(NothingToCompare(names[0], "differ", str(error)))
    structure = replace(_worst_structure(after, baseline, (), names[1]), against=names[0])
    if not timed_before or not timed_after:  # the structure is sound: it may say why
        name, untimed = (names[1], after[-1]) if timed_before else (names[0], before[-1])
        timers = [
            timer for run in (*timed_before, *timed_after) for timer in run.judged_timers
        ] or [Timer.DEVICE]
        missing = not_measured(timers[0], untimed, side=name)
        is_timed = any(run.is_timed for run in (*before, *after))
        return JudgedSet(
            (structure, missing) if is_timed else (structure,), (), after[-1], baseline
        )
    # The autotuner chooses anew in each process: the launch configuration that most of them have.
    first, *_ = alike = max(by_configuration(timed_after), key=len)
    near, asked = {timer: timer.timing.near_gate for timer in Timer}, limits or Limits()
    asked, context = (
        Limits(near | asked.gate, asked.sensitivity),
        Context(comparisons, is_alone=True),
    )
    is_paired = are_pairs and len(before) == len(after) and len(alike) == len(timed_after)
    verdicts, undecided = list[Verdict](), []
    # the first process measured all; later ones may leave out a latency
    for timer in first.judged_timers:
        verdict, is_suspect = judge_time(timer, alike, baseline, context, asked), False
        gate = asked.gate[timer]
        if is_paired and timer is Timer.DEVICE and gate == near[timer]:
            # The machine may have spoilt the times of one side.
            pairs = [
                each
                for each in zip(before, after, strict=True)
                if all(timer in run.samples for run in each)
            ]
            verdict, is_suspect = _judged_in_pairs(verdict, pairs)
        verdicts.append(replace(verdict, against=names[0]))
        is_open = is_suspect or not _is_decided(verdict, timer, gate)
        if structure.status is Status.PASS and is_open:
            undecided.append(timer.label)
    several = {
        timer: [run.samples[timer] for run in alike if timer in run.samples]
        for timer in first.samples
    }
    samples = {timer: reduce(Sample.joined, each) for timer, each in several.items()}
    run = msgspec.structs.replace(first, samples=samples)
    structure = replace(_worst_structure(after, baseline, verdicts, names[1]), against=names[0])
    return JudgedSet(tuple(settled([structure, *verdicts])), tuple(undecided), run, baseline)


def _worst_structure(
    runs: Sequence[Run], baseline: Baseline, times: Sequence[Verdict], name: str
) -> Verdict:
    """Return the worst verdict on the structure of all processes, and in how many of them structure
    is another.
    """
    verdicts = [judge_structure(run, baseline, times) for run in runs]
    status = worst([each.status for each in verdicts])
    found = next(each for each in verdicts if each.status is status)
    if (
        other := sum(each.status is Status.PASS for each in verdicts)
        if status is not Status.PASS
        else 0
    ):
        found = found.because(ProcessesDiffer(len(runs) - other, len(runs), name))
    return found


def _judged_in_pairs(verdict: Verdict, pairs: Sequence[tuple[Run, Run]]) -> tuple[Verdict, bool]:
    """Return the verdict on a GPU time by its pairs, and whether it is suspect and more pairs may
    show it slower.

    The pairs of the first look made it suspect. The others decide, by the exact sign-flip test:
    each way to exchange the sides within pairs is as likely, if the code is the same (Fisher, "The
    Design of Experiments", 1935).
    """
    change, before_us = verdict.change, verdict.before_us
    if (
        verdict.status not in (Status.PASS, Status.UNDECIDED)
        or change is None
        or not (before_us and pairs)
    ):
        return verdict, False
    sides = ([fmean(each.samples[Timer.DEVICE].replicates_us) for each in pair] for pair in pairs)
    steps = [math.log(later / earlier) for earlier, later in sides]
    suspect_from = math.log1p(max(_SUSPECT, _WANTED_US / before_us))
    if fmean(steps[:FEWEST]) < suspect_from:
        return verdict, False
    fresh = steps[FEWEST:][:_MOST_PAIRS]
    mean, probability = fmean(fresh or [0.0]), by_chance(fresh)
    if probability > _PAIRED_LEVEL or mean < suspect_from:
        return verdict, True
    parts = (place / 20 * mean for place in range(1, 21))
    margin = next(
        each for each in parts if by_chance([step - mean + each for step in fresh]) <= _PAIRED_LEVEL
    )
    low, high = math.expm1(mean - margin), math.expm1(mean + margin)
    found = RelativeChange(
        math.expm1(mean), low, high, 1 - 2 * _PAIRED_LEVEL, gate=math.expm1(suspect_from)
    )
    slower = replace(verdict, status=Status.REGRESSED, change=found)
    return slower.because(SlowerInPairs(len(fresh), probability)), False


def by_chance(steps: Sequence[float]) -> float:
    """Return how often such steps are as far above zero in the mean, if each sign is as likely as
    the other: exactly.
    """
    sums = [0.0]
    for each in steps:
        sums = [total + sign * abs(each) for total in sums for sign in (-1, 1)]
    return sum(total >= math.fsum(steps) - 1e-12 for total in sums) / len(sums)


def _is_decided(verdict: Verdict, timer: Timer, gate: float) -> bool:
    """Return whether more processes are not needed: the time changed, or a change of the wanted
    size is excluded.

    A time that was not judged needs more: the host may have been at another speed on each side. A
    change is excluded if the measured change, plus its error in 95 of 100 comparisons, stays below
    that size. The error is the part of the sensitivity that lies beyond the change that fails.
    """
    change, wanted = verdict.change, timer.timing.wanted
    if verdict.status in (Status.REGRESSED, Status.IMPROVED) or change is None or wanted is None:
        return True
    if change.low is None or change.high is None or change.sensitivity is None:
        return False
    if timer is Timer.DEVICE and verdict.before_us:
        wanted = max(wanted, _WANTED_US / verdict.before_us)
    margin = (math.log1p(change.high) - math.log1p(change.low)) / 2
    short_by = _OF_ONE_LOOK * (math.log1p(change.sensitivity) - max(margin, math.log1p(gate)))
    return abs(math.log1p(change.estimate)) + short_by <= math.log1p(max(wanted, gate))


# -- nights ----------------------------------------------------------------------------------------

# The CUSUM's constants, in standard deviations of a night. `python benchmarks/creep.py` prints
# false alarms and delays.
_SLACK = 1.25  # a level that is higher by less counts as the same
_LIMIT = 5.0  # of the sum: an alarm
_LARGEST = 3.0  # of one night: an outlier alone raises no alarm
_REFERENCE_NIGHTS = 2  # before any night is judged
_FEWEST_DIFFERENCES = 5  # before the nights show their own noise
_LEAST_RISE = 2.0  # of the level of now: below, the time came back
_NIGHTS_OF_LEVEL = 3  # that the level of now is the median of
# The median of absolute differences of two independent Gaussian nights is 0.954 standard deviations
# of one. Nights that correlate by 0.3 differ by 0.84 times as much.
_OF_MEDIAN = 1 / 0.954 / 0.84


class Alarm(NamedTuple):
    """A level of the nights before `since`, and that later ones are above it."""

    level: float
    since: int
    spread: float  # of a night


class Rise(NamedTuple):
    """How far the last nights are above an earlier level."""

    since: int  # the first night above it
    change: float  # as a fraction


def find_creep(nights: Sequence[tuple[float, float]]) -> Rise | None:
    """Return how far the last nights of one machine are above the lowest level that an alarm was
    raised for.

    Returns None without an alarm, and where the times came back.

    Args:
        nights: the logarithm of each time, and the least standard deviation to expect of it.
    """
    alarm = min(find_alarms(nights), default=None)
    if alarm is None:
        return None
    change = median(value for value, _ in nights[-_NIGHTS_OF_LEVEL:]) - alarm.level
    return Rise(alarm.since, math.expm1(change)) if change > _LEAST_RISE * alarm.spread else None


def find_alarms(nights: Sequence[tuple[float, float]]) -> Iterator[Alarm]:
    """Yield an alarm for each rise. The arguments are those of `find_creep`; later nights never
    change an alarm.

    A two-sided CUSUM. Its reference grows while both sums are zero, and starts anew where one
    exceeds the limit. Page, "Continuous inspection schemes", 1954; Hawkins, "Self-starting CUSUM
    charts for location and scale", 1987.
    """
    differences: list[float] = []
    reference: list[float] = []
    waiting: list[float] = []  # nights since a sum is above zero
    above = below = 0.0
    since = 0
    for place, (value, least) in enumerate(nights):
        if place:
            insort(differences, abs(value - nights[place - 1][0]))
        if len(reference) < _REFERENCE_NIGHTS:
            reference.append(value)
            continue
        shown = _OF_MEDIAN * median(differences) if len(differences) >= _FEWEST_DIFFERENCES else 0.0
        spread, level = max(least, shown), fmean(reference)
        score = (value - level) / (spread * math.sqrt(1 + 1 / len(reference)))
        since = since if above else place
        above = max(0.0, above + min(score, _LARGEST) - _SLACK)
        below = max(0.0, below + min(-score, _LARGEST) - _SLACK)
        waiting.append(value)
        if above > _LIMIT:
            yield Alarm(level, since, spread)
        if max(above, below) > _LIMIT:
            reference, waiting, above, below = [], [], 0.0, 0.0
        elif above == below == 0.0:
            reference, waiting = reference + waiting, []
