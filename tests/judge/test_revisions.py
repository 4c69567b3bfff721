"""Two sets of processes of one machine, and nights that creep: how often each rule is right,
simulated.
"""

import math
import random
from collections import Counter

import msgspec
import pytest

from kernelgauge.judge import Status
from kernelgauge.judge.revisions import JudgedSet, by_chance, find_creep, judge_sets, looks
from kernelgauge.judge.timing import Limits
from kernelgauge.run import KernelChoice, Run, Timer
from tests.builders import counts, fingerprint, launched, mlp_kernels, reasons, run

COMPARISONS = 3 * 21  # three looks at a suite of seven workloads with three times


def process(center: float, *, noise: float, spread: float, rng: random.Random) -> Run:
    """One process, whose mean is off by `noise`, and whose replicates by `spread`."""
    mean = center * (1 + rng.gauss(0, noise))
    return at(*(mean * (1 + spread * step) for step in (-1, 1) * 4))


def pair_of(processes: int, noise: float, slower: float, rng: random.Random) -> list[list[Run]]:
    centers = (205.0, 205.0 * (1 + slower))
    return [
        [process(center, noise=noise, spread=0.0005, rng=rng) for _ in range(processes)]
        for center in centers
    ]


def at(*device: float) -> Run:
    return run(device=device, host=None, end_to_end=None)


def judged(before: list[Run], after: list[Run]) -> JudgedSet:
    return judge_sets("w", before, after, comparisons=COMPARISONS, names=("before", "after"))


@pytest.mark.parametrize(
    ("noise", "slower", "processes", "least", "most"),
    [(0.01, 0.0, 3, 0.0, 0.01), (0.001, 0.01, 3, 0.95, 1.0)],
)
def test_share_of_regressed_at_a_noise(
    noise: float, slower: float, processes: int, least: float, most: float
) -> None:
    rng = random.Random(20261123)
    found = [judged(*pair_of(processes, noise, slower, rng)) for _ in range(150)]
    assert least <= sum(each.verdicts[1].status is Status.REGRESSED for each in found) / 150 <= most


def test_one_side_that_scatters_is_not_slower() -> None:
    """The spread of both sides counts: three equal processes say nothing of the other three."""
    before, after = (
        [at(*[us] * 8) for us in side] for side in ((205.0, 205.01, 205.02), (215.0, 205.0, 210.0))
    )
    assert judged(before, after).verdicts[1].status is not Status.REGRESSED


TUNED = {1024: "XBLOCK=1024,num_warps=4", 512: "XBLOCK=512,num_warps=8"}


def tuned(xblock: int, us: float) -> Run:
    """A process whose autotuner chose an XBLOCK."""
    kernels = mlp_kernels(xblock=xblock)
    choice = KernelChoice(kernels[2].identity.unnumbered, "", TUNED[xblock])
    return msgspec.structs.replace(at(*[us] * 8), kernels=kernels, choices=(choice,))


def test_choices_of_both_sides_are_compared_with_their_like() -> None:
    before = [tuned(1024, 205.0), tuned(1024, 205.01), tuned(512, 223.0)]
    unlucky = [tuned(512, 223.01), tuned(512, 223.0), tuned(512, 223.02)]
    assert [each.status for each in judged(before, unlucky).verdicts] == [Status.PASS] * 2
    # nothing alike: the most of each side
    slower = judged(before[:2], unlucky).verdicts
    assert [each.status for each in slower] == [Status.PASS, Status.REGRESSED]
    assert "autotuner chose another launch configuration" in reasons(slower[1], "cause")[0]
    other = [msgspec.structs.replace(before[0], kernels=mlp_kernels()[:3]), *before[1:]]
    (unjudged,) = judged(other, unlucky).verdicts
    assert unjudged.status is Status.INVALID


@pytest.mark.parametrize(("slower", "least", "most"), [(0.0, 0.0, 0.01), (0.0025, 0.95, 1.0)])
def test_share_of_regressed_in_pairs(slower: float, least: float, most: float) -> None:
    """What is 0.1 % slower at first is measured in more pairs.

    Their order was drawn: no noise makes unchanged code red.
    """
    rng, found = random.Random(20261128), []
    for _ in range(100):
        sides = pair_of(12, 0.0008, slower, rng)
        for done in sorted(looks(12)):
            of_look = [side[:done] for side in sides]
            last = judge_sets(
                "w", *of_look, comparisons=COMPARISONS, names=("before", "after"), beside=()
            )
            if not last.undecided:
                break
        found.append(last.verdicts[1])
    slow = [each for each in found if each.status is Status.REGRESSED]
    assert least <= len(slow) / 100 <= most
    in_pairs = [each for each in slow if reasons(each, "why")]
    assert all(each.change and each.change.low and each.change.low >= 0 for each in in_pairs)
    assert not slow or "slower in 9 pairs of processes" in reasons(in_pairs[0], "why")[0]


