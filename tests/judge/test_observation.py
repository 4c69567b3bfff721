"""The replicates of one process, summed up."""

from __future__ import annotations

import math

import pytest

from kernelgauge.judge import observe
from kernelgauge.run import Sample
from tests.builders import sample


def test_observe_takes_the_geometric_mean() -> None:
    observed = observe(sample((2.0, 8.0)))
    assert observed.mean_us == pytest.approx(4.0)
    assert observed.spread == pytest.approx(math.log(4) / math.sqrt(2))
    assert (observed.replicates, observed.iterations, observed.control_us) == (2, 40, None)
    assert observe(sample((2.0,))).spread is None


@pytest.mark.parametrize(
    ("controls", "kept"),
    [
        ((14.0,), 1),
        ((14.0, 30.0), 2),  # one alone shows no spread
        ((14.0, 14.5, 30.0), 2),
        ((14.0, 14.5, 15.0, 15.1, 15.2, 25.0), 4),  # within 8 % of 14.0: up to 15.12
        ((14.0,) * 9, 9),
    ],
)
def test_observe_keeps_replicates_of_the_fast_host(controls: tuple[float, ...], kept: int) -> None:
    times = (50.0,) * len(controls)
    assert observe(Sample(times, 40, controls)).replicates == kept
    assert observe(Sample(times, 40)).replicates == len(controls)


def test_observe_by_host_takes_the_spread_of_the_ratio() -> None:
    followed = Sample((50.0, 52.0, 51.0), 40, (10.0, 10.4, 10.2))
    assert observe(followed, is_by_host=True).spread == pytest.approx(0.0, abs=1e-12)
    assert observe(followed).spread == pytest.approx(0.0196, abs=1e-3)
