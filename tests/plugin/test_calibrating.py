"""`kernelgauge calibrate`: the suite in fresh processes, what it prints, stores, adds and refuses."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge.baselines import calibration as calibrating
from kernelgauge.baselines.calibration import calibrate, draw, store
from kernelgauge.errors import KernelgaugeError, MeasurementError
from kernelgauge.judge import Baseline, Recorded
from kernelgauge.results import Results
from kernelgauge.run import Run
from tests.builders import counts, mlp_kernels
from tests.plugin.told_processes import FIRST, SECOND, Command, Processes, ToldProcess, measured, results_of, stored

TWO = ("calibrate", "perf", "--processes", "2")


def gpus(baseline: Baseline) -> list[str | None]:
    return [process.gpu for process in baseline.entries[0].processes]


# -- the processes ----------------------------------------------------------------------------------------------------


def test_draw_starts_each_process_with_caches_of_its_own(processes: Processes) -> None:
    draw(["perf", "-k", "mlp"], processes=3)
    assert len(processes.seen) == 3
    for command, environment in processes.seen:
        assert command[:6] == [sys.executable, "-m", "pytest", "perf", "-k", "mlp"]
        assert environment["PATH"] == os.environ["PATH"]
        assert environment.get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert len({environment[name] for _, environment in processes.seen}) == 3
    assert processes.most_at_once["all"] == 1
    assert len(set(processes.folders)) == 3
    assert not any(folder.exists() for folder in processes.folders)


def test_draw_runs_one_process_at_a_time_on_each_gpu(processes: Processes) -> None:
    processes.meet = threading.Barrier(2)
    said: list[str] = []
    draw(["perf"], processes=6, gpus=["0", "3"], progress=said.append)
    assert processes.most_at_once == {"0": 1, "3": 1, "all": 2}
    assert [environment["CUDA_VISIBLE_DEVICES"] for _, environment in processes.seen].count("0") == 3
    assert sorted(line[:14] for line in said) == [f"process {number} of 6" for number in range(1, 7)]


def test_draw_shows_output_and_command_of_a_failure(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    processes.ends[1] = 4, "line\n" * 50 + "ERROR: file or directory not found: prf\n"
    with pytest.raises(MeasurementError, match="a process of the calibration failed") as raised:
        draw(["perf", "-x"], processes=50)
    got = (raised.value.got or "").splitlines()
    assert got[-1] == "ERROR: file or directory not found: prf"
    assert len(got) == 15
    assert raised.value.next_command == "pytest perf -x"
    assert len(processes.seen) < 50
    monkeypatch.setattr(calibrating.subprocess, "Popen", lambda *_, **__: ToldProcess(0, "5 skipped"))
    with pytest.raises(MeasurementError, match="failed") as raised:  # it measured nothing
        draw(["perf"], processes=2)
    assert raised.value.got == "5 skipped"


def test_draw_passes_on_that_a_process_waits(processes: Processes) -> None:
    processes.ends[0] = 0, "a warning\nkernelgauge: another run times on GPU a1\n1 passed\n"
    said: list[str] = []
    draw(["perf"], processes=1, progress=said.append)
    assert said == ["process 1 of 1", "kernelgauge: another run times on GPU a1"]


# -- what they give together ------------------------------------------------------------------------------------------


def files(*sessions: Sequence[Run], baselines: Path = Path("/b")) -> list[Results]:
    return [results_of(tuple(runs), baselines) for runs in sessions]


def test_calibration_counts_each_configuration() -> None:
    one, other = mlp_kernels(), mlp_kernels(us=55.0, xblock=512)
    drawn = files(*[[measured(place=place, kernels=each)] for place, each in enumerate([one, other, one, one])])
    calibration = calibrate(drawn)
    baseline = calibration.baselines[FIRST]
    assert [(entry.draws, len(entry.processes)) for entry in baseline.entries] == [(3, 3), (1, 1)]
    assert (baseline.suite, calibration.device, calibration.refused) == ("perf", "NVIDIA H200", {})
    assert calibration.comparisons == 1  # one workload, one timer


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (None, "only 1 of 2 processes measured it"),
        (measured(counts=counts(copies=3)), "counted differently"),
        (measured(kernels=mlp_kernels()[:2], counts=counts(launches=2, kernels=1)), "counted differently"),
        (measured(kernels=mlp_kernels()[1:]), "only 1 of 2 processes measured it"),  # it contradicts its own counts
    ],
)
def test_workload_that_differs_between_processes_is_refused(other: Run | None, reason: str) -> None:
    calibration = calibrate(files([measured(), measured(SECOND)], [*([other] if other else []), measured(SECOND)]))
    assert set(calibration.baselines) == {SECOND}
    assert reason in calibration.refused[FIRST]


def test_calibration_of_nothing_is_an_error() -> None:
    with pytest.raises(KernelgaugeError, match="nothing to calibrate"):
        calibrate(files([], []))


def test_store_shows_then_replaces_these_baselines_only(tmp_path: Path) -> None:
    shown: list[int] = []

    def store_all(*sessions: Sequence[Run]) -> dict[str, bytes]:
        store(
            calibrate(files(*sessions, baselines=tmp_path)),
            show=lambda _: shown.append(len(list(tmp_path.glob("*/*.json")))),
        )
        return {path.stem: path.read_bytes() for path in tmp_path.glob("*/*.json")}

    before = store_all([measured(), measured(SECOND)], [measured(place=1), measured(SECOND, place=1)])
    (second,) = tmp_path.glob(f"*/{SECOND}.json")
    after = store_all([measured(center=300.0)], [measured(center=300.0, place=1)])
    assert set(before) == set(after) == {FIRST, SECOND}
    assert (after[FIRST] == before[FIRST], after[SECOND] == before[SECOND]) == (False, True)
    second.write_bytes(b"<<<<<<< HEAD\n")  # what cannot be read is replaced
    assert store_all([measured(SECOND)], [measured(SECOND, place=1)])[SECOND].startswith(b"{")
    assert shown == [0, 2, 2]


@pytest.mark.parametrize(("other", "commit"), [("4e3642b", "4e3642b"), ("4e3642b+", None), (None, None)])
def test_calibration_records_its_start_and_common_commit(tmp_path: Path, other: str | None, commit: str | None) -> None:
    first, second = files([measured()], [measured(place=1)], baselines=tmp_path)
    first = msgspec.structs.replace(first, commit="4e3642b", started_at="2026-11-21T10:05:00+00:00")
    second = msgspec.structs.replace(second, commit=other, started_at="2026-11-21T10:00:00+00:00")
    (baseline,) = store(calibrate([first, second])).baselines.values()
    assert baseline.recorded == Recorded("2026-11-21T10:00:00+00:00", commit, "0.1.0")


# -- the command ------------------------------------------------------------------------------------------------------


def test_calibrate_stores_and_prints_what_was_found(processes: Processes, command: Command) -> None:
    code, out, err = command("calibrate", "perf", "--processes", "3", "--dry-run")
    assert code == 0
    assert FIRST in out
    assert "written" not in out
    assert not processes.baselines.exists()
    code, out, err = command("calibrate", "perf", "-k", "mlp or linear", "--processes", "3")
    assert code == 0
    assert [len(baseline.entries[0].processes) for baseline in stored(processes).values()] == [3, 3]
    assert all(text in out for text in (FIRST, SECOND, f"2 written to {processes.baselines}"))
    assert err.splitlines() == [f"process {number} of 3" for number in (1, 2, 3)]
    assert processes.seen[-1][0][3:6] == ["perf", "-k", "mlp or linear"]


def test_arguments_after_two_dashes_go_to_pytest(processes: Processes, command: Command) -> None:
    assert command("calibrate", "--processes", "2", "--", "perf", "--gpus", "x")[0] == 0
    assert processes.seen[0][0][3:6] == ["perf", "--gpus", "x"]


def test_calibrate_under_ci_needs_force(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    code, out, err = command(*TWO)
    assert (code, out, processes.seen) == (2, "", [])
    assert "refused under CI" in err
    assert "kernelgauge calibrate --force" in err
    assert command(*TWO, "--dry-run")[0] == 0
    assert not stored(processes)
    assert command(*TWO, "--force")[0] == 0
    assert stored(processes)


def test_failed_process_stores_nothing(processes: Processes, command: Command) -> None:
    processes.ends[1] = 1, "FAILED perf/test_perf.py::test_device_time[mlp]"
    code, _, err = command(*TWO)
    assert code == 2
    assert "FAILED perf/test_perf.py::test_device_time[mlp]" in err
    assert not processes.baselines.exists()


def test_refused_workload_fails_and_others_are_stored(processes: Processes, command: Command) -> None:
    processes.runs = [(measured(), measured(SECOND)), (measured(place=1, counts=counts(copies=3)), measured(SECOND))]
    code, out, _ = command(*TWO)
    assert code == 1
    assert f"not stored: {FIRST}: " in out
    assert set(stored(processes)) == {SECOND}


@pytest.mark.parametrize(
    "arguments", [("--processes", "1"), ("--processes", "many"), ("--processes",), ("--gpus", "0,1,0")]
)
def test_wrong_argument_is_a_usage_error(command: Command, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        command("calibrate", *arguments)
    assert raised.value.code == 2


def test_gpus_are_split_at_commas_and_require_cuda(processes: Processes, command: Command) -> None:
    """Without the GPU of that number a process would measure on the CPU, which others of the calibration use."""
    assert command(*TWO, "--gpus", "0, 1")[0] == 0
    assert {environment["CUDA_VISIBLE_DEVICES"] for _, environment in processes.seen} <= {"0", "1"}
    command(*TWO)
    assert ["cuda" in arguments for arguments, _ in processes.seen] == [True, True, False, False]


# -- adding to the stored baselines -----------------------------------------------------------------------------------


def add(processes: Processes, command: Command, gpu: str, *options: str, **changes: Any) -> tuple[int, str]:
    processes.runs = [
        (measured(place=place, gpu=gpu, **changes), measured(SECOND, place=place, gpu=gpu)) for place in range(2)
    ]
    code, out, _ = command(*TWO, *options)
    return code, out


def test_add_joins_another_hosts_gpus(processes: Processes, command: Command) -> None:
    assert add(processes, command, "a", "--add", "--dry-run")[0] == 0
    assert not processes.baselines.exists()
    for gpu in ("a", "b"):
        code, out = add(processes, command, gpu, "--add")
        assert code == 0
        assert f"2 written to {processes.baselines}" in out
    assert [gpus(stored(processes)[name]) for name in (FIRST, SECOND)] == [["a", "a", "b", "b"]] * 2
    assert "--add" not in processes.seen[0][0]
    before = stored(processes)
    out = add(processes, command, "c", "--add", "--dry-run", kernels=mlp_kernels(us=55.0, xblock=512))[1]
    assert "2 of 6: " in out  # the odds of all processes, those that are stored included
    assert stored(processes) == before
    add(processes, command, "d")
    assert gpus(stored(processes)[FIRST]) == ["d", "d"]


@pytest.mark.parametrize(
    ("broken", "changes", "reason"),
    [
        (True, {}, "the stored file cannot be read; without --add it is replaced"),
        (False, {"counts": counts(copies=3)}, "not as it was recorded: copies 0 -> 3; without --add it is replaced"),
        (False, {"center": 225.0}, "not as it was recorded: device time 205.0 -> 225.0 us (+9.8 %)"),
    ],
    ids=["unreadable", "counts", "slower"],
)
def test_add_refuses_what_differs_and_keeps_its_file(
    processes: Processes, command: Command, broken: bool, changes: dict[str, Any], reason: str
) -> None:
    add(processes, command, "a")
    (path,) = processes.baselines.glob(f"*/{FIRST}.json")
    if broken:
        path.write_bytes(b"<<<<<<< HEAD\n")
    content = path.read_bytes()
    code, out = add(processes, command, "b", "--add", **changes)
    assert code == 1
    assert f"not stored: {FIRST}: {reason}" in out
    assert path.read_bytes() == content
    path.unlink()
    assert gpus(stored(processes)[SECOND]) == ["a", "a", "b", "b"]
