"""A baseline: what one workload showed on one kind of machine, as bytes and back. Reads no file and writes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from ..errors import BaselineError, NewerBaselineError
from ..run import ControlTime, Counts, Fingerprint, Run, Sample, Timer
from ..trace.kernel import KernelRecord
from .ancestry import Ancestor, Recorded, conditions_of
from .configuration import Likeness, likeness
from .contradictions import contradictions
from .layout import laid_out
from .observation import Observation, observe
from .timing import ProcessTime

__all__ = [
    "SCHEMA_VERSION",
    "Baseline",
    "Entry",
    "Process",
    "decode_baseline",
    "encode_baseline",
    "from_run",
    "gemm_kernel",
    "references_us",
]

SCHEMA_VERSION = 4
# Read as well: schema 3 has no `host` in its processes, schema 2 neither that nor `recorded` and `ancestors`.
_OLDER_VERSIONS = (2, 3)

# Nanoseconds: finer than the profiler's own resolution (32 ns on an H200), so nothing is lost, and a re-record
# of an unchanged machine does not differ in digits that mean nothing.
_DECIMALS = 3
_SPREAD_DECIMALS = 6


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

    draws: int  # in how many compiles it was chosen
    kernels: tuple[KernelRecord, ...]
    processes: tuple[Process, ...]

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


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file of `baselines/<gpu>/`. Field order is the order in the file.

    `recorded`: None of one that was written in schema 2. `ancestors`: those that it replaced, the first one first.
    """

    schema_version: int
    suite: str  # folder of the suite that declares the workload: what may be trimmed with it
    workload: str
    fingerprint: Fingerprint
    counts: Counts
    entries: tuple[Entry, ...]
    recorded: Recorded | None = None
    ancestors: tuple[Ancestor, ...] = ()

    def entry_like(self, kernels: Sequence[KernelRecord]) -> tuple[Entry, Likeness]:
        """The entry to compare these kernels with: that of their own configuration, else the one chosen most often."""
        best = max(self.entries, key=lambda entry: (likeness(entry.kernels, kernels), entry.draws))
        return best, likeness(best.kernels, kernels)

    def times(self, timer: Timer, entry: Entry, *, gemm: str | None = None) -> list[ProcessTime]:
        """Return what each process measured of a timer. Every configuration counts for the host's work, which is the same.

        `gemm`: name of the run's reference GEMM. The time of another one is not comparable.
        """
        entries = self.entries if timer is Timer.HOST else (entry,)
        return [
            ProcessTime(
                process.timers[timer],
                place=process.place,
                host=process.host,
                is_host_clock=self._is_host_clock(timer),
                is_by_host=entry.is_by_host(timer),
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
    """The baseline that accepting `run` would store. The conditions that were recorded are the run's own."""
    if recorded is not None:
        recorded = msgspec.structs.replace(recorded, conditions=conditions_of([run]))
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


def encode_baseline(baseline: Baseline) -> bytes:
    """JSON with a stable key order and a final newline, one line for each timer of each process and each ancestor."""
    return laid_out(msgspec.to_builtins(baseline), a_line_each={"ancestors"}).encode() + b"\n"


def decode_baseline(content: bytes, *, where: str, workload: str) -> Baseline:
    """Parse and validate a baseline file.

    An older schema is read as this one. Raises `BaselineError` if it is anything but a baseline of `workload`
    in one of them: a file that is there and cannot be read is never treated as one that is missing.
    """
    next_command = f"git checkout -- {where}   (or delete it and record again with --perf-update)"
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.schema_version in (*_OLDER_VERSIONS, SCHEMA_VERSION):
            baseline = _decoded(content)
            for field, wrong in contradictions(baseline):
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
    if header.schema_version not in (*_OLDER_VERSIONS, SCHEMA_VERSION):
        newer = header.schema_version > SCHEMA_VERSION
        kind = NewerBaselineError if newer else BaselineError
        raise kind(
            f"the baseline was written by {'a newer' if newer else 'another'} version of kernelgauge",
            where=f"{where}, field schema_version",
            got=str(header.schema_version),
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


def _decoded(content: bytes) -> Baseline:
    baseline = msgspec.json.decode(content, type=Baseline)
    if baseline.schema_version == _OLDER_VERSIONS[0] and (baseline.recorded or baseline.ancestors):
        raise ValueError("schema 2 has neither `recorded` nor `ancestors` - at `$.schema_version`")
    return msgspec.structs.replace(baseline, schema_version=SCHEMA_VERSION)
