"""What autotuners choose: Triton's, and Inductor's for its kernels and its templates.

Each takes the choice that is recorded, and what it takes is noted. Their entry points are wrapped
while a workload is called first, and never while it is timed. Private names of torch and Triton,
checked on torch 2.11 and 2.13, Triton 3.6 and 3.9: those that `_ENTRIES` wraps, and what the
functions beside it read.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from ..run import KernelChoice, recorded_choice
from ..workload import Workload
from .wrapping import wrap

_MOST_RIVALS = 8  # that are kept of a choice: `max-autotune` offers dozens
_MOST_TEXT = 200  # characters of a compiler's error
_NUMBER = re.compile(r"_\d+$")

_active: list[Replay] = []  # the last one takes and notes


class Replay:
    """The choices of one workload: those recorded, and those made.

    `tunes`: whether the tuners choose anew, whatever is recorded.
    """

    def __init__(self, recorded: Sequence[KernelChoice] = (), *, tunes: bool = False) -> None:
        self.tunes = tunes
        self._recorded = recorded
        self._made: dict[tuple[str, str, str], KernelChoice] = {}
        # How to take a choice again: workloads may share a tuner. By tuner and key.
        self.restorers: dict[Any, Callable[[], Any]] = {}
        # Of each template that Inductor may take in the end, its choice.
        self.templates: dict[Any, KernelChoice] = {}
        self._wrappers = ExitStack()

    @property
    def made(self) -> tuple[KernelChoice, ...]:
        """Return what was chosen, by kernel and key."""
        return tuple(each for _, each in sorted(self._made.items()))

    def wanted(self, kernel: str, key: str, *sources: str) -> KernelChoice | None:
        """Return the choice to take for a kernel and a key. None: any."""
        before = recorded_choice(self._recorded, kernel, key, *sources)
        return None if self.tunes else before

    def note(self, choice: KernelChoice, error: str = "") -> None:
        """Note what a tuner took. `error`: of the compiler of what is recorded."""
        before = recorded_choice(self._recorded, choice.kernel, choice.key, choice.source)
        known, times_us, recorded = {choice.config}, choice.times_us, ""
        if before is not None:
            known.add(before.config)
            times_us = times_us or before.times_us
            if before.key and before.config != choice.config and not self.tunes:
                recorded = before.config
        order = sorted(times_us, key=lambda it: (it not in known, times_us[it] or math.inf))
        kept = {name: times_us[name] for name in sorted(order[:_MOST_RIVALS])}
        self._made[choice.kernel, choice.key, choice.source] = replace(
            choice, times_us=kept, recorded=recorded, error=error if recorded else ""
        )

    def restore(self) -> None:
        """Take the choices of this workload again, after another one was called."""
        for each in self.restorers.values():
            each()

    def wrap_loaded(self) -> None:
        """Wrap the entry points of the tuners that are imported by now."""
        for module, owner, name, function in _ENTRIES:
            if (home := sys.modules.get(module)) is not None:
                wrap(self._wrappers, getattr(home, owner, None), name, partial(function, self))

    @contextmanager
    def active(self, workload: Workload) -> Iterator[None]:
        """Take and note choices, until the end.

        Inductor's cache of graphs hides its choices among templates: it is not read for a workload
        that has them.
        """
        with self._wrappers:
            _active.append(self)
            self._wrappers.callback(_active.pop)
            if _chooses_templates(workload):
                import torch._functorch.config as functorch
                import torch._inductor.config as inductor

                self._wrappers.enter_context(inductor.patch(fx_graph_cache=False))
                self._wrappers.enter_context(functorch.patch(enable_autograd_cache=False))
            self.wrap_loaded()
            self.restore()
            yield
            self.templates.clear()


def wrap_loaded() -> None:
    """Wrap the tuners that a compile has imported by now, while choices are noted."""
    if _active:
        _active[-1].wrap_loaded()


def _chooses_templates(workload: Workload) -> bool:
    """Return whether Inductor chooses among templates when it compiles a workload."""
    config = sys.modules.get("torch._inductor.config")
    is_set = config is not None and (config.max_autotune or config.max_autotune_gemm)
    training = workload.training
    options = str((workload.compile, training and training.compile))
    return is_set or "max_autotune" in options.replace("-", "_")


def _text(options: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in options.items() if value is not None}
    if shown.get("num_ctas") == 1:  # as usual
        del shown["num_ctas"]
    return ",".join(f"{name}={shown[name]}" for name in sorted(shown))


def text_of(config: Any) -> str:
    """Return a configuration as text: ``BLOCK=1024,num_stages=1,num_warps=4``."""
    return _text(config.all_kwargs())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def summary_of(error: BaseException) -> str:
    """Return the kind of a compiler's error, and the line that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    line = lines[-1 if lines[0].startswith("at ") else 0]  # Triton begins with the place
    return f"{type(error).__name__}: {line}"[:_MOST_TEXT]


