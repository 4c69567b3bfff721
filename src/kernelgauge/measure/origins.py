"""Where kernels come from: the module and the lines of the user's code, for each launch of one call.

One more call is profiled, with Python's stack, and its times are not used. A device record leads to its op by an id; the op
stands below the Python frames that called it; a frame tells the line. What leads nowhere has no origin: a wrong line is
worse than none.

Private names of torch, checked on 2.11 and 2.13: `experimental_event_tree`, `trace.provenance_tracking_level`,
`get_compilation_metrics`, `triton.force_cudagraphs_warmup`.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import profile, record_function

from ..errors import shown_path
from ..run import CompileEvent, Origin, SourceLine, common_path
from ..trace import REGION, Window, parse
from .compiler import CompiledGraph, compiled_graphs, owner_of
from .device import Device, Execution
from .instance import Instance
from .profile import ProfilerSession

__all__ = ["Modules", "Origins", "origins_of"]

# Of a stack as torch.compile writes it; of what `exec` was given there is no code.
_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)(?:\n {4}(.*))?')
_RESUMED, _AFTER_BREAK = re.compile(r"^torch_dynamo_resume_in_(\w+)_at_\d+$"), r"\1, after the graph break"
_HANDLE = re.compile(r"# \[Provenance debug handles\] (\S+)")
_BETWEEN = re.compile(r"#|stream|\w+numel = ")  # what Inductor writes between a handle and its call
Frame = tuple[str, int, str, str]  # file, line, function and code
Stack = tuple[Frame, ...]  # outermost first
_STACKS_ON_PYTHON_3_13 = (2, 8)  # torch: before it, a session with stacks crashes (pytorch/pytorch#144094)
_REGION = "Torch-Compiled Region"
_MOST_LINES = 8  # of a fusion: more are not read


@dataclass(frozen=True)
class Origins:
    """The origin of each launch, copy and synchronising call of one call, in order; None: not known."""

    kernels: tuple[Origin | None, ...] = ()
    copies: tuple[Origin | None, ...] = ()
    synchronizations: tuple[Origin | None, ...] = ()


def origins_of(instance: Instance, modules: Modules, structure: ProfilerSession, device: Device) -> Origins:
    """Profile one more call and return where its launches come from.

    Args:
        structure: what a call launches. If this one launches anything else, nothing is known.
    """
    if sys.version_info >= (3, 13) and tuple(map(int, torch.__version__.split(".")[:2])) < _STACKS_ON_PYTHON_3_13:
        return Origins()
    there = structure.windows[-1]
    # The mode that tells the line of an operator (``a * b``, which is no call in Python) would have Dynamo compile again.
    is_compiled = instance.workload.compile is not None or structure.runs_compiled_code
    for mode in (nullcontext(),) if is_compiled else (_Forwarding(), nullcontext()):
        session, window = _profile(instance, device, mode, replays_graphs=structure.replays_graphs)
        executions = device.executions(window)
        matched = _matched(structure, executions)
        if matched is None:
            continue
        with suppress(AttributeError, ImportError, TypeError):  # private names of torch: another version may lack them
            places = _Places(session, modules)
            return Origins(
                kernels=tuple(
                    None if place is None else places.origin(executions[place].external_id) for place in matched
                ),
                copies=_if_alike(places, window.copying_ops, there.copying_ops),
                synchronizations=_if_alike(
                    places, places.with_waits(window.synchronizing_ops), there.synchronizing_ops
                ),
            )
    return Origins()


def _matched(structure: ProfilerSession, here: Sequence[Execution]) -> list[int | None] | None:
    """Return for each launch of the structure its place in this call; None if the call launches something else.

    A replayed CUDA graph holds what this call launches. The copies of its inputs come before it, and have no place.
    """
    there = structure.executions[-1]
    launches = structure.windows[-1].launches
    of_graph = [
        place for place in range(len(there)) if not structure.replays_graphs or launches[place].call.is_graph_launch
    ]
    if [_looks(there[place]) for place in of_graph] != [_looks(each) for each in here]:
        return None
    found = {place: number for number, place in enumerate(of_graph)}
    return [found.get(place) for place in range(len(there))]


def _looks(execution: Execution) -> object:
    """Return what a launch has of its identity in a CUDA graph too."""
    return execution.identity.name, execution.identity.grid, execution.identity.block


class _Forwarding(TorchFunctionMode):
    """Gives each operator a frame in Python: the profiler records the line of its caller."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _if_alike(
    places: _Places, here: Sequence[tuple[str, int | None]], there: Sequence[tuple[str, int | None]]
) -> tuple[Origin | None, ...]:
    alike = [text for text, _ in here] == [text for text, _ in there]
    return tuple(places.origin(external_id) for _, external_id in here) if alike else (None,) * len(there)


