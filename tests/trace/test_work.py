"""How much work an op does: on recorded rows, and on rows that may hold anything."""

from __future__ import annotations

import random
from math import isfinite
from typing import Any

import pytest

from kernelgauge.trace.work import ATTENTIONS, GEMMS, Work, work_of
from tests.builders import RECORDED
from tests.trace.rows import BF16, FP32, NUMBER, recorded_work, work

# -- recorded on an H200 --------------------------------------------------------------------------------------------

GATE = Work(flops=2.0 * 8192 * 768 * 3072, bytes=2.0 * (8192 * 768 + 768 * 3072 + 8192 * 3072))


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("mlp-eager", GATE),
        ("mlp-compiled", GATE),  # the result is given: it counts once all the same
        ("mlp-compiled-fp32", Work(GATE.flops, 2.0 * 67_633_152)),
    ],
)
def test_the_products_of_the_mlp_are_39_gflop_and_68_mb_each(trace: str, expected: Work) -> None:
    assert (GATE.flops, GATE.bytes) == (38_654_705_664, 67_633_152)
    found = [work for name, work in recorded_work(trace) if name == "aten::mm"]
    assert set(found) == {expected}


def test_linear_and_matmul_have_the_work_of_the_product_they_call() -> None:
    found = {name: work for name, work in recorded_work("mlp-eager") if name in ("aten::linear", "aten::matmul")}
    assert found == {"aten::linear": GATE, "aten::matmul": GATE}


def test_a_bias_is_read_as_it_is_and_adds_no_flops() -> None:
    expected = Work(2.0 * 1024 * 32 * 64, 2.0 * (64 + 1024 * 32 + 32 * 64 + 1024 * 64))
    found = dict(recorded_work("linear-eager"))
    assert found["aten::addmm"] == found["aten::linear"] == expected
    assert dict(recorded_work("linear-compiled"))["aten::addmm"] == expected


@pytest.mark.parametrize(
    ("trace", "kernel", "tensors"),
    [
        ("mlp-compiled", "triton_poi_fused__unsafe_view_gelu_mul_0", 2),  # one is read, then written
        ("mlp-compiled-train", "triton_poi_fused__unsafe_view_gelu_mul_0", 3),
        ("mlp-compiled-train", "triton_poi_fused__unsafe_view_gelu_gelu_backward_mul_view_0", 4),
    ],
)
def test_a_kernel_of_inductor_moves_each_of_its_tensors_once(trace: str, kernel: str, tensors: int) -> None:
    assert dict(recorded_work(trace))[kernel] == Work(None, tensors * 8192 * 3072 * 2.0)


def test_a_generated_template_has_bytes_and_no_flops() -> None:
    arguments = [((64, 32), BF16), ((32, 16), BF16), ((64, 16), BF16), NUMBER]
    assert work("triton_tem_fused_mm_0", *arguments) == Work(None, 2.0 * (64 * 32 + 32 * 16 + 64 * 16))
    assert work("triton_poi_fused_0", NUMBER) is None


def test_hand_written_triton_autograd_and_compile_rows_have_no_work() -> None:
    names = ("LigerGELUMulFunction", "LigerGELUMulFunctionBackward", "autograd::", "Torch-Compiled", "MmBackward0")
    found = [
        (name, work)
        for trace in ("mlp-liger-train", "mlp-eager-train", "mlp-compiled")
        for name, work in recorded_work(trace)
        if name.startswith(names)
    ]
    assert {name.split(":")[0] for name, _ in found} >= {"LigerGELUMulFunction", "MmBackward0", "autograd"}
    assert {work for _, work in found} == {None}


def test_views_and_allocations_of_every_recorded_trace_have_no_work() -> None:
    for path in RECORDED.glob("*.json.gz"):
        for name, found in recorded_work(path.name.removesuffix(".json.gz")):
            if name in ("aten::view", "aten::t", "aten::as_strided", "aten::empty_strided", "aten::reshape"):
                assert found is None


# -- whatever a trace may hold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "type_name"),
    [
        ((True, 2), BF16),
        ((2.0, 2), BF16),
        ((-1, 2), BF16),
        (("4", 2), BF16),
        ((2**32, 2**31), BF16),
        ((0, 2**62, 2**62), BF16),
        ((1,) * 65, BF16),
        ((4, 4), ""),
        ((4, 4), "Scalar"),
        ((4, 4), None),
        (None, BF16),
    ],
)
def test_a_shape_that_no_tensor_has_makes_the_row_unreadable(shape: Any, type_name: Any) -> None:
    assert work("triton_poi_fused_0", ((4, 4), BF16)) is not None
    assert work("triton_poi_fused_0", ((4, 4), BF16), (shape, type_name)) is None


JUNK: list[Any] = [
    "x", -1, 0, 2**62, 2**63, 10**400, True, None, 1.5, float("nan"), (), ((),), (3, "4"), (3, -4), (2**40, 2**40),
    (0, 2**62, 2**62), (1,) * 65, [3, 4], {}, ((3, 4), (5,)), (3.0, 4), (True, 2),
]  # fmt: skip
SHAPES: list[Any] = [(), (0,), (1,), (4,), (4, 4), (1, 4), (2, 4, 4), (2, 4, 4, 4), (2**31, 2**31), (2**62,)]
TYPES: list[Any] = [BF16, FP32, "double", "long int", "bool", "", "Scalar", "ScalarList", "TensorList", "c10::qint8"]


@pytest.mark.parametrize("junk", [0.0, 0.1])
def test_no_row_of_a_trace_raises_and_what_is_known_is_a_finite_number(junk: float) -> None:
    source = random.Random(7)
    pointwise = ["aten::add", "aten::add_", "aten::where", "aten::copy_", "aten::fill_", "aten::sum", "aten::_softmax"]
    names = [
        *GEMMS,
        *ATTENTIONS,
        *pointwise,
        "aten::layer_norm",
        "aten::clamp",
        "triton_poi_fused_0",
        "aten::",
        "",
        "x",
    ]

    def one(usual: list[Any]) -> Any:
        return source.choice(JUNK if source.random() < junk else usual)

    seen = 0
    for _ in range(20_000):
        count = source.randrange(8)
        same = one(SHAPES)
        shapes = tuple(same if source.random() < 0.7 else one(SHAPES) for _ in range(count))
        types = tuple(
            one(TYPES[:2] if source.random() < 0.7 else TYPES) for _ in range(count + (source.random() < junk))
        )
        found = work_of(source.choice(names), shapes, types)
        if found is not None:
            seen += 1
            assert all(value is None or (isfinite(value) and value >= 0) for value in (found.flops, found.bytes))
    assert seen > 1_000


@pytest.mark.parametrize(("shapes", "types"), [("ab", "ab"), ([[4, 4]], [FP32]), (None, None), (((4,),), ()), (7, 7)])
def test_what_is_no_pair_of_equally_long_tuples_has_no_work(shapes: Any, types: Any) -> None:
    assert work_of("aten::relu", shapes, types) is None
