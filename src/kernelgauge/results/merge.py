"""Merge the results of workers and shards into one, with their traces."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import ResultsError
from ..judge.baseline import compare
from ..judge.verdict import WORST_FIRST
from . import Results, WorkloadResult
from .files import is_file_name, write_atomically

_T = TypeVar("_T", bound=Hashable)
# In the arguments of pytest, with spaces between them.
_SHARD = re.compile(r"--perf-shard[= ]([0-9]{1,4})/([0-9]{1,4})")
_NOTHING_COLLECTED = 5  # pytest.ExitCode


def join(parts: Sequence[Results]) -> Results:
    """Return several parts of one run as one: every workload, verdict and test, and the worst exit status.

    Of a workload in several parts, the run with the worst verdict counts, or the later one; the worst verdicts come first.
    Raises `ResultsError` for parts of several commits or models of GPU.
    """
    first, *others = parts = sorted(parts, key=attrgetter("started"))
    if not others:
        return first
    prints = [part.fingerprint for part in parts if part.fingerprint is not None]
    commits = _once(part.commit for part in parts if part.commit is not None)
    for what, values in (
        ("models of GPU", {each.device for each in prints}),
        ("commits", {each.removesuffix("+") for each in commits}),
    ):
        if len(values) > 1:
            raise ResultsError(
                f"the results are of several {what}",
                got=", ".join(sorted(values)),
                next_command="kernelgauge report RESULTS... --html FILE   (shows them side by side)",
            )
    differences = [compare(prints[0], each) for each in prints[1:]]
    warnings = [f"merged from different machines: {each}" for each in differences if not each.identical]
    declared: dict[str, tuple[str, ...]] = {}
    for suite, names in (item for part in parts for item in part.declared.items()):
        declared[suite] = _once((*declared.get(suite, ()), *names))
    order = {name: place for place, name in enumerate(name for names in declared.values() for name in names)}
    ranks = {status: rank for rank, status in enumerate((*WORST_FIRST, None))}
    workloads: dict[str, WorkloadResult] = {}
    for new in (workload for part in parts for workload in part.workloads):
        old = workloads.get(new.id, new)
        verdicts = sorted(_once((*old.verdicts, *new.verdicts)), key=lambda each: ranks[each.status])
        worst = min(new, old, key=lambda each: (each.run is None, ranks[each.status]))
        workloads[new.id] = msgspec.structs.replace(worst, verdicts=tuple(verdicts))
    gpus = {part.gpu for part in parts if part.fingerprint is not None}
    shards = sorted(_shards(*parts) - _shards(first))
    return msgspec.structs.replace(
        first,
        seconds=max((part.started - first.started) / timedelta(seconds=1) + part.seconds for part in parts),
        arguments=(*first.arguments, *(f"--perf-shard={index}/{count}" for count, index in shards)),
        fingerprint=next(iter(prints), None),
        gpu=gpus.pop() if len(gpus) == 1 else None,
        not_watched="; ".join(_once(part.not_watched for part in parts if part.not_watched)),
        workloads=tuple(sorted(workloads.values(), key=lambda workload: order.get(workload.id, len(order)))),
        tests=_once(test for part in parts for test in part.tests),
        warnings=_once((*(warning for part in parts for warning in part.warnings), *warnings)),
        exit_status=max({part.exit_status for part in parts} - {_NOTHING_COLLECTED}, default=_NOTHING_COLLECTED),
        host=", ".join(_once(part.host for part in parts if part.host)),
        commit=max(commits, key=len, default=None),  # that with the "+" of local changes, if there is one
        timers=_once(timer for part in parts for timer in part.timers),
        comparisons=max(part.comparisons for part in parts),
        declared=declared,
    )


def _once(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def missing_shards(results: Results) -> list[str]:
    """Return ``shard 2/3 is missing``: of as many as the arguments say, each that no part had."""
    shards = _shards(results)
    asked = ((count, index) for count in sorted({count for count, _ in shards}) for index in range(1, count + 1))
    return [f"shard {index}/{count} is missing" for count, index in asked if (count, index) not in shards]


def _shards(*parts: Results) -> set[tuple[int, int]]:
    """Return (count, index) of each shard that pytest was started with."""
    found = (match for part in parts for match in _SHARD.finditer(" ".join(part.arguments)))
    return {(int(match[2]), int(match[1])) for match in found}


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
