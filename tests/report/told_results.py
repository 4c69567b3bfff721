"""Results of workloads that passed and failed, for what is written of them to GitHub."""

from __future__ import annotations

from kernelgauge.judge import Status
from kernelgauge.results import Results, WorkloadResult
from tests.builders import FUSED, WORKLOAD
from tests.test_results import results, verdict, workload


def regressed(name: str = WORKLOAD, **changes: object) -> WorkloadResult:
    why = f"{FUSED}  38.1 -> 55.4 us (+17.30): same source (crp6dxk5), other launch configuration:\nXBLOCK 1024 -> 512"
    worse = verdict(Status.REGRESSED, workload=name, reasons=[("why", why), ("trace", "/home/me/trace.json.gz")])
    return workload(worse, name=name, **changes)


def passed(name: str = "linear-eager") -> WorkloadResult:
    return workload(verdict(workload=name), name=name)


def many(failing: int, passing: int) -> Results:
    return results(
        *(passed(f"passing-{number}") for number in range(passing)),
        *(regressed(f"failing-{number}") for number in range(failing)),
        workload(name="absent", run=None, unavailable="not installed"),
        warnings=("a trace was not written",),
    )
