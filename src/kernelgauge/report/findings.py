"""What is wrong in some runs, each cause once over all workloads: what the page, the Markdown and annotations begin with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..judge import STRUCTURE, WORST_FIRST, Reason, RelativeChange, Status, Verdict
from ..results import Results, TestResult, WorkloadResult
from ..run import Timer
from .wording import FAILED, change_of_one, counted, short_commit, time_change

__all__ = ["Case", "Failure", "Finding", "baseline_commits", "failures", "findings", "largest", "next_command"]

_BY_BASELINE = {STRUCTURE, *(timer.label for timer in Timer)}  # verdicts that share their causes
_MOST_SUBJECTS = 3
_MOST_COMMITS = 2
_MOST_ACCEPTED = 8  # workloads that a command names
_EXPRESSIBLE = re.compile(r"[\w.:+/-]{1,100}")  # an id that -k takes as it is
_LINE = re.compile(r"\S+:\d+(?=  |$)")  # "model.py:25" of "{norm1,norm2}  model.py:25  y = x.float()"
_COST = re.compile(r" \(([+-][0-9.]+ us)\)$", re.MULTILINE)
_LEFT = re.compile(r"\d+ more$")  # `judge.cause`: causes that a verdict does not name


@dataclass(frozen=True)
class Failure:
    """What one workload fails with, however many verdicts and tests say it.

    Attributes:
        result: the workload; None for a test of none.
        status: of the verdict; ``FAILED`` for a test that ended without one.
        subjects: of the verdicts, or the names of the tests.
        fails: False for a result that is inconclusive and fails no test.
    """

    result: WorkloadResult | None
    workload: str
    status: str
    subjects: tuple[str, ...]
    headline: str
    reasons: tuple[Reason, ...]
    change: RelativeChange | None = None
    fails: bool = True

    @property
    def about(self) -> str:
        left = len(self.subjects) - _MOST_SUBJECTS
        return ", ".join(self.subjects[:_MOST_SUBJECTS]) + (f" and {left} more" if left > 0 else "")

    @property
    def regression(self) -> float:
        """Return how much slower it became, as a fraction; 0 where nobody knows."""
        return self.change.estimate if self.change is not None and self.status == Status.REGRESSED.value else 0.0


def failures(results: Results) -> list[Failure]:
    """Return what fails or is inconclusive, and tests that failed without a verdict.

    The same of one workload is there once, and so is each reason: the next failures of the workload lack it.
    """
    merged: dict[tuple[str, str, str], Failure] = {}
    told: set[tuple[str, str, str]] = set()
    for new in _each_failure(results):
        key = (new.workload, new.status, new.headline)
        if key in merged:
            old = merged[key]
            merged[key] = replace(old, subjects=tuple(dict.fromkeys(old.subjects + new.subjects)))
            continue
        reasons, is_told = [], False
        marks = [(new.workload, reason.label, _COST.sub("", reason.text)) for reason in new.reasons]
        for reason, mark in zip(new.reasons, marks, strict=True):
            is_told = is_told if reason.label == "code" else mark in told  # code belongs to the cause before it
            reasons += [] if is_told else [reason]
        merged[key] = replace(new, reasons=tuple(reasons))
        told.update(marks)
    return list(merged.values())


def _each_failure(results: Results) -> Iterator[Failure]:
    failed = {(test.workload, test.subject) for test in results.failed_tests}  # strictness may have made them fail
    for workload in results.workloads:
        for verdict in sorted(workload.verdicts, key=_place):
            fails = verdict.status.fails or (workload.id, verdict.subject) in failed
            if fails or verdict.status in (Status.UNDECIDED, Status.INCOMPARABLE):
                yield _of_verdict(workload, verdict, fails=fails)
    by_id = {workload.id: workload for workload in results.workloads}
    for test in results.failed_tests:
        result = by_id.get(test.workload or "")
        if result is None or result.end_of(test) is None:
            yield _of_test(result, test)


def _place(verdict: Verdict) -> tuple[int, bool]:
    """Return where a verdict stands: the GPU's time, the others, and then what has reasons."""
    timers = [timer.label for timer in Timer]
    return (timers.index(verdict.subject) if verdict.subject in timers else len(timers), not verdict.reasons)


def _of_verdict(result: WorkloadResult, verdict: Verdict, *, fails: bool) -> Failure:
    reasons = tuple(
        reason for reason in verdict.reasons if reason.label != "trace"
    )  # a path of the machine that measured
    subjects = (verdict.subject,)
    return Failure(
        result, result.id, verdict.status.value, subjects, verdict.headline, reasons, verdict.change, fails=fails
    )


def _of_test(result: WorkloadResult | None, test: TestResult) -> Failure:
    said = [line for line in test.said.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in said if line.startswith("E ")]  # pytest marks the last words so
    headline, *rest = errors[:1] or said or ["failed"]
    reasons = [Reason("claim", test.claim)] if test.claim else []
    reasons += [Reason("said", "\n".join(rest))] if rest else []
    return Failure(result, test.workload or "", FAILED, (test.name,), headline, tuple(reasons))


