"""A baseline as bytes and back, and every file that is not one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import BaselineError
from kernelgauge.judge import SCHEMA_VERSION, decode_baseline, encode_baseline, from_run
from kernelgauge.run import Timer
from tests.builders import WORKLOAD, baseline, counts, fused, launched, mlp_kernels, run

WHERE = f"baselines/nvidia-h200/{WORKLOAD}.json"

GOLDEN = """\
{
  "schema_version": 1,
  "suite": "perf",
  "workload": "linear-eager-bf16-1024x32x64",
  "fingerprint": {
    "device": "NVIDIA H200",
    "arch": "sm_90",
    "sm_count": 132,
    "memory_bytes": 150109880320,
    "power_limit_watts": 700.0,
    "mig": false,
    "driver": "580.159.04",
    "cuda": "13.0",
    "torch": "2.11.0+cu130",
    "triton": "3.6.0",
    "liger_kernel": "0.8.5",
    "python": "3.12.3"
  },
  "counts": {
    "launches": 1,
    "kernels": 1,
    "memsets": 0,
    "copies": 0,
    "synchronizations": 0,
    "dispatcher_ops": 5,
    "graph_breaks": 0,
    "recompiles": 0,
    "peak_allocated_bytes": null
  },
  "kernels": [
    {
      "identity": {
        "name": "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_bias_TNT",
        "kind": "gemm",
        "grid": [
          2,
          64,
          1
        ],
        "block": [
          384,
          1,
          1
        ]
      },
      "device_time_us": 2.72
    }
  ],
  "timers": {
    "device_time": {
      "median_us": 2.71,
      "statistic": "median",
      "replicates_us": [
        2.72,
        2.7
      ],
      "iterations": 40,
      "host_control_us": null
    },
    "host_dispatch": {
      "median_us": 11.125,
      "statistic": "lower decile",
      "replicates_us": [
        11.25,
        11.0
      ],
      "iterations": 40,
      "host_control_us": null
    }
  }
}
"""


def decode(content: bytes, workload: str = WORKLOAD) -> object:
    return decode_baseline(content, where=WHERE, workload=workload)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file of a sound baseline with one thing changed."""
    stored = json.loads(encode_baseline(baseline()))
    change(stored)
    return json.dumps(stored).encode()


def refusal(content: bytes) -> BaselineError:
    with pytest.raises(BaselineError) as caught:
        decode(content)
    error = caught.value
    assert WHERE in str(error.where)
    assert error.got
    assert error.expected
    assert error.next_command
    return error


# -- bytes and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="everything"),
        pytest.param({"kernels": (), "counts": counts(launches=0, kernels=0)}, id="no kernels"),
        pytest.param({"host": None, "end_to_end": None}, id="one timer"),
        pytest.param({"device": (3.2,)}, id="one replicate"),
        pytest.param(
            {
                "kernels": (launched('void f<"a\\b">(\u00e9, \u4e2d\x1b)', 1.0),),
                "counts": counts(launches=1, kernels=1),
            },
            id="a name with everything",
        ),
    ],
)
def test_what_is_stored_is_what_is_read(changes: dict[str, Any]) -> None:
    stored = baseline(**changes)
    assert decode(encode_baseline(stored)) == stored


def test_a_small_file_reads_like_this() -> None:
    stored = baseline(
        workload="linear-eager-bf16-1024x32x64",
        kernels=(launched("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_bias_TNT", 2.72, grid=(2, 64, 1)),),
        counts=counts(launches=1, kernels=1, memsets=0, dispatcher_ops=5, peak_allocated_bytes=None),
        device=(2.72, 2.7),
        host=(11.25, 11.0),
        end_to_end=None,
    )
    assert encode_baseline(stored).decode() == GOLDEN
    assert decode_baseline(GOLDEN.encode(), where="x.json", workload=stored.workload) == stored


def test_encoding_twice_gives_the_same_bytes() -> None:
    once = encode_baseline(baseline())
    assert encode_baseline(decode_baseline(once, where=WHERE, workload=WORKLOAD)) == once


def test_timers_are_written_in_one_order_whatever_the_order_of_measuring() -> None:
    measured = run()
    backwards = msgspec.structs.replace(measured, samples=dict(reversed(measured.samples.items())))
    assert list(backwards.samples) != list(measured.samples)
    assert encode_baseline(from_run(backwards, suite="perf")) == encode_baseline(from_run(measured, suite="perf"))
    assert list(json.loads(encode_baseline(baseline()))["timers"]) == [timer.value for timer in Timer]


def test_times_are_stored_to_the_nanosecond() -> None:
    stored = baseline(
        device=(2.7200000000000273, 2.71949999), kernels=(launched("gemm", 1 / 3), fused(us=36.79999999999927))
    )
    assert stored.timers["device_time"].replicates_us == (2.72, 2.719)
    assert stored.timers["device_time"].median_us == 2.72
    assert [kernel.device_time_us for kernel in stored.kernels] == [0.333, 36.8]


def test_a_sample_comes_back_with_its_replicates_and_iterations() -> None:
    sample = baseline(device=(205.1, 205.3, 204.9)).sample(Timer.DEVICE)
    assert sample is not None
    assert (sample.replicates_us, sample.iterations, sample.median_us) == ((205.1, 205.3, 204.9), 40, 205.1)


def test_a_timer_that_was_not_measured_is_not_in_the_baseline() -> None:
    stored = baseline(host=None)
    assert stored.sample(Timer.HOST) is None
    assert set(stored.timers) == {"device_time", "end_to_end"}


