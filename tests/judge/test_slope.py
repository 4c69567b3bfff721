"""How a time of the host follows its control: fitted to the processes of a baseline."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgauge.judge.slope import DISPATCH_SLOPE, LATENCY_SLOPE, SlopePrior, fitted_slope

VARIANCE = 0.01**2
PRIOR = SlopePrior(1.08, 0.12)


def points(slope: float, *speeds: float, at: float = 4.0) -> list[tuple[float, float]]:
    return [(math.log(speed), at + slope * math.log(speed)) for speed in speeds]


@pytest.mark.parametrize("slope", [0.7, 1.0, 1.4])
def test_processes_at_several_speeds_tell_it(slope: float) -> None:
    found = fitted_slope([points(slope, 10, 12, 15, 20, 25)], VARIANCE, PRIOR)
    assert found.value == pytest.approx(slope, abs=0.01)
    assert found.variance < PRIOR.deviation**2 / 50
    assert 0.98 < found.fitted < 1
    assert found.degrees == PRIOR.degrees + 4


def test_gpus_of_other_speeds_each_tell_it_about_their_own_mean() -> None:
    faster = points(1.2, 10, 20, at=3.0)
    found = fitted_slope([points(1.2, 10, 20, at=4.0), faster], VARIANCE, PRIOR)
    assert found.value == pytest.approx(1.2, abs=0.01)


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([points(3.0, 10)], id="one process"),
        pytest.param([points(3.0, 10, 10, 10)], id="one speed"),
        pytest.param([points(3.0, 10), points(3.0, 20)], id="one process of each GPU"),
    ],
)
def test_points_that_do_not_tell_leave_what_is_expected(groups: list[list[tuple[float, float]]]) -> None:
    assert fitted_slope(groups, VARIANCE, PRIOR) == PRIOR.expected()


@given(st.floats(-5, 5), st.floats(0.001, 1.0), st.sampled_from([PRIOR, DISPATCH_SLOPE, LATENCY_SLOPE]))
def test_it_lies_between_what_is_expected_and_what_the_points_say(
    slope: float, deviation: float, prior: SlopePrior
) -> None:
    found = fitted_slope([points(slope, 10, 11, 12)], deviation**2, prior)
    low, high = sorted((slope, prior.value))
    assert low - 1e-9 <= found.value <= high + 1e-9
    assert 0 < found.variance <= prior.deviation**2


def test_the_noisier_the_points_the_less_they_count() -> None:
    values = [fitted_slope([points(2.0, 10, 12, 14)], deviation**2, PRIOR).value for deviation in (0.01, 0.05, 0.5)]
    assert values[0] > values[1] > values[2] > PRIOR.value


def test_however_well_one_host_tells_another_may_differ() -> None:
    prior = SlopePrior(0.85, 0.35, between_hosts=0.3)
    found = fitted_slope([points(0.5, *range(10, 40))], 1e-8, prior)
    assert found.value == pytest.approx(0.5, abs=1e-3)
    assert math.sqrt(found.variance) == pytest.approx(0.3, abs=1e-3)
    assert found.degrees == prior.degrees
