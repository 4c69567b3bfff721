"""Two machines: the same, with other software, or foreign to each other."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.judge import compare
from tests.builders import H200, fingerprint

ADDED = "cudnn fp32_matmul cudnn_tf32 deterministic".split()  # older baselines lack them
FOREIGN = "device arch sm_count power_limit_watts mig".split()
MOVED = [*"driver cuda torch triton liger_kernel python".split(), *ADDED]
KINDS = {"foreign": FOREIGN, "moved": MOVED, "recorded": ["memory_bytes"]}


@pytest.mark.parametrize(("field", "kind"), [(field, kind) for kind, fields in KINDS.items() for field in fields])
def test_compare_of_each_field_has_one_kind(field: str, kind: str) -> None:
    comparison = compare(H200, fingerprint(**{field: "x"}))
    found = {each: list(map(str, getattr(comparison, each))) for each in KINDS}
    assert found == {key: [] for key in KINDS} | {kind: [f"{field} {getattr(H200, field)} -> x"]}
    assert (comparison.comparable, comparison.identical) == (kind != "foreign", kind == "recorded")
    assert {*FOREIGN, *MOVED, "memory_bytes"} == set(H200.__struct_fields__)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"memory_bytes": 1}, "identical"),
        ({"deterministic": None}, {}, "identical"),
        ({}, {"power_limit_watts": None}, "power_limit_watts 700.0 -> (none)"),
        ({}, {"torch": "2.12.0", "sm_count": 114}, "sm_count 132 -> 114, torch 2.11.0+cu130 -> 2.12.0"),
    ],
)
def test_comparison_text_names_foreign_fields_first(before: Any, after: Any, text: str) -> None:
    assert str(compare(fingerprint(**before), fingerprint(**after))) == text
