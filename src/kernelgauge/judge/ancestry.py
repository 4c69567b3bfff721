"""Where a baseline comes from: what it was recorded with, and those that it replaced, back to the first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..run import Run, Timer, is_duration
from ..trace.kernel import KernelRecord
from .fingerprint import compare

if TYPE_CHECKING:
    from .baseline import Baseline, Entry

__all__ = [
    "Ancestor",
    "Recorded",
    "RecordedConditions",
    "ancestor_of",
    "ancestry_contradictions",
    "conditions_of",
    "descended",
    "digest",
]

_MOST_LATER_ANCESTORS = 99  # beside the first: a line of a file each
_DECIMALS = 3  # of microseconds, as all times of a baseline

_Number = TypeVar("_Number", int, float)


class RecordedConditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the GPU went through while the baseline was measured, over all its processes. None: not known."""

    lowest_sm_clock_mhz: int | None = None
    max_temperature_c: int | None = None
    max_power_watts: float | None = None
    throttled_ms: float | None = None  # by all causes together
    other_processes: int | None = None  # most at once


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the last acceptance of a baseline came about.

    Attributes:
        at: when the run began that was accepted: UTC, ISO 8601.
        commit: of the working tree that was measured, with ``+`` behind it if that had changes; None: not known.
        kernelgauge: its version.
        conditions: None: nobody watched.
    """

    at: str
    commit: str | None
    kernelgauge: str
    conditions: RecordedConditions | None = None


class Ancestor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A baseline that was accepted once and replaced since: as much of it as tells slow drift. None: not known.

    Attributes:
        at, commit: see `Recorded`.
        launches: of one call.
        configuration: digest of the names and launch configurations of its kernels.
        times_us: mean of each timer over the processes of that configuration, in microseconds.
    """

    at: str | None
    commit: str | None
    driver: str | None
    cuda: str | None
    torch: str
    triton: str | None
    liger_kernel: str | None
    launches: int
    configuration: str
    times_us: dict[Timer, float]


def digest(kernels: Sequence[KernelRecord]) -> str:
    """Of the names and launch configurations, in order, without the generated source."""
    identities = [kernel.identity.without_source for kernel in kernels]
    return hashlib.sha256(msgspec.json.encode(identities)).hexdigest()[:8]


def ancestor_of(baseline: Baseline, entry: Entry) -> Ancestor:
    """What is kept of a baseline that is replaced: of its configurations, this one."""
    machine, recorded = baseline.fingerprint, baseline.recorded
    means = {
        timer: round(geometric_mean(each.observation.mean_us for each in seen), _DECIMALS)
        for timer in Timer
        if (seen := baseline.times(timer, entry))
    }
    return Ancestor(
        at=recorded.at if recorded else None,
        commit=recorded.commit if recorded else None,
        driver=machine.driver,
        cuda=machine.cuda,
        torch=machine.torch,
        triton=machine.triton,
        liger_kernel=machine.liger_kernel,
        launches=baseline.counts.launches,
        configuration=digest(entry.kernels),
        times_us=means,
    )


def descended(new: Baseline, old: Baseline) -> Baseline:
    """`new`, with the line of ancestors that replacing `old` gives it: the first stays, whatever else is forgotten.

    What was recorded on another kind of machine is no ancestor: its times answer another question.
    """
    if not compare(old.fingerprint, new.fingerprint).comparable:
        return new
    entry, _ = old.entry_like(new.entries[0].kernels)
    first, *later = (*old.ancestors, ancestor_of(old, entry))
    return msgspec.structs.replace(new, ancestors=(first, *later[-_MOST_LATER_ANCESTORS:]))


def conditions_of(runs: Iterable[Run]) -> RecordedConditions | None:
    """The conditions of all runs together; None if nobody watched any."""
    seen = [run.conditions for run in runs if run.conditions is not None]
    if not seen:
        return None
    throttled = [sum(each.throttled_ms.values()) for each in seen if each.throttled_ms is not None]
    power = _most(each.max_power_watts for each in seen)
    return RecordedConditions(
        lowest_sm_clock_mhz=min(
            (each.lowest_sm_clock_mhz for each in seen if each.lowest_sm_clock_mhz is not None), default=None
        ),
        max_temperature_c=_most(each.max_temperature_c for each in seen),
        max_power_watts=None if power is None else round(power, 1),
        throttled_ms=round(sum(throttled), 1) if throttled else None,
        other_processes=_most(each.other_processes for each in seen),
    )


def _most(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def ancestry_contradictions(ancestors: Sequence[Ancestor]) -> Iterator[tuple[str, str]]:
    """What the types allow and no measurement can show: (field, what is wrong with it)."""
    if len(ancestors) > 1 + _MOST_LATER_ANCESTORS:
        yield "ancestors", f"{len(ancestors)}, and at most {1 + _MOST_LATER_ANCESTORS} are kept"
    for index, ancestor in enumerate(ancestors):
        if ancestor.launches < 0:
            yield f"ancestors[{index}].launches", f"negative: {ancestor.launches}"
        for timer, mean_us in ancestor.times_us.items():
            if not is_duration(mean_us):
                yield f"ancestors[{index}].times_us.{timer.value}", f"no duration: {mean_us}"
