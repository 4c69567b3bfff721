"""Saved results beside the baselines that they would replace: what moved, in groups, each with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from ..errors import BaselineError, NewerBaselineError
from ..run import Timer
from .baseline import Baseline, Likeness, Recorded
from .fingerprint import FieldChange, compare
from .priors import Limits
from .time_verdict import explain
from .update import (
    Action,
    PlannedChange,
    TimeChange,
    comparison_count,
    environment,
    plan_one,
    plan_update,
    time_changes,
    time_detail,
)
from .verdict import Status

__all__ = ["Candidate", "Group", "Review", "Reviewed", "review"]

_OTHER_KERNELS = "other kernels"  # as the plan of an update says it; here the group does


class Group(str, Enum):
    """What became of a workload. The value is its name on the command line."""

    SAME_SPEED = "same-speed"
    SPEED = "speed"
    CONFIGURATION = "configuration"
    KERNELS = "kernels"
    NEW = "new"
    VANISHED = "vanished"
    NOT_MEASURED = "not-measured"

    @property
    def heading(self) -> str:
        return _HEADINGS[self]


_HEADINGS = {
    Group.SAME_SPEED: "same kernels, same speed",
    Group.SPEED: "same kernels, slower or faster",
    Group.CONFIGURATION: "same kernels, other launch configuration",
    Group.KERNELS: "other kernels, or other counts",
    Group.NEW: "new",
    Group.VANISHED: "vanished",
    Group.NOT_MEASURED: "not measured",
}


@dataclass(frozen=True)
class Candidate:
    """A workload of saved results, as accepting it would store it.

    Attributes:
        observed: None: it was not measured, and `why_not` says why.
        others: what other runs measured of it.
        limits: gates and sensitivity that the suite asks for.
        doubts: why it is not accepted unless that is forced.
        shortcomings: what is wrong with any of its runs, whatever the baseline says.
        never: why it cannot be accepted at all.
    """

    workload: str
    suite: str
    observed: Baseline | None
    others: tuple[Baseline, ...] = ()
    doubts: tuple[str, ...] = ()
    shortcomings: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    why_not: str = ""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Reviewed:
    """One workload. `change`: what accepting it does to its file; None: there is nothing to accept."""

    workload: str
    group: Group
    change: PlannedChange | None
    times: tuple[TimeChange, ...] = ()
    evidence: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether accepting it would change a file."""
        return self.change is not None and self.change.action is not Action.KEEP

    @property
    def refused(self) -> tuple[str, ...]:
        return (*self.never, *self.doubts)


@dataclass(frozen=True)
class Review:
    """All of one kind of machine.

    Attributes:
        recorded: how the baselines came about, each with its number of workloads. None: written in schema 2.
        environment: what moved between the baselines and the run, likewise.
    """

    device: str
    recorded: tuple[tuple[Recorded | None, int], ...]
    environment: tuple[tuple[FieldChange, int], ...]
    reviewed: tuple[Reviewed, ...]

    def of(self, group: Group) -> list[Reviewed]:
        return [each for each in self.reviewed if each.group is group]

    @property
    def settled(self) -> bool:
        """Whether nobody has to look at it: whatever was measured ran the same kernels at the same speed."""
        quiet = (Group.SAME_SPEED, Group.NOT_MEASURED)
        return all(each.group in quiet and not each.refused for each in self.reviewed)


def review(
    device: str,
    candidates: Sequence[Candidate],
    stored: Mapping[str, Baseline | BaselineError],
    declared: Mapping[str, Collection[str]],
    *,
    vanished_doubts: Mapping[str, tuple[str, ...]] | None = None,
    comparisons: int = 0,
) -> Review:
    """Compare what was measured with what is stored for this device.

    Args:
        stored: by workload id; an error: a file that cannot be read.
        declared: ids that each suite declares, selected or not, by the suite's folder; of runs that collected all of it.
        vanished_doubts: why a baseline that its suite declares no more is not removed unless that is forced, by id.
        comparisons: times that the suite has; 0: not known, and those that were measured count.
    """
    observed = [each.observed for each in candidates if each.observed is not None]
    readable = {name: old if isinstance(old, Baseline) else None for name, old in stored.items()}
    limits = {each.workload: each.limits for each in candidates}
    comparisons = comparisons or comparison_count(observed)
    changes = plan_update(observed, readable, declared, comparisons=comparisons, limits=limits)
    plan = {change.workload: change for change in changes}
    reviewed = [_reviewed(each, stored.get(each.workload), plan, comparisons) for each in candidates]
    for name, change in plan.items():
        if change.action is Action.TRIM:
            doubts = (vanished_doubts or {}).get(name, ())
            reviewed.append(Reviewed(name, Group.VANISHED, change, evidence=change.details, doubts=doubts))
    done = {each.workload for each in reviewed}
    suites = {*declared, *(each.suite for each in candidates)}
    for name, old in stored.items():
        if name in done:
            continue
        if isinstance(old, BaselineError):
            reviewed.append(Reviewed(name, Group.NOT_MEASURED, None, never=(_unusable(old),)))
        elif old.suite in suites:
            reviewed.append(Reviewed(name, Group.NOT_MEASURED, None, evidence=("not selected in this run",)))
    compared = [(before, each) for each in observed if (before := readable.get(each.workload)) is not None]
    moved = Counter(
        change
        for before, each in compared
        for change in (*environment(before, each), *compare(before.fingerprint, each.fingerprint).recorded)
    )
    recorded = Counter(before.recorded for before, _ in compared)
    order = list(Group)
    reviewed.sort(key=lambda each: (order.index(each.group), each.workload))
    return Review(device, tuple(recorded.items()), tuple(moved.items()), tuple(reviewed))


