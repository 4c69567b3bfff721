"""Verdicts as lines; and what is wrong in some runs, each cause once over all workloads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import msgspec

from ..errors import printable
from ..judge import NUMERICS, WORST_FIRST, Status, Verdict
from ..judge import evidence as e
from ..results import Results, TestResult
from ..run import SourceLine
from .text import Line, counted, labelled, short_commit
from .words import BASELINE, cause_text, dearest_code, headline, place_text, reason_line, runs_text

CAUSES_WITH_CODE = 2  # of a verdict; each other one has one line
_MOST_LINES = 12  # of a failure in the terminal
# Kinds of reasons: what `brief` leaves out, and what says why a time is as it is.
_LEFT_OUT = (e.KernelMoved, e.CountMoved, e.TraceFile, e.BaselineFile, e.Next)
WHY = (e.Doubt, e.DispatcherOps, e.PartOfLatency)
_OF_BASELINES = (e.Advice.REPLACE, e.Advice.CALIBRATE)  # two revisions have none
_NOTABLE = (Status.UNDECIDED, Status.INCOMPARABLE, Status.IMPROVED)  # these fail nothing
_ORDER = {status.value: place for place, status in enumerate(WORST_FIRST)}
# ``transformers/models/llama/modeling_llama.py:12`` -> ``transformers/…/modeling_llama.py:12``
_FOLDERS = re.compile(r"((?:^|(?<=\s))[\w.-]+/)[\w./-]+(/[\w.-]+:\d+)")


# -- one verdict -----------------------------------------------------------------------------------


def reasons(verdict: Verdict) -> list[Line]:
    """Return the reasons of a verdict: two causes with their code, the others in a line each."""
    lines: list[Line] = []
    causes = 0
    for each in verdict.reasons:
        if isinstance(each, e.Cause):
            causes += 1
            text, details = cause_text(each)
            if causes > CAUSES_WITH_CODE:
                lines.append(Line("also", f"{text}  {dearest_code(each)}".rstrip()))
                continue
            lines.append(Line("cause", "\n".join([text, *details])))
            lines += [Line("code", "\n".join(code))] if (code := code_lines(each)) else []
        elif not isinstance(each, e.Next) or each in _steps(verdict):
            lines.append(reason_line(each, verdict.against or BASELINE))
    return lines


def _steps(verdict: Verdict) -> list[e.Next]:
    found = [each for each in verdict.reasons if isinstance(each, e.Next)]
    return [each for each in found if not (verdict.against and each.step in _OF_BASELINES)]


def code_lines(cause: e.Cause) -> list[str]:
    """Return the lines of code of a cause: the user's, then those that it leads to, with their
    modules.
    """
    shown: dict[SourceLine, str] = {}  # a line that leads to others may launch too
    for place in cause.places:
        outer = msgspec.structs.replace(place.line, inner=None)
        shown.setdefault(outer, "  ".join(filter(None, (str(outer), runs_text(place.outer_runs)))))
        shown[place.line.deepest] = place_text(place)
    return [
        *shown.values(),
        *([f"and {counted(cause.more_places, 'more line')}"] if cause.more_places else []),
    ]


def only_reasons(verdict: Verdict, *kinds: type, is_without: bool = False) -> Verdict:
    """Return a verdict with its reasons of these kinds; or `is_without` them, with all others."""
    return replace(
        verdict,
        reasons=tuple(each for each in verdict.reasons if isinstance(each, kinds) != is_without),
    )


def in_full(verdict: Verdict) -> str:
    """Return a verdict with all of its reasons."""
    return "\n".join([_title(verdict), *_rows(reasons(verdict))])


def also(verdict: Verdict) -> str:
    """Return a verdict that fails, or is a gain, below a worse one; with what its workload declares."""
    declared = [
        each
        for each in verdict.reasons
        if isinstance(each, e.Mismatch) or getattr(each, "step", None) is e.Advice.TOLERATE
    ]
    title = f"also {verdict.status.value}  {headline(verdict)}"
    return "\n".join([title, *_rows(map(reason_line, declared))])


def brief(
    verdict: Verdict, *, see: str = "", more: str = "in the report", width: int | None = None
) -> str:
    """Return a verdict in at most twelve lines, without the kernels one by one.

    Args:
        see: the test that has named its causes already.
        more: where the lines are that are left out.
        width: of a terminal, in columns: longer lines are cut. None: lines stay whole.
    """
    lines = [Line("cause", f"see {see}")] if see else []
    lines += reasons(
        only_reasons(verdict, *_LEFT_OUT, *([e.Cause] if see else []), is_without=True)
    )
    moved = ", ".join(line.text for line in reasons(only_reasons(verdict, e.CountMoved)))
    rows, counts, last, baseline = (
        _rows(each)
        for each in (
            lines,
            [Line("counts", moved)] if moved else [],
            reasons(only_reasons(verdict, e.Next)),
            reasons(only_reasons(verdict, e.BaselineFile)),
        )
    )
    rows = [_title(verdict), *rows]
    most = _MOST_LINES - len(counts) - len(baseline) - len(last)
    left_out = [f"  {'more':<8} {more}"] if len(rows) > most else []
    rows = [*rows[: most - len(left_out)], *counts, *left_out, *baseline]
    shown = rows if width is None else [_fitting(row, width) for row in rows]
    return "\n".join([*shown, *last])


def in_one_line(verdict: Verdict) -> str:
    """Return the headline of a verdict and its first cause."""
    cause = next(
        (line.text for line in reasons(only_reasons(verdict, e.Cause, e.Detail, *WHY))), ""
    )
    return printable(
        " ".join((f"{headline(verdict)}; {cause}" if cause else headline(verdict)).split())
    )


def with_words(results: Results) -> Results:
    """Return the results with the words of each verdict, for readers of the file."""

    def worded(verdict: Verdict) -> Verdict:
        return replace(verdict, said=tuple(in_full(verdict).split("\n")))

    workloads = (
        msgspec.structs.replace(each, verdicts=tuple(map(worded, each.verdicts)))
        for each in results.workloads
    )
    return msgspec.structs.replace(results, workloads=tuple(workloads))


def _title(verdict: Verdict) -> str:
    return printable(f"{verdict.workload}: {verdict.status.value}  {headline(verdict)}")


def _rows(lines: Iterable[Line]) -> list[str]:
    return [row for line in lines for row in labelled(line._replace(label=f"  {line.label}"))]


def _fitting(row: str, width: int) -> str:
    """Return a row that fits: the folders of a path go first, then the end."""
    if len(row) > width:
        row = _FOLDERS.sub(r"\1…\2", row, count=1)
    return row if len(row) <= width else f"{row[: width - 1].rstrip(' ,._')}…"


# -- all that is wrong -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What one workload fails with: a cause, however many verdicts have it; else a verdict, or a
    test without one.

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
    cause: e.Cause | None = None

    @cached_property
    def slower(self) -> Verdict | None:
        """Return the verdict on the time that became slower."""
        return next(
            (each for each in self.verdicts if each.status is Status.REGRESSED and each.change),
            None,
        )

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

    @property
    def rank(self) -> tuple[float, int]:
        """Return by what findings are ordered: the largest change first, then the worst status."""
        change = self.slower.change if self.slower is not None else None
        return -change.estimate if change is not None else 0.0, _ORDER.get(self.status, 1)


def change_text(verdict: Verdict | None) -> str:
    """Return ``+8.1 %``, or nothing where nothing was compared or judged."""
    if verdict is None or verdict.change is None or verdict.status is Status.NOT_JUDGED:
        return ""
    return f"{100 * verdict.change.estimate:+.1f} %"


def findings(results: Sequence[Results]) -> list[list[Finding]]:
    """Return the workloads of each cause of a failure, the largest change first, then the worst
    status.

    Causes with a line of code in common are one, and so are those of the same words.
    """
    clusters: list[tuple[set[object], list[Finding]]] = []
    for finding in (finding for one in results for finding in _findings(one)):
        # Many causes have the line in common at which a user calls the model: a line of the library
        # tells them apart.
        places = (
            [each.line.deepest for each in finding.cause.places]
            if finding.cause is not None
            else []
        )
        marks: set[object] = {(each.file, each.line or each.code) for each in places}
        marks = marks or {finding.cause.identity if finding.cause is not None else finding.text}
        known = next((cluster for cluster in clusters if cluster[0] & marks), None)
        if known is None:
            clusters.append((marks, [finding]))
        else:
            known[0].update(marks)
            known[1].append(finding)
    found = [sorted(cluster, key=lambda finding: finding.rank) for _, cluster in clusters]
    return sorted(found, key=lambda cluster: cluster[0].rank)


def _findings(results: Results) -> Iterator[Finding]:
    for name, group in groupby(failing_verdicts(results), key=lambda verdict: verdict.workload):
        failing = list(group)
        # Several verdicts have the same cause at other costs.
        causes: dict[e.Cause, e.Cause] = {}
        for verdict in failing:
            for cause in [each for each in verdict.reasons if isinstance(each, e.Cause)][
                :CAUSES_WITH_CODE
            ]:
                causes.setdefault(cause.identity, cause)
        if any(each.explains for each in causes.values()):  # other kernels follow from it
            causes = {
                key: each
                for key, each in causes.items()
                if each.explains or isinstance(each.change, e.HostCalls)
            }
        explained = [
            each for each in failing if any(isinstance(reason, e.Cause) for reason in each.reasons)
        ]
        about = ", ".join(verdict.subject for verdict in explained)
        for cause in causes.values():
            sentence, details = cause_text(cause)
            text, code = "\n".join([sentence, *details]), "\n".join(code_lines(cause))
            yield Finding(name, about, text, code, tuple(explained), cause)
        for verdict in (each for each in failing if each not in explained):
            why = [
                f"{line.label} {line.text.partition(chr(10))[0]}" for line in reasons(verdict)[:2]
            ]
            yield Finding(
                name, verdict.subject, "\n".join([headline(verdict), *why]), verdicts=(verdict,)
            )
    for test in results.failed_tests:
        if test.subject is None:
            yield Finding(test.workload or "", test.name, _last_words(test))


def _last_words(test: TestResult) -> str:
    """Return the errors of a failed test, or else all that it printed, and its claim."""
    lines = [line for line in test.said.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]  # pytest marks them so
    return "\n".join(
        [*(errors or lines or ["failed"]), *([f"claim: {test.claim}"] if test.claim else [])]
    )


def failing_verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts that fail, also those that strictness made fail."""
    failed = {(test.workload, test.subject) for test in results.failed_tests}
    return [
        each
        for each in results.verdicts
        if each.status.fails or (each.workload, each.subject) in failed
    ]


