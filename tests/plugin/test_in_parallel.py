"""Under pytest-xdist: a worker for each GPU, a share for each worker, and one result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.cli import main
from kernelgauge.results_file import read_results
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

DIE_ONCE = """
import os
from pathlib import Path

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    died = Path(__file__).parent / "died"
    if "compiled" in item.name and item.name.startswith("test_device_time") and not died.exists():
        died.write_text("")
        os._exit(9)
"""


DIE_LAST = """
import os

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if "mlp-compiled" in item.name and item is item.session.items[-1]:
        os._exit(9)
    if "linear" in item.name:
        import time
        time.sleep(0.3)
"""

SPOIL_A_PART = """
import os
import shutil
from pathlib import Path

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    folder = Path(item.config.rootpath, "reports", "latest", "workers", "gw0")
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" and folder.is_dir():
        shutil.rmtree(folder)
        folder.write_text("a file")
"""

CUT_A_PART = """
from pathlib import Path

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        part = Path(session.config.rootpath, "reports", "latest", "workers", "gw0", "results.json")
        part.write_bytes(part.read_bytes()[:100])
"""

IN_THE_WAY_OF_THE_RESULTS = """
from pathlib import Path

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        Path(session.config.rootpath, "reports", "latest", "results.json").mkdir()
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


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")


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

    def test_a_worker_that_dies_loses_its_last_workload_alone(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, DIE_ONCE)
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["*worker 'gw?' crashed while running*"])
        found = results(project)
        assert sorted(each.id for each in found.workloads if each.run is not None) == sorted(IDS)
        (died,) = [test for test in found.tests if test.outcome == "failed"]
        assert died.node.startswith("perf/test_perf.py::test_device_time[")
        assert died.workload is not None
        assert f"[{died.workload}]" in died.node
        assert "crashed" in died.said
        assert len({test.node for test in found.tests}) == 20
        assert found.exit_status == pytest.ExitCode.TESTS_FAILED

    def test_both_workers_may_die(self, project: Project) -> None:
        """Whoever replaces a dead worker does the rest of its share, and not of the other's."""
        project.tell(*two_modules())
        add_to_conftest(project, DIE_ONCE.replace('"died"', 'f"died-{item.name}"'))
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        found = results(project)
        assert sorted(each.id for each in found.workloads if each.run is not None) == sorted(IDS)
        assert sum(test.outcome == "failed" for test in found.tests) == 2
        assert len({test.node for test in found.tests}) == 20

    def test_a_worker_that_dies_in_its_last_test_keeps_the_others(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, DIE_LAST)
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        found = results(project)
        assert {IDS[0], *IDS[2:]} <= {each.id for each in found.workloads if each.run is not None}
        (died,) = [test for test in found.tests if test.outcome == "failed"]
        assert died.workload == IDS[1]

    def test_a_failure_before_a_worker_dies_is_not_forgotten(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, DIE_ONCE)
        test_file = project.root / "perf" / "test_perf.py"
        test_file.write_text("def test_a_claim(workload):\n    assert 0\n\n" + test_file.read_text())
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        failed = {test.node.partition("::")[2] for test in results(project).tests if test.outcome == "failed"}
        assert {f"test_a_claim[{identifier}]" for identifier in IDS} < failed

    def test_a_part_that_cannot_be_written_fails_the_run(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, SPOIL_A_PART)
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "cannot write" in "\n".join(result.outlines)

    def test_a_part_that_cannot_be_read_fails_the_run(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, CUT_A_PART)
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert [each.id for each in results(project).workloads] == IDS[:2]
        assert any(warning.startswith("gw0: the results cannot be read") for warning in results(project).warnings)
        assert results(project).exit_status == pytest.ExitCode.TESTS_FAILED

    def test_what_the_workers_measured_outlives_results_that_cannot_be_written(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, IN_THE_WAY_OF_THE_RESULTS)
        result = run(project, "-n", "2")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        workers = project.root / "reports" / "latest" / "workers"
        stays = f"what the workers measured stays in {workers} until the next run"
        result.stdout.fnmatch_lines(["cannot write", f"{stays}: kernelgauge merge {workers} --to DIR"])
        merged = project.root / "merged"
        main(["merge", str(workers), "--to", str(merged)])
        assert sorted(each.id for each in read_results(merged / "results.json").workloads if each.run) == sorted(IDS)

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

    def test_what_a_dead_worker_was_at_is_not_stored(self, project: Project) -> None:
        project.tell(*two_modules())
        add_to_conftest(project, DIE_ONCE)
        result = run(project, "-n", "2", "--perf-update")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        (died,) = [test.workload for test in results(project).tests if test.outcome == "failed"]
        assert sorted(project.stored()) == sorted(set(IDS) - {died})

    def test_a_workload_that_the_suite_no_longer_declares_is_trimmed(self, project: Project) -> None:
        project.tell(*two_modules())
        project.record()
        project.tell(*two_modules()[:3])
        assert run(project, "-n", "2", "--perf-update").ret == pytest.ExitCode.OK
        assert sorted(project.stored()) == sorted(IDS[:3])
