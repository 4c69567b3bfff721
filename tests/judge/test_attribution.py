"""Which kernels carry a change: nothing is lost between the kernels and their sum."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from kernelgauge.judge.time_verdict import explain
from kernelgauge.trace import KernelRecord, align
from tests.builders import DOWN, FUSED, GEMM, OTHER_SOURCE, fused, launched, mlp_kernels

AUTOTUNER = "Inductor's autotuner chose differently"


def pairs(before: Sequence[KernelRecord], after: Sequence[KernelRecord]) -> list[tuple[str | None, str | None]]:
    return [
        (change.before and change.before.identity.name, change.after and change.after.identity.name)
        for change in align(before, after)
    ]


def sequence(names: str) -> tuple[KernelRecord, ...]:
    return tuple(launched(name, 10.0) for name in names)


# -- pairing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_deltas_of_the_kernels_sum_to_the_change_of_the_total(seed: int) -> None:
    generator = random.Random(seed)

    def draw() -> list[KernelRecord]:
        return [launched(generator.choice("abcde"), generator.uniform(0.5, 80)) for _ in range(generator.randrange(25))]

    before, after = draw(), draw()
    total = sum(kernel.device_time_us for kernel in after) - sum(kernel.device_time_us for kernel in before)
    assert sum(change.delta_us for change in align(before, after)) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("seed", range(50))
def test_every_launch_is_in_one_pair_and_in_its_order(seed: int) -> None:
    generator = random.Random(seed)
    before = sequence(generator.choices("abcd", k=generator.randrange(20)))  # type: ignore[arg-type]
    after = sequence(generator.choices("abcd", k=generator.randrange(20)))  # type: ignore[arg-type]
    changes = align(before, after)
    assert [change.before for change in changes if change.before] == list(before)
    assert [change.after for change in changes if change.after] == list(after)
    paired = [(change.before, change.after) for change in changes if change.before and change.after]
    assert all(before.identity.name == after.identity.name for before, after in paired)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("abc", "abc", [("a", "a"), ("b", "b"), ("c", "c")]),
        ("ac", "abc", [("a", "a"), (None, "b"), ("c", "c")]),
        ("abc", "ac", [("a", "a"), ("b", None), ("c", "c")]),
        ("ab", "xab", [(None, "x"), ("a", "a"), ("b", "b")]),
        ("ab", "abx", [("a", "a"), ("b", "b"), (None, "x")]),
        ("abc", "axc", [("a", "a"), ("b", None), (None, "x"), ("c", "c")]),
        ("", "a", [(None, "a")]),
        ("a", "", [("a", None)]),
        ("", "", []),
        ("aa", "aaa", [("a", "a"), ("a", "a"), (None, "a")]),
    ],
)
def test_launches_are_paired_by_name_around_insertions(
    before: str, after: str, expected: list[tuple[str | None, str | None]]
) -> None:
    assert pairs(sequence(before), sequence(after)) == expected


def test_long_sequences_of_one_kernel_are_paired_too() -> None:
    # difflib's "autojunk" would drop names that fill more than 1 % of 200 and more.
    before, after = sequence("ab" * 150), sequence("ab" * 75 + "x" + "ab" * 75)
    assert [change for change in pairs(before, after) if None in change] == [(None, "x")]


# -- why ------------------------------------------------------------------------------------------------------------


def test_the_kernel_that_carries_the_change_is_named_and_the_rest_summed_up() -> None:
    named, rest = explain(mlp_kernels(), mlp_kernels(us=55.4))
    assert named == [f"{FUSED}  38.1 -> 55.4 us (+17.30): same kernel, same launch configuration, slower"]
    assert rest == "3 GEMMs unchanged (same identity, +0.0 %, +0.00 us)"


def test_kernels_are_named_from_the_largest_change_down_slower_or_faster() -> None:
    named, rest = explain(mlp_kernels(), mlp_kernels(gate=46.0, down=83.0))
    assert [(line.split()[0], line.split()[-1]) for line in named] == [(DOWN, "slower"), (GEMM, "faster")]
    assert rest == "1 GEMM, 1 pointwise kernel unchanged (same identity, +0.0 %, +0.00 us)"


def test_a_kernel_below_a_tenth_of_the_change_is_in_the_rest() -> None:
    named, rest = explain(mlp_kernels(), mlp_kernels(gate=57.0, us=57.1))
    assert [line.split()[0] for line in named] == [FUSED]
    assert rest.startswith("3 GEMMs ")


def test_new_and_gone_kernels_are_named_with_their_time() -> None:
    named, _ = explain(sequence("ab"), (launched("a", 10.0), launched("c", 12.5)))
    assert named == ["c  new: 12.5 us", "b  gone: 10.0 us"]


def test_another_identity_is_named_even_where_the_time_is_the_same() -> None:
    named, rest = explain(mlp_kernels(), mlp_kernels(xblock=512))
    assert len(named) == 1
    assert "other launch configuration" in named[0]
    assert rest == "3 GEMMs unchanged (same identity, +0.0 %, +0.00 us)"


def test_where_nothing_moved_nothing_is_named() -> None:
    named, rest = explain(mlp_kernels(), mlp_kernels())
    assert named == []
    assert rest == "3 GEMMs, 1 pointwise kernel unchanged (same identity, +0.0 %, +0.00 us)"


def test_of_no_kernels_nothing_is_said() -> None:
    assert explain((), ()) == ([], "")


def test_the_autotuner_is_the_cause_where_the_source_is_the_same() -> None:
    (named,), _ = explain([fused(38.1)], [fused(55.4, xblock=512)])
    assert named == (
        f"{FUSED}  38.1 -> 55.4 us (+17.30): same source (crp6dxk5), other launch configuration:\n"
        "XBLOCK 1024 -> 512, num_warps 4 -> 8: " + AUTOTUNER
    )


def test_the_autotuner_is_no_cause_where_the_source_is_another() -> None:
    (named,), _ = explain([fused(38.1)], [fused(55.4, xblock=512, source=OTHER_SOURCE)])
    assert "other source (crp6dxk5 -> c6ftvhgu), other launch configuration:\nXBLOCK 1024 -> 512" in named
    assert AUTOTUNER not in named


def test_another_source_with_the_same_launch_is_said_so() -> None:
    (named,), _ = explain([fused(38.1)], [fused(55.4, source=OTHER_SOURCE)])
    assert "other source (crp6dxk5 -> c6ftvhgu)" in named
    assert named.endswith("same launch configuration")


def test_the_autotuner_is_no_cause_of_another_grid_of_a_library_kernel() -> None:
    (named,), _ = explain([launched(GEMM, 56.0, grid=(2, 66, 1))], [launched(GEMM, 60.0, grid=(2, 33, 1))])
    assert named == f"{GEMM}  56.0 -> 60.0 us (+4.00): other launch configuration:\ngrid 2x66x1 -> 2x33x1"


@pytest.mark.parametrize("sources", [(None, OTHER_SOURCE), (OTHER_SOURCE, None)])
def test_the_autotuner_is_no_cause_where_one_source_is_not_known(sources: tuple[str | None, str | None]) -> None:
    before, after = sources
    (named,), _ = explain([fused(38.1, source=before)], [fused(55.4, xblock=512, source=after)])
    assert AUTOTUNER not in named


def test_the_autotuner_is_no_cause_where_neither_source_is_known() -> None:
    (named,), _ = explain([fused(38.1, source=None)], [fused(55.4, xblock=512, source=None)])
    assert AUTOTUNER not in named


def test_a_change_spread_over_many_kernels_is_not_called_unchanged() -> None:
    before = [launched(f"kernel_{index}", 10.0) for index in range(12)]
    after = [launched(f"kernel_{index}", 10.8) for index in range(12)]
    named, rest = explain(before, after)
    assert len(named) == 3
    assert rest == "9 GEMMs of the same identity, +8.0 % together (+7.20 us)"


def test_of_equal_launches_that_share_a_change_none_is_lost() -> None:
    named, rest = explain([launched("kernel", 10.0)] * 12, [launched("kernel", 10.8)] * 12)
    assert len(named) == 3
    assert rest == "9 GEMMs of the same identity, +8.0 % together (+7.20 us)"


def told_us(texts: Sequence[str], rest: str) -> float:
    """What the lines say together: the deltas in parentheses, and the times of what is new or gone."""
    total = 0.0
    for text in texts:
        if match := re.search(r" (new|gone): ([\d.]+) us$", text):
            total += float(match[2]) * (1 if match[1] == "new" else -1)
        else:
            total += float(re.findall(r"\(([+-][\d.]+)\)", text)[0])
    return total + sum(float(delta) for delta in re.findall(r"([+-][\d.]+) us\)$", rest))


@pytest.mark.parametrize("seed", range(50))
def test_the_deltas_that_are_told_sum_to_the_change_of_the_total(seed: int) -> None:
    generator = random.Random(seed)

    def draw() -> list[KernelRecord]:
        return [launched(generator.choice("abc"), generator.choice((2.0, 8.1, 8.2))) for _ in range(12)]

    before, after = draw(), draw()
    total = sum(kernel.device_time_us for kernel in after) - sum(kernel.device_time_us for kernel in before)
    assert told_us(*explain(before, after)) == pytest.approx(total, abs=0.01 * 24)
