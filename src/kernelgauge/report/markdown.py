"""Results for GitHub: a summary in Markdown for a pull request or a job, and annotations of a workflow."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..judge import WORST_FIRST, Status, Verdict
from ..results import Results, TestResult, WorkloadResult
from ..trace.kernel import configuration_text
from .page import Column, Grid, Section, markdown
from .terminal import Row, rows
from .wording import conditions_text, counted, cut, describe, notes, overall, shown_reasons

__all__ = ["github_annotations", "summary_markdown"]

_MOST_LINES = 40  # of one failure
_MOST_SUBJECTS = 3
_LONGEST_NOTE = 1000
_UNFOLDED = 12  # rows that are shown without a click
_CUT_OFF = "\nThe rest does not fit into this page: results.json has all of it.\n"
# GitHub shows 10 errors and 10 warnings of a step; here 10 together.
_MOST_ANNOTATIONS = 10
_LONGEST_TITLE = 200

_FAILURE_COLUMNS = (Column("workload"), Column("verdict"), Column("what, and why"))
_COLUMNS = (
    Column("workload"),
    *(Column(title, number=True) for title in ("kernels", "device us", "stored us", "change")),
    Column("verdict"),
    Column("about"),
)


# -- failures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Failure:
    """What failed, in lines that can be shown. `subjects`: of the verdicts that say the same, or the names of tests."""

    workload: str
    status: str
    subjects: tuple[str, ...]
    headline: str
    lines: tuple[str, ...]

    @property
    def about(self) -> str:
        left = len(self.subjects) - _MOST_SUBJECTS
        return ", ".join(self.subjects[:_MOST_SUBJECTS]) + (f" and {left} more" if left > 0 else "")


def _failures(results: Results) -> list[_Failure]:
    """Return verdicts that fail, and tests that failed without one; what says the same of one workload once."""
    merged: dict[tuple[str, str, str], _Failure] = {}
    for new in _each_failure(results):
        key = (new.workload, new.status, new.headline)
        old = merged.get(key, new)
        subjects = tuple(dict.fromkeys(old.subjects + new.subjects))
        merged[key] = replace(new, subjects=subjects, lines=old.lines or new.lines)
    return list(merged.values())


def _each_failure(results: Results) -> Iterator[_Failure]:
    for workload in results.workloads:
        failing = [verdict for verdict in workload.verdicts if verdict.status.fails]
        for verdict in sorted(failing, key=lambda each: (each.change is None, not each.reasons)):  # causes first
            yield _of_verdict(workload, verdict)
    by_id = {workload.id: workload for workload in results.workloads}
    for test in results.failed_tests:
        tested = by_id.get(test.workload or "")
        end = tested.end_of(test) if tested is not None else None
        if tested is None or end is None:
            yield _of_test(test)
        elif not end.status.fails:  # strictness made it fail
            yield _of_verdict(tested, end)


def _of_verdict(workload: WorkloadResult, verdict: Verdict) -> _Failure:
    lines: list[str] = []
    for reason in shown_reasons(verdict):
        first, *rest = reason.text.split("\n")
        lines += [f"{reason.label}: {first}", *rest, *_configurations(workload, first)]
    return _Failure(
        workload.id, verdict.status.value, (cut(verdict.subject),), cut(verdict.headline), _shortened(lines)
    )


def _of_test(test: TestResult) -> _Failure:
    said = test.said.strip("\n").splitlines()
    errors = [line[1:].strip() for line in said if line.startswith("E ")]  # pytest marks the last words so
    headline, *rest = errors[:1] or said or ["failed"]
    lines = [test.claim, *rest]
    return _Failure(test.workload or "", "FAILED", (cut(test.name),), cut(headline), _shortened(lines))


def _configurations(workload: WorkloadResult, reason: str) -> list[str]:
    """Return how the kernel that a reason begins with was launched: grid, block, and what was tuned."""
    kernels = workload.run.kernels if workload.run is not None else ()
    named = (kernel.identity for kernel in kernels if reason.startswith(f"{kernel.identity.shown}  "))
    return [f"launched with {text}" for text in dict.fromkeys(map(configuration_text, named)) if text][:2]


def _shortened(lines: Sequence[str]) -> tuple[str, ...]:
    shown = [cut(line) for line in lines if line.strip()]
    left = len(shown) - _MOST_LINES
    return (*shown[:_MOST_LINES], *([f"and {counted(left, 'more line')}"] if left > 0 else []))


# -- annotations ------------------------------------------------------------------------------------------------------


def github_annotations(results: Sequence[Results]) -> list[str]:
    """Return workflow commands of GitHub Actions: an error for each failure, a warning for what is INVALID.

    At most 10, errors first; where there are more, the last one says how many.
    """
    found = sorted((failure for each in results for failure in _failures(each)), key=_level)
    shown = found if len(found) <= _MOST_ANNOTATIONS else found[: _MOST_ANNOTATIONS - 1]
    lines = [
        _command(
            _level(failure),
            f"{failure.workload}: {failure.status}  {failure.about}",
            "\n".join((failure.headline, *failure.lines)),
        )
        for failure in shown
    ]
    if len(found) > len(shown):
        more = f"{len(found) - len(shown)} more failures"
        lines.append(_command(_level(found[len(shown)]), f"kernelgauge: {more}", f"{more}: see the summary"))
    return lines


def _level(failure: _Failure) -> str:
    return "warning" if failure.status == Status.INVALID.value else "error"


_IN_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_A_PROPERTY = {**_IN_DATA, **str.maketrans({":": "%3A", ",": "%2C"})}


def _command(name: str, title: str, text: str) -> str:
    """Return `::name title=...::text`, escaped as GitHub's toolkit does it (packages/core/src/command.ts)."""
    return f"::{name} title={cut(title, _LONGEST_TITLE).translate(_IN_A_PROPERTY)}::{text.translate(_IN_DATA)}"


