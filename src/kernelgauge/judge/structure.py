"""What is exact: kernels and counts of a run against what its workload declares and against its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest

from packaging.specifiers import SpecifierSet

from ..run import Fingerprint, Run
from ..trace.difference import align
from ..trace.kernel import KernelRecord, configuration_change
from ..trace.names import decode
from .baseline import Baseline, compare
from .cause import cause_reasons, count_causes, kernel_causes
from .verdict import STRUCTURE, Reason, Status, Verdict

# -- what a workload declares -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expectation:
    """What one workload shows where `arch`, `cuda` and `torch` hold. Fields left None expect nothing.

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
        torch: torch versions that the names hold for (Inductor names its kernels), such as ``>=2.7,<2.9``; None for any.
    """

    source: str
    arch: str | None = None
    cuda: str | None = None
    kinds: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    memsets: int | None = None
    launch_apis: tuple[str, ...] | None = None
    occupancy_queries: int | None = None
    torch: str | None = None

    def holds_for(self, fingerprint: Fingerprint) -> bool:
        archs = (None, fingerprint.arch, *(() if fingerprint.arch == "cpu" else ("gpu",)))
        torch = SpecifierSet(self.torch or "", prereleases=True)  # nightly builds are prereleases
        return self.arch in archs and self.cuda in (None, fingerprint.cuda) and fingerprint.torch in torch


def mismatches(expectation: Expectation, run: Run) -> list[str]:
    """Every way in which `run` is not as expected, one line each; empty if it is."""
    found: list[str] = []
    names = run.kernel_names()
    for what, got, shown, patterns in (
        ("kernel kinds", run.kinds(), run.kinds(), expectation.kinds),
        ("kernel names", names, [decode(name).short for name in names], expectation.names),
        ("launch calls", run.launch_apis, run.launch_apis, expectation.launch_apis),
    ):
        pairs = list(zip_longest(got, patterns or ()))
        if patterns is not None and not all(_matches(*pair) for pair in pairs):
            found.append(f"{what}: got {len(got)}, expected {len(patterns)}")
            for number, (pair, name) in enumerate(zip_longest(pairs, shown), start=1):
                other = "" if _matches(*pair) else f"   <- expected {pair[1] or '(nothing)'}"
                found[-1] += f"\n    {number}. {name or '(nothing)'}{other}"
    for what, count, expected in (
        ("memsets", run.counts.memsets, expectation.memsets),
        ("occupancy queries", run.occupancy_queries, expectation.occupancy_queries),
    ):
        if expected is not None and count != expected:
            found.append(f"{what}: got {count}, expected {expected}")
    return [f"{line}\n    source   {expectation.source}" for line in found]


def _matches(name: str | None, pattern: str | None) -> bool:
    return name is not None and pattern is not None and (name == pattern or fnmatchcase(name, pattern))


# -- the baseline -----------------------------------------------------------------------------------------------------

# Counts that belong to torch as much as to the code: another version of torch may count otherwise for the same work.
_COUNTS_OF_TORCH = ("dispatcher_ops", "peak_allocated_bytes")


def judge_structure(run: Run, baseline: Baseline) -> Verdict:
    """Gate kernels (names, order, number of launches) and every count exactly.

    The launch configuration is gated too, except for Inductor's kernels: its autotuner chooses theirs anew for each
    compile, and the device time's verdict names it. More of anything counted is REGRESSED, less is IMPROVED; other kernels are
    REGRESSED until they are accepted, fewer or not. Where torch is another version than in the baseline, dispatcher ops
    and the peak of memory are shown and not judged.
    """
    comparison = compare(baseline.fingerprint, run.fingerprint)
    if comparison.foreign:
        return Verdict(Status.INCOMPARABLE, run.workload, STRUCTURE, f"structure not compared: {comparison}")
    entry, _ = baseline.entry_like(run.kernels)
    kernels = kernel_changes(entry.kernels, run.kernels, of_inductor=False)
    is_other_torch = any(change.startswith("torch ") for change in comparison.moved)
    more: list[str] = []
    less: list[str] = []
    shown: list[str] = []
    for field in run.counts.__struct_fields__:
        before, after = getattr(baseline.counts, field), getattr(run.counts, field)
        line = f"{field.replace('_', ' ')} {before} -> {after}"
        if before != after and is_other_torch and field in _COUNTS_OF_TORCH:
            shown.append(f"{line}, not judged: another version of torch")
        elif before != after:
            # What could be counted on one side only is not known to be less: it is not let pass.
            (more if before is None or after is None or after > before else less).append(line)
    status, headline = Status.PASS, "same kernels, same counts"
    if more or less:
        status, headline = Status.REGRESSED if more else Status.IMPROVED, "other counts"
    causes = count_causes(run, baseline.counts) if more else []
    if kernels:
        is_other = any(line.startswith(("+ ", "- ")) for line in kernels)
        headline = f"{'kernels' if is_other else 'launch configurations'} differ from the baseline"
        status = Status.REGRESSED
        causes += kernel_causes(entry.kernels, run.kernels, run.origins, baseline.origins, is_timed=False)[0]
    counts = [Reason("counts", line) for line in (*shown, *more, *less)]
    reasons = (*cause_reasons(causes), *counts, *(Reason("kernels", line) for line in kernels))
    return Verdict(status, run.workload, STRUCTURE, headline, reasons)


def kernel_changes(
    before: Sequence[KernelRecord], after: Sequence[KernelRecord], *, of_inductor: bool = True
) -> list[str]:
    """Return a line for each kernel that is gone (``- NAME``), new (``+ NAME``) or launched in another configuration.

    `of_inductor`: whether the configurations of Inductor's kernels count.
    """
    lines: list[str] = []
    for old, new in align(before, after):
        if old is None or new is None:
            lines += [f"- {old.identity.shown}"] if old else [f"+ {new.identity.shown}"] if new else []
        elif of_inductor or not new.identity.is_inductors:
            configuration = configuration_change(old.identity, new.identity)
            lines += [f"{new.identity.shown}: {configuration}"] if configuration else []
    return lines
