"""What a history keeps of one run of pytest on one GPU: the machine once, then columns with one value for each workload."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

import msgspec

from ..errors import ResultsError
from ..judge import Status, Verdict, observe
from ..results import Results, WorkloadResult
from ..run import Fingerprint, Timer

__all__ = ["READ_VERSIONS", "SCHEMA_VERSION", "Columns", "Entry", "Header", "Times", "entries"]

SCHEMA_VERSION = 2
# Version 1 lacks `low`, `high` and `host_us` of a time, and `kernels` to `copy_kernel` of a workload.
READ_VERSIONS = (1, 2)

_LONGEST_SAID = 300


class Times(msgspec.Struct, frozen=True):
    """Columns of one timer. None: not measured, or not judged.

    Attributes:
        mean_us: as `judge.observe` has it, in microseconds.
        spread: standard deviation of the replicates' logarithms (0.01 is 1 %).
        baseline_us: what it was compared with, in microseconds.
        low, high: the interval of the change against it, as fractions.
        host_us: time of the host reference beside it, in microseconds.
        said: the headline of a verdict that is no PASS, and its cause.
    """

    mean_us: tuple[float | None, ...]
    spread: tuple[float | None, ...]
    replicates: tuple[int | None, ...]
    baseline_us: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    host_us: tuple[float | None, ...]
    status: tuple[Status | None, ...]
    said: tuple[str, ...]


class Columns(msgspec.Struct, frozen=True, rename={"pass_": "pass"}):
    """One value for each workload. Raises `ValueError` if the columns differ in length.

    `worst`: of all verdicts; None: not run, or not judged. `structure`: the verdict about the kernels. `said`: the
    headline and the cause of the worst verdict, unless it is a PASS, or why the workload could not run.
    `kernels`: digest of the names in order; `configuration`: of the names and launch configurations, without the hashes of
    generated source. `gemm_us`, `copy_us`: times of the reference kernels in microseconds, with digests of their names.
    """

    workload: tuple[str, ...]
    suite: tuple[str, ...]
    module: tuple[str, ...]
    variant: tuple[str, ...]
    dtype: tuple[str, ...]
    pass_: tuple[str, ...]
    launches: tuple[int | None, ...]
    kernels: tuple[str | None, ...]
    configuration: tuple[str | None, ...]
    gemm_us: tuple[float | None, ...]
    gemm_kernel: tuple[str | None, ...]
    copy_us: tuple[float | None, ...]
    copy_kernel: tuple[str | None, ...]
    worst: tuple[Status | None, ...]
    structure: tuple[Status | None, ...]
    said: tuple[str, ...]
    device_time: Times
    end_to_end: Times
    host_dispatch: Times

    def __post_init__(self) -> None:
        for owner in (self, self.device_time, self.end_to_end, self.host_dispatch):
            for name in owner.__struct_fields__:
                column = getattr(owner, name)
                if not isinstance(column, Times) and len(column) != len(self.workload):
                    raise ValueError(f"{len(column)} values of {name} for {len(self.workload)} workloads")


class Header(msgspec.Struct, frozen=True):
    """What is said of all workloads of an entry.

    One run of pytest on one GPU. `started_at` is in UTC; `gpu` is None on a CPU, `fingerprint` if nothing ran."""

    schema_version: int
    started_at: datetime
    kernelgauge: str
    host: str
    gpu: str | None
    commit: str | None
    exit_status: int
    fingerprint: Fingerprint | None


class Entry(Header, frozen=True):
    """What is written."""

    rows: Columns


def entries(results: Results) -> tuple[Entry, ...]:
    """One entry for each GPU of the results, and for each environment if they are of several.

    Raises `ResultsError` if there is no workload in them, or no time that they were measured at.
    """
    if not results.workloads:
        raise ResultsError("there is nothing to add to a history", got="no workload", expected="a run of the suite")
    started_at = _moment(results.started_at)
    by_machine: dict[tuple[Fingerprint | None, str | None], list[WorkloadResult]] = {}
    for workload in results.workloads:
        by_machine.setdefault(results.machine_of(workload), []).append(workload)
    return tuple(
        Entry(
            SCHEMA_VERSION,
            started_at,
            results.kernelgauge,
            results.host,
            gpu,
            results.commit,
            results.exit_status,
            fingerprint,
            _columns(workloads),
        )
        for (fingerprint, gpu), workloads in by_machine.items()
    )


def _moment(started_at: str) -> datetime:
    try:
        moment = msgspec.convert(started_at, datetime)
        return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ResultsError(
            "it is not known when these results were measured",
            where="field started_at",
            got=started_at[:100],
            expected="a time in UTC such as 2026-11-20T19:10:12+00:00",
        ) from error


def _columns(workloads: Sequence[WorkloadResult]) -> Columns:
    columns: dict[str, Any] = {timer.value: _times(workloads, timer) for timer in Timer}
    runs = [each.run for each in workloads]
    for name in ("gemm", "copy"):
        references = [run.controls.get(name) if run else None for run in runs]
        columns[f"{name}_us"] = tuple(_rounded(each.device_time_us) if each else None for each in references)
        columns[f"{name}_kernel"] = tuple(_digest(each.kernel) if each else None for each in references)
    return Columns(
        workload=tuple(each.id for each in workloads),
        suite=tuple(each.suite for each in workloads),
        module=tuple(each.module for each in workloads),
        variant=tuple(each.variant for each in workloads),
        dtype=tuple(each.dtype for each in workloads),
        pass_=tuple(each.pass_ for each in workloads),
        launches=tuple(run.counts.launches if run else None for run in runs),
        kernels=tuple(_digest(run.kernel_names()) if run else None for run in runs),
        configuration=tuple(
            _digest([kernel.identity.without_source for kernel in run.kernels]) if run else None for run in runs
        ),
        worst=tuple(each.status for each in workloads),
        structure=tuple(verdict.status if (verdict := each.verdict("structure")) else None for each in workloads),
        said=tuple(map(_said_of_all, workloads)),
        **columns,
    )


def _digest(value: Any) -> str:
    return sha256(msgspec.json.encode(value)).hexdigest()[:8]


def _times(workloads: Sequence[WorkloadResult], timer: Timer) -> Times:
    samples = [each.run.sample(timer) if each.run is not None else None for each in workloads]
    seen = [observe(sample) if sample is not None else None for sample in samples]
    verdicts = [each.verdict(timer.label) for each in workloads]
    changes = [each.change if each else None for each in verdicts]
    return Times(
        mean_us=tuple(_rounded(each.mean_us) if each else None for each in seen),
        spread=tuple(_rounded(each.spread) if each else None for each in seen),
        replicates=tuple(each.replicates if each else None for each in seen),
        baseline_us=tuple(_rounded(each.before_us) if each else None for each in verdicts),
        low=tuple(_millionths(each.low) if each else None for each in changes),
        high=tuple(_millionths(each.high) if each else None for each in changes),
        host_us=tuple(_rounded(each.control_us) if each else None for each in seen),
        status=tuple(each.status if each else None for each in verdicts),
        said=tuple(map(_said, verdicts)),
    )


def _rounded(value: float | None) -> float | None:
    """Seven digits: more than any timer resolves, in half the bytes."""
    return None if value is None else float(f"{value:.7g}")


def _millionths(fraction: float | None) -> float | None:
    return None if fraction is None else round(fraction, 6)


def _said_of_all(workload: WorkloadResult) -> str:
    if workload.unavailable is not None:
        return _cut(workload.unavailable)
    return _said(next((each for each in workload.verdicts if each.status is workload.status), None))


def _said(verdict: Verdict | None) -> str:
    if verdict is None or verdict.status.passes:
        return ""
    cause = next((reason.text for reason in verdict.reasons if reason.label == "why"), "")
    return _cut(f"{verdict.headline}; {cause}" if cause else verdict.headline)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_SAID else line[: _LONGEST_SAID - 3] + "..."
