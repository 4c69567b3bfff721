"""How long to measure: how many calls, and how many replicates."""

from __future__ import annotations

import math

import pytest

from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.settings import Settings

STEADY = (100.0, 100.01, 99.99, 100.0)  # a standard error of 0.004 us
WILD = (100.0, 103.0, 98.0, 101.0)


@pytest.fixture
def settings() -> Settings:
    return Settings(replicates=4, most_replicates=10, precision=0.0004, precision_us=0.006, budget_seconds=1.5)


# -- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call_us", "iterations"), [(0.0, 40), (100.0, 40), (50_000.0, 20), (1e6, 3), (60e6, 3)], ids=str
)
def test_slow_calls_are_made_less_often_and_never_less_than_three_times(call_us: float, iterations: int) -> None:
    assert Settings(iterations=40, seconds=1.0).iterations_for(call_us) == iterations


@pytest.mark.parametrize(("call_us", "calls"), [(100.0, 7), (50_000.0, 7), (0.999e6, 2), (1e6, 1), (60e6, 1)], ids=str)
def test_half_as_many_calls_come_before_those_that_count_and_one_of_a_slow_call(call_us: float, calls: int) -> None:
    assert Settings(iterations=12, seconds=1.0).warm_up_calls_for(call_us) == calls


def test_the_host_may_be_timed_more_often() -> None:
    settings = Settings(iterations=40, host_iterations=100, seconds=1.0)
    assert settings.host_iterations_for(100.0) == 100
    assert settings.host_iterations_for(50_000.0) == 20
    assert settings.host_iterations_for(60e6) == 3


def test_the_latency_has_a_number_of_its_own() -> None:
    settings = Settings(iterations=40, latency_iterations=10, seconds=1.0)
    assert settings.latency_iterations_for(100.0) == 10
    assert settings.latency_iterations_for(200_000.0) == 5
    assert settings.latency_iterations_for(60e6) == 3


def test_a_device_that_nothing_limits_changes_nothing() -> None:
    assert Settings().limited(None, math.inf) == Settings()


def test_a_device_may_limit_how_often_and_for_how_long_it_is_kept_busy() -> None:
    limited = Settings(replicates=12, most_replicates=32).limited(4, 0.01)
    assert (limited.replicates, limited.most_replicates, limited.busy_seconds) == (4, 4, 0.01)


def test_replicates_that_were_asked_for_are_made_whatever_a_device_allows() -> None:
    limited = Settings.of(20).limited(4, 0.01)
    assert (limited.replicates, limited.most_replicates, limited.busy_seconds) == (20, 20, 0.01)


def test_what_is_less_than_a_device_allows_stays() -> None:
    few = Settings(replicates=2, most_replicates=3, busy_seconds=0.001)
    assert few.limited(4, 0.01) == few


@pytest.mark.parametrize(
    ("call_us", "session", "host"),
    [(20.0, 12, 30), (300.0, 12, 30), (500.0, 12, 20), (1000.0, 10, 10), (2500.0, 8, 8), (5e4, 8, 8), (4e5, 3, 3)],
    ids=str,
)
def test_of_a_heavy_call_on_a_gpu_few_are_made_in_a_row(call_us: float, session: int, host: int) -> None:
    settings = Settings().limited(None, CudaDevice.most_busy_seconds)
    assert (settings.iterations_for(call_us), settings.host_iterations_for(call_us)) == (session, host)
    assert settings.latency_iterations_for(call_us) == Settings().latency_iterations_for(call_us)


# -- replicates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(4))
def test_fewer_than_the_least_are_never_enough_however_steady_or_slow(settings: Settings, count: int) -> None:
    assert not settings.is_enough(STEADY[:count], seconds=1000.0)


def test_steady_replicates_are_enough_at_once(settings: Settings) -> None:
    assert settings.is_enough(STEADY, seconds=0.1)


def test_wild_replicates_are_not_enough(settings: Settings) -> None:
    assert not settings.is_enough(WILD, seconds=0.1)


@pytest.mark.parametrize(("count", "enough"), [(9, False), (10, True), (11, True)])
def test_the_most_is_the_most_however_wild(settings: Settings, count: int, enough: bool) -> None:
    assert settings.is_enough((WILD * 3)[:count], seconds=0.1) is enough


@pytest.mark.parametrize(("seconds", "enough"), [(1.19, False), (1.21, True)])  # a fifth of 0.3 s more: 1.5
def test_no_replicate_is_added_that_would_not_fit_into_the_budget(
    settings: Settings, seconds: float, enough: bool
) -> None:
    assert settings.is_enough(WILD, seconds=seconds) is enough


@pytest.mark.parametrize(("factor", "enough"), [(0.99, True), (1.01, False)])
def test_the_standard_error_is_held_against_a_share_of_the_time(
    settings: Settings, factor: float, enough: bool
) -> None:
    # Two above and two below: the deviation is d * sqrt(4 / 3), the standard error half of that.
    distance = factor * settings.precision * 100.0 * 3**0.5
    assert settings.is_enough((100 - distance, 100 + distance) * 2, seconds=0.1) is enough


@pytest.mark.parametrize(("factor", "enough"), [(0.99, True), (1.01, False)])
def test_a_short_time_is_held_against_what_the_profiler_can_resolve(
    settings: Settings, factor: float, enough: bool
) -> None:
    distance = factor * settings.precision_us * 3**0.5
    assert settings.is_enough((2 - distance, 2 + distance) * 2, seconds=0.1) is enough


def test_a_number_that_was_asked_for_is_made_whatever_it_takes() -> None:
    settings = Settings.of(20)
    assert not settings.is_enough([100.0] * 19, seconds=1000.0)
    assert settings.is_enough([100.0] * 20, seconds=1000.0)
    assert settings.latency_replicates == 20
    assert Settings.of(None) == Settings()


def test_a_call_of_seconds_is_repeated_less() -> None:
    settings = Settings()
    assert settings.for_call(999_000.0) is settings
    slow = settings.for_call(6e6)
    assert (slow.replicates, slow.most_replicates, slow.latency_replicates) == (2, 2, 2)
    assert slow.iterations == settings.iterations
    assert slow.is_enough([6e6, 6.1e6], 60.0)
    assert not slow.is_enough([6e6], 30.0)


def test_a_number_that_was_asked_for_is_made_however_slow_a_call_is() -> None:
    settings = Settings.of(5)
    assert settings.for_call(6e6) is settings