def test_level_of_pairs_is_that_of_all_noisy_times() -> None:
    """26 noisy times: each by itself would be an alarm in 1 of 100, and some time in 23 of 100."""
    rng, alarms = random.Random(20261129), Counter[str]()
    for _ in range(100):
        times = [[rng.gauss(0, 0.004) for _ in range(7)] for _ in range(26)]
        alarms["alone"] += any(by_chance(each) <= 0.01 for each in times)
        largest = max(times, key=lambda each: math.fsum(each) / math.hypot(*each))
        alarms["beside"] += by_chance(largest, [it for it in times if it is not largest]) <= 0.01
    assert alarms["beside"] <= 3 < 10 < alarms["alone"]


def test_slower_latency_of_a_cpu_is_decided() -> None:
    """Latencies of processes spread by 4.5 %: three of each side neither show nor exclude +25 %."""
    rng, cpu = random.Random(20261130), fingerprint(device="a CPU", arch="cpu", sm_count=None)

    def on_cpu(us: float) -> Run:
        mean = us * math.exp(rng.gauss(0, 0.045))
        times = [mean * math.exp(rng.gauss(0, 0.01)) for _ in range(8)]
        return run(device=None, host=None, end_to_end=times, machine=cpu, gpu=None)

    for slower, status in ((1.25, Status.REGRESSED), (1.0, Status.PASS)):
        for _ in range(20):
            sides = [[on_cpu(us) for _ in range(12)] for us in (300.0, slower * 300.0)]
            for done in sorted(looks(12)):
                found = judged(*(side[:done] for side in sides))
                if not found.undecided:
                    break
            assert (found.verdicts[1].status, found.undecided) == (status, ())


@pytest.mark.parametrize("noise", [0.0012, 0.004])
def test_wanted_slowdown_is_seldom_decided_to_pass(noise: float) -> None:
    """A slowdown of 0.5 % is excluded in 5 of 100 comparisons at most, over all looks of
    `kernelgauge compare`.
    """
    rng = random.Random(20261124)
    passed = 0
    for _ in range(300):
        sides: list[list[Run]] = [[], []]
        for done in range(1, 13):
            for side, center in zip(sides, (205.0, 205.0 * 1.005), strict=True):
                side.append(process(center, noise=noise, spread=noise / 3, rng=rng))
            if done in looks(12) and not (found := judged(*sides)).undecided:
                passed += found.verdicts[1].status is Status.PASS
                break
    assert passed <= 0.05 * 300


def test_gate_of_the_suite_is_as_small_a_change_as_is_wanted() -> None:
    sides = [
        [at(*[us * (1 + 0.004 * (-1) ** place)] * 8) for place in range(4)] for us in (205.0, 205.3)
    ]
    for gate, undecided in (({}, ("GPU time",)), ({Timer.DEVICE: 0.05}, ())):
        found = judge_sets(
            "w", *sides, comparisons=1, limits=Limits(gate=gate), names=("before", "after")
        )
        assert found.undecided == undecided


@pytest.mark.parametrize("other", [{0}, {0, 1}, set()])
def test_structure_of_every_process_counts(other: set[int]) -> None:
    more = {"kernels": (*mlp_kernels(), launched("extra", 1.0)), "counts": counts(launches=5)}
    after = [
        run(host=None, end_to_end=None, **(more if place in other else {})) for place in range(3)
    ]
    structure = judged([run(host=None, end_to_end=None)] * 3, after).verdicts[0]
    assert structure.status.fails is bool(other)
    assert reasons(structure, "why") == (
        [f"in {len(other)} of 3 processes of after"] if other else []
    )


A, B = [200.0] * 20, [202.0] * 10


@pytest.mark.parametrize(
    ("levels", "drift", "spread", "since", "percent"),
    [
        (10 * A, 0.0, 0.01, None, 0.0),  # nights show more noise than the rule expects
        (A + A[:10], 5e-4, 6e-4, 20, 0.5),
        (3 * A, 5e-4, 6e-4, 20, 2.0),  # of several alarms the lowest level counts
        (A + B + A, 0.0, 6e-4, None, 0.0),  # mended
        (A + 20 * [180.0] + 10 * [182.0], 0.0, 6e-4, 40, 1.1),  # of what was gained
        ([*A, 300.0, *A], 0.0, 6e-4, None, 0.0),  # an outlier
    ],
)
def test_rise_is_found_while_it_lasts(
    levels: list[float], drift: float, spread: float, since: int, percent: float
) -> None:
    rng = random.Random(5)
    nights = [
        math.log(us) + drift * max(0, n - 19) + rng.gauss(0, spread) for n, us in enumerate(levels)
    ]
    found = find_creep([(each, 6e-4) for each in nights])
    assert (found and found.since) == (since and pytest.approx(since, abs=2))
    assert found is None or 100 * found.change == pytest.approx(percent, abs=0.12)