def test_what_only_claims_look_at_is_not_stored() -> None:
    stored = from_run(run(launch_apis=("cudaLaunchKernel",), occupancy_queries=3, steps=3), suite="perf")
    assert "cudaLaunchKernel" not in encode_baseline(stored).decode()


def test_the_autotuners_choice_and_the_source_are_stored() -> None:
    stored = json.loads(encode_baseline(baseline(kernels=mlp_kernels(xblock=512))))
    identity = stored["kernels"][2]["identity"]
    assert (identity["kernel_kwargs"], identity["num_warps"]) == ("XBLOCK=512", 8)
    assert identity["source_hash"].startswith("crp6dxk5")


# -- what is not a baseline -----------------------------------------------------------------------------------------

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
        pytest.param(b'{"schema_version": 1}', id="only a version"),
        pytest.param(b'{"schema_version": "1"}', id="version as text"),
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


@pytest.mark.parametrize("version", [0, -1])
def test_an_older_schema_asks_to_record_again(version: int) -> None:
    error = refusal(changed(lambda stored: stored.update(schema_version=version)))
    assert error.what == "the baseline was written by another version of kernelgauge"
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
        pytest.param(lambda s: s.update(note="hand-made"), "note", id="unknown field"),
        pytest.param(
            lambda s: s["timers"]["device_time"].update(mean_us=1.0), "mean_us", id="unknown field of a timer"
        ),
        pytest.param(lambda s: s.pop("suite"), "suite", id="missing field"),
        pytest.param(lambda s: s["counts"].pop("launches"), "launches", id="missing count"),
        pytest.param(lambda s: s["counts"].update(launches="4"), "$.counts.launches", id="count as text"),
        pytest.param(lambda s: s["counts"].update(launches=4.5), "$.counts.launches", id="count with a fraction"),
        pytest.param(lambda s: s["counts"].update(memsets=None), "$.counts.memsets", id="no count"),
        pytest.param(lambda s: s["fingerprint"].update(arch=90), "$.fingerprint.arch", id="arch as number"),
        pytest.param(lambda s: s["fingerprint"].update(torch=None), "$.fingerprint.torch", id="no torch"),
        pytest.param(lambda s: s.update(kernels={}), "$.kernels", id="kernels as object"),
        pytest.param(lambda s: s["kernels"][2].update(device_time_us="38.1"), "$.kernels[2].device_time_us", id="time"),
        pytest.param(
            lambda s: s["kernels"][0]["identity"].update(grid=[1, 2]), "$.kernels[0].identity.grid", id="grid"
        ),
        pytest.param(lambda s: s["timers"]["device_time"].update(replicates_us=205.1), "replicates_us", id="no list"),
        pytest.param(lambda s: s["timers"]["device_time"].update(replicates_us=[None]), "replicates_us", id="null"),
        pytest.param(lambda s: s["timers"]["device_time"].update(statistic="mean"), "statistic", id="statistic"),
    ],
)
def test_a_field_that_is_wrong_is_named(change: Callable[[dict[str, Any]], object], named: str) -> None:
    error = refusal(changed(change))
    assert error.what == "the baseline cannot be read"
    assert named in str(error.got)


@pytest.mark.parametrize("timer", [timer.value for timer in Timer])
@pytest.mark.parametrize("value", [-205.1, 0, -0.0])
def test_a_duration_that_is_not_positive_is_refused(timer: str, value: float) -> None:
    error = refusal(changed(lambda stored: stored["timers"][timer]["replicates_us"].__setitem__(1, value)))
    assert "positive and finite" in str(error.got)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_duration_that_is_no_finite_number_is_refused(number: bytes) -> None:
    content = WHOLE.replace(b"204.9", number)
    assert content != WHOLE
    assert refusal(content).what == "the baseline cannot be read"


def test_a_timer_without_replicates_is_refused() -> None:
    error = refusal(changed(lambda stored: stored["timers"]["device_time"].update(replicates_us=[])))
    assert "at least one replicate" in str(error.got)


def test_the_field_of_a_duration_that_is_not_positive_is_named() -> None:
    error = refusal(changed(lambda stored: stored["timers"]["host_dispatch"]["replicates_us"].__setitem__(1, -1)))
    assert "host_dispatch" in f"{error.where} {error.got}"


def _unknown_timer(stored: dict[str, Any]) -> None:
    stored["timers"]["device_tiem"] = stored["timers"].pop("device_time")


NOT_REFUSED: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("unknown field of the fingerprint", lambda s: s["fingerprint"].update(nvlink=True)),
    ("unknown count", lambda s: s["counts"].update(launchs=4)),
    ("unknown field of a kernel", lambda s: s["kernels"][0].update(note="x")),
    ("unknown field of an identity", lambda s: s["kernels"][0]["identity"].update(num_warp=4)),
    ("unknown timer", _unknown_timer),
    ("negative time of a kernel", lambda s: s["kernels"][0].update(device_time_us=-1.0)),
    ("negative count", lambda s: s["counts"].update(launches=-1)),
    ("launches that are not the kernels'", lambda s: s["counts"].update(launches=7)),
    ("no iterations", lambda s: s["timers"]["device_time"].update(iterations=0)),
    ("a median that is not the replicates'", lambda s: s["timers"]["device_time"].update(median_us=100.0)),
    ("the statistic of another timer", lambda s: s["timers"]["host_dispatch"].update(statistic="median")),
]


@pytest.mark.parametrize("change", [change for _, change in NOT_REFUSED], ids=[name for name, _ in NOT_REFUSED])
def test_a_file_that_cannot_be_right_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    refusal(changed(change))


def test_json_nested_too_deeply_is_refused() -> None:
    refusal(b'{"schema_version": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
