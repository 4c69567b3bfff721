"""`kernelgauge bisect`: find the commit, or the package, that changed a workload."""

from __future__ import annotations

import argparse
import math
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .. import processes
from ..errors import KernelgaugeError, MeasurementError, printable
from ..judge import STRUCTURE, Status, Verdict
from ..judge.baseline import SET_BY_CODE, compare_fingerprints, from_run
from ..judge.revisions import FEWEST, LOOKS, JudgedSet, judge_sets, looks
from ..judge.structure import judge_structure
from ..report.findings import brief, in_full
from ..report.text import counted
from ..report.words import headline
from ..results import Results, WorkloadResult
from ..run import Run, Timer
from . import Exit, note, say

_CHANGES = (Status.REGRESSED, Status.IMPROVED)  # in order of preference
# the most exact one first
_CLOCKS = [timer.label for timer in (Timer.DEVICE, Timer.HOST, Timer.END_TO_END)]
_MOST = 2 ** (LOOKS - 1) * FEWEST  # processes of a state
# of the change between the ends: a state is on the side of the end that it is nearer to
_HALF = 0.5
_COMMIT = "%H%n%h %s%ncommit   %H%nauthor   %an <%ae>%ndate     %aI%nsubject  %s"


@dataclass(eq=False)
class _State:
    """A commit, or a set of packages, and what was measured of it."""

    shown: str  # in one line
    change: str  # what it changes, for the answer
    # of pytest, with these arguments
    run_process: Callable[[Sequence[str], processes.Progress], Results]
    workloads: list[WorkloadResult] = field(default_factory=list)  # one of each process
    failure: str = ""  # why it is skipped

    @property
    def runs(self) -> list[Run]:
        return [each.run for each in self.workloads if each.run]


def bisect(options: argparse.Namespace) -> Exit:
    """Measure states between two ends until one change is the cause, and print it."""
    has_ends = len(options.packages) > 1 if options.packages else bool(options.good and options.bad)
    if not has_ends or (options.packages and (options.good or options.bad)):
        raise KernelgaugeError(
            "bisect needs two ends", expected="--good REF --bad REF, or --packages GOOD.txt BAD.txt"
        )
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


# -- commits ---------------------------------------------------------------------------------------


def _commit_states(options: argparse.Namespace, folder: Path) -> list[_State]:
    """Return the first parents between two commits, in order: a merge is one change."""
    good, bad = map(processes.commit, (options.good, options.bad))
    span, form = f"{good}..{bad}", ("--no-show-signature", f"--format={_COMMIT}")
    # Two commands: together with --first-parent, git's --ancestry-path follows first parents only.
    descendants = processes.git("rev-list", "--ancestry-path", span).split()
    if not descendants:
        expected = (
            "--good to be an ancestor of --bad   (a shallow clone may lack the path: git fetch "
            "--unshallow)"
        )
        raise KernelgaugeError(
            "no commits to bisect", got=f"{options.good}..{options.bad}", expected=expected
        )
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
    return [
        _State(shown, change, partial(run, name)) for name, shown, change in parts if name in path
    ]


# -- packages --------------------------------------------------------------------------------------


def _package_states(options: argparse.Namespace, folder: Path) -> list[_State]:
    """Return the packages of freeze lists, changed one after the other from each list to the
    next.
    """
    lists = [_frozen(path) for path in options.packages]
    differ = {
        name for each in lists for name in each if len({other.get(name) for other in lists}) > 1
    }
    if not differ:
        raise KernelgaugeError("nothing to bisect: all lists have the same packages")
    for name in sorted(name for name in differ if not all(name in each for each in lists)):
        note(f"{name} is not in every list: where it is absent, it stays as it is installed here")

    @cache
    def installed(requirement: str) -> Path:
        note(f"installing {requirement}")
        return processes.install(requirement, Path(tempfile.mkdtemp(dir=folder)))

    def run(
        wanted: Sequence[str], arguments: Sequence[str], progress: processes.Progress
    ) -> Results:
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
    """Return the requirements of a freeze list by normalized name.

    Packages that are installed for editing are left out.
    """
    try:
        lines = [
            line.partition(" #")[0].strip()
            for line in path.read_text(encoding="utf-8-sig").splitlines()
        ]
    except UnicodeDecodeError as error:
        raise KernelgaugeError(
            "not a list of pip freeze", where=str(path), got=str(error), expected="UTF-8"
        ) from error
    found = (match for line in lines if (match := re.match(r"(\w[\w.-]*)(.*)", line)))
    return {canonicalize_name(each[1]): canonicalize_name(each[1]) + each[2] for each in found}


