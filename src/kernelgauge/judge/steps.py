"""The verdicts on the steady steps of traces, by a baseline of traces of the same job."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from statistics import fmean, median
from typing import NamedTuple, TypeAlias

import msgspec

from ..run import KERNELS_OF_STEP, STEP, Observation, ProcessTime, Timing
from ..trace import (
    COPIES,
    CPU,
    MOST_OUTSIDE,
    WAIT,
    Kind,
    Place,
    RowDifference,
    StepRow,
    decode,
    diff_rows,
    grouped,
    origin_at,
)
from . import STRUCTURE, WORST_FIRST, Status, Verdict
from . import evidence as e
from .cause import order_causes, with_code
from .time_verdict import Context, judge
from .timing import FALSE_ALARMS_PER_RUN, NOISES, Decision, Prior
from .trace_baseline import Job, StepRange, TraceBaseline, observed

# Kernels of unchanged jobs lie so many times as far apart between runs as is expected, in the
# median of DDP (docs/design/public-traces.md). One run has not shown it.
_ONE_RUN = 3.0
_LEAST_SHARE = 0.01  # of all kernels, which one that is slower must cost, or a phase
_MOST_SPEEDS, _MOST_OPS = 3, 2  # kernels named for a slower step, and ops for other kernels
_LOST_OVERLAP = 0.25  # of the least share of the communication that a run of the baseline had
_MORE_LAG = 2.0  # of the most that a run of the baseline had
_NOT_TIMED = (Kind.COMMUNICATION.value, WAIT)


@dataclass(frozen=True)
class _RankSteps(RowDifference):
    """The runs of a rank beside its baseline, for a kind of step."""

    name: str  # of the job, and the kind
    rank: int
    usual: StepRange
    baseline: TraceBaseline
    ranks: Sequence[_RankSteps]  # all of this kind, and this one

    @property
    def title(self) -> str:
        return f"{self.name}, rank {self.rank}" if len(self.baseline.ranks) > 1 else self.name

    @cached_property
    def alike(self) -> list[_RankSteps]:
        """Return the ranks that run the same kernels as often: this one, and others."""
        return [each for each in self.ranks if _ranges(each.usual) == _ranges(self.usual)]


def _ranges(usual: StepRange) -> set[tuple[int, int, int]]:
    return {(each.row, each.low, each.high) for each in usual.rows}


def _by_kind(name: str, jobs: Sequence[Job], baseline: TraceBaseline) -> list[list[_RankSteps]]:
    """Return for each kind of step that both have its ranks."""
    found: dict[str, list[_RankSteps]] = defaultdict(list)
    for rank, kinds in baseline.ranks.items():
        for kind, usual in kinds.items():
            if runs := [job[rank].steps[kind] for job in jobs if kind in job[rank].steps]:
                rows = diff_rows({baseline.rows[each.row]: each for each in usual.rows}, runs)
                title, same = f"{name} {kind}".strip(), found[kind]
                same.append(
                    _RankSteps(
                        **vars(rows),
                        name=title,
                        rank=rank,
                        usual=usual,
                        baseline=baseline,
                        ranks=same,
                    )
                )
    return list(found.values())


def judge_traces(name: str, jobs: Sequence[Job], baseline: TraceBaseline) -> list[Verdict]:
    """Judge the runs of a job by its baseline: structure, GPU time, overlap and the time of a step,
    for each kind of step.
    """
    verdicts: list[Verdict] = []
    shared = _by_kind(name, jobs, baseline)
    comparisons = sum(map(len, shared))
    for pairs in shared:
        overlap = _worst(map(_judge_overlap, pairs))
        time = _worst(_judge_time(pair, comparisons) for pair in pairs)
        if time and time.status is Status.IMPROVED and overlap and overlap.status.fails:
            why = e.NotImproved("communication", overlap.status.value)
            time = replace(time, status=Status.PASS).because(why)
        step = _judge_step(pairs, comparisons)
        structure = _judge_structure(pairs, jobs, [time, step])
        verdicts += filter(None, (structure, overlap, time, step))
    known = dict.fromkeys(kind for of_rank in baseline.ranks.values() for kind in of_rank)
    kinds = dict.fromkeys(kind for job in jobs for trace in job.values() for kind in trace.steps)
    notes = {
        "new": [kind for kind in kinds if kind not in known],
        "gone": [kind for kind in known if kind not in kinds],
        "unknown": dict.fromkeys(
            each for job in jobs for trace in job.values() for each in trace.unknown
        ),
    }
    reasons = [e.InTrace(what, tuple(names)) for what, names in notes.items() if names]  # type: ignore[arg-type]
    outside = max(
        (trace.outside for job in jobs for trace in job.values()),
        key=attrgetter("share", "launches"),
    )
    reasons += [e.InTrace("outside", numbers=outside)] if outside.launches else []
    if (
        verdicts
        and verdicts[0].status in (Status.PASS, Status.IMPROVED)
        and _are_other_kinds(jobs, baseline)
    ):
        verdicts[0] = replace(
            verdicts[0], status=Status.CHANGED, conclusion=e.StructureCompared("kinds of steps")
        )
    return [verdicts[0].because(*reasons), *verdicts[1:]] if verdicts else []


def _are_other_kinds(jobs: Sequence[Job], baseline: TraceBaseline) -> bool:
    """Whether kinds of steps that one side lacks hold too much of its GPU time to leave them
    unjudged.
    """
    for rank, then in baseline.ranks.items():
        then_us = {
            kind: each.steps * fmean(one.mean_us for one in each.compute)
            for kind, each in then.items()
        }
        for now in (job[rank].steps for job in jobs if rank in job):
            now_us = {kind: math.fsum(each.compute_us) for kind, each in now.items()}
            for us, others in ((now_us, then_us), (then_us, now_us)):
                if math.fsum(
                    us[kind] for kind in us.keys() - others.keys()
                ) > MOST_OUTSIDE * math.fsum(us.values()):
                    return True
    return False


def _worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the verdict on the rank that fares worst."""
    return min(
        filter(None, verdicts),
        key=lambda each: (
            WORST_FIRST.index(each.status),
            -each.change.estimate if each.change else 0.0,
        ),
        default=None,
    )


