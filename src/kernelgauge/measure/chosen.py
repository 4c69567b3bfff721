"""Which kernels a workload ran, as far as it takes to notice that a compiler chose others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..trace import KernelIdentity
from ..trace.kernel import configuration_text

__all__ = ["are_alike", "listed", "told_apart", "without"]


def told_apart(identities: Iterable[KernelIdentity]) -> list[str]:
    """Of each kernel the name; of one that Inductor tunes, with what its choice shows in: another one is another kernel."""
    return [
        f"{identity.name} (grid {identity.grid}, block {identity.block})" if identity.is_inductors else identity.name
        for identity in identities
    ]


def are_alike(one: Iterable[KernelIdentity], other: Iterable[KernelIdentity]) -> bool:
    """Whether they are the same kernels, in the same launch configurations and order."""
    return [each.without_source for each in one] == [each.without_source for each in other]


def without(one: Sequence[KernelIdentity], other: Sequence[KernelIdentity]) -> list[KernelIdentity]:
    """Those of the one that the other has not, or not as often; all if nothing but their order differs."""
    left = Counter(each.without_source for each in one) - Counter(each.without_source for each in other)
    return list(left.elements()) or list(one if len(one) == len(other) else ())


def listed(identities: Iterable[KernelIdentity]) -> str:
    """Names and launch configurations, as messages show them."""
    return ", ".join(f"{each.shown} {configuration_text(each)}".rstrip() for each in identities) or "nothing else"
