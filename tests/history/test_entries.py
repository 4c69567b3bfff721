"""What an entry of a history holds, and what it is called."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge.errors import ResultsError
from kernelgauge.history import add_to_history
from kernelgauge.history.file import decode_entry, encode_entry, file_name, parse_name
from kernelgauge.history.rows import entries
from kernelgauge.judge import RelativeChange, Status, observe
from kernelgauge.results import Results
from kernelgauge.run import Timer
from tests.builders import CONTROL_US, ELSEWHERE, H200, HERE, OTHER_SOURCE, WORKLOAD, mlp_kernels, run
from tests.history.nights import read, timed
from tests.test_results import HOSTILE, hostile, results, verdict, workload


def test_an_entry_has_what_a_run_measured_and_concluded() -> None:
    regressed = verdict(
        Status.REGRESSED, headline="device time 205.1 -> 221.8 us", reasons=[("why", "XBLOCK\n 1024 -> 512")]
    )
    told = results(
        workload(regressed, verdict(Status.PASS, "structure", "4 launches")),
        host="node-17",
        commit="abc+",
        exit_status=1,
    )
    (entry,) = entries(told)
    rows, times = entry.rows, entry.rows.device_time
    assert (entry.gpu, entry.host, entry.commit, entry.fingerprint) == (HERE, "node-17", "abc+", H200)
    assert entry.started_at == datetime(2026, 11, 20, 19, 10, 12, tzinfo=timezone.utc)
    assert (rows.workload, rows.module, rows.variant, rows.dtype, rows.pass_) == (
        (WORKLOAD,),
        ("mlp",),
        ("compiled",),
        ("bf16",),
        ("forward",),
    )
    assert (rows.launches, rows.worst, rows.structure) == ((4,), (Status.REGRESSED,), (Status.PASS,))
    sample = told.workloads[0].run.samples[Timer.DEVICE]  # type: ignore[union-attr]
    assert times.mean_us == pytest.approx((observe(sample).mean_us,), rel=1e-6)
    assert (times.replicates, times.baseline_us, times.status) == ((4,), (205.1,), (Status.REGRESSED,))
    assert (rows.gemm_us, rows.copy_us, times.host_us, entry.rows.end_to_end.host_us) == (
        (150.0,),
        (30.0,),
        (None,),
        (CONTROL_US,),
    )
    assert times.said == rows.said == ("device time 205.1 -> 221.8 us; XBLOCK 1024 -> 512",)
    assert entry.rows.host_dispatch.status == (None,)


def test_a_workload_that_was_not_measured_has_a_row_that_says_why() -> None:
    invalid = verdict(Status.INVALID, headline="throttled for 30 ms")
    (entry,) = entries(
        results(timed(), workload(invalid, name="b", run=None), workload(name="c", run=None, unavailable="no liger"))
    )
    assert entry.rows.workload == (WORKLOAD, "b", "c")
    assert entry.rows.worst == (Status.PASS, Status.INVALID, None)
    assert entry.rows.said == ("", "throttled for 30 ms", "no liger")
    assert entry.rows.device_time.mean_us[1:] == (None, None)
    assert entry.rows.device_time.status[1] is Status.INVALID


def test_entry_has_interval_of_verdict() -> None:
    change = RelativeChange(0.02, 0.0151, None, confidence=0.999)
    (entry,) = entries(results(workload(replace(verdict(), change=change), run=run())))
    assert (entry.rows.device_time.low, entry.rows.device_time.high) == ((0.0151,), (None,))


def test_entry_digests_ignore_generated_source() -> None:
    def digests(**of_fused: Any) -> tuple[str | None, ...]:
        (entry,) = entries(results(timed(kernels=mlp_kernels(**of_fused))))
        return entry.rows.kernels + entry.rows.configuration

    assert digests() == digests(source=OTHER_SOURCE)
    assert digests()[0] == digests(xblock=512)[0]
    assert digests()[1] != digests(xblock=512)[1]


def test_results_of_several_gpus_are_an_entry_for_each() -> None:
    told = results(timed(name="a"), timed(name="b", gpu=ELSEWHERE), timed(name="c"), gpu=None)
    assert [(entry.gpu, entry.rows.workload) for entry in entries(told)] == [(HERE, ("a", "c")), (ELSEWHERE, ("b",))]


def test_the_same_results_make_the_same_file_and_others_another() -> None:
    def name(told: Results) -> str:
        (entry,) = entries(told)
        return file_name(entry, encode_entry(entry))

    assert name(results(timed())) == name(results(timed()))
    assert name(results(timed())) != name(results(timed(205.001)))
    assert name(results(timed())).startswith(f"2026/11/20261120T191012Z-{HERE}-")


@pytest.mark.parametrize(
    ("started_at", "stamp"),
    [
        ("2026-11-20T23:30:00-02:00", "2026/11/20261121T013000Z"),
        ("2026-11-20T23:30:00Z", "2026/11/20261120T233000Z"),
        ("2026-11-20T23:30:00", "2026/11/20261120T233000Z"),
        ("0999-01-02T00:00:00.25+00:00", "0999/01/09990102T000000Z"),
    ],
)
def test_a_time_is_told_in_utc(started_at: str, stamp: str) -> None:
    (entry,) = entries(results(timed(), started_at=started_at))
    content = encode_entry(entry)
    name = file_name(entry, content)
    assert name.startswith(stamp)
    parsed = parse_name(name.rpartition("/")[2])
    assert parsed is not None
    assert decode_entry(content, parsed).started_at == entry.started_at


@pytest.mark.parametrize("started_at", ["", "yesterday", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-10:00", *HOSTILE])
def test_results_of_no_time_are_refused(tmp_path: Path, started_at: str) -> None:
    with pytest.raises(ResultsError, match="when these results were measured"):
        add_to_history(results(timed(), started_at=started_at), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_results_without_a_workload_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="nothing to add"):
        add_to_history(results(), str(tmp_path))


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_strangers_neither_leave_the_history_nor_break_it(tmp_path: Path, text: str) -> None:
    told = msgspec.structs.replace(hostile(text, Status.REGRESSED), started_at="2026-11-20T19:10:12+00:00")
    added = add_to_history(told, str(tmp_path / "history"))
    found, aside = read(tmp_path / "history")
    assert set(found) == set(added.written)
    assert aside == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history"]
    assert all(parse_name(key.rpartition("/")[2]) for key in added.written)
    assert max(len(said) for entry in entries(told) for said in entry.rows.said) <= 300
