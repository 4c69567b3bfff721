"""What two calibrations of one workload know together: GPUs of several hosts in one baseline."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..run import Timer
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
    differs = [*exact_details(stored, new), *_moved(stored, new, comparisons)]
    if differs:
        raise ValueError(", ".join(dict.fromkeys(differs)))
    return msgspec.structs.replace(stored, entries=entries_of([stored, new]), recorded=new.recorded)


def _moved(stored: Baseline, new: Baseline, comparisons: int) -> Iterator[str]:
    """Times that are not those of the stored processes. On another GPU, maybe of another host, those of the host may differ."""
    processes = sum(len(entry.processes) for entry in new.entries)
    for entry in new.entries:
        known, likeness = stored.entry_like(entry.kernels)
        if likeness is Likeness.SAME_CONFIGURATION:
            yield "generated source of its kernels"
        if likeness is not Likeness.IDENTICAL:
            continue
        gpus = {process.gpu for process in known.processes}
        for process in entry.processes:
            single = msgspec.structs.replace(entry, draws=1, processes=(process,))
            alone = msgspec.structs.replace(new, entries=(single,))
            for change in time_changes(stored, alone, comparisons=comparisons * processes):
                if change.moved and (change.timer is Timer.DEVICE or process.gpu in gpus):
                    yield time_detail(change)
