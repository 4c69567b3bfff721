"""How often the rule is wrong: on simulated noise, as large as it is expected to be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from kernelgauge.judge import DEFAULT_POLICIES, Seen, Status, decide, smallest_detectable
from kernelgauge.judge.noise import process_noise
from kernelgauge.run import Timer
from tests.builders import CONTROL_US, observation

COMPARISONS = 21  # seven workloads, three timers
TIMES_US = {Timer.DEVICE: (3.0, 200.0), Timer.END_TO_END: (60.0, 300.0), Timer.HOST: (20.0, 70.0)}
HOST_SHARES = {Timer.DEVICE: 0.0, Timer.END_TO_END: 0.3, Timer.HOST: 1.0}


class Lab:
    """Draws processes of one timer whose replicates, processes and GPUs differ as the policy expects."""

    def __init__(self, timer: Timer, mean_us: float, *, replicates: int = 12, seed: int = 20240607) -> None:
        self.policy = DEFAULT_POLICIES[timer]
        self.share = HOST_SHARES[timer]
        self.mean_us, self.replicates = mean_us, replicates
        self.generator = np.random.default_rng([seed, list(Timer).index(timer), int(mean_us)])
        expected = self.policy.for_share(self.share)
        levels = (expected.replicate, expected.process, expected.machine)
        self.replicate, self.process, self.machine = (math.sqrt(level.variance(mean_us)) for level in levels)

    def gpu(self) -> float:
        return float(self.generator.normal(0, self.machine))

    def seen(self, name: str = "a", gpu: float = 0.0, *, change: float = 0.0) -> Seen:
        """One process; `change`: a slowdown, as a fraction."""
        truth = gpu + math.log1p(change) + self.generator.normal(0, self.process)
        logs = truth + self.generator.normal(0, self.replicate, self.replicates)
        made = observation(
            self.mean_us * math.exp(logs.mean()),
            spread=float(logs.std(ddof=1)),
            replicates=self.replicates,
            control_us=CONTROL_US if self.share else None,
        )
        return Seen(made, name, self.share)

    def statuses(
        self, repeats: int, *, processes: int, change: float = 0.0, elsewhere: bool = False
    ) -> Counter[Status]:
        """What is said of a run that is slower by `change`, each time against a fresh baseline."""
        return Counter(self._status(processes, change, elsewhere) for _ in range(repeats))

    def _status(self, processes: int, change: float, elsewhere: bool) -> Status:
        before_gpu = self.gpu()
        after_gpu = self.gpu() if elsewhere else before_gpu
        before = [self.seen("a", before_gpu) for _ in range(processes)]
        after = self.seen("b" if elsewhere else "a", after_gpu, change=change)
        return decide(before, after, self.policy, comparisons=COMPARISONS).status


def labs() -> Iterator[Lab]:
    for timer, times in TIMES_US.items():
        for mean_us in times:
            yield Lab(timer, mean_us)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["the same GPU", "another GPU"])
@pytest.mark.parametrize("processes", [1, 4])
def test_at_most_one_suite_in_a_hundred_calls_unchanged_code_slower(processes: int, elsewhere: bool) -> None:
    found = sum((lab.statuses(2500, processes=processes, elsewhere=elsewhere) for lab in labs()), Counter[Status]())
    of_one = found[Status.REGRESSED] / found.total()
    of_a_suite = 1 - (1 - of_one) ** COMPARISONS  # as of 700 suites
    assert of_a_suite <= 0.015
    assert found[Status.PASS] > 0.8 * found.total()  # and it is not blind either


@pytest.mark.parametrize("slope", [0.0, 0.45, 1.0])
def test_a_gpu_that_the_baseline_has_not_seen_is_not_called_slower_by_what_its_control_gemm_tells(slope: float) -> None:
    """GPUs whose control GEMM spreads by 1 %, and whose time follows it by `slope`: with what is left as expected."""
    lab = Lab(Timer.DEVICE, 200.0)
    assert lab.policy.beyond_gemm is not None
    left = lab.policy.beyond_gemm.relative

    def of_a_gpu(name: str) -> Seen:
        speed = lab.generator.normal(0, 0.01)
        made = lab.seen(name, slope * speed + lab.generator.normal(0, left))
        return replace(made, gemm_us=150.0 * math.exp(speed))

    repeats, found = 4000, Counter[Status]()
    for _ in range(repeats):
        before = [of_a_gpu(str(place)) for place in range(8)]
        found[decide(before, of_a_gpu("new"), lab.policy, comparisons=COMPARISONS).status] += 1
    assert 1 - (1 - found[Status.REGRESSED] / repeats) ** COMPARISONS <= 0.02
    assert found[Status.PASS] > 0.95 * repeats


def test_what_other_gpus_tell_of_processes_calls_no_gpu_of_the_baseline_slower() -> None:
    """Four GPUs, two processes each, and a run on one of them: the level of processes is known from all four."""
    found = Counter[Status]()
    for lab in labs():
        for _ in range(1000):
            gpus = {name: lab.gpu() for name in "abcd"}
            before = [lab.seen(name, gpu) for name, gpu in gpus.items() for _ in range(2)]
            found[decide(before, lab.seen("a", gpus["a"]), lab.policy, comparisons=COMPARISONS).status] += 1
    assert 1 - (1 - found[Status.REGRESSED] / found.total()) ** COMPARISONS <= 0.02


def test_ten_calibrated_processes_and_half_a_percent_of_an_mlp_is_caught() -> None:
    found = Lab(Timer.DEVICE, 200.0).statuses(1500, processes=10, change=0.005)
    assert found[Status.REGRESSED] >= 0.95 * found.total()


def test_the_statistical_gate_alone_has_the_level_that_it_says() -> None:
    """Without the other two gates, and at a level that a few thousand comparisons can show."""
    lab = Lab(Timer.DEVICE, 200.0)
    outside = 0
    for _ in range(4000):
        low = decide([lab.seen() for _ in range(4)], lab.seen(), lab.policy).change.low
        assert low is not None
        outside += low > 0
    # One-sided 1 %; four standard errors of the count, and as much again for the approximated degrees of freedom.
    assert 0.002 < outside / 4000 < 0.018


@pytest.mark.parametrize("timer", Timer)
@pytest.mark.parametrize("processes", [2, 10])
def test_the_smallest_change_that_is_said_to_be_detectable_is_caught_95_times_in_100(
    timer: Timer, processes: int
) -> None:
    caught, repeats = 0, 1500
    lab = Lab(timer, 3.0 if timer is Timer.DEVICE else 20.0)  # short: of all gates the floor is met last
    for _ in range(repeats):
        before = [lab.seen() for _ in range(processes)]
        least = smallest_detectable(before, before[-1], lab.policy, comparisons=COMPARISONS)
        after = lab.seen(change=least)
        caught += decide(before, after, lab.policy, comparisons=COMPARISONS).status is Status.REGRESSED
    assert caught / repeats == pytest.approx(0.95, abs=0.045)


def test_the_smallest_detectable_change_is_beyond_every_gate() -> None:
    tiny = Lab(Timer.HOST, 10.0)  # 1 us of 10 is a tenth, where 3 % would be enough otherwise
    before = [tiny.seen() for _ in range(10)]
    assert smallest_detectable(before, before[-1], tiny.policy, comparisons=1) > 0.1


def test_the_noise_between_processes_that_is_told_is_that_which_there_is() -> None:
    lab = Lab(Timer.DEVICE, 200.0)
    told = [process_noise([lab.seen() for _ in range(20)], lab.policy) for _ in range(200)]
    assert np.mean(told) == pytest.approx(lab.process, rel=0.15)
