"""A history in a folder, used by way of the command line, and results of made-up nights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from kernelgauge.judge.verdict import Status
from kernelgauge.results import Results, WorkloadResult, encode_results
from tests.builders import ELSEWHERE, H200, HERE, WORKLOAD, fingerprint, results, run, verdict, workload
from tests.commands.conftest import Command


class History:
    """`kernelgauge history` on one location. Each call returns the exit code, standard output and standard error."""

    def __init__(self, root: Path, call: Command) -> None:
        self.call = call
        self.root = root / "history"
        self.location = str(self.root)

    def add(self, *several: Results) -> None:
        """Write each as `cp` or `kernelgauge publish` does."""
        for each in several:
            with fsspec.open(f"{self.location}/{uuid4().hex}/results.json", "wb", auto_mkdir=True) as file:
                file.write(encode_results(each))

    def show(self, *arguments: str) -> tuple[int, str, str]:
        return self.call(self.location, *arguments)


@pytest.fixture
def history(tmp_path: Path, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv("COLUMNS", "80")
    return History(tmp_path, partial(kernelgauge, "history"))


@pytest.fixture(params=["folder", "bucket"])
def any_history(request: pytest.FixtureRequest, history: History) -> Iterator[History]:
    """In a folder, and in a bucket in memory."""
    if request.param == "bucket":
        history.location = f"memory://{uuid4().hex}/history"
    yield history
    fsspec.filesystem("memory").store.clear()


FIRST = datetime(2026, 1, 5, 2, 30, tzinfo=timezone.utc)


def timed(
    us: float = 205.0,
    *,
    name: str = WORKLOAD,
    gpu: str | None = HERE,
    status: Status = Status.PASS,
    said: str = "",
    **changes: Any,
) -> WorkloadResult:
    measured = run(workload=name, device=(us, us), gpu=gpu, **changes)
    return workload(verdict(status, workload=name, headline=said), name=name, run=measured)


def night(number: int, *workloads: WorkloadResult, gpu: str | None = HERE, **changes: Any) -> Results:
    when = (FIRST + timedelta(days=number)).isoformat()
    machine = workloads[0].run.fingerprint if workloads and workloads[0].run else H200
    return results(*workloads, started_at=when, gpu=gpu, fingerprint=machine, **({"host": "node"} | changes))


def year(nights: int = 40) -> list[Results]:
    """Two GPUs, and a driver upgrade at half time that makes "slow" 5 % slower."""
    measured = []
    for number in range(nights):
        is_late = number >= nights // 2
        machine = fingerprint(driver="585.1" if is_late else "580.1")
        for gpu in (HERE, ELSEWHERE):
            wobble = 1 + random.Random(f"{gpu} {number}").gauss(0, 0.001)
            both = [
                timed(us * wobble, name=name, gpu=gpu, machine=machine, status=status, said="slower")
                for name, us, status in (
                    ("slow", 210.0 if is_late else 200.0, Status.REGRESSED if is_late else Status.PASS),
                    ("same", 100.0, Status.PASS),
                )
            ]
            measured.append(night(number, *both, gpu=gpu, commit=f"{number:040x}"))
    return measured
