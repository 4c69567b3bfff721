"""Times of which the host has a part are compared at equal speed of it, as far as its control explains them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernelgauge.judge import DEFAULT_POLICIES, Seen, Status, decide
from kernelgauge.judge.noise import alike, difference, host_explains, sources
from kernelgauge.judge.slope import DISPATCH_SLOPE
from kernelgauge.judge.stats import NO_INTERVAL
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, HERE, observation, policy, seen
from tests.judge.noisy import error


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_time_of_the_host_is_compared_at_equal_speed_of_the_host(share: float) -> None:
    follows = 2 ** (share * DISPATCH_SLOPE.value)
    before, after = seen(50.0, host_share=share), seen(50.0 * follows, host_share=share, control_us=28.0)
    assert difference([before], after, policy()) == pytest.approx(0.0)


@pytest.mark.parametrize("slope", [0.8, 1.0, 1.3])
def test_a_baseline_of_processes_at_several_speeds_knows_how_its_workload_follows_the_host(slope: float) -> None:
    def at(control_us: float, factor: float = 1.0) -> Seen:
        return seen(50.0 * factor * (control_us / 14.0) ** slope, host_share=1.0, control_us=control_us)

    before = [at(control_us) for control_us in (14.0, 16.0, 20.0, 26.0, 28.0)]
    same, slower = (difference(*alike(before, at(22.0, factor), policy()), policy()) for factor in (1.0, 1.1))
    assert abs(same) < 0.01
    assert slower == pytest.approx(same + math.log(1.1))


def test_what_a_slope_was_fitted_to_says_less_of_how_far_it_scatters() -> None:
    before = [seen(50.0, host_share=1.0, control_us=control_us) for control_us in (10.0, 14.0, 20.0)]
    fitted, _ = alike(before, before[0], policy())
    own = [replace(one, slope=replace(one.slope, fitted=0.0)) for one in fitted]
    degrees = [sources(each, each[0], policy())[0].degrees for each in (own, fitted)]
    assert fitted[0].slope.fitted > 0.1
    assert degrees[1] == pytest.approx(degrees[0] - fitted[0].slope.fitted)


def test_a_device_time_does_not_follow_the_host() -> None:
    assert difference([seen(50.0, control_us=14.0)], seen(50.0, control_us=28.0), policy()) == 0


def test_the_further_the_host_moved_the_less_its_control_explains() -> None:
    none, some, much = (
        error([seen(50.0, host_share=1.0)], seen(50.0, host_share=1.0, control_us=control))
        for control in (14.0, 15.0, 28.0)
    )
    assert none < some < much
    assert much > DISPATCH_SLOPE.deviation * math.log(2)


@pytest.mark.parametrize("unknown", ["before", "after", "both"])
def test_without_a_control_a_time_of_the_host_has_no_interval_and_is_shown_as_it_is(unknown: str) -> None:
    known, lost = seen(50.0, host_share=1.0), Seen(observation(50.0), HERE, 1.0)
    before = known if unknown == "after" else lost
    after = known if unknown == "before" else lost
    assert sources([before], after, policy()) == NO_INTERVAL
    assert difference([before], after, policy()) == 0


def test_a_latency_of_which_the_host_moves_nothing_is_told_so_by_a_baseline_at_several_speeds() -> None:
    rule = DEFAULT_POLICIES[Timer.END_TO_END]

    def at(control_us: float, us: float = 270.0) -> Seen:
        return seen(us, host_share=0.13, control_us=control_us)

    before = [at(control_us, 270.0 + wobble) for control_us, wobble in ((35, 0.0), (40, 0.4), (46, -0.4), (55, 0.1))]
    _, after = alike(before, at(36.0), rule)
    assert after.slope.value < 0.5
    assert math.sqrt(after.slope.variance) == pytest.approx(0.35, abs=0.06)  # another host may differ
    assert decide(before, at(36.0), rule, comparisons=21).status is Status.PASS
    assert decide(before, at(36.0, 300.0), rule, comparisons=21).status is Status.REGRESSED


@pytest.mark.parametrize("host_us", [14.0, 20.0])
def test_of_a_latency_the_host_of_the_runs_own_gpu_is_what_moved(host_us: float) -> None:
    """The baseline's processes on another GPU saw another host, and are not what it is compared with."""
    here = seen(host_share=0.5, control_us=14.0)
    elsewhere = seen(gpu=ELSEWHERE, host_share=0.5, control_us=28.0)
    after = seen(300.0, host_share=0.5, control_us=host_us)
    assert host_explains([here, elsewhere], after, 0.4) == host_explains([here], after, 0.4)
    assert host_explains([here], after, 0.4)[1] == pytest.approx(
        max(0.0, 1 - 0.5 * here.slope.value) * max(0.0, math.log(host_us / 14.0) - 0.1)
    )
