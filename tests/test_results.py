"""The results of a run as a file, and every kind of file that is none. Builders of results for the tests of reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgauge import results as results_module
from kernelgauge.errors import ResultsError
from kernelgauge.judge import Reason, RelativeChange, Status, Verdict
from kernelgauge.results import (
    SCHEMA_VERSION,
    Results,
    TestResult,
    WorkloadResult,
    decode_results,
    encode_results,
    read_results,
)
from kernelgauge.run import Timer
from tests.builders import H200, HERE, WORKLOAD, baseline, run, waits_for_a_writer

# -- builders ---------------------------------------------------------------------------------------------------------

CHANGE = RelativeChange(0.081, 0.079, 0.084, 0.999)
# What a name may hold that comes from a stranger's trace or file.
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "k" * 10_000,
    "\u202egnitset\u2066\u200f",
    "\x00\x0b\ufffe\uffff\x7f\x85\u2028",
    '=HYPERLINK("http://example.org","x")',
    "\t=1+1",
    "\r\n::error title=forged::forged\n::set-output name=a::b",
    "a|b`c`**d** _e_ ~~f~~ | g",
    "@someone #12 [l](http://example.org) ![i](http://example.org/i) http://example.org www.example.org a@example.org",
    "</details>\n\n# heading\n\n---\n- item\n1. item\n> said",
    "]]> & &amp; --> <!--",
    "%0A%25,title=x::y",
)


def verdict(
    status: Status = Status.PASS,
    subject: str = Timer.DEVICE.label,
    headline: str = "device time 205.1 -> 221.8 us",
    *,
    workload: str = WORKLOAD,
    reasons: Sequence[tuple[str, str]] = (),
    change: RelativeChange | None = CHANGE,
) -> Verdict:
    timed = subject in {timer.label for timer in Timer}
    return Verdict(
        status,
        workload,
        subject,
        headline,
        tuple(Reason(label, text) for label, text in reasons),
        before_us=205.1 if timed else None,
        after_us=221.8 if timed else None,
        change=change if timed else None,
    )


def workload(*verdicts: Verdict, name: str = WORKLOAD, **changes: Any) -> WorkloadResult:
    fields: dict[str, Any] = {
        "id": name,
        "suite": "perf",
        "module": "mlp",
        "variant": "compiled",
        "dtype": "bf16",
        "pass_": "forward",
        "shape": (64, 128, 768, 3072),
        "run": run(workload=name),
        "verdicts": verdicts,
    }
    return WorkloadResult(**(fields | changes))


def one_test(name: str, outcome: Any = "passed", *, workload: str | None = WORKLOAD, **changes: Any) -> TestResult:
    node = f"perf/test_latency.py::{name}" + (f"[{workload}]" if workload else "")
    return TestResult(**({"node": node, "workload": workload, "outcome": outcome, "seconds": 0.25} | changes))


def results(*workloads: WorkloadResult, **changes: Any) -> Results:
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kernelgauge": "0.1.0",
        "started_at": "2026-11-20T19:10:12+00:00",
        "seconds": 33.4,
        "arguments": ("perf", "-k", "mlp or linear"),
        "fingerprint": H200,
        "gpu": HERE,
        "not_watched": "",
        "workloads": workloads,
    }
    return Results(**(fields | changes))


def hostile(text: str, *statuses: Status) -> Results:
    """Results that have a text wherever results have one."""
    verdicts = tuple(
        verdict(status, f"{text}{place}", text, workload=text, reasons=[(text, text), ("why", f"{text}  new: 1 us")])
        for place, status in enumerate(statuses)
    )
    timed = verdict(statuses[0], headline=text, workload=text, reasons=[("why", text)])
    strange = msgspec.structs.replace(H200, device=text, driver=text, torch=text, cuda=text, triton=text)
    told = workload(
        *verdicts,
        timed,
        name=text,
        suite=text,
        module=text,
        variant=text,
        dtype=text,
        pass_=text,
        run=run(workload=text, machine=strange, gpu=text),
    )
    return results(
        told,
        workload(name=f"{text}2", run=None, unavailable=text),
        fingerprint=strange,
        gpu=text,
        kernelgauge=text,
        started_at=text,
        arguments=("perf", text),
        not_watched=text,
        tests=tuple(
            TestResult(f"{text}::{text}[{text}]", of, outcome, 0.1, claim=text, said=text)
            for of in (text, None)
            for outcome in ("passed", "failed", "skipped")
        ),
        warnings=(text,),
        exit_status=1,
    )


# -- tests ------------------------------------------------------------------------------------------------------------


def everything() -> Results:
    told = workload(
        verdict(Status.REGRESSED, reasons=[("why", "a kernel\nwith two lines")]),
        verdict(Status.PASS, "structure", "same kernels"),
        baseline=baseline(),
        trace="traces/mlp.json.gz",
    )
    absent = workload(name="other", run=None, unavailable="not installed")
    return results(told, absent, tests=(one_test("test_device_time", "failed", said="x\ny"),), warnings=("a warning",))


def test_what_was_encoded_is_decoded_the_same() -> None:
    told = everything()
    assert decode_results(encode_results(told), where="here") == told


def test_what_was_decoded_is_encoded_to_the_same_bytes() -> None:
    content = encode_results(everything())
    assert encode_results(decode_results(content, where="here")) == content


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_changed_on_its_way(text: str) -> None:
    told = hostile(text, Status.REGRESSED)
    content = encode_results(told)
    assert decode_results(content, where="here") == told
    assert b"\x1b" not in content


def test_the_file_is_json_in_lines_that_a_diff_can_show() -> None:
    content = encode_results(everything()).decode()
    assert content.endswith("\n}\n")
    assert json.loads(content)["workloads"][1]["unavailable"] == "not installed"


def test_the_worst_verdict_is_the_status() -> None:
    worse = workload(verdict(Status.PASS), verdict(Status.REGRESSED, "structure"), name="a")
    assert worse.status is Status.REGRESSED
    assert results(workload(verdict(Status.PASS)), worse).status is Status.REGRESSED
    assert results(workload(name="b", run=None)).status is None


def test_a_newer_field_is_ignored() -> None:
    told = everything()
    content = json.loads(encode_results(told)) | {"a_later_field": {"x": 1}}
    assert decode_results(json.dumps(content).encode(), where="here") == told


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b" \n", "an empty file"),
        (b"not json", "malformed"),
        (b"\xff\xfe{}", "malformed"),
        (b"[]", "array"),
        (b"null", "null"),
        (b"{}", "schema_version"),
        (b'{"schema_version": "1"}', "`str` - at `$.schema_version`"),
        (b'{"schema_version": 1.5}', "`$.schema_version`"),
        (b'{"schema_version": 1}', "kernelgauge"),
        (b'{"schema_version": 1' + b" " * 100, "truncated"),
        (b'{"schema_version": 1, "workloads": ' + b"[" * 100_000, ""),
        (b'<<<<<<< HEAD\n{"schema_version": 1}', "malformed"),
        (b'{"schema_version": 1e999}', "out of range"),
        (b"\x1f\x8b\x08\x00", "malformed"),
    ],
)
def test_what_is_no_results_file_says_where_and_what_it_is(content: bytes, got: str) -> None:
    with pytest.raises(ResultsError) as raised:
        decode_results(content, where="some/results.json")
    assert raised.value.where == "some/results.json"
    assert got in (raised.value.got or "")
    assert str(SCHEMA_VERSION) in (raised.value.expected or "")


@pytest.mark.parametrize(
    ("path", "value", "got"),
    [
        (("seconds",), "long", "$.seconds"),
        (("seconds",), float("nan"), "malformed"),
        (("workloads", 0, "verdicts", 0, "status"), "GREAT\x1b[31m", "$.workloads[0].verdicts[0].status"),
        (("workloads", 0, "run", "samples", "device_time", "replicates_us"), [], "at least one replicate"),
        (("workloads", 0, "run", "samples", "device_time", "replicates_us"), [-1.0], "positive"),
        (("workloads", 0, "run", "samples", "device_time", "controls_us"), [1.0] * 99, "99 controls"),
        (("workloads", 0, "run", "samples", "wall_time"), {}, "wall_time"),
        (("workloads", 0, "run", "counts", "launches"), None, "$.workloads[0].run.counts.launches"),
        (("workloads", 0, "shape"), ["large"], "$.workloads[0].shape[0]"),
        (("workloads", 0, "baseline", "entries", 0, "kernels", 0, "identity", "name"), 5, "identity.name"),
        (("tests", 0, "outcome"), "perhaps", "$.tests[0].outcome"),
        (("fingerprint", "driver"), 580, "$.fingerprint.driver"),
    ],
)
def test_a_wrong_field_is_named(path: tuple[Any, ...], value: object, got: str) -> None:
    content = json.loads(encode_results(everything()))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ResultsError) as raised:
        decode_results(json.dumps(content).encode(), where="here")
    assert got in (raised.value.got or "")
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    ("version", "what", "command"),
    [
        (SCHEMA_VERSION + 1, "a newer version", "pip install --upgrade kernelgauge"),
        (0, "another version", None),
    ],
)
def test_another_schema_is_refused_and_never_guessed_at(version: int, what: str, command: str | None) -> None:
    content = json.loads(encode_results(everything())) | {"schema_version": version}
    with pytest.raises(ResultsError, match=what) as raised:
        decode_results(json.dumps(content).encode(), where="here")
    assert (raised.value.got, raised.value.next_command) == (str(version), command)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    with pytest.raises(ResultsError):
        decode_results(content, where="here")


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=40))
def test_a_file_with_a_piece_missing_raises_nothing_but_that_it_cannot_be_read(start: int, length: int) -> None:
    content = encode_results(everything())
    start %= len(content)
    with suppress(ResultsError):  # a digit less is still a number
        decode_results(content[:start] + content[start + length :], where="here")


# -- the file ---------------------------------------------------------------------------------------------------------


def test_results_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(encode_results(everything()))
    assert read_results(path) == everything()


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_bytes(encode_results(everything()))
    (tmp_path / "link.json").symlink_to("real.json")
    assert read_results(tmp_path / "link.json") == everything()


@pytest.mark.parametrize(
    ("name", "got"),
    [("absent.json", "there is no such file"), ("folder", "not a regular file"), ("nul\0.json", "null byte")],
)
def test_what_cannot_be_opened_says_where(tmp_path: Path, name: str, got: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResultsError, match="cannot be read") as raised:
        read_results(tmp_path / name)
    assert got in (raised.value.got or "")
    assert str(tmp_path) in (raised.value.where or "")
    assert raised.value.next_command == "pytest perf"


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs")
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "results.json"
    os.mkfifo(fifo)
    waits, error = waits_for_a_writer(fifo, lambda: read_results(fifo))
    assert not waits
    assert isinstance(error, ResultsError)
    assert error.got == "not a regular file"


def test_a_device_is_refused() -> None:
    with pytest.raises(ResultsError) as raised:
        read_results(Path(os.devnull))
    assert raised.value.got == "not a regular file"


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    content = encode_results(everything())
    path.write_bytes(content)
    monkeypatch.setattr(results_module, "MOST_BYTES", len(content))
    assert read_results(path) == everything()
    monkeypatch.setattr(results_module, "MOST_BYTES", len(content) - 1)
    with pytest.raises(ResultsError) as raised:
        read_results(path)
    assert raised.value.got == f"more than {len(content) - 1} bytes"


def test_a_path_steers_no_terminal(tmp_path: Path) -> None:
    with pytest.raises(ResultsError) as raised:
        read_results(tmp_path / "\x1b[31m.json")
    assert "\x1b" not in str(raised.value)


def test_schema_1_is_read_and_its_tests_get_the_subject_they_printed() -> None:
    slower = verdict(Status.REGRESSED, "device time", "slower")
    tests = (
        one_test("test_device_time", "failed", said=f"{slower}\nmore"),
        one_test("test_c08", "failed", said="E  AssertionError"),
    )
    document = json.loads(encode_results(results(workload(slower), tests=tests)))
    document["schema_version"] = 1
    for test in document["tests"]:
        del test["subject"]
    for each in document["workloads"]:
        del each["limits"]
        each["sensitivity"] = {"device_time": 0.07}
    read = decode_results(json.dumps(document).encode(), where="here")
    assert [test.subject for test in read.tests] == ["device time", None]
    assert read.workloads[0].limits.sensitivity == {Timer.DEVICE: 0.07}
    assert read.schema_version == SCHEMA_VERSION
