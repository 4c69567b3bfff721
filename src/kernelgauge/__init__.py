"""kernelgauge: performance regressions of PyTorch GPU code, by kernel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .judge.expectation import Expectation
    from .run import Run, Timer
    from .workload import Dtype, Matrix, Pass, Workload

__all__ = ["Dtype", "Expectation", "Matrix", "Pass", "Run", "Timer", "Workload", "__version__"]

__version__ = "0.1.0"

# Imported at first use: the pytest plugin is loaded in sessions without a suite too.
_HOMES = {
    "Dtype": "workload",
    "Expectation": "judge.expectation",
    "Matrix": "workload",
    "Pass": "workload",
    "Run": "run",
    "Timer": "run",
    "Workload": "workload",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value
