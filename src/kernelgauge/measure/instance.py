"""A workload made real on a device: fresh weights, fresh inputs, something to call, and how long a
call takes.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils._pytree import tree_map

from ..errors import KernelgaugeError, WorkloadError, WorkloadUnavailable, shown_path
from ..trace import CALL
from ..workload import Workload, copy_tensor
from .compiler import compile_counts, owner_of, restoring_settings
from .device import Device

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# `Module.to` would cast complex parameters as well, and lose their imaginary part.
_CASTS: dict[str, Any] = {
    "bf16": nn.Module.bfloat16,
    "fp16": nn.Module.half,
    "fp32": nn.Module.float,
}
# Values change GPU time (zeros draw less power than noise), so every replicate has the same ones.
_SEED = 0
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MOST_CALLS = 1000  # of a sequence: a generator without an end is a mistake
_LOOKS = 4  # for threads that a call leaves behind: one may end just before one looks
_ENDING_SECONDS = 1.0
_SHOWN_FRAMES = 3  # of the traceback of a workload's own error
# the allocator's granularity: each replicate sits elsewhere, by odd multiples of it
_PADDING_BYTES = 512
_PADDING_STEP = 7919  # a prime, so that the offsets of the replicates share no power of two
# then they come round again: 8 MB more for each would else fill the GPU, where thousands are asked
# for
_PLACES = 64


Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional ones, and those by keyword


class Instance:
    """One replicate of a workload.

    Attributes: call: runs the workload once; asynchronous on a GPU. prepare: what must happen
        before each call and is not part of it: clearing gradients, the inputs of a sequence.
        module: what `Workload.build` returned, not compiled; `function`: the same, compiled if it
        is to be. calls: what it is called with, on the device: the batches of each call of a
        sequence, else of the only one. training: the step that each call is, of a ``step`` pass.
    """

    def __init__(
        self, workload: Workload, device: Device, module: Any, *, seed: int, padding: torch.Tensor
    ) -> None:
        self.workload, self.module = workload, module
        self.function = (
            module if workload.compile is None else torch.compile(module, **workload.compile)
        )
        self._device, self._seed = device, seed
        self._padding = padding  # held so that the addresses stay as they are
        self.is_sequence = False
        self.calls = self.calls_of(module)
        self.training = (
            None if workload.training is None else TrainingStep(workload, module, self._loss)
        )
        ((positional, keywords),) = self.calls[0][:1]
        self.call: Callable[[], object] = partial(self._call, self.calls[0])
        if self.is_sequence:
            self.call = self._call_all
        elif workload.pass_ in ("forward", "call"):
            # nothing of ours is in its dispatch time
            self.call = partial(self.function, *positional, **keywords)

    def prepare(self) -> None:
        """Clear gradients: else the second call would add to the first one's.

        Make the inputs of a sequence anew.
        """
        if self.is_sequence:
            self.calls = self.calls_of(self.module)
        if self.workload.pass_ == "train":
            self._clear_gradients()

    def _clear_gradients(self) -> None:
        if isinstance(self.module, nn.Module):
            self.module.zero_grad(set_to_none=True)
        for tensor in inputs_of(self.calls).values():
            tensor.grad = None

    def _call(self, batches: list[Arguments]) -> None:
        if self.training is not None:
            self.training(batches)
        elif self.workload.pass_ == "train":
            torch.autograd.backward(self._loss(batches[0]))
        else:
            positional, keywords = batches[0]
            self.function(*positional, **keywords)

    def _call_all(self) -> None:
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[int]:
        """Make each call of a sequence, or the only one, and yield its number."""
        for number, batches in enumerate(self.calls):
            with record_function(f"{CALL}{number}"):
                self._call(batches)
            if self.workload.pass_ == "train" and self.is_sequence:
                self._clear_gradients()
            yield number

    def _loss(self, arguments: Arguments) -> torch.Tensor:
        positional, keywords = arguments
        return total_of(self.function(*positional, **keywords))

    def calls_of(self, module: Any, dtype: torch.dtype | None = None) -> list[list[Arguments]]:
        """Return the batches of each call of a module, on the device and in the dtype (None: the
        workload's).
        """
        own_dtype = None if self.workload.dtype is None else TORCH_DTYPES[self.workload.dtype]
        target, training = self._device.torch_device, self.workload.training
        place = partial(cast, device=target, dtype=dtype or own_dtype)
        parameters = inspect.signature(
            self.workload.inputs, follow_wrapped=False
        ).parameters.values()
        takes_module = any(
            each.default is each.empty and each.kind in _POSITIONAL for each in parameters
        )
        batches = 1 if training is None else training.micro_batches

        def returned() -> Any:
            with target:
                return self.workload.inputs(*((module,) if takes_module else ()))

        first = returned()
        self.is_sequence = inspect.isgenerator(first)
        if not self.is_sequence:
            return [
                [
                    tree_map(place, read_arguments(each))
                    for each in (first, *(returned() for _ in range(batches - 1)))
                ]
            ]
        if batches > 1:
            expected = "inputs that return one batch, where a step has micro_batches"
            raise WorkloadError(
                f"{self.workload.id}: its inputs are a sequence",
                got="a generator",
                expected=expected,
            )
        placed: dict[int, tuple[Any, Any]] = {}  # by id: a cache that several calls share stays one
        # The generator draws the same numbers each time, and changes none that the module draws.
        with torch.random.fork_rng([target] if target.type == "cuda" else []), target:
            self._device.generator.manual_seed(self._seed + 1)  # others than the parameters'
            calls = [
                [read_arguments(_placed(each, place, placed))]
                for each in islice(first, _MOST_CALLS + 1)
            ]
        if not 0 < len(calls) <= _MOST_CALLS:
            what = (
                f"{self.workload.id}: its inputs yield {'too many calls' if calls else 'no call'}"
            )
            raise WorkloadError(what, got=f"{len(calls)}", expected=f"1 to {_MOST_CALLS} calls")
        return calls

    def grad_mode(self) -> AbstractContextManager[None]:
        """Autograd as this workload's pass wants it.

        Entered around a measurement, so that no call pays for it.
        """
        return grad_mode(self.workload)


class TrainingStep:
    """One step of a module, as `Workload.training` says it. Calling it with batches trains once.

    `loss`: returns the loss of a batch.

    Raises `WorkloadError` if the optimizer has no parameter of the module, or others too.
    """

    def __init__(
        self, workload: Workload, module: Any, loss: Callable[[Any], torch.Tensor]
    ) -> None:
        assert workload.training is not None
        training, self._module, self._loss = workload.training, module, loss
        own = list(module.parameters()) if isinstance(module, nn.Module) else []
        learning = [each for each in own if each.requires_grad]
        if not learning:
            got = (
                "a function"
                if not isinstance(module, nn.Module)
                else f"{len(own)} parameters that need no gradient"
            )
            raise WorkloadError(
                f"{workload.id}: there is nothing to train",
                got=got,
                expected="a module with parameters",
            )
        self._optimizer = training.optimizer(learning)
        given = {id(each) for group in self._optimizer.param_groups for each in group["params"]}
        if foreign := len(given - set(map(id, own))):
            raise WorkloadError(
                f"{workload.id}: its optimizer has parameters of another module",
                got=f"{foreign} of {len(given)} are not the module's",
                expected="an optimizer of the parameters that it is called with",
            )
        self._learning, self._clip_norm = learning, training.clip_norm
        self._scaler = None if training.scaler is None else training.scaler()
        self._schedule = None if training.schedule is None else training.schedule(self._optimizer)
        step = self._step_optimizer
        self._update = step if training.compile is None else torch.compile(step, **training.compile)
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._saved_states: list[tuple[Any, Any]] = []
        self._saved_rates: list[Any] = []  # of learning

    def __call__(self, batches: Sequence[Any]) -> None:
        self.backward(batches)
        self.update()

    def backward(self, batches: Sequence[Any]) -> None:
        for batch in batches:
            loss = self._loss(batch)
            if len(batches) > 1:
                loss = loss / len(batches)
            torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def update(self) -> None:
        self._update()
        if self._schedule is not None:
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _step_optimizer(self) -> None:
        if self._clip_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._learning, self._clip_norm)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    # -- its state: parameters, buffers, and what the optimizer keeps ------------------------------

    def save(self) -> None:
        """Remember the state of now.

        Call it behind a step: an optimizer makes its state with the first one.
        """
        kept = (each for state in self._optimizer.state.values() for each in state.values())
        tensors = (*self._module.parameters(), *self._module.buffers(), *kept)
        self._saved = [
            (each, each.detach().clone()) for each in tensors if isinstance(each, torch.Tensor)
        ]
        self._saved_rates = [copy.copy(group["lr"]) for group in self._optimizer.param_groups]
        others = [each for each in (self._scaler, self._schedule) if each is not None]
        self._saved_states = [(each, copy.deepcopy(each.state_dict())) for each in others]

    def restore(self) -> None:
        """Put the saved state back, at the same addresses: nothing compiles again.

        Without one, do nothing.
        """
        with torch.no_grad():
            for tensor, value in self._saved:
                tensor.copy_(value)
        for each, state in self._saved_states:
            each.load_state_dict(copy.deepcopy(state))
        for group, rate in zip(self._optimizer.param_groups, self._saved_rates, strict=False):
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate


def grad_mode(workload: Workload) -> AbstractContextManager[None]:
    """Autograd as the workload's pass wants it."""
    return torch.set_grad_enabled(workload.pass_ != "forward")


def build(workload: Workload, device: Device, *, replicate: int = 0, seed: int = _SEED) -> Instance:
    """Build a workload on fresh allocations, as in a process that did nothing else before
    (`Device.forget_peak`).

    Raises `WorkloadUnavailable` if it cannot run here, `WorkloadError` if building fails or changes
    torch for all workloads.
    """
    device.check(workload)
    target = device.torch_device
    with reporting(workload, "building"):
        device.forget_peak()
        steps = 1 + 2 * _PADDING_STEP * (replicate % _PLACES)
        padding = torch.empty(_PADDING_BYTES * steps, dtype=torch.int8, device=target)
        device.generator.manual_seed(seed)
        seed_others(seed)
        with target:
            module = workload.build()
        # calls give those
        if isinstance(module, nn.Module) and not any(each.is_meta for each in module.parameters()):
            module = module.to(target)
            module = module if workload.dtype is None else _CASTS[workload.dtype](module)
        if not callable(module):
            raise TypeError(f"build() returned {type(module).__name__}, expected something to call")
        return Instance(workload, device, module, seed=seed, padding=padding)


def seed_others(seed: int) -> None:
    """Seed what draws numbers beside torch."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def _placed(value: Any, place: Callable[[Any], Any], placed: dict[int, tuple[Any, Any]]) -> Any:
    """Return a value that a generator yields, with its tensors placed.

    A list, dict or tensor that it yields twice stays one.
    """
    if type(value) in (list, dict):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            value[key] = _placed(part, place, placed)
        return value
    if id(value) not in placed:
        new = (
            tuple(_placed(part, place, placed) for part in value)
            if type(value) is tuple
            else tree_map(place, value)
        )
        placed[id(value)] = placed[id(new)] = value, new
    return placed[id(value)][1]


def read_arguments(returned: Any) -> Arguments:
    """Read what `Workload.inputs` returned.

    Raises `TypeError` if it is no tuple: a tensor would fall apart into rows.
    """
    if not isinstance(returned, (tuple, list)):
        raise TypeError(
            f"inputs() returned {type(returned).__name__}, expected a tuple of arguments"
        )
    match tuple(returned):
        case (tuple() as positional, dict() as keywords):
            return positional, keywords
        case positional:
            return positional, {}


def inputs_of(calls: Sequence[Sequence[Arguments]]) -> dict[str, torch.Tensor]:
    """Return every tensor by its name: ``input 0``, ``input 1.0`` within a tuple, ``input mask`` of
    a keyword.

    Those of a later batch have its number in front: ``input 1: 0``.
    """
    return {
        f"input {number}: {name}" if number else f"input {name}": tensor
        for number, arguments in enumerate(chain.from_iterable(calls))
        for each in arguments
        for name, tensor in named_tensors(each)
    }


def cast(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return a tensor as a leaf there, in the dtype if it is floating-point, and a module there;
    anything else as it is.
    """
    if isinstance(value, nn.Module):
        return value.to(device)
    if not isinstance(value, torch.Tensor):
        return value
    # A leaf: what is computed of a caller's tensor by casting it would keep its gradient to itself.
    wanted = torch.complex128 if value.is_complex() and dtype == torch.float64 else value.dtype
    wanted = dtype if dtype is not None and value.is_floating_point() else wanted
    place = value.device if value.is_meta else device  # it has nothing to move
    return copy_tensor(value, copy=False, device=place, dtype=wanted)


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor in tuples, lists, mappings and dataclasses with its path: ``0``, ``loss``,
    ``cache.1``.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    parts: Any
    if isinstance(value, Mapping):
        parts = value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value)
    else:  # of a library that has told torch how to take it apart
        parts = enumerate(
            leaf for leaf in torch.utils._pytree.tree_leaves(value) if leaf is not value
        )
    for key, part in parts:
        yield from named_tensors(part, f"{name}.{key}" if name else str(key))


