"""What changed between two traces, for a reader: `kernelgauge diff`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..trace.difference import Difference, HostDifference, What
from ..trace.kernel import configuration_text
from ..trace.lane import LaneKernel
from ..trace.summary import Summary
from .conclusion import Comparison, conclusion
from .page import Column, Grid, Section
from .show import lane_text
from .wording import change_text, counted, kinds_text, times, us

__all__ = ["compare_page"]


def compare_page(comparison: Comparison, *, names: tuple[str, str], top: int, everything: bool) -> list[Section]:
    """`names` of the two traces; `top`: rows, at most; `everything`: unchanged kernels one by one too."""
    sections = [
        Section(
            lines=tuple(
                f"{label:<7} {name}  {lane_text(side)}, {counted(len(side.lane.kernels), 'kernel')}, "
                f"{us(side.lane.device_time_us)} us"
                for label, name, side in zip(
                    ("before", "after"), names, (comparison.before, comparison.after), strict=True
                )
            )
        ),
        Section(lines=(conclusion(comparison), *_caveats(comparison))),
        Section(grid=_grid(comparison, top=top, everything=everything)),
    ]
    host = tuple(_host(comparison.host))
    if host:
        sections.append(Section("host", host))
    return sections


def _caveats(comparison: Comparison) -> Iterator[str]:
    before, after = comparison.before, comparison.after
    if set(before.devices) != set(after.devices) or before.lane.on_cpu != after.lane.on_cpu:
        yield "the two were recorded on different devices: times and templates differ for that alone"
    if before.lane.is_whole_trace != after.lane.is_whole_trace:
        yield "one is a whole trace and the other its steps: the totals are not of the same amount of work"
    if _inputs(before) != _inputs(after) and _ops(before) == _ops(after):
        yield "the same ops had inputs of other shapes: the two did not do the same work"
    for label, side in (("before", before), ("after", after)):
        if side.problems:
            inside = f", {side.problems_inside} of them in what is shown" if side.problems_inside else ""
            yield f"{label}: {len(side.problems)} launches and records do not pair{inside}; kernelgauge show says which"
        if side.not_read:
            yield f"{label}: rows of a device that are not read: {', '.join(side.not_read)}"


def _ops(summary: Summary) -> list[str | None]:
    return [kernel.op for kernel in summary.lane.kernels]


def _inputs(summary: Summary) -> list[object]:
    return [kernel.input_shapes for kernel in summary.lane.kernels]


_MOST_NAMES = 8
_COLUMNS = (
    Column("what"),
    Column("kernels"),
    Column("before\nus", number=True),
    Column("after\nus", number=True),
    Column("change\nus", number=True),
    Column("of the\ntotal", number=True),
)


def _grid(comparison: Comparison, *, top: int, everything: bool) -> Grid:
    """What changed, in order of launch; where that is too much, the largest changes first. Then the rest in a line."""
    total = comparison.before.lane.device_time_us
    told, quiet = _divided(comparison.differences, everything)
    groups = _grouped(told)
    left: list[Difference] = []
    if len(groups) > top:
        groups.sort(key=lambda group: -abs(_sum(group)))
        left = [difference for group in groups[top:] for difference in group]
    rows = [_row(group, total) for group in groups[:top]]
    if left:
        rows.append(_rest(f"{len(left)} more", left, total))
    if quiet:
        rows.append(_rest(What.SAME.value, quiet, total))
    return Grid(_COLUMNS, tuple(rows))


def _divided(found: Sequence[Difference], everything: bool) -> tuple[list[Difference], list[Difference]]:
    told = [difference for difference in found if everything or difference.what is not What.SAME]
    return told, [] if everything else [difference for difference in found if difference.what is What.SAME]


def _grouped(found: Sequence[Difference]) -> list[list[Difference]]:
    """Differences that read the same, in order of the first one."""
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for difference in found:
        names = (tuple(kernel.identity.name for kernel in side) for side in (difference.before, difference.after))
        launched = tuple(configuration_text(kernel.identity) for kernel in difference.after[:1])
        groups.setdefault((difference.what, *names, difference.details, launched), []).append(difference)
    return list(groups.values())


def _sum(group: Sequence[Difference]) -> float:
    return sum(difference.delta_us for difference in group)


def _row(group: Sequence[Difference], total_us: float) -> tuple[str, ...]:
    first = group[0]
    old, new = _names(first.before), _names(first.after)
    lines = old if old == new else [*old, *(f"-> {name}" for name in new)]
    if first.details:
        lines = [*lines, f"   {first.details}"]
    elif first.what in (What.FUSED, What.REPLACED, What.APPEARED, What.SPLIT):
        lines = [*lines, f"   {configuration_text(first.after[0].identity)}"]
    if len(group) > 1:
        lines = [f"{len(group)} times", *lines]
    return (first.what.value, "\n".join(lines), *_times(group, total_us))


def _names(kernels: Sequence[LaneKernel]) -> list[str]:
    """One line a name, as often as it is there; of many the first."""
    counts = Counter(kernel.identity.shown for kernel in kernels)
    lines = [f"{name} x{count}" if count > 1 else name for name, count in counts.items()]
    return (
        lines if len(lines) <= _MOST_NAMES else [*lines[: _MOST_NAMES - 1], f"and {len(lines) - _MOST_NAMES + 1} more"]
    )


def _rest(what: str, group: Sequence[Difference], total_us: float) -> tuple[str, ...]:
    kinds = kinds_text((difference.after or difference.before)[0].identity.kind for difference in group)
    return (what, kinds, *_times(group, total_us))


def _times(group: Sequence[Difference], total_us: float) -> tuple[str, str, str, str]:
    before = sum(difference.before_us for difference in group)
    after = sum(difference.after_us for difference in group)
    return (
        us(before) if any(difference.before for difference in group) else "",
        us(after) if any(difference.after for difference in group) else "",
        f"{after - before:+.1f}",
        _share(after - before, total_us),
    )


def _share(delta_us: float, total_us: float) -> str:
    return f"{100 * delta_us / total_us:+.1f} %" if total_us else "-"


def _host(host: HostDifference) -> Iterator[str]:
    yield (
        f"dispatcher ops {host.dispatcher_ops[0]} -> {host.dispatcher_ops[1]}, launching "
        f"{change_text(*host.launching_us)} under the profiler"
    )
    if host.gone:
        yield f"gone     {times(host.gone)}"
    if host.new:
        yield f"new      {times(host.new)}"
    if host.compile_ops_new:
        yield f"pre-ops  {times(Counter(host.compile_ops_new))}"
    if host.compile_ops_gone:
        yield f"pre-ops gone  {times(Counter(host.compile_ops_gone))}"
    if host.synchronizations[0] != host.synchronizations[1]:
        yield f"waits for the GPU {host.synchronizations[0]} -> {host.synchronizations[1]}"
