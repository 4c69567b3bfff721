"""What storing a run would change: planned here, shown, then applied by the store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import geometric_mean

import msgspec

from ..run import Timer
from ..trace.kernel import KernelIdentity
from .baseline import Baseline, Entry, Likeness, gemm_kernel, merge_entries
from .fingerprint import FieldChange, compare
from .priors import Limits, prior_for
from .timing import Decision, decide
from .verdict import Status

__all__ = [
    "Action",
    "PlannedChange",
    "TimeChange",
    "comparison_count",
    "environment",
    "joined",
    "plan_one",
    "plan_update",
    "time_changes",
    "time_detail",
]

# What a disturbed machine makes of a time.
_DISTURBED = (Status.UNDECIDED, Status.NOT_JUDGED)


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

    `before_us`: what it is compared with, as a verdict shows it; `decision`: by the rule that judges a run.
    """

    timer: Timer
    before_us: float | None
    after_us: float | None
    decision: Decision | None = None

    @property
    def moved(self) -> bool:
        """Whether an update stores it. The main time of another machine is no noise, though nothing judges it."""
        changed = self.decision is None or self.decision.status in (Status.REGRESSED, Status.IMPROVED)
        return changed or (self.not_judged and self.timer is Timer.DEVICE)

    @property
    def undecided(self) -> bool:
        return self.decision is not None and self.decision.status is Status.UNDECIDED

    @property
    def not_judged(self) -> bool:
        return self.decision is not None and self.decision.status is Status.NOT_JUDGED


def plan_update(
    observed: Sequence[Baseline],
    stored: Mapping[str, Baseline | None],
    declared: Mapping[str, Collection[str]],
    *,
    comparisons: int = 0,
    limits: Mapping[str, Limits] | None = None,
) -> list[PlannedChange]:
    """Plan the update.

    Args:
        observed: what was measured and may be stored.
        stored: what the folder of this GPU holds now, by workload id; None: a file that cannot be read.
        declared: ids that each suite of this run declares, selected or not, by the suite's folder.
        comparisons: times that the suite has; 0: not known, and those that were measured count.
        limits: gates and sensitivity that the suite asks for, by workload id.
    """
    comparisons = comparisons or comparison_count(observed)
    asked = limits or {}
    plan = [plan_one(new, stored, comparisons=comparisons, limits=asked.get(new.workload)) for new in observed]
    alive = {workload for suite in declared.values() for workload in suite}  # it may have moved to another suite
    alive |= {new.workload for new in observed}
    for workload, old in stored.items():
        if old is not None and old.suite in declared and workload not in alive:
            plan.append(PlannedChange(Action.TRIM, workload, None, ("the suite no longer declares it",)))
    return sorted(plan, key=lambda change: change.workload)


def comparison_count(observed: Sequence[Baseline]) -> int:
    """How many comparisons an update makes, as a run of all that was measured does: false alarms are controlled over
    all of them together."""
    return max(1, sum(len(process.timers) for new in observed for process in new.entries[0].processes))


def plan_one(
    new: Baseline, stored: Mapping[str, Baseline | None], *, comparisons: int, limits: Limits | None = None
) -> PlannedChange:
    """Plan one file. `new`: a baseline of one process."""
    if new.workload not in stored:
        return PlannedChange(Action.CREATE, new.workload, new, _summary(new))
    old = stored[new.workload]
    if old is None:
        return PlannedChange(Action.UPDATE, new.workload, new, ("the stored file cannot be read",))
    changes = time_changes(old, new, comparisons=comparisons, limits=limits)
    # A time that did not move stays as it is stored, so that slow drift adds up until it shows.
    moved = [time_detail(change) for change in changes if change.moved]
    if exact := exact_details(old, new):
        return PlannedChange(Action.UPDATE, new.workload, new, (*exact, *moved, *_forgotten(old.entries)))
    entry, alike = old.entry_like(new.entries[0].kernels)
    if not alike.same_configuration:
        known = f"a launch configuration that was not known: {len(old.entries) + 1} now"
        return PlannedChange(Action.UPDATE, new.workload, _with_entry(old, None, new), (known,))
    source = ["generated source of its kernels"] if alike is not Likeness.IDENTICAL else []
    if not source and not moved:
        return PlannedChange(Action.KEEP, new.workload, None, tuple(time_detail(c) for c in changes if c.not_judged))
    details = (*source, *moved, *_forgotten([entry]))
    return PlannedChange(Action.UPDATE, new.workload, _with_entry(old, entry, new), details)


def _forgotten(entries: Sequence[Entry]) -> list[str]:
    """What replacing these by what one process saw gives up: said, because a calibration takes minutes."""
    count = sum(len(entry.processes) for entry in entries)
    return [f"processes that it knows {count} -> 1 (kernelgauge calibrate records more)"] if count > 1 else []


