"""What the HTML report says of everything together: one word, one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..judge import Status
from ..results import Results
from .html_workload import WorkloadView
from .wording import NO_VERDICT, NOT_RUN, counted

__all__ = ["overall", "rank", "sentence"]

# The worst first, as `judge.worst` ranks them.
_SAID = {
    Status.INVALID.value: "could not be measured reliably",
    Status.REGRESSED.value: "regressed",
    Status.UNDECIDED.value: "inconclusive",
    Status.INCOMPARABLE.value: "with a baseline of another kind of machine",
    Status.NO_BASELINE.value: "without a baseline",
    NO_VERDICT: "without a verdict",
    Status.IMPROVED.value: "improved",
    Status.PASS.value: "passed",
    Status.NOT_JUDGED.value: "shown, not judged",
    NOT_RUN: "not run",
}
_FAILING = (Status.INVALID.value, Status.REGRESSED.value)
_NO_FAILURE = (0, 5)  # pytest's exit status: all passed; no test was collected


def rank(status: str) -> int:
    """The worst first."""
    return list(_SAID).index(status) if status in _SAID else -1


def overall(shown: Sequence[Results]) -> str:
    """The worst verdict; FAILED where all verdicts are well and pytest was not: that is no pass."""
    statuses = [one.status for one in shown if one.status is not None]
    status = min((each.value for each in statuses), key=rank, default="NOTHING JUDGED")
    failed = any(one.exit_status not in _NO_FAILURE or any(t.outcome == "failed" for t in one.tests) for one in shown)
    return "FAILED" if failed and status not in _FAILING else status


def sentence(status: str, views: Sequence[WorkloadView], shown: Sequence[Results]) -> str:
    counts = Counter(view.status for view in views)
    parts = [f"{counts[each]} {_SAID[each]}" for each in _SAID if counts[each]]
    said = f"Of {counted(len(views), 'workload')}: {', '.join(parts)}." if parts else "No workload was measured."
    if status == "FAILED":
        failed = sum(test.outcome == "failed" for one in shown for test in one.tests)
        exits = ", ".join(str(one.exit_status) for one in shown)
        said += f" {counted(failed, 'test')} failed, and pytest ended with {exits}: this is no pass."
    return said
