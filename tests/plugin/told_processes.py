"""The processes of a calibration, told what they measure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelgauge.judge import DECLARED, Baseline, Status, Verdict, decode_baseline
from kernelgauge.results import SCHEMA_VERSION, Results, WorkloadResult, encode_results
from kernelgauge.run import Run
from tests.builders import run

Command = Callable[..., tuple[int, str, str]]

FIRST, SECOND = "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"


class ToldProcess:
    """One that has ended."""

    def __init__(self, returncode: int, output: str) -> None:
        self.returncode, self.stdout = returncode, output.splitlines(keepends=True)

    def __enter__(self) -> ToldProcess:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None: ...


class Processes:
    """Stands in for `subprocess.Popen`: each process writes the runs that were told, or ends as it was told.

    `seen`: command and environment of each, in order of start. `most_at_once`: on one GPU, and in all.
    """

    def __init__(self, baselines: Path) -> None:
        self.baselines = baselines
        self.runs: list[tuple[Run, ...]] = []
        self.ends: dict[int, tuple[int, str]] = {}  # by place: exit status, and what it printed
        self.seen: list[tuple[list[str], dict[str, str]]] = []
        self.folders: list[Path] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once: dict[str, int] = {}
        self._lock = threading.Lock()
        self.meet: threading.Barrier | None = None  # so that processes that may run at once do

    def __call__(self, command: list[str], *, env: dict[str, str], **_: object) -> ToldProcess:
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
        end = self.ends.get(place, (0, ""))
        target = Path(next(part for part in command if part.startswith("--perf-calibrate=")).partition("=")[2])
        self.folders.append(target)
        runs = self.runs[place % len(self.runs)]  # one that fails writes what it has, too
        (target / "latest").mkdir()
        (target / "latest" / "results.json").write_bytes(encode_results(results_of(runs, self.baselines)))
        return ToldProcess(*end)


def results_of(runs: tuple[Run, ...], baselines: Path) -> Results:
    """The results of one process."""
    return Results(
        SCHEMA_VERSION,
        "0.1.0",
        "2026-11-01T02:00:00+00:00",
        60.0,
        (),
        runs[0].fingerprint if runs else None,
        runs[0].gpu if runs else None,
        "",
        tuple(
            WorkloadResult(
                each.workload,
                "perf",
                *("mlp", "eager", "bf16", "forward", (4, 8)),
                run=each,
                verdicts=(Verdict(Status.PASS, each.workload, DECLARED, "as declared"),),
            )
            for each in runs
        ),
        timers=tuple(runs[0].samples) if runs else (),
        baselines=str(baselines),
    )


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
