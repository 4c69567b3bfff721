"""`kernelgauge bisect`: find the commit, or the package, that changed a workload."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import metadata
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .. import processes
from ..errors import KernelgaugeError, MeasurementError, printable
from ..judge import STRUCTURE, Status, Verdict
from ..judge.baseline import SET_BY_CODE, compare, from_run
from ..judge.revisions import FEWEST, LOOKS, SURE, JudgedSet, judge_sets, looks, next_state, suspects
from ..judge.structure import judge_structure
from ..report.findings import brief, in_full
from ..report.text import counted
from ..report.words import headline
from ..results import Results, WorkloadResult
from ..run import ProcessTime, Run, Timer, at_shared_speed, observe, on_same_host
from . import Exit, note, say

_SHOWN = 5  # likely changes, where none is sure
_CHANGES = (Status.REGRESSED, Status.IMPROVED)  # in order of preference
_CLOCKS = (Timer.DEVICE, Timer.HOST, Timer.END_TO_END)  # the most exact one first; on a CPU the last one is
_COMMIT = "%H%n%h %s%ncommit   %H%nauthor   %an <%ae>%ndate     %aI%nsubject  %s"


@dataclass(eq=False)
class _State:
    """A commit, or a set of packages, and what was measured of it."""

    shown: str  # in one line
    change: str  # what it changes, for the answer
    run_process: Callable[[Sequence[str], processes.Progress], Results]  # of pytest, with these arguments
    workloads: list[WorkloadResult] = field(default_factory=list)  # one of each process
    failure: str = ""  # why it is skipped

    @property
    def runs(self) -> list[Run]:
        return [each.run for each in self.workloads if each.run]


def bisect(options: argparse.Namespace) -> Exit:
    """Measure states between two ends until one change is the cause, and print it."""
    has_ends = len(options.packages) > 1 if options.packages else bool(options.good and options.bad)
    if not has_ends or (options.packages and (options.good or options.bad)):
        raise KernelgaugeError("bisect needs two ends", expected="--good REF --bad REF, or --packages GOOD.txt BAD.txt")
    with processes.own_folder() as folder:
        states = (_package_states if options.packages else _commit_states)(options, folder)
        return _Search(states, options).conclude()


def _measured_in(progress: processes.Progress, arguments: Sequence[str], **place: Any) -> Results:
    # Inductor chooses without timing, or its choice could be the change. 0 switches that off.
    variables = {"TORCHINDUCTOR_DETERMINISTIC": os.environ.get("TORCHINDUCTOR_DETERMINISTIC", "1")}
    patience_s = progress.patience_s
    return processes.run_process(
        arguments, progress, may_fail=True, variables=variables, patience_s=patience_s, **place
    )


# -- commits ----------------------------------------------------------------------------------------------------------------


def _commit_states(options: argparse.Namespace, folder: Path) -> list[_State]:
    """Return the first parents between two commits, in order: a merge is one change."""
    good, bad = map(processes.commit, (options.good, options.bad))
    span, form = f"{good}..{bad}", ("--no-show-signature", f"--format={_COMMIT}")
    # Two commands: together with --first-parent, git's --ancestry-path follows first parents only.
    descendants = processes.git("rev-list", "--ancestry-path", span).split()
    if not descendants:
        expected = "--good to be an ancestor of --bad   (a shallow clone may lack the path: git fetch --unshallow)"
        raise KernelgaugeError("no commits to bisect", got=f"{options.good}..{options.bad}", expected=expected)
    later = processes.git("log", "-z", "--reverse", *form, "--first-parent", span)
    with processes.worktree(bad) as tree:
        processes.copy_suite(tree / options.suite, folder, "suite", owner=f"--bad {options.bad}")

    def run(name: str, arguments: Sequence[str], progress: processes.Progress) -> Results:
        with processes.worktree(name) as tree:
            processes.copy_suite(folder / "suite", tree, options.suite, owner="--bad")
            return _measured_in(progress, arguments, folder=tree)

    commits = [processes.git("show", "--no-patch", *form, good), *later.strip("\0").split("\0")]
    parts = (each.split("\n", 2) for each in commits)
    path = {good, *descendants}
    return [_State(shown, change, partial(run, name)) for name, shown, change in parts if name in path]


# -- packages ---------------------------------------------------------------------------------------------------------------


def _package_states(options: argparse.Namespace, folder: Path) -> list[_State]:
    """Return the packages of freeze lists, changed one after the other from each list to the next."""
    lists = [_frozen(path) for path in options.packages]
    differ = {name for each in lists for name in each if len({other.get(name) for other in lists}) > 1}
    if not differ:
        raise KernelgaugeError("nothing to bisect: all lists have the same packages")
    for name in sorted(name for name in differ if not all(name in each for each in lists)):
        note(f"{name} is not in every list: where it is absent, it stays as it is installed here")

    @cache
    def installed(requirement: str) -> Path:
        note(f"installing {requirement}")
        return processes.install(requirement, Path(tempfile.mkdtemp(dir=folder)))

    def run(wanted: Sequence[str], arguments: Sequence[str], progress: processes.Progress) -> Results:
        packages = [installed(each) for each in wanted]
        return _measured_in(progress, arguments, packages=packages)

    def state(shown: str, change: str) -> _State:
        wanted = [each for each in packages.values() if each]
        return _State(shown, f"package  {change}", partial(run, wanted))

    packages = {name: lists[0].get(name) for name in sorted(differ)}
    states = [state("good", "")]
    # A package comes behind those that it needs: it needs more than each of them.
    order = sorted(differ, key=lambda name: (len(_needs(name, set()) & differ - {name}), name))
    for after, name in product(lists[1:], order):
        old, packages[name] = packages[name], after.get(name)
        if old != packages[name]:
            shown = packages[name] or f"{name} absent"
            states.append(state(f"{len(states)}: {shown}", f"{old or 'absent'} -> {shown}"))
    return states


def _frozen(path: Path) -> dict[str, str]:
    """Return the requirements of a freeze list by normalized name. Packages that are installed for editing are left out."""
    try:
        lines = [line.partition(" #")[0].strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise KernelgaugeError("not a list of pip freeze", where=str(path), got=str(error), expected="UTF-8") from error
    found = (match for line in lines if (match := re.match(r"(\w[\w.-]*)(.*)", line)))
    return {canonicalize_name(each[1]): canonicalize_name(each[1]) + each[2] for each in found}


def _needs(name: str, found: set[str]) -> set[str]:
    """Add what a package needs, and what that needs, to the names in `found`. Return them."""
    lines: list[str] = []
    with suppress(metadata.PackageNotFoundError):
        lines = metadata.requires(name) or []
    for line in lines:
        with suppress(ValueError):  # a line that packaging does not read: then the order is that of the names
            need = Requirement(line)
            is_needed = need.marker is None or need.marker.evaluate({"extra": ""})
            if is_needed and (needed := canonicalize_name(need.name)) not in found:
                found.add(needed)
                _needs(needed, found)
    return found


# -- the search -------------------------------------------------------------------------------------------------------------


class _Search:
    """Measures the ends, then states between them, until the change is found."""

    def __init__(self, states: list[_State], options: argparse.Namespace) -> None:
        self._states, self._options, self._started = states, options, time.monotonic()
        self._ends = self._good, self._bad = states[0], states[-1]
        self._used = 0  # processes
        self._progress = processes.Progress(None, budget_s=options.budget)
        self._suspects = len(states) - 1

    def conclude(self) -> Exit:
        """Search, and print the answer."""
        judged, is_found = self._judged_ends(), False
        _say("\n".join(f"{each.subject}: {each.status.value}  {headline(each)}" for each in judged.verdicts))
        changed = [each.subject for each in judged.verdicts if each.status in (*_CHANGES, Status.CHANGED)]
        invalid = [in_full(each) for each in judged.verdicts if each.status is Status.INVALID]
        if STRUCTURE in changed:  # exact, also where a time could not be measured
            is_found = self._by_structure()
            if len(changed) > 1:
                advice = "If the change above does not explain it, bisect again with that as the good end."
                _say(f"{', '.join(changed[1:])} changed too. {advice}")
        elif invalid:
            raise KernelgaugeError("the ends cannot be compared", got="\n".join(invalid))
        elif timer := _followed(judged.verdicts):
            is_found = self._by_time(timer)
        elif self._is_timed and min(len(end.runs) for end in self._ends) < FEWEST:
            _say("undecided: --processes or --budget ended the search too early to compare the ends")
        elif judged.undecided:
            _say(f"undecided: the processes of the ends differ too much in {', '.join(judged.undecided)}")
        else:
            _say("nothing to bisect: the ends do not differ")
        ends = sum(len(end.workloads) for end in self._ends)
        _say(f"{self._used} processes, {ends} of them of the ends")
        return Exit.YES if is_found else Exit.NO

    # -- measure

    def _judged_ends(self) -> JudgedSet:
        """Measure the ends in turns until it is known what to follow, or that nothing changed: three times each at least.

        Once, if no time is measured: structure is exact.
        """
        most = 2 ** (LOOKS - 1) * FEWEST
        for done in range(1, most + 1):
            # A B B A: what drifts meanwhile meets both alike.
            for end in self._ends if done % 2 else self._ends[::-1]:
                if len(end.runs) < done and (done == 1 or self._may_go_on()):
                    self._measure(end)
            is_last = not (self._is_timed and self._may_go_on())
            if done in looks(most) or is_last:
                names = ("the good end", "the bad end")
                judged = self._judged(self._good.runs[:done], self._bad.runs[:done], names)
                if is_last or not judged.undecided or _followed(judged.verdicts, judged.undecided):
                    break
        return judged

    def _judged(self, before: Sequence[Run], after: Sequence[Run], names: tuple[str, str]) -> JudgedSet:
        limits = self._good.workloads[0].limits
        comparisons = LOOKS * max(1, len(before[0].samples))
        return judge_sets(before[0].workload, before, after, comparisons=comparisons, limits=limits, names=names)

    @property
    def _is_timed(self) -> bool:
        return any(run.is_timed for end in self._ends for run in end.runs)

    def _may_go_on(self) -> bool:
        is_late = time.monotonic() - self._started > self._options.budget
        return not is_late and bool(self._used < self._options.processes)

    def _measure(self, state: _State, *selection: str, timer: Timer | None = None) -> None:
        """Measure a state. One that fails is skipped if the good end still works behind it: otherwise the machine is at fault.

        `selection`: further arguments. `timer`: the time that must have been measured.
        """
        self._used += 1
        self._progress.begin(f"process {self._used}: {state.shown}, {counted(self._suspects, 'suspect')}")
        try:
            state.workloads.append(self._measured(state, selection, timer))
        except MeasurementError as error:
            failed = error.got or error.what
            if state in self._ends:
                what = f"an end cannot be measured: {state.shown}"
                expected = "both ends to build, and to run the workload that -k selects"
                raise KernelgaugeError(what, got=failed, expected=expected) from error
            state.failure = failed.splitlines()[-1].strip()
            note(f"  it fails: {state.failure}")
            if self._may_go_on():
                self._measure(self._good, *selection, timer=timer)

    def _measured(self, state: _State, selection: Sequence[str], timer: Timer | None) -> WorkloadResult:
        """Run one process. Raises `MeasurementError` if it fails, and `KernelgaugeError` if no other one would do better."""
        wanted = self._options.workload
        arguments = [self._options.suite, "-k", wanted, *selection, *self._options.pytest_arguments]
        workloads = state.run_process(arguments, self._progress).workloads
        matching = [each for each in workloads if each.id == wanted] or workloads
        if len(matching) > 1:
            what, got = f"-k {wanted} selects {len(matching)} workloads", ", ".join(each.id for each in matching)
            raise KernelgaugeError(what, got=got, expected="one: a bisection asks about one workload")
        if not matching:
            raise MeasurementError(f"no workload {wanted}")
        workload, run = matching[0], matching[0].run
        if run is None:
            raise MeasurementError("\n".join(map(in_full, workload.verdicts)) or f"{workload.unavailable}")
        if timer and timer not in run.samples:
            raise MeasurementError(f"no {run.label(timer)}: {run.incomplete}")
        earlier = self._good.runs[0] if self._good.runs else run
        environment = compare(earlier.fingerprint, run.fingerprint, without=SET_BY_CODE)
        if earlier.place != run.place or not (environment.identical or self._options.packages):
            what = "the processes measure on different machines or in different environments"
            raise KernelgaugeError(what, got=f"{run.place}; {environment}", expected=earlier.place)
        # How often something recompiles depends on how long it was measured: whether it does is what counts.
        counts = msgspec.structs.replace(run.counts, recompiles=min(1, run.counts.recompiles))
        run = msgspec.structs.replace(run, counts=counts, ops=())  # which nobody reads here
        if state.runs and _structure(state.runs[0], run).status is not Status.PASS:
            raise KernelgaugeError(f"processes of one state differ in kernels or counts: {state.shown}")
        return msgspec.structs.replace(workload, run=run, verdicts=(), baseline=None)

    # -- by what is exact

    def _by_structure(self) -> bool:
        """Measure until every change of structure lies between neighbours. Print them. Return whether all are found."""
        # What recompiles on fresh allocations does so in the replicates of a time.
        recompiles = any(run.counts.recompiles for end in self._ends for run in end.runs)
        marks = () if recompiles else ("-m", "not timing")  # `structure` is a mark of suites alone
        while True:
            known = [index for index, state in enumerate(self._states) if state.runs]
            verdicts = {pair: _structure(*(self._states[index].runs[0] for index in pair)) for pair in pairwise(known)}
            changes = {pair: verdict for pair, verdict in verdicts.items() if verdict.status is not Status.PASS}
            inner = ((abs(low + high - 2 * index), index) for low, high in changes for index in range(low + 1, high))
            left = [each for each in inner if not self._states[each[1]].failure]
            self._suspects = sum(high - low for low, high in changes)
            if not left or not self._may_go_on():
                break
            self._measure(self._states[min(left)[1]], *marks)  # the one in the middle
        if not changes:
            _say("undecided: the change comes in steps that are each within the tolerance of memory")
        if len(changes) > 1:
            _say(f"{len(changes)} changes: there are states with the structure of neither end")
        exact = "exact: kernels and counts\n"
        found = [self._answer(*pair, f"{exact}{brief(verdict)}") for pair, verdict in changes.items()]
        return bool(found) and all(found)

    # -- by a time

    def _by_time(self, timer: Timer) -> bool:
        """Measure until one change has 95 % of the posterior. Print it, or the likely ones. Return whether it is found."""
        first = next(run for run in self._good.runs if timer in run.samples)
        baseline = from_run(first, suite="")
        of_first = baseline.times(timer, baseline.entries[0])[0]

        def times_of(state: _State) -> list[ProcessTime]:
            samples = [run.samples[timer] for run in state.runs if timer in run.samples]
            return [replace(of_first, observation=observe(each, is_by_host=of_first.is_by_host)) for each in samples]

        def logarithms(state: _State) -> list[float]:
            times = times_of(state)
            return [each.logarithm for each in (on_same_host(times, usual) if is_shared else times)]

        usual = at_shared_speed(times_of(self._good), times_of(self._bad))
        is_shared = bool(on_same_host(times_of(self._good), usual))  # else the ends differ by more than their hosts
        while True:
            measured = [state for state in self._states if state.runs]
            third = [state for state in measured if _structure(first, state.runs[0]).status is not Status.PASS]
            values = [None if state.failure or state in third else logarithms(state) for state in self._states]
            found = suspects(values)
            best = max(found, key=lambda each: each.probability)
            index = next_state(values)
            if index is None or not self._may_go_on():
                break
            note(f"  {_percent(best.probability)} that it is {self._states[best.high].shown}")
            self._measure(self._states[index], timer=timer)
        for state in third:
            _say(f"a third state, with the structure of neither end: {state.shown}")
        if best.probability < SURE:
            likely = sorted(found, key=lambda each: -each.probability)[:_SHOWN]
            lines = [f"  {_percent(each.probability)}  {self._states[each.high].shown}" for each in likely]
            _say("\n".join(["undecided: no change has 95 % of the posterior yet", *lines]))
            return False
        text = f"{_percent(best.probability)} of the posterior"
        # Of the two states alone: what other commits between the ends did is no cause.
        before, after = (self._states[place].runs for place in best[:2])
        judged = self._judged(before, after, ("the state before", "the state"))
        why = [brief(each) for each in judged.verdicts if each.subject in timer.labels]
        return self._answer(best.low, best.high, "\n".join([text, *why]))

    # -- answer

    def _answer(self, low: int, high: int, text: str) -> bool:
        """Print a change between two states. Return whether it is found: no state between them is left."""
        if high - low == 1:
            found = self._states[high]
            _say(f"\nfound: {found.shown}\n{found.change}\n{text}")
            return True
        _say(f"\n{high - low} suspects are left   {text}")
        for state in self._states[low + 1 : high + 1]:
            _say(f"  {state.shown}" + (f"   skipped: {state.failure}" if state.failure else ""))
        return False


def _say(text: str) -> None:
    """Print text with commit messages, names of packages and errors in it: nobody vouches for them."""
    say("\n".join(map(printable, text.split("\n"))))


def _followed(verdicts: Sequence[Verdict], undecided: Sequence[str] = ()) -> Timer | None:
    """Return the most exact time that regressed, else that improved. None: no time did, or an undecided one comes first."""
    times = [(timer, each) for timer in _CLOCKS for each in verdicts if each.subject in timer.labels]
    if any(each.subject == Timer.DEVICE.labels[1] for each in verdicts):  # on a CPU the host does all of it
        times.reverse()
    for change, (timer, verdict) in product(_CHANGES, times):
        if verdict.subject in undecided:
            return None
        if verdict.status is change:
            return timer
    return None


def _structure(before: Run, after: Run) -> Verdict:
    return replace(judge_structure(after, from_run(before, suite="")), against="the state before")


def _percent(probability: float) -> str:
    return f"{100 * min(probability, 0.999):.1f} %"
