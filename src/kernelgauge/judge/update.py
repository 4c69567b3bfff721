"""What accepting a run would change: planned here, shown, then applied by the storage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..run import Sample, Timer
from .baseline import Baseline
from .fingerprint import compare
from .stats import relative_change
from .timing import DEFAULT_POLICIES, HOST_MOVED

__all__ = ["Action", "PlannedChange", "plan_update"]


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


def plan_update(
    observed: Sequence[Baseline], stored: Mapping[str, Baseline | None], declared: Mapping[str, Collection[str]]
) -> list[PlannedChange]:
    """Plan the update.

    Args:
        observed: what this session measured and may be stored.
        stored: what the folder of this GPU holds now, by workload id; None: a file that cannot be read.
        declared: ids that each suite of this session declares, selected or not, by the suite's folder.
    """
    plan = [_plan_one(new, stored) for new in observed]
    alive = {workload for suite in declared.values() for workload in suite}  # it may have moved to another suite
    for workload, old in stored.items():
        if old is not None and old.suite in declared and workload not in alive:
            plan.append(PlannedChange(Action.TRIM, workload, None, ("the suite no longer declares it",)))
    return sorted(plan, key=lambda change: change.workload)


def _plan_one(new: Baseline, stored: Mapping[str, Baseline | None]) -> PlannedChange:
    if new.workload not in stored:
        return PlannedChange(Action.CREATE, new.workload, new, _summary(new))
    old = stored[new.workload]
    if old is None:
        return PlannedChange(Action.UPDATE, new.workload, new, ("the stored file cannot be read",))
    details = tuple(_details(old, new))
    if not details:
        return PlannedChange(Action.KEEP, new.workload, None)
    return PlannedChange(Action.UPDATE, new.workload, new, details)


def _summary(new: Baseline) -> tuple[str, ...]:
    times = [f"{timer.label} {sample.median_us:.1f} us" for timer in Timer if (sample := new.sample(timer))]
    return (f"{new.counts.launches} launches", *times)


def _details(old: Baseline, new: Baseline) -> list[str]:
    """What moved: exact things whenever they differ, times only beyond their tolerance."""
    details = [str(change) for change in _environment(old, new)]
    if old.suite != new.suite:
        details.append(f"suite {old.suite} -> {new.suite}")
    for field in new.counts.__struct_fields__:
        before, after = getattr(old.counts, field), getattr(new.counts, field)
        if before != after:
            details.append(f"{field.replace('_', ' ')} {before} -> {after}")
    if [kernel.identity for kernel in old.kernels] != [kernel.identity for kernel in new.kernels]:
        details.append("kernels or their launch configuration")
    return [*details, *_time_details(old, new)]


def _time_details(old: Baseline, new: Baseline) -> list[str]:
    details: list[str] = []
    for timer in Timer:
        before_sample, after_sample = old.sample(timer), new.sample(timer)
        if after_sample is None:
            if before_sample is not None:
                details.append(f"{timer.label} {before_sample.median_us:.1f} us -> (none)")
            continue
        if before_sample is None:
            details.append(f"{timer.label} (none) -> {after_sample.median_us:.1f} us")
            continue
        if _host_moved(before_sample, after_sample):
            details.append(f"{timer.label} was taken on a host of another speed")
        change = relative_change(before_sample.replicates_us, after_sample.replicates_us)
        # A third of the tolerance: a baseline that only follows large moves drifts behind unseen
        # (the rule of pytorch/benchmarks/dynamo/pr_time_benchmarks/check_results.py).
        if abs(change.estimate) > DEFAULT_POLICIES[timer].tolerance / 3:
            details.append(
                f"{timer.label} {before_sample.median_us:.1f} -> {after_sample.median_us:.1f} us "
                f"({100 * change.estimate:+.1f} %)"
            )
    return details


def _host_moved(before: Sample, after: Sample) -> bool:
    if before.host_control_us is None or after.host_control_us is None:
        return before.host_control_us != after.host_control_us
    return not 1 / HOST_MOVED <= after.host_control_us / before.host_control_us <= HOST_MOVED


def _environment(old: Baseline, new: Baseline) -> tuple[object, ...]:
    comparison = compare(old.fingerprint, new.fingerprint)
    return (*comparison.foreign, *comparison.moved)
