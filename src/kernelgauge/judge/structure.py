"""What is exact: kernels and counts of a run against its baseline, without tolerance."""

from __future__ import annotations

from ..run import Run
from .attribution import align
from .baseline import Baseline
from .fingerprint import Comparison
from .verdict import Reason, Status, Verdict

__all__ = ["judge_structure"]

_SUBJECT = "structure"


def judge_structure(run: Run, baseline: Baseline, comparison: Comparison) -> Verdict:
    """Gate kernels (names, order, number of launches) and every count exactly.

    Another launch configuration of the same kernel is no structural change: the autotuner draws it anew for each
    compile. It is part of the identity, and the device time's verdict names it. More of anything counted is
    REGRESSED, less is IMPROVED; other kernels are REGRESSED until they are accepted, fewer or not.
    """
    if not comparison.comparable:
        return Verdict(Status.INCOMPARABLE, run.workload, _SUBJECT, f"structure not compared: {comparison}")
    reasons: list[Reason] = []
    status = Status.PASS
    if run.kernel_names() != [kernel.identity.name for kernel in baseline.kernels]:
        status = Status.REGRESSED
        reasons += [Reason("kernels", line) for line in _kernel_diff(run, baseline)]
    more, less = _count_changes(run, baseline)
    reasons += [Reason("counts", line) for line in (*more, *less)]
    if more:
        status = Status.REGRESSED
    elif less and status is Status.PASS:
        status = Status.IMPROVED
    if status is Status.PASS:
        return Verdict(status, run.workload, _SUBJECT, "same kernels, same counts")
    headline = "other kernels than in the baseline" if reasons[0].label == "kernels" else "other counts"
    return Verdict(status, run.workload, _SUBJECT, headline, tuple(reasons))


def _kernel_diff(run: Run, baseline: Baseline) -> list[str]:
    lines: list[str] = []
    for change in align(baseline.kernels, run.kernels):
        if change.before is None and change.after is not None:
            lines.append(f"+ {change.after.identity.shown}")
        elif change.after is None and change.before is not None:
            lines.append(f"- {change.before.identity.shown}")
    return lines


def _count_changes(run: Run, baseline: Baseline) -> tuple[list[str], list[str]]:
    more: list[str] = []
    less: list[str] = []
    for field in run.counts.__struct_fields__:
        before, after = getattr(baseline.counts, field), getattr(run.counts, field)
        if before is None or after is None or before == after:
            continue
        line = f"{field.replace('_', ' ')} {before} -> {after}"
        (more if after > before else less).append(line)
    return more, less
