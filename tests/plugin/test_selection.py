"""Which tests are selected, in which order workloads are measured, wrong declarations, and exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.cli import Exit, main
from tests.plugin.inner_project import COMPILED, ID, LINEAR, Project, fake, text_of

CONV = "conv-eager-bf16-4x8"
CLAIMS = """
import pytest

@pytest.mark.workloads(variant="compiled")
@pytest.mark.parametrize("time", [1, 2])
def test_fewer(workload, run, sibling, time):
    assert len(run.kernels) == len(sibling(variant="eager").kernels)
"""
BACKWARDS = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.reverse()
"""


def test_matrix_and_name_select_what_is_measured(project: Project) -> None:
    project.set(fake(), fake("linear", matrix="full"), fake("conv"))
    project.run()
    project.run("--perf-matrix", "full")
    project.run("-k", "mlp or linear", "--perf-matrix", "full").assert_outcomes(passed=2, skipped=8, deselected=5)
    assert project.measured() == [[ID, CONV], [ID, LINEAR, CONV], [ID, LINEAR]]


@pytest.mark.parametrize("arguments", [("--perf-strict",), ("--perf-update",), ()], ids=["strict", "update", "default"])
@pytest.mark.parametrize(
    ("workloads", "where"), [((), "at all"), ((fake(matrix="full"),), "in the default matrix")], ids=["none", "full"]
)
def test_empty_suite_fails_where_it_is_relied_on(
    project: Project, arguments: tuple[str, ...], workloads: tuple[dict[str, Any], ...], where: str
) -> None:
    project.set(*workloads)
    result = project.run(*arguments)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if arguments else pytest.ExitCode.OK)
    line = f"the suite perf declares no workload {where}: nothing of it is measured"
    assert (line in result.outlines) is bool(arguments)
    assert not project.latest.exists()


def test_workloads_are_measured_in_declared_order(project: Project) -> None:
    """A calibration runs fewer tests than what is compared with it, and must measure in the same order."""
    claim = "import pytest\n@pytest.mark.workloads(module='conv')\ndef test_a_claim(workload, run): pass\n"
    project.write("test_claims.py", claim)
    (project.root / "conftest.py").write_text(BACKWARDS)
    project.set(fake(), fake("linear"), fake("conv"))
    for arguments in ((), ("--perf-calibrate=c",), ("-k", "mlp or conv")):
        project.run(*arguments)
        declared = [ID, CONV] if "-k" in arguments else [ID, LINEAR, CONV]
        assert project.measured()[-1] == declared
        parameters = [case.parameters for case in project.cases()]
        assert list(dict.fromkeys(parameters)) == declared
        assert parameters == sorted(parameters, key=declared.index)  # the tests of one workload run together


def test_sibling_is_measured_on_demand_alone_and_once(project: Project) -> None:
    project.set(fake(), fake(variant="compiled"), fake("linear"))
    project.write("test_claims.py", CLAIMS)
    project.run("-k", "fewer").assert_outcomes(passed=2, deselected=15)
    assert project.measured() == [[COMPILED], [ID]]


def test_calibration_does_not_measure_a_ratio(project: Project) -> None:
    project.set(fake(), fake(variant="compiled", faster_than="eager"))
    project.write("test_ratio.py", "from kernelgauge.standard import test_faster_than_other_variant\n")
    project.run("--perf-calibrate=c", "-k", "compiled")
    assert project.measured() == [[COMPILED]]


@pytest.mark.parametrize(
    ("mark", "chosen"),
    [
        ("workloads(module='mlp', variant=('eager', 'liger'), shape=(4, 8))", [ID]),
        ("workloads(shape=((4, 8), (16, 32)))", [ID, "mlp-eager-bf16-16x32", LINEAR]),
        ("workloads(shape=(8, 4))\n@pytest.mark.workloads(module='linear')", ["mlp-eager-bf16-8x4", LINEAR]),
    ],
    ids=["fields", "shapes", "two"],
)
def test_mark_chooses_workloads_by_field(project: Project, mark: str, chosen: list[str]) -> None:
    project.set(fake(), fake(shape=(8, 4)), fake(shape=(16, 32)), fake("linear"))
    project.write("test_perf.py", f"import pytest\n\n@pytest.mark.{mark}\ndef test_marked(workload):\n    pass\n")
    project.run()
    assert [case.parameters for case in project.cases()] == chosen
    assert project.measured() == []


