"""Why a run differs from its baseline: what changed in one place, how much it costs, and the code
that asks for it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec

from ..run import (
    LINES,
    CompileEvent,
    Origin,
    PeakPart,
    Run,
    SourceLine,
    common_path,
    statement_key,
)
from ..trace import (
    FACTS,
    NO_TENSOR,
    ChangeKind,
    Difference,
    KernelRecord,
    Kind,
    Summary,
    diff,
    grouped,
    has_worse_code,
    is_dispatched,
    join_launches,
    origin_at,
    resource_changes,
    was_autotuned,
    with_moves,
)
from . import evidence as e
from .baseline import Baseline, count_changes, other_data
from .host import host_causes, reads_tensor

# A kernel that is only slower is a cause if it carries this share of the change; if none does, the
# first ones are.
_NAMED_SHARE = 0.10
_NAMED_AT_LEAST = 3
# Below this, kernels of the same identity are called unchanged: the spread of one kernel's median
# between processes.
UNCHANGED = 0.01
_MOST_LINES, _MOST_OPS = 2, 2  # lines of code, and ops that launched what is new
# what the names of functions in graphs begin with, in `Run.data` and `Run.op_origins`
_COMPILED = "compiled "
_BACKWARD = "<torch._C._EngineBase.run_backward>"  # what `grad` and `backward` of torch call
_ACCUMULATES = "aten::add_"  # how autograd adds to a gradient
_SEEN_IDLE = 0.05  # of a step, or of the time of its copies: less differs between two profiles
# The same three kernels left an H200 idle for 20 us of a step in one profile, and for 115 us in
# another (tests/data/h200).
_SEEN_IDLE_US = 100.0
_NOTED = 0.01  # of a step: a smaller change of its copies is none
_OFTEN = 3  # times as often: that is said
# A kernel loses up to this share where the host has begun to wait or to copy: 5 to 6 % on an H200
# (docs/design/times.md).
_BEHIND_A_PAUSE = 0.10
# Of an op, for the order of causes alone: a rough size.
_DISPATCH_US = 1.0
_HOST_US = 1.0  # host work that costs less is not shown beside other causes
_HOST_AT_A_LINE_US = 20.0  # nor less than this, at a line that another cause names
# what a call keeps for a backward moves, and no line of these is the reason
_OF_MEMORY = (e.PeakMemory, e.MemoryGrowth, e.AllocatorCalls)
_LAYER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")  # the number of a layer in the path of a module
# values in the reason of a recompile: ``size of x at index 0 is 8, no longer 4``
_VALUES = re.compile(r" is .*no longer .*|\d[\w.]*")
_DECORATED = re.compile(r"^@.* def ")  # as in `Run.statements`
_HEAD = re.compile(r"(async )?(el)?(if|for|while)\b")  # of a block
_SWITCHES_GRADIENTS = re.compile(r"no_grad|inference_mode|set_grad_enabled|detach")
_FLOAT = re.compile(r"[bf]+p?\d+(_\w+)?")  # a dtype of floating point: bf16, fp32, fp8_e4m3


def order_causes(causes: Iterable[e.Cause], known: AbstractSet[str] = frozenset()) -> list[e.Cause]:
    """Return what explains others first, then other kernels of an edited line, then the largest
    effect; without times, causes that remove work come last.

    `known`: the lines that launched kernels before.
    """

    def is_edited(cause: e.Cause) -> bool:
        is_of_kernels = isinstance(cause.change, (e.OtherKernels, e.OtherPlacement))
        codes = {code for each in cause.places for code in each.line.codes} if known else set()
        return is_of_kernels and not codes <= known

    def is_gone(cause: e.Cause) -> bool:
        now = getattr(cause.change, "after", getattr(cause.change, "new", True))
        return cause.delta_us is None and not (now or cause.waits or cause.copies)

    return sorted(
        causes,
        key=lambda cause: (
            not cause.explains,
            is_gone(cause),
            not is_edited(cause),
            -cause.weight_us,
            not cause.waits,
            not cause.copies,
        ),
    )


def compare_launches(
    baseline: Baseline | None, usual: Sequence[KernelRecord], run: Run
) -> list[Difference]:
    """Return what a run launched beside its baseline, else beside itself: with the lines of code,
    and in a sequence the number of the call.

    `usual`: the baseline's kernels, in the time that the run is compared with. `run`: as
    `at_edited_lines` returns it.
    """
    in_call = [number for number, call in enumerate(run.calls) for _ in range(call.launches)]
    origins = baseline.origins if baseline is not None else run.origins
    return diff(_launches(usual, origins), _launches(run.kernels, run.origins, in_call))


def at_edited_lines(run: Run, baseline: Baseline) -> Run:
    """Return a run with the outermost line that the baseline lacks, else that runs more often,
    wherever one leads to a line: what an edited line calls is its work. What a backward pass runs
    for a line of the forward, the line that calls this pass leads to as well.

    An older baseline does not say which lines it has.
    """
    known = frozenset(baseline.calling_code)
    if not known:
        return run
    repeated = _new_code(run, baseline) & known
    edited, decorated = _edited_statements(run, baseline), _once_decorated(run, baseline)
    passes = run.host_work_origins.get(_BACKWARD, ())
    calling = [line for each in passes for lines in each.callers or (each.lines,) for line in lines]

    as_before = known | _known_statements(run, baseline)

    def above(found: Origin) -> Sequence[Sequence[SourceLine]]:
        return found.callers or tuple((line,) for line in found.lines)

    def is_edited(path: Iterable[SourceLine]) -> bool:
        return any(line.code not in as_before or line.at in decorated for line in path)

    def below(found: Any, *, adds: bool = True) -> Any:
        if isinstance(found, Mapping):  # of several places of an op, an edited line tells more
            new = {
                name
                for name, each in found.items()
                if any(is_edited(path) for it in each for path in above(it))
            }
            return {name: below(each, adds=name not in new) for name, each in found.items()}
        if isinstance(found, tuple):
            return tuple(below(each, adds=adds) for each in found)
        if isinstance(found, PeakPart):
            return msgspec.structs.replace(found, origin=below(found.origin))
        if not isinstance(found, Origin):
            return found
        if found.is_backward and calling:
            callers = tuple((*each, *calling) for each in above(found))
            found = msgspec.structs.replace(found, callers=callers)
        undecorated = {line.code for each in above(found) for line in each if line.at in decorated}
        callers = tuple(
            tuple(filter(None, chain(*((edited.get(line.at), line) for line in each))))
            if adds and not is_edited(each)
            else tuple(each)
            for each in above(found)
        )
        found = msgspec.structs.replace(found, callers=callers)
        reached = {line.code for each in callers for line in each} - known
        return found.below(as_before - undecorated, repeated | reached)

    located = (name for name in Run.__struct_fields__ if name == "peak" or "origins" in name)
    places = {name: below(getattr(run, name)) for name in located}
    return msgspec.structs.replace(run, **places)


def _edited_statements(run: Run, baseline: Baseline) -> dict[str, SourceLine]:
    """Return, by the place of a line, the first decorator or statement in its function that is new and
    calls nothing, or leads past others: a size, or the condition of a cache.

    An older baseline does not say which statements a function has.
    """
    known, calling = _known_statements(run, baseline), run.calling_code

    def first_new(statements: Iterable[SourceLine]) -> SourceLine | None:
        new = (it for it in statements if it.code not in known)
        return next((it for it in new if it.code not in calling or _HEAD.match(it.code)), None)

    own = {at: each for at, each in run.statements.items() if each[0].code in known}
    edited = {at: first_new(each) for at, each in own.items()}
    return {at: new for at, (function, *_) in own.items() if (new := edited.get(function.at))}


def _known_statements(run: Run, baseline: Baseline) -> set[str]:
    """Return the code of statements that the baseline has, too, and of functions and names that it
    has not: they may be as old, and nothing used them.
    """
    stored = frozenset(baseline.statements)
    return {
        it.code
        for lines in run.statements.values()
        for it in lines
        if stored
        and (statement_key(lines[0].code) not in stored or statement_key(it.code) in stored)
    }


def _once_decorated(run: Run, baseline: Baseline) -> set[str]:
    """Return the places of lines in functions that have lost a decorator."""
    lost = filter(_DECORATED.search, {*baseline.statements}.difference(run.statement_keys))
    functions = {_DECORATED.sub("def ", code) for code in lost}
    return {at for at, (first, *_) in run.statements.items() if first.code in functions}


def find_causes(
    run: Run, baseline: Baseline, compared: list[Difference], *, is_timed: bool
) -> list[e.Cause | e.Rest]:
    """Return what changed between a baseline and a run, the largest effect first, and the kernels
    that did not change.

    Args: compared: by `compare_launches`, of the same run. is_timed: whether times count. Else a
        kernel that is only slower is no cause, nor what the autotuner chose.
    """
    lines = chain.from_iterable(it.lines for it in baseline.origins if it)
    known = {code for line in lines for code in line.codes} - _new_code(run, baseline)
    runs = _runs(run, baseline)
    changes, alike = _kernel_changes(
        with_moves(compared), (run.fingerprint.arch, run.fingerprint.sm_count), is_timed=is_timed
    )
    counts = count_changes(baseline.counts, run.counts)
    _add_calls_of_run(changes, run, baseline, counts)
    causes = compile_causes(_new_events(baseline, run))
    if baseline.counts.compiled_ops and run.counts.compiled_ops == 0 and not causes:
        causes.append(e.Cause(e.NoLonger("compile"), explains=True))
    is_recorded = baseline.counts.autograd_nodes == 0 and "autograd_nodes" in counts
    if is_recorded:
        causes.append(_recorded_cause(run, baseline, known))
    _name_kept_gradients(run, changes)
    causes += [
        each.cause(known, is_timed=is_timed)
        if each.change != _KEEPS_GRADIENTS
        else _at_lost_lines(each.cause(known, is_timed=is_timed), (), run, baseline)
        for each in changes
    ]
    causes += [
        with_code(cause, origins, known)
        for cause, origins in _counted(run, baseline, counts, known)
        if not (is_recorded and isinstance(cause.change, _OF_MEMORY))
    ]
    if not is_recorded:
        causes += _held_causes(run, baseline, counts, known, are_alike=not changes)
    if counts.get("compiled_ops") is not None and not causes:
        ops = e.CompiledOps(
            baseline.counts.compiled_ops, run.counts.compiled_ops, *_other_functions(run, baseline)
        )
        causes.append(with_code(e.Cause(ops), _of_new_compiled_ops(run, baseline, known), known))
    is_explained = (is_timed and changes) or counts.get("graph_launches")
    if baseline.ops and "dispatcher_ops" in counts and not is_explained:
        causes += _op_causes(run, baseline, known, changes, is_all=not causes)
    if counts.get("peak_allocated_bytes") and not (is_timed or is_recorded):
        peak = _peak_cause(run, baseline)
        named = {place.line for cause in causes for place in cause.places}
        causes += [peak] if named.isdisjoint(place.line for place in peak.places[:1]) else []
    if counts.get("autograd_nodes") and not causes:
        causes.append(_recorded_cause(run, baseline, known))
    if not is_timed:
        usual = {*baseline.calling_code} - _new_code(run, baseline)
        causes = [*_with_host(causes, host_causes(baseline, run), usual)]
        causes = [*_with_other_edits(order_causes(causes, known), run, baseline)]
    stored = _stored_lines(run, baseline)
    ordered: list[e.Cause | e.Rest] = [
        _with_runs(each, runs, stored) for each in order_causes(causes, known)
    ]
    if is_timed and alike:
        rest = join_launches(alike)
        share = rest.after_us / rest.before_us - 1 if rest.before_us else 0.0
        ordered.append(
            e.Rest(len(rest.after), share, rest.delta_us, is_unchanged=abs(share) < UNCHANGED)
        )
    return ordered


def _runs(run: Run, baseline: Baseline) -> dict[str, tuple[int, int]]:
    """Return how often a line ran, and how often it runs now, by its code, where that differs and
    is known.
    """
    pairs = {code: (baseline.calling_code.get(code, 0), n) for code, n in run.calling_code.items()}
    return {code: pair for code, pair in pairs.items() if all(pair) and pair[0] != pair[1]}


def _new_code(run: Run, baseline: Baseline) -> set[str]:
    """Return the code of lines that call something and did not, or not as often; none if an older
    baseline does not say which did.
    """
    more = {code for code, (old, new) in _runs(run, baseline).items() if old < new}
    new = run.calling_code.keys() - baseline.calling_code.keys()
    return more | new if baseline.calling_code else set()


def _lines_of_today(run: Run) -> dict[tuple[str, str], SourceLine]:
    """Return the lines of a run, without those that they lead to, by file and code."""
    return {
        (line.file, line.code): msgspec.structs.replace(line, inner=None)
        for origins in (run.origins, *run.op_origins.values(), *run.host_work_origins.values())
        for origin in filter(None, origins)
        for line in chain(origin.lines, map(attrgetter("deepest"), origin.lines))
    }


def _with_other_edits(causes: Sequence[e.Cause], run: Run, baseline: Baseline) -> Sequence[e.Cause]:
    """Return causes, the first one with the lines that were edited where none has one: an argument
    of a constructor, say, decides what an untouched line launches. More than two tell nothing.
    """
    then = baseline.calling_code
    new = run.calling_code.keys() - then.keys() if then else set()
    named = {code for cause in causes for each in cause.places for code in each.line.codes}
    lines = [line for line in _lines_of_today(run).values() if line.code in new]
    lines += dict.fromkeys(_edited_statements(run, baseline).values())
    if not causes or not 0 < len(lines) <= _MOST_LINES or named & new:
        return causes
    (first, *others), edited = causes, tuple(map(e.Place, lines))
    places, dearest = (*edited, *first.places), first.dearest + len(edited)
    return [msgspec.structs.replace(first, places=places, dearest=dearest), *others]


def _recorded_cause(run: Run, baseline: Baseline, known: AbstractSet[str]) -> e.Cause:
    """Return that autograd records a call, or more of it, with the line that it records first in a
    function that lost a decorator, else the edited line, else the first one if it recorded none;
    and those that kept it from that and that nothing runs any more.
    """
    then, now = (
        {*each.calling_code, *codes}
        for each, codes in ((baseline, baseline.statements), (run, run.statement_keys))
    )
    lost = then - now if now else set()
    gone = [
        e.Place(SourceLine("", 0, code), runs=(0, 0))  # a ``with`` runs at its end, too
        for code in sorted(filter(_SWITCHES_GRADIENTS.search, lost))
    ]
    decorated, recorded = _once_decorated(run, baseline), run.recorded_origins
    first = [it for it in recorded if any(line.at in decorated for line in it.lines)]
    first = first or _edited(recorded, known) or _edited(run.origins, known)
    old = baseline.counts.autograd_nodes
    nodes = (old, run.counts.autograd_nodes or 0) if old else None
    cause = e.Cause(e.NoLonger("skip autograd", nodes), explains=True)
    cause = with_code(cause, (first or (() if nodes else recorded))[:1], known)
    return msgspec.structs.replace(cause, places=(*cause.places, *gone[:_MOST_LINES]))


def _stored_lines(run: Run, baseline: Baseline) -> dict[SourceLine, e.Place]:
    """Return the lines that the baseline alone has, as they are to be shown: with the number of
    today, or without one; none if an older baseline does not say which code it has.
    """
    then, now = baseline.calling_code, run.calling_code
    today = _lines_of_today(run)
    lines = (line for origin in filter(None, baseline.origins) for line in origin.lines)
    return {
        line: e.Place(
            today.get((line.file, line.code), SourceLine(line.file, 0, line.code)),
            runs=(then[line.code], 0) if line.code in then.keys() - now.keys() else None,
        )
        for line in (lines if then and now else ())
        if msgspec.structs.replace(line, inner=None) not in today.values()
    }


def _with_runs(
    cause: e.Cause, runs: Mapping[str, tuple[int, int]], stored: Mapping[SourceLine, e.Place]
) -> e.Cause:
    places = []
    for place in cause.places:
        known = stored.get(place.line, place)
        line = known.line
        places.append(
            msgspec.structs.replace(
                place,
                line=line,
                runs=runs.get(line.deepest.code, known.runs),
                outer_runs=runs.get(line.code) if line.inner else None,
            )
        )
    return msgspec.structs.replace(cause, places=tuple(places))


def _with_host(
    causes: Sequence[e.Cause],
    host: Iterable[tuple[e.Cause, Sequence[Origin]]],
    calling_code: AbstractSet[str],
) -> Iterator[e.Cause]:
    """Yield causes and the host's work; beside other causes without a few calls that cost nothing,
    and those at a line that another cause has.

    Where a line reads a tensor, as ``x.tolist()`` does, the ops are a part of that.
    `calling_code`: of the lines that called something as often before. Others are named alone.
    """
    made = {_lines_in(each): each for each in causes if isinstance(each.change, e.OtherOps)}
    located = []
    for work, origins in host:
        new = [each for each in origins if any(it.code not in calling_code for it in each.lines)]
        # of the lines that run, the most frequent one may have run as often before
        is_of_lines = isinstance(work.change, e.HostCalls) and work.change.function == LINES
        cause = with_code(work, new if calling_code and (new or is_of_lines) else origins)
        ops = made.get(_lines_in(cause)) if cause.places else None
        change = cause.change
        if isinstance(change, e.HostCalls) and reads_tensor(change.function) and ops is not None:
            causes = [each for each in causes if each is not ops]
            change = msgspec.structs.replace(change, ops=getattr(ops.change, "new", ()))
        located.append(msgspec.structs.replace(cause, change=change))
    costs_us: dict[tuple[str, int], float] = {}
    for each in causes:
        if isinstance(each.change, _OF_MEMORY):
            continue  # what a line calls tells why it allocates
        for line in (line for it in each.places for line in (it.line, it.line.deepest)):
            place = line.file, line.line
            costs_us[place] = max(each.weight_us, costs_us.get(place, 0.0))
    yield from causes
    for cause in located:
        at_the_line = [costs_us[it] for it in _lines_in(cause) if it in costs_us]
        least_us = max(*at_the_line, _HOST_AT_A_LINE_US) if at_the_line else _HOST_US
        if not causes or cause.weight_us >= least_us:
            yield cause


def _lines_in(cause: e.Cause) -> frozenset[tuple[str, int]]:
    """Return the lines of a cause that call what it says, by file and number."""
    return frozenset((it.line.deepest.file, it.line.deepest.line) for it in cause.places)


def _counted(
    run: Run,
    baseline: Baseline,
    counts: Mapping[str, bool | None],
    known: AbstractSet[str],
) -> Iterator[tuple[e.Cause, Sequence[Origin]]]:
    """Yield what data, memory and CUDA graphs changed, with the origins."""
    before, after = baseline.counts, run.counts
    ran = Counter(each.name for each in run.ops)
    for op, other in other_data(baseline.data, run.data).items():
        if baseline.ops and op in ran and ran[op] != baseline.ops.get(op, 0):
            continue  # more or fewer ops have other data
        kernels = ((op.removeprefix("aten::"), sum(each.name == op for each in run.ops) or 1),)
        origins = run.op_origins.get(op, run.compiled_origins)
        # What only one side has, another op explains.
        is_on_both = all(
            it.isdisjoint((NO_TENSOR, None)) for it in map(set, (*other.arguments, *other.amounts))
        )
        change = msgspec.structs.replace(other, kernels=kernels)
        yield e.Cause(change, explains=is_on_both), _edited(origins, known) or origins
    if counts.get("graph_launches") and not after.graph_launches:
        yield e.Cause(e.LostGraph(), explains=True), run.compiled_origins
    if counts.get("allocator_calls"):
        ops = tuple(Counter(run.allocating_ops).items())
        calls = before.allocator_calls or 0, after.allocator_calls or 0
        yield e.Cause(e.AllocatorCalls(*calls, ops), explains=True), run.allocation_origins
    if counts.get("peak_host_bytes"):
        peaks = before.peak_host_bytes or 0, after.peak_host_bytes or 0
        yield e.Cause(e.PeakMemory(*peaks, is_host=True)), run.host_peak_origins
    for name, origins in (
        ("grown_bytes", run.growth_origins),
        ("grown_host_bytes", run.host_growth_origins),
        ("cyclic_bytes", run.cyclic_origins),
    ):
        if counts.get(name):
            grown = (getattr(after, name) or 0) - (getattr(before, name) or 0)
            is_cyclic, is_host = name == "cyclic_bytes", "host" in name
            keeping = [] if is_cyclic else _keeping(run, baseline) or run.keeping_origins
            new = [] if is_cyclic or keeping or origins else _at_new_code(run, baseline)
            growth = e.MemoryGrowth(
                grown,
                is_host,
                is_cyclic,
                is_kept=True if keeping else False if origins or new else None,
            )
            yield e.Cause(growth), keeping or origins or new


def _held_causes(
    run: Run,
    baseline: Baseline,
    counts: Mapping[str, bool | None],
    known: AbstractSet[str],
    *,
    are_alike: bool,
) -> Iterator[e.Cause]:
    """Yield what is newly held between calls, and a graph that is kept since a detach is gone.

    `are_alike`: whether the launches are: others may record more by themselves.
    """
    now = Counter(each.name for each in run.ops if is_dispatched(each.name))
    then = Counter(baseline.ops)
    sides = [
        (each.autograd_nodes or 0, each.held_bytes or 0) for each in (baseline.counts, run.counts)
    ]
    (old, held_before), (new, held_now) = sides
    if counts.get("grown_bytes"):  # which says so
        return
    more = held_now - held_before if counts.get("held_bytes") else 0
    keeping = _keeping(run, baseline) if more else []
    has_more_nodes = bool(counts.get("autograd_nodes")) and are_alike
    if new and (then - now)["aten::detach"] and not now - then and (more or has_more_nodes):
        change = e.NoLonger("detach", (old, new) if has_more_nodes else None, more)
        cause = e.Cause(change, explains=True)
        yield (
            with_code(cause, keeping, known)
            if keeping
            else _at_lost_lines(cause, ["aten::detach"], run, baseline)
        )
    elif more:
        growth = e.MemoryGrowth(more, is_held=True)
        yield with_code(e.Cause(growth), keeping or _at_new_code(run, baseline), known)


def _keeping(run: Run, baseline: Baseline) -> list[Origin]:
    """Return the lines that keep something of each call and did not run before, or not as often."""
    usual = baseline.calling_code.keys() - _new_code(run, baseline)
    return [each for each in run.keeping_origins if not usual.intersection(each.codes)]


def _at_new_code(run: Run, baseline: Baseline) -> list[Origin]:
    """Return where ops come from at lines that are new, or run more often; none of many lines."""
    new = _new_code(run, baseline)
    found = [
        each
        for each in chain(*run.op_origins.values())
        if any(new.intersection(line.codes) for line in each.lines)
    ]
    return found if len({each.lines for each in found}) <= _MOST_LINES else []


def find_trace_causes(
    before: Summary, after: Summary, found: Iterable[Difference]
) -> list[e.Cause]:
    """Return the changes between two traces, the largest effect first.

    A wait costs what host or device wait longer.
    """
    launches = []
    is_same_gpu = set(before.devices) == set(after.devices)  # another one has other code
    for each in found:
        old, new = (
            tuple(_compared(it, has_code=is_same_gpu) for it in side)
            for side in (each.before, each.after)
        )
        launches.append(Difference(each.what, old, new, each.details))
    changes, _ = _kernel_changes(launches, (after.arch, None), is_timed=True, are_judged=True)
    first, second = (side.windows[-1] for side in (before, after))
    usual = Counter(text for text, _ in (*first.synchronizing_ops, *first.copying_ops))
    calls: list[_Change] = []
    for are_waits, ops in ((True, second.synchronizing_ops), (False, second.copying_ops)):
        asked = [(text, origin_at(*after.places.get(at, ("", "")))) for text, at in ops]
        _add_host_calls(calls, asked, usual, are_waits=are_waits)
    idle_us = [side.busiest.idle_us if side.busiest else 0.0 for side in (before, after)]
    waits_us = [
        sum(each.duration_us for each in side.calls if each.is_synchronization)
        for side in (first, second)
    ]
    lost_us = max(idle_us[1] - idle_us[0], waits_us[1] - waits_us[0])
    causes = [each.cause(frozenset(), is_timed=True) for each in (*changes, *calls)]
    dtypes: list[str] = []  # that more than half of the launches of a side work in
    for side in (before, after):
        counts = Counter(dtype for each in side.kernels for dtype in set(_dtypes(each)))
        dtypes += [dtype for dtype, count in counts.most_common(1) if 2 * count > len(side.kernels)]
    if len(set(dtypes)) > 1:
        causes.append(e.Cause(e.OtherDtype(*dtypes), explains=True))
    if first.graph_launches and not second.graph_launches:
        causes.append(e.Cause(e.LostGraph(), explains=True))
    waiting, copying = (
        sum(bool(getattr(each, name)) for each in causes) for name in ("waits", "copies")
    )
    wall_us, change_us = before.wall_us, idle_us[1] - idle_us[0]
    if not waiting and abs(change_us) > max(_SEEN_IDLE * wall_us, _SEEN_IDLE_US):
        idle = e.BesideKernels("idle", idle_us[0], idle_us[1])
        causes.append(e.Cause(idle, delta_us=change_us, weight_us=abs(change_us)))
    moved = [side.transfers("gpu_memset", "gpu_memcpy") for side in (before, after)]
    counts_of, us_of = (
        [sum(getattr(it, name) for it in side) for side in moved] for name in ("count", "time_us")
    )
    copies_us = us_of[1] - us_of[0]
    if (counts_of[0] != counts_of[1] and not copying) or abs(copies_us) > max(
        _SEEN_IDLE * us_of[0], _NOTED * wall_us
    ):
        copies = e.BesideKernels("copies", counts_of[0], counts_of[1])
        causes.append(e.Cause(copies, delta_us=copies_us, weight_us=abs(copies_us)))
    shared_us = lost_us / max(1, waiting)
    return order_causes(
        msgspec.structs.replace(each, weight_us=shared_us) if each.waits else each
        for each in causes
    )


def _compared(kernel: KernelRecord, *, has_code: bool) -> KernelRecord:
    """Return a launch without what another GPU has otherwise; without its op where the op is its
    kernel.
    """
    op = kernel.op if is_dispatched(kernel.op) or kernel.op != kernel.identity.name else ""
    return msgspec.structs.replace(kernel, op=op, resources=kernel.resources if has_code else None)


def compile_causes(events: Iterable[CompileEvent]) -> list[e.Cause]:
    """Return the graph breaks and recompiles as causes, each reason once."""
    found: dict[tuple[str, str], list[Origin]] = {}
    for each in events:
        origins = found.setdefault((each.kind, each.reason), [])
        if each.file:
            line = SourceLine(each.file, each.line, each.code, each.inner)
            origins.append(Origin(each.module, (line,)))
    return [
        with_code(e.Cause(e.CompilerEvent(*event, max(1, len(origins))), explains=True), origins)
        for event, origins in found.items()
    ]


def _new_events(baseline: Baseline, run: Run) -> list[CompileEvent]:
    """Return the graph breaks and recompiles that have no counterpart: one in the same function,
    for a reason of the same class.

    Values in the reason may differ, and so may the line. Of several, those with the likest code are
    counterparts. One event stands for all of its place: if there are more in all, those of another
    text are new.
    """
    before, after = baseline.compile_events, run.compile_events

    def place(event: CompileEvent) -> object:
        reason = _VALUES.sub("", event.reason)
        return event.kind, reason, event.module, event.function

    new, other = list(after), list[CompileEvent]()
    usual = grouped(before, place)
    pairs = [(old, each) for each in after for old in usual.get(place(each), ())]

    def likeness(pair: tuple[CompileEvent, CompileEvent]) -> tuple[bool, int]:
        old, new = (each.code for each in pair)
        return old == new, (Counter(old) & Counter(new)).total()

    for old, each in sorted(pairs, key=likeness, reverse=True):
        if each in new and old in usual[place(each)]:
            usual[place(each)].remove(old)
            new.remove(each)
            other += [each] if (old.reason, old.code) != (each.reason, each.code) else []
    breaks, recompiles, ops = (
        (getattr(run.counts, name) or 0) - (getattr(baseline.counts, name) or 0)
        for name in ("graph_breaks", "recompiles", "compiled_ops")
    )
    # Those of the first call are in no count: more of them compile more ops.
    for kind, more in (("graph break", breaks), ("recompile", max(recompiles, ops > 0))):
        if more > sum(each.kind == kind for each in new):
            new += [each for each in other if each.kind == kind]
    return [each for each in after if each in new]


@dataclass
class _Change:
    """What changed in one place: launches, and what the host does there."""

    parts: list[Difference] = field(default_factory=list)  # one for each place in the sequence
    change: e.Change | None = None  # what happened to the launches
    # new synchronising calls, as in `Baseline.host_calls`
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)  # new ones, likewise
    origins: list[Origin | None] = field(default_factory=list)  # of the launches, and of the calls
    wait_lines: dict[SourceLine, None] = field(default_factory=dict)  # where the host waits
    explains: bool = False  # as `Cause.explains`
    follows: bool = False  # it follows from another change, and its cost is noise

    def add(self, part: Difference) -> None:
        self.parts.append(part)
        self.origins += [launch.origin for launch in part.after or part.before]

    @property
    def place(self) -> float:
        """Return the place of its first launch in the run: what comes first is no consequence."""
        return min((it.place for part in self.parts for it in part.after), default=math.inf)

    def swaps(self, other: _Change) -> bool:
        """Tell whether the work of a line left one of the two places for the other."""
        (was, now), (others, here) = self._codes, other._codes
        return bool((was - now) & (here - others) or (others - here) & (now - was))

    @property
    def _codes(self) -> list[set[str]]:
        """Return the code that asks for the launches before and for those after."""
        return [
            {
                code
                for part in self.parts
                for launch in side(part)
                for code in (launch.origin.codes if launch.origin else ())
                if code
            }
            for side in (_BEFORE, _AFTER)
        ]

    @property
    def launched(self) -> set[tuple[str, str]]:
        """Return the kernels of both sides, with their ops."""
        return {
            (each.identity.unnumbered, each.op)
            for part in self.parts
            for each in (*part.before, *part.after)
        }

    def repeats(self, launch: KernelRecord) -> bool:
        """Tell whether a launch runs more often here than it did, in the same place.

        Without lines, a collective tells.
        """
        counts = [sum(each.identity.unnumbered == launch.identity.unnumbered for part in self.parts for each in side(part))
                  for side in (_BEFORE, _AFTER)]  # fmt: skip
        is_here = bool(set(launch.lines) & self.marks)
        if not (launch.lines or any(self.origins)):
            is_here = launch.identity.kind == Kind.COMMUNICATION.value
        return counts[1] > counts[0] and is_here

    @property
    def marks(self) -> set[object]:
        """What tells the place: its lines of code, and the text of those that lead to others; where
        none is known, the kernels that were there.
        """
        found = {line for origin in filter(None, self.origins) for line in origin.lines}
        lines: set[object] = {(it.file, it.code, it.inner) for it in found if it.inner} | found
        if not lines and (self.waits or self.copies):
            return {call.partition(": ")[0] for call in (*self.waits, *self.copies)}
        return lines or {
            frozenset(launch.identity.unnumbered for part in self.parts for launch in part.before)
        }

    def cause(self, known: AbstractSet[str], *, is_timed: bool) -> e.Cause:
        delta_us = sum(part.delta_us for part in self.parts)
        cause = e.Cause(
            self.change,
            tuple(self.waits.items()),
            tuple(self.copies.items()),
            had_kernels=any(part.before for part in self.parts),
            delta_us=delta_us if is_timed and self.parts else None,
            weight_us=0.0 if self.follows else abs(delta_us),
            explains=self.explains,
            calls=tuple(
                sorted(
                    {
                        each.call
                        for part in self.parts
                        for each in part.after
                        if each.call is not None
                    }
                )
            ),
        )
        costs_us: dict[Sequence[SourceLine], float] = defaultdict(float)
        is_other_input = isinstance(self.change, e.OtherPlacement) and self.explains
        for part in [] if is_other_input else self.parts:  # its first line tells, not the dearest
            for launch in part.after or part.before:
                costs_us[tuple(_telling_lines(launch.origin, known))] += launch.device_time_us
        return with_code(cause, self.origins, known, costs_us, self.wait_lines)


def _launches(
    kernels: Sequence[KernelRecord], origins: Sequence[Origin | None], calls: Sequence[int] = ()
) -> list[KernelRecord]:
    known = origins if len(origins) == len(kernels) else [None] * len(kernels)
    numbers = calls if len(calls) == len(kernels) else [None] * len(kernels)
    return [
        msgspec.structs.replace(each, origin=origin, call=call, place=place)
        for place, (each, origin, call) in enumerate(zip(kernels, known, numbers, strict=True))
    ]


_BEFORE, _AFTER = attrgetter("before"), attrgetter("after")


def _kernel_changes(
    found: Sequence[Difference],
    gpu: tuple[str, int | None],
    *,
    is_timed: bool,
    are_judged: bool = False,
) -> tuple[list[_Change], list[Difference]]:
    """Return what changed between two launch sequences, and the launches that did not change.

    Other launches at the same lines of code are one change. So are launches of one kernel that
    changed in the same way. `gpu`: its architecture and number of SMs. `are_judged`: the
    differences are those of traces, which say what belongs together, and what is slower or faster.
    """
    others = _other_kernels(
        [each for each in found if not each.what.is_pair], are_joined=not are_judged
    )
    pairs = _by_difference(found, others, is_timed=is_timed, are_judged=are_judged)
    totals = [
        Counter(it.identity.shown for each in found for it in side(each))
        for side in (_BEFORE, _AFTER)
    ]
    changes = [_described(change, *totals) for change in others]
    alike: list[Difference] = []
    launches = sum(len(each.after) for each in found)
    for key, group in _joined_placements(pairs, launches):
        whole = join_launches(group)
        change = _Change()
        change.add(whole)
        if isinstance(key, e.OtherPlacement):
            change.change = msgspec.structs.replace(key, kernels=_names(whole.after))
            change.follows = key == e.OtherPlacement((), other_tensors=True) and not is_timed
            # Other shapes nearly everywhere: the input is another, and all else follows.
            is_nearly_all = 2 * len(group) >= launches
            is_other_input = is_nearly_all and key != e.OtherPlacement((), stream=key.stream)
            change.explains = is_other_input and change.place < min(
                (it.place for it in others), default=math.inf
            )
        elif other := _other_identity(whole, gpu, is_timed=is_timed):
            change.change = other
        else:
            alike.append(whole)
            continue
        changes.append(change)
    slower = [each for each in alike if each.what is not ChangeKind.SAME] if are_judged else []
    if is_timed and not are_judged:
        slower = _most_of_the_change(alike, changes)
    for each in slower:
        speed = e.OtherSpeed(
            _names(each.after), each.before_us, each.after_us, _code_moves(each, gpu[0])
        )
        changes.append(_Change([each], speed, origins=[launch.origin for launch in each.after]))
    return changes, [each for each in alike if each not in slower]


def _by_difference(
    found: Iterable[Difference], others: Sequence[_Change], *, is_timed: bool, are_judged: bool
) -> dict[object, list[Difference]]:
    """Return pairs of launches by what differs in them, or by kernel and lines. Add to `others` what
    works on a part there.
    """
    pairs: dict[object, list[Difference]] = {}
    for each in found:
        for old, new in each.pairs if each.what.is_pair else ():
            is_same_op = old.op == new.op and len(old.inputs) == len(new.inputs)
            place = _placement_change(
                old, new, are_inputs_alike=is_same_op or not are_judged, is_timed=is_timed
            )
            pair = Difference(each.what, (old,), (new,), each.details)
            # One of several now, in place of one: that it works on a part only says no more.
            if place and (several := next((other for other in others if other.repeats(new)), None)):
                several.parts[-1] = replace(
                    join_launches([several.parts[-1], pair]), what=ChangeKind.REPLACED
                )
                several.origins.append(new.origin)
                continue
            key: object = place or (
                each.what,
                old.identity,
                new.identity,
                new.lines,
                old.resources,
                new.resources,
            )
            pairs.setdefault(key, []).append(pair)
    return pairs


def _joined_placements(
    pairs: Mapping[object, list[Difference]], launches: int
) -> list[tuple[object, list[Difference]]]:
    """Return pairs by what differs in them. Other sizes that one break moved are one.

    Each turn of a loop runs the same lines with sizes of its own. Where half of all `launches` have
    other sizes, the other differences of tensors follow from that.
    """
    sized = sum(
        len(it) for key, it in pairs.items() if isinstance(key, e.OtherPlacement) and key.sizes
    )
    found: list[tuple[object, set[SourceLine], list[Difference]]] = []
    for key, group in pairs.items():
        lines = {line for each in group for it in each.after for line in it.lines}
        for place, (other, known, members) in enumerate(found):
            if not (isinstance(key, e.OtherPlacement) and isinstance(other, e.OtherPlacement)):
                continue
            are_alike = (key.dtypes, key.stream) == (other.dtypes, other.stream)
            is_one_line = bool(key.sizes and other.sizes and known & lines)
            if are_alike and (is_one_line or 2 * sized >= launches):
                found[place] = other.joined(key), known | lines, [*members, *group]
                break
        else:
            found.append((key, lines, list(group)))
    return [(key, group) for key, _, group in found]


def _other_kernels(found: Sequence[Difference], *, are_joined: bool) -> list[_Change]:
    """Return what took the place of other launches, and what is new or gone: one change for each
    place of the code.

    `are_joined`: join those at the same lines. Where no line is known, join what launched no others
    than another place.
    """
    changes: list[_Change] = []
    for each in found:
        change = _Change()
        change.add(each)
        same = next(
            (it for it in changes if are_joined and (it.marks & change.marks or it.swaps(change))),
            None,
        )
        if same is None:
            changes.append(change)
        else:
            same.add(each)
    for change in [each for each in changes if are_joined and not any(each.origins)]:
        same = next(
            (it for it in changes if any(it.origins) and change.launched <= it.launched), None
        )
        if same is not None:
            changes.remove(change)
            for part in change.parts:
                same.add(part)
    return changes


def _most_of_the_change(
    alike: Sequence[Difference], changes: Sequence[_Change]
) -> list[Difference]:
    """Return the kernels whose times carry a good share of all that changed."""
    parts = (part for change in changes for part in change.parts)
    total = sum(abs(each.delta_us) for each in (*alike, *parts))
    found = [each for each in alike if total and abs(each.delta_us) >= _NAMED_SHARE * total]
    if total and not found and not changes:  # spread evenly over many kernels
        return sorted(alike, key=lambda each: -abs(each.delta_us))[:_NAMED_AT_LEAST]
    return found


def _described(change: _Change, befores: Counter[str], afters: Counter[str]) -> _Change:
    """Say what took the place of what, and where; and which kernels run far more often, of all
    before and all after.
    """
    whole = join_launches(change.parts)
    before, after = whole.before, whole.after
    dtypes = [
        tuple(sorted({dtype for each in side for dtype in _dtypes(each)}))
        for side in (before, after)
    ]
    ops = [[(each.op, len(each.inputs)) for each in side] for side in (before, after)]
    pairs = whole.pairs if before and ops[0] == ops[1] else []
    moves = [move for pair in pairs for move in resource_changes(*pair, "") if move[0] == "inputs"]
    kinds, whats = {each.identity.kind for each in before}, {each.what for each in change.parts}
    # A generated kernel is its own op: that says nothing more.
    new_ops = Counter(each.op for each in after if each.op != each.identity.name) - Counter(
        each.op for each in before
    )
    # Each collective counts.
    often = {
        each.identity.shown: 1 if each.identity.kind == Kind.COMMUNICATION.value else _OFTEN
        for each in after
    }
    lines = {(each.module, each.lines) for each in filter(None, change.origins)}
    other = e.OtherKernels(
        what=(whole.what if len(whats) == 1 else ChangeKind.REPLACED).value,
        before=_names(before),
        after=_names(after),
        author=(after or before)[0].identity.decoded.backend.partition("-")[0],
        kind=kinds.pop() if len(kinds) == 1 else "",
        layers=len(
            {tuple(_LAYER.findall(origin.module)[:1]) for origin in filter(None, change.origins)}
            - {()}
        ),
        # one line that runs several times is one place
        places=min(len(change.parts), len(lines) or len(change.parts)),
        dtypes=(dtypes[0], dtypes[1]),
        sizes=tuple(dict.fromkeys(size for pair in pairs for size in _sizes(*pair))),
        layouts=moves[0][1:] if moves else None,
        ops=tuple([op for op in new_ops if op][:_MOST_OPS]),
        repeated=tuple(
            (it, befores[it], afters[it])
            for it, times in often.items()
            if befores[it] and befores[it] < afters[it] >= times * befores[it]
        ),
    )
    return replace(change, change=other)


def _dtypes(launch: KernelRecord) -> Iterator[str]:
    """Yield the dtypes that a launch works in: by its name, and by what its op was given."""
    if launch.identity.decoded.dtype:
        yield launch.identity.decoded.dtype
    names = (each.partition("[")[0] for each in launch.inputs)
    yield from (name for name in names if _FLOAT.fullmatch(name))


def _placement_change(
    old: KernelRecord, new: KernelRecord, *, are_inputs_alike: bool, is_timed: bool
) -> e.OtherPlacement | None:
    """Return what differs between two launches of one kernel in tensors, arguments and stream; None
    if nothing does.

    Beside a time, strides are part of its reason.
    """
    facts = {name: [*dict.fromkeys(differ(old, new))] for name, differ in FACTS.items()}
    are_other = are_inputs_alike and bool(facts["dtypes"] or facts["shapes"])
    dtypes = tuple(pair for pair in facts["dtypes"] if are_other and NO_TENSOR not in pair)
    sizes = tuple(_sizes(old, new)) if are_other else ()
    stream, arguments = (
        (old.stream, new.stream) if facts["streams"] else None,
        tuple(facts["arguments"]),
    )
    layouts = facts["strides"][0] if facts["strides"] and not is_timed else None
    if not (are_other or stream or arguments or layouts):
        return None
    return e.OtherPlacement(
        (), dtypes, sizes, stream, are_other and not dtypes and not sizes, arguments, layouts
    )


def _sizes(old: KernelRecord, new: KernelRecord) -> list[tuple[str, str]]:
    """Return the sizes of the tensors that differ, each once: of other numbers of dimensions the
    whole shapes, in brackets.
    """
    found: dict[tuple[str, str], None] = {}
    for before, after in FACTS["shapes"](old, new):
        sides = before.split(","), after.split(",")
        if len(sides[0]) != len(sides[1]):
            pairs = [(f"[{before}]", f"[{after}]")]
        else:
            pairs = [pair for pair in zip(*sides, strict=True) if pair[0] != pair[1]]
        if NO_TENSOR not in (before, after):
            found |= dict.fromkeys(pairs)
    return list(found)


def _names(kernels: Iterable[KernelRecord]) -> e.Counted:
    return tuple(Counter(kernel.identity.shown for kernel in kernels).items())


def _code_moves(pair: Difference, arch: str) -> tuple[e.Move, ...]:
    return tuple(e.Move(*each) for each in resource_changes(pair.before[0], pair.after[0], arch))


def _other_identity(
    pair: Difference, gpu: tuple[str, int | None], *, is_timed: bool
) -> e.OtherIdentity | e.OtherCode | None:
    """Return what differs between launches of one kernel besides their times."""
    (old, *_), (new, *_) = pair.before, pair.after
    configuration = pair.details if is_timed or not new.identity.is_inductors else ""
    is_other = is_timed and pair.what is ChangeKind.SOURCE
    source = (
        (str(old.identity.source_hash)[:8], str(new.identity.source_hash)[:8]) if is_other else None
    )
    moves = _code_moves(pair, gpu[0])
    if not configuration and source is None:
        return e.OtherCode(_names(pair.after), moves) if has_worse_code(old, new, *gpu) else None
    return e.OtherIdentity(
        new.identity.shown,
        configuration,
        source,
        is_autotuned=is_timed
        and pair.what is ChangeKind.CONFIGURATION
        and was_autotuned(old.identity, new.identity),
        is_dynamic=bool(
            source
            and new.origin
            and new.origin.is_dynamic
            and not (old.origin and old.origin.is_dynamic)
        ),
        moves=moves,
    )


def _add_host_calls(
    changes: list[_Change],
    calls: Iterable[tuple[str, Origin | None]],
    usual: Counter[str],
    *,
    are_waits: bool,
) -> None:
    """Add the calls beyond the `usual` ones to the changes of their line, or as changes of their
    own.
    """
    for call, origin in calls:
        if usual[call] > 0:
            usual[call] -= 1
            continue
        marks: set[object] = set(origin.lines) if origin is not None else {call.partition(": ")[0]}
        place = next((each for each in changes if marks & each.marks), None)
        if place is None:
            changes.append(place := _Change(origins=[origin]))
        (place.waits if are_waits else place.copies)[call] += 1
        if are_waits and origin is not None:
            place.wait_lines |= dict.fromkeys(origin.lines)


def _add_calls_of_run(
    changes: list[_Change], run: Run, baseline: Baseline, counts: Mapping[str, bool | None]
) -> None:
    """Add the waits and copies that the baseline lacks. A kernel behind one loses a little."""
    host_calls = Counter(baseline.host_calls)
    for name, calls, origins in (
        ("synchronizations", run.synchronizing_ops, run.synchronization_origins),
        ("copies", run.copying_ops, run.copy_origins),
    ):
        if baseline.host_calls or counts.get(name):
            places = zip(calls, origins or [None] * len(calls), strict=True)
            _add_host_calls(changes, places, host_calls, are_waits=name == "synchronizations")
    for change in changes if any(each.waits or each.copies for each in changes) else ():
        speed = change.change
        change.follows |= (
            isinstance(speed, e.OtherSpeed)
            and speed.after_us < (1 + _BEHIND_A_PAUSE) * speed.before_us
        )


def _other_functions(run: Run, baseline: Baseline) -> list[tuple[str, ...]]:
    """Return the functions in graphs that the baseline lacks, and those that the run lacks; none if
    one of them does not say which it has.
    """
    sides = [
        {name.removeprefix(_COMPILED) for name in data if name.startswith(_COMPILED)}
        for data in (run.data, baseline.data)
    ]
    return [tuple(sorted(one - other)) for one, other in (sides, sides[::-1])] if all(sides) else []


def _of_new_compiled_ops(run: Run, baseline: Baseline, known: AbstractSet[str]) -> Sequence[Origin]:
    """Return where functions are called that the baseline's graphs lack; else where no kernel of
    its comes from.

    If neither is known, return where the graphs are called.
    """
    calls = {
        name: origins for name, origins in run.op_origins.items() if name.startswith(_COMPILED)
    }
    new = [each for name, origins in calls.items() if name not in baseline.data for each in origins]
    # A graph has other lines without kernels, too: no more than there are new ops.
    others = {
        each
        for origins in calls.values()
        for each in origins
        if each.lines and each.lines[0].code not in known
    }
    more = (run.counts.compiled_ops or 0) - (baseline.counts.compiled_ops or 0)
    return (
        new
        or _edited(run.origins, known)
        or (
            sorted(others, key=lambda it: it.lines[0].line)
            if 0 < len(others) <= more
            else run.compiled_origins
        )
    )


_KEEPS_GRADIENTS = e.NoLonger("drop gradients")


def _name_kept_gradients(run: Run, changes: Iterable[_Change]) -> None:
    """Say of additions that are new, and that no line asked for, what they are: autograd adds to a
    gradient that is there.

    Those of more backward passes stand beside other kernels of these passes.
    """
    new = [each for each in changes if any(part.after for part in each.parts)]
    launches = [launch for each in new for part in each.parts for launch in part.after]
    ops = {each.op or each.identity.name for each in launches}
    is_of_autograd = any(run.origins) and not any(
        part.before for each in new for part in each.parts
    )
    if ops == {_ACCUMULATES} and is_of_autograd and not any(launch.origin for launch in launches):
        for each in new:
            each.change, each.explains = _KEEPS_GRADIENTS, True


def _peak_cause(run: Run, baseline: Baseline) -> e.Cause:
    """Return where a call allocates more memory of its peak than in the baseline; an older baseline
    does not say where.
    """

    def codes(part: PeakPart) -> object:
        return part.origin and (*part.origin.codes, part.origin.is_backward)

    usual: Counter[object] = Counter()
    for part in baseline.peak:
        usual[codes(part)] += part.bytes
    lines = {code for part in baseline.peak if part.origin for code in part.origin.codes}
    more: Counter[SourceLine] = Counter()  # bytes, by line
    origins: dict[Origin, None] = {}
    for part in run.peak if baseline.peak else ():
        known = min(part.bytes, usual[codes(part)])
        usual[codes(part)] -= known
        if part.origin is not None and part.bytes > known:
            origins[part.origin] = None
            more.update(dict.fromkeys(part.origin.lines, part.bytes - known))
    by_size = sorted(origins, key=lambda origin: -max(more[line] for line in origin.lines))
    usual_code = {code for line in more for code in line.codes} - _new_code(run, baseline)
    sizes: dict[Sequence[SourceLine], float] = {(line,): size for line, size in more.items()}
    cause = with_code(e.Cause(), by_size, usual_code, sizes)
    first = next((more[place.line] for place in cause.places), 0)
    is_new = bool(cause.places) and lines.isdisjoint(cause.places[0].line.codes)
    old, new = (each.peak_allocated_bytes or 0 for each in (baseline.counts, run.counts))
    change = e.PeakMemory(old, new, first, is_new_line=is_new)
    return msgspec.structs.replace(cause, change=change)


def _op_causes(
    run: Run,
    baseline: Baseline,
    known: AbstractSet[str],
    changes: Iterable[_Change],
    *,
    is_all: bool,
) -> list[e.Cause]:
    """Return the ops that are new, or gone where `is_all`, except for those of the kernels that
    other causes have.

    A baseline has no lines of ops. So a line is named if all ops of a name that is new there are
    there alone: if the baseline lacks the name, or if they have one line only. Else those are named
    that are new or run more often; the one of which the baseline has no kernel; or one that is new
    in kernels and has such ops. If ops are gone alone, `_at_lost_lines`.
    """
    places = {each.place for change in changes for part in change.parts for each in part.after}
    pairs = zip(run.ops, run.op_kernels or [None] * len(run.ops), strict=True)
    ops = [(each, place in places) for each, place in pairs if is_dispatched(each.name)]
    now, then = Counter(each.name for each, _ in ops), Counter(baseline.ops)
    new, gone = now - then, then - now if is_all else Counter[str]()
    new -= Counter(each.name for each, is_caused in ops if is_caused)
    if not (new or gone) or (not is_all and new.total() < _NAMED_SHARE * then.total()):
        return []
    # a GPU's time is not the host's
    weight_us = _DISPATCH_US * new.total() if run.fingerprint.arch == "cpu" else 0.0
    # what lines of code call, and not what that calls
    own = Counter(each.name for each, is_caused in ops if not (is_caused or each.is_inner))
    new = new & own or new
    repeated = tuple(
        (name, then[name], now[name])
        for name in new or gone
        if 0 < (_OFTEN * then[name] if new else 1) <= now[name]
        and (gone or 2 * new[name] >= now[name] - then[name])  # else other ops make most of them
    )
    cause = e.Cause(
        e.OtherOps(tuple(new.items()), tuple(gone.items()), repeated), weight_us=weight_us
    )
    sure: list[Origin] = []
    others: list[Origin] = []
    for name in new:
        origins = run.op_origins.get(name, ())
        lines = {line for origin in origins for line in origin.lines}
        (sure if name not in then or len(lines) == 1 else others).extend(origins)
    new_code = _new_code(run, baseline)
    sure = sure or [
        each for each in others if any(new_code.intersection(line.codes) for line in each.lines)
    ]
    others = [each for each in others if _new_lines(each.lines, known) == [*each.lines]]
    if not sure and len({each.lines for each in others}) == 1:
        sure = others
    at = {it.lines for name in (*new, *gone) for it in run.op_origins.get(name, ())}
    sure = sure or [each for each in _edited(run.origins, known) if each.lines in at]
    cause = with_code(cause, sure, known)
    return [cause if new or sure else _at_lost_lines(cause, gone, run, baseline)]


def _at_lost_lines(cause: e.Cause, gone: Iterable[str], run: Run, baseline: Baseline) -> e.Cause:
    """Return a cause with the lines that ran ops which are gone, and run less often now; else with
    new lines, and those that nothing runs any more: where these were is not known.

    More than two tell nothing.
    """
    fewer = {code for code, (before, after) in _runs(run, baseline).items() if after < before}
    left = chain.from_iterable(run.op_origins.get(name, ()) for name in gone)
    if fewer and (known := [it for it in left if fewer.intersection(it.codes)]):
        return with_code(cause, known)
    now, then = run.calling_code, baseline.calling_code
    lost = [code for code, runs in then.items() if now and runs and code not in now]
    if not 0 < len(lost) <= _MOST_LINES:
        return cause
    places = [e.Place(SourceLine("", 0, code), runs=(then[code], 0)) for code in lost]
    cause = with_code(cause, _at_new_code(run, baseline))
    return msgspec.structs.replace(cause, places=(*cause.places, *places))


def _new_lines(lines: Iterable[SourceLine], known: AbstractSet[str]) -> list[SourceLine]:
    return [line for line in lines if not known >= {*line.codes}]


def _edited(origins: Iterable[Origin | None], known: AbstractSet[str]) -> list[Origin]:
    """Return the origins with a line that the baseline's kernels lack; none if it has no lines."""
    return [each for each in origins if known and each and _new_lines(each.lines, known)]


