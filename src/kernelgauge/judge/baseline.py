"""A baseline: what one workload showed on one kind of machine, as bytes and back; and which machines can be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import fmean
from typing import Annotated, Any

import msgspec

from ..errors import BaselineError, NewerBaselineError
from ..run import ControlTime, Counts, Fingerprint, Observation, Origin, Run, Sample, Timer, is_duration, observe
from ..trace.kernel import KernelRecord, was_autotuned, with_current_kind
from .timing import ProcessTime

__all__ = [
    "SCHEMA_VERSION",
    "SOFTWARE_FIELDS",
    "Baseline",
    "Comparison",
    "Entry",
    "FieldChange",
    "Likeness",
    "Process",
    "Recorded",
    "combined",
    "compare",
    "decode_baseline",
    "encode_baseline",
    "from_run",
    "gemm_kernel",
    "is_other_choice",
    "likeness",
    "merge_entries",
    "references_us",
]

SCHEMA_VERSION = 4
# Read as well: schema 3 has no `host` in its processes, schema 2 neither that nor `recorded`.
_READABLE_VERSIONS = (2, 3, SCHEMA_VERSION)

# Nanoseconds: finer than the profiler's own resolution (32 ns on an H200), so nothing is lost, and a re-record
# of an unchanged machine does not differ in digits that mean nothing.
_DECIMALS = 3
_SPREAD_DECIMALS = 6
_WIDTH = 120  # of a line of the file


# -- the machine ------------------------------------------------------------------------------------------------------

# Another device, or the same one cut or capped differently: its times answer another question (INCOMPARABLE).
_FOREIGN_FIELDS = ("device", "arch", "sm_count", "power_limit_watts", "mig")
# Software: times stay comparable, and the change is named in every verdict.
_ADDED_FIELDS = (
    "cudnn",
    "fp32_matmul",
    "cudnn_tf32",
    "deterministic",
)  # unknown in a baseline from before them: then no change
SOFTWARE_FIELDS = ("driver", "cuda", "torch", "triton", "liger_kernel", "python", *_ADDED_FIELDS)
# `memory_bytes` is in neither: it moves with the driver by a few MiB on one and the same device.


@dataclass(frozen=True)
class FieldChange:
    """One field of the fingerprint that differs."""

    field: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.field} {_shown(self.before)} -> {_shown(self.after)}"


@dataclass(frozen=True)
class Comparison:
    """How the machine of a run differs from that of its baseline.

    Attributes:
        foreign: what makes the baseline one of another kind of machine: nothing is compared.
        moved: what makes it an older one: all is compared, and every verdict names this.
    """

    foreign: tuple[FieldChange, ...]
    moved: tuple[FieldChange, ...]

    @property
    def comparable(self) -> bool:
        return not self.foreign

    @property
    def identical(self) -> bool:
        """The same kind of machine with the same software."""
        return not self.foreign and not self.moved

    def __str__(self) -> str:
        changes = (*self.foreign, *self.moved)
        return ", ".join(map(str, changes)) if changes else "identical"


def compare(before: Fingerprint, after: Fingerprint) -> Comparison:
    """Compare the fingerprint of a baseline with that of a run."""
    return Comparison(_changes(before, after, _FOREIGN_FIELDS), _changes(before, after, SOFTWARE_FIELDS))


def _changes(before: Fingerprint, after: Fingerprint, fields: tuple[str, ...]) -> tuple[FieldChange, ...]:
    pairs = [(field, getattr(before, field), getattr(after, field)) for field in fields]
    return tuple(
        FieldChange(field, old, new)
        for field, old, new in pairs
        if old != new and not (old is None and field in _ADDED_FIELDS)
    )


def _shown(value: object) -> str:
    return "(none)" if value is None else str(value)


# -- the kernels ------------------------------------------------------------------------------------------------------


class Likeness(IntEnum):
    """How much two launch sequences are alike. More is more."""

    OTHER_KERNELS = 0
    SAME_NAMES = 1
    SAME_CONFIGURATION = 2  # from another source: another version of Inductor, say
    IDENTICAL = 3

    @property
    def same_configuration(self) -> bool:
        return self >= Likeness.SAME_CONFIGURATION


def likeness(one: Sequence[KernelRecord], other: Sequence[KernelRecord]) -> Likeness:
    """Compare the identities of two launch sequences, in order."""
    before, after = [kernel.identity for kernel in one], [kernel.identity for kernel in other]
    if before == after:
        return Likeness.IDENTICAL
    if [identity.without_source for identity in before] == [identity.without_source for identity in after]:
        return Likeness.SAME_CONFIGURATION
    if [identity.unnumbered for identity in before] == [identity.unnumbered for identity in after]:
        return Likeness.SAME_NAMES
    return Likeness.OTHER_KERNELS


def is_other_choice(one: Sequence[KernelRecord], other: Sequence[KernelRecord]) -> bool:
    """Whether two sequences of the same names differ in nothing but what Inductor's autotuner chose."""
    pairs = [(before.identity, after.identity) for before, after in zip(one, other, strict=True)]
    return all(before.without_source == after.without_source or was_autotuned(before, after) for before, after in pairs)


