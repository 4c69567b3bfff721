"""The work of matrix products: by hand, and as torch counts it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from kernelgauge.trace.work import Work
from tests.trace.rows import BF16, FP8, FP32, NONE, NUMBER, Argument, known, work


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
def test_a_product_takes_two_flops_for_each_step_and_moves_operands_and_result(
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


def test_a_type_for_the_result_is_not_recorded_so_bytes_are_known_only_with_the_result() -> None:
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


def test_int8_products_give_int32_complex_steps_are_four_and_fp4_comes_in_pairs() -> None:
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
def test_flops_are_those_that_torch_counts(name: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    counted = flop_registry[getattr(torch.ops.aten, name)](*tensors, out_val=None)
    assert known(f"aten::{name}", *((shape, FP32) for shape in shapes)).flops == counted