# how many more in a step, in how many steps, of how many
_Moved: TypeAlias = dict[StepRow, tuple[int, int, int]]


def _judge_structure(
    pairs: Sequence[_RankSteps], jobs: Sequence[Job], times: Sequence[Verdict | None]
) -> Verdict:
    places: dict[StepRow, Counter[Place]] = defaultdict(Counter)
    for pair in pairs:
        for job in jobs:
            for row, at in job[pair.rank].places.items():
                before = pair.renamed.get(row, row)
                places[pair.relocated.get(before, before)].update(at)
    groups: dict[tuple[tuple[int, ...], str, str], _Moved] = defaultdict(dict)
    by_row: dict[StepRow, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    rare: dict[StepRow, None] = {}
    for pair in pairs:
        moved, seldom = _moved_rows(pair)
        rare |= dict.fromkeys(seldom)
        for row, each in moved.items():
            by_row[row][pair.rank] = each
    for row, of_ranks in by_row.items():
        groups[tuple(of_ranks), row.phase, row.module][row] = next(iter(of_ranks.values()))
    found: list[tuple[e.Cause, e.InTrace]] = []
    for (ranks, phase, module), moved in groups.items():
        cause = _cause(moved, places, next(pair for pair in pairs if pair.rank == ranks[0]))
        _, steps, of = max(moved.values(), key=lambda each: each[1])
        where = tuple(filter(None, (phase, module))), ranks if len(pairs) > 1 else (), (steps, of)
        found.append((cause, e.InTrace("where", *where)))
    ordered = order_causes(cause for cause, _ in found)
    found.sort(key=lambda pair: ordered.index(pair[0]))
    reasons = [
        *chain.from_iterable(found),
        *([e.InTrace("seldom", tuple(map(_shown, rare)))] if rare else []),
    ]
    reasons += dict.fromkeys(chain.from_iterable(map(_other_places, pairs)))
    reasons += dict.fromkeys(_other_choices(pairs))
    launches = sum(each[0] for rows in groups.values() for each in rows.values())
    is_loss = launches > 0 or any(
        each is not None and each.status is Status.REGRESSED for each in times
    )
    status = Status.PASS if not found else Status.REGRESSED if is_loss else Status.CHANGED
    are_other = any(isinstance(cause.change, e.OtherKernels) for cause, _ in found)
    return Verdict(
        status, pairs[0].name, STRUCTURE, e.StructureCompared("kernels" if are_other else "")
    ).because(*reasons)


def _other_choices(pairs: Sequence[_RankSteps]) -> Iterator[e.InTrace]:
    """Yield the kernels that some ranks run with other blocks than most: autotuners disagreed."""
    threads: dict[StepRow, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for pair in pairs:
        for row, sizes in chain.from_iterable(run.threads.items() for run in pair.runs):
            threads[row][pair.rank] |= sizes
    for row, of_ranks in threads.items():
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, sizes in of_ranks.items():
            groups[tuple(sorted(sizes))].append(rank)
        (usual, most), *others = sorted(groups.items(), key=lambda each: -len(each[1]))
        for own, ranks in others:
            if len(own) == len(usual) == 1:  # else a rank runs it for several sizes
                yield e.InTrace("blocks", (_shown(row),), tuple(ranks), (*own, *usual, len(most)))


def _without_same_end(before: str, after: str) -> tuple[str, str]:
    """Return two paths of modules without what both have inside of the renamed one."""
    (old, _, inner), (new, _, other) = before.rpartition("."), after.rpartition(".")
    return _without_same_end(old, new) if old and new and inner == other else (before, after)


def _other_places(pair: _RankSteps) -> Iterable[e.InTrace]:
    """Yield what is in another place than in the baseline, and no change."""
    for row, old in pair.renamed.items():
        if old.phase != row.phase:
            yield e.InTrace("phase", (old.phase, row.phase))
        if old.module != row.module:
            yield e.InTrace("module", _without_same_end(old.module, row.module))
    for row in dict.fromkeys(pair.relocated.values()):
        if pair.counts[0][row] == pair.before[row].low:
            yield e.InTrace("moved", (_shown(row), *filter(None, row.place)))


def _moved_rows(pair: _RankSteps) -> tuple[_Moved, list[StepRow]]:
    """Return the rows that ran more or less often than they may, and those that did in a few steps
    only.
    """
    counts, ranges = pair.counts, pair.before
    varying = {row for row in ranges if not row.name}
    deltas: dict[StepRow, list[int]] = defaultdict(list)
    for step in counts:
        rows: Counter[StepRow] = Counter()
        for row, count in step.items():
            rows[row.slot if row.slot in varying else row] += count
        for row in dict.fromkeys(
            (*rows, *(row for row in ranges if row in varying or row.slot not in varying))
        ):
            low, high = (ranges[row].low, ranges[row].high) if row in ranges else (0, 0)
            room = high - low
            if delta := rows[row] - max(low - room, min(high + room, rows[row])):
                deltas[row].append(delta)
    of, every = len(counts), pair.usual.steps + len(counts)
    seldom = [
        row
        for row, each in deltas.items()
        if 2 * len(each) <= of and _may_be_chance(len(each), of, every)
    ]
    number = sum(abs(delta) for row in seldom for delta in deltas[row])
    us = math.fsum(
        us
        for run in pair.runs
        for row, us in run.row_us.items()
        if row in seldom or (row.slot in seldom and row not in ranges)
    )
    launches = sum(step.total() for step in counts)
    time_us = math.fsum(chain(*(run.compute_us for run in pair.runs)))
    if number > MOST_OUTSIDE * launches or us > MOST_OUTSIDE * time_us:  # too much to leave it out
        seldom = []
    moved = {
        row: (round(median(each)) or each[0], len(each), of)
        for row, each in deltas.items()
        if row not in seldom
    }
    return moved, seldom


def _may_be_chance(some: int, of: int, every: int) -> bool:
    """Tell whether what some steps do and none of a baseline may be seen in unchanged code: all of
    them are among the last `of` of `every` step.
    """
    return math.comb(of, some) / math.comb(every, some) > FALSE_ALARMS_PER_RUN


def _observed(times_us: Sequence[float], usual: Sequence[Observation]) -> Observation:
    """Return the mean and the spread of the times of steps.

    If some take longer than any of the baseline, and not by chance, their scatter is the change and
    no noise: then the spread is that of the baseline. No value of several lies further from their
    mean than their spread times (n - 1) / √n (Samuelson, "How deviant can you be?", 1968).
    """
    longest_us = max(
        each.mean_us * math.exp((each.spread or 0) * (each.replicates - 1) / each.replicates**0.5)
        for each in usual
    )
    slower, count = sum(us > longest_us for us in times_us), len(times_us)
    found = observed(times_us)
    if _may_be_chance(slower, count, count + sum(each.replicates for each in usual)):
        return found
    spread = min(found.spread or 0, max(each.spread or 0 for each in usual))
    return msgspec.structs.replace(found, spread=spread)


def _shown(row: StepRow) -> str:
    if row.kind in (WAIT, Kind.COMMUNICATION.value, *COPIES):
        return row.name or f"{row.kind} by {row.op}"
    return (
        decode(row.name).short
        if row.name
        else f"{row.kind} kernels{f' by {row.op}' if row.op else ''}"
    )


def _cause(moved: _Moved, places: Mapping[StepRow, Counter[Place]], pair: _RankSteps) -> e.Cause:
    """Return what took the place of what, what it costs a step, and where it comes from."""
    before_us, after_us = map(fmean, pair.times_us([row for row in moved if row.kind != WAIT]))
    delta_us = after_us - before_us
    sides = [
        {row: abs(each[0]) for row, each in moved.items() if (each[0] > 0) is is_new}
        for is_new in (False, True)
    ]
    kernels = [
        {row: n for row, n in side.items() if row.kind not in (WAIT, *COPIES)} for side in sides
    ]
    old, new = (_counted(side.items()) for side in kernels)
    dtypes = [
        tuple(sorted({decode(row.name).dtype or "" for row in side} - {""})) for side in kernels
    ]
    waits, copies = (
        _counted((row, n) for row, n in sides[1].items() if row.kind in kinds)
        for kinds in ((WAIT,), COPIES)
    )
    change: e.Change | None = None
    if old or new:
        ops = tuple(dict.fromkeys(row.op for row in kernels[1] or kernels[0] if row.op))[:_MOST_OPS]
        change = e.OtherKernels("replaced", old, new, dtypes=(dtypes[0], dtypes[1]), ops=ops)
    elif not waits and not copies:
        change = e.OtherOps((), _counted(sides[0].items()))
    shown_us = delta_us if old or new else None
    cause = e.Cause(
        change, waits, copies, had_kernels=bool(old), delta_us=shown_us, weight_us=abs(delta_us)
    )
    origins = [
        origin_at(module, frame)
        for row in sides[1] or sides[0]
        for module, frame in places.get(row, ())
    ]
    return with_code(cause, origins)


def _counted(rows: Iterable[tuple[StepRow, int]]) -> e.Counted:
    found: Counter[str] = Counter()
    for row, count in rows:
        found[_shown(row)] += count
    return tuple(found.items())


class PhaseCompared(NamedTuple):
    """Kernels of a step on one rank: all of them, or those of a phase."""

    phase: str
    verdict: Verdict  # on their time
    # How often each ran in the baseline and its time there, and both now, in the mean; the largest
    # change of a time first.
    rows: Sequence[tuple[StepRow, tuple[int, int], float, float, float]]


def compare_phases(name: str, jobs: Sequence[Job], baseline: TraceBaseline) -> list[PhaseCompared]:
    """Return what `judge_traces` judges of the time of kernels, for a page."""
    shared, found = _by_kind(name, jobs, baseline), []
    for pair in chain.from_iterable(shared):
        for phase, rows, verdict in _judge_phases(pair, sum(map(len, shared))):
            seen = []
            for row in rows:
                old = pair.before.get(row)
                now = fmean(step[row] for step in pair.counts)
                before_us, after_us = map(fmean, pair.times_us([row]))
                seen.append((row, (old.low, old.high) if old else (0, 0), before_us, now, after_us))
            seen.sort(key=lambda each: -abs(each[4] - each[2]))
            found.append(PhaseCompared(phase or "no phase", verdict, seen))
    return found


def _judge_time(pair: _RankSteps, comparisons: int) -> Verdict | None:
    """Judge the time of the kernels of a step: all together, each phase and each kernel.

    Communication is no part of it.
    """
    judged = _judge_phases(pair, comparisons)
    if not judged:
        return None
    (_, every, whole), *phases = judged
    copies = [row for row in pair.before if row.kind in COPIES and row.name]
    same = {row: each.low for row, each in pair.before.items() if each.low == each.high}
    steady = [
        row
        for row in (*every, *copies)
        if row in same and all(step[row] == same[row] for step in pair.counts)
    ]
    parts = [*((row.phase, [row], None) for row in steady), *phases]
    causes: dict[str, list[e.Cause]] = defaultdict(list)  # by phase
    for phase, rows, verdict in parts:
        before_us, after_us = map(fmean, pair.times_us(rows))
        delta_us = after_us - before_us
        is_small = delta_us <= max(
            _LEAST_SHARE * (whole.before_us or 0.0), KERNELS_OF_STEP.gate * before_us
        )
        if is_small or (verdict and causes[phase]):  # its kernels say more
            continue
        spread = pair.before[rows[0]].spread if verdict is None else 0.0
        part = verdict or _judge_part(pair, rows, comparisons * len(steady), spread=spread)
        if part is not None and part.status is Status.REGRESSED:
            counts = _counted(
                (row, round(fmean(step[row] for step in pair.counts))) for row in rows
            )
            speed = e.OtherSpeed(
                counts, before_us, after_us, _other_blocks(pair, rows) if verdict is None else ()
            )
            causes[phase].append(
                e.Cause(speed, delta_us=delta_us, weight_us=delta_us, had_kernels=True)
            )
    ordered = order_causes(chain.from_iterable(causes.values()))
    return (
        replace(whole, status=Status.REGRESSED).because(*ordered[:_MOST_SPEEDS])
        if ordered
        else whole
    )


def _other_blocks(pair: _RankSteps, rows: Iterable[StepRow]) -> tuple[e.Move, ...]:
    """Return the threads of a block, before and after, if an autotuner chose others."""
    old = {each for row in rows if row in pair.before for each in pair.before[row].threads}
    new = {each for row in rows for run in pair.runs for each in run.threads.get(row, ())}
    texts = [", ".join(map(str, sorted(side))) for side in (old, new)]
    return (e.Move("threads of a block", *texts),) if old and new and old != new else ()


def _judge_phases(
    pair: _RankSteps, comparisons: int
) -> list[tuple[str, Sequence[StepRow], Verdict]]:
    """Return the verdict on the kernels of a step, and those on each phase that has some before and
    after.
    """
    ran = dict.fromkeys((*pair.before, *(row for run in pair.runs for row in run.row_us)))
    rows = [row for row in ran if row.name and row.kind not in _NOT_TIMED]
    kernels, phases = (
        [row for row in rows if row.kind not in COPIES],
        grouped(rows, attrgetter("phase")),
    )
    judged = [("step", kernels, _judge_part(pair, kernels, comparisons, is_whole=True))]
    for phase, some in phases.items() if len(phases) > 1 else ():
        judged.append((phase, some, _judge_part(pair, some, comparisons * len(phases))))
    return [(phase, some, verdict) for phase, some, verdict in judged if verdict is not None]


def _judge_part(
    pair: _RankSteps,
    rows: Sequence[StepRow],
    comparisons: int,
    *,
    is_whole: bool = False,
    spread: float = 0.0,
) -> Verdict | None:
    """Judge the time of some kernels, with the spread that all have between steps. None: there are
    none before, or after.

    The rank that waits for others computes slower, beside its collectives, and ranks change places.
    So a slower rank must be slower than all ranks of the baseline that run the same kernels, too.
    The mean over these ranks does not depend on the rank that waits: it is judged too, if the
    baseline has several runs. `spread`: of a kernel between steps. Attention takes as long as its
    requests are, and other runs have others in their steps: its mean may differ as its steps do.
    """

    def times(whole: Iterable[Observation], us: Iterable[float]) -> list[ProcessTime]:
        pairs = zip(whole, us, strict=False)
        return [
            ProcessTime(msgspec.structs.replace(one, mean_us=max(mean, 1e-3)))
            for one, mean in pairs
        ]

    def times_us(each: _RankSteps) -> tuple[list[float], list[float]]:
        if not is_whole:
            return each.times_us(rows)
        return [one.mean_us for one in each.usual.compute], [
            observed(run.compute_us).mean_us for run in each.runs
        ]

    if not all(chain.from_iterable(pair.times_us(rows))):
        return None
    own, now = times_us(pair), [_observed(run.compute_us, pair.usual.compute) for run in pair.runs]
    after = times(now, own[1])
    prior = _prior(KERNELS_OF_STEP, spread, factor=_ONE_RUN if pair.baseline.runs == 1 else 1.0)
    judge_part = partial(judge, prior=prior, context=Context(comparisons, is_alone=True))
    decision = judge_part(times(pair.usual.compute, own[0]), after)
    if decision.status is Status.REGRESSED:
        before = [
            one for each in pair.alike for one in times(each.usual.compute, times_us(each)[0])
        ]
        decision = judge_part(before, after)
    if decision.status is not Status.REGRESSED and len(pair.alike) > 1 and pair.baseline.runs > 1:
        sides = zip(*map(times_us, pair.alike), strict=True)
        old_us, new_us = ([fmean(ranks) for ranks in zip(*side, strict=False)] for side in sides)
        of_all = judge_part(times(pair.usual.compute, old_us), times(now, new_us))
        if of_all.status is Status.REGRESSED:
            return replace(_timed(pair, of_all), workload=pair.name)
    return _timed(pair, decision)


def _prior(timing: Timing, spread: float = 0.0, *, factor: float = 1.0) -> Prior:
    """Return what to expect of a time that spreads so far between steps itself."""
    noise = NOISES[timing.noise]
    noise = msgspec.structs.replace(noise, process=math.hypot(factor * noise.process, spread))
    return Prior(noise, timing.gate, timing.sensitivity, FALSE_ALARMS_PER_RUN)


def _timed(pair: _RankSteps, decision: Decision, timing: Timing = KERNELS_OF_STEP) -> Verdict:
    """Return the verdict on a time.

    That of a CPU is the host's, and no reference says how fast the host was.
    """
    is_cpu, status, doubt = pair.baseline.device.startswith(CPU), decision.status, decision.doubt
    if is_cpu and status is not Status.PASS:
        status, doubt = Status.NOT_JUDGED, e.NoHostReference("run")
    times_us = decision.before_us, decision.after.observation.mean_us
    label, conclusion = (is_cpu and timing.on_cpu) or timing.label, e.TimeCompared(doubt=doubt)
    return Verdict(status, pair.title, label, conclusion, (), *times_us, change=decision.change)


def _shares(communication_us: Sequence[float], exposed_us: Sequence[float]) -> list[float]:
    return [
        1 - alone / total
        for total, alone in zip(communication_us, exposed_us, strict=True)
        if total > 0
    ]


def _judge_overlap(pair: _RankSteps) -> Verdict | None:
    """Judge how much of the communication ran beside other kernels, and whether it was launched
    early enough to.

    A rank that waits for another one computes less beside its collectives. One run has not shown
    whether ranks do: then all that run the same kernels must have lost their overlap.
    """
    runs, usual = pair.runs, pair.usual
    before = [
        share
        for each in pair.alike
        for share in _shares(each.usual.communication_us, each.usual.exposed_us)
    ]
    after = _shares_now(pair)
    behind = [each for run in runs for each in run.behind]
    low, high = usual.behind
    if not (after or before or any(behind) or high):
        return None
    is_late = sum(each < low - (high - low) for each in behind) * 2 > len(behind)
    exposed_us = fmean(usual.exposed_us), fmean(median(run.exposed_us) for run in runs)
    # Collectives of a CPU run in threads, which have no rows of ops.
    is_known = before and after and not pair.baseline.device.startswith(CPU)
    least_and_now = (min(before), median(after)) if is_known else (None, None)
    ranks = pair.alike if pair.baseline.runs == 1 else [pair]
    is_lost = (
        is_known
        and all(
            median(shares) < _LOST_OVERLAP * min(before)
            for shares in map(_shares_now, ranks)
            if shares
        )
        and exposed_us[1] > exposed_us[0]  # else less of it is left, beside other kernels too
    )
    compared = e.OverlapCompared(
        pair.rank, (low, high), round(median(behind)), *exposed_us, *least_and_now
    )
    status = Status.REGRESSED if is_lost else Status.CHANGED if is_late else Status.PASS
    return Verdict(status, pair.name, "communication", compared)


def _shares_now(pair: _RankSteps) -> list[float]:
    """Return the overlap of each run of a rank."""
    each = (_shares(run.communication_us, run.exposed_us) for run in pair.runs)
    return [median(shares) for shares in each if shares]


def _judge_step(pairs: Sequence[_RankSteps], comparisons: int) -> Verdict:
    """Judge the time of a step, on the slowest rank of each run.

    Name the rank that the others wait for.
    """
    before = zip(*(pair.usual.wall for pair in pairs), strict=False)
    after = zip(*([observed(run.wall_us) for run in pair.runs] for pair in pairs), strict=False)
    old, new = (
        [ProcessTime(max(ranks, key=attrgetter("mean_us"))) for ranks in runs]
        for runs in (before, after)
    )
    decision = judge(old, new, _prior(STEP), Context(comparisons, is_alone=True))
    if decision.status is Status.UNDECIDED:  # by a host that nobody asked to be steady
        decision = replace(decision, status=Status.NOT_JUDGED)
    judged = replace(_timed(pairs[0], decision, STEP), workload=pairs[0].name)
    # The rank that others wait for spends the least time in collectives.
    now = {pair.rank: fmean(median(run.communication_us) for run in pair.runs) for pair in pairs}
    then = zip(*(pair.usual.communication_us for pair in pairs), strict=False)
    usual_us, lag_us = (
        max(max(each) - min(each) for each in then),
        max(now.values()) - min(now.values()),
    )
    if lag_us <= _MORE_LAG * usual_us:
        return judged
    return judged.because(
        e.InTrace("straggler", (), (min(now, key=lambda rank: now[rank]),), (usual_us, lag_us))
    )
