"""How near each kernel came to what the control pair reached, where the results say enough."""

from __future__ import annotations

import pytest

from kernelgauge.report.html import html
from kernelgauge.report.html_kernels import limit_texts
from kernelgauge.results import SCHEMA_VERSION, Results, WorkloadResult
from kernelgauge.run import Roof
from kernelgauge.trace.work import Work, work_of
from tests.builders import H200, WORKLOAD, run

MM = work_of("aten::mm", ((8192, 768), (768, 3072)), ("c10::BFloat16", "c10::BFloat16"))
MOVED = Work(flops=None, bytes=150_994_944)
ROOF = Roof(memory_gb_per_s=4280.0, gemm_tflop_per_s=756.0)


def result(**changes: object) -> WorkloadResult:
    observed = run(**({"work": (MM, MM, MOVED, None), "roof": ROOF} | changes))  # type: ignore[arg-type]
    return WorkloadResult(WORKLOAD, "perf", "mlp", "compiled", "bf16", "forward", (64, 128, 768, 3072), run=observed)


def test_a_product_is_compared_with_the_control_gemm_and_a_pointwise_kernel_with_the_copy() -> None:
    gate, up, fused, down = limit_texts(result())
    assert gate == "91 % bf16\n690 TFLOP/s"  # 38.65 GFLOP in 56.0 us
    assert up == "88 % bf16\n666 TFLOP/s"
    assert fused == ">= 93 % memory\n>= 3963 GB/s"  # Inductor's may write in place
    assert down == ""


@pytest.mark.parametrize("changes", [{"roof": None}, {"work": ()}, {"work": (MM,)}])
def test_without_the_pair_or_the_work_nothing_is_said(changes: dict[str, object]) -> None:
    assert limit_texts(result(**changes)) == ()


def test_the_page_has_the_column_where_the_pair_was_measured_and_names_what_it_reached() -> None:
    def page(workload: WorkloadResult) -> str:
        return html(
            [Results(SCHEMA_VERSION, "0.1.0", "2026-11-20T10:00:00+00:00", 1.0, (), H200, None, "", (workload,))]
        )

    assert "of the limit" in page(result())
    assert "4280 GB/s" in page(result())
    assert "of the limit" not in page(result(roof=None))
