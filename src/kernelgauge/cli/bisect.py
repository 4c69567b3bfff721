"""`kernelgauge bisect`: find the commit, or the package, that changed a workload."""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec

from ..baselines import calibration
from ..errors import KernelgaugeError, MeasurementError
from ..judge.baseline import compare, from_run
from ..judge.changepoint import SURE, Suspect, boundaries, level, middle, next_state, suspects
from ..judge.structure import judge_structure
from ..judge.timing import ProcessTime
from ..judge.two_sets import FEWEST, LOOKS, JudgedSet, judge_sets, looks, with_name
from ..judge.verdict import MEASUREMENT, STRUCTURE, Status, Verdict
from ..results import WorkloadResult
from ..run import Run, Timer, observe
from . import Exit, note, revisions, say

__all__ = ["bisect"]

_FAILURES = 2  # of a state, each with an end that still works behind it: then the state is skipped
_SHOWN = 5  # likely changes, where none is sure
_CLOCKS = (Timer.DEVICE, Timer.HOST, Timer.END_TO_END)  # the most exact one first


def bisect(options: argparse.Namespace) -> Exit:
    """Measure states between two ends until one change is the cause, and print it."""
    has_ends = len(options.packages) > 1 if options.packages else bool(options.good and options.bad)
    if not has_ends or (options.packages and (options.good or options.bad)):
        raise KernelgaugeError("bisect needs two ends", expected="--good REF --bad REF, or --packages GOOD.txt BAD.txt")
    with revisions.until_terminated(), tempfile.TemporaryDirectory(prefix="kernelgauge-bisect-") as folder:
        line = _Packages(options, Path(folder)) if options.packages else _Commits(options, Path(folder))
        question = {name: getattr(options, name) for name in ("workload", "suite", "pytest_arguments")}
        return _Search(line, _Record(options.state, {**line.question, **question}), options).conclude()


# -- the states of a line: commits, or sets of packages ---------------------------------------------------------------------


class _Commits:
    """The first parents between two commits, in order: a merge is one change. `names` are keys of the record."""

    has_one_environment = True

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        good, bad = map(revisions.commit, (options.good, options.bad))
        chain = revisions.git("rev-list", "--reverse", "--first-parent", "--ancestry-path", f"{good}..{bad}").split()
        if not chain:
            got = f"{options.good}..{options.bad}"
            raise KernelgaugeError("no commits to bisect", got=got, expected="--good to be an ancestor of --bad")
        self.names = [good, *chain]
        self.question = {"good": good, "bad": bad}
        self._suite, self._saved = options.suite, folder / "suite"
        with revisions.worktree(bad) as tree:
            revisions.copy_suite(tree / options.suite, folder, "suite", owner=f"--bad {options.bad}")

    @contextmanager
    def code(self, index: int) -> Iterator[dict[str, Any]]:
        """Yield the named arguments with which `run_process` measures a state."""
        with revisions.worktree(self.names[index]) as tree:
            revisions.copy_suite(self._saved, tree, self._suite, owner="--bad")
            yield {"folder": tree}

    def describe(self, index: int) -> str:
        """Return a state in one line."""
        return revisions.git("show", "--no-patch", "--format=%h %s", self.names[index])

    def introduce(self, index: int) -> str:
        """Return what a state adds, for the answer."""
        name, form = self.names[index], "commit   %H%nauthor   %an <%ae>%ndate     %aI%nsubject  %s"
        text = revisions.git("show", "--no-patch", f"--format={form}", name)
        parents = revisions.git("rev-list", "--parents", "--max-count=1", name).split()[1:]
        if len(parents) == 1:
            return text
        base = revisions.git("merge-base", *parents[:2])
        return f"{text}\nmerge    of {parents[1]}; within it: --good {base[:12]} --bad {parents[1][:12]}"


