"""Two sets of processes of one machine: false alarms and detections of the rule, simulated."""

from __future__ import annotations

import random

import pytest

from kernelgauge.judge import Status
from kernelgauge.judge.timing import Limits
from kernelgauge.judge.two_sets import JudgedSet, judge_sets, looks
from kernelgauge.run import Run, Timer
from tests.builders import CONTROL_US, counts, launched, mlp_kernels, reasons, run

COMPARISONS = 3 * 21  # three looks at a suite of seven workloads with three times


def process(center: float, *, noise: float, spread: float, rng: random.Random) -> Run:
    """One process, whose mean is off by `noise`, and whose replicates by `spread`."""
    mean = center * (1 + rng.gauss(0, noise))
    return at(*(mean * (1 + spread * step) for step in (-1, 1) * 4))


def pair_of(processes: int, noise: float, slower: float, rng: random.Random) -> list[list[Run]]:
    centers = (205.0, 205.0 * (1 + slower))
    return [[process(center, noise=noise, spread=0.0005, rng=rng) for _ in range(processes)] for center in centers]


def at(*device: float) -> Run:
    return run(device=device, host=None, end_to_end=None)


def judged(before: list[Run], after: list[Run]) -> JudgedSet:
    return judge_sets("w", before, after, comparisons=COMPARISONS, names=("before", "after"))


@pytest.mark.parametrize(
    ("noise", "slower", "processes", "least", "most"), [(0.01, 0.0, 3, 0.0, 0.01), (0.001, 0.01, 3, 0.95, 1.0)]
)
def test_share_of_regressed_at_a_noise(noise: float, slower: float, processes: int, least: float, most: float) -> None:
    rng = random.Random(20261123)
    found = [judged(*pair_of(processes, noise, slower, rng)) for _ in range(150)]
    assert least <= sum(each.verdicts[1].status is Status.REGRESSED for each in found) / 150 <= most


def test_one_side_that_scatters_is_not_slower() -> None:
    """The spread of both sides counts: three equal processes say nothing of the other three."""
    before, after = ([at(*[us] * 8) for us in side] for side in ((205.0, 205.01, 205.02), (215.0, 205.0, 210.0)))
    assert judged(before, after).verdicts[1].status is not Status.REGRESSED


@pytest.mark.parametrize(
    ("speeds", "slower", "status"),
    [
        ((1.0, 1.5, 1.0), 0.0, Status.PASS),
        ((1.0, 1.5, 1.0), 0.15, Status.REGRESSED),
        ((1.5, 1.6, 1.5), 0.0, Status.NOT_JUDGED),
    ],
)
def test_dispatch_is_judged_at_the_host_speed_of_both_sides(
    speeds: tuple[float, ...], slower: float, status: Status
) -> None:
    """A slower host takes longer for dispatch than for its reference."""

    def side(speeds: tuple[float, ...], us: float) -> list[Run]:
        times = [(us * speed**1.2, CONTROL_US * speed) for speed in speeds]
        return [run(host=(time, 1.01 * time), host_control_us=control) for time, control in times]

    found = judged(side((1.0, 1.0, 1.0), 50.0), side(speeds, 50.0 * (1 + slower)))
    (verdict,) = (each for each in found.verdicts if each.subject == Timer.HOST.label)
    assert verdict.status is status
    assert (verdict.subject in found.undecided) is (status is Status.NOT_JUDGED)


def compared(*, noise: float, slower: float, rng: random.Random) -> tuple[int, JudgedSet]:
    """Compare two sets as `kernelgauge compare` does, until GPU time is decided. Return the processes of each side too."""
    before: list[Run] = []
    after: list[Run] = []
    for done in range(1, 13):
        for side, center in ((before, 205.0), (after, 205.0 * (1 + slower))):
            side.append(process(center, noise=noise, spread=noise / 3, rng=rng))
        if done in looks(12) and not (found := judged(before, after)).undecided:
            break
    return done, found


@pytest.mark.parametrize(("noise", "processes"), [(0.0006, 3.1), (0.002, 6)])
def test_unchanged_code_is_decided_after_few_processes(noise: float, processes: float) -> None:
    rng = random.Random(20261124)
    found = [compared(noise=noise, slower=0.0, rng=rng) for _ in range(100)]
    assert sum(done for done, _ in found) / len(found) <= processes
    assert all(judged.verdicts[1].status is Status.PASS for _, judged in found)


@pytest.mark.parametrize("noise", [0.0012, 0.004])
def test_wanted_slowdown_is_seldom_decided_to_pass(noise: float) -> None:
    """A slowdown of 0.5 % is excluded in 5 of 100 comparisons at most, over all looks."""
    rng = random.Random(20261124)
    found = [compared(noise=noise, slower=0.005, rng=rng)[1] for _ in range(300)]
    assert sum(not each.undecided and each.verdicts[1].status is Status.PASS for each in found) <= 0.05 * len(found)


def test_gate_of_the_suite_is_as_small_a_change_as_is_wanted() -> None:
    sides = [[at(*[us * (1 + 0.004 * (-1) ** place)] * 8) for place in range(4)] for us in (205.0, 205.3)]
    for gate, undecided in (({}, ("GPU time",)), ({Timer.DEVICE: 0.05}, ())):
        found = judge_sets("w", *sides, comparisons=1, limits=Limits(gate=gate), names=("before", "after"))
        assert found.undecided == undecided


@pytest.mark.parametrize("other", [{0}, {0, 1}, set()])
def test_structure_of_every_process_counts(other: set[int]) -> None:
    more = {"kernels": (*mlp_kernels(), launched("extra", 1.0)), "counts": counts(launches=5)}
    after = [run(host=None, end_to_end=None, **(more if place in other else {})) for place in range(3)]
    structure = judged([run(host=None, end_to_end=None)] * 3, after).verdicts[0]
    assert structure.status.fails is bool(other)
    assert reasons(structure, "why") == ([f"in {len(other)} of 3 processes of after"] if other else [])
