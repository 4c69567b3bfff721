"""The workloads that the suites of a session declare, the commands that select them, and the tests that run for them."""

from __future__ import annotations

import itertools
import os
import shlex
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ..errors import KernelgaugeError
from ..workload import Workload
from .options import Options

__all__ = [
    "Suites",
    "is_in_share",
    "is_timed",
    "keep",
    "matches",
    "sort_by_workload",
    "workload_of",
    "workloads_of",
    "wrong_mark",
]


@dataclass
class Suites:
    """The workloads of every suite that was collected, and the commands that select them.

    `error`: a wrong declaration. It is kept until collection has ended, because pytest would make a traceback of it.
    """

    options: Options
    error: KernelgaugeError | None = None
    # A suite is named by its folder, relative to the root: a baseline remembers that.
    _declared: dict[Hashable, tuple[str, list[Workload]]] = field(default_factory=dict)  # by the conftest or plugin
    _suite_of: dict[str, str] = field(default_factory=dict)  # by workload id
    _workloads: dict[str, Workload] = field(default_factory=dict)
    _for_cpu: set[str] = field(default_factory=set)  # ids of those that took the place of others
    # Ids of smaller workloads that leave out the `faster_than` of those they stand for.
    _without_ratio: set[str] = field(default_factory=set)
    _for_gpu: int = 0  # tests that are not selected

    def declare(self, plugin: Hashable, folder: Path, declaration: Callable[[], Any]) -> list[Workload]:
        """Return the workloads that a plugin declares for a folder, asked for once. Two with one id are an error."""
        if plugin not in self._declared:
            suite = Path(os.path.relpath(folder, self.options.root)).as_posix()
            self._declared[plugin] = suite, self._ask(folder, declaration)
            for workload in self._declared[plugin][1]:
                self._add(workload, suite)
        return self._declared[plugin][1]

    def _ask(self, folder: Path, declaration: Callable[..., Any]) -> list[Workload]:
        try:
            declared = declaration()
        except KernelgaugeError as error:
            self.error = error
            return []
        if isinstance(declared, Iterable):
            workloads = list(declared)
            if all(isinstance(workload, Workload) for workload in workloads):
                fitting = (self._fitting(workload) for workload in workloads)
                return [workload for workload in fitting if workload is not None]
        self.error = KernelgaugeError(
            "pytest_kernelgauge_workloads must return workloads",
            where=str(folder / "conftest.py"),
            got=repr(declared)[:200],
            expected="a list of kernelgauge.Workload",
        )
        return []

    def _fitting(self, workload: Workload) -> Workload | None:
        """Return what runs on this device; None if another workload has the same form for a CPU."""
        if not isinstance(workload.on_cpu, Workload) or not self.options.is_on_cpu:
            return workload
        chosen = replace(workload.on_cpu, matrix=workload.matrix, on_cpu=None)
        if chosen.id in self._for_cpu:
            return None
        self._for_cpu.add(chosen.id)
        if workload.faster_than is not None and chosen.faster_than is None:
            self._without_ratio.add(chosen.id)
        return chosen

    def _add(self, workload: Workload, suite: str) -> None:
        if workload.id in self._workloads:
            self.error = KernelgaugeError(
                "two workloads have the same id",
                where=f"suites {self._suite_of[workload.id]} and {suite}",
                got=workload.id,
                expected="one entry for each module, variant, pass, dtype and shape",
            )
        self._workloads[workload.id] = workload
        self._suite_of[workload.id] = suite

    def runnable(self, items: Sequence[pytest.Item]) -> list[bool]:
        """Return of each test whether this device can run it: a CPU none that needs a GPU.

        With ``--perf-strict`` a workload that cannot run here is selected all the same, and fails.
        """

        def needs_gpu(item: pytest.Item) -> bool:
            workload = workload_of(item)
            if workload is None:
                return False
            cannot_run = isinstance(workload.on_cpu, str) and not self.options.strict
            return cannot_run or item.get_closest_marker("gpu") is not None

        kept = [not (needs_gpu(item) and self.options.is_on_cpu) for item in items]
        self._for_gpu = kept.count(False)
        return kept

    def changes_on_cpu(self, items: Sequence[pytest.Item]) -> str:
        """Return what a CPU changes, in one line; empty if nothing."""
        changes = []
        if self._for_gpu:
            tests = "1 test that needs a GPU is" if self._for_gpu == 1 else f"{self._for_gpu} tests that need a GPU are"
            changes.append(f"{tests} deselected")
        if sized := [workload.id for workload in workloads_of(items) if workload.id in self._for_cpu]:
            changes.append(f"smaller workloads: {', '.join(sized)}")
        if untested := [identifier for identifier in sized if identifier in self._without_ratio]:
            changes.append(f"faster_than is not tested for {', '.join(untested)}")
        return f"on a CPU: {'; '.join(changes)}" if changes else ""

    def __bool__(self) -> bool:
        return bool(self._workloads)

    def workload(self, identifier: str) -> Workload:
        return self._workloads[identifier]

    def in_order(self, workloads: Iterable[Workload]) -> list[Workload]:
        """As they are declared, whatever order their tests come in; those that no suite declares behind them.

        What a GPU did before shows in a time (docs/measuring.md): what is compared with each other must be measured in one
        order.
        """
        places = {identifier: place for place, identifier in enumerate(self._workloads)}
        return sorted(workloads, key=lambda workload: places.get(workload.id, len(places)))

    def count(self, *, full: bool) -> int:
        """Return how many workloads the suites declare, selected or not; without the full matrix unless it is asked for."""
        return sum(full or workload.matrix == "default" for workload in self._workloads.values())

    def count_ratios(self) -> int:
        """Return how many workloads say that they are faster than another variant."""
        return sum(workload.faster_than is not None for workload in self._workloads.values())

    def suite_of(self, identifier: str) -> str:
        return self._suite_of[identifier]

    def declared(self) -> dict[str, tuple[str, ...]]:
        """Ids of all workloads, selected or not, by suite."""
        found: dict[str, tuple[str, ...]] = {}
        for suite, workloads in self._declared.values():
            found[suite] = (*found.get(suite, ()), *(workload.id for workload in workloads))
        return found

    def sibling(self, workload: Workload, **changes: object) -> Workload:
        """Return the workload that differs in these fields only, for example ``variant="eager"``.

        Raises `KernelgaugeError` if no suite declares one.
        """
        wanted = {name: getattr(workload, name) for name in ("module", "variant", "pass_", "dtype", "shape")} | changes
        for other in self._workloads.values():
            if all(getattr(other, name) == value for name, value in wanted.items()):
                return other
        raise KernelgaugeError(f"{workload.id} has no sibling with {changes}", expected=", ".join(self._workloads))

    def command(self, workload: Workload | None = None, *, suites: Iterable[str] = (), update: bool = True) -> str:
        """Return the command that records a workload, or all that is declared, from where pytest was started.

        `suites`: their names, where other processes have collected them. `update`: else it measures only.
        """
        names = [self._suite_of[workload.id]] if workload else list(suites) or list(self.declared())
        folders = sorted(os.path.relpath(self.options.root / name, self.options.invoked_from) for name in names)
        chosen = ("-k", self.selector(workload)) if workload else ()
        action = ("--perf-update",) if update else ()
        return shlex.join(["pytest", *folders, *chosen, *self.options.measuring_arguments, *action])

    def selector(self, workload: Workload) -> str:
        """Return what `-k` must say to select this workload and no other."""
        is_in_another = any(workload.id in other and workload.id != other for other in self._workloads)
        return f"[{workload.id}]" if is_in_another else workload.id


