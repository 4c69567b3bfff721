"""What accepting a run would change in a stored baseline, with the evidence; and which runs may
join a baseline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import filterfalse

import msgspec

from ..errors import BaselineError, NewerBaselineError
from ..run import (
    CALL_TIMERS,
    COMPILE_TIMERS,
    Counts,
    Observation,
    Run,
    Timer,
    by_place,
    mean_of,
    on_same_host,
)
from ..trace import (
    ChangeKind,
    KernelIdentity,
    KernelRecord,
    Kind,
    are_alike,
    arguments_by_name,
    diff,
    is_chosen,
    resource_changes,
)
from . import TIME_LABELS, Status, Verdict
from . import evidence as e
from .baseline import (
    Anchor,
    Baseline,
    Comparison,
    Entry,
    Process,
    Recorded,
    combined,
    compare_fingerprints,
    count_changes,
    from_run,
    gemm_kernel,
    is_compared_by_host,
    joined_entry,
    other_data,
    rounded,
    times_of,
)
from .cause import UNCHANGED
from .host import is_host_loss, joined_work
from .structure import choice_changes, judge_structure, placement_changes
from .time_verdict import Context, doubt_of, judge, judge_time, stored_doubt, time_of
from .timing import Decision, Limits

# A host that is slower than this was disturbed. Hosts of H200s changed their speed by factors of
# 1.6 (benchmarks/data/earlier_detection) and 1.9 (tests/report/test_stored.py).
_DISTURBED_HOST_FACTOR = 3.0
_CLOCK_STEP_US = 0.032  # of the profiler on an H200


class Action(str, Enum):
    """What happens to one file of the baselines."""

    CREATE = "create"
    UPDATE = "update"
    KEEP = "keep"  # nothing moved beyond noise: the file stays as it is, byte for byte


# Fields of a baseline that an older version did not record.
_LATER_FACTS = ("ops", "host_calls", "peak", "host_work", "choices", "calling_code", "statements")
_COMPARED = {None: "not known", True: "compared", False: "not compared"}
_MOVED = (Status.REGRESSED, Status.IMPROVED, Status.NO_BASELINE)  # what an acceptance writes


class Group(str, Enum):
    """What became of a workload: its name on the command line."""

    SAME_SPEED = "same-speed"
    UNTIMED = "untimed"  # same kernels, and the run has no times
    SPEED = "speed"  # same kernels, slower or faster
    CONFIGURATION = "configuration"  # same kernels, other launch configuration
    KERNELS = "kernels"  # other kernels, or other counts
    NEW = "new"
    # no test asks for it any more: its file stays until somebody removes it
    VANISHED = "vanished"
    NOT_MEASURED = "not-measured"


class Creep(e.Evidence, frozen=True):
    """A time that is slower than its anchor."""

    label: str
    change: float
    at: str  # when the anchor was measured; empty: not known
    accepted: int  # how often since
    release: str | None  # of the anchor


class CodeMoved(e.Evidence, frozen=True):
    """What the new software made of a kernel that is launched as before, or of one that a library
    exchanged.
    """

    kernel: str
    effect: str  # the first of `EFFECTS` that it has
    moves: tuple[e.Move, ...]


EFFECTS = (
    "spilled words",
    "occupancy",
    "registers",
    "shared bytes",
    "instructions",
    "library kernel",
)
_OF_LIBRARIES = (Kind.GEMM.value, Kind.CONVOLUTION.value, Kind.ATTENTION.value)
Fact = e.Move | Verdict | e.Evidence  # what differs, or what speaks against storing it


@dataclass(frozen=True)
class NotAdded:
    """Why runs cannot join what is stored."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class PlannedChange:
    """One file of the plan. `baseline` is what would be written; None for KEEP."""

    action: Action
    workload: str
    baseline: Baseline | None
    details: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Reviewed:
    """One workload, beside its stored baseline."""

    workload: str
    group: Group
    suite: str  # the folder of the suite that declares it
    # the effect of accepting it on its file; None: it cannot be accepted
    change: PlannedChange | None = None
    environment: tuple[e.Move, ...] = ()  # what moved in the machine and its software
    # what else differs, and why: the verdict on structure before those on times
    evidence: tuple[Fact, ...] = ()
    # what speaks against it; `--force` overrules it where there is a change
    doubts: tuple[Fact | NotAdded, ...] = ()


