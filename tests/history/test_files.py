"""The files of a history: what they hold, how they are added, and that they are whole."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest

from kernelgauge.errors import ResultsError, StorageError
from kernelgauge.history import add_to_history
from kernelgauge.judge import RelativeChange, Status, observe
from kernelgauge.results import Results
from kernelgauge.run import Timer
from tests.builders import CONTROL_US, ELSEWHERE, HERE, OTHER_SOURCE, WORKLOAD, mlp_kernels, run
from tests.history.nights import night, shown, stored, timed
from tests.test_results import HOSTILE, hostile, results, verdict, workload


def added(told: Results, folder: Path) -> dict[str, Any]:
    """The one file that is added."""
    (key,) = add_to_history(told, str(folder)).written
    entry: dict[str, Any] = stored(folder)[key]
    return entry


# -- content ----------------------------------------------------------------------------------------------------------


def test_entry_has_what_a_run_measured_and_concluded(tmp_path: Path) -> None:
    regressed = verdict(
        Status.REGRESSED, headline="device time 205.1 -> 221.8 us", reasons=[("why", "XBLOCK\n 1024 -> 512")]
    )
    told = results(
        workload(regressed, verdict(Status.PASS, "structure", "4 launches")),
        host="node-17",
        commit="abc+",
        exit_status=1,
    )
    entry = added(told, tmp_path)
    rows, times = entry["rows"], entry["rows"]["device_time"]
    assert (entry["schema_version"], entry["started_at"]) == (2, "2026-11-20T19:10:12Z")
    assert (entry["gpu"], entry["host"], entry["commit"], entry["exit_status"]) == (HERE, "node-17", "abc+", 1)
    assert entry["fingerprint"]["device"] == "NVIDIA H200"
    assert (rows["workload"], rows["module"], rows["variant"]) == ([WORKLOAD], ["mlp"], ["compiled"])
    assert (rows["dtype"], rows["pass"], rows["launches"]) == (["bf16"], ["forward"], [4])
    assert (rows["worst"], rows["structure"]) == (["REGRESSED"], ["PASS"])
    sample = told.workloads[0].run.samples[Timer.DEVICE]  # type: ignore[union-attr]
    assert times["mean_us"] == pytest.approx([observe(sample).mean_us], rel=1e-6)
    assert (times["replicates"], times["baseline_us"], times["status"]) == ([4], [205.1], ["REGRESSED"])
    assert (rows["gemm_us"], rows["copy_us"]) == ([150.0], [30.0])
    assert (times["host_us"], rows["end_to_end"]["host_us"]) == ([None], [CONTROL_US])
    assert times["said"] == rows["said"] == ["device time 205.1 -> 221.8 us; XBLOCK 1024 -> 512"]
    assert rows["host_dispatch"]["status"] == [None]


def test_workload_that_was_not_measured_says_why(tmp_path: Path) -> None:
    invalid = verdict(Status.INVALID, headline="throttled for 30 ms")
    unavailable = workload(name="c", run=None, unavailable="no liger")
    rows = added(results(timed(), workload(invalid, name="b", run=None), unavailable), tmp_path)["rows"]
    assert rows["workload"] == [WORKLOAD, "b", "c"]
    assert rows["worst"] == ["PASS", "INVALID", None]
    assert rows["said"] == ["", "throttled for 30 ms", "no liger"]
    assert (rows["device_time"]["mean_us"][1:], rows["device_time"]["status"][1]) == ([None, None], "INVALID")


def test_entry_has_interval_of_verdict(tmp_path: Path) -> None:
    change = RelativeChange(0.02, 0.0151, None, confidence=0.999)
    times = added(results(workload(replace(verdict(), change=change), run=run())), tmp_path)["rows"]["device_time"]
    assert (times["low"], times["high"]) == ([0.0151], [None])


def test_digests_ignore_generated_source(tmp_path: Path) -> None:
    def digests(name: str, **of_fused: Any) -> tuple[str, str]:
        rows = added(results(timed(kernels=mlp_kernels(**of_fused))), tmp_path / name)["rows"]
        return rows["kernels"][0], rows["configuration"][0]

    one = digests("one")
    assert digests("source", source=OTHER_SOURCE) == one
    kernels, configuration = digests("other", xblock=512)
    assert (kernels == one[0], configuration == one[1]) == (True, False)


def test_results_of_several_gpus_are_a_file_for_each(tmp_path: Path) -> None:
    told = results(timed(name="a"), timed(name="b", gpu=ELSEWHERE), timed(name="c"), gpu=None)
    add_to_history(told, str(tmp_path))
    found = {entry["gpu"]: entry["rows"]["workload"] for entry in stored(tmp_path).values()}
    assert found == {HERE: ["a", "c"], ELSEWHERE: ["b"]}


@pytest.mark.parametrize(
    ("started_at", "stamp"),
    [
        ("2026-11-20T23:30:00-02:00", "2026/11/20261121T013000Z"),
        ("2026-11-20T23:30:00Z", "2026/11/20261120T233000Z"),
        ("2026-11-20T23:30:00", "2026/11/20261120T233000Z"),
        ("0999-01-02T00:00:00.25+00:00", "0999/01/09990102T000000Z"),
    ],
)
def test_name_starts_with_time_in_utc(tmp_path: Path, started_at: str, stamp: str) -> None:
    (key,) = add_to_history(results(timed(), started_at=started_at), str(tmp_path)).written
    assert key.startswith(f"{stamp}-{HERE}-")


@pytest.mark.parametrize("started_at", ["", "yesterday", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-10:00", *HOSTILE])
def test_results_without_a_time_are_refused(tmp_path: Path, started_at: str) -> None:
    with pytest.raises(ResultsError, match="when these results were measured"):
        add_to_history(results(timed(), started_at=started_at), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_results_without_a_workload_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="nothing to add"):
        add_to_history(results(), str(tmp_path))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_do_not_leave_the_history(tmp_path: Path, text: str) -> None:
    told = msgspec.structs.replace(hostile(text, Status.REGRESSED), started_at="2026-11-20T19:10:12+00:00")
    written = add_to_history(told, str(tmp_path / "history")).written
    found = shown(tmp_path / "history")
    assert (found.files, found.not_shown) == (len(written), ())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history"]
    entries = stored(tmp_path / "history").values()
    assert max(len(said) for entry in entries for said in entry["rows"]["said"]) <= 300


# -- adding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_same_results_twice_add_nothing(tmp_path: Path, bucket: str, kind: str) -> None:
    location = bucket if kind == "bucket" else str(tmp_path)
    first = add_to_history(night(0, timed()), location)
    again = add_to_history(night(0, timed()), location)
    assert (first.there, again.written) == ((), ())
    assert again.there == first.written
    assert add_to_history(night(0, timed(205.001)), location).there == ()
    assert shown(location).files == 2


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_file_that_was_cut_short_is_mended_by_adding_again(tmp_path: Path, bucket: str, kind: str) -> None:
    location = bucket if kind == "bucket" else str(tmp_path)
    (key,) = add_to_history(night(0, timed()), location).written
    with fsspec.open(f"{location}/{key}", "wb") as file:
        file.write(b'{"schema_version":2')
    assert shown(location).files == 0
    assert "digest differs" in shown(location).not_shown[0]
    assert add_to_history(night(0, timed()), location).written == (key,)
    assert shown(location).files == 1


def test_histories_are_merged_by_copying(tmp_path: Path) -> None:
    for name, gpu in (("one", HERE), ("other", ELSEWHERE)):
        for number in range(3):
            add_to_history(night(number, timed(gpu=gpu), gpu=gpu), str(tmp_path / name))
    add_to_history(night(0, timed(gpu=HERE), gpu=HERE), str(tmp_path / "other"))  # one that both have
    shutil.copytree(tmp_path / "one", tmp_path / "all")
    shutil.copytree(tmp_path / "other", tmp_path / "all", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "one", tmp_path / "all" / "once" / "more")
    found = shown(tmp_path / "all")
    assert (found.files, found.not_shown) == (6, ())
    assert [len(series.nights) for series in found.charts[0].series] == [3, 3]


@pytest.mark.parametrize("scheme", ["file://", "local://", ""])
def test_address_of_a_local_folder_is_that_folder(tmp_path: Path, scheme: str) -> None:
    (key,) = add_to_history(night(0, timed()), f"{scheme}{tmp_path}").written
    assert (tmp_path / key).is_file()


def test_bucket_that_fails_is_an_error(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ConnectionResetError("the network has gone")

    with monkeypatch.context() as patched:
        patched.setattr(type(fsspec.filesystem("memory")), "pipe_file", broken)
        with pytest.raises(StorageError, match="cannot add") as caught:
            add_to_history(night(0, timed()), bucket)
    assert caught.value.got == "ConnectionResetError: the network has gone"
    assert add_to_history(night(0, timed()), bucket).there == ()


@pytest.mark.parametrize(
    "location",
    [
        "",
        "http://host/x",
        "HTTPS://host/x",
        "zip::file:///x",
        "a\0b",
        "file://",
        "local://",
        "://x",
        "://",
        "memory://",
    ],
)
def test_invalid_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsError, match="invalid history location"):
        add_to_history(night(0, timed()), location)
    assert list(tmp_path.iterdir()) == []


def test_error_hides_password() -> None:
    with pytest.raises(ResultsError, match="cannot be reached") as caught:
        add_to_history(night(0, timed()), "nosuch://user:secret@host/x")
    assert "secret" not in str(caught.value)


def test_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    with pytest.raises(StorageError, match="cannot add to the history") as caught:
        add_to_history(night(0, timed()), str(tmp_path / "history"))
    assert "kernelgauge history add" in (caught.value.next_command or "")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(StorageError, match="cannot add") as caught:
            add_to_history(night(0, timed()), str(tmp_path))
    assert "No space left" in (caught.value.got or "")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
