"""How noisy each timer is between processes, raw and as it is compared.

    for i in $(seq 9); do pytest perf --perf-runs=runs/$i.json; done
    python benchmarks/noise.py runs/*.json

Of each workload and timer: the mean, the standard deviation between the processes of what was measured, and of what is
compared (at equal speed of the host), all in percent, and how many false alarms and undecided verdicts each pair of
processes gives if one is the baseline of the other.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge.judge import DEFAULT_POLICIES, Seen, Status, decide, from_run
from kernelgauge.run import Run, Timer
from kernelgauge.runs_file import read_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="RUNS.json")
    arguments = parser.parse_args()
    by_workload: dict[str, list[Run]] = {}
    for path in arguments.files:
        for run in read_runs(path).runs:
            by_workload.setdefault(run.workload, []).append(run)
    comparisons = len(by_workload) * len(Timer)
    print(f"{len(arguments.files)} processes; each pair of them is judged in both directions")
    print(
        f"{'workload':<40}{'timer':<15}{'us':>8}{'raw %':>8}{'compared %':>12}{'alarms':>8}{'undecided':>11}{'pairs':>7}"
    )
    for workload, runs in by_workload.items():
        for timer in Timer:
            report(workload, timer, runs, comparisons)


def report(workload: str, timer: Timer, runs: Sequence[Run], comparisons: int) -> None:
    baselines = [from_run(run, suite="") for run in runs if run.sample(timer) is not None]
    seen = [one for baseline in baselines for one in baseline.seen(timer, baseline.entries[0])]
    if len(seen) < 2:
        return
    share = fmean(one.host_share for one in seen)
    seen = [Seen(one.observation, one.gpu, share) for one in seen]  # of one baseline: one share for all
    raw = [math.log(one.observation.mean_us) for one in seen]
    verdicts = [
        decide([before], after, DEFAULT_POLICIES[timer], comparisons=comparisons).status
        for before in seen
        for after in seen
        if before is not after
    ]
    print(
        f"{workload:<40}{timer.label:<15}{math.exp(fmean(raw)):>8.1f}{100 * stdev(raw):>8.2f}"
        f"{100 * stdev(one.logarithm for one in seen):>12.2f}{verdicts.count(Status.REGRESSED):>8}"
        f"{verdicts.count(Status.UNDECIDED):>11}{len(verdicts):>7}"
    )


if __name__ == "__main__":
    main()
