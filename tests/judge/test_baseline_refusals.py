"""Every file that is not a baseline is refused, and what is wrong with it is named."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kernelgauge.errors import BaselineError
from kernelgauge.judge import SCHEMA_VERSION, decode_baseline, encode_baseline
from tests.builders import WORKLOAD, baseline

WHERE = f"baselines/nvidia-h200/{WORKLOAD}.json"


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file of a sound baseline with one thing changed."""
    stored = json.loads(encode_baseline(baseline()))
    change(stored)
    return json.dumps(stored).encode()


def refusal(content: bytes) -> BaselineError:
    with pytest.raises(BaselineError) as caught:
        decode_baseline(content, where=WHERE, workload=WORKLOAD)
    error = caught.value
    assert WHERE in str(error.where)
    assert error.got
    assert error.expected
    assert error.next_command
    return error


def process(stored: dict[str, Any]) -> Any:
    return stored["entries"][0]["processes"][0]


def device(stored: dict[str, Any]) -> Any:
    return process(stored)["timers"]["device_time"]


def first_kernel(stored: dict[str, Any]) -> Any:
    return stored["entries"][0]["kernels"][0]


WHOLE = encode_baseline(baseline())
CONFLICT = WHOLE.replace(
    b'  "counts": {\n', b'<<<<<<< HEAD\n  "counts": {\n=======\n  "counts": {\n>>>>>>> driver-590\n'
)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(WHOLE[: len(WHOLE) // 2], id="truncated"),
        pytest.param(WHOLE.rstrip()[:-1], id="without its last brace"),
        pytest.param(WHOLE + WHOLE, id="twice"),
        pytest.param(b"\x00" * 4096, id="zeros"),
        pytest.param(b"\xff\xfe\x00{", id="no UTF-8"),
        pytest.param(b"\x1f\x8b\x08\x00", id="gzip"),
        pytest.param(b"null", id="JSON null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'"baseline"', id="a string"),
        pytest.param(b'{"benchmarks": [], "machine_info": {}}', id="JSON of something else"),
        pytest.param(b'{"schema_version": 2}', id="only a version"),
        pytest.param(b'{"schema_version": "2"}', id="version as text"),
        pytest.param(b'{"schema_version": null}', id="no version"),
    ],
)
def test_what_is_no_baseline_is_refused(content: bytes) -> None:
    error = refusal(content)
    assert error.what == "the baseline cannot be read"
    assert error.where == WHERE
    assert error.expected == f"a kernelgauge baseline, schema_version {SCHEMA_VERSION}"
    assert f"git checkout -- {WHERE}" in str(error.next_command)


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n\t"])
def test_an_empty_file_is_called_empty(content: bytes) -> None:
    assert refusal(content).got == "an empty file"


def test_a_merge_conflict_is_called_by_its_name() -> None:
    assert CONFLICT != WHOLE
    error = refusal(CONFLICT)
    assert error.what == "the baseline holds an unresolved merge conflict"


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 99])
def test_a_newer_schema_asks_for_an_upgrade_whatever_else_the_file_holds(version: int) -> None:
    for content in (
        changed(lambda stored: stored.update(schema_version=version)),
        json.dumps({"schema_version": version, "new": [1]}).encode(),
    ):
        error = refusal(content)
        assert error.what == "the baseline was written by a newer version of kernelgauge"
        assert error.where == f"{WHERE}, field schema_version"
        assert (error.got, error.expected) == (str(version), str(SCHEMA_VERSION))
        assert error.next_command == "pip install --upgrade kernelgauge"


@pytest.mark.parametrize("version", [1, 0, -1])
def test_an_older_schema_asks_to_record_again_whatever_else_the_file_holds(version: int) -> None:
    for content in (
        changed(lambda stored: stored.update(schema_version=version)),
        json.dumps({"schema_version": version, "kernels": [], "timers": {}}).encode(),  # as schema 1 had it
    ):
        error = refusal(content)
        assert error.what == "the baseline was written by another version of kernelgauge"
        assert error.where == f"{WHERE}, field schema_version"
        assert (error.got, error.expected) == (str(version), str(SCHEMA_VERSION))
        assert "--perf-update" in str(error.next_command)


