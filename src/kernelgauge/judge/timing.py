"""A time of a run against its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import geometric_mean
from types import MappingProxyType

from ..run import Run, Sample, Timer
from .attribution import explain
from .baseline import Baseline
from .fingerprint import Comparison
from .stats import RelativeChange, relative_change
from .verdict import Reason, Status, Verdict

__all__ = ["DEFAULT_POLICIES", "HOST_MOVED", "Policy", "judge_time"]


@dataclass(frozen=True)
class Policy:
    """When a change of one timer matters. All gates must agree before anything is called slower or faster.

    Attributes:
        tolerance: the whole confidence interval must lie beyond this fraction.
        floor_us: and the change must be larger than this, in microseconds: what the timer itself cannot resolve.
    """

    tolerance: float
    floor_us: float


# From here on a change of the control is worth a word. The widening itself has no threshold.
_HOST_WORTH_A_WORD = 0.05
# A baseline taken on a host whose control differs by this much is worth replacing: fast processes on one host spread by
# 23 %, its slow mode starts at 70 % (docs/measuring.md).
HOST_MOVED = 1.3

# docs/measuring.md holds the spreads that these come from, and the commands that measured them.
DEFAULT_POLICIES: Mapping[Timer, Policy] = MappingProxyType(
    {
        Timer.DEVICE: Policy(tolerance=0.02, floor_us=0.1),
        Timer.END_TO_END: Policy(tolerance=0.10, floor_us=2.0),
        Timer.HOST: Policy(tolerance=0.15, floor_us=2.0),
    }
)


def judge_time(timer: Timer, run: Run, baseline: Baseline, comparison: Comparison, policy: Policy) -> Verdict:
    """REGRESSED or IMPROVED beyond the tolerance, PASS within it, UNDECIDED if the interval covers its edge."""
    before, after = baseline.sample(timer), run.sample(timer)
    if not comparison.comparable:
        return Verdict(Status.INCOMPARABLE, run.workload, timer.label, f"{timer.label} not compared: {comparison}")
    if after is None:
        return Verdict(Status.INVALID, run.workload, timer.label, f"{timer.label} was not measured")
    if before is None:
        return Verdict(Status.NO_BASELINE, run.workload, timer.label, f"the baseline has no {timer.label}")
    change = relative_change(before.replicates_us, after.replicates_us)
    ratio = _host_ratio(before, after)
    host_moved = abs(ratio - 1) > _HOST_WORTH_A_WORD
    resolved = abs(after.median_us - before.median_us) > policy.floor_us or host_moved
    status = _status(change, _widened(change, ratio), policy) if resolved else Status.PASS
    headline = (
        f"{timer.label} {_mean(before):.1f} -> {_mean(after):.1f} us  {_describe(change)}, "
        f"tolerance {100 * policy.tolerance:g} %"
    )
    if status is Status.UNDECIDED:
        headline += f": {_describe_host(before, after) if host_moved else 'too noisy to tell'}"
    return Verdict(
        status=status,
        workload=run.workload,
        subject=timer.label,
        headline=headline,
        reasons=_reasons(timer, run, baseline) if status in (Status.REGRESSED, Status.IMPROVED) else (),
        before_us=before.median_us,
        after_us=after.median_us,
        change=change,
    )


def _mean(sample: Sample) -> float:
    """Geometric mean over the replicates: what the ratio is a ratio of, so that a reader's division gives it."""
    return geometric_mean(sample.replicates_us)


def _host_ratio(before: Sample, after: Sample) -> float:
    """How much slower the host itself is than at the baseline, by its control; 1 if that is not known."""
    if before.host_control_us is None or after.host_control_us is None:
        return 1.0
    return after.host_control_us / before.host_control_us


def _widened(change: RelativeChange, ratio: float) -> RelativeChange:
    """The interval, with all that the host's own change may explain in it: what is left outside is the code's."""
    if change.low is None or change.high is None:
        return change
    low, high = (1 + change.low) / max(ratio, 1.0) - 1, (1 + change.high) / min(ratio, 1.0) - 1
    return replace(change, low=low, high=high)


def _describe_host(before: Sample, after: Sample) -> str:
    return (
        f"the host itself changed speed (control {before.host_control_us:.1f} -> {after.host_control_us:.1f} us), "
        "which may be all of it"
    )


def _status(change: RelativeChange, widened: RelativeChange, policy: Policy) -> Status:
    if change.low is None or widened.low is None or widened.high is None:
        return Status.UNDECIDED
    if widened.low > policy.tolerance:
        return Status.REGRESSED
    if widened.high < -policy.tolerance:
        return Status.IMPROVED
    # A faster host may hide a regression (in `widened.high`); a slower one hides none.
    return Status.PASS if -policy.tolerance <= change.low and widened.high <= policy.tolerance else Status.UNDECIDED


def _describe(change: RelativeChange) -> str:
    if change.low is None or change.high is None:
        return f"{100 * change.estimate:+.1f} % [no interval: one replicate]"
    return (
        f"{100 * change.estimate:+.1f} % "
        f"[{100 * change.confidence:g} % CI {100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    )


def _reasons(timer: Timer, run: Run, baseline: Baseline) -> tuple[Reason, ...]:
    if timer is not Timer.DEVICE:
        return ()  # host times have no kernels to name
    named, rest = explain(baseline.kernels, run.kernels)
    reasons = [Reason("why", text) for text in named]
    if rest:
        reasons.append(Reason("rest", rest))
    return tuple(reasons)
