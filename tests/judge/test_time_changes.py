"""Each time of an update against the stored one: by the rule that judges a run, and as it is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernelgauge.judge import Baseline, Status, calibrated, from_run
from kernelgauge.judge.update import time_changes, time_detail
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, HERE, ONE_TOKEN, ONE_TOKEN_US, baseline, of_grids, pair, run
from tests.judge.timed import STEADY, steady


def test_a_time_on_each_side_is_compared_by_the_rule_that_judges() -> None:
    changes = time_changes(baseline(device=STEADY), baseline(device=steady(1.1)), comparisons=3)
    assert [change.timer for change in changes] == list(Timer)
    device, *others = changes
    assert device.decision is not None
    assert (device.moved, device.decision.status) == (True, Status.REGRESSED)
    assert (device.before_us, device.after_us) == (pytest.approx(200.0), pytest.approx(220.0))
    assert not any(change.moved for change in others)


def test_a_time_of_one_side_has_moved_and_nothing_is_decided_of_it() -> None:
    for old, new in ((baseline(host=None), baseline()), (baseline(), baseline(host=None))):
        (host,) = (change for change in time_changes(old, new, comparisons=3) if change.timer is Timer.HOST)
        assert (host.moved, host.decision) == (True, None)
        assert (host.before_us is None) != (host.after_us is None)


def test_the_percentage_is_one_of_the_time_that_is_shown_beside_it() -> None:
    """On a GPU that the baseline does not know, what is expected of it by its control GEMM."""
    old = calibrated(
        [run(device=steady(1 + place / 100), gpu=str(place), controls=pair(gemm=150.0 + place)) for place in range(5)],
        suite="perf",
    )
    device = time_changes(old, baseline(device=steady(1.05), gpu="new", controls=pair(gemm=153.0)), comparisons=3)[0]
    assert device.decision is not None
    assert device.before_us is not None
    assert device.after_us == pytest.approx(device.before_us * (1 + device.decision.change.estimate))
    assert device.before_us != pytest.approx(204.0, rel=1e-4)  # the mean of them


@pytest.mark.parametrize("timer", Timer)
def test_the_times_of_a_change_are_those_that_were_compared(timer: Timer) -> None:
    """On the run's own GPU and host, not on all that the baseline knows."""
    timed = {Timer.DEVICE: "device", Timer.HOST: "host", Timer.END_TO_END: "end_to_end"}[timer]
    there, here = (run(gpu=gpu, **{timed: steady(factor)}) for gpu, factor in ((ELSEWHERE, 1.04), (HERE, 1.0)))
    old = calibrated([there, here], suite="perf")
    changes = time_changes(old, baseline(gpu=HERE, **{timed: steady(1.12)}), comparisons=3)
    (change,) = (each for each in changes if each.timer is timer)
    assert (change.before_us, change.after_us) == (pytest.approx(200.0), pytest.approx(224.0))
    assert time_detail(change) == f"{timer.label} 200.0 -> 224.0 us (+12.0 %)"


@pytest.mark.parametrize("gpu", [HERE, "another"])
@pytest.mark.parametrize(("control_before", "control"), [(0.001, 1e12), (1e12, 0.001), (1e12, 1e12)])
@pytest.mark.parametrize("noise", [1.0, 1e6])
@pytest.mark.parametrize(("before", "after"), [(0.001, 1e12), (1e12, 0.001), (0.001, 0.001), (1e12, 1e12)])
def test_the_longest_and_the_shortest_times_can_be_compared(
    before: float, after: float, control_before: float, control: float, noise: float, gpu: str
) -> None:
    def seen(us: float, **changes: Any) -> Baseline:
        two = (us / noise, us) if us > 1 else (us, us * noise)
        return baseline(device=two, host=two, end_to_end=two, **changes)

    old = seen(before, controls=pair(control_before, control_before), host_control_us=control_before)
    new = seen(after, controls=pair(control, control), host_control_us=control, gpu=gpu)
    changes = time_changes(old, new, comparisons=3)
    assert [change.timer for change in changes] == list(Timer)
    for change in changes:
        assert change.before_us is not None
        assert 0 < change.before_us < math.inf
        assert change.decision is not None
        measured = change.decision.change
        assert all(math.isfinite(each) for each in (measured.estimate, measured.low or 0.0, measured.high or 0.0))


@pytest.mark.parametrize("gemm_us", [0.001, 200.0, 1e12])
@pytest.mark.parametrize("after_us", [0.001, 1e12])
@pytest.mark.parametrize("times_us", [[10.0 ** (-3 + 3 * place) for place in range(6)][::step] for step in (1, -1)])
def test_what_an_absurd_baseline_expects_of_another_gpu_can_be_compared(
    times_us: list[float], after_us: float, gemm_us: float
) -> None:
    """Times that are a thousand times apart where the control GEMM is 1 % apart, extrapolated."""
    runs = [
        run(device=(us, us), gpu=str(place), controls=pair(gemm=100.0 + place)) for place, us in enumerate(times_us)
    ]
    new = baseline(device=(after_us, after_us), gpu="another", controls=pair(gemm=gemm_us))
    device = time_changes(calibrated(runs, suite="perf"), new, comparisons=3)[0]
    assert device.before_us is not None
    assert 0 < device.before_us < math.inf


@pytest.mark.parametrize(("grids", "moves"), [(ONE_TOKEN, False), (((128, 1, 1),) * 5, True)], ids=["few", "many"])
def test_a_time_of_kernels_of_few_blocks_moves_by_more_than_processes_differ(
    grids: tuple[tuple[int, int, int], ...], moves: bool
) -> None:
    kernels = of_grids(*grids)
    old = calibrated([run(kernels=kernels, device=ONE_TOKEN_US) for _ in range(4)], suite="perf")
    new = from_run(run(kernels=kernels, device=[1.011 * us for us in ONE_TOKEN_US]), suite="perf")
    (device,) = [change for change in time_changes(old, new, comparisons=108) if change.timer is Timer.DEVICE]
    assert device.moved is moves
