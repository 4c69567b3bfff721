"""What the MLPs take among the other workloads of the suite, and measured alone: in turns, in one process.

    python benchmarks/alone.py --rounds 4

One line for each: its device time among the others, how far each round was from the mean of them, and how much less or more
it took alone in each. Microseconds and percent. Then the root mean square of both over all MLPs and rounds; chance alone
makes the second one larger than the first, by the root of 2 n / (n - 1) for n rounds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf")]

from kernelgauge import Timer, Workload
from kernelgauge.measure.device import Device, choose_device
from kernelgauge.measure.runner import Measured, measure
from kernelgauge.measure.settings import Settings
from workloads import WORKLOADS


def device_us(device: Device, workloads: Sequence[Workload], settings: Settings) -> dict[str, float]:
    """Mean over the replicates, by id; without what could not be measured."""
    results = measure(workloads, device, device.fingerprint(), settings)
    samples = {
        name: result.run.sample(Timer.DEVICE) for name, result in results.items() if isinstance(result, Measured)
    }
    return {name: fmean(sample.replicates_us) for name, sample in samples.items() if sample is not None}


def in_percent(ratios: Sequence[float]) -> list[float]:
    return [100 * (ratio - 1) for ratio in ratios]


def in_words(percents: Sequence[float]) -> str:
    return " ".join(f"{value:+.2f}" for value in percents) + " %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--replicates", type=int, default=24)
    arguments = parser.parse_args()
    device, settings = choose_device("cuda"), Settings.of(arguments.replicates)
    suite = [workload for workload in WORKLOADS if workload.matrix == "default"]
    among: list[dict[str, float]] = []
    alone: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        among.append(device_us(device, suite, settings))
        mlps = [workload for workload in suite if workload.module == "mlp"]
        alone.append({name: us for each in mlps for name, us in device_us(device, [each], settings).items()})
    moved: list[float] = []
    differ: list[float] = []
    for name in (name for name in alone[0] if all(name in found for found in (*among, *alone))):
        usual = fmean(found[name] for found in among)
        drifts = in_percent([found[name] / usual for found in among])
        apart = in_percent([one[name] / other[name] for one, other in zip(alone, among, strict=True)])
        print(f"{name:<40}{usual:>8.1f} us among others, {in_words(drifts)}; alone {in_words(apart)}")
        moved, differ = moved + drifts, differ + apart
    for what, values in (("between rounds", moved), ("alone", differ)):
        print(f"{what}: {math.sqrt(fmean(value**2 for value in values)):.2f} % (root mean square)")


if __name__ == "__main__":
    main()
