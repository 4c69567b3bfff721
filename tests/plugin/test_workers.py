"""Under pytest-xdist: a GPU for each worker, a worker for each group of workloads, one result; and
locks of a GPU.
"""

import json
from typing import Any

import pytest

from kernelgauge.results import files
from kernelgauge.results.files import GpuLock
from tests.plugin.inner_project import (
    COMPILED,
    ID,
    IDS,
    LINEAR,
    Project,
    fake,
    text_of,
    two_modules,
)

pytest.importorskip("xdist")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")


# Each worker notes its GPU, before torch.
NOTE_THE_GPU = """
import os, pathlib, sys
assert "torch" not in sys.modules
seen = pathlib.Path(__file__).with_name("seen-" + os.environ.get("PYTEST_XDIST_WORKER", "controller"))
seen.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "not set"))
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
COUNT = """
import kernelgauge.baselines as stored
import kernelgauge.plugin.record as record

decode, write, counts = stored.decode_baseline, record.write_atomically, [0, 0]

def counted(*arguments, **named):
    counts[0] += 1
    return decode(*arguments, **named)

def written(*arguments):
    counts[1] += 1
    return write(*arguments)

stored.decode_baseline, record.write_atomically = counted, written

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        (FOLDER / "counts").write_text(json.dumps(counts))
"""
SPOIL_A_PART = """
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        part = session.config.rootpath / "reports" / "latest" / "workers" / "gw0" / "results.json"
        part.write_bytes(part.read_bytes(){spoil})
"""


def test_results_are_those_of_one_process(project: Project) -> None:
    project.set(*two_modules())
    project.record()
    project.set(*two_modules(gelu_us=5.5))
    project.run()
    alone = project.results()
    (project.root / "perf" / "measured.txt").unlink()
    project.write("conftest.py", NOTE_THE_GPU + (project.root / "perf" / "conftest.py").read_text())
    arguments = ("perf", "-n", "auto", "--junitxml=junit.xml")
    result = project.pytester.runpytest_subprocess(*arguments)  # it has not imported torch
    result.assert_outcomes(passed=19, failed=1)
    seen = {path.name: path.read_text() for path in (project.root / "perf").glob("seen-*")}
    assert seen == {"seen-controller": "3,GPU-5f", "seen-gw0": "3", "seen-gw1": "GPU-5f"}
    assert sorted(project.measured()) == [IDS[2:], IDS[:2]]
    together = project.results()
    for one, other in zip(alone.workloads, together.workloads, strict=True):
        assert (one.id, one.verdicts, one.trace) == (other.id, other.verdicts, other.trace)
        assert (one.run.kernels, one.run.counts) == (other.run.kernels, other.run.counts)
        assert one.run.samples.keys() == other.run.samples.keys()
    assert (together.gpu, together.fingerprint) == (alone.gpu, alone.fingerprint)
    assert {test.node for test in together.tests} == {test.node for test in alone.tests}
    assert together.exit_status == alone.exit_status == result.ret == pytest.ExitCode.TESTS_FAILED
    assert together.arguments[-4:-1] == ("perf", "-n", "auto")
    assert {each.run.neighbours for each in together.workloads if each.run} == {1}
    assert [case.properties["kernelgauge_verdict"] for case in project.cases()].count("PASS") == 19
    assert {path.name for path in project.latest.iterdir()} == {
        "report.html",
        "report.md",
        "results.json",
        "traces",
    }
    assert len(list((project.latest / "traces").iterdir())) == 2 * len(IDS)
    assert sum("= kernelgauge =" in line for line in result.outlines) == 1


def test_suite_gets_one_worker_for_each_gpu(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    project.set(*two_modules())
    (project.root / "test_unit.py").write_text("def test_of_something_else():\n    pass\n")
    result = project.pytester.runpytest_inprocess("test_unit.py", "perf", "-n", "3", "-v")
    result.assert_outcomes(passed=5, skipped=16)
    result.stdout.fnmatch_lines(["1 worker *"])  # two processes on one GPU would disturb each other
    alone = project.run("-n", "2", "-v", suite="test_unit.py")
    alone.stdout.fnmatch_lines(["2 workers *", "scheduling tests via LoadScheduling"])


@pytest.mark.parametrize(
    ("fakes", "suite", "text"),
    [
        ([fake(), fake()], "perf", "two workloads have the same id"),
        # workers find the suite, and their controller does not
        ([fake()], ".", "pytest perf -n 2"),
    ],
)
def test_wrong_suite_measures_nothing(
    project: Project, fakes: list[dict[str, Any]], suite: str, text: str
) -> None:
    project.set(*fakes)
    result = project.run("-n", "2", "--perf-update", suite=suite)
    assert result.ret in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.TESTS_FAILED)
    assert text in text_of(result)
    assert "INTERNALERROR" not in text_of(result)
    assert (project.measured(), project.stored()) == ([], {})


def test_worker_that_dies_loses_its_share_alone(project: Project) -> None:
    project.set(fake())
    # one worker has no share
    assert project.run("-n", "2", "--perf-update").ret == pytest.ExitCode.OK
    assert set(project.stored()) == set(IDS[:1])
    project.set(*two_modules())
    project.add_to_conftest(DIE_WHERE_LINEAR_IS_MEASURED)
    result = project.run("-n", "2", "-rs", "--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["warning: a worker died in perf/test_perf.py::test_device_time[[]linear*: the rest*"]
    )
    found = project.results()
    assert [each.id for each in found.workloads if each.run] == IDS[:2]
    (died,) = [test for test in found.tests if test.outcome == "failed"]
    assert died.node == f"perf/test_perf.py::test_device_time[{died.workload}]"
    assert "crashed" in died.said
    assert len(found.tests) == 11
    assert set(project.stored()) == set(IDS[:2])


def test_worker_decodes_and_writes_a_few_times(project: Project) -> None:
    """It writes the results of a workload when they are known, and all of them at the end: not with
    each of its tests.
    """
    project.add_to_conftest(COUNT)
    for number in (3, 9):
        project.set(*(fake(f"m{each}") for each in range(number)))
        project.record()
        assert project.run("-n", "1").ret == pytest.ExitCode.OK
        assert json.loads((project.root / "perf" / "counts").read_text()) == [number, number + 1]


DIE_IN_A_TEST = """
def test_dies(workload, worker_id):
    if worker_id != "master" and workload.variant == "compiled":
        import os
        os._exit(9)
