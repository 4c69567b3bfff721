"""What two calibrations of one workload know together: GPUs of several hosts in one baseline."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..run import Timer
from ..trace.kernel import KernelIdentity
from .ancestry import Recorded
from .baseline import Baseline
from .calibration import entries_of
from .configuration import Likeness
from .update import exact_details, time_changes, time_detail

__all__ = ["joined"]


def joined(stored: Baseline, new: Baseline, *, comparisons: int) -> Baseline:
    """`stored` with the processes of `new`. Nothing is replaced, so that the ancestors stay what they are.

    Args:
        comparisons: how many a run of the suite makes: what moved is found by the rule that judges it.

    Raises `ValueError` with what differs: to join it would make noise of a change.
    """
    differs = [*exact_details(stored, new), *_other_source(stored, new), *_moved(stored, new, comparisons)]
    if differs:
        raise ValueError(", ".join(dict.fromkeys(differs)))
    return msgspec.structs.replace(
        stored, entries=entries_of([stored, new]), recorded=_later(stored.recorded, new.recorded)
    )


def _later(one: Recorded | None, other: Recorded | None) -> Recorded | None:
    known = [each for each in (one, other) if each is not None]
    return max(known, key=lambda each: each.at, default=None)


def _other_source(stored: Baseline, new: Baseline) -> Iterator[str]:
    """A configuration that was not chosen before is of the same source, or of other code."""
    known = {(each.name, each.source_hash) for each in _identities(stored)}
    names = {name for name, source in known if source}
    for each in _identities(new):
        if each.source_hash and each.name in names and (each.name, each.source_hash) not in known:
            yield f"generated source of {each.name}"


def _identities(baseline: Baseline) -> Iterator[KernelIdentity]:
    return (kernel.identity for entry in baseline.entries for kernel in entry.kernels)


def _moved(stored: Baseline, new: Baseline, comparisons: int) -> Iterator[str]:
    """Yield the times that differ from those of the stored processes. Another launch configuration may take any time."""
    processes = sum(len(entry.processes) for entry in new.entries)
    for entry in new.entries:
        _, likeness = stored.entry_like(entry.kernels)
        for process in entry.processes:
            single = msgspec.structs.replace(entry, draws=1, processes=(process,))
            alone = msgspec.structs.replace(new, entries=(single,))
            for change in time_changes(stored, alone, comparisons=comparisons * processes):
                same = change.timer is Timer.HOST or likeness is Likeness.IDENTICAL
                if change.moved and same:
                    yield time_detail(change)
                elif change.decision is not None and change.decision.machine:
                    yield "the GPU's own speed (its reference kernels moved)"
                elif change.decision is not None and change.decision.scattered and change.undecided:
                    yield f"{change.timer.label}, measured on a disturbed machine"
