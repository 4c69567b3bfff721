"""Does a variant compute the same function? Compared with float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ..errors import KernelgaugeError, WorkloadError
from ..workload import Dtype, Workload
from .compiler import reset_compiler, torch_set_up
from .device import Device
from .instance import TORCH_DTYPES, Instance, build, cast, first_call, inputs_of, named_tensors, reporting, total_of

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
    that asks for one. A workload without a dtype has the bound of the coarsest dtype among its parameters, inputs and results.
    One in 16 bits whose reference fails in float64 is compared with float32, without TF32: some kernels have no float64.

    Raises `WorkloadUnavailable` if the workload cannot run here, `WorkloadError` if it or its reference fails, and
    `NotComparedError` if nothing fit to compare it with is found.
    """
    with torch_set_up(deterministic=deterministic):
        reset_compiler()  # else a module of the ninth shape silently runs eager, and is compared with itself
        instance = build(workload, device, seed=seed)
        with instance.grad_mode():
            return _compare(instance, device)


def _compare(instance: Instance, device: Device) -> list[RelativeError]:
    workload, module, inputs = instance.workload, instance.module, inputs_of(instance.arguments)
    takes_floats = any(tensor.is_floating_point() for tensor in inputs.values())
    if workload.reference is None and not isinstance(module, nn.Module) and not takes_floats:
        raise NotComparedError(
            "a function without floating-point inputs has nothing to be compared with",
            expected="a reference, or the tensors among its inputs",
        )
    originals = tree_map(_copied, instance.arguments)
    first = inputs_of(originals)

    def results() -> dict[str, torch.Tensor]:
        instance.prepare()
        with torch.no_grad():  # else a leaf that asks for a gradient may not be written to
            for name, tensor in inputs.items():
                if 0 not in tensor.stride():  # an expanded tensor: no module can write to it
                    tensor.copy_(first[name])
        with reporting(workload, "running"):
            return _results(workload, module, instance.function, instance.arguments)

    first_call(instance)
    with _reporting_reference(workload, "building"):
        reference = _reference(instance, device)
    generators = _generators(device)
    got = results()
    draws_numbers = not all(map(torch.equal, generators, _generators(device)))
    bound = _bound(instance, got)
    expected, dtype = _expected(workload, reference, originals, is_16_bit=bound > BOUNDS["fp32"])
    if got.keys() != expected.keys():
        raise WorkloadError(
            f"{workload.id}: the reference returns other tensors", got=", ".join(got), expected=", ".join(expected)
        )
    if not expected:
        raise NotComparedError("its result holds no floating-point tensor")
    zero, name = _zero_gradients(expected, dtype), str(dtype).removeprefix("torch.")
    errors = [
        RelativeError(each, _relative_error(got[each], expected[each], zero.get(each)), bound, name)
        for each in expected
    ]
    if draws_numbers and not all(error.within_bound for error in errors):
        again = results()
        changed = [each for each in again if _relative_error(again[each], got[each]) > bound]
        if changed:
            raise NotComparedError(
                "its result is random",
                got=f"{workload.id}: two calls with the same input differ in {', '.join(changed[:_SHOWN_TENSORS])}",
                expected="a module in eval() mode, or dropout with p=0",
            )
    return errors


def _generators(device: Device) -> list[torch.Tensor]:
    """Return the states of the generators of random numbers that a module may draw from."""
    on_gpu = device.torch_device.type == "cuda"
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device.torch_device)] if on_gpu else [])]


def _copied(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Return a copy of a tensor, because a module may write to its inputs; anything else as it is."""
    return cast(value.clone(), value.device, dtype) if isinstance(value, torch.Tensor) else value


def _bound(instance: Instance, results: Mapping[str, torch.Tensor]) -> float:
    workload, module = instance.workload, instance.module
    if workload.dtype is not None:
        return BOUNDS[workload.dtype]
    parameters = module.parameters() if isinstance(module, nn.Module) else ()
    tensors = (*parameters, *inputs_of(instance.arguments).values(), *results.values())
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()} - {torch.float64}
    bounds = {TORCH_DTYPES[name]: bound for name, bound in BOUNDS.items()}
    unknown = sorted(str(dtype) for dtype in dtypes if dtype not in bounds)
    if unknown:
        raise NotComparedError(f"no bound is known for the error of {', '.join(unknown)}")
    return max((bounds[dtype] for dtype in dtypes), default=BOUNDS["fp32"])


# -- the reference ----------------------------------------------------------------------------------------------------


@contextmanager
def _reporting_reference(workload: Workload, doing: str) -> Iterator[None]:
    """Report what the reference raises. That a module does not run in another dtype is no fault of it."""
    try:
        with reporting(workload, f"{doing} its reference"):
            yield
    except WorkloadError as error:
        if workload.reference is not None:
            raise
        raise NotComparedError(
            "a copy of it in float64 does not run", got=error.got, expected="a reference=... that does"
        ) from None


def _reference(instance: Instance, device: Device) -> Any:
    module = instance.module
    if instance.workload.reference is None:
        return copy.deepcopy(module) if isinstance(module, nn.Module) else module
    with device.torch_device:
        reference = instance.workload.reference()
    if isinstance(reference, nn.Module):
        if isinstance(module, nn.Module):
            reference.load_state_dict(module.state_dict())
        reference.to(device.torch_device)
    return reference


def _expected(
    workload: Workload, reference: Any, arguments: Any, *, is_16_bit: bool
) -> tuple[dict[str, torch.Tensor], torch.dtype]:
    """Return the results of the reference and their dtype: float64, or float32 if it fails there and that is finer."""
    try:
        with _reporting_reference(workload, "running"):
            return _results_in(torch.float64, workload, reference, arguments), torch.float64
    except KernelgaugeError:
        if not is_16_bit:
            raise
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with _reporting_reference(workload, "running"):
            return _results_in(torch.float32, workload, reference, arguments), torch.float32
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = cudnn


def _results_in(dtype: torch.dtype, workload: Workload, reference: Any, arguments: Any) -> dict[str, torch.Tensor]:
    if isinstance(reference, nn.Module):
        # Floating-point tensors alone: `Module.to` would cast complex ones as well, and lose their imaginary part.
        reference = reference.double() if dtype == torch.float64 else reference.float()
        reference.zero_grad()
    return _results(workload, reference, reference, tree_map(partial(_copied, dtype=dtype), arguments))


def _results(workload: Workload, module: Any, function: Callable[..., Any], arguments: Any) -> dict[str, torch.Tensor]:
    positional, keywords = arguments
    output = function(*positional, **keywords)
    tensors = [tensor for _, tensor in named_tensors(output)]
    # Copies, because the next call may write to the same memory: a CUDA graph does, and a kernel that works in place.
    results = {
        f"output {index}": each.detach().clone() for index, each in enumerate(tensors) if each.is_floating_point()
    }
    if workload.pass_ == "train":
        torch.autograd.backward(total_of(output))
        parameters = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
        for name, leaf in {**parameters, **inputs_of(arguments)}.items():
            if leaf.grad is not None:
                results[f"{_GRADIENT}{name}"] = leaf.grad.detach()
    return results


# -- errors -----------------------------------------------------------------------------------------------------------


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
