"""Statuses in order, and the text of a verdict."""

from __future__ import annotations

import itertools

import pytest

from kernelgauge.judge import Reason, Status, Verdict, worst

FROM_WORST_TO_BEST = [
    Status.INVALID,
    Status.REGRESSED,
    Status.UNDECIDED,
    Status.INCOMPARABLE,
    Status.NO_BASELINE,
    Status.IMPROVED,
    Status.PASS,
    Status.NOT_JUDGED,
]


def test_severity_covers_every_status() -> None:
    assert sorted(FROM_WORST_TO_BEST) == sorted(Status)


@pytest.mark.parametrize(("bad", "good"), list(itertools.combinations(FROM_WORST_TO_BEST, 2)))
def test_the_worse_of_two_is_shown_in_either_order(bad: Status, good: Status) -> None:
    assert worst([bad, good]) is worst([good, bad]) is bad


def test_of_no_verdicts_none_is_the_worst() -> None:
    assert worst([]) is None


def test_only_regressed_and_invalid_fail() -> None:
    assert {status for status in Status if status.fails} == {Status.REGRESSED, Status.INVALID}


def test_only_uncompared_or_noisy_statuses_are_undecided() -> None:
    undecided = {status for status in Status if not status.decided}
    assert undecided == {Status.UNDECIDED, Status.NO_BASELINE, Status.INCOMPARABLE}


def test_a_verdict_reads_as_one_line_and_its_reasons_under_it() -> None:
    verdict = Verdict(
        Status.REGRESSED, "mlp", "device time", "slower", (Reason("why", "one\ntwo"), Reason("baseline", "a.json"))
    )
    assert str(verdict) == ("mlp: REGRESSED  slower\n  why      one\n           two\n  baseline a.json")


def test_reasons_are_added_after_those_there_are_to_a_copy() -> None:
    verdict = Verdict(Status.PASS, "mlp", "structure", "same", (Reason("why", "a"),))
    longer = verdict.because(Reason("rest", "b"), Reason("accept", "c"))
    assert [reason.text for reason in longer.reasons] == ["a", "b", "c"]
    assert [reason.text for reason in verdict.reasons] == ["a"]
    assert (longer.status, longer.workload, longer.headline) == (verdict.status, verdict.workload, verdict.headline)


def test_escape_sequences_in_the_name_of_a_kernel_do_not_reach_the_terminal() -> None:
    verdict = Verdict(Status.REGRESSED, "mlp", "structure", "other kernels", (Reason("kernels", "+ a\x1b[2Jb\x9b31m"),))
    assert all(character.isprintable() or character == "\n" for character in str(verdict))
