"""Repositories, and processes that measure what a test says."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernelgauge import processes
from kernelgauge.errors import MeasurementError
from kernelgauge.results import Results
from tests.builders import CONTROL_US, H200, counts, fingerprint, mlp_kernels
from tests.plugin.told_processes import measured, results_of

Command = Callable[..., tuple[int, str, str]]


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


class Measured(NamedTuple):
    """A process that ran: model and suite of its folder, and what it was called with."""

    model: str
    suite: str
    folder: Path
    arguments: list[str]
    packages: list[str]
    python: str | None


class Process:
    """Stands in for a process of pytest, which measures the model in its folder or in its packages.

    A model is a text of words. "205" is its time in microseconds, "down=73" the time of one kernel, "host=50" the dispatch
    time. "fewer", "breaks", "recompiles", "tf32" and "broken" change its kernels, counts and settings, or make it fail.
    `after`: how many processes end well before the next one is interrupted.
    """

    def __init__(self, baselines: Path) -> None:
        self.baselines = baselines
        self.seen: list[Measured] = []
        self.rng = random.Random(20261123)
        self.noise = 0.0005
        self.speeds = (1.0,)  # of the host, by process: how many times as long the host reference takes
        self.after: int | None = None
        self.gpu, self.driver = "a", H200.driver
        self.is_machine_lost = False

    def __call__(
        self,
        arguments: list[str],
        *,
        folder: Path | None = None,
        packages: Sequence[Path] = (),
        python: str | None = None,
        **_: Any,
    ) -> Results:
        folder = folder or Path.cwd()
        if self.after is not None and len(self.seen) >= self.after:
            raise KeyboardInterrupt
        modules = [path.read_text() for each in packages for path in each.iterdir() if path.is_file()]
        model = " ".join(modules) if modules else (folder / "model.txt").read_text()
        suite = (folder / "perf" / "suite.txt").read_text()
        self.seen.append(Measured(model, suite, folder, list(arguments), modules, python))
        if "broken" in model or self.is_machine_lost:
            raise MeasurementError("a process that measures failed", got="ImportError: no module named gone")
        number = next((float(word) for word in model.split() if re.fullmatch(r"[\d.]+", word)), 205.0)
        changes: dict[str, Any] = {"counts": counts(graph_breaks=int("breaks" in model))}
        if arguments[-1] == "structure":
            changes |= {"device": None, "incomplete": "no test of a time was selected"}
        elif "recompiles" in model:  # on fresh allocations, in the replicates of a time
            changes |= {"device": None, "incomplete": "other kernels"}
            changes["counts"] = counts(recompiles=4 + len(self.seen) % 2)
        precision = "high" if "tf32" in model else "highest"
        changes |= {"gpu": self.gpu, "machine": fingerprint(driver=self.driver, fp32_matmul=precision)}
        times = {name: float(time) for name, time in re.findall(r"(\w+)=([\d.]+)", model)}
        if (host := times.pop("host", None)) and not arguments[-1].endswith("and device_time"):
            speed = self.speeds[(len(self.seen) - 1) % len(self.speeds)]
            changes["host"] = [
                host * speed**1.2 * (1 + self.rng.gauss(0, self.noise))
            ] * 4  # no ratio is quite the same
            changes["host_control_us"] = CONTROL_US * speed
        changes["kernels"] = mlp_kernels(**times)[: 3 if "fewer" in model else 4]
        return results_of((measured(center=number * (1 + self.rng.gauss(0, self.noise)), **changes),), self.baselines)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    told = Process(tmp_path / "baselines")
    monkeypatch.setattr(processes, "run_process", told)
    return told


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
