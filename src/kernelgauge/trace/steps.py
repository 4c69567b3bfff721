"""The steady steps of a trace: what each launched, by phase and module, and how its communication
ran beside the rest.

A trace of 500 MB becomes a table of a few hundred rows here: several ranks are read one after the
other.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from statistics import fmean
from typing import NamedTuple, TypeAlias

import msgspec

from .kernel import computing_ops, identity_of, identity_of_op, kind_of_launch, places_of
from .model import (
    MODULE_PREFIX,
    REGION,
    STEP_PREFIX,
    ApiCall,
    DeviceRecord,
    Op,
    Trace,
    grouped,
    nested,
)
from .names import Kind

CPU = "CPU"  # what the name of a device without records begins with
WAIT = "wait"  # kind of a row: the host waits for the device
_COMMUNICATION = Kind.COMMUNICATION.value
COPIES = (Kind.MEMSET.value, Kind.MEMCPY.value)
# Annotations of a step: vLLM's and its forks' `execute_…`, SGLang's `step[…]`, and loops that name
# theirs.
_STEP = re.compile(
    r"execute_(?=\w)|(?:gpu_)?model_runner: forward|step\[|(?:train(?:ing)?|decode)_?step",
    re.IGNORECASE,
)
# Functions of the same, if the trace has a Python stack: vLLM, SGLang, torchtitan, transformers.
_STEP_FUNCTION = re.compile(
    r".*\): (?:execute_model|forward_batch_generation|train(?:ing)?_step|decode_one_token)$"
)
_LINE = re.compile(r"\(\d+\)(?=: )")  # of a function: it moves with the code above
PERIOD = "period"  # how steps without an annotation are found
_WARMING = re.compile(r".*\(dynamo_timed\)$")  # torch.compile at work
_ALLOCATING = re.compile(r"(?:cuda|hip)Malloc(?:Async)?$")
_NO_PHASE = re.compile(
    r"(?:nccl|gloo|rccl|xccl|hccl|mpi):|ProfilerStep#|enumerate\(DataLoader\)|## Call Compiled"
)
_NUMBER, _INSTANCE = re.compile(r"\d+"), re.compile(r"_\d+(?=\.|$)")
_BACKWARD = ("autograd::engine", "CompiledFunctionBackward")
_UNKNOWN = 3  # how well a name stands for a step that nobody knows
_FEWEST = 3  # marks of a name that nobody knows, or periods: fewer repeat nothing
MOST_OUTSIDE = 0.2  # of all launches, and of their time: work that no step has is not judged
_ALIKE = 2 / 3  # of the periods have the same launches
_MOST_TRIES = 40  # kernels that may begin a period
_LIKE_OTHERS = 0.5  # of the launches of a step, in others too: the first step of a process warms up

Place: TypeAlias = tuple[str, str]  # path of the modules, Python function
# from, until: when kernels that compute ran on each device
_Spans: TypeAlias = dict[int, list[tuple[float, float]]]


class Outside(NamedTuple):
    """Launches outside of some steps."""

    launches: int
    of: int  # all of the trace
    share: float  # of the time of all, without communication

    @property
    def is_small(self) -> bool:
        return self.share <= MOST_OUTSIDE and self.launches <= MOST_OUTSIDE * self.of


_NOTHING = Outside(0, 0, 0.0)


class StepRow(NamedTuple):
    """Launches of a step that are counted together.

    `name` is empty where a slot is meant, whatever runs in it.
    """

    phase: str
    module: str
    op: str
    kind: str
    name: str

    @property
    def slot(self) -> StepRow:
        return self._replace(name="")

    @property
    def place(self) -> tuple[str, str]:
        return self[:2]

    @property
    def kernel(self) -> tuple[str, str, str]:
        return self[2:]


class RowRange(msgspec.Struct, frozen=True, array_like=True):
    """Of launches that are counted together, in a step: the fewest, the most, and the mean time in
    each run.

    `threads` are those of a block, where the trace says it. `spread` is that of its time between
    steps, as a share of it.
    """

    row: int  # its place among the rows of a file
    low: int
    high: int
    us: tuple[float, ...]
    threads: tuple[int, ...] = ()
    spread: float = 0.0


@dataclass
class Steps:
    """The steady steps of one kind. Lists have one element for each step; times in microseconds."""

    counts: list[Counter[StepRow]] = field(default_factory=list)
    row_us: Counter[StepRow] = field(default_factory=Counter)  # of all steps together
    # see `find_steps`; of each but the first one of a trace
    wall_us: list[float] = field(default_factory=list)
    # durations of kernels without communication
    compute_us: list[float] = field(default_factory=list)
    communication_us: list[float] = field(default_factory=list)
    exposed_us: list[float] = field(default_factory=list)  # of it, with no other kernel running
    # kernels that were launched after a collective, mean over them
    behind: list[int] = field(default_factory=list)
    # in a block of each kernel, where it is known
    threads: dict[StepRow, set[int]] = field(default_factory=dict)
    # sum over the steps of its squared time in each
    row_squares: Counter[StepRow] = field(default_factory=Counter)

    def renamed(self, names: Mapping[StepRow, StepRow]) -> Steps:
        """Return the same with other rows in place of some.

        Squares of times are left as they are.
        """
        if not names:
            return self

        def with_names(counter: Counter[StepRow]) -> Counter[StepRow]:
            found: Counter[StepRow] = Counter()
            for row, number in counter.items():
                found[names.get(row, row)] += number
            return found

        threads: dict[StepRow, set[int]] = defaultdict(set)
        for row, numbers in self.threads.items():
            threads[names.get(row, row)] |= numbers
        counts = [*map(with_names, self.counts)]
        return replace(self, counts=counts, row_us=with_names(self.row_us), threads=threads)

    def mean_us(self, row: StepRow) -> float:
        """Return the time of a row, or of all rows of a slot, in a step."""
        rows = [row] if row.name else [other for other in self.row_us if other.slot == row]
        return sum(self.row_us[each] for each in rows) / len(self.counts)


@dataclass
class StepTrace:
    """What a trace says about its steady steps."""

    rank: int | None
    world_size: int | None
    device: str
    span_s: tuple[float, float]  # of its first launch and its last one, since 1970
    found_by: str  # a name of annotations, or "period"
    steps: dict[str, Steps]  # by kind: ``step[DECODE bs=#]``; empty where all are of one
    places: dict[StepRow, Counter[Place]]
    unknown: tuple[str, ...]  # what it cannot say: "modules", "ops", ...
    outside: Outside = _NOTHING  # of the steady steps


class _Request(NamedTuple):
    at: float
    row: StepRow
    duration_us: float
    record: DeviceRecord | None
    # Of a wait outside of ops, for it counts on the thread of the step alone. None: it counts on
    # each thread.
    thread: int | str | None = None


def find_steps(trace: Trace, found_by: str | None = None) -> StepTrace:
    """Find the steady steps of a trace, only those `found_by` this if it is given. Raises
    `ValueError`, which says why there is none.

    A step begins on the host, or when the step before ends if that is later. It ends once host and
    device are done with it. So it takes the time of the slower one, whichever runs ahead, and no
    time that the host waits for work between steps.
    """
    launches, places, on_cpu = _launches(trace)
    if not launches:
        raise ValueError("nothing in it ran a kernel")
    if not on_cpu and not any(each.duration_us > 0 for each in launches if each.record):
        raise ValueError("none of its kernels took any time")
    work = _Work(launches)
    marks, found_by = _marks(trace, launches, work, found_by)
    inside = _by_step(marks, launches)
    kept = _without_losses(trace, marks, inside, found_by)
    labels = _labels(trace, marks)
    kinds = list(map(_kind_of, labels))
    steady = _without_warm_up(trace, marks, inside, kept, kinds, found_by)
    repeats = Counter(kinds[number] for number in steady)
    beside = _computing_spans(
        each.record
        for each in launches
        if each.record and each.record.category == "kernel" and each.row.kind != _COMMUNICATION
    )
    found: dict[str, Steps] = {}
    walls_us = _walls_us(marks, inside)
    for number in steady:
        # Nothing says how much a step that ran once beside others varies with its numbers: they are
        # part of its kind.
        kind = labels[number] if repeats[kinds[number]] == 1 < len(repeats) else kinds[number]
        steps = found.setdefault(kind, Steps())
        steps.wall_us.append(walls_us[number])
        _add(steps, inside[number], beside)
    first = next(iter(found.values()))
    # the device may have been busy with what no row of the trace tells
    if steady[0] == 0 and len(first.wall_us) > 1:
        del first.wall_us[0]
    names = dict.fromkeys(str(each.get("name", "")) for each in trace.device_properties)
    cpu = ", ".join((CPU, *(f"{name} not read" for name in trace.not_read)))
    rank, size = (
        value if isinstance(value := trace.job.get(name), int) else None
        for name in ("rank", "world_size")
    )
    return StepTrace(
        rank=rank,
        world_size=size,
        device=cpu if on_cpu else ", ".join(names) or "a GPU",
        span_s=((trace.began_us + launches[0].at) / 1e6, (trace.began_us + launches[-1].at) / 1e6),
        found_by=found_by,
        steps=found,
        places=places,
        unknown=_unknown(trace, places, on_cpu=on_cpu),
        outside=work.outside([marks[number] for number in steady]),
    )


def _walls_us(marks: Sequence[Op], inside: Sequence[Sequence[_Request]]) -> list[float]:
    """Return how long each step took, as `find_steps` says."""
    found, done_us = list[float](), -math.inf  # with the steps before each
    for mark, some in zip(marks, inside, strict=True):
        start_us = max(mark.start_us, done_us)
        ends_us = (each.record.start_us + each.record.time_us for each in some if each.record)
        done_us = max(mark.end_us, *ends_us, done_us)
        found.append(done_us - start_us)
    return found


def _unknown(
    trace: Trace, places: Mapping[StepRow, Counter[Place]], *, on_cpu: bool
) -> tuple[str, ...]:
    """Return what the rows of a trace do not say."""
    around = [place for counter in places.values() for place in counter]
    is_known = {
        "kernels of a device": not on_cpu,
        "modules": any(module for module, _ in around),
        "lines of code": any(function for _, function in around),
        "ops of kernels": on_cpu or any(row.op for row in places),
        "launch calls": on_cpu or bool(trace.calls),
    }
    not_read = [f"{count} rows of {name}" for name, count in trace.not_read.items()]
    return (*not_read, *(name for name, known in is_known.items() if not known))


# -- launches --------------------------------------------------------------------------------------


def _launches(trace: Trace) -> tuple[list[_Request], dict[StepRow, Counter[Place]], bool]:
    """Return what ran, in the order in which the host asked for it; and where in the code.

    True: a CPU.
    """
    whole = trace.whole()
    on_cpu = not trace.records and not any(call.is_launch for call in trace.calls)
    asked: list[tuple[Op | ApiCall, Op | None, DeviceRecord | None]] = []
    if on_cpu:
        asked += [(op, op, None) for op in computing_ops(whole)]
    asked += [(each.call, each.op, each.record) for each in whole.executed]
    asked += [(call, None, None) for call in trace.calls if call.is_synchronization]
    contexts = _contexts(trace, [each[0] for each in asked])
    found: list[_Request] = []
    places: dict[StepRow, Counter[Place]] = defaultdict(Counter)
    for call, op, record in asked:
        phase, module, frame = contexts[id(call)]
        name, kind, thread = "", WAIT, None
        op_name = "" if op is None else op.name
        if record is not None and (copied := record.category.removeprefix("gpu_")) in COPIES:
            name, kind = record.name, copied
        elif record is not None or (on_cpu and isinstance(call, Op)):
            identity = identity_of(record, op) if record is not None else identity_of_op(call)  # type: ignore[arg-type]
            name, kind = identity.unnumbered, kind_of_launch(identity, op_name or None)
            if op_name.startswith(("c10d::", "_c10d_functional::")):
                kind = _COMMUNICATION
            if record is not None and record.sent:
                name = f"{identity.shown} {record.sent}"
        elif isinstance(call, ApiCall):
            name, _ = trace.described(call, call.name)
            op_name = "" if name == call.name else name.partition(": ")[0]
            thread = None if op_name else call.thread
        # as Triton's ops are
        is_named = op_name == name or (record is not None and op_name == record.name)
        row = StepRow(phase, _INSTANCE.sub("", module), "" if is_named else op_name, kind, name)
        places[row][module, frame] += 1
        duration = record.time_us if record is not None else call.duration_us
        found.append(_Request(call.start_us, row, duration, record, thread))
    # Beside launches, records without one are of work from before the profile: the device is behind
    # the host.
    for record in () if whole.executed else whole.orphans:
        copied = record.category.removeprefix("gpu_")
        identity = identity_of(record, None)
        row = StepRow(
            "", "", "", copied if copied in COPIES else identity.kind, identity.unnumbered
        )
        places[row]["", ""] += 1
        found.append(_Request(record.start_us, row, record.time_us, record))
    return sorted(found, key=lambda each: each.at), dict(places), on_cpu


def _contexts(trace: Trace, rows: Sequence[Op | ApiCall]) -> dict[int, tuple[str, str, str]]:
    """Return by id of a row its phase, the modules around it, and the deepest Python function."""
    marks = [
        each
        for each in trace.annotations
        if not (_NO_PHASE.match(each.name) or _STEP.match(each.name))
    ]
    marks += [op for op in trace.ops if op.name.startswith(_BACKWARD)]
    are_marks, wanted = set(map(id, marks)), set(map(id, rows))
    places = places_of(trace.modules, rows)  # type: ignore[arg-type]
    found: dict[int, tuple[str, str, str]] = {}
    every: list[Op | ApiCall] = [*marks, *rows]
    for row, around in nested(sorted(every, key=lambda each: (each.start_us, -each.duration_us))):
        if id(row) in wanted:
            phase = next((each.name for each in reversed(around) if id(each) in are_marks), "")
            phase = (
                "backward" if phase.startswith(_BACKWARD) else _NUMBER.sub("#", phase).strip("# ")
            )
            found[id(row)] = phase, *places.get(id(row), ("", ""))
    return found


# -- steps -----------------------------------------------------------------------------------------


class _Work:
    """The launches that steps must have, in order: all but waits."""

    def __init__(self, launches: Iterable[_Request]) -> None:
        work = [each for each in launches if each.row.kind != WAIT]
        # A collective takes as long as its rank waits for others.
        times_us = (
            0.0 if each.row.kind == _COMMUNICATION else max(0.0, each.duration_us) for each in work
        )
        self._ats = [each.at for each in work]
        self._until_us = [*accumulate(times_us, initial=0.0)]

    def outside(self, marks: Iterable[Op]) -> Outside:
        """Return what lies outside of these, which do not overlap."""
        inside, us = 0, 0.0
        for mark in marks:
            first, last = bisect_left(self._ats, mark.start_us), bisect_left(self._ats, mark.end_us)
            inside += last - first
            us += self._until_us[last] - self._until_us[first]
        total_us = self._until_us[-1]
        return Outside(
            len(self._ats) - inside, len(self._ats), 1 - us / total_us if total_us else 0.0
        )


def _marks(
    trace: Trace, launches: Sequence[_Request], work: _Work, found_by: str | None
) -> tuple[list[Op], str]:
    """Return the steps of a trace, steady or not, and how they were found: as asked, if it is.

    Raises `ValueError`.
    """
    families: dict[tuple[int, str], list[Op]] = defaultdict(list)
    for mark in sorted((*trace.annotations, *trace.modules), key=lambda row: row.start_us):
        if (family := _family(mark.name)) is not None:
            families[family].append(mark)
    best: list[tuple[bool, int, int, int, str, Outside]] = []
    for (rank, name), rows in families.items():
        outside = work.outside(rows)
        covered = outside.of - outside.launches
        is_known = rank < _UNKNOWN or (len(rows) >= _FEWEST and outside.is_small)
        if (
            covered
            and is_known
            and all(one.end_us <= other.start_us for one, other in pairwise(rows))
        ):
            best.append(
                (len(rows) < 2, rank, -covered if rank < _UNKNOWN else 0, len(rows), name, outside)
            )
    best.sort()
    wanted = (
        best if found_by is None else [each for each in best if each[4] == _LINE.sub("", found_by)]
    )
    for _, rank, *_, name, outside in wanted:
        if outside.is_small or name == REGION:  # `pytest perf` flushes the cache between its calls
            return families[rank, name], name
    threads = Counter(call.thread for call in trace.calls if call.asks).most_common(1) or [(0, 0)]
    if (
        not wanted
        and found_by in (None, PERIOD)
        and (marks := _periods(launches, work, threads[0][0]))
    ):
        return marks, PERIOD
    if wanted:
        *_, name, outside = wanted[0]
        share = (
            f"{outside.launches} of {outside.of} launches, with {100 * outside.share:.0f} % of "
            "the time"
        )
        raise ValueError(
            f"outside of its steps, found by {name}, lie {share}: at most "
            f"{100 * MOST_OUTSIDE:.0f} % may"
        )
    if found_by is None:
        most = f"at least {100 - 100 * MOST_OUTSIDE:.0f} % of the launches and of their time"
        raise ValueError(f"no annotation of a step, and no period, with {most}")
    there = "there are no other steps"
    with suppress(ValueError):
        there = f"steps are found by {_marks(trace, launches, work, None)[1]} here"
    raise ValueError(f"no step found by {found_by}, as those of the baseline were; {there}")


def _family(name: str) -> tuple[int, str] | None:
    """Return how well a name stands for a step, 0 best, and what it has in common with others of
    its kind.
    """
    if name == REGION:
        return 0, REGION
    if name.startswith(STEP_PREFIX):
        return 1, STEP_PREFIX
    if step := _STEP.match(name):
        return 2, step[0]
    if _STEP_FUNCTION.match(name):
        return 2, _LINE.sub("", name)
    if name.startswith(MODULE_PREFIX):
        return _UNKNOWN, name
    return None if _NO_PHASE.match(name) or "): " in name else (_UNKNOWN, _NUMBER.sub("#", name))


def _periods(launches: Sequence[_Request], work: _Work, thread: int | str) -> list[Op]:
    """Return the stretches between launches of a kernel that are alike, if most have the same
    launches: the longest ones.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(launches):
        if each.row.kind != WAIT:
            places[each.row.name].append(place)
    repeated = sorted((each for each in places.values() if len(each) > _FEWEST), key=len)
    for at in repeated[:_MOST_TRIES]:
        parts = [Counter(each.row for each in launches[one:other]) for one, other in pairwise(at)]
        names = [
            frozenset(Counter(row.name for row in part.elements() if row.kind != WAIT).items())
            for part in parts
        ]
        usual, count = Counter(names).most_common(1)[0]
        if count < _ALIKE * len(parts):
            continue
        whole = parts[len(names) - 1 - names[::-1].index(usual)]
        starts, end = [launches[place].at for place in at], at[-1] + whole.total()
        # the last one is whole too
        if Counter(each.row for each in launches[at[-1] : end]) == whole:
            starts.append(
                launches[end].at
                if end < len(launches)
                else math.nextafter(launches[-1].at, math.inf)
            )
            parts.append(whole)
        spans = zip(pairwise(starts), parts, strict=True)
        found = [
            Op(PERIOD, start, end_us - start, thread)
            for (start, end_us), part in spans
            if alike(part, whole)
        ]
        if work.outside(found).is_small:
            return found
    return []


