"""Two traces compared in the order in which a person asks: same kernels? What became of the others?
What of the host?

A difference is a set of launches before, the launches after that took their place, and what
happened to them. The times of all differences sum to the difference of the totals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import chain, zip_longest
from math import fsum, prod
from operator import attrgetter
from statistics import median, stdev

import msgspec
from rapidfuzz.distance import LCSseq

from .kernel import (
    CONTIGUOUS,
    IN_LISTS,
    KernelRecord,
    Resources,
    arguments_by_name,
    configuration_change,
    configuration_text,
    occupancy,
    paired_kwargs,
    resources_of,
)
from .model import grouped
from .names import Kind
from .steps import RowRange, StepRow, Steps
from .summary import HostLane


class ChangeKind(str, Enum):
    """What happened to launches, in the order of reading."""

    FUSED = "fused"
    SPLIT = "split"
    FOLDED = "folded into a GEMM"
    TEMPLATE = "other template"
    REPLACED = "replaced"
    VANISHED = "vanished"
    APPEARED = "appeared"
    MOVED = "moved"
    SOURCE = "other source"
    CONFIGURATION = "other launch configuration"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "unchanged"

    @property
    def is_change(self) -> bool:
        """Tell whether other code ran, or the same was launched otherwise.

        Times alone are no such change.
        """
        return self not in (ChangeKind.SAME, ChangeKind.SLOWER, ChangeKind.FASTER)

    @property
    def is_pair(self) -> bool:
        """Tell whether each launch has its partner, of the same name."""
        return not self.is_change or self in (ChangeKind.SOURCE, ChangeKind.CONFIGURATION)


@dataclass(frozen=True)
class Difference:
    """Launches, those that took their place, and what happened to them."""

    what: ChangeKind
    before: tuple[KernelRecord, ...]
    after: tuple[KernelRecord, ...]
    details: str = ""  # what differs between the two of one name, or of one job

    @property
    def before_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.before)

    @property
    def after_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.after)

    @property
    def delta_us(self) -> float:
        return self.after_us - self.before_us

    @property
    def pairs(self) -> list[tuple[KernelRecord, KernelRecord]]:
        """Return the launches by their place on each side: partners, where `What.is_pair`."""
        return [*zip(self.before, self.after, strict=False)]


def diff(before: Sequence[KernelRecord], after: Sequence[KernelRecord]) -> list[Difference]:
    """Pair the launches of two runs in order. Return each pair of one name with what differs, and
    all launches between two pairs as REPLACED.

    Where the names are other ones, pair equal launches first if that leaves less to say: where
    launches are new, their neighbours of the same name are not called changed. A launch without a
    partner says as much as a pair of two in another context.
    """
    by_name = _blocks(before, after, lambda kernel: kernel.identity.unnumbered)
    by_context: list[_Block] = []
    for is_same, old, new in _blocks(before, after, lambda kernel: kernel.context):
        by_context += (
            [(True, old, new)]
            if is_same
            else _blocks(old, new, lambda kernel: kernel.identity.unnumbered)
        )
    blocks = by_name if len(by_name) == 1 else max(by_context, by_name, key=_likeness_of_blocks)
    found: list[Difference] = []
    for is_same, old, new in blocks:
        found += (
            map(_same_name, old, new) if is_same else [Difference(ChangeKind.REPLACED, old, new)]
        )
    return found


# whether they pair, those before, and those after
_Block = tuple[bool, tuple[KernelRecord, ...], tuple[KernelRecord, ...]]


def _blocks(
    before: Sequence[KernelRecord],
    after: Sequence[KernelRecord],
    key: Callable[[KernelRecord], Hashable],
) -> list[_Block]:
    """Cut two sequences into blocks that are equal by a key and blocks that are not, by turns."""
    found: list[_Block] = []
    for each in LCSseq.opcodes(list(map(key, before)), list(map(key, after))):
        is_same = each.tag == "equal"
        old, new = before[each.src_start : each.src_end], after[each.dest_start : each.dest_end]
        if found and found[-1][0] is is_same:  # a deletion beside an insertion
            _, *sides = found.pop()
            old, new = (*sides[0], *old), (*sides[1], *new)
        found.append((is_same, tuple(old), tuple(new)))
    return found


def _likeness_of_blocks(blocks: Iterable[_Block]) -> int:
    """Return how much of two sequences pairs: one for each pair, and one more if both are in one
    context.
    """
    pairs = (pair for is_same, *sides in blocks if is_same for pair in zip(*sides, strict=True))
    return sum(1 + (old.context == new.context) for old, new in pairs)


def are_alike(one: Sequence[KernelRecord], other: Sequence[KernelRecord]) -> bool:
    """Return whether two launch sequences have the same names and launch configurations. Their
    sources may differ: another version of Inductor, say.
    """
    return [each.identity.without_source for each in one] == [
        each.identity.without_source for each in other
    ]


def pairs_of_other_shapes(
    before: Sequence[KernelRecord], after: Sequence[KernelRecord]
) -> list[tuple[KernelRecord, KernelRecord]]:
    """Return the launches by the same ops whose inputs have other shapes.

    Empty if any other op launched something: then nobody asks for equal work.
    """
    if [kernel.op for kernel in before] != [kernel.op for kernel in after]:
        return []
    pairs = zip(before, after, strict=True)
    return [(old, new) for old, new in pairs if old.input_shapes != new.input_shapes]


def join_launches(group: Sequence[Difference]) -> Difference:
    """Return one difference of the launches of several, of the first one's kind."""
    old = tuple(kernel for each in group for kernel in each.before)
    new = tuple(kernel for each in group for kernel in each.after)
    return Difference(group[0].what, old, new, group[0].details)


