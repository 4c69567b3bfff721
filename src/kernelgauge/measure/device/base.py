"""The device as the rest of kernelgauge sees it. Another accelerator is one more file beside this one."""

# ruff: noqa: B027 (a method that does nothing is the right one for some devices)

from __future__ import annotations

import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, TypedDict

import torch

from ...run import Fingerprint, Timer
from ...trace import KernelIdentity, Window
from ..nvml import Monitor

if TYPE_CHECKING:
    from torch.profiler import ProfilerActivity

    from ...workload import Workload

__all__ = ["Device", "Execution", "HostSpeed", "cpu_name", "software"]


@dataclass(frozen=True)
class Execution:
    """One kernel of a window: what ran, and for how many microseconds. `external_id`: of the op that launched it."""

    identity: KernelIdentity
    duration_us: float
    external_id: int | None = None


# -- how fast the host is right now -----------------------------------------------------------------------------------

# A virtual machine's cores change speed by a factor of two for tenths of a second to many seconds, whatever runs on them. Another
# machine's work on the sibling hyperthread is one reason. A fixed piece of work, the host reference, is timed beside each
# measurement and shows it. It alone decides what is discarded, never the time that is being measured.

_SAMPLES = 10
# Fast processes on one machine spread by 25 %, the slow mode starts at 60 % more.
_SLOW = 1.3
_PAUSE_SECONDS = 0.05


class HostSpeed:
    """The control, and the fastest that it was so far in this process.

    Args:
        work: what is timed. It does not depend on any workload.
        wait: makes the device idle before each, if there is one.
        patience_seconds: for all waiting of the session; what is left of it.
    """

    def __init__(
        self, work: Callable[[], None], *, wait: Callable[[], None] = lambda: None, patience_seconds: float = 3.0
    ) -> None:
        self.fastest_us = float("inf")
        self._work = work
        self._wait = wait
        self.patience_seconds = patience_seconds

    def once_us(self) -> float:
        """One control, in microseconds."""
        self._wait()
        start = time.perf_counter_ns()
        self._work()
        return (time.perf_counter_ns() - start) / 1000

    def round_trip_us(self) -> float:
        """One control and the wait for its end, in microseconds: what a latency has of the host."""
        self._wait()
        start = time.perf_counter_ns()
        self._work()
        self._wait()
        return (time.perf_counter_ns() - start) / 1000

    def control_us(self) -> float:
        """Lower decile of a few controls, in microseconds."""
        lowest = quantiles([self.once_us() for _ in range(_SAMPLES)], n=10, method="inclusive")[0]
        self.fastest_us = min(self.fastest_us, lowest)
        return lowest

    def wait_until_fast(self) -> None:
        """Wait while the host is slow, as long as the session's patience lasts."""
        while self.control_us() > _SLOW * self.fastest_us and self.patience_seconds > 0:
            self.patience_seconds -= _PAUSE_SECONDS
            time.sleep(_PAUSE_SECONDS)


# -- the device -------------------------------------------------------------------------------------------------------


class Device(ABC):
    """What measuring needs of a device. A subclass leaves out the methods that mean nothing there."""

    torch_device: torch.device
    activities: tuple[ProfilerActivity, ...]
    timers: tuple[Timer, ...]  # those that mean something here, end-to-end included
    table_sort_key: str  # for the profiler's own table
    host: HostSpeed
    monitor: Monitor  # NVML, or why there is none
    gpu: str | None  # which one of its kind: a digest of its UUID
    controls: tuple[Workload, ...]  # what the machine is measured by, beside the workloads
    warm_up_calls: int  # before anything is timed or profiled
    most_replicates: int | None  # where more of them would not sharpen what a time is for; None: no limit
    most_busy_seconds: float  # in a row, by the calls of one timer: longer slows what follows
    tolerated_drift: float  # of its clock and of the reference kernels within one run, as a fraction

    def check(self, workload: Workload) -> None:
        """Raise `WorkloadUnavailable` if `workload` cannot run here for a reason that is no fault."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def flush_cache(self) -> None:
        """Evict the last-level cache, so that the next call reads its data from memory; asynchronous on a GPU."""

    def hold(self, microseconds: float) -> None:
        """Keep the device busy with nothing for that long; what is launched meanwhile then runs without a gap."""

    def lost(self) -> bool:
        """Whether the device no longer answers. It does not recover in this process."""
        return False

    @abstractmethod
    def executions(self, window: Window) -> list[Execution]:
        """Return the kernels of a window, in launch order."""

    def forget_peak(self) -> None:
        """Begin the peak of what is allocated anew, as in a new process.

        What Inductor's autotuner times of a kernel that writes in place depends on how far below its peak the process is
        (docs/autotuner.md): its choice would depend on what was measured before.
        """

    def peak_allocated_bytes(self, call: Callable[[], object]) -> int | None:  # noqa: ARG002
        """Most memory held at once during `call`, beyond what was held before; None if not observable."""
        return None

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Describe the machine and the software."""


# -- the software, and the processor's name ------------------------------------------------------------------------------


class Software(TypedDict):
    torch: str
    triton: str | None
    liger_kernel: str | None
    python: str
    fp32_matmul: str


def software() -> Software:
    """Return the versions and settings that decide which kernels run."""
    return {
        "torch": str(torch.__version__),  # a TorchVersion, which is no plain string
        "triton": _version("triton"),
        "liger_kernel": _version("liger-kernel"),
        "python": ".".join(platform.python_version_tuple()[:2]),  # a patch release changes no kernel
        "fp32_matmul": torch.get_float32_matmul_precision(),
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown"
