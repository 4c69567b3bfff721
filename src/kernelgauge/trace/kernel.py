"""What a launch is, beside when it happened: the name, launch configuration and source of its kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from .model import DeviceRecord, Op
from .names import KernelName, Kind, decode, kind_of_words
from .ops import DTYPES, NO_TENSOR, kind_of_op

# Inductor numbers its compiled graphs for the life of the process: `graph_0_`, `graph_1_`. No part of the identity.
_NUMBER = re.compile(r"_\d+$")  # of a kernel in its graph
_GRAPH_NUMBER = re.compile(r"^graph_\d+_")


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

    @property
    def decoded(self) -> KernelName:
        """What the name says: library, kind, dtype, layout, fused ops."""
        return decode(self.name)

    @property
    def shown(self) -> str:
        """Return the name as messages show it: printable and short. Data keep it whole."""
        return decode(self.name).short

    @property
    def is_inductors(self) -> bool:
        """Tell whether Inductor generated it for Triton: each compile chooses the launch configuration anew."""
        return decode(self.name).backend == "inductor-triton"

    @property
    def unnumbered(self) -> str:
        """Return the name without Inductor's number, which counts the kernels of a graph: one more kernel moves those after it."""
        return _NUMBER.sub("", self.name) if decode(self.name).backend.startswith("inductor") else self.name

    @property
    def without_source(self) -> KernelIdentity:
        """Return name and launch configuration: the same kernel of another version of Inductor has another source and number."""
        return msgspec.structs.replace(self, name=self.unnumbered, source_hash=None)


class KernelRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One launch of a call, by its place in launch order.

    Attributes:
        device_time_us: mean over the replicates.
        op: the op that launched it; empty if not known, or where the op itself stands for a kernel.
        inputs: dtype and shape of each tensor that the op was given: ``bf16[8192,768]``. Empty: not known.
        stream: 0 for the default stream, or else that of the first launch of the call; 1 for the next one, and so on.
    """

    identity: KernelIdentity
    device_time_us: float
    op: str = ""
    inputs: tuple[str, ...] = ()
    stream: int = 0


def identity_of(record: DeviceRecord, op: Op | None) -> KernelIdentity:
    """Return the identity of what ran: the autotuner's choice stands on the op that launched it, the rest on the record."""
    # The op's Triton keys belong to the kernel it is named after: a library call under the same id has none.
    is_named = op is not None and op.name == record.name
    chosen = (op.kernel_kwargs, op.num_warps, op.num_stages, op.kernel_hash) if op is not None and is_named else ()
    return _identity(record.name, record.grid, record.block, *chosen)


@lru_cache(maxsize=4096)  # a trace launches the same few kernels a hundred thousand times
def _identity(name: str, *fields: Any) -> KernelIdentity:
    return KernelIdentity(name, decode(name).kind.value, *fields)


def identity_of_op(op: Op) -> KernelIdentity:
    """Return the identity of an op that computes: without a GPU, it is the kernel."""
    name = _GRAPH_NUMBER.sub("", op.name)
    return KernelIdentity(name, _kind_of(name))


def input_texts(shapes: Iterable[Any], types: Iterable[str]) -> tuple[str, ...]:
    """Return dtype and shape of each tensor that an op was given, as `KernelRecord.inputs` has them."""
    pairs = zip(shapes, types, strict=False)
    # A Python number is recorded as a double without dimensions.
    numbers = (*NO_TENSOR, "TensorList")
    tensors = [(shape, kind) for shape, kind in pairs if kind not in numbers and (shape or kind != "double")]
    return tuple(f"{DTYPES.get(kind, kind)}[{','.join(map(str, shape))}]" for shape, kind in tensors)


def with_current_kind(identity: KernelIdentity) -> KernelIdentity:
    """Return an identity that an earlier version stored, with the kind of a name that no rule knew then."""
    kind = _kind_of(identity.name) if identity.kind == Kind.OTHER.value else identity.kind
    return msgspec.structs.replace(identity, kind=kind)


def _kind_of(name: str) -> str:
    """Return the kind of an op of ATen, or of a kernel."""
    return (kind_of_op(name.removeprefix("aten::")) if name.startswith("aten::") else decode(name).kind).value


@lru_cache(maxsize=4096)
def kind_of_launch(identity: KernelIdentity, op: str | None) -> str:
    """Return what a kernel does. Where no rule knows its name, the op that launched it says so, else the name's words."""
    if identity.kind != Kind.OTHER.value:
        return identity.kind
    texts = (op or "", decode(identity.name).short)
    kinds = [kind for text in texts for kind in (_kind_of(text), kind_of_words(text.rpartition("::")[2]).value)]
    return next((kind for kind in kinds if kind != Kind.OTHER.value), identity.kind)


# --- launch configurations: what differs between two, and whether the autotuner chose it -----------------------------

_CHOSEN = ("kernel_kwargs", "num_warps", "num_stages")  # what Inductor's autotuner chooses


def configuration_text(identity: KernelIdentity) -> str:
    """Return the launch configuration: ``grid 24576x1x1 block 128x1x1 XBLOCK=1024 num_warps=4``."""
    fields = (
        ("grid ", identity.grid),
        ("block ", identity.block),
        ("", identity.kernel_kwargs or None),
        ("num_warps=", identity.num_warps),
        ("num_stages=", identity.num_stages),
    )
    return " ".join(f"{label}{_shown(value)}" for label, value in fields if value is not None)


def was_autotuned(before: KernelIdentity, after: KernelIdentity) -> bool:
    """Tell whether two kernels of one source differ in what Inductor's autotuner chooses."""
    known = before.source_hash is not None and before.kernel_kwargs is not None
    moved = any(getattr(before, field) != getattr(after, field) for field in _CHOSEN)
    return known and moved and before.source_hash == after.source_hash


def configuration_change(before: KernelIdentity, after: KernelIdentity) -> str:
    """Return what differs between two kernels of one name, for example ``XBLOCK 1024 -> 512, num_warps 4 -> 8``."""
    old, new = _parse_kwargs(before.kernel_kwargs), _parse_kwargs(after.kernel_kwargs)
    pairs = [(key, old.get(key, "(none)"), new.get(key, "(none)")) for key in dict.fromkeys([*old, *new])]
    # Grid and block follow from the rest where the autotuner's choice is known, and tell it where it is not.
    fields = ("num_warps", "num_stages") if old != new else ("num_warps", "num_stages", "grid", "block")
    pairs += [(field, _shown(getattr(before, field)), _shown(getattr(after, field))) for field in fields]
    return ", ".join(f"{key} {one} -> {other}" for key, one, other in pairs if one != other)


def _parse_kwargs(text: str | None) -> dict[str, str]:
    # "XBLOCK=1024,YBLOCK=16": as Inductor writes it on the op (torch/_inductor/runtime/triton_heuristics.py).
    pairs = (part.partition("=") for part in (text or "").split(",") if part.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _shown(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
