"""What a calibration found: the noise, the sensitivity, and how often the autotuner chose each configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from ..errors import printable
from ..judge import (
    Baseline,
    Entry,
    Prior,
    ProcessTime,
    decide,
    gemm_kernel,
    on_same_host,
    prior_for,
    variance_between_processes,
)
from ..run import Timer
from ..trace import KernelIdentity
from ..trace.kernel import configuration_text
from .page import Column, table_text

__all__ = ["calibration_text", "choices_text"]


def calibration_text(baselines: Mapping[str, Baseline], *, comparisons: int, width: int, color: bool) -> str:
    """Return one line for each timer of each workload.

    "seen from": the slowdown that is caught 95 times in 100, on the same GPU and on another.
    """
    rows = []
    for workload, baseline in baselines.items():
        entry = baseline.entries[0]
        for timer in Timer:
            times = baseline.times(timer, entry, gemm=gemm_kernel(entry.processes[-1].controls))
            if times:
                prior = prior_for(timer, baseline.fingerprint)
                numbers = _numbers(times, prior, comparisons=comparisons, kernels=baseline.counts.launches)
                rows.append((workload, timer.label, *numbers))
    titles = ("us", "noise\n%", "seen\nfrom %", "other\nGPU %")
    columns = [Column("workload"), Column("timer", is_whole=True), *(Column(title, number=True) for title in titles)]
    return table_text(columns, rows, width=width, color=color)


def _numbers(times: Sequence[ProcessTime], prior: Prior, *, comparisons: int, kernels: int) -> tuple[str, ...]:
    """Return the columns of one timer; each process stands for the one that measures next, and the median is shown."""

    def sensitivity(after: ProcessTime) -> float | None:
        return decide(times, after, prior, comparisons=comparisons, kernels=kernels).change.sensitivity

    def shown(values: Iterable[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{100 * median(known):.2f}" if known else "-"

    def spread(after: ProcessTime) -> float:
        alike = on_same_host(times, after) if after.is_host_clock else times
        return math.sqrt(variance_between_processes(alike, prior, kernels).value)

    return (
        f"{median(each.observation.mean_us for each in times):.1f}",
        shown(map(spread, times)),
        shown(map(sensitivity, times)),
        shown(sensitivity(replace(each, place="another")) for each in times),
    )


def choices_text(baselines: Mapping[str, Baseline]) -> list[str]:
    """Return the configurations that were chosen, for each workload that has more than one."""
    lines: list[str] = []
    for workload, baseline in baselines.items():
        if len(baseline.entries) < 2:
            continue
        draws = sum(entry.draws for entry in baseline.entries)
        lines.append(f"{workload}: the autotuner chose {len(baseline.entries)} launch configurations")
        lines += [
            f"  {entry.draws} of {draws}: {entry.device_time_us:.1f} us  {_tuned(entry)}" for entry in baseline.entries
        ]
    return [printable(line) for line in lines]


def _tuned(entry: Entry) -> str:
    return ", ".join(
        f"{kernel.identity.shown} {kernel.device_time_us:.1f} us ({_configuration(kernel.identity)})"
        for kernel in entry.kernels
        if _is_tuned(kernel.identity)
    )


def _is_tuned(identity: KernelIdentity) -> bool:
    if identity.kernel_kwargs is None:  # in a CUDA graph a trace tells the grid and the block alone
        return identity.is_inductors
    return bool(identity.kernel_kwargs)


def _configuration(identity: KernelIdentity) -> str:
    if identity.kernel_kwargs:
        return f"{identity.kernel_kwargs}, num_warps={identity.num_warps}"
    return configuration_text(identity)
