"""What torch.compile did: graphs, graph breaks, recompiles."""

from __future__ import annotations

import json
import logging
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from traceback import FrameSummary
from types import CodeType
from typing import Any, Literal, NamedTuple

import torch

from ..errors import KernelgaugeError, shown_path
from ..run import CompileEvent

__all__ = [
    "CompileCounts",
    "compile_counts",
    "compiled_graphs",
    "owner_of",
    "reset_compiler",
    "silence_structured_trace",
    "torch_set_up",
]


_BASIC_PROVENANCE = 2  # level: the lines of each kernel, without what costs time to compile (torch/_inductor/config.py)
_MOST_COMPILATIONS = 100_000  # whose metrics are kept: 64 are fewer than one workload may have
_BETWEEN_STACKS = "\n\n"
_structured_trace = logging.getLogger("torch.__trace")


@dataclass(frozen=True)
class CompileCounts:
    """Totals since the last `reset_compiler`; `events`: graph breaks and recompiles, each place once."""

    graphs: int
    graph_breaks: int
    events: tuple[CompileEvent, ...] = ()
    traced: int = 0  # graphs that Inductor was given, or found in its cache

    def events_since(self, before: CompileCounts) -> tuple[CompileEvent, ...]:
        """Return the events that `before` does not have."""
        return tuple(event for event in self.events if event not in before.events)

    def recompiles_since(self, before: CompileCounts) -> int:
        """Return how often code was compiled again; beyond Dynamo's limit it runs eagerly, and no graph comes of it."""
        events = sum(event.kind == "recompile" for event in self.events_since(before))
        return max(self.graphs - before.graphs, events)


def reset_compiler() -> None:
    """Forget every compiled graph: each workload starts at region 0/0, as in a process of its own."""
    torch.compiler.reset()
    _counters().clear()
    _compilations().clear_compilation_metrics()
    _traced.clear()


def compile_counts() -> CompileCounts:
    """Read Dynamo's counters (torch/_dynamo/utils.py)."""
    counters = _counters()
    # The counter lacks branches that depend on data. Their places are known; one may have been met several times.
    events = _compile_events()
    places = sum(event.kind == "graph break" for event in events)
    breaks = max(sum(counters["graph_break"].values()), places)
    return CompileCounts(int(counters["stats"].get("unique_graphs", 0)), breaks, events, len(_traced))


class CompiledGraph(NamedTuple):
    """What Inductor made of a graph.

    Attributes:
        kernels: the stacks of each kernel, by the handle that stands in the generated code (torch/_inductor/debug.py). A cached
            graph has the stacks of the code that it was compiled of: an older file, or another one of the same ops.
        traced: the stacks of the graph as this process traced it.
    """

    kernels: dict[str, list[str]]
    traced: frozenset[str]


def compiled_graphs(since: int = 0) -> list[CompiledGraph]:
    """Return the graphs compiled since the last `reset_compiler`, without the first ones. A torch before 2.10 has none."""
    traced = dict(list(_traced.items())[since:])
    return [
        CompiledGraph(
            {
                handle: list(dict.fromkeys(one for each in stacks for one in _apart(each)))
                for handle, stacks in json.loads(text).items()
            },
            frozenset(traced[each.compile_id]),
        )
        for each in _compilations().get_compilation_metrics()
        for text in getattr(each, "inductor_provenance", None) or ()
        if each.compile_id in traced
    ]


_traced: dict[str, set[str]] = {}  # the stacks of each graph, by the id of its compilation