@pytest.mark.parametrize(
    "arguments", ["--fixtures", "--fixtures-per-test", "--setup-only", "--collect-only", "-k nothing", "-k mlp~and"]
)
def test_reports_stay_where_nothing_is_measured(
    project: Project, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    project.latest.mkdir(parents=True)
    (project.latest / "results.json").write_bytes(b"of an earlier run")
    step = project.root / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    project.pytester.runpytest_inprocess("perf", *(each.replace("~", " ") for each in arguments.split()))
    assert (project.latest / "results.json").read_bytes() == b"of an earlier run"
    assert (project.measured(), step.exists()) == ([], False)


def test_suite_has_subfolders_and_lies_outside_of_root(project: Project) -> None:
    text = (project.root / "perf" / "conftest.py").read_text()
    anew = text.replace("return WORKLOADS", 'return [declare(fake) for fake in CONTENT["fakes"]]')
    project.write("conftest.py", anew)  # a list of its own at each call
    (project.root / "perf" / "zz").mkdir()
    project.write("zz/test_more.py", "def test_more(workload, run):\n    pass\n")
    project.record()
    before = project.stored()
    assert b'"suite": "perf"' in before[ID]
    project.record("--deselect", "perf/zz")
    assert project.stored() == before
    (project.root / "elsewhere").mkdir()
    result = project.run("--rootdir", "elsewhere")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2, skipped=4)


# -- what is loaded ---------------------------------------------------------------------------------------------------

SHOW_MODULES = """
import sys

def pytest_terminal_summary(terminalreporter):
    ours = sorted(name for name in sys.modules if name.split(".")[0] in ("kernelgauge", "msgspec", "rich", "torch"))
    terminalreporter.write_line("loaded: " + " ".join(ours))
"""
ONE = """
from kernelgauge import Workload
WORKLOADS = [Workload("mlp", "eager", build=object, inputs=tuple, shape=(4,))]
def pytest_kernelgauge_workloads():
    return WORKLOADS
"""


