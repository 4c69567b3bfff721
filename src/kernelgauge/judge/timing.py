"""A time of a run against its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..run import Run, Timer
from .attribution import explain
from .baseline import Baseline
from .fingerprint import Comparison
from .stats import RelativeChange, relative_change
from .verdict import Reason, Status, Verdict

__all__ = ["DEFAULT_POLICIES", "Policy", "judge_time"]


@dataclass(frozen=True)
class Policy:
    """When a change of one timer matters. All gates must agree before anything is called slower or faster.

    Attributes:
        tolerance: the whole confidence interval must lie beyond this fraction.
        floor_us: and the change must be larger than this, in microseconds: what the timer itself cannot resolve.
    """

    tolerance: float
    floor_us: float


# Fast processes on one host spread by 23 % in the control; its slow mode is 70 to 110 % slower (docs/measuring.md).
_HOST_MOVED = 1.3

# docs/measuring.md holds the spreads that these come from, and the commands that measured them.
DEFAULT_POLICIES: Mapping[Timer, Policy] = MappingProxyType(
    {
        Timer.DEVICE: Policy(tolerance=0.02, floor_us=0.1),
        Timer.END_TO_END: Policy(tolerance=0.10, floor_us=5.0),
        Timer.HOST: Policy(tolerance=0.15, floor_us=5.0),
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
    status = _status(change, after.median_us - before.median_us, policy)
    host = _host_moved(before.host_control_us, after.host_control_us)
    if host:
        status = Status.UNDECIDED
    headline = (
        f"{timer.label} {before.median_us:.1f} -> {after.median_us:.1f} us  {_describe(change)}, "
        f"tolerance {100 * policy.tolerance:g} %"
    )
    if status is Status.UNDECIDED:
        headline += f": {host or 'too noisy to tell'}"
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


def _host_moved(before_us: float | None, after_us: float | None) -> str:
    """What to say if the host's own speed moved too far for its clock to tell anything of the code; else nothing."""
    if before_us is None or after_us is None or 1 / _HOST_MOVED <= after_us / before_us <= _HOST_MOVED:
        return ""
    slower = "slower" if after_us > before_us else "faster"
    return (
        f"the host itself is {slower} (control {before_us:.1f} -> {after_us:.1f} us), so this tells nothing of the code"
    )


def _status(change: RelativeChange, delta_us: float, policy: Policy) -> Status:
    if abs(delta_us) <= policy.floor_us:
        return Status.PASS
    if change.low is None or change.high is None:
        return Status.UNDECIDED
    if change.low > policy.tolerance:
        return Status.REGRESSED
    if change.high < -policy.tolerance:
        return Status.IMPROVED
    return Status.PASS if -policy.tolerance <= change.low and change.high <= policy.tolerance else Status.UNDECIDED


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
