"""Results for GitHub: a summary in Markdown for a pull request or a job, and annotations of a workflow."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..judge import Status, Verdict, worst
from ..results import Results, TestResult, WorkloadResult
from ..trace.kernel import configuration_text
from .page import Column, Grid, Section, markdown, unlinked
from .terminal import Row, rows
from .wording import conditions_text, counted, cut, describe, notes, shown_reasons

__all__ = ["github_annotations", "summary_markdown"]

_MOST_LINES = 40  # of one failure
_MOST_SUBJECTS = 3
_LONGEST_NOTE = 1000
_UNFOLDED = 12  # rows that are shown without a click
_FOR_WHAT_IS_LEFT_OUT = 400  # bytes of the line that says so, at most
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

# What is left out last comes first.
_MACHINE, _FAILED, _FAILURE, _REMARKABLE, _NOTE, _PASSED = range(6)
_KINDS = ("run", "failing workload", "failure", "other workload", "note", "passing workload")


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
    by_id = {workload.id: workload for workload in results.workloads}
    ends: list[tuple[TestResult, WorkloadResult | None, Verdict | None]] = []
    for test in results.tests:
        if test.outcome == "failed":
            workload = by_id.get(test.workload or "")
            ends.append((test, workload, workload.end_of(test) if workload is not None else None))
    for workload in results.workloads:
        failing = [verdict for verdict in workload.verdicts if verdict.status.fails]
        for verdict in sorted(failing, key=lambda each: (each.change is None, not each.reasons)):  # causes first
            yield _of_verdict(workload, verdict)
    for test, workload, end in ends:
        if workload is None or end is None:
            yield _of_test(test)
        elif not end.status.fails:  # strictness made it fail
            yield _of_verdict(workload, end)


def _of_verdict(workload: WorkloadResult, verdict: Verdict) -> _Failure:
    subjects = (cut(verdict.subject),)
    lines: list[str] = []
    for reason in shown_reasons(verdict):
        first, *rest = reason.text.split("\n")
        lines += [f"{reason.label}: {first}", *rest, *_configurations(workload, first)]
    return _Failure(workload.id, verdict.status.value, subjects, cut(verdict.headline), _fewer(lines))


def _of_test(test: TestResult) -> _Failure:
    said = test.said.strip("\n").splitlines()
    headline, *rest = _error_lines(test.said)[:1] or said or ["failed"]
    claim = [test.claim] if test.claim else []
    return _Failure(test.workload or "", "FAILED", (cut(test.name),), cut(headline), _fewer([*claim, *rest]))


def _error_lines(said: str) -> list[str]:
    """Return what pytest marks in a traceback: its last words."""
    return [line[1:].strip() for line in said.splitlines() if line.startswith("E ")]


def _configurations(workload: WorkloadResult, reason: str) -> list[str]:
    """Return how the kernel that a reason begins with was launched: grid, block, and what was tuned."""
    kernels = workload.run.kernels if workload.run is not None else ()
    named = (kernel.identity for kernel in kernels if reason.startswith(f"{kernel.identity.shown}  "))
    return [f"launched with {text}" for text in dict.fromkeys(map(configuration_text, named)) if text][:2]


def _fewer(lines: Sequence[str]) -> tuple[str, ...]:
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


@dataclass(frozen=True)
class _Block:
    """Rows that stand together, each with its kind (`_KINDS`), and what stands around them."""

    rows: tuple[tuple[int, str], ...]
    before: str = ""
    after: str = ""

    @property
    def size_around(self) -> int:
        """Return how many bytes it takes beside its rows."""
        return len((self.before + self.after).encode()) + 1


def summary_markdown(results: Sequence[Results], *, limit_bytes: int = 1_000_000) -> str:
    """Return GitHub's Markdown, at most `limit_bytes` long in UTF-8: what does not fit is left out, and counted.

    One line with the verdict; then of each run the machine, what failed with its reasons, all workloads, and notes. GitHub
    refuses more than 1 MiB for a step's summary, and more than 65536 characters in a comment.
    """
    verdict = f"{_verdict_line(results)}\n"
    blocks = [block for each in results for block in _blocks(each)]
    chosen = _chosen(blocks, limit_bytes - len(verdict.encode()) - _FOR_WHAT_IS_LEFT_OUT)
    left: Counter[int] = Counter()
    parts = [verdict]
    for number, block in enumerate(blocks):
        kept = [text for place, (_, text) in enumerate(block.rows) if (number, place) in chosen]
        left.update(kind for place, (kind, _) in enumerate(block.rows) if (number, place) not in chosen)
        if kept:
            parts.append(block.before + "".join(f"{text}\n" for text in kept) + block.after)
    if left:
        said = ", ".join(counted(left[kind], name) for kind, name in enumerate(_KINDS) if left[kind])
        parts.append(f"Left out, for the size of this page: {said}. All of it is in results.json.\n")
    return "\n".join(parts).encode()[: max(0, limit_bytes)].decode(errors="ignore")


def _chosen(blocks: Sequence[_Block], budget: int) -> set[tuple[int, int]]:
    """Return (block, row) of what fits. Where some of one kind do not, nothing that matters less is there."""
    wanted = sorted(
        (kind, number, place) for number, block in enumerate(blocks) for place, (kind, _) in enumerate(block.rows)
    )
    chosen: set[tuple[int, int]] = set()
    opened: set[int] = set()
    last = len(_KINDS)
    for kind, number, place in wanted:
        if kind > last:
            break
        around = 0 if number in opened else blocks[number].size_around
        cost = len(blocks[number].rows[place][1].encode()) + 1 + around
        if cost <= budget:
            budget -= cost
            opened.add(number)
            chosen.add((number, place))
        else:
            last = kind
    return chosen


def _verdict_line(results: Sequence[Results]) -> str:
    """Return the worst status and the counts: numbers and words of our own only."""
    statuses = Counter(workload.status for each in results for workload in each.workloads)
    outcomes = Counter(test.outcome for each in results for test in each.tests)
    ranked = _worst_first([status for status in statuses if status is not None])
    counts = [f"{statuses[status]} {status.value}" for status in ranked]
    counts += [f"{statuses[None]} not judged"] if statuses[None] else []
    ends = [f"{outcomes[outcome]} {outcome}" for outcome in ("failed", "skipped") if outcomes[outcome]]
    word = ranked[0].value if ranked else "NOTHING JUDGED"
    if not (ranked and ranked[0].fails):  # whatever failed is never called less
        cut_short = any(each.was_cut_short for each in results)
        failed = outcomes["failed"] or any(each.exit_status for each in results)
        word = "CUT SHORT" if cut_short else "FAILED" if failed else word
    said = [
        *([f"{len(results)} runs"] if len(results) != 1 else []),
        f"{counted(statuses.total(), 'workload')}" + (f" ({', '.join(counts)})" if counts else ""),
        f"{counted(outcomes.total(), 'test')}" + (f" ({', '.join(ends)})" if ends else ""),
    ]
    return f"**{word}**  {', '.join(said)}"


def _worst_first(statuses: Sequence[Status]) -> list[Status]:
    left, ranked = list(statuses), []
    while (status := worst(left)) is not None:
        ranked.append(status)
        left.remove(status)
    return ranked


def _blocks(results: Results) -> Iterator[_Block]:
    yield _Block(((_MACHINE, _inert(Section(lines=tuple(map(cut, _machine(results)))))),))
    failures = [(_FAILURE, _failure_cells(failure)) for failure in _failures(results)]
    if failures:
        yield _table("", _FAILURE_COLUMNS, failures)
    table = [(_kind(row), _cells(row)) for row in rows(results)]
    if table:
        title = counted(len(table), "workload") if len(table) > _UNFOLDED else ""
        yield _table(title, _COLUMNS, table)
    unavailable = {cut(each.id): cut(each.unavailable) for each in results.workloads if each.unavailable}
    lines = [*notes(unavailable), *(f"warning: {' '.join(warning.split())}" for warning in results.warnings)]
    yield _Block(tuple((_NOTE, f"- {_inert(Section(lines=(cut(line, _LONGEST_NOTE),)))}") for line in lines))


def _machine(results: Results) -> Iterator[str]:
    gpu = f", GPU {results.gpu}" if results.gpu else ""
    yield f"{describe(results.fingerprint)}{gpu}" if results.fingerprint else "nothing was measured"
    yield from conditions_text([each.run for each in results.workloads if each.run is not None], results.not_watched)
    run = f"{results.started_at}, {results.seconds:.0f} s, kernelgauge {results.kernelgauge}"
    yield f"{shlex.join(('pytest', *results.arguments))}  ({run})"


def _table(title: str, columns: tuple[Column, ...], cells: Sequence[tuple[int, tuple[str, ...]]]) -> _Block:
    """Return a table as a block. With a `title`, which is ours and no markup, it is folded."""
    grid = Grid(columns, tuple(each for _, each in cells))
    head, rule, *lines = _inert(Section(grid=grid)).split("\n")
    before, after = (f"<details>\n<summary>{title}</summary>\n\n", "\n</details>\n") if title else ("", "")
    found = tuple((kind, line) for (kind, _), line in zip(cells, lines, strict=True))
    return _Block(found, f"{before}{head}\n{rule}\n", after)


def _inert(section: Section) -> str:
    return unlinked(markdown([section])).removesuffix("\n")


def _failure_cells(failure: _Failure) -> tuple[str, ...]:
    # Markdown knows no indentation: a mark in its place.
    lines = (f"\u00b7 {line.strip()}" if line.startswith(" ") else line for line in failure.lines)
    why = "\n".join((failure.headline, *lines))
    return (cut(failure.workload), f"{failure.status}\n{failure.about}", why)


def _kind(row: Row) -> int:
    if row.status is not None and row.status.fails:
        return _FAILED
    return _PASSED if row.status is Status.PASS else _REMARKABLE


def _cells(row: Row) -> tuple[str, ...]:
    return (
        cut(row.workload),
        *row.cells,
        "-" if row.status is None else row.status.value,
        cut(", ".join(row.subjects)),
    )
