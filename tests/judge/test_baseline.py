"""A baseline as bytes and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kernelgauge.judge.baseline import Baseline, Recorded, decode_baseline, encode_baseline
from kernelgauge.trace import KernelIdentity, KernelRecord
from tests.builders import (
    baseline,
    calibrated,
    counts,
    fingerprint,
    launched,
    mlp_kernels,
    run,
)


def decoded(stored: Baseline) -> Baseline:
    return decode_baseline(encode_baseline(stored), where="x.json", workload=stored.workload)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kernels": (), "counts": counts(launches=0, kernels=0)},
        {"device": (3.2,), "host": None, "end_to_end": None},
        *(
            {"kernels": (launched(name, 1.0),), "counts": counts(launches=1, kernels=1)}
            for name in ('void f<"a\\b">(\u00e9, \u4e2d\x1b)', "\u00e9\u4e2d" * 80)
        ),
    ],
)
def test_decode_of_encoded_baseline_is_equal(changes: dict[str, Any]) -> None:
    stored = baseline(**changes)
    content = encode_baseline(stored)
    assert decoded(stored) == stored
    assert encode_baseline(decoded(stored)) == content
    assert json.loads(content) == json.loads(msgspec.json.encode(stored))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_decode_of_older_schema_returns_this_one(version: int) -> None:
    """Older files have conditions and ancestors, and no hosts."""
    recorded: dict[str, Any] = {"at": "2026-11-20T19:10:12+00:00", "commit": None, "kernelgauge": "0.1.0"}
    stored = json.loads(encode_baseline(baseline())) | {
        "schema_version": version,
        "recorded": {**recorded, "conditions": {"max_temperature_c": 58}},
        "ancestors": [{"at": None, "torch": "2.11.0", "launches": 4, "times_us": {"device_time": 205.1}}],
    }
    if version < 4:
        del stored["entries"][0]["processes"][0]["host"]
    read = decode_baseline(json.dumps(stored).encode(), where="x.json", workload=baseline().workload)
    assert read == msgspec.structs.replace(baseline(), recorded=Recorded(**recorded))
    assert not {b"ancestors", b"conditions"} & set(encode_baseline(read).split(b'"'))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"counts": counts(memsets=3)}, "counted differently"),
        ({"kernels": mlp_kernels()[::-1]}, "ran different kernels"),
        ({"machine": fingerprint(driver="590.1")}, "different machines or software"),
    ],
)
def test_calibrated_of_exact_difference_is_refused(changes: dict[str, Any], said: str) -> None:
    for runs in ([run(**changes), run()], [run(), run(), run(**changes)]):
        with pytest.raises(ValueError, match=said):
            calibrated(runs, suite="perf")


def test_stored_kernel_gets_the_kind_that_a_rule_knows_now() -> None:
    kernels = (KernelRecord(KernelIdentity("fused_moe_kernel", "other", (1, 1, 1)), 10.0),)
    old = baseline(kernels=kernels, counts=counts(launches=1, kernels=1))
    read = decode_baseline(encode_baseline(old), where="x.json", workload=old.workload)
    assert [kernel.identity.kind for kernel in read.entries[0].kernels] == ["gemm"]
