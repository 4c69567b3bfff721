"""Measures workloads together, in passes: a drift of the machine shows between passes, and not between workloads."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
) -> Iterator[dict[str, Result]]:
    """Profile workloads and, if `timed`, time them, interleaved, as many at once as can share compiled code.

    Yield the results of those, by id, each with its run or with why there is none: a `WorkloadUnavailable` if it cannot run
    here, a `WorkloadError` if it fails, a `MeasurementError` if its records cannot be trusted. `deterministic`: as in
    `torch_set_up`.
    """
    settings = settings.limited(device.most_replicates, device.most_busy_seconds)
    waiting: Sequence[Workload] = workloads
    roots: dict[str, object] = {}
    with torch_set_up(deterministic=deterministic):
        while waiting:
            results, waiting = _Group(device, fingerprint, settings, progress, roots).measure(waiting, timed=timed)
            yield results


@dataclass(eq=False)
class _Group:
    """Workloads whose compiled code is there together."""

    device: Device
    fingerprint: Fingerprint
    settings: Settings
    progress: Progress
    # What a workload compiles (`_compiled_root`), if an earlier group built it: some are large.
    roots: dict[str, object]
    subjects: list[Subject] = field(default_factory=list)
    _controls: list[Subject] = field(default_factory=list)

    def measure(self, workloads: Sequence[Workload], *, timed: bool) -> tuple[dict[str, Result], list[Workload]]:
        """Measure as many workloads as can share a process's compiled code. Return the results, and the other workloads."""
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
                self._go_round()
        controls = {each.workload.module: each.control_time for each in self._controls if each.replicates}
        results = {each.workload.id: each.result(self.fingerprint, controls) for each in self.subjects}
        return results | failed, deferred

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

    def _go_round(self) -> None:
        """Measure all and the controls, the reference kernels, in turn until each is pinned down or out of budget."""
        usual_mhz: int | None = None  # the highest clock that any of them has shown
        told_at = -math.inf
        for number in itertools.count():
            active = [subject for subject in self.subjects if not subject.is_done]
            if not active:
                break
            broken = next((control.error for control in self._controls if control.error is not None), None)
            ending = DeviceLost() if self.device.lost() else broken  # else nobody watches the machine
            if ending is not None:
                for subject in active:
                    subject.error = ending
                break
            if (now := time.perf_counter()) - told_at >= _TOLD_EVERY_S:
                told_at = now
                left = math.fsum(subject.seconds_left for subject in active)
                about = f", about {left:.0f} s left" if 1 <= left < math.inf else ""
                self.progress(f"timing, pass {number + 1}: {len(active)} of {len(self.subjects)} workloads{about}")
            for subject in (*self._controls, *active):
                readings = subject.measure_once(number, usual_mhz)
                usual_mhz = max(filter(None, (usual_mhz, highest_clock_mhz(readings))), default=None)
        # Believe nothing that was measured on a machine that changed its speed meanwhile.
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
            for subject in self.subjects:
                if subject.error is None or isinstance(subject.error, DeviceLost):
                    subject.error = drifted


def _compiled_root(module: Any) -> object:
    """Return what Dynamo keeps the compiled code under. Two workloads of one root would see each other's."""
    # Another shape of the same code compiles for dynamic shapes, with other kernels.
    if isinstance(module, nn.Module):
        # A module of torch itself is compiled through a wrapper that all of them share (torch/_dynamo/eval_frame.py).
        if type(module).__module__.startswith("torch.nn."):
            return "torch.nn"
        return getattr(getattr(type(module), "forward", None), "__code__", type(module))
    return getattr(module, "__code__", type(module))
