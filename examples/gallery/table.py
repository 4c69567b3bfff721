"""Print the results of a run as the table of README.md: `python examples/gallery/table.py
reports/latest/results.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any


def time_us(workload: dict[str, Any], timer: str) -> float | None:
    sample = workload["run"]["samples"].get(timer)
    return geometric_mean(sample["replicates_us"]) if sample else None


def rows(workloads: list[dict[str, Any]]) -> list[str]:
    """Return a row for each workload, beside the first variant of its module, shape and pass."""
    first: dict[tuple[str, ...], float | None] = {}
    found = []
    for each in workloads:
        if each["run"] is None:
            continue
        shape = "x".join(map(str, each["shape"]))
        gpu_us, latency_us = time_us(each, "device_time"), time_us(each, "end_to_end")
        beside = first.setdefault((each["module"], each["pass_"], shape), gpu_us)
        change = (
            f"{100 * (gpu_us / beside - 1):+.1f} %"
            if gpu_us and beside and gpu_us != beside
            else ""
        )
        counts = each["run"]["counts"]
        peak = counts["peak_allocated_bytes"]
        cells = (
            f"{each['module']}, {each['pass_']}",
            shape,
            each["variant"],
            *("" if us is None else f"{us:.1f}" for us in (gpu_us, latency_us)),
            change,
            str(counts["launches"]),
            "" if peak is None else f"{peak / 1e6:.1f}",
        )
        found.append(f"| {' | '.join(cells)} |")
    return found


def main(path: str) -> None:
    results = json.loads(Path(path).read_text())
    machine = results["fingerprint"]
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("torch", "triton", "liger_kernel") if machine[name]
    )
    print(
        f"{machine['device']}, {versions}, commit {(results['commit'] or '-')[:9]}, {results['started_at'][:10]}.\n"
    )
    print(
        "| module | shape | variant | GPU time µs | latency µs | GPU time beside the first | launches | peak MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(rows(results["workloads"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
