"""Suites that are declared wrongly: one clear usage error, before anything is measured."""

from __future__ import annotations

import pytest

ONE = """
from kernelgauge import Workload
WORKLOADS = [Workload("mlp", "eager", build=object, inputs=tuple, shape=(4,))]
def pytest_kernelgauge_workloads():
    return WORKLOADS
"""


def collect(pytester: pytest.Pytester, conftest: str, test: str) -> pytest.RunResult:
    pytester.makeconftest(conftest)
    pytester.makepyfile(test)
    return pytester.runpytest_inprocess("-W", "ignore")


@pytest.mark.parametrize("returned", ["None", "WORKLOADS[0]", "['mlp']"])
def test_a_hook_that_returns_no_list_of_workloads(pytester: pytest.Pytester, returned: str) -> None:
    result = collect(
        pytester, ONE.replace("return WORKLOADS", f"return {returned}"), "def test_it(workload):\n    pass\n"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*must return workloads", "*conftest.py", "*a list of kernelgauge.Workload"])


def test_a_wrong_workload_within_the_hook_is_told_without_a_traceback(pytester: pytest.Pytester) -> None:
    wrong = ONE.replace("return WORKLOADS", "return [Workload('mlp', 'eager', object, tuple, dtype='float32')]")
    result = collect(pytester, wrong, "def test_it(workload):\n    pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown dtype", "*'float32'", "*bf16, fp16, fp32, None"])


def test_a_test_that_asks_for_a_workload_where_none_is_declared(pytester: pytest.Pytester) -> None:
    result = collect(pytester, "", "def test_it(workload):\n    pass\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["no pytest_kernelgauge_workloads in a conftest.py of this folder or above it"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("workloads('mlp')", "*takes fields by name, and at least one"),
        ("workloads", "*takes fields by name, and at least one"),
        ("workloads(modul='mlp')", "*a workload has no field modul"),
        ("workloads(variant='compield')", "*the mark selects no workload, so its test would never run"),
    ],
)
def test_a_mark_that_cannot_mean_what_it_says(pytester: pytest.Pytester, mark: str, message: str) -> None:
    test = f"import pytest\n@pytest.mark.{mark}\ndef test_it(workload):\n    pass\n"
    result = collect(pytester, ONE, test)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message, "*test_it*"])


def test_a_mark_selects_by_field(pytester: pytest.Pytester) -> None:
    test = "import pytest\n@pytest.mark.workloads(variant=('eager', 'x'))\ndef test_it(workload):\n    pass\n"
    pytester.makeconftest(ONE)
    pytester.makepyfile(test)
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_it[[]mlp-eager-bf16-4[]]"])


IN_A_PLUGIN = """
from kernelgauge import Workload

class Suite:
    def pytest_kernelgauge_workloads(self, config):
        name = "quiet" if config.getoption("verbose") < 0 else "eager"
        return [Workload("mlp", name, build=object, inputs=tuple, shape=(4,))]

def pytest_configure(config):
    config.pluginmanager.register(Suite())
"""


def test_hook_of_a_plugin_object_takes_the_config(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(IN_A_PLUGIN)
    pytester.makepyfile("def test_it(workload):\n    pass\n")
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_it?mlp-quiet-bf16-4?"])