def _by_step(marks: Sequence[Op], launches: Iterable[_Request]) -> list[list[_Request]]:
    """Return the launches of each step."""
    inside: list[list[_Request]] = [[] for _ in marks]
    starts = [mark.start_us for mark in marks]
    for each in launches:
        at = bisect_right(starts, each.at) - 1
        if at >= 0 and each.at < marks[at].end_us and each.thread in (None, marks[at].thread):
            inside[at].append(each)
    return inside


def _without_losses(
    trace: Trace, marks: Sequence[Op], inside: Sequence[Sequence[_Request]], found_by: str
) -> list[int]:
    """Return the numbers of the steps that launched something, with a record of each launch.

    Raises `ValueError` if each of them lost one.
    """
    starts = [mark.start_us for mark in marks]
    known = {record.correlation for record in trace.records}
    lost = {bisect_right(starts, call.start_us) - 1
            for call in trace.calls if call.is_launch and call.correlation not in known}  # fmt: skip
    ran = [
        number for number, rows in enumerate(inside) if any(each.thread is None for each in rows)
    ]
    kept = [number for number in ran if number not in lost]
    if ran and not kept:
        raise ValueError(f"the profiler lost launches in every step, found by {found_by}")
    return kept


def _labels(trace: Trace, marks: Sequence[Op]) -> list[str]:
    """Return the annotation of each step or, of a function, the first one in it.

    Empty: nothing tells its kind.
    """
    named = [each for each in trace.annotations if _STEP.match(each.name)]
    starts = [each.start_us for each in named]
    found = []
    for mark in marks:
        label = mark.name if _STEP.match(mark.name) else ""
        if _STEP_FUNCTION.match(mark.name):
            at = bisect_left(starts, mark.start_us)
            label = named[at].name if at < len(named) and starts[at] < mark.end_us else ""
        found.append(label)
    return found


