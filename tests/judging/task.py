"""The reference that attacks are judged against."""

import torch

SHAPES = [(64, 257)] if not torch.cuda.is_available() else [(2048, 4096), (333, 1000)]
DTYPES = ["fp32"]


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape), torch.randn(shape[-1])


def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * w
    y = torch.softmax(y, -1)
    return torch.tanh(y + x * 0.5)
