"""What torch.compile did: graphs, graph breaks, recompiles, and the lines that each generated
kernel was made of.

The last part restores the settings of torch for the whole process. Private names of torch, checked
on 2.11 and 2.13: those that `_keep_stacks` wraps, and those that `_events` reads. Dynamo takes
seconds to import: here only what compiles imports it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import linecache
import logging
import os
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import shown_path
from ..run import CompileEvent, SourceLine
from .choices import wrap_loaded
from .wrapping import wrap

# level: the lines of each kernel, without what costs time to compile (torch/_inductor/config.py)
_BASIC_PROVENANCE = 2
_MOST_COMPILATIONS = 100_000  # whose metrics are kept: 64 are fewer than one workload may have
_BETWEEN_STACKS = "\n\n"
_HANDLE = re.compile(r"\s*# \[Provenance debug handles\] (\S+)")
# what Inductor writes between a handle and its call
_BETWEEN = re.compile(r"\s*(#(?! \[Prov)|stream|\w+numel = )")
# A frame of a stack, in the form of torch.compile.
_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)(?:\n {4}(.*))?')
# Why Dynamo gave up: the value and the name of its limit (torch/_dynamo/graph_break_registry.json).
_LIMIT = re.compile(r"(?s)recompile limit exceeded.*currently set to (\d+).*Limit type: (\w+)")
# Why a guard failed: the number of its compilation, and torch's sentence on a tensor
# (torch/csrc/dynamo/guards.cpp), behind which stands advice.
_NUMBERED = re.compile(r"\d+/(\d+): ")
_MISMATCH = re.compile(
    r"tensor '(.+)' (.+?) mismatch(?: at index (\d+))?\. expected (?:\w+=)?(.+?)(?:, actual (.+?))?(?:\. .*)?"
)
# Dynamo's name for a function after a break in it
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")
_OWNED = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
_DYNAMO = "torch._dynamo"
_compile_id = torch._guards.CompileContext.current_compile_id
Frame = tuple[str, int, str, str]  # file, line, function and code
Stack = tuple[Frame, ...]  # outermost first


@dataclass(frozen=True)
class CompileCounts:
    """Totals since the last `reset_compiler`."""

    graphs: int
    graph_breaks: int
    events: tuple[CompileEvent, ...] = ()  # graph breaks and recompiles, each place once
    traced: int = 0  # graphs that Inductor was given, or found in its cache
    ops: int = 0  # in these graphs

    def since(self, before: CompileCounts) -> CompileCounts:
        """Return what came after `before`."""
        events = tuple(event for event in self.events if event not in before.events)
        graphs, breaks = self.graphs - before.graphs, self.graph_breaks - before.graph_breaks
        return CompileCounts(graphs, breaks, events, ops=self.ops - before.ops)

    @property
    def recompiles(self) -> int:
        """How often code that had been called was compiled; beyond Dynamo's limit it runs eagerly,
        and no graph comes of it.
        """
        return max(self.graphs, sum(event.kind == "recompile" for event in self.events))


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each op of eager code by a function of it, its arguments and its keyword arguments."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def _dispatch(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._run(op, args, kwargs or {})


class FunctionMode(TorchFunctionMode):
    """Runs each function of torch by a function of it, its arguments and its keyword arguments."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self._run(function, args, kwargs or {})


# Outside of the class: a method there has torch import Dynamo, which takes seconds, to keep it from
# compiling the mode.
DispatchMode.__torch_dispatch__ = DispatchMode._dispatch  # type: ignore[assignment,method-assign]


def _dynamo() -> Any:
    """Return where Dynamo keeps what it compiled; None if nothing has imported it: then nothing was
    compiled.
    """
    return sys.modules.get(f"{_DYNAMO}.utils")


