"""Many runs of unchanged code in fresh processes -> one baseline that knows its own noise and its autotuner's odds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..run import Run
from ..trace.kernel import KernelRecord
from .ancestry import Recorded, conditions_of
from .baseline import Baseline, Entry, from_run
from .configuration import Likeness, likeness

__all__ = ["calibrated", "joined"]


def calibrated(runs: Sequence[Run], *, suite: str, recorded: Recorded | None = None) -> Baseline:
    """The baseline of several runs of one workload, each from a process of its own: one entry for each configuration.

    The conditions that were recorded are those of all the runs together.
    Raises `ValueError` if the runs ran other kernels or counted other things: then nothing about them is noise.
    """
    whole = _together([from_run(run, suite=suite) for run in runs])
    if recorded is not None:
        recorded = msgspec.structs.replace(recorded, conditions=conditions_of(runs))
    return msgspec.structs.replace(whole, recorded=recorded)


def joined(stored: Baseline, new: Baseline) -> Baseline:
    """What both know of one workload: the GPUs of other hosts, or more processes on the same ones.

    Nothing is replaced, so that the ancestors stay what they are. Raises `ValueError` as `calibrated` does.
    """
    whole = _together([stored, new])
    return msgspec.structs.replace(whole, suite=new.suite, recorded=new.recorded)


def _together(baselines: Sequence[Baseline]) -> Baseline:
    """The first one with the entries of all: of each configuration one, the one drawn most often first."""
    first = baselines[0]
    for other in baselines[1:]:
        if other.counts != first.counts:
            raise ValueError(f"the processes counted differently: {first.counts} and {other.counts}")
        if other.fingerprint != first.fingerprint:
            raise ValueError("the processes ran on different machines or software")
        if likeness(first.entries[0].kernels, other.entries[0].kernels) is Likeness.OTHER_KERNELS:
            raise ValueError("the processes ran different kernels")
    groups: list[list[Entry]] = []
    for entry in (entry for baseline in baselines for entry in baseline.entries):
        for group in groups:
            if likeness(group[0].kernels, entry.kernels).same_configuration:
                group.append(entry)
                break
        else:
            groups.append([entry])
    entries = sorted(map(_merged, groups), key=lambda entry: entry.draws, reverse=True)
    return msgspec.structs.replace(first, entries=tuple(entries))


def _merged(group: Sequence[Entry]) -> Entry:
    draws = [entry.draws for entry in group]

    def mean_us(places: Sequence[KernelRecord]) -> float:
        return math.fsum(kernel.device_time_us * count for kernel, count in zip(places, draws, strict=True)) / sum(
            draws
        )

    kernels = tuple(
        KernelRecord(places[0].identity, round(mean_us(places), 3))
        for places in zip(*(entry.kernels for entry in group), strict=True)
    )
    processes = tuple(process for entry in group for process in entry.processes)
    return Entry(draws=sum(draws), kernels=kernels, processes=processes)
