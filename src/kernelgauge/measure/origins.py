"""Where kernels come from: the module and the lines of the user's code, for each launch of one
call.

One more call is profiled, untimed, with Python's stack. A device record leads to its op by an id,
and the op stands below the Python frames that called it. What leads nowhere has no origin: a wrong
line is worse than none. A few more calls tell what no profiler records: what Python keeps, and what
an op does by its data.

Private names of torch, checked on 2.11 and 2.13: `experimental_event_tree`, `_prefix_regex`,
`triton.force_cudagraphs_warmup`; on 2.6 and 2.13: `_enable_record_function`.
"""

from __future__ import annotations

import functools
import gc
import inspect
import linecache
import os
import sys
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, compress, islice, pairwise, takewhile
from operator import attrgetter, itemgetter
from types import FunctionType, MethodType
from typing import Any

import msgspec
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

from ..errors import is_profiled, shown_path
from ..run import (
    FOUND,
    INDICES,
    RETURNED,
    RUN_OF_CALLS,
    STORED,
    CompileEvent,
    Origin,
    PeakPart,
    SourceLine,
    common_path,
    statement_key,
)
from ..trace import (
    REGION,
    Execution,
    Window,
    dispatcher_ops,
    executions,
    grouped,
    number_text,
    parse,
)
from .compiler import (
    DispatchMode,
    Frame,
    FunctionMode,
    Owner,
    Stack,
    compiled_calls,
    compiled_constants,
    owner_of,
    source_line,
    stacks_at,
    whole_function,
)
from .device import Device
from .host import (
    Class,
    family_of,
    function_in_c,
    function_name,
    lines_around,
    short,
    statements_around,
    statements_used,
)
from .instance import Arguments, Instance, collector_paused, old_objects_frozen
from .profile import TEXT, Profiler, ProfilerSession, exported, texts_of
from .reach import attributes_of, held_addresses, held_bytes, is_a, line_at_peak, lines_that_keep

# torch: before it, a session with stacks crashes (pytorch/pytorch#144094)
_STACKS_ON_PYTHON_3_13 = (2, 8)
_INDICES = "List[Optional[Tensor]]"  # a type in a schema
_Texts = dict[str, str]  # by name of an argument
_MOST_LINES = 8  # where memory grows, or compiled code is called: more are not read
# of a fusion: of one that has more, a line that is not stored would look new in the next run
_MOST_FUSED_LINES = 100
_MOST_CALLERS = 5  # lines of code that call a function
# of the memory at a peak, by line: the whole models of examples/models have fewer
_MOST_PARTS = 100
# The first of so many calls replaces what earlier ones hold. If one of the others keeps more than
# LEAST, so many groups of as many calls say how much each keeps at least. Fewer bytes are none: those
# of lists that grow, say (see `judge.baseline`).
_KEPT_CALLS, _KEPT_GROUPS, _LEAST_KEPT_BYTES, _FRAMES = 6, 3, 1024, 32
_SEVERAL = _KEPT_CALLS - 1
# A number that chance draws from two is the same in all of so many calls once in 128 times. Two
# calls are made however long they take.
_GIVEN_CALLS, _GIVEN_SECONDS = 8, 0.05
_LEAST_PEAK_BYTES = 65536  # whose line is looked for
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_NAMED = ("user", "library", "module of torch", "generated")  # whose frames are kept
_Calls = Sequence[tuple[str, "int | None"]]  # what each is, and the id of its op


@dataclass(frozen=True)
class Origins:
    """The origin of each launch, copy and synchronising call of one call, in order; None: not
    known.
    """

    kernels: tuple[Origin | None, ...] = ()
    copies: tuple[Origin | None, ...] = ()
    synchronizations: tuple[Origin | None, ...] = ()
    # of each dispatcher op, by its name, once each
    ops: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    grown_bytes: int | None = None  # allocated from one call to the next, and not freed
    growth: tuple[Origin, ...] = ()  # where that was allocated, the most first
    cyclic_bytes: int | None = None  # that Python's collector frees, and where, likewise
    cyclic: tuple[Origin, ...] = ()
    # behind a call: what `reach.held_bytes` counts, and what the call allocates and leaves beside it
    held_bytes: int | None = None
    is_storing: bool = False  # whether each call leaves any, those included
    grown_host_bytes: int | None = None  # likewise: by Python, and on a GPU by tensors on the host
    host_growth: tuple[Origin, ...] = ()
    keeping: tuple[Origin, ...] = ()  # the lines that keep what grows
    peak_host_bytes: int | None = None  # the most that Python holds of a call at once
    host_peak: tuple[Origin, ...] = ()  # the line
    allocations: tuple[Origin, ...] = ()  # of calls that allocate or free memory of the device
    data: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # as `Run.data`
    # what a profiler does not record of each run of an op, in order, by name of the op and of the
    # argument: texts, and numbers in place of a tensor
    given: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    reads_data: bool = False  # whether the host reads a tensor
    peak: tuple[PeakPart, ...] = ()  # what the call had allocated at its peak, the most first
    peak_bytes: int | None = None  # of all of it
    compiled: tuple[Origin, ...] = ()  # where compiled code was called
    calls: Mapping[str, tuple[Origin, ...]] = field(
        default_factory=dict
    )  # where functions are, by their `host.short` names
    # as `Run.calling_code`; of compiled code alone, how often its lines run
    calling_code: Mapping[str, int] = field(default_factory=dict)
    # of these lines, by their place, as `statements_around` returns them
    statements: Mapping[str, Sequence[SourceLine]] = field(default_factory=dict)
    # by the place of a function, the statements that it uses; by each name that they define, its own
    used: Mapping[str, Sequence[SourceLine]] = field(default_factory=dict)
    recorded: tuple[Origin, ...] = ()  # where autograd records, the first line first
    problem: str = ""  # why nothing is known, where that is no matter of the call

    @property
    def statement_keys(self) -> tuple[str, ...]:
        """The keys of all statements, once each."""
        every = chain(self.statements.values(), self.used.values())
        return tuple(sorted({statement_key(each.code) for lines in every for each in lines}))


