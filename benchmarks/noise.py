"""How noisy each timer is between processes, raw and as it is compared.

    for i in $(seq 9); do pytest perf --perf-runs=runs/$i.json; done
    python benchmarks/noise.py runs/*.json

Of each workload and timer: the mean, the standard deviation between the processes of what was measured, and of what is
compared (at equal speed of the host), the slowdown that is caught 95 times in 100 if all of them are the baseline, all in
percent, the slope that the time follows the host with, and how many false alarms and undecided verdicts each pair of
processes gives if one is the baseline of the other. Launch configurations of the autotuner are lines of their own.

    python benchmarks/noise.py --against baselines runs/*.json

judges each file against the stored baselines instead, and shows the summary of the last one.

    python benchmarks/noise.py --stored baselines/nvidia-h200/*.json

shows of stored baselines what `kernelgauge calibrate` shows of those that it records.

    python benchmarks/noise.py --between-gpus baselines/nvidia-h200/*.json

shows of each stored device time how GPUs differ, and what the control GEMM tells of that: standard deviations in percent,
and the slope of the one on the other.

    python benchmarks/noise.py --unknown-gpu baselines/nvidia-h200/*.json

judges each stored process, its device time as it is and made slower by 1, 1.5 and 2 %, against those of all other GPUs:
how many are REGRESSED. The slowdown is simulated; the differences between the GPUs are real.

Stored baselines of one workload, of several hosts, are taken together: baselines/nvidia-h200/*.json
benchmarks/data/more_gpus/*/*-*-*-*.json.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, linear_regression, stdev, variance

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge.judge import (
    Baseline,
    Entry,
    Process,
    Seen,
    Status,
    Verdict,
    compare,
    decide,
    decode_baseline,
    from_run,
    judge_structure,
    judge_time,
    policy_for,
    smallest_detectable,
)
from kernelgauge.judge.calibration import entries_of
from kernelgauge.judge.noise import alike
from kernelgauge.judge.update import time_changes
from kernelgauge.report.calibration import calibration_text
from kernelgauge.report.rows import rows
from kernelgauge.report.terminal import describe, remarks, summary_text
from kernelgauge.run import Run, Timer
from kernelgauge.runs_file import read_runs
from kernelgauge.storage import BaselineStore

_SLOWER = (0.0, 0.01, 0.015, 0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    of_baselines = {"--between-gpus": between_gpus, "--unknown-gpu": unknown_gpu, "--stored": noise_of}
    for option, show in of_baselines.items():
        parser.add_argument(option, dest="show", action="store_const", const=show, help="the files are baselines")
    parser.add_argument("--against", type=Path, metavar="BASELINES", help="judge the runs against these")
    arguments = parser.parse_args()
    if arguments.show is not None:
        arguments.show(stored(arguments.files))
        return
    if arguments.against is not None:
        judge_against(BaselineStore(arguments.against), arguments.files)
        return
    alike_runs: dict[tuple[object, ...], list[Run]] = {}
    for path in arguments.files:
        for run in read_runs(path).runs:
            configurations = tuple(kernel.identity.kernel_kwargs for kernel in run.kernels)
            alike_runs.setdefault((run.workload, configurations), []).append(run)
    comparisons = len({key[0] for key in alike_runs}) * len(Timer)
    print(f"{len(arguments.files)} processes; each pair of them is judged in both directions")
    print(
        f"{'workload':<40}{'timer':<15}{'us':>8}{'raw %':>8}{'compared %':>12}{'slope':>7}{'seen from %':>13}{'alarms':>8}{'undecided':>11}{'pairs':>7}"
    )
    for runs in alike_runs.values():
        for timer in Timer:
            report(runs[0].workload, timer, runs, comparisons)


def stored(files: Sequence[Path]) -> dict[str, Baseline]:
    found: dict[str, Baseline] = {}
    for path in files:
        baseline = decode_baseline(path.read_bytes(), where=str(path), workload=path.stem)
        before = found.get(path.stem, baseline)
        entries = baseline.entries if before is baseline else entries_of([before, baseline])
        found[path.stem] = msgspec.structs.replace(baseline, entries=entries)
    return found


def noise_of(baselines: Mapping[str, Baseline]) -> None:
    print(calibration_text(baselines, comparisons=len(baselines) * len(Timer), width=100, color=False))


def between_gpus(baselines: Mapping[str, Baseline]) -> None:
    print(f"{'workload':<40}{'us':>8}{'GPUs':>6}{'differ by %':>13}{'their GEMM by %':>17}{'slope':>7}{'rest %':>8}")
    for workload, baseline in baselines.items():
        for entry in baseline.entries:
            by_gpu: dict[str | None, list[tuple[float, float]]] = {}
            for process in entry.processes:
                gemm_us = process.controls["gemm"].device_time_us
                time_us = process.timers[Timer.DEVICE].mean_us
                by_gpu.setdefault(process.gpu, []).append((math.log(gemm_us), math.log(time_us)))
            gemms, times = zip(
                *((fmean(x), fmean(y)) for x, y in (zip(*each, strict=True) for each in by_gpu.values())), strict=True
            )
            fit = linear_regression(gemms, times)
            rest = [y - fit.slope * x for x, y in zip(gemms, times, strict=True)]
            spread = math.sqrt(variance(rest) * (len(rest) - 1) / (len(rest) - 2))
            print(
                f"{workload:<40}{entry.device_time_us:>8.1f}{len(times):>6}{100 * stdev(times):>13.2f}"
                f"{100 * stdev(gemms):>17.2f}{fit.slope:>7.2f}{100 * spread:>8.2f}"
            )


def unknown_gpu(baselines: Mapping[str, Baseline]) -> None:
    comparisons = len(baselines) * len(Timer)
    print(f"{'workload':<40}{'us':>8}" + "".join(f"{slower:>+9.1%}" for slower in _SLOWER))
    for workload, baseline in baselines.items():
        for entry in baseline.entries:
            if len({process.gpu for process in entry.processes}) < 2:
                continue
            caught = [
                sum(_regressed(baseline, entry, process, slower, comparisons) for process in entry.processes)
                for slower in _SLOWER
            ]
            counts = "".join(f"{f'{count}/{len(entry.processes)}':>9}" for count in caught)
            print(f"{workload:<40}{entry.device_time_us:>8.1f}{counts}")


def _regressed(baseline: Baseline, entry: Entry, process: Process, slower: float, comparisons: int) -> bool:
    """Whether a process that is slower by so much is seen by what all other GPUs' processes say."""
    device = process.timers[Timer.DEVICE]
    longer = msgspec.structs.replace(device, mean_us=device.mean_us * (1 + slower))
    tested = msgspec.structs.replace(process, timers={Timer.DEVICE: longer})
    elsewhere = [_without(each, process.gpu) for each in baseline.entries]
    known = msgspec.structs.replace(baseline, entries=tuple(each for each in elsewhere if each.processes))
    new = msgspec.structs.replace(baseline, entries=(msgspec.structs.replace(entry, processes=(tested,)),))
    (change,) = [each for each in time_changes(known, new, comparisons=comparisons) if each.timer is Timer.DEVICE]
    return change.decision is not None and change.decision.status is Status.REGRESSED


