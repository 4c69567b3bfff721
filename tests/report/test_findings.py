"""What failed, by its cause, with the next step."""

from __future__ import annotations

import pytest

from kernelgauge.judge import Status
from kernelgauge.judge.evidence import Next, Place, Step
from kernelgauge.report.findings import baseline_commits, findings, next_step, notable_verdicts
from kernelgauge.run import SourceLine
from tests.builders import one_test, results, verdict, workload

from .pages import caused


def at(line: int, file: str, module: str = "norm") -> Place:
    return Place(SourceLine(file, line, "y = x.float()"), module)


def test_findings_cause_with_a_common_line_is_one() -> None:
    eager = caused("a", times=8, delta_us=91.6, change=0.26)
    compiled = caused("b", delta_us=5.8, change=0.03, places=[at(25, "model.py", "norm1"), at(26, "model.py")])
    other = caused("c", delta_us=2.4, change=0.05, places=[at(61, "model.py")])
    found = findings([results(compiled, other, eager)])
    assert [[(case.workload, case.headline, case.change, case.about) for case in cases] for cases in found] == [
        [
            ("a", "8 kernels instead of 1: b x8 (+91.6 us)", "+26.0 %", "GPU time, structure"),
            ("b", "another kernel: b (+5.8 us)", "+3.0 %", "GPU time, structure"),
        ],
        [("c", "another kernel: b (+2.4 us)", "+5.0 %", "GPU time, structure")],
    ]


def test_findings_with_the_users_line_alone_in_common_are_apart() -> None:
    """Every cause in a model of a library has the line at which the user calls it."""
    inner = [SourceLine("llama.py", line, "x = f(x)") for line in (123, 456, 123)]
    places = [Place(SourceLine("my.py", 7, "self.model(ids)", line), "layers.*") for line in inner]
    cases = [caused(name, name, places=(place,)) for name, place in zip("abc", places, strict=True)]
    found = findings([results(*cases)])
    assert sorted([case.workload for case in cases] for cases in found) == [["a", "c"], ["b"]]


def test_findings_without_a_line_are_clustered_by_their_words() -> None:
    throttled = [
        workload(verdict(Status.INVALID, "measurement", "throttled", workload=name), name=name) for name in "ab"
    ]
    (cases,) = findings([results(*throttled)])
    assert [case.workload for case in cases] == ["a", "b"]
    costs = [caused(name, delta_us=cost, places=()) for name, cost in (("a", 1.0), ("b", 2.0))]
    assert len(findings([results(*costs)])) == 1


def test_findings_of_another_subject_are_apart() -> None:
    wrong = verdict(Status.INVALID, "numerics", "result differs", workload="a")
    both = caused("a")
    first, second = findings([results(workload(*both.verdicts, wrong, name="a"))])
    assert (first[0].headline, second[0].headline) == ("another kernel: b", "result differs")


@pytest.mark.parametrize(("subject", "status"), [("GPU time", "UNDECIDED"), (None, "FAILED")])
def test_findings_of_a_failed_test_are_its_verdict_or_its_words(subject: str | None, status: str) -> None:
    noisy = workload(verdict(Status.UNDECIDED))
    assert (findings([results(noisy)]), len(notable_verdicts(results(noisy)))) == ([], 1)
    test = one_test(
        "test_c09", "failed", subject=subject, claim="Five kernels.", said="def f():\nE       assert 6 == 5"
    )
    ((found,),) = findings([results(noisy, tests=(test,))])
    said = {"UNDECIDED": "GPU time 205.1 -> 221.8 us", "FAILED": "assert 6 == 5\nclaim: Five kernels."}
    assert (found.status, found.text) == (status, said[status])


@pytest.mark.parametrize(
    ("names", "command"),
    [("a", "pytest perf -k a --perf-update"), ("ab", "kernelgauge review"), ("", "")],
)
def test_next_step_accepts_one_workload_and_reviews_several(names: str, command: str) -> None:
    assert next_step([results(*map(caused, names))])[1] == command


def test_next_step_leaves_out_the_remark_behind_a_command() -> None:
    accept = Next(Step.ACCEPT, "kernelgauge accept -k a", "pytest perf -k a")
    only = workload(verdict(Status.REGRESSED, "structure").because(accept))
    assert next_step([results(only)])[1] == "pytest perf -k a; kernelgauge accept -k a"


def test_next_step_of_a_bad_measurement_is_its_advice() -> None:
    throttled = verdict(Status.INVALID, "measurement", "throttled").because(Next(Step.COMMAND, "nvidia-smi -q"))
    assert next_step([results(workload(throttled))]) == ("Next:", "nvidia-smi -q")


def test_baseline_commits_unknown_are_left_out() -> None:
    assert baseline_commits([results(caused("a"))]) == ""
