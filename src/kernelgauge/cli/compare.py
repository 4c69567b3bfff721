"""`kernelgauge compare` and `judge`: tell two revisions apart, or a candidate from its reference. They need no baseline."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import msgspec

from .. import processes
from ..errors import NO_TIMES, CandidateRefused, KernelgaugeError, MeasurementError, printable
from ..judge import MEASUREMENT, Status, Verdict
from ..judge.baseline import from_run
from ..judge.evidence import Detail, NothingToCompare, Reason
from ..judge.revisions import LOOKS, decide_contest, judge_sets, looks, over_cases
from ..judge.structure import judge_structure
from ..report.findings import brief, reasons, with_words
from ..report.html import html
from ..report.summary import summary, summary_markdown
from ..report.words import headline
from ..results import NAME, Results, encode_results
from ..results.files import write_files
from ..run import Run, Timer
from ..trace.kernel import resources_of
from . import Exit, note, say, terminal

if TYPE_CHECKING:
    from ..judge.timing import Decision
    from ..measure.contest import Contest

_REPORTS = Path("reports", "compare")
_SHOWN_CHARACTERS = 300  # of a line about undecided workloads


@dataclass
class _Side:
    """One revision: how a process measures it, and what its processes measured."""

    name: str
    run_process: Callable[[Sequence[str], processes.Progress], Results]  # of pytest, with these arguments
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
    """Measure both sides in turns until every workload is decided. Print the table, and leave the pages."""
    with _sides(options) as sides:
        try:
            _measure(*sides, options)
        finally:  # an interruption loses no verdict
            if all(side.results for side in sides):
                results, _ = _judged(*sides)
                _report(results, processes=min(len(side.results) for side in sides))
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
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelgauge-")))
        python, run = options.base_python, partial(processes.run_process, may_fail=True)
        packages = [processes.install(each, folder / str(n), python) for n, each in enumerate(options.packages)]
        of_base = partial(run, folder=base, packages=packages, python=python)
        yield _Side(names[0], of_base), _Side(names[1], partial(run, folder=head))


def _measure(base: _Side, head: _Side, options: argparse.Namespace) -> None:
    """Run processes of both sides until every workload is decided, or `--processes` or `--budget` ends it."""
    selected = ["-k", options.expression] if options.expression else []
    arguments = [options.suite, *selected, *options.pytest_arguments]
    deselected: list[str] = []  # arguments that leave out the tests of decided workloads
    started, most, chance = time.monotonic(), max(1, options.processes), random.Random()
    progress = processes.Progress(2 * most, budget_s=options.budget)
    for done in range(1, most + 1):
        for side in chance.sample((base, head), 2):  # what drifts meanwhile meets both alike, and no order is known
            progress.begin(f"{side.name}: process {done} of at most {most}")
            try:
                side.results.append(side.run_process([*arguments, *deselected], progress))
            except MeasurementError as error:
                error.what = f"{side.name}: {error.what}"
                raise
        is_over_budget = time.monotonic() - started > options.budget
        # Structure alone is exact; without a run, more processes would fail as well.
        runs = (run for side in (base, head) for each in side.results for run in each.runs)
        has_times = any(run.incomplete != NO_TIMES for run in runs)
        is_last = is_over_budget or not has_times or not head.results[0].runs
        if done in looks(options.processes) or is_last:
            results, undecided = _judged(base, head)
            total = sum(each.unavailable is None for each in results.workloads)
            names = ", ".join(f"{name} ({', '.join(times)})" for name, times in undecided.items())
            line = f"after process {done} of each side: {total - len(undecided)} of {total} workloads decided"
            note(shorten(f"{line}; undecided: {names}" if names else line, _SHOWN_CHARACTERS, placeholder=" …"))
            if is_last or not undecided:
                break
            # A latency asks for no more processes.
            latency, tests = Timer.END_TO_END.label, head.results[0].tests
            left_out = (each for each in tests if each.workload not in undecided or each.subject == latency)
            deselected = [f"--deselect={each.node}" for each in left_out]


def _judged(base: _Side, head: _Side) -> tuple[Results, dict[str, Sequence[str]]]:
    """Judge all processes of HEAD by those of BASE. Return results, and the undecided times by workload.

    A decided workload stays decided: its later processes did not measure it.
    """
    last = head.results[-1]
    comparisons, names = LOOKS * max(1, last.comparisons), (base.name, head.name)
    workloads = {each.id: each for results in head.results for each in results.workloads}
    undecided: dict[str, Sequence[str]] = {}
    for name, workload in workloads.items():
        if workload.unavailable is not None and not base.runs(name):
            continue
        sides, limits = (base.runs(name), head.runs(name)), workload.limits
        found = judge_sets(name, *sides, comparisons=comparisons, limits=limits, names=names, are_pairs=True)
        if found.undecided:
            undecided[name] = found.undecided
        verdicts = found.verdicts
        of_head = list(head.failures(name))
        failures = dict.fromkeys((*base.failures(name), *of_head))  # each once
        if found.run is None:  # one verdict, that there is nothing to compare
            verdicts = (verdicts[0].because(*failures),)
        elif of_head:
            conclusion = NothingToCompare(head.name, "failed in some")
            verdicts = (Verdict(Status.INVALID, name, MEASUREMENT, conclusion, tuple(failures)), *verdicts)
        run, baseline = found.run or workload.run, found.baseline or workload.baseline
        # Its process left its traces in a folder that is gone.
        workloads[name] = msgspec.structs.replace(workload, run=run, baseline=baseline, verdicts=verdicts, trace=None)
    return msgspec.structs.replace(last, workloads=tuple(workloads.values()), tests=(), exit_status=0), undecided


def _report(results: Results, *, processes: int) -> None:
    """Print the table and every verdict that needs a look; leave the pages and the results beside those of the suite."""
    say(summary(results, **terminal(), failures=False))
    for verdict in results.verdicts:
        if verdict.status.fails or verdict.status is Status.NO_BASELINE:
            say(brief(verdict))
    page, text = html([results]).encode(), summary_markdown([results]).encode()
    files = {NAME: encode_results(with_words(results)), "report.html": page, "report.md": text}
    write_files({_REPORTS / name: content for name, content in files.items()})
    say(f"processes of each side: {processes}   report: {_REPORTS / 'report.html'}")


# -- a candidate and its reference ------------------------------------------------------------------------------------------

_SPEEDS = {Status.IMPROVED: "faster", Status.REGRESSED: "slower", Status.PASS: "as fast", Status.UNDECIDED: "unclear"}
CONTESTS = 2  # that find a candidate faster
_BOUND = 0.6  # a call is bound by what it keeps busy for so much of its time: the host, or the memory at its peak


def judge_candidate(candidate: str, against: str, *, device: str = "auto") -> dict[str, Any]:
    """Judge a candidate in a process of its own. Return the verdict, as `kernelgauge judge --json` prints it.

    Raises `MeasurementError` if there is none, as for a reference that fails.
    """
    arguments = [candidate, "--against", against, "--device", device, "--json"]
    command = [sys.executable, "-m", "kernelgauge", "judge", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in (Exit.YES, Exit.NO):
        raise MeasurementError("there is no verdict", got=f"exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=dict[str, Any])


def judge_once(options: argparse.Namespace) -> Exit:
    """Judge a candidate, and print the verdict."""
    for target in (options.candidate, options.against):
        path = target.rpartition(".py:")[0] + ".py" if ".py:" in target else target
        if path.endswith(".py") and not Path(path).is_file():
            raise KernelgaugeError("there is no such file", where=path, expected="FILE.py[:NAME] or module:NAME")
    from ..measure.contest import Referee
    from ..measure.device import choose_device

    contests: list[Contest] = []
    try:
        # Processes of one contest may be lucky together: others must find the candidate faster as well.
        while not contests or (len(contests) < CONTESTS and decide_whole(contests[-1]).status is Status.IMPROVED):
            with ExitStack() as stack:
                try:
                    referee = Referee(options.against, choose_device(options.device), stack, note)
                except KernelgaugeError:
                    raise
                except Exception as error:  # its own
                    got = f"{type(error).__name__}: {error}"
                    raise KernelgaugeError("the reference fails", where=options.against, got=got) from error
                contests.append(referee.judge(options.candidate))
    except CandidateRefused as refusal:
        data: dict[str, Any] = {"correct": False, "faster": False, "refused": refusal.what, **dict(refusal.details)}
        data["first_wrong"] = msgspec.to_builtins(refusal.wrong)
        say(_json(data) if options.json else "\n".join(map(printable, f"REFUSED  {refusal}".split("\n"))))
        return Exit.NO
    data = _verdict(contests)
    say(_json(data) if options.json else _verdict_text(data))
    return Exit.YES


def _json(data: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def decide_whole(contest: Contest) -> Decision:
    """Decide a contest over all cases."""
    sides = [over_cases([getattr(each, side) for each in contest.cases]) for side in ("reference", "candidate")]
    return decide_contest(*sides, is_cpu=contest.is_cpu)


def _joined(contests: Sequence[Contest]) -> Contest:
    """Return contests that agree as one."""
    cases = [
        msgspec.structs.replace(
            same[0],
            **{side: [it for each in same for it in getattr(each, side)] for side in ("reference", "candidate")},
        )
        for same in zip(*(each.cases for each in contests), strict=True)
    ]
    return msgspec.structs.replace(
        contests[-1], cases=cases, checked_calls=sum(each.checked_calls for each in contests)
    )


def _verdict(contests: Sequence[Contest]) -> dict[str, Any]:
    """Return what is concluded of a candidate that is correct. If the last contest does not confirm, it alone counts."""
    contest = contests[-1] if decide_whole(contests[-1]).status is not Status.IMPROVED else _joined(contests)
    decision, is_cpu = decide_whole(contest), contest.is_cpu
    reference, candidate = contest.runs
    causes = []
    if reference is not None and candidate is not None:
        with suppress(ValueError):  # its process may claim anything
            causes = reasons(judge_structure(candidate, from_run(reference, suite="")))
    return {
        "correct": True,
        "faster": decision.status is Status.IMPROVED,
        "clock": " and ".join(sorted({each.clock for each in contest.cases})),
        **_speed(decision),
        **{name: value for name, value in msgspec.structs.asdict(contest).items() if name.startswith("checked")},
        "cases": [
            {
                **msgspec.to_builtins(case),
                **_speed(decide_contest(case.reference, case.candidate, is_cpu=is_cpu)),
            }
            for case in contest.cases
        ],
        # As the candidate's process observed itself: help for its author, and no part of the verdict.
        "kernels": [] if candidate is None else _kernels(candidate),
        "bound_by": _bound(contest),
        "causes": [f"{each.label}: {' '.join(each.text.split())}" for each in causes if each.label != "kernels"],
    }


def _speed(decision: Decision) -> dict[str, Any]:
    low, high = (None if each is None else 1 / (1 + each) for each in (decision.change.high, decision.change.low))
    return {
        "speed": _SPEEDS[decision.status],
        "speedup": 1 / (1 + decision.change.estimate),
        "speedup_interval": [low, high],
        "confidence": decision.change.confidence,
        "reference_us": decision.before_us,
        "candidate_us": decision.after.observation.mean_us,
    }


def _bound(contest: Contest) -> str | None:
    """Return what bounds the first case, which the candidate's process has profiled. None: not known."""
    case, run, peak = contest.cases[0], contest.runs[1], contest.peak_bytes_per_second
    call_us = geometric_mean(us for sample in case.candidate for us in sample.replicates_us)
    if run is None or contest.is_cpu:
        return None
    if sum(each.device_time_us for each in run.kernels) < (1 - _BOUND) * call_us:
        return "host"
    is_memory = peak is not None and 1e6 * (case.input_bytes + case.output_bytes) / call_us > _BOUND * peak
    return "memory" if is_memory else "computation or latency"


