"""Measures workloads together: from what is asked to what was observed.

Passes go round all workloads: a drift of the machine then meets each of them alike, and shows between passes instead of
between workloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import KernelgaugeError
from ..run import Fingerprint
from ..workload import Workload
from .cold import require_cold_cache
from .compiler import kernel_profile_on_cpu, reset_compiler
from .device import Device
from .instance import build, first_call, reporting
from .observed import Measured, Result, observed
from .passes import drift_between, joined_controls, machine_changed, time_together
from .preparing import prepare_together
from .settings import Settings
from .subject import told
from .timing import warm_up

__all__ = ["Measured", "Result", "confirm", "measure"]

Progress = Callable[[str], None]


def measure(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
) -> Mapping[str, Result]:
    """Profile and time workloads, interleaved; by id, each with its run or with why there is none.

    The error is a `WorkloadUnavailable` if it cannot run here, a `WorkloadError` if it fails, a `MeasurementError` if
    what was seen cannot be trusted.
    """
    if device.most_replicates is not None:
        most = device.most_replicates
        settings = replace(
            settings, replicates=min(settings.replicates, most), most_replicates=min(settings.most_replicates, most)
        )
    kernel_profile_on_cpu()
    results: dict[str, Result] = {}
    failed: dict[str, KernelgaugeError] = {}
    waiting = list(workloads)
    if device.cache_bytes:
        try:
            require_cold_cache(device, device.cache_bytes)
        except KernelgaugeError as error:
            return dict.fromkeys((workload.id for workload in workloads), told(error, device))
    while waiting:
        subjects, waiting = prepare_together(waiting, device, failed, progress)
        if not subjects:
            continue
        controls = time_together(subjects, device, settings, progress)
        for subject in subjects:
            results[subject.workload.id] = observed(subject, controls, device, fingerprint, settings)
    return {**results, **failed}


def confirm(
    measured: Measured,
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
) -> Result:
    """Measure a workload again, on fresh allocations and twice as long; what was measured before counts as well."""
    subject = measured.subject
    workload = subject.workload
    reset_compiler()
    with reporting(workload, "measuring again"):
        instance = build(workload, device)
        with instance.grad_mode():
            first_call(instance)
            warm_up(device, instance, calls=device.warm_up_calls, seconds=0)
        del instance
    before = len(subject.replicates)
    wanted = 3 * before
    larger = replace(settings, replicates=wanted, most_replicates=wanted, budget_seconds=math.inf)
    progress("suspicious: measuring again, twice as long")
    again = time_together([subject], device, larger, progress)
    controls = joined_controls(measured.run.controls, before, again, len(subject.replicates) - before)
    if subject.error is None and (moved := drift_between(measured.run.controls, again)):
        subject.error = machine_changed(moved)
    return observed(subject, controls, device, fingerprint, settings)
