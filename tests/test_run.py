"""A run, its samples and what sums them up: plain data that cannot hold nonsense."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from kernelgauge.run import Sample, Statistic, observe, summarize

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)


@pytest.mark.parametrize("value", [0.0, -1.0, 9e-4, 1.1e12, 1e308, math.nan, math.inf])
def test_sample_with_impossible_duration_raises(value: float) -> None:
    for replicates, controls in (((1.0, value), ()), ((1.0, 2.0), (14.0, value))):
        with pytest.raises(ValueError, match=r"durations are positive and finite, 0\.001 to 1e\+12 us"):
            Sample(replicates, 40, controls)
    assert Sample((0.001, 1e12), 40).replicates_us == (0.001, 1e12)


def test_sample_with_unequal_counts_raises() -> None:
    with pytest.raises(ValueError, match="at least one replicate"):
        Sample((), 40)
    for controls in ((14.0,), (14.0,) * 3):
        with pytest.raises(ValueError, match=f"{len(controls)} controls for 2 replicates"):
            Sample((1.0, 2.0), 40, controls)


@pytest.mark.parametrize(
    ("durations", "statistic", "expected"),
    [
        ([1.0, 10.0, 11.0, 90.0], "interquartile mean", 10.5),
        ([90.0, 12.0, 10.0, 1.0, 11.0, 13.0, 2.0, 80.0], "interquartile mean", 11.5),
        ([2.720] * 25 + [2.752] * 15, "interquartile mean", 2.728),  # between two steps of the clock
        ([float(value) for value in range(100, -1, -1)], "lower decile", 10.0),
        *(([7.0] * count, statistic, 7.0) for count in (1, 2, 3) for statistic in STATISTICS),
    ],
)
def test_summarize_gives_the_statistic(durations: list[float], statistic: Statistic, expected: float) -> None:
    assert summarize(durations, statistic) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("controls", "kept"),
    [
        ((14.0,), 1),
        ((14.0, 30.0), 2),  # one alone shows no spread
        ((14.0, 14.5, 30.0), 2),
        ((14.0, 14.5, 15.0, 15.1, 15.2, 25.0), 4),  # within 8 % of 14.0: up to 15.12
    ],
)
def test_observe_keeps_replicates_of_the_fast_host(controls: tuple[float, ...], kept: int) -> None:
    times = (50.0,) * len(controls)
    assert observe(Sample(times, 40, controls)).replicates == kept
    assert observe(Sample(times, 40)).replicates == len(controls)
