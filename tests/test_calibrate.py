"""A calibration remembers how it came about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.calibrate import calibrate, store
from kernelgauge.judge import Baseline, Recorded
from kernelgauge.runs_file import RunsFile, read_runs, write_runs
from tests.builders import WORKLOAD, run

DEVICE = "NVIDIA H200"
STARTS = ("2026-11-21T10:05:00+00:00", "2026-11-21T10:00:00+00:00")


def files(folder: Path, *, commits: tuple[str | None, ...] = ("4e3642b", "4e3642b"), **of_run: Any) -> list[RunsFile]:
    return [
        RunsFile(str(folder), {WORKLOAD: "perf"}, (run(**of_run),), 3, start, commit, "0.1.0")
        for start, commit in zip(STARTS, commits, strict=True)
    ]


def stored(folder: Path) -> Baseline:
    found = BaselineStore(folder).load(DEVICE, WORKLOAD)
    assert found is not None
    return found


def test_a_calibration_remembers_its_first_process_and_its_commit(tmp_path: Path) -> None:
    store(calibrate(files(tmp_path)))
    assert stored(tmp_path).recorded == Recorded("2026-11-21T10:00:00+00:00", "4e3642b", "0.1.0")


@pytest.mark.parametrize("commits", [("4e3642b", "4e3642b+"), ("4e3642b", None)])
def test_processes_of_different_commits_have_none_in_common(tmp_path: Path, commits: tuple[str | None, ...]) -> None:
    store(calibrate(files(tmp_path, commits=commits)))
    recorded = stored(tmp_path).recorded
    assert recorded is not None
    assert recorded.commit is None


def test_processes_that_do_not_say_when_they_ran_leave_nothing_to_remember(tmp_path: Path) -> None:
    store(calibrate([RunsFile(str(tmp_path), {WORKLOAD: "perf"}, (run(),), 3)] * 2))
    assert stored(tmp_path).recorded is None


def test_a_file_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    path = BaselineStore(tmp_path).path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<<<<<<< HEAD\n")
    store(calibrate(files(tmp_path)))
    assert stored(tmp_path).recorded is not None


def test_what_the_processes_say_survives_their_file(tmp_path: Path) -> None:
    (first, _) = files(tmp_path)
    write_runs(tmp_path / "runs.json", first)
    assert read_runs(tmp_path / "runs.json") == first
