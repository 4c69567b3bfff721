"""How much work an op does: by hand, on recorded rows, as torch counts it, and on rows that may hold anything."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import flop_registry

from kernelgauge.trace.work import ATTENTIONS, ELEMENT_BYTES, GEMMS, Input, Work, promoted, work_of
from tests.builders import RECORDED, recorded_events

BF16, FP32, FP8 = "c10::BFloat16", "float", "c10::Float8_e4m3fn"
NONE: tuple[tuple[int, ...], str] = ((), "")
NUMBER: tuple[tuple[int, ...], str] = ((), "Scalar")
Argument = tuple[tuple[int, ...], str]


def work(name: str, *arguments: Argument) -> Work | None:
    return work_of(name, tuple(shape for shape, _ in arguments), tuple(type_name for _, type_name in arguments))


def known(name: str, *arguments: Argument) -> Work:
    found = work(name, *arguments)
    assert found is not None
    return found


def tupled(value: object) -> Any:
    return tuple(tupled(item) for item in value) if isinstance(value, list) else value


def recorded_work(trace: str) -> Iterator[tuple[str, Work | None]]:
    for row in recorded_events(trace):
        if row["cat"] == "cpu_op":
            args = row["args"]
            yield (
                row["name"],
                work_of(row["name"], tupled(args.get("Input Dims", [])), tupled(args.get("Input type", []))),
            )


# --- all ops ---------------------------------------------------------------------------------------------------------


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


# --- matrix products -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "a", "b", "result"),
    [
        ("aten::bmm", (6, 5, 7), (6, 7, 4), (6, 5, 4)),
        ("aten::matmul", (2, 1, 5, 7), (3, 7, 4), (2, 3, 5, 4)),  # batches are broadcast
        ("aten::matmul", (7,), (7, 4), (4,)),
        ("aten::matmul", (3, 5, 7), (7,), (3, 5)),
        ("aten::matmul", (7,), (7,), ()),
        ("aten::dot", (7,), (7,), ()),
        ("aten::mv", (5, 7), (7,), (5,)),
        ("aten::linear", (2, 3, 7), (4, 7), (2, 3, 4)),
        ("aten::linear", (2, 3, 7), (7,), (2, 3)),
    ],
)
def test_product_takes_two_flops_for_each_step(
    name: str, a: tuple[int, ...], b: tuple[int, ...], result: tuple[int, ...]
) -> None:
    x, y = torch.empty(a), torch.empty(b)
    z = torch.nn.functional.linear(x, y) if name == "aten::linear" else torch.matmul(x, y)
    assert z.shape == result
    assert work(name, (a, FP32), (b, FP32)) == Work(2.0 * z.numel() * 7, 4.0 * (x.numel() + y.numel() + z.numel()))


def test_addbmm_sums_the_batch_and_writes_one_matrix() -> None:
    found = work("aten::addbmm", ((4,), FP32), ((3, 5, 6), FP32), ((3, 6, 4), FP32), NUMBER, NUMBER)
    assert found == Work(2.0 * 3 * 5 * 6 * 4, 4.0 * (4 + 3 * 5 * 6 + 3 * 6 * 4 + 5 * 4))


def test_baddbmm_reads_what_it_adds_and_in_place_writes_it_too() -> None:
    arguments = [((3, 5, 4), FP32), ((3, 5, 6), FP32), ((3, 6, 4), FP32), NUMBER, NUMBER]
    expected = Work(2.0 * 3 * 5 * 6 * 4, 4.0 * (2 * 3 * 5 * 4 + 3 * 5 * 6 + 3 * 6 * 4))
    assert work("aten::baddbmm", *arguments) == work("aten::baddbmm_", *arguments) == expected
    wider = known("aten::addmm_", ((5, 4), FP32), ((5, 6), BF16), ((6, 4), BF16), NUMBER, NUMBER)
    assert wider.bytes == 4.0 * (2 * 5 * 4) + 2.0 * (5 * 6 + 6 * 4)


def test_unrecorded_result_type_leaves_bytes_unknown() -> None:
    a, b = ((16, 32), BF16), ((32, 8), BF16)
    assert work("aten::mm", a, b, NUMBER) == Work(2.0 * 16 * 32 * 8, None)
    with_out = known("aten::mm", a, b, NUMBER, ((16, 8), FP32))
    assert with_out.bytes == 2.0 * (16 * 32 + 32 * 8) + 4.0 * 16 * 8


def test_an_empty_out_is_resized_so_its_shape_says_nothing() -> None:
    a, b = ((16, 32), BF16), ((32, 8), BF16)
    assert work("aten::mm", a, b, ((0,), BF16)) == work("aten::mm", a, b)


def test_a_scaled_product_of_fp8_moves_a_byte_each_and_its_scales() -> None:
    a, b, scale = ((64, 32), FP8), ((32, 16), FP8), ((1,), FP32)
    flops = 2.0 * 64 * 32 * 16
    typed = known("aten::_scaled_mm", a, b, scale, scale, NONE, NONE, NUMBER, NUMBER)
    assert typed == Work(flops, None)
    out = known("aten::_scaled_mm", a, b, scale, scale, ((16,), BF16), NONE, NUMBER, NUMBER, ((64, 16), BF16))
    assert out == Work(flops, 64 * 32 + 32 * 16 + 2 * 4 + 2 * 16 + 2 * 64 * 16)
    untyped = known("aten::_scaled_mm", a, b, scale, scale, NONE, NONE, NONE, NUMBER)
    assert untyped == Work(flops, 64 * 32 + 32 * 16 + 2 * 4 + 64 * 16)


def test_int8_complex_and_fp4_products_have_their_work() -> None:
    int8 = known("aten::_int_mm", ((32, 64), "signed char"), ((64, 16), "signed char"))
    assert int8 == Work(2.0 * 32 * 64 * 16, 32 * 64 + 64 * 16 + 4 * 32 * 16)
    complex64 = known("aten::mm", ((4, 8), "c10::complex<float>"), ((8, 2), "c10::complex<float>"))
    assert complex64 == Work(8.0 * 4 * 8 * 2, 8.0 * (4 * 8 + 8 * 2 + 4 * 2))
    fp4 = "c10::Float4_e2m1fn_x2"
    assert known("aten::_scaled_mm", ((64, 16), fp4), ((16, 32), fp4)).flops == 2.0 * 64 * 32 * 32


def test_an_unknown_type_leaves_the_flops() -> None:
    assert work("aten::mm", ((4, 8), "c10::qint32"), ((8, 2), "c10::qint32")) == Work(2.0 * 4 * 8 * 2, None)
    assert known("aten::mm", ((4, 8), BF16), ((8, 2), FP32)).bytes is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::mm", [((4, 8), BF16)]),
        ("aten::mm", [((4, 8), BF16), ((9, 2), BF16)]),
        ("aten::mm", [((4, 8), BF16), NUMBER]),
        ("aten::mm", [((2, 4, 8), BF16), ((8, 2), BF16)]),
        ("aten::bmm", [((2, 4, 8), BF16), ((3, 8, 2), BF16)]),
        ("aten::bmm", [((1, 4, 8), BF16), ((3, 8, 2), BF16)]),
        ("aten::matmul", [((), BF16), ((8, 2), BF16)]),
        ("aten::matmul", [((2, 4, 8), BF16), ((3, 8, 2), BF16)]),
        ("aten::addmm", [((3,), BF16), ((4, 8), BF16), ((8, 2), BF16), NUMBER, NUMBER]),
        ("aten::linear", [((4, 8), BF16), ((8, 8, 8), BF16)]),
    ],
)
def test_shapes_that_do_not_fit_are_no_product(name: str, arguments: list[Argument]) -> None:
    assert work(name, *arguments) is None


@pytest.mark.parametrize("name", ["aten::convolution", "aten::conv2d", "aten::cudnn_convolution"])
def test_a_convolution_is_not_known_for_its_stride_is_not_recorded(name: str) -> None:
    assert work(name, ((8, 3, 32, 32), BF16), ((16, 3, 3, 3), BF16), NONE, ((), "ScalarList")) is None


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(16, 32), (32, 8)]),
        ("addmm", [(8,), (16, 32), (32, 8)]),
        ("bmm", [(3, 16, 32), (3, 32, 8)]),
        ("baddbmm", [(3, 16, 8), (3, 16, 32), (3, 32, 8)]),
        (
            "_scaled_dot_product_efficient_attention_backward",
            [(2, 4, 16, 12), (2, 4, 16, 8), (2, 4, 24, 8), (2, 4, 24, 12)],
        ),
    ],
)
def test_gemm_flops_equal_torch_counter(name: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    counted = flop_registry[getattr(torch.ops.aten, name)](*tensors, out_val=None)
    assert known(f"aten::{name}", *((shape, FP32) for shape in shapes)).flops == counted


# --- attention -------------------------------------------------------------------------------------------------------


HEADS = ((2, 8, 128, 64), BF16)  # batch, heads, length, size


def test_attention_is_two_products_over_the_full_square() -> None:
    tensor = 2 * 8 * 128 * 64 * 2
    expected = Work(2 * (2 * 2 * 8 * 128 * 128 * 64.0), 4.0 * tensor)
    for name in ("flash", "efficient", "cudnn"):
        assert work(f"aten::_scaled_dot_product_{name}_attention", HEADS, HEADS, HEADS, NONE, NUMBER) == expected


@pytest.mark.parametrize("name", ["aten::_flash_attention_forward", "aten::_efficient_attention_forward"])
def test_the_inner_ops_have_the_heads_after_the_length(name: str) -> None:
    swapped = ((2, 128, 8, 64), BF16)
    expected = work("aten::_scaled_dot_product_flash_attention", HEADS, HEADS, HEADS)
    assert work(name, swapped, swapped, swapped, NONE, NONE, NONE) == expected
    assert work(name, HEADS, HEADS, HEADS, NONE, NONE, NONE) != expected


@pytest.mark.parametrize(
    ("name", "first", "at"),
    [
        ("aten::_flash_attention_forward", 0, 3),
        ("aten::_efficient_attention_forward", 0, 4),
        ("aten::_flash_attention_backward", 1, 6),
        ("aten::_efficient_attention_backward", 1, 6),
    ],
)
def test_packed_sequences_do_not_show_their_lengths(name: str, first: int, at: int) -> None:
    packed = [((1, 256, 8, 64), BF16)] * (3 + first)
    given = [*packed, *[NONE] * (at - len(packed)), ((5,), "int"), ((5,), "int")]
    assert work(name, *given) is None
    assert work(name, *given[:at], NONE, NONE) is not None
    assert work(name, *given[:at], ((0,), "int"), ((0,), "int")) is not None


def test_grouped_queries_share_keys_and_values() -> None:
    query, shared = ((2, 8, 128, 64), BF16), ((2, 2, 256, 64), BF16)
    found = known("aten::_scaled_dot_product_flash_attention", query, shared, shared)
    assert found.flops == 2 * (2.0 * 2 * 8 * 128 * 256 * 64)
    assert found.bytes == 2.0 * 2 * 64 * (2 * 8 * 128 + 2 * 2 * 256)


def test_a_backward_is_five_products_and_moves_twice_the_tensors() -> None:
    forward = known("aten::_scaled_dot_product_cudnn_attention", HEADS, HEADS, HEADS)
    backward = known("aten::_scaled_dot_product_cudnn_attention_backward", HEADS, HEADS, HEADS, HEADS, HEADS)
    assert forward.flops is not None
    assert forward.bytes is not None
    assert backward == Work(2.5 * forward.flops, 2 * forward.bytes)


def test_what_fp8_attention_writes_is_not_recorded() -> None:
    fp8 = ((2, 8, 128, 64), FP8)
    assert known("aten::_scaled_dot_product_flash_attention", fp8, fp8, fp8).bytes is None
    assert known("aten::_scaled_dot_product_flash_attention", HEADS, HEADS, (HEADS[0], FP32)).bytes is None


@pytest.mark.parametrize(
    "arguments",
    [
        [HEADS, HEADS],
        [HEADS, HEADS, ((2, 8, 100, 64), BF16)],
        [HEADS, ((2, 8, 128, 32), BF16), HEADS],
        [HEADS, ((2, 3, 128, 64), BF16), ((2, 3, 128, 64), BF16)],
        [HEADS, ((2, 0, 128, 64), BF16), ((2, 0, 128, 64), BF16)],
        [((8, 128, 64), BF16)] * 3,
    ],
)
def test_shapes_that_do_not_fit_are_no_attention(arguments: list[Argument]) -> None:
    assert work("aten::_scaled_dot_product_flash_attention", *arguments) is None


def test_a_gradient_that_is_not_of_the_outputs_shape_is_no_backward() -> None:
    gradient = ((2, 8, 128, 32), BF16)
    assert work("aten::_scaled_dot_product_flash_attention_backward", gradient, HEADS, HEADS, HEADS) is None


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("_scaled_dot_product_flash_attention", [(2, 4, 16, 8), (2, 4, 24, 8), (2, 4, 24, 12)]),
        (
            "_scaled_dot_product_efficient_attention_backward",
            [(2, 4, 16, 12), (2, 4, 16, 8), (2, 4, 24, 8), (2, 4, 24, 12)],
        ),
    ],
)
def test_attention_flops_equal_torch_counter(name: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    counted = flop_registry[getattr(torch.ops.aten, name)](*tensors, out_val=None)
    assert known(f"aten::{name}", *((shape, FP32) for shape in shapes)).flops == counted


# --- memory-bound ops ------------------------------------------------------------------------------------------------


LIST: Argument = ((), "ScalarList")


def moved(name: str, *arguments: Argument) -> float | None:
    found = work(name, *arguments)
    assert found is not None
    assert found.flops is None
    return found.bytes


# -- recorded on an H200 --------------------------------------------------------------------------------------------


def test_gelu_moves_two_tensors_of_the_mlp_and_mul_three() -> None:
    found = dict(recorded_work("mlp-eager"))
    assert found["aten::gelu"] == Work(None, 2 * 64 * 128 * 3072 * 2.0)
    assert found["aten::mul"] == Work(None, 3 * 64 * 128 * 3072 * 2.0)


def test_a_broadcast_operand_is_read_as_it_is() -> None:
    assert dict(recorded_work("matmul_add-eager"))["aten::add"] == Work(None, (2 * 1024 * 64 + 64) * 2.0)


def test_gradients_are_added_in_place_and_copied_like_any_tensor() -> None:
    found = dict(recorded_work("mlp-eager-train"))
    assert found["aten::add_"] == Work(None, 3 * 768 * 3072 * 2.0)
    assert found["aten::gelu_backward"] == Work(None, 3 * 64 * 128 * 3072 * 2.0)
    assert found["aten::fill_"] == Work(None, 2.0)


def test_lists_of_tensors_have_no_types_so_nothing_is_known() -> None:
    assert dict(recorded_work("mlp-cudagraph"))["aten::_foreach_copy_"] is None


# -- beside torch ---------------------------------------------------------------------------------------------------


def profiled(call: Callable[[], object], path: Path) -> dict[str, Work | None]:
    """The work of the first row of each op that `call` dispatches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        call()
    profiler.export_chrome_trace(str(path))
    found: dict[str, Work | None] = {}
    for row in json.loads(path.read_text())["traceEvents"]:
        if row.get("cat") == "cpu_op":
            args: dict[str, Any] = row["args"]
            done = work_of(row["name"], tupled(args.get("Input Dims", [])), tupled(args.get("Input type", [])))
            found.setdefault(row["name"], done)
    return found


