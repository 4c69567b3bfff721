"""Slowdowns that are real work: GPU cycles behind a module's kernels, host time before its call.

The unslowed twin has the same wrappers, the same kernels and the same launches; only the amount differs. A compiled
module is compiled first and wrapped afterwards: nothing recompiles, and no graph breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kernelgauge import Workload

__all__ = ["HostSlowed", "Slowed", "cycles_of", "sm_clock_mhz", "twin"]


# So long does the kernel spin in every twin. From a single cycle on, the first hundred or so would be hidden in what the
# kernel takes anyway: of 0.11 us that were injected that way, 0.06 arrived (docs/detection.md).
_LEAST_CYCLES = 400


class Slowed(nn.Module):
    """`module`, and then a kernel that spins for `microseconds` longer than in the twin with nothing injected."""

    def __init__(self, module: Callable[..., Any], microseconds: float, clock_mhz: float | None = None) -> None:
        super().__init__()
        self.module = module
        self.cycles = cycles_of(microseconds, sm_clock_mhz() if clock_mhz is None else clock_mhz)

    def forward(self, *inputs: Any) -> Any:
        output = self.module(*inputs)
        torch.cuda._sleep(self.cycles)
        return output


class HostSlowed(nn.Module):
    """`microseconds` of busy host, and then `module`."""

    def __init__(self, module: Callable[..., Any], microseconds: float) -> None:
        super().__init__()
        self.module = module
        self.nanoseconds = round(microseconds * 1000)

    def forward(self, *inputs: Any) -> Any:
        until = time.perf_counter_ns() + self.nanoseconds
        while time.perf_counter_ns() < until:
            pass
        return self.module(*inputs)


def twin(workload: Workload, *, device_us: float = 0.0, host_us: float = 0.0) -> Workload:
    """The workload with that much injected. With nothing, the one that the slowed ones are compared with."""

    def build() -> nn.Module:
        module = workload.build()
        compiled = module if workload.compile is None else torch.compile(module, **workload.compile)
        return HostSlowed(Slowed(compiled, device_us), host_us)

    # Its kernels are the workload's and one more.
    return replace(workload, build=build, compile=None, expectations=())


def cycles_of(microseconds: float, clock_mhz: float) -> int:
    """Of the twin with nothing injected it is `_LEAST_CYCLES`, and never none: without a kernel it would be another workload."""
    return _LEAST_CYCLES + round(microseconds * clock_mhz)


def sm_clock_mhz(device: int | None = None) -> float:
    """The highest clock of the device's SMs, which is the one they run at under these loads."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)
    clock_khz = getattr(properties, "clock_rate", None)  # not in every version of torch
    if clock_khz:
        return float(clock_khz) / 1000
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")  # NVML's index is not CUDA's
        return float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    finally:
        pynvml.nvmlShutdown()