def origins_of(
    instance: Instance,
    modules: Modules,
    structure: ProfilerSession,
    device: Device,
    held_at_first: int | None = None,
) -> Origins:
    """Make a few more calls and return where launches and memory come from, and what ops do by
    their data.

    `held_at_first`: what the module held behind its first call.
    """
    # Under a mode, Dynamo would compile again, also code that it has given up to run eagerly, or
    # run compiled code eagerly.
    is_compiled = (
        instance.workload.compile is not None
        or structure.runs_compiled_code
        or modules.are_compiled
    )
    found = _profiled(instance, modules, structure, device, is_compiled=is_compiled)
    held = _held(
        instance,
        device,
        is_traced=not is_compiled,
        has_graphs=structure.replays_graphs,
        held_at_first=held_at_first or 0,
    )
    for number in range(_KEPT_CALLS if held.grown_bytes else 0):  # one of a few calls may keep it
        if found.growth or not found.kernels:
            break
        for _ in range(1 if number < 4 else 2):  # else each second or third one is never profiled
            _call_alone(instance, device, nullcontext())
        again = _profiled(instance, modules, structure, device, is_compiled=is_compiled)
        found = replace(found, growth=again.growth)
    grown_bytes = found.grown_bytes
    # Both calls that are profiled may keep nothing. And a tensor that one of them replaces may be
    # older than the session, which then does not see how much goes.
    if grown_bytes is not None and max(grown_bytes, held.grown_bytes or 0) >= _LEAST_KEPT_BYTES:
        grown_bytes = held.grown_bytes or 0
    kept_bytes = (held.grown_host_bytes or 0) + (found.grown_host_bytes or 0)
    kept_bytes = kept_bytes if kept_bytes >= _LEAST_KEPT_BYTES else 0
    noted = Origins(data=compiled_constants(modules.since))
    noted = noted if is_compiled else _data_of(instance, device)
    found = _with_compiled(found, modules) if is_compiled else found
    keeping: tuple[Origin, ...] = ()
    # else Dynamo would compile what the trace looks at
    is_growing = bool(grown_bytes or kept_bytes)
    if (is_growing or held.is_storing) and not is_compiled:
        call = functools.partial(_call_alone, instance, device, nullcontext())
        roots = [instance.module, instance.calls]
        with old_objects_frozen():  # each call collects
            lines = lines_that_keep(roots, call, is_growing=is_growing)
        keeping = tuple(Origin("", (source_line(*each),)) for each in lines)
    return replace(
        found,
        grown_bytes=grown_bytes,
        growth=found.growth if grown_bytes else (),
        held_bytes=held.held_bytes,
        grown_host_bytes=kept_bytes,
        host_growth=(*found.host_growth, *held.host_growth),
        keeping=keeping,
        peak_host_bytes=held.peak_host_bytes,
        host_peak=held.host_peak,
        data=noted.data,
        given=noted.given,
        reads_data=noted.reads_data,
    )


def _with_compiled(found: Origins, modules: Modules) -> Origins:
    """Return what was found with the calls that Dynamo has traced."""
    ops, calling = dict(found.ops), dict(found.calling_code)
    statements, used = dict(found.statements), dict(found.used)
    for name, stacks in compiled_calls(modules.since).items():
        runs: Counter[str] = Counter()
        for stack, count in stacks.items():
            _note_statements(stack, statements, used, modules)
            runs.update(dict.fromkeys((frame[3] for frame in _calling(stack)), count))
        # A line may call one function several times, and another one once.
        calling |= {code: min(n, calling.get(code) or n) for code, n in runs.items()}
        ops[name] = tuple(
            _origin(modules.around(stacks), {line: callers})
            for line, callers in _lines_of(stacks).items()
        )
    calling = dict(sorted(calling.items()))
    return replace(found, ops=ops, calling_code=calling, statements=statements, used=used)


def _profiled(
    instance: Instance,
    modules: Modules,
    structure: ProfilerSession,
    device: Device,
    *,
    is_compiled: bool,
) -> Origins:
    """Profile two more calls and return where the launches of the second come from: nothing if they
    differ from `structure`.
    """
    lacks_stacks = (
        sys.version_info >= (3, 13)
        and tuple(map(int, torch.__version__.split(".")[:2])) < _STACKS_ON_PYTHON_3_13
    )
    # torch's would take its hook away, and torch 2.6 fails
    if lacks_stacks or is_profiled():
        return Origins()
    # The first mode gives each operator a frame in Python, and so the line of its caller: ``a * b`` is
    # no call there.
    for mode in (nullcontext(),) if is_compiled else (BaseTorchFunctionMode(), nullcontext()):
        session, window = _profile(instance, structure, device, mode)
        ids = _matched(structure, executions(window, on_cpu=device.gpu is None))
        if ids is None:
            continue
        try:
            return _found(_Sites(session, modules), ids, window, structure, device)
        # Private names: another version may lack them. And torch reads the name of a function that
        # the call has replaced, as a reload of its module does, from freed memory.
        except (AttributeError, ImportError, TypeError, UnicodeDecodeError) as error:
            problem = f"torch {torch.__version__} does not tell which lines of code launch kernels"
            return Origins(problem=f"{problem} ({type(error).__name__}: {error})")
    return Origins()