def review_run(
    run: Run,
    old: Baseline | BaselineError | None,
    *,
    suite: str,
    recorded: Recorded | None,
    context: Context,
    limits: Limits | None = None,
    doubts: Sequence[Fact] = (),
    is_fresh: bool = False,
) -> Reviewed:
    """Judge a run by what is stored of its workload, and plan what accepting it would write.

    Args: old: None: nothing is stored; an error: the file cannot be used. doubts: what speaks
        against storing the run, whatever is stored. is_fresh: whether the run has just ended: then
        it replaces what is unreadable, undecided or newer.
    """
    new = from_run(run, suite=suite, recorded=recorded)
    found = Reviewed(run.workload, Group.NEW, suite, doubts=tuple(doubts))
    if isinstance(old, NewerBaselineError):
        return replace(found, doubts=(*doubts, e.RunDoubt("error", old.one_line)))
    if not isinstance(old, Baseline):
        action, summary = Action.CREATE if old is None else Action.UPDATE, tuple(_summary(run))
        unreadable = () if old is None or is_fresh else (e.RunDoubt("error", old.one_line),)
        change = PlannedChange(action, run.workload, new, summary)
        return replace(found, change=change, evidence=summary, doubts=(*doubts, *unreadable))
    comparison = compare_fingerprints(old.fingerprint, new.fingerprint)
    by_timer = {} if comparison.foreign else _time_verdicts(old, run, context, limits)
    times = list(by_timer.values())
    is_wrong = bool(stored_doubt(old, run))
    group = _group(old, run, new, comparison, times)
    code = dict.fromkeys(_code_moved(old, run))
    is_tuned = bool(choice_changes(old, run))
    slow = tuple(_host_doubts(old, new))
    # What ran does not depend on the clock. Times of other software are no times of this one.
    is_other = comparison.identical and group in (Group.KERNELS, Group.CONFIGURATION)
    can_keep = is_other and not is_wrong
    untimed = [*filter(_is_of_times, doubts)] if can_keep and not is_fresh else []
    kept = (*slow, e.FileNote("times stay")) if can_keep and (slow or untimed) else ()
    how = {"is_other_code": bool(code), "is_tuned": is_tuned, "keeps_times": bool(kept)}
    planned = new if is_wrong else _planned(old, new, comparison, group, by_timer, **how)
    if is_wrong and group in (Group.SAME_SPEED, Group.UNTIMED):  # nobody knows it
        group = Group.SPEED
    judged = _judge_anchors(run, old, context, limits)
    creep = tuple(_creep(judged, by_timer, is_written=planned is not None))
    if planned is not None:
        sound = (
            msgspec.structs.replace(old, entries=new.entries, recorded=new.recorded)
            if is_wrong
            else old
        )
        planned = _with_anchors(planned, sound, judged)  # a time that cannot be is no anchor
    added: tuple[e.FileNote, ...] = ()
    if planned is None and (fuller := _with_later_facts(old, new)) != old:
        planned, added = fuller, tuple(_added(old, fuller))
    notes = (*added, *_file_notes(old, planned, is_timed=bool(times)), *kept, *creep, *code)
    evidence: tuple[Fact, ...] = (judge_structure(run, old), *times, *notes)
    doubts = [*filterfalse(untimed.__contains__, doubts), *(() if kept else slow)]
    if not is_fresh:
        # both in UTC
        if (
            old.recorded is not None
            and new.recorded is not None
            and new.recorded.at < old.recorded.at
        ):
            doubts.append(e.RunDoubt("older", new.recorded.at, old.recorded.at))
        if group is not Group.KERNELS:  # a time of other kernels need not agree with the stored one
            doubts += [each for each in times if each.status is Status.UNDECIDED]
    # to be judged against itself is nothing
    if planned is None and _is_stored(new.processes[0], old):
        group, evidence, doubts = Group.SAME_SPEED, (e.FileNote("accepted already"), *creep), []
    action = Action.KEEP if planned is None else Action.UPDATE
    change = PlannedChange(action, run.workload, planned, (*comparison.moves, *evidence))
    return Reviewed(run.workload, group, suite, change, comparison.moves, evidence, tuple(doubts))


