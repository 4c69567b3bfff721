"""Red nights a year of unchanged code, by the rule for times, under noise that the rule does not
assume. Needs no GPU.

    python benchmarks/a_year.py                  26 workloads, 400 years of each kind: five minutes
    python benchmarks/a_year.py --years 40       quicker
    python benchmarks/a_year.py --night 0.75     nights that vary more than the rule assumes

A year is 365 nights of one suite on one machine, whose baseline stays. A machine is noisier than
others by a factor of its own, as recorded machines are (src/kernelgauge/judge/noise.json). A red
time is measured in a fresh process of the same night.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge.judge.timing import Scatter, decide, prior_for, scatter
from kernelgauge.run import CALL_TIMERS, Fingerprint, Observation, ProcessTime, Timer

_NIGHTS = 365
_H200 = Fingerprint(
    "NVIDIA H200",
    "sm_90",
    132,
    150109880320,
    700.0,
    False,
    "580.1",
    "13.0",
    "2.11",
    "3.6",
    None,
    "3.12",
)
# The times of long and of short workloads, in microseconds, and the kernels of a call, by timer.
_WORKLOADS = {
    Timer.DEVICE: ((230.0, 4), (3.0, 1)),
    Timer.HOST: ((75.0, 4), (20.0, 1)),
    Timer.END_TO_END: ((300.0, 4), (60.0, 1)),
}
_DOF = 5  # of Student's t
_CORRELATION = 0.3  # between one night and the next
_SLOW = {Timer.DEVICE: 0.006}  # by how much a machine of two speeds is slower in every third night
_SLOW_REFERENCE = 0.0067  # and its reference GEMM, as one was seen
_KINDS = ("Gaussian", "Student's t, 5 degrees", "correlated by 0.3", "both of these", "two speeds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--years", type=int, default=400)
    parser.add_argument("--workloads", type=int, default=26)
    parser.add_argument(
        "--night", type=float, metavar="PART", help="nights vary by this, of processes' variance"
    )
    options = parser.parse_args()
    print("| baseline | noise | red nights a year | suspected | years with none |")
    print("|---|---|---|---|---|")
    for processes, nights in ((1, 1), (4, 1), (10, 1), (5, 5), (10, 10), (20, 20)):
        for kind in _KINDS:
            chance = np.random.default_rng([processes, nights, _KINDS.index(kind)])
            found = [
                year(chance, kind, processes, nights, options.workloads, options.night)
                for _ in range(options.years)
            ]
            red, suspected = ([each[side] for each in found] for side in (0, 1))
            name = (
                f"{processes} process{'es' * (processes > 1)} of {nights} night{'s' * (nights > 1)}"
            )
            none = fmean(each == 0 for each in red)
            print(
                f"| {name} | {kind} | {fmean(red):.2f}{_interval(chance, red)} | {fmean(suspected):.1f} | {100 * none:.0f} % |",
                flush=True,
            )


def _interval(chance: np.random.Generator, red: Sequence[int]) -> str:
    """Return the 95 % interval of a mean over years, by the bootstrap."""
    means = chance.choice(red, (2000, len(red))).mean(axis=1)
    return " [{:.2f}, {:.2f}]".format(*np.quantile(means, (0.025, 0.975)))


def year(
    chance: np.random.Generator,
    kind: str,
    processes: int,
    nights: int,
    workloads: int,
    night: float | None = None,
) -> tuple[int, int]:
    """Return in how many nights of a year a time is red, and in how many one is suspected before
    the fresh process.
    """
    red, suspected = (np.zeros(_NIGHTS, dtype=bool) for _ in range(2))
    is_slow = (np.arange(_NIGHTS) % 3 == 0) & (kind == "two speeds")
    for timer in CALL_TIMERS:
        prior = prior_for(timer, _H200)
        noise = prior.noise
        of_nights = math.sqrt(noise.night if night is None else night)
        machine = math.sqrt(noise.dof / chance.chisquare(noise.dof)) * noise.process
        known: list[tuple[list[ProcessTime], float, int]] = []
        for number in range(workloads):
            us, kernels = _WORKLOADS[timer][number % 2]
            spread = math.hypot(machine, math.sqrt(kernels) * noise.resolution_us / us)
            at_night = _drawn(chance, kind, nights) * machine * of_nights
            logs = (
                _drawn(chance, kind, processes) * spread + at_night[np.arange(processes) % nights]
            )
            known.append(
                (
                    [
                        _process(us * math.exp(log), place % nights, timer)
                        for place, log in enumerate(logs)
                    ],
                    spread,
                    kernels,
                )
            )
        scatters = [scatter(here, prior, kernels) for here, _, kernels in known]
        for (here, spread, kernels), own in zip(known, scatters, strict=True):
            shown = Scatter(
                *(
                    math.fsum(each) - mine
                    for each, mine in zip(zip(*scatters, strict=True), own, strict=True)
                )
            )
            expected = fmean(each.logarithm for each in here)
            us = here[0].observation.mean_us
            tonight = (
                _drawn(chance, kind, _NIGHTS) * machine * of_nights
                - expected
                + math.log(_usual_us(timer, us))
            )
            if timer in _SLOW:  # the reference shows it, and the rule takes it off
                tonight = tonight + is_slow * (_SLOW[timer] - _SLOW_REFERENCE)
            run, fresh = (
                tonight + _drawn(chance, kind, _NIGHTS, is_night=False) * spread for _ in range(2)
            )
            change = decide(
                here,
                here[-1:],
                prior,
                comparisons=len(CALL_TIMERS) * workloads,
                kernels=kernels,
                shown=shown,
            ).change
            assert change.low is not None
            needed = max(
                math.log1p(change.estimate) - math.log1p(change.low), math.log1p(prior.gate)
            )
            suspected |= run > needed
            red |= (run > needed) & (fresh > needed)
    return int(red.sum()), int(suspected.sum())


def _usual_us(timer: Timer, us: float) -> float:
    return min((each for each, _ in _WORKLOADS[timer]), key=lambda each: abs(math.log(us / each)))


def _process(us: float, night: int, timer: Timer) -> ProcessTime:
    steady = Observation(
        mean_us=us,
        spread=0.0,
        replicates=8,
        iterations=10,
        control_us=None if timer is Timer.DEVICE else 40.0,
    )
    return ProcessTime(
        steady,
        night=f"night {night}",
        place="here",
        host="here",
        is_host_clock=timer is not Timer.DEVICE,
    )


def _drawn(
    chance: np.random.Generator, kind: str, count: int, *, is_night: bool = True
) -> NDArray[np.float64]:
    """Return values with a standard deviation of 1. Those of nights may follow one another."""
    is_heavy = kind in (_KINDS[1], _KINDS[3])
    values = (
        chance.standard_t(_DOF, count) * math.sqrt((_DOF - 2) / _DOF)
        if is_heavy
        else chance.standard_normal(count)
    )
    if is_night and kind in _KINDS[2:4]:
        for place in range(1, count):
            values[place] = (
                _CORRELATION * values[place - 1] + math.sqrt(1 - _CORRELATION**2) * values[place]
            )
    return values


if __name__ == "__main__":
    main()