def notable_verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts that fail nothing and are worth a look."""
    failing = failing_verdicts(results)
    found = [each for each in results.verdicts if each.status in _NOTABLE or is_unconfirmed(each)]
    return [each for each in found if each not in failing]


def uncompared_verdicts(results: Sequence[Results]) -> list[Verdict]:
    """Return the verdicts on results that nothing was fit to be compared with."""
    return [
        each
        for one in results
        for each in one.verdicts
        if each.subject == NUMERICS and each.status is Status.NOT_JUDGED
    ]


def is_unconfirmed(verdict: Verdict) -> bool:
    """Whether a time was slower in this run, and in a fresh process of the same code was not."""
    return isinstance(getattr(verdict.conclusion, "doubt", None), e.FreshProcess)


def is_same_code(verdict: Verdict) -> bool:
    """Whether a time was not compared, since the code that took it is the same."""
    return isinstance(verdict.conclusion, e.NotMeasured) and verdict.conclusion.is_known


def baseline_commits(results: Sequence[Results]) -> str:
    """Return ``commit 5d500c5 of 2026-11-19``: what the baselines were recorded at; empty if nobody
    knows.
    """
    recorded = [
        workload.baseline.recorded
        for one in results
        for workload in one.workloads
        if workload.baseline
    ]
    known = sorted(
        {(each.at[:10], each.commit or "") for each in recorded if each is not None}, reverse=True
    )
    return ", ".join(
        f"commit {short_commit(commit)} of {day}" if commit else f"{day}, without a commit"
        for day, commit in known
    )


def next_step(results: Sequence[Results]) -> tuple[str, str]:
    """Return what to do about the failures, as a few words and a command; empty if there is nothing
    to do.
    """
    failing = [verdict for one in results for verdict in failing_verdicts(one)]
    steps = [each for verdict in failing for each in _steps(verdict)]
    accepting = list(dict.fromkeys(each for each in steps if each.step is e.Advice.ACCEPT))
    if len(accepting) == 1:
        return "If this is intended:", "; ".join(
            filter(None, (accepting[0].measure, accepting[0].command))
        )
    if accepting:
        places = accepting[0].command.partition(" -k ")[0].partition("kernelgauge accept")[2]
        return "To see all changes, and to accept them:", f"kernelgauge review{places}"
    return next(
        (("Next:", reason_line(each).text) for each in steps if each.step is not e.Advice.RECORD),
        ("", ""),
    )
