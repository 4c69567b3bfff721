"""The decision rule: slower, faster, the same, or not to be told. Pure numbers; what they mean is said elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .noise import Seen, difference, sources
from .observation import Observation
from .policy import FALSE_ALARMS_PER_SUITE, Policy
from .stats import RelativeChange, Source, change, quantile, standard_error
from .verdict import Status

__all__ = ["Decision", "decide", "smallest_detectable"]

# A first look suspects at this level, one-sided, and from this share of the tolerance on: lax, because a suspicion
# costs a second or two of measuring and no verdict. The verdict on both data sets together is at the level of the suite.
_SUSPECT_LEVEL = 0.05
_SUSPECT_SHARE = 0.5
_POWER = 0.95


@dataclass(frozen=True)
class Decision:
    """What one comparison gives.

    Attributes:
        status: PASS, REGRESSED, IMPROVED or UNDECIDED.
        change: with its interval at the level of the suite.
        suspicious: worth a second, larger measurement before anything is said.
        missing_replicates: for UNDECIDED: how many more would decide; None: no number of them would.
    """

    status: Status
    change: RelativeChange
    suspicious: bool
    missing_replicates: int | None = None


def decide(
    before: Sequence[Seen],
    after: Seen,
    policy: Policy,
    *,
    comparisons: int = 1,
    explained: tuple[float, float] = (0.0, 0.0),
) -> Decision:
    """Compare a run with the processes of its baseline.

    Args:
        before: at least one.
        after: the run.
        policy: the gates, and the noise to expect.
        comparisons: how many are made in this suite run: false alarms are controlled over all of them together.
        explained: the change that the machine itself may have made, from the lowest to the highest (logarithms): the
            interval is widened by it.
    """
    delta, noise = difference(before, after), sources(before, after, policy)
    level = FALSE_ALARMS_PER_SUITE / comparisons
    measured = _widened(change(delta, noise, confidence=1 - 2 * level), explained)
    if measured.low is None or measured.high is None:
        return Decision(Status.UNDECIDED, measured, suspicious=True)
    before_us = after.observation.mean_us / math.exp(delta)
    status = _status(measured, policy, before_us)
    first_look = change(abs(delta), noise, confidence=1 - 2 * _SUSPECT_LEVEL)
    return Decision(
        status=status,
        change=measured,
        suspicious=status is not Status.PASS
        or bool(first_look.low and first_look.low > 0 and first_look.estimate > _SUSPECT_SHARE * policy.tolerance),
        missing_replicates=_missing(measured, noise, policy, before_us, after.observation)
        if status is Status.UNDECIDED
        else None,
    )


def _widened(measured: RelativeChange, explained: tuple[float, float]) -> RelativeChange:
    if measured.low is None or measured.high is None:
        return measured
    least, most = min(explained[0], 0.0), max(explained[1], 0.0)
    return replace(
        measured,
        low=(1 + measured.low) / math.exp(most) - 1,
        high=(1 + measured.high) / math.exp(least) - 1,
    )


def _status(measured: RelativeChange, policy: Policy, before_us: float) -> Status:
    assert measured.low is not None
    assert measured.high is not None
    matters = abs(measured.estimate) > policy.tolerance and abs(measured.estimate) * before_us > policy.floor_us
    if matters and measured.low > 0:
        return Status.REGRESSED
    if matters and measured.high < 0:
        return Status.IMPROVED
    return Status.PASS if measured.high <= policy.blind_fraction(before_us) else Status.UNDECIDED


def _missing(
    measured: RelativeChange, noise: Sequence[Source], policy: Policy, before_us: float, run: Observation
) -> int | None:
    """Replicates after which the interval would lie within the blind zone, if the change stayed what it is."""
    room = math.log1p(policy.blind_fraction(before_us)) - math.log1p(measured.estimate)
    wanted = (room / quantile(noise, measured.confidence)) ** 2
    fixed = math.fsum(source.variance for source in noise if not source.per_replicate)
    if room <= 0 or wanted <= fixed:
        return None
    shrinking = math.fsum(source.variance for source in noise if source.per_replicate) * run.replicates
    return max(1, math.ceil(shrinking / (wanted - fixed)) - run.replicates)


def smallest_detectable(before: Sequence[Seen], after: Seen, policy: Policy, *, comparisons: int) -> float:
    """The slowdown, as a fraction, that is caught 95 times in 100 at the level of the suite."""
    noise = sources(before, after, policy)
    level = FALSE_ALARMS_PER_SUITE / comparisons
    margin = (quantile(noise, 1 - 2 * level) + quantile(noise, 1 - 2 * (1 - _POWER))) * standard_error(noise)
    # The relative gate is passed as often only by a change that is larger than it by as much.
    gate = math.log1p(policy.tolerance) + quantile(noise, 1 - 2 * (1 - _POWER)) * standard_error(noise)
    return math.expm1(max(margin, gate))
