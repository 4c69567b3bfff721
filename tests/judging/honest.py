# ruff: noqa: N803 (constants of Triton)
"""Honest candidates, by the task that each does. `honest.py:softmax__compiled` is one of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
ROWS, COLUMNS = (2048, 4096) if ON_GPU else (64, 128)
HAS_LIGER = ON_GPU and find_spec("liger_kernel") is not None


@dataclass
class Task:
    inputs: Callable[..., Any]
    reference: Any
    shapes: list[tuple[int, ...]]
    dtypes: list[str] = field(default_factory=lambda: ["fp32", "bf16"] if ON_GPU else ["fp32"])
    candidates: dict[str, Any] = field(default_factory=dict)
    init_inputs: tuple[Any, ...] = ()


TASKS: dict[str, Task] = {}


def task(name: str, inputs: Any, reference: Any, shape: tuple[int, ...] = (ROWS, COLUMNS), **candidates: Any) -> Task:
    is_module = isinstance(reference, type)
    own = dict(candidates)
    if not is_module:
        own["same"] = reference
        if ON_GPU or name in ("softmax", "gelu"):
            own["compiled"] = reference
    TASKS[name] = Task(inputs, reference, [shape], candidates=own)
    return TASKS[name]


def __getattr__(name: str) -> Any:
    of, _, candidate = name.partition("__")
    if of not in TASKS or candidate not in TASKS[of].candidates:
        raise AttributeError(name)
    found = TASKS[of].candidates[candidate]
    return {"compiled": torch.compile, "liger": liger}.get(candidate, lambda it: it)(found)


def normal(shape: Any, dtype: Any) -> Any:
    return (torch.randn(shape),)


def two(shape: Any, dtype: Any) -> Any:
    return torch.randn(shape), torch.randn(shape)


def with_weight(shape: Any, dtype: Any) -> Any:
    return torch.randn(shape), torch.randn(shape[-1])


task("ten_times", normal, lambda x: [F.gelu(x) for _ in range(10)][-1], once=F.gelu)  # the judge must see that

# -- rows ---------------------------------------------------------------------------------------------------------------


def softmax_by_hand(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


task(
    "softmax",
    normal,
    lambda x: torch.softmax(x, -1),
    by_hand=softmax_by_hand,
    by_logarithm=lambda x: torch.log_softmax(x.float(), -1).exp().to(x.dtype),
    in_halves=lambda x: torch.cat([torch.softmax(each, -1) for each in x.chunk(2)]),
)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    variance = x.float().pow(2).mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(variance + 1e-6)).to(x.dtype) * w


task(
    "rms_norm",
    with_weight,
    rms_norm,
    torch=lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    by_norm=lambda x, w: (x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()).to(x.dtype) * w,
)


def layer_norm_by_hand(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    return ((x.float() - mean) * torch.rsqrt(variance + 1e-5) * w.float() + b.float()).to(x.dtype)


task(
    "layer_norm",
    lambda shape, dtype: (torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])),
    lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    by_hand=layer_norm_by_hand,
)
task(
    "gelu",
    normal,
    lambda x: F.gelu(x, approximate="tanh"),
    by_hand=lambda x: (
        0.5 * x.float() * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x.float() + 0.044715 * x.float() ** 3)))
    ).to(x.dtype),
)
task(
    "swiglu",
    two,
    lambda a, b: F.silu(a) * b,
    by_sigmoid=lambda a, b: (a.float() * torch.sigmoid(a.float())).to(a.dtype) * b,
    in_float=lambda a, b: (F.silu(a.float()) * b.float()).to(a.dtype),
)
task("add", two, lambda a, b: a + b, out=lambda a, b: torch.add(a, b, out=torch.empty_like(a)))
task("sum", normal, lambda x: x.sum(-1), by_ones=lambda x: (x.float() @ x.new_ones(x.shape[-1]).float()).to(x.dtype))
task("maximum", normal, lambda x: x.argmax(-1), by_max=lambda x: x.max(-1).indices)
task("transpose", normal, lambda x: x.t().contiguous(), view=lambda x: x.t().clone(memory_format=torch.preserve_format))
task(
    "residual_norm",
    lambda shape, dtype: (torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])),
    lambda x, r, w: (rms_norm(x + r, w), x + r),
    once=lambda x, r, w: (lambda s: (rms_norm(s, w), s))(x + r),
)


def cross_entropy_by_hand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return torch.logsumexp(x, -1) - x.gather(-1, y[:, None])[:, 0]


task(
    "cross_entropy",
    lambda shape, dtype: (torch.randn(shape), torch.randint(0, shape[-1], shape[:1])),
    lambda x, y: F.cross_entropy(x.float(), y, reduction="none"),
    by_hand=cross_entropy_by_hand,
    by_log_softmax=lambda x, y: F.nll_loss(torch.log_softmax(x.float(), -1), y, reduction="none"),
)

# -- products -----------------------------------------------------------------------------------------------------------

SIDE = 1024 if ON_GPU else 64


def matrices(shape: Any, dtype: Any) -> Any:
    return torch.randn(shape), torch.randn(shape)


task(
    "matmul",
    matrices,
    lambda a, b: a @ b,
    (SIDE, SIDE),
    einsum=lambda a, b: torch.einsum("ij,jk->ik", a, b),
    transposed=lambda a, b: (b.t() @ a.t()).t(),
    split=lambda a, b: torch.cat([a @ each for each in b.chunk(2, 1)], 1),
)
task(
    "linear",
    lambda shape, dtype: (torch.randn(shape), torch.randn(shape), torch.randn(shape[0])),
    lambda x, w, b: F.relu(F.linear(x, w, b)),
    (SIDE, SIDE),
    addmm=lambda x, w, b: torch.addmm(b, x, w.t()).clamp_min(0),
)


def attention_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q.float() @ k.float().mT) / math.sqrt(q.shape[-1])
    return (torch.softmax(scores, -1) @ v.float()).to(q.dtype)


task(
    "attention",
    lambda shape, dtype: tuple(torch.randn(shape) for _ in range(3)),
    attention_by_hand,
    (8, 8, 512, 64) if ON_GPU else (1, 2, 32, 16),
    fused=lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rope_in_place(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    y, half = torch.empty_like(x), x.shape[-1] // 2
    y[..., :half] = x[..., :half] * cos - x[..., half:] * sin
    y[..., half:] = x[..., half:] * cos + x[..., :half] * sin
    return y


task(
    "rope",
    lambda shape, dtype: (torch.randn(shape), *(torch.randn(shape[-1] // 2) for _ in range(2))),
    rope,
    sliced=rope_in_place,
)
task(
    "embedding",
    lambda shape, dtype: (torch.randn(shape), torch.randint(0, shape[0], (shape[0],))),
    lambda table, at: F.embedding(at, table),
    indexed=lambda table, at: table[at],
    selected=lambda table, at: torch.index_select(table, 0, at),
)


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.relu(self.up(x)))


class ByHand(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.addmm(self.up.bias, x, self.up.weight.t()).relu_()
        return torch.addmm(self.down.bias, h, self.down.weight.t())


task("mlp", normal, Model, (SIDE, SIDE), same=Model, by_hand=ByHand).init_inputs = (SIDE,)

# -- kernels in Triton, and Liger's ---------------------------------------------------------------------------------------

if ON_GPU:
    import triton
    import triton.language as tl

    @triton.jit
    def add_kernel(a, b, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(a + at, at < n) + tl.load(b + at, at < n), at < n)

    def add_triton(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(a)
        add_kernel[(triton.cdiv(a.numel(), 1024),)](a, b, y, a.numel(), BLOCK=1024)
        return y

    @triton.jit
    def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, at < columns, other=-float("inf")).to(tl.float32)
        e = tl.exp(values - tl.max(values, 0))
        tl.store(y + row * columns + at, e / tl.sum(e, 0), at < columns)

    def softmax_triton(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y

    @triton.jit
    def norm_kernel(x, w, y, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, at < columns, other=0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values, 0) / columns + 1e-6)
        tl.store(y + row * columns + at, values * scale * tl.load(w + at, at < columns).to(tl.float32), at < columns)

    def norm_triton(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        norm_kernel[(x.shape[0],)](x, w, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y

    @triton.jit
    def swiglu_kernel(a, b, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        gate = tl.load(a + at, at < n).to(tl.float32)
        tl.store(y + at, gate * tl.sigmoid(gate) * tl.load(b + at, at < n).to(tl.float32), at < n)

    def swiglu_triton(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(a)
        swiglu_kernel[(triton.cdiv(a.numel(), 1024),)](a, b, y, a.numel(), BLOCK=1024)
        return y

    @triton.jit
    def matmul_kernel(a, b, c, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for start in range(0, n, BLOCK):
            at = start + tl.arange(0, BLOCK)
            left = tl.load(a + rows[:, None] * n + at[None, :])
            right = tl.load(b + at[:, None] * n + columns[None, :])
            total = tl.dot(left, right, total, input_precision="ieee")
        tl.store(c + rows[:, None] * n + columns[None, :], total)

    def matmul_triton(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty_like(a)
        matmul_kernel[(a.shape[0] // 64, a.shape[0] // 64)](a, b, c, a.shape[0], BLOCK=64)
        return c

    TASKS["add"].candidates["triton"] = add_triton
    TASKS["softmax"].candidates["triton"] = softmax_triton
    TASKS["rms_norm"].candidates["triton"] = norm_triton
    TASKS["swiglu"].candidates["triton"] = swiglu_triton
    TASKS["matmul"].candidates["triton"] = matmul_triton

if HAS_LIGER:
    for name in ("rms_norm", "layer_norm", "swiglu", "softmax", "cross_entropy"):
        TASKS[name].candidates["liger"] = name


def liger(name: str) -> Any:
    """Return a kernel of Liger, whose import takes many seconds."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    from liger_kernel.transformers.functional import liger_cross_entropy, liger_softmax

    return {
        "rms_norm": lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False),
        "layer_norm": lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5),
        "swiglu": lambda a, b: LigerSiLUMulFunction.apply(a, b),
        "softmax": liger_softmax,
        "cross_entropy": lambda x, y: liger_cross_entropy(x.float().clone(), y, reduction="none"),
    }[name]
