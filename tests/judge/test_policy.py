"""Which policy a time is judged by: kernels of few blocks are noisier between processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from kernelgauge.judge import DEFAULT_POLICIES, Status, calibrated, compare, judge_time, policies_for, policy_for
from kernelgauge.run import Timer
from kernelgauge.trace import KernelRecord
from tests.builders import H200, fingerprint, launched, run, sample

DEVICE = DEFAULT_POLICIES[Timer.DEVICE]
# The MLP of one token on an H200: no kernel fills half of its 132 multiprocessors.
ONE_TOKEN = [(4, 12, 1), (4, 12, 1), (1, 1, 1), (4, 6, 1), (24, 1, 1)]
ONE_TOKEN_US = (17.60, 17.65, 17.58, 17.62) * 4


def of_grids(*grids: tuple[int, int, int] | None) -> tuple[KernelRecord, ...]:
    return tuple(launched(f"kernel_{place}", 3.5, grid=grid) for place, grid in enumerate(grids))


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize("grid", [(64, 1, 1), (1, 8, 8), (53, 1, 1), (24576, 1, 1), None], ids=str)
def test_kernels_of_many_blocks_are_judged_as_ever(timer: Timer, grid: tuple[int, int, int] | None) -> None:
    assert policy_for(timer, H200, of_grids(grid, grid)) is DEFAULT_POLICIES[timer]


@pytest.mark.parametrize("grid", [(1, 1, 1), (4, 12, 1), (52, 1, 1)], ids=str)
def test_a_kernel_of_few_blocks_is_expected_to_differ_between_processes(grid: tuple[int, int, int]) -> None:
    rule = policy_for(Timer.DEVICE, H200, of_grids(grid, (128, 1, 1)))
    assert rule.process.absolute_us == pytest.approx(math.hypot(0.012, 0.045))
    assert (rule.process.relative, rule.process.degrees) == (DEVICE.process.relative, DEVICE.process.degrees)
    assert (rule.tolerance, rule.floor_us, rule.blind_us) == (DEVICE.tolerance, DEVICE.floor_us, DEVICE.blind_us)


def test_each_of_them_adds_its_own() -> None:
    rule = policy_for(Timer.DEVICE, H200, of_grids(*ONE_TOKEN))
    assert rule.process.absolute_us == pytest.approx(math.hypot(0.012, math.sqrt(5) * 0.045))
    assert rule.blind_us == 5 * DEVICE.blind_us


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
    ("grids", "status"),
    [(ONE_TOKEN, Status.PASS), ([(128, 1, 1)] * 5, Status.REGRESSED)],
    ids=["few blocks", "many blocks"],
)
def test_what_another_process_of_the_same_code_took_is_no_regression(
    grids: Sequence[tuple[int, int, int]], status: Status
) -> None:
    """Slower by 1.1 %, as the MLP of one token was in a process that had measured other workloads before."""
    kernels = of_grids(*grids)
    before = calibrated([run(kernels=kernels, device=ONE_TOKEN_US) for _ in range(4)], suite="perf")
    after = run(kernels=kernels, samples={Timer.DEVICE: sample([1.011 * us for us in ONE_TOKEN_US])})
    assert judge_time(Timer.DEVICE, after, before, compare(H200, H200), comparisons=108).status is status
