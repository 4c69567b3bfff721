"""How often `kernelgauge judge` calls unchanged code faster, or slower: simulated, with the rule that judges.

    python benchmarks/contests.py [--contests 20000]

A second contest confirms a faster candidate. Two processes of each side, with four replicates each, of which each is the fastest of three batches. Times are log-normal. One
batch in ten is disturbed by another job, and takes up to half as long again. `process` and `batch` are standard deviations of
logarithms. The last lines draw no times: two processes of each side are recorded ones of unchanged code, of one workload and
one GPU.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from recorded import recorded_suites

from kernelgauge.judge import Status
from kernelgauge.judge.revisions import decide_contest
from kernelgauge.run import Sample, Timer

SPREADS = [
    (0.0, 0.001),
    (0.001, 0.001),
    (0.003, 0.005),
    (0.01, 0.01),
    (0.02, 0.01),
    (0.02, 0.02),
    (0.03, 0.1),
    (0.05, 0.05),
    (0.1, 0.1),
    (0.3, 0.3),
]
PROCESSES, REPLICATES, BATCHES = 2, 4, 3
DISTURBED, LONGER = 0.1, 0.5


def side(draw: random.Random, process: float, batch: float, factor: float = 1.0) -> list[Sample]:
    """Draw the samples of the processes of one side."""
    samples = []
    for _ in range(PROCESSES):
        level = math.log(100.0 * factor) + draw.gauss(0, process)

        def batch_us(level: float = level) -> float:
            longer = LONGER * draw.random() if draw.random() < DISTURBED else 0.0
            return math.exp(level + draw.gauss(0, batch)) * (1 + longer)

        fastest = [min(batch_us() for _ in range(BATCHES)) for _ in range(REPLICATES)]
        samples.append(Sample(tuple(fastest), BATCHES))
    return samples


def confirmed(contest: Callable[[], Status]) -> Status:
    """Return what a contest says. Another one of other processes must confirm that a candidate is faster."""
    status = contest()
    return contest() if status is Status.IMPROVED else status


def recorded_samples(timer: Timer) -> list[list[Sample]]:
    """Return the samples of processes that launched the same kernels on one GPU, with as many replicates as a contest."""
    found = defaultdict[tuple[object, ...], list[Sample]](list)
    for suite in recorded_suites():
        for name, run in suite.runs.items():
            if (sample := run.samples.get(timer)) is not None and len(sample.replicates_us) >= REPLICATES:
                launched = tuple(kernel.identity for kernel in run.kernels)
                found[name, suite.gpu, launched].append(Sample(sample.replicates_us[:REPLICATES], BATCHES))
    return [each for each in found.values() if len(each) >= 2 * PROCESSES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contests", type=int, default=20_000)
    contests = parser.parse_args().contests
    draw = random.Random(0)
    print(f"of {contests} contests of unchanged code; and of code that takes 5 % and 20 % less")
    print("prior  process      batch   faster   slower   faster by 5 %   faster by 20 %")
    for is_cpu in (False, True):
        for process, batch in SPREADS:

            def contest(factor: float = 1.0) -> Status:
                sides = side(draw, process, batch), side(draw, process, batch, factor)  # noqa: B023 (called at once)
                return decide_contest(*sides, is_cpu=is_cpu).status  # noqa: B023

            found = [confirmed(contest) for _ in range(contests)]
            few = contests // 20
            seen = [
                sum(confirmed(partial(contest, factor)) is Status.IMPROVED for _ in range(few)) / few
                for factor in (0.95, 0.8)
            ]
            shares = [found.count(each) / contests for each in (Status.IMPROVED, Status.REGRESSED)]
            print(
                f"{'CPU' if is_cpu else 'GPU':<5}{process:9.1%}{batch:11.1%}{shares[0]:10.3%}{shares[1]:9.3%}{seen[0]:13.0%}{seen[1]:17.0%}"
            )
    print("of as many contests between recorded processes")
    for timer in (Timer.DEVICE, Timer.END_TO_END):
        groups = recorded_samples(timer)
        found = []
        for _ in range(contests):
            group = draw.choice(groups)

            def again(group: list[Sample] = group) -> Status:
                drawn = draw.sample(group, 2 * PROCESSES)
                return decide_contest(drawn[:PROCESSES], drawn[PROCESSES:], is_cpu=False).status

            found.append(confirmed(again))
        shares = [found.count(each) / contests for each in (Status.IMPROVED, Status.REGRESSED)]
        print(f"{timer.labels[0]}: faster {shares[0]:.3%}, slower {shares[1]:.3%}, of {len(groups)} workloads and GPUs")


if __name__ == "__main__":
    main()