def _profile(
    instance: Instance, device: Device, mode: AbstractContextManager[Any], *, replays_graphs: bool
) -> tuple[Any, Window]:
    """Profile one call; return the profiler's session and the window of the call."""
    import torch._inductor.config as inductor

    with ExitStack() as stack:
        if replays_graphs:  # a replay has no ops: run what the graph was recorded of
            stack.enter_context(inductor.patch({"triton.force_cudagraphs_warmup": True}))
        instance.prepare()
        device.synchronize()
        profiler = stack.enter_context(profile(activities=device.activities, record_shapes=True, with_stack=True))
        with record_function(REGION), mode:
            instance.call()
        device.synchronize()
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        window = parse(path.read_bytes()).regions(REGION)[-1]
    results: Any = profiler.profiler
    return results.kineto_results, window


# -- the tree of events: where each op was called ------------------------------------------------------------------------


class _Generated(NamedTuple):
    """A line of the code that Inductor generated."""

    file: str
    line: int


class _Node(NamedTuple):
    """A node of autograd: the op of this thread with this number asked for it. Each thread counts for itself."""

    thread: int
    sequence: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an op was called.

    Attributes:
        at: the innermost line of the user's.
        library: the innermost line of neither torch nor the user.
        generated: the line of Inductor's that is further in than these.
        compiled_for: the line that called the compiled function around it.
        node: what autograd ran; None: it is no part of a backward pass.
        function: the user's function that `at` is in, by its file and first line.
    """

    module: str = ""
    at: SourceLine | None = None
    library: SourceLine | None = None
    generated: _Generated | None = None
    compiled_for: SourceLine | None = None
    node: _Node | None = None
    function: tuple[str, int] | None = None


class _Places:
    """The place of each op of one session."""

    def __init__(self, session: Any, modules: Modules) -> None:
        self._modules = modules
        self._files = _Files()
        self._places: dict[int, _Place] = {}  # by the id of the op
        self._forward: dict[_Node | None, _Place] = {}  # of the last op that has the number
        self._callers: dict[tuple[str, int] | None, list[str]] = {}  # modules whose forward ops a function has
        self._threads = {each.correlation_id(): each.fwd_thread_id() for each in session.events()}
        self._waits: list[_Place] = []  # calls that wait and that no op makes: `torch.cuda.synchronize`
        # A workload may run code that others had compiled: but of graphs with the same kernels, its own come first.
        self._graphs = (compiled_graphs(modules.since), compiled_graphs())
        self._walk(session.experimental_event_tree())

    def with_waits(self, calls: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
        """Give each synchronising call that no op makes an id of its own, in order; none if their number does not fit."""
        without = [place for place, (_, external_id) in enumerate(calls) if external_id not in self._places]
        if len(without) != len(self._waits):
            return list(calls)
        ids = {place: -1 - number for number, place in enumerate(without)}
        self._places |= {-1 - number: place for number, place in enumerate(self._waits)}
        return [(text, ids.get(place, external_id)) for place, (text, external_id) in enumerate(calls)]

    def origin(self, external_id: int | None) -> Origin | None:
        place = self._places.get(external_id) if external_id is not None else None
        if place is None:
            return None
        if place.generated is not None:
            stacks = _stacks_of(place.generated, self._graphs)
            if stacks is None:
                return None
            lines = dict.fromkeys(line for stack in stacks if (line := _innermost(stack)) is not None)
            if lines:  # else it is a function of torch that is compiled: its caller asked for it
                return Origin(self._modules.around(stacks), tuple(lines)[:_MOST_LINES], place.node is not None)
        asked = self._forward.get(place.node, _Place()) if place.node is not None else _Place()
        if place.generated is not None:
            line = place.compiled_for or asked.compiled_for
        else:
            line = place.at or asked.at or place.library or asked.library
        # Checkpointing calls a function again, for a node of whatever comes after it: its module is that of the first time.
        again = self._callers.get(place.function) if place.node is not None else None
        module = place.module or (common_path(list(dict.fromkeys(again))) if again else asked.module)
        return None if line is None else Origin(module or self._modules.root, (line,), place.node is not None)

    def _walk(self, events: Sequence[Any]) -> None:
        waiting = [(event, _Place()) for event in reversed(events)]
        while waiting:
            event, place = waiting.pop()
            kind, extra = event.typed
            name = kind.name
            if name in ("PyCall", "PyCCall"):
                place = self._called(event, extra, place, has_frame=name == "PyCall")
            elif name == "TorchOp":
                place = self._dispatched(event, extra, place)
            waiting += [(child, place) for child in reversed(event.children)]

    def _called(self, event: Any, extra: Any, place: _Place, *, has_frame: bool) -> _Place:
        """Return the place within a Python function, of which the line is not known yet, by the line that called it."""
        place = self._at(place, extra.caller.file_name, extra.caller.line_number)
        if not has_frame:
            if "synchronize" in event.name and place.at is not None:
                self._waits.append(place)
            return place
        if extra.module is not None:
            module = self._modules.names.get(extra.module.self_ptr, place.module)
            place = replace(place, module=module, function=None)
        file = self._files.full(extra.callsite.file_name)
        if extra.callsite.function_name == _Forwarding.__torch_function__.__name__:
            return place
        owner = owner_of(file) if file is not None else "other"
        if file is not None and owner == "kernelgauge":  # the frames around it are those of the tests
            return _Place(library=_source_line(file, extra.callsite.line_number))
        if file is not None and owner == "user":  # an operator in it has no frame, and its line is not the caller's
            code = f"in {_RESUMED.sub(_AFTER_BREAK, extra.callsite.function_name)}"
            at = SourceLine(shown_path(file), extra.callsite.line_number, code)
            place = replace(place, at=at, generated=None, function=(file, extra.callsite.line_number))
        return place

    def _at(self, place: _Place, name: str, number: int) -> _Place:
        file = self._files.full(name)
        if file is None:
            return place
        owner = owner_of(file)
        if owner == "generated":
            return replace(place, generated=_Generated(file, number))
        if owner == "user":
            return replace(place, at=_source_line(file, number), generated=None)
        is_named = owner in ("library", "module of torch")
        return replace(place, library=_source_line(file, number)) if is_named else place

    def _dispatched(self, event: Any, extra: Any, place: _Place) -> _Place:
        if event.name.startswith("autograd::engine") or extra.scope.name == "BACKWARD_FUNCTION":
            known = extra.sequence_number >= 0  # an addition to a parameter's gradient has none
            thread = self._threads.get(event.correlation_id, 0)
            place = _Place(node=_Node(thread, extra.sequence_number)) if known else _Place()
        elif event.name.startswith(_REGION):
            place = replace(place, compiled_for=place.at)
        elif extra.sequence_number >= 0:
            # An op without a gradient has the number of the next node too. One of a backward pass, whose gradient is taken
            # again, was asked for where its own node was.
            asked = place if place.at is not None else self._forward.get(place.node, place)
            self._forward[_Node(event.start_tid, extra.sequence_number)] = asked
        if place.node is None and place.function is not None:
            self._callers.setdefault(place.function, []).append(place.module)
        self._places.setdefault(event.correlation_id, place)
        return place


def _source_line(file: str, number: int) -> SourceLine:
    """Return a line; for the first one of a function, which is all that compiled code tells, ``in forward``."""
    code = linecache.getline(file, number).strip()
    return SourceLine(shown_path(file), number, re.sub(r"^(?:async )?def (\w+).*", r"in \1", code))


class _Files:
    """Files by the names that the profiler gives them, which lack the folders of `sys.path`."""

    def __init__(self) -> None:
        from torch.profiler.python_tracer import _prefix_regex

        self._prefixes = _prefix_regex()
        self._full: dict[str, str | None] = {}
        for file in {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}:
            short = next((file.removeprefix(prefix) for prefix in self._prefixes if file.startswith(prefix)), file)
            self._full[short] = None if short in self._full else file

    def full(self, name: str) -> str | None:
        """Return the path of a file, or the name of a notebook's cell; None if there is none, or several of that name."""
        if name not in self._full:
            found = {path for prefix in ("", *self._prefixes) if os.path.isfile(path := f"{prefix}{name}")}
            if name.startswith("<") or name in linecache.cache:  # IPython puts its cells there
                found.add(name)
            self._full[name] = found.pop() if len(found) == 1 else None
        return self._full[name]


