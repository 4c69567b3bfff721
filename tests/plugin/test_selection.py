"""Which tests are selected, in which order workloads are measured, wrong declarations, and exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.cli import Exit, main
from tests.plugin.inner_project import ID, IDS, Project, told

LINEAR, CONV = "linear-eager-bf16-4x8", "conv-eager-bf16-4x8"


CLAIMS = """
import pytest

@pytest.mark.workloads(module="conv")
def test_a_claim(workload, run):
    pass

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
    project.tell(told(), told("linear", matrix="full"), told("conv"))
    project.run()
    project.run("--perf-matrix", "full")
    project.run("-k", "mlp or linear", "--perf-matrix", "full").assert_outcomes(passed=2, skipped=8, deselected=5)
    assert project.measured_together() == [[ID, CONV], [ID, LINEAR, CONV], [ID, LINEAR]]


@pytest.mark.parametrize("arguments", [("--perf-strict",), ("--perf-update",), ()])
@pytest.mark.parametrize(("workloads", "where"), [((), "at all"), ((told(matrix="full"),), "in the default matrix")])
def test_empty_suite_fails_where_it_is_relied_on(
    project: Project, arguments: tuple[str, ...], workloads: tuple[dict[str, Any], ...], where: str
) -> None:
    project.tell(*workloads)
    result = project.run(*arguments)
    said = f"the suite perf declares no workload {where}: nothing of it is measured"
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if arguments else pytest.ExitCode.OK)
    assert (said in result.outlines) is bool(arguments)
    assert not project.latest.exists()


def test_workloads_are_measured_in_declared_order(project: Project) -> None:
    """A calibration runs fewer tests than what is compared with it, and must measure in the same order."""
    project.write("test_claims.py", CLAIMS.partition('@pytest.mark.workloads(variant="compiled")')[0])
    (project.root / "conftest.py").write_text(BACKWARDS)
    project.tell(told(), told("linear"), told("conv"))
    for arguments in ((), ("--perf-calibrate=c",), ("-k", "mlp or conv")):
        project.run(*arguments)
        declared = [ID, CONV] if "-k" in arguments else [ID, LINEAR, CONV]
        assert project.measured_together()[-1] == declared
        parameters = [case.parameters for case in project.cases()]
        assert list(dict.fromkeys(parameters)) == declared
        assert parameters == sorted(parameters, key=declared.index)  # the tests of one workload run together


def test_sibling_is_measured_on_demand_alone_and_once(project: Project) -> None:
    project.tell(told(), told(variant="compiled"), told("linear"), told("conv"))
    project.write("test_claims.py", CLAIMS)
    project.run("-k", "fewer").assert_outcomes(passed=2, deselected=21)
    assert project.measured_together() == [[IDS[1]], [ID]]


def test_calibration_does_not_measure_a_ratio(project: Project) -> None:
    project.tell(told(), told(variant="compiled", faster_than="eager"))
    project.write("test_ratio.py", "from kernelgauge.standard import test_faster_than_other_variant\n")
    project.run("--perf-calibrate=c", "-k", "compiled")
    assert project.measured_together() == [[IDS[1]]]


@pytest.mark.parametrize(
    ("mark", "chosen"),
    [
        ("workloads(module='mlp', variant=('eager', 'liger'), shape=(4, 8))", [ID]),
        ("workloads(shape=((8, 4),))", ["mlp-eager-bf16-8x4"]),
        ("workloads(shape=((4, 8), (16, 32)))", [ID, "mlp-eager-bf16-16x32", LINEAR]),
        ("workloads(shape=(8, 4))\n@pytest.mark.workloads(module='linear')", ["mlp-eager-bf16-8x4", LINEAR]),
    ],
)
def test_mark_chooses_workloads_by_field(project: Project, mark: str, chosen: list[str]) -> None:
    project.tell(told(), told(shape=(8, 4)), told(shape=(16, 32)), told("linear"))
    project.write("test_perf.py", f"import pytest\n\n@pytest.mark.{mark}\ndef test_marked(workload):\n    pass\n")
    project.run()
    assert [case.parameters for case in project.cases()] == chosen
    assert project.measured() == []


NOTHING = [
    "--fixtures",
    "--fixtures-per-test",
    "--setup-plan",
    "--setup-only",
    "--collect-only",
    "-k nothing",
    "-k mlp~and",
]


