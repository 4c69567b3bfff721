"""Results for a pull request or a job's summary on GitHub: the verdict first, and all of it within a size."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..judge import Status, worst
from ..results import Results
from .failures import Failure, cut, failures
from .page import Column, Grid, Section, markdown, unlinked
from .rows import Row, rows
from .terminal import conditions_text, describe, notes
from .wording import change_of_one, counted, us_or_dash

__all__ = ["summary_markdown"]

_LONGEST_NOTE = 1000
_UNFOLDED = 12  # rows that are shown without a click
_FOR_WHAT_IS_LEFT_OUT = 400  # bytes of the line that says so, at most

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


@dataclass(frozen=True)
class _Block:
    """Rows that stand together, each with what it is (`_KINDS`), and what stands around them."""

    rows: tuple[tuple[int, str], ...]
    before: str = ""
    after: str = ""


def summary_markdown(results: Sequence[Results], *, limit_bytes: int = 1_000_000) -> str:
    """GitHub's Markdown, at most `limit_bytes` long in UTF-8: what does not fit is left out, and counted.

    One line with the verdict; then of each run the machine, what failed with its reasons, all workloads, and notes. GitHub
    refuses more than 1 MiB for a step's summary, and more than 65536 characters in a comment.
    """
    verdict = f"{_verdict_line(results)}\n"
    blocks = [block for each in results for block in _blocks(each)]
    budget = limit_bytes - len(verdict.encode()) - _FOR_WHAT_IS_LEFT_OUT
    chosen = _chosen(blocks, budget)
    left = Counter(
        kind
        for number, block in enumerate(blocks)
        for place, (kind, _) in enumerate(block.rows)
        if (number, place) not in chosen
    )
    parts = [verdict]
    for number, block in enumerate(blocks):
        kept = [text for place, (_, text) in enumerate(block.rows) if (number, place) in chosen]
        if kept:
            parts.append(block.before + "".join(f"{text}\n" for text in kept) + block.after)
    if left:
        said = ", ".join(counted(left[kind], name) for kind, name in enumerate(_KINDS) if left[kind])
        parts.append(f"Left out, for the size of this page: {said}. All of it is in results.json.\n")
    return "\n".join(parts).encode()[: max(0, limit_bytes)].decode(errors="ignore")


def _verdict_line(results: Sequence[Results]) -> str:
    """Numbers and words of our own only."""
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
    yield _Block(((_MACHINE, _inert([Section(lines=tuple(map(cut, _machine(results))))])),))
    failed = failures(results)
    if failed:
        yield _table("", _FAILURE_COLUMNS, [(_FAILURE, _failure_cells(failure)) for failure in failed])
    runs = [workload.run for workload in results.workloads if workload.run is not None]
    table = rows(runs, [verdict for workload in results.workloads for verdict in workload.verdicts])
    if table:
        title = counted(len(table), "workload") if len(table) > _UNFOLDED else ""
        yield _table(title, _COLUMNS, [(_kind(row), _cells(row)) for row in table])
    unavailable = {cut(each.id): cut(each.unavailable) for each in results.workloads if each.unavailable}
    told = [*notes(unavailable), *(f"warning: {' '.join(warning.split())}" for warning in results.warnings)]
    yield _Block(tuple((_NOTE, f"- {_inert([Section(lines=(cut(line, _LONGEST_NOTE),))])}") for line in told))


def _machine(results: Results) -> Iterator[str]:
    gpu = f", GPU {results.gpu}" if results.gpu else ""
    yield f"{describe(results.fingerprint)}{gpu}" if results.fingerprint else "nothing was measured"
    yield from conditions_text([each.run for each in results.workloads if each.run is not None], results.not_watched)
    yield f"{shlex.join(('pytest', *results.arguments))}  ({results.started_at}, {results.seconds:.0f} s, kernelgauge {results.kernelgauge})"


def _table(title: str, columns: tuple[Column, ...], cells: Sequence[tuple[int, tuple[str, ...]]]) -> _Block:
    """`title`: of a table that is folded; ours, and no markup."""
    grid = Grid(columns, tuple(each for _, each in cells))
    head, rule, *lines = _inert([Section(grid=grid)]).split("\n")
    before, after = (f"<details>\n<summary>{title}</summary>\n\n", "\n</details>\n") if title else ("", "")
    found = tuple((kind, line) for (kind, _), line in zip(cells, lines, strict=True))
    return _Block(found, f"{before}{head}\n{rule}\n", after)


def _inert(sections: Sequence[Section]) -> str:
    return unlinked(markdown(sections)).removesuffix("\n")


def _failure_cells(failure: Failure) -> tuple[str, ...]:
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
        "-" if row.launches is None else str(row.launches),
        us_or_dash(row.device_time_us),
        us_or_dash(row.baseline_us),
        change_of_one(row.change),
        "-" if row.status is None else row.status.value,
        cut(", ".join(row.subjects)),
    )


def _chosen(blocks: Sequence[_Block], budget: int) -> set[tuple[int, int]]:
    """(block, row) of what fits. Where some of one kind do not, nothing that matters less is there."""
    wanted = sorted(
        (kind, number, place) for number, block in enumerate(blocks) for place, (kind, _) in enumerate(block.rows)
    )
    chosen: set[tuple[int, int]] = set()
    opened: set[int] = set()
    last = len(_KINDS)
    for kind, number, place in wanted:
        if kind > last:
            break
        block = blocks[number]
        around = 0 if number in opened else len((block.before + block.after).encode()) + 1
        cost = len(block.rows[place][1].encode()) + 1 + around
        if cost <= budget:
            budget -= cost
            opened.add(number)
            chosen.add((number, place))
        else:
            last = kind
    return chosen
