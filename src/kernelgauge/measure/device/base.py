"""The device as the rest of kernelgauge sees it. Another accelerator is one more file beside this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...run import Fingerprint, KernelIdentity, Timer
from ...trace import Window
from ..host import HostSpeed

if TYPE_CHECKING:
    import torch
    from torch.profiler import ProfilerActivity

    from ...workload import Workload

__all__ = ["Device", "Execution"]


@dataclass(frozen=True)
class Execution:
    """One kernel of a window: what ran, and for how many microseconds."""

    identity: KernelIdentity
    duration_us: float


class Device(Protocol):
    """What measuring needs of a device."""

    torch_device: torch.device
    activities: tuple[ProfilerActivity, ...]
    timers: tuple[Timer, ...]  # those that mean something here, end-to-end included
    table_sort_key: str  # for the profiler's own table
    host: HostSpeed

    def check(self, workload: Workload) -> None:
        """Raise `WorkloadUnavailable` if `workload` cannot run here for a reason that is no fault."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def flush_cache(self) -> None:
        """Evict the last-level cache, so that the next call reads its data from memory."""

    def executions(self, window: Window) -> list[Execution]:
        """The kernels of a window, in launch order."""

    def peak_allocated_bytes(self, call: Callable[[], object]) -> int | None:
        """Most memory held at once during `call`, beyond what was held before; None if not observable."""

    def fingerprint(self) -> Fingerprint:
        """The machine and the software."""
