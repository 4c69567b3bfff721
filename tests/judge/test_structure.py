"""What is exact: kernels by name and order, and every count."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import Status, Verdict, compare, judge_structure
from kernelgauge.trace import KernelRecord
from tests.builders import (
    DOWN,
    FUSED,
    GEMM,
    OTHER_SOURCE,
    baseline,
    counts,
    fingerprint,
    launched,
    mlp_kernels,
    reasons,
    run,
)

GATE, UP, MIDDLE, LAST = mlp_kernels()
CONVERT = launched("triton_poi_fused__to_copy_1", 5.0, kind="pointwise")


def judged(ran: tuple[KernelRecord, ...] | None = None, before: Any = None, **changes: Any) -> Verdict:
    stored = baseline(counts=counts(**(before or {})))
    observed = run(kernels=ran, counts=counts(**changes))
    return judge_structure(observed, stored, compare(stored.fingerprint, observed.fingerprint))


def test_the_same_kernels_and_counts_pass() -> None:
    verdict = judged()
    assert verdict.status is Status.PASS
    assert (verdict.subject, verdict.headline, verdict.reasons) == ("structure", "same kernels, same counts", ())


@pytest.mark.parametrize(
    ("kernels", "difference"),
    [
        pytest.param((GATE, UP, MIDDLE, launched(GEMM, 50.0)), [f"- {DOWN}", f"+ {GEMM}"], id="another GEMM"),
        pytest.param((GATE, UP, MIDDLE, CONVERT, LAST), [f"+ {CONVERT.identity.name}"], id="one more"),
        pytest.param((GATE, UP, LAST), [f"- {FUSED}"], id="one less"),
        pytest.param((), [f"- {GEMM}", f"- {GEMM}", f"- {FUSED}", f"- {DOWN}"], id="none left"),
    ],
)
def test_other_kernels_are_regressed_and_listed_fewer_or_not(
    kernels: tuple[KernelRecord, ...], difference: list[str]
) -> None:
    verdict = judged(kernels)
    assert verdict.status is Status.REGRESSED
    assert verdict.headline == "other kernels than in the baseline"
    assert reasons(verdict, "kernels") == difference


def test_another_order_is_another_structure() -> None:
    verdict = judged((GATE, MIDDLE, UP, LAST))
    assert verdict.status is Status.REGRESSED
    assert sorted(line[:2] for line in reasons(verdict, "kernels")) == ["+ ", "- "]


def test_another_launch_configuration_alone_is_no_structural_change() -> None:
    assert judged(mlp_kernels(us=55.4, xblock=512)).status is Status.PASS


def test_another_launch_configuration_of_a_library_kernel_is_a_structural_change() -> None:
    narrow, wide = launched(GEMM, 56.0, grid=(2, 66, 1)), launched(GEMM, 56.0, grid=(2, 33, 1))
    stored = baseline(kernels=(narrow, UP, MIDDLE, LAST))
    observed = run(kernels=(wide, UP, MIDDLE, LAST))
    verdict = judge_structure(observed, stored, compare(stored.fingerprint, observed.fingerprint))
    assert verdict.status is Status.REGRESSED
    assert verdict.headline == "other launch configurations than in the baseline"
    assert reasons(verdict, "kernels") == [f"{GEMM}: grid 2x66x1 -> 2x33x1"]


def test_another_source_alone_is_no_structural_change() -> None:
    assert judged(mlp_kernels(source=OTHER_SOURCE)).status is Status.PASS


COUNTS = [
    ("launches", 4, 5),
    ("kernels", 3, 4),
    ("memsets", 2, 3),
    ("copies", 0, 1),
    ("synchronizations", 0, 1),
    ("dispatcher_ops", 3, 9),
    ("graph_breaks", 0, 1),
    ("recompiles", 0, 1),
    ("peak_allocated_bytes", 1 << 20, 1 << 21),
]


def test_the_table_of_counts_is_complete() -> None:
    assert [field for field, _, _ in COUNTS] == list(counts().__struct_fields__)


@pytest.mark.parametrize(("field", "less", "more"), COUNTS)
def test_more_of_anything_counted_is_regressed(field: str, less: int, more: int) -> None:
    verdict = judged(before={field: less}, **{field: more})
    assert verdict.status is Status.REGRESSED
    assert verdict.headline == "other counts"
    assert reasons(verdict, "counts") == [f"{field.replace('_', ' ')} {less} -> {more}"]


@pytest.mark.parametrize(("field", "less", "more"), COUNTS)
def test_less_of_anything_counted_is_improved(field: str, less: int, more: int) -> None:
    verdict = judged(before={field: more}, **{field: less})
    assert verdict.status is Status.IMPROVED
    assert reasons(verdict, "counts") == [f"{field.replace('_', ' ')} {more} -> {less}"]


def test_more_of_one_and_less_of_another_is_regressed_and_both_are_named() -> None:
    verdict = judged(memsets=1, copies=1)
    assert verdict.status is Status.REGRESSED
    assert reasons(verdict, "counts") == ["copies 0 -> 1", "memsets 2 -> 1"]


def test_other_kernels_are_regressed_even_where_a_count_went_down() -> None:
    verdict = judged((GATE, UP, LAST), launches=3, kernels=2)
    assert verdict.status is Status.REGRESSED
    assert verdict.headline == "other kernels than in the baseline"
    assert reasons(verdict, "counts") == ["launches 4 -> 3", "kernels 3 -> 2"]


def test_a_count_that_one_side_alone_could_observe_is_not_let_pass() -> None:
    assert judged(peak_allocated_bytes=None).status is Status.REGRESSED
    assert judged(before={"peak_allocated_bytes": None}).status is Status.REGRESSED
    assert judged(before={"peak_allocated_bytes": None}, peak_allocated_bytes=None).status is Status.PASS


def test_on_a_foreign_machine_nothing_is_compared() -> None:
    stored = baseline()
    observed = run(kernels=(), machine=fingerprint(sm_count=114), counts=counts(launches=0))
    verdict = judge_structure(observed, stored, compare(stored.fingerprint, observed.fingerprint))
    assert verdict.status is Status.INCOMPARABLE
    assert verdict.headline == "structure not compared: sm_count 132 -> 114"


def test_the_copies_of_a_cuda_graph_are_part_of_the_structure() -> None:
    copy = launched("multi_tensor_apply_kernel", 16.2, kind="copy")
    verdict = judged((copy, *mlp_kernels()), launches=5, kernels=4, dispatcher_ops=1)
    assert verdict.status is Status.REGRESSED
    assert reasons(verdict, "kernels") == ["+ multi_tensor_apply_kernel"]
    assert reasons(verdict, "counts") == ["launches 4 -> 5", "kernels 3 -> 4", "dispatcher ops 3 -> 1"]
