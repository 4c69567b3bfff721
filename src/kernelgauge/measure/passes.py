"""Passes over all workloads and the control pair, until each is pinned down: times, and whether they can be trusted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from ..conditions import highest_clock_mhz
from ..errors import DisturbedError, KernelgaugeError, MeasurementError
from ..run import ControlTime
from ..workload import Workload
from .compiler import compile_counts
from .device import Device
from .instance import build
from .preparing import prepare
from .replicate import replicate
from .settings import Settings
from .steady import slower_passes
from .subject import DeviceLost, Subject, told

__all__ = ["drift_between", "joined_controls", "machine_changed", "time_together"]

_CONTROL_ITERATIONS = 12  # enough for 0.1 %: a control has one kernel, and its replicates are as many as the passes
# The control pair may drift by this much between the first passes and the last. Nothing that a GPU does by itself
# moves it further: between processes on one H200 each of it spreads by 0.1 %.
_CONTROL_DRIFT = 0.03
_TOLD_EVERY_S = 2.0  # a pass over a few workloads takes a tenth of that, and a log keeps every line


def time_together(
    subjects: Sequence[Subject], device: Device, settings: Settings, progress: Callable[[str], None]
) -> dict[str, ControlTime]:
    """Passes over all subjects and the control pair, until each is pinned down or out of budget."""
    try:
        controls = [_control(workload, device) for workload in device.controls]
    except KernelgaugeError as error:
        for subject in subjects:
            subject.error = told(error, device)
        return {}
    first = subjects[0].next_index  # a confirmation goes on to other addresses
    index = first
    told_at = -math.inf
    while active := _unfinished(subjects, controls, settings, first):
        now = time.perf_counter()
        if now - told_at >= _TOLD_EVERY_S:
            left = _left(active, settings)
            progress(f"timing, pass {index - first + 1}: {len(active)} of {len(subjects)} workloads{left}")
            told_at = now
        for subject in (*controls, *active):
            _one_replicate(subject, device, settings, index, usual_clock_mhz=_usual_clock((*controls, *subjects)))
        ending = _ends_all(controls, device)
        if ending is not None:
            for subject in subjects:
                if not subject.is_done(settings):
                    subject.error = ending
            break
        index += 1
    _count_all_where_too_few_are_left(subjects, settings, first)
    _refuse_drift(controls, subjects)
    _tell_slower(subjects, first, progress)
    return {control.workload.module: _control_time(control) for control in controls if control.replicates}


def _unfinished(
    subjects: Sequence[Subject], controls: Sequence[Subject], settings: Settings, first: int
) -> list[Subject]:
    """Those that need more replicates: once none does, those that are left too few without the machine's slow passes.

    What was left out is made again by all of them together: the passes are compared once more, and the machine has as much
    to do in them as it had before.
    """

    def found() -> list[Subject]:
        return [subject for subject in subjects if not subject.is_done(settings)]

    unfinished = found()
    if not unfinished:
        _leave_slow_passes_out([*subjects, *controls], first)
        unfinished = found()
    if unfinished and any(each.index >= first for subject in subjects for each in subject.slowed):
        return [subject for subject in subjects if subject.error is None]
    return unfinished


def _count_all_where_too_few_are_left(subjects: Sequence[Subject], settings: Settings, first: int) -> None:
    """A machine that did not come back to its fast passes has no usual speed."""
    for subject in subjects:
        if len(subject.replicates) < subject.own(settings).replicates:
            subject.leave_out((), first)


def _leave_slow_passes_out(together: Sequence[Subject], first: int) -> None:
    sound = [subject for subject in together if subject.error is None]
    measured = [{each.index: each.device_us for each in subject.since(first)} for subject in sound]
    for place, slower in slower_passes(dict(enumerate(measured))).items():
        sound[place].leave_out(slower, first)


def _tell_slower(subjects: Sequence[Subject], first: int, progress: Callable[[str], None]) -> None:
    passes = {each.index for subject in subjects for each in subject.since(first)}
    slow = {each.index for subject in subjects for each in subject.slowed if each.index >= first}
    if slow:
        progress(f"timing: the machine was slower in {len(slow)} of {len(passes)} passes, which are left out")


def _left(active: Sequence[Subject], settings: Settings) -> str:
    """How long it will take at least: for each workload's least number of replicates, by what its own took so far."""
    seconds = math.fsum(
        fmean(each.seconds for each in subject.replicates)
        * max(0, subject.own(settings).replicates - len(subject.replicates))
        for subject in active
        if subject.replicates
    )
    return f", {seconds:.0f} s at least" if seconds >= 1 else ""


