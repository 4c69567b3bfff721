"""Results of several machines. Every argument has a default: a test names only what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelgauge.judge.verdict import Status
from kernelgauge.results import Results, TestResult, WorkloadResult
from tests.builders import HERE, run
from tests.test_results import results, verdict, workload


def moment(second: int) -> str:
    """A start."""
    return f"2026-11-20T19:{10 + second // 60:02}:{second % 60:02}+00:00"


def measured(
    name: str,
    status: Status = Status.PASS,
    *,
    gpu: str | None = HERE,
    headline: str = "GPU time",
    **changes: Any,
) -> WorkloadResult:
    """One workload on one GPU, with the verdict on its GPU time."""
    said = verdict(status, headline=headline, workload=name)
    return workload(said, name=name, run=run(workload=name, gpu=gpu), **changes)


def ended(name: str, outcome: Any = "passed") -> TestResult:
    return TestResult(f"perf/test_latency.py::test_device_time[{name}]", name, outcome, 0.25)


def part(*workloads: str | WorkloadResult, gpu: str | None = HERE, second: int = 0, **changes: Any) -> Results:
    """What one process left: workloads by name passed. `second`: of its start."""
    all_of_it = [measured(each, gpu=gpu) if isinstance(each, str) else each for each in workloads]
    fields: dict[str, Any] = {
        "gpu": gpu,
        "host": "node1",
        "started_at": moment(second),
        "seconds": 0.5,
        "tests": tuple(ended(each.id) for each in all_of_it),
        "commit": "c0ffee00",
        "arguments": ("perf",),
    }
    return results(*all_of_it, **(fields | changes))


def machine(gpu: str, statuses: Mapping[str, Status], **changes: Any) -> Results:
    """A whole run on one GPU, with the status of each workload."""
    return part(*(measured(name, status, gpu=gpu) for name, status in statuses.items()), gpu=gpu, **changes)


def ids(merged: Sequence[Results]) -> list[list[str]]:
    return [[each.id for each in one.workloads] for one in merged]