def _kind_of(label: str) -> str:
    """Return ``step[DECODE bs=#]``, where a zero stays: a step without a prompt is of another kind
    than one with it.
    """
    return _NUMBER.sub(lambda match: "#" if int(match[0]) else "0", label)


def _without_warm_up(
    trace: Trace,
    marks: Sequence[Op],
    inside: Sequence[Sequence[_Request]],
    kept: list[int],
    kinds: Sequence[str],
    found_by: str,
) -> list[int]:
    """Return the numbers of the steady steps. Raises `ValueError`, which says why there is none."""
    starts = [mark.start_us for mark in marks]

    def numbers_of(rows: Iterable[Op | ApiCall]) -> set[int]:
        places = ((bisect_right(starts, row.start_us) - 1, row.start_us) for row in rows)
        return {number for number, at_us in places if number >= 0 and at_us < marks[number].end_us}

    compiling = numbers_of(each for each in trace.annotations if _WARMING.match(each.name))
    allocating = numbers_of(each for each in trace.calls if _ALLOCATING.match(each.name))
    warming = compiling | (allocating if not set(kept) <= allocating else set())
    steady = list(kept)
    while steady and steady[0] in warming:
        steady.pop(0)
    if not steady:
        raise ValueError(
            f"torch.compile works in each step, found by {found_by}: a profile of the warm-up"
        )
    counts = {number: Counter(each.row for each in inside[number]) for number in steady}
    for some in grouped(steady, kinds.__getitem__).values():
        while len(some) > 1 and not any(
            alike(counts[some[0]], counts[other]) for other in some[1:]
        ):
            steady.remove(some.pop(0))
    if len(steady) == 1 and len(kept) > 1:
        raise ValueError(
            f"no two of {len(kept)} steps, found by {found_by}, have half of their launches "
            "in common"
        )
    if len(steady) == 1 and marks[steady[0]].name == f"{STEP_PREFIX}0":
        raise ValueError(f"its only step is {STEP_PREFIX}0: a profile of the warm-up")
    return steady