def _is_of_times(doubt: Fact) -> bool:
    """Return whether a doubt about a run leaves its structure sound."""
    if isinstance(doubt, Verdict):
        return doubt.subject in TIME_LABELS
    is_of_times = isinstance(doubt, e.RunDoubt) and doubt.is_of_times
    return is_of_times or isinstance(doubt, e.ImpossibleTime)


def _code_moved(old: Baseline, run: Run) -> Iterator[CodeMoved]:
    if compare_fingerprints(old.fingerprint, run.fingerprint).foreign:
        return
    for each in diff(old.kernels, run.kernels):
        for one, other in each.pairs:
            if each.what is ChangeKind.REPLACED:
                if one.identity.kind == other.identity.kind and one.identity.kind in _OF_LIBRARIES:
                    move = e.Move(one.identity.kind, one.identity.shown, other.identity.shown)
                    yield CodeMoved(one.identity.shown, EFFECTS[-1], (move,))
            elif one.identity.without_source == other.identity.without_source and not is_chosen(
                one, other
            ):
                moves = [
                    e.Move(*it)
                    for it in resource_changes(one, other, run.fingerprint.arch)
                    if it[1] != it[2] and it[0] != "inputs"  # of the data, and not of the code
                ]
                names = [it.name for it in moves]
                if moves:
                    effect = next((name for name in EFFECTS if name in names), EFFECTS[-2])
                    yield CodeMoved(one.identity.shown, effect, tuple(moves))


def _time_verdicts(
    old: Baseline, run: Run, context: Context, limits: Limits | None
) -> dict[Timer, Verdict]:
    return {timer: judge_time(timer, [run], old, context, limits) for timer in run.judged_timers}


def _planned(
    old: Baseline,
    new: Baseline,
    comparison: Comparison,
    group: Group,
    times: Mapping[Timer, Verdict],
    *,
    is_other_code: bool,
    is_tuned: bool,
    keeps_times: bool,
) -> Baseline | None:
    """Return what accepting a run writes. None: nothing moved, and the file stays as it is.

    A time that did not move stays as it is stored, so that slow drift adds up until it shows.
    `keeps_times`: so does every time, because the host was too slow.
    """
    fresh, entry = new.entry, old.entry
    if comparison.identical:
        is_cpu = new.fingerprint.arch == "cpu"
        fresh = _with_stored_times(entry, fresh, is_cpu=is_cpu)
        new = msgspec.structs.replace(new, entries=(fresh,))
    if keeps_times:
        return msgspec.structs.replace(new, entries=(Entry(fresh.kernels, entry.processes),))
    is_same = comparison.identical and old.suite == new.suite and group is not Group.KERNELS
    if not is_same or not are_alike(entry.kernels, fresh.kernels) or is_tuned:
        return new
    moved = {timer for timer, each in times.items() if each.status in _MOVED}
    moved |= {timer for timer, each in times.items() if _is_of_slower_moment(old, new, each)}
    is_same_code = _identities(entry.kernels) == _identities(fresh.kernels) and not is_other_code
    if is_same_code and not moved:
        return None
    return msgspec.structs.replace(new, entries=(_with_times(entry, fresh, moved),))


