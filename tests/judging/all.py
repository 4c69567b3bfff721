"""Judge all attacks and all honest candidates: `python -m tests.judging.all [cpu|cuda [NAMES [WITHOUT]]]` from the root of a checkout. NAMES: a regular expression. WITHOUT: see `several.py`.

An attack is accepted if it is correct and faster. On a GPU the judge must find `ten_times once` faster: a judge that finds nothing
faster would accept no attack either.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.judging import attacks, honest

FOLDER = Path(__file__).parent
REFERENCE = """
import honest
task = honest.TASKS[{name!r}]
SHAPES, DTYPES, inputs, run = task.shapes, task.dtypes, task.inputs, task.reference
def get_init_inputs(): return task.init_inputs
"""


def verdicts(reference: str, targets: Sequence[str], *options: str) -> Iterator[dict[str, Any]]:
    """Yield a verdict for each target. A judge that ended gives none, and another one judges the rest."""
    left = [*targets]
    while left:
        # An attack may change these files: the next judge has copies of its own.
        with tempfile.TemporaryDirectory(prefix="kernelgauge-attacks-") as folder:
            for name in ("attacks.py", "task.py", "honest.py"):
                shutil.copy(FOLDER / name, folder)
            Path(folder, "reference.py").write_text(reference)
            command = [sys.executable, str(FOLDER / "several.py"), f"{folder}/reference.py", *options]
            judge = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert judge.stdin is not None
            assert judge.stdout is not None
            with judge:
                judge.stdin.write("\n".join(f"{folder}/{target}" for target in left))
                judge.stdin.close()
                for line in judge.stdout:
                    yield json.loads(line)
                    left = left[1:]
        if left:
            yield {"faster": False, "refused": f"no verdict: the judge ended with {judge.returncode}"}
            left = left[1:]


def main(device: str = "cpu", only: str = "", without: str = "") -> None:
    # Judges time one after another, and start processes side by side. On a CPU they would time side by side.
    workers = max(1, (os.cpu_count() or 1) // 2) if device == "cuda" else 1
    names = [name for name in attacks.ATTACKS if re.search(only, name)]
    jobs = [
        ("attack", part, (FOLDER / "task.py").read_text(), [f"attacks.py:attack_{name}" for name in part])
        for part in (names[start::workers] for start in range(workers))
    ]
    for name, task in honest.TASKS.items():
        candidates = [each for each in task.candidates if re.search(only, f"{name}__{each}")]
        labels = [f"{name} {each}" for each in candidates]
        jobs.append(
            ("honest", labels, REFERENCE.format(name=name), [f"honest.py:{name}__{each}" for each in candidates])
        )
    jobs.sort(key=lambda job: "ten_times once" not in job[1])  # first
    found: dict[str, dict[str, dict[str, Any]]] = {"attack": {}, "honest": {}}

    def run(job: tuple[str, list[str], str, list[str]]) -> None:
        kind, labels, reference, targets = job
        for label, verdict in zip(labels, verdicts(reference, targets, device, without), strict=True):
            found[kind][label] = verdict
            told = verdict.get("refused", "correct, faster" if verdict["faster"] else "correct")
            print(f"{kind}  {label:<34} {' '.join(told.split())}", flush=True)  # noqa: T201

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, jobs))
    attacked, honestly = found.values()
    accepted = [label for label, each in attacked.items() if each["faster"]]
    refused = [label for label, each in honestly.items() if not each.get("correct")]
    faster = [label for label, each in honestly.items() if each["faster"]]
    print(f"accepted attacks: {len(accepted)} of {len(attacked)} {accepted}")  # noqa: T201
    print(f"refused honest candidates: {len(refused)} of {len(honestly)} {refused}")  # noqa: T201
    print(f"faster honest candidates: {len(faster)} of {len(honestly)} {faster}")  # noqa: T201
    is_blind = device == "cuda" and "ten_times once" in honestly and "ten_times once" not in faster
    sys.exit(bool(accepted or refused or is_blind))


main(*sys.argv[1:])
