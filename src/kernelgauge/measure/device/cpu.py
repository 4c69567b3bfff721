"""The CPU: the same claims on a machine without a GPU. Its kernels are the ops that compute."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity

from ...errors import WorkloadUnavailable
from ...run import Fingerprint, Timer
from ...trace import Window, computing_ops, identity_of_op
from ...workload import Workload
from ..host import HostSpeed
from ..nvml import Monitor
from .base import Execution, cpu_name, software

__all__ = ["CpuDevice"]

# The host reference uses all threads: another job slows a parallel op far more than a single thread. 256: about 0.2 ms.
_REFERENCE_SIZE = 256


class CpuDevice:
    """The host's processor. Host dispatch has no meaning here: the host does the work itself."""

    activities: tuple[ProfilerActivity, ...] = (ProfilerActivity.CPU,)
    timers: tuple[Timer, ...] = (Timer.DEVICE, Timer.END_TO_END)
    table_sort_key = "self_cpu_time_total"
    torch_device = torch.device("cpu")
    gpu: str | None = None
    controls: tuple[Workload, ...] = ()
    warm_up_calls = 1
    most_replicates: int | None = 4  # the claims on a CPU are about structure
    most_busy_seconds = math.inf

    def __init__(self) -> None:
        matrix = torch.ones(_REFERENCE_SIZE, _REFERENCE_SIZE)

        def multiply() -> None:
            torch.mm(matrix, matrix)

        self.host = HostSpeed(multiply)
        self.monitor = Monitor(why_not="NVML knows GPUs only")

    def check(self, workload: Workload) -> None:
        if isinstance(workload.on_cpu, str):
            raise WorkloadUnavailable(workload.on_cpu, expected="a CUDA GPU")

    def synchronize(self) -> None:
        """Nothing to wait for: a call has done its work when it returns."""

    def flush_cache(self) -> None:
        """Leave the caches of a CPU as they are: its claims are about structure."""

    def hold(self, microseconds: float) -> None:
        """Hold nothing: a call on the CPU has no launches that could wait."""

    def lost(self) -> bool:
        return False

    def executions(self, window: Window) -> list[Execution]:
        return [Execution(identity_of_op(op), op.duration_us, op.external_id) for op in computing_ops(window)]

    def forget_peak(self) -> None:
        """Forget nothing: the CPU's allocator keeps no peak."""

    def peak_allocated_bytes(self, call: Callable[[], object]) -> int | None:  # noqa: ARG002  (the protocol's)
        return None  # the CPU's allocator keeps no peak

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(
            device=f"CPU {cpu_name()}, {torch.get_num_threads()} threads",
            arch="cpu",
            sm_count=None,
            memory_bytes=None,
            power_limit_watts=None,
            mig=None,
            driver=None,
            cuda=None,
            **software(),
        )
