"""The workloads that the suites of a session declare, the tests that run for them, and the commands
that select them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..baselines import BaselineStore
from ..errors import KernelgaugeError, WorkloadError
from ..judge import RATIO, Status, Verdict
from ..judge import evidence as e
from ..judge.baseline import Baseline
from ..judge.timing import Limits
from ..results import selector
from ..results.files import read_file, require_inside
from ..run import COMPILE_TIMERS, Timer
from ..workload import Workload, to_name
from .options import Options

# of a test with a fixture that measures what the test calls
MADE_BY_TEST = pytest.StashKey[Workload]()
SKIPPED = "skipped, although it has a baseline"  # under --perf-strict
_MOST_SELECTED = 20  # by name, in a command


@dataclass
class Suites:
    """The workloads of every suite that was collected, selected or not.

    Attributes: workloads: by id, in the order in which they are declared. suite_of: the name of
        each one's suite, by id: its folder, relative to the root, or the file of the test that
        makes it. A baseline remembers that. made: the ids of those that tests make. folders: the
        name of each suite that was collected, also of one that declares nothing. error: a wrong
        declaration. It is kept until collection has ended, because pytest would make a traceback of
        it.
    """

    options: Options
    workloads: dict[str, Workload] = field(default_factory=dict)
    suite_of: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    folders: list[str] = field(default_factory=list)
    error: KernelgaugeError | None = None
    _files: dict[str, list[Path]] | None = None  # below the root, by name
    _asked: dict[Any, list[Workload]] = field(default_factory=dict)  # by the conftest or plugin
    _for_cpu: set[str] = field(default_factory=set)  # ids of those that took the place of others

    @cached_property
    def store(self) -> BaselineStore:
        return BaselineStore(self.options.baselines)

    # -- what is declared --------------------------------------------------------------------------

    def workloads_for(self, test: pytest.Metafunc) -> list[Workload]:
        """Return the workloads that a test runs for: those of its folder that its marks choose.

        Raises `KernelgaugeError` if the suite is declared wrongly.
        """
        declared: list[Workload] = []
        for hook in test.definition.ihook.pytest_kernelgauge_workloads.get_hookimpls():
            if hook.plugin not in self._asked:
                self._asked[hook.plugin] = []  # if it raises, no other test asks again
                # that of a conftest; an object may be a plugin too
                file = getattr(hook.plugin, "__file__", None)
                named = {"config": test.config} if "config" in hook.argnames else {}
                folder = Path(file).parent if file else test.config.rootpath
                self._asked[hook.plugin] = self._declare(folder, hook.function(**named))
            declared += self._asked[hook.plugin]
        marks = list(test.definition.iter_markers("workloads"))
        for mark in marks:
            if (
                mark.args
                or not mark.kwargs
                or not any(_matches(each, mark.kwargs) for each in declared)
            ):
                arguments = [
                    *map(repr, mark.args),
                    *(f"{name}={value!r}" for name, value in mark.kwargs.items()),
                ]
                modules = ", ".join(dict.fromkeys(each.module for each in declared))
                raise KernelgaugeError(
                    f"the mark matches no workload; modules: {modules or 'none'}",
                    where=test.definition.nodeid,
                    got=f"@pytest.mark.workloads({', '.join(arguments)})",
                    expected="fields of a workload, for example module='mlp', variant=('eager', 'compiled')",
                )
        return [
            each
            for each in declared
            if self.is_in_matrix(each)
            and (not marks or any(_matches(each, mark.kwargs) for mark in marks))
            and all(is_meant(each, self.options) for is_meant in _conditions_of(test))
        ]

    def _declare(self, folder: Path, returned: Any) -> list[Workload]:
        suite = Path(os.path.relpath(folder, self.options.root)).as_posix()
        self.folders.append(suite)
        found: list[Workload] = []
        for each in returned if isinstance(returned, Iterable) else [returned]:
            workload = each
            if not isinstance(workload, Workload):
                raise KernelgaugeError(
                    "pytest_kernelgauge_workloads must return workloads",
                    where=str(folder / "conftest.py"),
                    got=repr(returned)[:200],
                    expected="a list of kernelgauge.Workload",
                )
            if isinstance(workload.on_cpu, Workload) and self.options.is_on_cpu:
                workload = replace(workload.on_cpu, matrix=workload.matrix, on_cpu=None)
                if workload.id in self._for_cpu:  # another workload has the same form there
                    continue
                self._for_cpu.add(workload.id)
            self._add(
                workload,
                suite,
                expected="one entry for each module, variant, pass, dtype and shape",
            )
            found.append(workload)
        return found

    def _add(self, workload: Workload, suite: str, *, expected: str) -> None:
        if workload.id in self.workloads:
            raise KernelgaugeError(
                "two workloads have the same id",
                where=f"suites {self.suite_of[workload.id]} and {suite}",
                got=workload.id,
                expected=expected,
            )
        self.workloads[workload.id], self.suite_of[workload.id] = workload, suite

    def adopt(self, items: Iterable[pytest.Item], fixtures: Iterable[str]) -> None:
        """Give each test that asks for one of the fixtures a workload with the test's id.

        A call of the test says what it is.
        """
        for item in items:
            asked = set(fixtures).intersection(getattr(item, "fixturenames", ()))
            # The standard tests of a suite ask for `benchmark`, too.
            if not asked or (workload_of(item) is not None and "kernelgauge" not in asked):
                continue
            file, name = self.file_of(item), item.nodeid.partition("::")[2]
            numbers = re.sub(
                r"(?<![A-Za-z0-9_)\]}'])-(?=[\d.])", "neg", re.sub(r"(?<=\d)\.(?=\d)", "_", name)
            )
            module = self._module_of(file, to_name(numbers), item.config.getini("norecursedirs"))
            workload = Workload(
                module, to_name(numbers), build=_not_known, inputs=_not_known, dtype=None
            )
            try:
                self._add(
                    workload,
                    file,
                    expected="another name of one of the tests, or of its file or parameters",
                )
            except KernelgaugeError as error:
                self.error = self.error or error
            self.made.add(workload.id)
            item.stash[MADE_BY_TEST] = workload
            # `-k` knows it, as a suite's
            item.extra_keyword_matches.update((workload.id, f"[{workload.id}]"))

    def file_of(self, item: pytest.Item) -> str:
        """Return the file of a test. pytest has no name of one outside of its root."""
        file = item.nodeid.partition("::")[0]
        return file or Path(os.path.relpath(item.path, self.options.root)).as_posix()

    def _module_of(self, file: str, name: str, not_tests: Sequence[str]) -> str:
        """Return what stands for a file in the id of one of its tests: its name, with its folders
        where another may have that.

        A file that has recorded a baseline keeps its ids. Only the project's files and baselines
        decide, so that each run, of whichever tests, finds the same.
        """
        path = Path(file)
        plain, whole = to_name(path.stem), to_name(str(path.with_suffix("")))
        for module in (whole, plain):
            if file in (owners := {suite for _, suite, _ in self.stored(f"{module}-{name}")}):
                return module
        if owners and not any(map(self._is_there, owners)):
            return plain  # the file was moved
        return whole if owners or self._has_namesake(path, not_tests) else plain

    def stored(self, names: str, *, but: Container[str] = ()) -> Iterator[tuple[str, str, str]]:
        """Yield the device's folder, the suite and the name of each baseline whose name fits a
        pattern; an empty suite: it is unreadable. `but`: names to leave out.
        """
        with suppress(OSError):  # a name that is too long is refused later
            for path in self.options.baselines.glob(f"*/{names}.json"):
                if path.stem in but:
                    continue
                suite = ""
                with suppress(OSError, ValueError, KeyError):
                    require_inside(path, self.options.baselines)
                    fields = msgspec.json.decode(read_file(path), type=dict[str, msgspec.Raw])
                    suite = msgspec.json.decode(fields["suite"], type=str)
                yield path.parent.name, suite, path.stem

    def _is_there(self, suite: str) -> bool:
        """Whether a suite was not moved: its `conftest.py`, or the file of its tests, is there."""
        place = self.options.root / suite
        return bool(suite) and (place.is_file() or (place / "conftest.py").exists())

    def _has_namesake(self, file: Path, not_tests: Sequence[str]) -> bool:
        """Whether another file of tests has the same name, and asks for a fixture that measures."""
        if self._files is None:
            self._files = {}
            for folder, subfolders, names in os.walk(self.options.root):
                kept = [
                    each
                    for each in subfolders
                    if not any(fnmatch(each, pattern) for pattern in not_tests)
                ]
                subfolders[:] = [each for each in kept if not _is_other_project(Path(folder, each))]
                for name in names:
                    self._files.setdefault(name, []).append(Path(folder, name))
        others = [
            each for each in self._files.get(file.name, ()) if each != self.options.root / file
        ]
        return any(map(_asks_to_measure, others))

    def declared(self, whole_files: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
        """Return the ids of all workloads that suites declare, by suite, and of those that tests of
        whole files make, by file.

        Which tests another file has, no run knows for sure.
        """
        found: dict[str, tuple[str, ...]] = dict.fromkeys(whole_files, ())
        for name, suite in self.suite_of.items():
            if name not in self.made or suite in found:
                found[suite] = (*found.get(suite, ()), name)
        return found

    def require_workloads(self) -> None:
        """Raise `KernelgaugeError` for a suite that has nothing to measure, with --perf-strict and
        --perf-update.

        Whoever relies on it would not notice.
        """
        in_matrix = {
            self.suite_of[name] for name, each in self.workloads.items() if self.is_in_matrix(each)
        }
        empty = [suite for suite in self.folders if suite not in in_matrix]
        if empty and (self.options.strict or self.options.update):
            declares = "in the default matrix" if empty[0] in self.declared() else "at all"
            raise KernelgaugeError(
                f"the suite {empty[0]} declares no workload {declares}: nothing of it is measured"
            )

    def is_in_matrix(self, workload: Workload) -> bool:
        return self.options.full_matrix or workload.matrix == "default"

    def comparisons(self, timers: Sequence[Timer]) -> int:
        """Return how many times and ratios the suites have, selected or not: `-k` changes no
        verdict.
        """
        workloads = self.workloads.values()
        planned = sum(map(self.is_in_matrix, workloads))
        ratios = sum(
            workload.faster_than is not None and workload.id not in self.made
            for workload in workloads
        )
        compiled = [
            each for each in workloads if each.compile is not None and self.is_in_matrix(each)
        ]
        compiles = len(compiled) if self.options.compiles else 0
        return max(1, planned) * len(timers) + ratios + len(COMPILE_TIMERS) * compiles

    def limits(self, workload: Workload) -> Limits:
        """Return the workload's limits, and the project's where it has none."""
        project = self.options.limits
        return Limits(
            gate={**project.gate, **{Timer(name): value for name, value in workload.gate.items()}},
            sensitivity={
                **project.sensitivity,
                **{Timer(name): value for name, value in workload.sensitivity.items()},
            },
        )

    def require_own(self, baseline: Baseline | None) -> None:
        """Raise `WorkloadError` if a baseline belongs to another suite, which is still there: it was
        not moved.
        """
        if baseline is None or baseline.suite == self.suite_of[baseline.workload]:
            return
        if self._is_there(baseline.suite):
            raise WorkloadError(
                "two suites share this baseline",
                got=f"{baseline.workload} in {baseline.suite}, which recorded it, and in {self.suite_of[baseline.workload]}",
                expected="another module or variant in one of them, or a folder of baselines for each",
                next_command=f"{self.command(self.workloads[baseline.workload], update=False)} -o kernelgauge_baselines=DIR",
            )

    def sibling(self, workload: Workload, **changes: object) -> Workload:
        """Return the workload that differs in these fields only, for example ``variant="eager"``.

        Raises `KernelgaugeError` if no suite declares one.
        """
        wanted = {
            name: getattr(workload, name)
            for name in ("module", "variant", "pass_", "dtype", "shape")
        } | changes
        for other in self.workloads.values():
            if all(getattr(other, name) == value for name, value in wanted.items()):
                return other
        raise KernelgaugeError(
            f"{workload.id} has no sibling with {changes}", expected=", ".join(self.workloads)
        )

    # -- which tests run ---------------------------------------------------------------------------

    def select(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the tests of this run: those of each workload together, as these are declared, and
        all others behind them.

        Workloads are measured in the order of their tests, and what a GPU did before shows in a
        time (docs/measuring.md). A CPU runs none that needs a GPU. With ``--perf-strict`` a
        workload that cannot run there is selected, and fails.
        """
        # `is_on_cpu` comes second, since it imports torch.
        selected = [
            item
            for item in items
            if not (_needs_gpu(item, self.options) and self.options.is_on_cpu)
        ]
        if self.options.calibrating:
            selected = [item for item in selected if _calibrates(item)]
        # every worker divides the suite alike; the first one runs all other tests
        if self.options.share is not None:
            index, count = self.options.share
            groups = list(dict.fromkeys(map(group_of, sorted(workloads_of(selected), key=str))))[
                index - 1 :: count
            ]
            selected = [
                item
                for item in selected
                if (group_of(workload) in groups if (workload := workload_of(item)) else index == 1)
            ]
        places = {name: place for place, name in enumerate(self.workloads) if name not in self.made}
        return sorted(selected, key=lambda item: places.get(str(workload_of(item)), len(places)))

    # -- commands ----------------------------------------------------------------------------------

    def command(
        self, workload: Workload | None = None, *, suites: Iterable[str] = (), update: bool = True
    ) -> str:
        """Return the command that records a workload, or all that is declared, from where pytest
        was started.

        `suites`: their names, where other processes have collected them. `update`: else it measures
        only.
        """
        names = (
            [self.suite_of[workload.id]]
            if workload
            else list(suites) or sorted(set(self.suite_of.values()))
        )
        parts = [name.partition("::") for name in names]  # a parameter may look like a path
        folders = sorted(
            f"{os.path.relpath(self.options.root / part[0], self.options.invoked_from)}{''.join(part[1:])}"
            for part in parts
        )
        chosen = ("-k", self.selector(workload)) if workload else ()
        action = ("--perf-update",) if update else ()
        return shlex.join(["pytest", *folders, *chosen, *self.options.repeated, *action])

    def how_to_record(
        self, verdicts: Iterable[Verdict], devices: Collection[str], suites: Iterable[str] = ()
    ) -> str:
        """Return which baselines these verdicts miss, or which times in them, and the command that
        records them.
        """
        verdicts = list(verdicts)
        missing = [each for each in verdicts if each.status is Status.NO_BASELINE]
        folder = "/, ".join(
            sorted({self.options.shown(self.store.path(each, "x").parent) for each in devices})
        )
        command = self.command(suites=suites)
        every = {each.workload for each in verdicts}
        names = {each.workload for each in missing}
        # Others may have failed, and would be stored as they are.
        if 0 < len(names) < min(len(every), _MOST_SELECTED):
            chosen = " or ".join(selector(name, every) for name in sorted(names))
            command += f" -k {shlex.quote(chosen)}"
        if all(
            isinstance(each.conclusion, e.NoBaseline) and each.conclusion.is_partial
            for each in missing
        ):
            times = " and ".join(dict.fromkeys(each.subject for each in missing))
            return f"the baselines in {folder}/ have no {times}; record them with: {command}"
        others = (
            self.of_other_threads(each, {verdict.workload for verdict in missing})
            for each in devices
        )
        return "; ".join(
            [f"no baseline in {folder}/", *chain(*others), f"record one with: {command}"]
        )

    def of_other_threads(self, device: str, workloads: Iterable[str]) -> list[str]:
        """Return which folders have baselines of these workloads on this kind of CPU with another
        number of threads.
        """
        found: dict[str, str] = {}
        for workload in workloads:
            own = self.store.path(device, workload)
            kind = own.parent.name.removesuffix("-threads").rpartition("-")[0]
            is_cpu = own.parent.name.endswith("-threads")
            for file in (
                sorted(self.store.root.glob(f"{kind}-*-threads/{own.name}")) if is_cpu else ()
            ):
                count = file.parent.name.removeprefix(f"{kind}-").removesuffix("-threads")
                if file != own and count.isdecimal():
                    found[self.options.shown(file.parent)] = count
        return [f"{folder} has one: OMP_NUM_THREADS={count}" for folder, count in found.items()]

    def declaration(self, workload: Workload, option: str) -> str:
        """Return how an option is declared, in the form that the workload has."""
        if workload.id not in self.made:
            return f"Workload(..., {option})"
        has_benchmark = "--perf-benchmark" in self.options.repeated  # its fixture takes no option
        return (
            f"@pytest.mark.kernelgauge({option})"
            if has_benchmark
            else f"kernelgauge.using({option})(f, x)"
        )

    def selector(self, workload: Workload) -> str:
        """Return what `-k` must say to select this workload and no other."""
        return selector(workload.id, self.workloads)


