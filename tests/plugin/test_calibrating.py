"""`kernelgauge calibrate`: the suite in fresh processes, what each leaves, and what is printed, stored, added and refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelgauge import Timer
from kernelgauge import processes as calibrating
from kernelgauge.results import read_results
from tests.builders import counts, mlp_kernels
from tests.commands.conftest import Command
from tests.plugin.inner_project import Project, told
from tests.plugin.told_processes import FIRST, SECOND, Processes, ToldProcess, measured

TWO = ("calibrate", "perf", "--processes", "2")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Processes:
    told = Processes(tmp_path / "baselines")
    monkeypatch.setattr(calibrating.subprocess, "Popen", told)
    return told


@pytest.fixture
def command(processes: Processes, kernelgauge: Command) -> Command:
    assert processes
    return kernelgauge


def gpus(processes: Processes, workload: str) -> list[str | None]:
    return [process.gpu for process in processes.stored()[workload].entries[0].processes]


def test_calibrate_stores_and_prints_what_was_found(processes: Processes, command: Command) -> None:
    code, out, err = command("calibrate", "perf", "--processes", "3", "--dry-run")
    assert code == 0
    assert "nothing was written" in out
    assert not processes.baselines.exists()
    code, out, err = command("calibrate", "perf", "-k", "mlp or linear", "--processes", "3")
    assert code == 0
    assert [len(baseline.entries[0].processes) for baseline in processes.stored().values()] == [3, 3]
    assert all(text in out for text in (FIRST, SECOND, f"2 written to {processes.baselines}"))
    assert err.splitlines() == [f"process {number} of 3" for number in (1, 2, 3)]
    assert {tuple(each[:6]) for each, _ in processes.seen[3:]} == {
        (sys.executable, "-m", "pytest", "perf", "-k", "mlp or linear")
    }
    assert command("calibrate", "--processes", "2", "--", "perf", "--other", "x")[0] == 0
    assert processes.seen[-1][0][3:6] == ["perf", "--other", "x"]


def test_process_has_its_own_caches_and_no_page_of_a_job(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    command(*TWO)
    environments = [environment for _, environment in processes.seen]
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert len({environment[name] for environment in environments}) == 2
    assert len(set(processes.folders)) == 2
    assert not any(folder.exists() for folder in processes.folders)
    assert not [name for environment in environments for name in environment if name.startswith("GITHUB_")]


def test_failed_process_is_shown_and_stores_nothing(
    processes: Processes, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.ends[1] = 4, "line\n" * 50 + "ERROR: file or directory not found: prf\n"
    code, _, err = command("calibrate", "perf", "-k", "not hub", "--processes", "50")
    assert code == 2
    assert "a process that measures failed" in err
    assert err.count("line\n") == 14
    assert "ERROR: file or directory not found: prf\n" in err
    assert "pytest perf -k 'not hub'\n" in err
    assert len(processes.seen) < 50
    monkeypatch.setattr(calibrating.subprocess, "Popen", lambda *_, **__: ToldProcess(0, "5 skipped"))
    assert command(*TWO)[0] == 2  # it measured nothing
    assert not processes.baselines.exists()


def test_workload_that_differs_between_processes_is_refused(processes: Processes, command: Command) -> None:
    processes.runs[1] = (measured(place=1, counts=counts(copies=3)), measured(SECOND, place=1))
    code, out, _ = command(*TWO)
    assert (code, set(processes.stored())) == (1, {SECOND})
    assert re.search(rf"refused: {FIRST}: .*counted differently", out)


def test_calibrate_under_ci_needs_force(processes: Processes, command: Command, monkeypatch: Any) -> None:
    monkeypatch.setenv("CI", "true")
    code, out, err = command(*TWO)
    assert (code, out, processes.seen) == (2, "", [])
    assert "refused under CI" in err
    assert "kernelgauge calibrate --force" in err
    assert command(*TWO, "--force")[0] == 0
    assert processes.stored()


@pytest.mark.parametrize("arguments", [("--processes", "1"), ("--processes", "many")])
def test_wrong_argument_is_a_usage_error(command: Command, arguments: tuple[str, ...]) -> None:
    assert command("calibrate", *arguments)[0] == 2


def add(processes: Processes, command: Command, gpu: str, *options: str, **changes: Any) -> tuple[int, str]:
    processes.runs = [
        (measured(place=place, gpu=gpu, **changes), measured(SECOND, place=place, gpu=gpu)) for place in range(2)
    ]
    code, out, _ = command(*TWO, *options)
    return code, out


def test_add_joins_another_hosts_gpus(processes: Processes, command: Command) -> None:
    for gpu in ("a", "b"):
        code, out = add(processes, command, gpu, "--add")
        assert code == 0
        assert f"2 written to {processes.baselines}" in out
    assert [gpus(processes, name) for name in (FIRST, SECOND)] == [["a", "a", "b", "b"]] * 2
    before = processes.stored()
    out = add(processes, command, "c", "--add", "--dry-run", kernels=mlp_kernels(us=55.0, xblock=512))[1]
    assert "nothing was written: a dry run" in out
    assert processes.stored() == before
    add(processes, command, "d")
    assert gpus(processes, FIRST) == ["d", "d"]


def test_add_refuses_an_unreadable_file_and_keeps_it(processes: Processes, command: Command) -> None:
    add(processes, command, "a")
    (path,) = processes.baselines.glob(f"*/{FIRST}.json")
    path.write_bytes(b"<<<<<<< HEAD\n")
    code, out = add(processes, command, "b", "--add")
    assert code == 1
    assert (
        f"refused: {FIRST}: it cannot be added: the stored file cannot be used: the baseline holds an unresolved" in out
    )
    assert path.read_bytes() == b"<<<<<<< HEAD\n"
    path.unlink()
    assert gpus(processes, SECOND) == ["a", "a", "b", "b"]


MORE = """
from kernelgauge.standard import test_result_matches_float64
from kernelgauge.standard import test_device_time as test_renamed

def test_a_claim(workload, run):
    raise AssertionError

def test_of_something_else():
    raise AssertionError
"""


def test_calibrating_process_leaves_runs_of_timed_tests(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    step = project.root / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.write("test_more.py", MORE)
    project.tell(told(), told("linear"))
    project.record("-k", "not claim and not something and not float64")
    before = project.stored()
    step.unlink()
    project.tell(told(gelu_us=9.0, host_us=300.0), told("linear"))
    result = project.run("--perf-calibrate=c", "--perf-strict")
    result.assert_outcomes(passed=12, deselected=5)
    assert "::error" not in result.stdout.str()
    assert not step.exists()
    assert project.stored() == before
    assert project.confirmed() == []
    written = read_results(project.root / "c" / "latest" / "results.json")
    assert [each.module for each in written.workloads] == ["mlp", "linear"]
    assert Path(written.baselines) == project.root / "baselines"
    assert all(each.run is not None and set(each.run.samples) == set(Timer) for each in written.workloads)
    assert "test_renamed" in {test.name for test in written.tests}
    project.tell(told(counts={"graph_breaks": 1}))
    assert project.run("--perf-calibrate=d").ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("workers", [("-n", "2"), ("--dist", "load", "--tx", "2*popen")], ids=["-n", "--tx"])
def test_calibrating_process_with_workers_is_refused(project: Project, workers: tuple[str, ...]) -> None:
    pytest.importorskip("xdist")
    result = project.pytester.runpytest_inprocess("perf", "--perf-calibrate=c", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*each process of a calibration measures alone: run it without*"])
    assert not (project.root / "c").exists()