X, Y = torch.rand(4, 8), torch.rand(4, 8)
ROW = torch.rand(8)
HALF = torch.rand(4, 8).half()
MASK = X > 0.5


@pytest.mark.parametrize(
    ("op", "call", "operands"),
    [
        ("aten::add", lambda: X + ROW, [X, ROW]),
        ("aten::add", lambda: HALF + Y, [HALF, Y]),
        ("aten::sub", lambda: torch.arange(8) - torch.arange(8).int(), [torch.arange(8), torch.arange(8).int()]),
        ("aten::where", lambda: torch.where(MASK, X, ROW), [MASK, X, ROW]),
        ("aten::clamp", lambda: X.clamp(0, 1), [X]),
        ("aten::clamp", lambda: torch.clamp(X, max=Y), [X, Y]),
        ("aten::pow", lambda: HALF**2, [HALF]),
        ("aten::gt", lambda: X > Y, [X, Y]),
        ("aten::logical_not", lambda: X.logical_not(), [X]),
        ("aten::addcmul", lambda: torch.addcmul(X, Y, ROW), [X, Y, ROW]),
        ("aten::masked_fill", lambda: HALF.masked_fill(MASK, 0.0), [HALF, MASK]),
        ("aten::masked_fill", lambda: torch.arange(8).masked_fill(MASK, 0), [torch.arange(8), MASK]),
        ("aten::silu", lambda: F.silu(X), [X]),
        ("aten::clone", lambda: MASK.clone(), [MASK]),
        ("aten::add", lambda: torch.add(X, Y, out=torch.empty(4, 8)), [X, Y]),
        ("aten::add", lambda: torch.add(X, Y, out=torch.empty(4, 8, dtype=torch.double)), [X, Y]),
        ("aten::add_", lambda: HALF.clone().add_(Y), [HALF, Y]),
        ("aten::_softmax", lambda: torch.softmax(X, -1), [X]),
        ("aten::log_softmax", lambda: torch.log_softmax(HALF, -1), [HALF]),
        ("aten::layer_norm", lambda: F.layer_norm(X, (8,), ROW, ROW), [X, ROW, ROW]),
        ("aten::layer_norm", lambda: F.layer_norm(X, (8,)), [X]),
        ("aten::rms_norm", lambda: F.rms_norm(X, (8,), ROW), [X, ROW]),
    ],
)
def test_bytes_are_those_of_the_tensors_that_torch_reads_and_returns(
    op: str, call: Callable[[], torch.Tensor], operands: list[torch.Tensor], tmp_path: Path
) -> None:
    result = call()
    expected = sum(tensor.nbytes for tensor in [*operands, result])
    found = profiled(call, tmp_path / "trace.json")[op]
    assert found == Work(None, float(expected))


