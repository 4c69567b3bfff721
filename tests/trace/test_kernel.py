"""What a kernel is: by its record and its op, or by its op alone where there is no GPU."""

from __future__ import annotations

import pytest

from kernelgauge.trace import Op, identity_of_op


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "gemm"),
        ("aten::gelu", "pointwise"),
        ("aten::add_", "pointwise"),
        ("aten::sum", "reduction"),
        ("aten::_softmax", "reduction"),
        ("aten::native_layer_norm", "norm"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::copy_", "copy"),
        ("aten::zero_", "fill"),
        ("aten::sort", "other"),
        ("aten::item", "other"),
        ("graph_3_cpp_fused_gelu_mul_0", "pointwise"),
        ("mylib::anything", "other"),
    ],
)
def test_the_kind_of_an_op_on_a_cpu_is_known_or_other(name: str, kind: str) -> None:
    assert identity_of_op(Op(name, 0.0, 1.0, 1)).kind == kind