class _Packages:
    """The packages of freeze lists, changed one after the other from each list to the next."""

    has_one_environment = False

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        lists = [_frozen(path) for path in options.packages]
        changed = {name for each in lists for name in each if len({other.get(name) for other in lists}) > 1}
        if not changed:
            raise KernelgaugeError("nothing to bisect: all lists have the same packages")
        self.names, self._changes = ["good"], [""]
        self._states = [{name: lists[0].get(name) for name in changed}]  # None: the package is absent
        for before, after in pairwise(lists):
            for name in _by_needs({name for name in changed if before.get(name) != after.get(name)}):
                new = after.get(name) or f"{name} absent"
                self.names.append(f"{len(self.names)}: {new}")
                self._states.append({**self._states[-1], name: after.get(name)})
                self._changes.append(f"{before.get(name) or 'absent'} -> {new}")
        self.question = {"packages": [[each[name] for name in sorted(changed & set(each))] for each in lists]}
        self._folder, self._installed = folder, dict[str, Path]()

    @contextmanager
    def code(self, index: int) -> Iterator[dict[str, Any]]:
        state = self._states[index]
        wanted = [requirement for requirement in state.values() if requirement is not None]
        for requirement in wanted:
            if requirement not in self._installed:
                note(f"installing {requirement}")
                self._installed[requirement] = revisions.install(requirement, self._folder / str(len(self._installed)))
        absent = {name for name, requirement in state.items() if requirement is None}
        hidden = [_hiding(absent, self._folder / f"without-{index}")] if absent else []
        yield {"packages": [*hidden, *map(self._installed.__getitem__, wanted)]}

    def describe(self, index: int) -> str:
        return self.names[index]

    def introduce(self, index: int) -> str:
        return f"package  {self._changes[index]}"


def _frozen(path: Path) -> dict[str, str]:
    """Return the requirements of a freeze list by normalized name. A folder of this machine (``-e``) has no version."""
    try:
        lines = [line.partition(" #")[0].strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise KernelgaugeError("not a list of pip freeze", where=str(path), got=str(error), expected="UTF-8") from error
    found: dict[str, str] = {}
    for line in lines:
        requirement = line.removeprefix("-e ")
        name = re.search(r"#egg=([\w.-]+)", line) or re.match(r"\w[\w.-]*", requirement)
        if name is not None:
            found[_normalized(name[name.re.groups])] = requirement
        elif line and not line.startswith(("#", "-")):
            raise KernelgaugeError("not a line of pip freeze", where=str(path), got=line)
    return found


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _by_needs(changed: set[str]) -> list[str]:
    """Return packages behind those that they need; in the order of the alphabet where two need each other."""

    def needs(name: str) -> set[str]:
        try:
            found = [re.match(r"[\w.-]+", each) for each in metadata.requires(name) or () if "extra ==" not in each]
        except metadata.PackageNotFoundError:
            return set()
        return {_normalized(each[0]) for each in found if each} & changed - {name}

    try:
        return list(TopologicalSorter({name: needs(name) for name in sorted(changed)}).static_order())
    except CycleError as error:
        note(f"packages that need each other are changed in the order of the alphabet: {', '.join(error.args[1])}")
        return sorted(changed)


def _hiding(absent: set[str], folder: Path) -> Path:
    """Return a folder for PYTHONPATH. With it, the modules that only these packages install cannot be imported."""
    owners = metadata.packages_distributions().items()
    modules = [module for module, names in owners if set(map(_normalized, names)) <= absent]
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"import sys\n\nsys.modules.update(dict.fromkeys({modules!r}))\n")
    return folder


# -- what was measured ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Process:
    """What one process left of a state. `failed`: why it cannot be used; else empty."""

    state: str
    workload: WorkloadResult | None
    failed: str = ""

    @property
    def run(self) -> Run | None:
        return None if self.workload is None or self.failed else self.workload.run


