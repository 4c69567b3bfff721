"""What could be faster: found in a run's times, worded with what it saves, and silent where nothing is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernelgauge.report.opportunities import Opportunity, opportunities
from kernelgauge.results import WorkloadResult
from kernelgauge.run import Origin, Roof, Run, SourceLine
from kernelgauge.trace.work import Work
from tests.builders import FUSED, calibrated, fingerprint, mlp_kernels, run
from tests.test_results import results, workload

ROOF = Roof(memory_gb_per_s=4000.0, gemm_tflop_per_s=800.0)


def ran(variant: str, device_us: float, end_to_end_us: float, **changes: Any) -> WorkloadResult:
    name = f"mlp-{variant}-bf16-8x4"
    timed = run(workload=name, device=(device_us,) * 2, end_to_end=(end_to_end_us,) * 2, **changes)
    return msgspec.structs.replace(workload(name=name, run=timed), module="mlp", variant=variant)


def found(*workloads: WorkloadResult) -> list[Opportunity]:
    return opportunities(results(*workloads))


def test_fastest_variant_is_named_with_what_it_saves() -> None:
    (one,) = found(ran("eager", 100.0, 150.0), ran("liger", 80.0, 120.0))
    assert (one.workload, one.saves_us, one.share) == (
        "mlp-eager-bf16-8x4",
        pytest.approx(30.0),
        pytest.approx(0.2),
    )
    assert str(one).splitlines() == [
        "mlp-eager-bf16-8x4: liger is the fastest variant of mlp end to end: 30.0 us (20 %, measured)",
        "  kernelgauge diff reports/latest/traces/mlp-eager-bf16-8x4.json.gz reports/latest/traces/mlp-liger-bf16-8x4.json.gz",
    ]


def test_variant_that_waits_for_the_host_is_named_with_a_bound() -> None:
    (one,) = found(ran("eager", 100.0, 150.0), ran("compiled", 90.0, 160.0))
    assert one.text == "fastest on the GPU, slower end to end than eager: the GPU waits for the host"
    assert (one.saves_us, one.is_bound) == (pytest.approx(70.0), True)
    assert "reduce-overhead" in one.command


@pytest.mark.parametrize(
    "workloads",
    [
        [ran("eager", 100.0, 150.0)],  # nothing to compare with
        [ran("eager", 100.0, 150.0), ran("compiled", 99.0, 149.0)],  # nearly as fast
        [ran("eager", 100.0, 150.0, machine=fingerprint(arch="cpu")), ran("liger", 50.0, 90.0, machine=fingerprint(arch="cpu"))],
    ],
)  # fmt: skip
def test_nothing_worth_a_line_is_said(workloads: list[WorkloadResult]) -> None:
    assert found(*workloads) == []


def with_work(*work: Work | None) -> Run:
    origins = (None, None, Origin("mlp", (SourceLine("model.py", 7, "gelu(g)"),)), None)
    return run(kernels=mlp_kernels(us=40.0), work=work, roof=ROOF, origins=origins)


def test_kernel_that_is_furthest_from_its_limit_is_named_with_its_line() -> None:
    slow = Work(flops=None, bytes=80e6)  # 20 us at 4000 GB/s
    one = msgspec.structs.replace(ran("compiled", 205.0, 300.0), run=with_work(None, None, slow, None))
    (limit,) = found(one)
    assert limit.text == f"{FUSED}, model.py:7 runs at 50 % of memory's speed"
    assert (limit.saves_us, limit.is_bound) == (pytest.approx(20.0), True)
    short = mlp_kernels(us=9.0)
    assert found(msgspec.structs.replace(one, run=msgspec.structs.replace(one.run, kernels=short))) == []


def test_slower_choice_of_the_autotuner_has_its_cost() -> None:
    slow, fast = mlp_kernels(us=55.4, xblock=512), mlp_kernels()
    stored = calibrated([run(kernels=slow), run(kernels=fast)])
    for kernels, costs in ((slow, [pytest.approx(17.3)]), (fast, [])):
        one = msgspec.structs.replace(ran("compiled", 205.0, 300.0, kernels=kernels), baseline=stored)
        assert [each.saves_us for each in found(one)] == costs