def _found(
    sites: _Sites,
    ids: Sequence[int | None],
    window: Window,
    structure: ProfilerSession,
    device: Device,
) -> Origins:
    there = structure.windows[-1]
    grown, at_peak, cyclic = sites.memory("cpu" if device.gpu is None else "cuda")
    peak_bytes = None if structure.replays_graphs else sum(size for size, _ in at_peak)
    on_host = [] if device.gpu is None else sites.memory("cpu")[0]
    allocating = [*(sites.ops.get(each) for _, each in window.allocating_ops), *sites.frees]
    # By line: a model has a layer many times. Generated code does not say for which line it
    # allocates.
    located = [(size, sites.origin(each) or sites.caller(each)) for size, each in at_peak]
    parts = grouped(located, lambda part: part[1] and (part[1].lines, part[1].is_backward))
    peak = [
        PeakPart(sum(size for size, _ in each), _common([origin for _, origin in each]))
        for each in parts.values()
    ]
    ops = {
        name: _by_line(sites.distinct(sites.ops.get(op.external_id) for op in each))
        for name, each in grouped(dispatcher_ops(window), attrgetter("name")).items()
    }
    called = [sites.ops.get(each) for each in ids]
    return Origins(
        kernels=tuple(map(sites.origin, called)),
        copies=sites.of_calls(window.copying_ops, there.copying_ops),
        synchronizations=sites.of_calls(
            window.synchronizing_ops, there.synchronizing_ops, sites.waits
        ),
        ops={name: origins for name, origins in ops.items() if origins},
        # The memory of a graph is its own.
        grown_bytes=None if structure.replays_graphs else sum(size for size, _ in grown),
        growth=sites.distinct(site for _, site in grown),
        cyclic_bytes=sum(size for size, _ in cyclic) if device.gpu is None else None,
        cyclic=sites.distinct(site for _, site in cyclic),
        grown_host_bytes=sum(size for size, _ in on_host),
        host_growth=sites.distinct(site for _, site in on_host),
        allocations=sites.distinct(allocating),
        peak=()
        if structure.replays_graphs
        else tuple(sorted(peak, key=lambda each: -each.bytes)[:_MOST_PARTS]),
        peak_bytes=peak_bytes,
        compiled=tuple(dict.fromkeys(filter(None, map(sites.caller, called))))[:_MOST_LINES],
        calls=sites.callers(),
        calling_code=dict.fromkeys(sorted(sites.codes), 0),
        statements=sites.statements,
        used=sites.used,
        recorded=sites.recorded(),
    )


