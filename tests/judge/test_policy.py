"""Which policy a time is judged by: kernels of few blocks are noisier between processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from kernelgauge.judge import DEFAULT_POLICIES, Status, calibrated, compare, judge_time, policies_for, policy_for
from kernelgauge.run import Timer
from tests.builders import H200, ONE_TOKEN, ONE_TOKEN_US, fingerprint, of_grids, run, sample

DEVICE = DEFAULT_POLICIES[Timer.DEVICE]
WIDE = ((128, 1, 1),) * 5


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize("grid", [(64, 1, 1), (1, 8, 8), (53, 1, 1), (24576, 1, 1), None], ids=str)
def test_kernels_of_many_blocks_are_judged_as_ever(timer: Timer, grid: tuple[int, int, int] | None) -> None:
    assert policy_for(timer, H200, of_grids(grid)) is DEFAULT_POLICIES[timer]


@pytest.mark.parametrize("grid", [(1, 1, 1), (4, 12, 1), (52, 1, 1)], ids=str)
def test_a_kernel_of_few_blocks_is_expected_to_differ_between_processes(grid: tuple[int, int, int]) -> None:
    rule = policy_for(Timer.DEVICE, H200, of_grids(grid, (128, 1, 1)))
    assert rule.process.absolute_us == pytest.approx(math.hypot(0.012, 0.045))
    assert (rule.process.relative, rule.process.degrees) == (DEVICE.process.relative, DEVICE.process.degrees)
    assert rule.blind_us == pytest.approx(0.15 + 6 * 0.045)
    assert (rule.tolerance, rule.floor_us, rule.blind) == (DEVICE.tolerance, DEVICE.floor_us, DEVICE.blind)


def test_each_of_them_adds_its_own() -> None:
    rule = policy_for(Timer.DEVICE, H200, of_grids(*ONE_TOKEN))
    assert rule.process.absolute_us == pytest.approx(math.hypot(0.012, math.sqrt(5) * 0.045))
    assert rule.blind_us == pytest.approx(0.15 + 6 * math.sqrt(5) * 0.045)


def test_on_a_smaller_gpu_fewer_blocks_are_many() -> None:
    half = fingerprint(sm_count=66)
    assert policy_for(Timer.DEVICE, half, of_grids((27, 1, 1))) is DEVICE
    assert policy_for(Timer.DEVICE, half, of_grids((26, 1, 1))) is not DEVICE


@pytest.mark.parametrize("timer", [Timer.HOST, Timer.END_TO_END], ids=str)
def test_a_host_clock_does_not_ask(timer: Timer) -> None:
    assert policy_for(timer, H200, of_grids(*ONE_TOKEN)) is DEFAULT_POLICIES[timer]


def test_neither_does_a_processor() -> None:
    processor = fingerprint(arch="cpu", sm_count=None)
    for timer in Timer:
        assert policy_for(timer, processor, of_grids(None, (1, 1, 1))) is policies_for("cpu")[timer]


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        pytest.param(ONE_TOKEN, ONE_TOKEN, Status.PASS, id="few blocks"),
        pytest.param(WIDE, WIDE, Status.REGRESSED, id="many"),
        pytest.param(ONE_TOKEN, WIDE, Status.PASS, id="few before"),
        pytest.param(WIDE, ONE_TOKEN, Status.PASS, id="few now"),
    ],
)
def test_what_another_process_of_the_same_code_took_is_no_regression(
    before: Sequence[tuple[int, int, int]], after: Sequence[tuple[int, int, int]], status: Status
) -> None:
    stored = calibrated([run(kernels=of_grids(*before), device=ONE_TOKEN_US) for _ in range(4)], suite="perf")
    slower = sample([1.011 * us for us in ONE_TOKEN_US])
    observed = run(kernels=of_grids(*after), samples={Timer.DEVICE: slower})
    assert judge_time(Timer.DEVICE, observed, stored, compare(H200, H200), comparisons=108).status is status


def test_the_more_of_them_there_are_the_smaller_a_slowdown_must_be_excluded() -> None:
    """As a share of a time of so many kernels: each of them is independent of the others."""
    shares = [policy_for(Timer.DEVICE, H200, of_grids(*[(1, 1, 1)] * count)).blind_us / count for count in (1, 5, 30)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0] / 4


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_gpus_differ_by_is_of_each_kernel(count: int) -> None:
    """Beside what grows with the time, which says how many there are already."""
    rule = policy_for(Timer.DEVICE, H200, of_grids(*[(128, 1, 1)] * count), of_grids((128, 1, 1)))
    assert DEVICE.beyond_gemm is not None
    assert rule.beyond_gemm is not None
    for found, of_one in ((rule.machine, DEVICE.machine), (rule.beyond_gemm, DEVICE.beyond_gemm)):
        assert found.absolute_us == pytest.approx(count * of_one.absolute_us)
        assert (found.relative, found.degrees) == (of_one.relative, of_one.degrees)
    assert (rule.process, rule.replicate, rule.blind_us) == (DEVICE.process, DEVICE.replicate, DEVICE.blind_us)
    assert rule.blind_fraction(10.0) == DEVICE.blind
    assert rule.blind_fraction(10.0, elsewhere=True) == pytest.approx(max(DEVICE.blind, count * DEVICE.blind_us / 10.0))


@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_call_of_many_short_kernels_passes_on_a_gpu_that_is_not_known(count: int) -> None:
    us = 3.0 * count
    kernels = of_grids(*[(128, 1, 1)] * count)
    stored = calibrated(
        [run(kernels=kernels, device=(us, 1.002 * us), gpu=f"{place:08x}") for place in range(8) for _ in range(2)],
        suite="perf",
    )
    observed = run(kernels=kernels, device=(1.004 * us, 1.006 * us) * 20, gpu="another")
    assert judge_time(Timer.DEVICE, observed, stored, compare(H200, H200), comparisons=21).status is Status.PASS


def test_two_kernels_of_an_h200_that_the_baseline_does_not_know_are_not_called_slower() -> None:
    """As one of four was, by 1.7 %, when both together were expected to differ by as much as one."""
    stored = calibrated(
        [
            run(kernels=of_grids((128, 1, 1), (256, 1, 1)), device=(us, 1.002 * us), gpu=f"{place:08x}")
            for place, us in enumerate((4.99, 4.98, 5.0, 4.96, 5.0, 5.01, 5.005, 4.99) * 2)
            for _ in range(2)
        ],
        suite="perf",
    )
    observed = run(kernels=stored.entries[0].kernels, device=(5.08, 5.09) * 20, gpu="another")
    assert (
        judge_time(Timer.DEVICE, observed, stored, compare(H200, H200), comparisons=21).status is not Status.REGRESSED
    )
