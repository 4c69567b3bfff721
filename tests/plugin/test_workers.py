"""Under pytest-xdist: a GPU for each worker, a worker for each group of workloads, and one result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from kernelgauge.cli import main
from kernelgauge.judge import Status
from kernelgauge.results import read_results
from tests.plugin.inner_project import Project, told
from tests.plugin.two_modules import IDS, add_to_conftest, results, run, two_modules

pytest.importorskip("xdist")
pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("gpus")]

# What each worker saw: its GPU, before torch.
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

# Of the told suite: what a fixture in `inputs` does that takes its process with it.
DIE_WHERE_LINEAR_IS_MEASURED = """
import os

measure_all = measure_groups

def measure_groups(workloads, *arguments, **named):
    if any(workload.module == "linear" for workload in workloads):
        os._exit(9)
    return measure_all(workloads, *arguments, **named)
"""

DIE_IN_ONE_TEST = """
import os

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if item.name == "test_structure_is_that_of_the_baseline[linear-compiled-bf16-4x8]":
        os._exit(9)
"""

HANG_IN_ONE_TEST = """
import time

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if item.name == "test_structure_is_that_of_the_baseline[linear-eager-bf16-4x8]":
        (FOLDER / "hangs").touch()
        time.sleep(600)
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


def unit_tests(project: Project, count: int = 6) -> None:
    """Write tests of something else beside the suite."""
    (project.root / "unit").mkdir()
    body = f"import pytest\n\n@pytest.mark.parametrize('n', range({count}))\ndef test_unit(n):\n    pass\n"
    (project.root / "unit" / "test_unit.py").write_text(body)


def said(result: pytest.RunResult) -> str:
    return "\n".join(result.outlines + result.errlines)


# -- one result -------------------------------------------------------------------------------------------------------