@contextmanager
def _stacks_kept() -> Iterator[None]:
    """Keep the stacks of each graph that Dynamo hands to Inductor, and have both keep those that they would drop."""
    import torch._dynamo.utils as dynamo
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    def compile_graph(original: Any, self: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        _keep_stacks_in_inductor(wrappers)
        stacks = _traced.setdefault(str(torch._guards.CompileContext.current_compile_id()), set())
        graphs = [one for each in graph.modules() if (one := getattr(each, "graph", None)) is not None]
        stacks.update(text for one in graphs for node in one.nodes if (text := _stack(node)))
        return original(self, graph, *args, **kwargs)

    set_limit = getattr(dynamo, "set_compilation_metrics_limit", lambda _: None)
    with ExitStack() as wrappers:
        _wrap(wrappers, OutputGraph, "call_user_compiler", compile_graph)
        # Dynamo leaves out the frames of torch's own modules: a graph of one of them alone would have no line.
        _wrap(wrappers, InstructionTranslatorBase, "is_co_filename_from_nn_modules", lambda *_: False)
        set_limit(_MOST_COMPILATIONS)
        wrappers.callback(set_limit, getattr(dynamo, "DEFAULT_COMPILATION_METRICS_LIMIT", 64))
        yield


def _keep_stacks_in_inductor(wrappers: ExitStack) -> None:
    """Give the nodes that Inductor adds to a graph the stacks of those that they stand for. To import it takes seconds."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.pattern_matcher import ReplacementPatternEntry

    def replace(original: Any, match: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        stacks = _joined(sorted(match.nodes))  # `mm` and `add`, say, which become one `addmm`
        before = set(graph.nodes)
        result = original(match, graph, *args, **kwargs)
        for node in graph.nodes:
            if node not in before and stacks:
                node.meta["stack_trace"] = stacks
        return result

    def lower(original: Any, self: Any, *args: Any) -> Any:
        for node in reversed(self.module.graph.nodes):
            if (
                not _stack(node) and not node.all_input_nodes
            ):  # the seeds of random numbers: they are there for their users
                node.meta["stack_trace"] = _joined(sorted(node.users))
        return original(self, *args)

    _wrap(wrappers, ReplacementPatternEntry, "replace_with_graph", replace)
    _wrap(wrappers, GraphLowering, "run", lower)


def _wrap(wrappers: ExitStack, owner: Any, name: str, function: Any) -> None:
    """Call `function` with a private function of torch in its place, until the end; a torch without it goes without."""
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "is_wrapped_by_us"):
        return

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    wrapped.is_wrapped_by_us = True  # type: ignore[attr-defined]
    was = vars(owner)[name]
    setattr(owner, name, staticmethod(wrapped) if isinstance(was, staticmethod) else wrapped)
    wrappers.callback(setattr, owner, name, was)


def _stack(node: Any) -> str:
    return node.meta.get("stack_trace") or ""


def _joined(nodes: Iterable[Any]) -> str:
    """Return the stacks of several nodes as one, from which `_apart` takes them."""
    return _BETWEEN_STACKS.join(dict.fromkeys(text for node in nodes for text in _apart(_stack(node))))


def _apart(text: str) -> list[str]:
    return [each for each in text.split(_BETWEEN_STACKS) if each.strip()]


def _compile_events() -> tuple[CompileEvent, ...]:
    """Read the graph breaks and recompiles since the last `reset_compiler`, each place once.

    A torch without these lists (torch/_dynamo/utils.py) gives none: the counts are there all the same.
    """
    import torch._dynamo.utils as dynamo

    found: dict[object, CompileEvent] = {}
    reasons = getattr(dynamo, "graph_break_reasons", ())
    for each in (one for one in reasons if getattr(one, "graph_break", True)):
        frame = next((one for one in reversed(each.user_stack) if not Path(one.filename).is_relative_to(_TORCH)), None)
        _add(found, "graph break", _graph_break_reason(each.reason), frame)
    # After a break in a loop, say, or an error that is suppressed, Dynamo leaves a whole function alone: the innermost is last.
    for each in reversed(dynamo.get_compilation_metrics()):
        if (
            getattr(each, "fail_type", None) is None
            or each.co_filename is None
            or Path(each.co_filename).is_relative_to(_TORCH)
        ):
            continue
        frame = FrameSummary(each.fail_user_frame_filename or "", each.fail_user_frame_lineno or 0, str(each.co_name))
        if not frame.filename or Path(frame.filename).is_relative_to(_TORCH):  # it has no line of the user's
            frame = FrameSummary(each.co_filename, each.co_firstlineno, str(each.co_name), line=f"in {each.co_name}")
        reason = f"{_graph_break_reason(each.fail_reason or '')}: all of `{each.co_name}` runs eagerly"
        _add(found, "graph break", reason, frame)
    for code, failures in getattr(dynamo, "guard_failures", {}).items():
        for text in failures:
            guard = str(text).partition("  ")[0].partition(": ")[2] or str(text).partition("\n")[0]
            reason = guard if "mismatch" in guard else f"{guard} no longer holds"
            _add(found, "recompile", reason, _frame_of(str(text), code))
    return tuple(found.values())


def _add(found: dict[object, CompileEvent], kind: Any, reason: str, frame: FrameSummary | None) -> None:
    if frame is None:
        found.setdefault((kind, reason), CompileEvent(kind, reason))
        return
    file, line = shown_path(frame.filename), frame.lineno or 0
    found.setdefault((kind, file, line), CompileEvent(kind, reason, file, line, frame.line or ""))


def _graph_break_reason(text: str) -> str:
    """Return the first line, which names the kind of break."""
    first = text.strip().partition("\n")[0]
    return "a branch that depends on data" if first.startswith("generic_jump") else first


def _frame_of(text: str, code: CodeType) -> FrameSummary:
    """Return the line that a failed guard names; else the start of the function that was compiled again."""
    named = re.findall(r'File "(.+?)", line (\d+), in (\S+)\n\s*(.*)', text)
    file, line, name, source = named[-1] if named else (code.co_filename, code.co_firstlineno, code.co_name, None)
    return FrameSummary(file, int(line), name, line=source)


# -- whose code a file is ---------------------------------------------------------------------------------------------------

Owner = Literal["user", "library", "module of torch", "generated", "kernelgauge", "other"]
_OURS, _TORCH = Path(__file__).parents[1], Path(torch.__file__).parent
# A cell of a notebook, or code that `exec` was given. Others in angle brackets are torch's and Python's own.
_EXECUTED = re.compile(r"<(string|stdin|ipython-input-.*)>")


@lru_cache(maxsize=4096)  # each frame of a session asks
def owner_of(file: str) -> Owner:
    """Return whose code a file is: an installed package is a library's, and torch counts where it defines modules."""
    path = Path(file)
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if "torchinductor_" in file or (cache and path.is_relative_to(cache)):
        return "generated"
    if path.is_relative_to(_OURS):
        return "kernelgauge"
    if path.is_relative_to(_TORCH):  # a workload that is a module of torch has no other code
        is_module = path.parent == _TORCH / "nn" / "modules" and path.name != "module.py"
        return "module of torch" if is_module else "other"
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts):  # of this Python, of the system, or of the user
        return "other" if "-packages/triton/" in file else "library"
    is_python = path.is_relative_to(sysconfig.get_path("stdlib")) or file.startswith("<")
    return "other" if is_python and not _EXECUTED.fullmatch(file) else "user"


