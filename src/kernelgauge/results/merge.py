"""Merge the results of workers, shards and machines: which parts join, where their traces go, and what they say together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

from ..judge import Status, compare, worst
from ..workload import Share
from . import Results, TestResult, WorkloadResult, started
from .files import is_file_name, write_atomically

__all__ = ["copy_traces", "find_problems", "join", "merge", "outcome", "with_trace_prefix"]

_T = TypeVar("_T")
_SHARD_OPTION = "--perf-shard"
_WORST_FIRST = (3, 2, 1, 4)  # pytest.ExitCode: internal error, interrupted, tests failed, usage error
_NOTHING_COLLECTED = 5

# -- which parts join -------------------------------------------------------------------------------------------------


def merge(parts: Sequence[Results]) -> list[Results]:
    """Return one `Results` for each machine, in order of their starts.

    Parts join if they have the same software, the same kind of device and the same commit, and no workload of theirs was
    measured on two GPUs. A part that measured nothing joins the first that it can. `join` says which part counts where two
    have the same. Merging merged results changes nothing.
    """
    groups: list[list[Results]] = []
    # Parts of one GPU stand together, so that the order of shards changes nothing; those that measured nothing come last.
    for part in sorted(parts, key=lambda part: (part.fingerprint is None, part.gpu or "", part.host, started(part))):
        target = next((group for group in groups if _can_join(group, [part])), None)
        if target is None:
            groups.append([part])
        else:
            target.append(part)
    groups = [sorted(group, key=started) for group in groups]
    return [join(group) for group in sorted(groups, key=lambda group: started(group[0]))]


def _can_join(one: Sequence[Results], other: Sequence[Results]) -> bool:
    """Return whether the two can be one, so that no measurement hides one of another machine."""
    prints = [part.fingerprint for part in (*one, *other) if part.fingerprint is not None]
    commits = {part.commit.removesuffix("+") for part in (*one, *other) if part.commit is not None}
    if len(commits) > 1 or not all(compare(prints[0], each).identical for each in prints[1:]):
        return False
    places: dict[str, set[str | None]] = {}
    for part, workload in _workloads(other):
        places.setdefault(workload.id, set()).add(_place(part, workload))
    return all(
        (place := _place(part, workload)) is not None and places[workload.id] == {place}
        for part, workload in _workloads(one)
        if workload.id in places
    )


def _workloads(parts: Iterable[Results]) -> Iterator[tuple[Results, WorkloadResult]]:
    return ((part, workload) for part in parts for workload in part.workloads)


def _place(part: Results, workload: WorkloadResult) -> str | None:
    """Return the GPU, or the host of a CPU. None is unknown, and equals nothing."""
    host = f"host {part.host}" if part.host else None
    if part.fingerprint is None:
        return host
    gpu = workload.run.gpu if workload.run is not None else part.gpu
    return gpu or (host if part.fingerprint.arch == "cpu" else None)


# -- one of several parts ---------------------------------------------------------------------------------------------


def join(parts: Sequence[Results]) -> Results:
    """Return several parts of one run, in order of their starts, as one.

    Where two have the same, the later part counts: the run of a workload, the verdict on a subject, a test. A failure that
    a later part replaced is named in a warning, and the exit status is the worst of all.
    """
    first, *others = parts
    if not others:
        return first
    declared: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for suite, names in part.declared.items():
            declared[suite] = _once((*declared.get(suite, ()), *names))
    warnings = [warning for part in parts for warning in part.warnings]
    workloads = _join_workloads(parts, warnings)
    order = {name: place for place, name in enumerate(name for names in declared.values() for name in names)}
    gpus = {part.gpu for part in parts if part.fingerprint is not None}
    for what, values in (
        ("hosts", _once(part.host or "(not known)" for part in parts)),
        ("commits", _once(part.commit or "(not known)" for part in parts)),
        ("versions of kernelgauge", _once(part.kernelgauge for part in parts)),
    ):
        if len(values) > 1:
            warnings.append(f"merged from {len(values)} {what}: {', '.join(values)}")
    return msgspec.structs.replace(
        first,
        seconds=_seconds(parts),
        arguments=_join_arguments([part.arguments for part in parts]),
        fingerprint=next((part.fingerprint for part in parts if part.fingerprint is not None), None),
        gpu=gpus.pop() if len(gpus) == 1 else None,
        not_watched="; ".join(_once(part.not_watched for part in parts if part.not_watched)),
        workloads=tuple(sorted(workloads, key=lambda workload: order.get(workload.id, len(order)))),
        tests=_join_tests(parts, warnings),
        warnings=_once(warnings),
        exit_status=_exit_status({part.exit_status for part in parts}),
        host=first.host if len({part.host for part in parts}) == 1 else "",
        # That with the "+" of local changes, if there is one.
        commit=max((part.commit for part in parts if part.commit is not None), key=len, default=None),
        timers=_once(timer for part in parts for timer in part.timers),
        comparisons=max(part.comparisons for part in parts),
        declared=declared,
    )


def _join_workloads(parts: Sequence[Results], warnings: list[str]) -> list[WorkloadResult]:
    joined: dict[str, WorkloadResult] = {}
    for new in (workload for part in parts for workload in part.workloads):
        old = joined.get(new.id, new)
        statuses: dict[str, Status | None] = {}
        for verdict in new.verdicts:
            statuses[verdict.subject] = worst([verdict.status, statuses.get(verdict.subject) or verdict.status])
        for verdict in old.verdicts:
            now = statuses.get(verdict.subject)
            if verdict.status.fails and now is not None and not now.fails:
                was = f"{new.id}: {verdict.subject} was {verdict.status.value} ({verdict.headline})"
                warnings.append(f"{was}, and {now.value} in a later part, which counts")
        kept = tuple(verdict for verdict in old.verdicts if verdict.subject not in statuses)
        counts = new if new.run is not None or old.run is None else old
        joined[new.id] = msgspec.structs.replace(counts, verdicts=(*kept, *new.verdicts))
    return list(joined.values())


def _join_tests(parts: Sequence[Results], warnings: list[str]) -> tuple[TestResult, ...]:
    joined: dict[str, list[TestResult]] = {}
    for part in parts:
        new: dict[str, list[TestResult]] = {}  # a test whose teardown failed is there twice
        for test in part.tests:
            new.setdefault(test.node, []).append(test)
        for node, tests in new.items():
            if _has_failed(joined.get(node, ())) and not _has_failed(tests):
                warnings.append(f"{node} failed, and did not in a later part, which counts")
        joined.update(new)
    return tuple(test for tests in joined.values() for test in tests)


def _has_failed(tests: Iterable[TestResult]) -> bool:
    return any(test.outcome == "failed" for test in tests)


def _seconds(parts: Sequence[Results]) -> float:
    """Return the time from the earliest start to the latest end."""
    first = min(map(started, parts))
    return max((started(part) - first) / timedelta(seconds=1) + part.seconds for part in parts)


def _exit_status(statuses: set[int]) -> int:
    """Return the worst; "nothing was collected" only if it is that of all parts."""
    known = (status for status in _WORST_FIRST if status in statuses)
    return next(known, max(statuses - {_NOTHING_COLLECTED}, default=_NOTHING_COLLECTED))


def _once(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


# -- shards -----------------------------------------------------------------------------------------------------------


def _join_arguments(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the arguments of the first part with the option of each shard, or with none if all shards are there."""
    rest, _ = _split_arguments(parts[0])
    asked = [_split_arguments(arguments)[1] for arguments in parts]
    shards = sorted({share for shares in asked for share in shares}, key=lambda share: (share.count, share.index))
    if not all(asked) or not any(_missing_shards(shards)):
        return tuple(rest)
    return (*rest, *(text for share in shards for text in (_SHARD_OPTION, str(share))))


