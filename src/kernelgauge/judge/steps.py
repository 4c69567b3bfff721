"""What the steady steps of traces showed, as a baseline, and the verdicts on other traces of the same job."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median, stdev
from typing import Final, Literal, TypeAlias

import msgspec

from ..errors import BaselineError
from ..run import Observation, Origin, ProcessTime, SourceLine
from ..trace.model import FRAME
from ..trace.names import Kind, decode
from ..trace.steps import CPU, WAIT, Place, StepRow, Steps, StepTrace, alike
from . import STRUCTURE, Status, Verdict
from . import evidence as e
from .baseline import Recorded, layout
from .cause import order_causes, with_code
from .timing import FALSE_ALARMS_PER_RUN, Decision, Prior, Spreads, decide

TRACE_SCHEMA: Final = 1
Job: TypeAlias = Mapping[int, StepTrace]  # the traces of one run, by rank

# Times of kernels in a profile, between processes on one GPU: 0.15 to 0.9 % on H200s (docs/design/times.md).
_PROCESS, _DOF = 0.01, 4.0
_ONE_STEP = 0.02  # spread between steps where there is but one
_GATE = 0.02  # of all kernels
_GATE_OF_KERNEL, _LEAST_SHARE = 0.10, 0.01  # of one, which must cost this share of all
_LARGEST_MISSED = 1.0  # slowdown: what is blind to more is inconclusive
_MOST_SPEEDS, _MOST_OPS = 3, 2  # kernels named for a slower step, and ops for other kernels
_LIKELY = 0.01  # odds of steps that differ among those of unchanged code
_LEAST_OVERLAP, _LOST_OVERLAP = 0.1, 0.5  # of the communication; of the least that a run of the baseline had
_LEAST_LAG, _MORE_LAG = 0.05, 2.0  # of a step; of the most that a run of the baseline had
_NOT_TIMED = (Kind.COMMUNICATION.value, WAIT)
_COPIES = (Kind.MEMSET.value, Kind.MEMCPY.value)


# -- the baseline -----------------------------------------------------------------------------------------------------


class RowRange(msgspec.Struct, frozen=True, array_like=True):
    """Of launches that are counted together, in a step: the fewest, the most, and the mean time in each run."""

    row: int  # its place among the rows of the file
    low: int
    high: int
    us: tuple[float, ...]


class StepRange(msgspec.Struct, frozen=True):
    """The steady steps of one kind on one rank. Tuples of times have one element for each run."""

    steps: int
    wall_us: tuple[float, ...]
    compute: tuple[Observation, ...]
    communication_us: tuple[float, ...]
    exposed_us: tuple[float, ...]
    behind: tuple[int, int]  # the fewest and the most, see `Steps.behind`
    rows: tuple[RowRange, ...]


class TraceBaseline(msgspec.Struct, frozen=True):
    """One file of `baselines/traces/`."""

    schema_version: Literal[1]
    device: str
    world_size: int | None
    found_by: str
    runs: int
    recorded: Recorded
    rows: tuple[StepRow, ...]
    ranks: dict[int, dict[str, StepRange]]  # by kind of step


def decode_trace_baseline(content: bytes, *, where: str) -> TraceBaseline:
    """Parse a baseline. Raises `BaselineError`."""
    try:
        found = msgspec.json.decode(content, type=TraceBaseline)
        if not found.ranks or any(each.row >= len(found.rows) for kinds in found.ranks.values()
                                  for steps in kinds.values() for each in steps.rows):  # fmt: skip
            raise ValueError("no ranks, or a row that is not in the list")
        return found
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        expected = f"what `kernelgauge check --update` writes, schema_version {TRACE_SCHEMA}"
        raise BaselineError("not a baseline of traces", where=where, got=str(error), expected=expected) from error


def encode_trace_baseline(baseline: TraceBaseline) -> bytes:
    """Return JSON with a line for each row."""
    return layout(msgspec.to_builtins(baseline, str_keys=True)).encode() + b"\n"


def trace_baseline(jobs: Sequence[Job], recorded: Recorded) -> TraceBaseline:
    """Make a baseline of the runs of unchanged code: all have the same ranks. Raises `ValueError` if their kernels are others."""
    first = next(iter(jobs[0].values()))
    numbers: dict[StepRow, int] = {}
    ranks: dict[int, dict[str, StepRange]] = {}
    for rank in jobs[0]:
        kinds = dict.fromkeys(kind for job in jobs for kind in job[rank].steps)
        ranks[rank] = {kind: _range([job[rank].steps[kind] for job in jobs if kind in job[rank].steps], numbers)
                       for kind in kinds}  # fmt: skip
    return TraceBaseline(
        TRACE_SCHEMA, first.device, first.world_size, first.found_by, len(jobs), recorded, tuple(numbers), ranks
    )


def _range(runs: Sequence[Steps], numbers: dict[StepRow, int]) -> StepRange:
    usual = [
        Counter[StepRow](
            {row: 100 * sum(n for n, _ in steps.values()) // len(run.names) for row, steps in run.rows.items()}
        )
        for run in runs
    ]
    if not all(alike(usual[0], each) for each in usual):
        raise ValueError("half of the kernels of one are not in another")
    counts = _step_counts(runs)
    rows = list(dict.fromkeys(row for each in counts for row in each))
    slots = Counter(_slot(row) for row in rows if len({each[row] for each in counts}) > 1)
    found = []
    for row in [*rows, *slots]:  # a slot in which counts vary has a row of its own, for the sum
        seen = [each[row] for each in counts]
        if not row.name:
            seen = [sum(n for other, n in each.items() if _slot(other) == row) for each in counts]
        times = tuple(round(_row_us(run, row), 3) for run in runs)
        found.append(RowRange(numbers.setdefault(row, len(numbers)), min(seen), max(seen), times))
    behind = [each for run in runs for each in run.behind]
    names = ("wall_us", "communication_us", "exposed_us")
    times_us = {name: tuple(round(median(getattr(run, name)), 3) for run in runs) for name in names}
    ends, compute = (min(behind), max(behind)), tuple(map(_observation, runs))
    return StepRange(steps=len(counts), compute=compute, behind=ends, rows=tuple(found), **times_us)


def _slot(row: StepRow) -> StepRow:
    return row._replace(name="")


def _step_counts(runs: Iterable[Steps]) -> list[Counter[StepRow]]:
    """Return for each step how often each row ran."""
    found: list[Counter[StepRow]] = []
    for run in runs:
        counts: list[Counter[StepRow]] = [Counter() for _ in run.names]
        for row, steps in run.rows.items():
            for number, (count, _) in steps.items():
                counts[number][row] = count
        found += counts
    return found


def _row_us(run: Steps, row: StepRow) -> float:
    """Return the time of a row, or of all rows of a slot, in a step: the mean."""
    rows = [row] if row.name else [other for other in run.rows if _slot(other) == row]
    return sum(us for each in rows for _, us in run.rows.get(each, {}).values()) / len(run.names)


def _observation(run: Steps) -> Observation:
    logs = [math.log(max(us, 1e-3)) for us in run.compute_us]
    spread = stdev(logs) if len(logs) > 1 else _ONE_STEP
    return Observation(max(1e-3, math.exp(fmean(logs))), spread, len(logs), 1)


# -- verdicts ---------------------------------------------------------------------------------------------------------


def judge_traces(name: str, jobs: Sequence[Job], baseline: TraceBaseline) -> list[Verdict]:
    """Judge the runs of a job by its baseline: structure, GPU time, overlap and the time of a step, for each kind of step."""
    kinds = dict.fromkeys(kind for job in jobs for trace in job.values() for kind in trace.steps)
    known = dict.fromkeys(kind for of_rank in baseline.ranks.values() for kind in of_rank)
    shared = [kind for kind in kinds if kind in known]
    verdicts: list[Verdict] = []
    for kind in shared:
        workload = f"{name} {kind}".strip()
        runs = {rank: [job[rank].steps[kind] for job in jobs if kind in job[rank].steps] for rank in baseline.ranks}
        both = [rank for rank in runs if runs[rank] and kind in baseline.ranks[rank]]
        pairs = {rank: (runs[rank], baseline.ranks[rank][kind]) for rank in both}
        comparisons = len(shared) * len(pairs)
        overlap = _worst(_judge_overlap(workload, rank, *pair, baseline) for rank, pair in pairs.items())
        time = _worst(_judge_time(workload, rank, *pair, baseline, comparisons) for rank, pair in pairs.items())
        if time and time.status is Status.IMPROVED and overlap and overlap.status.fails:
            why = e.NotImproved("communication", overlap.status.value)
            time = replace(time, status=Status.PASS).because(why)
        structure = _judge_structure(workload, jobs, pairs, baseline, time)
        verdicts += filter(None, (structure, overlap, time, _shown_time(workload, pairs)))
    notes = {
        "new": [kind for kind in kinds if kind not in known],
        "gone": [kind for kind in known if kind not in kinds],
        "unknown": dict.fromkeys(each for job in jobs for trace in job.values() for each in trace.unknown),
    }
    reasons = [e.InTrace(what, tuple(names)) for what, names in notes.items() if names]  # type: ignore[arg-type]
    return [verdicts[0].because(*reasons), *verdicts[1:]] if verdicts else []


def _worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the verdict on the rank that fares worst."""
    order = list(Status)
    ranked = [
        (order.index(each.status), -each.change.estimate if each.change else 0.0, each) for each in verdicts if each
    ]
    return min(ranked, key=lambda rank: rank[:2])[2] if ranked else None


