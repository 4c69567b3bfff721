"""Tests and verdicts of a workload, as the HTML report says them: each thing once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..judge import Verdict
from ..results import TestResult
from .endings import printed_verdict, shown_reasons

__all__ = [
    "ReasonView",
    "TestView",
    "VerdictView",
    "clipped",
    "lines_of",
    "test_views",
    "verdict_view",
]

_LONGEST_TEXT = 4000
_LONGEST_NAME = 200
_MOST_LINES = 60
_ORDER = ("failed", "skipped", "passed")


@dataclass(frozen=True)
class ReasonView:
    """One reason, cut to what a page has room for."""

    label: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class VerdictView:
    """One verdict. The headline is without the subject that stands before it."""

    subject: str
    status: str
    headline: str
    reasons: tuple[ReasonView, ...]


@dataclass(frozen=True)
class TestView:
    """One test. `lines`: what it said, if no verdict says it already."""

    __test__ = False  # no test of pytest's

    outcome: str
    name: str
    claim: str
    seconds: str
    lines: tuple[str, ...]


def clipped(text: str, longest: int = _LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def lines_of(text: str) -> tuple[str, ...]:
    """Cut to what a page has room for."""
    lines = clipped(text.strip("\n"), _LONGEST_TEXT).splitlines()
    left = len(lines) - _MOST_LINES
    return tuple(lines[:_MOST_LINES]) + ((f"… and {left} more lines",) if left > 0 else ())


def verdict_view(verdict: Verdict) -> VerdictView:
    reasons = tuple(ReasonView(clipped(reason.label, 24), lines_of(reason.text)) for reason in shown_reasons(verdict))
    return VerdictView(
        clipped(verdict.subject),
        verdict.status.value,
        clipped(verdict.headline.removeprefix(f"{verdict.subject} "), 600),
        reasons,
    )


def test_views(tests: Iterable[TestResult], verdicts: Sequence[Verdict], *, unavailable: str | None) -> list[TestView]:
    """The failed ones first. What a verdict or the note above the workload says already is named, not repeated."""
    ordered = sorted(tests, key=lambda test: _ORDER.index(test.outcome))
    return [
        TestView(
            test.outcome,
            clipped(test.name),
            clipped(test.claim, 300),
            f"{test.seconds:.2f}",
            _said(test.said, verdicts, unavailable),
        )
        for test in ordered
    ]


def _said(said: str, verdicts: Sequence[Verdict], unavailable: str | None) -> tuple[str, ...]:
    if not said or said == unavailable:
        return ()
    verdict = printed_verdict(said, verdicts)
    return lines_of(said) if verdict is None else (f"the verdict on {verdict.subject}",)
