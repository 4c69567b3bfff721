"""How steady the host's clock is: the control, a workload's dispatch, and what a profiler session leaves behind.

    python benchmarks/host_speed.py                      one process
    for i in $(seq 12); do python benchmarks/host_speed.py --replicates 6; done
    TEARDOWN_CUPTI=0 python benchmarks/host_speed.py     CUPTI stays attached after the session

One line for each replicate (fresh allocations): the control, and the median and lower decile of the dispatch time, before
and after a profiler session. All in microseconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf")]

from kernelgauge.measure.device import Device, choose_device
from kernelgauge.measure.instance import Instance, build, first_call, warm_up
from kernelgauge.measure.profile import profile_session
from kernelgauge.run import summarize
from workloads import WORKLOADS

CALLS = 100


def dispatch_us(device: Device, instance: Instance) -> list[float]:
    durations: list[float] = []
    for _ in range(CALLS):
        instance.prepare()
        device.synchronize()
        start = time.perf_counter_ns()
        instance.call()
        durations.append((time.perf_counter_ns() - start) / 1000)
    device.synchronize()
    return durations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="linear-eager-bf16-1024x32x64")
    parser.add_argument("--replicates", type=int, default=4)
    arguments = parser.parse_args()
    device = choose_device("auto")
    workload = next(entry for entry in WORKLOADS if entry.id == arguments.workload)
    print(f"{workload.id} on {device.fingerprint().device}, TEARDOWN_CUPTI={os.environ.get('TEARDOWN_CUPTI')}")
    with build(workload, device).grad_mode():
        first_call(build(workload, device))
        for when in ("before any session", "after a session"):
            for replicate in range(arguments.replicates):
                instance = build(workload, device, replicate=replicate)
                warm_up(device, instance, calls=3, seconds=0.02)
                if when == "after a session":
                    profile_session(device, instance, iterations=3)
                control = device.host.control_us()
                times = dispatch_us(device, instance)
                typical, decile = median(times), summarize(times, "lower decile")
                print(
                    f"  {when:<19} control {control:6.1f}  dispatch median {typical:7.1f}  lower decile {decile:7.1f}"
                )


if __name__ == "__main__":
    main()