def _split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[Share]]:
    """Return all other arguments, and the shards."""
    rest: list[str] = []
    shards: list[Share] = []
    remaining = iter(arguments)
    for argument in remaining:
        option, equals, value = argument.partition("=")
        if option != _SHARD_OPTION:
            rest.append(argument)
            continue
        with suppress(ValueError):  # pytest ended with a usage error, and measured nothing
            shards.append(Share.parse(value if equals else next(remaining, "")))
    return rest, shards


def _missing_shards(shards: Iterable[Share]) -> Iterator[str]:
    known: dict[int, set[int]] = {}
    for share in shards:
        known.setdefault(share.count, set()).add(share.index)
    for count, there in sorted(known.items()):
        yield from (f"shard {index}/{count} is missing" for index in range(1, count + 1) if index not in there)


# -- the summary ------------------------------------------------------------------------------------------------------


def find_problems(merged: Sequence[Results]) -> Iterator[str]:
    """Yield failures beside the workloads: missing shards, and runs that ended badly."""
    yield from _missing_shards(share for each in merged for share in _split_arguments(each.arguments)[1])
    for each in merged:
        failed = len(each.failed_tests)
        if (each.exit_status or failed) and not (each.status is not None and each.status.fails):
            tests = f", {failed} of {len(each.tests)} tests failed" if failed else ""
            yield f"the run that started at {each.started_at} ended with exit status {each.exit_status}{tests}"


def outcome(merged: Sequence[Results], problems: Sequence[str]) -> str:
    """Return ``FAILED``, ``UNDECIDED``, ``NOTHING JUDGED`` or ``PASS``."""
    statuses = [workload.status for _, workload in _workloads(merged) if workload.status is not None]
    if problems or any(status.fails for status in statuses):
        return "FAILED"
    if not statuses:
        return "NOTHING JUDGED"
    is_judged = all(
        workload.status is not None or workload.unavailable is not None for _, workload in _workloads(merged)
    )
    return "PASS" if is_judged and all(status.decided for status in statuses) else "UNDECIDED"


# -- traces -----------------------------------------------------------------------------------------------------------


def with_trace_prefix(results: Results, prefix: str) -> Results:
    """Return the results with the paths of their traces below another folder."""
    workloads = (
        each if each.trace is None else msgspec.structs.replace(each, trace=prefix + each.trace)
        for each in results.workloads
    )
    return msgspec.structs.replace(results, workloads=tuple(workloads))


def copy_traces(results: Results, folders: Sequence[Path], into: Path) -> Results:
    """Copy the traces and their tables, and return the results with the new paths. Missing traces become warnings.

    The path of each trace starts with the number of its folder in `folders`.
    """
    warnings: list[str] = []
    workloads: list[WorkloadResult] = []
    for workload in results.workloads:
        trace = None
        if workload.trace is not None:
            folder = folders[int(workload.trace.partition("/")[0])]
            trace = f"traces/{workload.id}.json.gz"
            if is_file_name(workload.id) and _copy(folder, trace, into):
                _copy(folder, f"traces/{workload.id}.txt", into)
            else:
                warnings.append(f"{workload.id}: its trace was not found beside its results")
                trace = None
        workloads.append(msgspec.structs.replace(workload, trace=trace))
    return msgspec.structs.replace(results, workloads=tuple(workloads), warnings=(*results.warnings, *warnings))


def _copy(folder: Path, name: str, into: Path) -> bool:
    try:
        content = (folder / name).read_bytes()
    except OSError:
        return False
    write_atomically(into / name, content)
    return True
