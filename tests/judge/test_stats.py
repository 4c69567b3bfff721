"""The interval of a ratio: against scipy's own Welch test, and by how often it covers the truth."""

from __future__ import annotations

import math
from statistics import fmean, variance

import numpy as np
import pytest
from scipy import stats

from kernelgauge.judge import RelativeChange
from kernelgauge.judge.stats import NO_INTERVAL, Source, change, quantile, standard_error

ONE, OTHER = Source(4e-6, 5.0), Source(1e-6, 12.0)


def of_samples(before: tuple[float, ...], after: tuple[float, ...], confidence: float = 0.95) -> RelativeChange:
    """Two samples as two sources: the mean of each."""
    logs = [[math.log(value) for value in sample] for sample in (before, after)]
    noise = [Source(variance(sample) / len(sample), len(sample) - 1) for sample in logs]
    return change(fmean(logs[1]) - fmean(logs[0]), noise, confidence=confidence)


def bounds(measured: RelativeChange) -> tuple[float, float]:
    assert measured.low is not None
    assert measured.high is not None
    return measured.low, measured.high


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((205.0, 205.3, 204.8, 205.1), (221.9, 221.5, 222.4, 221.6), id="slower"),
        pytest.param((3.1, 2.7), (2.9, 3.3), id="two replicates"),
        pytest.param((10.0, 10.1, 9.9), (10.0, 14.0, 7.0, 10.5, 9.0), id="other sizes and variances"),
    ],
)
def test_the_interval_of_two_sources_is_welchs_on_logarithms(
    before: tuple[float, ...], after: tuple[float, ...], confidence: float
) -> None:
    test = stats.ttest_ind([math.log(x) for x in after], [math.log(x) for x in before], equal_var=False)
    welch = test.confidence_interval(confidence)
    measured = of_samples(before, after, confidence)
    assert bounds(measured) == pytest.approx((math.expm1(welch.low), math.expm1(welch.high)), rel=1e-9)
    assert measured.confidence == confidence


def test_an_interval_beyond_all_numbers_is_none() -> None:
    measured = change(0.1, [Source(400.0, 1.0)], confidence=0.999)
    assert (measured.low, measured.high) == (None, None)
    assert measured.estimate == pytest.approx(math.expm1(0.1))


def test_variances_of_independent_sources_add() -> None:
    assert standard_error([ONE, OTHER]) == pytest.approx(math.sqrt(5e-6))


def test_a_single_source_has_students_quantile_at_its_own_degrees() -> None:
    assert quantile([ONE], 0.95) == pytest.approx(stats.t.ppf(0.975, 5))


def test_the_degrees_of_two_sources_lie_between_the_least_and_their_sum() -> None:
    two = quantile([ONE, OTHER], 0.99)
    assert stats.t.ppf(0.995, 17) < two < stats.t.ppf(0.995, 5)


def test_a_difference_of_logarithms_is_a_ratio() -> None:
    assert change(math.log(1.08), [ONE], confidence=0.95).estimate == pytest.approx(0.08)
    assert change(math.log(0.92), [ONE], confidence=0.95).estimate == pytest.approx(-0.08)


def test_slower_and_faster_are_symmetric() -> None:
    there, back = (change(sign * 0.05, [ONE, OTHER], confidence=0.95) for sign in (1, -1))
    low, high = bounds(there)
    assert bounds(back) == pytest.approx((1 / (1 + high) - 1, 1 / (1 + low) - 1))


def test_without_noise_the_interval_is_a_point() -> None:
    measured = change(math.log(1.25), [Source(0.0, 5.0)], confidence=0.95)
    assert measured.low == measured.high == measured.estimate == pytest.approx(0.25)


def test_where_nothing_is_known_of_the_noise_there_is_an_estimate_and_no_interval() -> None:
    assert change(0.0, NO_INTERVAL, confidence=0.95) == RelativeChange(0.0, None, None, 0.95)
    assert change(0.0, [ONE, *NO_INTERVAL], confidence=0.95).low is None


def test_a_higher_confidence_is_a_wider_interval() -> None:
    (wide_low, wide_high), (low, high) = (bounds(change(0.01, [ONE], confidence=c)) for c in (0.99, 0.9))
    assert wide_low < low < high < wide_high


@pytest.mark.parametrize(
    ("sizes", "spreads"), [((4, 4), (0.005, 0.005)), ((4, 4), (0.002, 0.02)), ((8, 4), (0.02, 0.005))]
)
def test_the_95_percent_interval_covers_the_truth_95_times_in_100(
    sizes: tuple[int, int], spreads: tuple[float, float]
) -> None:
    generator = np.random.default_rng(20240607)
    truth, repeats = 0.03, 3000
    covered = 0
    for _ in range(repeats):
        before, after = (generator.normal(0, spread, size) for size, spread in zip(sizes, spreads, strict=True))
        noise = [Source(float(logs.var(ddof=1)) / len(logs), len(logs) - 1) for logs in (before, after)]
        low, high = bounds(change(math.log1p(truth) + after.mean() - before.mean(), noise, confidence=0.95))
        covered += low <= truth <= high
    # Four standard errors of the count itself, and 1 % for the approximation of the degrees of freedom.
    assert covered / repeats == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / repeats) + 0.01)