# -- modules ---------------------------------------------------------------------------------------------------------------


class Modules:
    """The modules of a workload: paths by the object's address, and by the lines of a ``forward``. Holds none of them."""

    def __init__(self, module: Any, since: int = 0) -> None:
        self.since = since  # graphs that were compiled before this workload
        owner = _owner(module)
        self.root = type(getattr(owner, "_orig_mod", owner)).__name__ if isinstance(owner, nn.Module) else ""
        self.names: dict[int, str] = {}
        modules: dict[int, nn.Module] = {}
        for name, each in _named_modules(owner):
            known = self.names.get(id(each))  # a module that is used twice has both names
            self.names[id(each)] = name if known in (None, name) else f"{known} = {name}"
            modules[id(each)] = each
        self._forwards: list[tuple[str, range, str]] = []  # file, lines, path
        for key, each in modules.items():
            code = getattr(inspect.unwrap(type(each).forward), "__code__", None)
            if code is not None:
                last = max((line for *_, line in code.co_lines() if line is not None), default=code.co_firstlineno)
                self._forwards.append((code.co_filename, range(code.co_firstlineno, last + 1), self.names[key]))

    def around(self, stacks: Iterable[Stack]) -> str:
        """Return the path of the innermost module around all of these, by its ``forward``; empty if there is none.

        Of layers that share the code it is not known which one: ``layers.*.mlp``.
        """
        found: list[list[str]] = []
        for stack in stacks:
            # A line that calls a module of torch belongs to the module around: which of its layers it calls is not known.
            for file, line, *_ in sorted(stack, key=lambda frame: owner_of(frame[0]) != "module of torch")[::-1]:
                paths = [path for of, lines, path in self._forwards if line in lines and file in (of, shown_path(of))]
                if paths:
                    found.append(common_path(paths).split("."))
                    break
        alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*found, strict=False))
        return ".".join(parts[0] for parts in alike) or self.root

    def located(self, events: Iterable[CompileEvent]) -> tuple[CompileEvent, ...]:
        """Return events of the compiler with the module that their line belongs to."""
        return tuple(
            msgspec.structs.replace(each, module=self.around([((each.file, each.line, "", each.code),)]))
            if each.file
            else each
            for each in events
        )


