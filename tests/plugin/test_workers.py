"""Under pytest-xdist: a GPU for each worker, a worker for each group of workloads, one result; and locks of a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.results import files
from kernelgauge.results.files import LOCKS, GpuLock
from tests.plugin.inner_project import IDS, Project, fake, text_of, two_modules

pytest.importorskip("xdist")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")


# Each worker notes its GPU, before torch.
NOTE_THE_GPU = """
import os, sys
from pathlib import Path
assert "torch" not in sys.modules
worker = os.environ.get("PYTEST_XDIST_WORKER", "controller")
(Path(__file__).parent / f"seen-{worker}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "not set"))
"""
# As a fixture in `inputs` may that takes its process with it.
DIE_WHERE_LINEAR_IS_MEASURED = """
import os

measure_all = measure_groups

def measure_groups(workloads, *arguments, **named):
    if any(workload.module == "linear" for workload in workloads):
        os._exit(9)
    return measure_all(workloads, *arguments, **named)
"""
HANG_IN_ONE_TEST = """
import time

import pytest
from xdist.workermanage import NodeManager

NodeManager.EXIT_TIMEOUT = 1

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if item.name == "test_structure_is_that_of_the_baseline[linear-eager-bf16-4x8]":
        (FOLDER / "hangs").touch()
        time.sleep(600)
"""
SPOIL_A_PART = """
from pathlib import Path

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        part = Path(session.config.rootpath, "reports", "latest", "workers", "gw0", "results.json")
        part.write_bytes(part.read_bytes(){spoil})
"""


def run(project: Project, *arguments: str) -> pytest.RunResult:
    """Run the suite with its controller in this process; the workers are processes of their own."""
    return project.pytester.runpytest_inprocess("perf", *arguments)


def without_date(project: Project) -> dict[str, dict[str, object]]:
    """Return the baselines without the time of their record."""
    return {name: json.loads(text) | {"recorded": None} for name, text in project.stored().items()}


def test_results_are_those_of_one_process(project: Project) -> None:
    project.set(*two_modules())
    project.record()
    project.set(*two_modules(gelu_us=5.5))
    project.run()
    alone = project.results()
    (project.root / "perf" / "measured.txt").unlink()
    project.add_to_conftest(NOTE_THE_GPU, first=True)
    arguments = ("perf", "-n", "auto", "--junitxml=junit.xml")
    result = project.pytester.runpytest_subprocess(*arguments)  # it has not imported torch
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=19, failed=1)
    seen = {path.name: path.read_text() for path in (project.root / "perf").glob("seen-*")}
    assert seen == {"seen-controller": "3,GPU-5f", "seen-gw0": "3", "seen-gw1": "GPU-5f"}
    assert sorted(project.measured()) == [IDS[2:], IDS[:2]]
    together = project.results()
    for one, other in zip(alone.workloads, together.workloads, strict=True):
        assert (one.id, one.verdicts, one.trace) == (other.id, other.verdicts, other.trace)
    assert {test.node for test in together.tests} == {test.node for test in alone.tests}
    assert together.exit_status == alone.exit_status == pytest.ExitCode.TESTS_FAILED
    assert together.arguments[-4:-1] == ("perf", "-n", "auto")
    assert {each.run.neighbours for each in together.workloads if each.run} == {1}
    verdicts = sorted(case.properties["kernelgauge_verdict"] for case in project.cases())
    assert verdicts == ["PASS"] * 19 + ["REGRESSED"]
    assert {path.name for path in project.latest.iterdir()} == {"report.html", "report.md", "results.json", "traces"}
    assert len(list((project.latest / "traces").iterdir())) == 2 * len(IDS)
    assert sum("= kernelgauge =" in line for line in result.outlines) == 1


def test_suite_gets_one_worker_for_each_gpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    project.set(*two_modules())
    (project.root / "unit").mkdir()  # tests of something else
    body = "import pytest\n\n@pytest.mark.parametrize('n', range(6))\ndef test_unit(n):\n    pass\n"
    (project.root / "unit" / "test_unit.py").write_text(body)
    result = project.pytester.runpytest_inprocess("unit", "perf", "-n", "3", "-v")
    result.assert_outcomes(passed=10, skipped=16)
    result.stdout.fnmatch_lines(["1 worker *"])  # two processes on one GPU would disturb each other
    alone = project.pytester.runpytest_inprocess("unit", "-n", "2", "-v")
    alone.assert_outcomes(passed=6)
    alone.stdout.fnmatch_lines(["scheduling tests via LoadScheduling"])


def test_worker_without_a_share_fails_nothing(project: Project) -> None:
    result = run(project, "-n", "2", "--perf-update")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=5)
    assert len(project.stored()) == 1


@pytest.mark.parametrize(
    ("fakes", "suite", "text"),
    [
        ([fake(), fake()], "perf", "two workloads have the same id"),
        ([fake()], ".", "pytest perf -n 2"),  # workers find the suite, and their controller does not
    ],
    ids=["twice", "below"],
)
def test_wrong_suite_measures_nothing(project: Project, fakes: list[dict[str, Any]], suite: str, text: str) -> None:
    project.set(*fakes)
    result = project.pytester.runpytest_inprocess(suite, "-n", "2", "--perf-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in text_of(result)
    assert "INTERNALERROR" not in text_of(result)
    assert (project.measured(), project.stored()) == ([], {})


def test_empty_suite_fails_where_it_is_relied_on(project: Project) -> None:
    project.set()
    result = project.run("-n", "2", "--perf-strict")
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "the suite perf declares no workload at all" in text_of(result)


def test_worker_that_dies_loses_its_share_alone(project: Project) -> None:
    project.set(*two_modules())
    project.record()
    alone = without_date(project)
    for name in IDS:
        (project.baselines / f"{name}.json").unlink()
    project.add_to_conftest(DIE_WHERE_LINEAR_IS_MEASURED)
    result = run(project, "-n", "2", "-rs", "--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["warning: a worker died in perf/test_perf.py::test_device_time[[]linear*: the rest*"])
    found = project.results()
    assert [each.id for each in found.workloads if each.run] == IDS[:2]
    (died,) = [test for test in found.tests if test.outcome == "failed"]
    assert died.node == f"perf/test_perf.py::test_device_time[{died.workload}]"
    assert "crashed" in died.said
    assert len(found.tests) == 11
    assert without_date(project) == {name: alone[name] for name in IDS[:2]}


def test_interrupted_run_reports_what_was_measured(project: Project) -> None:
    project.set(*two_modules())
    project.add_to_conftest(HANG_IN_ONE_TEST)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "perf", "-n", "1"],
        cwd=project.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell without job control starts its background jobs with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while process.poll() is None and not (project.root / "perf" / "hangs").exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "cannot send" not in output
    assert all(any(line.startswith(name) for line in output.splitlines()) for name in IDS[:3])
    assert [each.id for each in project.results().workloads] == IDS[:3]


def test_lost_part_fails_the_run(project: Project) -> None:
    project.set(*two_modules())
    project.add_to_conftest(SPOIL_A_PART.replace("{spoil}", "[:100]"))
    assert run(project, "-n", "2").ret == pytest.ExitCode.TESTS_FAILED
    assert "gw0: the results cannot be read" in "".join(project.results().warnings)
    assert project.results().exit_status == 1


def test_run_that_has_lost_every_part_fails(project: Project) -> None:
    project.add_to_conftest(SPOIL_A_PART.replace("{spoil}", "[:100]"))
    result = run(project, "-n", "1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "gw0: the results cannot be read" in text_of(result)


def test_gpus_of_two_models_are_no_one_run(project: Project) -> None:
    project.set(*two_modules())
    project.add_to_conftest(SPOIL_A_PART.replace("{spoil}", ".replace(b'Test GPU', b'Another GPU')"))
    result = run(project, "-n", "2", "--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "several models of GPU" in text_of(result)
    assert "nothing to store" not in text_of(result)
    assert project.stored() == {}
    assert not (project.latest / "results.json").exists()


def test_run_waits_in_vain_for_a_locked_gpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = GpuLock(Path(os.environ[LOCKS]))
    lock.hold("one")
    monkeypatch.setitem(GpuLock.__init__.__kwdefaults__, "patience_s", 0.3)
    monkeypatch.setattr(files, "_SAY_EVERY_S", 0.1)
    result = project.run("-q")
    assert "waiting for it" in text_of(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert project.measured() == []
    assert "another run times on GPU one" in text_of(result)
    lock.release()
    assert project.run().ret == project.results().exit_status == pytest.ExitCode.OK
