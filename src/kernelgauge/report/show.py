"""What one trace says, for a reader: `kernelgauge show`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..trace.kernel import KernelIdentity, configuration_text
from ..trace.lane import LaneKernel
from ..trace.limits import Share
from ..trace.model import WHOLE
from ..trace.names import decode
from ..trace.summary import KernelGroup, Summary
from ..trace.work import Work
from .page import Column, Grid, Section
from .wording import bytes_text, counted, kinds_text, percent, shapes_text, times, us

__all__ = ["lane_text", "limit_text", "show_page"]

_MOST_PROBLEMS = 5
_FEW = 12  # kernels: who sees them in order sees their groups


def show_page(summary: Summary, *, name: str, top: int) -> list[Section]:
    """`name` of the trace; `top`: rows of a table, at most."""
    lane = summary.lane
    sections = [Section(lines=(f"{name}  {lane_text(summary)}", *_statements(summary)))]
    if summary.problems:
        sections.append(_problems(summary))
    if lane.kernels and len(lane.kernels) <= top:
        sections.append(_in_order(summary))
    if lane.kernels and (len(lane.kernels) > top or len(summary.groups) < len(lane.kernels) > _FEW):
        sections.append(_grouped(summary, top))
    others = _other_device_work(summary)
    if others:
        sections.append(Section(f"beside the kernels{_per(summary)}", tuple(others)))
    sections.append(Section(f"host{_per(summary)}", tuple(_host(summary))))
    return sections


def lane_text(summary: Summary) -> str:
    """``NVIDIA H200, 3 steps``, and how many of them are alike."""
    lane = summary.lane
    device = "CPU" if lane.on_cpu else ", ".join(Counter(summary.devices)) or "unnamed GPU"
    count, all_of_them = len(lane.windows), len(lane.all_windows)
    if lane.is_whole_trace:
        return f"{device}, {WHOLE}"
    noun = _noun(summary)
    if count == all_of_them:
        return f"{device}, {counted(all_of_them, noun)}"
    if count == 1:
        return f"{device}, {all_of_them} {noun}s that all differ; shown is {lane.windows[0].name}"
    return f"{device}, {all_of_them} {noun}s; shown is the mean of the {count} that launched the same"


def _statements(summary: Summary) -> Iterator[str]:
    lane = summary.lane
    if not lane.kernels:
        yield "no kernels"
    else:
        of_a_cpu = " (ops that compute)" if lane.on_cpu else ""
        yield (
            f"{counted(len(lane.kernels), 'kernel')}{of_a_cpu}{_per(summary)}, {us(lane.device_time_us)} us: "
            f"{kinds_text(kernel.identity.kind for kernel in lane.kernels)}"
        )
    for activity in summary.activity:
        device = f"GPU {activity.device}: " if len(summary.activity) > 1 else "GPU "
        streams = f" on {activity.streams} streams" if activity.streams > 1 else ""
        share = percent(activity.busy_us / activity.span_us) if activity.span_us else "-"
        yield (
            f"{device}busy {us(activity.busy_us)} of {us(activity.span_us)} us ({share}){streams}, "
            f"idle {us(activity.idle_us)} us, {us(activity.waiting_us)} of them waiting for a launch"
        )
    bound = summary.bound
    if bound is not None:
        yield (
            f"{bound.by}-bound: the GPU waited for launches {percent(bound.waiting)} of the time "
            f"(launching took the host {us(summary.host.launching_us)} us, under the profiler)"
        )
    if summary.not_read:
        rows = ", ".join(f"{count} {category}" for category, count in summary.not_read.items())
        yield f"not read, and in no number here: {rows}"
    if not lane.on_cpu and summary.problems_inside:
        yield f"launches that left no record: {summary.problems_inside}; the profiler lost what they ran"


def _per(summary: Summary) -> str:
    return "" if summary.lane.is_whole_trace else f" per {_noun(summary)}"


def _noun(summary: Summary) -> str:
    return "step" if summary.lane.all_windows[0].name.startswith("ProfilerStep#") else "call"


def _in_order(summary: Summary) -> Section:
    total = summary.lane.device_time_us
    rows = tuple(
        (
            str(place),
            f"{kernel.identity.shown}\n{_details(kernel)}",
            us(kernel.device_time_us),
            percent(kernel.device_time_us / total) if total else "-",
            limit_text(kernel.identity, share),
        )
        for place, (kernel, share) in enumerate(zip(summary.lane.kernels, summary.shares, strict=True), 1)
    )
    columns = (Column("#", number=True), Column("kernel, in order of launch"), *_NUMBERS)
    return Section(grid=Grid(columns, rows))


_NUMBERS = (Column("us", number=True), Column("share", number=True), Column("of the limit", number=True))


def _details(kernel: LaneKernel) -> str:
    identity = kernel.identity
    decoded = decode(identity.name)
    said = [
        decoded.dtype,
        f"tile {decoded.tile}" if decoded.tile else None,
        f"stages {decoded.stages}" if decoded.stages else None,
        f"layout {decoded.layout}" if decoded.layout else None,
        "split-K" if decoded.split_k else None,
        "bias epilogue" if decoded.bias_epilogue else None,
    ]
    by = "" if kernel.op is None or kernel.op == identity.name else f" by {kernel.op}"
    shapes = shapes_text(kernel.input_shapes)
    lines = [
        "  " + " ".join(part for part in (identity.kind + by, shapes) if part),
        "  " + " ".join(part for part in (*said, configuration_text(identity)) if part),
    ]
    return "\n".join(line for line in lines if line.strip())


def _grouped(summary: Summary, top: int) -> Section:
    total = summary.lane.device_time_us
    rows = tuple(
        (
            f"{group.launches}",
            f"{group.identity.shown}\n  {_group_details(group)}\n  {configuration_text(group.identity)}".rstrip(),
            us(group.device_time_us),
            percent(group.device_time_us / total) if total else "-",
            limit_text(group.identity, group.limit),
        )
        for group in summary.groups[:top]
    )
    left = summary.groups[top:]
    lines: tuple[str, ...] = ()
    if left:
        rest = us(sum(group.device_time_us for group in left))
        lines = (f"the {top} longest of {len(summary.groups)}; the others take {rest} us: --top 0 shows all",)
    columns = (Column("times", number=True), Column("kernel, the longest first"), *_NUMBERS)
    return Section(lines=lines, grid=Grid(columns, rows))


def _group_details(group: KernelGroup) -> str:
    by = ", ".join(name for name in group.ops if name != group.identity.name)
    shapes = shapes_text(group.shapes[0]) if len(group.shapes) == 1 else counted(len(group.shapes), "shape")
    said = [group.identity.kind, f"by {by}" if by else "", shapes if group.shapes else "", _work(group.work)]
    return " ".join(part for part in said if part)


def _work(work: Work | None) -> str:
    if work is None:
        return ""
    flops = f"{work.flops / 1e9:.2f} GFLOP" if work.flops else ""
    moved = bytes_text(work.bytes) if work.bytes else ""
    return ", ".join(part for part in (flops, moved) if part)


def limit_text(identity: KernelIdentity, share: Share | None) -> str:
    """``69 % bf16``, and below it what was achieved; empty if that is not known."""
    if share is None:
        return ""
    # Of Inductor's kernels the trace does not say which arguments are written in place, which moves them twice.
    least = ">= " if share.limit == "memory" and identity.is_inductors else ""
    return f"{least}{percent(share.share)} {share.limit}\n{least}{share.achieved:.0f} {share.unit}"


def _other_device_work(summary: Summary) -> list[str]:
    return [
        ", ".join(
            part
            for part in (
                f"{transfer.name}: {transfer.count:g} times",
                f"{us(transfer.time_us)} us",
                bytes_text(transfer.bytes) if transfer.bytes else "",
            )
            if part
        )
        for transfer in (*summary.memsets, *summary.copies)
    ]


def _host(summary: Summary) -> Iterator[str]:
    host = summary.host
    yield f"{us(host.duration_us)} us, {counted(sum(host.dispatcher_ops.values()), 'dispatcher op')}"
    if host.metadata_ops:
        yield f"launched nothing (metadata only): {times(host.metadata_ops)}"
    if host.metadata_ops_that_launched:
        yield f"metadata ops that had to launch: {times(Counter(host.metadata_ops_that_launched))}"
    if host.compile_ops:
        yield f"pre-ops of torch.compile: {times(Counter(host.compile_ops))}"
    if host.synchronizations:
        yield f"waited for the GPU: {counted(host.synchronizations, 'time')}"


def _problems(summary: Summary) -> Section:
    shown = summary.problems[:_MOST_PROBLEMS]
    more = len(summary.problems) - len(shown)
    return Section(
        "launches and records that do not pair, anywhere in the trace",
        (*shown, *([f"and {more} more"] if more else [])),
    )
