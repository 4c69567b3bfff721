"""Results of made-up nights, and histories of them read again."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.history import SetAside, add_to_history, whole_entries
from kernelgauge.history.file import Stored
from kernelgauge.history.places import place
from kernelgauge.history.trend import trends
from kernelgauge.report.trend import Trends
from kernelgauge.results import Results, WorkloadResult
from tests.builders import ELSEWHERE, H200, HERE, WORKLOAD, fingerprint, run
from tests.test_results import results, verdict, workload

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 12, 1, tzinfo=timezone.utc)
FIRST = datetime(2026, 1, 5, 2, 30, tzinfo=timezone.utc)


def timed(us: float = 205.0, *, name: str = WORKLOAD, gpu: str | None = HERE, **changes: Any) -> WorkloadResult:
    return workload(verdict(workload=name), name=name, run=run(workload=name, device=(us, us), gpu=gpu, **changes))


def night(number: int, *workloads: WorkloadResult, gpu: str | None = HERE, **changes: Any) -> Results:
    when = (FIRST + timedelta(days=number)).isoformat()
    machine = workloads[0].run.fingerprint if workloads and workloads[0].run else H200
    return results(*workloads, started_at=when, gpu=gpu, fingerprint=machine, **({"host": "node"} | changes))


def read(location: str | Path, **options: Any) -> tuple[dict[str, Stored], list[SetAside]]:
    found = list(whole_entries(place(str(location)), **({"now": NOW} | options)))
    return dict(each for each in found if not isinstance(each, SetAside)), [
        each for each in found if isinstance(each, SetAside)
    ]


def shown(location: str | Path, **options: Any) -> Trends:
    pytest.importorskip("duckdb")
    return trends(str(location), **({"now": NOW} | options))


def year(location: str | Path, *, nights: int = 40, gpus: tuple[str, ...] = (HERE, ELSEWHERE)) -> None:
    """A driver upgrade at half time that makes "slow" 5 % slower."""
    for number in range(nights):
        late = number >= nights // 2
        machine = fingerprint(driver="585.1" if late else "580.1")
        for gpu in gpus:
            wobble = 1 + random.Random(f"{gpu} {number}").gauss(0, 0.001)
            both = [
                timed(us * wobble, name=name, gpu=gpu, machine=machine)
                for name, us in (("slow", 210.0 if late else 200.0), ("same", 100.0))
            ]
            add_to_history(night(number, *both, gpu=gpu, commit=f"{number:040x}"), str(location))