def reset_compiler() -> None:
    """Forget every compiled graph: each workload starts at region 0/0, as in a process of its own."""
    # If nothing was compiled there is nothing to forget, and on a GPU torch would import CUDA graph
    # trees for it: seconds.
    # A counter that was only read is there, and empty.
    if (dynamo := _dynamo()) and (
        any(dynamo.counters.values()) or dynamo.get_compilation_metrics()
    ):
        torch.compiler.reset()
        dynamo.counters.clear()
        dynamo.clear_compilation_metrics()
    _traced.clear()
    _callers.clear()
    _traced_constants.clear()
    _traced_ops.clear()
    _traced_calls.clear()
    _cpp_sources.clear()
    _generated.clear()
    _inductors.clear()


def compile_counts() -> CompileCounts:
    """Read Dynamo's counters (torch/_dynamo/utils.py)."""
    dynamo = _dynamo()
    if dynamo is None:
        return CompileCounts(0, 0)
    events: dict[object, CompileEvent] = {}
    for event in _events(dynamo):
        at = event.inner or event
        events.setdefault((event.kind, at.file or event.reason, at.line), event)
    # The counter lacks branches that depend on data. Their places are known; one may have been met
    # several times.
    places = sum(event.kind == "graph break" for event in events.values())
    known = sum(map(_is_of_optimizers, getattr(dynamo, "graph_break_reasons", ())))
    breaks = max(sum(dynamo.counters["graph_break"].values()) - known, places)
    graphs = int(dynamo.counters["stats"].get("unique_graphs", 0))
    return CompileCounts(graphs, breaks, tuple(events.values()), len(_traced), _traced_ops.total())


def generated_code() -> dict[str, int]:
    """Return Inductor's totals in this process, named as in `Counts`.

    They are its counters (torch/_inductor/metrics.py, and those of `torch._dynamo.utils`).
    """
    from torch._inductor import metrics

    counters = _dynamo().counters["inductor"]
    templates = sum(
        counters[f"select_algorithm_num_{name}"]
        for name in ("precompiles", "precompilation_exceptions")
    )
    return {
        "generated_kernels": metrics.generated_kernel_count,
        "autotuned_configurations": _inductors["configurations"] + templates,
        "uncached_graphs": _inductors["graphs"] - counters["fxgraph_cache_hit"],
    }


@contextmanager
def empty_compile_caches() -> Iterator[Callable[[], None]]:
    """Compile with empty caches of its own.

    Yield a function that unloads compiled code and keeps its files.
    """
    from torch._inductor import utils

    with utils.fresh_inductor_cache():  # from torch 2.8 on another name of `fresh_cache`
        yield utils.clear_inductor_caches


def _is_of_optimizers(reason: Any) -> bool:
    """Return whether a graph break is one that torch itself has put into the step of every
    optimizer.
    """
    return bool(reason.user_stack) and reason.user_stack[-1].filename == inspect.getfile(
        torch.optim.Optimizer
    )


