"""How long `kernelgauge history show` takes over a year: 365 nights of 100 workloads on 4 GPUs, as a whole process.

    python benchmarks/history.py                     makes the year in a temporary folder, and times each command
    python benchmarks/history.py --keep FOLDER       makes it there, or takes the one that is there

The times are made up: noise of 0.2 % from night to night, a step of 1 % in every tenth workload with a driver upgrade, one
outlier in fifty nights. Exits with 1 if a command takes more than 4 s: the median of
the repeats, after one that is not counted.
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
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kernelgauge.run import Fingerprint

NIGHTS, WORKLOADS, GPUS = 365, 100, 4
BAR_S = 4.0
REPEATS = 5
UPGRADE = 200  # the night of the step

NAMES = tuple(
    f"mlp-{variant}-bf16-{index}x128x768x3072"
    for index in range(25)
    for variant in ("eager", "compiled", "liger", "hub")
)


def main() -> int:
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
        slowest = 0.0
        for arguments in ((), (NAMES[0],), ("--timer", "latency"), ("--html", f"{folder}/trend.html")):
            seconds = timed([sys.executable, "-m", "kernelgauge", "history", "show", str(history), *arguments])
            slowest = max(slowest, seconds)
            shown = " ".join(["kernelgauge history show HISTORY", *arguments[: 2 if "--timer" in arguments else 1]])
            print(f"{seconds:5.2f} s  {shown}")
    print(f"bar {BAR_S:g} s: {'ok' if slowest <= BAR_S else 'over'}")
    return int(slowest > BAR_S)


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
            started_at, gpu = first + timedelta(days=night), f"{number:08x}"
            content = msgspec.json.encode(one(noise, started_at, night, gpu)) + b"\n"
            name = f"{started_at:%Y%m%dT%H%M%SZ}-{gpu}-{sha256(content).hexdigest()[:16]}.json"
            path = history / f"{started_at:%Y/%m}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def one(noise: random.Random, started_at: datetime, night: int, gpu: str) -> dict[str, Any]:
    """Return an entry as docs/history.md describes it."""
    driver = "580.159.04" if night < UPGRADE else "585.12.01"
    fingerprint = Fingerprint(
        *("NVIDIA H200", "sm_90", 132, 150109880320, 700.0, False),
        *(driver, "13.0", "2.11.0+cu130", "3.6.0", "0.8.5", "3.12.3"),
    )
    return {
        "schema_version": 3,
        "started_at": started_at,
        "kernelgauge": "0.1.0",
        "host": "node-17",
        "gpu": gpu,
        "commit": f"{night:040x}",
        "exit_status": 0,
        "fingerprint": fingerprint,
        "rows": [row(noise, index, night) for index in range(len(NAMES))],
    }


def row(noise: random.Random, index: int, night: int) -> dict[str, Any]:
    step = 1.01 if night >= UPGRADE and index % 10 == 0 else 1.0
    times = {}
    for timer, us in (("device_time", 200.0), ("end_to_end", 300.0), ("host_dispatch", 50.0)):
        outlier = 1.2 if noise.random() < 0.02 else 1.0
        status = "REGRESSED" if step > 1 else "PASS"
        times[timer] = {
            "mean_us": round(us * step * outlier * (1 + noise.gauss(0, 0.002)), 4),
            "spread": round(abs(noise.gauss(0, 0.002)), 6),
            "replicates": 12,
            "baseline_us": us,
            "status": status,
            "said": f"{us:.1f} -> {us * step:.1f} us  +1.0 %" if step > 1 else "",
        }
    return {"workload": NAMES[index], "status": status, "said": "", "kernels": "0a1b2c3d4e5f6a7b", "times": times}


if __name__ == "__main__":
    sys.exit(main())