def _without(entry: Entry, gpu: str | None) -> Entry:
    return msgspec.structs.replace(entry, processes=tuple(each for each in entry.processes if each.gpu != gpu))


def judge_against(store: BaselineStore, files: Sequence[Path]) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    for path in files:
        runs = read_runs(path).runs
        verdicts = [verdict for run in runs for verdict in judged(store, run, comparisons=len(runs) * len(Timer))]
        counted.update((verdict.subject, verdict.status.value) for verdict in verdicts)
    print(describe(runs[0].fingerprint))
    table = rows(runs, verdicts)
    print(summary_text(table, width=80, color=False) + "\n".join(remarks(table, verdicts)))
    print(f"\nall {len(files)} files:")
    for (subject, status), count in sorted(counted.items()):
        print(f"  {subject:<15}{status:<12}{count:>5}")


def judged(store: BaselineStore, run: Run, comparisons: int) -> Iterator[Verdict]:
    baseline = store.load(run.fingerprint.device, run.workload)
    if baseline is None:
        return
    comparison = compare(baseline.fingerprint, run.fingerprint)
    yield judge_structure(run, baseline, comparison)
    for timer in run.samples:
        yield judge_time(timer, run, baseline, comparison, comparisons=comparisons)


def report(workload: str, timer: Timer, runs: Sequence[Run], comparisons: int) -> None:
    baselines = [from_run(run, suite="") for run in runs if run.sample(timer) is not None]
    seen = [one for baseline in baselines for one in baseline.seen(timer, baseline.entries[0])]
    if len(seen) < 2:
        return
    share = fmean(one.host_share for one in seen)
    seen = [Seen(one.observation, one.gpu, share) for one in seen]  # of one baseline: one share for all
    policy = policy_for(timer, runs[0].fingerprint, runs[0].kernels)
    seen, _ = alike(seen, seen[-1], policy)
    slope = f"{seen[0].slope.value:.2f}" if share else "-"
    raw = [math.log(one.observation.mean_us) for one in seen]
    verdicts = [
        decide([before], after, policy, comparisons=comparisons).status
        for before in seen
        for after in seen
        if before is not after
    ]
    seen_from = smallest_detectable(seen, seen[-1], policy, comparisons=comparisons)
    print(
        f"{workload:<40}{timer.label:<15}{math.exp(fmean(raw)):>8.1f}{100 * stdev(raw):>8.2f}"
        f"{100 * stdev(one.logarithm for one in seen):>12.2f}{slope:>7}{100 * seen_from:>13.2f}{verdicts.count(Status.REGRESSED):>8}"
        f"{verdicts.count(Status.UNDECIDED):>11}{len(verdicts):>7}"
    )


if __name__ == "__main__":
    main()
