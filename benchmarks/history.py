"""How long `kernelgauge history show` takes over a year: 365 nights of 100 workloads on 4 GPUs, as a whole process.

    python benchmarks/history.py                     makes the year in a temporary folder, and times each command
    python benchmarks/history.py --keep FOLDER       makes it there, or takes the one that is there

The times are made up: noise of 0.2 % from night to night, a step of 1 % in every tenth workload with a driver upgrade, one
outlier in fifty nights. Of each command it prints the median of the repeats, after one that is not counted.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kernelgauge.judge.evidence import RelativeChange, TimeCompared
from kernelgauge.judge.verdict import Status, Verdict
from kernelgauge.results import SCHEMA_VERSION, Results, WorkloadResult
from kernelgauge.results.history import add_to_history
from kernelgauge.run import Counts, Fingerprint, Run, Sample, Timer
from kernelgauge.trace.kernel import KernelIdentity, KernelRecord

NIGHTS, WORKLOADS, GPUS = 365, 100, 4
REPEATS = 5
UPGRADE = 200  # the night of the step
KERNELS = tuple(KernelRecord(KernelIdentity(f"kernel_{number}", "gemm"), 50.0, "aten::mm") for number in range(4))

NAMES = tuple(
    f"mlp-{variant}-bf16-{index}x128x768x3072"
    for index in range(25)
    for variant in ("eager", "compiled", "liger", "hub")
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    keep = options.keep
    with tempfile.TemporaryDirectory() as folder:
        history = keep or Path(folder)
        if not any(history.rglob("*.json")):
            make(history)
        files = list(history.rglob("*.json"))
        print(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB, {os.cpu_count()} cores")
        for arguments in ((), (NAMES[0],), ("--timer", "latency"), ("--html", f"{folder}/trend.html")):
            seconds = timed([sys.executable, "-m", "kernelgauge", "history", "show", str(history), *arguments])
            shown = " ".join(["kernelgauge history show HISTORY", *arguments[: 2 if "--timer" in arguments else 1]])
            print(f"{seconds:5.2f} s  {shown}")


def timed(command: list[str]) -> float:
    """Seconds of the whole process: the median, after one that reads what later ones find in memory."""
    seconds = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def make(history: Path) -> None:
    noise = random.Random(0)
    first = datetime(2025, 1, 1, 2, tzinfo=timezone.utc)
    for night in range(NIGHTS):
        for number in range(GPUS):
            add_to_history(one(noise, first + timedelta(days=night), night, f"{number:08x}"), str(history))


def one(noise: random.Random, started_at: datetime, night: int, gpu: str) -> Results:
    driver = "580.159.04" if night < UPGRADE else "585.12.01"
    fingerprint = Fingerprint(
        *("NVIDIA H200", "sm_90", 132, 150109880320, 700.0, False),
        *(driver, "13.0", "2.11.0+cu130", "3.6.0", "0.8.5", "3.12.3"),
    )
    return Results(
        schema_version=SCHEMA_VERSION,
        kernelgauge="0.1.0",
        started_at=started_at.isoformat(),
        seconds=100.0,
        arguments=("perf",),
        fingerprint=fingerprint,
        gpu=gpu,
        not_watched="",
        workloads=tuple(workload(noise, index, night, fingerprint, gpu) for index in range(len(NAMES))),
        host="node-17",
        commit=f"{night:040x}",
    )


def workload(noise: random.Random, index: int, night: int, fingerprint: Fingerprint, gpu: str) -> WorkloadResult:
    step = 1.01 if night >= UPGRADE and index % 10 == 0 else 1.0
    status = Status.REGRESSED if step > 1 else Status.PASS
    samples, verdicts = {}, []
    for timer, us in ((Timer.DEVICE, 200.0), (Timer.END_TO_END, 300.0), (Timer.HOST, 50.0)):
        mean_us = us * step * (1.2 if noise.random() < 0.02 else 1.0)
        replicates = tuple(round(mean_us * (1 + noise.gauss(0, 0.002)), 4) for _ in range(12))
        samples[timer] = Sample(replicates, 12)
        change = RelativeChange(step - 1, None, None, 0.99)
        times_us = (us, mean_us)
        verdicts.append(Verdict(status, NAMES[index], timer.label, TimeCompared(), (), *times_us, change))
    run = Run(NAMES[index], fingerprint, KERNELS, Counts(4, 4, 0, 0, 0, 20, 0, 0, 10**6), samples, gpu)
    _, variant, dtype, shape = NAMES[index].split("-")
    sizes = tuple(map(int, shape.split("x")))
    return WorkloadResult(NAMES[index], "perf", "mlp", variant, dtype, "forward", sizes, run, verdicts=tuple(verdicts))


if __name__ == "__main__":
    main()
