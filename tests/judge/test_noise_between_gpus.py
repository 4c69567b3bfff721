"""What the GPUs of a baseline say of another one, and what its control GEMM adds to that."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernelgauge.judge import Prior, Seen, process_noise
from kernelgauge.judge.noise import difference, of_another_gpu
from kernelgauge.judge.seen import comparable_to
from tests.builders import ELSEWHERE, HERE, policy, seen
from tests.judge.noisy import error, processes

# -- GPUs -----------------------------------------------------------------------------------------------------------


def test_processes_of_the_same_gpu_are_compared_with_and_no_others() -> None:
    before = [seen(200.0), seen(100.0, gpu=ELSEWHERE)]
    assert difference(before, seen(210.0), policy()) == pytest.approx(math.log(1.05))
    assert difference(before, seen(105.0, gpu=ELSEWHERE), policy()) == pytest.approx(math.log(1.05))
    assert comparable_to(seen(gpu="a third"), before) == []


def test_where_no_process_ran_on_this_gpu_all_are_compared_with() -> None:
    before = [seen(100.0), seen(400.0, gpu=ELSEWHERE)]
    assert difference(before, seen(200.0, gpu="a third"), policy()) == pytest.approx(0.0)


def test_another_gpu_adds_the_noise_between_gpus() -> None:
    here, there = (error(processes(10), seen(gpu=gpu)) for gpu in (HERE, ELSEWHERE))
    assert there**2 - here**2 == pytest.approx(2 * 0.0035**2)  # its own, and that of the one in the baseline


def test_several_gpus_in_the_baseline_say_more_of_another_one() -> None:
    one, three = ([seen(gpu=gpu) for gpu in gpus for _ in range(6)] for gpus in ("a", "abc"))
    assert error(three, seen(gpu="d")) < error(one, seen(gpu="d"))


def test_every_gpu_of_the_baseline_has_one_voice_however_many_processes_ran_on_it() -> None:
    uneven = [seen(100.0, gpu="a")] * 19 + [seen(400.0, gpu="b")]
    assert difference(uneven, seen(200.0, gpu="c"), policy()) == pytest.approx(0.0)


def test_gpus_that_differ_more_than_expected_widen_the_interval_of_another_one() -> None:
    alike = [seen(200.0, gpu=gpu) for gpu in "abcd"]
    apart = [seen(mean_us, gpu=gpu) for gpu, mean_us in zip("abcd", (190.0, 200.0, 210.0, 200.0), strict=True)]
    assert error(apart, seen(gpu="e")) > 2 * error(alike, seen(gpu="e"))


def test_a_difference_between_gpus_is_no_noise_between_processes() -> None:
    before = [seen(mean_us, gpu=gpu) for gpu, mean_us in (("a", 190.0), ("b", 210.0)) for _ in range(5)]
    assert process_noise(before, policy()) < 0.0005


# -- another GPU, by its control GEMM -------------------------------------------------------------------------------

FOLLOWS = {"machine": Prior(0.0035, degrees=12.0), "beyond_gemm": Prior(0.002, degrees=20.0)}


def fleet(count: int = 8, *, slope: float = 0.45, gemm: bool = True) -> list[Seen]:
    """GPUs whose control GEMM differs by up to 2 %, and whose time follows it with `slope`."""
    speeds = [0.02 * (place / (count - 1) - 0.5) for place in range(count)]
    return [
        seen(200.0 * math.exp(slope * speed), gpu=str(place), gemm_us=150.0 * math.exp(speed) if gemm else None)
        for place, speed in enumerate(speeds)
    ]


def expected(before: list[Seen], gemm_us: float | None, **of_policy: Any) -> float:
    return math.exp(of_another_gpu(before, seen(gpu="new", gemm_us=gemm_us), policy(**of_policy)).expected)


def test_another_gpu_is_expected_to_be_as_fast_as_its_control_gemm_tells() -> None:
    slow, usual, fast = (expected(fleet(), 150.0 * factor, **FOLLOWS) for factor in (1.01, 1.0, 1 / 1.01))
    assert usual == pytest.approx(200.0)
    assert 200.0 < slow < 200.0 * 1.0045  # the slope is drawn towards none
    assert slow == pytest.approx(200.0 * 1.0045, rel=0.001)
    assert slow * fast == pytest.approx(200.0**2)


def test_a_time_that_does_not_follow_the_control_gemm_is_expected_as_it_was() -> None:
    assert expected(fleet(slope=0.0), 151.5, **FOLLOWS) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("before", "gemm_us", "of_policy"),
    [
        pytest.param(fleet(3), 151.5, FOLLOWS, id="too few GPUs"),
        pytest.param(fleet(gemm=False), 151.5, FOLLOWS, id="no GEMM before"),
        pytest.param([*fleet()[:-1], *fleet(gemm=False)[-1:]], 151.5, FOLLOWS, id="one GPU without a GEMM"),
        pytest.param(fleet(), None, FOLLOWS, id="no GEMM now"),
        pytest.param(fleet(), 151.5, {}, id="a timer that it tells nothing of"),
    ],
)
def test_where_the_control_gemm_tells_nothing_the_mean_of_the_gpus_is_expected(
    before: list[Seen], gemm_us: float | None, of_policy: dict[str, Any]
) -> None:
    mean = math.exp(sum(one.logarithm for one in before) / len(before))
    assert expected(before, gemm_us, **of_policy) == pytest.approx(mean)


def test_what_the_control_gemm_tells_of_another_gpu_narrows_its_interval() -> None:
    with_gemm, without = (seen(gpu="new", gemm_us=gemm_us) for gemm_us in (150.0, None))
    assert error(fleet(), with_gemm, **FOLLOWS) < 0.75 * error(fleet(), without, **FOLLOWS)


def test_the_further_the_control_gemm_lies_from_those_of_the_baseline_the_less_it_tells() -> None:
    near, far = (seen(gpu="new", gemm_us=gemm_us) for gemm_us in (150.0, 165.0))
    assert error(fleet(), far, **FOLLOWS) > 1.5 * error(fleet(), near, **FOLLOWS)
