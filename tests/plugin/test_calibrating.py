"""`kernelgauge calibrate`: the suite in fresh processes, what it prints, and what it stores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.baselines import calibration as calibrating
from kernelgauge.baselines.calibration import calibrate, draw, store
from kernelgauge.errors import KernelgaugeError, MeasurementError
from kernelgauge.judge import Recorded
from kernelgauge.results import Results
from kernelgauge.run import Run
from tests.builders import counts, mlp_kernels
from tests.plugin.told_processes import FIRST, SECOND, Command, Processes, ToldProcess, measured, results_of, stored

# -- the processes --------------------------------------------------------------------------------------------------


def test_each_process_measures_only_with_the_arguments_and_empty_caches_of_its_own(processes: Processes) -> None:
    draw(["perf", "-k", "mlp"], processes=3)
    assert len(processes.seen) == 3
    for command, environment in processes.seen:
        assert command[:3] == [sys.executable, "-m", "pytest"]
        assert command[3:6] == ["perf", "-k", "mlp"]
        assert environment["PATH"] == os.environ["PATH"]
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert len({environment[name] for _, environment in processes.seen}) == 3
    assert len({part for command, _ in processes.seen for part in command if part.startswith("--perf-calibrate=")}) == 3


def test_nothing_is_left_of_their_folders(processes: Processes) -> None:
    draw(["perf"], processes=2)
    assert len(processes.folders) == 2
    assert not any(folder.exists() for folder in processes.folders)


def test_one_process_runs_at_a_time_where_no_gpus_are_named(processes: Processes) -> None:
    draw(["perf"], processes=3)
    assert processes.most_at_once["all"] == 1
    assert all(
        "CUDA_VISIBLE_DEVICES" not in environment
        or environment["CUDA_VISIBLE_DEVICES"] == os.environ.get("CUDA_VISIBLE_DEVICES")
        for _, environment in processes.seen
    )


def test_on_each_gpu_one_process_runs_at_a_time_and_all_gpus_at_once(processes: Processes) -> None:
    processes.meet = threading.Barrier(2)
    said: list[str] = []
    draw(["perf"], processes=6, gpus=["0", "3"], progress=said.append)
    assert processes.most_at_once == {"0": 1, "3": 1, "all": 2}
    assert [environment["CUDA_VISIBLE_DEVICES"] for _, environment in processes.seen].count("0") == 3
    assert sorted(line[:14] for line in said) == [f"process {number} of 6" for number in range(1, 7)]


def test_process_that_fails_is_an_error_with_its_output_and_command(processes: Processes) -> None:
    processes.ends[1] = 4, "line\n" * 50 + "ERROR: file or directory not found: prf\n"
    with pytest.raises(MeasurementError, match="a process of the calibration failed") as raised:
        draw(["perf", "-x"], processes=3)
    got = (raised.value.got or "").splitlines()
    assert got[-1] == "ERROR: file or directory not found: prf"
    assert len(got) == 15
    assert raised.value.next_command == "pytest perf -x"


def test_process_that_measured_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating.subprocess, "Popen", lambda *_, **__: ToldProcess(0, "5 skipped"))
    with pytest.raises(MeasurementError, match="failed") as raised:
        draw(["perf"], processes=2)
    assert raised.value.got == "5 skipped"


def test_process_that_waits_for_the_gpu_says_so(processes: Processes) -> None:
    processes.ends[0] = 0, "a warning\nkernelgauge: another run times on GPU a1\n1 passed\n"
    said: list[str] = []
    draw(["perf"], processes=1, progress=said.append)
    assert said == ["process 1 of 1", "kernelgauge: another run times on GPU a1"]


def test_after_a_failure_the_rest_is_not_started(processes: Processes) -> None:
    processes.ends[0] = 1, "failed"
    with pytest.raises(MeasurementError):
        draw(["perf"], processes=50)
    assert len(processes.seen) < 50


# -- what they give together ----------------------------------------------------------------------------------------


def files(*sessions: Sequence[Run], baselines: Path = Path("/b")) -> list[Results]:
    return [results_of(tuple(runs), baselines) for runs in sessions]


def test_a_workload_that_every_process_measured_alike_gets_a_baseline_of_them_all() -> None:
    calibration = calibrate(files(*[[measured(place=place)] for place in range(4)]))
    baseline = calibration.baselines[FIRST]
    (entry,) = baseline.entries
    assert entry.draws == len(entry.processes) == 4
    assert baseline.suite == "perf"
    assert calibration.refused == {}
    assert calibration.device == "NVIDIA H200"
    assert calibration.comparisons == 1  # one workload, one timer


def test_each_configuration_that_was_drawn_is_an_entry_with_its_odds() -> None:
    one, other = mlp_kernels(), mlp_kernels(us=55.0, xblock=512)
    drawn = [one, other, one, one]
    calibration = calibrate(files(*[[measured(place=i, kernels=kernels)] for i, kernels in enumerate(drawn)]))
    assert [entry.draws for entry in calibration.baselines[FIRST].entries] == [3, 1]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (None, "only 1 of 2 processes measured it"),
        (measured(counts=counts(copies=3)), "counted differently"),
        (measured(kernels=mlp_kernels()[:2], counts=counts(launches=2, kernels=1)), "counted differently"),
        (measured(kernels=mlp_kernels()[1:]), "only 1 of 2 processes measured it"),  # it contradicts its own counts
    ],
)
def test_a_workload_that_was_not_the_same_in_each_process_is_refused_alone(other: Run | None, why: str) -> None:
    calibration = calibrate(files([measured(), measured(SECOND)], [*([other] if other else []), measured(SECOND)]))
    assert set(calibration.baselines) == {SECOND}
    assert why in calibration.refused[FIRST]


def test_of_nothing_there_is_no_calibration() -> None:
    with pytest.raises(KernelgaugeError, match="nothing to calibrate"):
        calibrate(files([], []))


def test_storing_replaces_these_baselines_and_no_others(tmp_path: Path) -> None:
    two = [measured(), measured(SECOND)], [measured(place=1), measured(SECOND, place=1)]
    store(calibrate(files(*two, baselines=tmp_path)))
    before = {path.stem: path.read_bytes() for path in tmp_path.glob("*/*.json")}
    assert set(before) == {FIRST, SECOND}
    store(calibrate(files([measured(center=300.0)], [measured(center=300.0, place=1)], baselines=tmp_path)))
    after = {path.stem: path.read_bytes() for path in tmp_path.glob("*/*.json")}
    assert after[FIRST] != before[FIRST]
    assert after[SECOND] == before[SECOND]


def test_what_is_stored_is_shown_before_it_is_written(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bool] = []
    draws = files([measured()], [measured(place=1)], baselines=processes.baselines)
    store(calibrate(draws), show=lambda _: shown.append(bool(stored(processes))))
    assert shown == [False]
    assert set(stored(processes)) == {FIRST}


@pytest.mark.parametrize(("other", "commit"), [("4e3642b", "4e3642b"), ("4e3642b+", None), (None, None)])
def test_calibration_records_its_start_and_the_common_commit(
    tmp_path: Path, other: str | None, commit: str | None
) -> None:
    first, second = files([measured()], [measured(place=1)], baselines=tmp_path)
    first = msgspec.structs.replace(first, commit="4e3642b", started_at="2026-11-21T10:05:00+00:00")
    second = msgspec.structs.replace(second, commit=other, started_at="2026-11-21T10:00:00+00:00")
    (baseline,) = store(calibrate([first, second])).baselines.values()
    assert baseline.recorded == Recorded("2026-11-21T10:00:00+00:00", commit, "0.1.0")


def test_unreadable_baseline_is_replaced(tmp_path: Path) -> None:
    path = BaselineStore(tmp_path).path("NVIDIA H200", FIRST)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<<<<<<< HEAD\n")
    store(calibrate(files([measured()], [measured(place=1)], baselines=tmp_path)))
    assert BaselineStore(tmp_path).load("NVIDIA H200", FIRST) is not None


# -- the command ----------------------------------------------------------------------------------------------------


def test_calibrate_stores_and_prints_what_was_found(processes: Processes, command: Command) -> None:
    code, out, err = command("calibrate", "perf", "-k", "mlp or linear", "--processes", "3")
    assert code == 0
    assert set(stored(processes)) == {FIRST, SECOND}
    assert all(len(baseline.entries[0].processes) == 3 for baseline in stored(processes).values())
    assert FIRST in out
    assert SECOND in out
    assert f"2 written to {processes.baselines}" in out
    assert err.splitlines() == [f"process {number} of 3" for number in (1, 2, 3)]
    assert processes.seen[0][0][3:6] == ["perf", "-k", "mlp or linear"]


def test_what_follows_two_dashes_goes_to_pytest_whatever_it_is_called(processes: Processes, command: Command) -> None:
    assert command("calibrate", "--processes", "2", "--", "perf", "--gpus", "x")[0] == 0
    assert processes.seen[0][0][3:6] == ["perf", "--gpus", "x"]


def test_a_dry_run_prints_and_writes_nothing(processes: Processes, command: Command) -> None:
    code, out, _ = command("calibrate", "perf", "--processes", "2", "--dry-run")
    assert code == 0
    assert FIRST in out
    assert "written" not in out
    assert not processes.baselines.exists()


def test_under_ci_calibrating_is_refused_before_anything_runs(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    code, out, err = command("calibrate", "perf", "--processes", "2")
    assert code == 2
    assert out == ""
    assert "refused under CI" in err
    assert "kernelgauge calibrate --force" in err
    assert processes.seen == []


@pytest.mark.parametrize(("option", "stores"), [("--force", True), ("--dry-run", False)])
def test_under_ci_it_can_be_forced_and_may_always_look(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch, option: str, stores: bool
) -> None:
    monkeypatch.setenv("CI", "true")
    assert command("calibrate", "perf", "--processes", "2", option)[0] == 0
    assert bool(stored(processes)) is stores


def test_a_process_that_fails_fails_the_command_and_nothing_is_stored(processes: Processes, command: Command) -> None:
    processes.ends[1] = 1, "FAILED perf/test_perf.py::test_device_time[mlp]"
    code, _, err = command("calibrate", "perf", "--processes", "2")
    assert code == 2
    assert "FAILED perf/test_perf.py::test_device_time[mlp]" in err
    assert not processes.baselines.exists()


def test_a_workload_that_is_refused_fails_the_command_and_the_others_are_stored(
    processes: Processes, command: Command
) -> None:
    processes.runs = [(measured(), measured(SECOND)), (measured(place=1, counts=counts(copies=3)), measured(SECOND))]
    code, out, _ = command("calibrate", "perf", "--processes", "2")
    assert code == 1
    assert f"not stored: {FIRST}: the processes counted differently" in out
    assert set(stored(processes)) == {SECOND}


@pytest.mark.parametrize(
    "arguments", [("--processes", "1"), ("--processes", "many"), ("--processes",), ("--gpus", "0,1,0")]
)
def test_what_cannot_be_asked_is_a_usage_error(command: Command, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        command("calibrate", *arguments)
    assert raised.value.code == 2


def test_gpus_are_named_by_comma(processes: Processes, command: Command) -> None:
    assert command("calibrate", "perf", "--processes", "2", "--gpus", "0, 1")[0] == 0
    assert {environment["CUDA_VISIBLE_DEVICES"] for _, environment in processes.seen} <= {"0", "1"}


def test_what_is_to_be_measured_on_a_gpu_is_not_measured_on_the_processor(
    processes: Processes, command: Command
) -> None:
    """CUDA_VISIBLE_DEVICES of a GPU that is not there leaves a process with a CPU, which others of the calibration use."""
    command("calibrate", "perf", "--processes", "2", "--gpus", "7")
    command("calibrate", "perf", "--processes", "2")
    assert ["cuda" in arguments for arguments, _ in processes.seen] == [True, True, False, False]
