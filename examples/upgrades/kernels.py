"""Kernels of the kind that an upgrade of Triton made slower for others (docs/regressions.md)."""

# ruff: noqa: N803   (names of constants, as Triton's own)
import torch
import triton
import triton.language as tl


@triton.jit
def _layer_norm(x, y, weight, bias, columns, SIZE: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, SIZE)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centered = tl.where(mask, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, axis=0) / columns + 1e-5)
    scaled = centered * scale * tl.load(weight + offsets, mask=mask).to(tl.float32)
    scaled += tl.load(bias + offsets, mask=mask).to(tl.float32)
    tl.store(y + row * columns + offsets, scaled, mask=mask)


def layer_norm(x, weight, bias, **options):
    y, columns = torch.empty_like(x), x.shape[1]
    _layer_norm[len(x),](x, y, weight, bias, columns, triton.next_power_of_2(columns), **options)
    return y


@triton.jit
def _gathered_attention(
    q, cache, index, out, tokens, HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr
):
    row, heads, dims = tl.program_id(0), tl.arange(0, HEADS), tl.arange(0, DIM)
    query = tl.load(q + (row * HEADS + heads[:, None]) * DIM + dims[None, :])
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total, result = tl.zeros([HEADS], tl.float32), tl.zeros([HEADS, DIM], tl.float32)
    for start in range(0, tokens, BLOCK):
        places = start + tl.arange(0, BLOCK)
        token = tl.load(index + row * tokens + places, mask=places < tokens, other=0)
        keys = tl.load(cache + token[:, None] * DIM + dims[None, :])
        scores = tl.dot(query, tl.trans(keys))
        scores = tl.where((places < tokens)[None, :], scores, float("-inf"))
        new = tl.maximum(highest, tl.max(scores, axis=1))
        weights, decay = tl.exp(scores - new[:, None]), tl.exp(highest - new)
        total = total * decay + tl.sum(weights, axis=1)
        result = tl.dot(weights.to(keys.dtype), keys, result * decay[:, None])
        highest = new
    tl.store(out + (row * HEADS + heads[:, None]) * DIM + dims[None, :], result / total[:, None])


def gathered_attention(warps):
    """Return the function with an autotuner that chooses between these numbers of warps."""
    choices = [triton.Config({"BLOCK": 32}, num_warps=each, num_stages=1) for each in warps]
    tuned = triton.autotune(choices, key=["tokens"])(_gathered_attention)

    def attend(q, cache, index):
        rows, heads, dim = q.shape
        out = torch.empty_like(q)
        tuned[rows,](q, cache, index, out, index.shape[1], heads, dim)
        return out

    return attend


@triton.jit
def _attention(
    q, k, v, out, tokens, D: tl.constexpr, ROPE: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    rows, dims, rope = (
        tl.program_id(0) * M + tl.arange(0, M),
        tl.arange(0, D),
        D + tl.arange(0, ROPE),
    )
    width: tl.constexpr = D + ROPE
    query = tl.load(q + rows[:, None] * width + dims[None, :])
    query_rope = tl.load(q + rows[:, None] * width + rope[None, :])
    highest = tl.full([M], float("-inf"), tl.float32)
    total, result = tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32)
    for start in range(0, tokens, N):
        places = start + tl.arange(0, N)
        scores = tl.dot(query, tl.load(k + places[None, :] * width + dims[:, None]))
        scores = tl.dot(query_rope, tl.load(k + places[None, :] * width + rope[:, None]), scores)
        new = tl.maximum(highest, tl.max(scores, axis=1))
        weights, decay = tl.exp(scores - new[:, None]), tl.exp(highest - new)
        total = total * decay + tl.sum(weights, axis=1)
        values = tl.load(v + places[:, None] * D + dims[None, :])
        result = result * decay[:, None] + tl.dot(weights.to(values.dtype), values)
        highest = new
    tl.store(out + rows[:, None] * D + dims[None, :], result / total[:, None])


def attention(q, k, v, *, block=(64, 64), **options):
    out = torch.empty_like(q[:, : v.shape[1]])
    _attention[len(q) // block[0],](
        q, k, v, out, len(k), v.shape[1], q.shape[1] - v.shape[1], *block, **options
    )
    return out
