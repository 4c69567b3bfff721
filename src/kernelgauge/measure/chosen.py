"""Which kernels a workload ran, as far as it takes to notice that a compiler chose others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from ..trace import KernelIdentity, decode
from ..trace.configuration import configuration_text

__all__ = ["are_alike", "is_tuned", "listed", "told_apart", "without"]


def is_tuned(identity: KernelIdentity) -> bool:
    """Whether it is a kernel of Inductor, whose autotuner chooses its launch configuration."""
    return decode(identity.name).backend == "inductor-triton"


def told_apart(identities: Iterable[KernelIdentity]) -> list[str]:
    """Of each kernel the name; of one that Inductor tunes, with what its choice shows in: another one is another kernel."""
    return [
        f"{identity.name} (grid {identity.grid}, block {identity.block})" if is_tuned(identity) else identity.name
        for identity in identities
    ]


def are_alike(one: Iterable[KernelIdentity], other: Iterable[KernelIdentity]) -> bool:
    """Whether they are the same kernels, in the same launch configurations and order."""
    return list(map(_without_source, one)) == list(map(_without_source, other))


def without(one: Sequence[KernelIdentity], other: Sequence[KernelIdentity]) -> list[KernelIdentity]:
    """Those of the one that the other has not, or not as often; all if nothing but their order differs."""
    left = Counter(map(_without_source, one)) - Counter(map(_without_source, other))
    return list(left.elements()) or list(one if len(one) == len(other) else ())


def listed(identities: Iterable[KernelIdentity]) -> str:
    """Names and launch configurations, as messages show them."""
    return ", ".join(f"{each.shown} {configuration_text(each)}".rstrip() for each in identities) or "nothing else"


def _without_source(identity: KernelIdentity) -> KernelIdentity:
    return msgspec.structs.replace(identity, source_hash=None)
