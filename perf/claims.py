"""What the tests of single claims share.

Their names have numbers: docs/design/claims.md says where the claims come from.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge import Run, Workload

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def claim(module: str, *variants: str) -> pytest.MarkDecorator:
    """Run the test for these variants of a module at the shapes and dtype of the article, forward
    only.
    """
    return pytest.mark.workloads(module=module, variant=variants, matrix="default")


def only(names: list[str], wanted: set[str]) -> list[str]:
    """Return the wanted names, in order."""
    return [name for name in names if name in wanted]


def gemm_names(run: Run) -> list[str]:
    """Return the names of the GEMM kernels, in launch order."""
    return [kernel.identity.name for kernel in run.kernels if kernel.identity.kind == "gemm"]


def gemm_layouts(run: Run) -> list[str | None]:
    """Return how each GEMM kernel's name says that its operands lie in memory, in launch order."""
    return [
        kernel.identity.decoded.layout for kernel in run.kernels if kernel.identity.kind == "gemm"
    ]


def pointwise_us(run: Run) -> float:
    """Return the GPU time of the pointwise kernels of one call, in microseconds."""
    return sum(
        kernel.device_time_us for kernel in run.kernels if kernel.identity.kind == "pointwise"
    )


def compile_ops(run: Run) -> list[str]:
    """Return the rows that a compiled region adds to the host's lane."""
    added = (
        "Torch-Compiled Region",
        "TorchDynamo Cache Lookup",
        "Pregraph bytecode",
        "AOTDispatcher Runtime Wrapper",
    )
    return [name for name in run.op_names() if name.startswith(added)]


def build(workload: Workload, run: Run) -> tuple[Any, torch.Tensor]:
    """Build the workload's module and its input once more, on the device of the run."""
    device = torch.device("cpu" if run.fingerprint.arch == "cpu" else "cuda")
    dtype = DTYPES[workload.dtype or "fp32"]
    with device:
        module, (x,) = workload.build(), workload.inputs()
    return module.to(device, dtype) if isinstance(module, nn.Module) else module, x.to(
        device, dtype
    )


def graph_count() -> int:
    """Return how many graphs Dynamo has compiled since the last reset (torch/_dynamo/utils.py)."""
    from torch._dynamo.utils import counters

    return int(counters["stats"].get("unique_graphs", 0))
