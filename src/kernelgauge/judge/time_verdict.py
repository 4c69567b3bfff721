"""The verdict about one time of a run: the decision in words, with the kernels and the machine behind it."""

from __future__ import annotations

from dataclasses import replace

from ..run import Run, Timer, observe
from .attribution import ComparedTime, time_reasons
from .baseline import Baseline, gemm_kernel, references_us
from .configuration import Likeness, is_other_choice
from .fingerprint import Comparison
from .priors import Limits, prior_for
from .timing import ProcessTime, decide
from .verdict import Status, Verdict

__all__ = ["judge_time", "not_measured"]


def judge_time(
    timer: Timer,
    run: Run,
    baseline: Baseline,
    comparison: Comparison,
    *,
    comparisons: int = 1,
    limits: Limits | None = None,
) -> Verdict:
    """Judge one time of a run by the rule of docs/verdicts.md.

    Args:
        comparison: of the two fingerprints.
        comparisons: times that the suite has.
        limits: gates and sensitivity that the suite asks for; None: the defaults.
    """
    if not comparison.comparable:
        return Verdict(Status.INCOMPARABLE, run.workload, timer.label, f"{timer.label} not compared: {comparison}")
    sample = run.sample(timer)
    if sample is None:
        return not_measured(timer, run)
    entry, likeness = baseline.entry_like(run.kernels)
    other_choice = likeness is Likeness.SAME_NAMES and is_other_choice(entry.kernels, run.kernels)
    if other_choice and timer is Timer.DEVICE:  # only a choice slower than all known ones is a finding
        entry = max(baseline.entries, key=lambda each: each.device_time_us)
    gemm = gemm_kernel(run.controls)
    before = baseline.times(timer, entry, gemm=gemm)
    if not before:
        return Verdict(Status.NO_BASELINE, run.workload, timer.label, f"the baseline has no {timer.label}")
    after = ProcessTime(
        observe(sample, is_by_host=before[0].is_by_host),
        place=run.place,
        host=run.host,
        is_host_clock=before[0].is_host_clock,
        is_by_host=before[0].is_by_host,
        references_us=references_us(run.controls, gemm),
    )
    if other_choice and timer is Timer.END_TO_END:
        headline = f"{timer.label} {after.observation.mean_us:.1f} us, not judged: the autotuner's choice is not in the baseline"
        return Verdict(Status.NOT_JUDGED, run.workload, timer.label, headline, after_us=after.observation.mean_us)
    decision = decide(
        before,
        after,
        prior_for(timer, run.fingerprint, limits),
        comparisons=comparisons,
        kernels=len(run.kernels),
    )
    if other_choice and decision.status is Status.IMPROVED:  # another choice than the slowest is no change of the code
        decision = replace(decision, status=Status.PASS)
    compared = ComparedTime(timer, run, baseline, entry, decision, other_choice)
    return Verdict(
        status=decision.status,
        workload=run.workload,
        subject=timer.label,
        headline=_headline(compared, after),
        reasons=tuple(time_reasons(compared)),
        before_us=decision.before_us,
        after_us=after.observation.mean_us,
        change=decision.change,
    )


def not_measured(timer: Timer, run: Run) -> Verdict:
    """Return the verdict about a time that is missing."""
    why = "" if run.incomplete is None else f": {run.incomplete}"
    return Verdict(Status.INVALID, run.workload, timer.label, f"{timer.label} was not measured{why}")


def _headline(compared: ComparedTime, after: ProcessTime) -> str:
    decision, timer = compared.decision, compared.timer
    times = f"{timer.label} {decision.before_us:.1f} -> {after.observation.mean_us:.1f} us"
    if decision.status is Status.NOT_JUDGED:
        return f"{times}, not judged: {decision.reason}"
    host = " at equal host speed" if after.is_by_host else ""
    headline = f"{times}  {decision.change}{host}"
    if decision.status is Status.UNDECIDED:
        return f"{headline}: inconclusive: {decision.reason}"
    if decision.status is Status.PASS and not compared.is_other_choice:
        return f"{headline}; {decision.change.shown_sensitivity} or more would have failed"
    return headline
