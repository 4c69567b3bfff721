"""Which kernels a workload ran, as far as it takes to notice that a compiler chose others."""

from __future__ import annotations

from collections.abc import Iterable

from ..trace import KernelIdentity, decode

__all__ = ["are_chosen", "told_apart"]


def told_apart(identities: Iterable[KernelIdentity]) -> list[str]:
    """Of each kernel the name; of one that Inductor tunes, with what its choice shows in: another one is another kernel."""
    return [
        f"{identity.name} (grid {identity.grid}, block {identity.block})" if _is_tuned(identity) else identity.name
        for identity in identities
    ]


def are_chosen(identities: Iterable[KernelIdentity]) -> bool:
    """Whether another compile of the same code may run others."""
    return any(map(_is_tuned, identities))


def _is_tuned(identity: KernelIdentity) -> bool:
    return decode(identity.name).backend == "inductor-triton"
