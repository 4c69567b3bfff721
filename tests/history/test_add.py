"""`kernelgauge history add`: what a file holds, and that every file is whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest

from kernelgauge.judge.verdict import Status
from kernelgauge.results import Results
from tests.builders import ELSEWHERE, HERE, WORKLOAD, run
from tests.history.conftest import History, night, timed
from tests.test_results import HOSTILE, hostile, results, verdict, workload


def entry(history: History, told: Results) -> dict[str, Any]:
    """Return the one file that is added."""
    code, out, _ = history.add(told)
    assert code == 0
    added: dict[str, Any] = history.entries()[out.partition(": ")[2].strip()]
    return added


def test_entry_has_measurements_and_verdicts(history: History) -> None:
    reasons = [("why", "XBLOCK\n 1024 -> 512")]
    slow = verdict(Status.REGRESSED, headline="GPU time 205.1 -> 221.8 us", reasons=reasons)
    measured = workload(slow, verdict(Status.PASS, "structure", "4 launches"), run=run(device=(204.0, 206.0)))
    invalid = workload(verdict(Status.INVALID, headline="throttled"), name="b", run=None)
    absent = workload(name="c", run=None, unavailable="no liger")
    added = entry(history, results(measured, invalid, absent, host="node-17", commit="abc+", exit_status=1))
    assert (added["gpu"], added["host"], added["commit"], added["exit_status"]) == (HERE, "node-17", "abc+", 1)
    assert added["fingerprint"]["device"] == "NVIDIA H200"
    first, *others = added["workloads"]
    assert [each["id"] for each in added["workloads"]] == [WORKLOAD, "b", "c"]
    assert [each["run"] for each in others] == [None, None]
    assert first["run"]["samples"]["device_time"]["replicates_us"] == [204.0, 206.0]
    assert first["verdicts"][0]["conclusion"]["what"] == "GPU time 205.1 -> 221.8 us"
    assert (first["baseline"], first["run"]["ops"]["rows"], first["run"]["origins"]["rows"]) == (None, [], [])


def test_name_starts_with_time_in_utc(history: History) -> None:
    code, out, _ = history.add(results(timed(), started_at="2026-11-20T23:30:00-02:00"))
    assert (code, out.startswith(f"added: 2026/11/20261121T013000Z-{HERE}-")) == (0, True)


@pytest.mark.parametrize("started_at", ["yesterday", "", "0001-01-01T00:00:00", "0999-01-01T00:00:00+00:00"])
def test_invalid_timestamp_is_refused(history: History, started_at: str) -> None:
    code, _, err = history.add(results(timed(), started_at=started_at))
    assert (code, "invalid timestamp" in err, history.root.exists()) == (1, True, False)


def test_results_without_a_workload_are_refused(history: History) -> None:
    code, _, err = history.add(results())
    assert (code, "nothing to add" in err, history.root.exists()) == (1, True, False)


def test_refused_results_do_not_stop_others(history: History) -> None:
    empty, good, latest = history.save(results(), night(0, timed()), night(1, timed(gpu=ELSEWHERE), gpu=ELSEWHERE))
    shutil.copytree(good, f"{latest}/inside")  # a run on several machines leaves a folder of each
    Path(latest, "results.json").rename(Path(latest, "results.txt"))
    code, out, err = history.add(empty, good, "nowhere", "x" * 10_000, latest)
    words = [line.split(":")[0] for text in (out, err) for line in text.splitlines()]
    assert (code, words) == (1, ["added", "added", "refused", "refused", "refused"])
    assert f"{empty}/results.json: there is nothing to add to a history (got no workload" in err
    assert "No such file" in err


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_in_history(history: History, tmp_path: Path, text: str) -> None:
    told = msgspec.structs.replace(hostile(text, Status.REGRESSED), started_at="2026-11-20T19:10:12+00:00")
    code, out, _ = history.add(told)
    assert (code, all(line.isprintable() for line in out.split("\n"))) == (0, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history", "reports"]


def test_same_results_twice_add_nothing(any_history: History) -> None:
    first = any_history.add(night(0, timed()))[1]
    again = any_history.add(night(0, timed()), night(1, timed()))[1].splitlines()
    assert again[0] == first.strip()
    assert "2 runs," in any_history.show("mlp")[1]


def test_file_cut_short_is_mended_by_adding_again(any_history: History) -> None:
    key = any_history.add(night(0, timed()))[1].removeprefix("added: ").strip()
    with fsspec.open(f"{any_history.location}/{key}", "wb") as file:
        file.write(b'{"schema_version":3')
    code, out, _ = any_history.show()
    assert (code, f"not shown: {key}: Input data was truncated" in out.replace("\n    ", " ")) == (1, True)
    assert any_history.add(night(0, timed()))[1] == f"added: {key}\n"
    assert any_history.show()[0] == 0


def test_histories_are_merged_by_copying(history: History) -> None:
    for name, gpu in (("one", HERE), ("other", ELSEWHERE)):
        history.location = str(history.root / name)
        history.add(*(night(number, timed(gpu=gpu), gpu=gpu) for number in range(3)), night(0, timed()))
    shutil.copytree(history.root / "one", history.root / "copied" / "twice")
    history.location = str(history.root)
    out = history.show("mlp")[1]
    assert "not shown" not in out
    runs = [line.split()[1:4] for line in out.splitlines() if " runs, " in line]
    assert runs == [[f"{gpu}:", "3", "runs,"] for gpu in (HERE, ELSEWHERE)]


@pytest.mark.parametrize("location", ["", "file://", "://x", "memory://", "nosuch://user:word@host/x"])
def test_invalid_address_is_an_error(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    folder = history.save(night(0, timed()))[0]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    history.location = location
    code, out, err = history.add(folder, folder)
    assert (code, out) == (2, "")
    assert err.startswith("invalid location\n")
    assert "word" not in err
    assert list((tmp_path / "empty").iterdir()) == []


def test_bucket_that_fails_is_an_error(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ConnectionResetError("the network has gone")

    history.location = "memory://broken/history"
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", broken)
    code, out, err = history.add(night(0, timed()), night(1, timed()))
    assert (code, out, err.count("cannot write")) == (2, "", 1)
    assert "ConnectionResetError: the network has gone" in err
