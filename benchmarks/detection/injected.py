"""Slowdowns that are real work: a kernel that spins behind a module's own, Python that runs before its call.

An unslowed workload is the workload itself, unwrapped. A slowed one is a plain function around the module. Its spinning
kernel is launched by one call of the driver with arguments that are packed beforehand: it costs a few microseconds.
A compiled module is compiled first and wrapped afterwards: nothing recompiles, and no graph breaks.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.instance import TORCH_DTYPES

__all__ = ["LEAST_TURNS", "Injection", "SpinTime", "delayed", "packed_launch", "slowed", "spinner"]

Call = Callable[..., Any]

# One block on each multiprocessor, as the measured kernels have. `torch.cuda._sleep` has one block, and its duration
# depends on where that runs, by 0.05 us of 0.8 from process to process (docs/detection.md).
_SPIN = """
extern "C" __global__ void spin(float* sink, int turns, float value) {
#pragma unroll 1
  for (int i = 0; i < turns; i++) value = value * 1.0001f + 0.5f;
  if (value == 1234.5f) sink[0] = value;
}
"""
LEAST_TURNS = 20  # fewer are hidden in what any kernel takes


@dataclass(frozen=True)
class Injection:
    """What a workload does beside its own work: turns of the spinning kernel, and loops of Python on the host."""

    turns: int = 0
    loops: int = 0


@dataclass(frozen=True)
class SpinTime:
    """How long the spinning kernel takes behind one workload.

    Attributes:
        least_us: its duration with `LEAST_TURNS`.
        turn_us: what each further turn adds.
    """

    least_us: float
    turn_us: float

    def turns(self, microseconds: float) -> int:
        """Return the turns of a spin that takes so long; at least one."""
        return max(1, LEAST_TURNS + round((microseconds - self.least_us) / self.turn_us))


def slowed(workload: Workload, injection: Injection) -> Workload:
    """Return the workload with an injection; without one, the workload itself."""
    if injection == Injection():
        return workload

    def build() -> Call:
        call: Call = workload.build()
        if isinstance(call, nn.Module) and workload.dtype is not None:
            call = call.to(TORCH_DTYPES[workload.dtype])  # kernelgauge casts modules alone
        if workload.compile is not None:
            call = torch.compile(call, **workload.compile)
        if injection.turns:
            call = _followed(call, spinner(injection.turns))
        return delayed(call, injection.loops) if injection.loops else call

    return replace(workload, build=build, compile=None, expectations=())  # it has one kernel more


def delayed(call: Call, loops: int) -> Call:
    """Return `call` behind so many turns of an empty loop: a host that is slower makes them slower too."""

    def delayed_call(*inputs: Any) -> Any:
        for _ in repeat(None, loops):
            pass
        return call(*inputs)

    return delayed_call


def spinner(turns: int) -> Callable[[], None]:
    """Return a launch, on the stream that is current now, of a kernel that keeps every multiprocessor busy."""
    function, sink, blocks = _spin_kernel(torch.cuda.current_device())
    # Any float will do that the compiler does not know.
    arguments = (ctypes.c_void_p(sink.data_ptr()), ctypes.c_int(turns), ctypes.c_float(0.25))
    stream = torch.cuda.current_stream().cuda_stream
    return packed_launch(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, function, blocks, arguments, stream)


def packed_launch(
    launch: Call, function: ctypes.c_void_p, blocks: int, arguments: Sequence[Any], stream: int
) -> Callable[[], None]:
    """Return a function that calls ``cuLaunchKernel`` with blocks of one thread. It raises RuntimeError if that fails."""
    pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    one, none = ctypes.c_uint(1), ctypes.c_uint(0)
    packed = (function, ctypes.c_uint(blocks), one, one, one, one, one, none, ctypes.c_void_p(stream), pointers, None)

    def launch_packed(_kept: Sequence[Any] = arguments) -> None:  # the pointers alone do not keep what they point to
        error = launch(*packed)
        if error:
            raise RuntimeError(f"cuLaunchKernel failed with error {error}")

    return launch_packed


def _followed(call: Call, launch: Callable[[], None]) -> Call:
    def followed_call(*inputs: Any) -> Any:
        output = call(*inputs)
        launch()
        return output

    return followed_call


@functools.cache
def _spin_kernel(device: int) -> tuple[ctypes.c_void_p, torch.Tensor, int]:
    kernel = torch.cuda._compile_kernel(_SPIN, "spin")
    return kernel.func, torch.zeros(1, device=device), torch.cuda.get_device_properties(device).multi_processor_count
