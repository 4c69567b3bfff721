"""One trace (`kernelgauge show`), or what changed between two (`kernelgauge diff`): as a page, and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from ..trace.difference import Difference, HostDifference, What, differences, host_difference
from ..trace.kernel import KernelIdentity, configuration_text
from ..trace.lane import LaneKernel, StepTime, is_compile_op
from ..trace.limits import LimitShare
from ..trace.model import STEP_PREFIX, WHOLE
from ..trace.names import decode
from ..trace.summary import KernelGroup, Summary
from ..trace.work import Work
from .page import Column, Grid, Section
from .wording import (
    bytes_text,
    counted,
    cut,
    kinds_text,
    percent,
    relative_change,
    shapes_text,
    time_change,
    time_text,
    times,
)

__all__ = [
    "TraceComparison",
    "compare_data",
    "compare_page",
    "compare_traces",
    "conclusion",
    "json_text",
    "limit_text",
    "show_data",
    "show_page",
]

_SCHEMA = 2  # of the JSON: counts up when a key changes its meaning or goes; new keys come without that
_MOST_PROBLEMS = 8
_MOST_NAMES = 8  # of one change, or of a group
_MOST_CHANGES = 3  # in the conclusion
_FEW = 12  # kernels: who sees them in order sees their groups
_GEMM = "gemm"
_OF_A_LAUNCH = ("kind", "device_time_us", "durations_us", "op", "module", "input_shapes", "input_types")
_LONGEST_NAME = 500  # characters
_CORRELATION = re.compile(r" \(correlation [^)]*\)")


# -- one trace --------------------------------------------------------------------------------------------------------


def show_page(
    summary: Summary, *, name: str, top: int, by: str | None = None, order: str | None = None
) -> list[Section]:
    """Return the page of a trace of this name, with at most `top` rows. `by` and `order`: see `Summary.groups`."""
    kernels = summary.lane.kernels
    by = by or ("launch" if len(kernels) <= min(top, _FEW) else "config")
    groups = summary.groups(by, order or ("order" if by == "launch" else "time"))
    sections = [Section(lines=(f"{name}  {_lane_text(summary)}", *_statements(summary)))]
    if groups:
        sections.append(_table(groups, top, summary.lane.device_time_us))
    transfers = tuple(
        f"{each.name}: {each.count:g} times, {time_text(each.time_us)}"
        + (f", {bytes_text(each.bytes)}" if each.bytes else "")
        for each in (*summary.memsets, *summary.copies)
    )
    if transfers:
        sections.append(Section(f"beside the kernels{_per(summary)}", transfers))
    if summary.problems:
        # Without correlations, what is lost of one kernel reads the same.
        found = Counter(_CORRELATION.sub("", problem) for problem in summary.problems).most_common()
        lines = [f"{count} times {cut(problem)}" if count > 1 else cut(problem) for problem, count in found]
        left = [f"and {len(lines) - _MOST_PROBLEMS} others"] if len(lines) > _MOST_PROBLEMS else []
        title = "launches and records that do not pair, anywhere in the trace"
        sections.append(Section(title, (*lines[:_MOST_PROBLEMS], *left)))
    sections.append(Section(f"host{_per(summary)}", tuple(_host_lines(summary))))
    return sections


def _lane_text(summary: Summary) -> str:
    """Return ``NVIDIA H200, 3 steps``, and how many of them launched the same."""
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


_BOUNDS = {
    "compute": "the GPU is busy {} of the {}.",
    "communication": "nothing but communication runs in {} of the {}.",
    "copy": "nothing but copies run, or the GPU waits for one, in {} of the {}.",
    "input": "the GPU waits for the host between steps, as for a batch, in {} of the {}.",
    "overhead": "the GPU waits for launches in {} of the {}. The profiler slows the host down.",
}
# Parts of a step, and how they are called behind their time.
_BUSY = {"compute_us": "compute", "communication_us": "communication alone", "copy_us": "copies alone"}
_IDLE = {
    "launch_us": "waiting for launches",
    "input_us": "between steps (input)",
    "copy_wait_us": "waiting for copies",
    "unknown_us": "unknown",
}


def _statements(summary: Summary) -> Iterator[str]:
    """Return the time of a step: all of it, its parts, and what bounds it. Then the kernels by kind, and what is missing."""
    lane, noun = summary.lane, _noun(summary)
    durations = [window.duration_us for window in lane.windows]
    spread = ""
    if len(durations) > 1 and min(durations) <= summary.wall_us <= max(durations):
        spread = f", mean of {len(durations)} ({time_text(min(durations))} to {time_text(max(durations))})"
    yield f"{noun.capitalize()}: {time_text(summary.wall_us)}{spread}."
    for time in summary.times:
        device = f"GPU {time.device}" if len(summary.times) > 1 else "GPU"
        yield f"{device} busy {_parts(time, time.busy_us, _BUSY)}."
        yield f"{device} idle {_parts(time, time.idle_us, _IDLE)}."
    if summary.bound is not None:
        said = _BOUNDS[summary.bound.by].format(percent(summary.bound.share), noun)
        yield f"{summary.bound.by.capitalize()}-bound: {said}"
    if not lane.kernels:
        yield "No kernels."
    else:
        kernels = counted(len(lane.kernels), "computing op" if lane.on_cpu else "kernel")
        yield f"{kernels}, {time_text(lane.device_time_us)}: {_kinds(lane.kernels)}."
    if lane.on_cpu and summary.devices:
        listed = counted(len(summary.devices), "GPU")
        yield f"The trace lists {listed} and no work of one: times of ops are the host's."
    if summary.not_read:
        rows = ", ".join(f"{count} {name}" for name, count in summary.not_read.items())
        yield f"Not read, and in no number here: {rows}."
    if not lane.on_cpu and summary.problems_inside:
        yield f"The profiler lost the kernels of {counted(summary.problems_inside, 'launch call')}."


def _parts(time: StepTime, total_us: float, names: Mapping[str, str]) -> str:
    """Return ``206.7 us (60 %): 205.1 us compute, 1.6 us copies alone``."""
    share = percent(total_us / time.wall_us) if time.wall_us else "-"
    parts = [f"{time_text(getattr(time, field))} {name}" for field, name in names.items() if getattr(time, field) > 0]
    return f"{time_text(total_us)} ({share})" + (f": {', '.join(parts)}" if parts else "")


def _kinds(kernels: Sequence[LaneKernel]) -> str:
    """Return the time of each kind, the longest first."""
    found: dict[str, float] = {}
    for kernel in kernels:
        found[kernel.kind] = found.get(kernel.kind, 0.0) + kernel.device_time_us
    total = sum(found.values())
    return ", ".join(
        f"{kind} {time_text(value)}" + (f" ({percent(value / total)})" if total else "")
        for kind, value in sorted(found.items(), key=lambda item: -item[1])
    )


def _per(summary: Summary) -> str:
    return "" if summary.lane.is_whole_trace else f" per {_noun(summary)}"


def _noun(summary: Summary) -> str:
    if summary.lane.is_whole_trace:
        return "trace"
    return "step" if summary.lane.all_windows[0].name.startswith(STEP_PREFIX) else "call"


def _table(groups: Sequence[KernelGroup], top: int, total_us: float) -> Section:
    columns = tuple(Column(title, number=True) for title in ("times", "time", "share", "of the limit"))
    rows = tuple(
        (
            f"{len(group.kernels)}",
            time_text(group.device_time_us),
            percent(group.device_time_us / total_us) if total_us else "-",
            limit_text(group.kernels[0].identity, group.limit).replace("\n", ", "),
        )
        for group in groups[:top]
    )
    below = tuple("\n".join(filter(str.strip, _group_lines(group))) for group in groups[:top])
    left = time_text(sum(group.device_time_us for group in groups[top:]))
    lines = (f"{top} of {len(groups)} rows. The others take {left}: --top 0 shows them.",) if len(groups) > top else ()
    return Section(lines=lines, grid=Grid(columns, rows, below))


def _group_lines(group: KernelGroup) -> Iterator[str]:
    """Return what a row is of, and what its launches have in common."""
    identities = group.identities
    is_of_name = group.title == identities[0].name
    yield _name(identities[0]) if is_of_name else cut(group.title)
    by = ", ".join(name for name in group.ops if name != group.title)
    shapes = shapes_text(group.shapes[0]) if len(group.shapes) == 1 else counted(len(group.shapes), "shape")
    said = [group.kernels[0].kind if is_of_name else "", f"by {by}" if by else "", shapes if group.shapes else ""]
    yield "  " + " ".join(part for part in (*said, _work(group.work)) if part)
    if not is_of_name:
        names = list(dict.fromkeys(map(_name, identities)))
        yield from (f"  {name}" for name in names[:_MOST_NAMES])
        if len(names) > _MOST_NAMES:
            yield f"  and {len(names) - _MOST_NAMES} other kernels"
    elif len(identities) > 1:
        yield f"  {len(identities)} launch configurations"
    else:
        yield f"  {_configuration(identities[0])}"


def _configuration(identity: KernelIdentity) -> str:
    """Return what the name says of the kernel, and how it was launched."""
    decoded = decode(identity.name)
    said = [
        decoded.dtype,
        f"tile {decoded.tile}" if decoded.tile else None,
        f"stages {decoded.stages}" if decoded.stages else None,
        f"layout {decoded.layout}" if decoded.layout else None,
        "split-K" if decoded.split_k else None,
        "bias epilogue" if decoded.bias_epilogue else None,
        configuration_text(identity),
    ]
    return " ".join(part for part in said if part)


def _name(identity: KernelIdentity) -> str:
    """Return a name that can be copied and searched for. One of C++ is a page long: of that the part that tells it apart."""
    return identity.shown if set("<( ") & set(identity.name) or not identity.name else cut(identity.name, _LONGEST_NAME)


def _work(work: Work | None) -> str:
    if work is None:
        return ""
    flops = f"{work.flops / 1e9:.2f} GFLOP" if work.flops else ""
    moved = bytes_text(work.bytes) if work.bytes else ""
    return ", ".join(part for part in (flops, moved) if part)


def limit_text(identity: KernelIdentity, share: LimitShare | None) -> str:
    """Return ``69 % bf16``, and below it what was achieved; nothing if that is not known."""
    if share is None:
        return ""
    # Of Inductor's kernels the trace does not say which arguments are written in place, which moves them twice.
    least = ">= " if share.limit == "memory" and identity.is_inductors else ""
    return f"{least}{percent(share.share)} {share.limit}\n{least}{share.achieved:.0f} {share.unit}"


def _host_lines(summary: Summary) -> Iterator[str]:
    host = summary.host
    yield f"{time_text(host.duration_us)}, {counted(sum(host.dispatcher_ops.values()), 'dispatcher op')}"
    if host.metadata_ops_that_launched:
        yield f"metadata ops that had to launch: {times(Counter(host.metadata_ops_that_launched))}"
    if host.compile_ops:
        yield f"pre-ops of torch.compile: {times(Counter(host.compile_ops))}"
    if host.synchronizations:
        yield f"waited for the GPU: {counted(host.synchronizations, 'time')}"


# -- two traces, in one sentence --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TraceComparison:
    """Two traces and all that differs between them."""

    before: Summary
    after: Summary
    differences: tuple[Difference, ...]
    host: HostDifference

    @property
    def gpu_changed(self) -> bool:
        """Return whether other kernels ran, or the same ones were launched otherwise."""
        return any(difference.what.is_change for difference in self.differences)

    def of(self, what: What) -> list[Difference]:
        return [difference for difference in self.differences if difference.what is what]


def compare_traces(before: Summary, after: Summary) -> TraceComparison:
    return TraceComparison(
        before, after, differences(before.lane, after.lane), host_difference(before.host, after.host)
    )


def conclusion(comparison: TraceComparison) -> str:
    """Return sentences: what the change did to the time of a step, what happened on the GPU, and else on the host."""
    before, after = comparison.before, comparison.after
    walls, kernels = (before.wall_us, after.wall_us), (before.lane.device_time_us, after.lane.device_time_us)
    step = f"{_noun(after).capitalize()} {time_change(*walls)}{relative_change(*walls)}"
    said = [f"{step}, kernels {time_change(*kernels)}{relative_change(*kernels)}"]
    changes = [(what, found) for what in What if what.is_change and (found := comparison.of(what))]
    largest = sorted(changes, key=lambda change: -abs(_delta_us(change[1])))[:_MOST_CHANGES]
    phrases = [_change_phrase(*change) for change in changes if change in largest]
    copied = _copies_phrase(comparison)
    timed = [(what, found) for what in (What.SLOWER, What.FASTER) if (found := comparison.of(what))]
    if phrases:
        more = ", and other changes" if len(changes) > len(largest) else ""
        said.append(", ".join(phrases) + more + _untouched(comparison.differences))
    elif not before.lane.kernels:
        said.append("Neither trace has kernels")
    elif timed or copied:
        said.append("The same kernels ran")
    else:
        said.append(f"Nothing on the {'CPU' if before.lane.on_cpu and after.lane.on_cpu else 'GPU'} changed")
    said += [
        f"{counted(len(found), 'kernel')} became {what.value} ({_signed(_delta_us(found))})" for what, found in timed
    ]
    said += [copied] if copied else []
    if not phrases:
        said.append(_host_phrase(comparison.host))
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in said)


def _time_changes(comparison: TraceComparison) -> Iterator[str]:
    """Return what became of the parts of a step."""
    sides = (comparison.before, comparison.after)
    if not all(side.times for side in sides):
        return

    def change(name: str) -> str:
        return time_change(*(sum(getattr(time, name) for time in side.times) for side in sides))

    for total, names in (("busy", _BUSY), ("idle", _IDLE)):
        parts = [
            f"{name} {change(field)}"
            for field, name in names.items()
            if any(getattr(time, field) > 0 for side in sides for time in side.times)
        ]
        yield f"GPU {total} {change(f'{total}_us')}" + (f": {', '.join(parts)}." if parts else ".")
    bounds = [f"{side.bound.by}-bound" if side.bound else "bound by what the trace does not show" for side in sides]
    yield f"Before: {bounds[0]}. After: {bounds[1]}." if len(set(bounds)) > 1 else f"Both are {bounds[0]}."


_ONE_FOR_ONE = {
    What.TEMPLATE: "got another template",
    What.REPLACED: "gave way to others",
    What.VANISHED: "vanished",
    What.APPEARED: "appeared",
    What.MOVED: "moved",
    What.SOURCE: "got another source",
}


def _change_phrase(what: What, found: Sequence[Difference]) -> str:
    old = [kernel for difference in found for kernel in difference.before]
    new = [kernel for difference in found for kernel in difference.after]
    kinds = kinds_text(kernel.kind for kernel in old or new)
    if what is What.FUSED:
        return f"{_author(new)} fused {kinds} into {len(new)}"
    if what is What.SPLIT:
        return f"{kinds} split into {len(new)}"
    if what is What.FOLDED:
        count = len(old) - len(new)
        return f"{counted(count, 'pointwise kernel')} went into the epilogue of {counted(len(new), 'GEMM')}"
    if what is What.CONFIGURATION:
        tuned = all(difference.was_autotuned for difference in found)
        chosen = "Inductor's autotuner chose another" if tuned else "there is another"
        return f"{chosen} launch configuration for {counted(len(old), 'kernel')} ({_signed(_delta_us(found))})"
    return f"{kinds} {_ONE_FOR_ONE[what]}"


def _author(kernels: Sequence[LaneKernel]) -> str:
    backends = {decode(kernel.identity.name).backend for kernel in kernels}
    if any(backend.startswith("inductor") for backend in backends):
        return "compile"
    return "Liger" if "liger" in backends else "a Triton kernel"


def _untouched(found: Sequence[Difference]) -> str:
    gemms = [d for d in found if any(kernel.kind == _GEMM for kernel in (*d.before, *d.after))]
    count = sum(len(difference.before) for difference in gemms)
    if not gemms or any(difference.what.is_change for difference in gemms):
        return ""
    return f" and left the {'GEMM' if count == 1 else f'{count} GEMMs'} untouched"


def _copies_phrase(comparison: TraceComparison) -> str:
    """Return how many more copies and memsets the GPU made; empty if as many."""
    sides = [(*side.copies, *side.memsets) for side in (comparison.before, comparison.after)]
    old, new = (sum(each.count for each in side) for side in sides)
    if old == new:
        return ""
    cost = sum(each.time_us for each in sides[1]) - sum(each.time_us for each in sides[0])
    return f"copies and memsets {old:g} -> {new:g} ({cost:+.1f} us)"


def _host_phrase(host: HostDifference) -> str:
    if not host.is_change:
        return "The host ran the same ops"
    if any(map(is_compile_op, host.new)) and host.dispatcher_ops[1] < host.dispatcher_ops[0]:
        return "Compile only removed dispatch"
    return "Only the host's ops changed"


# -- two traces, as a page --------------------------------------------------------------------------------------------


def compare_page(comparison: TraceComparison, *, names: tuple[str, str], top: int, everything: bool) -> list[Section]:
    """Return the page of two traces with these names.

    `top`: rows, at most; `everything`: unchanged kernels one by one too.
    """
    sides = zip(("before", "after"), names, (comparison.before, comparison.after), strict=True)
    heads = (
        f"{label:<7} {name}  {_lane_text(side)}, {counted(len(side.lane.kernels), 'kernel')}"
        for label, name, side in sides
    )
    return [
        Section(lines=tuple(heads)),
        Section(lines=(conclusion(comparison), *_time_changes(comparison), *_caveats(comparison))),
        Section(grid=_change_table(comparison, top=top, everything=everything)),
        Section("host", tuple(_host_changes(comparison.host))),
    ]


def _caveats(comparison: TraceComparison) -> Iterator[str]:
    """Return what makes the two traces hard to compare."""
    before, after = comparison.before, comparison.after
    if set(before.devices) != set(after.devices) or before.lane.on_cpu != after.lane.on_cpu:
        yield "The devices differ, and so do times and templates."
    if before.lane.is_whole_trace != after.lane.is_whole_trace:
        yield "One is a whole trace and the other its steps: the totals are of different amounts of work."
    old, new = before.lane.kernels, after.lane.kernels
    same_ops = [each.op for each in old] == [each.op for each in new]
    if same_ops and [each.input_shapes for each in old] != [each.input_shapes for each in new]:
        yield "The same ops had inputs of other shapes, so the two did not do the same work."
    for label, side in (("Before", before), ("After", after)):
        if side.problems:
            inside = f", {side.problems_inside} of them in what is shown" if side.problems_inside else ""
            yield f"{label}: {len(side.problems)} launches and records do not pair{inside}. `kernelgauge show` lists them."
        if side.not_read:
            yield f"{label}: not read are {', '.join(f'{count} {name}' for name, count in side.not_read.items())}."


def _change_table(comparison: TraceComparison, *, top: int, everything: bool) -> Grid:
    """Return what changed, in order of launch; where that is too much, the largest changes first, the rest in a row."""
    total_us = comparison.before.lane.device_time_us
    ordered = [each for each in comparison.differences if everything or each.what is not What.SAME]
    if len(ordered) > top:
        ordered.sort(key=lambda each: -abs(each.delta_us))
    rows = [_change_row(each.what.value, [each], total_us) for each in ordered[:top]]
    below = ["\n".join(_change_lines(each)) for each in ordered[:top]]
    unchanged = [] if everything else comparison.of(What.SAME)
    for what, rest in ((f"{len(ordered) - top} more rows", ordered[top:]), (What.SAME.value, unchanged)):
        if rest:
            rows.append(_change_row(what, rest, total_us))
            below.append(kinds_text(kernel.kind for each in rest for kernel in each.after or each.before))
    times_us = (Column(title, number=True) for title in ("before", "after", "change", "of the total"))
    return Grid((Column("what"), *times_us), tuple(rows), tuple(below))


def _change_row(what: str, group: Sequence[Difference], total_us: float) -> tuple[str, ...]:
    before, after = (sum(each.before_us for each in group), sum(each.after_us for each in group))
    return (
        what,
        time_text(before) if any(each.before for each in group) else "",
        time_text(after) if any(each.after for each in group) else "",
        _signed(after - before),
        f"{100 * (after - before) / total_us:+.1f} %" if total_us else "-",
    )


def _signed(value_us: float) -> str:
    return f"{'-' if value_us < 0 else '+'}{time_text(abs(value_us))}"


def _change_lines(difference: Difference) -> list[str]:
    old, new = _names(difference.before), _names(difference.after)
    lines = old if old == new else [*old, *(f"-> {name}" for name in new)]
    if difference.details:
        lines.append(f"   {difference.details}")
    elif difference.what in (What.FUSED, What.REPLACED, What.APPEARED, What.SPLIT):
        lines.append(f"   {configuration_text(difference.after[0].identity)}")
    return lines


def _names(kernels: Sequence[LaneKernel]) -> list[str]:
    """Return one line for each name, with how often it is there; of many the first."""
    counts = Counter(_name(kernel.identity) for kernel in kernels)
    lines = [f"{name} x{count}" if count > 1 else name for name, count in counts.items()]
    left = len(lines) - _MOST_NAMES
    return lines if left <= 0 else [*lines[: _MOST_NAMES - 1], f"and {left + 1} more"]


def _delta_us(group: Sequence[Difference]) -> float:
    return sum(difference.delta_us for difference in group)


def _host_changes(host: HostDifference) -> Iterator[str]:
    before, after = host.dispatcher_ops
    launching = f", launching {time_change(*host.launching_us)}{relative_change(*host.launching_us)} under the profiler"
    yield f"dispatcher ops {before} -> {after}" + (launching if any(host.launching_us) else "")
    for label, names in (("gone", host.gone), ("new ", host.new)):
        if names:
            yield f"{label}  {times(names)}"
    if host.synchronizations[0] != host.synchronizations[1]:
        yield f"waits for the GPU {host.synchronizations[0]} -> {host.synchronizations[1]}"


# -- JSON -------------------------------------------------------------------------------------------------------------


def json_text(data: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def show_data(summary: Summary, *, name: str, by: str | None = None, order: str | None = None) -> dict[str, Any]:
    """Return a trace as data. `kernels`: sums over all of it; `step`: means over the steps that launched the same."""
    lane = summary.lane
    return {
        "schema": _SCHEMA,
        **_side_data(summary, name),
        "steps_alike": 0 if lane.is_whole_trace else len(lane.windows),
        "not_read": dict(summary.not_read),
        "kernels": [
            {"name": name, "kind": decode(name).kind.value, "launches": len(us), "device_time_us": sum(us)}
            | {"grid": grid, "block": block}
            for (name, grid, block), us in summary.totals.items()
        ],
        "step": {
            "device_time_us": lane.device_time_us,
            "wall_us": summary.wall_us,
            "times": _times_data(summary),
            "bound": msgspec.to_builtins(summary.bound),
            "kernels": [
                _identity(kernel.identity) | {field: getattr(kernel, field) for field in _OF_A_LAUNCH}
                for kernel in lane.kernels
            ],
            "groups": [_group_data(group) for group in summary.groups(by or "config", order or "time")],
            **{field: msgspec.to_builtins(getattr(summary, field)) for field in ("memsets", "copies", "host")},
        },
    }


def _group_data(group: KernelGroup) -> dict[str, Any]:
    return {
        **(_identity(group.identities[0]) if len(group.identities) == 1 else {}),
        "title": group.title,
        "kind": group.kernels[0].kind,
        "launches": len(group.kernels),
        "device_time_us": group.device_time_us,
        "launched_by": list(group.ops),
        "input_shapes": list(group.shapes),
        "flops": group.work.flops if group.work else None,
        "bytes": group.work.bytes if group.work else None,
        "limit": msgspec.to_builtins(group.limit),
    }


def _side_data(summary: Summary, name: str) -> dict[str, Any]:
    return {
        "trace": name,
        "devices": list(summary.devices),
        "on_cpu": summary.lane.on_cpu,
        "steps": 0 if summary.lane.is_whole_trace else len(summary.lane.all_windows),
        "problems": list(summary.problems),
    }


def compare_data(comparison: TraceComparison, *, names: tuple[str, str]) -> dict[str, Any]:
    """Return two traces as data. `differences` sum to the difference of the two device times, and refer to `kernels`."""
    kernels = dict.fromkeys(k.identity.name for each in comparison.differences for k in (*each.before, *each.after))
    places = {name: place for place, name in enumerate(kernels)}
    return {
        "schema": _SCHEMA,
        "conclusion": conclusion(comparison),
        "changed": comparison.gpu_changed,
        **{
            label: _side_data(side, name)
            | {"wall_us": side.wall_us, "times": _times_data(side), "device_time_us": side.lane.device_time_us}
            for label, name, side in zip(("before", "after"), names, (comparison.before, comparison.after), strict=True)
        },
        "kernels": [_decoded(name) for name in kernels],
        "differences": [
            {
                "what": difference.what.value,
                "before": _kernels_data(difference.before, places),
                "after": _kernels_data(difference.after, places),
                "delta_us": difference.delta_us,
                "details": difference.details,
            }
            for difference in comparison.differences
        ],
        "host": msgspec.to_builtins(comparison.host),
    }


def _times_data(summary: Summary) -> list[dict[str, Any]]:
    """Return the parts of a step's time on each device."""
    return [msgspec.to_builtins(time) | {"busy_us": time.busy_us, "idle_us": time.idle_us} for time in summary.times]


def _kernels_data(kernels: Sequence[LaneKernel], places: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return launches of one kernel together: its place in `kernels`, and what is known of its launch configuration."""
    found: dict[KernelIdentity, list[float]] = {}
    for kernel in kernels:
        found.setdefault(kernel.identity, []).append(kernel.device_time_us)
    return [
        {"kernel": places[each.name], "launches": len(us), "device_time_us": sum(us)}
        | {key: value for key, value in msgspec.to_builtins(each).items() if key not in ("name", "kind")}
        for each, us in found.items()
    ]


def _identity(identity: KernelIdentity) -> dict[str, Any]:
    """Return every key, also of what is not known: a reader need not guess."""
    return _decoded(identity.name) | msgspec.structs.asdict(identity)


def _decoded(name: str) -> dict[str, Any]:
    fields = asdict(decode(name))
    return {"name": fields.pop("raw"), **fields}
