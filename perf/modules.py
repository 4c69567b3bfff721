"""The plain modules that the workloads are made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn


class MatmulAdd(nn.Module):
    """``torch.add(torch.matmul(x, w), b)``: x of [rows, n_in], w of [n_in, n_out], b of [n_out]."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(n_in, n_out) / n_in**0.5)
        self.b = nn.Parameter(torch.randn(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(torch.matmul(x, self.w), self.b)


class GegluMlp(nn.Module):
    """``down(gelu(gate(x)) * up(x))``, x of [..., dim].

    Names as in Liger's, so that parameters can be exchanged.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        g = self.gate_proj(x)
        u = self.up_proj(x)
        h = F.gelu(g, approximate="tanh")
        return self.down_proj(h * u)


@contextmanager
def without_import(name: str) -> Iterator[None]:
    """Let `import name` fail meanwhile, as if it were not installed.

    liger-kernel imports peft where it finds it, and peft imports transformers and scikit-learn: 8.6
    s on a machine that has them, for an integration that no forward pass touches.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # the documented way: https://docs.python.org/3/reference/import.html
    try:
        yield
    finally:
        del sys.modules[name]


def liger_geglu_mlp(dim: int, hidden: int) -> nn.Module:
    """Build the same layer with Liger's Triton kernel.

    Raises `WorkloadUnavailable` if it is not installed.
    """
    from types import SimpleNamespace

    from kernelgauge import WorkloadUnavailable

    try:
        with without_import("peft"):
            from liger_kernel.transformers.geglu import LigerGEGLUMLP
    except ImportError as error:
        raise WorkloadUnavailable(
            "liger-kernel cannot be imported",
            got=str(error),
            expected="the packages liger-kernel and triton",
            next_command="pip install 'kernelgauge[suite]'",
        ) from error
    config = SimpleNamespace(
        hidden_size=dim, intermediate_size=hidden, hidden_act="gelu_pytorch_tanh"
    )
    return LigerGEGLUMLP(config)
