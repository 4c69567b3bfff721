"""Change points: steps and drifts are found, noise and a bad night are not. All random numbers come from fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from kernelgauge.history.changepoints import LEAST_NIGHTS, segment_series


def nights(seed: int, count: int, noise: float) -> np.ndarray:
    """Logarithms of times."""
    return np.log(200) + noise * np.random.default_rng(seed).normal(size=count)


def stepped(seed: int, step: float, noise: float, *, at: int = 60, count: int = 120) -> np.ndarray:
    return nights(seed, count, noise) + np.log1p(step) * (np.arange(count) >= at)


def steps(*series: np.ndarray) -> list[list[int]]:
    return [[segment.start for segment in segments if segment.jumps] for segments in segment_series(series)]


@pytest.mark.parametrize(("step", "noise"), [(0.005, 0.0015), (0.01, 0.003), (0.05, 0.015), (-0.01, 0.003)])
def test_step_of_three_times_noise_is_found(step: float, noise: float) -> None:
    found = steps(*(stepped(seed, step, noise) for seed in range(50)))
    assert sum(len(each) == 1 and abs(each[0] - 60) <= 1 for each in found) >= 45


@pytest.mark.parametrize("count", [6, 8, 10, 12, 20, 30, 100, 365])
@pytest.mark.parametrize("noise", [0.0001, 0.002, 0.03])
def test_noise_has_change_in_one_of_hundred_at_most(count: int, noise: float) -> None:
    found = segment_series([nights(seed, count, noise) for seed in range(1000)])
    assert sum(len(each) > 1 or each[0].drifts for each in found) <= 10


@pytest.mark.parametrize("outlier", [0.5, 0.95, 1.05, 1.3, 10.0])
@pytest.mark.parametrize("at", [0, 1, 2, 30, 57, 58, 59])
@pytest.mark.parametrize("bad_nights", [1, 2])
def test_one_or_two_bad_nights_are_no_change(outlier: float, at: int, bad_nights: int) -> None:
    series = [nights(seed, 60, 0.002) for seed in range(10)]
    for each in series:
        each[at : at + bad_nights] += np.log(outlier)
    assert steps(*series) == [[]] * 10


def test_new_level_is_found_in_third_night() -> None:
    series = [stepped(seed, 0.05, 0.002, at=60 - LEAST_NIGHTS, count=60) for seed in range(20)]
    assert steps(*series) == [[60 - LEAST_NIGHTS]] * 20


def test_several_steps_with_bad_night_are_found() -> None:
    values = nights(3, 200, 0.002)
    values[50:120] += 0.02
    values[120:] -= 0.01
    values[80] += 0.34
    assert steps(values) == [[50, 120]]


@pytest.mark.parametrize(("bad_night", "first"), [(30, 30), (29, 29)])
def test_bad_night_at_step_joins_nearer_level(bad_night: int, first: int) -> None:
    values = stepped(2, 0.05, 0.002, at=30, count=60)
    values[bad_night] += 0.04
    assert steps(values) == [[first]]


def test_step_is_same_at_every_scale() -> None:
    values = stepped(1, 0.02, 0.002)
    assert steps(values, values - np.log(1e3), values + np.log(1e6)) == [[60]] * 3


def test_equal_values_have_no_step_and_one_rounded_step() -> None:
    assert steps(np.log([200.0] * 365), np.log([200.0] * 30 + [202.0] * 30)) == [[], [30]]


@pytest.mark.parametrize("count", range(1, 2 * LEAST_NIGHTS))
def test_too_few_nights_have_no_step(count: int) -> None:
    assert steps(np.log([100.0, 200.0, 300.0, 400.0, 500.0][:count])) == [[]]


def test_series_cut_together_or_alone_are_the_same() -> None:
    series = [stepped(seed, 0.005 * (seed % 4), 0.003, at=5 + seed, count=70 + seed) for seed in range(20)]
    assert segment_series(series) == [segment_series([each])[0] for each in series]


@pytest.mark.parametrize("slope", [0.001, -0.001, 0.0002])
def test_ramp_between_levels_is_one_drift_without_step(slope: float) -> None:
    for seed in range(10):
        values = nights(seed, 200, 0.0006) + slope * np.clip(np.arange(200) - 100, 0, 40)
        before, drift, after = segment_series([values])[0]
        assert [before.drifts, drift.drifts, after.drifts] == [False, True, False]
        assert not any(segment.jumps for segment in (before, drift, after))
        assert after.first - before.first == pytest.approx(40 * slope, rel=0.1)


def test_drift_over_all_nights_is_one_segment() -> None:
    (drift,) = segment_series([nights(0, 365, 0.0006) + 0.0001 * np.arange(365)])[0]
    assert (drift.start, drift.end, drift.drifts) == (0, 365, True)


def test_step_in_drift_is_both() -> None:
    values = nights(0, 100, 0.0006) + 0.001 * np.arange(100)
    values[50:] += 0.02
    first, second = segment_series([values])[0]
    assert (first.drifts, second.drifts, second.start, second.jumps) == (True, True, 50, True)
