"""The machines that results tell of: each GPU, and how its reference kernels stands among the others of its kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ..judge import Status
from ..results import Results, WorkloadResult
from ..revision import short
from ..run import ControlTime, Fingerprint

__all__ = ["Machine", "machines_of"]

_NOTHING = "nothing measured"
# Healthy H200s differ by 3.0 % at most in the reference GEMM.
_SLOWER = 0.03


@dataclass(frozen=True)
class Machine:
    """A GPU with its host, its software, and the commit that it measured.

    Attributes:
        name: by which reports tell it from the others.
        gpu: which one of its kind; None: a CPU, or not known.
        among: by how much its reference kernels are slower than those of the GPUs of its kind, as fractions by name.
    """

    name: str
    device: str
    gpu: str | None
    host: str
    commit: str | None
    fingerprint: Fingerprint | None
    workloads: tuple[WorkloadResult, ...]
    among: Mapping[str, float] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str | None, str]:
        return self.device, self.gpu, self.host

    @property
    def is_slower(self) -> bool:
        """Whether the reference kernels says so, beyond what GPUs of a kind differ by."""
        largest = max(self.among.values(), key=abs, default=0.0)
        return largest > _SLOWER

    @property
    def fails(self) -> bool:
        return any(workload.status is not None and workload.status.fails for workload in self.workloads)

    @property
    def passes(self) -> bool:
        """Whether it decided something, and nothing failed."""
        decided = any(workload.status in (Status.PASS, Status.IMPROVED) for workload in self.workloads)
        return decided and not self.fails

    def controls(self) -> dict[str, ControlTime]:
        """The median of each over all runs, with the kernel that most of them ran."""
        times: dict[str, list[ControlTime]] = {}
        for workload in self.workloads:
            for name, control in (workload.run.controls if workload.run is not None else {}).items():
                times.setdefault(name, []).append(control)
        return {name: _typical(each) for name, each in times.items()}


def machines_of(results: Sequence[Results]) -> tuple[Machine, ...]:
    """Each GPU of each results, in order, with a name of its own."""
    found = [machine for each in results for machine in _machines(each)]
    counts = Counter(machine.name for machine in found)
    names: Counter[str] = Counter()
    machines: list[Machine] = []
    for machine in found:
        name = machine.name
        if counts[name] > 1 and machine.commit is not None:
            name += f" at {short(machine.commit)}"
        names[name] += 1
        machines.append(replace(machine, name=name if names[name] == 1 else f"{name} ({names[name]})"))
    return tuple(replace(machine, among=_among(machine, machines)) for machine in machines)


def _machines(results: Results) -> list[Machine]:
    by_place: dict[tuple[str, str | None], list[WorkloadResult]] = {}
    for workload in results.workloads:
        fingerprint, gpu = results.machine_of(workload)
        device = fingerprint.device if fingerprint is not None else _NOTHING
        by_place.setdefault((device, gpu), []).append(workload)
    return [
        Machine(
            name=" ".join(part for part in (device, gpu, f"on {results.host}" if results.host else "") if part),
            device=device,
            gpu=gpu,
            host=results.host,
            commit=results.commit,
            fingerprint=results.fingerprint,
            workloads=tuple(workloads),
        )
        for (device, gpu), workloads in by_place.items()
    ]


def _among(machine: Machine, machines: Sequence[Machine]) -> dict[str, float]:
    """Of two GPUs, against the other; of more, against the median of all, which no single one moves."""
    mine = machine.controls()
    of_its_kind = [each for each in machines if each.device == machine.device]
    usual: dict[str, ControlTime] = {}
    for name, control in mine.items():
        times: dict[tuple[str, str | None, str], float] = {}  # by GPU: one that stands there twice counts once
        for each in of_its_kind:
            theirs = each.controls().get(name)
            if theirs is not None and theirs.kernel == control.kernel:
                times[each.place] = theirs.device_time_us
        others = [time for place, time in times.items() if place != machine.place]
        if others:
            usual[name] = ControlTime(
                control.kernel, median([*others, control.device_time_us] if others[1:] else others)
            )
    return {name: mine[name].device_time_us / control.device_time_us - 1 for name, control in usual.items()}


def _typical(controls: Sequence[ControlTime]) -> ControlTime:
    kernel = Counter(control.kernel for control in controls).most_common(1)[0][0]
    return ControlTime(kernel, median(each.device_time_us for each in controls if each.kernel == kernel))
