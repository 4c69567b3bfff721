"""Does a variant compute the same function?

Compared with float64, within what rounding explains.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import KernelgaugeError, WorkloadError
from ..workload import Dtype, Workload, copy_deeply
from .choices import Replay
from .compiler import DispatchMode, FunctionMode, reset_compiler, restoring_settings, torch_set_up
from .device import Device
from .instance import (
    TORCH_DTYPES,
    Instance,
    TrainingStep,
    build,
    cast,
    first_call,
    inputs_of,
    named_tensors,
    reporting,
    total_of,
)

# ||out - ref|| / ||ref|| that a module of one op may have. The unit roundoffs are 2^-8, 2^-11 and
# 2^-24. Intermediates are rounded a few times on the way. A dropped term, a wrong bias or tf32
# (3e-4) lies far beyond.
BOUNDS: dict[Dtype, float] = {"bf16": 1e-2, "fp16": 1.5e-3, "fp32": 1e-5}
# Times the error of the eager run: correct variants err up to 2.4 times as much
# (docs/measuring.md).
_FACTOR = 4
# All but the first start from parameters and inputs that rounding changed. By chance, the first
# errs little in a tensor of one number, or flips no ReLU: with it alone, 6 of 12 compiled models
# were red in a benchmark (docs/measuring.md), and with all none.
_EAGER_RUNS = 9
# The bound of a module that rounds to them beside a reference that does not: e4m3 has a roundoff of
# 2^-4.
_EIGHT_BITS = 6e-2
_OF_DTYPE = "for one op in its dtype"  # basis of a bound
_SHOWN_TENSORS = 3  # in a message
_GRADIENT = "gradient of "  # begins the name of each
_ROUNDED = {*TORCH_DTYPES.values(), torch.float64}
# A gradient below so many roundoffs of the largest one is zero but for rounding: 2e-12 of it in
# float64.
_ROUNDING = 1e4


class NotComparedError(KernelgaugeError):
    """The result has nothing to be compared with. That is no fault of the workload."""


@dataclass(frozen=True)
class RelativeError:
    """The error of one tensor of the result: an output, or the gradient of a parameter or an input."""

    tensor: str
    error: float
    bound: float
    reference: str  # ``float64``, or ``float32`` where the reference does not run in float64
    basis: str  # where the bound comes from

    @property
    def is_judged(self) -> bool:
        """Whether the bound refuses a result of zeros."""
        return self.bound < 1

    @property
    def within_bound(self) -> bool:
        """Whether rounding explains the error.

        NaN is within no bound, unless the eager run has it too.
        """
        return self.error <= self.bound or self.bound == math.inf

    def allowing(self, floor: float, eager: RelativeError | None) -> RelativeError:
        """Return it with a larger bound: of the dtypes at work, or by the error of an eager run.

        NaN allows everything.
        """
        allowed = [(self.bound, self.basis), (floor, _OF_DTYPE)]
        if eager is not None:
            allowed.append(
                (min(math.inf, _FACTOR * eager.error), f"{_FACTOR} x its eager run's error")
            )
        bound, basis = max(allowed, key=lambda each: each[0])
        return replace(self, bound=bound, basis=basis)

    def __str__(self) -> str:
        return f"{self.tensor}: error {self.error:.1e}, allowed {self.bound:.1e} ({self.basis})"


def compare_with_float64(
    workload: Workload, device: Device, replay: Replay, *, seed: int
) -> list[RelativeError]:
    """Run the workload and its reference on the same fresh random input and parameters, with the
    autotuners' choices of the run that is judged: another choice may hide a wrong one.

    Returns one error for each output tensor, and under a `train` pass for the gradient of each
    parameter and of each input that asks for one. Its bound is the workload's `tolerance`, or the
    larger of two: `BOUNDS` of the coarsest dtype at work, and four times the error of an eager run
    of the reference with the workload's own parameters, if that is needed. One in 16 bits whose
    reference fails in float64 is compared with float32, without TF32: some kernels have no float64.

    Raises `WorkloadUnavailable` if the workload cannot run here, `WorkloadError` if it or its
    reference fails, and `NotComparedError` if nothing fit to compare it with is found.
    """
    with torch_set_up(), replay.active(workload):
        # else a module of the ninth shape silently runs eager, and is compared with itself
        reset_compiler()
        instance = build(workload, device, seed=seed)
        with instance.grad_mode():
            return _compare(instance, device)


def _compare(instance: Instance, device: Device) -> list[RelativeError]:
    workload = instance.workload
    pair = _WithReference(instance, device)
    generators = _generators(device)
    got = pair.results(instance.function)
    draws_numbers = not all(map(torch.equal, generators, _generators(device)))
    if workload.dtype is not None:
        dtypes = {TORCH_DTYPES[workload.dtype]}
    else:  # a coarser dtype in this code alone does not excuse a larger error
        own = _state(pair.reference) if _is_other_code(workload) else pair.state | got
        dtypes = {each.dtype for each in (*own.values(), *pair.inputs.values())}
    floor = _floor(dtypes, workload)
    expected, dtype = pair.expected(is_16_bit=floor > BOUNDS["fp32"])
    if got.keys() != expected.keys():
        sides = got.keys() - expected, expected.keys() - got
        alone, missing = (", ".join(sorted(names)) or "nothing else" for names in sides)
        raise WorkloadError(
            f"{workload.id}: the reference returns other tensors", got=alone, expected=missing
        )
    if not expected:
        raise NotComparedError("its result holds no floating-point tensor")
    zero, name = _zero_gradients(expected, dtype), str(dtype).removeprefix("torch.")

    def compared(
        results: Mapping[str, torch.Tensor], bound: float, basis: str
    ) -> list[RelativeError]:
        return [
            RelativeError(
                each,
                _relative_error(results[each], expected[each], zero.get(each)),
                bound,
                name,
                basis,
            )
            for each in expected
        ]

    if workload.tolerance is not None:
        return compared(got, workload.tolerance, "tolerance")
    errors = compared(got, floor, _OF_DTYPE)
    if draws_numbers and not all(error.within_bound for error in errors):
        pair.require_repeatable(got, floor)
    for run in range(_EAGER_RUNS):
        if all(error.within_bound for error in errors):
            break
        eager, seen = pair.eager_results(rounding=min(floor, BOUNDS["bf16"]) / 2 if run else 0)
        floor = max(floor, _floor(seen, workload))
        explained = (
            compared(eager, 0, "") if eager.keys() == expected.keys() else [None] * len(errors)
        )
        errors = [
            each.allowing(floor, other) for each, other in zip(errors, explained, strict=True)
        ]
    unjudged = [error for error in errors if not error.is_judged]
    if 2 * len(unjudged) > len(errors) and all(error.within_bound for error in errors):
        raise NotComparedError(
            "rounding or overflow alone explains any error",
            got=f"{unjudged[0]}, and so in {len(unjudged)} of {len(errors)} tensors",
            expected="a finer dtype, or a module in eval() mode",
        )
    return errors


class _WithReference:
    """A workload and its reference: they run on the same input, from the same state."""

    def __init__(self, instance: Instance, device: Device) -> None:
        workload = instance.workload
        self._instance, self._device = instance, device
        # As they are before each run.
        self._arguments = [] if instance.is_sequence else tree_map(_copied, instance.calls)
        takes_floats = any(
            each.is_floating_point() or each.is_complex() for each in self.inputs.values()
        )
        if (
            workload.reference is None
            and not isinstance(instance.module, nn.Module)
            and not takes_floats
        ):
            raise NotComparedError(
                "a function without floating-point inputs has nothing to be compared with",
                expected="a reference, or the tensors among its inputs",
            )
        first_call(instance)
        with _reporting_reference(workload, "building"):
            self.reference = _reference(instance, device)
        # likewise
        self.state = {
            name: tensor.detach().clone() for name, tensor in _state(instance.module).items()
        }
        place = partial(
            cast, device=device.torch_device, dtype=TORCH_DTYPES.get(workload.dtype or "")
        )
        others = (it for it in _state(self.reference).items() if it[0] not in self.state)
        self._own_state = {name: place(tensor.detach().clone()) for name, tensor in others}

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The tensors that the workload is called with next. A sequence has others in each run."""
        return inputs_of(self._instance.calls)

    def results(
        self, function: Callable[..., Any], *, rounding: float = 0
    ) -> dict[str, torch.Tensor]:
        """Run a function with the workload's own parameters and input.

        `rounding`: see `eager_results`.
        """
        instance, state = self._instance, _state(self._instance.module)
        _write(state, self.state)
        instance.prepare()  # a generator may set the state for its sequence
        inputs = self.inputs
        _write(inputs, inputs_of(self._arguments))
        if rounding:
            _write(
                state | inputs,
                {name: with_rounding(each, rounding) for name, each in (state | inputs).items()},
            )
        with reporting(instance.workload, "running"):
            return _results(instance.workload, instance.module, function, instance.calls)

    def require_repeatable(self, got: Mapping[str, torch.Tensor], floor: float) -> None:
        again = self.results(self._instance.function)
        changed = [each for each in again if _relative_error(again[each], got[each]) > floor]
        if changed:
            names = ", ".join(changed[:_SHOWN_TENSORS])
            raise NotComparedError(
                "its result is random",
                got=f"{self._instance.workload.id}: two calls with the same input differ in {names}",
                expected="a module in eval() mode, or dropout with p=0",
            )

    def eager_results(self, *, rounding: float) -> tuple[dict[str, torch.Tensor], set[torch.dtype]]:
        """Run the reference with the workload's own parameters and input, and return the dtypes
        that ops computed in too.

        Without a reference it is the module itself. No result is one that does not run in these
        dtypes. `rounding`: changes each number of the parameters and of the input by up to this
        fraction.
        """
        workload, module = self._instance.workload, self._instance.module
        function = module if workload.reference is None else self._reference_in_own_dtype
        results, dtypes = dict[str, torch.Tensor](), set[torch.dtype]()
        with suppress(KernelgaugeError), _eager(), _noting_dtypes(self._device, dtypes):
            results = self.results(function, rounding=rounding)
            if (
                workload.reference is not None
                and workload.dtype is None
                and not _is_other_code(workload)
            ):
                self.results(module)  # autocast may be in the module alone
        return results, dtypes

    def expected(self, *, is_16_bit: bool) -> tuple[dict[str, torch.Tensor], torch.dtype]:
        """Return the results of the reference and their dtype.

        They are those of the first run that does not fail: in float64; there, with the tensors that
        the code makes or holds in float64 as well; of 16 bits, in float32; in its own dtype, if the
        workload runs other code than its reference.
        """
        workload = self._instance.workload
        runs: list[tuple[torch.dtype, AbstractContextManager[Any]]] = [
            (torch.float64, nullcontext()),
            (torch.float64, _promoting()),
            *([(torch.float32, nullcontext())] if is_16_bit else []),
        ]
        failures: list[KernelgaugeError] = []
        for dtype, mode in runs:
            try:
                with _reporting_reference(workload, "running"), mode:
                    return self._expected_in(dtype), dtype
            except KernelgaugeError as error:
                failures.append(error)
        if workload.reference is not None or workload.compile is not None:
            with suppress(KernelgaugeError), _eager():
                results = self.results(self._reference_in_own_dtype)
                floats = (each.dtype for each in results.values() if each.is_floating_point())
                return results, next(floats, torch.float32)
        raise failures[1]

    def _expected_in(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Run the reference in a dtype, without TF32."""
        workload, reference = self._instance.workload, self.reference
        if isinstance(reference, nn.Module):
            # Floating-point tensors alone: `Module.to` would cast complex ones as well, and lose
            # their imaginary part.
            reference = reference.double() if dtype == torch.float64 else reference.float()
            reference.zero_grad()
            for each in (value for part in reference.modules() for value in vars(part).values()):
                # of the copied parameters, with momenta in their old dtype
                if issubclass(type(each), torch.optim.Optimizer):
                    each.load_state_dict(each.state_dict())
        # compiled for another dtype, a custom op's own function may be wrong
        with restoring_settings(), _eager():
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False
            if self._instance.is_sequence:
                calls = self._instance.calls_of(reference, dtype)
                self._require_same_inputs(inputs_of(calls))
            else:
                calls = tree_map(partial(_copied, dtype=dtype), self._arguments)
            if workload.training is not None:  # the reference is not compiled
                workload = replace(workload, training=replace(workload.training, compile=None))
            return _results(workload, reference, reference, calls)

    def _require_same_inputs(self, drawn: Mapping[str, torch.Tensor]) -> None:
        """Raise `NotComparedError` if a generator yields other numbers for the reference, as one
        that draws in its dtype does.
        """
        self._instance.prepare()
        own = self.inputs

        def is_other(name: str) -> bool:
            if name not in drawn or not own[name].is_floating_point():
                return name not in drawn or not torch.equal(own[name], drawn[name])
            return _relative_error(own[name], drawn[name]) > BOUNDS["bf16"]

        names = list(filter(is_other, own))
        if names or own.keys() != drawn.keys():
            raise NotComparedError(
                "its inputs are others for the reference",
                got=", ".join(names[:_SHOWN_TENSORS]),
                expected="a generator that draws in the default dtype, and casts",
            )

    def _reference_in_own_dtype(self, *args: Any, **kwargs: Any) -> Any:
        """Call the reference with the module's own parameters."""
        reference, state = (
            _original(self.reference),
            self._own_state | _state(self._instance.module),
        )
        own = {name: state[name] for name in _state(reference)}
        return (
            torch.func.functional_call(reference, own, args, kwargs)
            if own
            else reference(*args, **kwargs)
        )


def _eager() -> AbstractContextManager[Any]:
    """Run compiled functions eagerly. Where Dynamo is not imported, there are none."""
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


def _write(tensors: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Write values into tensors by name, at their addresses.

    Raises `NotComparedError` where a call has changed a shape.
    """
    with torch.no_grad():  # else a leaf that asks for a gradient may not be written to
        for name in tensors.keys() & values.keys():
            tensor = tensors[name]
            if tensor.shape != values[name].shape:
                got = f"{name}: {list(values[name].shape)} -> {list(tensor.shape)}"
                expected = "a function that leaves the shapes of its inputs and parameters"
                raise NotComparedError(
                    "a call changes a shape in place", got=got, expected=expected
                )
            # No module can write to an expanded tensor. A sparse one has no strides.
            if tensor.layout is not torch.strided or 0 not in tensor.stride():
                tensor.copy_(values[name])


def with_rounding(tensor: torch.Tensor, rounding: float) -> torch.Tensor:
    """Change each number by up to this fraction, if it has a dtype whose roundoff is known."""
    if tensor.dtype not in _ROUNDED:
        return tensor
    return tensor.detach() * (1 + rounding * (2 * torch.rand_like(tensor) - 1))


def _generators(device: Device) -> list[torch.Tensor]:
    """Return the states of the generators of random numbers that a module may draw from."""
    on_gpu = device.torch_device.type == "cuda"
    return [
        torch.get_rng_state(),
        *([torch.cuda.get_rng_state(device.torch_device)] if on_gpu else []),
    ]


def _copied(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Return a copy of a tensor, because a module may write to its inputs; anything else as it is."""
    return cast(value.clone(), value.device, dtype) if isinstance(value, torch.Tensor) else value


def _is_other_code(workload: Workload) -> bool:
    """Return whether the reference is code that the workload must be faster than, and as exact as."""
    return workload.reference is not None and workload.faster_than is not None


def _original(module: Any) -> Any:
    """Return the module that `torch.compile` wrapped, whose names have no prefix; another one as it
    is.
    """
    return getattr(module, "_orig_mod", module)


def _state(module: Any) -> dict[str, torch.Tensor]:
    module = _original(module)
    return (
        dict([*module.named_parameters(), *module.named_buffers()])
        if isinstance(module, nn.Module)
        else {}
    )


def _noting_dtypes(device: Device, dtypes: set[torch.dtype]) -> DispatchMode:
    """Collect the dtypes that ops compute in: autocast, and casts inside a module, do not show
    outside.
    """
    coarser = {"tf32": torch.float16, "bf16": torch.bfloat16}  # tf32 has as many bits as fp16
    of_matmul = coarser.get(device.fp32_precision("matmul"), torch.float32)
    of_convolution = coarser.get(device.fp32_precision("conv"), torch.float32)

    def run(op: Any, args: Any, kwargs: Any) -> Any:
        result = op(*args, **kwargs)
        float32 = of_convolution if "conv" in op.name() else of_matmul
        found = {each.dtype for each in tree_leaves(result) if isinstance(each, torch.Tensor)}
        dtypes.update(float32 if dtype == torch.float32 else dtype for dtype in found)
        return result

    return DispatchMode(run)


@contextmanager
def _promoting() -> Iterator[None]:
    """Compute in float64 what code makes or holds in fewer bits."""
    with FunctionMode(_in_one_dtype), DispatchMode(_in_float64):
        yield


def _in_one_dtype(function: Any, args: Any, kwargs: Any) -> Any:
    """Give a function of torch tensors of one dtype, above autograd: a convolution refuses a bias of
    another one before it runs an op.
    """
    name = getattr(function, "__name__", "_")
    # those that write to a tensor, or ask for its attributes, need that one itself
    if inspect.isbuiltin(function) and not (name.startswith("_") or name.endswith("_")):
        leaves = tree_leaves((args, kwargs))
        dtypes = {each.dtype for each in leaves if isinstance(each, torch.Tensor)}
        is_mixed = torch.float64 in dtypes and dtypes & (_ROUNDED - {torch.float64})
        if is_mixed and "out" not in kwargs:
            args, kwargs = tree_map(_promoted, (args, kwargs))
    return function(*args, **kwargs)


def _in_float64(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op in float64. A cast in the code still rounds.

    An op that writes to a tensor gets its dtype: it would write to a copy. So does a cast that
    autograd makes for a gradient.
    """
    if op._schema.is_mutable:
        return op(*_like_what_is_written(op, args), **kwargs)
    args, kwargs = tree_map(_promoted, (args, kwargs))
    in_backward = torch._C._current_graph_task_id() >= 0
    is_of_gradient = op is torch.ops.aten._to_copy.default and in_backward
    result = op(*args, **kwargs)
    return result if is_of_gradient else tree_map(_promoted, result)


def _like_what_is_written(op: Any, args: Any) -> Any:
    """Return arguments in the dtype of the only one that the op writes to."""
    pairs = [*zip(op._schema.arguments, args, strict=False)]
    written = [value for each, value in pairs if each.alias_info and each.alias_info.is_write]
    if len(written) != 1 or not isinstance(written[0], torch.Tensor):
        return args
    if written[0].dtype not in _ROUNDED:
        return args
    cast = partial(_rounded, written[0].dtype)
    return [each if each is written[0] else tree_map(cast, each) for each in args]


def _rounded(dtype: torch.dtype, value: Any) -> Any:
    is_finer = isinstance(value, torch.Tensor) and value.dtype == torch.float64
    return value.to(dtype) if is_finer else value


def _promoted(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _ROUNDED:
        return value.double()
    is_complex = isinstance(value, torch.Tensor) and value.is_complex()
    return value.to(torch.complex128) if is_complex else value


def _floor(dtypes: set[torch.dtype], workload: Workload) -> float:
    """Return the bound of one op in the coarsest dtype.

    No reference rounds to 8 bits as well: its eager run shows that.
    """
    eight_bits = BOUNDS["bf16"] if workload.reference is None else _EIGHT_BITS
    bounds = {TORCH_DTYPES[name]: bound for name, bound in BOUNDS.items()} | {torch.float64: 0.0}
    coarse = [
        bounds.get(each, eight_bits)
        for each in dtypes
        if each.is_floating_point or each == torch.int8
    ]
    return max([BOUNDS["fp32"], *coarse])


@contextmanager
def _reporting_reference(workload: Workload, doing: str) -> Iterator[None]:
    """Report what the reference raises.

    That a module does not run in another dtype is no fault of it.
    """
    try:
        with reporting(workload, f"{doing} its reference"):
            yield
    except WorkloadError as error:
        if workload.reference is not None:
            raise
        raise NotComparedError(
            "a copy in float64 does not run",
            where=error.where,
            got=error.got,
            expected="a reference=..., which runs in float64",
        ) from None


def _reference(instance: Instance, device: Device) -> Any:
    module = instance.module
    if instance.workload.reference is None:
        return copy_deeply(module) if isinstance(module, nn.Module) else module
    with device.torch_device:
        reference = instance.workload.reference()
    if isinstance(reference, nn.Module):
        own, others = (_original(each) for each in (module, reference))
        is_alike = (
            isinstance(own, nn.Module) and own.state_dict().keys() == others.state_dict().keys()
        )
        # Other code may have parameters of its own.
        if isinstance(own, nn.Module) and (is_alike or not _is_other_code(instance.workload)):
            others.load_state_dict(own.state_dict())
        reference.to(device.torch_device)
    return reference


def _results(
    workload: Workload, module: Any, function: Callable[..., Any], calls: Any
) -> dict[str, torch.Tensor]:
    """Return the outputs of each call, with gradients under a ``train`` pass; of a ``step``, the
    parameters behind it too.
    """
    results: dict[str, torch.Tensor] = {}
    if workload.training is not None:
        step = TrainingStep(
            workload, module, lambda batch: total_of(function(*batch[0], **batch[1]))
        )
        learnt = {name: each for name, each in _state(module).items() if each.requires_grad}
        for batches in calls:
            step.backward(batches)
            # A small step hides a wrong gradient.
            results |= {
                f"{_GRADIENT}{name}": _comparable(each.grad).clone()
                for name, each in learnt.items()
                if each.grad is not None
            }
            step.update()
        return results | {
            f"parameter {name}": each.detach().clone() for name, each in learnt.items()
        }
    for number, ((positional, keywords),) in enumerate(calls):
        output = function(*positional, **keywords)
        tensors = [tensor for _, tensor in named_tensors(output)]
        prefix = f"call {number} " if number else ""
        # Copies, because the next call may write to the same memory: a CUDA graph does, and a
        # kernel that works in place. Other code must return the same integers, such as indices.
        results |= {
            f"{prefix}output {index}": _comparable(each.detach()).clone()
            for index, each in enumerate(tensors)
            if _is_other_code(workload) or each.is_floating_point() or each.is_complex()
        }
        if workload.pass_ == "train":
            torch.autograd.backward(total_of(output))
    if workload.pass_ == "train":
        for name, leaf in {**_state(module), **inputs_of(calls)}.items():
            if leaf.grad is not None:
                results[f"{_GRADIENT}{name}"] = _comparable(leaf.grad.detach())
    return results


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs, and a sparse or nested tensor as a dense one: few ops
    compare these.
    """
    if tensor.layout is torch.jagged:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _zero_gradients(expected: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, float]:
    """Return the gradients that are zero but for rounding, each with the norm that its error is
    relative to.

    A bias before a normalization has such a gradient, or all that a softmax follows: only rounding
    is left of sums that cancel. What was summed is of the size of the other gradients. That of the
    output, which is one, is among them.
    """
    sizes = {
        name: float(tensor.double().norm()) / math.sqrt(max(1, tensor.numel()))
        for name, tensor in expected.items()
        if name.startswith(_GRADIENT)
    }
    largest = max([1.0, *filter(math.isfinite, sizes.values())])
    zero = _ROUNDING * torch.finfo(dtype).eps * largest
    return {
        name: largest * math.sqrt(expected[name].numel())
        for name, size in sizes.items()
        if size <= zero
    }


def _relative_error(got: torch.Tensor, expected: torch.Tensor, scale: float | None = None) -> float:
    """Return the norm of the difference over that of what is expected, or over `scale`."""
    if got.shape != expected.shape:
        return float("nan")
    # A masked score is -inf, or the least number of its dtype.
    limit = torch.finfo(got.dtype).max if got.is_floating_point() else math.inf
    got, expected = got.double(), expected.double()
    is_equal = (
        (got == expected.clamp(-limit, limit)) | (got == expected) | got.isnan() & expected.isnan()
    )
    is_other = ~is_equal | (expected.abs() < limit)  # infinities that are equal have no difference
    got, expected = got[is_other], expected[is_other]
    difference = float((got - expected).norm())
    if difference == 0:  # both may be zero. NaN is not
        return 0.0
    scale = scale or float(expected.norm())
    return difference / scale if scale else math.inf