def test_the_baseline_of_another_workload_is_refused() -> None:
    error = refusal(changed(lambda stored: stored.update(workload="mlp-eager-bf16-64x128x768x3072")))
    assert error.what == "the baseline belongs to another workload"
    assert error.where == f"{WHERE}, field workload"
    assert (error.got, error.expected) == ("mlp-eager-bf16-64x128x768x3072", WORKLOAD)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(lambda s: device(s).update(median_us=1.0), "median_us", id="unknown field of a timer"),
        pytest.param(lambda s: s.pop("suite"), "suite", id="missing field"),
        pytest.param(lambda s: s["counts"].pop("launches"), "launches", id="missing count"),
        pytest.param(lambda s: s["counts"].update(launches="4"), "$.counts.launches", id="count as text"),
        pytest.param(lambda s: s["counts"].update(launches=4.5), "$.counts.launches", id="count with a fraction"),
        pytest.param(lambda s: s["counts"].update(memsets=None), "$.counts.memsets", id="no count"),
        pytest.param(lambda s: s["fingerprint"].update(arch=90), "$.fingerprint.arch", id="arch as number"),
        pytest.param(lambda s: s["fingerprint"].update(torch=None), "$.fingerprint.torch", id="no torch"),
        pytest.param(lambda s: s.update(entries={}), "$.entries", id="entries as object"),
        pytest.param(lambda s: s["entries"][0].update(kernels={}), "$.entries[0].kernels", id="kernels as object"),
        pytest.param(lambda s: first_kernel(s).update(device_time_us="38.1"), "kernels[0].device_time_us", id="time"),
        pytest.param(lambda s: first_kernel(s)["identity"].update(grid=[1, 2]), "kernels[0].identity.grid", id="grid"),
        pytest.param(lambda s: device(s).update(mean_us="205.1"), "mean_us", id="a mean as text"),
        pytest.param(lambda s: device(s).update(mean_us=None), "mean_us", id="no mean"),
        pytest.param(lambda s: device(s).update(replicates=2.5), "replicates", id="half a replicate"),
        pytest.param(lambda s: process(s).pop("gpu"), "gpu", id="missing GPU"),
        pytest.param(lambda s: process(s)["controls"].update(copy=30.0), "controls", id="a control as number"),
    ],
)
def test_a_field_that_is_wrong_is_named(change: Callable[[dict[str, Any]], object], named: str) -> None:
    error = refusal(changed(change))
    assert error.what == "the baseline cannot be read"
    assert named in str(error.got)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("field", [b'"mean_us"', b'"spread"', b'"control_us"', b'"device_time_us"'])
def test_a_number_that_is_not_finite_is_refused(field: bytes, number: bytes) -> None:
    content, replaced = re.subn(field + rb": [\d.]+", field + b": " + number, WHOLE, count=1)
    assert replaced == 1
    assert refusal(content).what == "the baseline cannot be read"


def second_entry(stored: dict[str, Any]) -> dict[str, Any]:
    """The same kernels in another configuration, as the autotuner may draw it."""
    entry: dict[str, Any] = copy.deepcopy(stored["entries"][0])
    entry["kernels"][2]["identity"].update(kernel_kwargs="XBLOCK=512", num_warps=8)
    stored["entries"].append(entry)
    return entry


