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
from ..trace import are_alike
from . import MEASUREMENT, Status, Verdict, without_doubtful_improvements, worst
from .baseline import Baseline, combined, from_run
from .evidence import NothingToCompare, ProcessesDiffer, Reason, RelativeChange, SlowerInPairs
from .structure import judge_structure, other_code
from .time_verdict import Context, is_as_fast, judge_time, not_measured, same_code
from .timing import FALSE_ALARMS_PER_RUN, Limits

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
# of false alarms of a comparison in pairs, over all of its times and whatever their noise
_PAIRED_LEVEL = FALSE_ALARMS_PER_RUN
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
    # how many processes of each side would decide a latency of a CPU at best, at the noise of
    # these; 0: not known
    needed: int = 0
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
    beside: Sequence[Sequence[float]] | None = None,
    failures: tuple[Sequence[Reason], Sequence[Reason]] = ((), ()),
    may_be_new: bool = True,
    keeps_times: bool = False,
) -> JudgedSet:
    """Judge the second set of runs of a workload by the first one.

    Args: comparisons: how often the rule is asked, over all times. limits: what the suite asks for;
        a gate that it leaves open is smaller here than between nights. names: of the sets, for
        messages. beside: the steps of the other workloads (`pair_steps`), if processes of the same
        place ran one after the other, in random order. failures: of processes of each set. What ran
        in the second one alone is INVALID unless it `may_be_new`. keeps_times: whether the times of
        the same code are the same.
    """

    def unjudged(conclusion: NothingToCompare, status: Status = Status.INVALID) -> Verdict:
        reasons = dict.fromkeys((*failures[0], *failures[1]))  # each once
        return Verdict(status, workload, MEASUREMENT, conclusion, tuple(reasons))

    timed_before, timed_after = (
        [run for run in runs if run.incomplete is None] for runs in (before, after)
    )
    if not before or not after:
        status = Status.NO_BASELINE if after and may_be_new else Status.INVALID
        is_missing = after and (may_be_new or not failures[0])
        how = NothingToCompare(names[bool(before)], "missing" if is_missing else "failed")
        return JudgedSet((unjudged(how, status),))
    try:
        alike_before, alike, left_out = _alike(timed_before or before, timed_after)
        baseline = combined([from_run(run) for run in alike_before])
    except ValueError as error:
        return JudgedSet((unjudged(NothingToCompare(names[0], "differ", str(error))),))
    failed = [unjudged(NothingToCompare(names[1], "failed in some"))] if failures[1] else []
    structure = replace(_worst_structure(after, baseline, (), names[1]), against=names[0])
    if not timed_before or not timed_after:  # the structure is sound: it may say why
        name, untimed = (names[1], after[-1]) if timed_before else (names[0], before[-1])
        timers = [
            timer for run in (*timed_before, *timed_after) for timer in run.judged_timers
        ] or [Timer.DEVICE]
        missing = not_measured(timers[0], untimed, side=name)
        is_timed = any(run.is_timed for run in (*before, *after))
        found = (*failed, structure, *([missing] if is_timed else []))
        return JudgedSet(found, run=after[-1], baseline=baseline)
    if keeps_times and _is_known(after, baseline, limits or Limits()):
        times = [same_code(timer, after[-1]) for timer in after[-1].judged_timers]
        return JudgedSet((*failed, structure, *times), run=after[-1], baseline=baseline)
    first = alike[0]
    near, asked = {timer: timer.timing.near_gate for timer in Timer}, limits or Limits()
    asked, context = (
        Limits(near | asked.gate, asked.sensitivity),
        Context(comparisons, level=FALSE_ALARMS_PER_RUN, is_alone=True),
    )
    is_cpu = first.fingerprint.arch == "cpu"
    is_paired = len(before) == len(after) and not left_out
    verdicts, undecided, needed = list[Verdict](), [], 0
    # the first process measured all; later ones may leave out a latency
    for timer in first.judged_timers:
        verdict, is_suspect = judge_time(timer, alike, baseline, context, asked), False
        gate = asked.gate[timer]
        if beside is not None and is_paired and timer is Timer.DEVICE and gate == near[timer]:
            verdict, is_suspect = _judged_in_pairs(verdict, pair_steps(before, after), beside)
        verdicts.append(replace(verdict, against=names[0]))
        is_open = is_suspect or not _is_decided(verdict, timer, gate, is_cpu=is_cpu)
        if structure.status is Status.PASS and is_open:
            undecided.append(timer.label)
            needed = max(needed, _needed(verdict, gate, len(alike)) if is_cpu else 0)
    several = {
        timer: [run.samples[timer] for run in alike if timer in run.samples]
        for timer in first.samples
    }
    samples = {timer: reduce(Sample.joined, each) for timer, each in several.items()}
    run = msgspec.structs.replace(first, samples=samples)
    structure = replace(_worst_structure(after, baseline, verdicts, names[1]), against=names[0])
    found = (*failed, *without_doubtful_improvements([structure, *verdicts]))
    return JudgedSet(found, tuple(undecided), needed, run, baseline)


