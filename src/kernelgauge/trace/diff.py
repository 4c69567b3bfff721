"""Two launch sequences side by side: which launch of one is which of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Generic, Protocol, TypeVar

from .kernel import KernelIdentity

__all__ = ["Block", "KernelChange", "Timed", "align", "blocks"]

# difflib compares every occurrence of a name with every other: above this many pairs, of two long sequences, the
# k-th launch of a name is taken for the k-th of it on the other side, which takes linear time.
_MOST_PAIRS = 2_000_000


class Timed(Protocol):
    """A launch, with the time that it takes."""

    @property
    def identity(self) -> KernelIdentity: ...

    @property
    def device_time_us(self) -> float: ...


Kernel = TypeVar("Kernel", bound=Timed)


@dataclass(frozen=True)
class KernelChange(Generic[Kernel]):
    """One launch before and after. None: it is not there on that side."""

    before: Kernel | None
    after: Kernel | None

    @property
    def delta_us(self) -> float:
        return (self.after.device_time_us if self.after else 0.0) - (self.before.device_time_us if self.before else 0.0)

    @property
    def same_identity(self) -> bool:
        return bool(self.before and self.after and self.before.identity == self.after.identity)


@dataclass(frozen=True)
class Block(Generic[Kernel]):
    """A stretch of both sequences: the same names on both sides, or names of one side that the other lacks."""

    before: Sequence[Kernel]
    after: Sequence[Kernel]
    same_names: bool


def align(before: Sequence[Kernel], after: Sequence[Kernel]) -> list[KernelChange[Kernel]]:
    """Pair two launch sequences by name, in order; what has no partner stands alone. Deltas sum to the total's."""
    changes: list[KernelChange[Kernel]] = []
    for block in blocks(before, after):
        if block.same_names:
            changes += [KernelChange(old, new) for old, new in zip(block.before, block.after, strict=True)]
        else:
            changes += [KernelChange(old, None) for old in block.before]
            changes += [KernelChange(None, new) for new in block.after]
    return changes


def blocks(before: Sequence[Kernel], after: Sequence[Kernel]) -> Iterator[Block[Kernel]]:
    """The two sequences cut where they begin and cease to be alike, in order."""
    old, new = ([kernel.identity.name for kernel in side] for side in (before, after))
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    if head:
        yield Block(before[:head], after[:head], same_names=True)
    old_end, new_end = len(old) - tail, len(new) - tail
    middle = (before[head:old_end], after[head:new_end])
    if _pairs(old[head:old_end], new[head:new_end]) <= _MOST_PAIRS:
        yield from _in_order(*middle)
    else:
        yield from _by_occurrence(*middle)
    if tail:
        yield Block(before[old_end:], after[new_end:], same_names=True)


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """How many names the two begin with alike."""
    return next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _pairs(old: Sequence[str], new: Sequence[str]) -> int:
    counted = Counter(new)
    return sum(count * counted[name] for name, count in Counter(old).items())


def _in_order(before: Sequence[Kernel], after: Sequence[Kernel]) -> Iterator[Block[Kernel]]:
    old, new = ([kernel.identity.name for kernel in side] for side in (before, after))
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield Block(before[i1:i2], after[j1:j2], same_names=tag == "equal")


def _by_occurrence(before: Sequence[Kernel], after: Sequence[Kernel]) -> Iterator[Block[Kernel]]:
    waiting: dict[str, list[Kernel]] = {}
    for kernel in reversed(after):
        waiting.setdefault(kernel.identity.name, []).append(kernel)
    paired: list[tuple[Kernel, Kernel]] = []
    gone: list[Kernel] = []
    for kernel in before:
        partners = waiting.get(kernel.identity.name)
        if partners:
            paired.append((kernel, partners.pop()))
        else:
            gone.append(kernel)
    left = {id(kernel) for kernels in waiting.values() for kernel in kernels}
    yield Block([old for old, _ in paired], [new for _, new in paired], same_names=True)
    yield Block(gone, [kernel for kernel in after if id(kernel) in left], same_names=False)
