"""kernelgauge: performance regressions of PyTorch GPU code, by kernel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .errors import KernelgaugeError, WorkloadError, WorkloadUnavailable
    from .judge.structure import Expectation
    from .plugin.fixtures import Sibling
    from .run import Run, Timer
    from .workload import Dtype, Matrix, Pass, Workload

__all__ = [
    "Dtype",
    "Expectation",
    "KernelgaugeError",
    "Matrix",
    "Pass",
    "Run",
    "Sibling",
    "Timer",
    "Workload",
    "WorkloadError",
    "WorkloadUnavailable",
    "__version__",
]

__version__ = "0.1.0"

# Imported at first use: the pytest plugin is loaded in sessions without a suite too.
_HOMES = {
    "Dtype": "workload",
    "Expectation": "judge.structure",
    "KernelgaugeError": "errors",
    "Matrix": "workload",
    "Pass": "workload",
    "Run": "run",
    "Sibling": "plugin.fixtures",
    "Timer": "run",
    "Workload": "workload",
    "WorkloadError": "errors",
    "WorkloadUnavailable": "errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value
