"""What fusing changes, kernel by kernel: eager, compiled and hand-written GeGLU.

One claim, one test.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from claims import (
    build,
    claim,
    compile_ops,
    gemm_layouts,
    gemm_names,
    graph_count,
    only,
    pointwise_us,
)
from expectations import PRE_OPS
from kernelgauge import Run, Sibling, Timer, Workload

MODULE = "mlp"
LIGER = ("liger", "liger-hub")
EVERY = ("eager", "compiled", *LIGER)

ARTICLE_ROWS = 64 * 128  # batch x sequence


def sizes(workload: Workload) -> tuple[int, int, int]:
    """Return rows, dim and hidden size."""
    batch, sequence, dim, hidden = workload.shape
    return batch * sequence, dim, hidden


def mm_shapes(run: Run) -> list[Any]:
    return [op.input_shapes[:2] for op in run.ops if op.name == "aten::mm"]


# -- eager -----------------------------------------------------------------------------------------


@claim(MODULE, "eager")
def test_c09_eager_runs_five_kernels_in_order(run: Run) -> None:
    assert run.counts.launches == 5
    assert run.kinds() == ["gemm", "gemm", "pointwise", "pointwise", "gemm"]
    assert run.op_names().count("aten::linear") == 3
    assert only(run.op_names(), {"aten::gelu", "aten::mul"}) == ["aten::gelu", "aten::mul"]


@pytest.mark.gpu
@claim(MODULE, "eager")
def test_c10_pointwise_kernels_launch_directly_and_gemms_as_their_library_does(run: Run) -> None:
    # The counts of queries and the calls by architecture are declared in expectations.py; this
    # holds on any GPU.
    launches = list(zip(run.kinds(), run.launch_apis, strict=True))
    assert all(api.startswith("cudaLaunchKernel") for kind, api in launches if kind == "pointwise")
    assert run.occupancy_queries in (0, run.kinds().count("gemm"))


@pytest.mark.gpu
@claim(MODULE, *EVERY)
def test_c11_gate_and_up_run_one_gemm_and_down_another(run: Run) -> None:
    gate, up, down = gemm_names(run)
    assert gate == up
    # where it was seen: the same FLOPs in another shape
    if run.fingerprint.arch in ("sm_80", "sm_90"):
        assert down != gate


@claim(MODULE, *EVERY)
def test_c12_batch_and_sequence_are_flattened(workload: Workload, run: Run) -> None:
    rows, dim, hidden = sizes(workload)
    gate_or_up, down = ((rows, dim), (dim, hidden)), ((rows, hidden), (hidden, dim))
    assert mm_shapes(run) == [gate_or_up, gate_or_up, down]


@claim(MODULE, *EVERY)
def test_c13_each_gemm_is_38_65_gflop(workload: Workload, run: Run) -> None:
    # On a CPU there are fewer rows, and FLOPs are proportional to them.
    scale = ARTICLE_ROWS / sizes(workload)[0]
    flops = [scale * 2 * math.prod(left) * right[1] for left, right in mm_shapes(run)]
    assert [round(flop / 1e9, 2) for flop in flops] == [38.65, 38.65, 38.65]


# -- compiled --------------------------------------------------------------------------------------


@claim(MODULE, "compiled")
def test_c14_compiled_runs_three_gemms_and_one_fused_kernel(run: Run) -> None:
    assert run.counts.launches == 4
    assert run.kinds() == ["gemm", "gemm", "pointwise", "gemm"]


@claim(MODULE, "compiled")
def test_c15_compiled_dispatches_three_bare_mm(run: Run) -> None:
    dispatched = [
        name
        for name in run.op_names()
        if name.startswith("aten::") and name != "aten::resolve_conj"
    ]
    assert dispatched == ["aten::mm"] * 3


@pytest.mark.gpu
@claim(MODULE, "compiled")
def test_c16_compiled_gemms_have_the_names_of_the_eager_ones(run: Run, eager: Run) -> None:
    assert len(gemm_names(run)) == 3
    assert gemm_names(run) == gemm_names(eager)


@claim(MODULE, "compiled")
def test_c17_the_name_of_the_fused_kernel_says_what_was_merged(run: Run) -> None:
    name = run.kernels[2].identity.decoded
    assert name.backend == ("inductor-cpp" if run.fingerprint.arch == "cpu" else "inductor-triton")
    assert name.kind.value == "pointwise"
    # expectations.py declares the whole name: it depends on the torch version
    assert name.ops[-2:] == ("gelu", "mul")


@claim(MODULE, "eager")
def test_c18_eager_moves_five_tensors_of_the_intermediate(workload: Workload, run: Run) -> None:
    # gelu reads one and writes one, mul reads two and writes one.
    operands = {
        op.name: op.input_shapes for op in run.ops if op.name in ("aten::gelu", "aten::mul")
    }
    tensors = {name: 1 + sum(bool(shape) for shape in shapes) for name, shapes in operands.items()}
    assert tensors == {"aten::gelu": 2, "aten::mul": 3}
    scale = ARTICLE_ROWS / sizes(workload)[0]
    in_bf16 = {
        scale * math.prod(shape) * 2 for shapes in operands.values() for shape in shapes if shape
    }
    assert [round(size / 1e6, 1) for size in in_bf16] == [50.3]


@pytest.mark.gpu
@claim(MODULE, "compiled")
def test_c18_the_fused_kernel_moves_three_of_them(workload: Workload, run: Run) -> None:
    # Two pointers: it reads both and writes its result over one of them.
    rows, _, hidden = sizes(workload)
    fused = next(op for op in run.ops if op.name == run.kernel_names()[2])
    assert [math.prod(shape) for shape in fused.input_shapes if shape] == [rows * hidden] * 2


@pytest.mark.gpu
@pytest.mark.timing
@claim(MODULE, "compiled")
def test_c18_fusion_saves_device_time(run: Run, eager: Run) -> None:
    assert pointwise_us(run) < pointwise_us(eager)


@claim(MODULE, "compiled")
def test_c19_compiled_pays_pre_ops_before_the_first_gemm(run: Run) -> None:
    before = run.op_names()[: run.op_names().index("aten::mm")]
    rows = [row for row in PRE_OPS if any(name.startswith(row) for name in before)]
    assert rows == [row for row, since in PRE_OPS.items() if torch.__version__ >= since]


@claim(MODULE, "eager", *LIGER)
def test_c19_what_is_not_compiled_pays_no_pre_ops(run: Run) -> None:
    assert not compile_ops(run)


# -- Liger -----------------------------------------------------------------------------------------


@claim(MODULE, *LIGER)
def test_c20_liger_runs_the_eager_gemms_and_one_kernel_of_its_own(run: Run, eager: Run) -> None:
    assert run.counts.launches == 4
    assert run.kernel_names()[2] == "_geglu_tanh_forward_kernel"
    assert gemm_names(run) == gemm_names(eager)


@claim(MODULE, "liger")
def test_c21_liger_launches_one_row_a_program_with_its_own_settings(
    workload: Workload, run: Run
) -> None:
    from liger_kernel.ops.utils import calculate_settings

    rows, _, hidden = sizes(workload)
    _block_size, num_warps = calculate_settings(hidden)
    identity = run.kernels[2].identity
    assert identity.grid == (rows, 1, 1)
    assert identity.block == (32 * num_warps, 1, 1)


@claim(MODULE, "compiled")
@pytest.mark.usefixtures("clean_compiler")
def test_c22_inductor_traces_again_for_another_shape_and_then_no_more(
    workload: Workload, run: Run
) -> None:
    module, x = build(workload, run)
    compiled = torch.compile(module)
    graphs = []
    with torch.no_grad():
        for part in (1, 2, 4, 8):
            compiled(x[: len(x) // part])
            graphs.append(graph_count())
    # compiled for the whole batch, once more for any batch, and then no more
    assert graphs == [1, 2, 2, 2]


@claim(MODULE, "liger")
@pytest.mark.usefixtures("clean_compiler")
def test_c22_liger_runs_any_shape_without_compiling(workload: Workload, run: Run) -> None:
    from liger_kernel.ops.geglu import _geglu_tanh_forward_kernel as kernel

    def binaries() -> int:
        return sum(len(cache[0]) for cache in kernel.device_caches.values())

    module, x = build(workload, run)
    with torch.no_grad():
        module(x)
        compiled = binaries()
        for batch in (len(x) // 2, len(x) // 4, len(x) // 8):
            assert module(x[:batch]).shape[0] == batch
    assert graph_count() == 0
    assert binaries() == compiled


@pytest.mark.gpu
@pytest.mark.timing
@claim(MODULE, "liger")
def test_c23_both_fused_kernels_beat_the_two_that_they_replace(
    run: Run, eager: Run, sibling: Sibling
) -> None:
    # Which of the two wins depends on what Inductor's autotuner chose: 38 or 55 us against Liger's
    # 45 on an H200.
    assert pointwise_us(run) < pointwise_us(eager)
    assert pointwise_us(sibling(variant="compiled")) < pointwise_us(eager)


# -- every variant ---------------------------------------------------------------------------------


@claim(MODULE, *EVERY)
@claim("linear", "eager", "compiled")
@claim("matmul_add", "eager", "compiled")
def test_c24_the_schedule_gives_three_profiler_steps(run: Run) -> None:
    assert run.steps == 3


@pytest.mark.gpu
@claim(MODULE, *EVERY)
@claim("linear", "eager", "compiled")
@claim("matmul_add", "eager", "compiled")
def test_c25_every_gemm_name_tells_its_layout(run: Run) -> None:
    assert gemm_layouts(run)
    assert all(gemm_layouts(run))


@pytest.mark.gpu
@pytest.mark.timing
@claim("linear", "eager")
def test_c26_one_small_gemm_is_overhead_bound(run: Run) -> None:
    assert run.time_us(Timer.DEVICE) < run.time_us(Timer.HOST)


@pytest.mark.gpu
@pytest.mark.timing
# Liger's functions take the host 1.6 times as long: on a slow host they are overhead-bound
@claim(MODULE, "eager")
def test_c26_large_gemms_are_compute_bound(run: Run) -> None:
    # other jobs on the host are no claim about the GEMMs
    fastest_us = min(run.samples[Timer.HOST].replicates_us)
    assert run.time_us(Timer.DEVICE) > fastest_us


@claim(MODULE, *EVERY)
@claim("linear", "eager", "compiled")
@claim("matmul_add", "eager", "compiled")
def test_c27_a_trace_and_a_table_are_left(run: Run, trace_file: Path) -> None:
    events = json.loads(gzip.decompress(trace_file.read_bytes()))["traceEvents"]
    steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
    assert len(steps) == run.steps
    table = trace_file.with_name(f"{run.workload}.txt").read_text()
    assert all(name in table for name in only(run.op_names(), {"aten::mm", "aten::addmm"}))
