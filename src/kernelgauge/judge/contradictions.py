"""What the types of a baseline allow and no measurement can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ..run import is_duration
from .ancestry import ancestry_contradictions
from .observation import Observation

if TYPE_CHECKING:
    from .baseline import Baseline, Entry

__all__ = ["contradictions"]

_LARGEST_SPREAD = 100.0  # of logarithms: between the shortest duration and the longest there are 35
_LARGEST_COUNT = 10**9  # nobody makes as many; integers that are too large to be floats would end the judging


def contradictions(baseline: Baseline) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it)."""
    counts = msgspec.structs.asdict(baseline.counts)
    yield from ((f"counts.{name}", f"negative: {value}") for name, value in counts.items() if value and value < 0)
    if not baseline.entries:
        yield "entries", "a baseline has at least one"
    names = [[kernel.identity.name for kernel in entry.kernels] for entry in baseline.entries]
    for index, entry in enumerate(baseline.entries):
        if names[index] != names[0]:
            yield (
                f"entries[{index}].kernels",
                "other kernels than in the first entry: no configuration of the same ones",
            )
        if baseline.counts.launches != len(entry.kernels):
            yield "counts.launches", f"{baseline.counts.launches}, but there are {len(entry.kernels)} kernels"
        if baseline.counts.kernels != len(set(names[index])):
            yield "counts.kernels", f"{baseline.counts.kernels}, but the kernels have {len(set(names[index]))} names"
        yield from ((f"entries[{index}].{field}", wrong) for field, wrong in _entry_contradictions(entry))
    yield from ancestry_contradictions(baseline.ancestors)


def _entry_contradictions(entry: Entry) -> Iterator[tuple[str, str]]:
    if not 1 <= entry.draws <= _LARGEST_COUNT:
        yield "draws", f"expected 1 to {_LARGEST_COUNT}, got {entry.draws}"
    if not entry.processes:
        yield "processes", "an entry has at least one"
    for index, kernel in enumerate(entry.kernels):
        if kernel.device_time_us != 0 and not is_duration(kernel.device_time_us):  # 0: rounded
            yield f"kernels[{index}].device_time_us", f"no duration: {kernel.device_time_us}"
    for index, process in enumerate(entry.processes):
        for timer, observation in process.timers.items():
            for field, wrong in _observation_contradictions(observation):
                yield f"processes[{index}].timers.{timer.value}.{field}", wrong
        for name, control in process.controls.items():
            if not is_duration(control.device_time_us):
                yield f"processes[{index}].controls.{name}.device_time_us", f"no duration: {control.device_time_us}"


def _observation_contradictions(observation: Observation) -> Iterator[tuple[str, str]]:
    if not is_duration(observation.mean_us):
        yield "mean_us", f"no duration: {observation.mean_us}"
    for name in ("replicates", "iterations"):
        count = getattr(observation, name)
        if not 1 <= count <= _LARGEST_COUNT:
            yield name, f"expected 1 to {_LARGEST_COUNT}, got {count}"
    if observation.control_us is not None and not is_duration(observation.control_us):
        yield "control_us", f"no duration: {observation.control_us}"
    if (observation.spread is None) != (observation.replicates < 2):
        yield "spread", f"{observation.spread} of {observation.replicates} replicates"
    elif observation.spread is not None and not 0 <= observation.spread <= _LARGEST_SPREAD:
        yield "spread", f"no standard deviation: {observation.spread}"
