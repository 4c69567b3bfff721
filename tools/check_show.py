"""Compare `kernelgauge show` with a plain calculation over the same files. A tool, run by hand:

python tools/check_show.py [--peers PYTHON] FILE ...

It prints a Markdown row for each trace: kernels, their sum, and the time that the GPUs are busy, idle, and busy with
nothing but communication. Where HolisticTraceAnalysis and TraceLens are installed for another interpreter, `--peers`
adds what they say (tools/peer_sums.py). Times of a process are CPU seconds, memory is its peak.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

KERNELS, COPIES = {"kernel", "Kernel"}, {"gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
COMMUNICATING = ("nccl", "rccl", "deep_ep", "dpsk::ep", "multimem", "cross_device_reduce")  # in names of kernels
FIELDS = ("sum", "busy", "idle", "communication")
PEERS = ("hta", "tracelens")
_CLOSE = 1e-3  # the JSON of a trace rounds to a nanosecond, or to a microsecond

Spans = list[tuple[float, float]]


def device_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of work on a GPU, without anything of kernelgauge's reader."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    found = json.loads(content.decode(errors="replace"), strict=False)
    rows = found["traceEvents"] if isinstance(found, dict) else found
    return [row for row in rows if row.get("ph") == "X" and row.get("cat") in KERNELS | COPIES]


def covered_us(spans: Spans) -> float:
    """Return how much time the spans cover, overlap counted once."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def plain(path: Path) -> tuple[int, dict[str, float]]:
    """Return the kernels, and by name the sums of all GPUs in microseconds."""
    rows = [row for row in device_rows(path) if float(row.get("dur", 0)) >= 0]
    kernels = [row for row in rows if row["cat"] in KERNELS]
    sums = dict.fromkeys(FIELDS, 0.0) | {"sum": sum(float(row.get("dur", 0)) for row in kernels)}
    for device in {device_of(row) for row in rows}:
        busy = spans_of(row for row in rows if device_of(row) == device)
        own = [row for row in kernels if device_of(row) == device]
        computing = spans_of(row for row in own if not any(word in row["name"] for word in COMMUNICATING))
        sums["busy"] += covered_us(busy)
        sums["idle"] += max(stop for _, stop in busy) - min(busy)[0] - covered_us(busy)
        sums["communication"] += covered_us(spans_of(own)) - covered_us(computing)
    return len(kernels), sums


def device_of(row: dict[str, Any]) -> object:
    return (row.get("args") or {}).get("device", row.get("pid"))


def spans_of(rows: Any) -> Spans:
    return [(float(row["ts"]), float(row["ts"]) + float(row.get("dur", 0))) for row in rows]


def finished(command: list[str]) -> tuple[int, str, str, str]:
    """Run a command. Return its exit status, both outputs, and its CPU seconds and memory as text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        said, errors = out.read(), err.read()
    return process.returncode, said, errors, f"{used.ru_utime + used.ru_stime:.1f} s {used.ru_maxrss >> 10} MB"


def verdict(found: dict[str, float], expected: dict[str, float]) -> str:
    """Return "right", or the sums that are others."""
    wrong = [
        f"{field} {found[field]:.0f}"
        for field in FIELDS
        if abs(found[field] - expected[field]) > _CLOSE * max(1.0, abs(expected[field]))
    ]
    return ", ".join(wrong) or "right"


def ours(path: Path, count: int, expected: dict[str, float]) -> list[str]:
    """Return what `show` says, the share of GPU time of an unknown kind, and what it took."""
    command = [sys.executable, "-m", "kernelgauge", "show", str(path), "--whole", "--json"]
    status, out, err, used = finished(command)
    if status:
        return [f"refused: {err.splitlines()[0]}", "", used]
    shown = json.loads(out)
    if shown["on_cpu"]:
        return ["a CPU's job" if not count else "WRONG: a CPU's job", "", used]
    step, times = shown["step"], shown["step"]["times"]
    found = {field: sum(each[f"{field}_us"] for each in times) for field in FIELDS[1:]}
    kinds: dict[str, float] = defaultdict(float)
    for kernel in step["kernels"]:
        kinds[kernel["kind"]] += kernel["device_time_us"]
    other = kinds["other"] / sum(kinds.values()) if any(kinds.values()) else 0.0
    return [verdict(found | {"sum": step["device_time_us"]}, expected), f"{100 * other:.0f} %", used]


def peer(python: str, name: str, path: Path, expected: dict[str, float]) -> list[str]:
    """Return what another tool says, and what it took."""
    status, out, err, used = finished([python, str(Path(__file__).with_name("peer_sums.py")), name, str(path)])
    if status:
        return [f"fails: {err.strip().splitlines()[-1][:60]}", used]
    return [verdict(json.loads(out.splitlines()[-1]), expected), used]


def row_of(path: Path, python: str | None) -> str:
    """Return the row of one trace."""
    # In a process of its own: what this one has in memory would count as its children's.
    count, expected = json.loads(finished([sys.executable, __file__, "--plain", str(path)])[1])
    cells = [f"`{path}`", f"{count}", *(f"{expected[field]:.0f}" for field in FIELDS), *ours(path, count, expected)]
    for name in PEERS if python else ():
        cells += peer(str(python), name, path, expected)
    return " | ".join(cells).join(("| ", " |"))


if __name__ == "__main__":
    files, interpreter = sys.argv[1:], None
    if files[:1] == ["--plain"]:
        print(json.dumps(plain(Path(files[1]))))
        sys.exit()
    if files[:1] == ["--peers"]:
        interpreter, files = files[1], files[2:]
    heads = ["trace", "kernels", *(f"{field}, us" for field in FIELDS), "show", "other", "takes"]
    heads += [head for name in PEERS if interpreter for head in (name, "takes")]
    print(" | ".join(heads).join(("| ", " |")))
    print("|".join(["---"] * len(heads)).join("||"))
    for file in files:
        print(row_of(Path(file), interpreter), flush=True)
