"""What a worker of pytest-xdist measured outlives it, and what of it cannot be written or read is said."""

from __future__ import annotations

import pytest

from kernelgauge.cli import main
from kernelgauge.results_file import read_results
from tests.plugin.inner_project import Project
from tests.plugin.two_modules import IDS, add_to_conftest, results, run, two_modules

pytest.importorskip("xdist")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("gpus")]

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


def test_a_worker_that_dies_loses_its_last_workload_alone(project: Project) -> None:
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


def test_both_workers_may_die(project: Project) -> None:
    """Whoever replaces a dead worker does the rest of its share, and not of the other's."""
    project.tell(*two_modules())
    add_to_conftest(project, DIE_ONCE.replace('"died"', 'f"died-{item.name}"'))
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = results(project)
    assert sorted(each.id for each in found.workloads if each.run is not None) == sorted(IDS)
    assert sum(test.outcome == "failed" for test in found.tests) == 2
    assert len({test.node for test in found.tests}) == 20


def test_a_worker_that_dies_in_its_last_test_keeps_the_others(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, DIE_LAST)
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = results(project)
    assert {IDS[0], *IDS[2:]} <= {each.id for each in found.workloads if each.run is not None}
    (died,) = [test for test in found.tests if test.outcome == "failed"]
    assert died.workload == IDS[1]


def test_a_failure_before_a_worker_dies_is_not_forgotten(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, DIE_ONCE)
    test_file = project.root / "perf" / "test_perf.py"
    test_file.write_text("def test_a_claim(workload):\n    assert 0\n\n" + test_file.read_text())
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    failed = {test.node.partition("::")[2] for test in results(project).tests if test.outcome == "failed"}
    assert {f"test_a_claim[{identifier}]" for identifier in IDS} < failed


def test_a_part_that_cannot_be_written_fails_the_run(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, SPOIL_A_PART)
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "cannot write" in "\n".join(result.outlines)


def test_a_part_that_cannot_be_read_fails_the_run(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, CUT_A_PART)
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [each.id for each in results(project).workloads] == IDS[:2]
    assert any(warning.startswith("gw0: the results cannot be read") for warning in results(project).warnings)
    assert results(project).exit_status == pytest.ExitCode.TESTS_FAILED


def test_what_the_workers_measured_outlives_results_that_cannot_be_written(project: Project) -> None:
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


def test_what_a_dead_worker_was_at_is_not_stored(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, DIE_ONCE)
    result = run(project, "-n", "2", "--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (died,) = [test.workload for test in results(project).tests if test.outcome == "failed"]
    assert sorted(project.stored()) == sorted(set(IDS) - {died})
