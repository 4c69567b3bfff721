"""`kernelgauge calibrate`: the suite in fresh processes, what it prints, and what it stores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelgauge import calibrate as calibrating
from kernelgauge.calibrate import calibrate, draw, store
from kernelgauge.cli import main
from kernelgauge.errors import KernelgaugeError, MeasurementError
from kernelgauge.judge import Baseline, decode_baseline
from kernelgauge.run import Run
from kernelgauge.runs_file import RunsFile, write_runs
from tests.builders import counts, mlp_kernels, run

FIRST, SECOND = "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"


class Processes:
    """Stands in for `subprocess.run`: each process writes the runs that were told, or ends as it was told.

    `seen`: command and environment of each, in order of start. `most_at_once`: on one GPU, and in all.
    """

    def __init__(self, baselines: Path) -> None:
        self.baselines = baselines
        self.runs: list[tuple[Run, ...]] = []
        self.ends: dict[int, Any] = {}  # by place: a CompletedProcess, or an exception
        self.seen: list[tuple[list[str], dict[str, str]]] = []
        self.folders: list[Path] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once: dict[str, int] = {}
        self._lock = threading.Lock()
        self.meet: threading.Barrier | None = None  # so that processes that may run at once do

    def __call__(self, command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        gpu = env.get("CUDA_VISIBLE_DEVICES", "")
        with self._lock:
            place = len(self.seen)
            self.seen.append((command, env))
            for name in (gpu, "all"):
                self.at_once[name] = self.at_once.get(name, 0) + 1
                self.most_at_once[name] = max(self.most_at_once.get(name, 0), self.at_once[name])
        if self.meet is not None:
            self.meet.wait(timeout=10)
        with self._lock:
            for name in (gpu, "all"):
                self.at_once[name] -= 1
        end = self.ends.get(place)
        if isinstance(end, Exception):
            raise end
        target = Path(next(part for part in command if part.startswith("--perf-runs=")).partition("=")[2])
        self.folders.append(target.parent)
        runs = self.runs[place % len(self.runs)]  # one that fails writes what it has, too
        write_runs(target, RunsFile(str(self.baselines), {each.workload: "perf" for each in runs}, runs, 3))
        return end or subprocess.CompletedProcess(command, 0, "", "")


def measured(workload: str = FIRST, *, center: float = 205.0, place: int = 0, **fields: Any) -> Run:
    """What one process measured: a little apart from the others."""
    device = [center * (1 + 0.0001 * (place + offset)) for offset in (-1, 0, 1, 2)]
    defaults: dict[str, Any] = {"workload": workload, "device": device, "host": None, "end_to_end": None, "gpu": "a"}
    return run(**(defaults | fields))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Processes:
    told = Processes(tmp_path / "baselines")
    told.runs = [(measured(place=place), measured(SECOND, place=place)) for place in range(3)]
    monkeypatch.setattr(calibrating.subprocess, "run", told)
    return told


def stored(processes: Processes) -> dict[str, Baseline]:
    return {
        path.stem: decode_baseline(path.read_bytes(), where=str(path), workload=path.stem)
        for path in processes.baselines.glob("*/*.json")
    }


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
    assert len({part for command, _ in processes.seen for part in command if part.startswith("--perf-reports=")}) == 3


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


@pytest.mark.parametrize(
    ("returncode", "stdout", "stderr"),
    [(1, "FAILED perf/test_perf.py::test_device_time\n", ""), (4, "", "ERROR: file or directory not found: prf\n")],
)
def test_a_process_that_fails_is_an_error_with_its_output_and_the_command_that_shows_it(
    processes: Processes, returncode: int, stdout: str, stderr: str
) -> None:
    processes.ends[1] = subprocess.CompletedProcess([], returncode, "line\n" * 50 + stdout, stderr)
    with pytest.raises(MeasurementError, match="a process of the calibration failed") as raised:
        draw(["perf", "-x"], processes=3)
    got = (raised.value.got or "").splitlines()
    assert got[-1] == (stdout + stderr).strip()
    assert len(got) == 15
    assert raised.value.next_command == "pytest perf -x"


def test_a_process_that_measured_nothing_is_an_error_too(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        calibrating.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "5 skipped", "")
    )
    with pytest.raises(MeasurementError, match="failed") as raised:
        draw(["perf"], processes=2)
    assert raised.value.got == "5 skipped"


def test_a_process_that_does_not_end_is_an_error(processes: Processes) -> None:
    processes.ends[0] = subprocess.TimeoutExpired(["pytest"], 1800.0)
    with pytest.raises(MeasurementError, match="did not end") as raised:
        draw(["perf"], processes=2)
    assert "1800 s" in (raised.value.got or "")
    assert "pytest perf" in (raised.value.where or "")


def test_after_a_failure_the_rest_is_not_started(processes: Processes) -> None:
    processes.ends[0] = subprocess.CompletedProcess([], 1, "failed", "")
    with pytest.raises(MeasurementError):
        draw(["perf"], processes=50)
    assert len(processes.seen) < 50


# -- what they give together ----------------------------------------------------------------------------------------


def files(*sessions: Sequence[Run], suite: str = "perf") -> list[RunsFile]:
    return [RunsFile("/b", {each.workload: suite for each in runs}, tuple(runs), 3) for runs in sessions]


def test_a_workload_that_every_process_measured_alike_gets_a_baseline_of_them_all() -> None:
    calibration = calibrate(files(*[[measured(place=place)] for place in range(4)]))
    baseline = calibration.baselines[FIRST]
    (entry,) = baseline.entries
    assert entry.draws == len(entry.processes) == 4
    assert baseline.suite == "perf"
    assert calibration.refused == {}
    assert calibration.device == "NVIDIA H200"
    assert calibration.comparisons == 3  # one workload, three timers


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
        (measured(kernels=mlp_kernels()[:2]), "different kernels"),
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
    sessions = files([measured(), measured(SECOND)], [measured(place=1), measured(SECOND, place=1)])
    both = calibrate([RunsFile(str(tmp_path), each.suites, each.runs, 3) for each in sessions])
    store(both)
    before = {path.stem: path.read_bytes() for path in tmp_path.glob("*/*.json")}
    assert set(before) == {FIRST, SECOND}
    sessions = files([measured(center=300.0)], [measured(center=300.0, place=1)])
    store(calibrate([RunsFile(str(tmp_path), each.suites, each.runs, 3) for each in sessions]))
    after = {path.stem: path.read_bytes() for path in tmp_path.glob("*/*.json")}
    assert after[FIRST] != before[FIRST]
    assert after[SECOND] == before[SECOND]


# -- the command ----------------------------------------------------------------------------------------------------

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(processes: Processes, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `kernelgauge` with these arguments; returns the exit code and what it printed."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


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
    processes.ends[1] = subprocess.CompletedProcess([], 1, "FAILED perf/test_perf.py::test_device_time[mlp]", "")
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


@pytest.mark.parametrize("arguments", [("--processes", "1"), ("--processes", "many"), ("--processes",)])
def test_what_cannot_be_asked_is_a_usage_error(command: Command, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        command("calibrate", *arguments)
    assert raised.value.code == 2


def test_gpus_are_named_by_comma(processes: Processes, command: Command) -> None:
    assert command("calibrate", "perf", "--processes", "2", "--gpus", "0,1")[0] == 0
    assert {environment["CUDA_VISIBLE_DEVICES"] for _, environment in processes.seen} <= {"0", "1"}


# -- adding to what is stored ---------------------------------------------------------------------------------------


def on_gpu(gpu: str) -> list[tuple[Run, ...]]:
    return [(measured(place=place, gpu=gpu), measured(SECOND, place=place, gpu=gpu)) for place in range(2)]


def gpus(baseline: Baseline) -> list[str | None]:
    return [process.gpu for process in baseline.entries[0].processes]


def test_the_gpus_of_another_host_are_added(processes: Processes, command: Command) -> None:
    for gpu in ("a", "b"):
        processes.runs = on_gpu(gpu)
        code, out, _ = command("calibrate", "perf", "--processes", "2", "--add")
        assert code == 0
        assert f"2 written to {processes.baselines}" in out
    assert {name: gpus(baseline) for name, baseline in stored(processes).items()} == {
        name: ["a", "a", "b", "b"] for name in (FIRST, SECOND)
    }
    assert all(baseline.ancestors == () for baseline in stored(processes).values())
    assert "--add" not in processes.seen[0][0]


def test_without_being_asked_to_add_it_replaces(processes: Processes, command: Command) -> None:
    for gpu in ("a", "b"):
        processes.runs = on_gpu(gpu)
        command("calibrate", "perf", "--processes", "2")
    assert gpus(stored(processes)[FIRST]) == ["b", "b"]


def test_what_would_be_added_is_printed_by_a_dry_run_and_not_written(processes: Processes, command: Command) -> None:
    processes.runs = on_gpu("a")
    command("calibrate", "perf", "--processes", "2")
    before = stored(processes)
    processes.runs = [(measured(kernels=mlp_kernels(us=55.0, xblock=512), gpu="b"),)] * 2
    code, out, _ = command("calibrate", "perf", "--processes", "2", "--add", "--dry-run")
    assert code == 0
    assert "2 of 4: " in out  # the odds of all processes, those that are stored included
    assert stored(processes) == before


@pytest.mark.parametrize("broken", [True, False])
def test_what_cannot_be_added_is_refused_alone_and_stays_as_it_is(
    processes: Processes, command: Command, broken: bool
) -> None:
    processes.runs = on_gpu("a")
    command("calibrate", "perf", "--processes", "2")
    (path,) = processes.baselines.glob(f"*/{FIRST}.json")
    if broken:
        path.write_bytes(b"<<<<<<< HEAD\n")
    before = path.read_bytes()
    changes: dict[str, Any] = {} if broken else {"counts": counts(copies=3)}
    processes.runs = [(measured(gpu="b", **changes), measured(SECOND, gpu="b"))] * 2
    code, out, _ = command("calibrate", "perf", "--processes", "2", "--add")
    assert code == 1
    why = "the stored file cannot be read" if broken else "not as it was recorded: copies 0 -> 3"
    assert f"not stored: {FIRST}: {why}; without --add it is replaced" in out
    assert path.read_bytes() == before
    (other,) = processes.baselines.glob(f"*/{SECOND}.json")
    assert gpus(decode_baseline(other.read_bytes(), where="", workload=SECOND)) == ["a", "a", "b", "b"]


def test_a_slowdown_is_not_added_as_noise(processes: Processes, command: Command) -> None:
    processes.runs = on_gpu("a")
    command("calibrate", "perf", "--processes", "2")
    before = stored(processes)
    processes.runs = [(measured(center=225.0, place=place),) for place in range(2)]
    code, out, _ = command("calibrate", "perf", "--processes", "2", "--add")
    assert code == 1
    assert f"not stored: {FIRST}: not as it was recorded: device time 205.0 -> 225.0 us (+9.8 %)" in out
    assert stored(processes) == before


def test_without_a_folder_of_baselines_a_dry_run_leaves_none(processes: Processes, command: Command) -> None:
    assert command("calibrate", "perf", "--processes", "2", "--add", "--dry-run")[0] == 0
    assert not processes.baselines.exists()


def test_what_is_stored_is_shown_before_it_is_written(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bool] = []
    draws = [RunsFile(str(processes.baselines), {FIRST: "perf"}, (measured(place=place),), 3) for place in range(2)]
    store(calibrate(draws), show=lambda _: shown.append(bool(stored(processes))))
    assert shown == [False]
    assert set(stored(processes)) == {FIRST}
