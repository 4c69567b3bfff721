"""A GPU has more than one speed: a run is compared with the processes that had its own, by the control GEMM."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgauge.judge import DEFAULT_POLICIES, Seen, Status, machine_change_on
from kernelgauge.judge.decision import decide
from kernelgauge.judge.noise import difference, process_noise, sources
from kernelgauge.judge.seen import comparable_to
from kernelgauge.judge.speed import at_the_speed_of, speeds
from kernelgauge.run import ControlTime, Timer
from tests.builders import seen

FAST, SLOW = 178.6, 179.8  # two speeds of one H200 (docs/measuring.md)
POLICY = DEFAULT_POLICIES[Timer.DEVICE]


@pytest.mark.parametrize(
    ("gemm_us", "expected"),
    [
        ([], []),
        ([FAST], [0]),
        ([178.4, 178.6, 178.8], [0, 0, 0]),
        ([FAST, SLOW], [0, 1]),
        ([SLOW, FAST, SLOW, FAST], [1, 0, 1, 0]),
        ([FAST, 179.0, 179.4, SLOW], [0, 0, 0, 0]),  # a drift and no step: nothing is told apart
        ([FAST, SLOW, 190.0], [0, 1, 2]),
        ([FAST, None, SLOW], [0, 0, 0]),
        ([None], [0]),
        ([1e-300, 1e300], [0, 1]),
    ],
)
def test_processes_are_told_apart_by_steps_of_the_control_gemm(
    gemm_us: list[float | None], expected: list[int]
) -> None:
    assert speeds(gemm_us) == expected


@given(st.lists(st.floats(100, 200), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_order_in_which_they_are_given_makes_no_difference(gemm_us: list[float], chance: random.Random) -> None:
    shuffled = chance.sample(gemm_us, len(gemm_us))
    assert dict(zip(gemm_us, speeds(gemm_us), strict=True)) == dict(zip(shuffled, speeds(shuffled), strict=True))


@pytest.mark.parametrize(
    ("own", "expected"),
    [(FAST, [0, 2]), (SLOW, [1, 3]), (185.0, [0, 1, 2, 3]), (None, [0, 1, 2, 3])],
)
def test_a_run_is_compared_with_those_at_its_speed_and_with_all_if_none_was(
    own: float | None, expected: list[int]
) -> None:
    assert at_the_speed_of(own, [178.5, 179.7, 178.7, 179.9]) == expected


def at_two_speeds(chance: random.Random, **how: float) -> list[Seen]:
    """Three processes at each, of which an MLP takes 0.65 % longer at the slow one."""
    return [process(chance, slow=place % 2 == 1, **how) for place in range(6)]


def process(chance: random.Random, *, slow: bool, by: float = 0.0, gemm_noise: float = 0.0007) -> Seen:
    gemm_us = (SLOW if slow else FAST) * (1 + chance.gauss(0, gemm_noise))
    mean_us = 212.0 * (1.0065 if slow else 1.0) * (1 + chance.gauss(0, 0.0004)) * (1 + by)
    return seen(mean_us, gemm_us=gemm_us, spread=0.0015, replicates=16)


def said(before: list[Seen], after: Seen) -> Status:
    pairs = [("here", {"gemm": ControlTime("a kernel", each.gemm_us or 0.0)}) for each in (*before, after)]
    machine = machine_change_on("here", pairs[:-1], pairs[-1][1])
    return decide(before, after, POLICY, comparisons=21, explained=machine.explained(host_share=0)).status


@pytest.mark.parametrize("slow", [False, True])
def test_half_a_percent_is_seen_at_either_speed_and_the_step_itself_is_no_regression(slow: bool) -> None:
    for seed in range(40):
        chance = random.Random(seed)
        before = at_two_speeds(chance)
        assert said(before, process(chance, slow=slow)) is Status.PASS
        assert said(before, process(chance, slow=slow, by=0.005)) is Status.REGRESSED


@pytest.mark.parametrize("gemm_noise", [0.001, 0.00125, 0.0015])
def test_a_control_that_is_so_noisy_that_it_may_lie_between_two_speeds_makes_no_false_alarm(gemm_noise: float) -> None:
    said_of = []
    for seed in range(600):
        chance = random.Random(seed)
        before = at_two_speeds(chance, gemm_noise=gemm_noise)
        said_of.append(said(before, process(chance, slow=seed % 2 == 1, gemm_noise=gemm_noise)))
    assert said_of.count(Status.REGRESSED) + said_of.count(Status.IMPROVED) <= 6


def test_between_two_speeds_a_run_is_held_against_both_and_their_scatter() -> None:
    chance = random.Random(0)
    before, between = at_two_speeds(chance), replace(process(chance, slow=True), gemm_us=(FAST * SLOW) ** 0.5)
    assert comparable_to(between, before) == before
    noise_of_one_speed, noise_of_both = (
        sources(before, after, POLICY)[0].variance for after in (process(chance, slow=True), between)
    )
    assert noise_of_both > 4 * noise_of_one_speed


def test_a_speed_that_the_baseline_has_not_seen_is_no_regression() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        before = [process(chance, slow=False) for _ in range(6)]
        assert said(before, process(chance, slow=True)) is not Status.REGRESSED


def test_processes_differ_by_what_is_left_at_one_speed() -> None:
    before = at_two_speeds(random.Random(0))
    assert process_noise(before, POLICY) < 0.001
    blind = [seen(each.observation.mean_us, spread=0.0015, replicates=16) for each in before]
    assert process_noise(blind, POLICY) > 0.0015


def test_the_difference_is_to_the_processes_at_the_run_s_speed() -> None:
    before = at_two_speeds(random.Random(0))
    after = process(random.Random(1), slow=True)
    assert comparable_to(after, before) == before[1::2]
    assert abs(difference(before, after, POLICY)) < 0.002


def test_the_control_pair_of_a_run_is_held_against_those_at_its_speed() -> None:
    def pair(gemm_us: float, copy_us: float, kernel: str = "a kernel") -> dict[str, ControlTime]:
        return {"gemm": ControlTime(kernel, gemm_us), "copy": ControlTime("a copy", copy_us)}

    processes = [("here", pair(FAST, 60.0)), ("here", pair(SLOW, 80.0)), ("elsewhere", pair(SLOW, 100.0))]
    assert machine_change_on("here", processes, pair(SLOW, 80.0)).changes == pytest.approx({"gemm": 0.0, "copy": 0.0})
    assert machine_change_on("here", processes, pair(FAST, 60.0)).changes == pytest.approx({"gemm": 0.0, "copy": 0.0})
    # Another kernel, as after an upgrade of cuBLAS, tells no speed.
    upgraded = machine_change_on("here", processes, pair(SLOW, 80.0, "another kernel"))
    assert upgraded.changes == pytest.approx({"copy": 80.0 / (60.0 * 80.0) ** 0.5 - 1})
