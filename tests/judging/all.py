"""Judge all attacks and all honest candidates: `python -m tests.judging.all [cuda]` from the root of a checkout.

An attack is accepted if it is correct and faster. Copies of the files are judged: an attack may change them.
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


def verdicts(reference: Path, targets: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    """Yield a verdict for each target. A judge that ended gives none, and the next one judges the rest."""
    left = [*targets]
    while left:
        command = [sys.executable, str(FOLDER / "several.py"), str(reference), device]
        done = subprocess.run(command, input="\n".join(left), capture_output=True, text=True, check=False)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        yield from answers
        left = left[len(answers) :]
        if left:
            yield {"faster": False, "refused": f"no verdict: the judge ended with {done.returncode}"}
            left = left[1:]


def main(device: str = "cpu") -> None:
    with tempfile.TemporaryDirectory(prefix="kernelgauge-attacks-") as folder:
        for name in ("attacks.py", "task.py", "honest.py"):
            shutil.copy(FOLDER / name, folder)
        targets = [f"{folder}/attacks.py:attack_{name}" for name in attacks.ATTACKS]
        accepted = 0
        for name, found in zip(attacks.ATTACKS, verdicts(Path(folder, "task.py"), targets, device), strict=True):
            accepted += found["faster"]
            print(f"attack  {name:<34} {found.get('refused', 'correct').splitlines()[0]}", flush=True)  # noqa: T201
        refused = count = 0
        for name, task in honest.TASKS.items():
            reference = Path(folder, f"reference_{name}.py")
            reference.write_text(REFERENCE.format(name=name))
            targets = [f"{folder}/honest.py:{name}__{candidate}" for candidate in task.candidates]
            for candidate, found in zip(task.candidates, verdicts(reference, targets, device), strict=True):
                count += 1
                refused += not found.get("correct")
                print(f"honest  {name + ' ' + candidate:<34} {found.get('refused', 'correct')}", flush=True)  # noqa: T201
    print(f"accepted attacks: {accepted} of {len(attacks.ATTACKS)}")  # noqa: T201
    print(f"refused honest candidates: {refused} of {count}")  # noqa: T201


main(*sys.argv[1:])
