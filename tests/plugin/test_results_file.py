"""What a session leaves beside its traces, and what it tells GitHub Actions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from kernelgauge.cli import main
from kernelgauge.judge import Status
from kernelgauge.report.markdown import summary_markdown
from kernelgauge.results import Results, read_results
from kernelgauge.run import Timer
from tests.plugin.inner_project import Project, told

ID = "mlp-eager-bf16-4x8"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner run tells nothing to the workflow that runs these tests."""
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The summary of the step that the inner run is in."""
    path = tmp_path / "step summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def latest(project: Project) -> Path:
    return project.root / "reports" / "latest"


def left(project: Project) -> Results:
    return read_results(latest(project) / "results.json")


# -- the files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "recorded"), [((), "baselines"), (("-o", "kernelgauge_baselines=known/there"), "known/there")]
)
def test_results_record_the_folder_of_their_baselines(
    project: Project, monkeypatch: pytest.MonkeyPatch, folder: tuple[str, ...], recorded: str
) -> None:
    monkeypatch.delenv("CI", raising=False)
    project.run(*folder)
    assert left(project).baselines == recorded
    below = project.root / "perf" / "below"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert main(["accept"]) == 0
    assert (project.root / recorded / "told-gpu" / f"{ID}.json").is_file()
    assert list(below.iterdir()) == []


def test_baselines_outside_of_the_project_are_recorded_in_full(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    project.run("-o", f"kernelgauge_baselines={outside}")
    assert left(project).baselines == str(outside)


def test_results_record_the_sensitivity_that_is_asked_for(project: Project) -> None:
    project.pytester.makeini("[pytest]\nkernelgauge_sensitivity = device_time = 7 %\n")
    project.run()
    assert left(project).workloads[0].limits.sensitivity == {Timer.DEVICE: 0.07}


def test_a_session_leaves_what_it_observed_and_concluded(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=5.5))
    project.run()
    results = left(project)
    (workload,) = results.workloads
    assert (workload.id, workload.suite, workload.module, workload.shape) == (ID, "perf", "mlp", (4, 8))
    assert (results.status, workload.status, results.exit_status) == (Status.REGRESSED, Status.REGRESSED, 1)
    assert results.fingerprint is not None
    assert (results.fingerprint.device, results.gpu) == ("Told GPU", "told")
    assert workload.run is not None
    assert workload.baseline is not None
    assert (latest(project) / (workload.trace or "")).is_file()
    assert [test.outcome for test in results.tests].count("failed") == 1
    assert results.arguments[0] == "perf"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", results.started_at)


# -- how a session ended ----------------------------------------------------------------------------------------------

ITS_OWN_TESTS = """
import pytest

@pytest.fixture
def database():
    raise NameError("name 'connection' is not defined")

def test_c01_nothing_is_copied(workload, run):
    assert run.counts.copies == 7

def test_setup(workload, run, database): ...

@pytest.mark.xfail(strict=True, reason="not yet")
def test_passes_by_surprise(workload, run): ...
"""

RETRYING = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""

FLAKY = """
from kernelgauge.judge import Status, Verdict

attempts = []

def test_flaky(workload, run, kernelgauge_test):
    attempts.append(1)
    status = Status.REGRESSED if len(attempts) == 1 else Status.PASS
    kernelgauge_test.session.conclude(Verdict(status, workload.id, "structure", f"attempt {len(attempts)}"))
    assert status is Status.PASS
