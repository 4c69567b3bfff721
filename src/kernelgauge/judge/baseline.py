"""A baseline: what one workload showed on one machine, as bytes and back. Reads no file and writes none."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from statistics import median

import msgspec

from ..errors import BaselineError, NewerBaselineError
from ..run import Counts, Fingerprint, KernelRecord, Run, Sample, Statistic, Timer

__all__ = ["SCHEMA_VERSION", "Baseline", "decode_baseline", "encode_baseline", "from_run"]

SCHEMA_VERSION = 1

# Nanoseconds: finer than the profiler's own resolution (32 ns on an H200), so nothing is lost, and a re-record
# of an unchanged machine does not differ in digits that mean nothing.
_DECIMALS = 3


class TimerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample as stored: what each replicate gave, and the median over them for the reader of a diff."""

    median_us: float
    statistic: Statistic  # of each replicate
    replicates_us: tuple[float, ...]
    iterations: int
    host_control_us: float | None


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of `baselines/<gpu>/`. Field order is the order in the file."""

    schema_version: int
    suite: str  # folder of the suite that declares the workload: what may be trimmed with it
    workload: str
    fingerprint: Fingerprint
    counts: Counts
    kernels: tuple[KernelRecord, ...]
    timers: dict[Timer, TimerRecord]

    def sample(self, timer: Timer) -> Sample | None:
        record = self.timers.get(timer)
        return None if record is None else Sample(record.replicates_us, record.iterations, record.host_control_us)


class _Header(msgspec.Struct):
    schema_version: int


def from_run(run: Run, *, suite: str) -> Baseline:
    """The baseline that accepting `run` would store."""
    return Baseline(
        schema_version=SCHEMA_VERSION,
        suite=suite,
        workload=run.workload,
        fingerprint=run.fingerprint,
        counts=run.counts,
        kernels=tuple(KernelRecord(kernel.identity, round(kernel.device_time_us, _DECIMALS)) for kernel in run.kernels),
        timers={
            timer: TimerRecord(
                median_us=round(sample.median_us, _DECIMALS),
                statistic=timer.statistic,
                replicates_us=tuple(round(value, _DECIMALS) for value in sample.replicates_us),
                iterations=sample.iterations,
                host_control_us=None if sample.host_control_us is None else round(sample.host_control_us, _DECIMALS),
            )
            for timer in Timer
            if (sample := run.sample(timer)) is not None
        },
    )


def encode_baseline(baseline: Baseline) -> bytes:
    """Indented JSON with a stable key order and a final newline."""
    return msgspec.json.format(msgspec.json.encode(baseline), indent=2) + b"\n"


def _contradictions(baseline: Baseline) -> Iterator[tuple[str, str]]:
    """What the types allow and no measurement can show: (field, what is wrong with it)."""
    counts = msgspec.structs.asdict(baseline.counts)
    yield from ((f"counts.{name}", f"negative: {value}") for name, value in counts.items() if value and value < 0)
    if baseline.counts.launches != len(baseline.kernels):
        yield "counts.launches", f"{baseline.counts.launches}, but there are {len(baseline.kernels)} kernels"
    for index, kernel in enumerate(baseline.kernels):
        if not 0 <= kernel.device_time_us < inf:
            yield f"kernels[{index}].device_time_us", f"no duration: {kernel.device_time_us}"
    for timer, record in baseline.timers.items():
        yield from ((f"timers.{timer.value}.{field}", wrong) for field, wrong in _timer_contradictions(timer, record))


def _timer_contradictions(timer: Timer, record: TimerRecord) -> Iterator[tuple[str, str]]:
    if record.iterations < 1:
        yield "iterations", f"no iterations: {record.iterations}"
    if record.statistic != timer.statistic:
        yield "statistic", f"{record.statistic!r} where {timer.statistic!r} is compared"
    if record.host_control_us is not None and not 0 < record.host_control_us < inf:
        yield "host_control_us", f"no duration: {record.host_control_us}"
    if not record.replicates_us:
        yield "replicates_us", "a sample has at least one replicate"
    elif not all(0 < value < inf for value in record.replicates_us):
        yield "replicates_us", f"durations are positive and finite, got {record.replicates_us}"
    elif abs(median(record.replicates_us) - record.median_us) > 2 * 10**-_DECIMALS:  # both were rounded
        yield "median_us", f"{record.median_us}, but the replicates' is {median(record.replicates_us)}"


def decode_baseline(content: bytes, *, where: str, workload: str) -> Baseline:
    """Parse and validate a baseline file.

    Raises `BaselineError` if it is anything but a baseline of `workload` in this schema: a file that is there and
    cannot be read is never treated as one that is missing.
    """
    next_command = f"git checkout -- {where}   (or delete it and record again with --perf-update)"
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.schema_version == SCHEMA_VERSION:
            baseline = msgspec.json.decode(content, type=Baseline)
            for field, wrong in _contradictions(baseline):
                raise ValueError(f"{wrong} - at `$.{field}`")
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        conflict = b"<<<<<<<" in content
        raise BaselineError(
            "the baseline holds an unresolved merge conflict" if conflict else "the baseline cannot be read",
            where=where,
            got="an empty file" if not content.strip() else str(error),
            expected=f"a kernelgauge baseline, schema_version {SCHEMA_VERSION}",
            next_command=next_command,
        ) from error
    if header.schema_version != SCHEMA_VERSION:
        newer = header.schema_version > SCHEMA_VERSION
        kind = NewerBaselineError if newer else BaselineError
        raise kind(
            f"the baseline was written by {'a newer' if newer else 'another'} version of kernelgauge",
            where=f"{where}, field schema_version",
            got=str(header.schema_version),
            expected=str(SCHEMA_VERSION),
            next_command="pip install --upgrade kernelgauge" if newer else next_command,
        )
    if baseline.workload != workload:
        raise BaselineError(
            "the baseline belongs to another workload",
            where=f"{where}, field workload",
            got=baseline.workload,
            expected=workload,
            next_command=next_command,
        )
    return baseline
