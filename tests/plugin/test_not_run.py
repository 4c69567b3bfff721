"""What cannot be done on this machine has no verdict: it is skipped, fails under --perf-strict, and everything says why."""

from __future__ import annotations

import pytest
import torch._dynamo  # noqa: F401  (an inner run forgets what it imported, and torch and triton load only once)

from kernelgauge.results import read_results
from tests.plugin.inner_project import Project, table_verdict, told

ID = "mlp-eager-bf16-4x8"
WHY = "the told error; tell another"
NUMERICS = "from kernelgauge.standard import test_result_matches_float64\n"
LATENCY = "from kernelgauge.standard import test_end_to_end_latency\n"


def require_not_run(project: Project, result: pytest.RunResult) -> None:
    """The terminal, the properties of the tests and the results say the same of the workload."""
    assert "REGRESSED" not in result.stdout.str()
    result.stdout.fnmatch_lines([f"not run: {ID}: {WHY}"])
    for case in project.cases():
        if case.parameters == ID:
            assert case.properties.get("kernelgauge_not_run") == WHY
            assert "kernelgauge_verdict" not in case.properties
    workloads = read_results(project.root / "reports" / "latest" / "results.json").workloads
    (found,) = [workload for workload in workloads if workload.id == ID]
    assert (found.unavailable, found.run, found.verdicts) == (WHY, None, ())


def test_an_unavailable_workload_skips_with_the_reason(project: Project) -> None:
    project.tell(told(error="unavailable"), told(variant="compiled"))
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=9)
    skipped = [case for case in project.cases() if WHY in case.message]
    assert [case.outcome for case in skipped] == ["skipped"] * 5
    assert table_verdict(result, ID) is None
    require_not_run(project, result)


def test_an_unavailable_workload_fails_under_strict_and_is_no_regression(project: Project) -> None:
    project.tell(told(error="unavailable"))
    result = project.run("--perf-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert all(case.outcome in ("failure", "error") for case in project.cases())
    result.stdout.fnmatch_lines(["the told error", "  next     tell another"])
    require_not_run(project, result)


@pytest.mark.parametrize(("options", "outcome"), [((), "skipped"), (("--perf-strict",), "failure")])
def test_a_result_that_cannot_be_computed_here_is_not_a_wrong_one(
    project: Project, options: tuple[str, ...], outcome: str
) -> None:
    project.tell(told(error="unavailable"))
    (project.root / "perf" / "test_perf.py").write_text(NUMERICS)
    result = project.run(*options)
    assert [case.outcome for case in project.cases()] == [outcome]
    require_not_run(project, result)


def test_a_workload_is_not_unavailable_because_the_one_beside_it_is(project: Project) -> None:
    project.tell(told(error="unavailable"), told(variant="compiled"))
    (project.root / "perf" / "test_perf.py").write_text(
        """
import pytest

@pytest.mark.workloads(variant="compiled")
def test_against_eager(workload, run, sibling):
    sibling(variant="eager")
"""
    )
    result = project.run("--perf-strict")
    result.assert_outcomes(failed=1)
    require_not_run(project, result)
    workloads = read_results(project.root / "reports" / "latest" / "results.json").workloads
    (compiled,) = [workload for workload in workloads if workload.id != ID]
    assert (compiled.unavailable, compiled.verdicts) == (None, ())


def test_what_is_not_timed_because_benchmarks_are_off_fails_under_strict_and_is_no_regression(project: Project) -> None:
    (project.root / "perf" / "test_perf.py").write_text(LATENCY)
    result = project.run("--perf-strict", "--benchmark-disable")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    case = project.case("test_end_to_end_latency")
    assert case.properties.get("kernelgauge_not_run") == "pytest-benchmark is disabled, so nothing was timed"
    assert "kernelgauge_verdict" not in case.properties
    assert table_verdict(result, ID) == "-"