def _owner(function: Any) -> Any:
    """Return whose parts are the modules of a workload: of a bound method its object, of a lambda the variables around it."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, FunctionType) and function.__closure__:
        with suppress(ValueError):  # a variable that is not set yet
            values = [cell.cell_contents for cell in function.__closure__]
            return SimpleNamespace(**dict(zip(function.__code__.co_freevars, values, strict=True)))
    return getattr(function, "__self__", function)


def _named_modules(owner: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module with each of its paths, without the parts that torch.compile adds to them."""
    parts = {"": owner} if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {})
    for prefix, part in parts.items():
        if isinstance(part, nn.Module):
            for path, each in part.named_modules(prefix=prefix, remove_duplicate=False):
                yield ".".join(name for name in path.split(".") if name != "_orig_mod"), each


# -- compiled code: a line of what was generated leads to the lines that it was generated of -----------------------------------


def _stacks_of(at: _Generated, graphs: Iterable[Sequence[CompiledGraph]]) -> Sequence[Stack] | None:
    """Return the stacks of what a line of generated code computes, outermost frame first; None if not known.

    `graphs`: some, and those to look into if none of them has this code.
    """
    handle = _handle_above(at)
    handles = set(_HANDLE.findall("".join(linecache.getlines(at.file)))) if handle else set()
    for some in graphs if handle else ():
        found = (_stacks_now(graph, str(handle), handles) for graph in some if handles <= graph.kernels.keys())
        answers = {stacks for stacks in found if stacks is not None}
        if answers:  # several: graphs of the same kernels, from different lines
            return answers.pop() if len(answers) == 1 else None
    return None


def _stacks_now(graph: CompiledGraph, handle: str, handles: Iterable[str]) -> tuple[Stack, ...] | None:
    """Return the stacks of a kernel as this process has traced them, without those of which it is not certain; None: no other is left.

    Inductor's cache finds a graph by what it computes. Its stacks may be those of an older file, of another folder, or of
    another function with the same ops.

    `handles`: of all kernels in the generated file. `graph` may have those of other files too.
    """
    old = tuple(map(_frames, graph.kernels[handle]))
    if all(text in graph.traced for each in handles for text in graph.kernels[each]):
        return old
    traced = {stack for text in graph.traced if (stack := _frames(text))}
    placed: list[Stack] = []
    for stack in filter(None, old):
        for first in (0, -1):  # by the functions and the code of all frames, or else of the innermost
            code = [frame[2:] for frame in stack[first:]]
            alike = [each for each in traced if [frame[2:] for frame in each[first:]] == code]
            if alike:
                placed += alike if len(alike) == 1 else []
                break
    return tuple(placed) or None


@functools.lru_cache(maxsize=4096)  # each kernel of a cached graph asks for all
def _frames(text: str) -> Stack:
    return tuple((file, int(line), name, code.strip()) for file, line, name, code in _FRAME.findall(text))


def _handle_above(at: _Generated) -> str | None:
    """Return the handle in the comment above a call. Lines that choose a stream, or have a size of a dynamic shape, may lie between."""
    for number in range(at.line - 1, 0, -1):
        text = linecache.getline(at.file, number).strip()
        if match := _HANDLE.match(text):
            return match[1]
        if not _BETWEEN.match(text):
            return None
    return None


def _innermost(stack: Stack) -> SourceLine | None:
    """Return the innermost line of the user's; else of a library, or of a module of torch."""
    for owner in ("user", "library", "module of torch"):
        for file, line, _, code in reversed(stack):
            if owner_of(file) == owner:
                return SourceLine(shown_path(file), line, code)
    return None