def _is_of_slower_moment(old: Baseline, new: Baseline, time: Verdict) -> bool:
    """Return whether a time was stored when its host was too slow to be compared with the same host
    now: nothing could be judged by it.
    """
    hosts = {each.host for each in (*old.processes, *new.processes)}
    speeds = [each for each in time.reasons if isinstance(each, e.OtherHostSpeed)]
    return (
        len(hosts) == 1 and None not in hosts and any(it.after_us < it.before_us for it in speeds)
    )


def _identities(kernels: Iterable[KernelRecord]) -> list[KernelIdentity]:
    return [each.identity for each in kernels]


def _with_later_facts(old: Baseline, new: Baseline) -> Baseline:
    """Return a baseline with what a run that differs in nothing knows beyond it: older versions
    recorded less. Times stay.

    What several processes left out may differ from one to the next.
    """
    is_one = len(old.processes) == 1
    names = (*_LATER_FACTS, *(["data"] if is_one else []))
    later = {name: getattr(new, name) for name in names if not getattr(old, name)}
    if new.functions and new.processes[0].timers:  # other code, and no slower
        later["functions"] = new.functions
    if later.get("host_work"):
        later["host_spread"] = new.host_spread
    later["counts"] = msgspec.structs.replace(old.counts, **_unknown(old.counts, new.counts))
    pairs = [pair for each in diff(old.kernels, new.kernels) for pair in each.pairs]
    if is_one and any(_knows_less(*pair) for pair in pairs):
        later["entries"] = (_with_times(old.entry, new.entry, set()),)
    if old.recorded is not None and new.is_compared is not None:
        later["recorded"] = msgspec.structs.replace(old.recorded, compared=new.is_compared)
    return msgspec.structs.replace(old, **later)


def _added(old: Baseline, fuller: Baseline) -> Iterator[e.FileNote]:
    names = set(old.__struct_fields__) - {"host_spread", "recorded"}
    if added := sorted(name for name in names if getattr(fuller, name) != getattr(old, name)):
        yield e.FileNote("facts", after=", ".join(added))


def _knows_less(before: KernelRecord, after: KernelRecord) -> bool:
    """Tell whether a launch lacks what another recorded of the same one."""
    old, new = (arguments_by_name(each.arguments) for each in (before, after))
    has_less = old is None and new is not None
    return has_less or (before.resources is None and after.resources is not None)


def _with_times(entry: Entry, fresh: Entry, moved: set[Timer]) -> Entry:
    """Return the fresh kernels, with the fresh times of the timers that moved.

    The other times stay.
    """
    (process,) = fresh.processes
    processes = (
        *without_times(entry.processes, moved),
        *without_times([process], set(Timer) - moved),
    )
    kernels = fresh.kernels
    if Timer.DEVICE not in moved:
        kernels = tuple(
            msgspec.structs.replace(new, device_time_us=old.device_time_us)
            for each in diff(entry.kernels, fresh.kernels)
            for old, new in zip(each.before, each.after, strict=True)  # none may be lost
        )
    return Entry(kernels, processes or fresh.processes)


def _with_stored_times(entry: Entry, fresh: Entry, *, is_cpu: bool) -> Entry:
    """Return the fresh kernels, with the stored time of each that runs as before: the diff of the
    file shows what changed.

    A time moved if it differs by more than the same kernel's times in two processes do. Times of
    ops on a CPU are not judged.
    """
    known: dict[KernelRecord, KernelRecord] = {}
    for old, new in (it for each in diff(entry.kernels, fresh.kernels) for it in each.pairs):
        moved_us = abs(new.device_time_us - old.device_time_us)
        is_same_time = is_cpu or moved_us <= max(UNCHANGED * old.device_time_us, _CLOCK_STEP_US)
        if is_same_time and new == msgspec.structs.replace(old, device_time_us=new.device_time_us):
            known.setdefault(new, old)
    kernels = tuple(known.get(each, each) for each in fresh.kernels)
    return msgspec.structs.replace(fresh, kernels=kernels)


