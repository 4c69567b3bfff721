"""A baseline as bytes and back.

Every file that is not a baseline is refused, and what is wrong with it is named.
"""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import BaselineError, NewerBaselineError
from kernelgauge.judge import Status
from kernelgauge.judge.baseline import (
    SCHEMA_VERSION,
    Baseline,
    Recorded,
    decode_baseline,
    encode_baseline,
)
from kernelgauge.judge.structure import judge_structure
from kernelgauge.run import Origin, SourceLine
from kernelgauge.trace.kernel import Resources
from tests.builders import (
    WORKLOAD,
    baseline,
    calibrated,
    counts,
    fingerprint,
    launched,
    mlp_kernels,
    run,
)

WHERE = f"baselines/nvidia-h200/{WORKLOAD}.json"
WHOLE = encode_baseline(baseline())


def decoded(content: bytes) -> Baseline:
    return decode_baseline(content, where=WHERE, workload=WORKLOAD)


def test_decode_of_encoded_baseline_is_equal() -> None:
    one_launch = {"counts": counts(launches=1, kernels=1)}
    names = ('void f<"a\\b">(\u00e9, \u4e2d\x1b)', "\u00e9\u4e2d" * 80)
    odd = [baseline(kernels=(launched(name, 1.0),), **one_launch) for name in names]
    for stored in (
        *odd,
        baseline(kernels=(), counts=counts(launches=0)),
        baseline(device=(3.2,), host=None),
    ):
        assert decoded(encode_baseline(stored)) == stored


def test_encoded_launches_that_are_alike_are_one_row() -> None:
    """A layer that is repeated is written once, with the mean of its times."""
    one, other = (
        Origin("a", (SourceLine("m.py", 1, "x + 1"),)),
        Origin("a", (SourceLine("m.py", 2, "x * 2"),)),
    )
    kernels = tuple(launched("add", us) for us in (1.0, 3.0, 7.0)) * 40
    stored = baseline(
        kernels=kernels, origins=(one, one, other) * 40, counts=counts(launches=120, kernels=1)
    )
    content = encode_baseline(stored)
    written = json.loads(content)
    assert [each["device_time_us"] for each in written["entries"][0]["kernels"]] == [2.0, 7.0]
    assert written["entries"][0]["sequence"] == [0, 0, 1] * 40 == written["origins"]["sequence"]
    assert len(content.splitlines()) < 100
    assert decoded(content) == stored


def test_unknown_fields_are_read_and_those_of_the_file_kept() -> None:
    recorded: dict[str, Any] = {
        "at": "2026-11-20T19:10:12+00:00",
        "commit": None,
        "kernelgauge": "0.1.0",
    }

    def add(stored: dict[str, Any]) -> None:
        stored.update(
            recorded={**recorded, "conditions": {"max_temperature_c": 58}},
            ancestors=[{"torch": "2.11.0"}],
        )
        for part in (
            stored["fingerprint"],
            stored["counts"],
            stored["entries"][0],
            process(stored),
            device(stored),
        ):
            part["ancestors"] = "x"

    read = decoded(changed(add))
    newer = {"ancestors": [{"torch": "2.11.0"}]}
    assert read == msgspec.structs.replace(baseline(), recorded=Recorded(**recorded), newer=newer)
    assert decoded(encode_baseline(read)) == read


def test_calibrated_of_exact_difference_is_refused() -> None:
    for changes, said in (
        ({"counts": counts(memsets=3)}, "counted differently"),
        ({"kernels": mlp_kernels()[::-1]}, "ran different kernels"),
        ({"machine": fingerprint(driver="590.1")}, "different machines or software"),
    ):
        with pytest.raises(ValueError, match=said):
            calibrated([run(), run(), run(**changes)])


def test_lines_that_moved_change_no_file() -> None:
    stored = [
        baseline(
            origins=tuple(
                Origin("net", (SourceLine("m.py", place + by, "y = f(x)"),)) for place in range(4)
            )
        )
        for by in (10, 11)
    ]
    assert stored[0] == stored[1]
    assert decoded(encode_baseline(stored[0])) == stored[0]


def test_older_file_keeps_the_configuration_that_was_chosen_most() -> None:
    def add(stored: dict[str, Any]) -> None:
        stored["entries"][0]["draws"] = 2
        stored["entries"].append(copy.deepcopy(stored["entries"][0]) | {"draws": 1})
        stored["entries"][1]["kernels"][2]["identity"].update(kernel_kwargs="XBLOCK=512")

    assert decoded(changed(add)) == decoded(WHOLE)


