"""Many runs of unchanged code in fresh processes -> one baseline that knows its own noise and its autotuner's choices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..run import Run
from ..trace.kernel import KernelRecord
from .ancestry import Recorded, conditions_of
from .baseline import Baseline, Entry, from_run
from .configuration import Likeness, likeness
from .fingerprint import compare

__all__ = ["calibrated", "entries_of"]


def calibrated(runs: Sequence[Run], *, suite: str, recorded: Recorded | None = None) -> Baseline:
    """The baseline of several runs of one workload, each from a process of its own: one entry for each configuration.

    The conditions that were recorded are those of all the runs together.
    Raises `ValueError` if the runs ran other kernels or counted other things: then nothing about them is noise.
    """
    singles = [from_run(run, suite=suite) for run in runs]
    first = singles[0]
    for single in singles[1:]:
        if single.counts != first.counts:
            raise ValueError(f"the processes counted differently: {first.counts} and {single.counts}")
        comparison = compare(first.fingerprint, single.fingerprint)
        if not comparison.identical:
            raise ValueError(f"the processes ran on different machines or software: {comparison}")
        if likeness(first.entries[0].kernels, single.entries[0].kernels) is Likeness.OTHER_KERNELS:
            raise ValueError("the processes ran different kernels")
    if recorded is not None:
        recorded = msgspec.structs.replace(recorded, conditions=conditions_of(runs))
    return msgspec.structs.replace(first, entries=entries_of(singles), recorded=recorded)


def entries_of(baselines: Sequence[Baseline]) -> tuple[Entry, ...]:
    """Of each launch configuration one with all its processes, the one chosen most often first."""
    groups: list[list[Entry]] = []
    for entry in (entry for baseline in baselines for entry in baseline.entries):
        for group in groups:
            if likeness(group[0].kernels, entry.kernels).same_configuration:
                group.append(entry)
                break
        else:
            groups.append([entry])
    return tuple(sorted(map(_merged, groups), key=lambda entry: entry.draws, reverse=True))


def _merged(group: Sequence[Entry]) -> Entry:
    counts = [len(entry.processes) for entry in group]

    def mean_us(places: Sequence[KernelRecord]) -> float:
        return math.fsum(kernel.device_time_us * n for kernel, n in zip(places, counts, strict=True)) / sum(counts)

    kernels = tuple(
        KernelRecord(places[0].identity, round(mean_us(places), 3))
        for places in zip(*(entry.kernels for entry in group), strict=True)
    )
    processes = tuple(process for entry in group for process in entry.processes)
    return Entry(draws=sum(entry.draws for entry in group), kernels=kernels, processes=processes)
