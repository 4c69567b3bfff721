"""Does a variant compute the same function? Compared with float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import KernelgaugeError, WorkloadError
from ..workload import Dtype, Workload
from .compiler import reset_compiler, torch_set_up
from .device import Device
from .instance import TORCH_DTYPES, Arguments, Instance, build, first_call, named_tensors, reporting, total_of

__all__ = ["BOUNDS", "NotComparedError", "RelativeError", "UnknownBoundError", "compare_with_float64"]

# ||out - ref|| / ||ref||. The unit roundoffs are 2^-9, 2^-12 and 2^-24 for bf16, fp16 and fp32; intermediates are
# rounded a few times on the way and sums run over thousands of terms in fp32, so the bounds are a few roundoffs
# (docs/measuring.md has the errors that were seen). A dropped term, a wrong bias or tf32 (3e-4) lies far beyond.
BOUNDS: dict[Dtype, float] = {"bf16": 1e-2, "fp16": 1.5e-3, "fp32": 1e-5}
_SHOWN_TENSORS = 3  # in a message
_GRADIENT = "gradient of "  # begins the name of each
# A gradient below so many roundoffs of the largest one is zero but for rounding: 2e-12 of it in float64.
_ROUNDING = 1e4


class NotComparedError(KernelgaugeError):
    """The result has nothing to be compared with. That is no fault of the workload."""


class UnknownBoundError(NotComparedError):
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
    `NotComparedError` if no bound is known, if the result is random or holds no floating-point tensor, if a function takes
    nothing to compare it by, or if a copy of the module runs in no other dtype.
    """
    with torch_set_up(deterministic=deterministic):
        try:
            return _compare(workload, device, seed, torch.float64)
        except _ReferenceFailed as failed:
            if not failed.is_16_bit:  # float32 is no reference for itself
                raise failed.shown() from None
        with _without_tf32():
            try:
                return _compare(workload, device, seed, torch.float32)
            except _ReferenceFailed as failed:
                raise failed.shown() from None


class _ReferenceFailed(Exception):
    """`is_16_bit`: whether the workload is, so that float32 would do. `is_copy`: whether the reference is the module itself."""

    def __init__(self, error: WorkloadError, *, is_16_bit: bool, is_copy: bool) -> None:
        super().__init__(error)
        self.error, self.is_16_bit, self.is_copy = error, is_16_bit, is_copy

    def shown(self) -> KernelgaugeError:
        """Return the error to raise. That a module does not run in another dtype is no fault of it."""
        if not self.is_copy:
            return self.error
        return NotComparedError(
            "a copy of it in float64 does not run", got=self.error.got, expected="a reference=... that does"
        )


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
def _reporting_reference(instance: Instance, doing: str) -> Iterator[None]:
    try:
        with reporting(instance.workload, f"{doing} its reference"):
            yield
    except WorkloadError as error:
        is_16_bit = _bound(instance, {}) > BOUNDS["fp32"]
        raise _ReferenceFailed(error, is_16_bit=is_16_bit, is_copy=instance.workload.reference is None) from None


def _compare(workload: Workload, device: Device, seed: int, dtype: torch.dtype) -> list[RelativeError]:
    reset_compiler()  # else a module of the ninth shape silently runs eager, and is compared with itself
    instance = build(workload, device, seed=seed)
    _require_reference(instance)
    # Copies, because a module may write to its input.
    originals = {name: tensor.detach().clone() for name, tensor in instance.arguments.tensors().items()}
    arguments = instance.arguments.map(lambda value: _cast(value, dtype))

    def results() -> dict[str, torch.Tensor]:
        instance.prepare()
        with reporting(workload, "running"):
            _restore(instance.arguments, originals)
            return _results(instance.module, instance.arguments, instance.outputs, workload)

    with instance.grad_mode():
        first_call(instance)
        with _reporting_reference(instance, "building"):
            reference = _reference(instance, device, dtype)
        generators = _generators(device)
        got = results()
        draws_numbers = not all(map(torch.equal, generators, _generators(device)))
        with _reporting_reference(instance, "running"):
            expected = _results(reference, arguments, lambda: arguments.call(reference), workload)
        if got.keys() != expected.keys():
            raise WorkloadError(
                f"{workload.id}: the reference returns other tensors", got=", ".join(got), expected=", ".join(expected)
            )
        if not expected:
            raise NotComparedError("its result holds no floating-point tensor")
        bound, reference_name = _bound(instance, got), str(dtype).removeprefix("torch.")
        zero = _zero_gradients(expected, dtype)
        errors = [
            RelativeError(name, _relative_error(got[name], expected[name], zero.get(name)), bound, reference_name)
            for name in expected
        ]
        if draws_numbers and not all(error.within_bound for error in errors):
            _refuse_random(workload, got, results(), bound)
    return errors


