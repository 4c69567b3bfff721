"""Where the options come from, which tests are selected, and what is shown while measuring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.inner_project import Project, told

REPOSITORY = Path(__file__).resolve().parents[2]
ID = "mlp-eager-bf16-4x8"


def collect(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Collect this repository's own suite in a process of its own."""
    command = [sys.executable, "-m", "pytest", "perf", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(
        command, cwd=REPOSITORY, env=inherited | environment, capture_output=True, text=True, timeout=120, check=False
    )


def collected(result: subprocess.CompletedProcess[str]) -> list[str]:
    assert result.returncode == 0, result.stdout + result.stderr
    return [line for line in result.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def default_tests() -> list[str]:
    return collected(collect())


def test_options_exist_without_a_conftest_in_the_root(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--help")
    result.stdout.fnmatch_lines(["*--perf-matrix*", "*--perf-device*", "*--perf-update*", "*--perf-strict*"])


@pytest.mark.timeout(180)
def test_the_entry_point_and_the_root_conftest_register_the_plugin_once(default_tests: list[str]) -> None:
    assert default_tests


@pytest.mark.timeout(180)
def test_a_checkout_that_is_not_installed_has_the_options_too(default_tests: list[str]) -> None:
    without_entry_points = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPOSITORY / "src")}
    result = collect("--perf-matrix", "default", "-p", "pytest_benchmark.plugin", **without_entry_points)
    assert collected(result) == default_tests


@pytest.mark.timeout(180)
def test_a_module_name_selects_every_test_of_its_workloads_and_nothing_else(default_tests: list[str]) -> None:
    selected = collected(collect("-k", "mlp"))
    assert selected
    assert selected == [test for test in default_tests if "[mlp-" in test]


@pytest.mark.timeout(180)
def test_the_full_matrix_adds_workloads_and_every_test_has_an_id_of_its_own(default_tests: list[str]) -> None:
    full = collected(collect("--perf-matrix", "full"))
    assert set(default_tests) < set(full)
    assert len(set(full)) == len(full)


def test_the_default_matrix_leaves_out_the_full_one(project: Project) -> None:
    project.tell(told(), told("linear", matrix="full"))
    project.run()
    assert project.measured() == [ID]
    project.run("--perf-matrix", "full")
    assert project.measured()[1:] == [ID, "linear-eager-bf16-4x8"]


def test_all_that_is_selected_is_measured_together_once_and_no_more(project: Project) -> None:
    project.tell(told(), told("linear"), told("conv"))
    result = project.run("-k", "mlp or linear")
    result.assert_outcomes(passed=2, skipped=8, deselected=5)
    assert project.measured_together() == [[ID, "linear-eager-bf16-4x8"]]


def test_a_failure_is_measured_once_with_the_others_and_leaves_them(project: Project) -> None:
    project.tell(told(error="workload"), told("linear"))
    result = project.run()
    result.assert_outcomes(passed=1, skipped=4, errors=5)
    assert project.measured_together() == [[ID, "linear-eager-bf16-4x8"]]


def test_what_is_only_compared_with_is_measured_on_demand_alone_and_once(project: Project) -> None:
    project.tell(told(), told(variant="compiled"), told("linear"))
    (project.root / "perf" / "test_claims.py").write_text(
        """
import pytest

@pytest.mark.workloads(variant="compiled")
@pytest.mark.parametrize("time", [1, 2])
def test_fewer(workload, run, sibling, time):
    eager = sibling(variant="eager")
    assert len(run.kernels) == len(eager.kernels)
"""
    )
    project.run(suite="perf/test_claims.py").assert_outcomes(passed=2)
    assert project.measured_together() == [["mlp-compiled-bf16-4x8"], [ID]]


def test_the_tests_of_one_workload_run_together(project: Project) -> None:
    project.tell(told(), told("linear"))
    project.run()
    assert [case.parameters for case in project.cases()] == [ID] * 5 + ["linear-eager-bf16-4x8"] * 5


CLAIM_OF_THE_LAST = """
import pytest

@pytest.mark.workloads(module="conv")
def test_a_claim(workload, run):
    pass
"""

BACKWARDS = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.reverse()
"""


@pytest.mark.parametrize("arguments", [(), ("--perf-calibrate=c",), ("-k", "mlp or conv")], ids=str)
def test_workloads_are_measured_as_they_are_declared_whichever_has_the_first_test(
    project: Project, arguments: tuple[str, ...]
) -> None:
    """A calibration runs fewer tests than what is compared with it, and must measure in the same order."""
    (project.root / "perf" / "test_claims.py").write_text(CLAIM_OF_THE_LAST)
    project.tell(told(), told("linear"), told("conv"))
    project.run(*arguments)
    declared = [ID, "linear-eager-bf16-4x8", "conv-eager-bf16-4x8"]
    ((*together,),) = project.measured_together()
    assert together == [each for each in declared if each != "linear-eager-bf16-4x8" or "-k" not in arguments]
    assert list(dict.fromkeys(case.parameters for case in project.cases())) == together


def test_a_workload_that_no_suite_declares_is_a_parameter_like_any_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest
from kernelgauge import Workload

WORKLOADS = [Workload(name, "eager", build=lambda: None, inputs=lambda: ()) for name in ("b", "a")]

@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.id)
def test_of_mine(workload):
    pass

def test_of_none():
    pass
"""
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=3)


