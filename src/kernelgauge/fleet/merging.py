"""Several results that belong together, made one: of the workers of a run, of its shards, of several machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import msgspec

from ..judge import Verdict, compare
from ..results import Results, TestResult, WorkloadResult
from .shards import joined_arguments
from .spans import named, overlaps, seconds_of_all, start, strange_times

__all__ = ["merge"]

_T = TypeVar("_T")

_WORST_FIRST = (3, 2, 1, 4)  # pytest.ExitCode: internal error, interrupted, tests failed, usage error
_NOTHING_COLLECTED = 5


def merge(parts: Sequence[Results], *, now: datetime | None = None) -> list[Results]:
    """One `Results` for each machine that `parts` tell of, in order of their starts.

    Parts join if they were measured with the same software on the same kind of device, at one commit, and no workload of
    theirs was measured on two GPUs: a share of the workloads each, or more of the same GPU. What was measured on another
    GPU, at another commit, or with other software stays apart. A part that measured nothing (`fingerprint` None) joins
    where there is one machine only that it can belong to.

    In what joined, the later part counts where two have the same: the run of a workload, the verdict on a subject, a test.
    A failure that a later part replaced so is named in a warning, and the exit status is the worst of all. Equal parts are
    counted once. The order of `parts` decides only between equal starts.

    Args:
        now: to name parts that say they started later; aware of its time zone. None: not looked at.
    """
    repeated: dict[bytes, int] = {}
    kept: list[Results] = []
    for part in parts:
        content = msgspec.json.encode(part)
        repeated[content] = repeated.get(content, 0) + 1
        if repeated[content] == 1:
            kept.append(part)
    told = [
        _warned(part, [*_copies(part, repeated[msgspec.json.encode(part)]), *strange_times(part, now)])
        for part in sorted(kept, key=start)
    ]
    measured = _joined([_Group((part,)) for part in told if part.fingerprint is not None])
    unmeasured = _joined([_Group((part,)) for part in told if part.fingerprint is None])
    apart: list[_Group] = []
    for group in unmeasured:  # of several machines, nothing says which one it belongs to
        if len(measured) == 1 and measured[0].fits(group):
            measured = [measured[0].with_(group)]
        else:
            apart.append(group)
    return [group.merged() for group in sorted([*measured, *apart], key=lambda group: start(group.parts[0]))]


@dataclass(frozen=True)
class _Group:
    """Parts that become one, in order of their starts."""

    parts: tuple[Results, ...]

    def with_(self, other: _Group) -> _Group:
        return _Group(tuple(sorted((*self.parts, *other.parts), key=start)))

    def fits(self, other: _Group) -> bool:
        """Whether the two can be one: nothing that was measured is then hidden by what was measured elsewhere."""
        prints = [part.fingerprint for part in (*self.parts, *other.parts) if part.fingerprint is not None]
        of_one = all(compare(prints[0], each).identical for each in prints[1:])
        commits = {_sha(part.commit) for part in (*self.parts, *other.parts)} - {None}
        return of_one and len(commits) <= 1 and self._fits_in_workloads(other)

    def _fits_in_workloads(self, other: _Group) -> bool:
        theirs: dict[str, list[tuple[object, ...]]] = {}
        for part, workload in other._workloads():
            theirs.setdefault(workload.id, []).append((_where(part, workload), _asked(workload)))
        return all(
            (place := _where(part, workload)) is not None and (place, _asked(workload)) == each
            for part, workload in self._workloads()
            for each in theirs.get(workload.id, ())
        )

    def shares_a_gpu(self, other: _Group) -> bool:
        return bool(self._places() & other._places())

    def _places(self) -> set[str]:
        places = {_where(part, workload) for part, workload in self._workloads()}
        return {place for place in places if place is not None}

    def _workloads(self) -> Iterator[tuple[Results, WorkloadResult]]:
        return ((part, workload) for part in self.parts for workload in part.workloads)

    def merged(self) -> Results:
        if len(self.parts) == 1:
            return self.parts[0]
        first = self.parts[0]
        declared = _declared(self.parts)
        workloads, replaced = _workloads(self.parts)
        place = {name: number for number, name in enumerate(name for names in declared.values() for name in names)}
        workloads.sort(key=lambda workload: place.get(workload.id, len(place)))
        tests, failed_before = _tests(self.parts)
        gpus = {part.gpu for part in self.parts if part.fingerprint is not None}
        commits = [part.commit for part in self.parts if part.commit is not None]
        told = [*_differences(self.parts), *overlaps(self.parts), *replaced, *failed_before]
        return Results(
            schema_version=first.schema_version,
            kernelgauge=first.kernelgauge,
            started_at=first.started_at,
            seconds=seconds_of_all(self.parts),
            arguments=joined_arguments([part.arguments for part in self.parts]),
            fingerprint=next((part.fingerprint for part in self.parts if part.fingerprint is not None), None),
            gpu=gpus.pop() if len(gpus) == 1 else None,
            not_watched="; ".join(_once(part.not_watched for part in self.parts if part.not_watched)),
            workloads=tuple(workloads),
            tests=tuple(tests),
            warnings=_once([*(warning for part in self.parts for warning in part.warnings), *told]),
            exit_status=_exit_status([part.exit_status for part in self.parts]),
            host=first.host if len({part.host for part in self.parts}) == 1 else "",
            commit=max(commits, key=len, default=None),  # that with the "+" of local changes, if there is one
            timers=_once(timer for part in self.parts for timer in part.timers),
            comparisons=max(part.comparisons for part in self.parts),
            declared=declared,
            baselines=first.baselines,
        )


def _joined(groups: Sequence[_Group]) -> list[_Group]:
    """First what was measured on one GPU, then GPUs that have no workload in common."""
    for only_of_one_gpu in (True, False):
        joined: list[_Group] = []
        for group in groups:
            candidates = (i for i, each in enumerate(joined) if not only_of_one_gpu or each.shares_a_gpu(group))
            into = next((i for i in candidates if joined[i].fits(group)), None)
            if into is None:
                joined.append(group)
            else:
                joined[into] = joined[into].with_(group)
        groups = joined
    return list(groups)


def _where(part: Results, workload: WorkloadResult) -> str | None:
    """Which GPU; of a CPU, and where nothing was measured, which host. None: not known, so it is the same as no other."""
    host = f"host {part.host}" if part.host else None
    if part.fingerprint is None:
        return host
    gpu = workload.run.gpu if workload.run is not None else part.gpu
    return gpu or (host if part.fingerprint.arch == "cpu" else None)  # there may be several GPUs


def _asked(workload: WorkloadResult) -> tuple[object, ...]:
    return (
        workload.suite,
        workload.module,
        workload.variant,
        workload.dtype,
        workload.pass_,
        workload.shape,
    )


def _sha(commit: str | None) -> str | None:
    """Without the mark of local changes: a run may write files that git sees."""
    return commit.removesuffix("+") if commit is not None else None


# -- what the parts have in common ----------------------------------------------------------------------------------


def _workloads(parts: Sequence[Results]) -> tuple[list[WorkloadResult], list[str]]:
    """(each once, a text for each failing verdict that a later one replaced)."""
    merged: dict[str, WorkloadResult] = {}
    replaced: list[str] = []
    for part in parts:
        for new in part.workloads:
            old = merged.get(new.id)
            if old is None:
                merged[new.id] = new
                continue
            subjects = {verdict.subject for verdict in new.verdicts}
            before = [verdict for verdict in old.verdicts if verdict.subject in subjects]
            replaced += (_replaced(verdict, new) for verdict in before if _is_lost(verdict, new))
            kept = tuple(verdict for verdict in old.verdicts if verdict.subject not in subjects)
            counts = new if new.run is not None or old.run is None else old
            merged[new.id] = msgspec.structs.replace(counts, verdicts=(*kept, *new.verdicts))
    return list(merged.values()), replaced


def _is_lost(verdict: Verdict, later: WorkloadResult) -> bool:
    return verdict.status.fails and not any(
        each.subject == verdict.subject and each.status.fails for each in later.verdicts
    )


def _replaced(verdict: Verdict, later: WorkloadResult) -> str:
    now = ", ".join(_once(each.status.value for each in later.verdicts if each.subject == verdict.subject))
    return f"{verdict.workload}: {verdict.subject} was {verdict.status.value} ({verdict.headline}), and {now} in a later part, which counts"


def _tests(parts: Sequence[Results]) -> tuple[list[TestResult], list[str]]:
    """(those of each node as the last part that has it tells them, a text for each that failed before)."""
    merged: dict[str, list[TestResult]] = {}
    failed_before: list[str] = []
    for part in parts:
        new: dict[str, list[TestResult]] = {}  # a test whose teardown failed is told twice
        for test in part.tests:
            new.setdefault(test.node, []).append(test)
        failed_before += (
            f"{node} failed, and did not in a later part, which counts"
            for node, tests in new.items()
            if _failed(merged.get(node, ())) and not _failed(tests)
        )
        merged.update(new)
    return [test for tests in merged.values() for test in tests], failed_before


def _failed(tests: Iterable[TestResult]) -> bool:
    return any(test.outcome == "failed" for test in tests)


def _declared(parts: Sequence[Results]) -> dict[str, tuple[str, ...]]:
    suites = _once(suite for part in parts for suite in part.declared)
    return {suite: _once(name for part in parts for name in part.declared.get(suite, ())) for suite in suites}


def _exit_status(statuses: Sequence[int]) -> int:
    """The worst; that nothing was collected is the end of one part only where all the others ended so."""
    some = [status for status in statuses if status != _NOTHING_COLLECTED]
    if not some:
        return _NOTHING_COLLECTED
    known = next((status for status in _WORST_FIRST if status in some), 0)
    return known or next((status for status in some if status), 0)


def _once(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


# -- what is said of them -------------------------------------------------------------------------------------------


def _differences(parts: Sequence[Results]) -> Iterator[str]:
    for what, values in (
        ("hosts", _once(part.host or "(not known)" for part in parts)),
        ("commits", _once(part.commit or "(not known)" for part in parts)),
        ("versions of kernelgauge", _once(part.kernelgauge for part in parts)),
    ):
        if len(values) > 1:
            yield f"merged from {len(values)} {what}: {', '.join(values)}"


def _copies(part: Results, times: int) -> Iterator[str]:
    if times > 1:
        yield f"{named(part)} were given {times} times: counted once"


def _warned(part: Results, warnings: Iterable[str]) -> Results:
    added = [warning for warning in warnings if warning not in part.warnings]
    return msgspec.structs.replace(part, warnings=(*part.warnings, *added)) if added else part
