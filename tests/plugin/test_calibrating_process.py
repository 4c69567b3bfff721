"""--perf-calibrate: a process of a calibration measures, compares nothing, and leaves its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelgauge import Timer
from kernelgauge.results import read_results
from tests.plugin.inner_project import Project, told

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
