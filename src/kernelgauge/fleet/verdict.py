"""What several machines say together: whether the build is slower, or one GPU is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ..judge import Status, worst
from ..results import Results, WorkloadResult
from .causes import Cause, Conclusion, concluded, concluded_of_all
from .machines import Machine, machines_of
from .shards import missing_shards

__all__ = ["Cause", "Conclusion", "Fleet", "FleetWorkload", "Machine", "fleet"]


@dataclass(frozen=True)
class FleetWorkload:
    """One workload on every machine that was to measure it. `conclusion`: None where it failed nowhere."""

    id: str
    seen: tuple[tuple[Machine, WorkloadResult], ...]
    conclusion: Conclusion | None

    @property
    def status(self) -> Status | None:
        return worst([result.status for _, result in self.seen if result.status is not None])


@dataclass(frozen=True)
class Fleet:
    """All of it.

    Attributes:
        conclusion: of all that failed; None: no workload did.
        problems: what failed beside the workloads: a shard that is missing, a part that was lost, a run that ended badly.
        notes: what is no failure, and good to know.
    """

    machines: tuple[Machine, ...]
    workloads: tuple[FleetWorkload, ...]
    conclusion: Conclusion | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        return self.conclusion is not None or bool(self.problems)

    @property
    def passes(self) -> bool:
        """Whether everything that can run was decided, and nothing failed. Nothing at all is no pass."""
        return not self.fails and self.judged > 0 and not self.undecided

    @property
    def judged(self) -> int:
        """Workloads, counted on each machine."""
        return sum(result.status is not None for _, result in self._seen())

    @property
    def undecided(self) -> int:
        """Of those, and of those that were not judged, what nothing was concluded of. What cannot run is none."""
        return sum(
            not result.status.decided if result.status is not None else result.unavailable is None
            for _, result in self._seen()
        )

    def _seen(self) -> Iterator[tuple[Machine, WorkloadResult]]:
        return (each for workload in self.workloads for each in workload.seen)


def fleet(results: Sequence[Results], *, lost: Sequence[str] = ()) -> Fleet:
    """The machines that `merge` told apart, side by side. A machine is a GPU with its host, its software and its commit.

    `lost`: what should be here and cannot be read, a text each: a fleet without a part of its own is no pass.
    """
    machines = machines_of(results)
    by_id: dict[str, list[tuple[Machine, WorkloadResult]]] = {}
    for machine in machines:
        for workload in machine.workloads:
            by_id.setdefault(workload.id, []).append((machine, workload))
    workloads = tuple(FleetWorkload(name, tuple(seen), concluded(seen)) for name, seen in by_id.items())
    failing = [(each.id, each.conclusion) for each in workloads if each.conclusion is not None]
    return Fleet(
        machines=machines,
        workloads=workloads,
        conclusion=concluded_of_all(failing, machines) if failing else None,
        problems=(*lost, *_problems(results)),
        notes=tuple(_notes(results, machines)),
    )


def _problems(results: Sequence[Results]) -> Iterator[str]:
    if not results:
        yield "no results: nothing was measured"
    missing, more = missing_shards([each.arguments for each in results])
    for share in missing:
        yield f"shard {share} is missing: no part says that it measured it"
    if more:
        yield f"and {more} more of the shards"
    for each in results:
        failed = sum(test.outcome == "failed" for test in each.tests)
        if each.exit_status and (each.status is None or not each.status.fails):
            ended = f"the run that started at {each.started_at} ended with exit status {each.exit_status}"
            yield f"{ended}, {failed} of {len(each.tests)} tests failed" if failed else ended
        elif failed and (each.status is None or not each.status.fails):
            yield f"of the run that started at {each.started_at}, {failed} of {len(each.tests)} tests failed"


def _notes(results: Sequence[Results], machines: Sequence[Machine]) -> Iterator[str]:
    declared = dict.fromkeys(name for each in results for names in each.declared.values() for name in names)
    told = {workload.id for machine in machines for workload in machine.workloads}
    absent = [name for name in declared if name not in told]
    if absent:
        shown = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        yield f"{len(absent)} of {len(declared)} declared workloads were measured nowhere: {shown}"
    for one, other in combinations(machines, 2):
        if one.place == other.place and one.commit == other.commit and one.fingerprint == other.fingerprint:
            yield f"{one.name} and {other.name} are one GPU with the same software, and were not joined"