def _by_line(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """Return one origin for those of the same lines: a model may have a layer many times."""
    found = grouped(origins, lambda origin: (origin.lines, origin.is_backward)).values()
    return tuple(filter(None, map(_common, found)))


def _common(origins: Sequence[Origin | None]) -> Origin | None:
    """Return one origin for several of the same lines."""
    known = [each for each in origins if each is not None]
    callers = [
        tuple(dict.fromkeys(chain.from_iterable(above)))
        for above in zip(*(each.callers for each in known if each.callers), strict=True)
    ]
    return (
        msgspec.structs.replace(
            known[0],
            module=common_path([each.module for each in known]),
            callers=tuple(callers),
        )
        if known
        else None
    )


def _profile(
    instance: Instance, structure: ProfilerSession, device: Device, mode: Any
) -> tuple[Any, Window]:
    """Profile two calls; return the profiler's session and the window of the second: between them
    memory grows, or does not.
    """
    patch: Any = nullcontext()
    if structure.replays_graphs:  # a replay has no ops: run what the graph was recorded of
        import torch._inductor.config as inductor

        patch = inductor.patch({"triton.force_cudagraphs_warmup": True})
    options: Any = {"record_shapes": True, "with_stack": True, "profile_memory": True}
    profiler = Profiler(activities=device.activities, **options)
    with patch, collector_paused(), old_objects_frozen(), profiler:
        for _ in range(2):
            _call_alone(instance, device, mode)
    assert profiler.profiler is not None
    return profiler.profiler.kineto_results, parse(exported(profiler)).regions(REGION)[-1]


def _call_alone(instance: Instance, device: Device, mode: Any) -> None:
    instance.prepare()
    device.synchronize()
    with record_function(REGION), mode:
        instance.call()
    device.synchronize()
    gc.collect()  # a call's cycles of references replace those of the call before


def _held(
    instance: Instance, device: Device, *, is_traced: bool, has_graphs: bool, held_at_first: int
) -> Origins:
    """Return the bytes that a call keeps, of the device's memory and of Python's, those that are
    held between calls, and those that Python has at once, with the lines that allocate them.

    `is_traced`: whether lines may be traced. `has_graphs`: the memory of a CUDA graph is its own.
    `held_at_first`: what the module held behind its first call.
    """
    again = functools.partial(_call_alone, instance, device, nullcontext())
    peaks: list[int] = []
    stored: list[tuple[int, int]] = []  # one that stores each fifth time may be any call
    held: list[int] = []  # by the module, behind each call

    def of_device(times: int) -> list[int]:
        left = list[int]()
        for _ in range(times):
            size, at = _left_allocated(again, device)
            left.append(size)
            if len(held) < _KEPT_CALLS:
                stored.append(_stored_bytes(instance, at))
                # a call that leaves nothing allocated stores nothing new
                held.append((held_bytes(instance.module) or 0) if at or not held else held[-1])
        return list(accumulate(left))

    def of_python(times: int) -> list[int]:  # `tracemalloc` runs
        sizes = list[int]()
        for _ in range(times):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            again()
            now, most = tracemalloc.get_traced_memory()
            sizes.append(now)
            peaks.append(most - before)
        return sizes

    is_ours = not tracemalloc.is_tracing()
    try:
        with collector_paused(), old_objects_frozen():
            grown_bytes = _kept_by_several(of_device)
            tracemalloc.start()  # with the frames of each allocation it takes several times as long
            grown = _kept_by_several(of_python)
            vary = max(peaks) - min(peaks) >= _LEAST_PEAK_BYTES  # each fifth call is two of ten
            of_python(2 * RUN_OF_CALLS - len(peaks) if vary else 0)
            peak = sorted(peaks[: 2 * RUN_OF_CALLS])[-2]
            at_peak = _lines_at_peak(again, peak) if is_traced else []
            found = Origins(
                held_bytes=_steady(held, held_at_first) + min(stored)[1],
                is_storing=min(stored)[0] > 0,
                grown_bytes=None if has_graphs else grown_bytes or None,
                peak_host_bytes=peak,
                host_peak=tuple(Origin("", (source_line(*each),)) for each in at_peak),
            )
            if not grown:
                return found
            if is_ours:
                tracemalloc.stop()
                tracemalloc.start(_FRAMES)
            lines = _growing_lines(again)
    finally:
        if is_ours:
            tracemalloc.stop()
    return replace(found, grown_host_bytes=grown, host_growth=lines)


def _kept_by_several(levels_of: Callable[[int], list[int]]) -> int:
    """Return the least bytes that each of several calls in a row keeps; zero if too few to count.

    Every fifth call may keep something; a cache fills once, and what workers of a data loader hold
    goes later.

    Args: levels_of: makes so many calls, and returns the bytes held behind each.
    """
    if all(
        after - before < _LEAST_KEPT_BYTES for before, after in pairwise(levels_of(_KEPT_CALLS))
    ):
        return 0
    levels = levels_of(_KEPT_GROUPS * _SEVERAL + 1)[::_SEVERAL]
    kept = min(after - before for before, after in pairwise(levels)) // _SEVERAL
    return kept if kept >= _LEAST_KEPT_BYTES else 0


def _lines_at_peak(once: Callable[[], None], peak: int) -> list[tuple[str, int]]:
    """Return `line_at_peak` of a call that holds as much; empty if none of a few does."""
    for _ in range(RUN_OF_CALLS if peak >= _LEAST_PEAK_BYTES else 0):
        before = tracemalloc.get_traced_memory()[0]
        lines = line_at_peak(once)
        if tracemalloc.get_traced_memory()[1] - before > peak - _LEAST_PEAK_BYTES // 2:
            return lines
    return []


def _growing_lines(once: Callable[[], None]) -> tuple[Origin, ...]:
    """Return the lines that allocate what Python keeps of several calls. `tracemalloc` runs."""
    once()  # replaces what the last one holds
    before = tracemalloc.take_snapshot()
    for _ in range(_SEVERAL):
        once()
    differences = tracemalloc.take_snapshot().compare_to(before, "traceback")
    stacks = (_frames(each.traceback) for each in differences[:_MOST_LINES] if each.size_diff > 0)
    return tuple(Origin("", (line,)) for line in _lines_of(stacks))


def _steady(levels: Sequence[int], first: int) -> int:
    """Return the most that calls hold, but for one of them; `first` where that only grows."""
    only_grows = levels[-1] > levels[0] and [*levels] == sorted(levels)
    return first if only_grows else sorted(levels)[-2]


def _stored_bytes(instance: Instance, sizes: Mapping[int, int]) -> tuple[int, int]:
    """Return the bytes that a call has stored for the next one, and those of them that
    `reach.held_bytes` does not count.

    `sizes`: of the memory that it has allocated and not freed, by address.
    """
    if not sizes:
        return 0, 0
    own, dropped = held_addresses(instance.module, instance.calls, are_new=instance.is_sequence)
    stored = sizes.keys() - dropped
    return sum(sizes[each] for each in stored), sum(sizes[each] for each in stored - own)


def _left_allocated(call: Callable[[], None], device: Device) -> tuple[int, dict[int, int]]:
    """Return how many bytes more a device has allocated behind a call, and the sizes of what the
    call has allocated and not freed, by address.

    A GPU's allocator lists its blocks. No allocator of a CPU tells: the profiler sees each
    allocation, and here no op.
    """
    if device.gpu is not None:
        before = _blocks(device)
        call()
        after = _blocks(device)
        left = sum(after.values()) - sum(before.values())
        return left, {each: after[each] for each in after.keys() - before.keys()}
    with Profiler(activities=device.activities, profile_memory=True) as profiler:
        torch._C._autograd._enable_record_function(False)
        try:
            call()
        finally:
            torch._C._autograd._enable_record_function(True)
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    left = sum(each.nbytes() for each in results.events() if each.name() == "[memory]")
    return left, _allocated(results)


def _blocks(device: Device) -> dict[int, int]:
    """Return the sizes of what is allocated on a GPU, by address."""
    return {
        block["address"]: block["requested_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == device.torch_device.index
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def _allocated(results: Any) -> dict[int, int]:
    """Return the sizes of what a profiler saw allocated and not freed, by address."""
    sizes: dict[int, int] = {}
    with suppress(AttributeError):  # private names: another version may lack them
        waiting, found = [*results.experimental_event_tree()], []
        while waiting:
            event = waiting.pop()
            waiting += event.children
            found += [event] if event.tag.name == "Allocation" else []
        for event in sorted(found, key=attrgetter("start_time_ns")):
            extra = event.extra_fields
            sizes.pop(extra.ptr, None)
            sizes |= {extra.ptr: extra.alloc_size} if extra.alloc_size > 0 else {}
    return sizes


def _frames(traceback: tracemalloc.Traceback) -> Stack:
    """Return the frames within the call."""
    inner = takewhile(lambda frame: owner_of(frame.filename) != "kernelgauge", reversed(traceback))
    return tuple(
        (each.filename, each.lineno, "", source_line(each.filename, each.lineno).code)
        for each in inner
    )[::-1]


def _data_of(instance: Instance, device: Device) -> Origins:
    """Return what ops do by their data and are given in each of several calls; nothing if a call
    fails under a mode.
    """
    with suppress(Exception), collector_paused(), old_objects_frozen():
        first, *calls = [_data_of_call(instance, device) for _ in range(2)]
        end = time.perf_counter() + _GIVEN_SECONDS
        while len(calls) < _GIVEN_CALLS - 1 and time.perf_counter() < end:
            calls.append(_data_of_call(instance, device))
        data = {op: e for op, e in first.data.items() if all(it.data.get(op) == e for it in calls)}
        given = {
            op: each
            if all(it.given.get(op) == each for it in calls)
            else [dict.fromkeys(texts, "") for texts in each]
            for op, each in first.given.items()
        }
        return replace(first, data=data, given=given)
    return Origins()


def _data_of_call(instance: Instance, device: Device) -> Origins:
    """Return what each op does by its data, and what it is given."""
    noted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    given, of_functions = defaultdict[str, list[_Texts]](list), defaultdict[str, list[_Texts]](list)
    reads_data = False
    follows_data = False  # what comes later has sizes that the data choose
    unknown: set[str] = set()  # ops with such indices: a sum of the others is of fewer calls

    def run(op: Any, args: Any, kwargs: Any) -> Any:
        nonlocal follows_data, unknown, reads_data
        result = op(*args, **kwargs)
        found: dict[str, int] = {}
        sparse = [
            each
            for each in tree_leaves((args, kwargs, result))
            if getattr(each, "layout", None) in _SPARSE
        ]
        if sparse:
            found[STORED] = sum(each._nnz() for each in sparse)
        if op.namespace == "profiler":  # an annotation
            return result
        if torch.Tag.dynamic_output_shape in op.tags or op.namespace != "aten":
            found[FOUND if op.namespace == "aten" else RETURNED] = sum(
                each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor)
            )
        values = dict(zip((it.name for it in op._schema.arguments), args, strict=False)) | kwargs
        lists = [values[it.name] for it in op._schema.arguments if str(it.type) == _INDICES]
        if lists:  # the profiler records none
            unknown |= {op._schema.name} if follows_data else set()
            found[INDICES] = sum(each.numel() for each in lists[0] if each is not None)
        given[op._schema.name].append(_texts_of(op._schema, values, follows_data=reads_data))
        follows_data |= _chooses_sizes(op, args)
        reads_data |= torch.Tag.data_dependent_output in op.tags
        if found:
            noted[op._schema.name].update(found)
        return result

    def call(function: Any, args: Any, kwargs: Any) -> Any:
        name = f"aten::{getattr(function, '__name__', '')}"
        if names := texts_of(name):
            texts = (each for each in args if isinstance(each, str))
            named = {each: kwargs[each] if each in kwargs else next(texts, None) for each in names}
            of_functions[name].append({k: repr(v) for k, v in named.items() if isinstance(v, str)})
        return function(*args, **kwargs)

    with FunctionMode(call):
        _call_alone(instance, device, DispatchMode(run))
    for each in unknown:
        del noted[each][INDICES]
    data = {
        op: tuple(f"{count} {name}" for name, count in found.items())
        for op, found in noted.items()
        if found
    }
    # an op that is made of others is not dispatched
    every = {op: each for op, each in (of_functions | given).items() if any(each)}
    return Origins(data=data, given=every, reads_data=reads_data)


def _texts_of(schema: Any, values: Mapping[str, Any], *, follows_data: bool) -> _Texts:
    """Return the texts that an op is given, and the numbers in place of a tensor (``x * 0.3``)."""
    texts = {}
    for each in schema.arguments:
        value, kind = values.get(each.name, each.default_value), str(each.type)
        if kind in TEXT and value is not None:
            texts[each.name] = repr(value)
        elif kind == "Tensor" and isinstance(value, float):
            texts[each.name] = number_text(value, follows_data=follows_data)
    return texts


def _chooses_sizes(func: Any, args: Any) -> bool:
    """Tell whether an op returns a number of the data, or as many numbers as they say."""
    is_by_mask = func._schema.name != "aten::index" or any(
        each.dtype is torch.bool for each in tree_leaves(args) if isinstance(each, torch.Tensor)
    )
    is_dynamic = torch.Tag.dynamic_output_shape in func.tags and is_by_mask
    return is_dynamic or torch.Tag.data_dependent_output in func.tags


def _matched(structure: ProfilerSession, here: Sequence[Execution]) -> list[int | None] | None:
    """Return for each launch of the structure the id of its op in this call; None if the call
    launches something else.

    A replayed CUDA graph holds what this call launches. The copies of its inputs come before it,
    and have no op here.
    """
    there, launches = structure.executions[-1], structure.windows[-1].launches
    is_here = [
        not structure.replays_graphs or launches[place].call.is_graph_launch
        for place in range(len(there))
    ]
    old, new = (
        # all that a graph tells
        [(each.identity.name, each.identity.grid, each.identity.block) for each in side]
        for side in (compress(there, is_here), here)
    )
    if old != new:
        return None
    ids = iter([each.op.external_id if each.op else None for each in here])
    return [next(ids) if is_in else None for is_in in is_here]


@dataclass(frozen=True, slots=True)
class _Site:
    """Where an op was called."""

    module: str = ""
    # Those around it, without torch's own: the line of each call, and the first of each function
    # that it enters.
    frames: Stack = ()
    # What autograd ran: the op of this thread with this number asked for it. Each thread counts for
    # itself.
    node: tuple[int, int] | None = None
    # the innermost one of the user's, by its file and first line
    function: tuple[str, int] | None = None


_Held = list[tuple[int, _Site]]  # bytes, and where they were allocated


class _Sites:
    """The site of each op of one session, by its id.

    `waits`: of calls that wait and that no op makes, in order. `frees`: of those that empty torch's
    cache.
    """

    def __init__(self, session: Any, modules: Modules) -> None:
        from torch.profiler.python_tracer import _prefix_regex

        self.ops: dict[int | None, _Site] = {}
        self.waits: list[_Site] = []
        self.frees: list[_Site] = []
        # Of each function, by its `host.short` name: the lines that call it, how often, and the
        # modules; and those that do so themselves, and not through a library.
        self._callers_of: dict[str, dict[SourceLine, list[str]]] = {}
        self._direct: Counter[tuple[str, SourceLine]] = Counter()
        self._lines: dict[Stack, SourceLine | None] = {}
        self._leading: dict[SourceLine, dict[SourceLine, None]] = {}  # to each of these
        self.codes: set[str] = set()  # of the lines of the user's that call something
        # as those of `Origins`
        self.statements: dict[str, Sequence[SourceLine]] = {}
        self.used: dict[str, Sequence[SourceLine]] = {}
        self._calls: list[tuple[int, int]] = []  # when each began and ended
        # time, address, bytes, device
        self._allocations: list[tuple[int, int, int, str, _Site]] = []
        self._modules = modules
        self._prefixes = ("", *_prefix_regex())
        self._loaded = {str(attributes_of(it).get("__file__")) for it in [*sys.modules.values()]}
        self._files: dict[str, tuple[str, Owner]] = {}
        # of the last op that has the number
        self._forward: dict[tuple[int, int] | None, _Site] = {}
        # modules whose forward ops a function has
        self._callers: dict[tuple[str, int] | None, list[str]] = {}
        self._threads = {each.correlation_id(): each.fwd_thread_id() for each in session.events()}
        waiting = [(event, _Site()) for event in reversed(session.experimental_event_tree())]
        while waiting:
            event, site = waiting.pop()
            kind, extra = event.typed
            if kind.name in ("PyCall", "PyCCall"):
                site = self._called(event, extra, site)
            elif kind.name == "Allocation":
                where = extra.ptr, extra.alloc_size, extra.device.type
                self._allocations.append((event.start_time_ns, *where, site))
            elif kind.name == "TorchOp" and event.name == REGION:
                self._calls.append((event.start_time_ns, event.end_time_ns))
                self.waits.clear()  # of the call before
            elif kind.name == "TorchOp":
                site = self._dispatched(event, extra, site)
            waiting += [(child, site) for child in reversed(event.children)]

    def memory(self, device: str) -> tuple[_Held, _Held, _Held]:
        """Return the bytes that the last call left allocated on a device, with their sites, those at
        its peak, and those that Python's collector freed behind it.

        Memory that replaces freed memory of the same size does not count as left: gradients replace
        those of the call before. On a CPU it adds to the peak: a GPU's allocator counts both.
        """
        (_, first), *_, (start, last) = sorted(self._calls)
        own = [
            each for each in sorted(self._allocations, key=itemgetter(0)) if first < each[0] <= last
        ]
        own = [each for each in own if each[3] == device]
        born: set[int] = set()
        sizes: list[int] = []
        for at, address, size, *_ in own:
            is_own = at >= start and (size > 0 or device == "cuda" or address in born)
            (born.add if size > 0 and is_own else born.discard)(address)
            sizes.append(size * is_own)
        levels = list(accumulate(sizes))
        peak_at = levels.index(max(levels)) if levels else None
        held: dict[int, tuple[int, _Site, bool]] = {}  # and whether the call itself allocated it
        at_peak: _Held = []
        freed: Counter[int] = Counter()
        for number, (at, address, size, _, site) in enumerate(own):
            if size > 0:
                held[address] = size, site, at >= start
            elif held.pop(address, None) is None:
                freed[-size] += 1
            if number == peak_at:
                at_peak = [(size, site) for size, site, is_own in held.values() if is_own]
        left: _Held = []
        for size, site, _ in held.values():
            if freed[size] > 0:
                freed[size] -= 1
            else:
                left.append((size, site))
        collected = {each[1] for each in self._allocations if each[0] > last and each[2] < 0}
        cyclic = [held[each][:2] for each in collected & held.keys() & born]
        for each in (left, cyclic):
            each.sort(key=itemgetter(0), reverse=True)
        return left, at_peak, cyclic

    def distinct(self, sites: Iterable[_Site | None]) -> tuple[Origin, ...]:
        """Return the origins of sites, each once, without those that are not known."""
        return tuple(dict.fromkeys(filter(None, map(self.origin, sites))))

    def of_calls(
        self, here: _Calls, there: _Calls, waits: Sequence[_Site] = ()
    ) -> tuple[Origin | None, ...]:
        """Return the origins of calls on the host; `waits`: of those that no op makes, if they are
        as many.
        """
        if [text for text, _ in here] != [text for text, _ in there]:
            return (None,) * len(there)
        sites = [self.ops.get(external_id) for _, external_id in here]
        others = iter(waits if sites.count(None) == len(waits) else ())
        return tuple(self.origin(next(others, None) if site is None else site) for site in sites)

    def caller(self, site: _Site | None) -> Origin | None:
        """Return where the user's code calls the generated code around a site; None where there is
        none.
        """
        frame = site and _innermost(site.frames, "generated", "user")
        asked = self._forward.get(site.node, _Site()) if site else _Site()
        is_generated = site and frame and owner_of(frame[0]) == "generated"
        line = _line_of((*asked.frames, *site.frames)) if site and is_generated else None
        return None if line is None else Origin(self._modules.root, (line,))

    def origin(self, site: _Site | None) -> Origin | None:
        if site is None:
            return None
        is_backward = site.node is not None
        file, number, *_ = _innermost(site.frames, "generated", "user") or ("", 0)
        if owner_of(file) == "generated":
            stacks = stacks_at(file, number, since=self._modules.since)
            if stacks is None:
                return None
            # A function of a library that is compiled alone: the line that calls it.
            stacks = tuple(
                stack if _innermost(stack, "user", "module of torch") else (*site.frames, *stack)
                for stack in stacks
            )
            # Without a line it is a function of torch that is compiled: its caller asked for it.
            if lines := dict(islice(_lines_of(stacks).items(), _MOST_FUSED_LINES)):
                # A size by its name, instead of a number.
                is_dynamic = "numel" in linecache.getline(file, number) or msgspec.UNSET
                return _origin(
                    self._modules.around(stacks),
                    lines,
                    is_backward=is_backward,
                    is_dynamic=is_dynamic,
                )
        asked = self._forward.get(site.node, _Site())
        lines = _lines_of([(*asked.frames, *site.frames)])
        # Checkpointing calls a function again, for a node of whatever comes after it: its module is
        # that of the first time.
        again = self._callers.get(site.function) if is_backward else None
        module = site.module or (common_path(again) if again else asked.module)
        module = module or self._modules.root
        return _origin(module, lines, is_backward=is_backward) if lines else None

    def _called(self, event: Any, extra: Any, site: _Site) -> _Site:
        """Return the site within a Python function, of which the line is not known yet, by the
        line that called it.
        """
        file, owner = self._file(extra.caller.file_name)
        if owner in _NAMED:
            line, name = source_line(file, extra.caller.line_number), extra.caller.function_name
            # the first line of what follows a graph break is that of the break
            is_at_break = name.endswith(f"_at_{line.line}") and whole_function(name) != name
            code = f"in {whole_function(name)}" if is_at_break else line.code
            site = replace(site, frames=(*site.frames, (file, line.line, "", code)))
        callsite = getattr(extra, "callsite", None)
        self._note_call(event, extra, site)
        if callsite is None:  # a function in C
            if _innermost(site.frames, "user"):
                self.waits += [site] if "synchronize" in event.name else []
                self.frees += [site] if "emptyCache" in event.name else []
            return site
        if extra.module is not None:
            module = self._modules.names.get(extra.module.self_ptr, site.module)
            site = replace(site, module=module, function=None)
        name, number = callsite.function_name, callsite.line_number
        file, owner = self._file(callsite.file_name)
        frame = (file, number, name, f"in {whole_function(name)}")
        if name == BaseTorchFunctionMode.__torch_function__.__name__:
            return site
        if owner == "kernelgauge":  # no code of the workload, and around it is that of the tests
            return _Site()
        if owner == "user":  # an operator in it has no frame, and its line is not the caller's
            return replace(site, frames=(*site.frames, frame), function=(file, number))
        return site

    def _note_call(self, event: Any, extra: Any, site: _Site) -> None:
        """Note which line calls a function.

        One of the user's that a library calls, such as a hook, has its own line.
        """
        if not self._calls:  # of the test, and of what runs it
            return
        if site.frames not in self._lines:  # else the call is one of ours, beside the workload
            is_asked = _innermost(site.frames, "user", "library", "module of torch")
            self._lines[site.frames] = line = _line_of(site.frames) if is_asked else None
            if line is not None:
                self._leading.setdefault(line, {}).update(dict.fromkeys(_leading_to(site.frames)))
            self.codes |= {frame[3] for frame in _calling(site.frames)}
            _note_statements(site.frames, self.statements, self.used, self._modules)
        name, line = function_in_c(event.name), self._lines[site.frames]
        by_user = self._file(extra.caller.file_name)[1] == "user"
        if callsite := getattr(extra, "callsite", None):
            file, owner = self._file(callsite.file_name)
            name = function_name(file or callsite.file_name, owner, callsite.function_name)
            if owner == "user" and not by_user:
                line = source_line(file, callsite.line_number)
        if line is not None:
            name = short(name)
            self._callers_of.setdefault(name, {}).setdefault(line, []).append(
                site.module or self._modules.root
            )
            self._direct[name, line] += by_user

    def callers(self) -> dict[str, tuple[Origin, ...]]:
        """Return the lines that call each function: those that do so themselves come first, then
        the most frequent.
        """
        found, direct = {}, self._direct
        for name, lines in self._callers_of.items():
            most = sorted(lines, key=lambda line: (-direct[name, line], -len(lines[line])))
            found[name] = tuple(
                _origin(
                    common_path(list(filter(None, lines[line]))),
                    {line: tuple(self._leading.get(line, ()))},
                    calls=direct[name, line] // len(self._calls),
                )
                for line in most[:_MOST_CALLERS]
            )
        return dict(sorted(found.items(), key=lambda each: not each[1][0].calls))

    def recorded(self) -> tuple[Origin, ...]:
        """Return where autograd records, the first line first: a later op has a higher number."""
        last: Counter[int] = Counter()
        for thread, number in filter(None, self._forward):
            last[thread] = max(last[thread], number)
        sites = (site for key, site in self._forward.items() if key and key[1] < last[key[0]])
        return self.distinct(sites)[:_MOST_LINES]

    def _dispatched(self, event: Any, extra: Any, site: _Site) -> _Site:
        number = extra.sequence_number
        if event.name.startswith("autograd::engine") or extra.scope.name == "BACKWARD_FUNCTION":
            # An addition to a parameter's gradient has no number.
            site = (
                _Site(node=(self._threads.get(event.correlation_id, 0), number))
                if number >= 0
                else _Site()
            )
        elif number >= 0:
            # An op without a gradient has the number of the next node too. One of a backward pass,
            # whose gradient is taken again, was asked for where its own node was.
            is_users = _innermost(site.frames, "user") is not None
            self._forward[event.start_tid, number] = (
                site if is_users else self._forward.get(site.node, site)
            )
        if site.node is None and site.function is not None:
            self._callers.setdefault(site.function, []).append(site.module)
        self.ops.setdefault(event.correlation_id, site)
        return site

    def _file(self, name: str) -> tuple[str, Owner]:
        """Return path and owner of a file by the name that the profiler gives it, which lacks the
        folder of `sys.path`.
        """
        if name not in self._files:
            there = {each + name for each in self._prefixes if os.path.isfile(each + name)}
            found = there & self._loaded or there
            file = found.pop() if len(found) == 1 else ""  # several may have that name
            self._files[name] = file, owner_of(file) if file else "other"
        return self._files[name]


def _line_of(stack: Stack) -> SourceLine | None:
    """Return the innermost line of the user's, with a library's below it; else a library's, or one
    of a module of torch.
    """
    for owner in ("user", "library", "module of torch"):
        places = [place for place, frame in enumerate(stack) if owner_of(frame[0]) == owner]
        if places:
            file, line, _, code = stack[places[-1]]
            below = _innermost(stack[places[-1] + 1 :], "library") if owner == "user" else None
            inner = SourceLine(shown_path(below[0]), below[1], below[3]) if below else None
            return SourceLine(shown_path(file), line, code, inner)
    return None


def _calling(stack: Stack) -> list[Frame]:
    """Return the user's frames, without those where a function begins; then the loops and other
    blocks around these lines.
    """
    frames = [
        frame for frame in stack if owner_of(frame[0]) == "user" and not frame[3].startswith("in ")
    ]
    blocks = [
        (file, above, name, source_line(file, above).code)
        for file, number, name, _ in frames
        for above in lines_around(file, number)
    ]
    return [*frames, *blocks]


def _note_statements(
    stack: Stack,
    statements: dict[str, Sequence[SourceLine]],
    used: dict[str, Sequence[SourceLine]],
    modules: Modules,
) -> None:
    """Note the function of each line of the user's, by its place; its statements, and what they use,
    by its own.
    """
    for file, number, *_ in _calling(stack):
        if own := statements_around(file, number):
            statements.setdefault(f"{shown_path(file)}:{number}", own[:1])
            if own[0].at not in used:
                statements[own[0].at] = own
                defined = statements_used(file, own, modules.families)
                used[own[0].at] = [*chain(*defined.values())]
                used.update((f"{it.at} {it.code}", (it, *each)) for it, each in defined.items())


def _leading_to(stack: Stack) -> list[SourceLine]:
    """Return the lines of the user's that lead to the innermost one, the outermost first; then
    itself and the blocks around them.
    """
    found = [
        SourceLine(shown_path(file), number, code) for file, number, _, code in _calling(stack)
    ]
    innermost = _innermost(stack, "user")
    is_alone = innermost is not None and [(each.file, each.line) for each in found] == [
        (shown_path(innermost[0]), innermost[1])
    ]
    return [] if is_alone else found


def _lines_of(stacks: Iterable[Stack]) -> dict[SourceLine, tuple[SourceLine, ...]]:
    """Return the innermost lines of the user's, and the lines that lead to each."""
    found: dict[SourceLine, dict[SourceLine, None]] = {}
    for stack in stacks:
        if line := _line_of(stack):
            found.setdefault(line, {}).update(dict.fromkeys(_leading_to(stack)))
    return {line: tuple(callers) for line, callers in found.items()}


def _origin(
    module: str, lines: Mapping[SourceLine, tuple[SourceLine, ...]], **facts: Any
) -> Origin:
    return Origin(
        module,
        tuple(lines),
        callers=tuple(lines.values()) if any(lines.values()) else (),
        **facts,
    )


def _innermost(stack: Stack, *owners: Owner) -> Frame | None:
    return next((frame for frame in reversed(stack) if owner_of(frame[0]) in owners), None)


class Modules:
    """The modules of a workload: paths by the object's address, and by the lines of a ``forward``.

    Holds none of them.
    """

    def __init__(
        self,
        module: Any,
        since: int = 0,
        *,
        are_compiled: bool = False,
        arguments: Arguments = ((), {}),
    ) -> None:
        # graphs that were compiled before this workload (`CompileCounts.traced`)
        self.since = since
        self.are_compiled = are_compiled  # whether its calls have compiled anything
        parts = _parts(module) | _given(module, *arguments)
        whole = parts.get("")
        self.root = type(getattr(whole, "_orig_mod", whole)).__name__ if whole is not None else ""
        # by id: two may be equal
        found: dict[int, tuple[nn.Module, list[str]]] = {}
        for prefix, part in parts.items():
            for path, each in part.named_modules(prefix=prefix, remove_duplicate=False):
                # Without the parts that torch.compile adds.
                found.setdefault(id(each), (each, []))[1].append(
                    ".".join(name for name in path.split(".") if name != "_orig_mod")
                )
        # A module that is used twice has both names.
        self.names = {at: " = ".join(dict.fromkeys(paths)) for at, (_, paths) in found.items()}
        self.families: dict[Class, tuple[Class, ...]] = {}
        for kind in {type(each): None for each, _ in found.values()}:
            for cls in (family := family_of(kind)):
                self.families[cls] = tuple(dict.fromkeys((*self.families.get(cls, ()), *family)))
        self._forwards: list[tuple[str, range, str]] = []  # file, lines, path
        for each, _ in found.values():
            forward = getattr(type(each), "forward", None)  # None: a module of TorchScript
            code = forward and getattr(inspect.unwrap(forward), "__code__", None)
            if code is not None:
                last = max(
                    (line for *_, line in code.co_lines() if line is not None),
                    default=code.co_firstlineno,
                )
                self._forwards.append(
                    (code.co_filename, range(code.co_firstlineno, last + 1), self.names[id(each)])
                )

    def around(self, stacks: Iterable[Stack]) -> str:
        """Return the path of the innermost module around all of these, by its ``forward``; empty if
        there is none.

        Layers that share the code have one path: ``layers.*.mlp``.
        """
        found: list[list[str]] = []
        for stack in stacks:
            # A line that calls a module of torch belongs to the module around: which of its layers
            # it calls is not known.
            frames = [frame for frame in stack if owner_of(frame[0]) != "module of torch"] or stack
            for file, line, *_ in reversed(frames):
                paths = [
                    path
                    for of, lines, path in self._forwards
                    if line in lines and file in (of, shown_path(of))
                ]
                if paths:
                    found.append(common_path(paths).split("."))
                    break
        alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*found, strict=False))
        return ".".join(parts[0] for parts in alike) or self.root

    def located(self, events: Iterable[CompileEvent]) -> tuple[CompileEvent, ...]:
        """Return events of the compiler with the module that their line belongs to."""
        return tuple(
            msgspec.structs.replace(
                each, module=self.around([((each.file or "", each.line, "", each.code),)])
            )
            for each in events
        )