def test_stored_kernel_gets_the_kind_that_a_rule_knows_now() -> None:
    old = baseline(
        kernels=(launched("fused_moe_kernel", 10.0, kind="other"),),
        counts=counts(launches=1, kernels=1),
    )
    assert [
        kernel.identity.kind for kernel in decoded(encode_baseline(old)).entries[0].kernels
    ] == ["gemm"]


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file of a sound baseline with one thing changed."""
    stored = json.loads(WHOLE)
    change(stored)
    return json.dumps(stored).encode()


def refusal(content: bytes) -> BaselineError:
    with pytest.raises(BaselineError) as caught:
        decoded(content)
    error = caught.value
    assert WHERE in str(error.where)
    assert all((error.got, error.expected, error.next_command))
    return error


def process(stored: dict[str, Any]) -> Any:
    return stored["entries"][0]["processes"][0]


def device(stored: dict[str, Any]) -> Any:
    return process(stored)["timers"]["device_time"]


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (WHOLE[: len(WHOLE) // 2], "truncated"),
        (b'{"schema_version": 5}', "entries"),
        (b'{"schema_version": 5, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
        (b"  \n\t", "an empty file"),
        (re.sub(rb'("mean_us"): [\d.]+', rb"\1: NaN", WHOLE, count=1), ""),
    ],
)
def test_decode_of_something_else_is_refused(content: bytes, got: str) -> None:
    error = refusal(content)
    assert (error.what, error.where) == ("the baseline cannot be read", WHERE)
    assert got in str(error.got)
    assert error.expected == f"a kernelgauge baseline, schema_version {SCHEMA_VERSION}"
    assert f"git checkout -- {WHERE}" in str(error.next_command)


def test_decode_of_other_schema_is_refused() -> None:
    for version, written_by, next_command in (
        (SCHEMA_VERSION + 1, "a newer", "pip install --upgrade kernelgauge"),
        (SCHEMA_VERSION - 1, "an older", "pytest --perf-update"),
    ):
        error = refusal(json.dumps({"schema_version": version, "kernels": [1]}).encode())
        assert isinstance(error, NewerBaselineError) is (version > SCHEMA_VERSION)
        assert error.what == f"the baseline was written by {written_by} version of kernelgauge"
        assert next_command in str(error.next_command)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        # of another type, or missing
        (lambda s: s.pop("suite"), "suite"),
        (lambda s: s["entries"][0]["kernels"][0]["identity"].update(grid=[1, 2]), "kernels[0].identity.grid"),
        (lambda s: process(s)["timers"].update(device_tiem=1), "device_tiem"),
        # contradictions
        (lambda s: s.update(workload="mlp-eager"), "belongs to another workload, mlp-eager"),
        (lambda s: s.update(entries=[]), "length >= 1 - at `$.entries`"),
        (lambda s: s["counts"].update(launches=7), "7 launches, but there are 4 kernels"),
        # values that no measurement shows
        (lambda s: device(s).update(mean_us=5e-324), "`float` >= 0.001 - at `$.entries[0].processes[0].timers[...].mean_us"),
        (lambda s: process(s)["controls"]["copy"].update(device_time_us=1.1e12), "`float` <= 1000000000000.0"),
    ],
)  # fmt: skip
def test_decode_of_wrong_field_is_refused_and_named(
    change: Callable[[dict[str, Any]], object], named: str
) -> None:
    error = refusal(changed(change))
    assert error.what == "the baseline cannot be read"
    assert named in str(error.got)


def test_processes_keep_what_they_have_in_common() -> None:
    kernels = [
        msgspec.structs.replace(
            mlp_kernels()[0], arguments=arguments, resources=Resources(layout=layout)
        )
        for arguments, layout in (
            (("a=0.5", "b=True"), "contiguous"),
            (("a=0.25", "b=True"), "[8,8] by strides 1,8"),
        )
    ]
    data = [
        {"aten::mm": ("8 stored numbers",), "aten::index": (f"{found} numbers found",)}
        for found in (3, 4)
    ]
    runs = [run(kernels=(kernel,), data=each) for kernel, each in zip(kernels, data, strict=True)]
    both = calibrated(runs)
    (kernel,) = both.entries[0].kernels
    assert (kernel.arguments, kernel.resources) == (("a=", "b=True"), Resources())
    assert both.data == {"aten::mm": ("8 stored numbers",)}
    assert all(judge_structure(each, both).status is Status.PASS for each in runs)
