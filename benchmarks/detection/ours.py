"""Our own method: measured as the suite measures, judged by the rule that judges the suite on that kind of machine.

The data do not say which kernels ran, so what the rule makes of them (`judge.policy_for`) is left out: every workload is
judged as one kernel of many blocks. On the same GPU the suite says the same of these six workloads: none has a kernel of few
blocks, the one behind it included (`injected`), and there the number of kernels does not count. On another GPU the suite
expects each kernel to differ by as much as one, and is slower to say REGRESSED: the more so, the shorter the workload.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
from kernelgauge.measure.steady import slower_passes

from kernelgauge.conditions import Reading
from kernelgauge.judge import Policy, Seen, Status, machine_change_on, observe, policies_for
from kernelgauge.judge import decide as decide_times
from kernelgauge.measure.device import Device
from kernelgauge.measure.instance import Instance
from kernelgauge.measure.profile import profile_session
from kernelgauge.measure.replicate import Pace, held_session
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.timing import call_duration_us, host_calls, warm_up
from kernelgauge.run import ControlTime, Sample, Timer, summarize

from .data import OURS, TIMERS, Measured, Process, Values, replicate_times_us
from .levels import NONE, WORKLOAD_IDS

__all__ = ["Replicates", "decide"]

# A suite run judges every timer of every workload: the false-alarm rate is shared out over all of them.
_COMPARISONS = len(WORKLOAD_IDS) * len(Timer)


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
    """Whether the rule says REGRESSED of these data, without the second measurement that a suspicion brings in the suite."""
    before = [_seen(workload, timer, process) for process in baseline_processes]
    after = _seen(workload, timer, test_process)
    recorded = [(process.gpu, _controls(process)) for process in baseline_processes]
    machine = machine_change_on(test_process.gpu, recorded, _controls(test_process))
    if machine.is_another and timer == "device":
        return False  # INVALID
    decision = decide_times(
        before,
        after,
        _policy(timer, test_process.process),
        comparisons=_COMPARISONS,
        explained=machine.explained(host_share=after.host_share),
    )
    return decision.status is Status.REGRESSED


def _policy(timer: str, process: Process) -> Policy:
    machine: Mapping[str, str] = process.meta.get("machine", {})
    return policies_for(machine.get("arch", ""))[TIMERS[timer]]


@functools.lru_cache(maxsize=1024)
def _control_pair_us(process: Process) -> Mapping[str, float]:
    """By name; empty where it was not measured beside the workloads."""
    return {
        name: float(np.median(_kept(process, name, np.array(times_us))))
        for name, times_us in _control_passes_us(process).items()
    }


def _control_passes_us(process: Process) -> dict[str, list[float]]:
    found: dict[str, list[float]] = process.meta.get("control_pair_us", {})
    return found


def _kept(process: Process, name: str, values: Values) -> Values:
    """Of the values of each pass, those that the suite would count."""
    left_out = _slower_passes(process)[name]
    return values[[place for place in range(len(values)) if place not in left_out]]


@functools.lru_cache(maxsize=1024)
def _slower_passes(process: Process) -> dict[str, frozenset[int]]:
    """By workload or control: the passes in which the machine was slower, by what a suite measures beside it."""
    series = dict(_control_passes_us(process))
    for workload in process.workloads:
        values = process.at(NONE).values(workload, OURS["device"])
        series[workload] = [] if values is None else replicate_times_us(values)
    slower = slower_passes({name: dict(enumerate(times_us)) for name, times_us in series.items()})
    return {name: frozenset(passes) for name, passes in slower.items()}


def _controls(process: Measured) -> dict[str, ControlTime]:
    """One kernel each: one version of cuBLAS for all processes."""
    return {name: ControlTime("", time_us) for name, time_us in _control_pair_us(process.process).items()}


def _seen(workload: str, timer: str, process: Measured) -> Seen:
    measured = process.values(workload, OURS[timer])
    assert measured is not None  # decide is asked only where there are data
    values = _kept(process.process, workload, measured)
    statistic = TIMERS[timer].statistic
    if timer == "device":
        sample = Sample(tuple(replicate_times_us(values)), values.shape[1])
        return Seen(observe(sample), process.gpu, gemm_us=_control_pair_us(process.process).get("gemm"))
    times, controls = (tuple(summarize(row, statistic) for row in values[..., index]) for index in (0, 1))
    return Seen(observe(Sample(times, values.shape[1], controls), host_share=1.0), process.gpu, 1.0)
