"""The processes of a calibration, told what they measure."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelgauge.judge import Baseline, decode_baseline
from kernelgauge.run import Run
from kernelgauge.runs_file import RunsFile, write_runs
from tests.builders import run

Command = Callable[..., tuple[int, str, str]]

FIRST, SECOND = "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"


class Processes:
    """Stands in for `subprocess.run`: each process writes the runs that were told, or ends as it was told.

    `seen`: command and environment of each, in order of start. `most_at_once`: on one GPU, and in all.
    """

    def __init__(self, baselines: Path) -> None:
        self.baselines = baselines
        self.runs: list[tuple[Run, ...]] = []
        self.ends: dict[int, Any] = {}  # by place: a CompletedProcess, or an exception
        self.seen: list[tuple[list[str], dict[str, str]]] = []
        self.folders: list[Path] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once: dict[str, int] = {}
        self._lock = threading.Lock()
        self.meet: threading.Barrier | None = None  # so that processes that may run at once do

    def __call__(self, command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        gpu = env.get("CUDA_VISIBLE_DEVICES", "")
        with self._lock:
            place = len(self.seen)
            self.seen.append((command, env))
            for name in (gpu, "all"):
                self.at_once[name] = self.at_once.get(name, 0) + 1
                self.most_at_once[name] = max(self.most_at_once.get(name, 0), self.at_once[name])
        if self.meet is not None:
            self.meet.wait(timeout=10)
        with self._lock:
            for name in (gpu, "all"):
                self.at_once[name] -= 1
        end = self.ends.get(place)
        if isinstance(end, Exception):
            raise end
        target = Path(next(part for part in command if part.startswith("--perf-runs=")).partition("=")[2])
        self.folders.append(target.parent)
        runs = self.runs[place % len(self.runs)]  # one that fails writes what it has, too
        write_runs(target, RunsFile(str(self.baselines), {each.workload: "perf" for each in runs}, runs, 3))
        return end or subprocess.CompletedProcess(command, 0, "", "")


def measured(workload: str = FIRST, *, center: float = 205.0, place: int = 0, **fields: Any) -> Run:
    """What one process measured: a little apart from the others."""
    device = [center * (1 + 0.0001 * (place + offset)) for offset in (-1, 0, 1, 2)]
    defaults: dict[str, Any] = {"workload": workload, "device": device, "host": None, "end_to_end": None, "gpu": "a"}
    return run(**(defaults | fields))


def stored(processes: Processes) -> dict[str, Baseline]:
    return {
        path.stem: decode_baseline(path.read_bytes(), where=str(path), workload=path.stem)
        for path in processes.baselines.glob("*/*.json")
    }
