"""The work of scaled-dot-product attention, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .operands import Input, Work, multiply_adds, total, written

__all__ = ["ATTENTIONS", "Attention", "attention_work"]


@dataclass(frozen=True)
class Attention:
    """How an op lays out its arguments (native_functions.yaml; transformers/cuda/attention.cu).

    Query, key and value come first, after the gradient of the output in a backward.
    """

    heads_first: bool = True  # [batch, heads, length, size]; else [batch, length, heads, size]
    backward: bool = False
    lengths: int | None = None  # where the lengths of packed sequences stand: with them, shapes do not say the work


ATTENTIONS = {
    "aten::scaled_dot_product_attention": Attention(),
    "aten::_scaled_dot_product_flash_attention": Attention(),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Attention(),
    "aten::_scaled_dot_product_efficient_attention": Attention(),
    "aten::_scaled_dot_product_cudnn_attention": Attention(),
    "aten::_scaled_dot_product_fused_attention_overrideable": Attention(),
    "aten::_flash_attention_forward": Attention(heads_first=False, lengths=3),
    "aten::_efficient_attention_forward": Attention(heads_first=False, lengths=4),
    "aten::_cudnn_attention_forward": Attention(lengths=4),
    "aten::_scaled_dot_product_flash_attention_backward": Attention(backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Attention(backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": Attention(backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": Attention(backward=True),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": Attention(backward=True),
    "aten::_flash_attention_backward": Attention(heads_first=False, backward=True, lengths=6),
    "aten::_efficient_attention_backward": Attention(heads_first=False, backward=True, lengths=6),
    "aten::_cudnn_attention_backward": Attention(backward=True, lengths=9),
}


def attention_work(attention: Attention, inputs: tuple[Input, ...]) -> Work | None:
    """Whether a mask is causal is not recorded: the full square of scores is counted, twice what a causal kernel does.

    A forward is two products (scores, output), a backward five (scores again, and one for each of the gradients of the
    weights, value, query and key), as torch.utils.flop_counter counts them. Bytes are those of query, key, value and
    output, and in a backward also of the output's gradient and of three more results. A mask is left out, for it is
    often one row expanded, and so is the logarithm of the softmax's sum, at most 1 value for each row of the output.
    """
    first = 1 if attention.backward else 0
    tensors = inputs[: first + 3]
    if len(tensors) < first + 3 or any(len(tensor.shape) != 4 or not tensor.is_tensor for tensor in tensors):
        return None
    if _are_packed(attention, inputs):
        return None
    query, key, value = tensors[first:]
    shapes = [(t.shape if attention.heads_first else _swapped(t.shape)) for t in tensors]
    (batch, heads, rows, size), (_, groups, columns, _), (*_, value_size) = shapes[first:]
    fits = (
        shapes[first + 1] == (batch, groups, columns, size)
        and shapes[first + 2] == (batch, groups, columns, value_size)
        and (heads == groups or (groups > 0 and heads % groups == 0))
        and (not attention.backward or shapes[0] == (batch, heads, rows, value_size))
    )
    if not fits:
        return None
    output = (batch, heads, rows, value_size)
    # From fp8 inputs the output is of a wider type, which is not recorded.
    same_types = len({tensor.type for tensor in tensors}) == 1 and "Float8" not in query.type
    out = written(output, query.type if same_types else None)
    moved = [query.bytes, key.bytes, value.bytes, out]
    width = size + value_size
    if attention.backward:
        moved = [*moved, *moved]  # the gradients, of the same shapes
        width = 3 * size + 2 * value_size
    steps = prod((batch, heads, rows, columns)) * width
    return Work(2.0 * steps * multiply_adds(query.type), total(moved))


def _are_packed(attention: Attention, inputs: tuple[Input, ...]) -> bool:
    if attention.lengths is None:
        return False
    return any(given.is_tensor and given.shape != (0,) for given in inputs[attention.lengths :][:2])


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, length, heads, size = shape
    return batch, heads, length, size
