"""Measures workloads together: from what is asked to what was observed.

Passes go round all workloads: a drift of the machine then meets each of them alike, and shows between passes instead of
between workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import KernelgaugeError
from ..run import Fingerprint
from ..workload import Workload
from .compiler import torch_set_up
from .device import Device
from .observed import Measured, Result, observed
from .passes import Passes
from .settings import Settings
from .subject import Subject, prepare_together

__all__ = ["Measured", "MeasuredGroup", "Result", "measure", "measure_groups"]

Progress = Callable[[str], None]


@dataclass
class MeasuredGroup:
    """Workloads whose compiled code is there together, so that they can be measured further.

    `results`: by workload id, each with its run or with why there is none: a `WorkloadUnavailable` if it cannot run here,
    a `WorkloadError` if it fails, a `MeasurementError` if what was seen cannot be trusted.
    """

    results: dict[str, Result]
    _passes: Passes
    _fingerprint: Fingerprint

    def confirm(self, slower: Iterable[str]) -> None:
        """Measure these workloads further, three times as long in all: what was measured before counts as well."""
        named = set(slower)
        passes = self._passes
        subjects = [each for each in passes.subjects if each.workload.id in named and each.error is None]
        for subject in subjects:
            passes.progress(f"{subject.workload.id}: looks slower: measuring again, twice as long")
        if subjects:
            passes.confirm(subjects)
        for subject in subjects:
            name = subject.workload.id
            before = self.results[name]
            if subject.error is None:
                self.results[name] = _observed(passes, subject, self._fingerprint)
            elif isinstance(before, Measured):
                passes.progress(f"{name}: not measured again: {subject.error.what}")
                self.results[name] = replace(before, not_confirmed=subject.error)


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
    """Profile and time workloads, interleaved, as many at once as can share compiled code.

    A group's compiled code is gone when the next one is asked for.

    Args:
        timed: whether to time them; else only their structure is measured.
        deterministic: let Inductor choose launch configurations without timing them.
    """
    settings = settings.limited(device.most_replicates, device.most_busy_seconds)
    waiting = list(workloads)
    with torch_set_up(deterministic=deterministic):
        while waiting:
            failed: dict[str, KernelgaugeError] = {}
            subjects, waiting = prepare_together(waiting, device, failed, progress)
            passes = Passes(subjects, device, settings, progress)
            if subjects and timed:
                passes.make()
            results: dict[str, Result] = {
                subject.workload.id: _observed(passes, subject, fingerprint) for subject in subjects
            }
            yield MeasuredGroup({**results, **failed}, passes, fingerprint)
            for subject in subjects:
                subject.only_instance = None  # the next ones are built before these subjects are gone


def measure(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
) -> dict[str, Result]:
    """Measure workloads, and nothing twice; by id. See `MeasuredGroup`."""
    groups = measure_groups(workloads, device, fingerprint, settings, progress)
    return {name: result for group in groups for name, result in group.results.items()}


def _observed(passes: Passes, subject: Subject, fingerprint: Fingerprint) -> Result:
    return observed(subject, passes.controls, passes.device, fingerprint, passes.settings)
