"""A baseline as bytes and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kernelgauge.judge import Baseline, Observation, Recorded, calibrated, decode_baseline, encode_baseline, from_run
from kernelgauge.run import ControlTime, Timer
from kernelgauge.trace import KernelIdentity, KernelRecord
from tests.builders import (
    ELSEWHERE,
    OTHER_SOURCE,
    baseline,
    counts,
    fingerprint,
    fused,
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


def test_from_run_rounds_to_the_nanosecond() -> None:
    stored = baseline(
        device=(2.7200000000000273, 2.72000000001),
        host=(1 / 3, 1 / 3),
        host_control_us=14.00049,
        kernels=(launched("gemm", 1 / 3), fused(us=36.79999999999927)),
        controls={"copy": ControlTime("copy", 1 / 3)},
    )
    (process,) = stored.entries[0].processes
    assert process.timers[Timer.DEVICE] == Observation(2.72, 0.0, 2, 40)
    assert process.timers[Timer.HOST] == Observation(0.333, 0.0, 2, 40, control_us=14.0)
    assert process.controls == {"copy": ControlTime("copy", 0.333)}
    assert [kernel.device_time_us for kernel in stored.entries[0].kernels] == [0.333, 36.8]


@pytest.mark.parametrize("version", [3, 4])
def test_decode_ignores_ancestors_and_conditions(version: int) -> None:
    recorded: dict[str, Any] = {"at": "2026-11-20T19:10:12+00:00", "commit": None, "kernelgauge": "0.1.0"}
    stored = json.loads(encode_baseline(baseline())) | {
        "schema_version": version,
        "recorded": {**recorded, "conditions": {"max_temperature_c": 58}},
        "ancestors": [{"at": None, "torch": "2.11.0", "launches": 4, "times_us": {"device_time": 205.1}}],
    }
    read = decode_baseline(json.dumps(stored).encode(), where="x.json", workload=baseline().workload)
    assert read == msgspec.structs.replace(baseline(), recorded=Recorded(**recorded))
    assert not {b"ancestors", b"conditions"} & set(encode_baseline(read).split(b'"'))


def test_calibrated_kernel_time_is_the_mean_of_its_configuration() -> None:
    runs = [run(kernels=mlp_kernels(us=us, source=source)) for us, source in ((38.0, None), (38.5, OTHER_SOURCE))]
    runs.insert(0, run(kernels=mlp_kernels(us=55.4, xblock=512), gpu=ELSEWHERE))
    first, second = calibrated(runs, suite="perf").entries
    assert [kernel.device_time_us for kernel in first.kernels] == [56.0, 58.0, 38.25, 53.0]
    assert (first.draws, second.draws, second.kernels[2].device_time_us) == (2, 1, 55.4)
    processes = [from_run(each, suite="perf").entries[0].processes[0] for each in runs]
    assert [*second.processes, *first.processes] == processes


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
