"""Ids of the tests that measure what they call: two files of one name, and who keeps a baseline."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin.inner_project import Run
from tests.plugin.test_functions import results, run, statuses

__all__ = ["run"]
pytestmark = pytest.mark.timeout(300)

TEST = """
import pytest, torch

@pytest.mark.kernelgauge(timing=False)
def test_add(kernelgauge):
    kernelgauge(lambda x: {call}, torch.ones(9))
"""
Write = Callable[..., None]
A, B = "a/test_ops.py", "b/test_ops.py"


@pytest.fixture
def write(pytester: pytest.Pytester) -> Write:
    """Write a test to a file, in packages, as pytest wants it for two files of one name."""

    def written(file: str, call: str = "x + 1") -> None:
        path = pytester.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(TEST.format(call=call))

    return written


def stored() -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(Path("baselines").glob("*/*.json"))}


PLAIN, OF_A, OF_B = "test_ops-test_add", "a-test_ops-test_add", "b-test_ops-test_add"


@pytest.mark.parametrize(
    ("order", "ids"),
    [
        ([A, B], [OF_A, OF_B]),  # both files are there from the start
        (["."], [OF_A, OF_B]),
        ([B, "."], [OF_A, OF_B]),
    ],
)
def test_files_of_one_name_have_two_ids(
    write: Write, run: Run, order: list[str], ids: list[str]
) -> None:
    write(A)
    write(B, "x.sin()")
    for selected in order:
        assert "1 passed" in (said := run(selected, "--perf-update")) or "2 passed" in said
    before = stored()
    assert list(before) == ids
    for selected, found in ((A, ids[:1]), (B, ids[1:]), (".", ids)):
        assert "passed" in run(selected)
        assert statuses() == dict.fromkeys(found, "PASS")
    assert stored() == before


def test_second_file_of_a_name_leaves_the_baseline(write: Write, run: Run) -> None:
    """The first one keeps its id, and the second one its own when the first is gone."""
    write(A)
    run("--perf-update")
    assert list(before := stored()) == [PLAIN]
    write(B, "x.sin()")
    assert "no baseline" in run(B)
    run(B, "--perf-update")
    assert stored() | before == stored()
    assert list(stored()) == [OF_B, PLAIN]
    assert "2 passed" in run()
    Path(A).unlink()
    assert "1 passed" in run()
    assert list(statuses()) == [OF_B]


def test_file_outside_of_the_root_has_a_baseline(
    pytester: pytest.Pytester, write: Write, run: Run
) -> None:
    """pytest itself has no name of such a file; the command that records names it."""
    write(A)
    write("root/conftest.py")
    os.chdir("root")
    arguments = ("../a/test_ops.py", "--rootdir=.", "-c", os.devnull)
    command = "record one with: pytest ../a/test_ops.py::test_add "
    assert command in run(*arguments)
    run(*arguments, "--perf-update")
    assert list(stored()) == [PLAIN]
    write(A, "x.sin()")
    assert "CHANGED" in run(*arguments)
    assert statuses() == {PLAIN: "CHANGED"}


def test_moved_file_keeps_its_baseline(write: Write, run: Run) -> None:
    write(A)
    run("--perf-update")
    Path(A).unlink()
    write(B)
    assert "1 passed" in run()
    assert statuses() == {PLAIN: "PASS"}


def test_ids_that_cannot_differ_are_refused(
    write: Write, run: Run, pytester: pytest.Pytester
) -> None:
    """A file in the root has no folder to be told by."""
    write(B)
    run("--perf-update")
    before = stored()
    Path("test_ops.py").write_text(TEST.format(call="x.sin()"))
    for arguments in (("test_ops.py",), ("test_ops.py", "--perf-update")):
        assert "two suites share this baseline" in run(*arguments)
    assert "two workloads have the same id" in run("--perf-update")
    assert stored() == before
    assert [each.id for each in results().workloads] == [PLAIN]


def test_copy_in_another_checkout_changes_no_id(write: Write, run: Run) -> None:
    for folder, mark in (("tree", ".git"), ("env", "pyvenv.cfg"), ("node_modules", "any")):
        write(f"{folder}/a/test_ops.py")
        Path(folder, mark).touch()
    write(A)
    run("a", "--perf-update")
    assert list(stored()) == [PLAIN]


SUITE = """
from kernelgauge import Workload

def pytest_kernelgauge_workloads():
    import torch
    names = {"sin": torch.sin, "cos": torch.cos}
    return [Workload(name, "eager", lambda f=f: f, lambda: (torch.ones(9),), (9,), None) for name, f in names.items()]
"""
OF_SUITE = """
import pytest

@pytest.mark.kernelgauge(timing=False)
def test_both(workload, kernelgauge):
    run = kernelgauge(workload)
    assert run.kernel_names() == [f"aten::{workload.module}"]
"""


def test_workload_of_a_suite_is_measured_by_a_test(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeconftest(SUITE)
    pytester.makepyfile(test_suite=OF_SUITE)
    assert "2 passed" in run("--perf-update")
    assert "2 passed" in run("--perf-strict")
    assert statuses() == {f"test_suite-test_both-{name}-eager-9": "PASS" for name in ("sin", "cos")}


LATE = """
def test_late(request):
    request.getfixturevalue("kernelgauge")
"""


def test_fixture_that_is_asked_for_too_late_is_refused(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(LATE)
    assert "name the fixture kernelgauge among the arguments of the test" in (said := run())
    assert "KeyError" not in said


LONG = f"""
import pytest, torch

@pytest.mark.kernelgauge(timing=False)
def test_{"x" * 300}(kernelgauge):
    kernelgauge(torch.relu, torch.ones(9))
"""


def test_id_that_is_too_long_is_one_failure(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(LONG)
    Path("baselines/cpu").mkdir(parents=True)
    assert "at most 200 letters" in (said := run("--perf-update"))
    assert "INTERNALERROR" not in said


@pytest.mark.parametrize("kind", ["pipe", "device", "outside"])
def test_baseline_that_is_no_file_is_invalid(pytester: pytest.Pytester, kind: str) -> None:
    pytester.makepyfile(
        test_ops="import torch\n\n\ndef test_relu(kernelgauge):\n    kernelgauge.using(timing=False)(torch.relu, torch.ones(9))\n"
    )
    pytester.runpytest_inprocess("--perf-update").assert_outcomes(passed=1)
    (file,) = Path("baselines").glob("*/*.json")
    outside = pytester.mkdir("elsewhere").parent.parent / "outside.json"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if kind == "device" else outside)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not a regular file*" if kind == "pipe" else "*a link to *"])


def test_id_of_parameters_has_neg_for_a_minus_only(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        test_ops="""
import pytest, torch

@pytest.mark.parametrize("x", [1, 2, 3], ids=["(64, 64)-16", "(-1, 2)--3", "a=-1-x-2"])
@pytest.mark.kernelgauge(timing=False)
def test_add(kernelgauge, x):
    kernelgauge(torch.add, torch.ones(9), x)
"""
    )
    run("--perf-update")
    assert list(stored()) == [
        f"test_ops-test_add-{name}" for name in ("64-64-16", "a-neg1-x-2", "neg1-2-neg3")
    ]