def _with_entry(old: Baseline, replaced: Entry | None, new: Baseline) -> Baseline:
    """The stored baseline with the one entry of `new` added, or put where `replaced` was."""
    (fresh,) = new.entries
    if replaced is None:
        return msgspec.structs.replace(new, entries=(*old.entries, fresh))
    fresh = msgspec.structs.replace(fresh, draws=replaced.draws)
    return msgspec.structs.replace(new, entries=tuple(fresh if entry is replaced else entry for entry in old.entries))


def _summary(new: Baseline) -> tuple[str, ...]:
    times = [
        f"{timer.label} {seen.observation.mean_us:.1f} us"
        for timer in Timer
        for seen in new.times(timer, new.entries[0])
    ]
    return (f"{new.counts.launches} launches", *times)


def exact_details(old: Baseline, new: Baseline) -> list[str]:
    """What makes all that was stored another matter: the environment, the kernels, the counts."""
    details = [str(change) for change in environment(old, new)]
    if old.suite != new.suite:
        details.append(f"suite {old.suite} -> {new.suite}")
    for field in new.counts.__struct_fields__:
        before, after = getattr(old.counts, field), getattr(new.counts, field)
        if before != after:
            details.append(f"{field.replace('_', ' ')} {before} -> {after}")
    if old.entry_like(new.entries[0].kernels)[1] is Likeness.OTHER_KERNELS:
        details.append("other kernels")
    return details


def time_detail(change: TimeChange) -> str:
    before, after = ("(none)" if us is None else f"{us:.1f}" for us in (change.before_us, change.after_us))
    # "200.0 us -> (none)": the unit stands behind the last number.
    times = f"{before} -> {after} us" if change.after_us is not None else f"{before} us -> {after}"
    if change.decision is None:
        return f"{change.timer.label} {times}"
    if change.not_judged:
        return f"{change.timer.label} {times}, not compared: {change.decision.reason}"
    return f"{change.timer.label} {times} ({100 * change.decision.change.estimate:+.1f} %)"


def time_changes(old: Baseline, new: Baseline, *, comparisons: int, limits: Limits | None = None) -> list[TimeChange]:
    """Compare each timer of `new`, a baseline of one process, with the entry of `old` of its configuration.

    `limits`: gates and sensitivity that the suite asks for; None: the defaults.
    """
    found: list[TimeChange] = []
    entry, _ = old.entry_like(new.entries[0].kernels)
    (process,) = new.entries[0].processes
    gemm = gemm_kernel(process.controls)
    for timer in Timer:
        before, fresh = old.times(timer, entry, gemm=gemm), new.times(timer, new.entries[0], gemm=gemm)
        if not before or not fresh:
            if before or fresh:
                before_us = geometric_mean(each.observation.mean_us for each in before) if before else None
                found.append(TimeChange(timer, before_us, fresh[0].observation.mean_us if fresh else None))
            continue
        decision = decide(
            before,
            replace(fresh[0], is_by_host=before[0].is_by_host),
            prior_for(timer, new.fingerprint, limits),
            comparisons=comparisons,
            kernels=new.counts.launches,
        )
        found.append(TimeChange(timer, decision.before_us, fresh[0].observation.mean_us, decision))
    return found


def environment(old: Baseline, new: Baseline) -> tuple[FieldChange, ...]:
    """What moved in the machine and its software."""
    comparison = compare(old.fingerprint, new.fingerprint)
    return (*comparison.foreign, *comparison.moved)


# -- adding processes ---------------------------------------------------------------------------------------------------


def joined(stored: Baseline, new: Baseline, *, comparisons: int, limits: Limits | None = None) -> Baseline:
    """Return `stored` with the processes of `new`, such as those of another GPU.

    Args:
        comparisons: times that a run of the suite has: what moved is found by the rule that judges it.
        limits: see `time_changes`.

    Raises `ValueError` with what differs: joining it would make noise of a change.
    """
    moved = _moved(stored, new, comparisons, limits)
    differs = [*exact_details(stored, new), *_other_source(stored, new), *moved]
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
            for change in time_changes(stored, alone, comparisons=comparisons, limits=limits):
                same = change.timer is Timer.HOST or likeness is Likeness.IDENTICAL
                if change.moved and same:
                    yield time_detail(change)
                elif change.decision is not None and change.decision.machine:
                    yield "the GPU's own speed (its reference kernels moved)"
                elif change.decision is not None and change.decision.scattered and change.decision.status in _DISTURBED:
                    yield f"{change.timer.label}, measured on a disturbed machine"
