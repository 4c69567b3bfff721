"""A workload made real on a device: fresh weights, fresh inputs, something to call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import KernelgaugeError, WorkloadError
from ..workload import Workload
from .device import Device

__all__ = ["TORCH_DTYPES", "Instance", "build"]

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

# Values change GPU time (zeros draw less power than noise), so every replicate has the same ones.
_SEED = 0
# Each replicate sits elsewhere in memory. Odd multiples of this many bytes, the allocator's own granularity.
_PADDING_BYTES = 512
_PADDING_STEP = 7919  # a prime, so that the offsets of the replicates share no power of two


@dataclass(frozen=True)
class Instance:
    """One replicate of a workload.

    Attributes:
        call: runs the workload once; asynchronous on a GPU.
        prepare: what must happen before each call and is not part of it (clearing gradients).
        module: what `Workload.build` returned, not compiled.
        inputs: the arguments, on the device.
        outputs: runs the module once and returns its output, for numerics.
    """

    workload: Workload
    call: Callable[[], object]
    prepare: Callable[[], None]
    module: Any
    inputs: tuple[torch.Tensor, ...]
    outputs: Callable[[], Any]
    _padding: torch.Tensor  # held so that the addresses stay as they are

    def grad_mode(self) -> AbstractContextManager[None]:
        """Autograd as this workload's pass wants it. Entered around a measurement, so that no call pays for it."""
        return torch.set_grad_enabled(self.workload.pass_ == "train")


def build(workload: Workload, device: Device, *, replicate: int = 0, seed: int = _SEED) -> Instance:
    """Build a workload on fresh allocations.

    Raises `WorkloadUnavailable` if it cannot run here, `WorkloadError` if building fails.
    """
    device.check(workload)
    target, dtype = device.torch_device, TORCH_DTYPES[workload.dtype]
    padding = torch.empty(_PADDING_BYTES * (1 + 2 * _PADDING_STEP * replicate), dtype=torch.int8, device=target)
    try:
        torch.manual_seed(seed)
        with target:
            module = workload.build()
            inputs = tuple(_cast(value, target, dtype) for value in workload.inputs())
        if isinstance(module, nn.Module):
            module = module.to(device=target, dtype=dtype)
    except KernelgaugeError:
        raise
    except Exception as error:
        raise _failed(workload, "building", error) from error
    function = module if workload.compile is None else torch.compile(module, **workload.compile)
    return Instance(
        workload=workload,
        call=_call(workload, function, inputs),
        prepare=_prepare(workload, module),
        module=module,
        inputs=inputs,
        outputs=lambda: function(*inputs),
        _padding=padding,
    )


def first_call(instance: Instance) -> None:
    """Call once: compiles what is to be compiled. Raises `WorkloadError` if it fails."""
    try:
        instance.prepare()
        instance.call()
    except KernelgaugeError:
        raise
    except Exception as error:
        doing = "running" if instance.workload.compile is None else "compiling or running"
        raise _failed(instance.workload, doing, error) from error


def _cast(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)


def _call(workload: Workload, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], object]:
    if workload.pass_ == "forward":
        return lambda: function(*inputs)

    def forward_and_backward() -> None:
        torch.autograd.backward(total_of(function(*inputs)))

    return forward_and_backward


def total_of(output: Any) -> torch.Tensor:
    """Sum over every floating-point tensor of an output: the loss of a `train` pass."""
    leaves = torch.utils._pytree.tree_leaves(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    if not tensors:
        raise TypeError(f"the output holds no floating-point tensor to sum: {type(output).__name__}")
    return sum((tensor.sum() for tensor in tensors[1:]), start=tensors[0].sum())


def _prepare(workload: Workload, module: Any) -> Callable[[], None]:
    if workload.pass_ == "train" and isinstance(module, nn.Module):
        # Else the second call would add to the first one's gradients: other kernels than in a training step.
        return lambda: module.zero_grad(set_to_none=True)
    return lambda: None


def _failed(workload: Workload, doing: str, error: Exception) -> WorkloadError:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return WorkloadError(
            f"{workload.id}: out of device memory while {doing}",
            got=str(error).split(". ")[0],
            expected="enough free memory: nothing else should run on a GPU that is being measured",
            next_command="nvidia-smi   (who holds it?)",
        )
    where = inspect.getsourcefile(workload.build) if callable(workload.build) else None
    message = str(error).strip().split("\n")[0] or repr(error)
    return WorkloadError(f"{workload.id}: {doing} failed", where=where, got=f"{type(error).__name__}: {message}")
