"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock.

This module has the verdict, with what it is founded on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from ..run import Timer
from .evidence import AnyConclusion, AnyReason, NotImproved, Reason, RelativeChange

# Subjects of verdicts, beside the labels of the timers.
# what the workload declares: without this verdict, nothing may be stored
DECLARED = "declared structure"
STRUCTURE = "structure"  # against the baseline
NUMERICS = "numerics"
TIME_LABELS = frozenset(timer.label for timer in Timer)
RATIO = "ratio"  # of the times of two variants in one run
MEASUREMENT = "measurement"  # it failed


class Status(str, Enum):
    """The conclusions on a workload, the worst first."""

    INVALID = "INVALID"  # the measurement cannot be trusted, or the result is wrong
    REGRESSED = "REGRESSED"
    CHANGED = "CHANGED"  # other structure, and neither a count nor a time shows a loss
    # less sensitive than asked for, a time of other kernels than were profiled, or a result that
    # can no longer be compared
    UNDECIDED = "UNDECIDED"
    INCOMPARABLE = "INCOMPARABLE"  # the baseline is of another kind of machine
    NO_BASELINE = "NO_BASELINE"
    IMPROVED = "IMPROVED"
    PASS = "PASS"
    # Shown only: the baseline does not know this machine, or knows it at another speed, or two
    # processes contradict.
    NOT_JUDGED = "NOT_JUDGED"

    @property
    def fails(self) -> bool:
        return self in (Status.REGRESSED, Status.CHANGED, Status.INVALID)

    @property
    def decided(self) -> bool:
        """Whether nothing is left to decide.

        The rest is skipped, and under --perf-strict it fails.
        """
        return self not in (Status.UNDECIDED, Status.NO_BASELINE, Status.INCOMPARABLE)


WORST_FIRST = tuple(Status)


@dataclass(frozen=True)
class Verdict:
    """The conclusion about one subject ("structure", "GPU time", ...) of one workload.

    `report.words` says it.
    """

    status: Status
    workload: str
    subject: str
    conclusion: AnyConclusion
    reasons: tuple[AnyReason, ...] = ()
    before_us: float | None = None
    after_us: float | None = None
    change: RelativeChange | None = None
    against: str = ""  # what it is compared with; empty: the baseline
    said: tuple[str, ...] = ()  # the words, for readers of the file; kernelgauge ignores them

    @property
    def is_by_baseline(self) -> bool:
        """Whether the run is compared with a baseline: accepting it overrules this.

        The rest is declared in code.
        """
        return self.subject in {STRUCTURE, *TIME_LABELS}

    def because(self, *reasons: Reason) -> Verdict:
        return replace(self, reasons=(*self.reasons, *reasons))


def without_doubtful_improvements(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts on a workload, with PASS for IMPROVED where a time of it was not judged
    or is not as good.
    """
    verdicts = list(verdicts)
    times = [each for each in verdicts if each.subject in TIME_LABELS]
    doubtful = next(
        (each for each in times if each.status not in (Status.PASS, Status.IMPROVED)), None
    )
    for place, each in enumerate(verdicts):
        if doubtful is not None and each.status is Status.IMPROVED:
            why = NotImproved(doubtful.subject, doubtful.status.value)
            verdicts[place] = replace(each, status=Status.PASS).because(why)
    return verdicts


def worst(statuses: list[Status]) -> Status | None:
    """Return the status that a table shows for a workload with several verdicts; None for none."""
    return min(statuses, key=WORST_FIRST.index, default=None)
