"""How long to measure: how many calls, and how many replicates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.settings import Settings

STEADY = (100.0, 100.01, 99.99, 100.0)  # a standard error of 0.004 us
WILD = (100.0, 103.0, 98.0, 101.0)
SETTINGS = Settings(replicates=4, most_replicates=10, precision=0.0004, precision_us=0.006, budget_seconds=1.5)
CALLS = Settings(iterations=40, host_iterations=100, latency_iterations=10, seconds=1.0)


@pytest.mark.parametrize(
    ("call_us", "device", "host", "latency"),
    [(0.0, 40, 100, 10), (100.0, 40, 100, 10), (5e4, 20, 20, 10), (2e5, 5, 5, 5), (1e6, 3, 3, 3), (60e6, 3, 3, 3)],
)
def test_slow_calls_are_fewer_and_three_at_least(call_us: float, device: int, host: int, latency: int) -> None:
    assert CALLS.iterations_for(call_us) == device
    assert CALLS.host_iterations_for(call_us) == host
    assert CALLS.latency_iterations_for(call_us) == latency


@pytest.mark.parametrize(
    ("call_us", "device", "host"),
    [(20.0, 12, 30), (300.0, 12, 30), (500.0, 12, 20), (1000.0, 10, 10), (2500.0, 8, 8), (5e4, 8, 8), (4e5, 3, 3)],
)
def test_heavy_calls_on_a_gpu_are_few_in_a_row(call_us: float, device: int, host: int) -> None:
    settings = Settings().limited(None, CudaDevice.most_busy_seconds)
    assert (settings.iterations_for(call_us), settings.host_iterations_for(call_us)) == (device, host)
    assert settings.latency_iterations_for(call_us) == Settings().latency_iterations_for(call_us)


@pytest.mark.parametrize(("call_us", "calls"), [(100.0, 7), (50_000.0, 7), (0.999e6, 2), (1e6, 1), (60e6, 1)])
def test_warm_up_is_half_as_many_calls_again(call_us: float, calls: int) -> None:
    assert Settings(iterations=12, seconds=1.0).warm_up_calls_for(call_us) == calls


@pytest.mark.parametrize(
    ("settings", "limited"),
    [
        (Settings(replicates=12, most_replicates=32), (4, 4, 0.01)),
        (Settings(replicates=2, most_replicates=3, busy_seconds=0.001), (2, 3, 0.001)),
        (Settings.of(20), (20, 20, 0.01)),  # asked for
    ],
)
def test_device_limits_replicates_and_busy_time(settings: Settings, limited: tuple[int, int, float]) -> None:
    result = settings.limited(4, 0.01)
    assert (result.replicates, result.most_replicates, result.busy_seconds) == limited
    assert settings.limited(None, math.inf) == settings


@pytest.mark.parametrize(
    ("times_us", "seconds", "is_enough"),
    [
        *((STEADY[:count], 1000.0, False) for count in range(4)),
        (STEADY, 0.1, True),
        (WILD, 0.1, False),
        ((WILD * 3)[:9], 0.1, False),
        ((WILD * 3)[:10], 0.1, True),
        (WILD * 3, 0.1, True),
        (WILD, 1.19, False),  # a quarter more would be 1.49 s
        (WILD, 1.21, True),
    ],
)
def test_replicates_are_enough_if_steady_or_spent(times_us: tuple[float, ...], seconds: float, is_enough: bool) -> None:
    assert SETTINGS.is_enough(times_us, seconds) is is_enough


@pytest.mark.parametrize(("factor", "is_enough"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize(("mean", "precision_us"), [(100.0, 0.04), (2.0, 0.006)], ids=["share", "resolution"])
def test_standard_error_decides_what_is_steady(
    mean: float, precision_us: float, factor: float, is_enough: bool
) -> None:
    # Two above and two below: the deviation is d * sqrt(4 / 3), the standard error half of that.
    distance = factor * precision_us * math.sqrt(3)
    assert SETTINGS.is_enough((mean - distance, mean + distance) * 2, seconds=0.1) is is_enough


def test_replicates_asked_for_are_made_at_any_cost() -> None:
    settings = Settings.of(20)
    assert not settings.is_enough([100.0] * 19, seconds=1000.0)
    assert settings.is_enough([100.0] * 20, seconds=1000.0)
    assert settings.latency_replicates == 20
    assert settings.for_call(6e6) is settings
    assert Settings.of(None) == Settings()


def test_replicates_of_slow_calls_are_two() -> None:
    settings = Settings()
    assert settings.for_call(999_000.0) is settings
    slow = settings.for_call(6e6)
    assert slow == replace(settings, replicates=2, most_replicates=2, latency_replicates=2)
    assert (slow.is_enough([6e6], 30.0), slow.is_enough([6e6, 6.1e6], 60.0)) == (False, True)