def test_session_without_a_suite_loads_the_options_only(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(SHOW_MODULES)
    pytester.makepyfile("def test_nothing(): pass\n")
    result = pytester.runpytest_subprocess("-p", "kernelgauge.plugin", "-q", "--perf-update")
    assert result.ret == pytest.ExitCode.OK
    assert "loaded: kernelgauge kernelgauge.plugin" in result.outlines
    assert not {"reports", "baselines"} & {path.name for path in pytester.path.iterdir()}
    help_text = pytester.runpytest_inprocess("--help")  # without a conftest that names the plugin
    help_text.stdout.fnmatch_lines(["*--perf-matrix*"])


def test_collection_without_tests_of_a_gpu_loads_no_torch(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ONE + SHOW_MODULES)
    pytester.makepyfile("def test_it(workload): pass")
    result = pytester.runpytest_subprocess("-p", "kernelgauge.plugin", "-q", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    (loaded,) = (line.split() for line in result.outlines if line.startswith("loaded: "))
    assert "kernelgauge.plugin.suites" in loaded
    assert "torch" not in loaded


def test_suite_below_is_found_while_collecting(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pytester.mkpydir("perf")
    (folder / "conftest.py").write_text(ONE)
    (folder / "test_perf.py").write_text(
        "def test_it(workload, kernelgauge_test): assert kernelgauge_test.session.selected == [workload]\n"
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    monkeypatch.setenv("CI", "1")
    result = pytester.runpytest_inprocess("--perf-update")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*--perf-update is refused under CI*"])


# -- what is declared, and what is not ours ---------------------------------------------------------------------------


def declare(pytester: pytest.Pytester, conftest: str, mark: str = "") -> pytest.RunResult:
    pytester.makeconftest(conftest)
    pytester.makepyfile(f"import pytest\n{mark}\ndef test_it(workload):\n    pass\n")
    return pytester.runpytest_inprocess("-W", "ignore", "-v")


NO_LIST = ("*must return workloads", "*conftest.py", "*a list of kernelgauge.Workload")
NO_MATCH = ("*the mark matches no workload; modules: mlp", "*test_it*")


@pytest.mark.parametrize(
    ("returned", "mark", "lines"),
    [
        ("None", "", NO_LIST),
        ("['mlp']", "", NO_LIST),
        ("[Workload('mlp', 'eager', object, tuple, dtype='float32')]", "", ("*unknown dtype", "*'float32'")),
        ("2 * WORKLOADS", "", ("*two workloads have the same id", "*mlp-eager-bf16-4*")),
        ("WORKLOADS", "workloads", NO_MATCH),
        ("WORKLOADS", "workloads(modul='mlp')", (*NO_MATCH, "*@pytest.mark.workloads(modul='mlp')")),
    ],
)
def test_wrong_declaration_is_a_usage_error(
    pytester: pytest.Pytester, returned: str, mark: str, lines: tuple[str, ...]
) -> None:
    result = declare(pytester, ONE.replace("return WORKLOADS", f"return {returned}"), mark and f"@pytest.mark.{mark}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in result.stderr.str()
    result.stderr.fnmatch_lines(lines)


def test_workload_without_a_declaration_fails(pytester: pytest.Pytester) -> None:
    result = declare(pytester, "")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["no pytest_kernelgauge_workloads in a conftest.py of this folder or above it"])


OF_ANOTHER_PROJECT = """
import pytest
from kernelgauge import Workload

class Odd:
    def __bool__(self):
        raise ValueError("the truth of an array is ambiguous")

WORKLOADS = [Workload(name, "eager", build=lambda: None, inputs=lambda: ()) for name in ("b", "a")]

@pytest.mark.parametrize("workload", ["light", Odd(), *WORKLOADS], ids=str)
def test_its_own(workload):
    pass
"""
OWN_FIXTURES = """
import pytest

@pytest.fixture
def workload(request):
    return "heavy"

def test_of_a_fixture(workload):
    assert workload == "heavy"

@pytest.mark.parametrize("size, workload", [(1, "light")])
def test_of_values(workload, size):
    assert workload == "light"
"""


def test_workload_of_another_project_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OF_ANOTHER_PROJECT)
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.OK
    assert "kernelgauge =" not in text_of(result)
    assert not (pytester.path / "reports").exists()


@pytest.mark.parametrize("fixture", ["fixture", "fixture(params=[1, 2])"])
def test_own_fixture_of_that_name_is_left_alone(project: Project, fixture: str) -> None:
    project.write("test_own.py", OWN_FIXTURES.replace("fixture\n", f"{fixture}\n", 1))
    project.run().assert_outcomes(passed=4 if "params" in fixture else 3, skipped=4)
    project.write("test_own.py", OF_ANOTHER_PROJECT.replace("workload):", "workload, run):"))
    result = project.run("-k", "its_own")
    assert "INTERNALERROR" not in text_of(result)
    assert result.parseoutcomes()["errors"] == 4
    result.stdout.fnmatch_lines(["another fixture called `workload` hides that of kernelgauge: rename it"])


IN_A_PLUGIN = """
from kernelgauge import Workload

class Suite:
    def pytest_kernelgauge_workloads(self, config):
        name = "loud" if config.getoption("verbose") > 0 else "eager"
        return [Workload("mlp", name, build=object, inputs=tuple, shape=(4,))]

def pytest_configure(config):
    config.pluginmanager.register(Suite())
"""


def test_plugin_object_declares_with_the_config(pytester: pytest.Pytester) -> None:
    declare(pytester, IN_A_PLUGIN).stdout.fnmatch_lines(["*::test_it?mlp-loud-bf16-4?*"])


SUITE = """
from kernelgauge import Workload

def linear(variant, rows, on_cpu=None, **fields):
    return Workload("linear", variant, build=lambda: None, inputs=tuple, shape=(rows,), on_cpu=on_cpu, **fields)

def pytest_kernelgauge_workloads():
    return [
        linear("eager", 4096, linear("eager", 16, "the size of a GPU", dtype="fp32"), matrix="full"),
        linear("compiled", 4096, linear("compiled", 16, dtype="fp32"), faster_than="eager"),
        linear("triton", 4096, "Triton code"),
        linear("compiled", 8192, linear("compiled", 16, dtype="fp32")),  # the same form
        linear("any", 8),
    ]
"""
SUITE_TESTS = """
import pytest

def test_any(workload): ...

@pytest.mark.gpu
def test_on_a_gpu(workload): ...

@pytest.mark.gpu  # of another project
def test_of_nothing(): ...
"""


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ((), ["compiled-fp32-16", "any-bf16-8"]),
        (("--perf-matrix", "full"), ["eager-fp32-16", "compiled-fp32-16", "any-bf16-8"]),
        (("--perf-strict",), ["compiled-fp32-16", "triton-bf16-4096", "any-bf16-8"]),
    ],
    ids=["default", "full", "strict"],
)
def test_cpu_gets_the_workloads_sized_for_it(
    pytester: pytest.Pytester, arguments: tuple[str, ...], ids: list[str]
) -> None:
    pytester.makeconftest(SUITE)
    pytester.makepyfile(SUITE_TESTS)
    result = pytester.runpytest("--perf-device", "cpu", "--collect-only", "-q", *arguments)
    tests = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert tests == [*(f"test_any[linear-{each}]" for each in ids), "test_of_nothing"]


# -- exit codes -------------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"


def table(page: str, after: str) -> dict[str, str]:
    """Return the first table after a line of a page: its first column, and the rest of the row."""
    rows = re.search(r"\|---.*\n((?:\|.*\n)+)", (DOCS / page).read_text().partition(after)[2])
    assert rows is not None
    return {cells[0].strip(): " ".join(cells[1:]) for cells in (row.split("|")[1:] for row in rows[1].splitlines())}


def test_every_exit_code_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    documented = set(table("pytest.md", "## Exit codes"))
    assert {str(code.value) for code in pytest.ExitCode} <= documented <= set("0123456")  # an older pytest has no 6
    assert set(table("commands.md", "## Exit codes")) == {str(code.value) for code in Exit}
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = set(re.findall(r"(?m)^    ([a-z]+)(?: |$)", capsys.readouterr().out))
    cells = table("commands.md", "130 |")
    assert commands == {each.split()[0] for cell in cells for each in re.findall("`([^`]+)`", cell)} >= {"compare"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--perf-device", "abacus"], 4),
        (["-o", "kernelgauge_replicates=1"], 4),
        (["-o", "kernelgauge_replicates=many"], 4),
        (["-k", "gone_stale"], 5),
    ],
)
def test_wrong_use_measures_nothing(project: Project, arguments: list[str], code: int) -> None:
    assert project.run(*arguments).ret == code
    assert project.measured() == []
