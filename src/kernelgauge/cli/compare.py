"""`kernelgauge compare`: tell two revisions apart, on one machine in the same minutes. No baseline is read or written."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import Commands, Exit, note, revisions, say, terminal

if TYPE_CHECKING:
    from ..results import Results, WorkloadResult
    from ..run import Run

__all__ = ["add_commands"]

_REPORTS = Path("reports", "compare")


def add_commands(commands: Commands) -> None:
    comparing = commands.add_parser(
        "compare",
        help="tell two revisions apart on this machine",
        description="Measure two revisions in turns, each in fresh processes and a git worktree of its own, with the suite of "
        "HEAD, and judge the second by the first. Arguments after -- go to pytest.",
        epilog="Exits with 1 if HEAD is slower or launches other kernels.",
        allow_abbrev=False,
    )
    comparing.add_argument("base", metavar="BASE", help="a revision of git, for example main or HEAD~1")
    comparing.add_argument("head", metavar="HEAD", nargs="?", help="another one (default: the working tree as it is)")
    comparing.add_argument(
        "-k", dest="expression", metavar="EXPRESSION", help="as in pytest, for example 'mlp and not eager'"
    )
    revisions.add_options(comparing, fewest=3, most=12, processes="of each side")
    comparing.add_argument("--base-python", default=sys.executable, metavar="PATH", help="the interpreter for BASE")
    comparing.add_argument(
        "--with",
        dest="packages",
        action="append",
        default=[],
        metavar="PACKAGE==VERSION",
        help="install this package for BASE alone, without what it depends on; several times for several packages",
    )
    comparing.set_defaults(command=_compare)


@dataclass
class _Side:
    """One revision: where its files are, and what its processes measured."""

    folder: Path
    python: str
    packages: Sequence[Path] = ()
    results: list[Results] = field(default_factory=list)

    def runs(self, workload: str) -> list[Run]:
        """Return the runs of a workload, in order."""
        found = (each for results in self.results for each in results.workloads if each.id == workload)
        return [each.run for each in found if each.run is not None]


def _compare(options: argparse.Namespace) -> Exit:
    from ..baselines.calibration import run_process
    from ..judge.two_sets import is_decided, looks

    selected = ["-k", options.expression] if options.expression else []
    arguments = [options.suite, *selected, *options.pytest_arguments]
    with revisions.until_terminated(), _sides(options) as (base, head):
        started, asked_after = time.monotonic(), looks(options.processes)
        while True:
            done = len(head.results)
            # A B B A: what drifts meanwhile meets both alike.
            for side in (base, head) if done % 2 == 0 else (head, base):
                name = "BASE" if side is base else "HEAD"
                note(f"process {len(side.results) + 1} of {name}")
                results = run_process(
                    arguments,
                    folder=side.folder,
                    packages=side.packages,
                    python=side.python,
                    progress=note,
                    may_fail=True,
                )
                side.results.append(results)
            is_last = done + 1 >= options.processes or time.monotonic() - started > options.budget
            if done + 1 in asked_after or is_last:
                results = _judged(base, head)
                if is_last or all(map(is_decided, results.verdicts)):
                    break
    _report(results, processes=len(head.results))
    return Exit.NO if any(each.status.fails for each in results.verdicts) else Exit.YES


@contextmanager
def _sides(options: argparse.Namespace) -> Iterator[tuple[_Side, _Side]]:
    """Check out the revisions, and install what BASE has of its own."""
    commits = [
        revisions.git("rev-parse", "--verify", f"{each}^{{commit}}") for each in (options.base, options.head) if each
    ]
    with ExitStack() as stack:
        trees = [stack.enter_context(revisions.worktree(commit)) for commit in commits]
        base, head = trees[0], trees[1] if options.head else Path.cwd()
        revisions.copy_suite(head / options.suite, base, options.suite, owner="HEAD")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelgauge-")))
        packages = [
            revisions.install(requirement, folder / str(place), python=options.base_python)
            for place, requirement in enumerate(options.packages)
        ]
        yield _Side(base, options.base_python, packages), _Side(head, sys.executable)


def _judged(base: _Side, head: _Side) -> Results:
    """Return the results of HEAD's last process, with verdicts against all processes of BASE."""
    import msgspec

    from ..judge import judge_sets
    from ..judge.two_sets import LOOKS

    def judged(workload: WorkloadResult) -> WorkloadResult:
        if workload.unavailable is not None:
            return workload
        name, suite, limits = workload.id, workload.suite, workload.limits
        found = judge_sets(name, base.runs(name), head.runs(name), comparisons=comparisons, suite=suite, limits=limits)
        run, baseline = found.run or workload.run, found.baseline or workload.baseline
        return msgspec.structs.replace(workload, run=run, baseline=baseline, verdicts=found.verdicts)

    last = head.results[-1]
    comparisons = LOOKS * max(1, last.comparisons)
    return msgspec.structs.replace(last, workloads=tuple(map(judged, last.workloads)), tests=(), exit_status=0)


def _report(results: Results, *, processes: int) -> None:
    """Print the table and every failing verdict; leave the pages and the results beside those of the suite."""
    from ..files import write_atomically
    from ..report.html import html
    from ..report.markdown import summary_markdown
    from ..report.terminal import summary
    from ..results import NAME, encode_results

    _REPORTS.mkdir(parents=True, exist_ok=True)
    for name, content in (
        (NAME, encode_results(results)),
        ("report.html", html([results]).encode()),
        ("report.md", summary_markdown([results]).encode()),
    ):
        write_atomically(_REPORTS / name, content)
    width, color = terminal()
    say("\n".join(block.text for block in summary(results, width=width, color=color, failures=False)))
    for verdict in (each for each in results.verdicts if each.status.fails):
        say(verdict.brief())
    say(f"{processes} processes of each side   report: {_REPORTS / 'report.html'}")
