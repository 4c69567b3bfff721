"""What was observed: one workload, measured once, on one machine. Plain data, the same in memory and in JSON."""

from __future__ import annotations

from enum import Enum
from statistics import median

import msgspec

__all__ = ["Counts", "Fingerprint", "KernelIdentity", "KernelRecord", "OpRecord", "Run", "Sample", "Timer"]


class Timer(str, Enum):
    """The three times of a workload. They are measured and judged apart: each hides what another shows."""

    DEVICE = "device_time"  # sum of kernel durations of one call, L2 flushed before it
    END_TO_END = "end_to_end"  # host time from call to synchronised result, L2 flushed before it
    HOST = "host_dispatch"  # host time until the call returns, on an idle device

    @property
    def label(self) -> str:
        return self.value.replace("_", " ")


class KernelIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes two launches the same kernel: its name, its launch configuration and its source.

    The name alone does not: Inductor's autotuner runs one fused kernel in 38 or 55 us on an H200, by its choice of
    block size. The source hash is that of Inductor's generated file, where the trace has it.
    """

    name: str
    kind: str
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    kernel_kwargs: str | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    source_hash: str | None = None


class KernelRecord(msgspec.Struct, frozen=True):
    """One launch of a call, by its place in launch order. `device_time_us`: median over all iterations."""

    identity: KernelIdentity
    device_time_us: float


class Counts(msgspec.Struct, frozen=True):
    """What is exact, per call: gated without tolerance. None: not observable on this device."""

    launches: int
    kernels: int  # distinct identities among the launches
    memsets: int
    copies: int
    synchronizations: int
    dispatcher_ops: int
    graph_breaks: int
    recompiles: int  # over the whole measurement, fresh allocations included
    peak_allocated_bytes: int | None


class Sample(msgspec.Struct, frozen=True):
    """Durations of one timer: one median for each replicate (fresh allocations), in microseconds."""

    replicate_medians_us: tuple[float, ...]
    iterations: int  # in each replicate

    def __post_init__(self) -> None:
        if not self.replicate_medians_us:
            raise ValueError("a sample has at least one replicate")
        if not all(0 < value < float("inf") for value in self.replicate_medians_us):  # NaN fails too
            raise ValueError(f"durations are positive and finite, got {self.replicate_medians_us}")

    @property
    def median_us(self) -> float:
        return median(self.replicate_medians_us)


class Fingerprint(msgspec.Struct, frozen=True):
    """The machine and the software that a measurement holds for. None: not known, or not there."""

    device: str  # "NVIDIA H200", or the CPU's name
    arch: str  # "sm_90", or "cpu"
    sm_count: int | None
    memory_bytes: int | None
    power_limit_watts: float | None
    mig: bool | None
    driver: str | None
    cuda: str | None
    torch: str
    triton: str | None
    liger_kernel: str | None
    python: str


class OpRecord(msgspec.Struct, frozen=True):
    """An op of the host lane, in order of start."""

    name: str
    input_shapes: tuple[object, ...] = ()


class Run(msgspec.Struct, frozen=True):
    """One workload measured once. `samples` lacks the timers that this device or session has not measured."""

    workload: str
    fingerprint: Fingerprint
    kernels: tuple[KernelRecord, ...]  # in launch order
    counts: Counts
    samples: dict[Timer, Sample]
    # What the claims of a suite look at, and a baseline does not keep.
    ops: tuple[OpRecord, ...] = ()
    launch_apis: tuple[str, ...] = ()  # the host call behind each launch, in launch order
    occupancy_queries: int = 0
    metadata_ops_that_launched: tuple[str, ...] = ()
    steps: int = 0  # profiler steps in the trace

    def sample(self, timer: Timer) -> Sample | None:
        return self.samples.get(timer)

    def op_names(self) -> list[str]:
        return [op.name for op in self.ops]

    def kernel_names(self) -> list[str]:
        return [kernel.identity.name for kernel in self.kernels]

    def kinds(self) -> list[str]:
        return [kernel.identity.kind for kernel in self.kernels]
