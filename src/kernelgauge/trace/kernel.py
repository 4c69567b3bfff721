"""What a launch is, beside when it happened: its kernel's name, its launch configuration and its source."""

from __future__ import annotations

import msgspec

from .model import Launch
from .names import decode

__all__ = ["KernelIdentity", "KernelRecord", "identity_of"]


class KernelIdentity(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
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

    @property
    def shown(self) -> str:
        """The name as messages show it: printable and short. Data keep it whole."""
        return decode(self.name).short


class KernelRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One launch of a call, by its place in launch order. `device_time_us`: mean over the replicates."""

    identity: KernelIdentity
    device_time_us: float


def identity_of(launch: Launch) -> KernelIdentity:
    """The identity of what was launched: what autotuning chose stands on the op, the rest on the device record."""
    record, op = launch.record, launch.op
    # The op's Triton keys belong to the kernel it is named after: a library call under the same id has none.
    tuned = op if op is not None and op.name == record.name else None
    return KernelIdentity(
        name=record.name,
        kind=decode(record.name).kind.value,
        grid=record.grid,
        block=record.block,
        kernel_kwargs=tuned.kernel_kwargs if tuned else None,
        num_warps=tuned.num_warps if tuned else None,
        num_stages=tuned.num_stages if tuned else None,
        source_hash=tuned.kernel_hash if tuned else None,
    )
