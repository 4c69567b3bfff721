"""What a run leaves: results, reports, a history, what it tells GitHub Actions, and what it writes to a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.judge.verdict import Status
from kernelgauge.report import words
from kernelgauge.report.markdown import summary_markdown
from kernelgauge.report.words import headline
from tests.plugin.inner_project import ID, Project, told

MIB = 1 << 20


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The summary of the step that the inner run is in."""
    path = tmp_path / "step summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def test_run_leaves_results_and_reports(project: Project, step: Path) -> None:
    step.write_text("# mine\n")
    project.record()
    project.run()
    project.tell(told(gelu_us=5.5), told("kinds", kinds=("gemm",)), told("failed", error="measurement"))
    project.run()
    results = project.results()
    workload = results.workloads[0]
    assert (workload.id, workload.suite, workload.module, workload.shape) == (ID, "perf", "mlp", (4, 8))
    assert (workload.status, results.exit_status, results.gpu) == (Status.REGRESSED, 1, "told")
    assert results.fingerprint.device == "Told GPU"
    assert workload.run is not None
    assert workload.baseline is not None
    assert workload.trace == f"traces/{ID}.json.gz"
    assert (project.latest / workload.trace).is_file()
    assert [test.outcome for test in results.tests].count("failed") == 7
    assert results.arguments[0] == "perf"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", results.started_at)
    (declared,) = [each for each in results.workloads[1].verdicts if each.subject == "declared structure"]
    kinds = "kinds-eager-bf16-4x8"
    assert ("trace", f"traces/{kinds}.json.gz") in [(reason.label, reason.text) for reason in words.reasons(declared)]
    kept = json.loads((project.latest / "results.json").read_text())
    del kept["arguments"]  # as they were typed: this project's tests name a file by its whole path
    assert not any(str(path) in json.dumps(kept) for path in (project.root, Path.home()))
    report = (project.latest / "report.md").read_text()
    assert report == summary_markdown([results])
    assert "  cause    the same kernel, slower: a_gelu  4.0 -> 5.5 us" in report
    assert step.read_text().startswith("# mine\n\n**NO_BASELINE**")
    assert step.read_text().endswith("\n\n" + report)
    properties = project.of("test_device_time", ID).properties
    times = [float(properties[f"kernelgauge_{name}"]) for name in ("us", "baseline_us", "change_percent")]
    assert times == [pytest.approx(11.5, abs=0.1), pytest.approx(10.0, abs=0.1), pytest.approx(15.0, abs=1.0)]


def test_results_record_the_folder_of_their_baselines(project: Project, tmp_path: Path) -> None:
    project.run("-o", f"kernelgauge_baselines={tmp_path / 'outside'}")
    assert project.results().baselines == str(tmp_path / "outside")
    project.run("-o", "kernelgauge_baselines=known/there")
    assert project.results().baselines == "known/there"


OWN_TESTS = """
import pytest
from kernelgauge.judge.evidence import Failed
from kernelgauge.judge.verdict import Status, Verdict

attempts = []

@pytest.fixture
def database():
    raise NameError("name 'connection' is not defined")

def test_claim(workload, run):
    assert run.counts.copies == 7

def test_setup(workload, run, database): ...

@pytest.mark.xfail(strict=True, reason="not yet")
def test_passes_by_surprise(workload, run): ...

def test_flaky(workload, run, kernelgauge_test):
    attempts.append(1)
    status = Status.REGRESSED if len(attempts) == 1 else Status.PASS
    kernelgauge_test.session.conclude(Verdict(status, workload.id, "structure", Failed(f"attempt {len(attempts)}")))
    assert status is Status.PASS

@pytest.fixture
def breaks_after():
    yield
    raise RuntimeError

def test_teardown(workload, run, kernelgauge_test, breaks_after):
    kernelgauge_test.conclude(Verdict(Status.PASS, workload.id, "of the call", Failed("fine")))
"""
RETRYING = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    if "flaky" not in item.name:
        return None
    runtestprotocol(item, nextitem=nextitem, log=False)
    item._initrequest()
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


