"""kernelgauge: performance regressions of PyTorch GPU code, by kernel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cli.traces import check_trace
    from .errors import KernelgaugeError, WorkloadError, WorkloadUnavailable
    from .judge.structure import Expectation
    from .plugin.fixtures import Sibling
    from .results import __version__
    from .run import Run, Timer
    from .workload import Dtype, Matrix, Pass, Training, Workload

__all__ = [
    "Dtype",
    "Expectation",
    "KernelgaugeError",
    "Matrix",
    "Pass",
    "Run",
    "Sibling",
    "Timer",
    "Training",
    "Workload",
    "WorkloadError",
    "WorkloadUnavailable",
    "__version__",
    "check_trace",
]

# Imported at first use: the pytest plugin is loaded in sessions without a suite too.
_HOMES = {
    "cli.traces": ("check_trace",),
    "errors": ("KernelgaugeError", "WorkloadError", "WorkloadUnavailable"),
    "judge.structure": ("Expectation",),
    "plugin.fixtures": ("Sibling",),
    "results": ("__version__",),
    "run": ("Run", "Timer"),
    "workload": ("Dtype", "Matrix", "Pass", "Training", "Workload"),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