"""


def test_what_a_dead_worker_knew_is_kept(project: Project) -> None:
    project.set(fake(), fake(variant="compiled"), fake("linear"))
    project.record()
    project.set(fake(gelu_us=5.5), fake(variant="compiled"), fake("linear"))
    project.write("test_zzz.py", DIE_IN_A_TEST)
    result = project.run("-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = project.results()
    assert {each.id: each.status.value for each in found.workloads if each.status} == {
        ID: "REGRESSED",
        COMPILED: "PASS",
        LINEAR: "PASS",
    }
    assert len([each for each in found.tests if each.workload == ID]) == 6
    assert sum(each.outcome == "failed" for each in found.tests) == 2


def test_lost_part_fails_the_run(project: Project) -> None:
    project.add_to_conftest(SPOIL_A_PART.replace("{spoil}", "[:100]"))
    result = project.run("-n", "1")  # it has lost every part
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "gw0: the results cannot be read" in text_of(result)
    project.set(*two_modules())
    assert (
        project.run("-n", "2").ret == project.results().exit_status == pytest.ExitCode.TESTS_FAILED
    )
    assert "gw0: the results cannot be read" in "".join(project.results().warnings)


def test_gpus_of_two_models_are_no_one_run(project: Project) -> None:
    project.set(*two_modules())
    project.add_to_conftest(
        SPOIL_A_PART.replace("{spoil}", ".replace(b'Test GPU', b'Another GPU')")
    )
    result = project.run("-n", "2", "--perf-update")
    assert (result.ret, project.stored()) == (pytest.ExitCode.TESTS_FAILED, {})
    assert "several models of GPU" in text_of(result)
    assert "nothing to store" not in text_of(result)
    assert not (project.latest / "results.json").exists()


def test_run_waits_in_vain_for_a_locked_gpu(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lock := GpuLock()).hold("one")
    monkeypatch.setitem(GpuLock.__init__.__kwdefaults__, "patience_s", 0.3)
    assert "waiting for it" not in text_of(project.run("-q"))  # a wait of seconds is no news
    for name in ("_QUIET_S", "_SAY_EVERY_S"):
        monkeypatch.setattr(files, name, 0.1)
    result = project.run("-q")
    assert (result.ret, project.measured()) == (pytest.ExitCode.TESTS_FAILED, [])
    assert "another run times on GPU one: waiting for it (0 s so far)" in text_of(result)
    assert "timed out after 0.3 s: another run times on GPU one" in text_of(result)
    lock.release()
    assert project.run().ret == project.results().exit_status == pytest.ExitCode.OK