def _unusable(error: BaselineError) -> str:
    """In one line: what is wrong, where, and what to do about it."""
    got = f": {error.got}" if error.got else ""
    return "; ".join(part for part in (f"{error.what}{got}", error.where, error.next_command) if part)


def _reviewed(
    candidate: Candidate, old: Baseline | BaselineError | None, plan: Mapping[str, PlannedChange], comparisons: int
) -> Reviewed:
    new = candidate.observed
    if new is None:
        said = () if candidate.never else (candidate.why_not,)
        return Reviewed(candidate.workload, Group.NOT_MEASURED, None, evidence=said, never=candidate.never)
    change = plan[new.workload]
    doubts = (*candidate.doubts, *_disagreements(new, candidate, comparisons))
    found = Reviewed(new.workload, Group.NEW, change, evidence=change.details, doubts=doubts, never=candidate.never)
    if old is None:
        return found
    if isinstance(old, NewerBaselineError):
        return replace(found, evidence=(), never=(*found.never, _unusable(old)))
    if isinstance(old, BaselineError):
        return replace(found, evidence=(), doubts=(*doubts, _unusable(old)))
    comparison = compare(old.fingerprint, new.fingerprint)
    if not comparison.comparable:
        return replace(found, evidence=("the stored baseline is of another kind of machine", *change.details))
    times = tuple(time_changes(old, new, comparisons=comparisons, limits=candidate.limits))
    if change.action is Action.KEEP and _is_last_accepted(new, old):  # to be decided against itself is nothing
        said = ("accepted already",)
        return Reviewed(new.workload, Group.SAME_SPEED, change, evidence=said)
    return replace(
        found,
        group=_group(old, new, times),
        times=times,
        evidence=tuple(_evidence(old, new, change, times)),
        doubts=(*doubts, *_time_doubts(times, doubts)),
    )


def _is_last_accepted(new: Baseline, old: Baseline) -> bool:
    """Whether this very run is what was accepted last, however noisy it was."""
    entry, _ = old.entry_like(new.entries[0].kernels)
    return new.recorded is not None and new.recorded == old.recorded and new.entries[0].processes[0] in entry.processes


def _group(old: Baseline, new: Baseline, times: Sequence[TimeChange]) -> Group:
    _, alike = old.entry_like(new.entries[0].kernels)
    if alike is Likeness.OTHER_KERNELS or old.counts != new.counts:
        return Group.KERNELS
    if not alike.same_configuration:
        return Group.CONFIGURATION
    # What could not be decided is not known to be as fast.
    return Group.SPEED if any(each.moved or each.undecided for each in times) else Group.SAME_SPEED


def _evidence(old: Baseline, new: Baseline, change: PlannedChange, times: Sequence[TimeChange]) -> Iterator[str]:
    """What the plan says beside times and environment, then the kernels that carry what moved."""
    told = {*map(str, environment(old, new)), *map(time_detail, times), _OTHER_KERNELS}
    yield from (detail for detail in change.details if detail not in told)
    entry, alike = old.entry_like(new.entries[0].kernels)
    device = next((each for each in times if each.timer is Timer.DEVICE), None)
    if (device is not None and device.moved) or not alike.same_configuration:
        stored = entry.kernels_in(device.before_us if device is not None else None)
        named, rest = explain(stored, new.entries[0].kernels)
        yield from named
        if rest:
            yield rest


def _time_doubts(times: Sequence[TimeChange], doubts: Sequence[str]) -> Iterator[str]:
    """Yield the times that are inconclusive, and those that the file would lose, unless `doubts` name them."""
    found = [(f"{each.timer.label}: {Status.UNDECIDED.value}", "  inconclusive") for each in times if each.undecided]
    lost = [each for each in times if each.after_us is None]
    found += [(f"{each.timer.label} was not measured", ", and the baseline has it") for each in lost]
    for start, end in found:
        if not any(doubt.startswith(start) for doubt in doubts):
            yield start + end


def _disagreements(new: Baseline, candidate: Candidate, comparisons: int) -> Iterator[str]:
    """Two runs of a workload agree if an update would keep the one for the other."""
    for other in candidate.others:
        change = plan_one(new, {new.workload: other}, comparisons=comparisons, limits=candidate.limits)
        if change.action is Action.KEEP:
            continue
        _, alike = other.entry_like(new.entries[0].kernels)
        details = ("other launch configuration",) if alike is Likeness.SAME_NAMES else change.details
        when = f" of {other.recorded.at}" if other.recorded else ""
        yield f"another run{when} disagrees: {'; '.join(details)}"
