"""`kernelgauge calibrate`: the suite, unchanged, in fresh processes, to learn how noisy this machine is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from ..errors import BaselineError, KernelgaugeError, MeasurementError
from ..files import WAITING
from ..judge import Action, Baseline, Limits, PlannedChange, Recorded, calibrated, joined
from ..results import NAME, Results, read_results
from ..run import Run
from . import BaselineStore
from .acceptance import acceptable

__all__ = ["Calibration", "calibrate", "compile_caches", "draw", "store"]

_SHOWN_LINES = 15  # of the output of a process that failed


@dataclass(frozen=True)
class Calibration:
    """The measurements of all processes together.

    Attributes:
        baselines: of each workload that every process measured alike, by id.
        refused: why the others have none, by id.
        comparisons: how many a run of this suite makes.
        limits: gates and sensitivity that the suite asks for, by workload id.
    """

    baselines: dict[str, Baseline]
    refused: dict[str, str]
    folder: Path
    device: str
    comparisons: int
    limits: dict[str, Limits] = field(default_factory=dict)


def draw(
    arguments: Sequence[str],
    *,
    processes: int,
    gpus: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Results]:
    """Run `pytest *arguments` in fresh processes, each with empty compile caches: the autotuner chooses anew in each.

    One process at a time on each of `gpus` (values for CUDA_VISIBLE_DEVICES; none: whatever is visible, one at a time).
    Raises `MeasurementError` if one of them fails: what is left would not be a fair sample.
    """
    free: SimpleQueue[str | None] = SimpleQueue()
    for gpu in gpus or (None,):
        free.put(gpu)

    def one(number: int) -> Results:
        gpu = free.get()
        try:
            progress(f"process {number + 1} of {processes}" + ("" if gpu is None else f" on GPU {gpu}"))
            # Without a GPU that is there, the process would measure a CPU.
            device = [] if gpu is None else ["--perf-device", "cuda"]
            return _run_process([*arguments, *device], gpu, progress)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(max_workers=max(1, len(gpus))) as pool:
        return list(pool.map(one, range(processes)))


def compile_caches(folder: str) -> dict[str, str]:
    """Return the environment variables that put the caches of Inductor and Triton into a folder."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}


def _run_process(arguments: Sequence[str], gpu: str | None, progress: Callable[[str], None]) -> Results:
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder:
        environment = os.environ | compile_caches(folder)
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        command = [sys.executable, "-m", "pytest", *arguments, "-q", f"--perf-calibrate={folder}"]
        output: list[str] = []
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line.rstrip())
                if line.startswith(WAITING):
                    progress(line.strip())
        results = Path(folder) / "latest" / NAME
        if process.returncode != 0 or not results.exists():
            raise MeasurementError(
                "a process of the calibration failed",
                got="\n".join(output[-_SHOWN_LINES:]),
                expected="every test to pass: only unchanged code that works says what is noise",
                next_command=" ".join(["pytest", *arguments]),
            )
        return read_results(results)


def calibrate(processes: Sequence[Results]) -> Calibration:
    """Put the runs of all processes together, workload by workload."""
    by_workload: dict[str, list[Run]] = {}
    suites: dict[str, str] = {}
    limits: dict[str, Limits] = {}
    for results in processes:
        for workload, run in acceptable(results, BaselineStore(Path(results.baselines))):
            by_workload.setdefault(workload.id, []).append(run)
            suites[workload.id], limits[workload.id] = workload.suite, workload.limits
    if not by_workload:
        raise KernelgaugeError("nothing to calibrate: no workload was measured")
    commits = {results.commit for results in processes}
    # All starts are of this machine's clock, in UTC and in one form: the first in order is the earliest.
    start = min(results.started_at for results in processes)
    recorded = Recorded(start, commits.pop() if len(commits) == 1 else None, processes[0].kernelgauge)
    baselines: dict[str, Baseline] = {}
    refused: dict[str, str] = {}
    for name, runs in by_workload.items():
        if len(runs) < len(processes):
            refused[name] = f"only {len(runs)} of {len(processes)} processes measured it"
            continue
        try:
            baselines[name] = calibrated(runs, suite=suites[name], recorded=recorded)
        except ValueError as error:
            refused[name] = str(error)
    first = next(iter(by_workload.values()))[0]
    return Calibration(
        baselines=baselines,
        refused=refused,
        folder=Path(processes[0].baselines),
        device=first.fingerprint.device,
        comparisons=len(by_workload) * len(processes[0].timers),
        limits=limits,
    )


def store(
    calibration: Calibration,
    *,
    add: bool = False,
    show: Callable[[Calibration], None] = lambda _: None,
    dry_run: bool = False,
) -> Calibration:
    """Show what is to be stored, write it unless it is a dry run, and return it.

    The baselines of these workloads are replaced. `add`: they are kept, and the processes join them; those that cannot
    be joined are refused.

    Raises `StorageError` if they cannot be written.
    """
    stored = BaselineStore(calibration.folder)
    with nullcontext() if dry_run else stored.locked():
        plan = _planned(calibration, stored.stored(calibration.device), add=add)
        show(plan)
        if not dry_run:
            changes = [PlannedChange(Action.UPDATE, name, new) for name, new in plan.baselines.items()]
            stored.apply(calibration.device, changes)
    return plan


def _planned(calibration: Calibration, stored: Mapping[str, Baseline | BaselineError], *, add: bool) -> Calibration:
    baselines: dict[str, Baseline] = {}
    refused: dict[str, str] = {}
    for workload, new in calibration.baselines.items():
        old = stored.get(workload)
        if not add or workload not in stored:
            baselines[workload] = new
        elif not isinstance(old, Baseline):
            refused[workload] = "the stored file cannot be read"
        else:
            try:
                asked = calibration.limits.get(workload)
                baselines[workload] = joined(old, new, comparisons=calibration.comparisons, limits=asked)
            except ValueError as error:
                refused[workload] = f"not as it was recorded: {error}"
    refused = {workload: f"{why}; without --add it is replaced" for workload, why in refused.items()}
    return replace(calibration, baselines=baselines, refused=calibration.refused | refused)
