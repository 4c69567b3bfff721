"""The posterior over a change point: how often its search is right, and what it measures next. Rises over nights."""

import math
import random

import pytest

from kernelgauge.judge.changepoint import FIRST, SURE, find_creep, next_state, suspects


def test_next_state_is_one_that_can_tell_more() -> None:
    """An outlier beside the change is measured again, and what cannot be measured is passed over."""
    values: list[list[float] | None] = [[0.0, 0.1, -0.1], [0.1], [9.0], [], [9.0, 8.9, 9.1]]
    assert max(each.probability for each in suspects(values)) >= SURE
    assert next_state(values) in (1, 2)
    ends = [0.0] * FIRST, [9.0] * FIRST
    assert next_state([ends[0], [], None, [], ends[1]]) in (1, 3)
    assert next_state([ends[0], None, None, ends[1]]) is None


@pytest.mark.parametrize(("shift", "most_missed", "most_processes"), [(5, 0, 18), (3, 1, 22)])
def test_search_finds_the_change(shift: float, most_missed: int, most_processes: float) -> None:
    rng = random.Random(20261123)
    missed, used, trials = 0, 0, 60
    for _ in range(trials):
        first = rng.randint(1, 64)
        values: list[list[float]] = [[] for _ in range(65)]
        places = [0, 64] * FIRST
        while places:
            values[places[0]].append(shift * (places[0] >= first) + rng.gauss(0, 1))
            places = places[1:] or [place for place in [next_state(values)] if place is not None]
        missed += max(suspects(values), key=lambda each: each.probability).high != first
        used += sum(map(len, values))
    assert missed <= most_missed
    assert used / trials <= most_processes


A, B = [200.0] * 20, [202.0] * 10


@pytest.mark.parametrize(
    ("levels", "drift", "spread", "since", "percent"),
    [
        (10 * A, 0.0, 0.01, None, 0.0),  # nights show more noise than the rule expects
        (A + A[:10], 5e-4, 6e-4, 20, 0.5),
        (3 * A, 5e-4, 6e-4, 20, 2.0),  # of several alarms the lowest level counts
        (A + B + A, 0.0, 6e-4, None, 0.0),  # mended
        (A + 20 * [180.0] + 10 * [182.0], 0.0, 6e-4, 40, 1.1),  # of what was gained
        ([*A, 300.0, *A], 0.0, 6e-4, None, 0.0),  # an outlier
    ],
)
def test_rise_is_found_while_it_lasts(
    levels: list[float], drift: float, spread: float, since: int, percent: float
) -> None:
    rng = random.Random(5)
    nights = [math.log(us) + drift * max(0, n - 19) + rng.gauss(0, spread) for n, us in enumerate(levels)]
    found = find_creep([(each, 6e-4) for each in nights])
    assert (found and found.since) == (since and pytest.approx(since, abs=2))
    assert found is None or 100 * found.change == pytest.approx(percent, abs=0.12)