def test_a_copy_reads_the_source_and_writes_the_target_and_nothing_else(tmp_path: Path) -> None:
    target = torch.empty(4, 8, dtype=torch.double)
    found = profiled(lambda: target.copy_(ROW), tmp_path / "trace.json")
    assert found["aten::copy_"] == Work(None, float(ROW.nbytes + target.nbytes))


def test_reductions_read_their_input_and_write_out(tmp_path: Path) -> None:
    found = profiled(lambda: (X.sum(1), X.amax(0), X.argmax(), X.logsumexp(1)), tmp_path / "trace.json")
    for name in ("sum", "amax", "argmax", "logsumexp"):
        assert found[f"aten::{name}"] == Work(None, float(X.nbytes))
    assert moved("aten::sum", ((4, 8), FP32), LIST, NUMBER, NONE, ((4,), FP32)) == 4 * 8 * 4 + 4 * 4


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.half, torch.bfloat16,
        torch.float, torch.double, torch.complex64, torch.complex128, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint16, torch.uint32, torch.uint64,
    ],
)  # fmt: skip
def test_every_type_of_torch_has_its_size(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    found = profiled(lambda: tensor.copy_(torch.zeros(3, dtype=dtype)), tmp_path / "trace.json")
    assert found["aten::copy_"] == Work(None, 2.0 * tensor.nbytes)


def test_the_short_names_of_types_have_the_sizes_of_the_long_ones() -> None:
    pairs = {"short": "short int", "long": "long int", "unsigned short": "short unsigned int"}
    assert all(ELEMENT_BYTES[short] == ELEMENT_BYTES[full] for short, full in pairs.items())


# -- what the rows do not say ---------------------------------------------------------------------------------------


def test_in_place_the_result_has_the_type_of_what_is_overwritten() -> None:
    assert moved("aten::mul_", ((4, 8), BF16), ((4, 8), FP32)) == 32 * (2 + 4 + 2)
    assert moved("aten::eq_", ((4, 8), BF16), NUMBER) == 32 * (2 + 2)


def test_fills_only_write() -> None:
    for name in ("fill_", "zero_", "normal_", "uniform_"):
        assert moved(f"aten::{name}", ((4, 8), BF16), NUMBER) == 64


def test_a_type_that_is_given_by_value_leaves_the_bytes_unknown() -> None:
    assert moved("aten::softmax", ((4, 8), BF16), NUMBER, NONE) == 128
    assert moved("aten::softmax", ((4, 8), BF16), NUMBER, NUMBER) is None
    assert moved("aten::exp", ((4, 8), "int")) is None  # the default floating type
    assert moved("aten::mul", ((4, 8), "int"), ((), "double")) is None  # a number, or a tensor
    assert moved("aten::rms_norm", ((4, 8), BF16), LIST, ((8,), FP32), NONE) is None
    assert moved("aten::relu", ((4, 8), "c10::qint8")) is None
    assert moved("aten::add", (((2,), (2,)), "TensorList"), ((8,), BF16)) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::add", [((4, 8), BF16)]),
        ("aten::add", [((4, 8), BF16), ((3,), BF16)]),
        ("aten::add_", [((8,), BF16), ((4, 8), BF16)]),
        ("aten::where", [((4, 8), "bool")]),  # its other meaning: which are not zero
        ("aten::copy_", [((8,), BF16), ((4, 8), BF16)]),
        ("aten::copy_", [((8,), BF16)]),
        ("aten::fill_", [NUMBER, ((8,), BF16)]),
        ("aten::sum", [NUMBER, ((8,), BF16)]),
        ("aten::layer_norm", [((4, 8), BF16), LIST, ((4,), BF16), NONE]),
        ("aten::unknown", [((8,), BF16)]),
        ("mylib::add", [((8,), BF16), ((8,), BF16)]),
        ("add", [((8,), BF16), ((8,), BF16)]),
    ],
)
def test_rows_that_do_not_fit_an_op_have_no_work(name: str, arguments: list[Argument]) -> None:
    found = work(name, *arguments)
    assert found is None