def _alike(before: Sequence[Run], after: Sequence[Run]) -> tuple[list[Run], list[Run], int]:
    """Return the runs of each side that are compared, and how many are not: an autotuner may choose
    anew in each process. They have the launch configuration that most of `after` have, else the
    most of `before`.

    Raises `ValueError` if those of `before` ran other kernels.
    """
    if len({tuple(each.identity.unnumbered for each in run.kernels) for run in before}) > 1:
        raise ValueError("the processes ran different kernels")

    def like(run: Run, side: Sequence[Run]) -> list[Run]:
        return [each for each in side if are_alike(each.kernels, run.kernels)]

    def most(side: Sequence[Run]) -> list[Run]:
        return max((like(run, side) for run in side), key=len, default=[])

    alike = most(after)
    same = (like(alike[0], before) if alike else []) or most(before)
    return same, alike, len(before) + len(after) - len(same) - len(alike)


def _is_known(runs: Sequence[Run], baseline: Baseline, limits: Limits) -> bool:
    """Return whether runs are of the code of a baseline, and about as fast."""
    latencies = [it.samples[Timer.END_TO_END] for it in runs if Timer.END_TO_END in it.samples]
    return (
        bool(latencies)
        and not any(other_code(run, baseline) for run in runs)
        and all(is_as_fast(each, baseline, limits) for each in latencies)
    )


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


def pair_steps(before: Sequence[Run], after: Sequence[Run]) -> list[float]:
    """Return how far the GPU time moved from each process to the other one of its pair, as
    logarithms.

    The machine may have spoilt the times of one side.
    """
    pairs = [
        [fmean(run.samples[Timer.DEVICE].replicates_us) for run in pair]
        for pair in zip(before, after, strict=False)
        if all(Timer.DEVICE in run.samples for run in pair)
    ]
    return [math.log(later / earlier) for earlier, later in pairs]


def _judged_in_pairs(
    verdict: Verdict, steps: Sequence[float], beside: Sequence[Sequence[float]]
) -> tuple[Verdict, bool]:
    """Return the verdict on a GPU time by its pairs, and whether it is suspect and more pairs may
    show it slower.

    The pairs of the first look made it suspect. The others decide, by the exact sign-flip test:
    each way to exchange the sides within pairs is as likely, if the code is the same (Fisher, "The
    Design of Experiments", 1935). A process has all times of its side: so they are exchanged
    together, and the level is that of the largest step of all suspects (Westfall and Young,
    "Resampling-Based Multiple Testing", 1993).
    """
    change, before_us = verdict.change, verdict.before_us
    if (
        verdict.status not in (Status.PASS, Status.UNDECIDED)
        or change is None
        or not (before_us and steps)
    ):
        return verdict, False
    suspect_from = math.log1p(max(_SUSPECT, _WANTED_US / before_us))
    if fmean(steps[:FEWEST]) < suspect_from:
        return verdict, False
    fresh = _fresh(steps)
    others = [_fresh(each) for each in beside if each and fmean(each[:FEWEST]) >= _SUSPECT]
    mean, probability = fmean(fresh or [0.0]), by_chance(fresh, others)
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


