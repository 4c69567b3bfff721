"""`kernelgauge compare`: tell two revisions apart, on one machine in the same minutes. No baseline is read or written."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import KernelgaugeError, printable
from . import Commands, Exit, note, say, terminal

if TYPE_CHECKING:
    from ..judge import Verdict
    from ..results import Results, WorkloadResult
    from ..run import Run

__all__ = ["add_commands"]

_FEWEST = 3  # processes of each side: from then on their own spread says more than what is known of other machines
# A time is decided once this slowdown would have failed in 95 of 100 comparisons.
_WANTED = {"GPU time": 0.01, "end to end": 0.10, "host dispatch": 0.10}
_LOOKS = 3  # at most so many times the rule is asked; each has its share of the false alarms (Bonferroni)
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
    comparing.add_argument("--suite", default="perf", metavar="DIR", help="folder or file of the suite (default: perf)")
    comparing.add_argument(
        "-k", dest="expression", metavar="EXPRESSION", help="as in pytest, for example 'mlp and not eager'"
    )
    comparing.add_argument(
        "--processes", type=_processes, default=12, metavar="N", help="of each side, at most (default: 12)"
    )
    comparing.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no further processes after this"
    )
    comparing.add_argument("--base-python", default=sys.executable, metavar="PATH", help="the interpreter for BASE")
    comparing.set_defaults(command=_compare, passes_arguments_on=True)


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < _FEWEST:
        raise argparse.ArgumentTypeError(f"a whole number from {_FEWEST}, got {text!r}")
    return int(text)


@dataclass
class _Side:
    """One revision: where its files are, and what its processes measured."""

    folder: Path
    python: str
    results: list[Results] = field(default_factory=list)

    def runs(self, workload: str) -> list[Run]:
        """Return the runs of a workload, in order."""
        found = (each for results in self.results for each in results.workloads if each.id == workload)
        return [each.run for each in found if each.run is not None]


def _compare(options: argparse.Namespace) -> Exit:
    from ..baselines.calibration import run_process

    selected = ["-k", options.expression] if options.expression else []
    arguments = [options.suite, *selected, *options.pytest_arguments]
    with _worktrees(options) as (base, head):
        started, looks = time.monotonic(), _looks(options.processes)
        while True:
            done = len(head.results)
            # A B B A: what drifts meanwhile meets both alike.
            for side in (base, head) if done % 2 == 0 else (head, base):
                name = "BASE" if side is base else "HEAD"
                note(f"process {len(side.results) + 1} of {name}")
                side.results.append(
                    run_process(arguments, folder=side.folder, python=side.python, progress=note, may_fail=True)
                )
            is_last = done + 1 >= options.processes or time.monotonic() - started > options.budget
            if done + 1 in looks or is_last:
                results = _judged(base, head)
                if is_last or all(map(_is_decided, results.verdicts)):
                    break
    _report(results, processes=len(head.results))
    return Exit.NO if any(each.status.fails for each in results.verdicts) else Exit.YES


def _looks(processes: int) -> set[int]:
    """Return after how many processes the rule is asked: 3, 6 and 12, or as many as there are."""
    return {_FEWEST * 2**number for number in range(_LOOKS - 1)} | {processes}


def _is_decided(verdict: Verdict) -> bool:
    """Tell whether more processes would tell no more: it changed, or as small a change as is wanted would have shown."""
    from ..judge import Status

    if verdict.status not in (Status.PASS, Status.UNDECIDED) or verdict.change is None:
        return True
    sensitivity = verdict.change.sensitivity
    return sensitivity is not None and sensitivity <= _WANTED[verdict.subject]


# -- two working trees ------------------------------------------------------------------------------------------------------


@contextmanager
def _worktrees(options: argparse.Namespace) -> Iterator[tuple[_Side, _Side]]:
    """Check out the revisions. The working tree that the command is called in is not touched."""
    prefix = _git("rev-parse", "--show-prefix")
    commits = [_git("rev-parse", "--verify", f"{each}^{{commit}}") for each in (options.base, options.head) if each]
    with tempfile.TemporaryDirectory(prefix="kernelgauge-compare-") as folder:
        trees = [Path(folder) / name for name in ("base", "head")][: len(commits)]
        try:
            for tree, commit in zip(trees, commits, strict=True):
                _git("worktree", "add", "--detach", str(tree), commit)
            base = trees[0] / prefix
            head = trees[1] / prefix if options.head else Path.cwd()
            _copy_suite(head / options.suite, base / options.suite)
            yield _Side(base, options.base_python), _Side(head, sys.executable)
        finally:
            for tree in trees:
                shutil.rmtree(tree, ignore_errors=True)
            _git("worktree", "prune")


def _copy_suite(source: Path, target: Path) -> None:
    """Put the suite of HEAD into BASE: both sides are asked the same."""
    if not source.exists():
        raise KernelgaugeError(
            "HEAD has no such suite", got=str(source), next_command="kernelgauge compare BASE --suite DIR"
        )
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise KernelgaugeError(f"git {arguments[0]} failed", got=printable(done.stderr.strip()))
    return done.stdout.strip()


# -- one result -------------------------------------------------------------------------------------------------------------


def _judged(base: _Side, head: _Side) -> Results:
    """Return the results of HEAD's last process, with verdicts against all processes of BASE."""
    import msgspec

    last = head.results[-1]
    comparisons = _LOOKS * max(1, last.comparisons)
    workloads = tuple(_judged_workload(each, base, head, comparisons) for each in last.workloads)
    return msgspec.structs.replace(last, workloads=workloads, tests=(), exit_status=0)


