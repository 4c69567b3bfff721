"""The work of attention: by hand, and as torch counts it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from kernelgauge.trace.work import Work
from tests.trace.rows import BF16, FP8, FP32, NONE, NUMBER, Argument, known, work

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
def test_flops_are_those_that_torch_counts(name: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    counted = flop_registry[getattr(torch.ops.aten, name)](*tensors, out_val=None)
    assert known(f"aten::{name}", *((shape, FP32) for shape in shapes)).flops == counted