def _events(dynamo: Any) -> Iterator[CompileEvent]:
    """Yield the graph breaks and recompiles since the last `reset_compiler`."""
    for each in getattr(dynamo, "graph_break_reasons", ()):
        if _is_of_optimizers(each):
            continue
        frames = [frame for frame in each.user_stack if not _is_in_torch(frame.filename)]
        places = [(frame.filename, frame.lineno, frame.name) for frame in frames]
        yield _event("graph break", _kind_of_break(each.reason), *places)
    metrics = dynamo.get_compilation_metrics()
    for each in metrics:  # before the recompiles of its place: one event stands for a place
        if limit := _LIMIT.search(each.fail_reason or ""):
            text = getattr(each, "recompile_reason", None) or ""
            reason = (
                f"the {limit[2]} of {limit[1]} is reached, so the rest runs eagerly; {_guard(text)}"
            )
            start = each.co_filename, each.co_firstlineno, each.co_name
            yield _event("recompile", reason, *_places(text, *start))
    # After a break in a loop, say, or a suppressed error, Dynamo leaves a whole function alone: the
    # innermost is last.
    for each in reversed(metrics):
        is_named = each.co_filename is not None and not _is_in_torch(each.co_filename)
        if each.fail_type is not None and is_named and not _LIMIT.search(each.fail_reason or ""):
            kind, name = _kind_of_break(each.fail_reason or ""), each.co_name or ""
            part = "the rest" if _RESUMED.fullmatch(name) else "all"
            left = f"{part} of `{whole_function(name)}`"
            failed = each.fail_user_frame_filename
            is_users = failed and not _is_in_torch(failed)
            places = [(each.co_filename, each.co_firstlineno, name)]
            places += [(failed, each.fail_user_frame_lineno, name)] if is_users else []
            yield _event("graph break", f"{kind}: {left} runs eagerly", *places)
    for code, failures in getattr(dynamo, "guard_failures", {}).items():
        # The guard of the newest compilation comes first: it is the one that keeps failing.
        # We call under a mode of our own, to know the lines of operators.
        messages = (str(each) for each in failures if "torch_function_mode" not in str(each))
        for text in sorted(messages, key=_compilation_number, reverse=True):
            start = code.co_filename, code.co_firstlineno, code.co_name
            yield _event("recompile", _guard(text), *_places(text, *start))


def _compilation_number(failure: str) -> int:
    """Return which compilation a guard failed for: 3 of ``0/3: self.calls == 3``; 0 if it names
    none.
    """
    number = _NUMBERED.match(failure)
    return int(number[1]) if number else 0


def _guard(failure: str) -> str:
    """Return which guard failed: ``self.layer_idx == 7 no longer holds``.

    Most guards are expressions; of tensors and of its own state, torch has a sentence.
    """
    text = _OWNED.sub(
        r".\1", _NUMBERED.sub("", failure).partition("\n")[0].partition("  ")[0]
    ).strip()
    if state := text.partition("GLOBAL_STATE changed: ")[2]:
        return f"{state} of torch has changed"
    if found := _MISMATCH.fullmatch(text):
        name, what, index, expected, actual = found.groups()
        at = f" at index {index}" if index else ""
        return f"{what} of {name}{at} is {f'{actual}, ' if actual else ''}no longer {expected}"
    with suppress(SyntaxError):
        ast.parse(text, mode="eval")
        return f"{text} no longer holds"
    return text


_Place = tuple[str, "int | None", str]  # file, line and function


def _places(
    failure: str, file: str | None, line: int | None, function: str | None
) -> Iterator[_Place]:
    """Yield the function that was compiled again, and the line that a failed guard names."""
    if file:
        yield file, line or 0, function or ""
    yield from (frame[:3] for frame in _frames(failure)[-1:])


def _event(kind: Literal["graph break", "recompile"], reason: str, *places: _Place) -> CompileEvent:
    """Return an event at the innermost of these places; of code that is not the user's, at the line
    of the user's that called it.
    """
    if not places:
        return CompileEvent(kind, reason)
    place, inner = places[-1], None
    if owner_of(place[0]) in ("library", "other"):
        around = [each for each in places if owner_of(each[0]) == "user"]
        caller = (
            around[-1] if around else _callers.get((places[0][0], whole_function(places[0][2])))
        )
        if caller is not None:
            inner = source_line(place[0], place[1] or 0)
            place = caller
    line = source_line(place[0], place[1] or 0)
    function = whole_function(place[2])
    return CompileEvent(
        kind, reason, line.file, line.line, line.code, function=function, inner=inner
    )


# By file and function of compiled code of a library: the user's line that called it first.
_callers: dict[tuple[str, str], _Place] = {}


