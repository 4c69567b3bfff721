"""--perf-runs: measure, compare nothing, and write what was measured to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelgauge import Timer
from kernelgauge.errors import StorageError
from kernelgauge.runs_file import RunsFile, read_runs, write_runs
from tests.builders import run
from tests.plugin.inner_project import Project, told

EAGER, COMPILED, LINEAR = "mlp-eager-bf16-4x8", "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"


@pytest.fixture
def file(project: Project) -> Path:
    return project.root / "runs.json"


def test_what_was_measured_is_written_and_can_be_read(project: Project, file: Path) -> None:
    project.tell(told(), told("linear", gelu_us=7.0))
    assert project.run(f"--perf-runs={file}").ret == pytest.ExitCode.OK
    written = read_runs(file)
    assert [each.workload for each in written.runs] == [EAGER, LINEAR]
    assert written.suites == {EAGER: "perf", LINEAR: "perf"}
    assert written.timers_per_workload == 3
    assert Path(written.baselines) == project.root / "baselines"
    linear = written.runs[1]
    assert set(linear.samples) == set(Timer)
    assert linear.samples[Timer.DEVICE].replicates_us == pytest.approx((12.987, 13.0065, 13.013, 12.9935))
    assert linear.samples[Timer.HOST].controls_us == (10.0,) * 4
    assert linear.gpu == "told"
    assert linear.kernel_names() == ["a_gemm", "a_gelu"]


def test_only_what_measures_or_checks_the_declaration_is_run(project: Project, file: Path) -> None:
    (project.root / "perf" / "test_more.py").write_text(
        """
from kernelgauge.standard import test_result_matches_float64

def test_a_claim(workload, run):
    raise AssertionError

def test_of_something_else():
    raise AssertionError
"""
    )
    result = project.run(f"--perf-runs={file}")
    result.assert_outcomes(passed=4, deselected=4)
    assert [case.name for case in project.cases()] == [
        "test_device_time",
        "test_host_dispatch_time",
        "test_kernels_and_graphs_are_as_declared",
        "test_end_to_end_latency",
    ]
    assert len(read_runs(file).runs) == 1


def test_a_selection_selects_what_is_measured(project: Project, file: Path) -> None:
    project.tell(told(), told(variant="compiled"), told("linear"))
    project.run(f"--perf-runs={file}", "-k", "mlp")
    assert [each.workload for each in read_runs(file).runs] == [EAGER, COMPILED]
    assert project.measured_together() == [[EAGER, COMPILED]]


def test_the_baseline_fails_nothing_and_is_left_as_it_is(project: Project, file: Path) -> None:
    project.record()
    before = project.stored()
    project.tell(told(gelu_us=9.0, host_us=300.0))
    result = project.run(f"--perf-runs={file}")
    result.assert_outcomes(passed=4, deselected=1)
    assert project.stored() == before
    assert read_runs(file).runs[0].kernels[1].device_time_us == 9.0


@pytest.mark.parametrize("strict", [(), ("--perf-strict",), ("--perf-require-baseline",)])
def test_a_missing_baseline_fails_nothing_and_none_is_written(
    project: Project, file: Path, strict: tuple[str, ...]
) -> None:
    project.run(f"--perf-runs={file}", *strict).assert_outcomes(passed=4, deselected=1)
    assert not (project.root / "baselines").exists()


def test_a_declaration_that_does_not_hold_fails_and_its_run_is_not_written(project: Project, file: Path) -> None:
    project.tell(told(), told("linear", graph_breaks=1))
    result = project.run(f"--perf-runs={file}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [each.workload for each in read_runs(file).runs] == [EAGER]


@pytest.mark.parametrize("lacks", [{"error": "measurement"}, {"incomplete": "the GPU no longer answers"}])
def test_a_measurement_that_failed_fails_and_is_not_written(
    project: Project, file: Path, lacks: dict[str, str]
) -> None:
    project.record()  # with a baseline, so that what lacks can be judged
    project.tell(told(**lacks), told("linear"))
    result = project.run(f"--perf-runs={file}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [each.workload for each in read_runs(file).runs] == [LINEAR]


def test_a_workload_that_cannot_run_here_is_skipped_and_left_out(project: Project, file: Path) -> None:
    project.tell(told(error="unavailable"), told("linear"))
    assert project.run(f"--perf-runs={file}").ret == pytest.ExitCode.OK
    assert [each.workload for each in read_runs(file).runs] == [LINEAR]


def test_a_timer_whose_test_was_deselected_leaves_its_run_out(project: Project, file: Path) -> None:
    project.run(f"--perf-runs={file}", "--deselect", f"perf/test_perf.py::test_end_to_end_latency[{EAGER}]")
    assert read_runs(file).runs == ()


def test_a_relative_path_is_one_of_where_pytest_was_started(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(project.root / "perf")
    project.pytester.runpytest_inprocess("--perf-runs=here.json")
    assert len(read_runs(project.root / "perf" / "here.json").runs) == 1


def test_a_file_that_cannot_be_written_fails_the_session(project: Project) -> None:
    (project.root / "taken").mkdir()
    result = project.pytester.runpytest_inprocess("perf", "--perf-runs=taken")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*cannot write*"])


# -- the file -------------------------------------------------------------------------------------------------------


def test_a_file_of_runs_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    content = RunsFile("/somewhere/baselines", {run().workload: "perf"}, (run(), run(workload="other")), 3)
    write_runs(tmp_path / "runs.json", content)
    assert read_runs(tmp_path / "runs.json") == content


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"baselines": "x"}', b'{"runs": [], "suites": {}, "more": 1}'])
def test_what_is_no_file_of_runs_is_an_error_that_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "runs.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageError, match="the runs cannot be read") as raised:
        read_runs(path)
    assert raised.value.where == str(path)
    assert raised.value.got