def _judged_workload(workload: WorkloadResult, base: _Side, head: _Side, comparisons: int) -> WorkloadResult:
    import msgspec

    from ..judge import (
        MEASUREMENT,
        Status,
        Verdict,
        combined,
        compare,
        from_run,
        judge_structure,
        judge_time,
        not_measured,
    )
    from ..run import Sample, Timer

    before, after = _timed(base.runs(workload.id)), head.runs(workload.id)
    if workload.unavailable is not None:
        return workload
    if not before or not after:
        side = "HEAD" if before else "BASE"
        verdict = Verdict(Status.INVALID, workload.id, MEASUREMENT, f"{side} could not be measured")
        return msgspec.structs.replace(workload, verdicts=(verdict,))
    try:
        baseline = combined([from_run(run, suite=workload.suite) for run in before])
    except ValueError as error:
        verdict = Verdict(Status.INVALID, workload.id, MEASUREMENT, f"the processes of BASE differ: {error}")
        return msgspec.structs.replace(workload, verdicts=(verdict,))
    comparison = compare(baseline.fingerprint, after[-1].fingerprint)
    if not _timed(after):  # the structure is sound: it may say why
        shown = after[-1]
        verdicts = [judge_structure(shown, baseline, comparison), not_measured(Timer.DEVICE, shown)]
        return msgspec.structs.replace(workload, run=shown, baseline=baseline, verdicts=tuple(verdicts))
    alike = _most_alike(_timed(after))
    verdicts = [
        judge_structure(after[-1], baseline, comparison),
        *(
            judge_time(
                timer, alike[0], baseline, comparison, comparisons=comparisons, limits=workload.limits, more=alike[1:]
            )
            for timer in alike[0].samples
        ),
    ]
    samples = {timer: reduce(Sample.joined, (run.samples[timer] for run in alike)) for timer in alike[0].samples}
    shown = msgspec.structs.replace(alike[0], samples=samples)
    return msgspec.structs.replace(workload, run=shown, baseline=baseline, verdicts=tuple(verdicts))


def _timed(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose times were measured in full."""
    return [run for run in runs if run.incomplete is None]


def _most_alike(after: Sequence[Run]) -> list[Run]:
    """Return the runs in the launch configuration that most of them have: the autotuner chooses anew in each process."""
    from ..judge.baseline import likeness

    groups: list[list[Run]] = []
    for run in after:
        alike = (group for group in groups if likeness(group[0].kernels, run.kernels).same_configuration)
        group = next(alike, None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return max(groups, key=len)


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