_Pairs: TypeAlias = Mapping[int, tuple[Sequence[Steps], StepRange]]
_Moved: TypeAlias = dict[StepRow, tuple[int, int, int]]  # how many more in a step, in how many steps, of how many


def _judge_structure(
    workload: str, jobs: Sequence[Job], pairs: _Pairs, baseline: TraceBaseline, time: Verdict | None
) -> Verdict:
    places: dict[StepRow, Counter[Place]] = defaultdict(Counter)
    for job in jobs:
        for trace in job.values():
            for row, at in trace.places.items():
                places[row].update(at)
    groups: dict[tuple[tuple[int, ...], str, str], _Moved] = defaultdict(dict)
    by_row: dict[StepRow, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    rare: Counter[StepRow] = Counter()
    for rank, (runs, usual) in pairs.items():
        moved, seldom = _moved_rows(_step_counts(runs), usual, baseline.rows)
        rare.update(seldom)
        for row, each in moved.items():
            by_row[row][rank] = each
    for row, of_ranks in by_row.items():
        alone = {other.module for other in by_row if other.phase == row.phase and other.module}
        module = row.module or next(iter(alone), "") if len(alone) == 1 else row.module
        groups[tuple(of_ranks), row.phase, module][row] = next(iter(of_ranks.values()))
    found: list[tuple[e.Cause, e.InTrace]] = []
    for (ranks, phase, module), moved in groups.items():
        runs, usual = pairs[ranks[0]]
        cause = _cause(moved, places, runs, usual, baseline.rows)
        _, steps, of = max(moved.values(), key=lambda each: each[1])
        names = tuple(filter(None, (phase, module)))
        found.append((cause, e.InTrace("where", names, ranks if len(pairs) > 1 else (), (steps, of))))
    ordered = order_causes(cause for cause, _ in found)
    found.sort(key=lambda pair: ordered.index(pair[0]))
    reasons: list[e.Reason] = [each for pair in found for each in pair]
    if rare:
        reasons.append(e.InTrace("seldom", tuple(map(_shown, rare))))
    launches = sum(each[0] for rows in groups.values() for each in rows.values())
    is_loss = launches > 0 or (time is not None and time.status is Status.REGRESSED)
    status = Status.PASS if not found else Status.REGRESSED if is_loss else Status.CHANGED
    are_other = any(isinstance(cause.change, e.OtherKernels) for cause, _ in found)
    return Verdict(status, workload, STRUCTURE, e.StructureCompared("kernels" if are_other else "")).because(*reasons)


def _moved_rows(
    counts: Sequence[Counter[StepRow]], usual: StepRange, names: Sequence[StepRow]
) -> tuple[_Moved, Counter[StepRow]]:
    """Return the rows that ran more or less often than they may, and those that did in a few steps only."""
    ranges = {names[each.row]: each for each in usual.rows}
    varying = {row for row in ranges if not row.name}
    deltas: dict[StepRow, list[int]] = defaultdict(list)
    for step in counts:
        rows: Counter[StepRow] = Counter()
        for row, count in step.items():
            rows[_slot(row) if _slot(row) in varying else row] += count
        for row in dict.fromkeys((*rows, *(row for row in ranges if row in varying or _slot(row) not in varying))):
            low, high = (ranges[row].low, ranges[row].high) if row in ranges else (0, 0)
            room = high - low
            if not low - room <= rows[row] <= high + room:
                deltas[row].append(rows[row] - (high + room if rows[row] > high else low - room))
    moved: _Moved = {}
    seldom: Counter[StepRow] = Counter()
    for row, each in deltas.items():
        many, of = len(each), len(counts)
        odds = math.comb(of, many) / math.comb(of + usual.steps, many)
        if 2 * many > of or odds <= _LIKELY:
            moved[row] = round(median(each)) or each[0], many, of
        else:
            seldom[row] = many
    return moved, seldom


def _shown(row: StepRow) -> str:
    if row.kind in (WAIT, Kind.COMMUNICATION.value, *_COPIES):
        return row.name or f"{row.kind} by {row.op}"
    return decode(row.name).short if row.name else f"{row.kind} kernels{f' by {row.op}' if row.op else ''}"


def _cause(
    moved: _Moved,
    places: Mapping[StepRow, Counter[Place]],
    runs: Sequence[Steps],
    usual: StepRange,
    names: Sequence[StepRow],
) -> e.Cause:
    """Return what took the place of what, what it costs a step, and where it comes from."""
    us = {names[each.row]: fmean(each.us) for each in usual.rows}
    delta_us = sum(fmean(_row_us(run, row) for run in runs) - us.get(row, 0.0) for row in moved if row.kind != WAIT)
    sides = [{row: abs(each[0]) for row, each in moved.items() if (each[0] > 0) is is_new} for is_new in (False, True)]
    kernels = [{row: n for row, n in side.items() if row.kind not in (WAIT, *_COPIES)} for side in sides]
    old, new = (_counted(side) for side in kernels)
    dtypes = [tuple(sorted({decode(row.name).dtype or "" for row in side} - {""})) for side in kernels]
    waits, copies = (
        _counted({row: n for row, n in sides[1].items() if row.kind in kinds}) for kinds in ((WAIT,), _COPIES)
    )
    change: e.Change | None = None
    if old or new:
        ops = tuple(dict.fromkeys(row.op for row in kernels[1] or kernels[0] if row.op))[:_MOST_OPS]
        change = e.OtherKernels("replaced", old, new, dtypes=(dtypes[0], dtypes[1]), ops=ops)
    elif not waits and not copies:
        change = e.OtherOps((), _counted(sides[0]))
    shown_us = delta_us if old or new else None
    cause = e.Cause(change, waits, copies, had_kernels=bool(old), delta_us=shown_us, weight_us=abs(delta_us))
    origins = []
    for row in sides[1] or sides[0]:
        for module, frame in places.get(row, ()):
            if match := FRAME.fullmatch(frame):
                origins.append(Origin(module, (SourceLine(match["file"], int(match["line"]), match["function"]),)))
    return with_code(cause, origins)


def _counted(rows: Mapping[StepRow, int]) -> e.Counted:
    found: Counter[str] = Counter()
    for row, count in rows.items():
        found[_shown(row)] += count
    return tuple(found.items())


def _decide(before: Sequence[Observation], afters: Sequence[Observation], gate: float, comparisons: int) -> Decision:
    noise = Spreads(process=_PROCESS, dof=_DOF)
    prior = Prior(noise, gate, _LARGEST_MISSED, FALSE_ALARMS_PER_RUN)
    return decide(list(map(ProcessTime, before)), list(map(ProcessTime, afters)), prior, comparisons=comparisons)


def _judge_time(
    workload: str, rank: int, runs: Sequence[Steps], usual: StepRange, baseline: TraceBaseline, comparisons: int
) -> Verdict:
    """Judge the time of the kernels of a step, all together and each by itself. Communication is no part of it."""
    label = "CPU time" if baseline.device.startswith(CPU) else "GPU time"
    afters = [_observation(run) for run in runs]
    decision = _decide(usual.compute, afters, _GATE, comparisons)
    speeds = []
    total_us = decision.before_us
    timed = [each for each in usual.rows if baseline.rows[each.row].kind not in _NOT_TIMED and min(each.us) > 0]
    for each in timed:
        row = baseline.rows[each.row]
        us = [_row_us(run, row) for run in runs]
        delta = fmean(us) - fmean(each.us)
        if each.low == each.high and delta > max(_LEAST_SHARE * total_us, _GATE_OF_KERNEL * fmean(each.us)):
            one = _decide(
                _scaled(usual.compute, each.us), _scaled(afters, us), _GATE_OF_KERNEL, comparisons * len(timed)
            )
            if one.status is Status.REGRESSED:
                speed = e.OtherSpeed(((_shown(row), each.high),), fmean(each.us), fmean(us))
                speeds.append((delta, e.Cause(speed, delta_us=delta, weight_us=delta, had_kernels=True)))
    speeds.sort(key=lambda pair: -pair[0])
    if label == "CPU time":
        speeds.clear()
    status = Status.REGRESSED if speeds else decision.status
    reasons = [cause for _, cause in speeds[:_MOST_SPEEDS]]
    where = f", rank {rank}" if len(baseline.ranks) > 1 else ""
    conclusion = e.TimeCompared(doubt=decision.doubt)
    times = decision.before_us, decision.after.observation.mean_us
    if label == "CPU time" and status in (Status.REGRESSED, Status.IMPROVED, Status.UNDECIDED):
        status, conclusion = Status.NOT_JUDGED, e.TimeCompared(doubt=e.NoHostReference("run"))
    return Verdict(status, f"{workload}{where}", label, conclusion, tuple(reasons), *times, change=decision.change)


def _scaled(steps: Sequence[Observation], us: Sequence[float]) -> list[Observation]:
    """Return times of a kernel, with the spread that all kernels have between steps."""
    return [msgspec.structs.replace(one, mean_us=max(mean, 1e-3)) for one, mean in zip(steps, us, strict=True)]


def _shares(communication_us: Sequence[float], exposed_us: Sequence[float]) -> list[float]:
    return [1 - alone / total for total, alone in zip(communication_us, exposed_us, strict=True) if total > 0]


def _judge_overlap(
    workload: str, rank: int, runs: Sequence[Steps], usual: StepRange, baseline: TraceBaseline
) -> Verdict | None:
    """Judge how much of the communication ran beside other kernels, and whether it was launched early enough to."""
    after = [median(shares) for run in runs if (shares := _shares(run.communication_us, run.exposed_us))]
    before = _shares(usual.communication_us, usual.exposed_us)
    behind = [each for run in runs for each in run.behind]
    low, high = usual.behind
    if not after and not before and not any(behind) and not high:
        return None
    is_late = sum(each < low - (high - low) for each in behind) * 2 > len(behind)
    exposed_us = fmean(usual.exposed_us), fmean(median(run.exposed_us) for run in runs)
    compared, is_lost = e.OverlapCompared(rank, (low, high), round(median(behind)), *exposed_us), False
    # Collectives of a CPU run in threads, which have no rows of ops.
    if before and after and not baseline.device.startswith(CPU):
        least, now = min(before), median(after)
        is_lost = least >= _LEAST_OVERLAP and now < _LOST_OVERLAP * least
        compared = msgspec.structs.replace(compared, before=least, after=now)
    status = Status.REGRESSED if is_lost else Status.CHANGED if is_late else Status.PASS
    return Verdict(status, workload, "communication", compared)


def _shown_time(workload: str, pairs: _Pairs) -> Verdict:
    """Return the time of a step, of the slowest rank. It is the host's too, and no reference says how fast that was."""
    sides = [(fmean(usual.wall_us), fmean(median(run.wall_us) for run in runs)) for runs, usual in pairs.values()]
    before, after = map(max, zip(*sides, strict=True))
    change = e.RelativeChange(after / before - 1, None, None, 0.0)
    shown = Verdict(
        Status.NOT_JUDGED,
        workload,
        "step time",
        e.TimeCompared(doubt=e.NoHostReference("run")),
        (),
        before,
        after,
        change,
    )
    # The rank that others wait for spends the least time in collectives.
    now = {rank: fmean(median(run.communication_us) for run in runs) for rank, (runs, _) in pairs.items()}
    then = zip(*(usual.communication_us for _, usual in pairs.values()), strict=False)
    usual_us, lag_us = max(max(each) - min(each) for each in then), max(now.values()) - min(now.values())
    if lag_us <= max(_LEAST_LAG * after, _MORE_LAG * usual_us):
        return shown
    return shown.because(e.InTrace("straggler", (), (min(now, key=lambda rank: now[rank]),), (usual_us, lag_us)))


def refuse_incomparable(baseline: TraceBaseline, job: Job) -> e.NotCompared | None:
    """Return why a job cannot be compared: another device, or other ranks."""
    first = next(iter(job.values()))
    sides = [(baseline.device, str(baseline.world_size), str(sorted(baseline.ranks))),
             (first.device, str(first.world_size), str(sorted(job)))]  # fmt: skip
    names = ("device", "world size", "ranks")
    moves = tuple(e.Move(*each) for each in zip(names, *sides, strict=True) if each[1] != each[2])
    return e.NotCompared(moves) if moves else None
