"""What looks slower is measured again before it fails: once, and only where it is judged."""

from __future__ import annotations

import pytest

from tests.plugin.inner_project import Project, table_verdict, told

ID, OTHER = "mlp-eager-bf16-4x8", "linear-eager-bf16-4x8"
VERDICT, REASON = "kernelgauge_verdict", "kernelgauge_reason"


@pytest.fixture
def recorded(project: Project) -> Project:
    project.record()
    return project


def test_nothing_suspicious_is_measured_no_more(recorded: Project) -> None:
    recorded.run().assert_outcomes(passed=5)
    assert recorded.confirmed() == []


def test_a_suspicion_that_is_confirmed_is_a_regression(recorded: Project) -> None:
    recorded.tell(told(gelu_us=5.5))
    result = recorded.run()
    result.assert_outcomes(passed=4, failed=1)
    assert recorded.confirmed() == [ID]
    result.stdout.fnmatch_lines([f"  {ID}: measuring again"])


def test_a_suspicion_that_is_not_confirmed_ends_by_all_data_together(recorded: Project) -> None:
    recorded.tell(told(gelu_us=4.4, again_gelu_us=4.0))  # once 10.4 us, then 10.0 and 10.0 again
    result = recorded.run()
    assert recorded.confirmed() == [ID]
    assert result.ret == pytest.ExitCode.OK
    case = recorded.case("test_device_time")
    assert case.properties[VERDICT] in ("PASS", "UNDECIDED")
    assert "10.0 -> 10.1 us" in case.properties[REASON]  # 10.13: what was measured first counts as well


def test_what_was_measured_first_is_added_to_and_never_replaced(recorded: Project) -> None:
    recorded.tell(told(gelu_us=7.0, again_gelu_us=4.0))
    recorded.run()
    # The geometric mean of 13, 10 and 10.
    assert "10.0 -> 10.9 us" in recorded.case("test_device_time").properties[REASON]


def test_two_timers_of_one_workload_are_confirmed_by_one_measurement(recorded: Project) -> None:
    recorded.tell(told(gelu_us=5.5, host_us=200.0))
    result = recorded.run()
    result.assert_outcomes(passed=3, failed=2)
    assert recorded.confirmed() == [ID]


def test_a_suspicion_of_the_host_alone_is_confirmed_too(recorded: Project) -> None:
    recorded.tell(told(host_us=200.0))
    recorded.run().assert_outcomes(passed=4, failed=1)
    assert recorded.confirmed() == [ID]


def test_only_the_suspicious_workload_is_measured_again(project: Project) -> None:
    project.tell(told(), told("linear"))
    project.record()
    project.tell(told(gelu_us=5.5), told("linear"))
    project.run().assert_outcomes(passed=9, failed=1)
    assert project.confirmed() == [ID]


def test_what_is_asked_of_the_baseline_twice_is_confirmed_once(recorded: Project) -> None:
    (recorded.root / "perf" / "test_again.py").write_text(
        """
from kernelgauge import Timer

def test_again(workload, run, kernelgauge_test):
    kernelgauge_test.conclude(kernelgauge_test.session.judge_time(workload, Timer.DEVICE))
"""
    )
    recorded.tell(told(gelu_us=5.5))
    recorded.run().assert_outcomes(passed=4, failed=2)
    assert recorded.confirmed() == [ID]


# -- where it is not done -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [(told(gelu_us=2.0), "IMPROVED"), (told(gelu_us=4.3, noise=0.1), "UNDECIDED")],
    ids=["improved", "undecided"],
)
def test_confirmation_is_only_for_what_looks_slower(
    recorded: Project, measured: dict[str, object], verdict: str
) -> None:
    recorded.tell(measured)
    recorded.run()
    assert recorded.case("test_device_time").properties[VERDICT] == verdict
    assert recorded.confirmed() == []


@pytest.mark.parametrize("option", ["--perf-update", "--perf-calibrate=c"])
def test_what_is_accepted_as_it_is_needs_no_confirmation(recorded: Project, option: str) -> None:
    recorded.tell(told(gelu_us=5.5))
    assert recorded.run(option).ret == pytest.ExitCode.OK
    assert recorded.confirmed() == []


