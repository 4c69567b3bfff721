"""Compare `kernelgauge show` with a plain calculation over the same files. A tool, run by hand:

python tools/check_show.py FILE ...

It prints a Markdown row for each trace: kernels, their sum and the time that the GPUs are busy, by both.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

KERNELS, COPIES = {"kernel", "Kernel"}, {"gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
_CLOSE = 1e-3  # the JSON of a trace rounds to a nanosecond, or to a microsecond


def device_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of work on a GPU, without anything of kernelgauge's reader."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    found = json.loads(content.decode(errors="replace"), strict=False)
    rows = found["traceEvents"] if isinstance(found, dict) else found
    return [row for row in rows if row.get("ph") == "X" and row.get("cat") in KERNELS | COPIES]


def covered_us(spans: list[tuple[float, float]]) -> float:
    """Return how much time the spans cover, overlap counted once."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def plain(path: Path) -> tuple[int, float, float]:
    """Return the kernels, the sum of their durations and the busy time of all GPUs, in microseconds."""
    rows = [row for row in device_rows(path) if float(row.get("dur", 0)) >= 0]
    kernels = [float(row.get("dur", 0)) for row in rows if row["cat"] in KERNELS]
    spans: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        device = (row.get("args") or {}).get("device", row.get("pid"))
        spans[device].append((float(row["ts"]), float(row["ts"]) + float(row.get("dur", 0))))
    return len(kernels), sum(kernels), sum(map(covered_us, spans.values()))


def row_of(path: Path) -> str:
    """Return the row of one trace."""
    count, sum_us, busy_us = plain(path)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "kernelgauge", "show", str(path), "--whole", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    cells = [path.name, f"{count}", f"{sum_us:.0f}", f"{busy_us:.0f}"]
    if done.returncode:
        return " | ".join([*cells, f"refused: {done.stderr.splitlines()[0]}", "", ""])
    shown = json.loads(done.stdout)
    if shown["on_cpu"]:
        return " | ".join([*cells, "a CPU's job" if not count else "WRONG: a CPU's job", "", ""])
    step = shown["step"] or {"device_time_us": 0.0, "times": [], "kernels": []}
    ours = step["device_time_us"], sum(each["busy_us"] for each in step["times"])
    agree = all(
        abs(one - other) <= _CLOSE * max(1.0, other) for one, other in zip(ours, (sum_us, busy_us), strict=True)
    )
    times: dict[str, float] = defaultdict(float)
    for kernel in step["kernels"]:
        times[kernel["kind"]] += kernel["device_time_us"]
    other = times["other"] / sum(times.values()) if times else 0.0
    user = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = "right" if agree else f"WRONG: sum {ours[0]:.0f}, busy {ours[1]:.0f}"
    return " | ".join([*cells, said, f"{100 * other:.0f} %", f"{user:.1f} CPU s, {seconds:.1f} s"])


if __name__ == "__main__":
    print("trace | kernels | sum, us | busy, us | show | other | time\n---|---|---|---|---|---|---")
    for name in sys.argv[1:]:
        print(row_of(Path(name)), flush=True)