# --- type promotion, compared with that of torch ---------------------------------------------------------------------


NAMES = {
    torch.bool: "bool",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short int",
    torch.int32: "int",
    torch.int64: "long int",
    torch.half: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.float: "float",
    torch.double: "double",
    torch.complex32: "c10::complex<c10::Half>",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
WIDE = (2, 3)


def answers(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many pairs of types are answered at all, and how many of those as torch does: x of WIDE, y of `shape`."""
    known = right = 0
    for x, y in product(NAMES, NAMES):
        found = promoted([Input(WIDE, NAMES[x]), Input(shape, NAMES[y])])
        expected = torch.result_type(torch.zeros(WIDE, dtype=x), torch.zeros(shape, dtype=y))
        known += found is not None
        right += found == NAMES[expected]
    return known, right


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("shape", [WIDE, (1,), ()])
def test_every_answer_is_torchs_and_most_pairs_have_one(shape: tuple[int, ...]) -> None:
    known, right = answers(shape)
    assert known == right
    assert known >= len(NAMES) ** 2 * 0.5


@pytest.mark.parametrize(
    ("tensor", "number", "expected"),
    [
        (torch.half, 2.0, "c10::Half"),
        (torch.bfloat16, 2, "c10::BFloat16"),
        (torch.int32, 2, "int"),
        (torch.bool, 2, "long int"),
    ],
)
def test_a_number_that_became_a_tensor_does_not_widen_its_category(
    tensor: torch.dtype, number: float, expected: str
) -> None:
    recorded_as = "double" if isinstance(number, float) else "long int"
    assert promoted([Input(WIDE, NAMES[tensor]), Input((), recorded_as)]) == expected
    assert NAMES[torch.result_type(torch.zeros(WIDE, dtype=tensor), number)] == expected


def test_a_floating_number_beside_integers_may_be_a_tensor_too() -> None:
    assert torch.result_type(torch.zeros(2, dtype=torch.int32), 2.0) == torch.float
    assert torch.result_type(torch.zeros(2, dtype=torch.int32), torch.tensor(2.0, dtype=torch.double)) == torch.double
    assert promoted([Input((2,), "int"), Input((), "double")]) is None
    assert promoted([Input((), "float"), Input((), "double")]) is None


def test_a_number_by_value_leaves_only_floating_types_as_they_are() -> None:
    number = Input((), "Scalar")
    assert promoted([Input(WIDE, "c10::Half"), number]) == "c10::Half"
    assert promoted([Input(WIDE, "int"), number]) is None


def test_types_outside_promotion_are_what_they_are_alone() -> None:
    assert promoted([Input(WIDE, "c10::Float8_e5m2")]) == "c10::Float8_e5m2"
    assert promoted([Input(WIDE, "c10::Float8_e5m2"), Input(WIDE, "float")]) is None
    assert promoted([]) is None
