"""How far what a confirmation added lies from what was measured first.

    python benchmarks/confirmations.py reports/latest/results.json ...

One line for each workload that was measured again: the device time of the first third of its replicates, and how much less or
more the rest took. Then, over all of 100 us and more, the root mean square of that, and of how far the halves of either part
differ. Microseconds and percent. (The first third, because a confirmation adds twice as many to what is suspicious. A neighbour gets as many as that, which may
be more or less than twice its own: then the two parts are not quite those of the first look and of the confirmation.)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

from kernelgauge import Timer
from kernelgauge.measure.settings import Settings
from kernelgauge.results_file import read_results

_LONG_US = 100.0


def percent(before: Sequence[float], after: Sequence[float]) -> float:
    return 100 * (fmean(after) / fmean(before) - 1)


def halves(times_us: Sequence[float]) -> float:
    middle = len(times_us) // 2
    return percent(times_us[:middle], times_us[middle:])


def main() -> None:
    moved: dict[str, list[float]] = {"again": [], "halves of the first": [], "halves of the rest": []}
    for path in map(Path, sys.argv[1:]):
        for workload in read_results(path).workloads:
            sample = workload.run.sample(Timer.DEVICE) if workload.run else None
            if sample is None or len(sample.replicates_us) < 3 * Settings().replicates:
                continue
            third = len(sample.replicates_us) // 3
            first, rest = sample.replicates_us[:third], sample.replicates_us[third:]
            print(f"{workload.id:<55}{fmean(first):>9.1f} us, again {percent(first, rest):+.2f} %")
            if fmean(first) >= _LONG_US:
                for values, value in zip(
                    moved.values(), (percent(first, rest), halves(first), halves(rest)), strict=True
                ):
                    values.append(value)
    for what, values in moved.items():
        if values:
            root = math.sqrt(fmean(value**2 for value in values))
            print(f"{what}: {root:.2f} % (root mean square of {len(values)})")


if __name__ == "__main__":
    main()
