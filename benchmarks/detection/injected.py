"""Slowdowns that are real work: GPU cycles behind a module's kernels, host time before its call.

The unslowed twin has the same wrappers, the same kernels and the same launches; only the amount differs. A compiled
module is compiled first and wrapped afterwards: nothing recompiles, and no graph breaks.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kernelgauge import Workload

__all__ = ["HostSlowed", "Slowed", "sm_clock_mhz", "spin", "turns_of", "twin"]


# A block on each multiprocessor, as the kernels have that are measured. `torch.cuda._sleep` has one block, and how long that
# takes depends on where it happens to run, by 0.05 us of 0.8 from process to process (docs/detection.md).
_SPIN = """
extern "C" __global__ void spin(float* sink, int turns, float value) {
#pragma unroll 1
  for (int i = 0; i < turns; i++) value = value * 1.0001f + 0.5f;
  if (value == 1234.5f) sink[0] = value;
}
"""
_CYCLES_PER_TURN = 29.0  # of an H200: 8 turns more took 0.117 us longer at 1980 MHz, in eight processes
# In every twin: the first turns are hidden in what a kernel takes anyway.
_LEAST_TURNS = 20


class Slowed(nn.Module):
    """`module`, and then a kernel that spins for `microseconds` longer than in the twin with nothing injected."""

    def __init__(self, module: Callable[..., Any], microseconds: float, clock_mhz: float | None = None) -> None:
        super().__init__()
        self.module = module
        self.turns = turns_of(microseconds, sm_clock_mhz() if clock_mhz is None else clock_mhz)

    def forward(self, *inputs: Any) -> Any:
        output = self.module(*inputs)
        spin(self.turns)
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


def spin(turns: int) -> None:
    """Keep every multiprocessor of the current device busy for so many turns; asynchronous."""
    kernel, sink, blocks = _spinning(torch.cuda.current_device())
    # Any value will do that the compiler does not know; torch passes a double, and the kernel reads half of it.
    kernel((blocks, 1, 1), (1, 1, 1), (sink, turns, 0.25))


@functools.cache
def _spinning(device: int) -> tuple[Callable[..., None], torch.Tensor, int]:
    kernel = torch.cuda._compile_kernel(_SPIN, "spin")
    return kernel, torch.zeros(1, device=device), torch.cuda.get_device_properties(device).multi_processor_count


def turns_of(microseconds: float, clock_mhz: float) -> int:
    """Of the twin with nothing injected it is `_LEAST_TURNS`, and never none: without a kernel it would be another workload."""
    return _LEAST_TURNS + round(microseconds * clock_mhz / _CYCLES_PER_TURN)


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
