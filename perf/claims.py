"""What the tests of single claims share. Their numbers are those of the table in docs/claims.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernelgauge import Run, Timer
from kernelgauge.judge import observe
from kernelgauge.trace import Kind

Available = Callable[[Callable[[], Any]], Any]


def claim(module: str, *variants: str) -> pytest.MarkDecorator:
    """Run the test for these variants of a module at the shapes and dtype of the article, forward only."""
    return pytest.mark.workloads(module=module, variant=variants, matrix="default")


gpu_only = pytest.mark.skipif(
    "not __import__('torch').cuda.is_available() or config.getoption('--perf-device') == 'cpu'",
    reason="this claim is about kernels on a GPU and has no meaning on a CPU",
)


def only(names: list[str], wanted: set[str]) -> list[str]:
    """The wanted names, in order."""
    return [name for name in names if name in wanted]


def gemm_names(run: Run) -> list[str]:
    """Names of the GEMM kernels, in launch order."""
    return [kernel.identity.name for kernel in run.kernels if kernel.identity.kind == Kind.GEMM.value]


def pointwise_us(run: Run) -> float:
    """Device time of the pointwise kernels of one call."""
    return sum(kernel.device_time_us for kernel in run.kernels if kernel.identity.kind == Kind.POINTWISE.value)


def typical_us(run: Run, timer: Timer) -> float:
    """What stands for all replicates of a timer."""
    return observe(run.samples[timer]).mean_us
