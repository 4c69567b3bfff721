"""Passes in which the machine was slower are found by everything that was measured in them, and left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgauge import Timer, Workload
from kernelgauge.errors import KernelgaugeError
from kernelgauge.measure.runner import Measured, Result, measure
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.steady import Series, slower_passes
from tests.measure.conftest import Fake, ToldReplicates

NOISE = 0.0015  # of a replicate of an MLP on an H200


def series(
    chance: random.Random,
    passes: int = 18,
    *,
    slow: Iterable[int] = (),
    by: float = 0.005,
    us: float = 200.0,
    noise: float = NOISE,
) -> dict[int, float]:
    """What one workload took in each pass."""
    slow = set(slow)
    return {at: us * (1 + by * (at in slow)) * (1 + chance.gauss(0, noise)) for at in range(passes)}


def slower(others: Sequence[Series], own: Iterable[int] = range(100)) -> dict[int, float]:
    """For a workload that was in the passes `own`, whatever it took in them."""
    measured = {"own": dict.fromkeys(own, 10.0), **{f"other {place}": each for place, each in enumerate(others)}}
    return slower_passes(measured)["own"]


def together(chance: random.Random, workloads: int = 6, **more: object) -> list[Series]:
    return [series(chance, us=chance.uniform(3, 500), **more) for _ in range(workloads)]  # type: ignore[arg-type]


# -- what is slower ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [range(9), range(9, 18), range(6, 12), [*range(5), 10, 11, 12], range(13)])
def test_a_half_percent_that_all_workloads_share_is_found(slow: Sequence[int]) -> None:
    for seed in range(20):
        found = slower(together(random.Random(seed), workloads=10, slow=slow))
        assert set(found) == set(slow)
        assert all(0.0035 < by < 0.0065 for by in found.values())


@pytest.mark.parametrize("others", [1, 2, 5])
@pytest.mark.parametrize(("by", "noise"), [(0.01, NOISE), (0.004, NOISE / 5)])
def test_what_one_workload_does_alone_says_nothing_of_the_machine(others: int, by: float, noise: float) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        alone = series(chance, 32, slow=range(8), by=by, noise=noise)
        assert slower([*together(chance, others, passes=32), alone]) == {}
        assert slower([alone]) == {}


def test_one_replicate_that_is_far_off_says_nothing_of_the_machine() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        others = together(chance)
        assert slower([*others, series(chance, slow=[7], by=0.3)]) == {}


def test_noise_leaves_nothing_out() -> None:
    noisy = 4 * NOISE  # more than what is tolerated, so that chance alone decides
    found = [
        slower(together(random.Random(seed), workloads=2 + seed % 9, passes=8 + seed % 25, noise=noisy))
        for seed in range(400)
    ]
    assert sum(map(bool, found)) <= 2


@pytest.mark.parametrize(("by", "is_found"), [(0.0015, False), (0.0025, True)])
def test_what_moves_a_mean_by_less_than_a_tenth_of_a_percent_is_left_in(by: float, is_found: bool) -> None:
    found = [bool(slower(together(random.Random(seed), 36, slow=range(9), by=by))) for seed in range(20)]
    assert set(found) == {is_found}


def test_a_machine_that_is_faster_for_a_moment_makes_the_rest_no_slower() -> None:
    for seed in range(20):
        assert slower(together(random.Random(seed), slow=[*range(8), *range(10, 18)])) == {}


def test_noisy_workloads_say_little_beside_a_steady_control() -> None:
    """Kernels of 3 us differ by 1.5 % from one replicate to the next."""
    for seed in range(20):
        chance = random.Random(seed)
        noisy = [series(chance, slow=range(9), us=3, noise=0.015) for _ in range(4)]
        steady = [series(chance, slow=range(9), noise=0.001) for _ in range(4)]
        assert set(slower([*noisy, *steady])) == set(range(9))


def test_a_machine_that_is_faster_once_it_has_less_to_do_was_not_slower_before() -> None:
    """Passes are compared in which all took part."""
    for seed in range(20):
        chance = random.Random(seed)
        others = together(chance, slow=range(12), passes=24)
        early = series(chance, passes=12, slow=range(12))
        assert set(slower(others)) == set(range(12))
        assert slower([*others, early]) == {}


def test_of_passes_that_a_workload_was_not_in_nothing_is_said() -> None:
    others = together(random.Random(0), slow=range(12, 18), passes=30)
    assert set(slower(others, range(14))) == {12, 13}
    assert slower(others, range(12)) == {}
    assert slower(others, [*range(6), 14]) == {}


def test_one_that_was_hardly_measured_does_not_hide_the_rest() -> None:
    chance = random.Random(0)
    failed = series(chance, passes=3)
    assert set(slower([*together(chance, slow=range(9)), failed])) == set(range(9))


def test_of_eight_passes_it_is_said() -> None:
    assert set(slower(together(random.Random(0), slow=range(4), by=0.02, passes=8))) == set(range(4))


@pytest.mark.parametrize("passes", [0, 1, 7])
def test_of_few_passes_nothing_is_said(passes: int) -> None:
    assert slower(together(random.Random(0), slow=range(4), by=0.5, passes=passes)) == {}
    assert slower([]) == {}


times = st.floats(min_value=1e-3, max_value=1e9)


PASSES = st.integers(0, 40)


@given(st.sets(PASSES), st.lists(st.dictionaries(PASSES, times, min_size=20), max_size=5))
def test_whatever_was_measured_a_quarter_of_the_passes_is_left(own: set[int], others: list[Series]) -> None:
    found = slower(others, own)
    assert set(found) <= own
    assert len(found) <= 0.75 * len(own)
    assert all(by > 0 for by in found.values())


# -- what is done about it --------------------------------------------------------------------------------------------

Tiny = Callable[..., Workload]
ObserveAll = Callable[..., dict[str, Result]]

STEADY = Settings(replicates=12, most_replicates=12, iterations=3, seconds=0.01, warm_up_seconds=0)


def told(slow: Iterable[int], passes: int = 60, *, us: float = 10.0, slower: float = 1.005) -> list[float]:
    """Times, pass by pass; even ones are a little longer, so that there is some noise."""
    slow = set(slow)
    return [us * (1 + 0.0004 * (at % 2)) * (slower if at in slow else 1.0) for at in range(passes)]


def replicates_us(result: Result) -> tuple[float, ...]:
    assert isinstance(result, Measured), result
    return result.run.samples[Timer.DEVICE].replicates_us


def test_replicates_of_slower_passes_are_made_again_and_told(tiny: Tiny, replicates: ToldReplicates) -> None:
    slow = range(2, 7)
    replicates.times_us = {name: told(slow) for name in ("copy", "gemm", "a", "b")}
    device, said = Fake(tiny(module="copy"), tiny(module="gemm")), list[str]()
    results = measure([tiny(module="a"), tiny(module="b")], device, device.fingerprint(), STEADY, said.append)
    for result in results.values():
        assert len(replicates_us(result)) == 12
        assert max(replicates_us(result)) < 10.005
        assert isinstance(result, Measured)
        assert result.run.left_out == 5
        assert result.run.controls["gemm"].device_time_us < 10.005
    assert replicates.places("a") == list(range(17))
    assert said[-1] == "timing: the machine was slower in 5 of 17 passes, which are left out"


def test_a_workload_that_is_slower_alone_keeps_its_times(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    """Nothing that it does itself decides what of it counts."""
    replicates.times_us = {"copy": told([]), "gemm": told([]), "b": told([]), "a": told(range(6), slower=1.02)}
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    results = observe_all(tiny(module="a"), tiny(module="b"), device=device, settings=STEADY)
    assert replicates_us(results["a eager"]) == tuple(replicates.times_us["a"][:12])
    assert replicates.places("b") == list(range(12))


def test_a_workload_that_was_pinned_down_before_the_machine_had_less_to_do_keeps_its_times(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    settings = replace(STEADY, most_replicates=32)
    wild = [10.0 + 2.0 * (at % 3) for at in range(60)]
    replicates.times_us = {"copy": told(range(12)), "gemm": told(range(12)), "a": told(range(12)), "b": wild}
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    results = observe_all(tiny(module="a"), tiny(module="b"), device=device, settings=settings)
    assert replicates_us(results["a eager"]) == tuple(replicates.times_us["a"][:12])
    assert len(replicates_us(results["b eager"])) == 32


def test_replicates_are_made_again_as_often_as_are_kept_at_least(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    times_us = told(range(5, 400), passes=400)  # a machine that stays slow
    replicates.times_us = dict.fromkeys(("copy", "gemm", "a"), times_us)
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    result = observe_all(tiny(module="a"), device=device, settings=STEADY)["a eager"]
    assert len(replicates.places("a")) == 12 + 7  # seven were made again, and were no better
    assert replicates_us(result) == tuple(times_us[:19])  # it has no usual speed
    assert isinstance(result, Measured)
    assert result.run.left_out == 0


def test_noisy_controls_do_not_leave_a_steady_workload_to_its_own_judgement(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    noisy = [10.0 * (1 + 0.01 * (at % 2)) for at in range(60)]
    replicates.times_us = {"copy": noisy, "gemm": noisy[::-1], "a": told(range(6), slower=1.02)}
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    result = observe_all(tiny(module="a"), device=device, settings=STEADY)["a eager"]
    assert replicates_us(result) == tuple(replicates.times_us["a"][:12])


def test_a_workload_that_failed_does_not_hide_that_the_machine_was_slower(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    replicates.times_us = dict.fromkeys(("copy", "gemm", "a", "b"), told(range(10, 16)))
    replicates.fails["b"] = (9, lambda: KernelgaugeError("it fails"))
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    settings = replace(STEADY, replicates=20, most_replicates=20)
    results = observe_all(tiny(module="a"), tiny(module="b"), device=device, settings=settings)
    assert isinstance(results["b eager"], KernelgaugeError)
    assert max(replicates_us(results["a eager"])) < 10.005


def test_a_machine_that_changed_its_speed_by_much_is_not_believed_all_the_same(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    slow = range(8, 60)
    replicates.times_us = {name: told(slow, slower=1.1) for name in ("copy", "gemm", "a")}
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    results = observe_all(tiny(module="a"), device=device, settings=STEADY)
    assert "changed its speed" in str(results["a eager"])


def test_what_was_pinned_down_is_kept_if_a_control_fails_while_slow_passes_are_made_again(
    tiny: Tiny, replicates: ToldReplicates
) -> None:
    slow = told(range(5))
    wild = [(10.0 + 2.0 * (at % 3)) * (1.005 if at < 5 else 1.0) for at in range(60)]
    replicates.times_us = {"copy": slow, "gemm": slow, "a": slow, "b": wild}
    replicates.fails["gemm"] = (32, lambda: KernelgaugeError("it fails"))  # the first pass after all were pinned down
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    workloads = [tiny(module="a"), tiny(module="b")]
    settings = replace(STEADY, most_replicates=32)
    results = measure(workloads, device, device.fingerprint(), settings)
    assert isinstance(results[workloads[0].id], Measured)
    assert isinstance(results[workloads[1].id], KernelgaugeError)  # it wanted more
