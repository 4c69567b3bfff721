"""`kernelgauge compare`: tell two revisions apart, on one machine in the same minutes. No baseline is read or written."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..baselines import calibration
from ..judge import judge_sets
from ..judge.two_sets import LOOKS, looks
from ..report.html import html
from ..report.markdown import summary_markdown
from ..report.terminal import summary
from ..results import NAME, Results, encode_results
from ..results.files import write_atomically
from ..run import Run, Timer
from . import Exit, note, revisions, say, terminal

__all__ = ["compare_revisions"]

_REPORTS = Path("reports", "compare")
_SHOWN = 5  # undecided workloads, after each look


@dataclass
class _Side:
    """One revision: where its files are, and what its processes measured."""

    name: str
    folder: Path
    python: str
    packages: Sequence[Path] = ()
    results: list[Results] = field(default_factory=list)

    def measure(self, arguments: Sequence[str], undecided: Mapping[str, Sequence[str]] | None) -> None:
        """Run one more process. `undecided`: the workloads that it must measure; None: all."""
        note(f"{self.name}: process {len(self.results) + 1}" + (" (undecided workloads)" if undecided else ""))
        results = calibration.run_process(
            [*arguments, *self._deselected(undecided)],
            folder=self.folder,
            packages=self.packages,
            python=self.python,
            progress=note,
            may_fail=True,
        )
        self.results.append(results)

    def _deselected(self, undecided: Mapping[str, Sequence[str]] | None) -> list[str]:
        """Return arguments that leave out the tests of decided workloads, and latencies, which ask for no more processes."""
        if undecided is None:
            return []
        tests = self.results[0].tests
        left_out = (each for each in tests if each.workload not in undecided or each.subject == Timer.END_TO_END.label)
        return [f"--deselect={each.node}" for each in left_out]

    def runs(self, workload: str) -> list[Run]:
        """Return the runs of a workload, in order."""
        found = (each for results in self.results for each in results.workloads if each.id == workload)
        return [each.run for each in found if each.run is not None]


def compare_revisions(options: argparse.Namespace) -> Exit:
    """Measure both sides in turns until every workload is decided. Print the table, and leave the pages."""
    selected = ["-k", options.expression] if options.expression else []
    arguments = [options.suite, *selected, *options.pytest_arguments]
    started, asked_after = time.monotonic(), looks(options.processes)
    undecided: Mapping[str, Sequence[str]] | None = None
    with revisions.until_terminated(), _sides(options) as (base, head):
        try:
            for done in range(1, options.processes + 1):
                # A B B A: what drifts meanwhile meets both alike.
                for side in (base, head) if done % 2 else (head, base):
                    side.measure(arguments, undecided)
                is_last = done == options.processes or time.monotonic() - started > options.budget
                if done in asked_after or is_last:
                    results, undecided = _judged(base, head)
                    note(_progress(done, results, undecided))
                    if is_last or not undecided:
                        break
        except KeyboardInterrupt:
            if not (base.results and head.results):
                raise
            _report(_judged(base, head)[0], processes=min(len(base.results), len(head.results)))
            return Exit.INTERRUPTED
    _report(results, processes=done)
    return Exit.NO if any(each.status.fails for each in results.verdicts) else Exit.YES


@contextmanager
def _sides(options: argparse.Namespace) -> Iterator[tuple[_Side, _Side]]:
    """Check out the revisions, and install what BASE has of its own."""
    commits = [revisions.commit(each) for each in (options.base, options.head) if each]
    names = " with ".join([options.base, *options.packages]), options.head or "the working tree"
    with ExitStack() as stack:
        trees = [stack.enter_context(revisions.worktree(commit)) for commit in commits]
        base, head = trees[0], trees[1] if options.head else Path.cwd()
        revisions.copy_suite(head / options.suite, base, options.suite, owner=names[1])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelgauge-")))
        packages = [
            revisions.install(requirement, folder / str(place), python=options.base_python)
            for place, requirement in enumerate(options.packages)
        ]
        yield _Side(names[0], base, options.base_python, packages), _Side(names[1], head, sys.executable)


def _judged(base: _Side, head: _Side) -> tuple[Results, dict[str, Sequence[str]]]:
    """Judge all processes of HEAD by those of BASE. Return results, and the undecided times by workload.

    A decided workload stays decided: its later processes did not measure it.
    """
    last = head.results[-1]
    comparisons = LOOKS * max(1, last.comparisons)
    workloads = {each.id: each for results in head.results for each in results.workloads}
    undecided: dict[str, Sequence[str]] = {}
    for name, workload in workloads.items():
        if workload.unavailable is not None:
            continue
        found = judge_sets(
            name,
            base.runs(name),
            head.runs(name),
            comparisons=comparisons,
            suite=workload.suite,
            limits=workload.limits,
            names=(base.name, head.name),
        )
        if found.undecided:
            undecided[name] = found.undecided
        run, baseline = found.run or workload.run, found.baseline or workload.baseline
        workloads[name] = msgspec.structs.replace(workload, run=run, baseline=baseline, verdicts=found.verdicts)
    return msgspec.structs.replace(last, workloads=tuple(workloads.values()), tests=(), exit_status=0), undecided


def _progress(done: int, results: Results, undecided: Mapping[str, Sequence[str]]) -> str:
    total = sum(each.unavailable is None for each in results.workloads)
    line = f"after process {done} of each side: {total - len(undecided)} of {total} workloads decided"
    if not undecided:
        return line
    names = [f"{name} ({', '.join(times)})" for name, times in undecided.items()]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{line}; undecided: {shown}"


def _report(results: Results, *, processes: int) -> None:
    """Print the table and every failing verdict; leave the pages and the results beside those of the suite."""
    _REPORTS.mkdir(parents=True, exist_ok=True)
    for name, content in (
        (NAME, encode_results(results)),
        ("report.html", html([results]).encode()),
        ("report.md", summary_markdown([results]).encode()),
    ):
        write_atomically(_REPORTS / name, content)
    say(summary(results, **terminal(), failures=False))
    for verdict in (each for each in results.verdicts if each.status.fails):
        say(verdict.brief())
    say(f"processes of each side: {processes}   report: {_REPORTS / 'report.html'}")