def _ends_all(controls: Sequence[Subject], device: Device) -> KernelgaugeError | None:
    """Why nothing more can be measured: the device is gone, or nobody watches the machine any more."""
    if device.lost():
        return DeviceLost()
    return next((control.error for control in controls if control.error is not None), None)


def _refuse_drift(controls: Sequence[Subject], subjects: Sequence[Subject]) -> None:
    """Nothing is believed that was measured on a machine that changed its speed meanwhile."""
    drifts = [drift for control in controls if (drift := _drift(control))]
    if not drifts:
        return
    drifted = machine_changed(", ".join(drifts))
    for subject in subjects:
        if subject.error is None or isinstance(subject.error, DeviceLost):
            subject.error = drifted


def _control(workload: Workload, device: Device) -> Subject:
    control = prepare(workload, build(workload, device), device)
    control.is_control = True
    return control


def _usual_clock(subjects: Sequence[Subject]) -> int | None:
    return highest_clock_mhz(
        reading for subject in subjects for each in subject.replicates for reading in each.readings
    )


def _one_replicate(
    subject: Subject, device: Device, settings: Settings, index: int, usual_clock_mhz: float | None
) -> None:
    chosen = replace(settings, iterations=_CONTROL_ITERATIONS) if subject.is_control else settings
    compiled = compile_counts().graphs
    try:
        measured = replicate(
            subject.workload,
            device,
            chosen,
            index=index,
            structure=subject.structure,
            pace=subject.pace,
            usual_clock_mhz=usual_clock_mhz,
            with_host=not subject.is_control,
        )
    except KernelgaugeError as error:
        subject.error = told(error, device)
        return
    subject.recompiles += compile_counts().graphs - compiled
    if not measured.disturbed_by or subject.is_control:
        subject.replicates.append(measured)
        return
    subject.spoilt.append(measured)
    if len(subject.spoilt) > settings.replicates:  # made again, as often as are kept at least
        subject.error = DisturbedError(
            subject.workload.id,
            (reason for each in subject.spoilt for reason in each.disturbed_by),
            expected="a GPU of its own at its usual clock: each such replicate was repeated, "
            f"{len(subject.spoilt)} times in all",
        )


def machine_changed(how: str) -> MeasurementError:
    return MeasurementError(
        "the machine changed its speed while it measured",
        got=how,
        expected=f"a copy and a GEMM of our own to stay within {100 * _CONTROL_DRIFT:g} %",
        next_command="nvidia-smi -q -d PERFORMANCE,CLOCK   (is it throttled, or shared?)",
    )


def drift_between(first: Mapping[str, ControlTime], second: Mapping[str, ControlTime]) -> str:
    """How far the controls moved between two measurements; empty if not too far."""
    moved = {name: second[name].device_time_us / first[name].device_time_us - 1 for name in first if name in second}
    return ", ".join(f"{name} {100 * by:+.1f} %" for name, by in moved.items() if abs(by) > _CONTROL_DRIFT)


def joined_controls(
    first: Mapping[str, ControlTime], replicates: int, second: Mapping[str, ControlTime], more: int
) -> dict[str, ControlTime]:
    """The controls of two measurements whose replicates are judged together, each weighed by their number."""
    joined = {**first, **second}
    for name in set(first) & set(second):
        parts = (first[name].device_time_us, replicates), (second[name].device_time_us, more)
        mean_us = sum(time_us * count for time_us, count in parts) / sum(count for _, count in parts)
        joined[name] = ControlTime(second[name].kernel, mean_us)
    return joined


def _drift(control: Subject) -> str | None:
    """How far a control moved from its first replicates to its last, if that is too far."""
    times = [each.device_us for each in control.since(0)]
    third = len(times) // 3
    if not third:
        return None
    moved = median(times[-third:]) / median(times[:third]) - 1
    return f"{control.workload.module} {100 * moved:+.1f} %" if abs(moved) > _CONTROL_DRIFT else None


def _control_time(control: Subject) -> ControlTime:
    names = [
        execution.identity.name for execution in control.structure.executions[0]
    ]  # a GEMM may split K: two kernels
    return ControlTime(" + ".join(names), median(each.device_us for each in control.replicates))
