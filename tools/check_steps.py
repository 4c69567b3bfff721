"""Compare the steps that `kernelgauge check` finds with a plain count over the same files. A tool, run by hand:

python tools/check_steps.py FILE ...

It prints a Markdown row for each trace: the steps, kernels launched in each, and the mean time of the kernels and of
those that communicate, as both count them. The plain count takes from the baseline the name of the annotation alone.
"""

import gzip
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COMMUNICATING = ("nccl", "rccl", "deep_ep", "multimem", "cross_device_reduce")
NOT_KERNELS = ("wait", "memset", "memcpy")
_CLOSE = 1e-3


def plain(path: Path, name: str) -> tuple[list[int], float, float]:
    """Return the kernels of each step, and per step the time of all and of communication, in microseconds."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    found = json.loads(content.decode(errors="replace"), strict=False)
    rows = [row for row in found["traceEvents"] if row.get("ph") == "X"]
    marks = [(float(row["ts"]), float(row["ts"]) + float(row["dur"])) for row in rows
             if row.get("cat") in ("user_annotation", "python_function") and row["name"].startswith(name)]  # fmt: skip
    calls = {row["args"]["correlation"]: float(row["ts"]) for row in rows
             if "_runtime" in row.get("cat", "") or "_driver" in row.get("cat", "")
             if "correlation" in row.get("args", {})}  # fmt: skip
    steps: list[list[dict[str, Any]]] = [[] for _ in marks]
    for row in rows:
        at = calls.get(row["args"].get("correlation")) if row.get("cat") == "kernel" else None
        for step, (start, end) in zip(steps, marks, strict=True):
            if at is not None and start <= at < end:
                step.append(row)
    steps = [step for step in steps if step]
    kernels = [row for step in steps for row in step]
    sums = [sum(float(row["dur"]) for row in some) / max(1, len(steps)) for some in (
        kernels, [row for row in kernels if any(word in row["name"] for word in COMMUNICATING)])]  # fmt: skip
    return sorted(len(step) for step in steps), sums[0], sums[1]


def ours(path: Path) -> tuple[str, int, tuple[int, int], float, float, float, float] | str:
    """Return what a baseline of one trace has, with CPU seconds and peak memory in MB; or the error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "b.json")
        command = [sys.executable, "-m", "kernelgauge", "check", "--update", str(path), "-b", str(file)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if said.returncode:
            return " ".join(said.stderr.split("\n")[i].strip().removeprefix("got").strip() for i in (0, 2))
        data = json.loads(file.read_text())
    kinds = next(iter(data["ranks"].values()))
    names, steps, us, communication = data["rows"], 0, 0.0, 0.0
    ranges: list[tuple[int, int]] = []  # of each kind of step
    for kind in kinds.values():
        steps += kind["steps"]
        rows = [row for row in kind["rows"] if names[row[0]][4] and names[row[0]][3] not in NOT_KERNELS]
        ranges.append((sum(row[1] for row in rows), sum(row[2] for row in rows)))
        us += sum(row[3][0] for row in rows) * kind["steps"]
        communication += sum(row[3][0] for row in rows if names[row[0]][3] == "communication") * kind["steps"]
    least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return data["found_by"], steps, (least, most), us / steps, communication / steps, seconds, after.ru_maxrss / 1e3


def main() -> None:
    """Print the rows."""
    print("| trace | steps by | steps | kernels a step | GPU time, us | communication, us | plain count | takes |")
    print("|---|---|---|---|---|---|---|---|")
    for path in map(Path, sys.argv[1:]):
        title, found = "/".join(path.parts[-2:]), ours(path)
        if isinstance(found, str):
            print(f"| `{title}` | {found} | | | | | | |")
            continue
        name, steps, (least, most), us, communication, seconds, mb = found
        verdict = "not recounted" if name == "period" else "right"
        if name != "period":
            counts, sum_us, communication_us = plain(path, name)
            pairs = ((us, sum_us), (communication, communication_us))
            if len(counts) != steps or any(abs(one - other) > _CLOSE * max(other, 1) for one, other in pairs):
                verdict = f"{len(counts)} steps of {counts[0]} to {counts[-1]}, {sum_us:.0f}, {communication_us:.0f}"
        kernels = str(least) if least == most else f"{least} to {most}"
        print(
            f"| `{title}` | `{name}` | {steps} | {kernels} | {us:.0f} | {communication:.0f} | {verdict} | {seconds:.1f} s, {mb:.0f} MB |"
        )


if __name__ == "__main__":
    main()
