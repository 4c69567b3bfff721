"""The processes of a calibration, told what they measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelgauge.judge.baseline import Baseline, decode_baseline
from kernelgauge.judge.evidence import DeclaredCompared
from kernelgauge.judge.verdict import DECLARED, Status, Verdict
from kernelgauge.results import SCHEMA_VERSION, Results, TestResult, WorkloadResult, encode_results
from kernelgauge.run import Run
from tests.builders import run

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

    `seen`: command and environment of each, in order of start. `ends`: exit status and output by place.
    """

    def __init__(self, baselines: Path) -> None:
        self.baselines = baselines
        self.runs = [(measured(place=place), measured(SECOND, place=place)) for place in range(3)]
        self.ends: dict[int, tuple[int, str]] = {}
        self.seen: list[tuple[list[str], dict[str, str]]] = []
        self.folders: list[Path] = []

    def __call__(self, command: list[str], *, env: dict[str, str], **_: object) -> ToldProcess:
        place = len(self.seen)
        self.seen.append((command, env))
        target = Path(next(part for part in command if part.startswith("--perf-calibrate=")).partition("=")[2])
        self.folders.append(target)
        (target / "latest").mkdir()
        results = results_of(self.runs[place % len(self.runs)], self.baselines)  # one that fails writes them too
        (target / "latest" / "results.json").write_bytes(encode_results(results))
        return ToldProcess(*self.ends.get(place, (0, "")))

    def stored(self) -> dict[str, Baseline]:
        return {
            path.stem: decode_baseline(path.read_bytes(), where=str(path), workload=path.stem)
            for path in self.baselines.glob("*/*.json")
        }


def results_of(runs: tuple[Run, ...], baselines: Path) -> Results:
    """The results of one process."""
    workloads = [
        WorkloadResult(
            each.workload,
            "perf",
            *("mlp", "eager", "bf16", "forward", (4, 8)),
            run=each,
            trace=f"traces/{each.workload}.json.gz",
            verdicts=(Verdict(Status.PASS, each.workload, DECLARED, DeclaredCompared()),),
        )
        for each in runs
    ]
    machine = (runs[0].fingerprint, runs[0].gpu) if runs else (None, None)
    header = (SCHEMA_VERSION, "0.1.0", "2026-11-01T02:00:00+00:00", 60.0, (), *machine, "")
    timers = tuple(runs[0].samples) if runs else ()
    tests = tuple(TestResult("test_device_time", each.workload, "passed", 1.0) for each in runs)
    return Results(*header, tuple(workloads), tests, timers=timers, baselines=str(baselines))


def measured(workload: str = FIRST, *, center: float = 205.0, place: int = 0, **fields: Any) -> Run:
    """What one process measured: a little apart from the others."""
    device = [center * (1 + 0.0001 * (place + offset)) for offset in (-1, 0, 1, 2)]
    defaults: dict[str, Any] = {"workload": workload, "device": device, "host": None, "end_to_end": None, "gpu": "a"}
    return run(**(defaults | fields))
