"""Which kernels carry a change, and why, as far as their identities tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..trace.configuration import configuration_change, was_autotuned
from ..trace.diff import KernelChange, align
from ..trace.kernel import KernelIdentity, KernelRecord

__all__ = ["explain"]

# A kernel is named as a cause if it carries this share of the total change; the others are summed up in one line.
_NAMED_SHARE = 0.10
_NAMED_AT_LEAST = 3
# Below this, kernels of the same identity are called unchanged: the spread of one kernel's median between processes.
_UNCHANGED = 0.01


def explain(before: Sequence[KernelRecord], after: Sequence[KernelRecord]) -> tuple[list[str], str]:
    """(one text for each kernel that carries the change, one line about the rest)."""
    changes = align(before, after)
    total = sum(abs(change.delta_us) for change in changes)
    by_weight = sorted(changes, key=lambda change: -abs(change.delta_us))
    named = [
        change
        for change in by_weight
        if not change.same_identity or (total > 0 and abs(change.delta_us) >= _NAMED_SHARE * total)
    ]
    if not named and total > 0:  # spread evenly over many kernels: none carries a tenth
        named = by_weight[:_NAMED_AT_LEAST]
    rest = [change for change in by_weight if not any(change is one for one in named)]  # two launches may be equal
    return [_describe(change) for change in named], _describe_rest(rest)


def _describe(change: KernelChange[KernelRecord]) -> str:
    old, new = change.before, change.after
    if old is None or new is None:
        one, what = (new, "new") if old is None else (old, "gone")
        return f"{one.identity.shown}  {what}: {one.device_time_us:.1f} us" if one else ""
    head = f"{new.identity.shown}  {old.device_time_us:.1f} -> {new.device_time_us:.1f} us ({change.delta_us:+.2f})"
    if change.same_identity:
        return f"{head}: same kernel, same launch configuration, {'slower' if change.delta_us > 0 else 'faster'}"
    source = _describe_source(old.identity, new.identity)
    configuration = configuration_change(old.identity, new.identity)
    if not configuration:
        return f"{head}: {source}same launch configuration"
    cause = ": Inductor's autotuner chose differently" if was_autotuned(old.identity, new.identity) else ""
    return f"{head}: {source}other launch configuration:\n{configuration}{cause}"


def _describe_source(before: KernelIdentity, after: KernelIdentity) -> str:
    if before.source_hash is None or after.source_hash is None:
        return ""
    if before.source_hash == after.source_hash:
        return f"same source ({after.source_hash[:8]}), "
    return f"other source ({before.source_hash[:8]} -> {after.source_hash[:8]}), "


def _describe_rest(rest: Sequence[KernelChange[KernelRecord]]) -> str:
    if not rest:
        return ""
    before = sum(change.before.device_time_us for change in rest if change.before)
    delta = sum(change.delta_us for change in rest)
    kinds = Counter(change.after.identity.kind for change in rest if change.after)
    counted = ", ".join(_counted(count, kind) for kind, count in kinds.items())
    share = delta / before if before else 0.0
    if abs(share) < _UNCHANGED:
        return f"{counted} unchanged (same identity, {100 * share:+.1f} %, {delta:+.2f} us)"
    return f"{counted} of the same identity, {100 * share:+.1f} % together ({delta:+.2f} us)"


def _counted(count: int, kind: str) -> str:
    if kind == "gemm":
        return f"{count} GEMM{'s' if count > 1 else ''}"
    return f"{count} {kind} kernel{'s' if count > 1 else ''}"
