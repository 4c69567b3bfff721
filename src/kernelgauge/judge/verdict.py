"""What to conclude: verdicts, as an enum with reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ..printable import printable
from .stats import RelativeChange

__all__ = ["DECLARED", "Reason", "Status", "Verdict", "worst"]

# Subject of the verdict about what a workload declares: without one, nothing may be stored.
DECLARED = "declared structure"


class Status(str, Enum):
    """What is said of a workload. `worst` ranks them."""

    PASS = "PASS"
    REGRESSED = "REGRESSED"
    IMPROVED = "IMPROVED"
    UNDECIDED = "UNDECIDED"  # too noisy to tell, or not of what was profiled
    NO_BASELINE = "NO_BASELINE"
    INCOMPARABLE = "INCOMPARABLE"  # the baseline is of another kind of machine
    INVALID = "INVALID"  # the measurement cannot be trusted

    @property
    def fails(self) -> bool:
        return self in (Status.REGRESSED, Status.INVALID)

    @property
    def passes(self) -> bool:
        return self is Status.PASS

    @property
    def decided(self) -> bool:
        """Whether anything was concluded. What was not is skipped, and under --perf-strict fails."""
        return self not in (Status.UNDECIDED, Status.NO_BASELINE, Status.INCOMPARABLE)


_SEVERITY = (
    Status.INVALID,
    Status.REGRESSED,
    Status.UNDECIDED,
    Status.INCOMPARABLE,
    Status.NO_BASELINE,
    Status.IMPROVED,
    Status.PASS,
)


@dataclass(frozen=True)
class Reason:
    """One line under a verdict: a label ("why", "rest", "baseline", "accept") and what it says."""

    label: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The conclusion about one subject ("structure", "device time", ...) of one workload."""

    status: Status
    workload: str
    subject: str
    headline: str
    reasons: tuple[Reason, ...] = ()
    before_us: float | None = None
    after_us: float | None = None
    change: RelativeChange | None = None
    suspicious: bool = False  # of a first look: a larger measurement should confirm it

    def because(self, *reasons: Reason) -> Verdict:
        return replace(self, reasons=(*self.reasons, *reasons))

    def __str__(self) -> str:
        lines = [f"{self.workload}: {self.status.value}  {self.headline}"]
        for reason in self.reasons:
            first, *rest = reason.text.split("\n")
            lines.append(f"  {reason.label:<8} {first}")
            lines.extend(f"  {'':<8} {line}" for line in rest)
        return "\n".join(map(printable, lines))


def worst(statuses: list[Status]) -> Status | None:
    """The status that a table shows for a workload with several verdicts; None for none."""
    return min(statuses, key=_SEVERITY.index, default=None)
