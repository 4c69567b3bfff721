"""What is exact: kernels and counts of a run against what its workload declares and against its baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..run import Fingerprint, Run
from ..trace.difference import align
from ..trace.kernel import KernelRecord, configuration_change
from ..trace.names import decode
from .baseline import Baseline, Comparison, Entry
from .cause import cause_reasons, count_causes, kernel_causes
from .verdict import STRUCTURE, Reason, Status, Verdict

__all__ = ["Expectation", "configuration_changes", "judge_structure", "mismatches"]

# -- what a workload declares -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expectation:
    """What one workload shows where `arch` and `cuda` hold. Fields left None expect nothing.

    An expectation is never loosened to hold everywhere: declare another one for another architecture.

    Attributes:
        source: where it was seen, for the failure message.
        arch: ``sm_90``, ``sm_80``, ...; ``gpu`` for any GPU; ``cpu``; None for anything.
        cuda: CUDA version that the names hold for (cuBLAS ships with it); None for any.
        kinds: what each launch does, in order: ``gemm``, ``pointwise``, ... (`kernelgauge.trace.Kind`).
        names: name of each launch, in order: exact, or an `fnmatch` pattern.
        memsets: memsets per call.
        launch_apis: the host call behind each launch, in order: exact, or an `fnmatch` pattern.
        occupancy_queries: occupancy queries per call.
    """

    source: str
    arch: str | None = None
    cuda: str | None = None
    kinds: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    memsets: int | None = None
    launch_apis: tuple[str, ...] | None = None
    occupancy_queries: int | None = None

    def holds_for(self, fingerprint: Fingerprint) -> bool:
        right_arch = (
            self.arch is None or self.arch == fingerprint.arch or (self.arch == "gpu" and fingerprint.arch != "cpu")
        )
        return right_arch and (self.cuda is None or self.cuda == fingerprint.cuda)


def mismatches(expectation: Expectation, run: Run) -> list[str]:
    """Every way in which `run` is not as expected, one line each; empty if it is."""
    found: list[str] = []
    if expectation.kinds is not None and tuple(run.kinds()) != expectation.kinds:
        found.append(_differs("kernel kinds", run.kinds(), expectation.kinds))
    if expectation.names is not None and not _all_match(run.kernel_names(), expectation.names):
        found.append(
            _differs("kernel names", run.kernel_names(), expectation.names, shown=lambda name: decode(name).short)
        )
    if expectation.launch_apis is not None and not _all_match(run.launch_apis, expectation.launch_apis):
        found.append(_differs("launch calls", run.launch_apis, expectation.launch_apis))
    for what, got, expected in (
        ("memsets", run.counts.memsets, expectation.memsets),
        ("occupancy queries", run.occupancy_queries, expectation.occupancy_queries),
    ):
        if expected is not None and got != expected:
            found.append(f"{what}: got {got}, expected {expected}")
    return [f"{line}\n    source   {expectation.source}" for line in found]


def _all_match(got: Sequence[str], patterns: Sequence[str]) -> bool:
    return len(got) == len(patterns) and all(
        name == pattern or fnmatchcase(name, pattern) for name, pattern in zip(got, patterns, strict=True)
    )


def _differs(what: str, got: Sequence[str], expected: Sequence[str], *, shown: Callable[[str], str] = str) -> str:
    lines = [f"{what}: got {len(got)}, expected {len(expected)}"]
    for index in range(max(len(got), len(expected))):
        left = shown(got[index]) if index < len(got) else "(nothing)"
        right = expected[index] if index < len(expected) else "(nothing)"
        same = index < len(got) and index < len(expected) and _all_match([got[index]], [right])
        lines.append(f"    {index + 1}. {left}" if same else f"    {index + 1}. {left}   <- expected {right}")
    return "\n".join(lines)


# -- the baseline -----------------------------------------------------------------------------------------------------

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
    configurations = configuration_changes(entry.kernels, run.kernels, of_inductor=False)
    if configurations:
        status = Status.REGRESSED
        headline = headline or "launch configurations differ from the baseline"
        kernels += configurations
    more, less = _count_changes(run, baseline)
    shown: list[str] = []
    if any(change.startswith("torch ") for change in comparison.moved):
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


def configuration_changes(
    before: Sequence[KernelRecord], after: Sequence[KernelRecord], *, of_inductor: bool = True
) -> list[str]:
    """Return the launch configurations that differ, a line for each kernel. `of_inductor`: those of its kernels too."""
    return [
        f"{change.after.identity.shown}: {configuration}"
        for change in align(before, after)
        if change.before is not None and change.after is not None
        if of_inductor or not change.after.identity.is_inductors
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