# -- the baseline -----------------------------------------------------------------------------------------------------


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurements of one process. A baseline learns its noise from several.

    Attributes:
        gpu: a digest of the GPU's UUID. None: a CPU.
        controls: the reference kernels beside them, by name.
        host: a digest of the host's name, or another label of it. None: not known.
    """

    gpu: str | None
    timers: dict[Timer, Observation]
    controls: dict[str, ControlTime]
    host: str | None = None

    @property
    def place(self) -> str | None:
        """The machine that its times are of: the GPU, or the host where there is none."""
        return self.gpu or self.host


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One launch configuration of the workload's kernels. Inductor's autotuner chooses between several."""

    draws: Annotated[int, msgspec.Meta(ge=1)]  # in how many compiles it was chosen
    kernels: tuple[KernelRecord, ...]
    processes: Annotated[tuple[Process, ...], msgspec.Meta(min_length=1)]

    @property
    def device_time_us(self) -> float:
        return sum(kernel.device_time_us for kernel in self.kernels)

    def kernels_in(self, device_us: float | None) -> Sequence[KernelRecord]:
        """Its kernels where a call takes so long on the device, in microseconds; None: as they are stored.

        They are means over all its processes. On the one GPU that a run is compared with all of them take longer or
        shorter than that, and no kernel carries it.
        """
        usual_us = [each.timers[Timer.DEVICE].mean_us for each in self.processes if Timer.DEVICE in each.timers]
        if device_us is None or not usual_us:
            return self.kernels
        factor = device_us / fmean(usual_us)
        return [
            KernelRecord(kernel.identity, round(factor * kernel.device_time_us, _DECIMALS)) for kernel in self.kernels
        ]

    def is_by_host(self, timer: Timer) -> bool:
        """Whether the host alone fills this time: the GPU idles for more than half of the call."""
        times = [process.timers[timer].mean_us for process in self.processes if timer in process.timers]
        if timer is Timer.END_TO_END:
            return bool(times) and 2 * self.device_time_us < fmean(times)
        return timer is Timer.HOST


class Recorded(msgspec.Struct, frozen=True):
    """How the last acceptance of a baseline came about. Older files have `conditions` too; they are ignored.

    Attributes:
        at: when the accepted run began: UTC, ISO 8601.
        commit: of the working tree that was measured, with ``+`` behind it if that had changes; None: not known.
        kernelgauge: its version.
    """

    at: str
    commit: str | None
    kernelgauge: str


