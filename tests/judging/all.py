"""Judge all attacks and all honest candidates: `python -m tests.judging.all [cpu|cuda [NAME]]` from the root of a checkout.

An attack is accepted if it is correct and faster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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


def verdicts(reference: str, targets: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    """Yield a verdict for each target. A judge that ended gives none, and another one judges the rest."""
    left = [*targets]
    while left:
        # An attack may change these files: the next judge has copies of its own.
        with tempfile.TemporaryDirectory(prefix="kernelgauge-attacks-") as folder:
            for name in ("attacks.py", "task.py", "honest.py"):
                shutil.copy(FOLDER / name, folder)
            Path(folder, "reference.py").write_text(reference)
            command = [sys.executable, str(FOLDER / "several.py"), f"{folder}/reference.py", device]
            lines = "\n".join(f"{folder}/{target}" for target in left)
            done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        yield from answers
        left = left[len(answers) :]
        if left:
            yield {"faster": False, "refused": f"no verdict: the judge ended with {done.returncode}"}
            left = left[1:]


def main(device: str = "cpu", only: str = "") -> None:
    names = [name for name in attacks.ATTACKS if only in name]
    accepted = 0
    found_all = verdicts((FOLDER / "task.py").read_text(), [f"attacks.py:attack_{name}" for name in names], device)
    for name, found in zip(names, found_all, strict=True):
        accepted += found["faster"]
        print(f"attack  {name:<34} {found.get('refused', 'correct').splitlines()[0]}", flush=True)  # noqa: T201
    refused = count = 0
    for name, task in honest.TASKS.items():
        candidates = [each for each in task.candidates if only in f"{name}__{each}"]
        targets = [f"honest.py:{name}__{each}" for each in candidates]
        for candidate, found in zip(candidates, verdicts(REFERENCE.format(name=name), targets, device), strict=True):
            count += 1
            refused += not found.get("correct")
            print(f"honest  {name + ' ' + candidate:<34} {found.get('refused', 'correct')}", flush=True)  # noqa: T201
    print(f"accepted attacks: {accepted} of {len(names)}")  # noqa: T201
    print(f"refused honest candidates: {refused} of {count}")  # noqa: T201


main(*sys.argv[1:])
