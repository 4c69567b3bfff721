"""What a run leaves: results, reports, the summary of a step in GitHub Actions, and what it writes
to a terminal.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.judge import Status
from kernelgauge.report.summary import error_commands, summary_markdown
from kernelgauge.results import TestResult, read_results
from kernelgauge.run import CALL_TIMERS
from tests import builders
from tests.builders import results, verdict
from tests.plugin.inner_project import ID, LINEAR, Project, fake, text_of


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The summary of the step that the inner run is in."""
    path = tmp_path / "step summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def test_run_leaves_results_and_reports(project: Project, step: Path) -> None:
    step.write_text("# mine\n")
    project.record()
    problem = "torch 99 does not tell which lines of code launch kernels (TypeError: changed)"
    measured = fake(gelu_us=5.5, problem=problem), fake("kinds", kinds=("gemm",), problem=problem)
    project.set(*measured, fake("failed", error="measurement"))
    said = f"{ID}, kinds-eager-bf16-4x8: {problem}"
    assert f"warning: {said}" in project.run().outlines
    results = project.results()
    assert results.warnings == (said,)
    workload = results.workloads[0]
    assert (workload.id, workload.suite, workload.module, workload.shape) == (
        ID,
        "perf",
        "mlp",
        (4, 8),
    )
    assert (workload.status, results.exit_status, results.gpu) == (Status.REGRESSED, 1, "one")
    assert None not in (workload.run, workload.baseline)
    assert (project.latest / workload.trace).is_file()
    assert [test.outcome for test in results.tests].count("failed") == 3
    assert (results.arguments[0], results.baselines) == ("perf", "baselines")
    (declared,) = [
        each for each in results.workloads[1].verdicts if each.subject == "declared structure"
    ]
    assert builders.reasons(declared, "trace") == ["traces/kinds-eager-bf16-4x8.json.gz"]
    kept = json.loads((project.latest / "results.json").read_text())
    del kept["arguments"]  # as they were typed: this project's tests name a file by its whole path
    assert not any(str(path) in json.dumps(kept) for path in (project.root, Path.home()))
    report = (project.latest / "report.md").read_text()
    assert report == summary_markdown([results])
    assert step.read_text().startswith("# mine\n\n**NO_BASELINE**")
    assert step.read_text().endswith("\n\n" + report)
    properties = project.case("test_device_time").properties
    times = [
        float(properties[f"kernelgauge_{name}"]) for name in ("us", "baseline_us", "change_percent")
    ]
    assert times == pytest.approx([11.5, 10.0, 15.0], rel=0.05)


OWN_TESTS = """
import pytest
from kernelgauge.judge.evidence import Failed
from kernelgauge.judge import Status, Verdict
from kernelgauge.plugin.fixtures import record_verdicts

@pytest.mark.xfail(strict=True, reason="not yet")
def test_passes_by_surprise(workload, run): ...

@pytest.fixture
def breaks_after():
    yield
    raise RuntimeError

def test_teardown(workload, run, breaks_after, request):
    record_verdicts(request.node, Verdict(Status.PASS, workload.id, "of the call", Failed("fine")))
"""


def test_own_tests_are_recorded_without_a_verdict(project: Project) -> None:
    project.write("test_perf.py", OWN_TESTS)
    project.pytester.runpytest_inprocess("perf")
    results = project.results()
    assert [
        (test.name.partition("[")[0], test.outcome, test.subject) for test in results.tests
    ] == [
        ("test_passes_by_surprise", "failed", None),
        ("test_teardown", "passed", "of the call"),
        ("test_teardown", "failed", None),  # not the verdict that its call ended with
    ]
    assert results.exit_status == 1


def test_earlier_run_is_removed_before_measuring(project: Project) -> None:
    """Its results, reports and traces, and nothing of anybody else."""
    project.run()
    (project.latest / "mine").mkdir()
    (project.latest / "mine" / "results.json").touch()
    (project.latest / ".results.json.1.tmp").touch()  # of a run that was killed
    project.set(fake("linear"))
    project.run()
    assert (project.latest / "mine" / "results.json").exists()
    assert not list(project.latest.glob(".*.tmp"))
    assert {path.name for path in (project.latest / "traces").iterdir()} == {
        f"{LINEAR}.json.gz",
        f"{LINEAR}.txt",
    }
    project.add_to_conftest("\ndef pytest_runtest_setup():\n    raise KeyboardInterrupt\n")
    result = project.run(no_reraise_ctrlc=True)
    assert (result.ret, len(project.measured())) == (pytest.ExitCode.INTERRUPTED, 2)
    result.stdout.fnmatch_lines(["*cut short before anything was measured: there are no results"])
    assert {path.name for path in project.latest.iterdir()} <= {"mine", ".lock"}


def test_step_summary_gets_no_more_than_github_takes(
    project: Project, step: Path, monkeypatch: Any
) -> None:
    for room in (0, 700):
        before = b"x" * ((1 << 20) - room)
        step.write_bytes(before)
        assert project.run().ret == pytest.ExitCode.OK
        added = step.read_bytes().removeprefix(before)
        assert len(added) <= room
        assert added.startswith(b"\n**NO_BASELINE**") == (room > 0)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/dev/full")
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    assert "warning: GITHUB_STEP_SUMMARY was not written: " in result.stdout.str()


