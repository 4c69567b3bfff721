"""kernelgauge: performance regressions of PyTorch GPU code, by kernel."""

from .judge.expectation import Expectation
from .run import Run, Timer
from .workload import Dtype, Matrix, Pass, Workload

__all__ = ["Dtype", "Expectation", "Matrix", "Pass", "Run", "Timer", "Workload", "__version__"]

__version__ = "0.1.0"
