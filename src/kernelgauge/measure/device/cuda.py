"""One CUDA device, and the reference kernels that show how fast it is."""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from ...errors import WorkloadUnavailable
from ...judge.timing import uncertainty
from ...run import ControlTime, Fingerprint, Roof, Timer
from ...trace import Window, identity_of
from ...workload import Workload
from ..nvml import Monitor, digest
from .base import Device, Execution, HostSpeed, software

__all__ = ["CudaDevice", "control_pair", "roof"]

# The buffer that evicts the L2 must be larger than twice the cache: with less, lines of the workload survive under
# a replacement policy that is not strict LRU, and a "cold" time is silently warm (flashinfer#4468: 36 % wrong).
_FLUSH_FACTOR = 3
# An H200's clock moves in steps of 15 MHz (0.8 % of 1980), and one or two of them are nothing unusual. Its reference kernels
# spread by 0.1 % between processes. Beyond 3 % the times would pass for a regression.
_DRIFT = 0.03
# CUPTI needs some milliseconds before it can be detached, and as many to be gone.
_DETACHING_CALLS = 10
_BETWEEN_CALLS_SECONDS = 0.01


class CudaDevice(Device):
    """The current CUDA device of this process."""

    activities: tuple[ProfilerActivity, ...] = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
    timers: tuple[Timer, ...] = (Timer.DEVICE, Timer.END_TO_END, Timer.HOST)
    table_sort_key = "self_cuda_time_total"
    warm_up_calls = 3  # CUDA graphs record on the second call and replay from the third
    most_replicates: int | None = None
    # After thirty calls of a large MLP more an H200 is at its power cap, and slower for half a second: docs/measuring.md.
    most_busy_seconds = 0.01
    _cycles_per_us = 2000.0  # GPUs since Ampere run at 1.4 to 2.6 GHz: a hold need not be exact

    def __init__(self) -> None:
        # Else CUPTI stays attached after the first profiler session and slows every later launch in this process:
        # 15 us become 19 for a linear's dispatch, and its noise doubles (docs/measuring.md).
        # Before CUDA 12.6 attaching it again crashes with CUDA graphs (torch/profiler/profiler.py).
        if torch.version.cuda and tuple(map(int, torch.version.cuda.split("."))) >= (12, 6):
            os.environ.setdefault("TEARDOWN_CUPTI", "1")
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._properties = torch.cuda.get_device_properties(self.torch_device)
        uuid = str(self._properties.uuid)
        self.gpu: str | None = digest(uuid)
        self.tolerated_drift = _DRIFT * uncertainty(self._properties.name)
        self.monitor = Monitor.open(uuid)
        self.controls = control_pair()
        self.host = HostSpeed(_launches(self.torch_device), wait=self.synchronize)
        self.cache_bytes = int(self._properties.L2_cache_size)
        self._release_kept_lines = _kept_lines_release()
        self._flush_buffer = torch.empty(_FLUSH_FACTOR * self.cache_bytes, dtype=torch.int8, device=self.torch_device)
        if os.environ.get("TEARDOWN_CUPTI") == "1":
            atexit.unregister(_let_cupti_detach)  # once for all devices of a process
            atexit.register(_let_cupti_detach)

    def check(self, workload: Workload) -> None:
        if workload.dtype == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise WorkloadUnavailable(
                f"{self._properties.name} has no bf16",
                expected="compute capability 8.0 or newer",
                next_command="pytest perf --perf-matrix full   (adds fp16 and fp32)",
            )

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def flush_cache(self) -> None:
        self._release_kept_lines()
        self._flush_buffer.zero_()

    def hold(self, microseconds: float) -> None:
        # Counts clock cycles on the device. At a lower clock it takes longer, which does no harm.
        torch.cuda._sleep(round(microseconds * self._cycles_per_us))  # type: ignore[no-untyped-call]

    def lost(self) -> bool:
        try:
            torch.cuda.synchronize(self.torch_device)
        except RuntimeError:  # an error of CUDA stays for the life of the process
            return True
        return False

    def executions(self, window: Window) -> list[Execution]:
        return [
            Execution(identity_of(launch), launch.record.duration_us, launch.op.external_id if launch.op else None)
            for launch in window.launches
        ]

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def peak_allocated_bytes(self, call: Callable[[], object]) -> int | None:
        self.synchronize()
        self.forget_peak()
        before = torch.cuda.memory_allocated(self.torch_device)
        result = call()
        self.synchronize()
        peak = torch.cuda.max_memory_allocated(self.torch_device)
        del result
        return peak - before

    def fingerprint(self) -> Fingerprint:
        properties = self._properties
        return Fingerprint(
            device=properties.name,
            arch=_arch(properties),
            sm_count=properties.multi_processor_count,
            memory_bytes=properties.total_memory,
            power_limit_watts=self.monitor.power_limit_watts,
            mig=self.monitor.mig,
            driver=self.monitor.driver,
            cuda=torch.version.cuda,
            cudnn=_cudnn_version(),
            cudnn_tf32=bool(torch.backends.cudnn.allow_tf32),
            **software(),
        )