def _telling_lines(origin: Origin | None, known: AbstractSet[str]) -> Sequence[SourceLine]:
    """Return the lines of a launch that the baseline lacks; all of them where it lacks none."""
    lines = origin.lines if origin is not None else ()
    return _new_lines(lines, known) or lines


def with_code(
    cause: e.Cause,
    origins: Iterable[Origin | None],
    known: AbstractSet[str] = frozenset(),
    costs_us: Mapping[Sequence[SourceLine], float] = MappingProxyType({}),
    waits: Iterable[SourceLine] = (),
) -> e.Cause:
    """Return a cause with the lines of code that its launches come from: the user's, then the
    library's.

    Lines that the baseline lacks come before others, then those whose launches take the longest; in
    order of launch. A line where the host waits has a place, and so has one of each launch that
    costs a good share. `costs_us`: of launches, by their lines.
    """
    found: dict[SourceLine, list[Origin]] = {}
    waiting = set(waits)
    for origin in filter(None, origins):
        for line in dict.fromkeys(
            (*_telling_lines(origin, known), *waiting.intersection(origin.lines))
        ):
            found.setdefault(line, []).append(origin)
    spent_us: Counter[SourceLine] = Counter()
    for group, cost_us in costs_us.items():
        spent_us.update(dict.fromkeys(group, cost_us))
    lines = sorted(found, key=lambda line: -spent_us[line])
    new = _new_lines(lines, known) or lines
    named = {*waiting, *new[:_MOST_LINES], *lines[:1]}
    for group, cost_us in costs_us.items():
        is_dear = cost_us > 0 and cost_us >= _NAMED_SHARE * sum(costs_us.values())
        if is_dear and group and named.isdisjoint(group):
            named.add(max(group, key=lambda line: spent_us[line]))
    # an untouched line may have been paired with a new one of the same ops
    shown = sorted((line for line in found if line in named), key=lambda line: line not in new)
    places = []
    for line in shown:
        passes = {"backward" if origin.is_backward else "forward" for origin in found[line]}
        modules = [origin.module for origin in found[line]]
        places.append(e.Place(line, common_path(modules), tuple(sorted(passes, reverse=True))))
    return msgspec.structs.replace(
        cause,
        places=tuple(places),
        more_places=len(new) - len(named.intersection(new)),
        dearest=shown.index(lines[0]) if shown else 0,
    )
