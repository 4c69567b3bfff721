"""The interval of a ratio: against scipy's own Welch test, and by how often it covers the truth."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from kernelgauge.judge import RelativeChange, relative_change

BEFORE, AFTER = (205.0, 205.3, 204.8, 205.1), (221.9, 221.5, 222.4, 221.6)


def welch(before: tuple[float, ...], after: tuple[float, ...], confidence: float) -> tuple[float, float]:
    test = stats.ttest_ind([math.log(x) for x in after], [math.log(x) for x in before], equal_var=False)
    interval = test.confidence_interval(confidence)
    return math.expm1(interval.low), math.expm1(interval.high)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(BEFORE, AFTER, id="slower"),
        pytest.param(AFTER, BEFORE, id="faster"),
        pytest.param((3.1, 2.7), (2.9, 3.3), id="two replicates"),
        pytest.param((10.0, 10.1, 9.9), (10.0, 14.0, 7.0, 10.5, 9.0), id="other sizes and variances"),
        pytest.param((1e-3, 1.1e-3), (1e6, 1.1e6), id="far apart"),
    ],
)
def test_the_interval_is_welchs_on_logarithms(
    before: tuple[float, ...], after: tuple[float, ...], confidence: float
) -> None:
    change = relative_change(before, after, confidence=confidence)
    assert (change.low, change.high) == pytest.approx(welch(before, after, confidence), rel=1e-9)
    assert change.confidence == confidence


def test_the_estimate_is_the_ratio_of_geometric_means() -> None:
    change = relative_change((1.0, 4.0), (3.0, 12.0))
    assert change.estimate == pytest.approx(2.0)


def test_a_known_change_is_estimated_with_its_sign() -> None:
    assert relative_change((100.0, 100.0), (108.0, 108.0)).estimate == pytest.approx(0.08)
    assert relative_change((100.0, 100.0), (92.0, 92.0)).estimate == pytest.approx(-0.08)


def test_slower_and_faster_are_symmetric() -> None:
    there, back = relative_change(BEFORE, AFTER), relative_change(AFTER, BEFORE)
    assert there.low is not None
    assert there.high is not None
    assert (back.estimate, back.low, back.high) == pytest.approx(
        (1 / (1 + there.estimate) - 1, 1 / (1 + there.high) - 1, 1 / (1 + there.low) - 1)
    )


def test_units_do_not_matter() -> None:
    in_ns = relative_change([1000 * x for x in BEFORE], [1000 * x for x in AFTER])
    in_us = relative_change(BEFORE, AFTER)
    assert (in_ns.estimate, in_ns.low, in_ns.high) == pytest.approx((in_us.estimate, in_us.low, in_us.high))


def test_the_order_of_the_replicates_does_not_matter() -> None:
    assert relative_change(BEFORE[::-1], AFTER[::-1]) == relative_change(BEFORE, AFTER)


def test_without_any_spread_the_interval_is_a_point() -> None:
    change = relative_change((2.0, 2.0, 2.0), (2.5, 2.5))
    assert change.low == change.high == change.estimate == pytest.approx(0.25)


def test_spread_on_one_side_alone_is_enough_for_an_interval() -> None:
    change = relative_change((2.0, 2.0), (2.0, 2.2))
    assert change.low is not None
    assert change.high is not None
    assert change.low < change.estimate < change.high


@pytest.mark.parametrize(("before", "after"), [((2.0,), AFTER), (BEFORE, (2.0,)), ((2.0,), (2.5,))])
def test_one_replicate_gives_an_estimate_and_no_interval(before: tuple[float, ...], after: tuple[float, ...]) -> None:
    change = relative_change(before, after)
    assert math.isfinite(change.estimate)
    assert (change.low, change.high) == (None, None)


def test_a_higher_confidence_is_a_wider_interval() -> None:
    wide, narrow = relative_change(BEFORE, AFTER, confidence=0.99), relative_change(BEFORE, AFTER, confidence=0.9)
    assert wide.low is not None
    assert narrow.low is not None
    assert wide.high is not None
    assert narrow.high is not None
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    ("before_size", "after_size", "before_spread", "after_spread"),
    [(4, 4, 0.005, 0.005), (4, 4, 0.002, 0.02), (8, 4, 0.02, 0.005)],
)
def test_the_95_percent_interval_covers_the_truth_95_times_in_100(
    before_size: int, after_size: int, before_spread: float, after_spread: float
) -> None:
    generator = random.Random(20240607)
    truth, repeats = 0.03, 3000
    covered = 0
    for _ in range(repeats):
        before = [200 * math.exp(generator.gauss(0, before_spread)) for _ in range(before_size)]
        after = [200 * (1 + truth) * math.exp(generator.gauss(0, after_spread)) for _ in range(after_size)]
        change = relative_change(before, after)
        covered += _covers(change, truth)
    # Four standard errors of the count itself, and 1 % for Welch's approximation of the degrees of freedom.
    assert covered / repeats == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / repeats) + 0.01)


def _covers(change: RelativeChange, truth: float) -> bool:
    assert change.low is not None
    assert change.high is not None
    return change.low <= truth <= change.high
