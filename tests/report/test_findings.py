"""What failed, by its cause, with the next step; and words for every class of evidence."""

import dataclasses
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kernelgauge.judge import STRUCTURE, Status, Verdict
from kernelgauge.judge import evidence as e
from kernelgauge.judge.baseline import Recorded, from_run
from kernelgauge.report import findings as f
from kernelgauge.report.html import html
from kernelgauge.report.stored import doubt_text, review_lines
from kernelgauge.report.summary import conditions_text, summary_markdown
from kernelgauge.report.words import reason_line
from kernelgauge.results import WorkloadResult, decode_results, encode_results
from kernelgauge.run import Conditions, SourceLine
from tests.builders import HOSTILE, one_test, results, run, summary_text, verdict, workload

from .pages import caused


def at(line: int, file: str = "model.py", module: str = "norm") -> e.Place:
    return e.Place(SourceLine(file, line, "y = x.float()"), module)


def within(line: int) -> e.Place:
    """A line of a library, below the one line of the user."""
    return e.Place(
        SourceLine("my.py", 7, "self.model(ids)", SourceLine("llama.py", line, "x = f(x)")),
        "layers.*",
    )


OLD, DEEPER = (("arange", 2),), (("mul", 100), ("arange", 26))
SIZES = (("1", "17"), ("2", "34"), ("1", "18"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (e.OtherKernels("replaced", OLD, DEEPER), "124 more kernels: mul x100, arange x24"),
        (
            e.OtherKernels("replaced", OLD, DEEPER[:1]),
            "100 kernels instead of 2: mul x100\nwas arange x2",
        ),
        (
            e.OtherKernels("replaced", OLD, DEEPER, sizes=SIZES[:1]),
            "126 kernels instead of 2, input dimension 1 -> 17: mul x100, arange x26\nwas arange x2",
        ),
        (
            e.OtherPlacement((("cos", 3),), sizes=SIZES),
            "input dimensions 1 -> 17, 2 -> 34, and 1 more in 3 kernels\ncos x3",
        ),
        (
            e.PeakMemory(5_000_000, 5_020_000),
            "peak memory 5,000,000 -> 5,020,000 bytes (+20.0 kB)",
        ),
        (e.PeakMemory(196_608, 202_752), "peak memory 196.6 kB -> 202.8 kB (+6.1 kB)"),
        (e.PeakMemory(2_000_000, 1_500_000), "peak memory 2.0 MB -> 1.5 MB (-500.0 kB)"),
    ],
)
def test_words_of_a_change_are_true_to_its_numbers(change: Any, said: str) -> None:
    because = dataclasses.replace(verdict(), reasons=(e.Cause(change),))
    assert [line.text for line in f.reasons(because)] == [said]


def clusters(*workloads: WorkloadResult) -> list[str]:
    return [
        "".join(sorted(case.workload for case in cases))
        for cases in f.findings([results(*workloads)])
    ]


def test_findings_cause_with_a_common_line_is_one() -> None:
    eager = caused("a", times=8, delta_us=91.6, change=0.26)
    compiled = caused("b", delta_us=5.8, change=0.03, places=[at(25, module="norm1"), at(26)])
    other = caused("c", delta_us=2.4, change=0.05, places=[at(61)])
    found = f.findings([results(compiled, other, eager)])
    assert {case.about for cases in found for case in cases} == {"GPU time, structure"}
    assert [[(case.workload, case.headline, case.change) for case in cases] for cases in found] == [
        [
            ("a", "8 kernels instead of 1: b x8 (+91.6 us)", "+26.0 %"),
            ("b", "another kernel: b (+5.8 us)", "+3.0 %"),
        ],
        [("c", "another kernel: b (+2.4 us)", "+5.0 %")],
    ]


def test_findings_are_clustered_by_line_or_by_words() -> None:
    """Every cause in a model of a library has the line at which the user calls it: that alone is no
    common line.
    """
    of_library = [
        caused(name, name, places=(within(line),))
        for name, line in zip("abc", (123, 456, 123), strict=True)
    ]
    assert sorted(clusters(*of_library)) == ["ac", "b"]
    throttled = [
        workload(verdict(Status.INVALID, "measurement", "throttled", workload=name), name=name)
        for name in "ab"
    ]
    assert clusters(*throttled) == ["ab"]
    assert clusters(
        *(caused(name, delta_us=cost, places=()) for name, cost in (("a", 1.0), ("b", 2.0)))
    ) == ["ab"]