@contextmanager
def torch_set_up(*, deterministic: bool = False) -> Iterator[None]:
    """Set torch up for measuring, and restore what that changes for all of the process.

    Inductor's C++ kernels show in the profiler, as its Triton kernels do. Random numbers and a logger are kept as they were.
    Compiled code of the process is lost all the same (`reset_compiler`).

    `deterministic`: let Inductor choose launch configurations without timing them. Raises `KernelgaugeError` if this torch
    has no switch for that (it is older than 2.10).
    """
    import torch._inductor.config as inductor

    has_switch = hasattr(inductor, "deterministic")
    if deterministic and not has_switch:
        raise KernelgaugeError(
            "kernelgauge_deterministic: this torch cannot choose without timing",
            got=f"torch {torch.__version__}, without torch._inductor.config.deterministic",
            expected="torch 2.10 or newer",
            next_command="kernelgauge calibrate   (so that the baseline knows every choice)",
        )
    cuda: Any = torch.cuda
    numbers = torch.get_rng_state()
    gpu_numbers = cuda.get_rng_state() if cuda.is_initialized() else None
    was_profiled, was_deterministic = inductor.cpp.enable_kernel_profile, has_switch and inductor.deterministic
    was_traced = getattr(getattr(inductor, "trace", None), "provenance_tracking_level", None)
    was_disabled = _structured_trace.disabled
    inductor.cpp.enable_kernel_profile = True
    if was_traced is not None:  # from the first compile on: a cached graph keeps what it was compiled with
        inductor.trace.provenance_tracking_level = max(was_traced, _BASIC_PROVENANCE)
    if deterministic:
        inductor.deterministic = True
    try:
        with _stacks_kept():
            yield
    finally:
        torch.set_rng_state(numbers)
        if gpu_numbers is not None:
            cuda.set_rng_state(gpu_numbers)
        inductor.cpp.enable_kernel_profile = was_profiled
        if was_traced is not None:
            inductor.trace.provenance_tracking_level = was_traced
        if deterministic:
            inductor.deterministic = was_deterministic
        _structured_trace.disabled = was_disabled


def silence_structured_trace() -> None:
    """Keep torch's structured trace out of pytest's log capture, unless it was asked for.

    Its logger is at DEBUG in any case (torch/_logging/_internal.py) and pytest captures loggers that do not propagate
    too, so one compile writes thousands of empty lines into every failure report.
    """
    if "TORCH_TRACE" not in os.environ:
        _structured_trace.disabled = True


def _counters() -> Any:  # Dynamo's own type is a private alias
    return _compilations().counters


def _compilations() -> Any:
    """Return the module in which Dynamo keeps what it compiled."""
    import torch._dynamo.utils

    return torch._dynamo.utils
