"""What torch.compile did: graphs, graph breaks, recompiles."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import KernelgaugeError

__all__ = [
    "CompileCounts",
    "compile_counts",
    "kernel_profile_on_cpu",
    "reset_compiler",
    "silence_structured_trace",
    "take_deterministic_choices",
]


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


def kernel_profile_on_cpu() -> None:
    """Let Inductor's C++ kernels show up in the profiler, as its Triton kernels do."""
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True


def take_deterministic_choices() -> None:
    """Let Inductor choose launch configurations without timing them (torch 2.10 and newer).

    Raises `KernelgaugeError` if this torch has no switch for it.
    """
    import torch._inductor.config as inductor

    if not hasattr(inductor, "deterministic"):
        raise KernelgaugeError(
            "--perf-deterministic: this torch cannot choose without timing",
            got=f"torch {torch.__version__}, without torch._inductor.config.deterministic",
            expected="torch 2.10 or newer",
            next_command="kernelgauge calibrate   (so that the baseline knows every choice)",
        )
    inductor.deterministic = True


def silence_structured_trace() -> None:
    """Keep torch's structured trace out of pytest's log capture, unless it was asked for.

    Its logger is at DEBUG in any case (torch/_logging/_internal.py) and pytest captures loggers that do not propagate
    too, so one compile writes thousands of empty lines into every failure report.
    """
    if "TORCH_TRACE" not in os.environ:
        logging.getLogger("torch.__trace").disabled = True


def _counters() -> Any:  # Dynamo's own type is a private alias
    from torch._dynamo.utils import counters

    return counters
