"""How much two launch sequences are alike."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from ..trace.kernel import KernelRecord, was_autotuned

__all__ = ["Likeness", "is_other_choice", "likeness"]


class Likeness(IntEnum):
    """How much two launch sequences are alike. More is more."""

    OTHER_KERNELS = 0
    SAME_NAMES = 1
    SAME_CONFIGURATION = 2  # from another source: another version of Inductor, say
    IDENTICAL = 3

    @property
    def same_configuration(self) -> bool:
        return self >= Likeness.SAME_CONFIGURATION


def likeness(one: Sequence[KernelRecord], other: Sequence[KernelRecord]) -> Likeness:
    """Compare the identities of two launch sequences, in order."""
    before, after = [kernel.identity for kernel in one], [kernel.identity for kernel in other]
    if before == after:
        return Likeness.IDENTICAL
    if [identity.without_source for identity in before] == [identity.without_source for identity in after]:
        return Likeness.SAME_CONFIGURATION
    if [identity.name for identity in before] == [identity.name for identity in after]:
        return Likeness.SAME_NAMES
    return Likeness.OTHER_KERNELS


def is_other_choice(one: Sequence[KernelRecord], other: Sequence[KernelRecord]) -> bool:
    """Whether two sequences of the same names differ in nothing but what Inductor's autotuner chose."""
    pairs = [(before.identity, after.identity) for before, after in zip(one, other, strict=True)]
    return all(before.without_source == after.without_source or was_autotuned(before, after) for before, after in pairs)
