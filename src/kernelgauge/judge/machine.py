"""The control pair: a copy and a GEMM of our own. What moves them is the machine and not the code under test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..run import ControlTime
from .speed import at_the_speed_of

__all__ = ["MachineChange", "gemm_kernel", "gemm_us", "machine_change", "machine_change_on"]

# Between nine processes on one H200 each of the pair spreads by 0.1 % (benchmarks/data/nine_processes). Less than this is
# no statement about the machine.
_NOISE = {"copy": 0.003, "gemm": 0.003}
# Among H200s of one kind the copy spreads by 0.1 to 0.4 %; the two kinds are 1.5 % apart (docs/measuring.md). One that was
# slower by 1.8 % ran kernels of 3 us slower by 0.7 to 1.6 %. How a workload follows the GEMM is in the prediction of another
# GPU already (judge/noise.py).
_NOISE_BETWEEN_GPUS = {"copy": 0.008}
# One GPU that is this much slower or faster than it was is another machine: throttled, shared, or with other clocks.
_ANOTHER_MACHINE = 0.03
# Two H200s differed by 3.0 % in the GEMM, which is limited by power: as far as GPUs of one kind are one machine.
_ANOTHER_KIND = 0.08


@dataclass(frozen=True)
class MachineChange:
    """How the control pair moved against the baseline.

    Attributes:
        changes: by name, as fractions; empty: nothing to compare.
        same_gpu: whether it is the baseline's own GPU, or another one of its kind.
    """

    changes: Mapping[str, float]
    same_gpu: bool = True

    @property
    def is_another(self) -> bool:
        """Whether times of the two cannot be compared."""
        bound = _ANOTHER_MACHINE if self.same_gpu else _ANOTHER_KIND
        return any(abs(change) > bound for change in self.changes.values())

    @property
    def moved(self) -> bool:
        return bool(self._beyond_noise())

    @property
    def explains(self) -> tuple[float, float]:
        """The change that it may have made in any workload, from the lowest to the highest, as logarithms."""
        seen = self._beyond_noise()
        return min([0.0, *seen]), max([0.0, *seen])

    def explained(self, *, host_share: float) -> tuple[float, float]:
        """The same of a time of which the host has a part: the control pair says nothing of that."""
        low, high = self.explains
        return (1 - host_share) * low, (1 - host_share) * high

    def _beyond_noise(self) -> list[float]:
        noise = _NOISE if self.same_gpu else _NOISE_BETWEEN_GPUS
        return [math.log1p(change) for name, change in self.changes.items() if abs(change) > noise.get(name, math.inf)]

    def __str__(self) -> str:
        return ", ".join(f"{name} {100 * change:+.1f} %" for name, change in self.changes.items())


def gemm_kernel(controls: Mapping[str, ControlTime]) -> str | None:
    """What the control GEMM ran: times of another kernel are not comparable. None: it was not measured."""
    control = controls.get("gemm")
    return None if control is None else control.kernel


def gemm_us(controls: Mapping[str, ControlTime], kernel: str | None) -> float | None:
    """Time of the control GEMM; None: not measured, or not with this kernel."""
    control = controls.get("gemm")
    return control.device_time_us if control is not None and control.kernel == kernel else None


def machine_change_on(
    gpu: str | None,
    processes: Sequence[tuple[str | None, Mapping[str, ControlTime]]],
    controls: Mapping[str, ControlTime],
    *,
    others: Sequence[tuple[str | None, Mapping[str, ControlTime]]] = (),
) -> MachineChange:
    """How the control pair moved on `gpu` since: against the processes on that GPU at the run's speed, or on that GPU at all.

    Where there are none, how far each of the pair is from the GPU that is nearest in it: how a workload differs between the
    GPUs of a baseline is known from their times, and needs no explanation. `others`: processes of the same workload in
    other launch configurations, which tell of their GPUs as well, this one maybe: which of them drew the run's is chance.
    """
    same, elsewhere = ([before for made_on, before in each if made_on == gpu] for each in (processes, others))
    if not same:
        itself = machine_change(elsewhere, controls)
        return itself if itself.is_another else _beyond_known_gpus([*processes, *others], controls)
    kernel = gemm_kernel(controls)
    at_its_speed = at_the_speed_of(gemm_us(controls, kernel), [gemm_us(before, kernel) for before in same])
    return machine_change([same[place] for place in at_its_speed], controls)


def _beyond_known_gpus(
    processes: Sequence[tuple[str | None, Mapping[str, ControlTime]]], controls: Mapping[str, ControlTime]
) -> MachineChange:
    by_gpu: dict[str | None, list[Mapping[str, ControlTime]]] = {}
    for made_on, before in processes:
        by_gpu.setdefault(made_on, []).append(before)
    nearest: dict[str, float] = {}
    for each in by_gpu.values():
        for name, change in machine_change(each, controls).changes.items():
            nearest[name] = min(change, nearest.get(name, math.inf), key=abs)
    return MachineChange(nearest, same_gpu=False)


def machine_change(
    before: Sequence[Mapping[str, ControlTime]], after: Mapping[str, ControlTime], *, same_gpu: bool = True
) -> MachineChange:
    """Compare the control pair of a run with that of the baseline's processes.

    A control that runs another kernel now (after an upgrade of cuBLAS) says nothing, and is left out.
    """
    changes: dict[str, float] = {}
    for name, control in after.items():
        usual = [
            math.log(each[name].device_time_us)
            for each in before
            if name in each
            if each[name].kernel == control.kernel
        ]
        if usual:
            changes[name] = math.expm1(math.log(control.device_time_us) - fmean(usual))
    return MachineChange(changes, same_gpu)
