"""How noisy a comparison is: the variance of each of its levels, from what the baseline and the run know of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from .observation import Observation
from .policy import Policy
from .seen import Seen, comparable_to, places_of_comparable, seen_by_gpu, seen_by_speed
from .slope import Slope, fitted_slope
from .stats import NO_INTERVAL, Source

__all__ = [
    "AnotherGpu",
    "alike",
    "difference",
    "host_explains",
    "is_disturbed",
    "of_another_gpu",
    "process_noise",
    "sources",
]

# Processes on one host differ by 5 to 6 % in its speed (docs/measuring.md). One that moved further, as a logarithm, may be the
# other of two hosts, or a busy one (benchmarks/data/busy_host).
_SAME_HOST = 0.1
# Replicates scatter by up to so many times what is expected: of 182 host clocks in benchmarks/data/nine_processes and host_states
# twelve by more, none by three times; of 120 in busy_host 40, by up to twenty times.
_USUAL_SCATTER = 2.0
_LEAST_GPUS = 4  # below, a slope over GPUs says more of the GPUs than of the workload
# Standard deviation of the slope on the control GEMM: a workload may follow it in full, or not at all.
_SLOPE_PRIOR = 0.5


def _own_slope(before: Sequence[Seen], policy: Policy) -> Slope:
    """What the processes of a baseline say of how this workload follows the host."""
    share, expected = before[0].host_share, policy.slope.expected()
    if not share or not all(seen.known_host for seen in before):
        return expected
    points = [
        [(seen.host_logarithm, math.log(seen.observation.mean_us)) for seen in group]
        for group in seen_by_gpu(before).values()
    ]
    scatter = _between_processes(seen_by_speed(_at(expected, before)), policy.for_share(share))
    return fitted_slope(points, scatter.variance, policy.slope)


def alike(before: Sequence[Seen], after: Seen, policy: Policy) -> tuple[list[Seen], Seen]:
    """Both at the slope that the baseline knows of this workload: what is compared."""
    slope = _own_slope(before, policy)
    return _at(slope, before), replace(after, slope=slope)


def _at(slope: Slope, processes: Sequence[Seen]) -> list[Seen]:
    return [replace(seen, slope=slope) for seen in processes]


def difference(before: Sequence[Seen], after: Seen, policy: Policy) -> float:
    """Of the logarithms, against the mean of the baseline's processes that are comparable.

    Where there are none, against what the baseline's GPUs say of a GPU like this one.
    """
    same = comparable_to(after, before)
    compared = same or before
    if not all(seen.known_host for seen in (*compared, after)):  # then nothing is decided, and the times are shown
        return math.log(after.observation.mean_us) - fmean(math.log(seen.observation.mean_us) for seen in compared)
    if same:
        return after.logarithm - fmean(seen.logarithm for seen in same)
    return after.logarithm - of_another_gpu(before, after, policy).expected


def sources(before: Sequence[Seen], after: Seen, policy: Policy) -> tuple[Source, ...]:
    """Every source of noise in `difference`."""
    policy = policy.for_share(after.host_share)
    places = places_of_comparable(after, before)
    same = [before[place] for place in places]
    compared = same or before
    run = after.observation
    if run.spread is None or any(seen.observation.spread is None for seen in before):
        return NO_INTERVAL
    if not all(seen.known_host for seen in (*before, after)):
        return NO_INTERVAL
    # All processes tell how processes differ, each about the mean of its group. One source: mean and run share it.
    groups = _groups(before, places)
    total = _between_processes(groups, policy)
    then, now = total.variance / len(compared), _beyond_replicates(groups, policy)
    if after.host_share:
        then *= fmean(_disturbed(seen.observation, policy) for seen in compared)
        now *= _disturbed(run, policy)
    found = [Source(then + now, total.degrees), _within(run, policy)]
    if not same:
        found.append(of_another_gpu(before, after, policy).source)
    if after.host_share:
        found.append(_host_speed(compared, after))
    return tuple(found)


@dataclass(frozen=True)
class AnotherGpu:
    """What the GPUs of a baseline say of one that is not among them: the logarithm expected of it, and its noise."""

    expected: float
    source: Source


def of_another_gpu(before: Sequence[Seen], after: Seen, policy: Policy) -> AnotherGpu:
    """Predict from the GPUs of the baseline, by how fast each is in the control GEMM where enough of them tell.

    Over eight H200s the MLPs follow the control GEMM, which power limits, with a slope of 0.43 to 0.45: it takes their
    deviation between GPUs from 0.33-0.37 to 0.20-0.25 % (docs/verdicts.md). A regression on a covariate as in the
    analysis of covariance (Fisher, "Statistical Methods for Research Workers", 1932), with the slope shrunk towards 0
    as in ridge regression (Hoerl and Kennard, 1970).
    """
    by_gpu = list(seen_by_gpu(before).values())
    means = [fmean(seen.logarithm for seen in processes) for processes in by_gpu]
    mean, count = fmean(means), len(means)
    prior_us = before[0].observation.mean_us
    speeds = [_speed(processes) for processes in by_gpu]
    own = _speed([after])
    known = [speed for speed in speeds if speed is not None]
    if own is None or policy.beyond_gemm is None or len(known) < max(count, _LEAST_GPUS):
        of_one = policy.machine.weighed(prior_us, variance(means) if count > 1 else 0.0, count - 1)
        return AnotherGpu(mean, Source(of_one.variance * (1 + 1 / count), of_one.degrees))
    middle = fmean(known)
    shrunk = math.fsum((speed - middle) ** 2 for speed in known) + policy.machine.variance(prior_us) / _SLOPE_PRIOR**2
    slope = math.fsum((speed - middle) * (each - mean) for speed, each in zip(known, means, strict=True)) / shrunk
    rest = [each - mean - slope * (speed - middle) for speed, each in zip(known, means, strict=True)]
    of_one = policy.beyond_gemm.weighed(prior_us, math.fsum(value**2 for value in rest) / (count - 2), count - 2)
    reach = 1 + 1 / count + (own - middle) ** 2 / shrunk
    return AnotherGpu(mean + slope * (own - middle), Source(of_one.variance * reach, of_one.degrees))


def _speed(processes: Sequence[Seen]) -> float | None:
    values = [math.log(seen.gemm_us) for seen in processes if seen.gemm_us is not None]
    return fmean(values) if len(values) == len(processes) else None


def process_noise(processes: Sequence[Seen], policy: Policy) -> float:
    """Standard deviation between processes that more replicates would not remove, as a fraction."""
    groups = seen_by_speed(_at(_own_slope(processes, policy), processes))
    return math.sqrt(_beyond_replicates(groups, policy.for_share(processes[0].host_share)))


def _groups(before: Sequence[Seen], places: Collection[int]) -> list[list[Seen]]:
    """Those at `places`, whose mean a run is held against; of the others, those of each GPU at each speed.

    The first may be of several speeds, where none was like the run's or it lies between two: then so is their scatter.
    """
    compared = [seen for place, seen in enumerate(before) if place in places]
    others = [seen for place, seen in enumerate(before) if place not in places]
    return [*([compared] if compared else []), *seen_by_speed(others)]


def _beyond_replicates(groups: Sequence[Sequence[Seen]], policy: Policy) -> float:
    processes = [seen for group in groups for seen in group]
    # A process is never known to add nothing: a quarter of the prior's deviation is kept.
    least = policy.process.variance(processes[0].observation.mean_us) / 16
    return max(_between_processes(groups, policy).variance - _mean_within(processes, policy), least)


def _between_processes(groups: Sequence[Sequence[Seen]], policy: Policy) -> Source:
    """Variance of one process's mean, about the mean of its group, its replicates' part included."""
    processes = [seen for group in groups for seen in group]
    degrees = max(0.0, len(processes) - len(groups) - processes[0].slope.fitted)
    means = [fmean(seen.logarithm for seen in group) for group in groups]
    squares = [(seen.logarithm - mean) ** 2 for mean, group in zip(means, groups, strict=True) for seen in group]
    observed = math.fsum(squares) / degrees if degrees else 0.0
    mean_us, within = processes[0].observation.mean_us, _mean_within(processes, policy)
    return policy.process.weighed(mean_us, observed, degrees, besides=within)


def _mean_within(processes: Sequence[Seen], policy: Policy) -> float:
    return fmean(_within(seen.observation, policy).variance for seen in processes)


def _within(observation: Observation, policy: Policy) -> Source:
    """Variance of the mean of the replicates of one process."""
    spread = observation.spread or 0.0
    of_one = policy.replicate.weighed(observation.mean_us, spread**2, observation.replicates - 1)
    return Source(of_one.variance / observation.replicates, of_one.degrees)


def _disturbed(observation: Observation, policy: Policy) -> float:
    """How many times noisier than usual (a variance) the host of a process was: 1 if its replicates do not say so.

    What disturbs a host lasts for seconds, so that the mean of one process is off by about as much as its replicates are.
    """
    usual = _USUAL_SCATTER * math.sqrt(policy.replicate.variance(observation.mean_us))
    return max(1.0, (observation.spread or 0.0) / usual) ** 2


def is_disturbed(after: Seen, policy: Policy) -> bool:
    """Whether a run's own replicates say that its host was disturbed."""
    return bool(after.host_share) and _disturbed(after.observation, policy.for_share(after.host_share)) > 1


def host_explains(before: Sequence[Seen], after: Seen, delta: float) -> tuple[float, float]:
    """How much of a latency's difference a host of another speed may have made, beyond what the slope takes off (logarithms).

    A latency that the device fills waits for the host once that is slow enough, and then follows it in full; or it
    does not follow at all. A dispatch time is all the host's: what is not known of it is in the slope.
    """
    compared = comparable_to(after, before) or before
    if not 0 < after.host_share < 1 or not all(seen.known_host for seen in (*compared, after)):
        return 0.0, 0.0
    moved = _control_logarithm(after) - fmean(_control_logarithm(seen) for seen in compared)
    beyond = math.copysign(max(0.0, abs(moved) - _SAME_HOST), moved)
    followed = after.slope.value * after.host_share
    ends = (-followed * beyond, max(0.0, 1 - followed) * beyond)
    return (0.0, max(ends)) if delta > 0 else (min(ends), 0.0)


def _control_logarithm(seen: Seen) -> float:
    return math.log(seen.observation.control_us or 1.0)


def _host_speed(before: Sequence[Seen], after: Seen) -> Source:
    moved = after.host_logarithm - fmean(seen.host_logarithm for seen in before)
    return Source(after.slope.variance * moved**2, after.slope.degrees)
