"""The CPU: the same claims on a machine without a GPU. Its kernels are the ops that compute."""

from __future__ import annotations

import math

import torch
from torch.profiler import ProfilerActivity

from ...errors import WorkloadUnavailable
from ...run import Fingerprint, Timer
from ...trace import Window, computing_ops, identity_of_op
from ...workload import Workload
from ..nvml import Monitor
from .base import Device, Execution, HostSpeed, cpu_name, software

__all__ = ["CpuDevice"]

# The host reference uses all threads: another job slows a parallel op far more than a single thread. 256: about 0.2 ms.
_REFERENCE_SIZE = 256


class CpuDevice(Device):
    """The host's processor. Host dispatch has no meaning here: the host does the work itself.

    A call has done its work when it returns, so there is nothing to wait for or to hold. The claims are about structure, so
    the caches stay as they are.
    """

    activities: tuple[ProfilerActivity, ...] = (ProfilerActivity.CPU,)
    timers: tuple[Timer, ...] = (Timer.DEVICE, Timer.END_TO_END)
    table_sort_key = "self_cpu_time_total"
    torch_device = torch.device("cpu")
    gpu: str | None = None
    controls: tuple[Workload, ...] = ()
    warm_up_calls = 1
    most_replicates: int | None = 4  # the claims on a CPU are about structure
    most_busy_seconds = math.inf
    tolerated_drift = math.inf  # no reference kernels, and no clock that NVML knows

    def __init__(self) -> None:
        matrix = torch.ones(_REFERENCE_SIZE, _REFERENCE_SIZE)

        def multiply() -> None:
            torch.mm(matrix, matrix)

        self.host = HostSpeed(multiply)
        self.monitor = Monitor(why_not="NVML knows GPUs only")

    def check(self, workload: Workload) -> None:
        if isinstance(workload.on_cpu, str):
            raise WorkloadUnavailable(workload.on_cpu, expected="a CUDA GPU")

    def executions(self, window: Window) -> list[Execution]:
        return [Execution(identity_of_op(op), op.duration_us, op.external_id) for op in computing_ops(window)]

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
