"""How a replicate is best made: its calls, those before them that do not count, its warm-up and its hold.

    python benchmarks/replicates.py --seconds 85      ways take turns, in an order drawn anew each time
    python benchmarks/replicates.py --long            one session of 800 calls: how long the GPU keeps its speed
    python benchmarks/replicates.py --allocations     eight fresh allocations, each measured six times in turns

For each workload and way: the mean GPU time against that of the first way with its standard error, the spread, the time
that a replicate takes, and the standard error that a second of such replicates leaves. Sessions whose calls were not queued
as a whole are counted and left out. Of a long session: the correlation of the device
times of two calls by how far apart they are, and the deviation of the means of 40 calls, beside what it would be if calls
were independent. Of allocations: how far their means spread, and the repetitions of one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from math import hypot
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf")]

import numpy as np

from kernelgauge import Workload
from kernelgauge.measure.device import Device, choose_device
from kernelgauge.measure.instance import build, first_call, host_calls, warm_up
from kernelgauge.measure.profile import ProfilerSession, profile_session
from kernelgauge.run import Timer, summarize
from workloads import WORKLOADS

_WORKLOADS = (
    "mlp-eager-bf16-64x128x768x3072",
    "mlp-compiled-bf16-64x128x768x3072",
    "linear-eager-bf16-1024x32x64",
)
_ADDRESSES = 16
_LONG_CALLS, _BLOCK = 800, 40
_ALLOCATIONS, _REPETITIONS = 8, 6
_LAGS = (1, 5, 20, 40, 80)


class Way(NamedTuple):
    """How a replicate is made. `hold`: times what the host needs to dispatch a call."""

    calls: int
    before: int
    warm_up_s: float
    hold: float


WAYS = (
    Way(40, 14, 0.02, 1.5),
    Way(12, 7, 0.005, 1.5),
    Way(16, 6, 0.02, 1.5),
    Way(16, 6, 0.005, 1.5),
    Way(16, 13, 0.0, 1.5),
    Way(16, 6, 0.005, 4.5),
    Way(10, 6, 0.005, 1.5),
)


@dataclass
class Made:
    """GPU times of the replicates of one way, and what each took."""

    device_us: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    not_held: int = 0

    def __str__(self) -> str:
        in_a_second = self.spread * fmean(self.seconds) ** 0.5
        left_out = f", {self.not_held} left out" if self.not_held else ""
        return f"spread {self.spread:.3f} %, {1e3 * median(self.seconds):.0f} ms each, {in_a_second:.3f} % in a second{left_out}"

    @property
    def spread(self) -> float:
        return 100 * stdev(self.device_us) / fmean(self.device_us)

    @property
    def error(self) -> float:
        return float(self.spread / len(self.device_us) ** 0.5)


def sums_us(session: ProfilerSession) -> list[float]:
    """Of the kernels of each call."""
    return [sum(each.duration_us for each in executions) for executions in session.executions]


def dispatch_us(device: Device, workload: Workload) -> float:
    return profile_session(device, build(workload, device), iterations=10).usual_dispatch_us


def take(device: Device, workload: Workload, way: Way, dispatch: float, replicate: int, made: Made) -> None:
    started = time.perf_counter()
    instance = build(workload, device, replicate=replicate)
    warm_up(device, instance, calls=device.warm_up_calls, seconds=way.warm_up_s)
    session = profile_session(
        device, instance, iterations=way.calls, warmup=way.before, hold_us=max(50.0, way.hold * dispatch)
    )
    host_calls(device, instance, 30)
    if not session.was_held:
        made.not_held += 1
        return
    made.seconds.append(time.perf_counter() - started)
    made.device_us.append(summarize(sums_us(session), Timer.DEVICE.timing.statistic))


def compare(device: Device, workloads: list[Workload], seconds: float) -> None:
    made = {(workload.id, way): Made() for workload in workloads for way in WAYS}
    dispatch = {workload.id: dispatch_us(device, workload) for workload in workloads}
    steps = [(workload, way) for workload in workloads for way in WAYS]
    chance = random.Random(1)
    until, round_ = time.perf_counter() + seconds, 0
    while time.perf_counter() < until or round_ < 2:
        chance.shuffle(steps)
        for workload, way in steps:
            take(device, workload, way, dispatch[workload.id], round_ % _ADDRESSES, made[workload.id, way])
        round_ += 1
    for workload in workloads:
        print(f"{workload.id}, {round_} replicates of each")
        first = made[workload.id, WAYS[0]]
        for way in WAYS:
            one = made[workload.id, way]
            against = 100 * (fmean(one.device_us) / fmean(first.device_us) - 1)
            error = hypot(one.error, first.error)
            print(
                f"  {way.calls:>3} calls after {way.before:>2}, warm-up {1e3 * way.warm_up_s:>2.0f} ms, hold x{way.hold:g}: "
                f"{against:+.3f} +- {error:.3f} %, {one}"
            )


def long_session(device: Device, workload: Workload) -> None:
    instance = build(workload, device)
    hold_us = 1.5 * dispatch_us(device, workload)
    times = np.array(sums_us(profile_session(device, instance, iterations=_LONG_CALLS, warmup=5, hold_us=hold_us)))
    percent = 100 * (times / times.mean() - 1)
    apart = ", ".join(f"{lag}: {np.corrcoef(percent[:-lag], percent[lag:])[0, 1]:.2f}" for lag in _LAGS)
    blocks = percent.reshape(-1, _BLOCK).mean(axis=1)
    print(
        f"{workload.id}: correlation of calls apart by {apart}; means of {_BLOCK} calls spread by {blocks.std():.3f} %, "
        f"were calls independent {percent.std() / _BLOCK**0.5:.3f} %"
    )


def allocations(device: Device, workload: Workload) -> None:
    instances = [build(workload, device, replicate=replicate) for replicate in range(_ALLOCATIONS)]
    hold_us = 1.5 * dispatch_us(device, workload)
    chance = random.Random(1)
    logs = np.empty((_REPETITIONS, _ALLOCATIONS))
    for repetition in range(_REPETITIONS):
        for place in chance.sample(range(_ALLOCATIONS), _ALLOCATIONS):
            session = profile_session(device, instances[place], iterations=40, warmup=14, hold_us=hold_us)
            logs[repetition, place] = np.log(summarize(sums_us(session), Timer.DEVICE.timing.statistic))
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    within = np.sqrt((rest**2).sum() / ((_REPETITIONS - 1) * (_ALLOCATIONS - 1)))
    between = logs.mean(axis=0).std(ddof=1)
    print(
        f"{workload.id}: means of {_ALLOCATIONS} allocations spread by {100 * between:.3f} %, repetitions by {100 * within:.3f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=85.0)
    parser.add_argument("--long", action="store_true", help="one long session of each workload instead")
    parser.add_argument("--allocations", action="store_true", help="what fresh allocations differ by instead")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    device.host.patience_seconds = 0.0
    workloads = [workload for workload in WORKLOADS if workload.id in _WORKLOADS]
    with build(workloads[0], device).grad_mode():
        for workload in workloads:
            first_call(build(workload, device))
        if arguments.long or arguments.allocations:
            for workload in workloads:
                (long_session if arguments.long else allocations)(device, workload)
        else:
            compare(device, workloads, arguments.seconds)


if __name__ == "__main__":
    main()
