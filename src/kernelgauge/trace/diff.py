"""Two launch sequences side by side: which launch of one is which of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from .kernel import KernelRecord

__all__ = ["KernelChange", "align"]


@dataclass(frozen=True)
class KernelChange:
    """One launch before and after. None: it is not there on that side."""

    before: KernelRecord | None
    after: KernelRecord | None

    @property
    def delta_us(self) -> float:
        return (self.after.device_time_us if self.after else 0.0) - (self.before.device_time_us if self.before else 0.0)

    @property
    def same_identity(self) -> bool:
        return bool(self.before and self.after and self.before.identity == self.after.identity)


def align(before: Sequence[KernelRecord], after: Sequence[KernelRecord]) -> list[KernelChange]:
    """Pair two launch sequences by name, in order; what has no partner stands alone. Deltas sum to the total's."""
    changes: list[KernelChange] = []
    matcher = SequenceMatcher(None, [k.identity.name for k in before], [k.identity.name for k in after], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            changes += [KernelChange(old, new) for old, new in zip(before[i1:i2], after[j1:j2], strict=True)]
        else:
            changes += [KernelChange(old, None) for old in before[i1:i2]]
            changes += [KernelChange(None, new) for new in after[j1:j2]]
    return changes
