"""How long to measure: how many calls, and how many replicates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.settings import Settings

CALLS = Settings(iterations=40, host_iterations=100, latency_iterations=10, seconds=1.0)


@pytest.mark.parametrize(
    ("call_us", "calls", "warm_up"),
    [(100.0, (40, 100, 10), 21), (5e4, (20, 20, 10), 11), (2e5, (5, 5, 5), 3), (1e6, (3, 3, 3), 1)],
)
def test_slow_calls_are_fewer_and_three_at_least(call_us: float, calls: tuple[int, ...], warm_up: int) -> None:
    settings = (CALLS.iterations_for, CALLS.host_iterations_for, CALLS.latency_iterations_for)
    assert tuple(each(call_us) for each in settings) == calls
    assert CALLS.warm_up_calls_for(call_us) == warm_up
    heavy = CALLS.limited(None, CudaDevice.most_busy_seconds)  # few in a row on a GPU
    assert heavy.iterations_for(call_us) == (40 if call_us == 100.0 else min(8, calls[0]))
    assert heavy.latency_iterations_for(call_us) == calls[2]


@pytest.mark.parametrize(("factor", "is_enough"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize(("mean", "precision_us"), [(100.0, 0.04), (2.0, 0.006)], ids=["share", "resolution"])
def test_standard_error_decides_what_is_steady(
    mean: float, precision_us: float, factor: float, is_enough: bool
) -> None:
    settings = Settings(replicates=4, most_replicates=10, precision=0.0004, precision_us=0.006, budget_seconds=1.5)
    # Two above and two below: the deviation is d * sqrt(4 / 3), the standard error half of that.
    distance = factor * precision_us * math.sqrt(3)
    times = (mean - distance, mean + distance) * 2
    assert settings.is_enough(times, seconds=0.1) is is_enough
    assert [settings.is_enough(times[:count], seconds=1000.0) for count in range(4)] == [False] * 4
    assert settings.is_enough((90.0, 110.0) * 2, seconds=1.21)  # a quarter more would be more than the budget


def test_replicates_asked_for_are_made_at_any_cost() -> None:
    settings = Settings.of(20)
    assert not settings.is_enough([100.0] * 19, seconds=1000.0)
    assert settings.is_enough([100.0] * 20, seconds=1000.0)
    assert settings.for_call(6e6) is settings
    limits = [
        (each.replicates, each.most_replicates) for each in (settings.limited(4, 1.0), Settings().limited(4, 1.0))
    ]
    assert limits == [(20, 20), (4, 4)]
    slow = Settings().for_call(6e6)
    assert slow == replace(Settings(), replicates=2, most_replicates=2, latency_replicates=2)