def test_order_holds_against_a_plugin_that_reverses_the_tests(project: Project) -> None:
    (project.root / "conftest.py").write_text(BACKWARDS)
    project.tell(told(), told("linear"))
    project.run()
    assert [case.parameters for case in project.cases()] == [ID] * 5 + ["linear-eager-bf16-4x8"] * 5
    assert project.measured_together() == [[ID, "linear-eager-bf16-4x8"]]


@pytest.mark.parametrize("name", ["test_before.py", "test_zz_after.py"])
def test_tests_of_no_workload_run_where_the_first_of_them_stands(project: Project, name: str) -> None:
    project.tell(told(), told("linear"))
    (project.root / "perf" / name).write_text("def test_of_none():\n    pass\n")
    project.run()
    parameters = [case.parameters for case in project.cases()]
    measured = [ID] * 5 + ["linear-eager-bf16-4x8"] * 5
    assert parameters == (["", *measured] if name == "test_before.py" else [*measured, ""])


def test_two_workloads_with_one_id_are_a_usage_error(project: Project) -> None:
    project.tell(told(), told())
    result = project.run()
    assert result.ret in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERRUPTED)
    text = result.stdout.str() + result.stderr.str()
    assert "two workloads have the same id" in text
    assert ID in text
    assert project.measured() == []
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_suite_may_make_its_list_anew_at_each_call(project: Project) -> None:
    conftest = project.root / "perf" / "conftest.py"
    text = conftest.read_text().replace(
        "return WORKLOADS", 'return [make_workload(told) for told in TOLD["workloads"]]'
    )
    conftest.write_text(text)
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=4)


def test_tests_in_a_subfolder_belong_to_the_suite_that_declares_their_workloads(project: Project) -> None:
    (project.root / "perf" / "zz").mkdir()
    (project.root / "perf" / "zz" / "test_more.py").write_text("def test_more(workload, run):\n    pass\n")
    project.record()
    before = project.stored()
    assert b'"suite": "perf"' in before[ID]
    project.record("--deselect", "perf/zz")
    assert project.stored() == before


def test_a_suite_outside_of_the_root_folder_works(project: Project) -> None:
    (project.root / "elsewhere").mkdir()
    result = project.run("--rootdir", "elsewhere")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=4)


