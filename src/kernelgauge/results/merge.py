"""Merge the results of workers, shards and machines: which parts join, where their traces go, and what they say together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from ..files import is_file_name, write_atomically
from ..judge import compare
from ..workload import Share
from . import Results, WorkloadResult, join, started

__all__ = ["copy_traces", "find_problems", "merge", "outcome", "with_trace_prefix"]

_SHARD_OPTION = "--perf-shard"
_MOST_SHARDS = 20  # missing ones that are listed

# -- which parts join -------------------------------------------------------------------------------------------------


def merge(parts: Sequence[Results]) -> list[Results]:
    """Return one `Results` for each machine, in order of their starts.

    Parts join if they have the same software, the same kind of device and the same commit, and no workload of theirs was
    measured on two GPUs. A part that measured nothing joins if there is only one machine. `results.join` says which part
    counts where two have the same. Merging merged results changes nothing.
    """
    ordered = sorted(parts, key=started)
    measured = [[part] for part in ordered if part.fingerprint is not None]
    # Parts of one GPU join first, so that the order of shards changes nothing.
    measured = _group(_group(measured, of_one_gpu=True))
    empty = _group([[part] for part in ordered if part.fingerprint is None])
    apart = [group for group in empty if len(measured) != 1 or not _can_join(measured[0], group)]
    for group in empty:
        if group not in apart:
            measured[0] += group
    groups = [sorted(group, key=started) for group in (*measured, *apart)]
    return [_join(group) for group in sorted(groups, key=lambda group: started(group[0]))]


def _join(group: Sequence[Results]) -> Results:
    if len(group) == 1:
        return group[0]
    return msgspec.structs.replace(join(group), arguments=_join_arguments([part.arguments for part in group]))


def _group(groups: Sequence[list[Results]], *, of_one_gpu: bool = False) -> list[list[Results]]:
    joined: list[list[Results]] = []
    for group in groups:
        candidates = (each for each in joined if not of_one_gpu or _places(each) & _places(group))
        target = next((each for each in candidates if _can_join(each, group)), None)
        if target is None:
            joined.append(list(group))
        else:
            target += group
    return joined


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


def _places(parts: Sequence[Results]) -> set[str]:
    return {place for part, workload in _workloads(parts) if (place := _place(part, workload)) is not None}


def _place(part: Results, workload: WorkloadResult) -> str | None:
    """Return the GPU, or the host of a CPU. None is unknown, and equals nothing."""
    host = f"host {part.host}" if part.host else None
    if part.fingerprint is None:
        return host
    gpu = workload.run.gpu if workload.run is not None else part.gpu
    return gpu or (host if part.fingerprint.arch == "cpu" else None)


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
        missing = (index for index in range(1, count + 1) if index not in there)
        yield from (f"shard {index}/{count} is missing" for index in islice(missing, _MOST_SHARDS))
        if (more := count - len(there) - _MOST_SHARDS) > 0:
            yield f"{more} more of {count} shards are missing"


# -- the summary ------------------------------------------------------------------------------------------------------


def find_problems(merged: Sequence[Results]) -> Iterator[str]:
    """Yield failures beside the workloads: missing shards, and runs that ended badly."""
    yield from _missing_shards(share for each in merged for share in _split_arguments(each.arguments)[1])
    for each in merged:
        failed = sum(test.outcome == "failed" for test in each.tests)
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
