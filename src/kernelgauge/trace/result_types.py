"""The element type of a pointwise result, by PyTorch's rules of type promotion, as far as a trace can tell it."""

from __future__ import annotations

from collections.abc import Sequence

from .operands import ELEMENT_BYTES, Input

__all__ = ["is_floating", "promoted"]

# Categories, lowest first (PyTorch, "Tensor Attributes": type promotion). fp8 takes part in none of this.
_SIGNED = ("signed char", "short", "short int", "int", "long", "long int", "long long")
_FLOATING = ("c10::BFloat16", "c10::Half", "float", "double")
_COMPLEX = ("c10::complex<c10::Half>", "c10::complex<float>", "c10::complex<double>")
_CATEGORIES = {
    "bool": 0,
    "unsigned char": 1,
    **dict.fromkeys(_SIGNED, 1),
    **dict.fromkeys(_FLOATING, 2),
    **dict.fromkeys(_COMPLEX, 3),
}
# A Python float becomes a tensor without dimensions of type double, and then counts as the default type instead: from a
# row alone it cannot be told from a tensor that is one. What a complex one gives depends on the other's width too.
_UNDECIDED = frozenset({"double", *_COMPLEX})


def is_floating(type_name: str) -> bool:
    return type_name in _FLOATING


def promoted(operands: Sequence[Input]) -> str | None:
    """The type that these operands are computed in; None if that cannot be told.

    Tensors without dimensions count only where they are of a higher category than all others. A "Scalar" is a Python
    number: it changes no floating type, and what it does to others depends on its value's type, which is not recorded.
    """
    wide = {operand.type for operand in operands if operand.is_tensor and operand.shape}
    single = {operand.type for operand in operands if operand.is_tensor and not operand.shape}
    if not wide and len(single) > 1:
        return None  # a tensor or a Python number, each of them
    result = _common(wide or single)
    if result is None:
        return None
    if any(operand.type == "Scalar" for operand in operands) and not is_floating(result):
        return None
    return _raised(result, single) if wide else result


def _common(types: set[str]) -> str | None:
    if len(types) == 1:
        return next(iter(types))
    if not types or not types <= _CATEGORIES.keys():
        return None
    highest = max(_CATEGORIES[name] for name in types)
    top = {name for name in types if _CATEGORIES[name] == highest}
    if highest == 3 or (highest == 1 and "unsigned char" in top and len(top) > 1):
        return None  # mixed with complex, or signed with unsigned: rare, and the rules are long
    if top == {"c10::BFloat16", "c10::Half"}:
        return "float"
    return max(top, key=lambda name: ELEMENT_BYTES[name])


def _raised(result: str, single: set[str]) -> str | None:
    """`result`, raised by tensors without dimensions of a higher category."""
    if not single:
        return result
    if result not in _CATEGORIES or not single <= _CATEGORIES.keys():
        return None
    higher = {name for name in single if _CATEGORIES[name] > _CATEGORIES[result]}
    if not higher:
        return result
    return None if higher & _UNDECIDED else _common(higher)