"""


def test_failing_tests_of_the_suite_are_no_verdicts(project: Project) -> None:
    (project.root / "perf" / "test_perf.py").write_text(ITS_OWN_TESTS)
    project.run()
    results = left(project)
    assert [test.outcome for test in results.tests] == ["failed"] * 3
    assert [workload.verdicts for workload in results.workloads] == [()]
    assert results.exit_status == 1


def test_a_retry_that_passes_replaces_what_failed(project: Project) -> None:
    (project.root / "perf" / "test_perf.py").write_text(FLAKY)
    with (project.root / "perf" / "conftest.py").open("a") as conftest:
        conftest.write(RETRYING)
    project.run().assert_outcomes(passed=1)
    results = left(project)
    assert [test.outcome for test in results.tests] == ["passed"]
    assert [verdict.headline for verdict in results.workloads[0].verdicts] == ["attempt 2"]


def test_exit_status_has_what_failed_after_the_results(project: Project) -> None:
    project.record()
    (project.root / "history").write_text("no folder")
    project.pytester.runpytest_inprocess("perf", f"--perf-history={project.root / 'history'}")
    assert left(project).exit_status == 1


def test_no_path_of_this_machine_is_in_the_results(project: Project) -> None:
    project.tell(told(kinds=("gemm",)))
    project.run()
    results = left(project)
    (declared,) = [each for each in results.workloads[0].verdicts if each.subject == "declared structure"]
    assert declared.status is Status.REGRESSED
    assert ("trace", f"traces/{ID}.json.gz") in [(reason.label, reason.text) for reason in declared.reasons]
    assert results.workloads[0].trace == f"traces/{ID}.json.gz"
    kept = json.loads((latest(project) / "results.json").read_text())
    del kept["arguments"]  # as they were typed: this project's tests name a file by its whole path
    assert str(project.root) not in json.dumps(kept)
    assert str(Path.home()) not in json.dumps(kept)


def test_the_report_beside_it_is_made_of_it(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=5.5))
    project.run()
    report = (latest(project) / "report.md").read_text()
    assert report == summary_markdown([left(project)])
    assert report.startswith("**REGRESSED**  1 workload (1 REGRESSED), 5 tests (1 failed)\n")
    assert "why: a_gelu  4.0 -> 5.5 us" in report


def test_reports_of_another_run_are_removed_before_anything_is_measured(project: Project) -> None:
    project.run()
    names = ("report.md", "report.html", "results.json")
    for name in names:
        (latest(project) / name).write_text("of another run")
    (project.root / "perf" / "test_perf.py").write_text(
        "from pathlib import Path\n\nfrom kernelgauge.standard import test_device_time\n\n\n"
        f"def test_they_are_gone(workload):\n    assert not any(Path('reports/latest', name).exists() for name in {names})\n"
    )
    assert project.run().parseoutcomes()["passed"] == 1
    assert (latest(project) / "report.md").read_text().startswith("**NO_BASELINE**")


def test_what_a_run_on_several_machines_left_is_removed_and_nothing_of_anybody_else(project: Project) -> None:
    """Of what it left of each, with its traces: whoever looks for the latest results would find these among them."""
    project.run()
    content = (latest(project) / "results.json").read_bytes()
    for name in ("told-gpu-told", "told-gpu-told--2", "before"):
        (latest(project) / name / "traces").mkdir(parents=True)
        (latest(project) / name / "traces" / "old.txt").write_text("a table\n")
        (latest(project) / name / "results.json").write_bytes(content)
    (latest(project) / "told-gpu-told--2" / "notes.txt").write_text("mine")
    for name, foreign in (("mine", b"[1, 2]"), ("cut", content[:100])):
        (latest(project) / name).mkdir()
        (latest(project) / name / "results.json").write_bytes(foreign)
    (project.root / "elsewhere").mkdir()
    (project.root / "elsewhere" / "results.json").write_bytes(content)
    (latest(project) / "link").symlink_to(project.root / "elsewhere")
    project.run()
    folders = sorted(path.name for path in latest(project).iterdir() if path.is_dir())
    assert folders == ["before", "cut", "link", "mine", "told-gpu-told--2", "traces"]
    assert [path.name for path in (latest(project) / "told-gpu-told--2").iterdir()] == ["notes.txt"]
    assert all((latest(project) / name / "results.json").exists() for name in ("before", "cut", "link", "mine"))


def test_what_no_device_measured_is_told_all_the_same(project: Project) -> None:
    project.tell(told(), no_device=True)
    project.run()
    results = left(project)
    assert (results.fingerprint, results.gpu, results.status) == (None, None, Status.INVALID)
    assert "nothing was measured" in (latest(project) / "report.md").read_text()


def test_junitxml_of_pytest_has_the_times(project: Project) -> None:
    project.tell(told())
    project.record()
    project.tell(told(gelu_us=5.5))
    project.run()
    properties = project.case("test_device_time").properties
    assert properties["kernelgauge_verdict"] == "REGRESSED"
    assert float(properties["kernelgauge_us"]) == pytest.approx(11.5, abs=0.1)
    assert float(properties["kernelgauge_baseline_us"]) == pytest.approx(10.0, abs=0.1)
    assert float(properties["kernelgauge_change_percent"]) == pytest.approx(15.0, abs=1.0)


def test_a_report_that_cannot_be_written_is_a_warning(project: Project) -> None:
    project.record()
    (project.root / "perf" / "test_zz_last.py").write_text(
        "from pathlib import Path\n\n\ndef test_last():\n    Path('reports/latest/report.md').mkdir()\n"
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["warning: cannot write", "  where *report.md"])
    assert left(project).status is Status.PASS


def test_a_report_that_cannot_be_removed_is_told_before_anything_is_measured(project: Project) -> None:
    (latest(project) / "report.md").mkdir(parents=True)
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cannot remove what another run has left", "  where *report.md"])
    assert project.measured() == []


def test_traces_that_cannot_be_removed_are_told_before_anything_is_measured(project: Project) -> None:
    latest(project).mkdir(parents=True)
    (latest(project) / "traces").write_text("a file")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cannot remove what another run has left", "  where *traces"])
    assert project.measured() == []


@pytest.mark.timeout(120)
# -- the step summary -------------------------------------------------------------------------------------------------


def test_the_step_summary_gets_the_report(project: Project, step: Path) -> None:
    project.record()
    project.run()
    first, second = step.read_text().split("\n\n**PASS**")  # the recording run, then this one
    assert first.startswith("**NO_BASELINE**")
    assert "**PASS**" + second == (latest(project) / "report.md").read_text()


def test_what_the_step_has_written_before_stays(project: Project, step: Path) -> None:
    step.write_text("# mine\n")
    project.run()
    assert step.read_text() == "# mine\n\n" + (latest(project) / "report.md").read_text()


@pytest.mark.parametrize("room", [50, 300, 700])
def test_no_more_is_added_than_github_takes(project: Project, step: Path, room: int) -> None:
    before = b"x" * (MIB - room)
    step.write_bytes(before)
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    added = step.read_bytes().removeprefix(before)
    assert len(added) <= room
    assert added.startswith(b"\n**NO_BASELINE**")


def test_a_step_that_has_used_up_its_summary_is_a_warning(project: Project, step: Path) -> None:
    step.write_bytes(b"x" * MIB)
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    assert step.stat().st_size == MIB
    result.stdout.fnmatch_lines(["warning: GITHUB_STEP_SUMMARY was not written: the step has written 1048576 bytes*"])


@pytest.mark.parametrize("kind", ["folder", "absent folder", "device", "fifo"])
def test_a_summary_that_cannot_be_written_is_a_warning_and_fails_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = {"device": Path("/dev/full"), "folder": tmp_path, "absent folder": tmp_path / "a" / "b"}.get(kind)
    if path is None:
        path = tmp_path / "fifo"
        os.mkfifo(path)
    project.record()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["warning: GITHUB_STEP_SUMMARY was not written: *"])
    assert left(project).status is Status.PASS


def test_an_empty_variable_is_none(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
    assert "GITHUB_STEP_SUMMARY" not in project.run().stdout.str()


def test_a_session_that_measures_nothing_tells_nothing(project: Project, step: Path) -> None:
    project.run("--collect-only")
    assert not step.exists()


def test_a_process_of_a_calibration_tells_nothing(
    project: Project, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = project.run("--perf-calibrate=c")
    assert (project.root / "c" / "latest" / "results.json").exists()
    assert not step.exists()
    assert "::error" not in result.stdout.str()


# -- annotations ------------------------------------------------------------------------------------------------------


def commands(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("::")]


def test_a_regression_is_annotated_in_a_workflow(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.record()
    project.tell(told(gelu_us=5.5))
    assert commands(project.run()) == []
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (command,) = commands(project.run())
    assert command.startswith(f"::error title={ID}%3A REGRESSED  device time::device time 10.0 -> 11.5 us  +15.00 %25")
    assert "%0Awhy: a_gelu  4.0 -> 5.5 us" in command


def test_a_measurement_that_failed_is_a_warning_told_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.tell(told(error="measurement"))
    (command,) = commands(project.run())
    assert command.startswith(f"::warning title={ID}%3A INVALID")
    assert "::the told error%0A" in command


def test_a_pass_is_not_annotated(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.record()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert commands(project.run()) == []


def test_no_more_than_ten_are_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.tell(*(told(shape=(number, 8), kinds=("gemm",)) for number in range(1, 15)))
    found = commands(project.run())
    assert len(found) == 10
    assert found[-1] == "::error title=kernelgauge%3A 5 more failures::5 more failures: see the summary"


def test_a_session_that_was_cut_short_before_anything_was_measured_says_so(project: Project) -> None:
    project.run()
    (project.root / "perf" / "test_aa.py").write_text("def test_interrupts():\n    raise KeyboardInterrupt\n")
    result = project.run(no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert len(project.measured()) == 1  # of the first run
    result.stdout.fnmatch_lines(["*cut short before anything was measured: there are no results"])
    assert not (project.root / "reports" / "latest" / "results.json").exists()  # those were an earlier run's
