"""The kernels of a workload in the HTML report: as lanes to compare, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..results import WorkloadResult
from ..run import Timer
from ..trace.difference import KernelChange, align
from ..trace.kernel import KernelRecord, configuration_change, configuration_text
from ..trace.limits import Limits, share_of_limit
from .html_charts import Lane, Tick, lane, shown_us, ticks
from .html_tests import clipped
from .show import limit_text
from .wording import counted, percent

__all__ = [
    "KernelRow",
    "LaneRow",
    "Lanes",
    "Strip",
    "against_baseline",
    "kernel_changes",
    "kernel_rows",
    "lane_note",
    "lanes",
    "limit_texts",
    "stored_kernels",
]


_OTHER_SOURCE = "other source"  # of the same kernel in the same configuration: another version of Inductor, say


@dataclass(frozen=True)
class LaneRow:
    """A lane with what stands above it. `anchor`: of the workload that it leads to."""

    label: str
    status: str
    note: str
    lane: Lane
    anchor: str = ""


@dataclass(frozen=True)
class Strip:
    """What a lane is drawn from. `marks`: how each launch differs from its partner; none where it is empty."""

    label: str
    kernels: Sequence[KernelRecord]
    note: str
    status: str = ""
    anchor: str = ""
    marks: Sequence[str] = ()


@dataclass(frozen=True)
class Lanes:
    """Lanes one above another, on one scale."""

    rows: tuple[LaneRow, ...]
    ticks: tuple[Tick, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class KernelRow:
    """A launch, in order. `before_us`: its partner's in the baseline. `mark`: how it differs from that one."""

    number: str
    name: str
    whole_name: str  # empty where `name` is it
    kind: str
    configuration: str
    us: str
    before_us: str
    delta_us: str
    share: str
    limit: str  # how near it came to what this GPU's reference kernels reached
    mark: str

    @property
    def moved(self) -> bool:
        """Whether something else ran. The same kernel from another source alone is said, and no more."""
        return self.mark not in ("", _OTHER_SOURCE)


def lanes(strips: Sequence[Strip]) -> Lanes:
    """On the scale of the longest."""
    scale = max((sum(kernel.device_time_us for kernel in strip.kernels) for strip in strips), default=0.0)
    drawn = tuple(
        LaneRow(
            strip.label, strip.status, strip.note, lane(strip.kernels, scale_us=scale, marks=strip.marks), strip.anchor
        )
        for strip in strips
    )
    kinds = dict.fromkeys(bar.kind for row in drawn for bar in row.lane.bars)
    return Lanes(drawn, ticks(0.0, scale, most=8), tuple(kinds))


def kernel_changes(source: WorkloadResult, stored: Sequence[KernelRecord]) -> list[KernelChange[KernelRecord]]:
    """Each launch of this run beside its partner of those `stored`."""
    return align(stored, source.run.kernels) if source.run else []


def stored_kernels(source: WorkloadResult) -> Sequence[KernelRecord]:
    """Those of the baseline's entry that the run is compared with, in the time that it is compared with, where its device
    time was judged; the run's own where there is no baseline."""
    if source.run is None:
        return ()
    if source.baseline is None or not source.baseline.entries:
        return source.run.kernels
    entry, _ = source.baseline.entry_like(source.run.kernels)
    judged = source.verdict(Timer.DEVICE.label)
    return entry.kernels_in(judged.before_us if judged is not None else None)


def against_baseline(
    source: WorkloadResult,
    stored: Sequence[KernelRecord],
    changes: Sequence[KernelChange[KernelRecord]],
    *,
    status: str,
) -> Lanes | None:
    """The lanes of the baseline and of this run; None where one of them is missing."""
    if source.run is None or source.baseline is None:
        return None
    gone = {id(change.before) for change in changes if change.after is None}
    marks = {id(change.after): _mark(change) for change in changes if _mark(change) != _OTHER_SOURCE}
    after = source.run.kernels
    return lanes(
        [
            Strip(
                "baseline",
                stored,
                lane_note(stored),
                marks=["gone" if id(kernel) in gone else "" for kernel in stored],
            ),
            Strip(
                "this run",
                after,
                lane_note(after),
                status,
                marks=[marks.get(id(kernel), "") for kernel in after],
            ),
        ]
    )


def lane_note(kernels: Sequence[KernelRecord]) -> str:
    return f"{counted(len(kernels), 'kernel')}, {shown_us(sum(kernel.device_time_us for kernel in kernels))} us"


def _mark(change: KernelChange[KernelRecord]) -> str:
    if change.before is None:
        return "new"
    if change.after is None:
        return "gone"
    if change.same_identity:
        return ""
    configured = configuration_change(change.before.identity, change.after.identity)
    return "other configuration" if configured else _OTHER_SOURCE


def kernel_rows(
    changes: Sequence[KernelChange[KernelRecord]], *, compared: bool, limits: Sequence[str] = ()
) -> tuple[KernelRow, ...]:
    """`limits`: of each launch of this run, as `limit_texts` has them."""
    total = sum(change.after.device_time_us for change in changes if change.after)
    rows: list[KernelRow] = []
    launched = 0
    for change in changes:
        launched += change.after is not None
        number = str(launched) if change.after else ""
        limit = limits[launched - 1] if change.after and launched <= len(limits) else ""
        rows.append(_kernel_row(change, number, total, compared=compared, limit=limit))
    return tuple(rows)


def limit_texts(source: WorkloadResult) -> tuple[str, ...]:
    """For each launch in order; none where the results do not hold what it takes."""
    run = source.run
    if run is None or run.roof is None or len(run.work) != len(run.kernels):
        return ()
    # What the pair was measured in; a 16-bit type is as fast as the other.
    peaks = {"fp16": run.roof.gemm_tflop_per_s, "bf16": run.roof.gemm_tflop_per_s}
    limits = Limits("reference kernels", run.roof.memory_gb_per_s, peaks, source="measured beside the workloads")
    return tuple(
        limit_text(kernel.identity, share_of_limit(work, kernel.device_time_us, source.dtype, limits) if work else None)
        for kernel, work in zip(run.kernels, run.work, strict=True)
    )


def _kernel_row(
    change: KernelChange[KernelRecord], number: str, total_us: float, *, compared: bool, limit: str
) -> KernelRow:
    old, new = change.before, change.after
    one = new or old
    assert one is not None  # a change has a side
    shown = one.identity.shown
    return KernelRow(
        number=number,
        name=shown,
        whole_name="" if shown == one.identity.name else clipped(one.identity.name, 400),
        kind=clipped(one.identity.kind, 30),
        configuration=clipped(configuration_text(one.identity)),
        us=_time(new),
        before_us=_time(old) if compared else "",
        delta_us=f"{change.delta_us:+.2f}" if compared else "",
        share=percent(new.device_time_us / total_us) if new and total_us else "",
        limit=limit,
        mark=_mark(change) if compared else "",
    )


def _time(kernel: KernelRecord | None) -> str:
    return "" if kernel is None else shown_us(kernel.device_time_us)
