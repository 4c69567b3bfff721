"""Results of several machines. Every argument has a default: a test names only what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelgauge.judge.verdict import RelativeChange, Status
from kernelgauge.results import Results, TestResult, WorkloadResult
from kernelgauge.run import ControlTime
from tests.builders import FUSED, HERE, fingerprint, pair, run
from tests.test_results import results, verdict, workload

HOST = "node1"


def moment(second: int) -> str:
    """A start."""
    return f"2026-11-20T19:{10 + second // 60:02}:{second % 60:02}+00:00"


def slower(estimate: float = 0.08) -> RelativeChange:
    return RelativeChange(estimate, estimate - 0.002, estimate + 0.002, 0.999)


def measured(
    name: str,
    status: Status = Status.PASS,
    *,
    gpu: str | None = HERE,
    controls: Mapping[str, ControlTime] | None = None,
    change: RelativeChange | None = None,
    kernel: str = FUSED,
    device: str = "NVIDIA H200",
    headline: str = "GPU time",
    subject: str = "GPU time",
    **changes: Any,
) -> WorkloadResult:
    """One workload on one GPU, with the verdict on its GPU time."""
    reasons = [("why", f"{kernel}  38.1 -> 55.4 us (+17.30): same kernel")] if status is Status.REGRESSED else []
    said = verdict(status, subject, headline, workload=name, reasons=reasons, change=change or slower())
    observed = run(workload=name, gpu=gpu, controls=dict(controls or pair()), machine=fingerprint(device=device))
    return workload(said, name=name, run=observed, **changes)


def ended(name: str, outcome: Any = "passed") -> TestResult:
    return TestResult(f"perf/test_latency.py::test_device_time[{name}]", name, outcome, 0.25)


def part(
    *workloads: str | WorkloadResult, gpu: str | None = HERE, second: int = 0, host: str = HOST, **changes: Any
) -> Results:
    """What one process left: workloads by name passed. `second`: of its start."""
    all_of_it = [measured(each, gpu=gpu) if isinstance(each, str) else each for each in workloads]
    fields: dict[str, Any] = {
        "gpu": gpu,
        "host": host,
        "started_at": moment(second),
        "seconds": 0.5,
        "tests": tuple(ended(each.id) for each in all_of_it),
        "commit": "c0ffee00",
        "arguments": ("perf",),
    }
    return results(*all_of_it, **(fields | changes))


def machine(
    gpu: str,
    statuses: Mapping[str, Status],
    *,
    controls: Mapping[str, ControlTime] | None = None,
    change: RelativeChange | None = None,
    kernel: str = FUSED,
    device: str = "NVIDIA H200",
    driver: str = "580.159.04",
    **changes: Any,
) -> Results:
    """A whole run on one GPU, with the status of each workload."""
    told = [
        measured(name, status, gpu=gpu, controls=controls, change=change, kernel=kernel, device=device)
        for name, status in statuses.items()
    ]
    return part(*told, gpu=gpu, **({"fingerprint": fingerprint(device=device, driver=driver)} | changes))


def ids(merged: Sequence[Results]) -> list[list[str]]:
    return [[each.id for each in one.workloads] for one in merged]