# -- tests ------------------------------------------------------------------------------------------------------------


def workload_of(item: pytest.Item) -> Workload | None:
    """Return the workload that a test runs for; None for a test of something else."""
    callspec = getattr(item, "callspec", None)
    value = callspec.params.get("workload") if callspec else None
    return value if isinstance(value, Workload) else None


def workloads_of(items: Sequence[pytest.Item]) -> list[Workload]:
    """Return each workload once, in order of their first test."""
    return list({workload.id: workload for item in items if (workload := workload_of(item))}.values())


def is_timed(item: pytest.Item) -> bool:
    """Whether a test judges or reads times."""
    return item.get_closest_marker("timing") is not None


def is_in_share(items: Sequence[pytest.Item], options: Options) -> list[bool]:
    """Return of each test whether it is in this machine's share. Every machine divides the suite alike."""
    share = options.share
    if share is None:
        return [True] * len(items)
    ids = share.of(sorted(workloads_of(items), key=lambda workload: workload.id))

    def is_in(item: pytest.Item) -> bool:
        workload = workload_of(item)
        if workload is not None:
            return workload.id in ids
        return zlib.crc32(item.nodeid.encode(errors="surrogateescape")) % share.count == share.index - 1

    return [is_in(item) for item in items]


def sort_by_workload(items: list[pytest.Item], workloads: Sequence[Workload]) -> None:
    """Put all tests of a workload together, in the order of `workloads`.

    Tests without a workload run first if the first test is one of them, else last.
    """
    others = -1 if items and workload_of(items[0]) is None else len(workloads)
    places = {workload.id: place for place, workload in enumerate(workloads)}

    def place(item: pytest.Item) -> int:
        workload = workload_of(item)
        return others if workload is None else places[workload.id]

    items.sort(key=place)


def keep(config: pytest.Config, items: list[pytest.Item], kept: Sequence[bool]) -> None:
    """Deselect the others."""
    others = [item for item, keep in zip(items, kept, strict=True) if not keep]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = itertools.compress(items, kept)


# -- the mark `workloads` ---------------------------------------------------------------------------------------------


def wrong_mark(mark: pytest.Mark, workloads: Sequence[Workload]) -> str | None:
    """Return why a mark `workloads` cannot mean what it says; None if it can."""
    if mark.args or not mark.kwargs:
        return "the mark workloads takes fields by name, and at least one"
    unknown = [name for name in mark.kwargs if workloads and not hasattr(workloads[0], name)]
    if unknown:
        return f"a workload has no field {', '.join(unknown)}"
    if not any(matches(workload, mark.kwargs) for workload in workloads):
        modules = ", ".join(dict.fromkeys(workload.module for workload in workloads))
        return f"the mark matches no workload; modules: {modules or 'none'}"
    return None


def matches(workload: Workload, fields: Mapping[str, object]) -> bool:
    """Whether all fields have the values. A tuple means one of its parts, or all of it, as a shape is."""

    def is_one_of(value: object, wanted: object) -> bool:
        return value == wanted or (isinstance(wanted, tuple) and value in wanted)

    return all(is_one_of(getattr(workload, name, None), wanted) for name, wanted in fields.items())
