"""A workload made real on a device: fresh weights, fresh inputs, something to call, and how long a call takes."""

from __future__ import annotations

import dataclasses
import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from ..errors import KernelgaugeError, WorkloadError, WorkloadUnavailable, shown_path
from ..workload import Workload
from .compiler import owner_of
from .device import Device

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

# Values change GPU time (zeros draw less power than noise), so every replicate has the same ones.
_SEED = 0
_SHOWN_FRAMES = 3  # of the traceback of a workload's own error
# Each replicate sits elsewhere in memory. Odd multiples of this many bytes, the allocator's own granularity.
_PADDING_BYTES = 512
_PADDING_STEP = 7919  # a prime, so that the offsets of the replicates share no power of two
_PLACES = 64  # then they come round again: 8 MB more for each would else fill the GPU, where thousands are asked for


@dataclass(frozen=True)
class Instance:
    """One replicate of a workload."""

    workload: Workload
    call: Callable[[], object]  # runs the workload once; asynchronous on a GPU
    prepare: Callable[[], None]  # what must happen before each call and is not part of it: clearing gradients
    module: Any  # what `Workload.build` returned, not compiled
    function: Callable[..., Any]  # the same, compiled if it is to be
    arguments: tuple[tuple[Any, ...], dict[str, Any]]  # on the device: positional and by keyword
    _padding: torch.Tensor  # held so that the addresses stay as they are

    def grad_mode(self) -> AbstractContextManager[None]:
        """Autograd as this workload's pass wants it. Entered around a measurement, so that no call pays for it."""
        return grad_mode(self.workload)


def grad_mode(workload: Workload) -> AbstractContextManager[None]:
    """Autograd as the workload's pass wants it."""
    return torch.set_grad_enabled(workload.pass_ == "train")


def build(workload: Workload, device: Device, *, replicate: int = 0, seed: int = _SEED) -> Instance:
    """Build a workload on fresh allocations, as in a process that did nothing else before (`Device.forget_peak`).

    Raises `WorkloadUnavailable` if it cannot run here, `WorkloadError` if building fails or changes torch for all workloads.
    """
    device.check(workload)
    target, dtype = device.torch_device, None if workload.dtype is None else TORCH_DTYPES[workload.dtype]
    with reporting(workload, "building"), restoring_settings() as changed:
        device.forget_peak()
        steps = 1 + 2 * _PADDING_STEP * (replicate % _PLACES)
        padding = torch.empty(_PADDING_BYTES * steps, dtype=torch.int8, device=target)
        torch.manual_seed(seed)
        with target:
            module = workload.build()
            arguments = _arguments(workload.inputs())
        arguments = torch.utils._pytree.tree_map(lambda value: cast(value, target, dtype), arguments)
        if isinstance(module, nn.Module):
            module = module.to(target) if dtype is None else module.to(target, dtype)
        if not callable(module):
            raise TypeError(f"build() returned {type(module).__name__}, expected something to call")
        function = module if workload.compile is None else torch.compile(module, **workload.compile)
    if changed:
        raise WorkloadError(
            f"{workload.id}: its factory changes torch for all workloads",
            got=", ".join(f"{name}: {change}" for name, change in changed.items()),
            expected="such settings in the suite's conftest.py, for all workloads alike",
        )
    positional, keywords = arguments
    leaves = [tensor for tensor in inputs_of(arguments).values() if tensor.requires_grad]
    forward = partial(function, *positional, **keywords)

    def clear_gradients() -> None:
        """Else the second call would add to the first one's: other kernels than in a training step."""
        if isinstance(module, nn.Module):
            module.zero_grad(set_to_none=True)
        for leaf in leaves:
            leaf.grad = None

    is_forward = workload.pass_ == "forward"
    return Instance(
        workload=workload,
        call=forward if is_forward else lambda: torch.autograd.backward(total_of(forward())),
        prepare=(lambda: None) if is_forward else clear_gradients,
        module=module,
        function=function,
        arguments=arguments,
        _padding=padding,
    )