# -- the summary ------------------------------------------------------------------------------------------------------


def summary_markdown(results: Sequence[Results], *, limit_bytes: int = 1_000_000) -> str:
    """Return GitHub's Markdown, at most `limit_bytes` long in UTF-8: lines beyond are left out.

    One line with the verdict; then of each run the machine, what failed with its reasons, all workloads, and notes. GitHub
    refuses more than 1 MiB for a step's summary, and more than 65536 characters in a comment.
    """
    page = "\n".join([f"{_verdict_line(results)}\n", *(block for each in results for block in _blocks(each))])
    content = page.encode()
    if len(content) <= limit_bytes:
        return page
    closing = "\n</details>\n"
    kept = content[: max(0, limit_bytes - len(closing + _CUT_OFF))].rpartition(b"\n")[0].decode()
    if not kept:
        return content[: max(0, limit_bytes)].decode(errors="ignore")
    is_folded = kept.count("<details>") > kept.count("</details>")
    return f"{kept}\n{closing if is_folded else ''}{_CUT_OFF}"


def _verdict_line(results: Sequence[Results]) -> str:
    """Return the worst status and the counts: numbers and words of our own only."""
    statuses = Counter(workload.status for each in results for workload in each.workloads)
    outcomes = Counter(test.outcome for each in results for test in each.tests)
    ranked = [status for status in WORST_FIRST if statuses[status]]
    counts = [f"{statuses[status]} {status.value}" for status in ranked]
    counts += [f"{statuses[None]} not judged"] if statuses[None] else []
    ends = [f"{outcomes[outcome]} {outcome}" for outcome in ("failed", "skipped") if outcomes[outcome]]
    said = [
        *([f"{len(results)} runs"] if len(results) != 1 else []),
        f"{counted(statuses.total(), 'workload')}" + (f" ({', '.join(counts)})" if counts else ""),
        f"{counted(outcomes.total(), 'test')}" + (f" ({', '.join(ends)})" if ends else ""),
    ]
    return f"**{overall(results)}**  {', '.join(said)}"


def _blocks(results: Results) -> Iterator[str]:
    yield markdown([Section(lines=tuple(map(cut, _machine(results))))])
    failures = tuple(map(_failure_cells, _failures(results)))
    if failures:
        yield markdown([Section(grid=Grid(_FAILURE_COLUMNS, failures))])
    table = tuple(map(_cells, rows(results)))
    if table:
        grid = markdown([Section(grid=Grid(_COLUMNS, table))])
        title = f"<summary>{counted(len(table), 'workload')}</summary>"
        yield f"<details>\n{title}\n\n{grid}\n</details>\n" if len(table) > _UNFOLDED else grid
    lines = [*notes(results), *(f"warning: {' '.join(warning.split())}" for warning in results.warnings)]
    if lines:
        yield "".join(f"- {markdown([Section(lines=(cut(line, _LONGEST_NOTE),))])}" for line in lines)


def _machine(results: Results) -> Iterator[str]:
    gpu = f", GPU {results.gpu}" if results.gpu else ""
    yield f"{describe(results.fingerprint)}{gpu}" if results.fingerprint else "nothing was measured"
    yield from conditions_text(results)
    run = f"{results.started_at}, {results.seconds:.0f} s, kernelgauge {results.kernelgauge}"
    yield f"{shlex.join(('pytest', *results.arguments))}  ({run})"


def _failure_cells(failure: _Failure) -> tuple[str, ...]:
    # Markdown knows no indentation: a mark in its place.
    lines = (f"\u00b7 {line.strip()}" if line.startswith(" ") else line for line in failure.lines)
    why = "\n".join((failure.headline, *lines))
    return (cut(failure.workload), f"{failure.status}\n{failure.about}", why)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        cut(row.workload),
        *row.cells,
        "-" if row.status is None else row.status.value,
        cut(", ".join(row.subjects)),
    )