def _is_other_project(folder: Path) -> bool:
    """Return whether a folder is an environment or another checkout."""
    return any((folder / mark).exists() for mark in ("pyvenv.cfg", ".git"))


def _asks_to_measure(file: Path) -> bool:
    with suppress(OSError):  # one that cannot be read has no tests
        return file.is_file() and bool(
            re.search("kernelgauge|benchmark", file.read_text(errors="replace"))
        )
    return False


def _not_known() -> Any:
    raise WorkloadError("a workload of a test is measured when the test calls it")


# -- tests -----------------------------------------------------------------------------------------


def workload_of(item: pytest.Item) -> Workload | None:
    """Return the workload that a test runs for, or makes; None for a test of something else."""
    if (made := item.stash.get(MADE_BY_TEST, None)) is not None:
        return made
    callspec = getattr(item, "callspec", None)
    value = callspec.params.get("workload") if callspec else None
    return value if isinstance(value, Workload) else None


def subjects_of(item: pytest.Item) -> list[str]:
    """Return the subjects that a standard test asks a verdict on: its mark names them."""
    config = item.config
    has_latency = not any(
        config.getoption(f"benchmark_{each}", default=False) for each in ("disable", "skip")
    )
    marks = (
        mark for kind in ("structure", "timing", "numerics") for mark in item.iter_markers(kind)
    )
    subjects = (
        each
        for mark in marks
        for each in mark.args
        if has_latency or each != Timer.END_TO_END.label
    )
    return list(subjects) if "kernelgauge_test" in getattr(item, "fixturenames", ()) else []


