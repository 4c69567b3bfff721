"""A run against its stored baseline, with what a reader needs to act on the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .baselines import BaselineStore
from .errors import BaselineError
from .judge import Baseline, Comparison, Reason, Status, Verdict, compare
from .run import Run

__all__ = ["Judge", "Stored", "shown"]

Judge = Callable[[Run, Baseline, Comparison], Verdict]


def shown(path: Path, root: Path) -> str:
    """A path as messages say it: from the root of the project where it lies in it."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


@dataclass(frozen=True)
class Stored:
    """What a workload's verdicts are made against. `accept`: the command that records it; `accepts`: whether this run does."""

    store: BaselineStore
    root: Path
    accept: str
    accepts: bool

    def verdict(self, run: Run, subject: str, judge: Judge) -> Verdict:
        """A baseline that cannot be used is INVALID, one that is missing NO_BASELINE; else what `judge` says."""
        try:
            baseline = self.store.load(run.fingerprint.device, run.workload)
        except BaselineError as error:
            # An update is about to replace the file, so it is no reason to refuse the run.
            status = Status.NO_BASELINE if self.accepts else Status.INVALID
            details = (
                (label, shown(Path(text), self.root) if label == "where" else text) for label, text in error.details
            )
            return Verdict(status, run.workload, subject, error.what, tuple(Reason(*detail) for detail in details))
        path = shown(self.store.path(run.fingerprint.device, run.workload), self.root)
        if baseline is None:
            reasons = (Reason("expected", path), Reason("record", self.accept))
            headline = f"no baseline of this machine for the {subject}"
            return Verdict(Status.NO_BASELINE, run.workload, subject, headline, reasons)
        comparison = compare(baseline.fingerprint, run.fingerprint)
        verdict = judge(run, baseline, comparison)
        if verdict.status in (Status.PASS, Status.NOT_JUDGED):
            return verdict
        verdict = verdict.because(Reason("baseline", f"{path}   environment: {comparison}"))
        if verdict.status not in (Status.UNDECIDED, Status.INVALID):
            return verdict.because(Reason("accept", self.accept))
        if any(reason.label == "next" for reason in verdict.reasons):
            return verdict
        return verdict.because(Reason("next", "run it again on a quiet machine"))
