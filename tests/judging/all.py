"""Judge all attacks and all honest candidates: `python -m tests.judging.all [cpu|cuda [NAME [WITHOUT]]]` from the root of a checkout. WITHOUT: see `several.py`.

An attack is accepted if it is correct and faster, in two short contests: those of `kernelgauge judge` are longer.
"""

from __future__ import annotations

import json
import os
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
            lines = "\n".join(f"{folder}/{target}" for target in left)
            done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        yield from answers
        left = left[len(answers) :]
        if left:
            yield {"faster": False, "refused": f"no verdict: the judge ended with {done.returncode}"}
            left = left[1:]


def main(device: str = "cpu", only: str = "", without: str = "") -> None:
    # Judges time one after another, and start processes side by side. On a CPU they would time side by side.
    workers = max(1, (os.cpu_count() or 1) // 3) if device == "cuda" else 1
    names = [name for name in attacks.ATTACKS if only in name]
    jobs = [
        ("attack", part, (FOLDER / "task.py").read_text(), [f"attacks.py:attack_{name}" for name in part])
        for part in (names[start::workers] for start in range(workers))
    ]
    for name, task in honest.TASKS.items():
        candidates = [each for each in task.candidates if only in f"{name}__{each}"]
        labels = [f"{name} {each}" for each in candidates]
        jobs.append(
            ("honest", labels, REFERENCE.format(name=name), [f"honest.py:{name}__{each}" for each in candidates])
        )
    found: dict[str, list[dict[str, Any]]] = {"attack": [], "honest": []}

    def run(job: tuple[str, list[str], str, list[str]]) -> None:
        kind, labels, reference, targets = job
        for label, verdict in zip(labels, verdicts(reference, targets, device, without), strict=True):
            found[kind].append(verdict)
            told = verdict.get("refused", "correct, faster" if verdict["faster"] else "correct")
            print(f"{kind}  {label:<34} {' '.join(told.split())}", flush=True)  # noqa: T201

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, jobs))
    accepted = sum(each["faster"] for each in found["attack"])
    refused = sum(not each.get("correct") for each in found["honest"])
    print(f"accepted attacks: {accepted} of {len(found['attack'])}")  # noqa: T201
    print(f"refused honest candidates: {refused} of {len(found['honest'])}")  # noqa: T201


main(*sys.argv[1:])
