"""Runs pytest and `kernelgauge` inside of tests."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.cli import main

pytest_plugins = ["pytester"]

# Several test processes share the cores: threads and compile workers of each would wait for those of the others.
for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
    os.environ.setdefault(name, "1")


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


@pytest.fixture
def kernelgauge(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call it with these arguments: its exit code, and what it wrote to standard output and standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main([*map(str, arguments)])
        except SystemExit as stopped:  # argparse's
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
