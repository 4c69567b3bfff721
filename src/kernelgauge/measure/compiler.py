"""What torch.compile did: graphs, graph breaks, recompiles."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import KernelgaugeError

__all__ = [
    "CompileCounts",
    "compile_counts",
    "reset_compiler",
    "silence_structured_trace",
    "torch_set_up",
]


_structured_trace = logging.getLogger("torch.__trace")


@dataclass(frozen=True)
class CompileCounts:
    """Totals since the last `reset_compiler`."""

    graphs: int
    graph_breaks: int


def reset_compiler() -> None:
    """Forget every compiled graph: each workload starts at region 0/0, as in a process of its own."""
    torch.compiler.reset()
    _counters().clear()


def compile_counts() -> CompileCounts:
    """Read Dynamo's counters (torch/_dynamo/utils.py)."""
    counters = _counters()
    return CompileCounts(
        graphs=int(counters["stats"].get("unique_graphs", 0)), graph_breaks=sum(counters["graph_break"].values())
    )


@contextmanager
def torch_set_up(*, deterministic: bool = False) -> Iterator[None]:
    """Set torch up for measuring, and restore what that changes for all of the process.

    Inductor's C++ kernels show in the profiler, as its Triton kernels do. Random numbers and a logger are kept as they were.
    Compiled code of the process is lost all the same (`reset_compiler`).

    `deterministic`: let Inductor choose launch configurations without timing them. Raises `KernelgaugeError` if this torch
    has no switch for that (it is older than 2.10).
    """
    import torch._inductor.config as inductor

    has_switch = hasattr(inductor, "deterministic")
    if deterministic and not has_switch:
        raise KernelgaugeError(
            "kernelgauge_deterministic: this torch cannot choose without timing",
            got=f"torch {torch.__version__}, without torch._inductor.config.deterministic",
            expected="torch 2.10 or newer",
            next_command="kernelgauge calibrate   (so that the baseline knows every choice)",
        )
    cuda: Any = torch.cuda
    numbers = torch.get_rng_state()
    gpu_numbers = cuda.get_rng_state() if cuda.is_initialized() else None
    was_profiled, was_deterministic = inductor.cpp.enable_kernel_profile, has_switch and inductor.deterministic
    was_disabled = _structured_trace.disabled
    inductor.cpp.enable_kernel_profile = True
    if deterministic:
        inductor.deterministic = True
    try:
        yield
    finally:
        torch.set_rng_state(numbers)
        if gpu_numbers is not None:
            cuda.set_rng_state(gpu_numbers)
        inductor.cpp.enable_kernel_profile = was_profiled
        if deterministic:
            inductor.deterministic = was_deterministic
        _structured_trace.disabled = was_disabled


def silence_structured_trace() -> None:
    """Keep torch's structured trace out of pytest's log capture, unless it was asked for.

    Its logger is at DEBUG in any case (torch/_logging/_internal.py) and pytest captures loggers that do not propagate
    too, so one compile writes thousands of empty lines into every failure report.
    """
    if "TORCH_TRACE" not in os.environ:
        _structured_trace.disabled = True


def _counters() -> Any:  # Dynamo's own type is a private alias
    from torch._dynamo.utils import counters

    return counters
