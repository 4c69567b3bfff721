"""What is asked of one session: its options, and the workloads that its suites declare."""

from __future__ import annotations

import os
import shlex
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import KernelgaugeError
from .run import Timer
from .shares import Share
from .workload import Workload

if TYPE_CHECKING:
    from .measure.device import DeviceChoice

__all__ = ["Options", "Suites", "WorkerPlace"]


@dataclass(frozen=True)
class WorkerPlace:
    """One of the processes that measure a suite together.

    `dist`: how tests are distributed, as pytest-xdist calls it; None: nobody knew of a suite. `others`: how many processes
    there are beside it.
    """

    id: str
    dist: str | None
    others: int


@dataclass(frozen=True)
class Options:
    """What the command line asked for. `invoked_from`, `measuring_arguments`: for commands in messages.

    `arguments`: all of pytest's, as they were given. `sensitivity`: the slowdown that a PASS may miss, as a fraction.
    """

    root: Path
    baselines: Path
    reports: Path
    device: DeviceChoice = "auto"
    update: bool = False
    runs: Path | None = None  # where to write what was measured; then nothing is compared
    history: str | None = None  # where to add what was found: a folder, or a URL
    require_baseline: bool = False
    strict: bool = False
    invoked_from: Path = Path()
    arguments: tuple[str, ...] = ()
    measuring_arguments: tuple[str, ...] = ()
    sensitivity: Mapping[Timer, float] = field(default_factory=dict)
    share: Share | None = None  # of the suite, for this run; None: all of it
    worker: WorkerPlace | None = None  # of pytest-xdist; None: the only process

    @property
    def repeats(self) -> int:
        """Return how many processes of this run measure the same: all workers under ``--dist each``."""
        return self.worker.others + 1 if self.worker and self.worker.dist == "each" else 1

    def kept(self, workloads: Sequence[Workload]) -> set[str]:
        """Return the ids of those in this run's share. Every machine divides them in one order, however they come."""
        ordered = sorted(workloads, key=lambda workload: workload.id)
        return self.share.of(ordered) if self.share else {workload.id for workload in ordered}

    def keeps(self, node: str) -> bool:
        """Return the same for a test of no workload, by pytest's id."""
        number = zlib.crc32(node.encode(errors="surrogateescape"))
        return self.share is None or number % self.share.count == self.share.index - 1

    @property
    def accepts(self) -> bool:
        """Whether what is measured is taken as it is: what differs from the baseline fails nothing."""
        return self.update or self.runs is not None


@dataclass(frozen=True)
class _Suite:
    name: str  # its folder, relative to the root: what a baseline remembers
    folder: Path
    workloads: list[Workload]


@dataclass
class Suites:
    """The workloads of every suite that was collected, and the commands that select them.

    `error`: a wrong declaration. It is kept until collection has ended, because pytest would make a traceback of it.
    """

    options: Options
    error: KernelgaugeError | None = None
    _suites: dict[Hashable, _Suite] = field(default_factory=dict)  # by the conftest or plugin that declares them
    _suite_of: dict[str, _Suite] = field(default_factory=dict)  # by workload id
    _workloads: dict[str, Workload] = field(default_factory=dict)

    def declare(self, plugin: Hashable, folder: Path, declaration: Callable[[], Any]) -> list[Workload]:
        """Return the workloads that a plugin declares for a folder, asked for once. Two with one id are an error."""
        if plugin not in self._suites:
            name = Path(os.path.relpath(folder, self.options.root)).as_posix()
            suite = self._suites[plugin] = _Suite(name, folder, self._ask(folder, declaration))
            for workload in suite.workloads:
                self._add(workload, suite)
        return self._suites[plugin].workloads

    def _ask(self, folder: Path, declaration: Callable[..., Any]) -> list[Workload]:
        try:
            declared = declaration()
        except KernelgaugeError as error:
            self.error = error
            return []
        if isinstance(declared, Iterable):
            workloads = list(declared)
            if all(isinstance(workload, Workload) for workload in workloads):
                return workloads
        self.error = KernelgaugeError(
            "pytest_kernelgauge_workloads must return workloads",
            where=str(folder / "conftest.py"),
            got=repr(declared)[:200],
            expected="a list of kernelgauge.Workload",
        )
        return []

    def _add(self, workload: Workload, suite: _Suite) -> None:
        if workload.id in self._workloads:
            self.error = KernelgaugeError(
                "two workloads have the same id",
                where=f"suites {self._suite_of[workload.id].name} and {suite.name}",
                got=workload.id,
                expected="one entry for each module, variant, pass, dtype and shape",
            )
        self._workloads[workload.id] = workload
        self._suite_of[workload.id] = suite

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

    def suite_of(self, identifier: str) -> str:
        return self._suite_of[identifier].name

    def declared(self) -> dict[str, tuple[str, ...]]:
        """Ids of all workloads, selected or not, by suite."""
        found: dict[str, tuple[str, ...]] = {}
        for suite in self._suites.values():
            found[suite.name] = (*found.get(suite.name, ()), *(workload.id for workload in suite.workloads))
        return found

    def sibling(self, workload: Workload, **changes: object) -> Workload:
        """The workload that differs in these fields only, for example ``variant="eager"``.

        Raises `KernelgaugeError` if no suite declares one.
        """
        wanted = {name: getattr(workload, name) for name in ("module", "variant", "pass_", "dtype", "shape")} | changes
        for other in self._workloads.values():
            if all(getattr(other, name) == value for name, value in wanted.items()):
                return other
        raise KernelgaugeError(f"{workload.id} has no sibling with {changes}", expected=", ".join(self._workloads))

    def command(self, workload: Workload | None = None, *, suites: Iterable[str] = ()) -> str:
        """The command that records a workload, or all that is declared, from where pytest was started.

        `suites`: their names, where other processes have collected them.
        """
        names = [self._suite_of[workload.id].name] if workload else list(suites) or list(self.declared())
        folders = sorted(os.path.relpath(self.options.root / name, self.options.invoked_from) for name in names)
        chosen = ("-k", self._selector(workload)) if workload else ()
        return shlex.join(["pytest", *folders, *chosen, *self.options.measuring_arguments, "--perf-update"])

    def _selector(self, workload: Workload) -> str:
        """What `-k` must say to select this workload and no other."""
        begins_another = any(workload.id in other and workload.id != other for other in self._workloads)
        return f"{workload.id}]" if begins_another else workload.id
