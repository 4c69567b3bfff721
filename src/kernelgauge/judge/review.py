"""What storing a run would change: planned file by file, and reviewed in groups, each with its evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import geometric_mean

import msgspec

from ..errors import BaselineError, NewerBaselineError
from ..run import Timer
from ..trace.kernel import KernelIdentity
from .baseline import Baseline, Entry, Likeness, compare, gemm_kernel, merge_entries
from .cause import cause_reasons, kernel_causes
from .timing import Decision, Limits, decide, prior_for
from .verdict import Status

__all__ = [
    "Action",
    "Candidate",
    "Group",
    "PlannedChange",
    "Review",
    "Reviewed",
    "TimeChange",
    "joined",
    "plan_update",
    "review",
    "slower_host",
]

# A host that is slower than this was disturbed. Hosts of H200s changed their speed by factors of 1.6
# (benchmarks/data/earlier_detection) and 1.9 (tests/report/test_calibration.py).
_DISTURBED_HOST_FACTOR = 3.0

# -- the plan of an update --------------------------------------------------------------------------------------------


class Action(str, Enum):
    """What happens to one file of the baselines."""

    CREATE = "create"
    UPDATE = "update"
    TRIM = "trim"  # the suite no longer declares the workload
    KEEP = "keep"  # nothing moved beyond noise: the file stays as it is, byte for byte


@dataclass(frozen=True)
class PlannedChange:
    """One file of the plan. `baseline` is what would be written; None for TRIM and KEEP."""

    action: Action
    workload: str
    baseline: Baseline | None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimeChange:
    """One timer, as it is stored and as it was measured now, in microseconds. None: not on that side.

    `label`: what it is called on this machine; `before_us`: what it is compared with, as a verdict shows it; `decision`:
    by the rule that judges a run.
    """

    timer: Timer
    label: str
    before_us: float | None
    after_us: float | None
    decision: Decision | None = None

    @property
    def moved(self) -> bool:
        """Return whether an update stores it. GPU time on another machine counts as moved, though no rule judges it."""
        if self.after_us is None:
            return False
        changed = self.decision is None or self.decision.status in (Status.REGRESSED, Status.IMPROVED)
        return changed or (self.not_judged and not self.undecided and self.timer is Timer.DEVICE)

    @property
    def undecided(self) -> bool:
        """Whether the time is inconclusive: by the rule, or on a CPU that was disturbed."""
        if self.decision is None:
            return False
        return self.decision.status is Status.UNDECIDED or (self.not_judged and self.decision.scattered)

    @property
    def not_judged(self) -> bool:
        return self.decision is not None and self.decision.status is Status.NOT_JUDGED

    def __str__(self) -> str:
        """Return ``GPU time 205.1 -> 221.8 us (+8.1 %)``, or why the two are not compared."""
        before, after = ("(none)" if us is None else f"{us:.1f}" for us in (self.before_us, self.after_us))
        times = f"{self.label} {before} -> {after} us"
        if self.decision is None:
            return times
        if self.not_judged:
            return f"{times}, not compared: {self.decision.reason}"
        at_equal_speed = " at equal host speed" if self.decision.before[0].is_by_host else ""
        return f"{times} ({100 * self.decision.change.estimate:+.1f} %{at_equal_speed})"


def plan_update(
    observed: Sequence[Baseline],
    stored: Mapping[str, Baseline | BaselineError],
    declared: Mapping[str, Collection[str]],
    *,
    comparisons: int = 0,
    limits: Mapping[str, Limits] | None = None,
) -> list[PlannedChange]:
    """Plan the update.

    Args:
        observed: what was measured and may be stored.
        stored: what the folder of this GPU holds now, by workload id; an error: a file that cannot be read.
        declared: ids that each suite of this run declares, selected or not, by the suite's folder.
        comparisons: times that the suite has; 0: not known, and those that were measured count.
        limits: gates and sensitivity that the suite asks for, by workload id.
    """
    comparisons = comparisons or _comparison_count(observed)
    asked = limits or {}
    plan = [
        _plan_one(new, stored.get(new.workload), comparisons=comparisons, limits=asked.get(new.workload))
        for new in observed
    ]
    alive = {workload for suite in declared.values() for workload in suite}  # it may have moved to another suite
    alive |= {new.workload for new in observed}
    for workload, old in stored.items():
        if isinstance(old, Baseline) and old.suite in declared and workload not in alive:
            plan.append(PlannedChange(Action.TRIM, workload, None, ("the suite no longer declares it",)))
    return sorted(plan, key=lambda change: change.workload)


def _comparison_count(observed: Sequence[Baseline]) -> int:
    """Return how many times an update compares. Its false alarms are controlled over all of them together."""
    return max(1, sum(len(process.timers) for new in observed for process in new.entries[0].processes))


def _plan_one(
    new: Baseline, old: Baseline | BaselineError | None, *, comparisons: int, limits: Limits | None = None
) -> PlannedChange:
    """Plan one file. `new`: a baseline of one process."""
    if old is None:
        return PlannedChange(Action.CREATE, new.workload, new, _summary(new))
    if isinstance(old, BaselineError):
        return PlannedChange(Action.UPDATE, new.workload, new, ("the stored file cannot be read",))
    changes = _time_changes(old, new, comparisons=comparisons, limits=limits)
    # A time that did not move stays as it is stored, so that slow drift adds up until it shows.
    moved = [str(change) for change in changes if change.moved]
    if exact := _exact_details(old, new):
        return PlannedChange(Action.UPDATE, new.workload, new, (*exact, *moved, *_forgotten(old.entries)))
    entry, alike = old.entry_like(new.entries[0].kernels)
    if not alike.same_configuration:
        known = f"a launch configuration that was not known: {len(old.entries) + 1} now"
        return PlannedChange(Action.UPDATE, new.workload, _with_entry(old, None, new), (known,))
    source = ["generated source of its kernels"] if alike is not Likeness.IDENTICAL else []
    if not source and not moved:
        return PlannedChange(Action.KEEP, new.workload, None, tuple(str(c) for c in changes if c.not_judged))
    details = (*source, *moved, *_forgotten([entry]))
    return PlannedChange(Action.UPDATE, new.workload, _with_entry(old, entry, new), details)


def _forgotten(entries: Sequence[Entry]) -> list[str]:
    """Return how many processes the file would lose: to measure them takes minutes."""
    count = sum(len(entry.processes) for entry in entries)
    return [f"processes that it knows {count} -> 1 (kernelgauge calibrate records more)"] if count > 1 else []


def _with_entry(old: Baseline, replaced: Entry | None, new: Baseline) -> Baseline:
    """Return the stored baseline with the one entry of `new` added, or in place of `replaced`."""
    (fresh,) = new.entries
    if replaced is None:
        return msgspec.structs.replace(new, entries=(*old.entries, fresh))
    fresh = msgspec.structs.replace(fresh, draws=replaced.draws)
    return msgspec.structs.replace(new, entries=tuple(fresh if entry is replaced else entry for entry in old.entries))


def _summary(new: Baseline) -> tuple[str, ...]:
    times = [
        f"{timer.label_on(new.fingerprint)} {seen.observation.mean_us:.1f} us"
        for timer in Timer
        for seen in new.times(timer, new.entries[0])
    ]
    launches = new.counts.launches
    return (f"{launches} launch{'es' if launches != 1 else ''}", *times)


def _exact_details(old: Baseline, new: Baseline) -> list[str]:
    """Return the differences that replace all entries: the environment, the kernels, the counts."""
    details = [str(change) for change in _environment(old, new)]
    if old.suite != new.suite:
        details.append(f"suite {old.suite} -> {new.suite}")
    for name in new.counts.__struct_fields__:
        before, after = getattr(old.counts, name), getattr(new.counts, name)
        if before != after:
            details.append(f"{name.replace('_', ' ')} {before} -> {after}")
    if old.entry_like(new.entries[0].kernels)[1] is Likeness.OTHER_KERNELS:
        details.append("other kernels")
    return details


def _time_changes(old: Baseline, new: Baseline, *, comparisons: int, limits: Limits | None = None) -> list[TimeChange]:
    """Compare each timer of `new`, a baseline of one process, with the entry of `old` of its configuration.

    `limits`: gates and sensitivity that the suite asks for; None: the defaults.
    """
    found: list[TimeChange] = []
    entry, _ = old.entry_like(new.entries[0].kernels)
    (process,) = new.entries[0].processes
    gemm = gemm_kernel(process.controls)
    for timer in Timer:
        label = timer.label_on(new.fingerprint)
        before, fresh = old.times(timer, entry, gemm=gemm), new.times(timer, new.entries[0], gemm=gemm)
        if not before or not fresh:
            if before or fresh:
                before_us = geometric_mean(each.observation.mean_us for each in before) if before else None
                found.append(TimeChange(timer, label, before_us, fresh[0].observation.mean_us if fresh else None))
            continue
        decision = decide(
            before,
            replace(fresh[0], is_by_host=before[0].is_by_host),
            prior_for(timer, new.fingerprint, limits),
            comparisons=comparisons,
            kernels=new.counts.launches,
        )
        found.append(TimeChange(timer, label, decision.before_us, fresh[0].observation.mean_us, decision))
    return found


def _environment(old: Baseline, new: Baseline) -> tuple[str, ...]:
    """Return what changed in the machine and its software."""
    comparison = compare(old.fingerprint, new.fingerprint)
    return (*comparison.foreign, *comparison.moved)


def slower_host(old: Baseline, new: Baseline) -> str:
    """Return how slow the host was beside a run, where `old` knows it and it was more than three times as slow; else nothing.

    What is recorded on such a host hides regressions. `new`: a baseline of one process.
    """
    for timer in Timer:
        for fresh in new.times(timer, new.entries[0]):
            stored = (each for entry in old.entries for each in old.times(timer, entry) if each.place == fresh.place)
            known_us = [us for each in stored if (us := each.observation.control_us) is not None]
            now_us, usual_us = fresh.observation.control_us, max(known_us, default=math.inf)
            if now_us is not None and now_us > _DISTURBED_HOST_FACTOR * usual_us:
                times = f"{now_us / usual_us:.0f} times as slow as in the baseline"
                return f"this host was {times} (reference {usual_us:.1f} -> {now_us:.1f} us)"
    return ""


# -- adding processes ---------------------------------------------------------------------------------------------------


def joined(stored: Baseline, new: Baseline, *, comparisons: int, limits: Limits | None = None) -> Baseline:
    """Return `stored` with the processes of `new`, such as those of another GPU.

    Args:
        comparisons: times that a run of the suite has: what moved is found by the rule that judges it.
        limits: gates and sensitivity that the suite asks for.

    Raises `ValueError` with what differs: joining it would make noise of a change.
    """
    moved = _moved(stored, new, comparisons, limits)
    differs = [*_exact_details(stored, new), *_other_source(stored, new), *moved]
    if differs:
        raise ValueError(", ".join(dict.fromkeys(differs)))
    known = [each.recorded for each in (stored, new) if each.recorded is not None]
    recorded = max(known, key=lambda each: each.at, default=None)
    return msgspec.structs.replace(stored, entries=merge_entries([stored, new]), recorded=recorded)


def _other_source(stored: Baseline, new: Baseline) -> Iterator[str]:
    """Yield the kernels of another source: they are other code, also in a launch configuration that is new."""
    known = {(each.name, each.source_hash) for each in _identities(stored)}
    names = {name for name, source in known if source}
    for each in _identities(new):
        if each.source_hash and each.name in names and (each.name, each.source_hash) not in known:
            yield f"generated source of {each.name}"


def _identities(baseline: Baseline) -> Iterator[KernelIdentity]:
    return (kernel.identity for entry in baseline.entries for kernel in entry.kernels)


def _moved(stored: Baseline, new: Baseline, comparisons: int, limits: Limits | None) -> Iterator[str]:
    """Yield the times that differ from those of the stored processes. Another launch configuration may take any time."""
    comparisons *= sum(len(entry.processes) for entry in new.entries)
    for entry in new.entries:
        _, likeness = stored.entry_like(entry.kernels)
        for process in entry.processes:
            single = msgspec.structs.replace(entry, draws=1, processes=(process,))
            alone = msgspec.structs.replace(new, entries=(single,))
            for change in _time_changes(stored, alone, comparisons=comparisons, limits=limits):
                same = change.timer is Timer.HOST or likeness is Likeness.IDENTICAL
                if change.moved and same:
                    yield str(change)
                elif change.decision is not None and change.decision.machine:
                    yield "the GPU's own speed (its reference kernels moved)"
                elif change.decision is not None and change.decision.scattered and change.undecided:
                    yield f"{change.label}, measured on a disturbed machine"


# -- a review of saved results ------------------------------------------------------------------------------------------


class Group(str, Enum):
    """What became of a workload: its name on the command line."""

    SAME_SPEED = "same-speed"
    SPEED = "speed"  # same kernels, slower or faster
    CONFIGURATION = "configuration"  # same kernels, other launch configuration
    KERNELS = "kernels"  # other kernels, or other counts
    NEW = "new"
    VANISHED = "vanished"
    NOT_MEASURED = "not-measured"


@dataclass(frozen=True)
class Candidate:
    """A workload of saved results, as accepting it would store it.

    Attributes:
        observed: None: it was not measured.
        others: earlier runs of it.
        limits: gates and sensitivity that the suite asks for.
        evidence: why it was not measured, where that is no failure.
        doubts: why it is not accepted unless that is forced, or, where it was not measured, why at all.
        older: why it may be older than its baseline: another doubt, where it would replace that.
    """

    workload: str
    suite: str
    observed: Baseline | None
    others: tuple[Baseline, ...] = ()
    limits: Limits = field(default_factory=Limits)
    evidence: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    older: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reviewed:
    """One workload.

    `change`: the effect of accepting it on its file; None: it cannot be accepted. `doubts`: why not; `--force` overrules them
    where there is a change.
    """

    workload: str
    group: Group
    change: PlannedChange | None = None
    times: tuple[TimeChange, ...] = ()
    evidence: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    candidate: Candidate | None = None
    stored: Baseline | BaselineError | None = None

    @property
    def waits(self) -> bool:
        """Return whether accepting it would change a file."""
        return self.change is not None and self.change.action is not Action.KEEP


@dataclass(frozen=True)
class Review:
    """The review of one kind of machine.

    Attributes:
        environment: what moved between the baselines and the run, each with its number of workloads.
        comparisons: times that the suite has.
    """

    device: str
    environment: tuple[tuple[str, int], ...]
    reviewed: tuple[Reviewed, ...]
    comparisons: int

    def of(self, group: Group) -> list[Reviewed]:
        return [each for each in self.reviewed if each.group is group]

    @property
    def settled(self) -> bool:
        """Return whether everything that was measured ran the same kernels at the same speed."""
        quiet = (Group.SAME_SPEED, Group.NOT_MEASURED)
        return all(each.group in quiet and not each.doubts for each in self.reviewed)


def review(
    device: str,
    candidates: Sequence[Candidate],
    stored: Mapping[str, Baseline | BaselineError],
    declared: Mapping[str, Collection[str]],
    *,
    comparisons: int = 0,
) -> Review:
    """Compare what was measured with what is stored for this device.

    Args:
        stored: by workload id; an error: a file that cannot be read.
        declared: ids that each suite declares, selected or not, by the suite's folder; of runs that collected all of it.
        comparisons: times that the suite has; 0: not known, and those that were measured count.
    """
    observed = [each.observed for each in candidates if each.observed is not None]
    limits = {each.workload: each.limits for each in candidates}
    comparisons = comparisons or _comparison_count(observed)
    changes = plan_update(observed, stored, declared, comparisons=comparisons, limits=limits)
    plan = {change.workload: change for change in changes}
    reviewed = [_reviewed(each, stored.get(each.workload), plan, comparisons) for each in candidates]
    trimmed = [change for change in changes if change.action is Action.TRIM]
    reviewed += [Reviewed(each.workload, Group.VANISHED, each, evidence=each.details) for each in trimmed]
    done = {each.workload for each in reviewed}
    suites = {*declared, *(each.suite for each in candidates)}
    for name, old in stored.items():
        if name in done:
            continue
        if isinstance(old, BaselineError):
            reviewed.append(Reviewed(name, Group.NOT_MEASURED, doubts=(_unusable(old),)))
        elif old.suite in suites:
            reviewed.append(Reviewed(name, Group.NOT_MEASURED, evidence=("not selected in this run",)))
    compared = [(before, each) for each in observed if isinstance(before := stored.get(each.workload), Baseline)]
    moved = Counter(change for before, each in compared for change in _environment(before, each))
    order = list(Group)
    reviewed.sort(key=lambda each: (order.index(each.group), each.workload))
    return Review(device, tuple(moved.items()), tuple(reviewed), comparisons)


def _unusable(error: BaselineError) -> str:
    """Return an error in one line: what is wrong, where, and the next command."""
    got = f": {error.got}" if error.got else ""
    return "; ".join(part for part in (f"{error.what}{got}", error.where, error.next_command) if part)


def _reviewed(
    candidate: Candidate, old: Baseline | BaselineError | None, plan: Mapping[str, PlannedChange], comparisons: int
) -> Reviewed:
    new = candidate.observed
    if new is None:
        doubts = candidate.doubts
        return Reviewed(candidate.workload, Group.NOT_MEASURED, evidence=candidate.evidence, doubts=doubts, stored=old)
    change = plan[new.workload]
    found = Reviewed(
        new.workload,
        Group.NEW,
        change,
        evidence=change.details,
        doubts=(*candidate.doubts, *candidate.older),
        candidate=candidate,
        stored=old,
    )
    if old is None:
        return found
    if isinstance(old, NewerBaselineError):
        return replace(found, change=None, evidence=(), doubts=(*found.doubts, _unusable(old)))
    if isinstance(old, BaselineError):
        return replace(found, evidence=(), doubts=(*found.doubts, _unusable(old)))
    if not compare(old.fingerprint, new.fingerprint).comparable:
        return replace(found, evidence=("the stored baseline is of another kind of machine", *change.details))
    if change.action is Action.KEEP and _is_last_accepted(new, old):  # to be decided against itself is nothing
        return replace(found, group=Group.SAME_SPEED, evidence=("accepted already",), doubts=())
    times = tuple(_time_changes(old, new, comparisons=comparisons, limits=candidate.limits))
    group = _group(old, new, times)
    # A time of other kernels need not agree with the stored one.
    undecided = [each for each in times if each.undecided and group is not Group.KERNELS]
    return replace(
        found,
        group=group,
        times=times,
        evidence=tuple(_evidence(old, new, change, times)),
        doubts=(*found.doubts, *(f"{each.label}: inconclusive" for each in undecided)),
    )


def _is_last_accepted(new: Baseline, old: Baseline) -> bool:
    """Return whether this run is the one that was accepted last, however noisy it was."""
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
    """Yield the details of the plan beside times and environment, then the kernels that account for the change."""
    told = {*map(str, _environment(old, new)), *map(str, times), "other kernels"}
    yield from (detail for detail in change.details if detail not in told)
    entry, alike = old.entry_like(new.entries[0].kernels)
    device = next((each for each in times if each.timer is Timer.DEVICE), None)
    if (device is not None and device.moved) or not alike.same_configuration:
        stored = entry.kernels_in(device.before_us if device is not None else None)
        causes, rest = kernel_causes(stored, new.entries[0].kernels)
        yield from (reason.text for reason in cause_reasons(causes))
        if rest:
            yield rest
