"""Type promotion, held against torch's own."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kernelgauge.trace.work import Input, promoted

NAMES = {
    torch.bool: "bool",
    torch.uint8: "unsigned char",
    torch.int8: "signed char",
    torch.int16: "short int",
    torch.int32: "int",
    torch.int64: "long int",
    torch.half: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.float: "float",
    torch.double: "double",
    torch.complex32: "c10::complex<c10::Half>",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
WIDE = (2, 3)


def answers(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many pairs of types are answered at all, and how many of those as torch does: x of WIDE, y of `shape`."""
    known = right = 0
    for x, y in product(NAMES, NAMES):
        found = promoted([Input(WIDE, NAMES[x]), Input(shape, NAMES[y])])
        expected = torch.result_type(torch.zeros(WIDE, dtype=x), torch.zeros(shape, dtype=y))
        known += found is not None
        right += found == NAMES[expected]
    return known, right


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("shape", [WIDE, (1,), ()])
def test_every_answer_is_torchs_and_most_pairs_have_one(shape: tuple[int, ...]) -> None:
    known, right = answers(shape)
    assert known == right
    assert known >= len(NAMES) ** 2 * 0.5


@pytest.mark.parametrize(
    ("tensor", "number", "expected"),
    [
        (torch.half, 2.0, "c10::Half"),
        (torch.bfloat16, 2, "c10::BFloat16"),
        (torch.int32, 2, "int"),
        (torch.bool, 2, "long int"),
    ],
)
def test_a_number_that_became_a_tensor_does_not_widen_its_category(
    tensor: torch.dtype, number: float, expected: str
) -> None:
    recorded_as = "double" if isinstance(number, float) else "long int"
    assert promoted([Input(WIDE, NAMES[tensor]), Input((), recorded_as)]) == expected
    assert NAMES[torch.result_type(torch.zeros(WIDE, dtype=tensor), number)] == expected


def test_a_floating_number_beside_integers_may_be_a_tensor_too() -> None:
    assert torch.result_type(torch.zeros(2, dtype=torch.int32), 2.0) == torch.float
    assert torch.result_type(torch.zeros(2, dtype=torch.int32), torch.tensor(2.0, dtype=torch.double)) == torch.double
    assert promoted([Input((2,), "int"), Input((), "double")]) is None
    assert promoted([Input((), "float"), Input((), "double")]) is None


def test_a_number_by_value_leaves_only_floating_types_as_they_are() -> None:
    number = Input((), "Scalar")
    assert promoted([Input(WIDE, "c10::Half"), number]) == "c10::Half"
    assert promoted([Input(WIDE, "int"), number]) is None


def test_types_outside_promotion_are_what_they_are_alone() -> None:
    assert promoted([Input(WIDE, "c10::Float8_e5m2")]) == "c10::Float8_e5m2"
    assert promoted([Input(WIDE, "c10::Float8_e5m2"), Input(WIDE, "float")]) is None
    assert promoted([]) is None
