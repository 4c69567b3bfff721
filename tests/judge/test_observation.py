"""What a process saw of a timer, in a few numbers."""

from __future__ import annotations

import math

import pytest

from kernelgauge.judge import observe
from kernelgauge.judge.observation import host_share
from kernelgauge.run import Sample, Timer
from tests.builders import sample


def test_replicates_are_summed_up_as_logarithms() -> None:
    observed = observe(sample((2.0, 8.0)))
    assert observed.mean_us == pytest.approx(4.0)
    assert observed.spread == pytest.approx(math.log(4) / math.sqrt(2))
    assert (observed.replicates, observed.iterations, observed.control_us) == (2, 40, None)


def test_units_do_not_matter_to_the_spread() -> None:
    assert observe(sample((2000.0, 8000.0))).spread == pytest.approx(observe(sample((2.0, 8.0))).spread)


def test_the_order_of_the_replicates_does_not_matter() -> None:
    forth, back = observe(sample((1.0, 2.0, 4.0))), observe(sample((4.0, 2.0, 1.0)))
    assert (forth.mean_us, forth.spread) == pytest.approx((back.mean_us, back.spread))


def test_of_one_replicate_no_spread_is_known() -> None:
    assert observe(sample((2.0,))).spread is None


@pytest.mark.parametrize(
    ("controls", "kept"),
    [
        ((14.0,), 1),
        ((14.0, 30.0), 2),
        ((14.0, 30.0, 31.0), 3),  # three at least, however slow the host was
        ((14.0, 14.5, 15.0, 15.1, 15.2, 25.0), 4),  # within 8 % of 14.0: up to 15.12
        ((14.0,) * 9, 9),
    ],
)
def test_of_the_replicates_those_on_a_host_as_fast_as_the_fastest_are_kept(
    controls: tuple[float, ...], kept: int
) -> None:
    times = (50.0,) * len(controls)
    assert observe(Sample(times, 40, controls)).replicates == kept
    assert observe(Sample(times, 40)).replicates == len(controls)


def test_the_replicates_on_the_fastest_host_are_kept_whatever_they_took() -> None:
    times, controls = (90.0, 50.0, 80.0, 51.0, 70.0, 40.0), (14.0, 25.0, 14.0, 25.0, 14.0, 25.0)
    observed = observe(Sample(times, 40, controls))
    assert observed.mean_us == pytest.approx((90 * 80 * 70) ** (1 / 3))
    assert observed.control_us == pytest.approx(14.0)


@pytest.mark.parametrize(("share", "spread"), [(1.0, 0.0), (0.0, math.log(2) / math.sqrt(2))])
def test_the_spread_is_at_equal_speed_of_the_host(share: float, spread: float) -> None:
    followed = Sample((50.0, 100.0), 40, (14.0, 28.0))
    assert observe(followed, host_share=share).spread == pytest.approx(spread, abs=1e-12)


@pytest.mark.parametrize(
    ("timer", "time_us", "device_time_us", "share"),
    [
        (Timer.DEVICE, 200.0, 200.0, 0.0),
        (Timer.DEVICE, 200.0, 0.0, 0.0),
        (Timer.HOST, 50.0, 200.0, 1.0),
        (Timer.END_TO_END, 300.0, 225.0, 0.25),
        (Timer.END_TO_END, 300.0, 0.0, 1.0),
        (Timer.END_TO_END, 200.0, 205.0, 0.0),  # what is flushed between the kernels, say
    ],
)
def test_of_a_latency_the_host_has_what_the_device_does_not_fill(
    timer: Timer, time_us: float, device_time_us: float, share: float
) -> None:
    assert host_share(timer, time_us, device_time_us) == pytest.approx(share)
