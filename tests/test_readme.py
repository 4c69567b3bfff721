"""The quick start of the README, as it stands there: recorded, slowed down, caught and accepted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README_FILE = Path(__file__).parents[1] / "README.md"
README = README_FILE.read_text(encoding="utf-8")
MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def run(command: str, folder: Path) -> tuple[int, str]:
    """Run a command of the README in a folder; return its exit status and what it printed."""
    program, *arguments = shlex.split(command)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=folder,
        env=environment | {"KERNELGAUGE_LOCKS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_quick_start_catches_a_slower_module(tmp_path: Path) -> None:
    for block in blocks("python"):
        file = tmp_path / block.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nkernelgauge_device = cpu\n")
    model = tmp_path / "my_model.py"
    model.write_text(MODEL)
    record, check, accept = blocks("sh")[0].splitlines()

    status, said = run(record, tmp_path)
    assert (status, "1 written to" in said) == (0, True), said
    model.write_text(MODEL.replace("self.up(x))", "self.up(x)).clone()"))
    status, said = run(check, tmp_path)
    assert status == 1, said
    assert "REGRESSED  kernels differ from the baseline" in said
    assert "launches 3 -> 4" in said, said
    assert "benchmark: 1 tests" not in said  # pytest-benchmark's table comes with -v
    status, said = run(accept, tmp_path)
    assert status == 0, said
    status, said = run(f"{check} -m structure", tmp_path)
    assert status == 0, said


def test_readme_fits_a_screen_of_90_columns() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert not [line for line in lines if len(line) > 90]


def test_readme_shows_the_failure_of_the_tutorial() -> None:
    tutorial = README_FILE.parent / "docs" / "tutorial.md"
    assert blocks("text")[0] in tutorial.read_text(encoding="utf-8")