def _kernels(run: Run) -> list[dict[str, Any]]:
    """Return the kernels of a call, with what they take and the line that asked for each."""
    lines = [origin and origin.lines and str(origin.lines[0]) for origin in run.origins] or [None] * len(run.kernels)
    return [
        {
            "kernel": kernel.identity.name,
            "device_time_us": kernel.device_time_us,
            **resources_of(kernel.identity, kernel.resources, run.fingerprint.arch),
            "line": line or None,
        }
        for kernel, line in zip(run.kernels, lines, strict=False)
    ]


def _verdict_text(data: dict[str, Any]) -> str:
    lines = [f"CORRECT  {data['checked_calls']} calls, each checked: {', '.join(data['checked_values'])} inputs"]
    for each in (data, *(data["cases"] if len(data["cases"]) > 1 else [])):
        low, high = ("?" if end is None else f"{end:.3f}" for end in each["speedup_interval"])
        head = f"  {each['case']:<22} {each['speed']:<8}" if "case" in each else f"{each['speed'].upper():<9}"
        head += {"gpu": "GPU time ", "host": "call to result "}.get(each["clock"], "")
        times = f"{each['reference_us']:.1f} -> {each['candidate_us']:.1f} us"
        lines.append(f"{head}{times}  {each['speedup']:.3f} times as fast ({low} ... {high})")
    lines += [f"  kernel   {it['kernel']}  {it['device_time_us']:.1f} us  {it['line'] or ''}" for it in data["kernels"]]
    return "\n".join(map(printable, (*lines, *(f"  {each}" for each in data["causes"]))))