def _needs(name: str, found: set[str]) -> set[str]:
    """Add what a package needs, and what that needs, to the names in `found`. Return them."""
    lines: list[str] = []
    with suppress(metadata.PackageNotFoundError):
        lines = metadata.requires(name) or []
    for line in lines:
        # a line that packaging does not read: then the order is that of the names
        with suppress(ValueError):
            need = Requirement(line)
            is_needed = need.marker is None or need.marker.evaluate({"extra": ""})
            if is_needed and (needed := canonicalize_name(need.name)) not in found:
                found.add(needed)
                _needs(needed, found)
    return found


# -- the search ------------------------------------------------------------------------------------


class _Search:
    """Measures the ends, then states between them, until the change is found."""

    def __init__(self, states: list[_State], options: argparse.Namespace) -> None:
        self._states, self._options = states, options
        self._ends = self._good, self._bad = states[0], states[-1]
        self._progress = processes.Progress(None)
        # processes, and states that may hold the change
        self._used, self._suspects = 0, len(states) - 1

    def conclude(self) -> Exit:
        """Search, and print the answer."""
        judged = self._judged_ends()
        _say(
            "\n".join(
                f"{each.subject}: {each.status.value}  {headline(each)}" for each in judged.verdicts
            )
        )
        followed, is_found = self._followed(judged), False
        if followed is not None:
            is_found = self._find(followed)
            changed = [
                each.subject
                for each in judged.verdicts
                if each.status in (*_CHANGES, Status.CHANGED)
            ]
            if followed.subject == STRUCTURE and len(changed) > 1:
                advice = (
                    "If the change above does not explain it, bisect again with that as the good "
                    "end."
                )
                _say(f"{', '.join(changed[1:])} changed too. {advice}")
        ends = sum(len(end.workloads) for end in self._ends)
        _say(f"{self._used} processes, {ends} of them of the ends")
        return Exit.YES if is_found else Exit.NO

    def _followed(self, judged: JudgedSet) -> Verdict | None:
        """Return the verdict on the ends whose subject is searched for. Without one, say why."""
        structure = next((each for each in judged.verdicts if each.subject == STRUCTURE), None)
        if structure is not None and structure.status in (*_CHANGES, Status.CHANGED):
            return structure  # exact, also where a time could not be measured
        if invalid := [in_full(each) for each in judged.verdicts if each.status is Status.INVALID]:
            raise KernelgaugeError("the ends cannot be compared", got="\n".join(invalid))
        if found := _changed_time(judged.verdicts):
            return found
        if judged.undecided:
            _say(
                "undecided: the processes of the ends differ too much in "
                f"{', '.join(judged.undecided)}"
            )
        else:
            _say("nothing to bisect: the ends do not differ")
        return None

    # -- measure

    def _judged_ends(self) -> JudgedSet:
        """Measure the ends in turns until it is known what to follow, or that nothing changed:
        three times each at least.

        Once, if no time is measured: structure is exact.
        """
        for done in range(1, _MOST + 1):
            # A B B A: what drifts meanwhile meets both alike.
            for end in self._ends if done % 2 else self._ends[::-1]:
                self._measure(end)
            is_exact = not any(run.is_timed for end in self._ends for run in end.runs)
            if done in looks(_MOST) or is_exact:
                judged = self._judged(
                    self._good.runs, self._bad.runs, ("the good end", "the bad end")
                )
                if (
                    is_exact
                    or not judged.undecided
                    or _changed_time(judged.verdicts, judged.undecided)
                ):
                    break
        return judged

    def _judged(
        self, before: Sequence[Run], after: Sequence[Run], names: tuple[str, str]
    ) -> JudgedSet:
        limits = self._good.workloads[0].limits
        comparisons = LOOKS * max(1, len(before[0].samples))
        return judge_sets(
            before[0].workload, before, after, comparisons=comparisons, limits=limits, names=names
        )

    def _measure(self, state: _State, *selection: str, subject: str = STRUCTURE) -> None:
        """Measure a state. One that fails is skipped if the good end still works behind it:
        otherwise the machine is at fault.

        `selection`: further arguments. `subject`: what must have been measured.
        """
        self._used += 1
        self._progress.begin(
            f"process {self._used}: {state.shown}, {counted(self._suspects, 'suspect')}"
        )
        try:
            state.workloads.append(self._measured(state, selection, subject))
        except MeasurementError as error:
            failed = error.got or error.what
            if state in self._ends:
                what = f"an end cannot be measured: {state.shown}"
                expected = "both ends to build, and to run the workload that -k selects"
                raise KernelgaugeError(what, got=failed, expected=expected) from error
            state.failure = failed.splitlines()[-1].strip()
            note(f"  it fails: {state.failure}")
            self._measure(self._good, *selection, subject=subject)

    def _measured(self, state: _State, selection: Sequence[str], subject: str) -> WorkloadResult:
        """Run one process.

        Raises `MeasurementError` if it fails, and `KernelgaugeError` if no other one would do
        better.
        """
        wanted = self._options.workload
        arguments = [self._options.suite, "-k", wanted, *selection, *self._options.pytest_arguments]
        workloads = state.run_process(arguments, self._progress).workloads
        matching = [each for each in workloads if each.id == wanted] or workloads
        if len(matching) > 1:
            what, got = (
                f"-k {wanted} selects {len(matching)} workloads",
                ", ".join(each.id for each in matching),
            )
            raise KernelgaugeError(
                what, got=got, expected="one: a bisection asks about one workload"
            )
        if not matching:
            raise MeasurementError(f"no workload {wanted}")
        workload, run = matching[0], matching[0].run
        if run is None:
            raise MeasurementError(
                "\n".join(map(in_full, workload.verdicts)) or f"{workload.unavailable}"
            )
        if subject not in (STRUCTURE, *(timer.label for timer in run.samples)):
            raise MeasurementError(f"no {subject}: {run.incomplete}")
        earlier = self._good.runs[0] if self._good.runs else run
        environment = compare_fingerprints(
            earlier.fingerprint, run.fingerprint, without=SET_BY_CODE
        )
        if earlier.place != run.place or not (environment.identical or self._options.packages):
            what = "the processes measure on different machines or in different environments"
            raise KernelgaugeError(what, got=f"{run.place}; {environment}", expected=earlier.place)
        # How often something recompiles depends on how long it was measured: whether it does is
        # what counts.
        counts = msgspec.structs.replace(run.counts, recompiles=min(1, run.counts.recompiles))
        run = msgspec.structs.replace(run, counts=counts, ops=())  # which nobody reads here
        if state.runs and _structure(state.runs[0], run).status is not Status.PASS:
            raise KernelgaugeError(
                f"processes of one state differ in kernels or counts: {state.shown}"
            )
        return msgspec.structs.replace(workload, run=run, verdicts=(), baseline=None)

    # -- halve

    def _find(self, followed: Verdict) -> bool:
        """Print the change, or each of several changes of structure.

        Return whether all are found.
        """
        start = 0
        while True:
            low, high = self._halve(followed, start)
            if high - low > 1 or not self._answer(low, high, followed):
                self._say_suspects(low, high)
                return False
            after = self._states[high].runs[0]
            if (
                followed.subject != STRUCTURE
                or _structure(after, self._bad.runs[0]).status is Status.PASS
            ):
                return True
            _say("Its structure is not that of the bad end: there is a later change.")
            start = high

    def _halve(self, followed: Verdict, start: int) -> tuple[int, int]:
        """Halve the range until the change lies between neighbours, and measure these again. Return
        their places.

        Each state is held to the good end, by the rule that judged the ends. One may be lost to
        noise: then a neighbour of the answer is on the other side when it is measured again, and
        the search goes on from there.
        """
        # by place
        is_new, checked = (
            {start: False, len(self._states) - 1: True},
            {start, len(self._states) - 1},
        )
        while True:
            high = min(place for place, new in is_new.items() if new)
            low = max(place for place, new in is_new.items() if not new and place < high)
            self._suspects = high - low
            between = [place for place in range(low + 1, high) if not self._states[place].failure]
            between.sort(key=lambda each: abs(low + high - 2 * each))  # the one in the middle
            doubtful = (
                place
                for place in (low, high)
                if place not in checked and followed.subject != STRUCTURE
            )
            left = between or [place for place in doubtful if len(self._states[place].runs) < _MOST]
            if not left:
                return low, high
            place = left[0]
            if place in is_new:
                checked.add(place)
            new = self._is_new(self._states[place], followed, self._states[start])
            if new is None:
                is_new.pop(place, None)
            else:
                is_new[place] = new

    def _is_new(self, state: _State, followed: Verdict, good: _State) -> bool | None:
        """Measure a state until it is on one side of the change. None: it is skipped."""
        if followed.subject == STRUCTURE:
            # What recompiles on fresh allocations does so in the replicates of a time.
            recompiles = any(run.counts.recompiles for end in self._ends for run in end.runs)
            if not state.runs:  # `structure` is a mark of suites alone
                self._measure(state, *(() if recompiles else ("-m", "not timing")))
            return (
                None
                if state.failure
                else _structure(good.runs[0], state.runs[0]).status is not Status.PASS
            )
        # what drifts moves the end too
        for each in [state, good, *[state] * (_MOST - len(state.runs) - 1)]:
            self._measure(each, subject=followed.subject)
            if (
                not state.failure
                and _structure(good.runs[0], state.runs[0]).status is not Status.PASS
            ):
                self._skip(state, "a third state, with the structure of neither end")
            if state.failure:
                return None
            if each is state and len(state.runs) in looks(_MOST):
                before = good.runs[-max(FEWEST, len(state.runs)) :]
                judged = self._judged(before, state.runs, ("the good end", "the state"))
                if (new := _is_behind(_about(judged, followed.subject), followed)) is not None:
                    return new
        self._skip(state, f"its processes differ too much in {followed.subject}")
        return None

    def _skip(self, state: _State, why: str) -> None:
        state.failure = why
        _say(f"{state.shown}   skipped: {why}")

    # -- answer

    def _answer(self, low: int, high: int, followed: Verdict) -> bool:
        """Print the change between neighbours, if they differ by as much as the ends.

        Return whether they do.
        """
        # Of the two states alone, without what other commits between the ends did.
        before, after = (self._states[place].runs for place in (low, high))
        found, text = self._states[high], "exact: kernels and counts"
        if followed.subject == STRUCTURE:
            verdict = _structure(before[0], after[0])
            is_change = verdict.status is not Status.PASS
        else:
            verdict = _about(
                self._judged(before, after, ("the state before", "the state")), followed.subject
            )
            is_change = bool(_is_behind(verdict, followed))
            text = (
                f"measured again: {counted(len(before), 'process')} of the state before, "
                f"{len(after)} of this one"
            )
        if is_change:
            _say(f"\nfound: {found.shown}\n{found.change}\n{text}\n{brief(verdict)}")
        else:
            _say(
                "undecided: two neighbours do not differ as the ends do: the change comes in "
                "steps, or hides in noise"
            )
        return is_change

    def _say_suspects(self, low: int, high: int) -> None:
        count = high - low
        _say(f"\nundecided: {counted(count, 'suspect')} {'is' if count == 1 else 'are'} left")
        for state in self._states[low + 1 : high + 1]:
            _say(f"  {state.shown}" + (f"   skipped: {state.failure}" if state.failure else ""))


