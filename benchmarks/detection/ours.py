"""Our own method: measured as the suite measures, judged by the rule that judges the suite on that kind of machine.

The data do not say which kernels ran: on a GPU that the baseline does not know, each workload is judged as one kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from kernelgauge.judge import ProcessTime, Status, observe, prior_for
from kernelgauge.judge import decide as decide_times
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.device import Device
from kernelgauge.measure.instance import Instance
from kernelgauge.measure.profile import profile_session
from kernelgauge.measure.replicate import Pace, held_session
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.timing import call_duration_us, host_calls, warm_up
from kernelgauge.run import Fingerprint, Sample, Timer, summarize

from .data import OURS, TIMERS, Measured, Process, Values, replicate_times_us

__all__ = ["Replicates", "decide"]


class Replicates:
    """Those of one workload, each on fresh allocations, taken one at a time: in between, others take theirs.

    ``call_builder(replicate)`` returns an instance that is warm in so far as the workload was called before in this process.
    """

    def __init__(self, device: Device, call_builder: Callable[[int], Instance]) -> None:
        self._device = device
        self._build = call_builder
        self._settings = Settings().limited(device.most_replicates, device.most_busy_seconds)
        self._pace: Pace | None = None
        self._device_us: list[list[float]] = []
        self._host_us: list[list[tuple[float, float]]] = []
        self._readings: list[list[Reading]] = []

    def take(self) -> None:
        """One more. The first also makes the session that tells how long to hold the device."""
        device, settings = self._device, self._settings
        if self._pace is None:
            instance = self._build(0)
            warm_up(device, instance, calls=device.warm_up_calls, seconds=0)
            self._pace = Pace.of(call_duration_us(device, instance), profile_session(device, instance, iterations=3))
        instance = self._build(len(self._device_us))
        warm_up(device, instance, calls=device.warm_up_calls, seconds=settings.warm_up_seconds)
        during: list[Reading] = []
        session = held_session(device, instance, settings, self._pace, during)
        self._device_us.append([sum(each.duration_us for each in executions) for executions in session.executions])
        self._readings.append(during)
        calls = host_calls(device, instance, settings.host_iterations_for(self._pace.call_us))
        self._host_us.append(list(zip(*calls, strict=True)))

    def values(self) -> tuple[Values, Values]:
        """(replicate, iteration) of the device, and (replicate, call, 2) of the host: the dispatch time and its control."""
        return np.array(self._device_us), np.array(self._host_us)

    @property
    def clocks_mhz(self) -> list[float | None]:
        """Of each replicate, as NVML read them; None: not known."""
        known = [[clock for each in during if (clock := each.sm_clock_mhz) is not None] for during in self._readings]
        return [fmean(clocks) if clocks else None for clocks in known]


def decide(workload: str, timer: str, baseline_processes: Sequence[Measured], test_process: Measured, /) -> bool:
    """Whether the rule says REGRESSED, without the second measurement that a slower time gets in the suite."""
    decision = decide_times(
        [_time(workload, timer, process) for process in baseline_processes],
        _time(workload, timer, test_process),
        prior_for(TIMERS[timer], _fingerprint(test_process.process)),
        comparisons=len(test_process.process.workloads) * len(Timer),
    )
    return decision.status is Status.REGRESSED


def _fingerprint(process: Process) -> Fingerprint:
    """Return the machine. Archives hold what the rule needs of it, and the rest is not known."""
    known: Mapping[str, str] = process.meta.get("machine", {})
    fields: dict[str, Any] = dict.fromkeys(Fingerprint.__struct_fields__)
    return Fingerprint(**(fields | {"device": "NVIDIA H200", "arch": "", "torch": "", "python": ""} | dict(known)))


def _time(workload: str, timer: str, process: Measured) -> ProcessTime:
    values = process.values(workload, OURS[timer])
    assert values is not None  # decide is asked only where there are data
    statistic = TIMERS[timer].statistic
    if timer == "device":
        sample = Sample(tuple(replicate_times_us(values)), values.shape[1])
        return ProcessTime(observe(sample), place=process.gpu, references_us=_references_us(process.process))
    times, controls = (tuple(summarize(row, statistic) for row in values[..., index]) for index in (0, 1))
    observed = observe(Sample(times, values.shape[1], controls), is_by_host=True)
    return ProcessTime(observed, place=process.gpu, is_host_clock=True, is_by_host=True)


@functools.lru_cache(maxsize=1024)
def _references_us(process: Process) -> Mapping[str, float]:
    """Return the times of the reference kernels by name; empty where they were not measured beside the workloads."""
    found: dict[str, list[float]] = process.meta.get("control_pair_us", {})
    return {name: float(np.median(times_us)) for name, times_us in found.items()}