def total_of(output: Any) -> torch.Tensor:
    """Return the loss of a `train` pass: the scalar that the output names ``loss``, else the sum of
    its floating-point tensors.
    """
    named = [(name, tensor) for name, tensor in named_tensors(output) if tensor.is_floating_point()]
    if not named:
        raise TypeError(
            f"the output holds no floating-point tensor to sum: {type(output).__name__}"
        )
    tensors = [tensor for name, tensor in named if name == "loss" and tensor.ndim == 0] or [
        each for _, each in named
    ]
    if len(tensors) == 1 and tensors[0].ndim == 0:
        return tensors[0]  # a sum would be one more kernel
    return sum((tensor.sum() for tensor in tensors[1:]), start=tensors[0].sum())


@contextmanager
def reporting(workload: Workload, doing: str) -> Iterator[None]:
    """Turn whatever a workload's own code raises into a `WorkloadError` with its lines; our own
    errors pass.

    What skips a test makes a workload unavailable: `pytest.importorskip` in `build`, say.
    `sys.exit` ends no session. Settings of torch that the code changes are restored, and are an
    error: another workload would be measured with them.
    """
    try:
        with restoring_settings() as changed:
            yield
    except KernelgaugeError:
        raise
    except BaseException as error:
        # pytest's own are no `Exception`, and only the plugin imports pytest
        kind = type(error).__name__
        if kind in ("Skipped", "SkipTest"):
            raise WorkloadUnavailable(f"{workload.id}: {_message(error)}") from error
        if not isinstance(error, (Exception, SystemExit)) and kind != "Failed":
            raise
        raised = traceback.extract_tb(error.__traceback__)
        frames = [each for each in raised if owner_of(each.filename) == "user"]
        # A module of a library alone has no line of the user's.
        frames = frames or [
            each for each in raised if owner_of(each.filename) in ("library", "module of torch")
        ]
        lines = [
            f"{shown_path(each.filename)}:{each.lineno} in {each.name}: {each.line}"
            for each in frames
        ]
        where = "\n".join(lines[-_SHOWN_FRAMES:])
        got = f"{kind}: {_message(error)}"
        failed = WorkloadError(f"{workload.id}: {doing} failed", where=where, got=got)
        if workload.pass_ == "forward" and "does not require grad" in got:
            failed.next_command = 'pass_="call" (it runs its own backward), "train" or "step": "forward" has no autograd'
        elif workload.pass_ == "train" and "does not require grad" in got:
            failed.expected = "an input with requires_grad=True, or a module with parameters"
        elif "same device" in got or "other tensors on" in got:
            hint = "make what the call creates on the device of its inputs: device=x.device (in a test: kernelgauge.device)"
            failed.next_command = hint
        raise failed from error
    if changed:
        raise WorkloadError(
            f"{workload.id}: it changed settings of torch while {doing}",
            got=", ".join(f"{name}: {change}" for name, change in changed.items()),
            expected="set them in conftest.py for all workloads, or restore them in the code that changes them",
        )