def _say(text: str) -> None:
    """Print text with commit messages, names of packages and errors in it: nobody vouches for
    them.
    """
    say("\n".join(map(printable, text.split("\n"))))


def _changed_time(verdicts: Sequence[Verdict], undecided: Sequence[str] = ()) -> Verdict | None:
    """Return the verdict on the most exact time that regressed, else that improved.

    None: no time did, or an undecided one comes first.
    """
    times = sorted(
        (each for each in verdicts if each.subject in _CLOCKS),
        key=lambda each: _CLOCKS.index(each.subject),
    )
    for change, verdict in product(_CHANGES, times):
        if verdict.subject in undecided:
            return None
        if verdict.status is change:
            return verdict
    return None


def _is_behind(verdict: Verdict, followed: Verdict) -> bool | None:
    """Return whether a time is on the side of the bad end, by its verdict against the good one.

    None: more processes may tell.
    """
    if verdict.change is None or followed.change is None or verdict.status is Status.NOT_JUDGED:
        return None
    is_nearer = math.log1p(verdict.change.estimate) / math.log1p(followed.change.estimate) >= _HALF
    return is_nearer if verdict.status is followed.status or not is_nearer else None


def _about(judged: JudgedSet, subject: str) -> Verdict:
    return next((each for each in judged.verdicts if each.subject == subject), judged.verdicts[0])


def _structure(before: Run, after: Run) -> Verdict:
    return replace(judge_structure(after, from_run(before, suite="")), against="the state before")
