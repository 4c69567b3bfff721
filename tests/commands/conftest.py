"""The command `kernelgauge`, called in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelgauge.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kernelgauge(capsys: pytest.CaptureFixture[str]) -> Command:
    """Call it with these arguments: its exit code, and what it wrote to standard output and standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main([*map(str, arguments)])
        except SystemExit as stopped:  # argparse's
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which is an empty repository of git."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "Ann")
        monkeypatch.setenv(f"{name}_EMAIL", "ann@example.org")
    git("init", "-q")
    return folder


def shell(script: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash, in which $KG is the command."""
    variables = {**os.environ, "KG": f"{sys.executable} -m kernelgauge", **environment}
    command = ["bash", "-c", script, "bash", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def imported_modules(*arguments: str | Path) -> set[str]:
    """Return the modules that are loaded when a command has ended."""
    script = "import sys; from kernelgauge.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())
