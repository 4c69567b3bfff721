"""Does a variant compute the same function? Compared with float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import KernelgaugeError, WorkloadError
from ..workload import Dtype, Workload
from .compiler import reset_compiler, torch_set_up
from .device import Device
from .instance import TORCH_DTYPES, Instance, build, first_call, reporting, total_of

__all__ = ["BOUNDS", "RelativeError", "UnknownBoundError", "compare_with_float64"]

# ||out - ref|| / ||ref||. The unit roundoffs are 2^-9, 2^-12 and 2^-24 for bf16, fp16 and fp32; intermediates are
# rounded a few times on the way and sums run over thousands of terms in fp32, so the bounds are a few roundoffs
# (docs/measuring.md has the errors that were seen). A dropped term, a wrong bias or tf32 (3e-4) lies far beyond.
BOUNDS: dict[Dtype, float] = {"bf16": 1e-2, "fp16": 1.5e-3, "fp32": 1e-5}


class UnknownBoundError(KernelgaugeError):
    """A workload without a dtype has tensors of a dtype that no bound is known for, such as fp8."""


@dataclass(frozen=True)
class RelativeError:
    """The error of one tensor of the result (an output, or the gradient of a parameter or an input).

    `reference`: what it is compared with, ``float64``, or ``float32`` where the reference does not run in float64.
    """

    tensor: str
    error: float
    bound: float
    reference: str = "float64"

    @property
    def within_bound(self) -> bool:
        return self.error <= self.bound  # False for NaN

    def __str__(self) -> str:
        return f"{self.tensor}: relative error {self.error:.2e}, bound {self.bound:.0e}"


def compare_with_float64(
    workload: Workload, device: Device, *, seed: int, deterministic: bool = False
) -> list[RelativeError]:
    """Run the workload and its reference on the same fresh random input and parameters.

    Returns one error for each output tensor, and under a `train` pass for the gradient of each parameter and of each input
    that asks for one.
    A workload without a dtype has the bound of the coarsest dtype among its parameters, inputs and results. If the
    reference fails in float64 (some kernels exist for other dtypes only), a workload in bf16 or fp16 is compared with
    float32; both run without TF32 then.

    Raises `WorkloadUnavailable` if the workload cannot run here, `WorkloadError` if it or its reference fails, and
    `UnknownBoundError`.
    """
    with torch_set_up(deterministic=deterministic):
        try:
            return _compare(workload, device, seed, torch.float64)
        except _ReferenceFailed as failed:
            if workload.dtype not in ("bf16", "fp16"):  # float32 is no reference for itself
                raise failed.error from None
        with _without_tf32():
            try:
                return _compare(workload, device, seed, torch.float32)
            except _ReferenceFailed as failed:
                raise failed.error from None


class _ReferenceFailed(Exception):
    def __init__(self, error: WorkloadError) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def _without_tf32() -> Iterator[None]:
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = cudnn


@contextmanager
def _reporting_reference(workload: Workload, doing: str) -> Iterator[None]:
    try:
        with reporting(workload, f"{doing} its reference"):
            yield
    except WorkloadError as error:
        raise _ReferenceFailed(error) from None


def _compare(workload: Workload, device: Device, seed: int, dtype: torch.dtype) -> list[RelativeError]:
    reset_compiler()  # else a module of the ninth shape silently runs eager, and is compared with itself
    instance = build(workload, device, seed=seed)
    # Copies, because a module may write to its input.
    inputs = tuple(_cast(value, dtype) for value in instance.inputs)
    originals = tuple(value.detach().clone() if isinstance(value, torch.Tensor) else value for value in instance.inputs)
    with instance.grad_mode():
        first_call(instance)
        instance.prepare()
        with _reporting_reference(workload, "building"):
            reference = _reference(instance, device, dtype)
        with reporting(workload, "running"):
            for value, original in zip(instance.inputs, originals, strict=True):
                if isinstance(value, torch.Tensor):
                    with torch.no_grad():  # else a leaf that asks for a gradient may not be written to
                        value.copy_(original)
            got = _results(instance.module, instance.inputs, instance.outputs, workload)
        with _reporting_reference(workload, "running"):
            expected = _results(reference, inputs, lambda: reference(*inputs), workload)
    if got.keys() != expected.keys():
        raise WorkloadError(
            f"{workload.id}: the reference returns other tensors", got=", ".join(got), expected=", ".join(expected)
        )
    if not expected:
        raise WorkloadError(f"{workload.id}: nothing to compare: the result holds no floating-point tensor")
    bound = _bound(instance, got)
    reference_name = str(dtype).removeprefix("torch.")
    return [RelativeError(name, _relative_error(got[name], expected[name]), bound, reference_name) for name in expected]


def _bound(instance: Instance, results: Mapping[str, torch.Tensor]) -> float:
    workload, module = instance.workload, instance.module
    if workload.dtype is not None:
        return BOUNDS[workload.dtype]
    parameters = module.parameters() if isinstance(module, nn.Module) else ()
    tensors = (each for each in (*parameters, *instance.inputs, *results.values()) if isinstance(each, torch.Tensor))
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()} - {torch.float64}
    bounds = {TORCH_DTYPES[name]: bound for name, bound in BOUNDS.items()}
    unknown = sorted(str(dtype) for dtype in dtypes if dtype not in bounds)
    if unknown:
        raise UnknownBoundError(f"no bound is known for the error of {', '.join(unknown)}")
    return max((bounds[dtype] for dtype in dtypes), default=BOUNDS["fp32"])


def _reference(instance: Instance, device: Device, dtype: torch.dtype) -> Any:
    workload, module = instance.workload, instance.module
    if workload.reference is None:
        return _in_dtype(copy.deepcopy(module), dtype) if isinstance(module, nn.Module) else module
    with device.torch_device:
        reference = workload.reference()
    if isinstance(reference, nn.Module):
        if isinstance(module, nn.Module):
            reference.load_state_dict(module.state_dict())
        reference = _in_dtype(reference.to(device.torch_device), dtype)
    return reference


def _in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast floating-point tensors; `Module.to` would cast complex ones as well, and lose their imaginary part."""
    return module.double() if dtype == torch.float64 else module.float()


def _results(module: Any, inputs: Sequence[Any], run: Any, workload: Workload) -> dict[str, torch.Tensor]:
    output = run()
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    results = {f"output {index}": leaf.detach() for index, leaf in enumerate(leaves) if leaf.is_floating_point()}
    if workload.pass_ == "train":
        torch.autograd.backward(total_of(output))
        parameters = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
        leaves_of_it = {**parameters, **{f"input {place}": value for place, value in enumerate(inputs)}}
        for name, leaf in leaves_of_it.items():
            if isinstance(leaf, torch.Tensor) and leaf.grad is not None:
                results[f"gradient of {name}"] = leaf.grad.detach()
    return results


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copied = value.detach().clone()
    return copied.to(dtype).requires_grad_(value.requires_grad) if value.is_floating_point() else copied


def _relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    if got.shape != expected.shape:
        return float("nan")
    difference = float((got.double() - expected.double()).norm())
    if difference == 0:  # both may be zero. NaN is not
        return 0.0
    scale = float(expected.double().norm())
    return difference / scale if scale else math.inf
