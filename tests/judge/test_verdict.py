"""Statuses in order, and the text of a verdict."""

from __future__ import annotations

import itertools

from kernelgauge.judge import Reason, Status, Verdict, worst

WORST_TO_BEST = "INVALID REGRESSED UNDECIDED INCOMPARABLE NO_BASELINE IMPROVED PASS NOT_JUDGED"


def test_worst_ranks_every_status() -> None:
    ranked = [Status(name) for name in WORST_TO_BEST.split()]
    assert set(ranked) == set(Status)
    for bad, good in itertools.combinations(ranked, 2):
        assert worst([bad, good]) is worst([good, bad]) is bad
    assert worst([]) is None


def test_verdict_text_has_its_reasons_below() -> None:
    short = Verdict(Status.REGRESSED, "mlp", "device time", "slower", (Reason("why", "one\ntwo"),))
    longer = short.because(Reason("baseline", "a\x1b[2Jb\x9b31m"))
    first, rest = str(short), str(longer).removeprefix(str(short))
    assert first == "mlp: REGRESSED  slower\n  why      one\n           two"
    assert rest.startswith("\n  baseline a")
    assert all(character.isprintable() or character == "\n" for character in rest)
    assert str(longer.only("why")) == first
