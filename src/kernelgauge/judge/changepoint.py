"""Where a time changed: along a line of states, and over the nights of a history.

Along a line of states: a posterior over one change point, and the state to measure next. The model: each process
measures the logarithm of a time, with Gaussian noise of one standard deviation. States before the change share one
unknown level, states from the change on another. Both levels and the logarithm of the standard deviation have flat
priors. They integrate in closed form, to Student's t: Gelman et al., "Bayesian Data Analysis",
2013, chapter 3. Each state is as likely as another to be the first of the new level. Measuring where a state is as
likely old as new is probabilistic bisection: Waeber, Frazier and Henderson, "Bisection search with noisy responses",
2013.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

FIRST = 3  # processes of each end, before any other state, and of both states beside an answer: one may be an outlier
SURE = 0.95  # of the posterior: an answer
_ANCHOR_EVERY = 4  # of the processes after them, one measures an end again: what drifts moves both levels
_LEAST_SQUARES = 1e-12  # of all deviations: no clock is steadier than by one part in a million

Values = Sequence[Sequence[float] | None]  # logarithms by state, in order; None: it cannot be measured


class Suspect(NamedTuple):
    """The change lies behind state `low` and at `high` at the latest. Between them nothing can be measured."""

    low: int
    high: int
    probability: float


def suspects(values: Values) -> list[Suspect]:
    """Return every place of the change, in order, with its posterior probability. Both ends must have been measured."""
    center = fmean(value for state in values for value in state or ())
    known = [(place, [value - center for value in state]) for place, state in enumerate(values) if state is not None]
    scores = []
    for split, ((low, _), (high, _)) in enumerate(pairwise(known), 1):
        old, new = ([value for _, state in part for value in state] for part in (known[:split], known[split:]))
        squares = _LEAST_SQUARES + _squares(old) + _squares(new)
        power = (len(old) + len(new) - 2) / 2
        score = math.log(high - low) - math.log(len(old) * len(new)) / 2 - power * math.log(squares)
        scores.append((low, high, score))
    most = max(score for *_, score in scores)
    total = math.fsum(math.exp(score - most) for *_, score in scores)
    return [Suspect(low, high, math.exp(score - most) / total) for low, high, score in scores]


def next_state(values: Values) -> int | None:
    """Return the state to measure next; None if the change is found, or nothing between the ends can be measured.

    That is where the probability of the new level is nearest to 1/2, of several the least measured; and every fourth
    time the end that has fewer processes. Once a change is sure, the states on both sides of it get as many as an end.
    """
    counts = [len(state or ()) for state in values]
    between = [place for place, state in enumerate(values[1:-1], 1) if state is not None]
    if not between:
        return None
    found = suspects(values)
    best = max(found, key=lambda each: each.probability)
    if best.probability >= SURE:
        return min((each for each in best[:2] if counts[each] < FIRST), key=counts.__getitem__, default=None)
    if (sum(counts) - 2 * FIRST) % _ANCHOR_EVERY == _ANCHOR_EVERY - 1:
        return 0 if counts[0] <= counts[-1] else len(values) - 1

    def preference(place: int) -> tuple[float, int]:
        is_new = math.fsum(each.probability for each in found if each.high <= place)
        return round(abs(is_new - 0.5), 9), counts[place]

    return min(between, key=preference)


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


# -- nights -----------------------------------------------------------------------------------------------------------

# The CUSUM's constants, in standard deviations of a night. `python benchmarks/creep.py` prints false alarms and delays.
_SLACK = 1.25  # a level that is higher by less is no finding
_LIMIT = 5.0  # of the sum: an alarm
_LARGEST = 3.0  # of one night: an outlier alone raises no alarm
_REFERENCE_NIGHTS = 2  # before any night is judged
_FEWEST_DIFFERENCES = 5  # before the nights show their own noise
_LEAST_RISE = 2.0  # of the level of now: below, the time came back
_NIGHTS_OF_LEVEL = 3  # that the level of now is the median of
# The median of absolute differences of two independent Gaussian nights is 0.954 standard deviations of one. Nights that
# correlate by 0.3 differ by 0.84 times as much.
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
    """Return how far the last nights of one machine are above the lowest level that an alarm was raised for.

    None: there was no alarm, or the times came back.

    Args:
        nights: the logarithm of each time, and the least standard deviation to expect of it.
    """
    alarm = min(find_alarms(nights), default=None)
    if alarm is None:
        return None
    change = median(value for value, _ in nights[-_NIGHTS_OF_LEVEL:]) - alarm.level
    return Rise(alarm.since, math.expm1(change)) if change > _LEAST_RISE * alarm.spread else None


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
