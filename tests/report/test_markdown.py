"""Results for GitHub: the verdict first, all of it within a size, and no markup or command but our
own.
"""

import xml.etree.ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from kernelgauge.errors import printable
from kernelgauge.judge import Status
from kernelgauge.judge.evidence import Cause, OtherKernels, Place
from kernelgauge.judge.structure import judge_structure
from kernelgauge.report.summary import summary_markdown
from kernelgauge.report.text import Section, as_markdown
from kernelgauge.results import Results, WorkloadResult
from kernelgauge.run import SourceLine
from tests.builders import (
    HOSTILE,
    WORKLOAD,
    baseline,
    counts,
    hostile,
    launched,
    one_test,
    results,
    run,
    verdict,
    workload,
)

TAGS = set("html p strong br table thead tbody tr th td ul li details summary pre code".split())
ABSENT = workload(name="absent", run=None, unavailable="not installed")
THROTTLED = verdict(Status.INVALID, "measurement", "throttled", reasons=[("got", "9 W")])


def regressed(name: str = WORKLOAD, accept: str = "kernelgauge accept -k mlp") -> WorkloadResult:
    why = ("why", "same source, other launch configuration:\nXBLOCK 1024 -> 512")
    return workload(
        verdict(Status.REGRESSED, workload=name, reasons=[why, ("accept", accept)]), name=name
    )


def passed(name: str = "linear-eager") -> WorkloadResult:
    return workload(verdict(workload=name), name=name)


def rendered(*told: Results) -> ET.Element:
    """As a page: Markdown with tables, as GitHub knows them.

    HTML is let through: ours is there, and no other.
    """
    markdown = MarkdownIt("commonmark", {"html": True, "xhtmlOut": True}).enable("table")
    return ET.fromstring(
        f"<html>{markdown.render(summary_markdown(told)).replace('<br>', '<br/>')}</html>"
    )


def text(element: ET.Element) -> str:
    return "".join(element.itertext())


def cells(element: ET.Element) -> list[str]:
    return [text(each) for each in element.iter("td")]


TWO = (one_test("a"), one_test("b", "failed"))
COUNTS = "3 workloads (1 REGRESSED, 1 PASS, 1 not judged), 2 tests (1 failed)"
FIRST_LINES = [
    (
        [results(regressed(), passed(), ABSENT, tests=TWO)],
        f"**REGRESSED**  at most +8.1 % GPU time, {COUNTS}",
    ),
    (
        [results(passed()), results(workload(THROTTLED, run=None))],
        "**INVALID**  2 runs, 2 workloads (1 INVALID, ",
    ),
    ([], "**NOTHING JUDGED**  0 runs, 0 workloads, 0 tests"),
    # never better than the run
    ([results()], "**NOTHING JUDGED**  "),
    ([results(passed(), exit_status=1)], "**FAILED**  "),
    ([results(passed(), tests=TWO)], "**FAILED**  "),
    ([results(passed(), exit_status=2)], "**CUT SHORT**  "),
    ([results(regressed(), exit_status=2)], "**REGRESSED**  "),
]


@pytest.mark.parametrize(("told", "line"), FIRST_LINES)
def test_summary_begins_with_the_verdict_and_counts(told: list[Results], line: str) -> None:
    assert summary_markdown(told).split("\n", 1)[0].startswith(line)


def test_summary_table_has_every_workload() -> None:
    place = Place(SourceLine("m.py", 5, "x * y"), "norm")
    cause = Cause(OtherKernels("replaced", (("a", 1),), (("x", 8),)), places=(place,), delta_us=9.1)
    failing, others = rendered(
        results(workload(verdict(Status.REGRESSED).because(cause)), passed())
    ).iter("table")
    said = "8 kernels instead of 1: x x8 (+9.1 us)m.py:5  norm  x * y"
    assert cells(failing) == [WORKLOAD, "REGRESSEDGPU time", "4", "205.1", "205.1", "+8.1 %", said]
    assert cells(others) == ["linear-eager", "PASS", "4", "205.1", "205.1", "+8.1 %", ""]


def test_summary_shows_the_command_that_accepts() -> None:
    assert "intended:\n\n````text\nx```y\n````" in summary_markdown(
        [results(regressed(accept="x```y"))]
    )


def test_summary_cut_off_keeps_the_failures_and_says_so() -> None:
    told = [
        results(
            *(passed(f"p{n}") for n in range(300)), *(regressed(f"f{n}") for n in range(20)), ABSENT
        )
    ]
    whole = summary_markdown(told)
    assert "fits into this page" not in whole
    half = len(whole.encode()) // 2
    for limit in (1, 60, 500, 1000, 2000, 5000, half, 65_536):
        shown = summary_markdown(told, limit_bytes=limit)
        assert len(shown.encode()) <= limit
        assert limit < 500 or shown.startswith("**REGRESSED**")
    shown = summary_markdown(told, limit_bytes=half)
    assert shown.split("\n")[2] == "Not all of it fits into this page: results.json has the rest."
    assert shown.count("| REGRESSED<br>GPU time | 4 |") == 20
    assert 0 < shown.count("| PASS |") < 300


@pytest.mark.parametrize("name", [*HOSTILE, "\ud800"])
def test_hostile_text_is_no_markup(name: str) -> None:
    told = hostile(name, Status.REGRESSED, Status.INVALID)
    assert all(line.isprintable() for line in summary_markdown([told]).split("\n"))
    page = rendered(told)
    assert {element.tag for element in page.iter()} <= TAGS
    assert not [element for element in page.iter() if set(element.attrib) - {"style", "class"}]
    assert any(printable(name)[:200].strip() in cell.replace("\u200b", "") for cell in cells(page))
    # whole rows
    assert len({len(row) for table in page.iter("table") for row in table.iter("tr")}) == 1


KERNEL = "kernel<8, c10::BFloat16>(int #include)"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("@someone", "@\u200bsomeone"),
        ("see #12", "see #\u200b12"),
        ("a@b.c", "a@\u200bb.c"),
        ("\\@x", "\\@\u200bx"),
        (KERNEL, KERNEL.replace("<", "&lt;").replace(">", "&gt;")),
    ],
)
def test_markdown_name_is_no_mention_and_no_issue(name: str, shown: str) -> None:
    assert (
        MarkdownIt("commonmark").render(as_markdown([Section(lines=(name,))]))
        == f"<p>{shown}</p>\n"
    )


def test_kernels_before_and_after_are_a_diff() -> None:
    before, after = (
        [launched(each, 5.0) for each in ("norm", "gemm", "gemm")],
        [launched(each, 5.0) for each in ("pow", "mean", "gemm", "gemm")],
    )
    now, old = run(kernels=after, counts=counts(launches=4)), baseline(kernels=before)
    found = workload(judge_structure(now, old), run=now, baseline=old)
    page = summary_markdown([results(found)])
    assert "```diff\n- norm\n+ pow\n+ mean\n  gemm x2\n```" in page
    same = workload(
        judge_structure(now, now_baseline := baseline(kernels=after, counts=counts(launches=4))),
        run=now,
        baseline=now_baseline,
    )
    assert "```diff" not in summary_markdown([results(same)])
