"""Tests that would gate nothing: the fixture that nobody calls, a skip, a verdict that the test
catches.
"""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import Command
from tests.plugin.inner_project import ID, Project, Run, fake, text_of
from tests.plugin.test_functions import run, statuses

__all__ = ["run"]
pytestmark = pytest.mark.timeout(300)

GATES = """
import os, threading, unittest
import pytest, torch

pytestmark = pytest.mark.kernelgauge(timing=False)
HOW = os.environ.get("HOW")

def measure(gauge):
    if HOW != "uncalled":
        gauge(lambda x: x.sin().cos() if HOW == "slower" else x.sin(), torch.ones(9))

def test_early(kernelgauge):
    measure(kernelgauge)

def test_fork(kernelgauge):
    if HOW != "uncalled":
        measure(kernelgauge)
    elif (child := os.fork()) == 0:
        try:
            kernelgauge(torch.sin, torch.ones(9))
        finally:
            os._exit(0)
    else:
        os.waitpid(child, 0)

@pytest.fixture
def late(kernelgauge):
    yield
    measure(kernelgauge)

def test_late(late):
    pass

class TestCase(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def ask(self, kernelgauge):
        self.gauge = kernelgauge

    def test_case(self):
        if HOW == "skipped":
            self.skipTest("not today")
        measure(self.gauge)

@pytest.mark.skipif(HOW == "skipped", reason="not today")
def test_mark(kernelgauge):
    measure(kernelgauge)

def test_import(kernelgauge):
    pytest.importorskip("torch" if HOW != "skipped" else "no_such_module")
    measure(kernelgauge)

def test_thread(kernelgauge):
    thread = threading.Thread(target=measure, args=(kernelgauge,))
    thread.start()
    thread.join()

def test_caught(kernelgauge):
    try:
        measure(kernelgauge)
    except BaseException:
        pass

def test_excused(kernelgauge):
    try:
        measure(kernelgauge)
    except BaseException:
        pytest.skip("flaky")

def test_xfailed(kernelgauge):
    try:
        measure(kernelgauge)
    except BaseException:
        pytest.xfail("flaky")

@pytest.mark.parametrize("number", [] if HOW == "skipped" else [1])
def test_cases(kernelgauge, number):
    measure(kernelgauge)

def test_expected(kernelgauge):
    if HOW == "slower":
        with pytest.raises(BaseException):
            measure(kernelgauge)
    else:
        measure(kernelgauge)

def test_fails(kernelgauge):
    assert HOW != "uncalled"
    measure(kernelgauge)

@pytest.mark.xfail
def test_expected_to_fail(kernelgauge):
    measure(kernelgauge)
    assert HOW == "mended"

def test_benchmark(benchmark):
    measure(benchmark)
"""
ALL = {
    *"early fork late case mark import thread caught excused xfailed cases[1] expected benchmark".split()
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_test_that_judges_nothing_fails(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_gates=GATES)
    arguments = ("--perf-benchmark", "-rA", "-p", "no:threadexception")
    uncalled = "measured nothing: the test did not call it"

    def ends(how: str, *more: str) -> tuple[set[str], str]:
        """Return the tests that failed, by their short names."""
        monkeypatch.setenv("HOW", how)
        said = run(*arguments, *more)
        lines = [
            line.split(" - ")[0]
            for line in said.splitlines()
            if line.startswith(("FAILED test", "ERROR test"))
        ]
        return {line.rpartition("::")[2].removeprefix("test_") for line in lines}, said

    assert uncalled in (said := ends("uncalled")[1])  # without baselines
    assert ends("uncalled")[0] == {"fails"}
    assert f"PytestWarning: the fixture benchmark {uncalled}" in said
    assert ends("uncalled", "--perf-strict")[0] == ALL | {"fails"}

    monkeypatch.delenv("HOW")
    said = run(*arguments, "--perf-update")
    assert "14 passed, 1 xfailed" in said
    assert "15 written" in said
    failed, said = ends("uncalled")
    assert failed == ALL | {"fails"}
    assert f"the fixture benchmark {uncalled}" in said
    assert "PytestWarning" not in said
    assert ends("slower")[0] == ALL | {"fails"}
    assert set(statuses().values()) == {"REGRESSED"}
    assert ends("skipped")[0] == set()
    failed, said = ends("skipped", "--perf-strict")
    assert failed == {"case", "mark", "import", "cases[NOTSET]"}
    assert "test_gates-test_mark: skipped, although it has a baseline" in said
    assert "no_such_module" in said


WHOLE = """
import pytest
if {skips}:
    pytest.skip("not today", allow_module_level=True)
import torch

@pytest.mark.kernelgauge(timing=False)
def test_relu(kernelgauge):
    kernelgauge(torch.relu, torch.ones(9))
"""


def test_skipped_file_with_baselines_fails_under_strict(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(test_whole=WHOLE.format(skips=True))
    assert "error" not in run("--perf-strict")
    pytester.makepyfile(test_whole=WHOLE.format(skips=False))
    run("--perf-update")
    pytester.makepyfile(test_whole=WHOLE.format(skips=True), test_other="def test_other(): pass")
    assert "although" not in run()
    for arguments in ((), ("-n", "1")):
        done = pytester.runpytest_inprocess("--perf-device=cpu", "--perf-strict", *arguments)
        assert "test_whole.py: skipped, although it has a baseline" in text_of(done)
        assert done.ret != pytest.ExitCode.OK
    assert (
        pytester.runpytest_inprocess("--perf-device=cpu", "--perf-strict", "test_other.py").ret == 0
    )


UNASKED = "no test asks for these baselines any more"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("test_relu", "test_relu_again"),
        ("def test_relu", "def tst_relu"),
        ("(kernelgauge):", "():\n    kernelgauge = lambda function, given: 0"),
    ],
    ids=["renamed", "no test", "no fixture"],
)
def test_baseline_without_its_test_fails_under_strict(
    pytester: pytest.Pytester, run: Run, old: str, new: str
) -> None:
    whole = WHOLE.format(skips=False) + "\ndef test_other(): pass\n"
    pytester.makepyfile(test_whole=whole)
    run("--perf-update")
    assert UNASKED not in run("--perf-strict")
    pytester.makepyfile(test_whole=whole.replace(old, new))
    for chosen in ((), ("-k", "test_other"), ("-n", "1")):
        done = pytester.runpytest_inprocess("--perf-device=cpu", "--perf-strict", *chosen)
        assert UNASKED in (said := text_of(done)), chosen
        assert "test_whole-test_relu" in said
        assert done.ret != pytest.ExitCode.OK
    for some in (("test_whole.py::test_other", "--perf-strict"), ("-k", "test_other")):
        assert UNASKED not in run(*some)


