"""What one process saw of one timer, in as few numbers as a later comparison needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from ..run import Sample, Timer

__all__ = ["Observation", "host_share", "observe"]

# Replicates on a slow host are left aside, by the control alone and never by the time itself. In ten processes of twelve
# replicates on an H200 whose host changes speed by a factor of 1.6, those within 8 % of the fastest spread by 0.9 to 2.2 %
# between processes (all of them: 4 to 7 %); where the host is steady they are nearly all.
_AS_FAST = 1.08
_KEPT_AT_LEAST = 3


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicates of one timer in one process.

    Attributes:
        mean_us: geometric mean over the replicates, in microseconds.
        spread: standard deviation of the replicates' natural logarithms (0.01 is 1 %), at equal speed of the host.
            None: only one.
        replicates: how many these come from.
        iterations: calls in each.
        control_us: geometric mean of the host's control during them; None for a timer of the device.
    """

    mean_us: float
    spread: float | None
    replicates: int
    iterations: int
    control_us: float | None = None


def observe(sample: Sample, *, host_share: float = 0.0) -> Observation:
    """Sum up a sample; of one with controls, the replicates on the fastest host.

    `host_share`: the part of the time that grows with the control.
    """
    kept = _on_the_fastest_host(sample)
    logs = [math.log(sample.replicates_us[index]) for index in kept]
    controls = [math.log(sample.controls_us[index]) if sample.controls_us else 0.0 for index in kept]
    values = [log - host_share * control for log, control in zip(logs, controls, strict=True)]
    return Observation(
        mean_us=math.exp(fmean(logs)),
        spread=_deviation(values) if len(values) > 1 else None,
        replicates=len(kept),
        iterations=sample.iterations,
        control_us=math.exp(fmean(controls)) if sample.controls_us else None,
    )


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation. `statistics.stdev` computes in fractions: of a report of many runs it took a quarter of the time."""
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def host_share(timer: Timer, time_us: float, device_time_us: float) -> float:
    """The part of a time that is the host's: what the device does not fill.

    On an H200 latencies spread by up to 8.5 % between processes, and by up to 1.8 % once that part is taken at equal
    control (docs/measuring.md).
    """
    if timer is Timer.DEVICE:
        return 0.0
    return 1.0 if timer is Timer.HOST else min(1.0, max(0.0, 1 - device_time_us / time_us))


def _on_the_fastest_host(sample: Sample) -> list[int]:
    indices = list(range(len(sample.replicates_us)))
    if not sample.controls_us:
        return indices
    by_speed = sorted(indices, key=sample.controls_us.__getitem__)
    limit = _AS_FAST * sample.controls_us[by_speed[0]]
    as_fast = sum(control <= limit for control in sample.controls_us)
    return by_speed[: max(_KEPT_AT_LEAST, as_fast)]
