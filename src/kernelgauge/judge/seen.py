"""What processes observed of one timer, and which of a baseline's a run is held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

from .observation import Observation
from .slope import DISPATCH_SLOPE, Slope
from .speed import at_the_speed_of, speeds

__all__ = [
    "Seen",
    "comparable_to",
    "compared_mean_us",
    "held_against",
    "places_of_comparable",
    "seen_by_gpu",
    "seen_by_speed",
    "telling",
]

# Processes whose controls are further apart (a logarithm) are of other hosts, or of one that was disturbed: of the nine
# hosts that were calibrated (eight_gpus and more_gpus of benchmarks/data, and baselines/), six have 32 to 40 us in the
# median and three 55 to 64; single processes reach 114.
_LIKE_A_HOST = 0.25
_LEAST_OF_A_HOST = 4


@dataclass(frozen=True)
class Seen:
    """An observation, and what it takes to compare it with another one.

    Attributes:
        gpu: on which GPU of its kind it was made: a digest of its UUID; None: there is only one (a CPU).
        host_share: the part of the time that is the host's and grows with its control: 0 of a device time, 1 of a dispatch
            time, what the device does not fill of a latency.
        gemm_us: the control GEMM beside it: how fast this GPU is among its kind. None: not known, or not comparable.
        slope: how the host's part follows the control.
    """

    observation: Observation
    gpu: str | None = None
    host_share: float = 0.0
    gemm_us: float | None = None
    slope: Slope = field(default_factory=DISPATCH_SLOPE.expected)

    @property
    def known_host(self) -> bool:
        """Whether the speed of its host is known, or of no concern."""
        return not self.host_share or self.observation.control_us is not None

    @property
    def logarithm(self) -> float:
        """What is compared: the logarithm of the time, at equal speed of the host."""
        return math.log(self.observation.mean_us) - self.slope.value * self.host_logarithm

    @property
    def host_logarithm(self) -> float:
        """Of the control, as much as the time has of the host."""
        return self.host_share * math.log(self.observation.control_us or 1.0)


def comparable_to(after: Seen, before: Sequence[Seen]) -> list[Seen]:
    """Those that were made on the GPU of `after`, at its speed if any was; empty if none was made there."""
    return [before[place] for place in places_of_comparable(after, before)]


def compared_mean_us(before: Sequence[Seen], after: Seen) -> float:
    """Geometric mean over the processes that `after` is compared with: what the ratio is a ratio of."""
    return geometric_mean(seen.observation.mean_us for seen in comparable_to(after, before) or before)


def places_of_comparable(after: Seen, before: Sequence[Seen]) -> list[int]:
    """Where they stand."""
    same = [place for place, seen in enumerate(before) if seen.gpu == after.gpu]
    return [same[place] for place in at_the_speed_of(after.gemm_us, [before[each].gemm_us for each in same])]


def held_against(before: Sequence[Seen], after: Seen) -> Sequence[Seen]:
    """Those of the processes of a baseline that say something of a run."""
    return _on_a_host_like(telling(before), after)


def _on_a_host_like(before: Sequence[Seen], after: Seen) -> Sequence[Seen]:
    """For a latency, without the processes whose host had another speed; all if few would be left.

    A baseline may know several hosts, or one that was twice as slow once. What a latency takes then says little of this run
    (`host_explains`), but two processes alone do not say how far processes differ. Those on its own GPU count if none of
    them had its speed.
    """
    control_us = after.observation.control_us
    if not 0 < after.host_share < 1 or control_us is None:
        return before

    def has_its_speed(seen: Seen) -> bool:
        other_us = seen.observation.control_us
        return other_us is not None and abs(math.log(other_us / control_us)) <= _LIKE_A_HOST

    alike = [seen for seen in before if has_its_speed(seen)]
    if all(seen.gpu != after.gpu for seen in alike):
        alike = [seen for seen in before if seen.gpu == after.gpu or has_its_speed(seen)]
    return alike if len(alike) >= _LEAST_OF_A_HOST else before


def telling(before: Sequence[Seen]) -> Sequence[Seen]:
    """Those that know how far their replicates scatter, unless none does.

    One process that was cut short after its first replicate would else leave a baseline of many without an interval.
    """
    return [seen for seen in before if seen.observation.spread is not None] or before


def seen_by_gpu(processes: Sequence[Seen]) -> dict[str | None, list[Seen]]:
    """Those of each GPU."""
    found: dict[str | None, list[Seen]] = {}
    for seen in processes:
        found.setdefault(seen.gpu, []).append(seen)
    return found


def seen_by_speed(processes: Sequence[Seen]) -> list[list[Seen]]:
    """Of each GPU, those at each speed."""
    found: dict[tuple[str | None, int], list[Seen]] = {}
    for gpu, group in seen_by_gpu(processes).items():
        for speed, seen in zip(speeds([each.gemm_us for each in group]), group, strict=True):
            found.setdefault((gpu, speed), []).append(seen)
    return list(found.values())