def _is_stored(process: Process, old: Baseline) -> bool:
    """Return whether a baseline has some times of this process: those that moved, when it was
    accepted.
    """
    alike = (
        each
        for each in old.processes
        if msgspec.structs.replace(each, timers=process.timers) == process
    )
    return any(
        each.timers.items() <= process.timers.items() and (each.timers or not process.timers)
        for each in alike
    )


_Judged = tuple[Anchor, Timer, Decision]


def without_times(processes: Iterable[Process], timers: Iterable[Timer]) -> tuple[Process, ...]:
    """Return processes without the times of these timers, and without those that have no time
    left.
    """
    left_out = set(timers)
    left = (
        msgspec.structs.replace(
            it, timers={name: each for name, each in it.timers.items() if name not in left_out}
        )
        for it in processes
    )
    return tuple(each for each in left if each.timers)


def _judge_anchors(
    run: Run, old: Baseline, context: Context, limits: Limits | None
) -> list[_Judged]:
    """Judge each time of a run by its anchor. On a GPU of the anchor, the reference kernels excuse
    nothing.

    The anchor may be of other software, which may slow them down too.
    """
    if compare_fingerprints(old.fingerprint, run.fingerprint).foreign:
        return []
    alone, found = Context(context.comparisons), list[_Judged]()
    device_us = math.fsum(each.device_time_us for each in run.kernels)
    for anchor in old.anchors:
        is_known = any(each.place == run.place for each in anchor.processes)
        judged = msgspec.structs.replace(run, controls={}) if is_known else run
        for timer in run.judged_timers:
            times_us = [
                each.timers[timer].mean_us for each in anchor.processes if timer in each.timers
            ]
            if not times_us or doubt_of(anchor.processes, run.counts.launches, run, timer):
                continue
            asked = (
                timer,
                is_compared_by_host(timer, run, device_us, times_us),
                gemm_kernel(run.controls),
            )
            sides = times_of(anchor.processes, *asked), [time_of(judged, *asked)]
            found.append(
                (anchor, timer, judge(*sides, alone.prior(timer, run, limits), alone, run=run))
            )
    return found


def _creep(
    judged: Sequence[_Judged], times: Mapping[Timer, Verdict], *, is_written: bool
) -> Iterator[Creep]:
    """Yield the times that are slower than their anchors, where `times`, of the same run, blame no
    machine for it.
    """
    machines = {
        timer
        for timer, it in times.items()
        for why in it.reasons
        if isinstance(why, e.Machine) and why.is_own
    }
    for anchor, timer, decision in judged:
        accepted = anchor.accepted + is_written
        if (
            decision.status is Status.REGRESSED and timer not in machines and accepted > 1
        ):  # a review has shown one step
            yield Creep(timer.label, decision.change.estimate, anchor.at, accepted, anchor.release)


def _with_anchors(new: Baseline, old: Baseline, judged: Sequence[_Judged]) -> Baseline:
    """Return what is written in place of a stored baseline, with its anchors.

    A stored time without an anchor becomes one. With the first run of a new release, so does a time
    that has left its anchor. A time that has not keeps it: slow drift adds up over releases too.
    """
    if compare_fingerprints(old.fingerprint, new.fingerprint).foreign:
        return new
    before = old.recorded.release if old.recorded else None
    release = (new.recorded.release if new.recorded else None) or before
    anchors = list(old.anchors)
    if release != before:
        moved = {
            timer for _, timer, each in judged if each.status in (Status.REGRESSED, Status.IMPROVED)
        }
        anchors = [
            msgspec.structs.replace(each, processes=without_times(each.processes, moved))
            for each in anchors
        ]
    anchored = {timer for each in anchors for process in each.processes for timer in process.timers}
    anchors.append(_anchor(old, [timer for timer in Timer if timer not in anchored], release))
    anchors = [
        msgspec.structs.replace(each, accepted=each.accepted + 1)
        for each in anchors
        if each.processes
    ]
    recorded = msgspec.structs.replace(new.recorded, release=release) if new.recorded else None
    return msgspec.structs.replace(new, anchors=tuple(anchors), recorded=recorded)


