"""The reference kernels: a copy and a GEMM, measured beside the workloads. What moves them is the machine, not the code."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import nn

from ..run import ControlTime, Roof
from ..workload import Workload

__all__ = ["control_pair", "roof"]

_COPIED = (64, 1024, 1024)  # 128 MiB in fp16: twice the L2 of the largest GPUs there are
_GEMM = (4096, 4096, 4096)  # rows, in, out: bound by the tensor cores


class _Copy(nn.Module):
    """Reads and writes every byte once. A `clone` would be a memcpy, for which the profiler has no kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg()


class _Gemm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_GEMM[1], _GEMM[2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def control_pair() -> tuple[Workload, ...]:
    """Workloads of our own: `copy` is bound by memory, `gemm` by arithmetic. fp16, which every GPU has."""
    return (
        Workload(
            module="copy",
            variant="control",
            build=_Copy,
            inputs=lambda: (torch.randn(_COPIED),),
            shape=_COPIED,
            dtype="fp16",
        ),
        Workload(
            module="gemm",
            variant="control",
            build=_Gemm,
            inputs=lambda: (torch.randn(_GEMM[:2]),),
            shape=_GEMM,
            dtype="fp16",
        ),
    )


def roof(controls: Mapping[str, ControlTime]) -> Roof | None:
    """Return what the pair reached; None if one of it was not measured."""
    if not {"copy", "gemm"} <= set(controls):
        return None
    moved_bytes = 2 * prod(_COPIED) * torch.float16.itemsize
    return Roof(
        memory_gb_per_s=moved_bytes / controls["copy"].device_time_us / 1e3,
        gemm_tflop_per_s=2 * prod(_GEMM) / controls["gemm"].device_time_us / 1e6,
    )
