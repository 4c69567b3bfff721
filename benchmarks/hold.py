"""What queueing a call behind a hold does to its GPU time: replicates with it and without, in turns.

    python benchmarks/hold.py --replicates 10

One line for each workload and way: the mean GPU time, its spread between replicates, and the time for which the GPU
was idle between the kernels of a call. Microseconds and percent.
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf")]

from kernelgauge.measure.device import Device, choose_device
from kernelgauge.measure.instance import Instance, build, first_call, warm_up
from kernelgauge.measure.profile import ProfilerSession, profile_session
from kernelgauge.run import Timer, summarize
from kernelgauge.trace import Window
from workloads import WORKLOADS

_WORKLOADS = [f"mlp-{variant}-bf16-64x128x768x3072" for variant in ("eager", "compiled", "liger")]
_ITERATIONS, _WARM_UP = 40, 14


def idle_us(window: Window) -> float:
    pairs = pairwise(launch.record for launch in window.launches)
    return sum(after.start_us - before.start_us - before.duration_us for before, after in pairs)


def timed(device: Device, instance: Instance, hold_us: float) -> tuple[float, float]:
    """GPU time and idle time of one replicate."""
    warm_up(device, instance, calls=3, seconds=0.02)
    session: ProfilerSession = profile_session(
        device, instance, iterations=_ITERATIONS, warmup=_WARM_UP, hold_us=hold_us
    )
    kernels = zip(*([each.duration_us for each in executions] for executions in session.executions), strict=True)
    device_us = sum(summarize(list(kernel), Timer.DEVICE.timing.statistic) for kernel in kernels)
    return device_us, median(map(idle_us, session.windows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=10)
    arguments = parser.parse_args()
    device = choose_device("cuda")
    for workload in (entry for entry in WORKLOADS if entry.id in _WORKLOADS):
        found: dict[float, list[tuple[float, float]]] = {0.0: [], 800.0: []}
        with build(workload, device).grad_mode():
            first_call(build(workload, device))
            for replicate in range(arguments.replicates):
                for hold_us, results in found.items():
                    results.append(timed(device, build(workload, device, replicate=replicate), hold_us))
        for hold_us, results in found.items():
            spread = 100 * stdev(math.log(device_us) for device_us, _ in results)
            idle = fmean(idle for _, idle in results)
            way = "held" if hold_us else "not held"
            mean_us = fmean(device_us for device_us, _ in results)
            print(f"{workload.id:<40}{way:<10}{mean_us:>8.1f} us, spread {spread:.2f} %, idle {idle:.1f} us")


if __name__ == "__main__":
    main()
