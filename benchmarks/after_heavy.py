"""What a heavy workload leaves behind: the GPU time of the MLP after it, by how many calls the heavy one made in a row.

    python benchmarks/after_heavy.py --seconds 60

In turns, each after a rest: one replicate of the heavy workload, and then of the MLP; "12 + 30" are calls of its session,
which makes half as many before, and of its dispatch time. One line for each number of calls and each pause after them: how
much longer the MLP takes than after nothing, with the standard error, and for how long NVML says that the power cap held it
back in that time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf")]

from kernelgauge import Workload
from kernelgauge.measure import Settings
from kernelgauge.measure.device import Device, choose_device
from kernelgauge.measure.instance import build
from kernelgauge.measure.nvml import conditions_of
from kernelgauge.measure.subject import Replicate, Subject
from workloads import WORKLOADS

_HEAVY = "mlp-eager-bf16-1x2048x4096x14336"
_FOLLOWER = "mlp-eager-bf16-64x128x768x3072"
_REST_S = 0.7
_PAUSES_S = (0.0, 0.25)


@dataclass(frozen=True)
class Calls:
    """How many the heavy workload makes; none: it does not run."""

    session: int
    host: int

    def __str__(self) -> str:
        return f"{self.session} + {self.host}" if self.session else "nothing"


_WAYS = (Calls(0, 0), Calls(12, 30), Calls(12, 3), Calls(4, 6))


def ready(workload: Workload, device: Device) -> Subject:
    return Subject(workload, build(workload, device), device, Settings())


def measured(subject: Subject, index: int, calls: Calls) -> Replicate:
    subject.settings = replace(Settings(), iterations=calls.session, host_iterations=calls.host)
    return subject.replicate(index)


def capped_ms(one: Replicate) -> float:
    conditions = conditions_of([one.readings])
    return sum((conditions.throttled_ms or {}).values()) if conditions else 0.0


def line(calls: Calls, pause_s: float, found: Sequence[Replicate], usual_us: float) -> str:
    percents = [100 * (one.device_us / usual_us - 1) for one in found]
    error = f" +- {stdev(percents) / len(percents) ** 0.5:.2f}" if len(percents) > 1 else ""
    capped = fmean(capped_ms(one) for one in found)
    return f"{calls!s:<10}{pause_s:>6.2f} s{fmean(percents):>+8.2f}{error} %{capped:>8.1f} ms{len(found):>5}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workload", default=_HEAVY, help="the heavy one")
    arguments = parser.parse_args()
    device = choose_device("cuda")
    by_id: dict[str, Workload] = {workload.id: workload for workload in WORKLOADS}
    heavy, follower = (ready(by_id[name], device) for name in (arguments.workload, _FOLLOWER))
    found: dict[tuple[Calls, float], list[Replicate]] = {}
    ways = [(calls, pause) for calls in _WAYS for pause in _PAUSES_S]
    until, index = time.perf_counter() + arguments.seconds, 0
    while time.perf_counter() < until:
        for calls, pause in random.sample(ways, len(ways)):
            time.sleep(_REST_S)
            index += 1
            if calls.session:
                measured(heavy, index, calls)
            time.sleep(pause)
            found.setdefault((calls, pause), []).append(measured(follower, index, Calls(12, 0)))
    usual_us = fmean(one.device_us for pause in _PAUSES_S for one in found[Calls(0, 0), pause])
    print(f"{_FOLLOWER}: {usual_us:.2f} us; after {arguments.workload}:")
    print(f"{'calls':<10}{'pause':>8}{'takes longer by':>17}{'capped':>9}{'times':>9}")
    for calls, pause in ways:
        print(line(calls, pause, found[calls, pause], usual_us))


if __name__ == "__main__":
    main()
