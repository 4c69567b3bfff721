"""Results for GitHub: a summary in Markdown for a pull request or a job, and annotations of a workflow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from ..judge import Status
from ..results import Results
from .findings import Case, Failure, baseline_commits, failures, findings, largest, next_step
from .page import Column, Grid, Section, markdown
from .terminal import Row, rows
from .wording import (
    FAILED,
    conditions_text,
    counted,
    counts_text,
    cut,
    describe,
    device_name,
    notes,
    overall,
    short_commit,
)

__all__ = ["github_annotations", "summary_markdown"]

_MOST_LINES = 40  # of one failure
_LONGEST_NOTE = 1000
_QUIET = (Status.PASS, Status.NOT_JUDGED, Status.NO_BASELINE, None)
_UNFOLDED = 12  # rows that are shown without a click, beside those that need a look
_CUT_OFF = "\nThe rest does not fit into this page: results.json has all of it.\n"
_LONGEST_TITLE = 200

_REASON_COLUMNS = (Column("workload"), Column("verdict"), Column("what, and why"))


def _columns(results: Results) -> tuple[Column, ...]:
    numbers = ("launches", f"{device_name(results)} us", "baseline", "change")
    return (Column("workload"), Column("verdict"), *(Column(title, number=True) for title in numbers), Column("cause"))


def _lines(failure: Failure) -> list[str]:
    """Return the reasons of a failure: cut, those of one label together, and without very many lines."""
    lines: list[str] = []
    for label, reasons in groupby(failure.reasons, key=lambda reason: reason.label):
        texts = [reason.text for reason in reasons]
        first, *rest = (", ".join(texts) if label in ("counts", "kernels") else "\n".join(texts)).split("\n")
        lines += [f"{label}: {first}", *rest]
    shown = [cut(line) for line in lines if line.strip()]
    left = len(shown) - _MOST_LINES
    return [*shown[:_MOST_LINES], *([f"and {counted(left, 'more line')}"] if left > 0 else [])]


# -- annotations ------------------------------------------------------------------------------------------------------


def github_annotations(results: Sequence[Results]) -> list[str]:
    """Return workflow commands of GitHub Actions: an error for each failure, a warning for what is INVALID. Errors come first.

    GitHub shows 10 of each in a step.
    """
    found = sorted((each for one in results for each in failures(one) if each.fails), key=_level)
    return [
        _command(
            _level(failure),
            f"{failure.workload}: {failure.status}  {failure.about}",
            "\n".join((cut(failure.headline), *_lines(failure))),
        )
        for failure in found
    ]


def _level(failure: Failure) -> str:
    return "warning" if failure.status == Status.INVALID.value else "error"


_IN_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_A_PROPERTY = {**_IN_DATA, **str.maketrans({":": "%3A", ",": "%2C"})}


def _command(name: str, title: str, text: str) -> str:
    """Return `::name title=...::text`, escaped as GitHub's toolkit does it (packages/core/src/command.ts)."""
    return f"::{name} title={cut(title, _LONGEST_TITLE).translate(_IN_A_PROPERTY)}::{text.translate(_IN_DATA)}"


# -- the summary ------------------------------------------------------------------------------------------------------


def summary_markdown(results: Sequence[Results], *, limit_bytes: int = 1_000_000) -> str:
    """Return GitHub's Markdown, at most `limit_bytes` long in UTF-8: lines beyond are left out.

    One line with the verdict and the largest change; then of each run one row for each workload, the command that accepts
    the changes, and in folds the reasons, the machine and notes. GitHub refuses more than 1 MiB for a step's summary, and
    more than 65536 characters in a comment.
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
    """Return the worst status, the largest change and the counts: numbers and words of our own only."""
    worst = largest(findings(results))
    said = [
        *([f"{len(results)} runs"] if len(results) != 1 else []),
        *([f"at most {worst.change} {worst.failure.subjects[0]}"] if worst else []),
        *counts_text(results),
    ]
    return f"**{overall(results)}**  {', '.join(said)}"


def _blocks(results: Results) -> Iterator[str]:
    found = [each for each in failures(results) if each.fails]
    cases: dict[str, list[Case]] = {}
    for case in (case for found in findings([results]) for case in found):
        cases.setdefault(case.failure.workload, []).append(case)
    table = [(row, _cells(row, cases.pop(row.workload, []))) for row in rows(results)]
    failing = [cells for row, cells in table if cells[-1] or row.status not in _QUIET]
    failing += [(cut(name), FAILED, *"----", _cause(left)) for name, left in cases.items()]  # tests of no workload
    quiet = [cells for _, cells in table if cells not in failing]
    is_long = len(quiet) > _UNFOLDED
    shown = failing if is_long else [*failing, *quiet]
    if shown:
        yield markdown([Section(grid=Grid(_columns(results), tuple(shown)))])
    words, command = next_step([results])
    if command:
        yield f"{words}\n\n```sh\n{cut(command, _LONGEST_NOTE).replace('`', '')}\n```\n"
    if found:
        reasons = tuple((cut(each.workload), f"{each.status}\n{each.about}", _why(each)) for each in found)
        yield _folded("Reasons", markdown([Section(grid=Grid(_REASON_COLUMNS, reasons))]))
    if is_long:
        yield _folded(f"{len(quiet)} more workloads", markdown([Section(grid=Grid(_columns(results), tuple(quiet)))]))
    lines = [*notes(results), *(f"warning: {' '.join(warning.split())}" for warning in results.warnings)]
    if lines:
        yield "".join(f"- {markdown([Section(lines=(cut(line, _LONGEST_NOTE),))])}" for line in lines)
    yield _folded("Machine and command", markdown([Section(lines=tuple(map(cut, _machine(results))))]))


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n</details>\n"


def _machine(results: Results) -> Iterator[str]:
    gpu = f", GPU {results.gpu}" if results.gpu else ""
    yield f"{describe(results.fingerprint)}{gpu}" if results.fingerprint else "nothing was measured"
    yield from conditions_text(results)
    baselines = baseline_commits([results])
    yield f"commit {short_commit(results.commit)}" + (f", baselines of commit {baselines}" if baselines else "")
    run = f"{results.started_at}, {results.seconds:.0f} s, kernelgauge {results.kernelgauge}"
    yield f"{shlex.join(('pytest', *results.arguments))}  ({run})"


def _why(failure: Failure) -> str:
    # Markdown knows no indentation: a mark in its place.
    lines = (f"\u00b7 {line.strip()}" if line.startswith(" ") else line for line in _lines(failure))
    return "\n".join((cut(failure.headline), *lines))


def _cause(cases: Sequence[Case]) -> str:
    """Return the sentence and the first line of code of each cause, as lines."""
    lines: list[str] = []
    for case in cases:
        lines += [case.sentence + (f" ({case.cost})" if case.cost else ""), case.code.partition("\n")[0]]
    return "\n".join(cut(line) for line in lines if line)


def _cells(row: Row, cases: Sequence[Case]) -> tuple[str, ...]:
    status = row.verdict
    if cases and row.status in _QUIET:  # a test of it failed that no verdict is about
        status = cases[0].failure.status
    verdict = f"{status}\n{cut(row.about)}" if row.about else status
    return (cut(row.workload), verdict, *row.cells, _cause(cases))
