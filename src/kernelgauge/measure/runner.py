"""Measures workloads together: from what is asked to what was observed.

Passes go round all workloads: a drift of the machine then meets each of them alike, and shows between passes instead of
between workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ..errors import KernelgaugeError
from ..run import Fingerprint, Run
from ..workload import Workload
from .compiler import kernel_profile_on_cpu
from .device import Device
from .observed import Measured, Result, observed
from .passes import Passes
from .preparing import prepare_together
from .settings import Settings
from .subject import Subject

__all__ = ["Measured", "Result", "Suspects", "measure"]

Progress = Callable[[str], None]
# Of the runs by id, which ones a larger measurement should confirm.
Suspects = Callable[[Mapping[str, Run]], Collection[str]]


def measure(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
    suspects: Suspects = lambda _: (),
) -> Mapping[str, Result]:
    """Profile and time workloads, interleaved; by id, each with its run or with why there is none.

    Those that `suspects` names are measured further at once, in more replicates and three times as long in all: what was
    measured before counts as well.

    The error is a `WorkloadUnavailable` if it cannot run here, a `WorkloadError` if it fails, a `MeasurementError` if
    what was seen cannot be trusted.
    """
    settings = settings.limited(device.most_replicates, device.most_busy_seconds)
    kernel_profile_on_cpu()
    results: dict[str, Result] = {}
    failed: dict[str, KernelgaugeError] = {}
    waiting = list(workloads)
    while waiting:
        subjects, waiting = prepare_together(waiting, device, failed, progress)
        if subjects:
            passes = Passes(subjects, device, settings, progress)
            passes.make()
            first = {subject.workload.id: _observed(passes, subject, fingerprint) for subject in subjects}
            results |= first | _confirmed(passes, fingerprint, first, suspects)
            for subject in subjects:
                subject.only_instance = None  # the next ones are built before these subjects are gone
    return {**results, **failed}


def _observed(passes: Passes, subject: Subject, fingerprint: Fingerprint) -> Result:
    return observed(subject, passes.controls, passes.device, fingerprint, passes.settings)


def _confirmed(
    passes: Passes, fingerprint: Fingerprint, first: Mapping[str, Result], suspects: Suspects
) -> dict[str, Result]:
    """Measure the workloads that look slower further and return their results, by id."""
    named = suspects({identifier: result.run for identifier, result in first.items() if isinstance(result, Measured)})
    slower = [subject for subject in passes.subjects if subject.workload.id in named and subject.error is None]
    if not slower:
        return {}
    for subject in slower:
        passes.progress(f"{subject.workload.id}: looks slower: measuring again, twice as long")
    passes.confirm(slower)
    again: dict[str, Result] = {}
    for subject in slower:
        before = first[subject.workload.id]
        if subject.error is None:
            again[subject.workload.id] = _observed(passes, subject, fingerprint)
        elif isinstance(before, Measured):
            passes.progress(f"{subject.workload.id}: not measured again: {subject.error.what}")
            again[subject.workload.id] = replace(before, not_confirmed=subject.error)
    return again
