"""Slowdowns that are each too small to fail: the anchors of a baseline, and a CUSUM over the nights of a history."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from ..run import Observation, Run, Timer
from . import Status, Verdict
from . import evidence as e
from .baseline import Anchor, Baseline, Process, compare, from_run, rounded
from .time_verdict import judge_time
from .timing import Limits, by_place, mean_of, on_same_host

# Of the CUSUM, in standard deviations of a night. `python benchmarks/creep.py` prints false alarms and delays.
_SLACK = 1.25  # a level that is higher by less is no finding
_LIMIT = 5.0  # of the sum: an alarm
_LARGEST = 3.0  # of one night: an outlier alone raises no alarm
_FIRST = 2  # nights of a reference, before any night is judged
_FEWEST_DIFFERENCES = 5  # before the nights show their own noise
_NIGHTS_OF_LEVEL = 3  # that the level of now is the median of
# The median of absolute differences of two independent Gaussian nights is 0.954 standard deviations of one. Nights that
# correlate by 0.3 differ by 0.84 times as much.
_OF_MEDIAN = 1 / 0.954 / 0.84


# -- anchors ----------------------------------------------------------------------------------------------------------


def without_times(processes: Iterable[Process], timers: Iterable[Timer]) -> tuple[Process, ...]:
    """Return processes without the times of these timers, and without those that have no time left."""
    left_out = set(timers)
    left = (
        replace(it, timers={name: each for name, each in it.timers.items() if name not in left_out}) for it in processes
    )
    return tuple(each for each in left if each.timers)


def judge_anchors(
    run: Run, old: Baseline, *, comparisons: int, limits: Limits | None
) -> list[tuple[Anchor, Timer, Verdict]]:
    """Judge each time of a run by its anchor. On a GPU of the anchor, the reference kernels excuse nothing.

    The anchor may be of other software, which may slow them down too.
    """
    if compare(old.fingerprint, run.fingerprint).foreign:
        return []
    alone, found = from_run(run, suite=old.suite), []
    for anchor in old.anchors:
        before = replace(alone, entries=(replace(alone.entries[0], processes=anchor.processes),))
        is_known = any(each.place == run.place for each in anchor.processes)
        judged = replace(run, controls={}) if is_known else run
        for timer in run.samples:
            if any(timer in each.timers for each in anchor.processes):
                verdict = judge_time(timer, judged, before, comparisons=comparisons, limits=limits)
                found.append((anchor, timer, verdict))
    return found


def creep_of(
    judged: Iterable[tuple[Anchor, Timer, Verdict]], times: Sequence[Verdict], *, is_written: bool
) -> Iterator[e.Creep]:
    """Yield the times that are slower than their anchors, where `times`, of the same run, blame no machine for it."""
    machines = [each.subject for each in times for why in each.reasons if isinstance(why, e.Machine) and why.is_own]
    for anchor, _, verdict in judged:
        accepted = anchor.accepted + is_written
        is_slower = verdict.status is Status.REGRESSED and verdict.subject not in machines
        if is_slower and verdict.change is not None and accepted > 1:  # a review has shown a single step
            yield e.Creep(verdict.subject, verdict.change.estimate, anchor.at, accepted, anchor.release)


def with_anchors(new: Baseline, old: Baseline, judged: Iterable[tuple[Anchor, Timer, Verdict]]) -> Baseline:
    """Return what is written in place of a stored baseline, with its anchors.

    A stored time without an anchor becomes one. With the first run of a new release, so does a time that has left its
    anchor. A time that has not keeps it: slow drift adds up over releases too.
    """
    if compare(old.fingerprint, new.fingerprint).foreign:
        return new
    before = old.recorded.release if old.recorded else None
    release = (new.recorded.release if new.recorded else None) or before
    anchors = list(old.anchors)
    if release != before:
        moved = {timer for _, timer, each in judged if each.status in (Status.REGRESSED, Status.IMPROVED)}
        anchors = [replace(each, processes=without_times(each.processes, moved)) for each in anchors]
    anchored = {timer for each in anchors for process in each.processes for timer in process.timers}
    anchors.append(_anchor(old, [timer for timer in Timer if timer not in anchored], release))
    anchors = [replace(each, accepted=each.accepted + 1) for each in anchors if each.processes]
    recorded = replace(new.recorded, release=release) if new.recorded else None
    return replace(new, anchors=tuple(anchors), recorded=recorded)


def _anchor(old: Baseline, timers: Sequence[Timer], release: str | None) -> Anchor:
    """Return the stored times as an anchor: of each place their mean, of the slowest launch configuration."""
    entry = max(old.entries, key=lambda each: each.device_time_us)
    found: dict[str | None, dict[Timer, Observation]] = {}
    for timer in timers:
        for group in by_place(old.times(timer, entry)):
            mean = mean_of(on_same_host(group, group[-1]))
            found.setdefault(mean.place, {})[timer] = rounded(mean.observation)
    firsts = {each.place: each for each in reversed(old.processes)}
    processes = (replace(firsts[place], timers=times) for place, times in found.items())
    return Anchor(old.recorded.at if old.recorded else "", release, 0, tuple(processes))


# -- nights -----------------------------------------------------------------------------------------------------------


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
    """Return how far the last nights of one machine are above the lowest level that an alarm was raised for.

    None: there was no alarm, or the times came back.

    Args:
        nights: the logarithm of each time, and the least standard deviation to expect of it.
    """
    alarm = min(find_alarms(nights), default=None)
    if alarm is None:
        return None
    change = median(value for value, _ in nights[-_NIGHTS_OF_LEVEL:]) - alarm.level
    return Rise(alarm.since, math.expm1(change)) if change > alarm.spread else None


def find_alarms(nights: Sequence[tuple[float, float]]) -> Iterator[Alarm]:
    """Yield an alarm for each rise. The arguments are those of `find_creep`; later nights never change an alarm.

    A two-sided CUSUM. Its reference grows while both sums are zero, and starts anew where one exceeds the limit. Page,
    "Continuous inspection schemes", 1954; Hawkins, "Self-starting CUSUM charts for location and scale", 1987.
    """
    differences: list[float] = []
    reference: list[float] = []
    waiting: list[float] = []  # nights since a sum is above zero
    above = below = 0.0
    since = 0
    for place, (value, least) in enumerate(nights):
        if place:
            insort(differences, abs(value - nights[place - 1][0]))
        if len(reference) < _FIRST:
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
