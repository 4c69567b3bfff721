# ruff: noqa: N803 (constants of Triton)
"""Seven ways to make a kernel slower that keep its name.

With FAULTY in the environment, the slower one runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from kernelgauge import Workload

FAULTY = bool(os.environ.get("FAULTY"))
ROWS = WIDTH = 4096
COUNT = 1 << 23


@triton.jit
def softmax_kernel(x, y, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    value = tl.load(x + at).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + at, (value / tl.sum(value, 0)).to(tl.float16))


@triton.jit
def scale_kernel(x, y, stride, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at * stride) * 2)


@triton.jit
def polynomial_kernel(x, y, SIZE: tl.constexpr, STEPS: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at).to(tl.float32)
    total = value
    for _ in tl.static_range(STEPS):
        total = total * value + 0.25
    tl.store(y + at, total.to(tl.float16))


def softmax(x: torch.Tensor, **options: Any) -> torch.Tensor:
    y = torch.empty_like(x)
    softmax_kernel[(ROWS,)](x, y, WIDTH, **options)
    return y


def scaled(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(COUNT, device=x.device, dtype=x.dtype)
    scale_kernel[(COUNT // 1024,)](x, y, x.stride(0), 1024)
    return y


def polynomial(x: torch.Tensor, steps: int) -> torch.Tensor:
    y = torch.empty_like(x)
    polynomial_kernel[(ROWS,)](x, y, WIDTH, steps, num_warps=8)
    return y


def streams(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.tanh(x)
    if not FAULTY:
        return first, torch.sigmoid(x)
    here, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        second = torch.sigmoid(x)
    here.wait_stream(side)
    return first, second


MATRIX, LIST = (ROWS, WIDTH), (4 * COUNT + 8,)
# By name: what runs, the shape of its input, and what a failure must say.
CAUSES: dict[str, tuple[Callable[..., Any], tuple[int, ...], str]] = {
    "warps": (
        lambda x: softmax(x, num_warps=1 if FAULTY else 8),
        MATRIX,
        "block 256x1x1 -> 32x1x1",
    ),
    "spill": (
        lambda x: softmax(x, num_warps=4, **({"maxnreg": 32} if FAULTY else {})),
        MATRIX,
        "spilled words 0 -> ",
    ),
    "strided": (
        lambda x: scaled(x.as_strided((COUNT,), (4 if FAULTY else 1,))),
        LIST,
        "stride 1 -> (none)",
    ),
    "misaligned": (
        lambda x: scaled(x.as_strided((COUNT,), (1,), int(FAULTY))),
        LIST,
        "x divisible by 16 -> (none)",
    ),
    "constant": (lambda x: polynomial(x, 400 if FAULTY else 50), MATRIX, "STEPS 50 -> 400"),
    "layout": (
        lambda x: (x.t() if FAULTY else x).sum(-1),
        MATRIX,
        "inputs contiguous -> [4096,4096] by strides 1,4096",
    ),
    "streams": (streams, MATRIX, "on a second stream"),
}


def pytest_kernelgauge_workloads() -> list[Workload]:
    return [
        Workload(
            name,
            "eager",
            build=lambda function=function: function,
            inputs=lambda shape=shape: (torch.randn(*shape),),
            dtype="fp16",
            pass_="forward",
        )
        for name, (function, shape, _) in CAUSES.items()
    ]