@contextmanager
def requiring_an_end(workload: Workload) -> Iterator[list[threading.Thread]]:
    """Yield the threads of Python that start.

    Raise `WorkloadError` if one of them, or a new child process, runs at the end.
    """
    started: list[threading.Thread] = []
    start, before = threading.Thread.start, _children()

    def noting_start(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    threading.Thread.start = noting_start  # type: ignore[method-assign, assignment]
    try:
        yield started
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
    for each in started:
        if getattr(getattr(each, "_target", None), "__module__", "") == "multiprocessing.queues":
            each.join(_ENDING_SECONDS)  # a data loader closes the queue, and does not wait
    left = [f"thread {each.name}" for each in started if each.is_alive()]
    if left := [*left, *(f"process {each}" for each in sorted(_children() - before))]:
        raise WorkloadError(
            f"{workload.id}: its call leaves work running",
            got=", ".join(left),
            expected="a call that joins its threads and processes: they slow the host reference, which then excuses a slower call",
        )


def _children() -> set[int]:
    """Return the child processes. Only Linux says so; empty elsewhere."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found.update(map(int, path.read_text().split()))
    return found


def _message(error: BaseException) -> str:
    """Return the first line, with the next one where it only announces that ("backend='inductor'
    raised:").
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def first_call(instance: Instance) -> list[int]:
    """Call once: compiles what is to be compiled. Return how many graphs each call compiled.

    Raises `WorkloadError` if it fails.
    """
    before = compile_counts().graphs
    with reporting(
        instance.workload,
        "running" if instance.workload.compile is None else "compiling or running",
    ):
        instance.prepare()
        graphs = [before, *(compile_counts().graphs for _ in instance.steps())]
    return [after - before for before, after in pairwise(graphs)]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector out of a host time."""
    was_enabled = gc.isenabled()
    # without collecting first: with Inductor loaded that takes longer than the measurement
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_are_frozen = ContextVar("are_frozen", default=False)


@contextmanager
def old_objects_frozen() -> Iterator[None]:
    """Let collections skip older objects, as whole models have millions of them.

    `gc.get_objects` leaves them out too.
    """
    if _are_frozen.get():  # they skip those of an outer one
        yield
        return
    # not by `gc.get_freeze_count`: Python 3.12 begins with 375 frozen objects
    gc.freeze()
    ours = _are_frozen.set(True)
    try:
        yield
    finally:
        _are_frozen.reset(ours)
        gc.unfreeze()


def warm_up(device: Device, instance: Instance, *, calls: int, seconds: float) -> None:
    """Call at least `calls` times and for at least `seconds`: an idle GPU's clock is a sixth of a
    busy one's.
    """
    until = time.perf_counter() + seconds
    done = 0
    while done < calls or time.perf_counter() < until:
        instance.prepare()
        device.flush_cache()
        instance.call()
        device.synchronize()
        done += 1


def autograd_number() -> int:
    """Make a node of autograd, and return its number: each node of this thread has the next one."""
    with torch.inference_mode(False), torch.enable_grad():
        probe: Any = torch.ones((), device="cpu", requires_grad=True) * 1
    return int(probe.grad_fn._sequence_nr())


def call_duration_us(device: Device, instance: Instance) -> float:
    """Time one synchronised call, in microseconds."""
    instance.prepare()
    device.synchronize()
    start = time.perf_counter_ns()
    instance.call()
    device.synchronize()
    return (time.perf_counter_ns() - start) / 1000


def steady_call(device: Device, instance: Instance) -> tuple[float, int]:
    """Make a call that must leave nothing running.

    Return its microseconds, and the nodes that autograd records for it.
    """
    for _ in range(_LOOKS):
        number = autograd_number()
        with requiring_an_end(instance.workload) as started:
            call_us = call_duration_us(device, instance)
        nodes = autograd_number() - number - 1  # those between the two
        if not started:
            break
    return call_us, nodes


def host_calls(
    device: Device, instance: Instance, iterations: int
) -> tuple[list[float], list[float]]:
    """Return every dispatch and every control, in microseconds, once the host is fast.

    After each call comes the control: the host changes its speed within milliseconds.
    """
    device.host.wait_until_fast()
    dispatches: list[float] = []
    controls: list[float] = []
    with collector_paused():
        for _ in range(iterations):
            instance.prepare()
            device.synchronize()
            start = time.perf_counter_ns()
            instance.call()
            dispatches.append((time.perf_counter_ns() - start) / 1000)
            controls.append(device.host.once_us())
        device.synchronize()
    return dispatches, controls
