"""How noisy a comparison is: the variance of each of its levels, from what the baseline and the run know of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from .observation import Observation
from .policy import Policy
from .stats import NO_INTERVAL, Source

__all__ = ["Seen", "difference", "on_the_same_gpu", "process_noise", "sources"]

# Where the host is slow, a workload's dispatch grows by 1.1 to 1.36 times what its control grows by: fitted to 720
# replicates on an H200 whose host changes speed. In logarithms, the part of a change of the control that it leaves
# unexplained; the range above 1 is taken as two standard deviations.
_SLOPE_DEVIATION = 0.18
_SLOPE_DEGREES = 10.0


@dataclass(frozen=True)
class Seen:
    """An observation, and what it takes to compare it with another one.

    Attributes:
        gpu: on which GPU of its kind it was made: a digest of its UUID; None: not known.
        host_share: the part of the time that is the host's and grows with its control: 0 of a device time, 1 of a dispatch
            time, what the device does not fill of a latency.
    """

    observation: Observation
    gpu: str | None = None
    host_share: float = 0.0

    @property
    def known_host(self) -> bool:
        """Whether the speed of its host is known, or of no concern."""
        return not self.host_share or self.observation.control_us is not None

    @property
    def logarithm(self) -> float:
        """What is compared: the logarithm of the time, at equal speed of the host."""
        return math.log(self.observation.mean_us) - self.host_share * math.log(self.observation.control_us or 1.0)


def on_the_same_gpu(before: Sequence[Seen], after: Seen) -> list[Seen]:
    """Those that were made where `after` was; empty if there are none."""
    return [seen for seen in before if seen.gpu == after.gpu]


def difference(before: Sequence[Seen], after: Seen) -> float:
    """Of the logarithms, against the mean of the baseline's processes: those of the same GPU where there are any."""
    compared = on_the_same_gpu(before, after) or before
    if not all(seen.known_host for seen in (*compared, after)):  # then nothing is decided, and the times are shown
        return math.log(after.observation.mean_us) - fmean(math.log(seen.observation.mean_us) for seen in compared)
    return after.logarithm - fmean(seen.logarithm for seen in compared)


def sources(before: Sequence[Seen], after: Seen, policy: Policy) -> tuple[Source, ...]:
    """Every source of noise in `difference`."""
    policy = policy.for_share(after.host_share)
    same = on_the_same_gpu(before, after)
    compared = same or before
    run = after.observation
    if run.spread is None or any(seen.observation.spread is None for seen in compared):
        return NO_INTERVAL
    if not all(seen.known_host for seen in (*compared, after)):
        return NO_INTERVAL
    total = _between_processes(compared, policy)
    found = [
        Source(total.variance / len(compared), total.degrees),
        Source(_beyond_replicates(compared, policy), total.degrees),
        _within(run, policy),
    ]
    if not same:
        found.append(_between_machines(before, policy))
    if after.host_share:
        found.append(_host_speed(compared, after))
    return tuple(found)


def process_noise(processes: Sequence[Seen], policy: Policy) -> float:
    """Standard deviation between processes that more replicates would not remove, as a fraction."""
    return math.sqrt(_beyond_replicates(processes, policy.for_share(processes[0].host_share)))


def _beyond_replicates(processes: Sequence[Seen], policy: Policy) -> float:
    # A process is never known to add nothing: a quarter of the prior's deviation is kept.
    least = policy.process.variance(processes[0].observation.mean_us) / 16
    return max(_between_processes(processes, policy).variance - _mean_within(processes, policy), least)


def _between_processes(processes: Sequence[Seen], policy: Policy) -> Source:
    """Variance of one process's mean, about the mean of its GPU, its replicates' part included."""
    by_gpu = _by_gpu(processes)
    degrees = len(processes) - len(by_gpu)
    squares = [(value - fmean(values)) ** 2 for values in by_gpu.values() for value in values]
    observed = math.fsum(squares) / degrees if degrees else 0.0
    mean_us, within = processes[0].observation.mean_us, _mean_within(processes, policy)
    return policy.process.weighed(mean_us, observed, degrees, besides=within)


def _by_gpu(processes: Sequence[Seen]) -> dict[str | None, list[float]]:
    found: dict[str | None, list[float]] = {}
    for seen in processes:
        found.setdefault(seen.gpu, []).append(seen.logarithm)
    return found


def _mean_within(processes: Sequence[Seen], policy: Policy) -> float:
    return fmean(_within(seen.observation, policy).variance for seen in processes)


def _within(observation: Observation, policy: Policy) -> Source:
    """Variance of the mean of the replicates of one process."""
    spread = observation.spread or 0.0
    of_one = policy.replicate.weighed(observation.mean_us, spread**2, observation.replicates - 1)
    return Source(of_one.variance / observation.replicates, of_one.degrees)


def _between_machines(before: Sequence[Seen], policy: Policy) -> Source:
    """Another GPU of the kind: its own deviation from the mean of the kind, and that mean's."""
    by_gpu = _by_gpu(before).values()
    means = [fmean(values) for values in by_gpu]
    observed = variance(means) if len(means) > 1 else 0.0
    of_one = policy.machine.weighed(before[0].observation.mean_us, observed, len(means) - 1)
    # The mean is over processes: a GPU has a part in it for each of its own.
    of_mean = math.fsum((len(values) / len(before)) ** 2 for values in by_gpu)
    return Source(of_one.variance * (1 + of_mean), of_one.degrees)


def _host_speed(before: Sequence[Seen], after: Seen) -> Source:
    usual = fmean(math.log(seen.observation.control_us or 1.0) for seen in before)
    moved = math.log(after.observation.control_us or 1.0) - usual
    return Source((_SLOPE_DEVIATION * after.host_share * moved) ** 2, _SLOPE_DEGREES)