MORE = """
from kernelgauge.standard import test_result_matches_float64
from kernelgauge.standard import test_device_time as test_renamed

def test_a_claim(workload, run):
    raise AssertionError

def test_of_something_else():
    raise AssertionError
"""


def test_calibrating_process_leaves_runs_of_timed_tests(
    project: Project, step: Path, monkeypatch: Any
) -> None:
    project.set(fake(), fake("linear"))
    project.write("test_more.py", MORE)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = project.run("--perf-calibrate=c", "--perf-strict")
    result.assert_outcomes(passed=12, deselected=5)
    assert "::error" not in text_of(result)
    assert (project.stored(), project.latest.exists(), step.exists()) == ({}, False, False)
    written = read_results(project.root / "c" / "latest" / "results.json")
    assert [each.module for each in written.workloads] == ["mlp", "linear"]
    assert Path(written.baselines) == project.root / "baselines"
    assert all(
        each.run is not None and set(each.run.samples) == set(CALL_TIMERS)
        for each in written.workloads
    )
    assert "test_renamed" in {test.name for test in written.tests}
    project.set(fake(counts={"graph_breaks": 1}, graph_breaks=0))
    assert project.run("--perf-calibrate=d").ret == pytest.ExitCode.TESTS_FAILED
    pytest.importorskip("xdist")
    for workers in (("-n", "2"), ("--dist", "load", "--tx", "2*popen")):
        assert "each process of a calibration measures alone" in project.refuse(
            "--perf-calibrate=e", *workers
        )


NORM = """
import torch


class Norm(torch.nn.Module):
    def forward(self, x):
        return {body}
"""
NORM_TEST = """
import torch
from model import Norm


def test_norm(kernelgauge):
    kernelgauge(Norm(), torch.ones(4, 8))
"""


def commands_of(result: pytest.RunResult) -> list[str]:
    return [line for line in text_of(result).splitlines() if line.startswith("::")]


def test_github_marks_the_line_that_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's line, in the form that GitHub Actions reads; and nothing outside of its jobs."""
    folder = pytester.mkdir("package")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    model = folder / "model.py"
    model.write_text(NORM.format(body="torch.relu(x)"))
    (folder / "test_model.py").write_text(NORM_TEST)
    (folder / "pytest.ini").write_text("[pytest]\nkernelgauge_replicates = 2\n")
    assert pytester.runpytest_inprocess("-q", "--perf-update").ret == 0
    run = ("-q", "-m", "not timing")
    model.write_text(NORM.format(body="torch.relu(x).pow(2)"))
    assert commands_of(pytester.runpytest_inprocess(*run)) == []
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    (command,) = commands_of(pytester.runpytest_inprocess(*run))
    title = "kernelgauge%3A test_model-test_norm%3A REGRESSED"
    assert command.startswith(f"::error file=package/model.py,line=7,title={title}::1 new kernel")


@pytest.mark.parametrize("text", builders.HOSTILE)
def test_github_reads_one_command_of_hostile_text(text: str) -> None:
    said = verdict(Status.REGRESSED, reasons=[("why", text)])
    failing = results(builders.workload(said, name=text))
    (command,) = error_commands(failing, lambda file: text)
    assert re.fullmatch(r"::error [^:\x00-\x1f]*::[^\x00-\x1f]*", command)
    assert re.findall(r"(?:^::error |,)(\w+)=", command)[0] in ("file", "title")
    assert command.count(",") <= 2


def test_github_marks_the_test_that_failed_without_a_verdict() -> None:
    nodes = ("perf/test_a.py::test_one", "perf/test_b.py::test_two")
    failed = [TestResult(node, None, "failed", 0.1, said=f"E  {node}") for node in nodes]
    said = list(error_commands(results(tests=tuple(failed)), lambda file: file))
    assert [re.findall(r"file=([^,]+),title=kernelgauge%3A (\w+)", each)[0] for each in said] == [
        ("perf/test_a.py", "test_one"),
        ("perf/test_b.py", "test_two"),
    ]


def test_diff_of_a_long_call_shows_what_changed() -> None:
    kernels = tuple(builders.launched(name, 5.0) for name in ("one", "two") * 40)
    now = builders.run(kernels=(*kernels, builders.launched("extra", 5.0)))
    before = builders.baseline(kernels=kernels)
    (found,) = builders.judged((now, before))
    page = summary_markdown([results(builders.workload(*found, run=now, baseline=before))])
    assert re.search(r"\n\+ extra\n", page), page


def test_folders_of_a_run_ignore_themselves(project: Project) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project.root, check=True)
    project.record()
    status = ["git", "status", "--porcelain", "--untracked-files=all"]
    done = subprocess.run(status, cwd=project.root, capture_output=True, text=True, check=True)
    assert (project.latest / "results.json").exists()
    assert (project.root / "baselines" / ".lock" / "update").exists()
    assert not re.findall(r"reports/|\.lock", done.stdout)
    assert f"{ID}.json" in done.stdout
