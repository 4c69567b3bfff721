"""Merge the results of workers, shards and machines: which parts join, where their traces go, and what they say together."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

from ..judge import WORST_FIRST, compare
from . import Results, WorkloadResult, started
from .files import is_file_name, slug, write_atomically

__all__ = ["copy_traces", "folder_names", "join", "merge", "missing_shards", "with_traces_in"]

_T = TypeVar("_T", bound=Hashable)
_SHARD = re.compile(
    r"--perf-shard[= ]([0-9]{1,4})/([0-9]{1,4})"
)  # in the arguments of pytest, with spaces between them
_NOTHING_COLLECTED = 5  # pytest.ExitCode

# -- which parts join -------------------------------------------------------------------------------------------------


def merge(parts: Sequence[Results]) -> list[Results]:
    """Return one `Results` for each machine, in order of their starts.

    Parts join if they have the same software, the same kind of device and the same commit, and no workload of theirs was
    measured on two GPUs. A part that measured nothing joins the first that it can. Merging merged results changes nothing.
    """
    groups: list[list[Results]] = []
    # Parts of one GPU stand together, so that the order of shards changes nothing; those that measured nothing come last.
    for part in sorted(parts, key=lambda part: (part.fingerprint is None, part.gpu or "", part.host, started(part))):
        target = next((group for group in groups if _can_join(group, part)), None)
        if target is None:
            groups.append([part])
        else:
            target.append(part)
    groups = [sorted(group, key=started) for group in groups]
    return [join(group) for group in sorted(groups, key=lambda group: started(group[0]))]


def _can_join(group: Sequence[Results], part: Results) -> bool:
    """Return whether a part belongs to a group, so that no measurement is taken for one of another machine."""
    together = [*group, part]
    prints = [each.fingerprint for each in together if each.fingerprint is not None]
    commits = {each.commit.removesuffix("+") for each in together if each.commit is not None}
    places = {workload.id: _place(part, workload) for workload in part.workloads}
    shared = [(each, workload) for each in group for workload in each.workloads if workload.id in places]
    return (
        len(commits) <= 1
        and all(compare(prints[0], each).identical for each in prints[1:])
        and all(_place(each, workload) == places[workload.id] is not None for each, workload in shared)
    )


def _place(part: Results, workload: WorkloadResult) -> str | None:
    """Return the GPU, or the host where there is none. None is unknown, and equals nothing."""
    has_gpu = part.fingerprint is not None and part.fingerprint.arch != "cpu"
    return part.machine_of(workload)[1] if has_gpu else part.host or None


# -- one of several parts ---------------------------------------------------------------------------------------------


def join(parts: Sequence[Results]) -> Results:
    """Return several parts of one run, in order of their starts, as one.

    Of a workload in several parts, the latest run counts, with all verdicts, the worst first. The exit status is the worst.
    """
    first, *others = parts
    if not others:
        return first
    declared: dict[str, tuple[str, ...]] = {}
    for suite, names in (item for part in parts for item in part.declared.items()):
        declared[suite] = _once((*declared.get(suite, ()), *names))
    order = {name: place for place, name in enumerate(name for names in declared.values() for name in names)}
    workloads: dict[str, WorkloadResult] = {}
    for new in (workload for part in parts for workload in part.workloads):
        workloads[new.id] = _join_workload(workloads[new.id], new) if new.id in workloads else new
    gpus = {part.gpu for part in parts if part.fingerprint is not None}
    begin = min(map(started, parts))
    shards = sorted(_shards(parts) - _shards([first]))
    return msgspec.structs.replace(
        first,
        seconds=max((started(part) - begin) / timedelta(seconds=1) + part.seconds for part in parts),
        arguments=(*first.arguments, *(f"--perf-shard={index}/{count}" for count, index in shards)),
        fingerprint=next((part.fingerprint for part in parts if part.fingerprint is not None), None),
        gpu=gpus.pop() if len(gpus) == 1 else None,
        not_watched="; ".join(_once(part.not_watched for part in parts if part.not_watched)),
        workloads=tuple(sorted(workloads.values(), key=lambda workload: order.get(workload.id, len(order)))),
        tests=_once(test for part in parts for test in part.tests),
        warnings=_once(warning for part in parts for warning in part.warnings),
        exit_status=max({part.exit_status for part in parts} - {_NOTHING_COLLECTED}, default=_NOTHING_COLLECTED),
        host=", ".join(_once(part.host for part in parts if part.host)),
        # That with the "+" of local changes, if there is one.
        commit=max((part.commit for part in parts if part.commit is not None), key=len, default=None),
        timers=_once(timer for part in parts for timer in part.timers),
        comparisons=max(part.comparisons for part in parts),
        declared=declared,
    )


def _join_workload(old: WorkloadResult, new: WorkloadResult) -> WorkloadResult:
    verdicts = sorted(_once((*old.verdicts, *new.verdicts)), key=lambda each: WORST_FIRST.index(each.status))
    latest = new if new.run is not None or old.run is None else old
    return msgspec.structs.replace(latest, verdicts=tuple(verdicts))


def _once(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


# -- traces -----------------------------------------------------------------------------------------------------------


def with_traces_in(results: Results, folder: str) -> Results:
    """Return the results with the path of each trace below a folder. Paths that results name are not trusted."""
    workloads = (
        msgspec.structs.replace(each, trace=each.trace and Path(folder, "traces", f"{each.id}.json.gz").as_posix())
        for each in results.workloads
    )
    return msgspec.structs.replace(results, workloads=tuple(workloads))


def copy_traces(results: Results, into: Path) -> Results:
    """Copy the traces and their tables, and return the results with the new paths. Missing traces become warnings."""
    warnings: list[str] = []
    workloads: list[WorkloadResult] = []
    for workload in results.workloads:
        trace = None
        if workload.trace is not None:
            source, trace = Path(workload.trace), f"traces/{workload.id}.json.gz"
            if is_file_name(workload.id) and _copy(source, into / trace):
                table = f"{workload.id}.txt"
                _copy(source.with_name(table), into / "traces" / table)
            else:
                warnings.append(f"{workload.id}: its trace was not found beside its results")
                trace = None
        workloads.append(msgspec.structs.replace(workload, trace=trace))
    return msgspec.structs.replace(results, workloads=tuple(workloads), warnings=(*results.warnings, *warnings))


def _copy(source: Path, target: Path) -> bool:
    try:
        content = source.read_bytes()
    except OSError:
        return False
    write_atomically(target, content)
    return True


def folder_names(several: Sequence[Results]) -> list[str]:
    """Return a folder's name for the results of each machine; "" for the only one."""
    devices = [each.fingerprint.device if each.fingerprint is not None else "nothing measured" for each in several]
    names = [slug(f"{device} {each.gpu or each.host}")[:100] for device, each in zip(devices, several, strict=True)]
    twins = [names[:place].count(name) for place, name in enumerate(names)]
    unique = [f"{name}--{before + 1}" if before else name for name, before in zip(names, twins, strict=True)]
    return unique if len(unique) > 1 else [""]


# -- shards -----------------------------------------------------------------------------------------------------------


def missing_shards(merged: Sequence[Results]) -> Iterator[str]:
    """Yield ``shard 2/3 is missing``: of as many as the arguments say, each that no run had."""
    shards = _shards(merged)
    for count in sorted({count for count, _ in shards}):
        missing = (index for index in range(1, count + 1) if (count, index) not in shards)
        yield from (f"shard {index}/{count} is missing" for index in missing)


def _shards(parts: Iterable[Results]) -> set[tuple[int, int]]:
    """Return (count, index) of each shard that pytest was started with."""
    found = (match for part in parts for match in _SHARD.finditer(" ".join(part.arguments)))
    return {(int(match[2]), int(match[1])) for match in found}