SIZES = """
import pytest, torch

@pytest.mark.kernelgauge(timing=False)
@pytest.mark.parametrize("size", {sizes})
def test_relu(kernelgauge, size):
    kernelgauge(torch.relu, torch.ones(size))
"""


def test_summary_names_baselines_of_tests_that_are_gone(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makepyfile(test_sizes=SIZES.format(sizes=[4, 16, 64]))
    assert UNASKED not in run("--perf-update")
    pytester.makepyfile(test_sizes=SIZES.format(sizes=[4, 8]))
    for some in (("-k", "4"), ("--deselect", "test_sizes.py::test_relu[8]"), ("-m", "not gpu")):
        assert (UNASKED in run(*some)) == ("-m" in some), some  # that deselects nothing
    for whole in ((), ("-n", "2"), ("--perf-update",)):
        (line,) = [each for each in run(*whole).splitlines() if UNASKED in each]
        assert line.startswith(f"warning: {UNASKED}; git rm baselines/"), line
    remove = line.partition("; ")[2].partition("   (")[0]
    assert "test_sizes-test_relu-8.json" not in remove
    for path in shlex.split(remove)[2:]:
        Path(path).unlink()
    assert UNASKED not in run("--perf-strict")
    assert len([*pytester.path.glob("baselines/*/*.json")]) == 2


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_review_has_the_baseline_of_a_renamed_test(
    pytester: pytest.Pytester, run: Run, kernelgauge: Command, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_sizes=SIZES.format(sizes=[4, 8]))
    run("--perf-update")
    pytester.makepyfile(test_sizes=SIZES.format(sizes=[4, 16]))
    for some, groups in ((("-k", "16"), 1), (workers, 2)):
        run(*some)
        code, said, _ = kernelgauge("review")
        assert (code, "new: 1" in said) == (1, True), said
        assert ("vanished: 1" in said) == (groups == 2), said
    assert "no test asks for it any more: git rm its baseline" in said
    assert kernelgauge("accept")[0] == 0
    assert len([*pytester.path.glob("baselines/*/*.json")]) == 3


def test_suite_that_skips_its_standard_tests_fails(project: Project) -> None:
    project.record()
    project.add_to_conftest(
        "\ndef pytest_itemcollected(item):\n    item.add_marker(pytest.mark.skip('not today'))\n"
    )
    assert project.run().ret == pytest.ExitCode.OK
    result = project.run("--perf-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1, skipped=4)
    assert f"{ID}: skipped, although it has a baseline" in text_of(result)


CATCHES = """
def test_catches(workload, sibling):
    try:
        sibling(variant="compiled")
    except BaseException:
        pass
"""


def test_error_that_a_test_catches_fails_it(project: Project) -> None:
    other: dict[str, Any] = fake(variant="compiled", error="measurement")
    project.set(fake(), other)
    project.write("test_perf.py", CATCHES)
    result = project.run("-k", ID)
    result.assert_outcomes(failed=1, deselected=1)
    assert "the fake error" in text_of(result)


FOREIGN = """
import pytest

@pytest.fixture
def kernelgauge():
    return 3

def test_foreign(kernelgauge):
    assert kernelgauge == 3
"""


def test_fixture_of_another_project_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FOREIGN)
    result = pytester.runpytest_inprocess("--perf-strict", "-W", "error")
    assert result.ret == pytest.ExitCode.OK
    assert "kernelgauge =" not in text_of(result)
