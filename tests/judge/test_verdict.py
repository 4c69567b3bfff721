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


def test_worst_ranks_every_status() -> None:
    assert sorted(FROM_WORST_TO_BEST) == sorted(Status)
    for bad, good in itertools.combinations(FROM_WORST_TO_BEST, 2):
        assert worst([bad, good]) is worst([good, bad]) is bad
    assert worst([]) is None


@pytest.mark.parametrize(
    ("field", "statuses"),
    [
        ("fails", {Status.REGRESSED, Status.INVALID}),
        ("passes", {Status.PASS}),
        ("decided", {*Status} - {Status.UNDECIDED, Status.NO_BASELINE, Status.INCOMPARABLE}),
    ],
)
def test_status_property_holds_for_these_only(field: str, statuses: set[Status]) -> None:
    assert {status for status in Status if getattr(status, field)} == statuses


def test_verdict_text_has_its_reasons_below() -> None:
    short = Verdict(Status.REGRESSED, "mlp", "device time", "slower", (Reason("why", "one\ntwo"),))
    longer = short.because(Reason("baseline", "a\x1b[2Jb\x9b31m"))
    first, rest = str(short), str(longer).removeprefix(str(short))
    assert first == "mlp: REGRESSED  slower\n  why      one\n           two"
    assert rest.startswith("\n  baseline a")
    assert all(character.isprintable() or character == "\n" for character in rest)
    assert str(longer.only("why")) == first
