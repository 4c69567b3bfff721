"""Under pytest-xdist: a worker for each GPU, a share for each worker, and one result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.inner_project import Project, told
from tests.plugin.two_modules import IDS, add_to_conftest, results, run, two_modules

pytest.importorskip("xdist")
pytestmark = pytest.mark.timeout(120)

# What each worker saw: its GPU, before torch, and how many it is one of.
TELL_ON_THEM = """
import os, sys
from pathlib import Path
assert "torch" not in sys.modules
worker = os.environ.get("PYTEST_XDIST_WORKER", "controller")
(Path(__file__).parent / f"seen-{worker}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "not set"))
"""

COLLECT_LESS = """
import os

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        del items[:5]
"""

COLLECT_BACKWARDS = """
import os

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        items.reverse()
"""


@pytest.mark.usefixtures("gpus")
class TestOnTwoGpus:
    def test_each_worker_has_a_gpu_of_its_own(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, TELL_ON_THEM, first=True)
        assert run(project, "-n", "2").ret == pytest.ExitCode.OK
        seen = {path.name: path.read_text() for path in (project.root / "perf").glob("seen-*")}
        assert seen == {"seen-controller": "3,GPU-5f", "seen-gw0": "3", "seen-gw1": "GPU-5f"}

    def test_each_workload_is_measured_once_and_a_module_stays_together(self, project: Project) -> None:
        project.tell(*two_modules())
        result = run(project, "-n", "2")
        result.assert_outcomes(passed=4, skipped=16)
        assert sorted(project.measured_together()) == [IDS[2:], IDS[:2]]

    def test_the_results_are_those_of_one_process(self, project: Project) -> None:
        project.tell(*two_modules())
        project.record()
        project.tell(*two_modules(gelu_us=5.5))
        project.run()
        alone = results(project)
        result = run(project, "-n", "2", "--junitxml=junit.xml")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.assert_outcomes(passed=19, failed=1)
        together = results(project)
        assert [each.id for each in together.workloads] == [each.id for each in alone.workloads] == IDS
        for one, other in zip(alone.workloads, together.workloads, strict=True):
            assert one.verdicts == other.verdicts
            assert one.trace == other.trace
        assert {test.node for test in together.tests} == {test.node for test in alone.tests}
        assert together.exit_status == alone.exit_status == pytest.ExitCode.TESTS_FAILED
        assert together.arguments[-4:] == ("perf", "-n", "2", "--junitxml=junit.xml")
        assert {each.run.neighbours for each in together.workloads if each.run} == {1}
        verdicts = sorted(case.properties["kernelgauge_verdict"] for case in project.cases())
        assert verdicts == ["PASS"] * 19 + ["REGRESSED"]

    def test_the_folder_of_reports_is_that_of_one_process(self, project: Project) -> None:
        project.tell(*two_modules())
        run(project, "-n", "2")
        latest = project.root / "reports" / "latest"
        assert sorted(path.name for path in latest.iterdir()) == ["report.html", "report.md", "results.json", "traces"]
        assert sorted(path.name for path in (latest / "traces").iterdir()) == sorted(
            f"{identifier}{suffix}" for identifier in IDS for suffix in (".json.gz", ".txt")
        )

    def test_the_summary_is_there_once_with_all_workloads(self, project: Project) -> None:
        project.tell(*two_modules())
        result = run(project, "-n", "2")
        assert sum("= kernelgauge =" in line for line in result.outlines) == 1
        for identifier in IDS:
            assert sum(line.startswith(f"{identifier} ") for line in result.outlines) == 1
        result.stdout.fnmatch_lines(["no baseline in baselines/told-gpu/; record one with: pytest perf --perf-update"])

    def test_the_summary_of_a_step_is_written_once(
        self, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
        project.tell(*two_modules())
        run(project, "-n", "2")
        assert (tmp_path / "step.md").read_text() == (project.root / "reports" / "latest" / "report.md").read_text()

    def test_progress_is_of_all_tests(self, project: Project) -> None:
        project.tell(*two_modules())
        result = run(project, "-n", "2")
        assert [line for line in result.outlines if "%]" in line][-1].endswith("[100%]")
        assert not any("[1" in line and "[100%]" not in line for line in result.outlines if "%]" in line)

    def test_auto_is_a_worker_for_each_gpu(self, project: Project) -> None:
        project.tell(*two_modules())
        run(project, "-n", "auto").stdout.fnmatch_lines(["*2 workers*"])

    def test_more_workers_than_gpus_are_not_started(self, project: Project) -> None:
        project.tell(*two_modules())
        result = run(project, "-n", "5")
        result.stdout.fnmatch_lines(["kernelgauge: one worker times on each GPU: -n 5 -> 2", "*2 workers*"])
        result.assert_outcomes(passed=4, skipped=16)

    def test_a_share_may_be_empty(self, project: Project) -> None:
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.OK
        result.assert_outcomes(passed=1, skipped=4)

    def test_nothing_selected_is_nothing_collected(self, project: Project) -> None:
        assert run(project, "-n", "2", "-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED

    def test_workers_that_collect_otherwise_are_an_error(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, COLLECT_LESS)
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stdout.fnmatch_lines(["*the workers collected different tests*"])

    def test_workers_that_collect_in_another_order_measure_all(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, COLLECT_BACKWARDS)
        assert run(project, "-n", "2").ret == pytest.ExitCode.OK
        assert sorted(project.measured()) == sorted(IDS)

    def test_a_file_that_cannot_be_collected_stops_everything(self, project: Project) -> None:
        (project.root / "perf" / "test_claims.py").write_text("import nothing_of_this_name\n")
        project.tell(*two_modules())
        result = run(project, "-n", "2", "--perf-update")
        assert result.ret != pytest.ExitCode.OK
        assert project.measured() == []
        assert not list((project.root / "baselines").glob("*/*.json"))

    @pytest.mark.parametrize("arguments", [("--collect-only",), ("-k", "nothing")], ids=["collected", "deselected"])
    def test_a_run_that_measures_nothing_leaves_the_last_reports(
        self, project: Project, arguments: tuple[str, ...]
    ) -> None:
        project.tell(*two_modules())
        run(project, "-n", "2")
        before = (project.root / "reports" / "latest" / "results.json").read_bytes()
        run(project, "-n", "2", *arguments)
        assert (project.root / "reports" / "latest" / "results.json").read_bytes() == before

    def test_an_update_of_nothing_fails(self, project: Project) -> None:
        result = run(project, "-n", "2", "--perf-update", "-k", "nothing")
        assert result.ret != pytest.ExitCode.OK
        assert "nothing to store" in result.stdout.str()

    def test_an_update_on_every_gpu_is_refused(self, project: Project) -> None:
        result = run(project, "-n", "2", "--dist", "each", "--perf-update")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert project.measured() == []

    def test_all_tests_run_on_every_gpu_where_that_is_asked_for(self, project: Project) -> None:
        project.tell(*two_modules())
        result = run(project, "-n", "2", "--dist", "each")
        result.assert_outcomes(passed=8, skipped=32)
        assert project.measured_together() == [IDS, IDS]

    def test_a_declaration_that_is_wrong_is_said_once_and_nothing_runs(self, project: Project) -> None:
        project.tell(told(), told())
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert sum("two workloads have the same id" in line for line in result.outlines + result.errlines) == 1
        assert project.measured() == []

    def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(self, project: Project) -> None:
        (project.root / "reports").write_text("")
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "cannot write" in "\n".join(result.outlines + result.errlines)
        assert project.measured() == []

    def test_reports_that_cannot_be_removed_are_said_before_anything_is_measured(self, project: Project) -> None:
        latest = project.root / "reports" / "latest"
        latest.mkdir(parents=True)
        (latest / "traces").write_text("a file")
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        said = "\n".join(result.outlines + result.errlines)
        assert f"cannot remove what another run has left\n  where    {latest / 'traces'}" in said
        assert "INTERNALERROR" not in said
        assert project.measured() == []

    def test_a_suite_that_the_controller_could_not_see_is_refused(self, project: Project) -> None:
        project.tell(*two_modules())
        result = project.pytester.runpytest_subprocess(".", "-n", "2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "pytest perf -n 2" in "\n".join(result.outlines + result.errlines)
        assert project.measured() == []

    def test_other_tests_are_distributed_as_without_us(self, project: Project) -> None:
        tests = project.root / "unit"
        tests.mkdir()
        (tests / "test_unit.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
        result = project.pytester.runpytest_subprocess("unit", "-n", "3", "-v")
        result.assert_outcomes(passed=3)
        result.stdout.fnmatch_lines(["scheduling tests via LoadScheduling"])


def test_without_a_gpu_one_worker_measures_it_all(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    project.tell(*two_modules())
    result = run(project, "-n", "2")
    result.stdout.fnmatch_lines(["kernelgauge: there is one device to time on: -n 2 -> 1"])
    assert project.measured_together() == [IDS]
    assert len(results(project).workloads) == 4


@pytest.mark.parametrize("workers", [("-n", "2"), ("--dist", "load", "--tx", "2*popen")], ids=["-n", "--tx"])
def test_runs_for_a_calibration_are_written_by_one_process(project: Project, workers: tuple[str, ...]) -> None:
    result = run(project, "--perf-runs=runs.json", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--perf-runs is written by one process: run it without*"])
    assert not (project.root / "runs.json").exists()
    assert project.measured() == []


@pytest.mark.usefixtures("gpus")
class TestBaselinesOfSeveralWorkers:
    def test_they_are_those_of_one_process(self, project: Project) -> None:
        project.tell(*two_modules())
        project.record()
        alone = project.stored()
        for path in (project.root / "baselines").glob("*/*.json"):
            path.unlink()
        result = run(project, "-n", "2", "--perf-update")
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(["4 written to *told-gpu"])

        def content(stored: dict[str, bytes]) -> dict[str, Any]:
            return {name: json.loads(text) | {"recorded": None} for name, text in stored.items()}

        assert content(project.stored()) == content(alone)

    def test_a_workload_that_the_suite_no_longer_declares_is_trimmed(self, project: Project) -> None:
        project.tell(*two_modules())
        project.record()
        project.tell(*two_modules()[:3])
        assert run(project, "-n", "2", "--perf-update").ret == pytest.ExitCode.OK
        assert sorted(project.stored()) == sorted(IDS[:3])