@dataclass(frozen=True)
class HostDifference:
    """Ops that ran more or less often in one step, those of torch.compile too."""

    gone: Mapping[str, int]
    new: Mapping[str, int]
    dispatcher_ops: tuple[int, int]
    synchronizations: tuple[int, int]


# A template is one of several for the same job: where one goes and another comes, it was exchanged.
_TEMPLATES = tuple(
    kind.value for kind in (Kind.GEMM, Kind.CONVOLUTION, Kind.ATTENTION, Kind.COMMUNICATION)
)
_TEMPLATE_FIELDS = ("backend", "dtype", "tile", "stages", "layout", "split_k", "bias_epilogue")
_SAID = {"split_k": "split-K", "bias_epilogue": "bias epilogue"}
# Two profiles are a few steps each: a kernel is called slower only if no step of one is as fast as
# any of the other, and by more than a kernel's time differs between two processes
# (docs/measuring.md). Of a single step, its launches tell.
_SEEN = 0.02
_SEEN_OF_ONE_STEP = 0.05
_SEEN_US, _WHOLE_US = 0.1, 1.0  # durations come in steps of 32 ns, or are whole numbers
_SEEN_ERRORS = 3.0  # standard errors of the mean of the launches of one step
_AS_LARGE = 2.0  # times the elements: more is other work, and no other place
# Dynamo counts the regions of a process: "Torch-Compiled Region: 2/0".
_REGION_NUMBER = re.compile(r": \d+/\d+$")


def host_difference(before: HostLane, after: HostLane) -> HostDifference:
    old, new = (
        Counter(side.dispatcher_ops)
        + Counter(_REGION_NUMBER.sub("", name) for name in side.compile_ops)
        for side in (before, after)
    )
    return HostDifference(
        gone=old - new,
        new=new - old,
        dispatcher_ops=(sum(before.dispatcher_ops.values()), sum(after.dispatcher_ops.values())),
        synchronizations=(before.synchronizations, after.synchronizations),
    )


