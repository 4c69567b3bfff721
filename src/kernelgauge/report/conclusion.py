"""Two traces and what came of one in the other: in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..trace.difference import Difference, HostDifference, What, differences, host_difference
from ..trace.lane import LaneKernel
from ..trace.names import decode
from ..trace.summary import Summary
from .wording import change_text, counted, kinds_text

__all__ = ["Comparison", "compare_traces", "conclusion"]

_GEMM = "gemm"


@dataclass(frozen=True)
class Comparison:
    """Two traces and all that differs between them."""

    before: Summary
    after: Summary
    differences: tuple[Difference, ...]
    host: HostDifference

    @property
    def gpu_changed(self) -> bool:
        """Whether other kernels ran, or the same ones were launched otherwise."""
        return any(difference.what.is_change for difference in self.differences)


def compare_traces(before: Summary, after: Summary) -> Comparison:
    return Comparison(before, after, differences(before.lane, after.lane), host_difference(before.host, after.host))


def conclusion(comparison: Comparison) -> str:
    """One sentence: what happened on the GPU, else on the host, and what it did to the device time."""
    where = "the CPU" if comparison.before.lane.on_cpu and comparison.after.lane.on_cpu else "the GPU"
    changed = list(_what_happened(comparison.differences))
    timed = _timed(comparison.differences, "of the others" if changed else "of them")
    if changed:
        said = "; ".join([", ".join(changed) + _untouched(comparison.differences), *timed])
    elif not comparison.before.lane.kernels:
        said = "neither trace has kernels"
    elif timed:
        said = f"the same kernels ran, {timed[0]}{_host_only(comparison.host)}"
    else:
        said = f"nothing on {where} changed{_host_only(comparison.host)}"
    old, new = comparison.before.lane.device_time_us, comparison.after.lane.device_time_us
    return f"{said}; device time {change_text(old, new)}"


def _timed(found: Sequence[Difference], of_which: str) -> list[str]:
    """Of kernels that are the same: ``2 of them slower (+4.3 us)``."""
    parts = []
    for what in (What.SLOWER, What.FASTER):
        those = [difference for difference in found if difference.what is what]
        if those:
            delta = sum(difference.delta_us for difference in those)
            parts.append(f"{len(those)} {of_which} {what.value} ({delta:+.1f} us)")
    return [", ".join(parts)] if parts else []


def _what_happened(found: Sequence[Difference]) -> Iterator[str]:
    by_what: dict[What, list[Difference]] = {}
    for difference in found:
        by_what.setdefault(difference.what, []).append(difference)
    for what in What:
        if what in by_what and what.is_change:
            yield _PHRASES[what](by_what[what])


def _fused(found: Sequence[Difference]) -> str:
    old, new = _sides(found)
    return f"{_author(new)} fused {kinds_text(kernel.identity.kind for kernel in old)} into {len(new)}"


def _split(found: Sequence[Difference]) -> str:
    old, new = _sides(found)
    return f"{kinds_text(kernel.identity.kind for kernel in old)} split into {len(new)}"


def _folded(found: Sequence[Difference]) -> str:
    count = sum(len(difference.before) - 1 for difference in found)
    return f"{counted(count, 'pointwise kernel')} went into the epilogue of {counted(len(found), 'GEMM')}"


def _one_for_one(verb: str) -> Callable[[Sequence[Difference]], str]:
    def phrase(found: Sequence[Difference]) -> str:
        kernels = [kernel for difference in found for kernel in difference.before or difference.after]
        return f"{kinds_text(kernel.identity.kind for kernel in kernels)} {verb}"

    return phrase


def _configured(found: Sequence[Difference]) -> str:
    delta = sum(difference.delta_us for difference in found)
    count = counted(len(found), "kernel")
    if all(difference.was_autotuned for difference in found):
        return f"Inductor's autotuner chose another launch configuration for {count} ({delta:+.1f} us)"
    return f"another launch configuration for {count} ({delta:+.1f} us)"


def _sides(found: Sequence[Difference]) -> tuple[list[LaneKernel], list[LaneKernel]]:
    return [kernel for each in found for kernel in each.before], [kernel for each in found for kernel in each.after]


def _author(kernels: Sequence[LaneKernel]) -> str:
    backends = {decode(kernel.identity.name).backend for kernel in kernels}
    if any(backend.startswith("inductor") for backend in backends):
        return "compile"
    return "Liger" if "liger" in backends else "a Triton kernel"


_PHRASES = {
    What.FUSED: _fused,
    What.SPLIT: _split,
    What.FOLDED: _folded,
    What.TEMPLATE: _one_for_one("from another template"),
    What.REPLACED: _one_for_one("replaced"),
    What.VANISHED: _one_for_one("vanished"),
    What.APPEARED: _one_for_one("appeared"),
    What.MOVED: _one_for_one("in another place"),
    What.SOURCE: _one_for_one("from another source"),
    What.CONFIGURATION: _configured,
}


def _untouched(found: Sequence[Difference]) -> str:
    gemms = [d for d in found if any(kernel.identity.kind == _GEMM for kernel in (*d.before, *d.after))]
    if not gemms or any(difference.what.is_change for difference in gemms):
        return ""
    return " and left the GEMM untouched" if len(gemms) == 1 else f" and left the {len(gemms)} GEMMs untouched"


def _host_only(host: HostDifference) -> str:
    if not host.is_change:
        return ", nor on the host"
    if host.compile_ops_new and host.dispatcher_ops[1] < host.dispatcher_ops[0]:
        return ": compile only removed dispatch"
    return ": only the host's ops"