def _kept_lines_release() -> Callable[[], object]:
    """Return the call of CUDA's driver after which no line of the L2 has priority over others. It takes 5 us of the host.

    Kernels of Inductor ask the L2 to keep lines (`evict_last`). Such lines survive three times the cache of other data, and
    made the next workload on the same addresses faster by 7 to 12 % (docs/design/measuring.md).
    """
    try:
        return ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache  # type: ignore[no-any-return]
    except (OSError, AttributeError):  # ROCm, or a driver before CUDA 11
        return lambda: None


def _arch(properties: Any) -> str:
    if torch.version.hip is not None:  # a MI250X has compute capability 9.0 there, as a H100 has
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def _cudnn_version() -> str | None:
    version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return None if version is None else str(version)


def _let_cupti_detach() -> None:
    """Make the CUDA calls without which a process whose last ones were profiled hangs for ever when it ends.

    A session leaves detaching CUPTI to a thread of its own, and that waits for the end of the next call of CUDA's runtime.
    If none comes, the destructor of what the thread waits on waits for the thread (libkineto,
    `CuptiActivityApi::teardownContext`).
    """
    for _ in range(_DETACHING_CALLS):
        with suppress(RuntimeError):  # of a GPU that no longer answers: the call has ended all the same
            torch.cuda.synchronize()
        time.sleep(_BETWEEN_CALLS_SECONDS)


def _launches(device: torch.device) -> Callable[[], None]:
    """Return the control of a host clock on CUDA: a few launches of a kernel that does nothing much.

    Launches, because they follow the dispatch of real workloads: at equal control it spreads by 0.9 to 1.5 % between
    processes on one H200 (docs/measuring.md); with ten `tensor.view` for a control 9 to 10 % were left.
    """
    tensor = torch.zeros(64, device=device)

    def dispatch() -> None:
        with torch.no_grad():
            for _ in range(3):
                tensor.add_(1)

    return dispatch


# -- the reference kernels: what moves them is the machine, and not the code ------------------------------------------

_COPIED = (64, 1024, 1024)  # 128 MiB in fp16: twice the L2 of the largest GPUs there are
_GEMM = (4096, 4096, 4096)  # rows, in, out: bound by the tensor cores


class _Copy(nn.Module):
    """Reads and writes every byte once. A `clone` would be a memcpy, for which the profiler has no kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg()


class _Gemm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_GEMM[1], _GEMM[2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def control_pair() -> tuple[Workload, ...]:
    """Workloads of our own: `copy` is bound by memory, `gemm` by arithmetic. fp16, which every GPU has."""
    return (
        Workload(
            module="copy",
            variant="control",
            build=_Copy,
            inputs=lambda: (torch.randn(_COPIED),),
            shape=_COPIED,
            dtype="fp16",
        ),
        Workload(
            module="gemm",
            variant="control",
            build=_Gemm,
            inputs=lambda: (torch.randn(_GEMM[:2]),),
            shape=_GEMM,
            dtype="fp16",
        ),
    )


def roof(controls: Mapping[str, ControlTime]) -> Roof | None:
    """Return what the pair reached; None if one of it was not measured."""
    if not {"copy", "gemm"} <= set(controls):
        return None
    moved_bytes = 2 * prod(_COPIED) * torch.float16.itemsize
    return Roof(
        memory_gb_per_s=moved_bytes / controls["copy"].device_time_us / 1e3,
        gemm_tflop_per_s=2 * prod(_GEMM) / controls["gemm"].device_time_us / 1e6,
    )
