"""One workload while it is measured, and the errors that end it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ..errors import KernelgaugeError, MeasurementError
from ..workload import Workload
from .device import Device
from .instance import Instance
from .profile import Session
from .replicate import Pace, Replicate
from .settings import Settings

__all__ = ["DeviceLost", "Subject", "told"]


@dataclass(eq=False)
class Subject:
    """One workload while it is measured. Owned by the pass that measures it.

    Attributes:
        replicates: those that count.
        spoilt: on a disturbed machine.
        wanted: how many are to count, by a confirmation; None: as many as pin it down.
        only_instance: what all replicates are made on; None: each on one of its own.
    """

    workload: Workload
    structure: Session
    pace: Pace
    graph_breaks: int
    peak: int | None
    is_control: bool = False
    recompiles: int = 0
    replicates: list[Replicate] = field(default_factory=list)
    spoilt: list[Replicate] = field(default_factory=list)
    wanted: int | None = None
    only_instance: Instance | None = None
    error: KernelgaugeError | None = None

    def own(self, settings: Settings) -> Settings:
        """How long to measure this one."""
        own = settings.for_call(self.pace.call_us)
        if self.wanted is None:
            return own
        return replace(own, replicates=self.wanted, most_replicates=self.wanted, budget_seconds=math.inf)

    def is_done(self, settings: Settings) -> bool:
        own = self.own(settings)
        if self.error is not None:
            return True
        times = [each.device_us for each in self.replicates]
        seconds = math.fsum(each.seconds for each in (*self.replicates, *self.spoilt))
        return own.is_enough(times, seconds)

    def end(self, error: KernelgaugeError) -> None:
        """It is measured no more; the memory of its instance is for the others."""
        self.error = error
        self.only_instance = None


def told(error: KernelgaugeError, device: Device) -> KernelgaugeError:
    """The error as it is reported: without the frames, which hold a workload's memory while others are measured."""
    if device.lost():
        return DeviceLost(error)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class DeviceLost(MeasurementError):
    """Nothing can be measured any more. What was before is sound."""

    def __init__(self, error: KernelgaugeError | None = None) -> None:
        super().__init__(
            "the GPU no longer answers",
            got=None if error is None else str(error),
            expected="no CUDA error: after one, nothing in this process can be measured",
            next_command="dmesg | grep -i xid   (what happened to it?)",
        )
