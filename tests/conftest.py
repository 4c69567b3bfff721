"""Runs pytest and `kernelgauge` inside of tests."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.pytester import SysModulesSnapshot

from kernelgauge.baselines import BaselineStore

pytest_plugins = ["pytester"]

# Several test processes share the cores: threads and compile workers of each would wait for those
# of the others. And each would compile and load a program to try the vector instructions, for 8 s:
# Inductor writes scalar code here.
for name, value in (
    ("OMP_NUM_THREADS", "1"),
    ("TORCHINDUCTOR_COMPILE_THREADS", "1"),
    ("TORCHINDUCTOR_VEC_ISA_OK", "0"),
):
    os.environ.setdefault(name, value)


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


@pytest.fixture
def kernelgauge(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Call it with these arguments: its exit code, and what it wrote to standard output and
    standard error.
    """

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()  # of an inner run
        monkeypatch.setattr(sys, "argv", ["kernelgauge", *map(str, arguments)])
        sys.modules.pop("kernelgauge.__main__", None)
        with pytest.raises(SystemExit) as ended:
            importlib.import_module("kernelgauge.__main__")
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


@pytest.fixture
def libraries_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Let an inner run forget the modules of its own folder alone: torch cannot be imported twice."""
    inner, take = str(tmp_path_factory.getbasetemp()), SysModulesSnapshot.__init__

    def stays(name: str) -> bool:
        return not str(getattr(sys.modules[name], "__file__", "")).startswith(inner)

    monkeypatch.setattr(
        SysModulesSnapshot, "__init__", lambda self, preserve=None: take(self, stays)
    )


@pytest.fixture
def pytester(libraries_stay: None, pytester: pytest.Pytester) -> pytest.Pytester:
    return pytester