def _require_reference(instance: Instance) -> None:
    """Refuse to compare a function with itself where it takes no tensor: it would compute the same in its own dtype."""
    is_function = instance.workload.reference is None and not isinstance(instance.module, nn.Module)
    if is_function and not any(tensor.is_floating_point() for tensor in instance.arguments.tensors().values()):
        raise NotComparedError(
            "a function without floating-point inputs has nothing to be compared with",
            expected="a reference, or the tensors among its inputs",
        )


def _generators(device: Device) -> list[torch.Tensor]:
    """Return the states of the generators of random numbers that a module may draw from."""
    on_gpu = device.torch_device.type == "cuda"
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device.torch_device)] if on_gpu else [])]


def _refuse_random(
    workload: Workload, got: Mapping[str, torch.Tensor], again: Mapping[str, torch.Tensor], bound: float
) -> None:
    """Refuse a result that the next call does not repeat, of a module that draws random numbers."""
    changed = [name for name, tensor in again.items() if _relative_error(tensor, got[name]) > bound]
    if changed:
        raise NotComparedError(
            "its result is random",
            got=f"{workload.id}: two calls with the same input differ in {', '.join(changed[:_SHOWN_TENSORS])}",
            expected="a module in eval() mode, or dropout with p=0",
        )


def _restore(arguments: Arguments, originals: Mapping[str, torch.Tensor]) -> None:
    """Write the first values into the inputs again: a module may have written to them."""
    with torch.no_grad():  # else a leaf that asks for a gradient may not be written to
        for name, tensor in arguments.tensors().items():
            if 0 not in tensor.stride():  # an expanded tensor: nothing can write to it
                tensor.copy_(originals[name])


def _bound(instance: Instance, results: Mapping[str, torch.Tensor]) -> float:
    workload, module = instance.workload, instance.module
    if workload.dtype is not None:
        return BOUNDS[workload.dtype]
    parameters = module.parameters() if isinstance(module, nn.Module) else ()
    tensors = (*parameters, *instance.arguments.tensors().values(), *results.values())
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


def _results(module: Any, arguments: Arguments, run: Callable[[], Any], workload: Workload) -> dict[str, torch.Tensor]:
    output = run()
    tensors = [tensor for _, tensor in named_tensors(output)]
    # Copies, because the next call may write to the same memory: a CUDA graph does, and a kernel that works in place.
    results = {
        f"output {index}": each.detach().clone() for index, each in enumerate(tensors) if each.is_floating_point()
    }
    if workload.pass_ == "train":
        torch.autograd.backward(total_of(output))
        parameters = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
        for name, leaf in {**parameters, **arguments.tensors()}.items():
            if leaf.grad is not None:
                results[f"{_GRADIENT}{name}"] = leaf.grad.detach()
    return results


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copied = value.detach().clone()
    return copied.to(dtype).requires_grad_(value.requires_grad) if value.is_floating_point() else copied


def _zero_gradients(expected: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, float]:
    """Return the gradients that are zero but for rounding, each with the norm that its error is relative to.

    A bias before a normalization has such a gradient, or all that a softmax follows: only rounding is left of sums that cancel.
    What was summed is of the size of the other gradients. That of the output, which is one, is among them.
    """
    sizes = {
        name: float(tensor.double().norm()) / math.sqrt(max(1, tensor.numel()))
        for name, tensor in expected.items()
        if name.startswith(_GRADIENT)
    }
    largest = max([1.0, *filter(math.isfinite, sizes.values())])
    zero = _ROUNDING * torch.finfo(dtype).eps * largest
    return {name: largest * math.sqrt(expected[name].numel()) for name, size in sizes.items() if size <= zero}


def _relative_error(got: torch.Tensor, expected: torch.Tensor, scale: float | None = None) -> float:
    """Return the norm of the difference over that of what is expected, or over `scale`."""
    if got.shape != expected.shape:
        return float("nan")
    difference = float((got.double() - expected.double()).norm())
    if difference == 0:  # both may be zero. NaN is not
        return 0.0
    scale = scale or float(expected.double().norm())
    return difference / scale if scale else math.inf
