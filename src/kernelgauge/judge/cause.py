"""Why a run differs from its baseline: what changed in one place, how much it costs, and the code that asks for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import msgspec

from ..run import CompileEvent, Origin, PeakPart, Run, SourceLine, common_path
from ..trace.difference import (
    Difference,
    LaunchDifference,
    What,
    differences_with_moves,
    has_worse_code,
    join_launches,
    other_arguments,
    other_layouts,
    resource_changes,
)
from ..trace.kernel import KernelRecord, LaneKernel, input_texts, is_dispatched, was_autotuned
from ..trace.model import FRAME
from ..trace.summary import Summary
from . import evidence as e
from .baseline import Baseline, count_changes, other_data
from .host import host_causes

# A kernel that is only slower is a cause if it carries this share of the change; if none does, the first ones are.
_NAMED_SHARE = 0.10
_NAMED_AT_LEAST = 3
# Below this, kernels of the same identity are called unchanged: the spread of one kernel's median between processes.
_UNCHANGED = 0.01
_MOST_LINES, _MOST_OPS = 2, 2  # lines of code, and ops that launched what is new
# A kernel loses up to this share where the host has begun to wait or to copy: 5 to 6 % on an H200 (docs/design/times.md).
_BEHIND_A_PAUSE = 0.10
# Of an op, for the order of causes alone: an eager linear takes 11 us for its eight ops (docs/design/claims.md).
_DISPATCH_US = 1.0
_LAYER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")  # the number of a layer in the path of a module
_FLOAT = re.compile(r"[bf]+p?\d+(_\w+)?")  # a dtype of floating point: bf16, fp32, fp8_e4m3


def order_causes(causes: Iterable[e.Cause]) -> list[e.Cause]:
    """Return what explains others first, then the largest effect."""
    return sorted(causes, key=lambda cause: (not cause.explains, -cause.weight_us, not cause.waits, not cause.copies))


def find_causes(
    run: Run, baseline: Baseline, usual: Sequence[KernelRecord], *, is_timed: bool
) -> list[e.Cause | e.Rest]:
    """Return what changed between a baseline and a run, the largest effect first, and the kernels that did not change.

    Args:
        usual: the baseline's kernels, in the time that the run is compared with.
        is_timed: whether times count. Else a kernel that is only slower is no cause, nor what the autotuner chose.
    """
    known = {(line.inner or line).code for origin in filter(None, baseline.origins) for line in origin.lines}
    in_call = [number for number, call in enumerate(run.calls) for _ in range(call.launches)]
    found = differences_with_moves(_launches(usual, baseline.origins), _launches(run.kernels, run.origins, in_call))
    changes, alike = _kernel_changes(found, (run.fingerprint.arch, run.fingerprint.sm_count), is_timed=is_timed)
    host_calls = Counter(baseline.host_calls)
    counts = count_changes(baseline.counts, run.counts)
    for name, calls, origins in (
        ("synchronizations", run.synchronizing_ops, run.synchronization_origins),
        ("copies", run.copying_ops, run.copy_origins),
    ):
        if baseline.host_calls or counts.get(name):
            places = zip(calls, origins or [None] * len(calls), strict=True)
            _add_host_calls(changes, places, host_calls, are_waits=name == "synchronizations")
    for change in changes if any(each.waits or each.copies for each in changes) else ():
        speed = change.change
        change.follows |= isinstance(speed, e.OtherSpeed) and speed.after_us < (1 + _BEHIND_A_PAUSE) * speed.before_us
    causes = compile_causes(each for each in run.compile_events if each not in baseline.compile_events)
    causes += [each.cause(known, is_timed=is_timed) for each in changes]
    causes += [with_code(cause, origins, known) for cause, origins in _counted(run, baseline, counts)]
    if counts.get("compiled_ops") is not None and not causes:
        ops = e.CompiledOps(baseline.counts.compiled_ops, run.counts.compiled_ops)
        causes.append(with_code(e.Cause(ops), run.compiled_origins, known))
    is_explained = (is_timed and changes) or counts.get("graph_launches")
    if baseline.ops and "dispatcher_ops" in counts and not is_explained:
        marked = {mark for each in changes for mark in each.marks}
        causes += _op_causes(run, baseline, known, marked, is_all=not causes)
    peaks = baseline.counts.peak_allocated_bytes, run.counts.peak_allocated_bytes
    if counts.get("peak_allocated_bytes") and peaks[0] is not None and peaks[1] is not None and not is_timed:
        causes.append(_peak_cause(run, baseline, peaks[0], peaks[1]))
    if not is_timed:
        named = {place.line for each in causes for place in each.places}
        found_more = (with_code(cause, origins) for cause, origins in host_causes(baseline, run))
        causes += [each for each in found_more if named.isdisjoint(place.line for place in each.places)]
    ordered: list[e.Cause | e.Rest] = [*order_causes(causes)]
    if is_timed and alike:
        rest = join_launches(alike)
        share = rest.after_us / rest.before_us - 1 if rest.before_us else 0.0
        ordered.append(e.Rest(len(rest.after), share, rest.delta_us, is_unchanged=abs(share) < _UNCHANGED))
    return ordered


def _counted(
    run: Run, baseline: Baseline, counts: Mapping[str, bool | None]
) -> Iterator[tuple[e.Cause, Sequence[Origin]]]:
    """Yield what data, memory and CUDA graphs changed, with the origins."""
    before, after = baseline.counts, run.counts
    for op, pairs in other_data(baseline.data, run.data).items():
        kernels = ((op.removeprefix("aten::"), sum(each.name == op for each in run.ops) or 1),)
        origins = run.op_origins.get(op, run.compiled_origins)
        # What only one side has, another op explains.
        yield (
            e.Cause(e.OtherPlacement(kernels, arguments=pairs), explains=all("(none)" not in it for it in pairs)),
            origins,
        )
    if counts.get("graph_launches") and not after.graph_launches:
        yield e.Cause(e.LostGraph(), explains=True), run.compiled_origins
    if counts.get("allocator_calls"):
        ops = tuple(Counter(run.allocating_ops).items())
        change = e.AllocatorCalls(before.allocator_calls or 0, after.allocator_calls or 0, ops)
        yield e.Cause(change, explains=True), run.allocation_origins
    for name, origins in (("grown_bytes", run.growth_origins), ("grown_host_bytes", run.host_growth_origins)):
        if counts.get(name):
            grown = (getattr(after, name) or 0) - (getattr(before, name) or 0)
            yield e.Cause(e.MemoryGrowth(grown, is_host="host" in name)), origins


def find_trace_causes(before: Summary, after: Summary, found: Iterable[Difference]) -> list[e.Cause]:
    """Return the changes between two traces, the largest effect first. A wait costs what host or device wait longer."""
    launches = []
    is_same_gpu = set(before.devices) == set(after.devices)  # another one has other code
    for each in found:
        old, new = (tuple(_launch_of(it, has_code=is_same_gpu) for it in side) for side in (each.before, each.after))
        launches.append(LaunchDifference(each.what, old, new, each.details))
    changes, _ = _kernel_changes(launches, (after.arch, None), is_timed=True, are_judged=True)
    first, second = (side.windows[-1] for side in (before, after))
    usual = Counter(text for text, _ in (*first.synchronizing_ops, *first.copying_ops))
    calls: list[_Change] = []
    for are_waits, ops in ((True, second.synchronizing_ops), (False, second.copying_ops)):
        places = [(text, _origin_of(*after.places.get(at, ("", "")))) for text, at in ops]
        _add_host_calls(calls, places, usual, are_waits=are_waits)
    idle_us = [side.busiest.idle_us if side.busiest else 0.0 for side in (before, after)]
    waits_us = [sum(each.duration_us for each in side.calls if each.is_synchronization) for side in (first, second)]
    lost_us = max(idle_us[1] - idle_us[0], waits_us[1] - waits_us[0])
    causes = [each.cause(frozenset(), is_timed=True) for each in (*changes, *calls)]
    dtypes: list[str] = []  # that more than half of the launches of a side work in
    for side in (before, after):
        counts = Counter(dtype for each in side.kernels for dtype in set(_dtypes(_launch_of(each))))
        dtypes += [dtype for dtype, count in counts.most_common(1) if 2 * count > len(side.kernels)]
    if len(set(dtypes)) > 1:
        causes.append(e.Cause(e.OtherDtype(*dtypes), explains=True))
    if first.graph_launches and not second.graph_launches:
        causes.append(e.Cause(e.LostGraph(), explains=True))
    return order_causes(msgspec.structs.replace(each, weight_us=lost_us) if each.waits else each for each in causes)


def _launch_of(kernel: LaneKernel, *, has_code: bool = False) -> _Launch:
    op = kernel.op if kernel.op and (is_dispatched(kernel.op) or kernel.op != kernel.identity.name) else ""
    inputs = input_texts(kernel.input_shapes, kernel.input_types)
    origin = _origin_of(kernel.module or "", kernel.frame)
    resources = kernel.resources if has_code else None
    return _Launch(kernel.identity, kernel.device_time_us, op, inputs, kernel.stream, resources, origin=origin)


def _origin_of(module: str, frame: str) -> Origin | None:
    match = FRAME.fullmatch(frame)
    return Origin(module, (SourceLine(match["file"], int(match["line"]), match["function"]),)) if match else None


def compile_causes(events: Iterable[CompileEvent]) -> list[e.Cause]:
    """Return the graph breaks and recompiles as causes, each reason once."""
    found: dict[tuple[str, str], list[Origin]] = {}
    for each in events:
        origins = found.setdefault((each.kind, each.reason), [])
        if each.file:
            origins.append(Origin(each.module, (SourceLine(each.file, each.line, each.code),)))
    return [
        with_code(e.Cause(e.CompilerEvent(*event, max(1, len(origins))), explains=True), origins)
        for event, origins in found.items()
    ]


class _Launch(KernelRecord, frozen=True):
    origin: Origin | None = None
    call: int | None = None  # the number of the call, in a sequence

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        return self.origin.lines if self.origin is not None else ()

    @property
    def context(self) -> Hashable:
        codes = [(line.inner or line).code for line in self.lines]
        return super().context, tuple(codes), self.origin and (self.origin.module, self.origin.is_backward)


_Difference = LaunchDifference[_Launch]


@dataclass
class _Change:
    """What changed in one place: launches, and what the host does there."""

    parts: list[_Difference] = field(default_factory=list)  # one for each place in the sequence
    change: e.Change | None = None  # what happened to the launches
    waits: Counter[str] = field(default_factory=Counter)  # new synchronising calls, as in `Baseline.host_calls`
    copies: Counter[str] = field(default_factory=Counter)  # new ones, likewise
    origins: list[Origin | None] = field(default_factory=list)  # of the launches, or of the calls
    explains: bool = False  # as `Cause.explains`
    follows: bool = False  # it follows from another change, and its cost is noise

    @property
    def marks(self) -> set[object]:
        """What tells the place: its lines of code; where none is known, the kernels that were there."""
        lines: set[object] = {line for origin in filter(None, self.origins) for line in origin.lines}
        if not lines and (self.waits or self.copies):
            return {call.partition(": ")[0] for call in (*self.waits, *self.copies)}
        return lines or {frozenset(launch.identity.unnumbered for part in self.parts for launch in part.before)}

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
            calls=tuple(sorted({each.call for part in self.parts for each in part.after if each.call is not None})),
        )
        costs_us: Counter[SourceLine] = Counter()
        for part in self.parts:
            for launch in part.after or part.before:
                costs_us.update(dict.fromkeys(launch.lines, launch.device_time_us))
        return with_code(cause, self.origins, known, costs_us)


def _launches(
    kernels: Sequence[KernelRecord], origins: Sequence[Origin | None], calls: Sequence[int] = ()
) -> list[_Launch]:
    known = origins if len(origins) == len(kernels) else [None] * len(kernels)
    numbers = calls if len(calls) == len(kernels) else [None] * len(kernels)
    return [
        _Launch(**msgspec.structs.asdict(each), origin=origin, call=call)
        for each, origin, call in zip(kernels, known, numbers, strict=True)
    ]


# What can have happened to launches of one name: each has its partner.
_OF_PAIRS = (What.SAME, What.SLOWER, What.FASTER, What.SOURCE, What.CONFIGURATION)


def _kernel_changes(
    found: Sequence[_Difference], gpu: tuple[str, int | None], *, is_timed: bool, are_judged: bool = False
) -> tuple[list[_Change], list[_Difference]]:
    """Return what changed between two launch sequences, and the launches that did not change.

    Other launches at the same lines of code are one change. So are launches of one kernel that changed in the same way.
    `gpu`: its architecture and number of SMs. `are_judged`: the differences are those of traces, which say what belongs
    together, and what is slower or faster.
    """
    others: list[tuple[set[object], _Change]] = []
    pairs: dict[object, list[_Difference]] = {}  # by what differs, or by kernel and lines
    for each in found:
        if each.what not in _OF_PAIRS:
            change = _Change([each], origins=[launch.origin for launch in each.after or each.before])
            marks = change.marks
            same = None if are_judged else next((other for other in others if other[0] & marks), None)
            if same is None:
                others.append((marks, change))
            else:
                same[0].update(marks)
                same[1].parts.append(each)
                same[1].origins += change.origins
            continue
        for old, new in zip(each.before, each.after, strict=True):
            is_same_op = old.op == new.op and len(old.inputs) == len(new.inputs)
            place = _placement_change(old, new, are_inputs_alike=is_same_op or not are_judged, is_timed=is_timed)
            key: object = place or (each.what, old.identity, new.identity, new.lines, old.resources, new.resources)
            pairs.setdefault(key, []).append(LaunchDifference(each.what, (old,), (new,), each.details))
    changes = [_described(change) for _, change in others]
    alike: list[_Difference] = []
    for key, group in pairs.items():
        whole = join_launches(group)
        change = _Change([whole], origins=[launch.origin for launch in whole.after])
        if isinstance(key, e.OtherPlacement):
            change.change = msgspec.structs.replace(key, kernels=_names(whole.after))
            change.follows = key == e.OtherPlacement((), other_tensors=True) and not is_timed
            # Other shapes nearly everywhere: the input is another, and all else follows. Streams slow each other.
            change.explains = key.stream is not None or 2 * len(group) >= sum(len(each.after) for each in found)
        elif other := _other_identity(whole, gpu, is_timed=is_timed):
            change.change = other
        else:
            alike.append(whole)
            continue
        changes.append(change)
    slower = [each for each in alike if each.what is not What.SAME] if are_judged else []
    if is_timed and not are_judged:
        slower = _most_of_the_change(alike, changes)
    for each in slower:
        speed = e.OtherSpeed(_names(each.after), each.before_us, each.after_us, _code_moves(each, gpu[0]))
        changes.append(_Change([each], speed, origins=[launch.origin for launch in each.after]))
    return changes, [each for each in alike if each not in slower]


def _most_of_the_change(alike: Sequence[_Difference], changes: Sequence[_Change]) -> list[_Difference]:
    """Return the kernels whose times carry a good share of all that changed."""
    parts = (part for change in changes for part in change.parts)
    total = sum(abs(each.delta_us) for each in (*alike, *parts))
    found = [each for each in alike if total and abs(each.delta_us) >= _NAMED_SHARE * total]
    if total and not found and not changes:  # spread evenly over many kernels
        return sorted(alike, key=lambda each: -abs(each.delta_us))[:_NAMED_AT_LEAST]
    return found


def _described(change: _Change) -> _Change:
    """Say what took the place of what, and where."""
    whole = join_launches(change.parts)
    before, after = whole.before, whole.after
    dtypes = [tuple(sorted({dtype for each in side for dtype in _dtypes(each)})) for side in (before, after)]
    ops = [[(each.op, len(each.inputs)) for each in side] for side in (before, after)]
    pairs = [*zip(before, after, strict=True)] if before and ops[0] == ops[1] else []
    moves = [move for pair in pairs for move in resource_changes(*pair, "") if move[0] == "inputs"]
    kinds, whats = {each.identity.kind for each in before}, {each.what for each in change.parts}
    # A generated kernel is its own op: that says nothing more.
    new_ops = Counter(each.op for each in after if each.op != each.identity.name) - Counter(each.op for each in before)
    other = e.OtherKernels(
        what=(whole.what if len(whats) == 1 else What.REPLACED).value,
        before=_names(before),
        after=_names(after),
        author=(after or before)[0].identity.decoded.backend.partition("-")[0],
        kind=kinds.pop() if len(kinds) == 1 else "",
        layers=len({tuple(_LAYER.findall(origin.module)[:1]) for origin in filter(None, change.origins)} - {()}),
        places=len(change.parts),
        dtypes=(dtypes[0], dtypes[1]),
        sizes=tuple(dict.fromkeys(size for pair in pairs for size in _sizes(*pair))),
        layouts=moves[0][1:] if moves else None,
        ops=tuple([op for op in new_ops if op][:_MOST_OPS]),
    )
    return replace(change, change=other)


def _dtypes(launch: _Launch) -> Iterator[str]:
    """Yield the dtypes that a launch works in: by its name, and by what its op was given."""
    if launch.identity.decoded.dtype:
        yield launch.identity.decoded.dtype
    names = (each.partition("[")[0] for each in launch.inputs)
    yield from (name for name in names if _FLOAT.fullmatch(name))


def _placement_change(
    old: KernelRecord, new: KernelRecord, *, are_inputs_alike: bool, is_timed: bool
) -> e.OtherPlacement | None:
    """Return what differs between two launches of one kernel in tensors, arguments and stream; None if nothing does.

    Beside a time, strides are part of its reason.
    """
    dtypes: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    are_other = are_inputs_alike and bool(old.inputs and new.inputs) and old.inputs != new.inputs
    if are_other:
        sides = [[each.partition("[")[0] for each in side.inputs] for side in (old, new)]
        dtypes = tuple(dict.fromkeys(pair for pair in zip(*sides, strict=False) if pair[0] != pair[1]))
        sizes = tuple(_sizes(old, new))
    stream, arguments = (old.stream, new.stream) if old.stream != new.stream else None, other_arguments(old, new)
    has_layouts = not is_timed and old.op == new.op and old.inputs == new.inputs
    layouts = other_layouts(old, new) if has_layouts else None
    if not (are_other or stream or arguments or layouts):
        return None
    return e.OtherPlacement((), dtypes, sizes, stream, are_other and not dtypes and not sizes, arguments, layouts)


def _sizes(old: KernelRecord, new: KernelRecord) -> list[tuple[str, str]]:
    """Return the sizes of the tensors that differ, each once."""
    shapes = [[each.partition("[")[2].rstrip("]").split(",") for each in side.inputs] for side in (old, new)]
    pairs = [(a, b) for one, other in zip(*shapes, strict=False) for a, b in zip(one, other, strict=False) if a != b]
    return list(dict.fromkeys(pairs))


def _names(kernels: Iterable[_Launch]) -> e.Counted:
    return tuple(Counter(kernel.identity.shown for kernel in kernels).items())


def _code_moves(pair: _Difference, arch: str) -> tuple[e.Move, ...]:
    return tuple(e.Move(*each) for each in resource_changes(pair.before[0], pair.after[0], arch))


def _other_identity(
    pair: _Difference, gpu: tuple[str, int | None], *, is_timed: bool
) -> e.OtherIdentity | e.OtherCode | None:
    """Return what differs between launches of one kernel besides their times."""
    (old, *_), (new, *_) = pair.before, pair.after
    configuration = pair.details if is_timed or not new.identity.is_inductors else ""
    is_other = is_timed and pair.what is What.SOURCE
    source = (str(old.identity.source_hash)[:8], str(new.identity.source_hash)[:8]) if is_other else None
    moves = _code_moves(pair, gpu[0])
    if not configuration and source is None:
        return e.OtherCode(_names(pair.after), moves) if has_worse_code(old, new, *gpu) else None
    return e.OtherIdentity(
        new.identity.shown,
        configuration,
        source,
        is_autotuned=is_timed and pair.what is What.CONFIGURATION and was_autotuned(old.identity, new.identity),
        is_dynamic=bool(source and new.origin and new.origin.is_dynamic and not (old.origin and old.origin.is_dynamic)),
        moves=moves,
    )


def _add_host_calls(
    changes: list[_Change], calls: Iterable[tuple[str, Origin | None]], usual: Counter[str], *, are_waits: bool
) -> None:
    """Add the calls beyond the `usual` ones to the changes of their line, or as changes of their own."""
    for call, origin in calls:
        if usual[call] > 0:
            usual[call] -= 1
            continue
        marks: set[object] = set(origin.lines) if origin is not None else {call.partition(": ")[0]}
        place = next((each for each in changes if marks & each.marks), None)
        if place is None:
            changes.append(place := _Change(origins=[origin]))
        (place.waits if are_waits else place.copies)[call] += 1


def _peak_cause(run: Run, baseline: Baseline, old: int, new: int) -> e.Cause:
    """Return where a call allocates more memory of its peak than in the baseline; an older baseline does not say where."""

    def codes(part: PeakPart) -> object:
        return part.origin and (*((line.inner or line).code for line in part.origin.lines), part.origin.is_backward)

    usual: Counter[object] = Counter()
    for part in baseline.peak:
        usual[codes(part)] += part.bytes
    more: Counter[SourceLine] = Counter()  # bytes, by line
    origins: dict[Origin, None] = {}
    for part in run.peak if baseline.peak else ():
        known = min(part.bytes, usual[codes(part)])
        usual[codes(part)] -= known
        if part.origin is not None and part.bytes > known:
            origins[part.origin] = None
            more.update(dict.fromkeys(part.origin.lines, part.bytes - known))
    by_size = sorted(origins, key=lambda origin: -max(more[line] for line in origin.lines))
    change = e.PeakMemory(old, new, max(more.values(), default=0))
    return with_code(e.Cause(change), by_size, costs_us={line: float(size) for line, size in more.items()})


def _op_causes(
    run: Run, baseline: Baseline, known: AbstractSet[str], marks: AbstractSet[object], *, is_all: bool
) -> list[e.Cause]:
    """Return the ops that are new, or gone where `is_all`, except for those at the places of other changes."""
    now, then = Counter(each.name for each in run.ops if is_dispatched(each.name)), Counter(baseline.ops)
    new, gone = now - then, then - now if is_all else Counter[str]()
    for name in list(new):
        if any(line in marks for origin in run.op_origins.get(name, ()) for line in origin.lines):
            del new[name]
    if not (new or gone) or (not is_all and new.total() < _NAMED_SHARE * then.total()):
        return []
    weight_us = _DISPATCH_US * new.total() if run.fingerprint.arch == "cpu" else 0.0  # a GPU's time is not the host's
    cause = e.Cause(e.OtherOps(tuple(new.items()), tuple(gone.items())), weight_us=weight_us)
    named = [name for name in new if name not in then] or new  # of the others, the baseline has no lines to leave out
    return [with_code(cause, [origin for name in named for origin in run.op_origins.get(name, ())], known)]


def with_code(
    cause: e.Cause,
    origins: Iterable[Origin | None],
    known: AbstractSet[str] = frozenset(),
    costs_us: Mapping[SourceLine, float] | None = None,
) -> e.Cause:
    """Return a cause with the lines of code that its launches come from: the user's, then the library's.

    Lines that the baseline lacks come before others, then those whose launches take the longest; in order of launch.
    """
    found: dict[SourceLine, list[Origin]] = {}
    for origin in filter(None, origins):
        for line in origin.lines:
            found.setdefault(line, []).append(origin)
    lines = [line for line in found if (line.inner or line).code not in known] or list(found)
    dearest = sorted(lines, key=lambda line: -(costs_us or {}).get(line, 0.0))[:_MOST_LINES]
    shown = [line for line in lines if line in dearest]
    places = []
    for line in shown:
        passes = {"backward" if origin.is_backward else "forward" for origin in found[line]}
        modules = [origin.module for origin in found[line]]
        places.append(e.Place(line, common_path(modules), tuple(sorted(passes, reverse=True))))
    return msgspec.structs.replace(
        cause,
        places=tuple(places),
        more_places=len(lines) - len(shown),
        dearest=shown.index(dearest[0]) if shown else 0,
    )