def test_nothing_is_timed_where_no_test_is_marked_timing(recorded: Project) -> None:
    recorded.tell(told(gelu_us=5.5, host_us=200.0))
    (recorded.root / "perf" / "test_own.py").write_text(
        "from kernelgauge import Timer\ndef test_own(workload, run): run.time_us(Timer.DEVICE)"
    )
    result = recorded.run("-m", "not timing")
    result.assert_outcomes(passed=2, failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["*device time was not measured*", "*no test of a time was selected*", "*the mark timing*"]
    )
    assert recorded.confirmed() == []


def test_own_test_marked_timing_reads_times(recorded: Project) -> None:
    (recorded.root / "perf" / "test_own.py").write_text(
        "import pytest\nfrom kernelgauge import Timer\n"
        "@pytest.mark.timing\ndef test_own(workload, run): assert 15 < run.time_us(Timer.DEVICE)"
    )
    recorded.tell(told(gelu_us=9.5))
    recorded.run("-k", "own").assert_outcomes(passed=1, deselected=5)
    assert recorded.confirmed() == [ID]


def test_without_a_baseline_nothing_is_suspicious(project: Project) -> None:
    project.run()
    assert project.confirmed() == []


# -- a confirmation that fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["measurement", "workload"])
def test_a_confirmation_that_fails_is_invalid_with_the_reason_and_leaves_the_structure_judged(
    recorded: Project, error: str
) -> None:
    recorded.tell(told(gelu_us=5.5, confirm_error=error))
    result = recorded.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    assert recorded.confirmed() == [ID]
    case = recorded.case("test_device_time")
    assert case.properties[VERDICT] == "INVALID"
    assert case.properties[REASON] == "device time not confirmed: the told error"
    result.stdout.fnmatch_lines(["  got      what was told", "  next     tell another"])
    for name in ("test_structure_is_that_of_the_baseline", "test_kernels_and_graphs_are_as_declared"):
        assert recorded.case(name).properties[VERDICT] == "PASS"
    assert table_verdict(result, ID) == "INVALID device time"


def test_a_confirmation_that_fails_is_not_tried_for_another_timer(recorded: Project) -> None:
    recorded.tell(told(gelu_us=5.5, host_us=200.0, confirm_error="measurement"))
    recorded.run().assert_outcomes(passed=3, failed=2)
    assert recorded.confirmed() == [ID]


# -- a measurement that ended early ---------------------------------------------------------------------------------


def test_a_device_that_was_lost_leaves_what_was_measured_before_and_says_so_of_the_rest(project: Project) -> None:
    project.tell(told(), told("linear"), told("conv"))
    project.record()
    lost = "the GPU no longer answers"
    project.tell(told(), told("linear", incomplete=lost), told("conv", error="measurement"))
    result = project.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    verdicts = {
        (case.parameters.partition("-")[0], case.name): case.properties.get(VERDICT) for case in project.cases()
    }
    assert {verdict for (module, _), verdict in verdicts.items() if module == "mlp"} == {"PASS"}
    assert verdicts["linear", "test_structure_is_that_of_the_baseline"] == "PASS"
    assert verdicts["linear", "test_device_time"] == verdicts["linear", "test_host_dispatch_time"] == "INVALID"
    assert {verdict for (module, _), verdict in verdicts.items() if module == "conv"} == {"INVALID"}
    result.stdout.fnmatch_lines([f"{OTHER}: INVALID  device time was not measured: {lost}"])
    assert table_verdict(result, ID) == "PASS"
    assert (table_verdict(result, OTHER) or "").startswith("INVALID")


def test_what_was_not_measured_to_its_end_is_not_stored(project: Project) -> None:
    project.tell(told(), told("linear", incomplete="the GPU no longer answers"))
    result = project.run("--perf-update")
    assert set(project.stored()) == {ID}
    result.stdout.fnmatch_lines([f"not stored: {OTHER}: *"])
