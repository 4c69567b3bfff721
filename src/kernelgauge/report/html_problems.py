"""What is wrong with a workload in a few lines: for a reader who has thirty seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..judge import Status, Verdict
from ..results import TestResult
from .endings import printed_verdict
from .html_tests import clipped
from .wording import counted

__all__ = ["Problem", "problems"]

_FIRST = ("numerics", "device time", "end to end", "host dispatch", "structure", "declared structure")
_CAUSES = ("why", "kernels", "counts", "environment")
_MOST_CAUSES = 2
_MOST_TESTS = 6
_QUIET = (Status.PASS, Status.NOT_JUDGED, Status.NO_BASELINE, Status.IMPROVED)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, with its first causes."""

    text: str
    causes: tuple[str, ...] = ()


def problems(verdicts: Sequence[Verdict], tests: Sequence[TestResult]) -> tuple[Problem, ...]:
    return tuple(_problems(verdicts, tests))


def _problems(verdicts: Sequence[Verdict], tests: Sequence[TestResult]) -> Iterator[Problem]:
    failed = [test.name for test in tests if test.outcome == "failed"]
    bad = [verdict for verdict in verdicts if verdict.status not in _QUIET and verdict.subject not in failed]
    for verdict in sorted(bad, key=_place):
        causes = [reason for reason in verdict.reasons if reason.label in _CAUSES][:_MOST_CAUSES]
        subject = "" if verdict.headline.startswith(verdict.subject) else f"{verdict.subject}: "
        yield Problem(
            clipped(f"{subject}{verdict.headline}", 300), tuple(clipped(one.text.split("\n", 1)[0]) for one in causes)
        )
    others = [t.name for t in tests if t.outcome == "failed" and printed_verdict(t.said, bad) is None]
    if others:
        left = f" and {len(others) - _MOST_TESTS} more" if len(others) > _MOST_TESTS else ""
        yield Problem(f"{counted(len(others), 'test')} failed: {clipped(', '.join(others[:_MOST_TESTS]), 400)}{left}")
    accept = next((reason.text for verdict in bad for reason in verdict.reasons if reason.label == "accept"), None)
    if accept:
        yield Problem("If this is meant, accept it:", (clipped(accept, 400),))


def _place(verdict: Verdict) -> int:
    return _FIRST.index(verdict.subject) if verdict.subject in _FIRST else len(_FIRST)