def _fresh(steps: Sequence[float]) -> Sequence[float]:
    return steps[FEWEST:][:_MOST_PAIRS]


def by_chance(steps: Sequence[float], beside: Sequence[Sequence[float]] = ()) -> float:
    """Return the exact probability that exchanged pairs move any of these times as far up as
    `steps` are, each measured by its own spread.
    """

    def of_all_signs(each: Sequence[float]) -> list[float]:
        sums, scale = [0.0], math.hypot(*each) or 1.0
        for place in range(len(steps)):
            step = each[place] / scale if place < len(each) else 0.0
            sums = [total + sign * step for total in sums for sign in (1, -1)]
        return sums

    all_sums = [of_all_signs(each) for each in (steps, *beside)]
    least = all_sums[0][0] - 1e-12
    return fmean(max(each) >= least for each in zip(*all_sums, strict=True))


def _is_decided(verdict: Verdict, timer: Timer, gate: float, *, is_cpu: bool) -> bool:
    """Return whether more processes are not needed: the time changed, or a change of the wanted
    size is excluded.

    A time that was not judged needs more: the host may have been at another speed on each side. A
    change is excluded if the measured change, plus its error in 95 of 100 comparisons, stays below
    that size. The error is the part of the sensitivity that lies beyond the change that fails. A CPU has
    no time but the latency: what counts between nights must be excluded.
    """
    change, wanted = verdict.change, timer.timing.gate if is_cpu else timer.timing.wanted
    if verdict.status in (Status.REGRESSED, Status.IMPROVED) or change is None or wanted is None:
        return True
    if (errors := _errors(change, gate)) is None:
        return False
    if timer is Timer.DEVICE and verdict.before_us:
        wanted = max(wanted, _WANTED_US / verdict.before_us)
    return abs(math.log1p(change.estimate)) + errors[1] <= math.log1p(max(wanted, gate))


def _errors(change: RelativeChange, gate: float) -> tuple[float, float] | None:
    """Return half of the interval of a change, and its error in 95 of 100 comparisons, as
    logarithms. None: not known.
    """
    if change.low is None or change.high is None or change.sensitivity is None:
        return None
    margin = (math.log1p(change.high) - math.log1p(change.low)) / 2
    missed = math.log1p(change.sensitivity)
    return margin, _OF_ONE_LOOK * (missed - max(margin, math.log1p(gate)))


def _needed(verdict: Verdict, gate: float, processes: int) -> int:
    """Return how many processes decide a latency if errors shrink with their square root: that it
    changed as it seems, or that it did not at all, whichever takes fewer.
    """
    change = verdict.change
    if change is None or (errors := _errors(change, gate)) is None:
        return 0
    moved, wanted = abs(math.log1p(change.estimate)), max(gate, Timer.END_TO_END.timing.gate)
    ratios = errors[0] / max(moved, 1e-9), errors[1] / math.log1p(wanted)
    return math.ceil(processes * min(ratios) ** 2)


# -- nights ----------------------------------------------------------------------------------------

# The CUSUM's constants, in standard deviations of a night. docs/design/creep.md has the false
# alarms and delays.
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
    for level, since, spread in sorted(_alarms(nights))[:1]:
        change = median(value for value, _ in nights[-_NIGHTS_OF_LEVEL:]) - level
        return Rise(since, math.expm1(change)) if change > _LEAST_RISE * spread else None
    return None


def _alarms(nights: Sequence[tuple[float, float]]) -> Iterator[tuple[float, int, float]]:
    """Yield an alarm for each rise: the level before it, the first night above that, and the spread
    of a night. Later nights never change an alarm.

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
            yield level, since, spread
        if max(above, below) > _LIMIT:
            reference, waiting, above, below = [], [], 0.0, 0.0
        elif above == below == 0.0:
            reference, waiting = reference + waiting, []
