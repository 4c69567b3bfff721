"""What is right: a reference makes inputs that nobody can know, and says how exact its own dtype is beside float64."""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn
from torch.utils._pytree import tree_map

from ..errors import CandidateRefused, KernelgaugeError
from ..workload import Dtype
from .device import Device
from .guest import load_target, made
from .instance import TORCH_DTYPES, Arguments, cast, read_arguments
from .memory import tensors_of
from .numerics import BOUNDS, with_rounding

_FACTOR = 4  # times the reference's own error, as in `numerics`
_DRAWS = 3  # of the reference's own error, before anything is compared
_FP64 = "fp64"


class Case(NamedTuple):
    """One shape in one dtype."""

    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return "-".join(filter(None, [self.dtype, "x".join(map(str, self.shape))]))


class Wrong(msgspec.Struct, frozen=True):
    """The first wrong element of a result. `allowed`: the absolute error that it may have."""

    case: str
    values: str
    output: str
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float


def _mixed(each: torch.Tensor) -> torch.Tensor:
    """Return rows of other sizes: a shortcut in fewer bits overflows, or loses the small ones."""
    return each * torch.exp2(torch.randint(-6, 6, (*each.shape[:-1], 1)).to(each)) if each.ndim else each


def _with_odd_numbers(each: torch.Tensor) -> torch.Tensor:
    places = torch.randint(max(1, each.numel()), (3,), device=each.device)
    odd = torch.tensor([math.nan, math.inf, -math.inf]).to(each)
    return each.flatten().index_put((places,), odd).view(each.shape) if each.numel() else each


NORMAL, NAN = "normal", "nan"
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    NORMAL: lambda each: each,
    "zeros": torch.zeros_like,
    "large": lambda each: each * (1e2 if each.dtype == torch.float16 else 1e4),
    "small": lambda each: each * max(1e-30, 64 * torch.finfo(each.dtype).tiny),
    "denormal": lambda each: each * (torch.finfo(each.dtype).tiny / 2),
    "mixed": _mixed,
    NAN: _with_odd_numbers,
}


