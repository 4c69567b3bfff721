"""What is wrong in some runs, each cause once over all workloads: what the page, the Markdown and annotations begin with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from ..judge.evidence import Cause, Next, Step
from ..judge.verdict import WORST_FIRST, Status, Verdict
from ..results import Results, TestResult
from .wording import change_text, short_commit
from .words import CAUSES_WITH_CODE, cause_text, code_lines, headline, reasons

_NOT_FAILING = (Status.UNDECIDED, Status.INCOMPARABLE, Status.IMPROVED)  # and worth a look
_ORDER = {status.value: place for place, status in enumerate(WORST_FIRST)}


@dataclass(frozen=True)
class Finding:
    """What one workload fails with: a cause, however many verdicts have it; else a verdict, or a test without one.

    Attributes:
        about: subjects of the verdicts, or the name of the test.
        text: a sentence, and lines below it.
        code: lines; empty if nobody knows.
        verdicts: that it explains; of a test without one there is none.
    """

    workload: str
    about: str
    text: str
    code: str = ""
    verdicts: tuple[Verdict, ...] = ()
    cause: Cause | None = None

    @cached_property
    def slower(self) -> Verdict | None:
        """Return the verdict on the time that became slower."""
        return next((each for each in self.verdicts if each.status is Status.REGRESSED and each.change), None)

    @property
    def status(self) -> str:
        return (self.slower or self.verdicts[0]).status.value if self.verdicts else "FAILED"

    @property
    def headline(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def change(self) -> str:
        """Return ``+8.1 %``; nothing where no time became slower."""
        return change_text(self.slower)


def findings(results: Sequence[Results]) -> list[list[Finding]]:
    """Return the workloads of each cause of a failure, the largest change first, then the worst status.

    Causes with a line of code in common are one, and so are those of the same words.
    """
    clusters: list[tuple[set[object], list[Finding]]] = []
    for finding in (finding for one in results for finding in _findings(one)):
        # Many causes have the line in common at which a user calls the model: a line of the library tells them apart.
        places = [each.deepest for each in finding.cause.places] if finding.cause is not None else []
        marks: set[object] = {(each.file, each.line) for each in places}
        marks = marks or {finding.cause.identity if finding.cause is not None else finding.text}
        known = next((cluster for cluster in clusters if cluster[0] & marks), None)
        if known is None:
            clusters.append((marks, [finding]))
        else:
            known[0].update(marks)
            known[1].append(finding)
    return sorted((sorted(found, key=_rank) for _, found in clusters), key=lambda found: _rank(found[0]))


def _rank(finding: Finding) -> tuple[float, int]:
    change = finding.slower.change if finding.slower is not None else None
    return -change.estimate if change is not None else 0.0, _ORDER.get(finding.status, 1)


def _findings(results: Results) -> Iterator[Finding]:
    for name, group in groupby(verdicts(results, failing=True), key=lambda verdict: verdict.workload):
        failing = list(group)
        by_baseline = [verdict for verdict in failing if verdict.is_by_baseline]
        causes = _causes(by_baseline)
        explained = by_baseline if causes else []
        about = ", ".join(verdict.subject for verdict in explained)
        for cause in causes:
            sentence, details = cause_text(cause)
            text, code = "\n".join([sentence, *details]), "\n".join(code_lines(cause))
            yield Finding(name, about, text, code, tuple(explained), cause)
        for verdict in (each for each in failing if each not in explained):
            why = [f"{line.label} {line.text.partition(chr(10))[0]}" for line in reasons(verdict)[:2]]
            yield Finding(name, verdict.subject, "\n".join([headline(verdict), *why]), verdicts=(verdict,))
    for test in results.failed_tests:
        if test.subject is None:
            yield Finding(test.workload or "", test.name, _said(test))


def _causes(found: Iterable[Verdict]) -> list[Cause]:
    """Return each cause that its verdict names in full, once though several verdicts have it at other costs."""
    causes: dict[Cause, Cause] = {}
    for verdict in found:
        for cause in [each for each in verdict.reasons if isinstance(each, Cause)][:CAUSES_WITH_CODE]:
            causes.setdefault(cause.identity, cause)
    return list(causes.values())


def _said(test: TestResult) -> str:
    """Return what a failed test said, the last words first, and what it claims."""
    lines = [line for line in test.said.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]  # pytest marks the last words so
    return "\n".join([*(errors or lines or ["failed"]), *([f"claim: {test.claim}"] if test.claim else [])])


def verdicts(results: Results, *, failing: bool) -> list[Verdict]:
    """Return the verdicts that fail, or those that fail nothing and are worth a look."""
    failed = {(test.workload, test.subject) for test in results.failed_tests}  # strictness may have made them fail
    if failing:
        return [each for each in results.verdicts if each.status.fails or (each.workload, each.subject) in failed]
    worth_a_look = [each for each in results.verdicts if each.status in _NOT_FAILING]
    return [each for each in worth_a_look if (each.workload, each.subject) not in failed]


def baseline_commits(results: Sequence[Results]) -> str:
    """Return ``5d500c5 of 2026-11-19``: the commits that the baselines were recorded at; empty if nobody knows."""
    recorded = [workload.baseline.recorded for one in results for workload in one.workloads if workload.baseline]
    known = sorted({(each.at[:10], short_commit(each.commit)) for each in recorded if each is not None}, reverse=True)
    return ", ".join(f"{commit} of {day}" for day, commit in known)


def next_step(results: Sequence[Results]) -> tuple[str, str]:
    """Return what to do about the failures, as a few words and a command; empty if there is nothing to do."""
    failing = [verdict for one in results for verdict in verdicts(one, failing=True)]
    steps = [each for verdict in failing for each in verdict.reasons if isinstance(each, Next)]
    accepting = list(dict.fromkeys(each for each in steps if each.step is Step.ACCEPT))
    if len(accepting) == 1:
        return "If this is intended:", "; ".join(filter(None, (accepting[0].measure, accepting[0].command)))
    if accepting:
        return "To see all changes, and to accept them:", "kernelgauge review"
    lines = (line for verdict in failing for line in reasons(verdict) if line.label == "next")
    return next((("Next:", line.text) for line in lines), ("", ""))
