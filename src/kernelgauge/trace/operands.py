"""The inputs of an op as the profiler recorded them, checked once: what comes from a trace may be anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

__all__ = ["Input", "Work", "broadcast", "multiply_adds", "read_inputs", "total", "written"]

# "Input type" holds names of C++ types as the compiler of torch spells them. Seen with torch 2.11 and 2.13 (GCC); the
# short spellings are Clang's.
ELEMENT_BYTES = {
    "bool": 1, "unsigned char": 1, "signed char": 1,
    "short int": 2, "short": 2, "int": 4, "long int": 8, "long": 8, "long long": 8,
    "short unsigned int": 2, "unsigned short": 2, "unsigned int": 4, "long unsigned int": 8, "unsigned long": 8,
    "c10::Half": 2, "c10::BFloat16": 2, "float": 4, "double": 8,
    "c10::complex<c10::Half>": 4, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1, "c10::Float4_e2m1fn_x2": 1,
}  # fmt: skip
# What the profiler writes in place of a type where an argument is no tensor; "" is also a tensor that was not given.
_NO_TENSOR = frozenset({"", "Scalar", "ScalarList"})
_TENSOR_LIST = "TensorList"
_MOST_DIMENSIONS = 64
_MOST_ELEMENTS = 2**63 - 1  # torch counts in int64


@dataclass(frozen=True)
class Work:
    """How much an op has to do. A field is None where the recorded shapes and types do not say."""

    flops: float | None  # a multiply-add counts 2; None for ops that only move data too
    bytes: float | None  # to and from memory, each operand read once and the result written once


@dataclass(frozen=True, slots=True)
class Input:
    """One argument: a tensor, or `shape` () with the profiler's word for what it is instead.

    A list of tensors is a tensor of an unknown type: the types of its tensors are not recorded.
    """

    shape: tuple[int, ...]
    type: str

    @property
    def is_tensor(self) -> bool:
        return self.type not in _NO_TENSOR

    @property
    def bytes(self) -> int | None:
        return written(self.shape, self.type)


def read_inputs(shapes: object, types: object) -> tuple[Input, ...] | None:
    """The arguments in order; None if anything in them is not as the profiler writes it."""
    if not isinstance(shapes, tuple) or not isinstance(types, tuple) or len(shapes) != len(types):
        return None
    inputs = []
    for shape, type_name in zip(shapes, types, strict=True):
        if type_name == _TENSOR_LIST:
            inputs.append(Input((), _TENSOR_LIST))
        elif isinstance(type_name, str) and _is_shape(shape) and (type_name not in _NO_TENSOR or shape == ()):
            inputs.append(Input(shape, type_name))
        else:
            return None
    return tuple(inputs)


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, tuple)
        and len(shape) <= _MOST_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in shape)  # a bool is no size
        and prod(max(size, 1) for size in shape) <= _MOST_ELEMENTS
    )


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that all of `shapes` expand to (PyTorch, "Broadcasting semantics"); None if there is none."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[int] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def written(shape: tuple[int, ...], type_name: str | None) -> int | None:
    """Bytes of a tensor; None if the size of its elements is not known."""
    size = ELEMENT_BYTES.get(type_name) if type_name is not None else None
    return None if size is None else prod(shape) * size


def total(parts: Iterable[int | None]) -> float | None:
    """The sum in bytes; None if a part is not known."""
    known = 0
    for part in parts:
        if part is None:
            return None
        known += part
    return float(known)


def multiply_adds(type_name: str) -> int:
    """Real multiply-adds for one step of a product of this type: a complex one takes 4, a pair of fp4 values 2."""
    if type_name.startswith("c10::complex<"):
        return 4
    return 2 if type_name.endswith("_x2") else 1
