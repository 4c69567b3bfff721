"""What is wrong, each cause once: over the verdicts of a workload, and over the workloads of a run."""

from __future__ import annotations

import pytest

from kernelgauge.judge import Status
from kernelgauge.report.findings import baseline_commits, failures, findings, largest, next_step
from tests.test_results import one_test, results, verdict, workload

from .pages import caused


def test_findings_cause_with_a_common_line_is_one() -> None:
    eager = caused("a", "8 kernels instead of 1, twice (+91.6 us)", change=0.26)
    compiled = caused(
        "b", "another kernel (+5.8 us)", change=0.03, code="norm1  model.py:25  y = x.float()\nand 1 more line"
    )
    other = caused("c", "another kernel (+2.4 us)", change=0.05, code="Linear  model.py:61  u = self.up(x)")
    found = findings([results(compiled, other, eager)])
    assert [[case.failure.workload for case in cases] for cases in found] == [["a", "b"], ["c"]]
    assert [(case.sentence, case.cost, case.change) for case in found[0]] == [
        ("8 kernels instead of 1, twice", "+91.6 us", "+26.0 %"),
        ("another kernel", "+5.8 us", "+3.0 %"),
    ]
    assert found[0][0].about == "GPU time, structure"
    assert largest(found) == found[0][0]


def test_findings_without_a_line_are_clustered_by_their_words() -> None:
    throttled = [
        workload(verdict(Status.INVALID, "measurement", "throttled", workload=name), name=name) for name in "ab"
    ]
    (cases,) = findings([results(*throttled)])
    assert [case.failure.workload for case in cases] == ["a", "b"]


def test_findings_of_another_subject_are_apart() -> None:
    wrong = verdict(Status.INVALID, "numerics", "result differs", workload="a")
    both = caused("a", "another kernel")
    first, second = findings([results(workload(*both.verdicts, wrong, name="a"))])
    assert (first[0].sentence, second[0].sentence) == ("result differs", "another kernel")


def test_failures_reason_of_a_workload_is_there_once() -> None:
    time, structure = failures(results(caused("a", "another kernel (+5.8 us)")))
    assert [reason.label for reason in time.reasons] == ["cause", "code", "accept"]
    assert structure.reasons == ()


def test_failures_by_strictness_fail_and_others_do_not() -> None:
    noisy = workload(verdict(Status.UNDECIDED))
    assert [each.fails for each in failures(results(noisy))] == [False]
    test = one_test("test_device_time", "failed", subject="GPU time")
    assert [each.fails for each in failures(results(noisy, tests=(test,)))] == [True]


@pytest.mark.parametrize(
    ("names", "command"),
    [
        ("ab", "kernelgauge accept -k 'a or b'"),
        ("abcdefghi", "kernelgauge review"),
        ("';", "kernelgauge review"),
        ("", ""),
    ],
)
def test_next_step_names_few_workloads(names: str, command: str) -> None:
    assert next_step([results(*(caused(name, "another kernel") for name in names))])[1] == command


def test_next_step_of_a_bad_measurement_is_its_advice() -> None:
    throttled = verdict(Status.INVALID, "measurement", "throttled", reasons=[("next", "nvidia-smi -q")])
    assert next_step([results(workload(throttled))]) == ("Next:", "nvidia-smi -q")


def test_baseline_commits_unknown_are_left_out() -> None:
    assert baseline_commits([results(caused("a", "x"))]) == ""
