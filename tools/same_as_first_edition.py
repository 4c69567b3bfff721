"""Compare what two versions of kernelgauge say of the recorded traces: ``python tools/same_as_first_edition.py FIRST_SRC``.

FIRST_SRC is the `src` of the first edition: ``git worktree add ../first 901f1a1``. Each trace of `tests/data/h200` goes
through `show --json`, each pair of neighbours through `diff --json`, with both versions. What differs is printed; then the
exit code is 1. docs/design/capabilities.md lists what is compared by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_TRACES = sorted((_ROOT / "tests" / "data" / "h200").glob("*.json.gz"))
_DECIMALS = 2  # of microseconds: ten nanoseconds


def ask(source: Path, *arguments: str) -> Any:
    """Return what a version's command prints as JSON."""
    command = [sys.executable, "-m", "kernelgauge", *arguments, "--json"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(source)}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def facts_of_trace(said: dict[str, Any]) -> dict[str, Any]:
    """Return what `show` says that both versions must agree on."""
    step, host = said["step"], said["step"]["host"]
    fields = ("name", "kind", "dtype", "tile", "grid", "block", "kernel_kwargs", "num_warps", "input_shapes", "limit")
    return {
        "devices": said["devices"],
        "steps": (said["steps"], said["steps_alike"]),
        "problems": said["problems"],
        "kernels": [(each["name"], each["kind"], each["launches"], each["device_time_us"]) for each in said["kernels"]],
        "launches": [
            (each["name"], each["op"], each["input_shapes"], each["durations_us"]) for each in step["kernels"]
        ],
        "rows": sorted(json.dumps([each.get(name) for name in (*fields, "launches")]) for each in step["groups"]),
        "GPU time": round(step["device_time_us"], _DECIMALS),
        "copies and memsets": (step["memsets"], step["copies"]),
        "dispatcher ops": host["dispatcher_ops"],
        "host": (round(host["duration_us"], _DECIMALS), round(host["launching_us"], _DECIMALS)),
        "synchronizations": host["synchronizations"],
    }


def facts_of_difference(said: dict[str, Any]) -> dict[str, Any]:
    """Return what `diff` says that both versions must agree on: launches of each kind of change.

    A kernel that is launched more than once was compared launch by launch, and is compared by its total: either may be
    slower where the other is not, so that kernels whose time alone changed count with the unchanged ones.
    """
    of_time = ("slower", "faster", "unchanged")
    changes: Counter[tuple[str, str]] = Counter()
    for each in said["differences"]:
        for side in ("before", "after"):
            what = "same kernel" if each["what"] in of_time else each["what"]
            changes[what, side] += sum(row.get("launches", 1) for row in each[side])
    return {
        "changed": said["changed"],
        "GPU time": [round(said[side]["device_time_us"], _DECIMALS) for side in ("before", "after")],
        "launches": sorted(changes.items()),
        "dispatcher ops": said["host"]["dispatcher_ops"],
        "synchronizations": said["host"]["synchronizations"],
    }


def differences(first: Path) -> list[str]:
    """Return a line for each fact that differs."""
    found: list[str] = []
    questions = [("show", path) for path in _TRACES]
    questions += [("diff", *pair) for pair in pairwise(_TRACES)]  # type: ignore[misc]
    for command, *paths in questions:
        facts = facts_of_trace if command == "show" else facts_of_difference
        before, now = (facts(ask(source, command, *map(str, paths))) for source in (first, _ROOT / "src"))
        names = " ".join(path.name.removesuffix(".json.gz") for path in paths)
        wrong = [name for name in before if before[name] != now[name]]
        found += [f"{command} {names}: {name}\n  first {before[name]}\n  now   {now[name]}" for name in wrong]
        print(f"{command} {names}: {len(before) - len(wrong)} of {len(before)} facts agree", flush=True)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit("\n".join(differences(Path(sys.argv[1]))) or 0)
