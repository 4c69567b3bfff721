"""Results for a pull request: the verdict first, all of it within a size, and no markup but our own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from kernelgauge.judge import Status
from kernelgauge.printable import printable
from kernelgauge.report.github import github_annotations
from kernelgauge.report.page import Section, markdown, unlinked
from kernelgauge.report.pull_request import summary_markdown
from kernelgauge.results import Results
from tests.builders import WORKLOAD
from tests.report.told_results import many, passed, regressed
from tests.test_results import HOSTILE, hostile, one_test, results, verdict, workload

OF_OURS = {"html", "p", "strong", "br", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "details", "summary"}


def rendered(told: str) -> ET.Element:
    """As a page: Markdown with tables, as GitHub knows them. HTML is let through, so that ours is there and no other."""
    html = MarkdownIt("commonmark", {"html": True, "xhtmlOut": True}).enable("table").render(told)
    return ET.fromstring(f"<html>{html.replace('<br>', '<br/>')}</html>")


def texts(element: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in element.iter("td")]


# -- the verdict ------------------------------------------------------------------------------------------------------


def first_line(*told: Results) -> str:
    return summary_markdown(told).split("\n", 1)[0]


def test_the_verdict_is_the_first_line() -> None:
    told = results(
        regressed(), passed(), workload(name="absent", run=None), tests=(one_test("a"), one_test("b", "failed"))
    )
    assert first_line(told) == "**REGRESSED**  3 workloads (1 REGRESSED, 1 PASS, 1 not judged), 2 tests (1 failed)"


def test_several_runs_have_one_verdict_the_worst() -> None:
    invalid = workload(verdict(Status.INVALID, "measurement", "throttled"))
    assert first_line(results(passed()), results(invalid)).startswith(
        "**INVALID**  2 runs, 2 workloads (1 INVALID, 1 PASS)"
    )


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (results(passed()), "PASS"),
        (results(), "NOTHING JUDGED"),
        (results(passed(), exit_status=1), "FAILED"),
        (results(passed(), tests=(one_test("a", "failed"),)), "FAILED"),
        (results(passed(), exit_status=2), "CUT SHORT"),
        (results(exit_status=3), "CUT SHORT"),
        (results(regressed(), exit_status=2), "REGRESSED"),
        (results(workload(verdict(Status.UNDECIDED)), passed("a")), "UNDECIDED"),
        (results(workload(verdict(Status.IMPROVED))), "IMPROVED"),
    ],
)
def test_a_run_is_never_called_better_than_it_was(told: Results, word: str) -> None:
    assert first_line(told).startswith(f"**{word}**  ")


def test_of_no_results_there_is_a_line() -> None:
    assert summary_markdown([]) == "**NOTHING JUDGED**  0 runs, 0 workloads, 0 tests\n"


# -- what failed, and the rest ----------------------------------------------------------------------------------------


def test_a_failure_names_the_kernel_its_launch_configuration_and_the_cause() -> None:
    (failures, _) = rendered(summary_markdown([results(regressed())])).iter("table")
    name, what, why = texts(failures)
    assert (name, what) == (WORKLOAD, "REGRESSEDdevice time")
    assert why.startswith("device time 205.1 -> 221.8 uswhy: triton_poi_fused__unsafe_view_gelu_mul_0  38.1 -> 55.4 us")
    assert "launched with grid 24576x1x1 block 128x1x1 XBLOCK=1024 num_warps=4 num_stages=1" in why
    assert why.endswith("XBLOCK 1024 -> 512") or "XBLOCK 1024 -> 512" in why
    assert "/home/me" not in why


def test_the_machine_stands_between_the_verdict_and_the_failures() -> None:
    told = rendered(summary_markdown([results(regressed(), arguments=("perf", "-k", "mlp or x"))]))
    machine = "".join(told[1].itertext())
    assert machine.startswith("NVIDIA H200, driver 580.159.04, CUDA 13.0")
    assert "pytest perf -k 'mlp or x'  (2026-11-20T19:10:12+00:00, 33 s, kernelgauge 0.1.0)" in machine
    assert [child.tag for child in told] == ["p", "p", "table", "table"]
    nothing = rendered(summary_markdown([results(fingerprint=None, gpu=None)]))
    assert "".join(nothing[1].itertext()).startswith("nothing was measured")


def test_every_workload_is_in_the_table_with_its_numbers() -> None:
    (_, table) = rendered(summary_markdown([results(regressed(), passed())])).iter("table")
    assert texts(table) == [
        *(WORKLOAD, "4", "205.1", "205.1", "+8.1 %", "REGRESSED", "device time"),
        *("linear-eager", "4", "205.1", "205.1", "+8.1 %", "PASS", ""),
    ]


def test_a_long_table_is_folded_and_a_short_one_is_not() -> None:
    assert "<details>" not in summary_markdown([many(0, 12)])
    told = summary_markdown([many(0, 13)])
    assert "<details>\n<summary>13 workloads</summary>\n\n| workload |" in told
    assert rendered(told).find("details/table") is not None


def test_what_was_not_run_and_the_warnings_are_told() -> None:
    told = rendered(summary_markdown([many(0, 1)]))
    assert ["".join(item.itertext()).strip() for item in told.iter("li")] == [
        "not run: absent: not installed",
        "warning: a trace was not written",
    ]


def test_a_claim_that_failed_says_what_the_assertion_said() -> None:
    broken = workload(verdict(Status.REGRESSED, "test_c09", "the test failed"))
    test = one_test("test_c09", "failed", claim="Five kernels.", said="def test_c09():\nE       assert 6 == 5\nE  more")
    failures = next(rendered(summary_markdown([results(broken, tests=(test,))])).iter("table"))
    assert texts(failures) == [WORKLOAD, "REGRESSEDtest_c09", "assert 6 == 5Five kernels."]


def test_a_measurement_that_failed_every_test_is_one_failure() -> None:
    names = [f"test_{number}" for number in range(5)]
    invalid = workload(
        *(verdict(Status.INVALID, name, "the GPU was throttled") for name in ("measurement", *names)), run=None
    )
    said = "the GPU was throttled\n  got      9 W"
    told = results(invalid, tests=tuple(one_test(name, "failed", said=said) for name in names))
    failures = next(rendered(summary_markdown([told])).iter("table"))
    assert texts(failures) == [
        WORKLOAD,
        "INVALIDmeasurement, test_0, test_1 and 3 more",
        "the GPU was throttled· got      9 W",
    ]
    assert len(github_annotations([told])) == 1


def test_what_only_strictness_failed_is_a_failure_with_its_verdict() -> None:
    noisy = verdict(Status.UNDECIDED, headline="too noisy", reasons=[("next", "run it again")])
    told = results(workload(noisy), tests=(one_test("test_device_time", "failed", said=str(noisy)),), exit_status=1)
    failures = next(rendered(summary_markdown([told])).iter("table"))
    assert texts(failures) == [WORKLOAD, "UNDECIDEDdevice time", "too noisynext: run it again"]


def test_a_test_of_no_workload_that_failed_is_a_failure() -> None:
    told = results(tests=(one_test("test_mine", "failed", workload=None, said="E   assert False"),), exit_status=1)
    assert texts(next(rendered(summary_markdown([told])).iter("table"))) == ["", "FAILEDtest_mine", "assert False"]


# -- the size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [-1, 0, 1, 10, 60, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 65_536])
def test_it_is_never_longer_than_it_may_be(limit: int) -> None:
    told = summary_markdown([many(40, 40)], limit_bytes=limit)
    assert len(told.encode()) <= max(0, limit)
    assert "**REGRESSED**"[: max(0, limit)] == told[:13][: max(0, limit)]
    assert told.count("<details>") == told.count("</details>")


def test_what_matters_least_is_left_out_first_and_counted() -> None:
    noisy = [workload(verdict(Status.UNDECIDED, workload=f"n{n}"), name=f"n{n}") for n in range(30)]
    told = results(*(passed(f"p{n}") for n in range(300)), *(regressed(f"f{n}") for n in range(20)), *noisy)
    kinds = {
        "failing workload": ("| REGRESSED | device time |", 20),
        "failure": ("| REGRESSED<br>device time |", 20),
        "other workload": ("| UNDECIDED | device time |", 30),
        "passing workload": ("| PASS |  |", 300),
    }
    whole = summary_markdown([told])
    assert "Left out" not in whole
    seen: list[tuple[int, ...]] = []
    for limit in range(1000, len(whole.encode()) + 1000, 500):
        shown, _, left = summary_markdown([told], limit_bytes=limit).partition("Left out")
        counts = {name: shown.count(row) for name, (row, _) in kinds.items()}
        for name, (_, all_of_them) in kinds.items():
            missing = re.search(rf"(\d+) {name}", left)
            assert counts[name] + (int(missing[1]) if missing else 0) == all_of_them
        complete = [counts[name] == all_of_them for name, (_, all_of_them) in kinds.items()]
        first = complete.index(False) if False in complete else len(kinds)
        assert not any(list(counts.values())[first + 1 :])
        seen.append(tuple(counts.values()))
    assert seen == sorted(seen)
    assert len(set(seen)) > 40


def test_a_summary_of_thousands_of_hostile_names_is_short_enough_for_a_step() -> None:
    name = "@|<&#1" * 2000
    told = results(*(regressed(f"{number}{name}") for number in range(3000)))
    assert len(summary_markdown([told]).encode()) <= 1_000_000
    assert len(summary_markdown([told], limit_bytes=1 << 20).encode()) <= 1 << 20


# -- untrusted texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800"])
def test_no_text_is_markup(text: str) -> None:
    told = summary_markdown([hostile(text, Status.REGRESSED, Status.INVALID)])
    assert all(line.isprintable() for line in told.split("\n"))
    page = rendered(told)
    assert {element.tag for element in page.iter()} <= OF_OURS
    assert not [element for element in page.iter() if element.attrib and set(element.attrib) != {"style"}]
    shown = printable(text)[:200].strip()
    assert any(shown in cell.replace("\u200b", "") for cell in texts(page))
    assert len({len(row) for table in page.iter("table") for row in table.iter("tr")}) == 2  # two tables, whole rows


@pytest.mark.parametrize(
    ("name", "broken"),
    [("@someone", "@\u200bsomeone"), ("see #12", "see #\u200b12"), ("a@b.c", "a@\u200bb.c"), ("\\@x", "\\@\u200bx")],
)
def test_github_finds_nobody_to_mention_and_no_issue(name: str, broken: str) -> None:
    assert "".join(rendered(unlinked(markdown([Section(lines=(name,))]))).itertext()).strip() == broken


def test_a_name_stays_one_that_can_be_copied() -> None:
    name = "void at::native::vectorized_elementwise_kernel<8, c10::BFloat16>(int #include)"
    assert "".join(rendered(unlinked(markdown([Section(lines=(name,))]))).itertext()).strip() == name


def test_a_long_name_is_cut() -> None:
    told = summary_markdown([results(regressed("k" * 10_000))])
    assert max(map(len, re.findall("k+", told))) == 297
