"""One trace (`kernelgauge show`), or what changed between two (`kernelgauge diff`): as a page, and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from ..trace.difference import Difference, HostDifference, What, differences, host_difference
from ..trace.kernel import KernelIdentity, configuration_text
from ..trace.model import DEVICE_CATEGORIES, STEP_PREFIX, WHOLE
from ..trace.names import decode
from ..trace.summary import KernelGroup, LaneKernel, StepTime, Summary
from ..trace.work import LimitShare, Work
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

_SCHEMA = 3  # of the JSON: counts up when a key changes its meaning or goes; new keys come without that
_MOST_NAMES = 8  # of one change or group, and problems
_MOST_OPS = 20  # of the host
_MOST_CHANGES = 3  # in the conclusion
_FEW = 12  # kernels: who sees them in order sees their groups
_GEMM = "gemm"
_OF_A_LAUNCH = ("kind", "device_time_us", "durations_us", "op", "module", "input_shapes", "input_types")
_LONGEST_NAME = 500  # characters
_DIGITS = 6  # of microseconds: sums of binary fractions have up to 16
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
        title = "launches and records that do not pair, anywhere in the trace"
        sections.append(Section(title, tuple(_first(lines, _MOST_NAMES))))
    sections.append(Section(f"host{_per(summary)}", tuple(_host_lines(summary))))
    return sections


def _first(texts: Sequence[str], most: int) -> list[str]:
    """Return at most so many texts; the last one counts those that are left out."""
    left = len(texts) - most
    return list(texts) if left <= 0 else [*texts[: most - 1], f"and {left + 1} more"]


def _ops_text(ops: Iterable[str]) -> str:
    """Return ``aten::t x3, aten::view``; of many ops the first."""
    return ", ".join(_first(times(Counter(ops)).split(", "), _MOST_OPS))


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
        where = f" on {len(summary.times)} GPUs" if len(summary.times) > 1 else ""
        yield f"{kernels}{where}, {time_text(lane.device_time_us)}: {_kinds(lane.kernels)}."
    if lane.on_cpu and summary.devices:
        listed = counted(len(summary.devices), "GPU")
        yield f"The trace lists {listed} and no work of one: times of ops are the host's."
    if summary.not_read:
        yield f"{_not_read(summary)} No number here has them."
    if not lane.on_cpu and summary.problems_inside:
        calls = counted(summary.problems_inside, "launch call")
        if summary.not_read.keys() & DEVICE_CATEGORIES:
            yield f"The kernels of {calls} are missing: their rows were not read, or the profiler lost them."
        else:
            yield f"The profiler lost the kernels of {calls}."


def _not_read(summary: Summary) -> str:
    rows = ", ".join(f"{counted(count, 'row')} of {category}" for category, count in summary.not_read.items())
    return f"kernelgauge did not read {rows}."


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
    by = ", ".join(_first([name for name in group.ops if name != group.title], _MOST_NAMES))
    shapes = shapes_text(group.shapes[0]) if len(group.shapes) == 1 else counted(len(group.shapes), "shape")
    said = [group.kernels[0].kind if is_of_name else "", f"by {by}" if by else "", shapes if group.shapes else ""]
    yield "  " + " ".join(part for part in (*said, _work(group.work)) if part)
    if not is_of_name:
        yield from (f"  {name}" for name in _first(list(dict.fromkeys(map(_name, identities))), _MOST_NAMES))
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
        yield f"metadata ops that had to launch: {_ops_text(host.metadata_ops_that_launched)}"
    if host.compile_ops:
        yield f"pre-ops of torch.compile: {_ops_text(host.compile_ops)}"
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
    return f"{_headline(comparison)} {' '.join(_findings(comparison))}"


def _headline(comparison: TraceComparison) -> str:
    before, after = comparison.before, comparison.after
    walls, kernels = (before.wall_us, after.wall_us), (before.lane.device_time_us, after.lane.device_time_us)
    step = f"{_noun(after).capitalize()} {time_change(*walls)}{relative_change(*walls)}"
    return f"{step}, kernels {time_change(*kernels)}{relative_change(*kernels)}."


def _findings(comparison: TraceComparison) -> Iterator[str]:
    before, after = comparison.before.lane, comparison.after.lane
    changes = [(what, found) for what in What if what.is_change and (found := comparison.of(what))]
    largest = sorted(changes, key=lambda change: -abs(_delta_us(change[1])))[:_MOST_CHANGES]
    timed = [(what, found) for what in (What.SLOWER, What.FASTER) if (found := comparison.of(what))]
    copied = _copies_sentence(comparison)
    yield from (_change_sentence(*change) for change in changes if change in largest)
    if changes:
        yield from ["Other kernels changed too."] * (len(changes) > len(largest))
    elif not before.kernels:
        yield "Neither trace has kernels."
    elif timed or copied:
        yield "The same kernels ran."
    else:
        yield f"Nothing on the {'CPU' if before.on_cpu and after.on_cpu else 'GPU'} changed."
    for what, found in timed:
        kernels = {each.before[0].identity for each in found}
        yield f"{counted(len(kernels), 'kernel')} became {what.value} ({_signed(_delta_us(found))})."
    yield from copied
    if not changes:
        old, new = comparison.host.dispatcher_ops
        did = "dispatched fewer" if new < old else "ran other"
        yield f"The host {did if comparison.host.is_change else 'ran the same'} ops."


def _time_changes(comparison: TraceComparison) -> Iterator[str]:
    """Return what became of the parts of a step, on the busiest GPU of each trace."""
    sides = (comparison.before, comparison.after)
    old, new = (side.busiest for side in sides)
    if old is None or new is None:
        return
    are_several = max(len(side.times) for side in sides) > 1
    if are_several:
        yield "Busy and idle times are of the busiest GPU; times of kernels are of all GPUs."
    gpu = f"GPU {old.device}" + (f" -> {new.device}" if old.device != new.device else "") if are_several else "GPU"
    for total, names in (("busy", _BUSY), ("idle", _IDLE)):
        parts = [
            f"{name} {time_change(getattr(old, field), getattr(new, field))}"
            for field, name in names.items()
            if max(getattr(old, field), getattr(new, field)) > 0
        ]
        change = time_change(getattr(old, f"{total}_us"), getattr(new, f"{total}_us"))
        yield f"{gpu} {total} {change}" + (f": {', '.join(parts)}." if parts else ".")
    bounds = [f"{side.bound.by}-bound" if side.bound else "bound by what the trace does not show" for side in sides]
    yield f"Before: {bounds[0]}. After: {bounds[1]}." if len(set(bounds)) > 1 else f"Both are {bounds[0]}."


_SENTENCES = {
    What.FUSED: "{author} fused {old} into {count}.",
    What.SPLIT: "{old} split into {count}.",
    What.FOLDED: "{fewer} went into the epilogue of {new}.",
    What.TEMPLATE: "{old} got another template.",
    What.REPLACED: "Other kernels replaced {old}.",
    What.VANISHED: "{old} vanished.",
    What.APPEARED: "{new} appeared.",
    What.MOVED: "{old} moved.",
    What.SOURCE: "{old} got another source.",
    What.CONFIGURATION: "{kernels} got another launch configuration ({cost}).",
}
_AUTOTUNED = "Inductor's autotuner chose another launch configuration for {kernels} ({cost})."


def _change_sentence(what: What, found: Sequence[Difference]) -> str:
    old = [kernel for difference in found for kernel in difference.before]
    new = [kernel for difference in found for kernel in difference.after]
    backends = {decode(kernel.identity.name).backend.partition("-")[0] for kernel in new}
    return (_AUTOTUNED if all(difference.was_autotuned for difference in found) else _SENTENCES[what]).format(
        old=kinds_text(kernel.kind for kernel in old),
        new=kinds_text(kernel.kind for kernel in new),
        count=len(new),
        fewer=counted(len(old) - len(new), "pointwise kernel"),
        author=next(
            (backend.capitalize() for backend in ("inductor", "liger") if backend in backends), "A Triton kernel"
        ),
        kernels=counted(len(old), "kernel"),
        cost=_signed(sum(difference.delta_us for difference in found)),
    )


def _copies_sentence(comparison: TraceComparison) -> list[str]:
    """Return how many more copies and memsets the GPU made; nothing if as many."""
    sides = [(*side.copies, *side.memsets) for side in (comparison.before, comparison.after)]
    old, new = (sum(each.count for each in side) for side in sides)
    cost = sum(each.time_us for each in sides[1]) - sum(each.time_us for each in sides[0])
    return [f"The GPU made {new:g} copies and memsets instead of {old:g} ({_signed(cost)})."] if old != new else []


# -- two traces, as a page --------------------------------------------------------------------------------------------


def compare_page(comparison: TraceComparison, *, names: tuple[str, str], top: int) -> list[Section]:
    """Return the page of two traces with these names, with at most `top` rows in a table."""
    sides = zip(("before", "after"), names, (comparison.before, comparison.after), strict=True)
    heads = (
        f"{label:<7} {name}  {_lane_text(side)}, {counted(len(side.lane.kernels), 'kernel')}"
        for label, name, side in sides
    )
    return [
        Section(lines=tuple(heads)),
        Section(
            lines=(
                *(_headline(comparison), " ".join(_findings(comparison))),
                *(*_time_changes(comparison), *_caveats(comparison)),
            )
        ),
        Section(grid=_change_table(comparison, top=top)),
        *_module_table(comparison, top=top),
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
            yield f"{label}: {_not_read(side)}"


def _change_table(comparison: TraceComparison, *, top: int) -> Grid:
    """Return what changed, in order of launch; where that is too much, the largest changes first, the rest in a row."""
    ordered = [each for each in comparison.differences if each.what is not What.SAME]
    if len(ordered) > top:
        ordered.sort(key=lambda each: -abs(each.delta_us))
    groups = [(each.what.value, [each], "\n".join(_change_lines(each))) for each in ordered[:top]]
    for what, rest in ((f"{len(ordered) - top} more rows", ordered[top:]), (What.SAME.value, comparison.of(What.SAME))):
        if rest:
            groups.append(
                (what, rest, kinds_text(kernel.kind for each in rest for kernel in each.after or each.before))
            )
    rows = []
    for what, group, _ in groups:
        before, after = (
            sum(getattr(each, f"{side}_us") for each in group) if any(getattr(each, side) for each in group) else None
            for side in ("before", "after")
        )
        rows.append((what, *_change_cells(before, after, comparison.before.lane.device_time_us)))
    return Grid((Column("what"), *_CHANGES), tuple(rows), tuple(below for *_, below in groups))


_CHANGES = tuple(Column(title, number=True) for title in ("before", "after", "change", "of the total"))


def _change_cells(before_us: float | None, after_us: float | None, total_us: float) -> tuple[str, ...]:
    """Return the cells of `_CHANGES`; None: nothing ran on that side."""
    sides = ("" if us is None else time_text(us) for us in (before_us, after_us))
    change = (after_us or 0.0) - (before_us or 0.0)
    return (*sides, _signed(change), f"{100 * change / total_us:+.1f} %" if total_us else "-")


def _modules(comparison: TraceComparison) -> list[tuple[str, float | None, float | None]]:
    """Return the time of each module before and after, the largest change first; nothing if no trace recorded them."""
    before, after = comparison.before.groups("module"), comparison.after.groups("module")
    if not any(group.kernels[0].module for group in (*before, *after)):
        return []
    old, new = ({group.title: group.device_time_us for group in side} for side in (before, after))
    rows = [(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]
    return sorted(rows, key=lambda row: -abs((row[2] or 0.0) - (row[1] or 0.0)))


def _module_table(comparison: TraceComparison, *, top: int) -> list[Section]:
    rows, total = _modules(comparison), comparison.before.lane.device_time_us
    cells = tuple((cut(name), *_change_cells(before, after, total)) for name, before, after in rows[:top])
    left = (f"{top} of {len(rows)} modules, the largest changes first.",) if len(rows) > top else ()
    return [Section("by module", left, Grid((Column("module"), *_CHANGES), cells))] if rows else []


def _signed(value_us: float) -> str:
    return f"{'-' if value_us < 0 else '+'}{time_text(abs(value_us))}"


def _change_lines(difference: Difference) -> list[str]:
    old, new = _names(difference.before), _names(difference.after)
    lines = old if old == new else [*old, *(f"-> {name}" for name in new)]
    if difference.what in (What.SLOWER, What.FASTER):
        below = _place(difference.before[0])
    elif difference.what in (What.FUSED, What.REPLACED, What.APPEARED, What.SPLIT):
        below = configuration_text(difference.after[0].identity)
    else:
        below = difference.details
    return [*lines, *([f"   {below}"] if below else [])]


def _place(kernel: LaneKernel) -> str:
    """Return the op that launched a kernel, and the module around it: ``by aten::mm in Mlp_0.Linear_0``."""
    op = f"by {kernel.op}" if kernel.op and kernel.op != kernel.identity.name else ""
    return f"{op} in {cut(kernel.module)}".strip() if kernel.module else op


def _names(kernels: Sequence[LaneKernel]) -> list[str]:
    """Return one line for each name, with how often it is there; of many the first."""
    counts = Counter(_name(kernel.identity) for kernel in kernels)
    return _first([f"{name} x{count}" if count > 1 else name for name, count in counts.items()], _MOST_NAMES)


def _delta_us(group: Sequence[Difference]) -> float:
    return sum(difference.delta_us for difference in group)


def _host_changes(host: HostDifference) -> Iterator[str]:
    before, after = host.dispatcher_ops
    launching = f", launching {time_change(*host.launching_us)}{relative_change(*host.launching_us)} under the profiler"
    yield f"dispatcher ops {before} -> {after}" + (launching if any(host.launching_us) else "")
    for label, names in (("gone", host.gone), ("new ", host.new)):
        if names:
            yield f"{label}  {_ops_text(Counter(names).elements())}"
    if host.synchronizations[0] != host.synchronizations[1]:
        yield f"waits for the GPU {host.synchronizations[0]} -> {host.synchronizations[1]}"


# -- JSON -------------------------------------------------------------------------------------------------------------


def json_text(value: Any, indent: str = "") -> str:
    """Return JSON with a line for each item of a list. Objects are broken up to the second level."""
    deeper = f"{indent}  "
    if isinstance(value, dict) and len(indent) < 4:
        items = [f"{json_text(key)}: {json_text(item, deeper)}" for key, item in value.items()]
    elif isinstance(value, list) and len(indent) < 6 and any(isinstance(item, dict) for item in value):
        items = [msgspec.json.encode(item).decode() for item in value]
    else:
        return msgspec.json.encode(value).decode()
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}{end}"


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
        "kernels": [{key: value for key, value in _decoded(name).items() if value} for name in kernels],
        "differences": [
            {
                "what": difference.what.value,
                "before": _kernels_data(difference.before, places),
                "after": _kernels_data(difference.after, places),
                "delta_us": round(difference.delta_us, _DIGITS),
                "details": difference.details,
            }
            # Times are judged by op and module.
            | ({} if difference.what.is_change else _launcher(difference.before[0]))
            for difference in comparison.differences
        ],
        "modules": [
            {"module": name, "before_us": before, "after_us": after} for name, before, after in _modules(comparison)
        ],
        "host": msgspec.to_builtins(comparison.host),
    }


def _times_data(summary: Summary) -> list[dict[str, Any]]:
    """Return the parts of a step's time on each device."""
    return [msgspec.to_builtins(time) | {"busy_us": time.busy_us, "idle_us": time.idle_us} for time in summary.times]


def _launcher(kernel: LaneKernel) -> dict[str, str]:
    return {key: value for key, value in (("op", kernel.op), ("module", kernel.module)) if value}


def _kernels_data(kernels: Sequence[LaneKernel], places: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return launches of one kernel together: its place in `kernels`, and what is known of its launch configuration."""
    found: dict[KernelIdentity, list[float]] = {}
    for kernel in kernels:
        found.setdefault(kernel.identity, []).append(kernel.device_time_us)
    return [
        {"kernel": places[each.name], "launches": len(us), "device_time_us": round(sum(us), _DIGITS)}
        | {key: value for key, value in msgspec.to_builtins(each).items() if key not in ("name", "kind")}
        for each, us in found.items()
    ]


def _identity(identity: KernelIdentity) -> dict[str, Any]:
    """Return every key, also of what is not known: a reader need not guess."""
    return _decoded(identity.name) | msgspec.structs.asdict(identity)


def _decoded(name: str) -> dict[str, Any]:
    fields = asdict(decode(name))
    return {"name": fields.pop("raw"), **fields}