def test_findings_keep_an_invalid_time_beside_a_cause() -> None:
    lost = verdict(
        Status.INVALID, "end to end", "another process used the GPU", workload="a", change=None
    )
    one = caused("a")
    both = results(replace(one, verdicts=(*one.verdicts, lost)))
    found = {
        (case.status, case.about, case.headline) for cases in f.findings([both]) for case in cases
    }
    assert ("INVALID", "end to end", "another process used the GPU") in found
    assert len(found) == 2
    assert "another process used the GPU" in summary_markdown([both])


def test_findings_of_a_declared_break_are_one() -> None:
    """The break is in the structure and in the declaration: one card."""
    broken = e.Cause(e.OtherKernels("replaced", (), (("clone", 1),)), places=(at(3),))
    said = [
        dataclasses.replace(verdict(Status.REGRESSED, subject), reasons=(broken,))
        for subject in (STRUCTURE, "declared structure")
    ]
    ((finding,),) = f.findings([results(workload(*said))])
    assert finding.about == f"{STRUCTURE}, declared structure"


def test_failure_in_a_narrow_terminal_keeps_its_commands_whole() -> None:
    command = f"pytest tests/of/a/long/path/test_perf.py -k a -o {'x' * 90}=1 -m {'y' * 90}"
    long = verdict(Status.REGRESSED, headline="z" * 90).because(
        e.Next(e.Advice.ACCEPT, f"{command} 2", command)
    )
    lines = f.brief(long, width=60).splitlines()
    assert len(lines[0]) == 60
    assert [line[11:] for line in lines[-2:]] == [
        f"{command}   (measures its times too)",
        f"{command} 2",
    ]


def test_findings_of_a_failed_test_are_its_verdict_or_its_words() -> None:
    noisy = workload(verdict(Status.UNDECIDED))
    assert (f.findings([results(noisy)]), len(f.notable_verdicts(results(noisy)))) == ([], 1)
    said = {"said": "def f():\nE       assert 6 == 5", "claim": "Five kernels."}
    for subject, status, text in (
        ("GPU time", "UNDECIDED", "GPU time 205.1 -> 221.8 us"),
        (None, "FAILED", "assert 6 == 5\nclaim: Five kernels."),
    ):
        ((found,),) = f.findings(
            [results(noisy, tests=(one_test("test_c09", "failed", subject=subject, **said),))]
        )
        assert (found.status, found.text) == (status, text)
    ((alone,),) = f.findings(
        [results(tests=(one_test("test_d", "failed", workload=None, **said),))]
    )
    assert (alone.workload, alone.about, alone.text) == ("", "test_d", text)


ACCEPT = verdict(Status.REGRESSED).because(
    e.Next(e.Advice.ACCEPT, "kernelgauge accept -k a", "pytest perf -k a")
)
THROTTLED = verdict(Status.INVALID, "measurement", "throttled").because(
    e.Next(e.Advice.COMMAND, "nvidia-smi -q")
)
NEXT_STEPS = [
    ([caused("a")], "pytest perf -k a --perf-update"),
    ([caused("a"), caused("b")], "kernelgauge review"),
    ([], ""),
    ([workload(ACCEPT)], "pytest perf -k a; kernelgauge accept -k a"),
]


@pytest.mark.parametrize(("workloads", "command"), NEXT_STEPS)
def test_next_step_accepts_one_workload_and_reviews_several(
    workloads: list[WorkloadResult], command: str
) -> None:
    assert f.next_step([results(*workloads)])[1] == command
    assert f.baseline_commits([results(*workloads)]) == ""  # none is known
    assert f.next_step([results(workload(THROTTLED))]) == ("Next:", "nvidia-smi -q")


# -- words: every class of evidence has them, whatever a file holds in its fields ------------------