def _arguments(returned: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read what `Workload.inputs` returned. Raises `TypeError` if it is no tuple: a tensor would fall apart into rows."""
    if not isinstance(returned, (tuple, list)):
        raise TypeError(f"inputs() returned {type(returned).__name__}, expected a tuple of arguments")
    match tuple(returned):
        case (tuple() as positional, dict() as keywords):
            return positional, keywords
        case positional:
            return positional, {}


def inputs_of(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return every tensor by its name: ``input 0``, ``input 1.0`` within a tuple, ``input mask`` of a keyword."""
    return {f"input {name}": tensor for each in arguments for name, tensor in named_tensors(each)}


def cast(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return a tensor as a leaf there, in the dtype if it is floating-point; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    # A leaf: what is computed of a caller's tensor by casting it would keep its gradient to itself.
    wanted = dtype if dtype is not None and value.is_floating_point() else value.dtype
    return value.detach().to(device=device, dtype=wanted).requires_grad_(value.requires_grad)


def _attribute(path: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    owner, _, name = path.rpartition(".")
    return partial(getattr, attrgetter(owner)(torch), name), partial(setattr, attrgetter(owner)(torch), name)


# How to read and write each setting of the whole process. The outer ones come first: those below may inherit from them.
_LIBRARIES = ("", "cuda.matmul.", "cudnn.", "cudnn.conv.", "cudnn.rnn.", "mkldnn.", "mkldnn.matmul.", "mkldnn.conv.")
_SETTINGS = {
    name: (getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}"))
    for name in ("default_dtype", "num_threads", "float32_matmul_precision")
} | {"backends.cudnn.allow_tf32": _attribute("backends.cudnn.allow_tf32")}
if hasattr(torch.backends, "fp32_precision"):  # torch 2.9
    _SETTINGS |= {path: _attribute(path) for path in (f"backends.{each}fp32_precision" for each in _LIBRARIES)}


def _settings() -> dict[str, Any]:
    """Return the settings, without those that torch refuses to read because old and new ones contradict each other."""
    values = {}
    for name, (get, _) in _SETTINGS.items():
        with suppress(RuntimeError):
            values[name] = get()
    return values


@contextmanager
def restoring_settings() -> Iterator[dict[str, str]]:
    """Restore the settings of the whole process at the end. Yields a mapping that then says which of them were changed."""
    before = _settings()
    changed: dict[str, str] = {}
    try:
        yield changed
    finally:
        after = _settings()
        changed |= {name: f"{was} -> {after.get(name)}" for name, was in before.items() if after.get(name) != was}
        for name, was in before.items():
            if _settings().get(name) != was:
                _SETTINGS[name][1](was)


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor in tuples, lists, mappings and dataclasses with its path: ``0``, ``loss``, ``cache.1``."""
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
        parts = enumerate(leaf for leaf in torch.utils._pytree.tree_leaves(value) if leaf is not value)
    for key, part in parts:
        yield from named_tensors(part, f"{name}.{key}" if name else str(key))


def total_of(output: Any) -> torch.Tensor:
    """Return the loss of a `train` pass: the scalar that the output names ``loss``, else the sum of its floating-point tensors."""
    named = [(name, tensor) for name, tensor in named_tensors(output) if tensor.is_floating_point()]
    if not named:
        raise TypeError(f"the output holds no floating-point tensor to sum: {type(output).__name__}")
    tensors = [tensor for name, tensor in named if name == "loss" and tensor.ndim == 0] or [each for _, each in named]
    if len(tensors) == 1 and tensors[0].ndim == 0:
        return tensors[0]  # a sum would be one more kernel
    return sum((tensor.sum() for tensor in tensors[1:]), start=tensors[0].sum())


@contextmanager
def reporting(workload: Workload, doing: str) -> Iterator[None]:
    """Turn whatever a workload's own code raises into a `WorkloadError` with its lines; our own errors pass.

    What skips a test makes a workload unavailable: `pytest.importorskip` in `build`, say. `sys.exit` ends no session.
    """
    try:
        yield
    except KernelgaugeError:
        raise
    except BaseException as error:
        kind = type(error).__name__  # pytest's own are no `Exception`, and only the plugin imports pytest
        if kind in ("Skipped", "SkipTest"):
            raise WorkloadUnavailable(f"{workload.id}: {_message(error)}") from error
        if not isinstance(error, (Exception, SystemExit)) and kind != "Failed":
            raise
        frames = [each for each in traceback.extract_tb(error.__traceback__) if owner_of(each.filename) == "user"]
        lines = [f"{shown_path(each.filename)}:{each.lineno} in {each.name}: {each.line}" for each in frames]
        where = "\n".join(lines[-_SHOWN_FRAMES:])
        got = f"{kind}: {_message(error)}"
        raise WorkloadError(f"{workload.id}: {doing} failed", where=where, got=got) from error


def _message(error: BaseException) -> str:
    """Return the first line, with the next one where it only announces that ("backend='inductor' raised:")."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def first_call(instance: Instance) -> None:
    """Call once: compiles what is to be compiled. Raises `WorkloadError` if it fails."""
    with reporting(instance.workload, "running" if instance.workload.compile is None else "compiling or running"):
        instance.prepare()
        instance.call()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector out of a host time."""
    was_enabled = gc.isenabled()
    gc.disable()  # without collecting first: with Inductor loaded that takes longer than the measurement
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def warm_up(device: Device, instance: Instance, *, calls: int, seconds: float) -> None:
    """Call at least `calls` times and for at least `seconds`: an idle GPU's clock is a sixth of a busy one's."""
    until = time.perf_counter() + seconds
    done = 0
    while done < calls or time.perf_counter() < until:
        instance.prepare()
        device.flush_cache()
        instance.call()
        device.synchronize()
        done += 1


def call_duration_us(device: Device, instance: Instance) -> float:
    """Time one synchronised call, in microseconds: to choose a number of iterations by, not to report."""
    instance.prepare()
    device.synchronize()
    start = time.perf_counter_ns()
    instance.call()
    device.synchronize()
    return (time.perf_counter_ns() - start) / 1000


def host_calls(device: Device, instance: Instance, iterations: int) -> tuple[list[float], list[float]]:
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
