"""Annotations for GitHub's runner: what failed, as commands that it reads, and no text that is one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelgauge.judge import Status
from kernelgauge.printable import printable
from kernelgauge.report.github import github_annotations
from tests.builders import WORKLOAD
from tests.report.told_results import many, passed, regressed
from tests.test_results import HOSTILE, hostile, results, verdict, workload

COMMAND = re.compile(r"::(error|warning) title=([^:,\r\n]*)::([^\r\n]*)")


def read(line: str) -> tuple[str, str, str]:
    """A workflow command as the runner reads it (actions/runner, src/Runner.Common/ActionCommand.cs)."""
    found = COMMAND.fullmatch(line)
    assert found is not None
    title = (
        found[2].replace("%0D", "\r").replace("%0A", "\n").replace("%3A", ":").replace("%2C", ",").replace("%25", "%")
    )
    return found[1], title, found[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def test_a_regression_is_an_error_and_an_invalid_measurement_a_warning() -> None:
    invalid = workload(verdict(Status.INVALID, "measurement", "throttled", workload="b"), name="b", run=None)
    first, second = map(read, github_annotations([results(invalid, regressed(), passed())]))
    assert first[:2] == ("error", f"{WORKLOAD}: REGRESSED  device time")
    assert first[2].startswith("device time 205.1 -> 221.8 us\nwhy: triton_poi_fused__unsafe_view_gelu_mul_0  38.1 ->")
    assert second == ("warning", "b: INVALID  measurement", "throttled")


def test_what_did_not_fail_is_not_annotated() -> None:
    quiet = (Status.PASS, Status.IMPROVED, Status.UNDECIDED, Status.NO_BASELINE, Status.INCOMPARABLE)
    assert github_annotations([results(workload(*map(verdict, quiet)))]) == []


@pytest.mark.parametrize(("failing", "lines"), [(9, 9), (10, 10), (11, 10), (40, 10)])
def test_there_are_at_most_ten_and_the_last_says_how_many_more(failing: int, lines: int) -> None:
    found = github_annotations([many(failing, 3)])
    assert len(found) == lines
    left = failing - 9 if failing > 10 else 0
    assert read(found[-1])[1] == (
        f"kernelgauge: {left} more failures" if left else f"failing-{failing - 1}: REGRESSED  device time"
    )


def test_errors_come_before_warnings_across_runs() -> None:
    invalid = [workload(verdict(Status.INVALID, "measurement", "x", workload=f"i{n}"), name=f"i{n}") for n in range(12)]
    found = [read(line)[0] for line in github_annotations([results(*invalid), results(regressed())])]
    assert found == ["error"] + ["warning"] * 9


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800"])
def test_no_text_is_a_command(text: str) -> None:
    for line in github_annotations([hostile(text, Status.REGRESSED, Status.INVALID)]):
        assert line.isprintable()
        assert len(line) < 65_536
        read(line)


@given(st.text(max_size=15), st.text(max_size=25))  # escaped, a character has up to ten
def test_what_the_runner_reads_is_what_was_said(name: str, said: str) -> None:
    worse = verdict(Status.REGRESSED, "structure", said, workload=name)
    (line,) = github_annotations([results(workload(worse, name=name))])
    level, title, message = read(line)
    assert (level, title) == ("error", printable(f"{name}: REGRESSED  structure"))
    assert message == printable(said)