def _anchor(old: Baseline, timers: Sequence[Timer], release: str | None) -> Anchor:
    """Return the stored times as an anchor: of each place their mean."""
    found: dict[str | None, dict[Timer, Observation]] = {}
    for timer in timers:
        for group in by_place(old.times(timer)):
            mean = mean_of(on_same_host(group, group[-1]))
            found.setdefault(mean.place, {})[timer] = rounded(mean.observation)
    firsts = {each.place: each for each in reversed(old.processes)}
    processes = (
        msgspec.structs.replace(firsts[place], timers=times) for place, times in found.items()
    )
    return Anchor(old.recorded.at if old.recorded else "", release, 0, tuple(processes))


def _group(
    old: Baseline, run: Run, new: Baseline, comparison: Comparison, times: Sequence[Verdict]
) -> Group:
    if comparison.foreign:
        return Group.NEW
    data = other_data(old.data, new.data)
    found = diff(old.kernels, new.kernels)
    is_placed = placement_changes(found, new.fingerprint, data)
    is_other_work = count_changes(old.counts, new.counts) or is_host_loss(old, run)
    names = [[it.unnumbered for it in _identities(each.kernels)] for each in (old, new)]
    if names[0] != names[1] or is_placed or is_other_work:
        return Group.KERNELS
    if not are_alike(old.kernels, new.kernels) or choice_changes(old, run):
        return Group.CONFIGURATION
    if not times:
        return Group.UNTIMED
    is_same = all(each.status in (Status.PASS, Status.NOT_JUDGED) for each in times)
    # an inconclusive time is not known to be as fast
    return Group.SAME_SPEED if is_same else Group.SPEED


def _summary(run: Run) -> Iterator[Fact]:
    """Yield what a new file has."""
    yield e.FileNote("launches", after=str(run.counts.launches))
    for name in ("graph_breaks", "recompiles"):
        if count := getattr(run.counts, name):
            yield e.FileNote(name, after=str(count))
    if any(text.count(" or ") > 1 for each in run.kernels for text in each.inputs):  # of 3 calls
        yield e.FileNote("unsteady")
    for timer in Timer:
        if timer in run.samples:
            yield e.MeasuredTime(timer.label_on(run.fingerprint), run.time_us(timer))


def _file_notes(old: Baseline, planned: Baseline | None, *, is_timed: bool) -> Iterator[Fact]:
    if planned is None:
        yield e.FileNote("unchanged" if is_timed else "untimed")
        return
    if old.suite != planned.suite:
        yield e.Move("suite", old.suite, planned.suite)
    sides = old.is_compared, planned.is_compared
    if sides[0] != sides[1] and (sides[0] is not None or old.entries is planned.entries):
        yield e.FileNote("result", *map(_COMPARED.__getitem__, sides))
    known, left = (
        Counter(timer for each in side.processes for timer in each.timers)
        for side in (old, planned)
    )
    fewer = [timer for timer in Timer if 0 < left[timer] < known[timer]]
    if fewer:  # to measure them takes minutes
        timer = min(fewer, key=lambda it: left[it] - known[it])
        yield e.FileNote("fewer processes", str(known[timer]), str(left[timer]))
    dropped = [timer for timer in Timer if known[timer] and not left[timer]]
    for timers in (CALL_TIMERS, COMPILE_TIMERS):
        if labels := [it.label_on(old.fingerprint) for it in dropped if it in timers]:
            yield e.FileNote("times", after=", ".join(labels))


def _host_doubts(old: Baseline, new: Baseline) -> Iterator[e.OtherHostSpeed]:
    """Yield how slow the host was, where it was much slower: what is recorded on such a host hides
    regressions.
    """
    (process,) = new.processes
    alike = (each for each in old.processes if each.place == process.place)
    usual_us = max((us for each in alike for us in each.host_references_us.values()), default=0.0)
    now_us = max(process.host_references_us.values(), default=0.0)
    if usual_us and now_us > _DISTURBED_HOST_FACTOR * usual_us:
        yield e.OtherHostSpeed(usual_us, now_us)


