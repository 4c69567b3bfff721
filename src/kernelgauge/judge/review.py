"""What accepting a run would change in a stored baseline, with the evidence; and which runs may join a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from ..errors import BaselineError, NewerBaselineError
from ..run import Run, Timer
from .baseline import (
    Baseline,
    Comparison,
    Likeness,
    Process,
    Recorded,
    combined,
    compare,
    count_changes,
    from_run,
    likeness,
    merge_entries,
)
from .plausibility import stored_doubt
from .structure import judge_structure, placement_changes
from .time_verdict import judge_time
from .timing import Limits
from .verdict import Reason, Status, Verdict

# A host that is slower than this was disturbed. Hosts of H200s changed their speed by factors of 1.6
# (benchmarks/data/earlier_detection) and 1.9 (tests/report/test_calibration.py).
_DISTURBED_HOST_FACTOR = 3.0


class Action(str, Enum):
    """What happens to one file of the baselines."""

    CREATE = "create"
    UPDATE = "update"
    KEEP = "keep"  # nothing moved beyond noise: the file stays as it is, byte for byte


class Group(str, Enum):
    """What became of a workload: its name on the command line."""

    SAME_SPEED = "same-speed"
    SPEED = "speed"  # same kernels, slower or faster
    CONFIGURATION = "configuration"  # same kernels, other launch configuration
    KERNELS = "kernels"  # other kernels, or other counts
    NEW = "new"
    VANISHED = "vanished"  # the suite no longer declares it: its file stays until somebody removes it
    NOT_MEASURED = "not-measured"


@dataclass(frozen=True)
class PlannedChange:
    """One file of the plan. `baseline` is what would be written; None for KEEP."""

    action: Action
    workload: str
    baseline: Baseline | None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reviewed:
    """One workload, beside its stored baseline.

    Attributes:
        suite: the folder of the suite that declares it.
        change: the effect of accepting it on its file; None: it cannot be accepted.
        environment: what moved in the machine and its software.
        evidence: what else differs, and why.
        doubts: what speaks against accepting it. `--force` overrules it where there is a change.
    """

    workload: str
    group: Group
    suite: str
    change: PlannedChange | None = None
    environment: tuple[str, ...] = ()
    evidence: tuple[Reason, ...] = ()
    doubts: tuple[str, ...] = ()


def review_run(
    run: Run,
    old: Baseline | BaselineError | None,
    *,
    suite: str,
    recorded: Recorded | None,
    comparisons: int,
    limits: Limits | None = None,
    doubts: Sequence[str] = (),
    is_fresh: bool = False,
) -> Reviewed:
    """Judge a run by what is stored of its workload, and plan what accepting it would write.

    Args:
        old: None: nothing is stored; an error: the file cannot be used.
        suite: the folder of the suite that declares the workload.
        recorded: how the run came about.
        comparisons: times that the suite has: false alarms are controlled over all of them together.
        limits: gates and sensitivity that the suite asks for; None: the defaults.
        doubts: what speaks against storing the run, whatever is stored.
        is_fresh: whether the run has just ended: then it replaces what is unreadable, undecided or newer.
    """
    new = from_run(run, suite=suite, recorded=recorded)
    found = Reviewed(run.workload, Group.NEW, suite, doubts=tuple(doubts))
    if isinstance(old, NewerBaselineError):
        return replace(found, doubts=(*doubts, old.one_line))
    if not isinstance(old, Baseline):
        action = Action.CREATE if old is None else Action.UPDATE
        evidence = tuple(_summary(run))
        unreadable = () if old is None or is_fresh else (old.one_line,)
        change = PlannedChange(action, run.workload, new, tuple(reason.text for reason in evidence))
        return replace(found, change=change, evidence=evidence, doubts=(*doubts, *unreadable))
    comparison = compare(old.fingerprint, new.fingerprint)
    times = [] if comparison.foreign else _time_verdicts(old, run, comparisons, limits)
    is_wrong = bool(stored_doubt(old, run))
    group = _group(old, new, comparison, times)
    planned = new if is_wrong else _planned(old, new, comparison, group, times)
    if is_wrong and group is Group.SAME_SPEED:  # nobody knows it
        group = Group.SPEED
    evidence = tuple(_evidence(old, planned, judge_structure(run, old), times))
    doubts = [*doubts, *_host_doubts(old, new)]
    if not is_fresh:
        if old.recorded is not None and new.recorded is not None and new.recorded.at < old.recorded.at:  # both in UTC
            then = old.recorded.at
            doubts.append(f"older than the baseline: measured {new.recorded.at}, and that was recorded {then}")
        if group is not Group.KERNELS:  # a time of other kernels need not agree with the stored one
            doubts += [each.headline for each in times if each.status is Status.UNDECIDED]
    if planned is None and new.entries[0].processes[0] in _processes(old):  # to be judged against itself is nothing
        group, evidence, doubts = Group.SAME_SPEED, (Reason("file", "accepted already"),), []
    environment = (*comparison.foreign, *comparison.moved)
    action = Action.KEEP if planned is None else Action.UPDATE
    details = (*environment, *(reason.text for reason in evidence))
    change = PlannedChange(action, run.workload, planned, details)
    return Reviewed(run.workload, group, suite, change, environment, evidence, tuple(doubts))


def _time_verdicts(old: Baseline, run: Run, comparisons: int, limits: Limits | None) -> list[Verdict]:
    timers = (timer for timer in Timer if timer in run.samples)
    return [judge_time(timer, run, old, comparisons=comparisons, limits=limits) for timer in timers]


def _summary(run: Run) -> Iterator[Reason]:
    launches = run.counts.launches
    yield Reason("counts", f"{launches} launch{'es' if launches != 1 else ''}")
    for timer in (timer for timer in Timer if timer in run.samples):
        yield Reason("time", f"{run.label(timer)} {run.time_us(timer):.1f} us")


def _planned(
    old: Baseline, new: Baseline, comparison: Comparison, group: Group, times: Sequence[Verdict]
) -> Baseline | None:
    """Return what accepting a run writes. None: nothing moved, and the file stays as it is.

    A time that did not move stays as it is stored, so that slow drift adds up until it shows.
    """
    (fresh,) = new.entries
    entry, nearest = old.entry_like(fresh.kernels)
    is_same = comparison.identical and old.suite == new.suite and group is not Group.KERNELS
    if not is_same or nearest < Likeness.OTHER_CHOICE:
        return new
    has_moved = any(each.status in (Status.REGRESSED, Status.IMPROVED, Status.NO_BASELINE) for each in times)
    if nearest is Likeness.IDENTICAL and not has_moved:
        return None
    # The autotuner may choose another entry again. Code alone returns to another grid of a kernel: that must not pass.
    kept = [each for each in old.entries if likeness(each.kernels, fresh.kernels) >= Likeness.OTHER_CHOICE]
    if nearest is Likeness.OTHER_CHOICE:
        return msgspec.structs.replace(new, entries=(*kept, fresh))
    fresh = msgspec.structs.replace(fresh, draws=entry.draws)
    return msgspec.structs.replace(new, entries=tuple(fresh if each is entry else each for each in kept))


def _group(old: Baseline, new: Baseline, comparison: Comparison, times: Sequence[Verdict]) -> Group:
    entry, nearest = old.entry_like(new.entries[0].kernels)
    if comparison.foreign:
        return Group.NEW
    is_placed = placement_changes(entry.kernels, new.entries[0].kernels)
    if nearest is Likeness.OTHER_KERNELS or is_placed or count_changes(old.counts, new.counts):
        return Group.KERNELS
    if nearest < Likeness.SAME_CONFIGURATION:
        return Group.CONFIGURATION
    is_same = all(each.status in (Status.PASS, Status.NOT_JUDGED) for each in times)
    return Group.SAME_SPEED if is_same else Group.SPEED  # an inconclusive time is not known to be as fast


def _evidence(
    old: Baseline, planned: Baseline | None, structure: Verdict, times: Sequence[Verdict]
) -> Iterator[Reason]:
    """Yield what differs as the verdicts say it. The causes stand once, if possible at a time: there they have costs."""
    explained = [each for each in (*times, structure) if any(reason.label == "cause" for reason in each.reasons)]
    same = []
    for verdict in (structure, *times):
        if verdict.status is Status.PASS and verdict.change is not None:
            same.append(f"{verdict.subject} {verdict.after_us:.1f} us {100 * verdict.change.estimate:+.1f} %")
        elif verdict is not structure:
            yield Reason("time", verdict.headline)
        left_out = ("kernels", "next", *(("cause", "code", "also") if verdict not in explained[:1] else ()))
        left_out += ("why",) if verdict.status is Status.NOT_JUDGED else ()  # the headline has it
        reasons = sorted(verdict.reasons, key=lambda reason: reason.label != "counts")  # the counts first
        yield from (reason for reason in reasons if reason.label not in left_out)
    if same:
        yield Reason("time", ", ".join(same))
    if planned is None:
        yield Reason("file", "unchanged within noise: it stays as it is")
        return
    if old.suite != planned.suite:
        yield Reason("file", f"suite {old.suite} -> {planned.suite}")
    known, left = len(_processes(old)), len(_processes(planned))
    if left < known:  # to measure them takes minutes
        yield Reason("file", f"processes that it knows {known} -> {left} (kernelgauge calibrate records more)")


def _processes(baseline: Baseline) -> list[Process]:
    return [process for entry in baseline.entries for process in entry.processes]


def _host_doubts(old: Baseline, new: Baseline) -> Iterator[str]:
    """Yield how slow the host was, where it was much slower: what is recorded on such a host hides regressions."""
    (process,) = new.entries[0].processes
    known = [_control_us(each) for each in _processes(old) if each.place == process.place]
    usual_us, now_us = max(known, default=0.0), _control_us(process)
    if usual_us and now_us > _DISTURBED_HOST_FACTOR * usual_us:
        times = f"{now_us / usual_us:.0f} times as slow as in the baseline"
        yield f"this host was {times} (reference {usual_us:.1f} -> {now_us:.1f} us)"


def _control_us(process: Process) -> float:
    return max((each.control_us or 0.0 for each in process.timers.values()), default=0.0)


def with_runs(
    old: Baseline | BaselineError | None,
    runs: Sequence[Run],
    *,
    suite: str,
    recorded: Recorded | None,
    comparisons: int,
    limits: Limits | None = None,
) -> Baseline:
    """Return the baseline with the processes of the runs that it does not have, such as those of another GPU.

    Raises `ValueError` with what differs: adding it would make noise of a change. The arguments are those of `review_run`.
    """
    if isinstance(old, BaselineError):
        raise ValueError(f"the stored file cannot be used: {old.one_line}")
    alone = [from_run(run, suite=suite, recorded=recorded) for run in runs]
    if old is None:
        return combined(alone)
    known = _processes(old)
    added = [(run, new) for run, new in zip(runs, alone, strict=True) if new.entries[0].processes[0] not in known]
    if not added:
        return old
    for run, _ in added:
        if differs := list(_differences(old, run, comparisons * len(added), limits)):
            raise ValueError(", ".join(differs))
    recorded = max(filter(None, (old.recorded, recorded)), key=lambda each: each.at, default=None)
    entries = merge_entries([old, combined([new for _, new in added])])
    return msgspec.structs.replace(old, entries=entries, recorded=recorded)


def _differences(old: Baseline, run: Run, comparisons: int, limits: Limits | None) -> Iterator[str]:
    """Yield what of a run is no noise. The times of another launch configuration may differ, the host's work may not."""
    comparison = compare(old.fingerprint, run.fingerprint)
    yield from (*comparison.foreign, *comparison.moved)
    if why := stored_doubt(old, run):
        yield f"a stored time cannot be: {why}"
    if comparison.foreign:
        return
    structure = judge_structure(run, old)
    if structure.status is not Status.PASS:
        yield ", ".join(each.text for each in structure.reasons if each.label == "counts") or structure.headline
    _, nearest = old.entry_like(run.kernels)
    if nearest is Likeness.SAME_CONFIGURATION:
        yield "generated source of its kernels"
    for verdict in _time_verdicts(old, run, comparisons, limits):
        reasons = {reason.label: reason.text for reason in verdict.reasons}
        if verdict.status in (Status.REGRESSED, Status.IMPROVED):
            if verdict.subject == run.label(Timer.HOST) or nearest is Likeness.IDENTICAL:
                yield verdict.headline
        elif "machine" in reasons:  # the reference kernels moved
            yield reasons["machine"]
        elif verdict.status is Status.UNDECIDED and "next" not in reasons:  # more processes would not help
            yield verdict.headline
