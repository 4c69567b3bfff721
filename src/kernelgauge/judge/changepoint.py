"""Where along a line of states a time changed: a posterior over one change point, and the state to measure next.

The model: each process measures the logarithm of a time, with Gaussian noise of one standard deviation. States before
the change share one unknown level, states from the change on another. Both levels and the logarithm of the standard
deviation have flat priors. They integrate in closed form, to Student's t: Gelman et al., "Bayesian Data Analysis",
2013, chapter 3. Each state is as likely as another to be the first of the new level. Measuring where a state is as
likely old as new is probabilistic bisection: Waeber, Frazier and Henderson, "Bisection search with noisy responses",
2013.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
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
