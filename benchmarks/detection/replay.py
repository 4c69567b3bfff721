"""The same evaluation on recorded samples, without a GPU. The slowdowns are simulated.

    python benchmarks/detection/replay.py benchmarks/data/nine_processes/*.json [--out DIR]

These are runs of the suite as benchmarks/nights.py leaves them, one file for each process: GPU time and, where
it was measured, host dispatch time, one value for each replicate. A slowed process is the recorded one times
(1 + level): the same slowdown in every iteration, which real work is not. The peers here read the same values.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "src")]

from runs_file import read_runs

from detection.data import OURS, TIMERS, Key, Process, Values
from detection.evaluate import Decide, Evaluation, evaluate
from detection.judge_peers import kernel_peers
from detection.levels import NONE, Level
from detection.table import markdown, plot
from kernelgauge.run import Run

LEVELS = tuple(Level("device", percent) for percent in (0.25, 0.5, 1, 2, 3, 5))
HOST_LEVELS = tuple(Level("host", percent) for percent in (5, 10, 20))


def load_runs(paths: Sequence[Path], levels: Sequence[Level] = (*LEVELS, *HOST_LEVELS)) -> list[Process]:
    """Processes of the suite as if measured with `levels` injected; a replicate is one value."""
    return [_process(number, read_runs(path).runs, levels) for number, path in enumerate(paths)]


def evaluate_recorded(paths: Sequence[Path], decide: Decide) -> Evaluation:
    """Judge recorded runs by ours, and by the peers that read kernel durations."""
    processes = load_runs(paths)
    return evaluate(processes, decide, kernel_peers(len(processes[0].workloads)))


def _process(number: int, runs: Sequence[Run], levels: Sequence[Level]) -> Process:
    samples = {key: values for run in runs for level in (NONE, *levels) for key, values in _slowed(run, level)}
    machine = runs[0].fingerprint
    meta = {"control_pair_us": _control_pair_us(runs), "machine": msgspec.to_builtins(machine)}
    return Process(gpu=runs[0].gpu or machine.device, number=number, samples=samples, meta=meta)  # a CPU has no digest


def _slowed(run: Run, level: Level) -> Iterator[tuple[Key, Values]]:
    """What our timers would have read. A timer that was not measured (of a CPU, the host's) has neither values nor levels."""
    measured = {kind: sample for kind, timer in TIMERS.items() if (sample := run.sample(timer)) is not None}
    if level != NONE and level.kind not in measured:
        return
    for kind, sample in measured.items():
        slower = 1 + level.percent / 100 * (level.kind == kind)
        times_us = slower * np.array(sample.replicates_us)[:, None]
        controls_us = np.array(sample.controls_us)[:, None]
        values = np.stack([times_us, controls_us], axis=-1) if kind == "host" else times_us
        yield Key(run.workload, level, OURS[kind]), values


def _control_pair_us(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Of all passes, one number: the mean over the runs beside which it was measured."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, control in run.controls.items():
            found.setdefault(name, []).append(control.device_time_us)
    return {name: [float(np.mean(times_us))] for name, times_us in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+", help="the .json of each process")
    parser.add_argument("--out", type=Path, help="a folder for replay.md and replay.svg; without, the table is printed")
    arguments = parser.parse_args()

    from detection import ours

    evaluation = evaluate_recorded(arguments.samples, ours.decide)
    text = markdown(evaluation, title="Replay of recorded samples, slowdowns simulated")
    print(text)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "replay.md").write_text(text, encoding="utf-8")
        plot(evaluation, arguments.out / "replay.svg")


if __name__ == "__main__":
    main()
