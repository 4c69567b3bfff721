"""Launch configurations: alike or not, what differs, and whether the autotuner chose it."""

from __future__ import annotations

import pytest

from kernelgauge.judge.baseline import Likeness, likeness
from kernelgauge.trace import KernelIdentity, KernelRecord
from kernelgauge.trace.kernel import configuration_change, was_autotuned
from tests.builders import GEMM, OTHER_SOURCE, fused, launched, mlp_kernels

# -- alike or not ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        pytest.param(mlp_kernels(), Likeness.IDENTICAL, id="the same"),
        pytest.param(mlp_kernels(gate=99.0, us=1.0), Likeness.IDENTICAL, id="other times"),
        pytest.param(mlp_kernels(source=OTHER_SOURCE), Likeness.SAME_CONFIGURATION, id="another source"),
        pytest.param(mlp_kernels(source=None), Likeness.SAME_CONFIGURATION, id="a source that is not known"),
        pytest.param(mlp_kernels(xblock=512), Likeness.SAME_NAMES, id="another configuration"),
        pytest.param(mlp_kernels(xblock=512, source=OTHER_SOURCE), Likeness.SAME_NAMES, id="both"),
        pytest.param(mlp_kernels()[:3], Likeness.OTHER_KERNELS, id="a kernel less"),
        pytest.param(mlp_kernels()[::-1], Likeness.OTHER_KERNELS, id="another order"),
        pytest.param((), Likeness.OTHER_KERNELS, id="none"),
    ],
)
def test_two_launch_sequences_are_as_alike_as_their_identities(
    other: tuple[KernelRecord, ...], alike: Likeness
) -> None:
    assert likeness(mlp_kernels(), other) is alike
    assert likeness(other, mlp_kernels()) is alike


def test_only_the_source_may_differ_between_two_of_one_configuration() -> None:
    assert {alike for alike in Likeness if alike.same_configuration} == {
        Likeness.SAME_CONFIGURATION,
        Likeness.IDENTICAL,
    }


# -- the autotuner's choice -----------------------------------------------------------------------------------------


def test_another_choice_for_the_same_source_is_the_autotuners() -> None:
    assert was_autotuned(fused(1.0).identity, fused(1.0, xblock=512).identity)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(fused(1.0), fused(1.0), id="the same"),
        pytest.param(fused(1.0), fused(1.0, xblock=512, source=OTHER_SOURCE), id="another source"),
        pytest.param(fused(1.0, source=None), fused(1.0, xblock=512, source=None), id="no source"),
        pytest.param(launched(GEMM, 1.0, grid=(1, 1, 1)), launched(GEMM, 1.0, grid=(2, 1, 1)), id="a library's"),
    ],
)
def test_anything_else_is_not_the_autotuners_choice(before: KernelRecord, after: KernelRecord) -> None:
    assert not was_autotuned(before.identity, after.identity)


# -- what differs between two of one name ---------------------------------------------------------------------------


def identity(**fields: object) -> KernelIdentity:
    return KernelIdentity("triton_poi_fused_mul_0", "pointwise", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (identity(), identity(), ""),
        (identity(kernel_kwargs="XBLOCK=64"), identity(kernel_kwargs="XBLOCK=64"), ""),
        (identity(kernel_kwargs="XBLOCK=64"), identity(kernel_kwargs="XBLOCK=128"), "XBLOCK 64 -> 128"),
        (
            identity(kernel_kwargs="XBLOCK=64,YBLOCK=16"),
            identity(kernel_kwargs="YBLOCK=32, XBLOCK=128"),
            "XBLOCK 64 -> 128, YBLOCK 16 -> 32",
        ),
        (
            identity(kernel_kwargs="XBLOCK=64"),
            identity(kernel_kwargs="XBLOCK=64,RBLOCK=8"),
            "RBLOCK (none) -> 8",
        ),
        (identity(kernel_kwargs="XBLOCK=64"), identity(), "XBLOCK 64 -> (none)"),
        (
            identity(num_warps=4, num_stages=1),
            identity(num_warps=8, num_stages=3),
            "num_warps 4 -> 8, num_stages 1 -> 3",
        ),
        (identity(grid=(2, 66, 1)), identity(grid=(2, 33, 1)), "grid 2x66x1 -> 2x33x1"),
        (identity(block=(128, 1, 1)), identity(), "block 128x1x1 -> None"),
        (identity(source_hash="a"), identity(source_hash="b"), ""),
    ],
)
def test_what_differs_is_named_with_both_values(before: KernelIdentity, after: KernelIdentity, text: str) -> None:
    assert configuration_change(before, after) == text


def test_where_the_choice_is_named_the_grid_that_follows_from_it_is_not() -> None:
    before = identity(kernel_kwargs="XBLOCK=64", grid=(8, 1, 1), block=(64, 1, 1), num_warps=4)
    after = identity(kernel_kwargs="XBLOCK=32", grid=(16, 1, 1), block=(32, 1, 1), num_warps=2)
    assert configuration_change(before, after) == "XBLOCK 64 -> 32, num_warps 4 -> 2"