def _keep_caller(original: Any, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the line of the user's that calls a function of a library, which Dynamo compiles."""
    file, name = frame.f_code.co_filename, whole_function(frame.f_code.co_name)
    # from torch's, behind this one and that of `wrap`, to the line of ours that runs the workload
    above: FrameType | None = sys._getframe(2) if owner_of(file) == "library" else None
    while above and owner_of(above.f_code.co_filename) not in ("user", "kernelgauge"):
        above = above.f_back
    if above and owner_of(above.f_code.co_filename) == "user":
        place = above.f_code.co_filename, above.f_lineno, above.f_code.co_name
        _callers.setdefault((file, name), place)
    return original(self, frame, *args, **kwargs)


def whole_function(name: str) -> str:
    """Return the user's name of a function of which Dynamo compiles a part."""
    return _RESUMED.sub(r"\1", name)


def _kind_of_break(text: str) -> str:
    first = text.strip().partition("\n")[0]  # it names the kind
    return "a branch that depends on data" if first.startswith("generic_jump") else first


_MOST_CODE = 200  # characters of a statement
_AT_BRACKETS = re.compile(r"(?<=[(\[{]) |,? (?=[)\]}])")  # where a formatter begins a row
# by file: its lines, which are others once it has changed, and its statements
_parsed: dict[str, tuple[Sequence[str], Mapping[int, tuple[int, int]]]] = {}


def source_line(file: str, number: int) -> SourceLine:
    """Return a line of code: of yours with its whole statement; for the first one of a function,
    which is all that compiled code tells, ``in forward``.
    """
    code = linecache.getline(file, number).strip()
    if owner_of(file) == "user":
        lines = linecache.getlines(file)
        if _parsed.get(file, ((), {}))[0] is not lines:
            _parsed[file] = lines, statements("".join(lines))
        first, last = _parsed[file][1].get(number, (number, number))
        if first <= number <= last > first:
            rows = (line.strip() for line in lines[first - 1 : last])
            code = " ".join(row for row in rows if row and row[0] != "#")
            code = _AT_BRACKETS.sub("", code)[:_MOST_CODE]
    return SourceLine(shown_path(file), number, re.sub(r"^(?:async )?def (\w+).*", r"in \1", code))


@lru_cache
def statements(source: str) -> Mapping[int, tuple[int, int]]:
    """Return the first line of the statement that each line is part of, and the last; of a block,
    the last one of its head.
    """
    found: dict[int, tuple[int, int]] = {}
    with suppress(SyntaxError):
        for node in ast.walk(ast.parse(source)):  # the inner ones last
            if isinstance(node, ast.stmt):
                first, last = node.lineno, node.end_lineno or 0
                parts = getattr(node, "body", None) or getattr(node, "cases", None)
                head = last if parts is None else first
                if parts and isinstance(parts[0], ast.stmt):
                    head = max(first, _first_line(parts[0]) - 1)
                found |= dict.fromkeys(range(first, last + 1), (first, head))
    return found


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


# -- what each generated kernel was made of --------------------------------------------------------

# By the id of its compilation: the stacks of each graph as this process traced it, how many ops it
# has, and their floats and texts with their functions.
_traced: dict[object, set[Stack]] = {}
_traced_constants: dict[object, set[tuple[str, str]]] = {}
_traced_ops: Counter[object] = Counter()
# graphs that it made or loaded, and configurations that its autotuner timed
_inductors: Counter[str] = Counter()
# By the file that Inductor generated: each graph that runs it, as how many were traced then and the
# stacks of each kernel, by the handle above its call.
_generated: dict[str, list[tuple[int, dict[str, tuple[Stack, ...]]]]] = {}
# By kernel, the digests of its C++ source in each graph that has it; and by function, the stacks
# that called it in a graph.
_cpp_sources: dict[str, set[str]] = {}
_GRAPH = re.compile(r"graph_\d+_")
_CPP = re.compile(r"(?s)(\w+) = async_compile\.cpp\w*\((?:\[.*?\], )?r?\'\'\'(.*?)\'\'\'")
_traced_calls: dict[object, dict[str, Counter[Stack]]] = {}


def stacks_at(file: str, line: int, since: int = 0) -> tuple[Stack, ...] | None:
    """Return the stacks of what a line of generated code computes; None if not known, or if several
    graphs disagree.

    `since`: prefer the graphs that were traced after this many (`CompileCounts.traced`).
    """
    above = next(
        (text for text in linecache.getlines(file)[: line - 1][::-1] if not _BETWEEN.match(text)),
        "",
    )
    handle = _HANDLE.match(above)
    if handle is None:
        return None
    graphs = _generated.get(file, [])
    own = [kernels for number, kernels in graphs if number > since] or [
        kernels for _, kernels in graphs
    ]
    answers = {kernels.get(handle[1]) for kernels in own}
    return answers.pop() if len(answers) == 1 else None


def _keep_stacks(wrappers: ExitStack) -> None:
    """Keep the stacks of each graph and of its kernels, and have Dynamo and Inductor keep those
    that they would drop.
    """
    from torch._dynamo.convert_frame import ConvertFrame
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    wrap(wrappers, OutputGraph, "call_user_compiler", partial(_keep_traced, wrappers))
    wrap(wrappers, ConvertFrame, "__call__", _keep_caller)
    # Dynamo leaves out the frames of torch's own modules: a graph of one of them alone would have
    # no line.
    wrap(wrappers, InstructionTranslatorBase, "is_co_filename_from_nn_modules", lambda *_: False)


def _keep_traced(
    wrappers: ExitStack, original: Any, self: Any, graph: Any, *args: Any, **kwargs: Any
) -> Any:
    """Keep the stacks of a graph that Dynamo hands to the compiler."""
    # takes seconds: not where nothing is compiled
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.pattern_matcher import ReplacementPatternEntry

    wrap(wrappers, ReplacementPatternEntry, "replace_with_graph", _keep_replaced)
    wrap(wrappers, CompiledFxGraph, "post_compile", _keep_generated)
    if torch.cuda.is_available():
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        wrap(wrappers, CachingAutotuner, "benchmark_all_configs", _keep_tuned)
    wrap_loaded()
    graphs = [part.graph for part in graph.modules() if isinstance(part, torch.fx.GraphModule)]
    nodes = [node for each in graphs for node in each.nodes]
    _traced_ops[_compile_id()] += sum(node.op.startswith("call_") for node in nodes)
    stacks = _traced.setdefault(_compile_id(), set())
    stacks.update(stack for node in nodes for stack in _stacks(node.meta.get("stack_trace")))
    constants = _traced_constants.setdefault(_compile_id(), set())
    for node in nodes:
        if node.op.startswith("call_"):
            name = f"compiled {getattr(node.target, '__name__', node.target)}"
            leaves = tree_leaves((node.args, node.kwargs))
            dtypes = [str(each)[6:] for each in leaves if isinstance(each, torch.dtype)]
            # older baselines know no dtypes
            given = {f"{name}, dtype": dtypes} if dtypes else {}
            given[name] = [repr(each) for each in leaves if isinstance(each, (float, str))]
            for key, texts in given.items():
                calls = _traced_calls.setdefault(_compile_id(), {}).setdefault(key, Counter())
                calls.update(_stacks(node.meta.get("stack_trace")))
                constants.update((key, each) for each in ("", *texts))
    return original(self, graph, *args, **kwargs)


def compiled_constants(since: int) -> dict[str, tuple[str, ...]]:
    """Return the floats and texts that functions were given in the graphs traced after so many, by
    function.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for name, text in chain.from_iterable([*_traced_constants.values()][since:]):
        found[name].add(text)
    return {name: tuple(sorted(texts - {""})) for name, texts in sorted(found.items())}


def compiled_calls(since: int) -> dict[str, dict[Stack, int]]:
    """Return where functions were called in the graphs traced after so many, by the names of
    `compiled_constants`, and how often in one graph.
    """
    found: dict[str, Counter[Stack]] = defaultdict(Counter)
    for name, stacks in chain.from_iterable(
        each.items() for each in [*_traced_calls.values()][since:]
    ):
        found[name] |= stacks
    return {name: dict(sorted(stacks.items())) for name, stacks in found.items()}


def cpp_source(name: str) -> str | None:
    """Return the beginning of the digest of a C++ kernel's source; None if not known, or if several
    have that name.
    """
    found = _cpp_sources.get(name, set())
    return next(iter(found)) if len(found) == 1 else None


def _keep_replaced(original: Any, match: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
    """Give the nodes of a pattern's replacement the stacks of those replaced: `mm` and `add`, say,
    become one `addmm`.
    """
    texts = dict.fromkeys(node.meta.get("stack_trace") for node in sorted(match.nodes))
    stacks, before = _BETWEEN_STACKS.join(filter(None, texts)), set(graph.nodes)
    result = original(match, graph, *args, **kwargs)
    for node in graph.nodes:
        if node not in before and stacks:
            node.meta["stack_trace"] = stacks
    return result


def _keep_generated(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the stacks of each kernel of a graph that was compiled, or found in Inductor's cache."""
    _inductors["graphs"] += 1
    traced = _traced.get(_compile_id(), set())
    made_of = json.loads(getattr(self, "inductor_provenance_stack_traces_str", None) or "{}")
    kernels = {
        handle: [stack for text in texts for stack in _stacks(text)]
        for handle, texts in made_of.items()
    }
    # The cache finds a graph by what it computes: its stacks may be those of an older file, of
    # another folder, or of another function with the same ops.
    if not traced.issuperset(chain.from_iterable(kernels.values())):
        for stacks in kernels.values():
            stacks[:] = [now for stack in stacks if (now := _as_traced(stack, traced)) is not None]
    for name, numbered in _CPP.findall(getattr(self, "source_code", None) or ""):
        source = _GRAPH.sub("graph_", numbered)  # the number is of the process
        _cpp_sources.setdefault(name, set()).add(hashlib.sha256(source.encode()).hexdigest()[:8])
    code = getattr(getattr(self, "current_callable", None), "__code__", None)
    if code is not None:
        by_handle = {handle: tuple(stacks) for handle, stacks in kernels.items()}
        _generated.setdefault(code.co_filename, []).append((len(_traced), by_handle))
    return original(self, *args, **kwargs)


def _keep_tuned(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Count the launch configurations of a kernel that the autotuner times."""
    _inductors["configurations"] += len(self.launchers)
    return original(self, *args, **kwargs)


def _as_traced(stack: Stack, traced: Iterable[Stack]) -> Stack | None:
    """Return the one stack of the same functions and code that was traced; None if there is none,
    or several.
    """
    alike = [each for each in traced if _code_of(each) == _code_of(stack)]
    return alike[0] if len(alike) == 1 else None


def _code_of(stack: Stack) -> list[tuple[str, str]]:
    """Return functions and code, without the line at which Dynamo resumed one."""
    return [(whole_function(name), code) for _, _, name, code in stack]


def _stacks(text: str | None) -> list[Stack]:
    return [_frames(each) for each in (text or "").split(_BETWEEN_STACKS) if each.strip()]


def _frames(text: str) -> Stack:
    return tuple(
        (file, int(line), name, code.strip()) for file, line, name, code in _FRAME.findall(text)
    )


# -- whose code a file is --------------------------------------------------------------------------

Owner = Literal["user", "library", "module of torch", "generated", "kernelgauge", "other"]
_OURS, _TORCH = Path(__file__).parents[1], Path(torch.__file__).parent


@lru_cache(maxsize=4096)  # each frame of a session asks
def owner_of(file: str) -> Owner:
    """Return whose code a file is: an installed package is a library's.

    Of torch, modules and optimizers count.
    """
    path = Path(file)
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if "torchinductor_" in file or (cache and path.is_relative_to(cache)):
        return "generated"
    if path.is_relative_to(_OURS):
        return "kernelgauge"
    if _is_in_torch(file):  # a workload that is a module of torch has no other code
        folders = (_TORCH / "nn" / "modules", _TORCH / "nn" / "utils", _TORCH / "optim")
        is_module = path.parent in folders and path.name not in ("module.py", "optimizer.py")
        return "module of torch" if is_module else "other"
    if package := _package_of(path):
        return "other" if package == "triton" else "library"
    # of this Python, of the system, or of the user
    is_python = path.is_relative_to(sysconfig.get_path("stdlib")) or file.startswith("<")
    return "other" if is_python else "user"


def _package_of(path: Path) -> str:
    """Return the installed package or module that a file is part of; empty if it is part of none."""
    for folder in reversed(path.parents):
        name = path.relative_to(folder).parts[0]
        if folder.name in ("site-packages", "dist-packages") or name in _installed(folder):
            return name
    return ""


@lru_cache(maxsize=256)
def _installed(folder: Path) -> frozenset[str]:
    """Return what an installer has put into a folder, as ``pip install --target`` does.

    Of an editable install, the folder of the sources has no ``dist-info``.
    """
    rows: list[str] = []
    for each in folder.glob("*.dist-info/RECORD"):
        with suppress(OSError, UnicodeDecodeError):  # another tool wrote it
            rows += each.read_text("utf-8").splitlines()
    return frozenset(row.partition(",")[0].partition("/")[0] for row in rows)


def _is_in_torch(file: str) -> bool:
    return Path(file).is_relative_to(_TORCH)


class _AfterImport(MetaPathFinder):
    """Calls a function after the import of Dynamo, before it can compile anything."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != _DYNAMO:
            return None
        self.end()
        spec = find_spec(name)
        loader: Any = spec and spec.loader
        loader.exec_module = partial(self._execute, loader.exec_module)
        return spec

    def end(self) -> None:
        with suppress(ValueError):  # it has ended
            sys.meta_path.remove(self)

    def _execute(self, execute: Callable[[Any], None], module: Any) -> None:
        execute(module)
        self._function()


@contextmanager
def torch_set_up() -> Iterator[None]:
    """Set torch up for measuring, and restore its settings and random numbers.

    Compiled code is lost (`reset_compiler`).
    """
    cuda: Any = torch.cuda
    gpus = [cuda.current_device()] if cuda.is_initialized() else []
    trace = logging.getLogger("torch.__trace")
    # It is at DEBUG in any case (torch/_logging/_internal.py), and pytest captures loggers that do
    # not propagate too: one compile writes thousands of empty lines into every failure report.
    with ExitStack() as stack, torch.random.fork_rng(gpus):
        stack.callback(setattr, trace, "disabled", trace.disabled)
        trace.disabled = trace.disabled or "TORCH_TRACE" not in os.environ
        if _dynamo():
            _set_up_compiler(stack)
        else:
            hook = _AfterImport(partial(_set_up_compiler, stack))
            sys.meta_path.insert(0, hook)
            stack.callback(hook.end)
        yield


def _set_up_compiler(stack: ExitStack) -> None:
    """Set Dynamo and Inductor up, until the stack ends."""
    import torch._dynamo.utils as dynamo
    import torch._inductor.config as inductor

    # C++ kernels show as Triton's do
    settings: dict[str, Any] = {"cpp.enable_kernel_profile": True}
    level = getattr(inductor.trace, "provenance_tracking_level", None)
    # from the first compile on: a cached graph keeps what it was compiled with
    if level is not None:
        settings["trace.provenance_tracking_level"] = max(level, _BASIC_PROVENANCE)
    stack.enter_context(inductor.patch(settings))
    stack.callback(dynamo.set_compilation_metrics_limit, dynamo.DEFAULT_COMPILATION_METRICS_LIMIT)
    dynamo.set_compilation_metrics_limit(_MOST_COMPILATIONS)
    _keep_stacks(stack)


# -- settings of the whole process -----------------------------------------------------------------


def _attribute(path: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    owner, _, name = path.rpartition(".")
    return partial(getattr, attrgetter(owner)(torch), name), partial(
        setattr, attrgetter(owner)(torch), name
    )


def _switch(path: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return how to read and write a setting that torch has two functions for:
    ``backends.cuda.flash_sdp``.
    """
    owner, _, name = path.rpartition(".")
    home = attrgetter(owner)(torch) if owner else torch
    return getattr(home, f"{name}_enabled"), getattr(home, f"enable_{name}")


def _default_device() -> torch.device | None:
    """Return the device that `torch.set_default_device` set.

    `torch.get_default_device` cannot say that there is none.
    """
    return getattr(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), "device", None)


def _function_modes() -> tuple[str, ...]:
    modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return tuple(type(mode).__name__ for mode in modes)


def _leave_function_modes(wanted: tuple[str, ...]) -> None:
    while len(_function_modes()) > len(wanted):
        torch.overrides._pop_mode()  # type: ignore[no-untyped-call]


# How to read and write each setting of the whole process. The outer ones come first: those below
# may inherit from them.
_LIBRARIES = (
    "",
    "cuda.matmul.",
    "cudnn.",
    "cudnn.conv.",
    "cudnn.rnn.",
    "mkldnn.",
    "mkldnn.matmul.",
    "mkldnn.conv.",
)
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    name: (getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}"))
    for name in ("default_dtype", "num_threads", "float32_matmul_precision")
}
_SETTINGS |= {
    "default_device": (_default_device, torch.set_default_device),
    "function modes": (_function_modes, _leave_function_modes),
    "grad_enabled": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "deterministic_algorithms": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    "detect_anomaly": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "autocast": (
        partial(torch.is_autocast_enabled, "cpu"),
        partial(torch.set_autocast_enabled, "cpu"),
    ),
    "autocast on CUDA": (
        partial(torch.is_autocast_enabled, "cuda"),
        partial(torch.set_autocast_enabled, "cuda"),
    ),
    "CUDA device": (torch.cuda.current_device, torch.cuda.set_device),
    "CUDA stream": (torch.cuda.current_stream, torch.cuda.set_stream),
}
_SETTINGS |= {
    f"{path}_sdp": _switch(f"backends.cuda.{path}_sdp")
    for path in ("flash", "mem_efficient", "math", "cudnn")
}
_SWITCHES = (
    *(f"backends.cudnn.{name}" for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
    *(
        f"backends.cuda.matmul.allow_{dtype}_reduced_precision_reduction"
        for dtype in ("fp16", "bf16")
    ),
)
_SETTINGS |= {path: _attribute(path) for path in _SWITCHES}
if hasattr(torch.backends, "fp32_precision"):  # torch 2.9
    _SETTINGS |= {
        path: _attribute(path) for path in (f"backends.{each}fp32_precision" for each in _LIBRARIES)
    }


def _settings() -> dict[str, object]:
    """Return the settings, without those that torch refuses to read because old and new ones
    contradict each other.
    """
    values, has_cuda = {}, torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # asking would start it
    for name, (get, _) in _SETTINGS.items():
        with suppress(RuntimeError):
            if has_cuda or not name.startswith("CUDA"):
                values[name] = get()
    return values


@contextmanager
def restoring_settings() -> Iterator[dict[str, str]]:
    """Restore the settings of the whole process at the end.

    Yields a mapping that then says which of them were changed.
    """
    before = _settings()
    changed: dict[str, str] = {}
    try:
        yield changed
    finally:
        after = _settings()
        changed |= {
            name: f"{was} -> {after.get(name)}"
            for name, was in before.items()
            if after.get(name) != was
        }
        # One may change another: each is read again, if any has changed.
        for name, was in before.items() if changed else ():
            if _settings().get(name) != was:
                _SETTINGS[name][1](was)