# -- causes over workloads --------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A workload that has a cause.

    `failure`: the largest of those that the cause explains. `text`: its sentence, and names below. `cost`: what it adds to
    a call, like ``+93.3 us``; empty if nobody knows. `about`: subjects of all verdicts that it explains.
    """

    failure: Failure
    text: str
    code: str
    cost: str
    about: str

    @property
    def change(self) -> str:
        return change_of_one(self.failure.change) if self.failure.regression else ""

    @property
    def times(self) -> str:
        """Return ``205.1 -> 221.8 us`` of the time that became slower; nothing if none did."""
        result = self.failure.result if self.failure.regression else None
        verdict = result.verdict(self.failure.subjects[0]) if result is not None else None
        if verdict is None or verdict.before_us is None or verdict.after_us is None:
            return ""
        return time_change(verdict.before_us, verdict.after_us)

    @property
    def sentence(self) -> str:
        return self.text.partition("\n")[0]


@dataclass(frozen=True)
class Finding:
    """A cause and the workloads that have it, the largest change first."""

    cases: tuple[Case, ...]

    @property
    def first(self) -> Case:
        return self.cases[0]


def findings(results: Sequence[Results]) -> list[Finding]:
    """Return the causes of all that fails, the worst status and the largest change first.

    Causes with a line of code in common are one, and so are those of the same words.
    """
    clusters: list[tuple[set[str], list[Case]]] = []
    for case in (case for one in results for case in _cases([each for each in failures(one) if each.fails])):
        marks = set(_LINE.findall(case.code)) or {case.text}
        found = next((cluster for cluster in clusters if cluster[0] & marks), None)
        if found is None:
            clusters.append((marks, [case]))
        else:
            found[0].update(marks)
            found[1].append(case)
    return sorted(
        (Finding(tuple(sorted(cases, key=_rank))) for _, cases in clusters), key=lambda each: _rank(each.first)
    )


_ORDER = [status.value for status in WORST_FIRST]


def _rank(case: Case) -> tuple[int, float, int]:
    failure = case.failure
    place = _ORDER.index(failure.status) if failure.status in _ORDER else _ORDER.index(Status.REGRESSED.value)
    return (place, -failure.regression, -len(case.cost))


def _cases(found: Sequence[Failure]) -> Iterator[Case]:
    """Yield the causes of each workload once, though its structure and its times name them all."""
    for workload in dict.fromkeys(each.workload for each in found):
        ours = [each for each in found if each.workload == workload]
        by_baseline = [each for each in ours if set(each.subjects) <= _BY_BASELINE]
        causes: dict[str, tuple[str, str]] = {}
        for failure in by_baseline:
            for text, code, cost in _causes(failure.reasons):
                causes.setdefault(text, (code, cost))
        if causes:
            first = next(
                (each for each in by_baseline if each.regression), by_baseline[0]
            )  # the GPU's time before the host's
            about = ", ".join(dict.fromkeys(subject for each in by_baseline for subject in each.subjects))
            for text, (code, cost) in causes.items():
                yield Case(first, text, code, cost, about)
        for failure in ours:
            if not (causes and failure in by_baseline):
                yield Case(failure, "\n".join([failure.headline, *_details(failure)]), "", "", failure.about)


def _causes(reasons: Sequence[Reason]) -> Iterator[tuple[str, str, str]]:
    """Yield the text of each cause without what it costs, its lines of code, and its cost."""
    for place, reason in enumerate(reasons):
        first, *rest = reason.text.split("\n")
        cost = _COST.search(first)
        sentence = _COST.sub("", first)
        if reason.label == "cause" and not _LEFT.match(sentence):
            following = reasons[place + 1] if place + 1 < len(reasons) else None
            code = following.text if following is not None and following.label == "code" else ""
            yield "\n".join([sentence, *rest]), code, cost[1] if cost else ""


def _details(failure: Failure) -> list[str]:
    """Return why, in two lines, where no cause is known."""
    shown = [
        reason for reason in failure.reasons if reason.label not in ("baseline", "accept", "next", "record", "machine")
    ]
    return [f"{reason.label} {line}" for reason in shown for line in reason.text.split("\n")[:1]][:2]


# -- the first lines --------------------------------------------------------------------------------------------------


def largest(found: Sequence[Finding]) -> Case | None:
    """Return the case with the largest change of a time; None where no time became slower."""
    cases = [case for finding in found for case in finding.cases if case.failure.regression]
    return max(cases, key=lambda case: case.failure.regression, default=None)


def baseline_commits(results: Sequence[Results]) -> str:
    """Return ``5d500c5 of 2026-11-19``: the commits that the baselines were recorded at; empty if nobody knows."""
    recorded = [workload.baseline.recorded for one in results for workload in one.workloads if workload.baseline]
    known = sorted({(each.at[:10], short_commit(each.commit)) for each in recorded if each is not None}, reverse=True)
    left = f" and {counted(len(known) - _MOST_COMMITS, 'other')}" if len(known) > _MOST_COMMITS else ""
    return ", ".join(f"{commit} of {day}" for day, commit in known[:_MOST_COMMITS]) + left


def next_command(results: Sequence[Results]) -> str:
    """Return the command that stores what differs from the baselines; of very much, the one that lists it. Empty: nothing does."""
    ids = dict.fromkeys(
        failure.workload
        for one in results
        for failure in failures(one)
        if failure.fails and any(reason.label == "accept" for reason in failure.reasons)
    )
    if len(ids) > _MOST_ACCEPTED or not all(map(_EXPRESSIBLE.fullmatch, ids)):
        return "kernelgauge review"
    return shlex.join(["kernelgauge", "accept", "-k", " or ".join(ids)]) if ids else ""