def test_own_tests_are_recorded_without_a_verdict(project: Project) -> None:
    project.write("test_perf.py", OWN_TESTS)
    project.add_to_conftest(RETRYING)
    project.pytester.runpytest_inprocess("perf")
    results = project.results()
    ended = [(test.name.partition("[")[0], test.outcome, test.subject) for test in results.tests]
    assert ended == [
        ("test_claim", "failed", None),
        ("test_setup", "failed", None),
        ("test_passes_by_surprise", "failed", None),
        ("test_flaky", "passed", None),  # a retry replaces what failed
        ("test_teardown", "passed", "of the call"),
        ("test_teardown", "failed", None),  # not the verdict that its call ended with
    ]
    assert [headline(verdict) for verdict in results.workloads[0].verdicts] == ["attempt 2", "fine"]
    assert results.exit_status == 1


FREED = """
def test_trace_is_on_the_disk_only(workload, run, trace_file, kernelgauge_test):
    measured = kernelgauge_test.session._measured[workload.id]
    assert trace_file.exists() and not (measured.trace_json or measured.table)
"""


def test_run_frees_its_traces_and_says_what_it_lacks(project: Project) -> None:
    problem = "torch 99 does not tell which lines of code launch kernels (TypeError: changed)"
    project.tell(told(problem=problem), told("linear", problem=problem))
    project.write("test_freed.py", FREED)
    result = project.run("-k", "on_the_disk")
    result.assert_outcomes(passed=2, deselected=10)
    assert project.results().warnings == (problem,)
    assert f"warning: {problem}" in result.outlines


LOGS = """
import logging

def test_logs(workload):
    logging.getLogger("torch._dynamo").warning("a recompile\\n  because of a guard")
    logging.{call}
    assert False
"""


@pytest.mark.parametrize(
    "call", ["getLogger('mine').warning('the ' + 'last')", "log(25, 'the ' + 'last')", "error('the ' + 'last')"]
)
def test_log_of_the_user_stays_behind_that_of_torch(project: Project, call: str) -> None:
    project.write("test_logs.py", LOGS.format(call=call))
    said = project.run("-k", "test_logs", "--log-level=1").stdout.str()
    assert "the last" in said
    assert "recompile" not in said.partition("Captured log")[2]
    assert "because of a guard" not in said.partition("Captured log")[2]


def test_earlier_run_is_removed_before_measuring(project: Project) -> None:
    """Its results, reports and traces, and nothing of anybody else."""
    project.run()
    (project.latest / "mine").mkdir()
    (project.latest / "mine" / "results.json").write_bytes((project.latest / "results.json").read_bytes())
    names = ("report.md", "report.html", "results.json")
    project.write(
        "test_perf.py",
        "from pathlib import Path\nfrom kernelgauge.standard import test_device_time\n"
        f"def test_they_are_gone(workload):\n    assert not any(Path('reports/latest', name).exists() for name in {names})\n",
    )
    project.tell(told("linear"))
    project.run().assert_outcomes(passed=1, skipped=1)
    assert (project.latest / "mine" / "results.json").exists()
    linear = "linear-eager-bf16-4x8"
    assert {path.name for path in (project.latest / "traces").iterdir()} == {f"{linear}.json.gz", f"{linear}.txt"}


def test_run_cut_short_before_measuring_has_no_results(project: Project) -> None:
    project.run()
    project.add_to_conftest("\ndef pytest_runtest_setup():\n    raise KeyboardInterrupt\n")
    result = project.run(no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert len(project.measured()) == 1  # of the first run
    result.stdout.fnmatch_lines(["*cut short before anything was measured: there are no results"])
    assert not (project.latest / "results.json").exists()  # those were an earlier run's


@pytest.mark.parametrize("room", [0, 700])
def test_step_summary_gets_no_more_than_github_takes(project: Project, step: Path, room: int) -> None:
    before = b"x" * (MIB - room)
    step.write_bytes(before)
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    added = step.read_bytes().removeprefix(before)
    assert len(added) <= room
    assert added.startswith(b"\n**NO_BASELINE**") == (room > 0)


@pytest.mark.parametrize("kind", ["folder", "device"])
def test_unwritable_step_summary_is_a_warning(project: Project, step: Path, monkeypatch: Any, kind: str) -> None:
    paths = {"device": Path("/dev/full"), "folder": project.root}
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(paths[kind]))
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    assert "warning: GITHUB_STEP_SUMMARY was not written: " in result.stdout.str()
