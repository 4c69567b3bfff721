"""The results of a run as a file, and the files that are refused."""

import json
from pathlib import Path

import pytest

from kernelgauge.errors import NO_TIMES, OTHER_KERNELS, ResultsError
from kernelgauge.judge import Status
from kernelgauge.results import (
    SCHEMA_VERSION,
    Results,
    decode_results,
    encode_results,
    read_results,
)
from kernelgauge.run import Lack
from tests.builders import HOSTILE, baseline, hostile, one_test, results, run, verdict, workload

EVERYTHING = results(
    workload(
        verdict(Status.REGRESSED, reasons=[("why", "a kernel\nwith two lines")]),
        verdict(Status.PASS, "structure", "same kernels"),
        baseline=baseline(),
        trace="traces/mlp.json.gz",
    ),
    workload(name="other", run=None, unavailable="not installed"),
    tests=(one_test("test_device_time", "failed", said="x\ny"),),
    warnings=("a warning",),
)


def refusal(content: bytes) -> ResultsError:
    with pytest.raises(ResultsError) as raised:
        decode_results(content, where="here")
    assert "\x1b" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    "before", [EVERYTHING, *(hostile(text, Status.REGRESSED) for text in HOSTILE)]
)
def test_decode_of_encoded_results_is_equal(before: Results) -> None:
    content = encode_results(before)
    after = decode_results(content, where="here")
    assert (after, encode_results(after)) == (before, content)
    later = json.dumps(json.loads(content) | {"a_later_field": {"x": 1}})
    assert decode_results(later.encode(), where="here") == before
    assert b"\x1b" not in content
    assert content.endswith(b"\n}\n")


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b"\xff\xfe{}", "malformed"),
        (b"[]", "array"),
        (b'{"schema_version": "2"}', "`str` - at `$.schema_version`"),
        (b'{"schema_version": 4, "workloads": 5}', "Invalid enum value 4 - at `$.schema_version`"),
        (b'{"schema_version": 3}', "workloads"),
        (b'{"schema_version": 3, "workloads": ' + b"[" * 100_000, ""),
    ],
)
def test_decode_of_something_else_is_refused(content: bytes, got: str) -> None:
    error = refusal(content)
    assert error.where == "here"
    assert got in (error.got or "")
    assert str(SCHEMA_VERSION) in (error.expected or "")


TIME = "workloads.0.run.samples.device_time"
CHANGE = {"estimate": 0.1, "low": 0.0, "high": 0.2, "confidence": 0.98, "sensitivity": 0}
WRONG = [
    ("seconds", "long", "$.seconds"),
    ("comparisons", 10**400, "$.comparisons"),
    ("workloads.0.verdicts.0.status", "GREAT\x1b[31m", "$.workloads[0].verdicts[0].status"),
    (f"{TIME}.replicates_us", [], "at least one replicate"),
    (f"{TIME}.controls_us", [1.0] * 99, "99 controls"),
    ("workloads.0.run.samples.wall_time", {}, "wall_time"),
    ("workloads.0.limits", {"gate": {"device_time": -1}}, "positive fractions"),
    ("workloads.0.verdicts.0.change", CHANGE, "positive fractions"),
    (
        "workloads.0.verdicts.0.change",
        CHANGE | {"sensitivity": 0.1, "gate": 0},
        "positive fractions",
    ),
    ("workloads.0.run.origins", {"rows": [None], "sequence": [0]}, "1 origins for"),
    ("workloads.0.run.kernels.sequence", [99], "not the places of"),
]


@pytest.mark.parametrize(("path", "value", "got"), WRONG)
def test_decode_of_wrong_field_names_it(path: str, value: object, got: str) -> None:
    content = json.loads(encode_results(EVERYTHING))
    inner = content
    *keys, last = path.split(".")
    for key in keys:
        inner = inner[int(key) if key.isdigit() else key]
    inner[last] = value
    assert got in (refusal(json.dumps(content).encode()).got or "")


def test_read_results_of_no_file_says_where(tmp_path: Path) -> None:
    for name, got in (
        (".", "not a regular file"),
        ("nul\0.json", "null byte"),
        ("\x1b[31m.json", "No such file"),
    ):
        with pytest.raises(ResultsError, match="cannot be read") as raised:
            read_results(tmp_path / name)
        assert (got in (raised.value.got or ""), raised.value.next_command) == (True, "pytest perf")
        assert str(tmp_path) in (raised.value.where or "")
        assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "lack"),
    [(NO_TIMES, Lack.NOT_ASKED), (OTHER_KERNELS, Lack.OTHER_KERNELS), ("x", None)],
)
def test_results_from_before_lacks_have_them_by_their_words(words: str, lack: Lack | None) -> None:
    data = json.loads(encode_results(results(workload(run=run(device=None, incomplete=words)))))
    del data["workloads"][0]["run"]["lack"]
    (found,) = decode_results(json.dumps(data).encode(), where="").runs
    assert found.lack is lack
    assert run(samples={}, incomplete=words, lack=lack).is_timed is (lack is not Lack.NOT_ASKED)
