"""Passes over all workloads and the reference kernels, until each is pinned down: times, and whether they can be trusted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ..errors import DisturbedError, KernelgaugeError, TimesError
from ..run import ControlTime
from .compiler import compile_counts
from .conditions import highest_clock_mhz
from .device import Device
from .instance import build
from .replicate import Replicate, replicate
from .settings import Settings
from .subject import DeviceLost, Subject, prepare, told

__all__ = ["Passes"]

_CONTROL_ITERATIONS = 12  # enough for 0.1 %: a control has one kernel, and its replicates are as many as the passes
_TOLD_EVERY_S = 2.0  # a pass over a few workloads takes a tenth of that, and a log keeps every line


@dataclass
class Passes:
    """Passes over workloads and the reference kernels, each in its turn, until each is pinned down. Owns the controls.

    `confirm` goes on with the compiled code: code that was compiled again differed by 0.3 %.
    """

    subjects: Sequence[Subject]
    device: Device
    settings: Settings
    progress: Callable[[str], None]
    _controls: list[Subject] = field(default_factory=list)
    _made: int = 0
    _usual_mhz: int | None = None  # the highest clock that any of them has shown

    def make(self) -> None:
        """Until each is pinned down or out of budget."""
        try:
            for workload in self.device.controls:
                self._controls.append(prepare(workload, build(workload, self.device), self.device))
                self._controls[-1].is_control = True
        except KernelgaugeError as error:
            for subject in self.subjects:
                subject.error = told(error, self.device)
            return
        self._make(self.subjects)

    def confirm(self, slower: Sequence[Subject]) -> None:
        """Measure these further, in twice as many replicates again."""
        for subject in slower:
            subject.wanted = 3 * len(subject.replicates)
        ending = _ends_all(self._controls, self.device)
        if ending is None:
            self._make(slower)
        else:
            for subject in slower:
                subject.error = ending

    @property
    def controls(self) -> dict[str, ControlTime]:
        """What the reference kernels took; without one that was not measured."""
        return {control.workload.module: _control_time(control) for control in self._controls if control.replicates}

    def _make(self, subjects: Sequence[Subject]) -> None:
        first, told_at = self._made, -math.inf
        while active := [subject for subject in subjects if not subject.is_done(self.settings)]:
            now = time.perf_counter()
            if now - told_at >= _TOLD_EVERY_S:
                pass_ = self._made - first + 1
                self.progress(f"timing, pass {pass_}: {len(active)} of {len(subjects)} workloads")
                told_at = now
            for subject in (*self._controls, *active):
                kept = self._one_replicate(subject)
                seen = highest_clock_mhz(kept.readings) if kept is not None else None
                self._usual_mhz = max((mhz for mhz in (self._usual_mhz, seen) if mhz is not None), default=None)
            ending = _ends_all(self._controls, self.device)
            if ending is not None:
                for subject in subjects:
                    if not subject.is_done(self.settings):
                        subject.error = ending
                break
            self._made += 1
        _refuse_drift(self._controls, subjects, self.device.tolerated_drift)

    def _one_replicate(self, subject: Subject) -> Replicate | None:
        """Measure once more. None: it failed, or was disturbed and does not count."""
        settings = self.settings
        chosen = replace(settings, iterations=_CONTROL_ITERATIONS) if subject.is_control else settings
        before = compile_counts()
        try:
            measured = replicate(
                subject.workload,
                self.device,
                chosen,
                index=self._made,
                structure=subject.structure,
                pace=subject.pace,
                usual_clock_mhz=self._usual_mhz,
                is_control=subject.is_control,
                only_instance=subject.only_instance,
            )
        except KernelgaugeError as error:
            subject.end(told(error, self.device))
            return None
        finally:  # other kernels than were profiled may come of a recompile
            after = compile_counts()
            subject.recompiles += after.graphs - before.graphs
            subject.compile_events += subject.modules.located(after.events_since(before))
        if not measured.disturbed_by or subject.is_control:
            subject.replicates.append(measured)
            return measured
        subject.spoilt.append(measured)
        if len(subject.spoilt) > max(
            settings.replicates, subject.wanted or 0
        ):  # repeated as often as are kept at least
            subject.end(
                DisturbedError(
                    subject.workload.id,
                    (reason for each in subject.spoilt for reason in each.disturbed_by),
                    expected="a GPU of its own at its usual clock: each such replicate was repeated, "
                    f"{len(subject.spoilt)} times in all",
                )
            )
        return None


def _ends_all(controls: Sequence[Subject], device: Device) -> KernelgaugeError | None:
    """Why nothing more can be measured: the device is gone, or nobody watches the machine any more."""
    if device.lost():
        return DeviceLost()
    return next((control.error for control in controls if control.error is not None), None)


def _refuse_drift(controls: Sequence[Subject], subjects: Sequence[Subject], tolerated: float) -> None:
    """Believe nothing that was measured on a machine that changed its speed meanwhile."""
    drifts = {control.workload.module: _drift(control) for control in controls}
    too_far = [f"{name} {100 * drift:+.1f} %" for name, drift in drifts.items() if abs(drift) > tolerated]
    if not too_far:
        return
    drifted = TimesError(
        "the machine changed its speed while it measured",
        got=", ".join(too_far),
        expected=f"a copy and a GEMM of our own to stay within {100 * tolerated:g} %",
        next_command="nvidia-smi -q -d PERFORMANCE,CLOCK   (is it throttled, or shared?)",
    )
    for subject in subjects:
        if subject.error is None or isinstance(subject.error, DeviceLost):
            subject.error = drifted


def _drift(control: Subject) -> float:
    """Return how far a control moved from its first replicates to its last, as a fraction."""
    times = [each.device_us for each in control.replicates]
    third = len(times) // 3
    return median(times[-third:]) / median(times[:third]) - 1 if third else 0.0


def _control_time(control: Subject) -> ControlTime:
    names = [
        execution.identity.name for execution in control.structure.executions[0]
    ]  # a GEMM may split K: two kernels
    return ControlTime(" + ".join(names), median(each.device_us for each in control.replicates))