class _Record:
    """The file of one question: a header, then one JSON line a process. Whoever reads it knows all that was measured.

    Raises `KernelgaugeError` if the file is of another question, or cannot be read.
    """

    def __init__(self, path: Path, question: dict[str, Any]) -> None:
        self.path = path
        self.remedy = f"add --state OTHER.jsonl, or delete {path}"
        self.processes: list[_Process] = []
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]  # a process that was killed leaves a part of a line
        try:
            known, *lines = [json.loads(line) for line in whole.splitlines()] or [question]
            self.processes = msgspec.convert(lines, list[_Process])
        except (ValueError, msgspec.ValidationError) as error:
            known = f"what cannot be read: {error}"
        if known != question:
            raise KernelgaugeError(
                "the state file is of another question",
                where=str(path),
                got=json.dumps(known),
                expected=json.dumps(question),
                next_command=self.remedy,
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if whole != content or not whole:
            path.write_bytes(whole or json.dumps(question).encode() + b"\n")

    def add(self, process: _Process) -> None:
        """Append a process to the file."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(process) + b"\n")
        self.processes.append(process)

    def runs(self, state: str) -> list[Run]:
        """Return what was measured of a state, in order."""
        return [each.run for each in self.processes if each.state == state and each.run is not None]


# -- the search -------------------------------------------------------------------------------------------------------------


class _Search:
    """Measures the ends, then states between them, until the change is found."""

    def __init__(self, line: _Commits | _Packages, record: _Record, options: argparse.Namespace) -> None:
        self._line, self._record, self._options = line, record, options
        self._started, self._last = time.monotonic(), len(line.names) - 1

    def conclude(self) -> Exit:
        """Search, and print the answer."""
        verdicts = self._judged_ends()
        say("\n".join(f"{each.subject}: {each.status.value}  {each.headline}" for each in verdicts))
        changed = {each.subject for each in verdicts if each.status in (Status.REGRESSED, Status.IMPROVED)}
        invalid = [str(each) for each in verdicts if each.status is Status.INVALID]
        if STRUCTURE in changed:  # exact, also where a time could not be measured
            found = self._by_structure()
        elif invalid:
            raise KernelgaugeError("the ends cannot be compared", got="\n".join(invalid))
        elif changed:
            found = self._by_time(next(each for each in _CLOCKS if changed.intersection(each.labels)))
        else:
            say("nothing to bisect: the ends do not differ")
            found = []
        names = self._line.names
        ends = sum(each.state in (names[0], names[-1]) for each in self._record.processes)
        say(f"{len(self._record.processes)} processes, {ends} of them of the ends   state: {self._record.path}")
        return Exit.YES if found and all(high - low == 1 for low, high in found) else Exit.NO

    # -- measure

    def _judged_ends(self) -> Sequence[Verdict]:
        """Measure the ends in turns, at least three times each, until the rule has told them apart, or would have."""
        most = 2 ** (LOOKS - 1) * FEWEST
        for done in range(1, most + 1):
            # A B B A: what drifts meanwhile meets both alike.
            for index in (0, self._last) if done % 2 else (self._last, 0):
                if len(self._runs(index)) < done:
                    self._measure(index, "-k", self._options.workload)
            if done in looks(most):
                judged = self._judged(self._runs(0)[:done], self._runs(self._last)[:done])
                if not judged.undecided or not self._may_go_on():
                    break
        return judged.verdicts

    def _judged(self, good: Sequence[Run], bad: Sequence[Run]) -> JudgedSet:
        limits = next(each.workload.limits for each in self._record.processes if each.workload is not None)
        comparisons = LOOKS * max(1, len(good[0].samples))
        names = ("the good end", "the bad end")
        return judge_sets(good[0].workload, good, bad, comparisons=comparisons, limits=limits, names=names)

    def _may_go_on(self) -> bool:
        in_time: bool = time.monotonic() - self._started <= self._options.budget
        return in_time and len(self._record.processes) < self._options.processes

    def _measure(self, index: int, *selection: str, timer: Timer | None = None) -> None:
        """Measure one state. A failure counts only if an end still works behind it: otherwise the machine is at fault.

        `timer`: the time that must have been measured.
        """
        process = self._process(index, selection)
        run = process.run
        if timer and run and timer not in run.samples:
            process = _Process(process.state, process.workload, f"no {run.label(timer)}: {run.incomplete}")
        if process.failed:
            if index in (0, self._last):
                raise KernelgaugeError(
                    f"an end cannot be measured: {self._line.describe(index)}",
                    got=process.failed,
                    expected="both ends to build and run, on a machine that nobody else uses",
                )
            note(f"  it fails: {process.failed.splitlines()[-1]}")
            self._measure(0, *selection, timer=timer)
        self._record.add(process)

    def _process(self, index: int, selection: Sequence[str]) -> _Process:
        """Run one process. Raises `KernelgaugeError` if it is on another machine than the earlier ones."""
        options, name = self._options, self._line.names[index]
        note(f"process {len(self._record.processes) + 1}: {self._line.describe(index)}")
        pinned = ["-o", "kernelgauge_deterministic=true"]  # or the autotuner's choice could be what changed
        arguments = [options.suite, *pinned, *selection, *options.pytest_arguments]
        with self._line.code(index) as code:
            try:
                results = calibration.run_process(arguments, progress=note, may_fail=True, **code)
            except MeasurementError as error:
                return _Process(name, None, error.got or error.what)
        workload = _chosen(results.workloads, options.workload)
        if workload is None or workload.run is None:
            said = [each.headline for each in workload.verdicts] if workload else [f"no workload {options.workload}"]
            return _Process(name, None, "; ".join(said) or f"{workload and workload.unavailable}")
        run = workload.run
        earlier = next((each.run for each in self._record.processes if each.run), run)
        environment = compare(earlier.fingerprint, run.fingerprint)
        if earlier.place != run.place or (self._line.has_one_environment and not environment.identical):
            raise KernelgaugeError(
                "the state file is of another machine or environment",
                got=f"{run.place}; {environment}",
                expected=str(earlier.place),
                next_command=self._record.remedy,
            )
        run = msgspec.structs.replace(run, ops=(), work=())  # nobody reads them here
        return _Process(name, msgspec.structs.replace(workload, run=run, verdicts=(), baseline=None))

    # -- know

    def _runs(self, index: int) -> list[Run]:
        return self._record.runs(self._line.names[index])

    def _skipped(self) -> set[int]:
        failures = Counter(each.state for each in self._record.processes if each.failed)
        return {index for index, name in enumerate(self._line.names) if failures[name] >= _FAILURES}

    def _kinds(self, *, with_recompiles: bool = True) -> dict[int, int]:
        """Return the structure of each known state: a number, the same for the same kernels and counts.

        How often something recompiles depends on how long it was measured: whether it does is what counts.
        """
        known: list[Run] = []
        kinds: dict[int, int] = {}
        for index in range(self._last + 1):
            for run in self._runs(index):
                recompiles = int(with_recompiles and run.counts.recompiles > 0)
                one = msgspec.structs.replace(run, counts=msgspec.structs.replace(run.counts, recompiles=recompiles))
                alike = (place for place, each in enumerate(known) if _structure(each, one).status is Status.PASS)
                kind = next(alike, len(known))
                known[kind:] = known[kind:] or [one]
                if kinds.setdefault(index, kind) != kind:
                    raise KernelgaugeError(
                        f"processes of one state differ in kernels or counts: {self._line.describe(index)}",
                        expected="the same kernels and counts in each process",
                    )
        return kinds

    # -- by what is exact

    def _by_structure(self) -> list[tuple[int, int]]:
        """Measure until every change of structure lies between neighbours. Print them, and return them."""
        kinds = self._kinds(with_recompiles=False)
        # What recompiles on fresh allocations does so in the replicates of a time.
        is_recompile = kinds[0] == kinds[self._last]
        marks = () if is_recompile else ("-m", "structure")
        while True:
            found, skipped = boundaries(self._kinds(with_recompiles=is_recompile)), self._skipped()
            left = (middle(low, high, skipped) for low, high in found)
            index = next((each for each in left if each is not None), None)
            if index is None or not self._may_go_on():
                break
            self._measure(index, "-k", self._options.workload, *marks)
        if len(found) > 1:
            say(f"{len(found)} changes: there are states with the structure of neither end")
        for low, high in found:
            why = _structure(self._runs(low)[-1], self._runs(high)[-1]).brief()
            self._answer(low, high, f"exact: kernels and counts\n{why}")
        return found

    # -- by a time

    def _by_time(self, timer: Timer) -> list[tuple[int, int]]:
        """Measure until one change has 95 % of the posterior. Print it, and return it; empty if there is none."""
        while True:
            values = [None if each is None else [value for _, value in each] for each in self._times(timer)]
            found = suspects(values)
            best = max(found, key=lambda each: each.probability)
            index = next_state(values)
            if index is None or not self._may_go_on():
                break
            note(f"  {_percent(best.probability)} that it is {self._line.describe(best.high)}")
            self._measure(index, "-k", f"({self._options.workload}) and {timer.value}", timer=timer)
        kinds = self._kinds()
        for index in (each for each in kinds if kinds[each] != kinds[0]):
            say(f"a third state, with the structure of neither end: {self._line.describe(index)}")
        if best.probability < SURE:
            likely = sorted(found, key=lambda each: -each.probability)[:_SHOWN]
            lines = [f"  {_percent(each.probability)}  {self._line.describe(each.high)}" for each in likely]
            say("\n".join(["undecided: no change has 95 % of the posterior yet", *lines]))
            return []
        self._answer(*best[:2], f"{_percent(best.probability)} of the posterior\n{self._time_brief(timer, best)}")
        return [best[:2]]

    def _times(self, timer: Timer) -> list[list[tuple[Run, float]] | None]:
        """Return runs and their logarithms by state; None for a state without times that can be compared.

        A clock of the host counts in units of the host reference beside it.
        """
        kinds, skipped = self._kinds(), self._skipped()
        timed = next(run for run in self._runs(0) if timer in run.samples)
        is_by_host = from_run(timed, suite="").entries[0].is_by_host(timer)

        def logarithm(run: Run) -> float:
            return ProcessTime(observe(run.samples[timer], is_by_host=is_by_host), is_by_host=is_by_host).logarithm

        return [
            [(run, logarithm(run)) for run in self._runs(index) if timer in run.samples]
            if index not in skipped and kinds.get(index, kinds[0]) == kinds[0]
            else None
            for index in range(self._last + 1)
        ]

    def _time_brief(self, timer: Timer, found: Suspect) -> str:
        """Return both levels with their intervals, and the verdict of all processes behind the change by all before it."""
        times = self._times(timer)
        # Another version of a package is what is looked for, and no reason to compare nothing.
        common = {"fingerprint": self._runs(0)[0].fingerprint, "incomplete": None}
        sides, levels = [], []
        for part in (times[: found.low + 1], times[found.high :]):
            runs, values = zip(*(each for state in part for each in state or ()), strict=True)
            us, margin = geometric_mean(run.time_us(timer) for run in runs), level(values)[1]
            levels.append(f"{us:.2f} us ({us * math.exp(-margin):.2f} … {us * math.exp(margin):.2f})")
            sides.append([msgspec.structs.replace(run, samples={timer: run.samples[timer]}, **common) for run in runs])
        subjects = (*timer.labels, MEASUREMENT)
        briefs = [each.brief() for each in self._judged(*sides).verdicts if each.subject in subjects]
        return "\n".join([f"{runs[0].label(timer)}  {' -> '.join(levels)}", *briefs])

    # -- answer

    def _answer(self, low: int, high: int, text: str) -> None:
        if high - low == 1:
            say(f"\nfound: {self._line.describe(high)}\n{self._line.introduce(high)}\n{text}")
            return
        say(f"\n{high - low} suspects are left   {text}")
        failures = {each.state: each.failed.splitlines()[-1] for each in self._record.processes if each.failed}
        for index in range(low + 1, high + 1):
            failed = failures.get(self._line.names[index])
            say(f"  {self._line.describe(index)}" + (f"   skipped: {failed}" if failed else ""))


def _structure(before: Run, after: Run) -> Verdict:
    comparison = compare(before.fingerprint, after.fingerprint)
    return with_name(judge_structure(after, from_run(before, suite=""), comparison), "the state before")


def _percent(probability: float) -> str:
    return f"{100 * min(probability, 0.999):.1f} %"


def _chosen(workloads: Sequence[WorkloadResult], wanted: str) -> WorkloadResult | None:
    """Return the workload that is asked about. Raises `KernelgaugeError` if several match."""
    matching = [each for each in workloads if each.id == wanted] or list(workloads)
    if len(matching) > 1:
        raise KernelgaugeError(
            f"-k {wanted} selects {len(matching)} workloads",
            got=", ".join(each.id for each in matching),
            expected="one: a bisection asks about one workload",
        )
    return matching[0] if matching else None