def test_reports_stay_where_nothing_is_measured(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.latest.mkdir(parents=True)
    (project.latest / "results.json").write_bytes(b"of an earlier run")
    step = project.root / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    for arguments in NOTHING:
        project.pytester.runpytest_inprocess("perf", *(each.replace("~", " ") for each in arguments.split()))
        assert (project.latest / "results.json").read_bytes() == b"of an earlier run"
        assert project.measured() == []
        assert not step.exists()
    (project.latest / ".results.json.1.tmp").touch()  # of a run that was killed
    project.tell(told())
    project.run()
    assert not list(project.latest.glob(".*.tmp"))


def test_suite_may_have_subfolders_and_lie_outside_of_root(project: Project) -> None:
    text = (project.root / "perf" / "conftest.py").read_text()
    anew = text.replace("return WORKLOADS", 'return [make_workload(told) for told in TOLD["workloads"]]')
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


SHOW_MODULES = """
import sys

def pytest_terminal_summary(terminalreporter):
    ours = sorted(name for name in sys.modules if name.split(".")[0] in ("kernelgauge", "msgspec", "rich", "torch"))
    terminalreporter.write_line("loaded: " + " ".join(ours))
"""


def test_session_without_a_suite_loads_the_options_only(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(SHOW_MODULES)
    pytester.makepyfile("def test_nothing(): pass\n")
    result = pytester.runpytest_subprocess("-p", "kernelgauge.plugin", "-q", "--perf-update")
    assert result.ret == pytest.ExitCode.OK
    assert "loaded: kernelgauge kernelgauge.plugin" in result.outlines
    help_text = pytester.runpytest_inprocess("--help")  # without a conftest that names the plugin
    help_text.stdout.fnmatch_lines(["*--perf-matrix*", "*--perf-device*", "*--perf-update*", "*--perf-strict*"])
    assert not (pytester.path / "reports").exists()
    assert not (pytester.path / "baselines").exists()


ONE = """
from kernelgauge import Workload
WORKLOADS = [Workload("mlp", "eager", build=object, inputs=tuple, shape=(4,))]
def pytest_kernelgauge_workloads():
    return WORKLOADS
"""


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


def test_workload_of_another_project_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OF_ANOTHER_PROJECT)
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.OK
    assert "kernelgauge =" not in result.stdout.str()
    assert not (pytester.path / "reports").exists()


def declare(pytester: pytest.Pytester, conftest: str, mark: str = "") -> pytest.RunResult:
    pytester.makeconftest(conftest)
    pytester.makepyfile(f"import pytest\n{mark}\ndef test_it(workload):\n    pass\n")
    return pytester.runpytest_inprocess("-W", "ignore", "-v")


UNKNOWN_DTYPE = "[Workload('mlp', 'eager', object, tuple, dtype='float32')]"
NO_LIST = ("*must return workloads", "*conftest.py", "*a list of kernelgauge.Workload")
NO_MATCH = ("*the mark matches no workload; modules: mlp", "*test_it*")


@pytest.mark.parametrize(
    ("returned", "mark", "said"),
    [
        ("None", "", NO_LIST),
        ("['mlp']", "", NO_LIST),
        (UNKNOWN_DTYPE, "", ("*unknown dtype", "*'float32'", "*bf16, fp16, fp32, None")),
        ("2 * WORKLOADS", "", ("*two workloads have the same id", "*mlp-eager-bf16-4*")),
        ("WORKLOADS", "workloads('mlp')", NO_MATCH),
        ("WORKLOADS", "workloads", NO_MATCH),
        ("WORKLOADS", "workloads(modul='mlp')", NO_MATCH),
        ("WORKLOADS", "workloads(variant='compield')", (*NO_MATCH, "*@pytest.mark.workloads(variant='compield')")),
    ],
)
def test_wrong_declaration_is_a_usage_error(
    pytester: pytest.Pytester, returned: str, mark: str, said: tuple[str, ...]
) -> None:
    result = declare(pytester, ONE.replace("return WORKLOADS", f"return {returned}"), mark and f"@pytest.mark.{mark}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in result.stderr.str()
    result.stderr.fnmatch_lines(said)


def test_workload_without_a_declaration_fails(pytester: pytest.Pytester) -> None:
    result = declare(pytester, "")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["no pytest_kernelgauge_workloads in a conftest.py of this folder or above it"])


def test_hidden_fixture_is_named(project: Project) -> None:
    project.add_to_conftest("\n@pytest.fixture\ndef workload():\n    return 'heavy'\n")
    result = project.run("-k", "device_time")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["another fixture called `workload` hides that of kernelgauge: rename it"])


