"""Two machines: the same, with other software, or foreign to each other."""

from __future__ import annotations

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
    assert compare(fingerprint(**dict.fromkeys(ADDED)), H200).identical
    assert {*FOREIGN, *MOVED, "memory_bytes"} == set(H200.__struct_fields__)
