"""The replicates of one process, summed up in as few numbers as a later comparison needs."""

from __future__ import annotations

import math
from statistics import fmean

import msgspec

from ..run import Sample

__all__ = ["Observation", "observe"]

# Replicates on a slow host are left out, by the host reference alone and never by the time itself. On a host that changes
# its speed by a factor of 1.6, those within this factor of the fastest spread by 1.4 to 1.6 % between processes, and all of
# them by 3.3 to 4.2 % (benchmarks/data/detection_h200.npz).
_AS_FAST = 1.08


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicates of one timer in one process.

    Attributes:
        mean_us: geometric mean over the replicates, in microseconds.
        spread: standard deviation of the replicates' natural logarithms (0.01 is 1 %), at equal speed of the host where the
            host alone fills the time. None: only one replicate.
        replicates: how many there are.
        iterations: calls in each.
        control_us: geometric mean of the host reference beside them; None for the GPU time of a GPU.
    """

    mean_us: float
    spread: float | None
    replicates: int
    iterations: int
    control_us: float | None = None


def observe(sample: Sample, *, is_by_host: bool = False) -> Observation:
    """Sum up a sample; with a host reference, the replicates on the fastest host.

    `is_by_host`: whether the host alone fills the time, so that its spread is that of the ratio to the reference.
    """
    kept = _on_the_fastest_host(sample)
    logs = [math.log(sample.replicates_us[index]) for index in kept]
    controls = [math.log(sample.controls_us[index]) for index in kept] if sample.controls_us else []
    values = [log - control for log, control in zip(logs, controls, strict=True)] if is_by_host and controls else logs
    mean, count = fmean(values), len(values)
    return Observation(
        mean_us=math.exp(fmean(logs)),
        spread=math.dist(values, [mean] * count) / math.sqrt(count - 1) if count > 1 else None,
        replicates=count,
        iterations=sample.iterations,
        control_us=math.exp(fmean(controls)) if controls else None,
    )


def _on_the_fastest_host(sample: Sample) -> list[int]:
    everything = list(range(len(sample.replicates_us)))
    limit = _AS_FAST * min(sample.controls_us, default=math.inf)
    as_fast = [index for index in everything if sample.controls_us and sample.controls_us[index] <= limit]
    return as_fast if len(as_fast) > 1 else everything