def name_differences(paired: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return what became of each launch of two traces that `diff` has paired: every launch of both
    sides is in exactly one difference.
    """
    cut, moved = _without_moves(paired)
    found: list[Difference] = []
    for each in cut:
        found += (
            _other_names(each.before, each.after) if each.what is ChangeKind.REPLACED else [each]
        )
    are_whole = any(
        side and all(us % 1 == 0 for it in side for us in it.durations_us)
        for side in (
            [it for each in paired for it in getattr(each, name)] for name in ("before", "after")
        )
    )
    step_us = _WHOLE_US if are_whole else _SEEN_US
    joined = list(_joined((*_folded(found), *moved), step_us))
    # A collective waits for the slowest rank, so its times spread: say what moved most, also where
    # steps overlap.
    waiting = {
        id(each)
        for each in joined
        if each.what is ChangeKind.SAME and each.before[0].kind == Kind.COMMUNICATION.value
    }
    others = [abs(each.delta_us) for each in joined if id(each) not in waiting]
    if abs(sum(each.delta_us for each in joined if id(each) in waiting)) <= max(
        others, default=0.0
    ):
        return tuple(joined)
    return tuple(_by_direction(each, step_us) if id(each) in waiting else each for each in joined)


def _by_direction(each: Difference, step_us: float) -> Difference:
    """Call launches slower or faster, if they changed by more than a kernel's time moves between
    two processes.
    """
    is_seen = abs(each.delta_us) > max(step_us * len(each.before), _SEEN * each.before_us)
    return (
        replace(each, what=ChangeKind.SLOWER if each.delta_us > 0 else ChangeKind.FASTER)
        if is_seen
        else each
    )


def _joined(found: Iterable[Difference], step_us: float) -> Iterator[Difference]:
    """Join what happened to launches of the same kernels.

    Of those that are unchanged, judge the times.
    """
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for each in found:
        names = tuple(
            tuple(kernel.identity.unnumbered for kernel in side)
            for side in (each.before, each.after)
        )
        what_differs = (
            each.details,
            *(configuration_text(kernel.identity) for kernel in each.after[:1]),
        )
        groups.setdefault(
            (*names, each.what, *(() if each.what is ChangeKind.SAME else what_differs)), []
        ).append(each)
    for each in map(join_launches, groups.values()):
        if each.what is ChangeKind.SAME:
            yield from _timed(each.before, each.after, step_us)
        else:
            yield each


def _timed(
    old: tuple[KernelRecord, ...], new: tuple[KernelRecord, ...], step_us: float
) -> Iterator[Difference]:
    """Judge launches of one name by op and module, so that none is both slower and faster. Judge
    the rest together.

    The rest are in another op or module now, or there are more of them.
    """

    def place(kernel: KernelRecord) -> object:
        return kernel.identity, kernel.op, kernel.module

    olds, news = grouped(old, place), grouped(new, place)
    matched = {each for each, kernels in olds.items() if len(kernels) == len(news.get(each, ()))}
    for each, kernels in olds.items():
        if each in matched:
            yield Difference(
                _timing(kernels, news[each], step_us), tuple(kernels), tuple(news[each])
            )
    old, new = (
        tuple(kernel for kernel in side if place(kernel) not in matched) for side in (old, new)
    )
    if old:
        yield Difference(_timing(old, new, step_us), old, new)


def _timing(old: Sequence[KernelRecord], new: Sequence[KernelRecord], step_us: float) -> ChangeKind:
    """Judge the times of all launches of one kernel together: `old` and `new` are pairs of them, in
    steps of `step_us`.
    """
    steps = [zip(*(kernel.durations_us for kernel in side), strict=True) for side in (old, new)]
    befores, afters = ([sum(times) for times in side] for side in steps)
    change, is_single = median(afters) - median(befores), min(len(befores), len(afters)) < 2
    if abs(change) <= max(
        step_us * len(old), (_SEEN_OF_ONE_STEP if is_single else _SEEN) * median(befores)
    ):
        return ChangeKind.SAME
    if is_single and len(old) > 1:
        deltas = [
            after.device_time_us - before.device_time_us
            for before, after in zip(old, new, strict=True)
        ]
        is_seen = abs(change) > _SEEN_ERRORS * stdev(deltas) * len(deltas) ** 0.5
    else:
        is_seen = min(afters) > max(befores) or max(afters) < min(befores)
    return (
        ChangeKind.SAME if not is_seen else ChangeKind.SLOWER if change > 0 else ChangeKind.FASTER
    )


def _same_name(old: KernelRecord, new: KernelRecord) -> Difference:
    # Without what one of them lacks: a kernel in a CUDA graph, say, has no op to tell how it was
    # tuned.
    unknown = {
        name: None
        for name in old.identity.__struct_fields__
        if None in (getattr(old.identity, name), getattr(new.identity, name))
    }
    before, after = (msgspec.structs.replace(kernel.identity, **unknown) for kernel in (old, new))
    details = configuration_change(before, after)
    is_other_source = before.source_hash != after.source_hash
    what = (
        ChangeKind.SOURCE
        if is_other_source
        else ChangeKind.CONFIGURATION
        if details
        else ChangeKind.SAME
    )
    return Difference(what, (old,), (new,), details)


def with_moves(found: list[Difference]) -> list[Difference]:
    """Return what `diff` found, with MOVED where the same kernels run in another order."""
    cut = [each for each in found if each.what is ChangeKind.REPLACED]
    sides = [each.before for each in cut], [each.after for each in cut]
    old, new = (
        Counter(kernel.identity.unnumbered for kernel in chain.from_iterable(side))
        for side in sides
    )
    return found if old != new else [*chain.from_iterable(_without_moves(found))]


def _without_moves(
    found: Sequence[Difference],
) -> tuple[list[Difference], list[Difference]]:
    """Pair what is missing in one place and additional in another, with about as much to do: it ran
    in another order.

    Return what is left, and these pairs.
    """
    cut = [each for each in found if each.what is ChangeKind.REPLACED]
    additional = grouped(
        (kernel for block in cut for kernel in block.after),
        lambda kernel: kernel.identity.unnumbered,
    )
    pairs: list[Difference] = []
    for old in (kernel for block in cut for kernel in block.before):
        others = additional.get(old.identity.unnumbered, [])
        place = next((at for at, new in enumerate(others) if _is_as_large(old, new)), None)
        if place is not None:
            pairs.append(_same_name(old, others.pop(place)))
    elsewhere = {id(kernel) for pair in pairs for kernel in (*pair.before, *pair.after)}
    left: list[Difference] = []
    for each in found:
        before, after = (
            tuple(it for it in side if id(it) not in elsewhere)
            for side in (each.before, each.after)
        )
        left += [replace(each, before=before, after=after)] if before or after else []
    # That says what changed besides its place.
    return left, [
        pair if pair.what.is_change else replace(pair, what=ChangeKind.MOVED) for pair in pairs
    ]


def _is_as_large(old: KernelRecord, new: KernelRecord) -> bool:
    """Tell whether the inputs of two launches have about as many elements, as far as both know
    them.
    """
    shapes = (
        [each.partition("[")[2].rstrip("]").split(",") for each in it.inputs] for it in (old, new)
    )
    sizes = [
        sum(prod(int(size) for size in shape if size.isdecimal()) for shape in side)
        for side in shapes
    ]
    return not (old.inputs and new.inputs) or max(sizes) <= _AS_LARGE * min(sizes)


def _other_names(old: Sequence[KernelRecord], new: Sequence[KernelRecord]) -> list[Difference]:
    """Exchange templates, each with the next of its kind; what is left was fused, split or
    replaced.
    """
    found: list[Difference] = []
    for kind in _TEMPLATES:
        pairs = zip_longest(
            *([kernel for kernel in side if kernel.kind == kind] for side in (old, new))
        )
        found += [_exchange(before, after) for before, after in pairs]
    olds, news = (
        tuple(kernel for kernel in side if kernel.kind not in _TEMPLATES) for side in (old, new)
    )
    if not olds or not news:
        return [
            *found,
            *(_exchange(kernel, None) for kernel in olds),
            *(_exchange(None, kernel) for kernel in news),
        ]
    few, many, what = (
        (news, olds, ChangeKind.FUSED) if len(olds) > len(news) else (olds, news, ChangeKind.SPLIT)
    )
    is_one_job = len(few) < len(many) and _do_the_work_of(few, many)
    return [*found, Difference(what if is_one_job else ChangeKind.REPLACED, olds, news)]


def _exchange(old: KernelRecord | None, new: KernelRecord | None) -> Difference:
    if old is None or new is None:
        before, after = (() if kernel is None else (kernel,) for kernel in (old, new))
        return Difference(
            ChangeKind.APPEARED if old is None else ChangeKind.VANISHED, before, after
        )
    names = (old.identity.decoded, new.identity.decoded)
    pairs = [(field, *(getattr(name, field) for name in names)) for field in _TEMPLATE_FIELDS]
    details = ", ".join(
        f"{'with' if after else 'without'} {_SAID[field]}"
        if field in _SAID
        else f"{field} {before} -> {after}"
        for field, before, after in pairs
        # None: the name does not say, which is no difference
        if before != after and None not in (before, after)
    )
    return Difference(ChangeKind.TEMPLATE, (old,), (new,), details)


def _do_the_work_of(few: Sequence[KernelRecord], many: Sequence[KernelRecord]) -> bool:
    """Tell whether these were generated or written for one job, and no name speaks against it.

    Inductor's names say what was merged: a word of them must be among the others'. A hand-written
    kernel's does not.
    """
    names = [kernel.identity.decoded for kernel in few]
    merged = {word for name in names if name.backend.startswith("inductor") for word in name.ops}
    apart = {
        word for kernel in many for op in kernel.identity.decoded.ops for word in op.split("_")
    }
    return any(name.backend in ("triton", "liger") for name in names) or bool(merged & apart)


def _folded(found: Sequence[Difference]) -> list[Difference]:
    """Join an addition that vanished with the product beside it that got an addend: it is the
    epilogue now.
    """
    result: list[Difference | None] = list(found)
    for index, vanished in enumerate(found):
        if (
            vanished.what is not ChangeKind.VANISHED
            or "add" not in vanished.before[0].identity.decoded.ops
        ):
            continue
        for near in (index - 1, index + 1):
            gemm = result[near] if 0 <= near < len(found) else None
            if gemm is not None and _gained_an_addend(gemm):
                result[near], result[index] = (
                    replace(join_launches([gemm, vanished]), what=ChangeKind.FOLDED),
                    None,
                )
                break
    return [difference for difference in result if difference is not None]


def _gained_an_addend(difference: Difference) -> bool:
    kernels = (*difference.before, *difference.after)
    if [kernel.kind for kernel in kernels] != [Kind.GEMM.value] * 2:
        return False
    epilogues = [kernel.identity.decoded.bias_epilogue for kernel in kernels]
    return epilogues == [False, True] or [kernel.op for kernel in kernels] == [
        "aten::mm",
        "aten::addmm",
    ]


# -- rows of steps, by key -------------------------------------------------------------------------


@dataclass(frozen=True)
class RowDifference:
    """Rows of steps beside those of a baseline: what belongs together has one key on both sides."""

    before: Mapping[StepRow, RowRange]
    runs: Sequence[Steps]
    # what rows of a new phase or module were before
    renamed: Mapping[StepRow, StepRow]
    # what rows of both sides count as
    relocated: Mapping[StepRow, StepRow]

    @property
    def counts(self) -> list[Counter[StepRow]]:
        return [step for run in self.runs for step in run.counts]

    def times_us(self, rows: Collection[StepRow]) -> tuple[list[float], list[float]]:
        """Return how long these rows take in a step: in each run of the baseline, and in each run
        beside it.
        """
        known = [self.before[row].us for row in rows if row in self.before]
        before_us = list(map(fsum, zip(*known, strict=True))) or [0.0]
        return before_us, [fsum(map(run.mean_us, rows)) for run in self.runs]


def diff_rows(before: Mapping[StepRow, RowRange], runs: Sequence[Steps]) -> RowDifference:
    """Pair the rows of runs with those of a baseline, by key: a kernel, its op, and where it ran.

    A phase or module that has a new name has its rows, and so has a kernel that has moved.
    """
    renamed = _renamed_rows(before, dict.fromkeys(row for run in runs for row in run.row_us))
    runs = [run.renamed(renamed) for run in runs]
    relocated = _relocated_rows(before, runs)
    found: dict[StepRow, RowRange] = {}
    for each, rows in before.items():
        row = relocated.get(each, each)
        found[row] = _together(found[row], rows) if row in found else rows
    return RowDifference(found, [run.renamed(relocated) for run in runs], renamed, relocated)


def _together(one: RowRange, other: RowRange) -> RowRange:
    us = tuple(map(sum, zip(one.us, other.us, strict=True)))
    threads, spread = {*one.threads, *other.threads}, max(one.spread, other.spread)
    return RowRange(
        one.row, one.low + other.low, one.high + other.high, us, tuple(sorted(threads)), spread
    )


def _renamed_rows(stored: Iterable[StepRow], ran: Iterable[StepRow]) -> Mapping[StepRow, StepRow]:
    """Return what rows of a new phase or module were before: those of one that is gone, and of
    whose kernels it has half.
    """
    olds, news = (
        grouped((row for row in rows if row.name), attrgetter("place")) for rows in (stored, ran)
    )
    gone = {
        place: {row.kernel for row in rows} for place, rows in olds.items() if place not in news
    }
    found: dict[StepRow, StepRow] = {}
    for place, rows in news.items():
        kernels = {row.kernel for row in rows}
        shared = {old: len(kernels & others) for old, others in gone.items()}
        shared = {old: many for old, many in shared.items() if 2 * many >= len(gone[old])}
        if place not in olds and shared:
            phase, module = max(
                shared, key=lambda old: (shared[old], old[1] == place[1], old[0] == place[0])
            )
            del gone[phase, module]
            found |= {row: row._replace(phase=phase, module=module) for row in rows}
    return found


def _relocated_rows(
    stored: Mapping[StepRow, RowRange], runs: Sequence[Steps]
) -> Mapping[StepRow, StepRow]:
    """Return rows that count as another one: a kernel that runs less often in one place, and more
    often in another.
    """
    counts = [step for run in runs for step in run.counts]
    less, more = dict[Hashable, list[StepRow]](), dict[Hashable, list[StepRow]]()
    for row in dict.fromkeys((*stored, *chain.from_iterable(counts))):
        old, now = stored.get(row, RowRange(0, 0, 0, ())), {step[row] for step in counts}
        is_exact = row.slot not in stored and old.low == old.high and len(now) == 1
        if row.name and is_exact and now != {old.low}:
            (less if min(now) < old.low else more).setdefault(row.kernel, []).append(row)
    return {
        row: more[kernel][0]
        for kernel in less
        if kernel in more
        for row in (*less[kernel], *more[kernel][1:])
    }


# -- the code of one kernel ------------------------------------------------------------------------


_ABSENT = "(none)"  # an argument that is not given
_SHAPE, _INTEGER = re.compile(r"\[([\d,]*)\]"), re.compile(r" ?-?\d+")


def other_arguments(before: KernelRecord, after: KernelRecord) -> tuple[tuple[str, str], ...]:
    """Return the arguments of one op that differ: ``max=6`` and ``max=7``. Empty: one side does
    not know.
    """
    old, new = (arguments_by_name(each.arguments) for each in (before, after))
    if before.op != after.op or old is None or new is None:
        return ()
    pairs = [(name, old.get(name, _ABSENT), new.get(name, _ABSENT)) for name in old | new]
    return tuple(
        (f"{name}={one}", f"{name}={other}")
        for name, one, other in pairs
        if one != other and one and other and not _is_spelling(before, one, other)
    )


def _is_spelling(kernel: KernelRecord, before: str, after: str) -> bool:
    """Tell whether two texts say the same dimensions to an op: ``-1`` and ``3`` of four.

    An exponent is no dimension. Of other numbers, such as a diagonal, none costs more.
    """
    if "pow" in (kernel.op or kernel.identity.name):
        return False
    shape = _SHAPE.search("".join(kernel.inputs[:1] or kernel.arguments or ()))
    rank = shape[1].count(",") + 1 if shape else 0
    sides = [text.strip("[]").split(",") for text in (before, after)]
    return len(sides[0]) == len(sides[1]) and all(
        old == new
        or (
            all(map(_INTEGER.fullmatch, (old, new)))
            and min(int(old), int(new)) < 0
            and abs(int(old) - int(new)) == rank
        )
        for old, new in zip(*sides, strict=True)
    )


def other_texts(before: Iterable[str], after: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Pair texts ``name=value x2`` that are on one side alone, in order. One without a value is not
    known, and may be any.
    """
    old, new = _counted(before), _counted(after)
    gone, came = old - new, new - old
    sides = _but_for_unknown(gone, came), _but_for_unknown(came, gone)
    return tuple(zip_longest(*sides, fillvalue=_ABSENT))


def _counted(texts: Iterable[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in texts:
        text, _, count = each.rpartition(" x")
        is_counted = text and count.isdigit()
        found[text if is_counted else each] += int(count) if is_counted else 1
    return found


def _but_for_unknown(texts: Counter[str], others: Counter[str]) -> Iterator[str]:
    """Yield texts, but for as many of a name as the other side alone does not know."""
    unknown = Counter({text: count for text, count in others.items() if text.endswith("=")})
    for text, count in texts.items():
        name = f"{text.partition('=')[0]}="
        left = 0 if text == name else max(0, count - unknown[name])
        unknown[name] -= count - left
        if left:
            yield f"{text} x{left}" if left > 1 else text


def other_layouts(before: KernelRecord, after: KernelRecord) -> tuple[str, str] | None:
    """Return how the inputs of two launches lie in memory, if both know that and it differs:
    without those that lie alike.
    """
    old, new = ((each.resources or Resources()).layout.split(IN_LISTS) for each in (before, after))
    pairs = zip(old, new, strict=False)  # an older baseline does not know lists of tensors
    found = next((pair for pair in pairs if all(pair) and pair[0] != pair[1]), None)
    if found is None:
        return None
    one, other = (Counter(side.split(", ")) for side in found)
    # in another order, they are the same
    sides = [", ".join((a - b).elements()) for a, b in ((one, other), (other, one))]
    return (sides[0] or CONTIGUOUS, sides[1] or CONTIGUOUS) if any(sides) else found


NO_TENSOR = _ABSENT


def _other_inputs(
    before: KernelRecord, after: KernelRecord, part: int
) -> Iterator[tuple[str, str]]:
    """Yield what differs in a part of the inputs, ``bf16[64,768]``, at its bracket.

    Nothing if one side does not know them. If one side has more, as the profiler records no number
    in float64, those that both have are no pair of others.
    """
    sides = [
        [each.partition("[")[part].rstrip("]") for each in it.inputs] for it in (before, after)
    ]
    if len(sides[0]) != len(sides[1]):
        counts = [Counter(side) for side in sides]
        sides = [list((counts[one] - counts[1 - one]).elements()) for one in (0, 1)]
    if before.inputs and after.inputs:
        yield from (
            (old, new) for old, new in zip_longest(*sides, fillvalue=NO_TENSOR) if old != new
        )


def _other_strides(before: KernelRecord, after: KernelRecord) -> Iterator[tuple[str, str]]:
    layouts = (
        other_layouts(before, after)
        if (before.op, before.inputs) == (after.op, after.inputs)
        else None
    )
    yield from [layouts] if layouts else []


# What the same kernel may do otherwise, with what two launches of it have. Of what one side does
# not know, nothing.
FACTS: Mapping[str, Callable[[KernelRecord, KernelRecord], Iterable[tuple[str, str]]]] = {
    "shapes": partial(_other_inputs, part=2),
    "dtypes": partial(_other_inputs, part=0),
    "strides": _other_strides,
    "arguments": other_arguments,
    "streams": lambda old, new: (
        [(str(old.stream), str(new.stream))] if old.stream != new.stream else []
    ),
}


def resource_changes(
    before: KernelRecord, after: KernelRecord, arch: str
) -> list[tuple[str, str, str]]:
    """Return what differs in the code of two launches: ``("registers", "64", "72")``. What is not
    known does not differ.

    If nothing else does, return the digests of the machine code, which may be equal.
    """
    if before.resources is None or after.resources is None:
        return []
    old, new = (resources_of(each.identity, each.resources, arch) for each in (before, after))
    found = [(label, old[label], new[label]) for label in old if label in new]
    if layouts := other_layouts(before, after):
        found.append(("inputs", *layouts))
    if before.resources.options and after.resources.options:
        found += paired_kwargs(before.resources.options, after.resources.options)
    codes = before.resources.code, after.resources.code
    return [each for each in found if each[1] != each[2]] or [
        ("machine code", code, other) for code, other in (codes,) if code and other
    ]


def is_chosen(before: KernelRecord, after: KernelRecord) -> bool:
    """Tell whether an autotuner may have chosen what differs in the code of the same kernel."""
    old, new, one = before.resources or Resources(), after.resources or Resources(), before.identity
    is_inductors_choice = (
        one.kernel_kwargs is None or one.without_source != after.identity.without_source
    )
    is_same_choice = bool(old.options) and old.options == new.options
    return (one.is_inductors and is_inductors_choice) or (
        (old.is_tuned or new.is_tuned) and not is_same_choice
    )


def has_worse_code(
    before: KernelRecord, after: KernelRecord, arch: str, sm_count: int | None
) -> bool:
    """Tell whether the code of the same kernel spills and did not, or fills less of the GPU; and no
    autotuner chose that.
    """
    old, new = before.resources, after.resources
    if old is None or new is None or is_chosen(before, after):
        return False
    shares = [
        occupancy(each.identity, each.resources, arch, sm_count=sm_count)
        for each in (before, after)
    ]
    has_less = None not in shares and shares[1] < shares[0]  # type: ignore[operator]
    return has_less or bool(old.spilled_words == 0 and new.spilled_words)
