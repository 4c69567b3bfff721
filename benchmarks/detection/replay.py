"""The same evaluation on recorded samples, without a GPU. The slowdowns are simulated.

    python benchmarks/detection/replay.py benchmarks/data/nine_processes/*.json
    python benchmarks/detection/replay.py SAMPLES.npz [--out DIR]

The first are runs of the suite as `pytest perf --perf-runs=FILE` writes them, one file for each process: device time and
host dispatch time, one value for each replicate. SAMPLES.npz has kernel durations in microseconds under
``WORKLOAD/gpuX/processN/replicateR/passP``. Neither holds a slowed twin, so a slowed process is the recorded one times
(1 + level): a slowdown that is the same in every iteration, which real work is not. Peers need data of their own; what
can be judged here are ours, and a threshold and Mann-Whitney on the same values.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "src")]

from detection.data import OURS, Key, Process, Values
from detection.evaluate import Decide, Evaluation, evaluate
from detection.judge_peers import mann_whitney_peer, median_peer
from detection.levels import NONE, Level
from detection.table import markdown, plot
from kernelgauge.run import Timer
from kernelgauge.runs_file import read_runs

PEERS = (
    median_peer("median of our iterations", OURS["device"]),
    mann_whitney_peer("Mann-Whitney on our iterations", OURS["device"]),
)
LEVELS = tuple(Level("device", percent) for percent in (0.25, 0.5, 1, 2, 3, 5))
HOST_LEVELS = tuple(Level("host", percent) for percent in (5, 10, 20))

_KEY = re.compile(
    r"(?P<workload>[^/]+)/(?P<gpu>gpu[^/]+)/process(?P<process>\d+)/replicate(?P<replicate>\d+)/pass(?P<pass_>\d+)"
)


def load_recorded(path: Path, levels: Sequence[Level] = LEVELS) -> list[Process]:
    """Processes as if measured with `levels` injected; the passes of a replicate are its iterations, in order."""
    passes: dict[tuple[str, int], dict[str, dict[tuple[int, int], Values]]] = {}
    with np.load(path, allow_pickle=False) as file:
        for name in file:
            found = _KEY.fullmatch(name)
            if found is None:
                raise ValueError(f"{path}: unknown key {name!r}, expected WORKLOAD/gpuX/processN/replicateR/passP")
            process = passes.setdefault((found["gpu"], int(found["process"])), {})
            place = int(found["replicate"]), int(found["pass_"])
            process.setdefault(found["workload"], {})[place] = file[name].astype(np.float64)
    return [
        Process(gpu=gpu, number=number, samples=_with_levels(process, levels), meta={})
        for number, ((gpu, _), process) in enumerate(sorted(passes.items()))
    ]


def load_runs(paths: Sequence[Path], levels: Sequence[Level] = (*LEVELS, *HOST_LEVELS)) -> list[Process]:
    """Processes of the suite as if measured with `levels` injected; a replicate is one value."""
    processes: list[Process] = []
    for number, path in enumerate(paths):
        runs = read_runs(path).runs
        samples: dict[Key, Values] = {}
        for run in runs:
            host = run.samples[Timer.HOST]
            for level in (NONE, *levels):
                slower = {kind: 1 + level.percent / 100 * (level.kind == kind) for kind in ("device", "host")}
                device_us = np.array(run.samples[Timer.DEVICE].replicates_us)[:, None]
                host_us = np.array([host.replicates_us, host.controls_us]).T[:, None, :]
                samples[Key(run.workload, level, OURS["device"])] = device_us * slower["device"]
                samples[Key(run.workload, level, OURS["host"])] = host_us * np.array([slower["host"], 1.0])
        pair_us = {  # of all passes, one number
            name: [float(np.mean([run.controls[name].device_time_us for run in runs]))] for name in runs[0].controls
        }
        meta = {"control_pair_us": pair_us}
        processes.append(Process(gpu=str(runs[0].gpu), number=number, samples=samples, meta=meta))
    return processes


def evaluate_recorded(paths: Sequence[Path], decide: Decide, rate: float | None = None) -> Evaluation:
    processes = load_runs(paths) if paths[0].suffix == ".json" else load_recorded(paths[0])
    return evaluate(processes, decide, PEERS, rate)


def _with_levels(process: dict[str, dict[tuple[int, int], Values]], levels: Sequence[Level]) -> dict[Key, Values]:
    samples: dict[Key, Values] = {}
    for workload, passes in process.items():
        replicates = sorted({replicate for replicate, _ in passes})
        values = np.stack(
            [np.concatenate([passes[place] for place in sorted(passes) if place[0] == one]) for one in replicates]
        )
        for level in (NONE, *levels):
            samples[Key(workload, level, OURS["device"])] = values * (1 + level.percent / 100)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path, nargs="+", help="one .npz, or the .json of several processes")
    parser.add_argument("--out", type=Path, help="a folder for replay.md and replay.svg; without, the table is printed")
    parser.add_argument("--rate", type=float, help="false alarms per suite to match the peers to (default: ours)")
    arguments = parser.parse_args()

    from detection import ours

    evaluation = evaluate_recorded(arguments.samples, ours.decide, arguments.rate)
    text = markdown(evaluation, title="Replay of recorded samples, slowdowns simulated")
    print(text)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "replay.md").write_text(text, encoding="utf-8")
        plot(evaluation, arguments.out / "replay.svg")


if __name__ == "__main__":
    main()