class Baseline(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of `baselines/<gpu>/`. Field order is the order in the file.

    Unknown fields are ignored here and in `recorded` only: older files have `ancestors`.
    `recorded`: None if the file was written in schema 2. `origins`: of each kernel, which are shown and never judged; older files
    have none.
    """

    schema_version: int
    suite: str  # folder of the suite that declares the workload: what may be trimmed with it
    workload: str
    fingerprint: Fingerprint
    counts: Counts
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(min_length=1)]
    recorded: Recorded | None = None
    origins: tuple[Origin | None, ...] = ()

    def entry_like(self, kernels: Sequence[KernelRecord]) -> tuple[Entry, Likeness]:
        """Return the entry to compare these kernels with: that of their own configuration, else the one chosen most often."""
        best = max(self.entries, key=lambda entry: (likeness(entry.kernels, kernels), entry.draws))
        return best, likeness(best.kernels, kernels)

    def times(self, timer: Timer, entry: Entry, *, gemm: str | None = None) -> list[ProcessTime]:
        """Return what each process measured of a timer. Every configuration counts for the host's work, which is the same.

        `gemm`: name of the run's reference GEMM. The time of another one is not comparable.
        """
        entries = self.entries if timer is Timer.HOST else (entry,)
        is_by_host = entry.is_by_host(timer)
        return [
            ProcessTime(
                process.timers[timer],
                place=process.place,
                host=process.host,
                is_host_clock=self._is_host_clock(timer),
                is_by_host=is_by_host,
                references_us=references_us(process.controls, gemm),
            )
            for each in entries
            for process in each.processes
            if timer in process.timers
        ]

    def _is_host_clock(self, timer: Timer) -> bool:
        return timer is not Timer.DEVICE or self.fingerprint.arch == "cpu"


def references_us(controls: Mapping[str, ControlTime], gemm: str | None) -> dict[str, float]:
    """Return the times of the reference kernels, in microseconds, without a GEMM of another name than `gemm`."""
    return {
        name: control.device_time_us for name, control in controls.items() if name != "gemm" or control.kernel == gemm
    }


def gemm_kernel(controls: Mapping[str, ControlTime]) -> str | None:
    """Return the name of the reference GEMM's kernel; None if it was not measured."""
    return controls["gemm"].kernel if "gemm" in controls else None


class _Header(msgspec.Struct):
    schema_version: int


def from_run(run: Run, *, suite: str, recorded: Recorded | None = None) -> Baseline:
    """Return the baseline that accepting `run` would store."""
    kernels = tuple(KernelRecord(kernel.identity, round(kernel.device_time_us, _DECIMALS)) for kernel in run.kernels)
    device_us = sum(kernel.device_time_us for kernel in kernels)
    timers = {
        timer: _rounded(_observed(timer, sample, device_us))
        for timer in Timer
        if (sample := run.sample(timer)) is not None
    }
    controls = {
        name: ControlTime(control.kernel, round(control.device_time_us, _DECIMALS))
        for name, control in run.controls.items()
    }
    return Baseline(
        schema_version=SCHEMA_VERSION,
        suite=suite,
        workload=run.workload,
        fingerprint=run.fingerprint,
        counts=run.counts,
        entries=(Entry(draws=1, kernels=kernels, processes=(Process(run.gpu, timers, controls, run.host),)),),
        recorded=recorded,
        origins=run.origins,
    )


def _observed(timer: Timer, sample: Sample, device_us: float) -> Observation:
    by_host = timer is Timer.HOST or (timer is Timer.END_TO_END and 2 * device_us < observe(sample).mean_us)
    return observe(sample, is_by_host=by_host)


def _rounded(observation: Observation) -> Observation:
    spread, control = observation.spread, observation.control_us
    return msgspec.structs.replace(
        observation,
        mean_us=round(observation.mean_us, _DECIMALS),
        spread=None if spread is None else round(spread, _SPREAD_DECIMALS),
        control_us=None if control is None else round(control, _DECIMALS),
    )


def combined(runs: Sequence[Baseline]) -> Baseline:
    """Return the baseline of several runs of one workload, each from a process of its own.

    It has one entry for each launch configuration. Raises `ValueError` if the runs ran other kernels, counted other
    things or ran on other machines: such a difference is a change and no noise.
    """
    first = runs[0]
    for other in runs[1:]:
        if other.counts != first.counts:
            raise ValueError(f"the processes counted differently: {first.counts} and {other.counts}")
        comparison = compare(first.fingerprint, other.fingerprint)
        if not comparison.identical:
            raise ValueError(f"the processes ran on different machines or software: {comparison}")
        if likeness(first.entries[0].kernels, other.entries[0].kernels) is Likeness.OTHER_KERNELS:
            raise ValueError("the processes ran different kernels")
    return msgspec.structs.replace(first, entries=merge_entries(runs))


def merge_entries(baselines: Sequence[Baseline]) -> tuple[Entry, ...]:
    """Return one entry for each launch configuration, with all its processes. The most frequent one comes first."""
    groups: list[list[Entry]] = []
    for entry in (entry for baseline in baselines for entry in baseline.entries):
        for group in groups:
            if likeness(group[0].kernels, entry.kernels).same_configuration:
                group.append(entry)
                break
        else:
            groups.append([entry])
    return tuple(sorted(map(_merged, groups), key=lambda entry: entry.draws, reverse=True))


def _merged(group: Sequence[Entry]) -> Entry:
    counts = [len(entry.processes) for entry in group]

    def mean_us(places: Sequence[KernelRecord]) -> float:
        return math.fsum(kernel.device_time_us * n for kernel, n in zip(places, counts, strict=True)) / sum(counts)

    kernels = tuple(
        KernelRecord(places[0].identity, round(mean_us(places), _DECIMALS))
        for places in zip(*(entry.kernels for entry in group), strict=True)
    )
    processes = tuple(process for entry in group for process in entry.processes)
    return Entry(draws=sum(entry.draws for entry in group), kernels=kernels, processes=processes)


# -- the file -----------------------------------------------------------------------------------------------------------


def encode_baseline(baseline: Baseline) -> bytes:
    """Return JSON with a stable key order, one line for each timer of each process, and a final newline."""
    return _layout(msgspec.to_builtins(baseline)).encode() + b"\n"


def _layout(value: Any, indent: str = "") -> str:
    """Write JSON for a reader of diffs: an object or an array stands on one line if it fits."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list, tuple)) or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name, ensure_ascii=False)}: {_layout(part, inner)}" for name, part in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [_layout(part, inner) for part in value]
        opening, closing = "[", "]"
    return f"{opening}\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{closing}"


def decode_baseline(content: bytes, *, where: str, workload: str) -> Baseline:
    """Parse and validate a baseline file.

    An older schema is read as this one. Raises `BaselineError` if it is anything but a baseline of `workload`
    in one of them: a file that is there and cannot be read is never treated as one that is missing.
    """
    conflict = b"<<<<<<<" in content
    side = "--theirs " if conflict else ""
    next_command = f"git checkout {side}-- {where}   (or delete it and record again with --perf-update)"
    try:
        version = msgspec.json.decode(content, type=_Header).schema_version
        if version in _READABLE_VERSIONS:
            baseline = msgspec.structs.replace(
                msgspec.json.decode(content, type=Baseline), schema_version=SCHEMA_VERSION
            )
            baseline = msgspec.structs.replace(baseline, entries=tuple(map(_with_current_kinds, baseline.entries)))
            for wrong in _contradictions(baseline):
                raise ValueError(wrong)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise BaselineError(
            "the baseline holds an unresolved merge conflict" if conflict else "the baseline cannot be read",
            where=where,
            got="an empty file" if not content.strip() else "markers of git" if conflict else str(error),
            expected=f"a kernelgauge baseline, schema_version {SCHEMA_VERSION}",
            next_command=next_command,
        ) from error
    if version not in _READABLE_VERSIONS:
        newer = version > SCHEMA_VERSION
        kind = NewerBaselineError if newer else BaselineError
        raise kind(
            f"the baseline was written by {'a newer' if newer else 'another'} version of kernelgauge",
            where=f"{where}, field schema_version",
            got=str(version),
            expected=str(SCHEMA_VERSION),
            next_command="pip install --upgrade kernelgauge"
            if newer
            else "record it again with --perf-update   (it replaces the file)",
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


def _with_current_kinds(entry: Entry) -> Entry:
    kernels = (KernelRecord(with_current_kind(each.identity), each.device_time_us) for each in entry.kernels)
    return msgspec.structs.replace(entry, kernels=tuple(kernels))


def _contradictions(baseline: Baseline) -> Iterator[str]:
    """Yield what the types allow and no measurement shows, such as what is left of a merge by hand."""
    names = [[kernel.identity.name for kernel in entry.kernels] for entry in baseline.entries]
    for index, entry in enumerate(baseline.entries):
        path = f"$.entries[{index}]"
        if names[index] != names[0]:
            yield f"kernels differ from those of the first entry - at `{path}.kernels`"
        if baseline.counts.launches != len(entry.kernels):
            yield f"{baseline.counts.launches} launches, but there are {len(entry.kernels)} kernels - at `{path}.kernels`"
        for number, process in enumerate(entry.processes):
            times_us = [each.device_time_us for each in process.controls.values()]
            for observation in process.timers.values():
                times_us += [us for us in (observation.mean_us, observation.control_us) if us is not None]
            for us in times_us:
                if not is_duration(us):
                    yield f"no duration: {us} - at `{path}.processes[{number}]`"
