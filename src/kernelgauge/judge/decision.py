"""The decision rule: slower, faster, the same, or not to be told. Pure numbers; what they mean is said elsewhere."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from .noise import alike, difference, host_explains, is_disturbed, sources
from .policy import FALSE_ALARMS_PER_SUITE, Policy
from .seen import Seen, comparable_to, compared_mean_us, held_against
from .stats import RelativeChange, Source, change, quantile, standard_error
from .verdict import Status

__all__ = ["Decision", "decide", "smallest_detectable"]

# A first look suspects at this level, one-sided, and from this share of the tolerance on: lax, because a suspicion
# costs some seconds of measuring and no verdict. The verdict on both data sets together is at the level of the suite.
_SUSPECT_LEVEL = 0.05
_SUSPECT_SHARE = 0.5
_POWER = 0.95
_NO_NUMBER = 1 << 20  # of replicates: nobody measures as many
_NO_MACHINE = (0.0, 0.0)  # it explains nothing
# The longest duration is so many times the shortest (run.is_duration). What is expected of another GPU is extrapolated,
# and where a baseline is absurd to no duration at all: its ratio would be no number, or none that can be divided by.
_FURTHEST = math.log(1e15)


@dataclass(frozen=True)
class Decision:
    """What one comparison gives.

    Attributes:
        status: PASS, REGRESSED, IMPROVED or UNDECIDED.
        change: with its interval at the level of the suite.
        before: the processes of the baseline that the run was held against.
        after: the run.
        suspicious: worth a second, larger measurement before anything is said.
        missing_replicates: for UNDECIDED: how many more would decide; None: no number of them would.
        explained: UNDECIDED only because the machine or the host moved as well: else it, or more replicates, would have decided.
        disturbed: UNDECIDED, and the run's own replicates say that its host was disturbed.
    """

    status: Status
    change: RelativeChange
    before: Sequence[Seen]
    after: Seen
    suspicious: bool
    missing_replicates: int | None = None
    explained: bool = False
    disturbed: bool = False

    @property
    def compared_us(self) -> float:
        """The time, in microseconds, that stands before the arrow where the run's is behind it.

        The percentage is one of it, on a GPU that the baseline does not know too, where it is what is expected of that
        GPU; but a time of which the host has a part is compared at equal host speed, and shown as it was measured.
        """
        if self.after.host_share:
            return compared_mean_us(self.before, self.after)
        return self.after.observation.mean_us / (1 + self.change.estimate)


def decide(
    before: Sequence[Seen],
    after: Seen,
    policy: Policy,
    *,
    comparisons: int = 1,
    explained: tuple[float, float] = _NO_MACHINE,
) -> Decision:
    """Compare a run with the processes of its baseline.

    Args:
        before: at least one.
        after: the run.
        policy: the gates, and the noise to expect.
        comparisons: how many are made in this suite run: false alarms are controlled over all of them together.
        explained: the change that the machine itself may have made, from the lowest to the highest (logarithms): the
            interval is widened by it, and by what the host may have made of a latency.
    """
    before, after = alike(held_against(before, after), after, policy)
    delta = max(-_FURTHEST, min(_FURTHEST, difference(before, after, policy)))
    noise = sources(before, after, policy)
    by_host = host_explains(before, after, delta)
    explained = explained[0] + by_host[0], explained[1] + by_host[1]
    compared = _Compared(before, after, policy, delta, 1 - 2 * FALSE_ALARMS_PER_SUITE / comparisons)
    measured = compared.change(noise, explained)
    if measured.low is None or measured.high is None:
        return Decision(Status.UNDECIDED, measured, before, after, suspicious=True)
    status = compared.said(noise, explained)
    undecided = status is Status.UNDECIDED
    regressed = compared.said(noise, _NO_MACHINE) is Status.REGRESSED
    missing = compared.missing(explained) if undecided and not regressed else None
    by_the_machine = undecided and missing is None and any(explained) and compared.missing(_NO_MACHINE) is not None
    disturbed = undecided and is_disturbed(after, policy)
    if undecided:  # where nothing that a second look can change decides, it would only take its time
        suspicious = by_the_machine or disturbed or missing is not None
    else:
        suspicious = status is not Status.PASS or _seems_real(delta, noise, policy)
    return Decision(
        status=status,
        change=measured,
        before=before,
        after=after,
        suspicious=suspicious,
        missing_replicates=missing,
        explained=by_the_machine,
        disturbed=disturbed,
    )


@dataclass(frozen=True)
class _Compared:
    """A run and its baseline, `delta` apart: what is said of them by the noise that is assumed, and by what the machine explains."""

    before: Sequence[Seen]
    after: Seen
    policy: Policy
    delta: float
    confidence: float

    @cached_property
    def before_us(self) -> float:
        return self.after.observation.mean_us / math.exp(self.delta)

    @cached_property
    def blind(self) -> float:
        """The slowdown, as a fraction, that must be excluded."""
        elsewhere = not comparable_to(self.after, self.before)
        return self.policy.blind_fraction(self.before_us, elsewhere=elsewhere)

    def change(self, noise: Sequence[Source], machine: tuple[float, float]) -> RelativeChange:
        return _widened(change(self.delta, noise, confidence=self.confidence), machine)

    def said(self, noise: Sequence[Source], machine: tuple[float, float]) -> Status:
        """A regression that the machine may have made is none, and no PASS either."""
        status, by_itself = (self._status(self.change(noise, each)) for each in (machine, _NO_MACHINE))
        return Status.UNDECIDED if by_itself is Status.REGRESSED and status is Status.PASS else status

    def missing(self, machine: tuple[float, float]) -> int | None:
        """How many more replicates would decide, if mean and spread stayed what they are."""
        now = self.after.observation

        def decides(more: int) -> bool:
            longer = msgspec.structs.replace(now, replicates=now.replicates + more)
            later = sources(self.before, replace(self.after, observation=longer), self.policy)
            return self.said(later, machine) is not Status.UNDECIDED

        return _fewest(decides)

    def _status(self, measured: RelativeChange) -> Status:
        assert measured.low is not None
        assert measured.high is not None
        size = abs(measured.estimate)
        matters = size > self.policy.tolerance and size * self.before_us > self.policy.floor_us
        if matters and measured.low > 0:
            return Status.REGRESSED
        if matters and measured.high < 0:
            return Status.IMPROVED
        return Status.PASS if measured.high <= self.blind else Status.UNDECIDED


def _seems_real(delta: float, noise: Sequence[Source], policy: Policy) -> bool:
    first_look = change(abs(delta), noise, confidence=1 - 2 * _SUSPECT_LEVEL)
    return first_look.low is not None and first_look.low > 0 and first_look.estimate > _SUSPECT_SHARE * policy.tolerance


def _widened(measured: RelativeChange, explained: tuple[float, float]) -> RelativeChange:
    if measured.low is None or measured.high is None:
        return measured
    least, most = min(explained[0], 0.0), max(explained[1], 0.0)
    return replace(
        measured,
        low=(1 + measured.low) / math.exp(most) - 1,
        high=(1 + measured.high) / math.exp(least) - 1,
    )


def _fewest(decides: Callable[[int], bool]) -> int | None:
    """The smallest number for which it holds, as it then does for every larger one; None: no number."""
    most = 1
    while not decides(most):
        most *= 2
        if most > _NO_NUMBER:
            return None
    return bisect_left(range(most), True, lo=most // 2 + 1, key=decides)


def smallest_detectable(before: Sequence[Seen], after: Seen, policy: Policy, *, comparisons: int) -> float:
    """The slowdown, as a fraction, that is caught 95 times in 100 at the level of the suite."""
    noise = sources(*alike(held_against(before, after), after, policy), policy)
    level = FALSE_ALARMS_PER_SUITE / comparisons
    margin = (quantile(noise, 1 - 2 * level) + quantile(noise, 1 - 2 * (1 - _POWER))) * standard_error(noise)
    # The other two gates are passed as often only by a change that is larger than them by as much.
    least = max(policy.tolerance, policy.floor_us / after.observation.mean_us)
    gate = math.log1p(least) + quantile(noise, 1 - 2 * (1 - _POWER)) * standard_error(noise)
    return math.expm1(max(margin, gate))
