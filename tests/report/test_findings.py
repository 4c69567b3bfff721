"""What failed, by its cause, with the next step."""

from __future__ import annotations

import pytest

from kernelgauge.judge import Status
from kernelgauge.judge.evidence import Next, Place, Step
from kernelgauge.report.findings import baseline_commits, findings, next_step, notable_verdicts
from kernelgauge.results import WorkloadResult
from kernelgauge.run import SourceLine
from tests.builders import one_test, results, verdict, workload

from .pages import caused


def at(line: int, file: str = "model.py", module: str = "norm") -> Place:
    return Place(SourceLine(file, line, "y = x.float()"), module)


def within(line: int) -> Place:
    """A line of a library, below the one line of the user."""
    return Place(SourceLine("my.py", 7, "self.model(ids)", SourceLine("llama.py", line, "x = f(x)")), "layers.*")


def clusters(*workloads: WorkloadResult) -> list[str]:
    return ["".join(sorted(case.workload for case in cases)) for cases in findings([results(*workloads)])]


def test_findings_cause_with_a_common_line_is_one() -> None:
    eager = caused("a", times=8, delta_us=91.6, change=0.26)
    compiled = caused("b", delta_us=5.8, change=0.03, places=[at(25, module="norm1"), at(26)])
    other = caused("c", delta_us=2.4, change=0.05, places=[at(61)])
    found = findings([results(compiled, other, eager)])
    assert {case.about for cases in found for case in cases} == {"GPU time, structure"}
    assert [[(case.workload, case.headline, case.change) for case in cases] for cases in found] == [
        [("a", "8 kernels instead of 1: b x8 (+91.6 us)", "+26.0 %"), ("b", "another kernel: b (+5.8 us)", "+3.0 %")],
        [("c", "another kernel: b (+2.4 us)", "+5.0 %")],
    ]


def test_findings_are_clustered_by_line_or_by_words() -> None:
    """Every cause in a model of a library has the line at which the user calls it: that alone is no common line."""
    of_library = [caused(name, name, places=(within(line),)) for name, line in zip("abc", (123, 456, 123), strict=True)]
    assert sorted(clusters(*of_library)) == ["ac", "b"]
    throttled = [
        workload(verdict(Status.INVALID, "measurement", "throttled", workload=name), name=name) for name in "ab"
    ]
    assert clusters(*throttled) == ["ab"]
    assert clusters(*(caused(name, delta_us=cost, places=()) for name, cost in (("a", 1.0), ("b", 2.0)))) == ["ab"]


def test_findings_of_a_failed_test_are_its_verdict_or_its_words() -> None:
    noisy = workload(verdict(Status.UNDECIDED))
    assert (findings([results(noisy)]), len(notable_verdicts(results(noisy)))) == ([], 1)
    said = {"said": "def f():\nE       assert 6 == 5", "claim": "Five kernels."}
    for subject, status, text in (
        ("GPU time", "UNDECIDED", "GPU time 205.1 -> 221.8 us"),
        (None, "FAILED", "assert 6 == 5\nclaim: Five kernels."),
    ):
        ((found,),) = findings([results(noisy, tests=(one_test("test_c09", "failed", subject=subject, **said),))])
        assert (found.status, found.text) == (status, text)


ACCEPT = verdict(Status.REGRESSED).because(Next(Step.ACCEPT, "kernelgauge accept -k a", "pytest perf -k a"))
THROTTLED = verdict(Status.INVALID, "measurement", "throttled").because(Next(Step.COMMAND, "nvidia-smi -q"))
NEXT_STEPS = [
    ([caused("a")], "pytest perf -k a --perf-update"),
    ([caused("a"), caused("b")], "kernelgauge review"),
    ([], ""),
    ([workload(ACCEPT)], "pytest perf -k a; kernelgauge accept -k a"),
]


@pytest.mark.parametrize(("workloads", "command"), NEXT_STEPS)
def test_next_step_accepts_one_workload_and_reviews_several(workloads: list[WorkloadResult], command: str) -> None:
    assert next_step([results(*workloads)])[1] == command
    assert baseline_commits([results(*workloads)]) == ""  # none is known
    assert next_step([results(workload(THROTTLED))]) == ("Next:", "nvidia-smi -q")