def _given(
    owner: Any, positional: tuple[Any, ...], keywords: Mapping[str, Any]
) -> dict[str, nn.Module]:
    """Return the modules among the arguments of a call, by the names of the parameters."""
    if not any(is_a(each, nn.Module) for each in (*positional, *keywords.values())):
        return {}
    given: Mapping[str, Any] = keywords
    with suppress(TypeError, ValueError):  # a function in C may have no signature
        given = (
            inspect.signature(getattr(owner, "forward", owner))
            .bind_partial(*positional, **keywords)
            .arguments
        )
    return {name: part for name, part in given.items() if is_a(part, nn.Module)}


def _parts(owner: Any) -> dict[str, nn.Module]:
    """Return the modules of a workload by name: itself, those of its object, or those among the
    variables of a function.
    """
    if is_a(owner, nn.Module):
        return {"": owner}
    if is_a(owner, functools.partial):
        return _parts(owner.func)
    if is_a(owner, MethodType):
        return _parts(owner.__self__)
    parts = attributes_of(owner)
    if is_a(owner, FunctionType):
        with suppress(ValueError):  # a variable that is not set yet
            variables = inspect.getclosurevars(owner)
            parts = {**variables.globals, **variables.nonlocals}
    return {name: part for name, part in parts.items() if is_a(part, nn.Module)}