def workloads_of(items: Iterable[pytest.Item]) -> list[Workload]:
    """Return each workload once, in order of their first test."""
    return list(
        {workload.id: workload for item in items if (workload := workload_of(item))}.values()
    )


def group_of(workload: Workload) -> str:
    """Return the name of the variants that a suite compares, so that one GPU must measure them: the
    id without the variant.
    """
    return workload.module + workload.id.removeprefix(f"{workload.module}-{workload.variant}")


# Subjects of tests that run for some workloads only, and for which.
_CONDITIONS: dict[str, Callable[[Workload, Options], bool]] = {
    RATIO: lambda workload, _: workload.faster_than is not None,
    **{
        each.label: lambda workload, options: workload.compile is not None and options.compiles
        for each in COMPILE_TIMERS
    },
}


def _conditions_of(
    test: pytest.Item | pytest.Metafunc,
) -> list[Callable[[Workload, Options], bool]]:
    item = test.definition if isinstance(test, pytest.Metafunc) else test
    return [_CONDITIONS[each] for each in subjects_of(item) if each in _CONDITIONS]


def is_conditional(test: pytest.Item | pytest.Metafunc) -> bool:
    """Whether a test runs for some workloads only. Without such a workload it is left out."""
    return bool(_conditions_of(test))


def _needs_gpu(item: pytest.Item, options: Options) -> bool:
    workload = workload_of(item)
    if workload is None:
        return False
    return item.get_closest_marker("gpu") is not None or (
        isinstance(workload.on_cpu, str) and not options.strict
    )


def _calibrates(item: pytest.Item) -> bool:
    """Whether a calibration needs a test: those of timers, and those that say whether a workload is
    what it declares.

    Not those of ratios: each would measure another workload.
    """
    marks = {mark.name for mark in item.iter_markers()}
    return workload_of(item) is not None and (
        MADE_BY_TEST in item.stash
        or "structure" in marks
        or ("timing" in marks and RATIO not in subjects_of(item))
    )


def _matches(workload: Workload, fields: Mapping[str, object]) -> bool:
    """Whether all fields have the values.

    A tuple means one of its parts, or all of it, as a shape is.
    """
    values = [(getattr(workload, name, None), wanted) for name, wanted in fields.items()]
    return all(
        value == wanted or (isinstance(wanted, tuple) and value in wanted)
        for value, wanted in values
    )
