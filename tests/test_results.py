"""The results of a run as a file, and every kind of file that is none. Builders of results for the tests of reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import ResultsError
from kernelgauge.judge.evidence import Detail, Failed, Next, RelativeChange, Step
from kernelgauge.judge.verdict import Status, Verdict
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
from tests.builders import H200, HERE, WORKLOAD, baseline, run

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
    headline: str = "GPU time 205.1 -> 221.8 us",
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
        Failed(headline),
        tuple(Next(Step.ACCEPT, text) if label == "accept" else Detail(label, text) for label, text in reasons),
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


def everything() -> Results:
    told = workload(
        verdict(Status.REGRESSED, reasons=[("why", "a kernel\nwith two lines")]),
        verdict(Status.PASS, "structure", "same kernels"),
        baseline=baseline(),
        trace="traces/mlp.json.gz",
    )
    absent = workload(name="other", run=None, unavailable="not installed")
    return results(told, absent, tests=(one_test("test_device_time", "failed", said="x\ny"),), warnings=("a warning",))


def decoded(content: bytes | dict[str, Any]) -> Results:
    return decode_results(content if isinstance(content, bytes) else json.dumps(content).encode(), where="here")


def refusal(content: bytes | dict[str, Any]) -> ResultsError:
    with pytest.raises(ResultsError) as raised:
        decoded(content)
    assert "\x1b" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("told", [everything(), *(hostile(text, Status.REGRESSED) for text in HOSTILE)])
def test_decode_of_encoded_results_is_equal(told: Results) -> None:
    content = encode_results(told)
    assert decoded(content) == told
    assert encode_results(decoded(content)) == content
    assert decoded(json.loads(content) | {"a_later_field": {"x": 1}}) == told
    assert b"\x1b" not in content
    assert content.endswith(b"\n}\n")


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b"not json", "malformed"),
        (b"\xff\xfe{}", "malformed"),
        (b"[]", "array"),
        (b"{}", "schema_version"),
        (b'{"schema_version": "2"}', "`str` - at `$.schema_version`"),
        (b'{"schema_version": 4, "workloads": 5}', "Invalid enum value 4 - at `$.schema_version`"),
        (b'{"schema_version": 3}', "workloads"),
        (b'{"schema_version": 3' + b" " * 100, "truncated"),
        (b'{"schema_version": 3, "workloads": ' + b"[" * 100_000, ""),
        (b'{"schema_version": 1e999}', "out of range"),
        (b'{"schema_version": 1, "workloads": null}', "schema_version"),
    ],
)
def test_decode_of_something_else_is_refused(content: bytes, got: str) -> None:
    error = refusal(content)
    assert error.where == "here"
    assert got in (error.got or "")
    assert str(SCHEMA_VERSION) in (error.expected or "")


CHANGE = {"estimate": 0.1, "low": 0.0, "high": 0.2, "confidence": 0.98}


@pytest.mark.parametrize(
    ("path", "value", "got"),
    [
        ("seconds", "long", "$.seconds"),
        ("comparisons", 10**400, "$.comparisons"),
        ("workloads.0.verdicts.0.status", "GREAT\x1b[31m", "$.workloads[0].verdicts[0].status"),
        ("workloads.0.run.samples.device_time.replicates_us", [], "at least one replicate"),
        ("workloads.0.run.samples.device_time.replicates_us", [-1.0], "positive"),
        ("workloads.0.run.samples.device_time.controls_us", [1.0] * 99, "99 controls"),
        ("workloads.0.run.samples.wall_time", {}, "wall_time"),
        ("workloads.0.shape", ["large"], "$.workloads[0].shape[0]"),
        ("tests.0.outcome", "perhaps", "$.tests[0].outcome"),
        ("fingerprint.driver", 580, "$.fingerprint.driver"),
        ("workloads.0.limits", {"gate": {"device_time": -1}}, "positive fractions"),
        ("workloads.0.limits", {"sensitivity": {"device_time": 0}}, "positive fractions"),
        ("workloads.0.verdicts.0.change", {**CHANGE, "sensitivity": 0}, "positive fractions"),
        ("workloads.0.run.origins", {"rows": [None], "sequence": [0]}, "1 origins for"),
        ("workloads.0.run.kernels.sequence", [99], "not the places of"),
    ],
)
def test_decode_of_wrong_field_names_it(path: str, value: object, got: str) -> None:
    content = json.loads(encode_results(everything()))
    inner = content
    *keys, last = path.split(".")
    for key in keys:
        inner = inner[int(key) if key.isdigit() else key]
    inner[last] = value
    assert got in (refusal(content).got or "")


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("absent.json", "No such file"),
        ("folder", "Is a directory"),
        ("nul\0.json", "null byte"),
        ("\x1b[31m.json", "No such file"),
    ],
)
def test_read_results_of_no_file_says_where(tmp_path: Path, name: str, got: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResultsError, match="cannot be read") as raised:
        read_results(tmp_path / name)
    assert (got in (raised.value.got or ""), raised.value.next_command) == (True, "pytest perf")
    assert str((tmp_path / name).parent) in (raised.value.where or "")
    assert "\x1b" not in str(raised.value)
