"""One workload while it is measured, and the errors that end it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from ..errors import KernelgaugeError, MeasurementError
from ..workload import Workload
from .device import Device
from .profile import Session
from .replicate import Pace, Replicate
from .settings import Settings

__all__ = ["DeviceLost", "Subject", "told"]


@dataclass
class Subject:
    """One workload while it is measured. Owned by the pass that measures it.

    Attributes:
        replicates: those that count.
        spoilt: on a disturbed machine.
        slowed: of passes in which the machine was slower.
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
    slowed: list[Replicate] = field(default_factory=list)
    error: KernelgaugeError | None = None

    def own(self, settings: Settings) -> Settings:
        """How long to measure this one."""
        return settings.for_call(self.pace.call_us)

    def is_done(self, settings: Settings) -> bool:
        own = self.own(settings)
        if self.error is not None or len(self.slowed) > own.replicates:  # made again, as often as are kept at least
            return True
        times = [each.device_us for each in self.replicates]
        seconds = math.fsum(each.seconds for each in (*self.replicates, *self.spoilt, *self.slowed))
        return own.is_enough(times, seconds)

    @property
    def next_index(self) -> int:
        """Of a pass that it has not seen yet: others may have had some without it."""
        made = (*self.replicates, *self.spoilt, *self.slowed)
        return 1 + max((each.index for each in made), default=-1)

    def since(self, index: int) -> list[Replicate]:
        """On an undisturbed machine, from this pass on."""
        found = [each for each in (*self.replicates, *self.slowed) if each.index >= index]
        return sorted(found, key=lambda each: each.index)

    def leave_out(self, passes: Collection[int], since: int) -> None:
        """Of the passes from `since` on, count the replicates of all but these."""
        recent = self.since(since)
        self.replicates = [each for each in self.replicates if each.index < since]
        self.slowed = [each for each in self.slowed if each.index < since]
        for each in recent:
            (self.slowed if each.index in passes else self.replicates).append(each)


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