def test_results_are_those_of_one_process(project: Project) -> None:
    project.tell(*two_modules())
    project.record()
    project.tell(*two_modules(gelu_us=5.5))
    project.run()
    alone = results(project)
    (project.root / "perf" / "measured.txt").unlink()
    add_to_conftest(project, TELL_ON_THEM, first=True)
    result = run(project, "-n", "auto", "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=19, failed=1)
    seen = {path.name: path.read_text() for path in (project.root / "perf").glob("seen-*")}
    assert seen == {"seen-controller": "3,GPU-5f", "seen-gw0": "3", "seen-gw1": "GPU-5f"}
    assert sorted(project.measured_together()) == [IDS[2:], IDS[:2]]
    together = results(project)
    assert [each.id for each in together.workloads] == [each.id for each in alone.workloads] == IDS
    for one, other in zip(alone.workloads, together.workloads, strict=True):
        assert one.verdicts == other.verdicts
        assert one.trace == other.trace
    assert {test.node for test in together.tests} == {test.node for test in alone.tests}
    assert together.exit_status == alone.exit_status == pytest.ExitCode.TESTS_FAILED
    assert together.arguments[-4:] == ("perf", "-n", "auto", "--junitxml=junit.xml")
    assert {each.run.neighbours for each in together.workloads if each.run} == {1}
    verdicts = sorted(case.properties["kernelgauge_verdict"] for case in project.cases())
    assert verdicts == ["PASS"] * 19 + ["REGRESSED"]
    latest = project.root / "reports" / "latest"
    assert sorted(path.name for path in latest.iterdir()) == ["report.html", "report.md", "results.json", "traces"]
    assert len(list((latest / "traces").iterdir())) == 2 * len(IDS)
    assert sum("= kernelgauge =" in line for line in result.outlines) == 1


def test_baselines_are_those_of_one_process(project: Project) -> None:
    project.tell(*two_modules())
    project.record()
    alone = project.stored()
    project.tell(*two_modules()[:3])  # the fourth is declared no longer
    for name in IDS[:3]:
        (project.baselines / f"{name}.json").unlink()
    result = run(project, "-n", "2", "--perf-update")
    assert result.ret == pytest.ExitCode.OK

    def content(stored: dict[str, bytes]) -> dict[str, Any]:
        return {name: json.loads(text) | {"recorded": None} for name, text in stored.items()}

    assert content(project.stored()) == {name: each for name, each in content(alone).items() if name in IDS[:3]}


def test_dist_each_runs_all_on_every_gpu(project: Project) -> None:
    project.tell(*two_modules())
    result = run(project, "-n", "2", "--dist", "each")
    result.assert_outcomes(passed=8, skipped=32)
    assert project.measured_together() == [IDS, IDS]


# -- how many workers -------------------------------------------------------------------------------------------------


def test_more_workers_than_gpus_are_not_started(project: Project) -> None:
    result = run(project, "-n", "5", "--collect-only")
    result.stdout.fnmatch_lines(["kernelgauge: one worker times on each GPU: -n 5 -> 2"])


def test_without_a_gpu_one_worker_is_started(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = run(project, "-n", "2", "--collect-only")
    result.stdout.fnmatch_lines(["kernelgauge: there is one device to time on: -n 2 -> 1"])


def test_unrelated_tests_keep_their_workers(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    project.tell(*two_modules())
    unit_tests(project)
    result = project.pytester.runpytest_subprocess("unit", "perf", "-n", "3", "-v")
    result.assert_outcomes(passed=10, skipped=16)
    result.stdout.fnmatch_lines(["3 workers*"])
    timing = {line.partition("]")[0] for line in result.outlines if line.startswith("[gw") and "perf/" in line}
    assert len(timing) == 1  # two processes on one GPU would disturb each other
    assert sorted(project.measured_together()) == [IDS[2:], IDS[:2]]


def test_other_suites_are_distributed_as_without_us(project: Project) -> None:
    unit_tests(project)
    result = project.pytester.runpytest_subprocess("unit", "-n", "2", "-v")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["scheduling tests via LoadScheduling"])


# -- what is refused --------------------------------------------------------------------------------------------------


def test_workers_that_collect_different_tests_are_an_error(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, COLLECT_LESS)
    result = run(project, "-n", "2")
    assert result.ret != pytest.ExitCode.OK
    assert "Different tests were collected" in said(result)
    assert project.measured() == []


def test_uncollectable_file_stops_everything(project: Project) -> None:
    (project.root / "perf" / "test_claims.py").write_text("import nothing_of_this_name\n")
    project.tell(*two_modules())
    result = run(project, "-n", "2", "--perf-update")
    assert result.ret != pytest.ExitCode.OK
    assert project.measured() == []
    assert not list((project.root / "baselines").glob("*/*.json"))


def test_update_of_nothing_fails_and_leaves_the_last_reports(project: Project) -> None:
    project.run()
    before = (project.root / "reports" / "latest" / "results.json").read_bytes()
    result = run(project, "-n", "2", "--perf-update", "-k", "nothing")
    assert result.ret != pytest.ExitCode.OK
    assert "nothing to store" in result.stdout.str()
    assert (project.root / "reports" / "latest" / "results.json").read_bytes() == before


def test_update_on_every_gpu_is_refused(project: Project) -> None:
    result = run(project, "-n", "2", "--dist", "each", "--perf-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert project.measured() == []


@pytest.mark.parametrize("workers", [("-n", "2"), ("--dist", "load", "--tx", "2*popen")], ids=["-n", "--tx"])
def test_runs_of_a_calibration_are_refused(project: Project, workers: tuple[str, ...]) -> None:
    result = run(project, "--perf-calibrate=c", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*each process of a calibration measures alone: run it without*"])
    assert not (project.root / "runs.json").exists()


def test_invalid_declaration_is_said_once_and_nothing_runs(project: Project) -> None:
    project.tell(told(), told())
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said(result).count("two workloads have the same id") == 1
    assert project.measured() == []


def test_unwritable_reports_are_said_before_measuring(project: Project) -> None:
    (project.root / "reports").write_text("")
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "cannot write" in said(result)
    assert project.measured() == []


def test_reports_that_cannot_be_removed_are_said(project: Project) -> None:
    latest = project.root / "reports" / "latest"
    latest.mkdir(parents=True)
    (latest / "traces").write_text("a file")
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"cannot remove what another run has left\n  where    {latest / 'traces'}" in said(result)
    assert "INTERNALERROR" not in said(result)
    assert project.measured() == []


def test_suite_that_the_controller_does_not_see_is_refused(project: Project) -> None:
    result = project.pytester.runpytest_subprocess(".", "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "pytest perf -n 2" in said(result)
    assert project.measured() == []


# -- workers that die or hang -----------------------------------------------------------------------------------------


def test_group_that_kills_a_worker_is_not_tried_again(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, DIE_WHERE_LINEAR_IS_MEASURED)
    result = run(project, "-n", "2", "-rs", "--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert said(result).count("replacing crashed worker") == 1
    result.stdout.fnmatch_lines(["*worker gw? died in the tests of linear-bf16-4x8: they are not run again"])
    found = results(project)
    assert [(each.id, each.run is not None) for each in found.workloads] == [(name, name in IDS[:2]) for name in IDS]
    assert {each.status for each in found.workloads[2:]} == {Status.INVALID}
    (died,) = [test for test in found.tests if test.outcome == "failed"]
    assert died.node == f"perf/test_perf.py::test_device_time[{died.workload}]"
    assert "crashed" in died.said
    assert len(found.tests) == len({test.node for test in found.tests}) == 20
    assert sorted(project.stored()) == sorted(IDS[:2])


def test_what_a_dead_worker_measured_before_is_kept(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, DIE_IN_ONE_TEST)
    test_file = project.root / "perf" / "test_perf.py"
    test_file.write_text("def test_a_claim(workload):\n    assert 0\n\n" + test_file.read_text())
    assert run(project, "-n", "1").ret == pytest.ExitCode.TESTS_FAILED
    found = results(project)
    assert [each.id for each in found.workloads if each.run is not None] == IDS
    failed = {test.node.partition("::")[2] for test in found.tests if test.outcome == "failed"}
    died = f"test_structure_is_that_of_the_baseline[{IDS[3]}]"
    assert failed == {died, *(f"test_a_claim[{identifier}]" for identifier in IDS)}
    lost = [each.id for each in found.workloads if each.verdict("measurement")]
    assert lost == [IDS[3]]


def test_sigterm_reports_what_was_measured(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, HANG_IN_ONE_TEST)
    command = [sys.executable, "-m", "pytest", "perf", "-n", "1"]
    process = subprocess.Popen(
        command, cwd=project.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    )
    while process.poll() is None and not (project.root / "perf" / "hangs").exists():
        time.sleep(0.1)
    process.terminate()
    output, _ = process.communicate()
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "cannot send" not in output
    assert "SIGTERM" in output
    assert all(any(line.startswith(name) for line in output.splitlines()) for name in IDS[:3])
    assert [each.id for each in results(project).workloads] == IDS[:3]
    assert any("was in the tests of linear-bf16-4x8 when" in warning for warning in results(project).warnings)


def test_part_that_cannot_be_written_fails_the_run(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, SPOIL_A_PART)
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "cannot write" in said(result)


def test_part_that_cannot_be_read_fails_the_run(project: Project) -> None:
    project.tell(*two_modules())
    add_to_conftest(project, CUT_A_PART)
    result = run(project, "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(results(project).workloads) == 2
    assert any(warning.startswith("gw0: the results cannot be read") for warning in results(project).warnings)


def test_parts_outlive_results_that_cannot_be_written(project: Project) -> None:
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
