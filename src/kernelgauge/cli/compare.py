"""`kernelgauge compare`: tell two revisions apart, on one machine in the same minutes. No baseline is read or written."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import msgspec

from ..baselines import calibration
from ..judge.two_sets import LOOKS, judge_sets, looks
from ..report.html import html
from ..report.markdown import summary_markdown
from ..report.terminal import summary
from ..results import NAME, Results, encode_results
from ..results.files import write_files
from ..run import Run, Timer
from . import Exit, note, revisions, say, terminal

_REPORTS = Path("reports", "compare")
_SHOWN = 5  # undecided workloads, after each look


@dataclass
class _Side:
    """One revision: how a process measures it, and what its processes measured."""

    name: str
    run_process: Callable[[Sequence[str]], Results]
    results: list[Results] = field(default_factory=list)

    def measure(self, arguments: Sequence[str]) -> None:
        """Run one more process."""
        note(f"{self.name}: process {len(self.results) + 1}")
        self.results.append(self.run_process(arguments))

    def runs(self, workload: str) -> list[Run]:
        """Return the runs of a workload, in order."""
        found = (each for results in self.results for each in results.workloads if each.id == workload)
        return [each.run for each in found if each.run is not None]


def compare_revisions(options: argparse.Namespace) -> Exit:
    """Measure both sides in turns until every workload is decided. Print the table, and leave the pages."""
    selected = ["-k", options.expression] if options.expression else []
    arguments = [options.suite, *selected, *options.pytest_arguments]
    decided: list[str] = []  # arguments that leave out what is decided
    started, asked_after = time.monotonic(), looks(options.processes)
    with _sides(options) as (base, head):
        try:
            for done in count(1):
                # A B B A: what drifts meanwhile meets both alike.
                for side in (base, head) if done % 2 else (head, base):
                    side.measure([*arguments, *decided])
                is_last = done >= options.processes or time.monotonic() - started > options.budget
                if done in asked_after or is_last:
                    results, undecided = _judged(base, head)
                    note(_progress(done, results, undecided))
                    if is_last or not undecided:
                        break
                    decided = _deselected(head.results[0], undecided)
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
        python, run = options.base_python, partial(calibration.run_process, progress=note, may_fail=True)
        packages = [revisions.install(each, folder / str(n), python) for n, each in enumerate(options.packages)]
        of_base = partial(run, folder=base, packages=packages, python=python)
        yield _Side(names[0], of_base), _Side(names[1], partial(run, folder=head))


def _judged(base: _Side, head: _Side) -> tuple[Results, dict[str, Sequence[str]]]:
    """Judge all processes of HEAD by those of BASE. Return results, and the undecided times by workload.

    A decided workload stays decided: its later processes did not measure it.
    """
    last = head.results[-1]
    comparisons, names = LOOKS * max(1, last.comparisons), (base.name, head.name)
    workloads = {each.id: each for results in head.results for each in results.workloads}
    undecided: dict[str, Sequence[str]] = {}
    for name, workload in workloads.items():
        if workload.unavailable is not None:
            continue
        sides, limits = (base.runs(name), head.runs(name)), workload.limits
        found = judge_sets(name, *sides, comparisons=comparisons, limits=limits, names=names)
        if found.undecided:
            undecided[name] = found.undecided
        run, baseline = found.run or workload.run, found.baseline or workload.baseline
        workloads[name] = msgspec.structs.replace(workload, run=run, baseline=baseline, verdicts=found.verdicts)
    return msgspec.structs.replace(last, workloads=tuple(workloads.values()), tests=(), exit_status=0), undecided


def _deselected(results: Results, undecided: dict[str, Sequence[str]]) -> list[str]:
    """Return arguments that leave out the tests of decided workloads, and latencies, which ask for no more processes."""
    latency = Timer.END_TO_END.label
    left_out = (each for each in results.tests if each.workload not in undecided or each.subject == latency)
    return [f"--deselect={each.node}" for each in left_out]


def _progress(done: int, results: Results, undecided: dict[str, Sequence[str]]) -> str:
    total = sum(each.unavailable is None for each in results.workloads)
    line = f"after process {done} of each side: {total - len(undecided)} of {total} workloads decided"
    names = [f"{name} ({', '.join(times)})" for name, times in undecided.items()]
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return f"{line}; undecided: {', '.join([*names[:_SHOWN], *more])}" if names else line


def _report(results: Results, *, processes: int) -> None:
    """Print the table and every failing verdict; leave the pages and the results beside those of the suite."""
    page, text = html([results]).encode(), summary_markdown([results]).encode()
    files = {NAME: encode_results(results), "report.html": page, "report.md": text}
    write_files({_REPORTS / name: content for name, content in files.items()})
    say(summary(results, **terminal(), failures=False))
    for verdict in (each for each in results.verdicts if each.status.fails):
        say(verdict.brief())
    say(f"processes of each side: {processes}   report: {_REPORTS / 'report.html'}")
