"""`kernelgauge compare`: tell two revisions apart, without a baseline."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import shorten

import msgspec

from .. import processes
from ..errors import MeasurementError
from ..judge import Status
from ..judge.evidence import Detail, Reason
from ..judge.revisions import LOOKS, JudgedSet, judge_sets, looks, pair_steps
from ..report.findings import brief, is_same_code, with_words
from ..report.html import html
from ..report.summary import error_commands, summary, summary_markdown
from ..report.text import counted
from ..report.words import headline
from ..results import NAME, Results, WorkloadResult, checked_out, encode_results, project_of
from ..results.files import write_files
from ..run import Run, Timer
from . import Exit, note, say, say_page

_REPORTS = Path("reports", "compare")
_INTERRUPTED = 2  # exit status of pytest
_CHANGED = "--perf-changed"
_FAR_MORE = 2  # times as many processes as there may be: they decide nothing
_SHOWN_CHARACTERS = 300  # of a line about undecided workloads


@dataclass
class _Side:
    """One revision: how a process measures it, and what its processes measured."""

    name: str
    run_process: Callable[..., Results]  # of pytest, with these arguments
    results: list[Results] = field(default_factory=list)

    def runs(self, workload: str) -> list[Run]:
        return [run for results in self.results for run in results.runs if run.workload == workload]

    def failures(self, workload: str) -> Iterator[Reason]:
        """Yield why processes have no run of a workload."""
        for each in (each for results in self.results for each in results.workloads):
            if each.id == workload and each.run is None:
                for verdict in each.verdicts:
                    yield from (Detail("why", headline(verdict)), *verdict.reasons)
                if each.unavailable:
                    yield Detail("why", each.unavailable)


def compare_revisions(options: argparse.Namespace) -> Exit:
    """Measure both sides in turns until every workload is decided.

    Print the table, and leave the pages.
    """
    with _sides(options) as sides:
        status = _INTERRUPTED
        try:
            _measure(*sides, options)
            status = 0
        finally:  # an interruption loses no verdict
            if all(side.results for side in sides):
                results = _judged(*sides, keeps_times=_keeps_times(options))[0]
                results = msgspec.structs.replace(results, exit_status=status)
                _report(results, processes=min(len(side.results) for side in sides))
            elif status:
                note("cut short before both sides were measured: there are no verdicts")
    if not results.verdicts:
        say(f"nothing to compare: no workload ran in {sides[0].name}, and none in {sides[1].name}")
        return Exit.NO
    return Exit.NO if any(each.status.fails for each in results.verdicts) else Exit.YES


@contextmanager
def _sides(options: argparse.Namespace) -> Iterator[tuple[_Side, _Side]]:
    """Check out the revisions, and install what BASE has of its own."""
    commits = [processes.commit(each) for each in (options.base, options.head) if each]
    names = " with ".join([options.base, *options.packages]), options.head or "the working tree"
    if names[0] == names[1]:
        names = f"{names[0]} (BASE)", f"{names[1]} (HEAD)"
    with ExitStack() as stack:
        trees = [stack.enter_context(processes.worktree(commit)) for commit in commits]
        base, head = trees[0], trees[1] if options.head else Path.cwd()
        processes.copy_suite(head / options.suite, base, options.suite, owner=names[1])
        folder = stack.enter_context(processes.own_folder())
        python, run = options.base_python, partial(processes.run_process, may_fail=True)
        packages = [
            processes.install(each, folder / str(n), python)
            for n, each in enumerate(options.packages)
        ]
        of_base = partial(run, folder=base, packages=packages, python=python)
        yield _Side(names[0], of_base), _Side(names[1], partial(run, folder=head))


def _measure(base: _Side, head: _Side, options: argparse.Namespace) -> None:
    """Run processes of both sides until every workload is decided, or `--processes` or `--budget`
    ends it.
    """
    selected = ["-k", options.expression] if options.expression else []
    arguments = [options.suite, *selected, *options.pytest_arguments]
    deselected: list[str] = []  # arguments that leave out the tests of decided workloads
    started, most, chance = time.monotonic(), max(1, options.processes), random.Random()
    progress = processes.Progress(2 * most, budget_s=options.budget)
    is_over_budget, hopeless = False, list[str]()
    keeps_times = _keeps_times(options)
    for done in range(1, most + 1):
        # what drifts meanwhile meets both alike, and no order is known
        for side in chance.sample((base, head), 2):
            if is_over_budget and done > 1:
                break
            progress.begin(f"{side.name}: process {done} of at most {most}")
            run = partial(side.run_process, [*arguments, *deselected], progress)
            try:
                side.results.append(run(patience_s=progress.patience_s))
            except MeasurementError as error:
                error.what = f"{side.name}: {error.what}"
                raise
            is_over_budget = time.monotonic() - started > options.budget
        for side in (base, head):
            del side.results[min(len(base.results), len(head.results)) :]  # half a pair
        base.results[done - 1 :] = map(
            _with_ids_of, base.results[done - 1 :], head.results[done - 1 :]
        )
        # Structure alone is exact; without a run, more processes would fail as well.
        is_timed = any(
            run.is_timed for side in (base, head) for each in side.results for run in each.runs
        )
        is_last = is_over_budget or not is_timed or not head.results[0].runs
        is_look = done in looks(options.processes) or is_last
        if not (is_look or done == 1):
            continue
        results, undecided = _judged(base, head, keeps_times=keeps_times)
        hopeless = _note_noise(undecided, most, hopeless)
        if is_look or keeps_times:
            there = [each for each in results.workloads if each.unavailable is None]
            # before the first look, only the same code is decided
            left = [
                each.id
                for each in there
                if (each.id in undecided if is_look else not any(map(is_same_code, each.verdicts)))
            ]
            named = {name: undecided[name] for name in left if name in undecided}
            _note_look(named, len(there), len(left), processes=len(head.results))
            left = [each for each in left if not (is_look and each in hopeless)]
            if is_last or not left:
                break
            # A latency asks for no more processes. A test that makes its workload has all of its
            # times.
            deselected = [
                f"--deselect={each.node}"
                for each in head.results[0].tests
                if each.workload not in left
                or (
                    is_look
                    and each.subject == Timer.END_TO_END.label
                    and each.node.endswith(f"[{each.workload}]")
                )
            ]


def _keeps_times(options: argparse.Namespace) -> bool:
    """Return whether the same code need not be timed: nobody can tell that of another package."""
    return _CHANGED in options.pytest_arguments and not options.packages


def _note_noise(undecided: Mapping[str, JudgedSet], most: int, known: Collection[str]) -> list[str]:
    """Return the workloads that so many processes will not decide, and say so of those that are not
    `known`.
    """
    needed = {
        name: each.needed for name, each in undecided.items() if each.needed > _FAR_MORE * most
    }
    if needed.keys() - set(known):
        note(
            f"this host is too noisy to decide {counted(len(needed), 'workload')}: that takes "
            f"{min(needed.values())} processes of each side or more; compare on a quiet machine"
        )
    return list(needed)


def _note_look(
    undecided: Mapping[str, JudgedSet], total: int, left: int, *, processes: int
) -> None:
    names = ", ".join(f"{name} ({', '.join(it.undecided)})" for name, it in undecided.items())
    line = f"after process {processes} of each side: {total - left} of {total} workloads decided"
    line += f"; undecided: {names}" if names else ""
    note(shorten(line, _SHOWN_CHARACTERS, placeholder=" …"))


def _with_ids_of(base: Results, head: Results) -> Results:
    """Return results of BASE in which each test has the workload that it has in HEAD.

    An id says no more than tells a test file from the others of its tree: BASE may have others.
    """
    ids = {each.node: each.workload for each in head.tests}
    moved = {each.workload: ids.get(each.node) or each.workload for each in base.tests}

    def renamed(each: WorkloadResult) -> WorkloadResult:
        name = moved.get(each.id) or each.id
        run = each.run and msgspec.structs.replace(each.run, workload=name)
        return msgspec.structs.replace(each, id=name, run=run)

    return msgspec.structs.replace(base, workloads=tuple(map(renamed, base.workloads)))


def _judged(base: _Side, head: _Side, *, keeps_times: bool) -> tuple[Results, dict[str, JudgedSet]]:
    """Judge all processes of HEAD by those of BASE. Return results, and the undecided workloads.

    A decided workload stays decided: its later processes did not measure it. What ran in BASE alone
    fails, and so does all if nothing ran in both. `keeps_times`: passed on to `judge_sets`.
    """
    last = head.results[-1]
    # later processes leave out the tests that are decided
    times = max(1, *(each.comparisons for each in head.results))
    comparisons = LOOKS * times
    workloads = {
        each.id: each
        for side in (base, head)
        for results in side.results
        for each in results.workloads
        if side is head or each.run is not None
    }
    is_nothing = not any(base.runs(name) and head.runs(name) for name in workloads)
    steps = {name: pair_steps(base.runs(name), head.runs(name)) for name in workloads}
    undecided: dict[str, JudgedSet] = {}
    for name, workload in workloads.items():
        if workload.unavailable is not None and not base.runs(name):
            continue
        found = judge_sets(
            name,
            base.runs(name),
            head.runs(name),
            comparisons=comparisons,
            limits=workload.limits,
            names=(base.name, head.name),
            beside=[each for other, each in steps.items() if other != name],
            failures=(list(base.failures(name)), list(head.failures(name))),
            may_be_new=not is_nothing,
            keeps_times=keeps_times,
        )
        if found.undecided:
            undecided[name] = found
        run, baseline = found.run or workload.run, found.baseline or workload.baseline
        # Its process left its traces in a folder that is gone.
        workloads[name] = msgspec.structs.replace(
            workload, run=run, baseline=baseline, verdicts=found.verdicts, trace=None
        )
    return msgspec.structs.replace(last, workloads=tuple(workloads.values()), tests=()), undecided


def _report(results: Results, *, processes: int) -> None:
    """Print the table and every verdict that needs a look; leave the pages and the results beside
    those of the suite.
    """
    say_page(summary(results), is_dense=True)
    for verdict in results.verdicts:
        if verdict.status.fails or verdict.status is Status.NO_BASELINE:
            say(brief(verdict))
    here = Path.cwd()
    for line in error_commands(results, checked_out(here, project_of(here))):
        say(line)
    page, text = html([results]).encode(), summary_markdown([results]).encode()
    files = {NAME: encode_results(with_words(results)), "report.html": page, "report.md": text}
    files[".gitignore"] = b"*\n"
    write_files({_REPORTS / name: content for name, content in files.items()})
    if results.was_cut_short:
        say("CUT SHORT: more processes might have changed a verdict, or decided a time")
    say(f"processes of each side: {processes}   report: {_REPORTS / 'report.html'}")