def with_runs(
    old: Baseline | BaselineError | None,
    runs: Sequence[Run],
    *,
    suite: str,
    recorded: Recorded | None,
    context: Context,
    limits: Limits | None = None,
) -> Baseline | NotAdded:
    """Return the baseline with those processes of the runs that it lacks. The arguments are those
    of `review_run`.

    What it does not know of the workload, it takes from the newest run: a memory peak by line, say.
    `NotAdded`: adding it would make noise of a change, or the runs differ among themselves.
    """
    if isinstance(old, BaselineError):
        return NotAdded((e.RunDoubt("error", f"the stored file cannot be used: {old.one_line}"),))
    alone = ((run, from_run(run, suite=suite, recorded=recorded)) for run in runs)
    added = [
        (run, new) for run, new in alone if old is None or not _is_stored(new.processes[0], old)
    ]
    if old is not None and not added:
        return old
    for run, _ in added:  # what is beside the newest one shows the machine of its run only
        asked = context.of_each(added, with_others=run is runs[-1])
        if old is not None and (differs := tuple(_differences(old, run, asked, limits))):
            return NotAdded(differs)
    try:
        joined = combined([new for _, new in added])
    except ValueError as error:
        return NotAdded((e.RunDoubt("error", str(error)),))
    if old is None:
        return joined
    recorded = max(filter(None, (old.recorded, recorded)), key=lambda each: each.at, default=None)
    entries, (_, newest) = (joined_entry([old.entry, joined.entry]),), added[-1]
    counts = msgspec.structs.replace(old.counts, **_unknown(old.counts, newest.counts))
    work, spread = joined_work(
        [(each.host_work, each.host_spread) for each in (old, *(new for _, new in added))]
    )
    fields = _unknown(old, newest) | {"entries": entries, "recorded": recorded, "counts": counts}
    fields |= {"host_work": work, "host_spread": spread, "functions": joined.functions}
    judged = _judge_anchors(runs[-1], old, context, limits)
    return _with_anchors(msgspec.structs.replace(old, **fields), old, judged)


def _unknown(old: Counts | Baseline, new: Counts | Baseline) -> dict[str, object]:
    """Return the fields that `old` lacks, as an older version or a run without a timer leaves
    them.
    """
    return {
        name: known
        for name, known in msgspec.structs.asdict(new).items()
        if getattr(old, name) in (None, (), {})
    }


def _differences(
    old: Baseline, run: Run, context: Context, limits: Limits | None
) -> Iterator[Fact]:
    """Yield what differs by more than noise."""
    comparison = compare_fingerprints(old.fingerprint, run.fingerprint)
    yield from comparison.moves
    if why := stored_doubt(old, run):
        yield e.ImpossibleTime("a stored time", why)
    if comparison.foreign:
        return
    structure = judge_structure(run, old)
    if structure.status is not Status.PASS:
        yield from [each for each in structure.reasons if isinstance(each, e.CountMoved)] or (
            structure,
        )
    if not are_alike(old.kernels, run.kernels):
        moved: Sequence[Fact] = choice_changes(old, run)
        yield from moved or (e.RunDoubt("other source"),)
    elif _identities(old.kernels) != _identities(run.kernels):
        yield e.RunDoubt("other source")
    for verdict in _time_verdicts(old, run, context, limits).values():
        # the reference kernels
        moved = [each for each in verdict.reasons if isinstance(each, e.Machine)]
        more_would_help = any(isinstance(each, e.Next) for each in verdict.reasons)
        if verdict.status in (Status.REGRESSED, Status.IMPROVED):
            yield verdict
        elif moved:
            yield from moved
        elif verdict.status is Status.UNDECIDED and not more_would_help:
            yield verdict
