"""What is exact: kernels and counts of a run against its baseline, without tolerance."""

from __future__ import annotations

from ..run import Run
from ..trace.difference import align
from ..trace.kernel import configuration_change
from .baseline import Baseline, Entry
from .cause import cause_reasons, count_causes, kernel_causes
from .fingerprint import Comparison
from .verdict import STRUCTURE, Reason, Status, Verdict

__all__ = ["judge_structure"]

# Counts that belong to torch as much as to the code: another version of torch may count otherwise for the same work.
_COUNTS_OF_TORCH = ("dispatcher_ops", "peak_allocated_bytes")


def judge_structure(run: Run, baseline: Baseline, comparison: Comparison) -> Verdict:
    """Gate kernels (names, order, number of launches) and every count exactly.

    The launch configuration is gated too, except for Inductor's kernels: its autotuner chooses theirs anew for each
    compile, and the device time's verdict names it. More of anything counted is REGRESSED, less is IMPROVED; other kernels are
    REGRESSED until they are accepted, fewer or not. Where torch is another version than in the baseline, dispatcher ops
    and the peak of memory are shown and not judged.
    """
    if not comparison.comparable:
        return Verdict(Status.INCOMPARABLE, run.workload, STRUCTURE, f"structure not compared: {comparison}")
    status, headline = Status.PASS, ""
    entry, _ = baseline.entry_like(run.kernels)
    kernels: list[str] = []
    if [each.identity.unnumbered for each in run.kernels] != [each.identity.unnumbered for each in entry.kernels]:
        status = Status.REGRESSED
        headline = "kernels differ from the baseline"
        kernels += _kernel_diff(run, entry)
    configurations = _configuration_changes(run, entry)
    if configurations:
        status = Status.REGRESSED
        headline = headline or "launch configurations differ from the baseline"
        kernels += configurations
    more, less = _count_changes(run, baseline)
    shown: list[str] = []
    if any(change.field == "torch" for change in comparison.moved):
        of_torch = tuple(field.replace("_", " ") for field in _COUNTS_OF_TORCH)
        shown = [line for line in (*more, *less) if line.startswith(of_torch)]
        more, less = ([line for line in lines if line not in shown] for lines in (more, less))
    if more:
        status = Status.REGRESSED
    elif less and status is Status.PASS:
        status = Status.IMPROVED
    causes = count_causes(run, baseline.counts) if more else []
    causes += (
        kernel_causes(entry.kernels, run.kernels, run.origins, baseline.origins, is_timed=False)[0] if kernels else []
    )
    reasons = (
        *cause_reasons(causes),
        *(Reason("counts", f"{line}, not judged: another version of torch") for line in shown),
        *(Reason("counts", line) for line in (*more, *less)),
        *(Reason("kernels", line) for line in kernels),
    )
    if status is Status.PASS:
        return Verdict(status, run.workload, STRUCTURE, "same kernels, same counts", reasons)
    return Verdict(status, run.workload, STRUCTURE, headline or "other counts", reasons)


def _kernel_diff(run: Run, entry: Entry) -> list[str]:
    lines: list[str] = []
    for change in align(entry.kernels, run.kernels):
        if change.before is None and change.after is not None:
            lines.append(f"+ {change.after.identity.shown}")
        elif change.after is None and change.before is not None:
            lines.append(f"- {change.before.identity.shown}")
    return lines


def _configuration_changes(run: Run, entry: Entry) -> list[str]:
    return [
        f"{change.after.identity.shown}: {configuration}"
        for change in align(entry.kernels, run.kernels)
        if change.before is not None and change.after is not None
        if not change.after.identity.is_inductors
        if (configuration := configuration_change(change.before.identity, change.after.identity))
    ]


def _count_changes(run: Run, baseline: Baseline) -> tuple[list[str], list[str]]:
    more: list[str] = []
    less: list[str] = []
    for field in run.counts.__struct_fields__:
        before, after = getattr(baseline.counts, field), getattr(run.counts, field)
        if before == after:
            continue
        line = f"{field.replace('_', ' ')} {before} -> {after}"
        # What could be counted on one side only is not known to be less: it is not let pass.
        (more if before is None or after is None or after > before else less).append(line)
    return more, less
