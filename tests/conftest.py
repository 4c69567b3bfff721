"""Runs pytest and `kernelgauge` inside of tests."""

import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.metadata import PathDistribution, distributions
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


_PROGRAMS = ("pytest", "git", "pip", "nvidia-smi", "nsys", "kernelgauge")
_PYTESTS_TOO = ("bisect", "calibrate", "compare")  # what they do not know goes to pytest


@cache
def command_options() -> dict[str, set[str]]:
    """Return the options that each command takes, by its name."""
    from kernelgauge.cli import _parser

    (commands,) = (each.choices for each in _parser()._actions if each.dest == "==SUPPRESS==")
    return {name: set(each._option_string_actions) for name, each in commands.items()}


def named_options(command: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield each option that a text of a command names, and the command that has to take it: the
    last one before it in its line, or that of the text. Other programs have options of their own.
    """
    for line in text.splitlines():
        for part in re.split(r" {3}\(|; ", line):  # a note behind a command is no part of it
            owner = command
            for word in part.split():
                if word in _PROGRAMS or owner == "kernelgauge":
                    owner = word
                elif re.fullmatch(r"-k|--[a-z][a-z-]+", option := word.strip("():,.")) and (
                    owner in command_options() and owner not in _PYTESTS_TOO
                ):
                    yield owner, option


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
        name, options = str(*arguments[:1]), command_options()
        named = named_options(name, printed.out + printed.err)
        assert not {it for it in named if it[1] not in options[it[0]] | {*arguments}}
        return int(ended.value.code or 0), printed.out, printed.err

    return call


@pytest.fixture
def skip_old_objects(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let collections skip what there is: else each looks at all modules of torch, for 0.2 s.

    Not on a GPU, where Triton's kernels are not found among frozen objects.
    """

    def skip() -> None:
        torch = sys.modules.get("torch")
        if torch is not None and not torch.cuda.is_available():
            gc.collect()
            gc.freeze()
            monkeypatch.setattr(gc, "unfreeze", lambda: None)
            monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)  # it counts them for 40 ms

    return skip


class Installed(PathDistribution):
    """A package that stays as it is: each inner run would read the entry points of all packages."""

    entry_points = cached_property(PathDistribution.entry_points.fget)
    files = cached_property(PathDistribution.files.fget)


@cache
def installed() -> list[Installed]:
    return [Installed(each._path) for each in distributions()]


@pytest.fixture
def libraries_stay(
    skip_old_objects: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Let an inner run forget the modules of its own folder alone, and those of examples: torch
    cannot be imported twice.
    """
    inner = str(tmp_path_factory.getbasetemp()), str(Path(__file__).parents[1] / "examples")
    take = SysModulesSnapshot.__init__

    def stays(name: str) -> bool:
        return not str(getattr(sys.modules[name], "__file__", "")).startswith(inner)

    def start(self: SysModulesSnapshot, preserve: object = None) -> None:
        skip_old_objects()
        take(self, stays)

    monkeypatch.setattr(SysModulesSnapshot, "__init__", start)
    monkeypatch.setattr(importlib.metadata, "distributions", installed)


@pytest.fixture
def pytester(libraries_stay: None, pytester: pytest.Pytester) -> pytest.Pytester:
    return pytester
