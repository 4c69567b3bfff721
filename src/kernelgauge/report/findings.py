"""What is wrong in some runs, each cause once over all workloads: what the page, the Markdown and annotations begin with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import NamedTuple

from ..judge import STRUCTURE, WORST_FIRST, Reason, RelativeChange, Status
from ..results import Results, TestResult, WorkloadResult
from ..run import Timer
from .wording import FAILED, change_of_one, counted, cut, short_commit, time_change

__all__ = ["Case", "Failure", "baseline_commits", "failures", "findings", "largest", "next_step"]

_TIMES = [label for timer in Timer for label in dict.fromkeys(timer.labels)]
_LONGEST_SUBJECTS = 80  # characters
_MOST_COMMITS = 2
_MOST_ACCEPTED = 8  # workloads that a command names
_SHOWN = (Status.UNDECIDED, Status.INCOMPARABLE, Status.IMPROVED)  # they fail no test
_EXPRESSIBLE = re.compile(r"[\w.:+/-]{1,100}")  # an id that -k takes as it is
_LINE = re.compile(r"\S+:\d+(?=  |$)", re.MULTILINE)  # "model.py:25" of "norm1  model.py:25  y = x.float()"
_COST = re.compile(r" \(([+-][0-9.]+ us)\)$", re.MULTILINE)
_LEFT = re.compile(r"\d+ more$")  # `judge.cause`: causes that a verdict does not name
_ORDER = {status.value: place for place, status in enumerate(WORST_FIRST)} | {FAILED: 1}


@dataclass(frozen=True)
class Failure:
    """What one workload fails with, however many verdicts and tests say it.

    Attributes:
        result: the workload; None for a test of none.
        status: of the verdict; ``FAILED`` for a test that ended without one.
        subjects: of the verdicts, or the names of the tests.
        fails: False for what is worth a look and fails no test.
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
        return cut(", ".join(self.subjects), _LONGEST_SUBJECTS)

    @property
    def regression(self) -> float:
        """Return how much slower it became, as a fraction; 0 where nobody knows."""
        return self.change.estimate if self.change is not None and self.status == Status.REGRESSED.value else 0.0


def failures(results: Results) -> list[Failure]:
    """Return what fails or is worth a look, and tests that failed without a verdict.

    The same of one workload is there once, and so is each reason: the next failures of the workload lack it.
    """
    merged: dict[tuple[str, str, str], Failure] = {}
    told: set[tuple[str, str, str]] = set()
    for new in _each_failure(results):
        key = (new.workload, new.status, new.headline)
        if old := merged.get(key):
            merged[key] = replace(old, subjects=tuple(dict.fromkeys(old.subjects + new.subjects)))
            continue
        reasons, is_told = [], False
        marks = [(new.workload, reason.label, _COST.sub("", reason.text)) for reason in new.reasons]
        for reason, mark in zip(new.reasons, marks, strict=True):
            is_told = is_told if reason.label == "code" else mark in told  # code belongs to the cause before it
            reasons += [] if is_told or reason.label == "trace" else [reason]  # a path of another machine
        merged[key] = replace(new, reasons=tuple(reasons))
        told.update(marks)
    return list(merged.values())


