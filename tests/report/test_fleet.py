"""What a fleet says, as text and as Markdown."""

from __future__ import annotations

import pytest

from kernelgauge.fleet import fleet
from kernelgauge.judge import Status
from kernelgauge.report.fleet import fleet_markdown, fleet_text
from tests.builders import pair
from tests.fleet.builders import machine, part
from tests.test_results import HOSTILE, hostile

PASSED = {"linear-eager-bf16-1024x32x64": Status.PASS, "mlp-compiled-bf16-64x128x768x3072": Status.PASS}
SLOW = dict.fromkeys(PASSED, Status.REGRESSED)
THREE = [machine("aa", PASSED), machine("bb", SLOW, controls=pair(copy=31.5), host="node2"), machine("cc", PASSED)]


def shown(width: int = 80) -> str:
    return fleet_text(fleet(THREE), width=width, color=False)


def test_the_conclusion_stands_above_its_evidence_and_the_machines() -> None:
    lines = shown(200).splitlines()
    assert lines[:3] == [
        "FAILED  3 machines, 2 workloads (2 REGRESSED)",
        "where to look: this GPU",
        "- it fails on NVIDIA H200 bb on node2, and passes on NVIDIA H200 aa on node1, NVIDIA H200 cc on node1",
    ]
    (bad,) = [line for line in lines if line.startswith("NVIDIA H200 bb")]
    assert bad.split() == "NVIDIA H200 bb on node2 c0ffee00 2 +5.0 +0.0 2 REGRESSED".split()


def test_a_workload_has_a_line_for_each_machine() -> None:
    lines = shown(200).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("linear-eager"))
    assert [line.split()[-1] for line in lines[start : start + 3]] == ["PASS", "REGRESSED", "PASS"]
    assert lines[start + 1].startswith("  this GPU")


def test_all_fits_in_eighty_columns_without_colours() -> None:
    assert max(map(len, shown().splitlines())) <= 80
    assert "\x1b" not in shown()


@pytest.mark.parametrize(
    ("results", "word"),
    [
        ([machine("aa", PASSED)], "PASS"),
        ([machine("aa", {"one": Status.NO_BASELINE})], "UNDECIDED"),
        ([part()], "NOTHING JUDGED"),
        ([machine("aa", SLOW)], "FAILED"),
        ([machine("aa", PASSED, exit_status=3)], "FAILED"),
        ([], "FAILED"),
    ],
)
def test_the_first_word_is_the_verdict(results: list, word: str) -> None:
    told = fleet(results)
    assert fleet_text(told, width=80, color=False).startswith(f"{word}  ")
    assert fleet_markdown(told).startswith(f"**{word}  ")


def test_problems_and_notes_are_told() -> None:
    told = fleet([part("one", arguments=("--perf-shard=1/2",), declared={"perf": ("one", "two")})])
    lines = fleet_text(told, width=200, color=False).splitlines()
    assert "failed: shard 2/2 is missing: no part says that it measured it" in lines
    assert "note: 1 of 2 declared workloads were measured nowhere: two" in lines


def test_what_passed_everywhere_has_no_line() -> None:
    assert "linear" not in fleet_text(fleet([machine("aa", PASSED)]), width=80, color=False)


def test_local_changes_are_told_of_a_long_commit() -> None:
    text = fleet_text(fleet([machine("aa", PASSED, commit="0123456789abcdef+")]), width=120, color=False)
    assert " 0123456789+ " in text


def test_markdown_has_tables_of_a_bounded_length() -> None:
    many = {f"w{number}": Status.REGRESSED for number in range(300)}
    told = fleet_markdown(fleet([machine("aa", many)]))
    assert "(100 rows left out)" in told
    assert told.count("REGRESSED |\n") == 201  # and the machine


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_steers_the_terminal_or_is_markup(text: str) -> None:
    told = fleet([hostile(text, Status.REGRESSED), hostile(f"{text}2", Status.PASS)])
    for line in fleet_text(told, width=80, color=False).split("\n"):
        assert line.isprintable()
    page = fleet_markdown(told)
    assert "<script" not in page
    assert "</details>" not in page
    assert all(line.isprintable() for line in page.split("\n"))
    assert "\n#" not in page
