"""The standard tests, and what is particular to each module."""

from __future__ import annotations

from math import ceil, prod

import pytest

from kernelgauge import Run, Workload
from kernelgauge.standard import *  # noqa: F403

BYTES = 2  # of a number in bf16


# -- RMSNorm ---------------------------------------------------------------------------------------


@pytest.mark.workloads(module="rms_norm", variant="eager", pass_="forward")
def test_eager_norm_runs_a_kernel_for_each_op(run: Run) -> None:
    casts = 0 if run.fingerprint.arch == "cpu" else 2  # to fp32 and back
    assert run.counts.launches == casts + 6  # pow, mean, add, rsqrt, mul, mul


@pytest.mark.workloads(module="rms_norm", variant=("compiled", "liger"), pass_="forward")
def test_fused_norm_runs_one_kernel(run: Run) -> None:
    assert run.counts.launches == 1


@pytest.mark.gpu
@pytest.mark.workloads(module="rms_norm", variant="liger", pass_="train")
def test_liger_norm_has_a_kernel_each_way(run: Run) -> None:
    names = run.kernel_names()
    assert names.count("_rms_norm_forward_kernel") == names.count("_rms_norm_backward_kernel") == 1


# -- the loss of a language model ------------------------------------------------------------------


def chunks(rows: int, dim: int, vocabulary: int) -> int:
    """Return how often Liger's loop over rows runs: its logits take no more memory than its input."""
    rows_of_one = ceil(rows / ceil(vocabulary / dim))
    return ceil(rows / min(rows, 1 << (rows_of_one - 1).bit_length()))


def test_chunks_follow_the_shape() -> None:
    assert [chunks(2048, 2048, each) for each in (1024, 16384, 32000)] == [1, 8, 16]


@pytest.mark.gpu
@pytest.mark.workloads(module="lm_head", variant="liger")
def test_liger_loss_launches_by_its_chunks(workload: Workload, run: Run) -> None:
    count = chunks(*workload.shape)
    assert run.kernel_names().count("liger_cross_entropy_kernel") == count
    assert run.op_names().count("aten::mm") == 2 * count  # logits, and the gradient of the input
    assert run.op_names().count("aten::addmm") == count  # the gradient of the weight


@pytest.mark.gpu
@pytest.mark.workloads(module="lm_head", variant="liger")
def test_liger_loss_never_holds_all_logits(workload: Workload, run: Run, eager: Run) -> None:
    rows, _, vocabulary = workload.shape
    logits = BYTES * rows * vocabulary
    most, eager_most = run.counts.peak_allocated_bytes, eager.counts.peak_allocated_bytes
    assert most is not None
    assert eager_most is not None
    assert eager_most > 2 * logits  # the logits, and their softmax
    assert eager_most - most > logits


# -- attention -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.workloads(module="attention", variant="flex", pass_="train")
def test_flex_attention_runs_a_template_each_way(run: Run) -> None:
    templates = [name for name in run.kernel_names() if name.startswith("triton_tem_fused")]
    assert [("backward" in name) for name in templates] == [False, True]
    assert all("flex_attention" in name for name in templates)


@pytest.mark.gpu
@pytest.mark.workloads(module="attention", variant="sdpa", pass_="forward")
def test_sdpa_never_holds_the_scores(workload: Workload, run: Run) -> None:
    batch, heads, sequence, _ = workload.shape
    assert run.counts.peak_allocated_bytes is not None
    assert run.counts.peak_allocated_bytes < BYTES * batch * heads * sequence**2


# -- RoPE ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.workloads(module="rope", variant="liger")
def test_liger_rope_allocates_nothing(workload: Workload, run: Run, eager: Run) -> None:
    queries = BYTES * prod(workload.shape)
    assert run.counts.peak_allocated_bytes is not None
    assert eager.counts.peak_allocated_bytes is not None
    assert run.counts.peak_allocated_bytes < queries < eager.counts.peak_allocated_bytes


# -- a transformer block ---------------------------------------------------------------------------


@pytest.mark.workloads(module="block", variant="compiled")
def test_compiled_block_is_one_graph_of_fewer_kernels(run: Run, eager: Run) -> None:
    assert run.counts.graph_breaks == 0
    assert run.counts.launches < eager.counts.launches


@pytest.mark.gpu
@pytest.mark.workloads(module="block", variant="compiled-graphs")
def test_graph_launches_what_compiled_runs(run: Run) -> None:
    assert "cudaGraphLaunch" in run.launch_apis
