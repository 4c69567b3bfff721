"""The whole page of the HTML report as plain data: what is wrong first, then everything."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..judge import Status
from ..results import Results, TestResult
from ..run import Timer
from .html_runs import RunView, environment, machine, moment, run_views
from .html_status import overall, rank, sentence
from .html_table import Group, TableRow, groups, table_rows
from .html_tests import TestView, clipped, lines_of, test_views
from .html_workload import WorkloadView, workload_view
from .terminal import conditions_text, describe, notes
from .wording import counted

__all__ = ["Page", "page"]

_MOST_NOTES = 8


@dataclass(frozen=True)
class Page:
    """All that the templates write. Texts are untrusted, and short enough to be shown."""

    title: str
    status: str
    sentence: str
    machines: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]
    wrong: tuple[WorkloadView, ...]
    failed_tests: tuple[TestView, ...]  # of no workload
    other_tests: tuple[TestView, ...]
    rows: tuple[TableRow, ...]
    axis: str  # what the ends of the intervals in the table mean; empty where there is none
    groups: tuple[Group, ...]
    not_run: tuple[str, ...]
    notes: tuple[str, ...]  # what is no failure, and wants something done
    conditions: tuple[str, ...]
    warnings: tuple[tuple[str, ...], ...]
    environment: tuple[tuple[str, tuple[str, ...]], ...]
    runs: tuple[RunView, ...]
    several_machines: bool


def page(results: Sequence[Results], *, title: str) -> Page:
    """`results`: the newest last. Of each kind of machine the newest is shown in full."""
    newest = {machine(one): one for one in results}
    shown = sorted(newest.values(), key=lambda one: -_index(results, one))
    entries = _entries(shown, newest=results[-1] if results else None)
    rows = table_rows(entries)
    views = [view for _, view in entries]
    loose = [test for one in shown for test in _of_no_workload(one)]
    word = overall(shown)
    return Page(
        title=clipped(title),
        status=word,
        sentence=sentence(word, views, shown),
        machines=tuple(
            clipped(describe(one.fingerprint), 400) if one.fingerprint else "nothing was measured" for one in shown
        ),
        facts=tuple(_facts(shown)),
        counts=tuple(sorted(Counter(view.status for view in views).items(), key=lambda pair: rank(pair[0]))),
        wrong=tuple(sorted((view for view in views if _is_wrong(view)), key=lambda view: rank(view.status))),
        failed_tests=tuple(test_views([t for t in loose if t.outcome == "failed"], (), unavailable=None)),
        other_tests=tuple(test_views([t for t in loose if t.outcome != "failed"], (), unavailable=None)),
        rows=rows,
        axis=next((row.change.limit for row in rows if row.change), ""),
        groups=tuple(groups(entries, several=len(shown) > 1)),
        not_run=tuple(clipped(line, 2000) for one in shown for line in notes(_unavailable(one))),
        notes=tuple(_to_do(views)),
        conditions=tuple(line for one in shown for line in _conditions(one)),
        warnings=tuple(lines_of(warning) for one in shown for warning in one.warnings),
        environment=environment(shown),
        runs=tuple(run_views(results)) if len(results) > 1 else (),
        several_machines=len(shown) > 1,
    )


def _of_no_workload(one: Results) -> list[TestResult]:
    """Tests that no section of a workload shows: none may be lost."""
    known = {workload.id for workload in one.workloads}
    return [test for test in one.tests if test.workload not in known]


def _index(results: Sequence[Results], wanted: Results) -> int:
    return next(index for index, one in enumerate(results) if one is wanted)


def _entries(shown: Sequence[Results], *, newest: Results | None) -> list[tuple[str, WorkloadView]]:
    """Machine and view of every workload. Links are made for the newest run only: beside it lies the report."""
    found: list[tuple[str, WorkloadView]] = []
    taken: set[str] = set()
    for one in shown:
        kind = machine(one)
        tests: dict[str | None, list[TestResult]] = {}
        for test in one.tests:
            tests.setdefault(test.workload, []).append(test)
        for source in one.workloads:
            view = workload_view(
                source,
                tests.get(source.id, ()),
                anchor=_anchor(source.id, taken),
                linked=one is newest,
            )
            found.append((kind, view))
    return found


def _anchor(identifier: str, taken: set[str]) -> str:
    """A name for links: the id itself wherever it is one that this project makes."""
    base = "w-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", identifier)[:100]
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}.{count}"
    taken.add(name)
    return name


def _is_wrong(view: WorkloadView) -> bool:
    """What a reader must look at: a failure, and what could not be decided."""
    failed = any(test.outcome == "failed" for test in view.tests)
    return failed or view.status in ("INVALID", "REGRESSED", "UNDECIDED", "INCOMPARABLE")


def _facts(shown: Sequence[Results]) -> Iterator[tuple[str, str]]:
    newest = shown[0] if shown else None
    if newest is None:
        return
    outcomes = Counter(test.outcome for one in shown for test in one.tests)
    yield "started", f"{moment(newest.started_at)} UTC, took {newest.seconds:.0f} s"
    yield "command", clipped(shlex.join(["pytest", *newest.arguments]), 300)
    said = ", ".join(f"{outcomes[name]} {name}" for name in ("failed", "passed", "skipped") if outcomes[name])
    if said:
        yield "tests", said
    yield "GPU", clipped(", ".join(dict.fromkeys(one.gpu or "not known" for one in shown)))
    yield "kernelgauge", clipped(newest.kernelgauge)


def _to_do(views: Sequence[WorkloadView]) -> Iterator[str]:
    """Baselines to record, and improvements to accept."""
    missing = Counter(
        clipped(verdict.headline, 400)
        for view in views
        for verdict in view.source.verdicts
        if verdict.status is Status.NO_BASELINE and verdict.subject == Timer.DEVICE.label
    )
    for headline, count in missing.most_common(_MOST_NOTES):
        yield f"{counted(count, 'workload')}: {headline}"
    better = [
        f"improved: {view.name}: {clipped(verdict.headline, 400)}"
        for view in views
        for verdict in view.source.verdicts
        if verdict.status is Status.IMPROVED
    ]
    yield from better[:_MOST_NOTES]
    if len(better) > _MOST_NOTES:
        yield f"and {len(better) - _MOST_NOTES} more improvements: see the table"


def _unavailable(one: Results) -> dict[str, str]:
    return {clipped(workload.id): workload.unavailable for workload in one.workloads if workload.unavailable}


def _conditions(one: Results) -> list[str]:
    lines = conditions_text([workload.run for workload in one.workloads if workload.run], one.not_watched)
    return [clipped(line, 600) for line in lines]
