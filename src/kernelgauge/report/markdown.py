"""Results as Markdown, for a pull request or the summary of a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..results import Results
from .findings import Finding, baseline_commits, findings, next_step, verdicts
from .page import Column, Grid, Section, fenced, markdown
from .wording import (
    conditions_text,
    counts_text,
    cut,
    describe,
    device_name,
    is_partial,
    notes,
    overall,
    rows,
    short_commit,
)
from .words import brief

_LONGEST_NOTE = 1000
_CUT_OFF = "Not all of it fits into this page: results.json has the rest."


def summary_markdown(results: Sequence[Results], *, limit_bytes: int = 1_000_000) -> str:
    """Return GitHub's Markdown, at most `limit_bytes` long in UTF-8: what does not fit is cut off.

    One line with the verdict and the largest change; then of each run one row for each workload, the command that accepts
    the changes, and in folds the failures, the machine and notes. GitHub refuses more than 1 MiB for a step's summary, and
    more than 65536 characters in a comment.
    """
    first = next((cases[0] for cases in findings(results)), None)
    said = [
        *([f"{len(results)} runs"] if len(results) != 1 else []),
        *([f"at most {first.change} {first.slower.subject}"] if first is not None and first.slower is not None else []),
        *counts_text(results),
    ]
    status = overall(results)
    doubt = "> [!WARNING]\n> " if is_partial(results) else ""  # GitHub shows it amber
    blocks = [f"{doubt}**{status}**  {', '.join(said)}\n", *(block for each in results for block in _blocks(each))]
    page = "\n".join(blocks)
    if len(page.encode()) <= limit_bytes:
        return page
    # At the top: what is folded and cut off ends with the page.
    page = "\n".join([*blocks[:1], f"{_CUT_OFF}\n", *blocks[1:]])
    return page.encode()[:limit_bytes].rpartition(b"\n")[0].decode() + "\n"


def _blocks(results: Results) -> Iterator[str]:
    found: dict[str, list[Finding]] = {}
    for finding in (finding for cases in findings([results]) for finding in cases):
        found.setdefault(finding.workload, []).append(finding)
    failing: list[tuple[str, ...]] = []
    quiet: list[tuple[str, ...]] = []
    for row in rows(results):
        causes = found.pop(row.result.id, [])
        worst = causes[0] if causes and row.is_quiet else row  # a test may have failed without a verdict
        cells = (cut(row.result.id), _lines(worst.status, worst.about), *row.cells, _causes(causes))
        (quiet if row.is_quiet and not causes else failing).append(cells)
    tests = [each for causes in found.values() for each in causes]  # of what was not measured
    failing += [(cut(each.workload or each.about), each.status, *"----", _causes([each])) for each in tests]
    titles = ("launches", f"{device_name(results)} us", "baseline", "change")
    numbers = [Column(title, number=True) for title in titles]
    columns = (Column("workload"), Column("verdict"), *numbers, Column("cause"))
    tables = [markdown([Section(grid=Grid(columns, tuple(each)))]) for each in (failing, quiet) if each]
    yield from tables[:1]
    words, command = next_step([results])
    if command:
        yield f"{words}\n\n{fenced(cut(command) + chr(10))}"
    if failures := "\n".join(brief(verdict) for verdict in verdicts(results, failing=True)):
        yield _folded("Failures", fenced("".join(f"{cut(line)}\n" for line in failures.split("\n"))))
    yield from (_folded(f"{len(quiet)} without a failure", table) for table in tables[1:])
    if lines := [*notes(results), *(f"warning: {' '.join(warning.split())}" for warning in results.warnings)]:
        yield "".join(f"- {markdown([Section(lines=(cut(line, _LONGEST_NOTE),))])}" for line in lines)
    yield _folded("Machine and command", markdown([Section(lines=tuple(map(cut, _machine(results))))]))


def _lines(*lines: str) -> str:
    """Return the lines of a cell, without those that are empty."""
    return "\n".join(cut(line) for line in lines if line)


def _causes(causes: Sequence[Finding]) -> str:
    """Return the sentence and the first line of code of each cause, as lines."""
    return _lines(*(line for each in causes for line in (each.headline, each.code.partition("\n")[0])))


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n</details>\n"


def _machine(results: Results) -> Iterator[str]:
    gpu = f", GPU {results.gpu}" if results.gpu else ""
    yield f"{describe(results.fingerprint)}{gpu}" if results.fingerprint else "nothing was measured"
    yield from conditions_text(results.runs, results.not_watched)
    baselines = baseline_commits([results])
    yield f"commit {short_commit(results.commit)}" + (f", baselines of commit {baselines}" if baselines else "")
    run = f"{results.started_at}, {results.seconds:.0f} s, kernelgauge {results.kernelgauge}"
    yield f"{shlex.join(('pytest', *results.arguments))}  ({run})"