def test_two_configurations_of_the_same_kernels_are_no_contradiction() -> None:
    stored = decode_baseline(changed(second_entry), where=WHERE, workload=WORKLOAD)
    assert len(stored.entries) == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(lambda s: s.update(entries=[]), "at least one - at `$.entries`", id="no entry"),
        pytest.param(
            lambda s: second_entry(s)["kernels"].reverse(),
            "kernels differ from those of the first entry",
            id="two workloads",
        ),
        pytest.param(lambda s: second_entry(s)["kernels"].pop(), "$.entries[1].kernels", id="fewer kernels"),
        pytest.param(lambda s: s["counts"].update(launches=7), "7, but there are 4 kernels", id="other launches"),
        pytest.param(lambda s: s["counts"].update(copies=-1), "negative: -1 - at `$.counts.copies`", id="a count"),
        pytest.param(
            lambda s: s["entries"][0].update(draws=0),
            "expected 1 to 1000000000, got 0 - at `$.entries[0].draws`",
            id="draws",
        ),
        pytest.param(lambda s: s["entries"][0].update(processes=[]), "`$.entries[0].processes`", id="no process"),
        pytest.param(lambda s: first_kernel(s).update(device_time_us=-1.0), "no duration: -1.0", id="a kernel's time"),
        pytest.param(lambda s: second_entry(s).update(draws=-1), "`$.entries[1].draws`", id="in the second entry"),
        pytest.param(lambda s: device(s).update(mean_us=0.0), "timers.device_time.mean_us", id="no time"),
        pytest.param(lambda s: s["counts"].update(kernels=7), "7, but the kernels have 3 names", id="other names"),
        pytest.param(lambda s: device(s).update(mean_us=1e50), "no duration: 1e+50", id="an absurd time"),
        pytest.param(lambda s: device(s).update(mean_us=5e-324), "no duration: 5e-324", id="a denormal"),
        pytest.param(lambda s: device(s).update(control_us=1e308), "no duration: 1e+308", id="an absurd control"),
        pytest.param(lambda s: device(s).update(spread=1e300), "no standard deviation: 1e+300", id="an absurd spread"),
        pytest.param(lambda s: first_kernel(s).update(device_time_us=1e50), "no duration: 1e+50", id="a kernel's days"),
        pytest.param(lambda s: device(s).update(mean_us=-205.1), "no duration: -205.1", id="a negative time"),
        pytest.param(
            lambda s: device(s).update(replicates=0, spread=None), "expected 1 to 1000000000, got 0", id="replicates"
        ),
        pytest.param(
            lambda s: device(s).update(replicates=-3, spread=None),
            "expected 1 to 1000000000, got -3",
            id="fewer than none",
        ),
        pytest.param(lambda s: device(s).update(iterations=0), "timers.device_time.iterations", id="iterations"),
        pytest.param(lambda s: device(s).update(replicates=10**9 + 1), "got 1000000001", id="too many replicates"),
        pytest.param(lambda s: device(s).update(iterations=10**400), "got 1000", id="too many iterations"),
        pytest.param(
            lambda s: s["counts"].update(peak_allocated_bytes=10**400),
            "at most 64 bits, got 100000000000000000000000... - at `$.counts.peak_allocated_bytes`",
            id="too many bytes",
        ),
        pytest.param(lambda s: second_entry(s).update(draws=10**9 + 1), "got 1000000001", id="too many draws"),
        pytest.param(lambda s: device(s).update(control_us=0.0), "timers.device_time.control_us", id="host control"),
        pytest.param(lambda s: device(s).update(replicates=1), "of 1 replicates", id="the spread of one"),
        pytest.param(lambda s: device(s).update(spread=None), "None of 4 replicates", id="no spread of four"),
        pytest.param(lambda s: device(s).update(spread=-0.01), "no standard deviation: -0.01", id="a negative spread"),
        pytest.param(
            lambda s: process(s)["controls"]["copy"].update(device_time_us=0.0),
            "`$.entries[0].processes[0].controls.copy.device_time_us`",
            id="a control's time",
        ),
    ],
)
def test_decode_of_impossible_value_is_refused_and_named(
    change: Callable[[dict[str, Any]], object], named: str
) -> None:
    assert named in str(refusal(changed(change)).got)


def _unknown_timer(stored: dict[str, Any]) -> None:
    timers = process(stored)["timers"]
    timers["device_tiem"] = timers.pop("device_time")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda s: s["fingerprint"].update(nvlink=True), id="of the fingerprint"),
        pytest.param(lambda s: s["counts"].update(launchs=4), id="a count"),
        pytest.param(lambda s: s["entries"][0].update(note="x"), id="of an entry"),
        pytest.param(lambda s: process(s).update(note="x"), id="of a process"),
        pytest.param(lambda s: process(s)["controls"]["copy"].update(note="x"), id="of a control"),
        pytest.param(lambda s: first_kernel(s).update(note="x"), id="of a kernel"),
        pytest.param(lambda s: first_kernel(s)["identity"].update(num_warp=4), id="of an identity"),
        pytest.param(_unknown_timer, id="a timer"),
    ],
)
def test_a_field_that_nobody_knows_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    assert refusal(changed(change)).what == "the baseline cannot be read"


def test_json_nested_too_deeply_is_refused() -> None:
    refusal(b'{"schema_version": 2, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize("version", [2, 3])
def test_decode_of_older_schema_returns_this_one(version: int) -> None:
    def older(stored: dict[str, Any]) -> None:
        stored["schema_version"] = version
        del process(stored)["host"]

    assert decode_baseline(changed(older), where=WHERE, workload=WORKLOAD) == baseline()