def alike(one: Counter[StepRow], other: Counter[StepRow]) -> bool:
    """Tell whether two steps have half of their launches in common."""
    return sum((one & other).values()) >= _LIKE_OTHERS * sum((one | other).values())


def _add(steps: Steps, launches: Sequence[_Request], beside: _Spans) -> None:
    kernels, before = 0, list[int]()  # kernels launched before each collective
    compute_us = communication_us = exposed_us = 0.0
    row_us: dict[StepRow, float] = defaultdict(float)
    for each in launches:
        row_us[each.row] += each.duration_us
        if each.record is not None and each.record.block is not None:
            steps.threads.setdefault(each.row, set()).add(prod(each.record.block))
        if each.row.kind == _COMMUNICATION:
            before.append(kernels)
            communication_us += each.duration_us
            exposed_us += (
                each.duration_us if each.record is None else _exposed_us(each.record, beside)
            )
        elif each.row.kind not in (WAIT, *COPIES):
            kernels += 1
            compute_us += each.duration_us
    steps.row_us.update(row_us)
    steps.row_squares.update({row: us**2 for row, us in row_us.items()})
    steps.counts.append(Counter(each.row for each in launches))
    steps.compute_us.append(compute_us)
    steps.communication_us.append(communication_us)
    steps.exposed_us.append(exposed_us)
    steps.behind.append(round(kernels - fmean(before)) if before else 0)


def _computing_spans(records: Iterable[DeviceRecord]) -> _Spans:
    """Return when kernels ran, of these records."""
    found: _Spans = defaultdict(list)
    for each in sorted(records, key=lambda record: record.start_us):
        spans = found[each.device]
        if spans and each.start_us <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], each.start_us + each.time_us)
        else:
            spans.append((each.start_us, each.start_us + each.time_us))
    return found


def _exposed_us(record: DeviceRecord, beside: _Spans) -> float:
    """Return how long it ran with none of them beside it."""
    spans, start = beside.get(record.device, []), record.start_us
    end = start + record.time_us
    covered, at = 0.0, max(0, bisect_right(spans, (start,)) - 1)
    while at < len(spans) and spans[at][0] < end:
        covered += max(0.0, min(end, spans[at][1]) - max(start, spans[at][0]))
        at += 1
    return record.time_us - covered
