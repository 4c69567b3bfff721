"""Measures workloads together, in passes: a drift of the machine shows between passes, and not between workloads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ..errors import KernelgaugeError, TimesError
from ..run import Fingerprint
from ..workload import Workload
from . import Settings
from .compiler import compile_counts, reset_compiler, torch_set_up
from .device import Device
from .instance import Instance, build
from .nvml import highest_clock_mhz
from .subject import DeviceLost, Measured, Subject, told

Result = Measured | KernelgaugeError
Progress = Callable[[str], None]

_TOLD_EVERY_S = 2.0  # a pass over a few workloads takes a tenth of that, and a log keeps every line


def measure_groups(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
    *,
    timed: bool = True,
    deterministic: bool = False,
) -> Iterator[MeasuredGroup]:
    """Profile workloads and, if `timed`, time them, interleaved, as many at once as can share compiled code.

    A group's compiled code is gone when the next one is asked for. `deterministic`: as in `torch_set_up`.
    """
    settings = settings.limited(device.most_replicates, device.most_busy_seconds)
    waiting: Sequence[Workload] = workloads
    roots: dict[str, object] = {}
    with torch_set_up(deterministic=deterministic):
        while waiting:
            group = MeasuredGroup(device, fingerprint, settings, progress, roots)
            waiting = group.measure(waiting, timed=timed)
            yield group
            for subject in group.subjects:
                subject.only_instance = None  # the next ones are built before these subjects are gone


@dataclass(eq=False)
class MeasuredGroup:
    """Workloads whose compiled code is there together, so that they can be measured further.

    A confirmation goes on with the compiled code: code that was compiled again differed by 0.3 %.

    `results`: by workload id, each with its run or with why there is none: a `WorkloadUnavailable` if it cannot run here,
    a `WorkloadError` if it fails, a `MeasurementError` if its records cannot be trusted.
    """

    device: Device
    fingerprint: Fingerprint
    settings: Settings
    progress: Progress
    roots: dict[
        str, object
    ]  # what a workload compiles (`_compiled_root`), if an earlier group built it: some are large
    results: dict[str, Result] = field(default_factory=dict)
    subjects: list[Subject] = field(default_factory=list)
    _controls: list[Subject] = field(default_factory=list)
    _passes: int = 0
    _usual_mhz: int | None = None  # the highest clock that any of them has shown

    def measure(self, workloads: Sequence[Workload], *, timed: bool) -> list[Workload]:
        """Measure as many workloads as can share a process's compiled code. Return the others."""
        failed: dict[str, Result] = {}
        deferred = self._prepare(workloads, failed)
        if self.subjects and timed:
            try:
                for each in self.device.controls:  # each instance is gone before the next one is built
                    control = Subject(each, build(each, self.device), self.device, self.settings, is_control=True)
                    self._controls.append(control)
            except KernelgaugeError as error:
                ending = told(error, self.device)
                for subject in self.subjects:
                    subject.error = ending
            else:
                self._go_round(self.subjects)
        self.results = {subject.workload.id: self._result(subject) for subject in self.subjects} | failed
        return deferred

    def confirm(self, slower: Iterable[str]) -> None:
        """Measure these workloads further, three times as long in all: what was measured before counts as well."""
        named = set(slower)
        subjects = [each for each in self.subjects if each.workload.id in named and each.error is None]
        for subject in subjects:
            self.progress(f"{subject.workload.id}: looks slower: measuring again, twice as long")
            subject.wanted = 3 * len(subject.replicates)
        if subjects:
            self._go_round(subjects)
        for subject in subjects:
            name = subject.workload.id
            before = self.results[name]
            if subject.error is None:
                self.results[name] = self._result(subject)
            elif isinstance(before, Measured):
                self.progress(f"{name}: not measured again: {subject.error.what}")
                self.results[name] = replace(before, not_confirmed=subject.error)

    def _prepare(self, workloads: Sequence[Workload], failed: dict[str, Result]) -> list[Workload]:
        """Compile and profile those that can share compiled code; those that fail are put into `failed`. Return the others."""
        reset_compiler()
        deferred: list[Workload] = []
        roots: set[object] = set()

        def must_wait(workload: Workload) -> bool:
            # After a graph break functions are compiled on their own that the next workload may call too.
            has_breaks = workload.compile is not None and compile_counts().graph_breaks > 0
            return has_breaks or self.roots.get(workload.id) in roots

        for number, workload in enumerate(workloads, 1):
            instance: Instance | None = None  # gone before the next one is built
            if must_wait(workload):
                deferred.append(workload)
                continue
            try:
                instance = build(workload, self.device)
                root = None if workload.compile is None else _compiled_root(instance.module)
                self.roots[workload.id] = root
                if must_wait(workload):
                    deferred.append(workload)
                    continue
                if root is not None:
                    roots.add(root)  # before it runs: one that fails may have compiled as well
                doing = "profiling" if root is None else "compiling and profiling"
                self.progress(f"{number} of {len(workloads)}: {doing} {workload.id}")
                self.subjects.append(Subject(workload, instance, self.device, self.settings))
            except KernelgaugeError as error:
                failed[workload.id] = told(error, self.device)
        return deferred

    def _go_round(self, subjects: Sequence[Subject]) -> None:
        """Measure these and the controls, the reference kernels, in turn until each is pinned down or out of budget."""
        first, told_at = self._passes, -math.inf
        while active := [subject for subject in subjects if not subject.is_done]:
            broken = next((control.error for control in self._controls if control.error is not None), None)
            ending = DeviceLost() if self.device.lost() else broken  # else nobody watches the machine
            if ending is not None:
                for subject in active:
                    subject.error = ending
                break
            if (now := time.perf_counter()) - told_at >= _TOLD_EVERY_S:
                told_at = now
                number = self._passes - first + 1
                left = math.fsum(subject.seconds_left for subject in active)
                about = f", about {left:.0f} s left" if 1 <= left < math.inf else ""
                self.progress(f"timing, pass {number}: {len(active)} of {len(subjects)} workloads{about}")
            for subject in (*self._controls, *active):
                readings = subject.measure_once(self._passes, self._usual_mhz)
                self._usual_mhz = max(filter(None, (self._usual_mhz, highest_clock_mhz(readings))), default=None)
            self._passes += 1
        self._refuse_drift(subjects)

    def _refuse_drift(self, subjects: Sequence[Subject]) -> None:
        """Believe nothing that was measured on a machine that changed its speed meanwhile."""
        tolerated = self.device.tolerated_drift
        drifts = {control.workload.module: control.drift for control in self._controls}
        too_far = [f"{name} {100 * drift:+.1f} %" for name, drift in drifts.items() if abs(drift) > tolerated]
        if too_far:
            drifted = TimesError(
                "the machine changed its speed while it measured",
                got=", ".join(too_far),
                expected=f"a copy and a GEMM of our own to stay within {100 * tolerated:g} %",
                next_command="nvidia-smi -q -d PERFORMANCE,CLOCK   (is it throttled, or shared?)",
            )
            for subject in subjects:
                if subject.error is None or isinstance(subject.error, DeviceLost):
                    subject.error = drifted

    def _result(self, subject: Subject) -> Result:
        """Return what was observed of a workload; the reference kernels are those of all passes."""
        controls = {each.workload.module: each.control_time for each in self._controls if each.replicates}
        return subject.result(self.fingerprint, controls)


def _compiled_root(module: Any) -> object:
    """Return what Dynamo keeps the compiled code under. Two workloads of one root would see each other's."""
    # Another shape of the same code compiles for dynamic shapes, with other kernels.
    if isinstance(module, nn.Module):
        # A module of torch itself is compiled through a wrapper that all of them share (torch/_dynamo/eval_frame.py).
        if type(module).__module__.startswith("torch.nn."):
            return "torch.nn"
        return getattr(getattr(type(module), "forward", None), "__code__", type(module))
    return getattr(module, "__code__", type(module))
