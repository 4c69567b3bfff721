"""Two sets of processes of one machine: false alarms and detections of the rule, simulated."""

from __future__ import annotations

import random

import pytest

from kernelgauge.judge import Status, compare, judge_time
from kernelgauge.run import Timer
from tests.builders import H200, calibrated, run

COMPARISONS = 3 * 21  # three looks at a suite of seven workloads with three times


def share_of(status: Status, *, noise: float, slower: float, processes: int, trials: int = 150) -> float:
    """How often two sets of processes, whose means spread by `noise`, end with a status."""
    rng = random.Random(20261123)

    def one(center: float) -> object:
        mean = center * (1 + rng.gauss(0, noise))
        return run(device=[mean * (1 + 0.0005 * rng.gauss(0, 1)) for _ in range(8)], host=None, end_to_end=None)

    found = 0
    for _ in range(trials):
        before, after = ([one(center) for _ in range(processes)] for center in (205.0, 205.0 * (1 + slower)))
        first, *more = after
        verdict = judge_time(
            Timer.DEVICE, first, calibrated(before), compare(H200, H200), comparisons=COMPARISONS, more=more
        )  # type: ignore[arg-type]
        found += verdict.status is status
    return found / trials


@pytest.mark.parametrize("noise", [0.001, 0.003, 0.01])
def test_unchanged_code_is_not_slower_however_noisy_the_processes(noise: float) -> None:
    assert share_of(Status.REGRESSED, noise=noise, slower=0.0, processes=3) <= 0.01


@pytest.mark.parametrize(("processes", "slower", "least"), [(3, 0.01, 0.95), (12, 0.005, 0.95)])
def test_slowdown_is_seen_at_the_noise_of_one_gpu(processes: int, slower: float, least: float) -> None:
    assert share_of(Status.REGRESSED, noise=0.001, slower=slower, processes=processes) >= least


def test_one_side_that_scatters_is_not_slower() -> None:
    """The spread of both sides counts: three equal processes say nothing of the other three."""
    after = [run(device=(us,) * 8, host=None, end_to_end=None) for us in (215.0, 205.0, 210.0)]
    before = [run(device=(205.0 + place / 100,) * 8, host=None, end_to_end=None) for place in range(3)]
    verdict = judge_time(
        Timer.DEVICE, after[0], calibrated(before), compare(H200, H200), comparisons=COMPARISONS, more=after[1:]
    )
    assert verdict.status is not Status.REGRESSED
