"""What must be seen in a trace: declared on the workload, conditional on architecture and configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..run import Fingerprint, Run
from ..trace.names import decode

__all__ = ["Expectation", "applicable", "mismatches"]


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


def applicable(expectations: Sequence[Expectation], fingerprint: Fingerprint) -> list[Expectation]:
    """Return the expectations that hold for this machine and software."""
    return [expectation for expectation in expectations if expectation.holds_for(fingerprint)]


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