def _microseconds(milliseconds: float | Sequence[float]) -> float | None:
    ms = milliseconds[0] if isinstance(milliseconds, Sequence) else milliseconds  # the median
    return round(1000 * ms, 3) if math.isfinite(ms) else None


# -- Triton's tuner --------------------------------------------------------------------------------


def key_of(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what Triton's tuner chooses for."""
    named = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    given = {name: value for name, value in named.items() if name in tuner.arg_names}
    types = [str(each.dtype) for each in given.values() if hasattr(each, "dtype")]
    return (*(given[name] for name in tuner.keys if name in given), *types)


def _run_triton(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Launch a kernel with the recorded configuration, and note the one that it ran with."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    key = key_of(self, args, kwargs)
    if len(self.configs) < 2 or (self, key) in replay.restorers:
        return original(self, *args, **kwargs)
    kernel, text = self.base_fn.__name__, ",".join(map(str, key))
    source, error = _digest(inspect.getsource(self.base_fn)), ""
    wanted = ""
    if before := replay.wanted(kernel, text, source):
        wanted = before.config
        self.nargs = dict(zip(self.arg_names, args, strict=False))  # which pruning reads
        for each in self.prune_configs(kwargs):
            if text_of(each) == wanted:
                self.cache[key] = each
    is_tuned = key not in self.cache
    try:
        result = original(self, *args, **kwargs)
    except (OutOfResources, PTXASError, CompileTimeAssertionFailure) as found:
        if is_tuned or text_of(self.cache[key]) != wanted:
            raise
        error = summary_of(found)
        del self.cache[key]
        is_tuned = True
        result = original(self, *args, **kwargs)
    chosen, timings = self.cache[key], self.configs_timings if is_tuned else {}
    times_us = {text_of(each): _microseconds(ms) for each, ms in timings.items()}
    replay.note(KernelChoice(kernel, text, text_of(chosen), source, times_us), error)
    replay.restorers[self, key] = partial(self.cache.__setitem__, key, chosen)
    return result


# -- Inductor's kernels ----------------------------------------------------------------------------


def _run_inductor(replay: Replay, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Launch a kernel with the recorded configuration, and note the one that it ran with."""
    if self in replay.restorers:
        return original(self, *args, **kwargs)
    kernel = _NUMBER.sub("", self.inductor_meta.get("kernel_name") or self.fn.__name__)
    # `src` begins with the name, which has the number of the kernel in its graph.
    source = _digest(re.sub(r"^def [^(]+\(", "", getattr(self.fn, "src", "")))
    key, error = str(self.size_hints), ""
    # an older baseline has the name of the generated file
    before = replay.wanted(kernel, key, source, self.kernel_hash)
    wanted = before.config if before is not None else ""
    state = (getattr(self, "autotune_cache_info", None) or {}).get("autotune_cache_state")
    if wanted or (replay.tunes and state == "hit"):
        error = _take(self, wanted)
    result = original(self, *args, **kwargs)
    if len(self.launchers) != 1:  # something else launched it, such as Triton's interpreter
        return result
    (launcher,) = self.launchers
    cached = self.coordesc_tuner.cached_benchmark_results
    times_us = {_text(dict(each)): _microseconds(ms) for each, ms in cached.items()}
    if wanted or times_us or state == "hit":
        choice = KernelChoice(kernel, key, text_of(launcher.config), source, times_us)
        replay.note(choice, error)
        replay.restorers[self] = partial(_launch_with, self, [launcher])
    return result


def _launch_with(kernel: Any, launchers: list[Any]) -> None:
    kernel.launchers = launchers
    if hasattr(kernel, "_cached_launcher"):
        kernel._cached_launcher = None


def _take(kernel: Any, config: str) -> str:
    """Have a kernel of Inductor run with a configuration, if its code offers that; empty: with any.
    Return the compiler's error.
    """
    if not kernel.launchers:
        kernel.precompile()
    launchers, error = kernel.launchers, ""
    if config not in (text_of(each.config) for each in launchers):
        try:
            launchers = _recompiled(kernel, config)
        except Exception as found:
            error = summary_of(found)
    chosen = [each for each in launchers if text_of(each.config) == config]
    if chosen:
        chosen[0].config.found_by_coordesc = True  # it is not tuned further
    if chosen or not config:
        _launch_with(kernel, chosen[:1] or launchers)
    return error


def _recompiled(kernel: Any, config: str) -> list[Any]:
    """Return the launchers of what the code of a kernel offers, or of one configuration alone if it
    offers that: a cache, or an earlier choice, has hidden it, or it did not compile.
    """
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    def find(_: Any, meta: Mapping[str, Any], configs: Sequence[Any]) -> Any:
        descended = _changed(configs[0], config) if meta.get("coordinate_descent_tuning") else None
        return next((each for each in configs if text_of(each) == config), descended)

    with patch.object(AutotuneCache, "read_best", find):
        fresh = runpy.run_path(kernel.filename)[kernel.fn.__name__]
    fresh.precompile()
    launchers: list[Any] = fresh.launchers
    return launchers


def _changed(config: Any, text: str) -> Any:
    """Return a configuration with other values, which coordinate descent finds; None: of others."""
    values = dict(part.split("=") for part in text.split(",") if part)
    if values.keys() != {*config.kwargs, "num_warps", "num_stages"}:
        return None
    found = deepcopy(config)
    found.num_warps, found.num_stages = int(values["num_warps"]), int(values["num_stages"])
    found.kwargs = {name: type(was)(values[name]) for name, was in config.kwargs.items()}
    return found


# -- Inductor's templates --------------------------------------------------------------------------


def _template_text(choice: Any) -> str:
    description = re.sub("[ ']", "", str(getattr(choice, "description", "") or ""))
    return ",".join(filter(None, (_NUMBER.sub("", choice.name), description)))


def _lookup(
    replay: Replay,
    original: Any,
    self: Any,
    choices: Any,
    op: str,
    inputs: str,
    benchmark: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return the recorded template of a product or a convolution as the only one that was timed."""
    import torch._inductor.config as inductor

    key = re.sub(r"[ '()]|torch\.", "", inputs)
    before, found = replay.wanted(op, key), list[Any]()
    if before is not None:
        found = [each for each in choices if _template_text(each) == before.config]
    if found and benchmark is None:  # whether each must be compiled, to be timed: none must
        return dict.fromkeys(choices, 0.0)
    if before is not None and found:  # Inductor times whether to fuse what follows, beside this
        timings = {found[0]: (before.times_us.get(before.config) or 1000) / 1000}
        times_us = {}
    else:
        is_cached = inductor.autotune_local_cache and not replay.tunes
        with inductor.patch(autotune_local_cache=is_cached):
            timings = original(self, choices, op, inputs, benchmark, *args, **kwargs)
        times_us = {_template_text(each): _microseconds(ms) for each, ms in timings.items()}
    if benchmark is not None and timings:
        for each in timings:
            replay.templates[each] = KernelChoice(op, key, _template_text(each), "", times_us)
        replay.note(replay.templates[min(timings, key=timings.__getitem__)])
    return timings


def _finalize(
    replay: Replay, original: Any, self: Any, caller: Any, *args: Any, **kwargs: Any
) -> Any:
    """Note the template that Inductor takes in the end: the fastest together with what it fused."""
    if (choice := replay.templates.get(caller)) is not None:
        replay.note(choice)
    return original(self, caller, *args, **kwargs)


# Module, class, name of a function, and what is called with it.
_ENTRIES: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("triton.runtime.autotuner", "Autotuner", "run", _run_triton),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "run", _run_inductor),
    ("torch._inductor.codecache", "PersistentCache", "lookup", _lookup),
    ("torch._inductor.ir", "MultiTemplateBuffer", "finalize_as_triton_caller", _finalize),
)
