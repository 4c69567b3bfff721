"""Recorded suites of unchanged code: every process that benchmarks/data and baselines/ hold, as
runs that can be judged.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from runs_file import read_bytes, read_runs

from kernelgauge.judge.baseline import (
    Baseline,
    Entry,
    Process,
    decode_baseline,
    from_run,
    joined_entry,
)
from kernelgauge.results import WorkloadResult
from kernelgauge.run import Observation, Run, Sample, Timer
from kernelgauge.trace import are_alike

__all__ = [
    "DATA",
    "ROOT",
    "Suite",
    "archived_suites",
    "baseline_of",
    "busy_suites",
    "h100_suites",
    "later_suites",
    "model_suites",
    "read_states",
    "read_suites",
    "recorded_suites",
    "side_by_side_suites",
    "slower_run",
]

DATA = ROOT / "benchmarks" / "data"
COMMITTED = ROOT / "baselines" / "nvidia-h200"
# Files without a host in them, by folder. The runs of host8 to host10 are on GPUs of the committed
# baselines.
_HOSTS = {
    "host8": "host-a",
    "host9": "host-b",
    "host10": "host-c",
    "usual": "states",
    "slow": "states",
    "two-workers": "states",
}


@dataclass(frozen=True, eq=False)
class Suite:
    """One process: its runs by workload. `is_committed`: it is part of the committed baselines."""

    name: str
    host: str
    gpu: str
    runs: Mapping[str, Run]
    is_committed: bool = False

    def slower(self, fraction: float, *timers: Timer) -> Suite:
        """Return it with these timers slower by a fraction."""
        return Suite(
            self.name,
            self.host,
            self.gpu,
            {name: slower_run(run, fraction, timers) for name, run in self.runs.items()},
        )


def recorded_suites() -> list[Suite]:
    """Return every recorded process of the default suite on H200s."""
    found = list(_of_baselines(COMMITTED, "committed", is_committed=True))
    found += _of_baselines(DATA / "eight_gpus" / "nvidia-h200", "eight")
    for folder in sorted((DATA / "more_gpus").iterdir()):
        found += _of_baselines(folder, folder.name)
        found += read_suites(
            sorted(folder.glob("run-*.json.gz")), _HOSTS.get(folder.name, folder.name)
        )
    found += read_suites(sorted((DATA / "nine_processes").glob("*.json.gz")), "nine")
    for path in sorted((DATA / "host_states").glob("*.json.gz")):
        found += read_suites([path], _HOSTS.get(_stem(path), _stem(path)))
    for folder in sorted((DATA / "unchanged").iterdir()):
        found += read_suites(sorted(folder.glob("*.json.gz")), folder.name)
    return found


def busy_suites() -> tuple[list[Suite], list[Suite]]:
    """Return two runs of the full matrix, one of them with two workers, and the processes of a
    baseline on that host.
    """
    folder = DATA / "busy_host"
    return list(read_suites(sorted(folder.glob("*.json.gz")), "busy")), list(
        _of_baselines(folder / "baselines" / "nvidia-h200", "busy")
    )


def h100_suites() -> list[Suite]:
    """Return the processes of an H100: no number of the rule comes from them."""
    return list(_of_baselines(COMMITTED.with_name("nvidia-h100-80gb-hbm3"), "h100"))


def model_suites() -> list[Suite]:
    """Return the processes of the committed baselines of whole models and of the gallery."""
    return [
        each
        for device in ("nvidia-h100-80gb-hbm3", "nvidia-h200")
        for each in _of_baselines(
            COMMITTED.with_name(device), device, suites=("examples/models", "examples/gallery")
        )
    ]


def side_by_side_suites() -> tuple[Suite, Suite]:
    """Return two processes of the gallery on an H100, the second beside another suite."""
    names = "recorded", "again"
    one, other = (next(read_suites([DATA / "side_by_side" / f"{name}.json.gz"])) for name in names)
    return one, other


def later_suites(folder: str, files: Sequence[Path] = ()) -> list[Suite]:
    """Return runs that no number was chosen on: those of a folder of `benchmarks/data`, and of
    files.
    """
    found = [*sorted((DATA / folder).glob("*.json.gz")), *files]
    # in a container all hosts have one name
    return [it for each in found for it in read_suites([each], read_runs(each).runs[0].gpu)]


def archived_suites() -> list[Suite]:
    """Return the unslowed processes of an earlier detection benchmark: GPU and dispatch times,
    without kernels' names.
    """
    return list(read_suites(sorted((DATA / "earlier_detection").glob("*.json.gz"))))


def read_suites(files: Sequence[Path], host: str | None = None) -> Iterator[Suite]:
    """Yield the suites of files of runs, one for each GPU in a file."""
    for path in files:
        by_gpu: dict[str, dict[str, Run]] = {}
        for run in read_runs(path).runs:
            named = msgspec.structs.replace(run, host=host or run.host)
            by_gpu.setdefault(run.place or "", {})[run.workload] = named
        for gpu, runs in by_gpu.items():
            yield Suite(
                f"{path.parent.name}/{_stem(path)}",
                host or next(iter(runs.values())).host or gpu,
                gpu,
                runs,
            )


def _of_baselines(
    folder: Path, host: str, *, is_committed: bool = False, suites: Sequence[str] = ("perf",)
) -> Iterator[Suite]:
    """Yield the processes of baseline files.

    Those of one process have the same reference kernels.
    """
    processes: dict[object, dict[str, Run]] = {}
    for path in sorted(folder.glob("*-*-*.json*")):
        workload = _stem(path)
        baseline = decode_baseline(read_bytes(path), where=str(path), workload=workload)
        if baseline.suite not in suites:
            continue
        for entry in baseline.entries:
            for process in entry.processes:
                key = (
                    process.gpu,
                    tuple(
                        sorted(
                            (name, each.device_time_us) for name, each in process.controls.items()
                        )
                    ),
                )
                processes.setdefault(key, {})[workload] = _run(
                    baseline, entry, process, process.host or host
                )
    for number, runs in enumerate(processes.values()):
        first = next(iter(runs.values()))
        yield Suite(f"{host}/{number}", first.host or host, first.gpu or "", runs, is_committed)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def _run(baseline: Baseline, entry: Entry, process: Process, host: str) -> Run:
    return Run(
        workload=baseline.workload,
        fingerprint=baseline.fingerprint,
        kernels=entry.kernels,
        counts=baseline.counts,
        samples={timer: _sample(each) for timer, each in process.timers.items()},
        gpu=process.gpu,
        host=host,
        controls=process.controls,
    )


def _sample(seen: Observation) -> Sample:
    """Return replicates with the mean, the spread and the host reference that a baseline keeps."""
    pairs, count = seen.replicates // 2, seen.replicates
    width = (seen.spread or 0.0) * math.sqrt((count - 1) / (2 * pairs)) if pairs else 0.0
    steps = [0.0] * (count - 2 * pairs) + [width, -width] * pairs
    times = tuple(seen.mean_us * math.exp(step) for step in steps)
    return Sample(
        times, seen.iterations, (seen.control_us,) * count if seen.control_us is not None else ()
    )


def slower_run(run: Run, fraction: float, timers: Sequence[Timer]) -> Run:
    samples = {
        timer: msgspec.structs.replace(
            sample, replicates_us=tuple((1 + fraction) * each for each in sample.replicates_us)
        )
        if timer in timers
        else sample
        for timer, sample in run.samples.items()
    }
    return msgspec.structs.replace(run, samples=samples)


def baseline_of(suites: Sequence[Suite], workload: str) -> Baseline | None:
    """Return the baseline that these processes make of a workload; None if none measured it."""
    singles = [_single(each, workload) for each in suites if workload in each.runs]
    # of the launch configuration that most of them have
    alike = ([it for it in singles if are_alike(it.kernels, each.kernels)] for each in singles)
    most = max(alike, key=len, default=[])
    entry = joined_entry([each.entry for each in most]) if most else None
    return msgspec.structs.replace(most[0], entries=(entry,)) if entry else None


@lru_cache(maxsize=4096)
def _single(suite: Suite, workload: str) -> Baseline:
    return from_run(suite.runs[workload], suite="perf")


def read_states(path: Path) -> dict[str, list[WorkloadResult]]:
    """Return what each process of a recorded bisection measured, by the state of the
    code.
    """
    found: dict[str, list[WorkloadResult]] = {}
    for line in lzma.decompress(path.read_bytes()).splitlines():
        each = json.loads(line)
        found.setdefault(each["state"], []).append(
            msgspec.convert(each["workload"], WorkloadResult)
        )
    return found