class Oracle:
    """The reference in the judge's process.

    Attributes:
        cases: those that it declares.
        arguments, state: what a candidate's class is made with, and its parameters and buffers; None for a function.
    """

    def __init__(self, target: str, device: Device) -> None:
        self._device, (self._module, found) = device, load_target(target)
        dtypes = tuple(getattr(self._module, "DTYPES", ("fp32",)))
        shapes = [tuple(each) for each in getattr(self._module, "SHAPES", [()])]
        is_ours = hasattr(self._module, "inputs")
        if not (is_ours or hasattr(self._module, "get_inputs")) or not shapes or not set(dtypes) <= TORCH_DTYPES.keys():
            expected = "def inputs(shape, dtype), SHAPES = [(8, 512)], DTYPES = ['fp32', 'bf16']; or def get_inputs()"
            raise KernelgaugeError("the reference declares no inputs", where=target, expected=expected)
        self._parameters = (lambda case: (case.shape, TORCH_DTYPES[case.dtype])) if is_ours else lambda _: ()
        self._inputs = self._module.inputs if is_ours else self._module.get_inputs
        self.cases = [Case(dtype, shape) for dtype in dtypes for shape in shapes]
        self._errors: dict[tuple[Case, str, str], tuple[float, float]] = {}  # of the reference: relative, absolute
        self.arguments = tuple(getattr(self._module, "get_init_inputs", tuple)())
        torch.manual_seed(secrets.randbits(63))  # nobody can guess the parameters either
        with device.torch_device:
            function = made(found, self.arguments, None, lambda each: each)
        self.state = function.state_dict() if isinstance(function, nn.Module) else None
        place = partial(nn.Module.to, device=device.torch_device)
        self._functions = {
            name: place(copy.deepcopy(function), dtype=dtype) if self.state is not None else function
            for name, dtype in [*TORCH_DTYPES.items(), (_FP64, torch.float64)]
        }

    def draw(self, case: Case, values: str = NORMAL) -> Arguments:
        """Make arguments, by a seed that nobody knows."""
        torch.manual_seed(secrets.randbits(63))

        def varied(each: Any) -> Any:
            each = cast(each, self._device.torch_device, TORCH_DTYPES[case.dtype])
            is_float = isinstance(each, torch.Tensor) and each.is_floating_point()
            return VALUES[values](each.detach()).requires_grad_(each.requires_grad) if is_float else each

        with self._device.torch_device:
            return tree_map(varied, read_arguments(self._inputs(*self._parameters(case))))  # type: ignore[no-any-return]

    def results(self, arguments: Arguments, dtype: str) -> dict[str, torch.Tensor]:
        """Call the reference on copies, in a dtype. Raises `KernelgaugeError` if it writes to them."""
        place = torch.float64 if dtype == _FP64 else None
        copies = tree_map(
            lambda each: cast(each.clone(), each.device, place) if isinstance(each, torch.Tensor) else each, arguments
        )
        before, after = ([each for _, each in tensors_of(list(side))] for side in (arguments, copies))
        with torch.set_grad_enabled(any(each.requires_grad for each in before)):
            found = {name: each.detach() for name, each in tensors_of(self._functions[dtype](*copies[0], **copies[1]))}
        if not all(
            torch.equal(one.nan_to_num(), two.to(one.dtype).nan_to_num())
            for one, two in zip(before, after, strict=True)
        ):
            raise KernelgaugeError("the reference writes to its inputs", expected="a function that returns new tensors")
        return found

    def sizes(self, case: Case) -> tuple[int, int, int]:
        """Return the bytes of the inputs and of the results of a call, and the number of its tensors."""
        arguments = self.draw(case)
        inputs = [each for _, each in tensors_of(arguments)]
        sides = inputs, self.results(arguments, case.dtype).values()
        given, taken = (sum(each.numel() * each.element_size() for each in side) for side in sides)
        return given, taken, len(inputs)

    def _exact(self, arguments: Arguments, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the results in float64, or its own ones if it does not run there."""
        try:
            return self.results(arguments, _FP64)
        except KernelgaugeError:
            raise
        except Exception:  # kernels that have no float64
            return own

    def legal_values(self, case: Case) -> list[str]:
        """Return the kinds of inputs on which the reference is as exact as its dtype. Learn how exact that is.

        Raises `KernelgaugeError` if nothing can be compared with it.
        """
        first, second = self.draw(case), self.draw(case)
        own, again = self.results(first, case.dtype), self.results(first, case.dtype)
        if not own or any(_errors(again[name], own[name])[0] > BOUNDS[case.dtype] for name in own):
            got = f"{case.name}: " + ("two calls with the same input differ" if own else "no tensor")
            raise KernelgaugeError("the reference has no result to compare with", got=got)
        if all(
            torch.equal(one, two)
            for (_, one), (_, two) in zip(tensors_of([*first]), tensors_of([*second]), strict=True)
        ):
            expected = "random inputs, without a seed of their own"
            raise KernelgaugeError("the reference makes the same inputs each time", got=case.name, expected=expected)
        return [values for values in VALUES if self._is_legal(case, values)]

    def _is_legal(self, case: Case, values: str) -> bool:
        if values == NAN and not getattr(self._module, "NAN_INPUTS", False):
            return False
        for _ in range(_DRAWS):
            arguments = self.draw(case, values)
            own = self.results(arguments, case.dtype)
            exact = self._exact(arguments, own)
            worst = max(self._learn((case, values, name), own[name], exact[name]) for name in own)
            if values != NORMAL:  # where a softmax saturates, another order of a sum errs more than the reference does
                near = self._exact(self._nudged(arguments, BOUNDS[case.dtype] / 2), exact)
                for name in own:
                    self._learn((case, values, name), near[name], exact[name])
            is_finite = all(each.isfinite().all() for each in (*own.values(), *exact.values()))
            if values not in (NORMAL, NAN) and not (is_finite and worst <= _FACTOR * BOUNDS[case.dtype]):
                return False
        return True

    @staticmethod
    def _nudged(arguments: Arguments, rounding: float) -> Arguments:
        """Change each number by up to this fraction, as `numerics` does."""

        def nudged(each: Any) -> Any:
            is_float = isinstance(each, torch.Tensor) and each.is_floating_point()
            return with_rounding(each, rounding).requires_grad_(each.requires_grad) if is_float else each

        return tree_map(nudged, arguments)  # type: ignore[no-any-return]

    def _learn(self, key: tuple[Case, str, str], own: torch.Tensor, exact: torch.Tensor) -> float:
        """Add one draw to what is known of the reference's own error. Return its relative error."""
        relative, absolute = _errors(own, exact) if own.is_floating_point() else (0.0, 0.0)
        before = self._errors.get(key, (0.0, 0.0))
        self._errors[key] = max(before[0], relative), max(before[1], absolute)
        return relative

    def require_right(self, case: Case, values: str, arguments: Arguments, got: Mapping[str, torch.Tensor]) -> None:
        """Compare a result with the reference's. Raises `CandidateRefused` if it is wrong."""
        own = self.results(arguments, case.dtype)
        exact = self._exact(arguments, own)
        forms = [{name: f"{_text(each)}" for name, each in side.items()} for side in (got, own)]
        if forms[0] != forms[1]:
            shown = [", ".join(f"{name or 'result'} {form}" for name, form in each.items()) for each in forms]
            raise CandidateRefused(
                "the result has another form", where=case.name, got=shown[0] or "none", expected=shown[1]
            )
        for name, result in got.items():
            self._learn((case, values, name), own[name], exact[name])
            is_wrong, allowed = self._wrong_elements((case, values, name), result, own[name], exact[name].double())
            if bool(is_wrong.any()):
                index = tuple(is_wrong.nonzero()[0].tolist())
                numbers = (float(each[index]) for each in (result, exact[name], allowed))
                wrong = Wrong(case.name, values, name, index, *numbers)
                place = f"{wrong.got:g} in {name or 'the result'}[{', '.join(map(str, index))}]"
                right, what = f"{wrong.expected:g} +- {wrong.allowed:.2g}", f"wrong result for {values} inputs"
                raise CandidateRefused(what, where=case.name, got=place, expected=right, wrong=wrong)

    def _wrong_elements(
        self, key: tuple[Case, str, str], result: torch.Tensor, own: torch.Tensor, exact: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which elements are wrong, and the error that each may have."""
        if not result.is_floating_point():
            return result != own, torch.zeros_like(exact)
        (case, values, _), (relative, absolute) = key, self._errors[key]
        floor = max(bound for name, bound in BOUNDS.items() if TORCH_DTYPES[name] == result.dtype or name == case.dtype)
        got, own, size = result.double(), own.double(), exact.abs().nan_to_num(0, 0, 0)
        row = size.square().mean(-1, keepdim=True).sqrt() if size.ndim else size
        allowed = floor * (size + row) + _FACTOR * (absolute + torch.finfo(result.dtype).tiny)
        difference = (got - exact).abs()
        is_wrong = ~(difference <= allowed)
        if bool(is_wrong.any()):  # infinite and NaN as in the reference
            is_wrong &= ~((got == own) | (got == exact) | (got.isnan() & (own.isnan() | exact.isnan())))
        elif values in (NORMAL, "mixed", "large") and _errors(got, exact)[0] > max(floor, _FACTOR * relative):
            return difference == difference.max(), allowed  # each is within its limit, and all together are not
        return is_wrong, allowed


def _errors(got: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Return the norm of the difference over that of what is exact, and the largest difference, where both are finite."""
    got, exact = got.double(), exact.double()
    difference = torch.where(got == exact, 0, got - exact).nan_to_num(0, 0, 0)
    norm, size = float(difference.norm()), float(exact.nan_to_num(0, 0, 0).norm())
    return (norm / size if size else math.inf) if norm else 0.0, float(difference.abs().max()) if norm else 0.0


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