def _each_failure(results: Results) -> Iterator[Failure]:
    """Yield them with the GPU's time first, then the host's, and then what has reasons."""
    failed = {(test.workload, test.subject) for test in results.failed_tests}  # strictness may have made them fail
    by_id = {workload.id: workload for workload in results.workloads}
    for one in results.workloads:
        places = {subject: place for place, subject in enumerate(_TIMES)}
        for each in sorted(one.verdicts, key=lambda each: (places.get(each.subject, len(places)), not each.reasons)):
            fails = each.status.fails or (one.id, each.subject) in failed
            if fails or each.status in _SHOWN:
                status, subjects = each.status.value, (each.subject,)
                yield Failure(one, one.id, status, subjects, each.headline, each.reasons, each.change, fails=fails)
    for test in results.failed_tests:
        result = by_id.get(test.workload or "")
        if result is None or result.end_of(test) is None:
            yield _of_test(result, test)


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

    `failure`: the first of those that the cause explains, and `about` the subjects of all. `text`: a sentence, and names
    below. `code`: lines; empty if nobody knows. `cost`: what the cause adds to a call, like ``+93.3 us``; or empty.
    """

    failure: Failure
    about: str
    text: str
    code: str = ""
    cost: str = ""

    @property
    def sentence(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def change(self) -> str:
        """Return ``+8.1 %``, or ``+5 launches`` where no time became slower; nothing where neither is so."""
        run, baseline = (self.failure.result.run, self.failure.result.baseline) if self.failure.result else (None, None)
        if self.failure.regression:
            return change_of_one(self.failure.change)
        more = run.counts.launches - baseline.counts.launches if run is not None and baseline is not None else 0
        return f"{'+' if more > 0 else '-'}{counted(abs(more), 'launch')}" if more else ""

    @property
    def times(self) -> str:
        """Return ``205.1 -> 221.8 us`` of the time that became slower; nothing if none did."""
        result = self.failure.result if self.failure.regression else None
        verdict = result.verdict(self.failure.subjects[0]) if result is not None else None
        if verdict is None or verdict.before_us is None or verdict.after_us is None:
            return ""
        return time_change(verdict.before_us, verdict.after_us)


def findings(results: Sequence[Results]) -> list[list[Case]]:
    """Return the workloads of each cause of a failure, the worst status and the largest change first.

    Causes with a line of code in common are one, and so are those of the same words.
    """
    clusters: list[tuple[set[str], list[Case]]] = []
    for case in (case for one in results for case in _cases(one)):
        marks = set(_LINE.findall(case.code)) or {case.text}
        known = next((cluster for cluster in clusters if cluster[0] & marks), None)
        if known is None:
            clusters.append((marks, [case]))
        else:
            known[0].update(marks)
            known[1].append(case)
    return sorted((sorted(cases, key=_rank) for _, cases in clusters), key=lambda cases: _rank(cases[0]))


def _rank(case: Case) -> tuple[int, float]:
    return _ORDER[case.failure.status], -case.failure.regression


def _cases(results: Results) -> Iterator[Case]:
    """Yield each cause of a workload once, though its structure and all of its times have it."""
    found = sorted((each for each in failures(results) if each.fails), key=lambda each: each.workload)
    for _, group in groupby(found, key=lambda each: each.workload):
        ours = list(group)
        shared = [each for each in ours if {*each.subjects} <= {STRUCTURE, *_TIMES}]
        causes = [cause for each in shared for cause in _causes(each.reasons)]
        if causes:
            first = next((each for each in shared if each.regression), shared[0])
            about = ", ".join(dict.fromkeys(subject for each in shared for subject in each.subjects))
            yield from (Case(first, about, *cause) for cause in causes)
        for each in ours:
            if not causes or each not in shared:
                why = [f"{reason.label} {reason.text.partition(chr(10))[0]}" for reason in each.reasons]
                yield Case(each, each.about, "\n".join([each.headline, *why[:2]]))


def _causes(reasons: Sequence[Reason]) -> Iterator[tuple[str, str, str]]:
    """Yield the text of each cause without what it costs, its lines of code, and its cost."""
    for reason, following in zip_longest(reasons, reasons[1:]):
        first, newline, rest = reason.text.partition("\n")
        sentence, cost = _COST.sub("", first), _COST.search(first)
        if reason.label == "cause" and not _LEFT.match(sentence):
            code = following.text if following is not None and following.label == "code" else ""
            yield f"{sentence}{newline}{rest}", code, cost[1] if cost else ""


# -- the first lines --------------------------------------------------------------------------------------------------


def largest(found: Sequence[Sequence[Case]]) -> Case | None:
    """Return the case with the largest change of a time; None where no time became slower."""
    slower = [case for cases in found for case in cases if case.failure.regression]
    return max(slower, key=lambda case: case.failure.regression, default=None)


def baseline_commits(results: Sequence[Results]) -> str:
    """Return ``5d500c5 of 2026-11-19``: the commits that the baselines were recorded at; empty if nobody knows."""
    recorded = [workload.baseline.recorded for one in results for workload in one.workloads if workload.baseline]
    known = sorted({(each.at[:10], short_commit(each.commit)) for each in recorded if each is not None}, reverse=True)
    left = f" and {len(known) - _MOST_COMMITS} more" if len(known) > _MOST_COMMITS else ""
    return ", ".join(f"{commit} of {day}" for day, commit in known[:_MOST_COMMITS]) + left


def next_step(results: Sequence[Results]) -> tuple[str, str]:
    """Return what to do about the failures, as a few words and a command; empty if there is nothing to do."""
    failing = [each for one in results for each in failures(one) if each.fails]
    ids = dict.fromkeys(each.workload for each in failing if any(reason.label == "accept" for reason in each.reasons))
    if len(ids) > _MOST_ACCEPTED or not all(map(_EXPRESSIBLE.fullmatch, ids)):
        return "To see all changes:", "kernelgauge review"
    if ids:
        select = ["-k", " or ".join(ids)]
        accept = shlex.join(["kernelgauge", "accept", *select])
        found = [workload for one in results for workload in one.workloads if workload.id in ids]
        if all(workload.run is not None and workload.run.samples for workload in found):
            return "If this is intended:", accept
        suites = dict.fromkeys(workload.suite for workload in found)
        measure = shlex.join(["pytest", *suites, *select])
        return "If this is intended, measure its times and accept it:", f"{measure}; {accept}"
    advice = [reason.text for each in failing for reason in each.reasons if reason.label == "next"]
    return ("Next:", advice[0]) if advice else ("", "")
