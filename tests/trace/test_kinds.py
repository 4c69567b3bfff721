"""What a kernel does, by its name and by the op that launched it."""

from __future__ import annotations

import pytest

from kernelgauge.trace import KernelIdentity
from kernelgauge.trace.kernel import kind_of_launch, with_current_kind
from kernelgauge.trace.names import decode
from kernelgauge.trace.summary import lane_of, step_times
from tests.builders import call, chrome, kernel, op, step, trace_of
from tests.trace.reading import read_in_blocks


@pytest.mark.parametrize(
    ("op_name", "kind"),
    [
        ("vllm::all_reduce", "communication"),
        ("_c10d_functional::all_gather_into_tensor", "communication"),
        ("c10d::reduce_scatter_", "communication"),
        ("vllm::convert_fp8", "other"),
        ("aten::conv2d", "convolution"),
        ("aten::index_add", "index"),
        ("aten::scatter_reduce", "index"),
    ],
)
def test_kind_of_unknown_kernel_is_that_of_its_op(op_name: str, kind: str) -> None:
    assert kind_of_launch(KernelIdentity("zzz", "other"), op_name) == kind


def test_kind_of_old_nccl_name_is_communication() -> None:
    assert decode("ncclAllReduceRingLLKernel_sum_f32(ncclColl)").kind.value == "communication"


def test_stored_identity_gets_the_kind_that_a_rule_knows_now() -> None:
    stored = KernelIdentity("fused_moe_kernel", "other", (1, 1, 1))
    assert with_current_kind(stored) == KernelIdentity("fused_moe_kernel", "gemm", (1, 1, 1))
    assert with_current_kind(KernelIdentity("fused_moe_kernel", "norm")).kind == "norm"


def test_time_of_a_step_takes_the_kind_from_the_op() -> None:
    trace = trace_of(
        step(1, 0, 100),
        op("c10d::allreduce_", 1, 10, external_id=3),
        call(7, 2, external_id=3),
        kernel(7, 20, name="my_ring_kernel", duration=40, external_id=3),
    )
    (times,) = step_times(lane_of(trace), trace)
    assert (times.compute_us, times.communication_us) == (0.0, 40.0)


def test_odd_device_id_is_no_error() -> None:
    content = chrome(step(1, 0, 100), call(7, 2), kernel(7, 20), deviceProperties=[{"id": [1], "name": "x"}])
    assert read_in_blocks(content) is not None