CONCLUSIONS = e.Conclusion.__subclasses__()
REASONS = [
    each for each in (*e.Reason.__subclasses__(), *e.Doubt.__subclasses__()) if each is not e.Doubt
]
OF_REVIEWS = [e.MeasuredTime, e.FileNote, e.RunDoubt, e.ImpossibleTime]
# As a file may hold them.
PLAIN = {
    int: (0, 1, 2, 10**12),
    float: (1e-9, 0.5, 1.0, 1e12),
    str: ("", "a", "fused", "moved", *HOSTILE),
}
for plain, values in PLAIN.items():
    st.register_type_strategy(plain, st.sampled_from(values))
st.register_type_strategy(e.Doubt, st.sampled_from(e.Doubt.__subclasses__()).flatmap(st.from_type))
CAUSES = [st.builds(e.Cause, change=st.from_type(each)) for each in e.Change.__subclasses__()]
FEW = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[*HealthCheck],
)
OF_VERDICTS = (
    (*Status,),
    (STRUCTURE, "GPU time", "end to end", "numerics", "<b>"),
    ((None, None, None), (1.0, 2.0, e.RelativeChange(1.0, None, 0.5, 0.9, 0.01))),
    ("", "HEAD~1"),
)


@FEW
@given(
    st.data(),
    st.tuples(*map(st.from_type, CONCLUSIONS)),
    st.tuples(*map(st.from_type, REASONS), *CAUSES),
)
def test_evidence_of_a_file_has_words_in_every_form(
    data: st.DataObject, first: Any, reasons: Any
) -> None:
    verdicts = []
    for place, conclusion in enumerate(first):
        status, subject, times, against = (data.draw(st.sampled_from(each)) for each in OF_VERDICTS)
        said = reasons[place :: len(first)]
        verdicts.append(Verdict(status, f"w{place}", subject, conclusion, said, *times, against))
    told = results(*(workload(each, name=each.workload) for each in verdicts))
    read = decode_results(encode_results(f.with_words(told)), where="")
    assert [each.reasons for each in read.verdicts] == [each.reasons for each in verdicts]
    shown = [
        form(each)
        for each in verdicts
        for form in (f.in_full, f.in_one_line, partial(f.brief, width=60))
    ]
    shown.append(summary_text(told))
    assert all(character.isprintable() or character == "\n" for text in shown for character in text)
    assert html([told])
    assert summary_markdown([told])


@FEW
@given(st.tuples(*map(st.from_type, OF_REVIEWS)))
def test_evidence_of_a_review_has_words(found: tuple[Any, ...]) -> None:
    assert [line.text for line in review_lines(found)] == list(map(doubt_text, found))
    assert all(reason_line(e.Next(step)).text is not None for step in e.Advice)  # without a command


def test_no_class_of_evidence_is_left_out() -> None:
    known = {e.Conclusion, e.Reason, e.Doubt, *CONCLUSIONS, *REASONS, *OF_REVIEWS}
    found = {
        each for each in vars(e).values() if isinstance(each, type) and issubclass(each, e.Evidence)
    }
    assert found - {e.Evidence} == known


def test_conditions_add_up_what_throttled_the_gpu() -> None:
    throttled = [
        run(conditions=Conditions(throttled_ms={"power cap": ms})) for ms in (900.0, 600.0)
    ]
    assert "power cap for 1500 ms" in conditions_text(throttled)[0]


@pytest.mark.parametrize(
    ("commit", "shown"),
    [
        ("5d500c5" * 5, "commit 5d500c55d5 of 2026-01-05"),
        (None, "2026-01-05, without a commit"),
    ],
)
def test_baseline_without_a_commit_says_so(commit: str | None, shown: str) -> None:
    old = from_run(run(), recorded=Recorded("2026-01-05T00:00:00+00:00", commit, "1"))
    assert f.baseline_commits([results(workload(baseline=old))]) == shown


def test_counts_that_are_equal_are_told_as_other_functions() -> None:
    texts = [reason_line(e.CountMoved("host_work", 508, after)).text for after in (508, 520)]
    assert texts == ["calls of functions 508, of other functions", "calls of functions 508 -> 520"]
