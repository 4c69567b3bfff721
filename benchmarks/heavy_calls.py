"""How many calls a replicate of a whole model needs: its times by its first calls, in six replicates of twelve.

    python benchmarks/heavy_calls.py                                     prints what one H200 recorded
    python benchmarks/heavy_calls.py FILE --record decode adamw          records on a GPU into FILE, then prints it

For workloads of `examples/models` whose id holds one of the words: the spread between replicates of the GPU time and of the
host dispatch time (beside the host reference), and how far each mean is from that of all calls.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("src", "examples/models")]

from kernelgauge.run import Timer, summarize

_DATA = ROOT / "benchmarks/data/heavy_calls.json"
_REPLICATES, _CALLS, _BEFORE = 6, 12, 7
_COUNTS = (3, 4, 5, 6, 8, 12)
_WARM_UP_SECONDS = 0.005


def recorded(words: list[str]) -> dict[str, Any]:
    """Return by workload and replicate, in us: GPU times and dispatches of calls, the host reference behind each dispatch."""
    from conftest import pytest_kernelgauge_workloads
    from kernelgauge.measure.compiler import torch_set_up
    from kernelgauge.measure.device import choose_device
    from kernelgauge.measure.instance import build, call_duration_us, first_call, host_calls, warm_up
    from kernelgauge.measure.profile import Pace, profile_session

    device = choose_device("cuda")
    data: dict[str, Any] = {}
    with torch_set_up():
        for workload in pytest_kernelgauge_workloads():
            if not any(word in workload.id for word in words):
                continue
            first = build(workload, device)
            with first.grad_mode():
                first_call(first)
                structure = profile_session(device, first, iterations=3, is_structure=True)
                pace = Pace.of(call_duration_us(device, first), structure)
            kept = data[workload.id] = {"device": [], "dispatch": [], "control": []}
            for number in range(_REPLICATES):
                instance = build(workload, device, replicate=number)
                with instance.grad_mode():
                    warm_up(device, instance, calls=device.warm_up_calls, seconds=_WARM_UP_SECONDS)
                    session = profile_session(device, instance, iterations=_CALLS, warmup=_BEFORE, hold_us=pace.hold_us)
                    dispatches, controls = host_calls(device, instance, _CALLS)
                kept["device"].append([math.fsum(each.duration_us for each in call) for call in session.executions])
                kept["dispatch"].append(dispatches)
                kept["control"].append(controls)
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=_DATA)
    parser.add_argument("--record", nargs="+", metavar="WORD")
    arguments = parser.parse_args()
    if arguments.record:
        arguments.file.write_text(json.dumps(recorded(arguments.record)))
    print("                                  GPU time, %     dispatch, %")
    print("workload                  calls  spread    mean  spread    mean")
    for workload, kept in json.loads(arguments.file.read_text()).items():
        rows = {count: logs(kept, count) for count in _COUNTS}
        last = [fmean(each) for each in rows[_CALLS]]
        for count, both in rows.items():
            pairs = zip(both, last, strict=True)
            shown = (f"{stdev(each):8.2f}{fmean(each) - all_calls:+8.2f}" for each, all_calls in pairs)
            print(f"{workload:27}{count:4}{''.join(shown)}")


def logs(kept: Any, count: int) -> tuple[list[float], list[float]]:
    """Return the GPU time, and the dispatch over its host reference, of each replicate by its first calls: 100 x log."""
    times = [summarize(each[:count], Timer.DEVICE.timing.statistic) for each in kept["device"]]
    lows = [
        summarize(each[:count], Timer.HOST.timing.statistic) / median(beside[:count])
        for each, beside in zip(kept["dispatch"], kept["control"], strict=True)
    ]
    return [100 * math.log(each) for each in times], [100 * math.log(each) for each in lows]


if __name__ == "__main__":
    main()