OWN_FIXTURES = """
import pytest
from kernelgauge import Workload

@pytest.fixture
def workload(request):
    return "heavy"

def test_of_a_fixture(workload):
    assert workload == "heavy"

@pytest.mark.parametrize("size, workload", [(1, "light")])
def test_of_values(workload, size):
    assert workload == "light"
"""


@pytest.mark.parametrize("fixture", ["fixture", "fixture(params=[1, 2])", "fixture(scope='session')"])
def test_own_fixture_of_that_name_is_left_alone(project: Project, fixture: str) -> None:
    project.write("test_own.py", OWN_FIXTURES.replace("fixture\n", f"{fixture}\n", 1))
    project.run().assert_outcomes(passed=4 if "params" in fixture else 3, skipped=4)
    project.write("test_own.py", OF_ANOTHER_PROJECT.replace("workload):", "workload, run):"))
    result = project.run("-k", "its_own")
    assert "INTERNALERROR" not in "\n".join(result.outlines)
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


DOCS = Path(__file__).parents[2] / "docs"


def table(page: str, after: str) -> dict[str, str]:
    """Return the first table after a line of a page: its first column, and the rest of the row."""
    rows = re.search(r"\|---.*\n((?:\|.*\n)+)", (DOCS / page).read_text().partition(after)[2])
    assert rows is not None
    return {cells[0].strip(): " ".join(cells[1:]) for cells in (row.split("|")[1:] for row in rows[1].splitlines())}


def test_every_exit_code_is_documented():
    documented = set(table("pytest.md", "## Exit codes"))
    assert {str(code.value) for code in pytest.ExitCode} <= documented <= set("0123456")  # an older pytest has no 6
    assert set(table("commands.md", "## Exit codes")) == {str(code.value) for code in Exit}


def test_exit_code_1_is_documented_for_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = set(re.findall(r"(?m)^    ([a-z]+)(?: |$)", capsys.readouterr().out))
    documented = {each.split()[0] for cell in table("commands.md", "130 |") for each in re.findall("`([^`]+)`", cell)}
    assert commands == documented
    assert "compare" in commands


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--perf-device", "abacus"], 4),
        (["-o", "kernelgauge_replicates=1"], 4),
        (["-o", "kernelgauge_replicates=many"], 4),
        (["--no-such-option"], 4),
        (["-k", "gone_stale"], 5),
    ],
)
def test_wrong_use_measures_nothing(project: Project, arguments: list[str], code: int) -> None:
    assert project.run(*arguments).ret == code
    assert project.measured() == []


def test_broken_test_file_exits_with_2(project: Project) -> None:
    project.write("test_broken.py", "import nothing_of_this_name\n")
    assert project.run().ret == 2
    assert project.measured() == []


SUITE = """
import pytest
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

TESTS = """
import pytest

def test_any(workload):
    assert not workload.variant == "triton"

@pytest.mark.gpu
def test_on_a_gpu(workload):
    pass

@pytest.mark.gpu  # of another project
def test_of_nothing():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(SUITE)
    pytester.makepyfile(TESTS)
    return pytester


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ((), ["compiled-fp32-16", "any-bf16-8"]),
        (("--perf-matrix", "full"), ["eager-fp32-16", "compiled-fp32-16", "any-bf16-8"]),
        (("--perf-strict",), ["compiled-fp32-16", "triton-bf16-4096", "any-bf16-8"]),
    ],
)
def test_cpu_gets_the_workloads_sized_for_it(
    suite: pytest.Pytester, arguments: tuple[str, ...], ids: list[str]
) -> None:
    result = suite.runpytest("--perf-device", "cpu", "--collect-only", "-q", *arguments)
    tests = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert tests == [*(f"test_any[linear-{each}]" for each in ids), "test_of_nothing"]