def test_marks_choose_workloads_by_their_fields(project: Project) -> None:
    project.tell(told(), told(variant="compiled"), told("linear"))
    (project.root / "perf" / "test_marks.py").write_text(
        """
import pytest

@pytest.mark.workloads(module="mlp", variant=("eager", "liger"))
@pytest.mark.workloads(module="linear")
def test_marked(workload):
    pass
"""
    )
    result = project.pytester.runpytest_inprocess("perf/test_marks.py", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_marked?mlp-eager-*", "*test_marked?linear-eager-*"])


@pytest.mark.parametrize(
    ("shape", "chosen"), [("(4, 8)", ["4x8"]), ("((4, 8),)", ["4x8"]), ("((4, 8), (16, 32))", ["4x8", "16x32"])]
)
def test_a_mark_names_one_shape_or_several(project: Project, shape: str, chosen: list[str]) -> None:
    project.tell(told(shape=(4, 8)), told(shape=(8, 4)), told(shape=(16, 32)))
    (project.root / "perf" / "test_marks.py").write_text(
        f"import pytest\n\n@pytest.mark.workloads(shape={shape})\ndef test_marked(workload):\n    pass\n"
    )
    result = project.pytester.runpytest_inprocess("perf/test_marks.py", "-v")
    result.assert_outcomes(passed=len(chosen))
    result.stdout.fnmatch_lines([f"*test_marked?mlp-eager-bf16-{each}*" for each in chosen])


@pytest.mark.parametrize(
    "content",
    [
        """
import pytest

@pytest.fixture
def workload():
    return "heavy"

def test_its_own(workload):
    assert workload == "heavy"
""",
        """
import pytest

@pytest.mark.parametrize("workload", ["light", "heavy"])
def test_its_own(workload):
    assert workload in ("light", "heavy")
""",
        """
import pytest

class Odd:
    def __bool__(self):
        raise ValueError("the truth of an array is ambiguous")

@pytest.mark.parametrize("workload", [Odd(), Odd()])
def test_its_own(workload):
    assert isinstance(workload, Odd)
""",
    ],
    ids=["a fixture", "parameters", "parameters without a truth value"],
)
def test_another_project_that_has_a_workload_of_its_own_is_left_alone(pytester: pytest.Pytester, content: str) -> None:
    pytester.makepyfile(content)
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.OK
    assert "kernelgauge =" not in result.stdout.str()
    assert not (pytester.path / "reports").exists()


def test_a_project_without_a_suite_gets_no_summary_and_no_folders(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing():\n    pass\n")
    result = pytester.runpytest_inprocess("--perf-update")
    assert result.ret == pytest.ExitCode.OK
    assert not (pytester.path / "reports").exists()
    assert not (pytester.path / "baselines").exists()


def test_collecting_alone_measures_and_writes_nothing(project: Project) -> None:
    assert project.run("--collect-only").ret == pytest.ExitCode.OK
    assert project.measured() == []
    assert not (project.root / "reports").exists()


def test_progress_is_shown_while_measuring(project: Project) -> None:
    project.run().stdout.fnmatch_lines(["  compiling"])


def test_progress_is_not_shown_when_pytest_is_quiet(project: Project) -> None:
    result = project.run("-q")
    assert "compiling" not in result.stdout.str()
    assert project.measured() == [ID]


def test_traces_and_tables_of_an_earlier_session_do_not_pass_for_this_ones(project: Project) -> None:
    traces = project.root / "reports" / "latest" / "traces"
    project.run()
    assert {path.name for path in traces.iterdir()} == {f"{ID}.json.gz", f"{ID}.txt"}
    project.tell(told("linear"))
    project.run()
    assert {path.name for path in traces.iterdir()} == {"linear-eager-bf16-4x8.json.gz", "linear-eager-bf16-4x8.txt"}


@pytest.mark.parametrize("count", ["1", "-3", "many"])
def test_invalid_number_of_replicates_is_a_usage_error(project: Project, count: str) -> None:
    result = project.run("-o", f"kernelgauge_replicates={count}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*kernelgauge_replicates: expected a whole number from 2: of one replicate no noise is known, got '{count}'"]
    )
