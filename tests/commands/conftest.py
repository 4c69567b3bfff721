"""The command `kernelgauge`, called in this process."""

from __future__ import annotations

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
