"""How each verdict ends its test, and that the exit code, the JUnit file and the summary table say the same of it."""

from __future__ import annotations

import pytest

from kernelgauge.judge import SCHEMA_VERSION
from tests.plugin.inner_project import Project, table_verdict, told

ID = "mlp-eager-bf16-4x8"
VERDICT, REASON = "kernelgauge_verdict", "kernelgauge_reason"
RECORD = "record one with: pytest perf --perf-update"


def test_nothing_moved_passes(project: Project) -> None:
    project.record()
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=5)
    assert [case.properties[VERDICT] for case in project.cases()] == ["PASS"] * 5
    assert table_verdict(result, ID) == "PASS"


def test_a_slower_kernel_fails_and_says_which_from_what_to_what_and_how_to_accept_it(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=5.5))
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"{ID}: REGRESSED  device time 10.0 -> 11.5 us  +15.00 %*",
            "  why      a_gelu  4.0 -> 5.5 us*",
            f"  baseline baselines/told-gpu/{ID}.json*",
            f"  accept   pytest perf*{ID}*--perf-update",
        ]
    )
    case = project.case("test_device_time")
    assert case.outcome == "failure"
    assert "a_gelu  4.0 -> 5.5 us" in case.message
    assert case.properties[VERDICT] == "REGRESSED"
    assert case.properties[REASON].startswith("device time 10.0 -> 11.5 us")
    assert sorted(other.outcome for other in project.cases()) == ["failure"] + ["passed"] * 4
    assert table_verdict(result, ID) == "REGRESSED device time"


def test_another_count_fails_the_structure_and_nothing_else(project: Project) -> None:
    project.record()
    project.tell(told(dispatcher_ops=7))
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*dispatcher ops 5 -> 7"])
    assert project.case("test_structure_is_that_of_the_baseline").properties[VERDICT] == "REGRESSED"
    assert table_verdict(result, ID) == "REGRESSED structure"


def test_faster_passes_and_is_called_improved(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=3.0))
    result = project.run("--perf-strict")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=5)
    assert project.case("test_device_time").properties[VERDICT] == "IMPROVED"
    assert table_verdict(result, ID) == "IMPROVED device time"


def test_inconclusive_time_skips(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=4.3, noise=0.1))
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=4, skipped=1)
    case = project.case("test_device_time")
    assert (case.outcome, case.properties[VERDICT]) == ("skipped", "UNDECIDED")
    assert "inconclusive: " in case.message
    assert "+25 %" in case.message
    assert table_verdict(result, ID) == "UNDECIDED device time"


def test_inconclusive_time_fails_under_strict(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=4.3, noise=0.1))
    result = project.run("--perf-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    case = project.case("test_device_time")
    assert (case.outcome, case.properties[VERDICT]) == ("failure", "UNDECIDED")
    assert table_verdict(result, ID) == "UNDECIDED device time"


def test_no_baseline_skips_with_the_command_that_records_one(project: Project) -> None:
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=4)  # what is declared is checked without a baseline
    case = project.case("test_device_time")
    assert (case.outcome, case.properties[VERDICT]) == ("skipped", "NO_BASELINE")
    assert RECORD in case.message
    assert table_verdict(result, ID) == "NO_BASELINE"
    assert project.run_command("pytest perf --perf-update").ret == pytest.ExitCode.OK
    project.run().assert_outcomes(passed=5)


@pytest.mark.parametrize("option", [("--perf-strict",), ("-o", "kernelgauge_strict=true")])
def test_no_baseline_fails_if_strict(project: Project, option: tuple[str, ...]) -> None:
    result = project.run(*option)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines([f"{ID}: NO_BASELINE*", f"*pytest perf*{ID}*--perf-update"])
    assert [case.properties[VERDICT] for case in project.cases()].count("NO_BASELINE") == 4
    assert table_verdict(result, ID) == "NO_BASELINE"


@pytest.mark.parametrize(
    ("field", "before", "shown"),
    [("device", "Other GPU", "device Other GPU -> Told GPU"), ("power_limit_watts", 350.0, "350.0 -> 700.0")],
)
def test_a_baseline_of_another_machine_is_not_compared(
    project: Project, field: str, before: object, shown: str
) -> None:
    project.record()
    project.edit_fingerprint(ID, **{field: before})
    project.tell(told(gelu_us=9.0))
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=4)
    case = project.case("test_device_time")
    assert (case.outcome, case.properties[VERDICT]) == ("skipped", "INCOMPARABLE")
    assert shown in case.message
    assert (table_verdict(result, ID) or "").startswith("INCOMPARABLE")


def test_a_baseline_of_another_machine_fails_under_strict(project: Project) -> None:
    project.record()
    project.edit_fingerprint(ID, power_limit_watts=350.0)
    result = project.run("--perf-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=4)


def test_other_software_is_compared_and_named(project: Project) -> None:
    project.record()
    project.tell(told(gelu_us=5.5), driver="590.2")
    result = project.run()
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*environment: driver 580.1 -> 590.2"])


@pytest.mark.parametrize("error", ["measurement", "workload"])
def test_a_measurement_that_failed_ends_every_test_as_invalid(project: Project, error: str) -> None:
    project.record()
    project.tell(told(error=error))
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 5
    assert "passed" not in outcomes
    result.stdout.fnmatch_lines(["the told error", "  got      what was told", "  next     tell another"])
    assert [case.outcome in ("failure", "error") for case in project.cases()] == [True] * 5
    assert [case.properties.get(VERDICT) for case in project.cases()] == ["INVALID"] * 5
    assert (table_verdict(result, ID) or "").startswith("INVALID")
    assert project.measured() == [ID, ID]  # once in each run: a failure is not tried until it works


def test_a_device_that_is_not_there_is_invalid_and_the_summary_still_ends_well(project: Project) -> None:
    project.tell(told(), no_device=True)
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(["no such device", "  next     nvidia-smi"])
    assert [case.properties.get(VERDICT) for case in project.cases()] == ["INVALID"] * 5


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (told(kinds=("gemm",)), "*kernel kinds: got 2, expected 1"),
        (told(graph_breaks=2), "*graph breaks: got 2, expected 0"),
        (told(recompiles=1), "*recompiles: got 1, expected 0*"),
    ],
)
def test_what_is_declared_is_checked_without_a_baseline(project: Project, wrong: dict[str, object], shown: str) -> None:
    project.tell(wrong)
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1, skipped=4)
    result.stdout.fnmatch_lines([shown])
    case = project.case("test_kernels_and_graphs_are_as_declared")
    assert case.outcome == "failure"
    assert case.properties.get(VERDICT) == "REGRESSED"
    assert table_verdict(result, ID) == "REGRESSED declared structure"


@pytest.mark.parametrize(
    ("content", "got"),
    [(b"", "an empty file"), (b'{"schema_version": 2, ', "truncated"), (b'{"schema_version": 99}', "99")],
)
def test_a_corrupt_baseline_is_invalid_and_says_where_and_what_next(project: Project, content: bytes, got: str) -> None:
    project.record()
    (project.baselines / f"{ID}.json").write_bytes(content)
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=4)
    case = project.case("test_device_time")
    assert case.properties[VERDICT] == "INVALID"
    for line in (
        f"where *baselines/told-gpu/{ID}.json*",
        f"got *{got}*",
        f"expected *{SCHEMA_VERSION}*",
        "next *",
    ):
        result.stdout.fnmatch_lines([f"*{line}"])
    assert (table_verdict(result, ID) or "").startswith("INVALID")
