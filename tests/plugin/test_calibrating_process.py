"""--perf-calibrate: a process of a calibration measures, compares nothing, and leaves its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelgauge import Timer
from kernelgauge.results import Results, read_results
from tests.plugin.inner_project import Project, told

EAGER, LINEAR = "mlp-eager-bf16-4x8", "linear-eager-bf16-4x8"


@pytest.fixture
def folder(project: Project) -> Path:
    return project.root / "calibration"


def results(folder: Path) -> Results:
    return read_results(folder / "latest" / "results.json")


def test_calibrating_process_leaves_runs_and_their_baselines_folder(project: Project, folder: Path) -> None:
    project.tell(told(), told("linear", gelu_us=7.0))
    assert project.run(f"--perf-calibrate={folder}").ret == pytest.ExitCode.OK
    written = results(folder)
    assert [each.id for each in written.workloads] == [EAGER, LINEAR]
    assert Path(written.baselines) == project.root / "baselines"
    run = written.workloads[1].run
    assert run is not None
    assert set(run.samples) == set(Timer)
    assert not (project.root / "baselines").exists()
    assert not (project.root / "reports").exists()


def test_calibrating_process_runs_timing_and_structure_only(project: Project, folder: Path) -> None:
    (project.root / "perf" / "test_more.py").write_text(
        """
from kernelgauge.standard import test_result_matches_float64
from kernelgauge.standard import test_device_time as test_renamed

def test_a_claim(workload, run):
    raise AssertionError

def test_of_something_else():
    raise AssertionError
"""
    )
    project.run(f"--perf-calibrate={folder}").assert_outcomes(passed=6, deselected=3)
    assert "test_renamed" in {test.name for test in results(folder).tests}


def test_baseline_fails_nothing_and_stays(project: Project, folder: Path) -> None:
    project.record()
    before = project.stored()
    project.tell(told(gelu_us=9.0, host_us=300.0))
    project.run(f"--perf-calibrate={folder}", "--perf-strict").assert_outcomes(passed=5)
    assert project.stored() == before
    assert project.confirmed() == []


def test_declaration_that_does_not_hold_fails(project: Project, folder: Path) -> None:
    project.tell(told(graph_breaks=1))
    assert project.run(f"--perf-calibrate={folder}").ret == pytest.ExitCode.TESTS_FAILED


def test_relative_folder_is_from_where_pytest_was_started(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(project.root / "perf")
    project.pytester.runpytest_inprocess("--perf-calibrate=here")
    assert len(results(project.root / "perf" / "here").workloads) == 1


def test_folder_that_cannot_be_written_is_a_usage_error(project: Project) -> None:
    (project.root / "taken").write_text("")
    result = project.pytester.runpytest_inprocess("perf", "--perf-calibrate=taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert project.measured() == []
