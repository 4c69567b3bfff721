"""One trace, or what changed between two (`kernelgauge trace`), as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..judge.cause import find_trace_causes
from ..trace import (
    WHOLE,
    ChangeKind,
    Difference,
    HostDifference,
    KernelGroup,
    KernelIdentity,
    StepTime,
    Summary,
    configuration_text,
    diff,
    host_difference,
    name_differences,
    pairs_of_other_shapes,
)
from .text import (
    Column,
    Section,
    counted,
    cut,
    first,
    megabytes,
    percent,
    time_change,
    time_text,
    times,
)
from .words import cause_text, dearest_code

_MOST_NAMES = 8  # of one change or group, and problems
_MOST_OPS = 20  # of the host
_MOST_CAUSES, _MOST_DETAILS = 5, 4  # of a change between two traces; lines below each
_LONGEST_SHAPES = 100  # characters
_NOUNS = {"gemm": "GEMM", "other": "unknown kernel", "splitk_reduce": "split-K reduction"}
_OVERLAPPING = 0.99  # of the sum of the times of kernels: those of one stream touch at most
_MOST_GPUS = 32
_FEW = 12  # kernels: who sees them in order sees their groups
_LONGEST_NAME = 500  # characters


# -- one trace -------------------------------------------------------------------------------------


def show_page(summary: Summary, *, name: str, top: int, by: str | None = None) -> list[Section]:
    """Return the page of a trace of this name, with at most `top` rows.

    `by`: see `Summary.groups`.
    """
    groups = summary.groups(
        by or ("launch" if len(summary.kernels) <= min(top, _FEW) else "config")
    )
    per = "" if summary.noun == "trace" else f" per {summary.noun}"
    sections = [Section(lines=(f"{name}  {_lane_text(summary)}", *_statements(summary)))]
    if groups:
        sections.append(_table(groups, top, summary.device_time_us))
    transfers = [
        f"{each.name}: {each.count:g} times, {time_text(each.time_us)}"
        + (f", {megabytes(round(each.bytes))}" if each.bytes else "")
        for each in summary.transfers("gpu_memset") + summary.transfers("gpu_memcpy")
    ]
    if transfers:
        sections.append(Section(f"beside the kernels{per}", tuple(transfers)))
    if summary.problems:
        title = f"{len(summary.problems)} problems of launches and records, anywhere in the trace"
        sections.append(Section(title, tuple(map(cut, first(summary.problems, _MOST_NAMES)))))
    host = summary.host
    lines = [
        (
            f"{time_text(host.duration_us)}, "
            f"{counted(sum(host.dispatcher_ops.values()), 'dispatcher op')}"
        )
    ]
    if host.metadata_ops_that_launched:
        lines.append(
            f"metadata ops that had to launch: {_ops_text(host.metadata_ops_that_launched)}"
        )
    if host.compile_ops:
        lines.append(f"pre-ops of torch.compile: {_ops_text(host.compile_ops)}")
    if host.synchronizations:
        lines.append(f"waited for the GPU: {counted(host.synchronizations, 'time')}")
    return [*sections, Section(f"host{per}", tuple(lines))]


def _ops_text(ops: Iterable[str]) -> str:
    return ", ".join(first(times(Counter(ops).items()), _MOST_OPS))


def _lane_text(summary: Summary) -> str:
    """Return ``NVIDIA H200, 3 steps``, and how many of them launched the same."""
    others = [f"{name} not read" for name in summary.trace.not_read]
    device = (
        "CPU" if summary.on_cpu else ", ".join(Counter(summary.devices) or others) or "unnamed GPU"
    )
    count, all_of_them = len(summary.windows), len(summary.all_windows)
    if summary.noun == "trace":
        return f"{device}, {WHOLE}"
    some = (
        ""
        if count == all_of_them
        else f"; shown is the median of the {count} that launched the same"
    )
    return f"{device}, {counted(all_of_them, summary.noun)}{some}"


_BOUNDS = {
    "compute": "the GPU is busy {} of the {}.",
    "communication": "nothing but communication runs in {} of the {}.",
    "copy": "nothing but copies run, or the GPU waits for one, in {} of the {}.",
    "input": "the GPU waits for the host between steps, as for a batch, in {} of the {}.",
    "overhead": "the GPU waits for launches in {} of the {}. The profiler slows the host down.",
}
# Parts of a step, and how they are called behind their time.
_PARTS = {
    "busy": {
        "compute_us": "compute",
        "communication_us": "communication alone",
        "copy_us": "copies alone",
    },
    "idle": {
        "launch_us": "waiting for launches",
        "input_us": "between steps (input)",
        "copy_wait_us": "waiting for copies",
        "unknown_us": "unknown",
    },
}


def _statements(summary: Summary) -> Iterator[str]:
    """Return the time of a step: all of it, its parts, and what bounds it.

    Then the kernels by kind, and what is missing.
    """
    durations, spread = summary.durations_us, ""
    if len(durations) > 1:
        spread = (
            f", median of {len(durations)} ({time_text(min(durations))} to "
            f"{time_text(max(durations))})"
        )
    yield f"{summary.noun.capitalize()}: {time_text(summary.wall_us)}{spread}."
    for time in summary.times[:_MOST_GPUS]:
        yield from _parts(time, gpu=f"GPU {time.device}" if len(summary.times) > 1 else "GPU")
    if len(summary.times) > _MOST_GPUS:
        yield f"and {len(summary.times) - _MOST_GPUS} more GPUs: --json has them"
    if summary.bound is not None:
        said = _BOUNDS[summary.bound.by].format(percent(summary.bound.share), summary.noun)
        yield f"{summary.bound.by.capitalize()}-bound: {said}"
    kernels = counted(len(summary.kernels), "computing op" if summary.on_cpu else "kernel")
    where = f" on {len(summary.times)} GPUs" if len(summary.times) > 1 else ""
    total_us, shares = summary.device_time_us, Counter[str]()
    for kernel in summary.kernels:
        shares[kernel.kind] += kernel.device_time_us  # type: ignore[assignment]
    kinds = [
        f"{kind} {time_text(us)} ({percent(us / total_us)})"
        for kind, us in shares.most_common()
        if us
    ]
    yield (
        f"{kernels}{where}, {time_text(total_us)}: {', '.join(kinds)}."
        if summary.kernels
        else "No kernels."
    )
    if summary.not_read:
        rows = ", ".join(
            f"{counted(count, 'row')} of {category}" for category, count in summary.not_read.items()
        )
        yield f"kernelgauge did not read {rows}. No number here has them."
    if summary.problems_inside and not summary.on_cpu:
        calls = counted(summary.problems_inside, "launch call")
        yield (
            f"The kernels of {calls} are missing: the profiler lost them, or their rows were not "
            "read."
        )


def _parts(*times: StepTime, gpu: str = "GPU") -> Iterator[str]:
    """Return the parts of a step, or what became of them: ``GPU busy 206.7 us (60 %): compute 205.1
    us, copies alone 1.6 us.``
    """
    for total, names in _PARTS.items():
        values = {name: [getattr(time, field) for time in times] for field, name in names.items()}
        shown = ", ".join(
            f"{name} {time_change(us[0], us[-1])}" for name, us in values.items() if max(us) > 0
        )
        of_all = [getattr(time, f"{total}_us") for time in times]
        share = (
            f" ({percent(of_all[0] / times[0].wall_us)})"
            if len(times) == 1 and times[0].wall_us
            else ""
        )
        yield f"{gpu} {total} {time_change(of_all[0], of_all[-1])}{share}" + (
            f": {shown}." if shown else "."
        )


def _table(groups: Sequence[KernelGroup], top: int, total_us: float) -> Section:
    columns = [Column(title, number=True) for title in ("times", "time", "share")]
    shown = [
        (group, percent(group.device_time_us / total_us) if total_us else "-")
        for group in groups[:top]
    ]
    rows = [(f"{group.launches}", time_text(group.device_time_us), share) for group, share in shown]
    below = ["\n".join(filter(str.strip, _group_lines(group))) for group, _ in shown]
    left = time_text(sum(group.device_time_us for group in groups[top:]))
    lines = (
        (f"{top} of {len(groups)} rows. The others take {left}: --top 0 shows them.",)
        if len(groups) > top
        else ()
    )
    return Section(lines=lines, columns=columns, rows=rows, below=below)


def _group_lines(group: KernelGroup) -> Iterator[str]:
    """Return what a row is of, and what its launches have in common."""
    identity = group.identities[0]
    is_of_name = group.title == identity.name
    yield _name(identity) if is_of_name else cut(group.title)
    by = ", ".join(first([name for name in group.launched_by if name != group.title], _MOST_NAMES))
    shapes = counted(len(group.input_shapes), "shape") if group.input_shapes else ""
    if len(group.input_shapes) == 1:
        shapes = _shapes_text(group.input_shapes[0])
    yield "  " + " ".join(
        filter(None, (group.kind if is_of_name else "", f"by {by}" if by else "", shapes))
    )
    if not is_of_name:
        yield from (
            f"  {name}"
            for name in first(list(dict.fromkeys(map(_name, group.identities))), _MOST_NAMES)
        )
    elif len(group.identities) > 1:
        yield f"  {len(group.identities)} launch configurations"
    else:
        name = identity.decoded
        fields = [(field, getattr(name, field)) for field in ("tile", "stages", "layout")]
        parts = [name.dtype or "", *(f"{field} {value}" for field, value in fields if value)]
        parts += ["split-K"] * name.split_k + ["bias epilogue"] * name.bias_epilogue
        yield "  " + " ".join(filter(None, (*parts, configuration_text(identity))))
        yield from (
            f"  {', '.join(f'{name} {value}' for name, value in code.items())}"
            for code in group.code[:1]
        )


def _name(identity: KernelIdentity) -> str:
    """Return a name that can be copied and searched for.

    One of C++ is a page long: of that the part that tells it apart.
    """
    return (
        identity.shown
        if set("<( ") & set(identity.name) or not identity.name
        else cut(identity.name, _LONGEST_NAME)
    )


def _shapes_text(shapes: Sequence[Any]) -> str:
    """Return ``[8192,768] [768,3072]``: tensors only, as an op was given them."""
    return cut(" ".join(_shape_text(shape) for shape in shapes if shape), _LONGEST_SHAPES)


def _shape_text(shape: Any) -> str:
    return f"[{','.join(map(_shape_text, shape))}]" if isinstance(shape, tuple) else str(shape)


# -- two traces ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TraceComparison:
    """Two traces and all that differs between them."""

    before: Summary
    after: Summary

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        return name_differences(diff(self.before.kernels, self.after.kernels))

    @cached_property
    def host(self) -> HostDifference:
        return host_difference(self.before.host, self.after.host)

    @property
    def sides(self) -> tuple[Summary, Summary]:
        return self.before, self.after

    @property
    def gpu_changed(self) -> bool:
        """Return whether other kernels ran, or the same ones were launched otherwise."""
        return any(difference.what.is_change for difference in self.differences)

    @property
    def modules(self) -> list[tuple[str, float | None, float | None]]:
        """Return the time of each module before and after, the largest change first; empty if no
        trace recorded them.
        """
        if not any(kernel.module for side in self.sides for kernel in side.kernels):
            return []
        old, new = (
            {each.title: each.device_time_us for each in side.groups("module")}
            for side in self.sides
        )
        names = sorted(
            dict.fromkeys([*old, *new]),
            key=lambda name: -abs(new.get(name, 0.0) - old.get(name, 0.0)),
        )
        return [(name, old.get(name), new.get(name)) for name in names]


def conclusion(comparison: TraceComparison) -> tuple[str, ...]:
    """Return what the change did to the time of a step; and why, the largest effect first."""
    before, after = comparison.sides
    nouns = ["computing ops" if side.on_cpu else "kernels" for side in comparison.sides]
    walls, busy = (
        [getattr(side, field) for side in comparison.sides] for field in ("wall_us", "busy_us")
    )
    span, kernels = ",", f"{nouns[0]} {_change(*busy)}"
    # a GPU's own span would leave out what the host does before and after
    if before.on_cpu != after.on_cpu:
        walls = [side.elapsed_us for side in comparison.sides]
        span = ", each from its begin on the host until host and GPU are done;"
        kernels = f"{nouns[0]} {time_text(busy[0])} -> {nouns[1]} {time_text(busy[1])}"
    return f"{after.noun.capitalize()} {_change(*walls)}{span} {kernels}.", *_findings(comparison)


def _findings(comparison: TraceComparison) -> Iterator[str]:
    before, after = comparison.sides
    causes = find_trace_causes(before, after, comparison.differences)
    for cause in causes[:_MOST_CAUSES]:
        text, details = cause_text(cause, "" if cause.delta_us is None else _signed(cause.delta_us))
        yield f"{text}  {dearest_code(cause)}".rstrip()
        yield from (f"  {line}" for line in first(details, _MOST_DETAILS))
    if left := causes[_MOST_CAUSES:]:
        yield f"and {counted(len(left), 'smaller cause')}"
    if after.busy_us < _OVERLAPPING * after.device_time_us:
        sums = (
            f"at least one runs for {time_text(after.busy_us)}, and their times add up to "
            f"{time_text(after.device_time_us)}"
        )
        yield f"Kernels overlap on several streams: {sums}."
    if not before.kernels and not after.kernels:
        yield "Neither trace has kernels."
    elif all(each.what is ChangeKind.SAME for each in comparison.differences):
        where = f"on the {'CPU' if before.on_cpu and after.on_cpu else 'GPU'}"
        yield f"The kernels {where} did not change." if causes else f"Nothing {where} changed."
        inside = (sum(len(each.records) for each in side.all_windows) for side in comparison.sides)
        old, new = (
            len(side.trace.records) - count
            for side, count in zip(comparison.sides, inside, strict=True)
        )
        if after.noun == "step" and old != new:
            yield (
                f"Outside the steps: {old} -> {new} kernels and copies. --whole compares them too."
            )
    if not comparison.gpu_changed:
        sides = [("new", comparison.host.new), ("missing", comparison.host.gone)]
        texts = [
            f"{counted(sum(ops.values()), f'{word} op')}: {_ops_text(ops)}"
            for word, ops in sides
            if ops
        ]
        yield from texts or ["The host ran the same ops."]


def compare_page(comparison: TraceComparison, *, names: tuple[str, str], top: int) -> list[Section]:
    """Return the page of two traces with these names, with at most `top` rows in a table."""
    lanes = [_lane_text(side) for side in comparison.sides]
    if lanes[0] == lanes[1]:
        head = f"{' -> '.join(names)}  {lanes[0]}"
    else:
        head = " -> ".join(f"{name}  {lane}" for name, lane in zip(names, lanes, strict=True))
    counts = dict.fromkeys(f"{len(side.kernels)}" for side in comparison.sides)
    notes = [f"Kernels of each {comparison.after.noun}: {' -> '.join(counts)}."]
    sections = [
        Section(lines=(head, *conclusion(comparison))),
        Section(lines=(*notes, *_time_changes(comparison), *_caveats(comparison))),
        _change_table(comparison, top=top),
    ]
    if rows := comparison.modules:
        total = comparison.before.device_time_us
        cells = [
            (cut(name), *_change_cells(before, after, total)) for name, before, after in rows[:top]
        ]
        left = (
            [f"{top} of {len(rows)} modules, the largest changes first."] if len(rows) > top else []
        )
        sections.append(Section("by module", left, (Column("module"), *_CHANGES), cells))
    return [*sections, Section("host", list(_host_changes(comparison.host)))]


def _time_changes(comparison: TraceComparison) -> Iterator[str]:
    """Return what became of the parts of a step, on the busiest GPU of each trace."""
    old, new = (side.busiest for side in comparison.sides)
    if old is None or new is None:
        return
    gpu = "GPU"
    if max(len(side.times) for side in comparison.sides) > 1:
        yield "Busy and idle times are of the busiest GPU; times of kernels are of all GPUs."
        gpu = f"GPU {old.device}" + (f" -> {new.device}" if old.device != new.device else "")
    yield from _parts(old, new, gpu=gpu)
    unknown = "bound by what the trace does not show"
    bounds = [f"{side.bound.by}-bound" if side.bound else unknown for side in comparison.sides]
    yield (
        f"Before: {bounds[0]}. After: {bounds[1]}."
        if len(set(bounds)) > 1
        else f"Both are {bounds[0]}."
    )


def _caveats(comparison: TraceComparison) -> Iterator[str]:
    """Return what makes the two traces hard to compare."""
    before, after = comparison.sides
    if set(before.devices) != set(after.devices) or before.on_cpu != after.on_cpu:
        yield "The devices differ, and so do times and templates."
    if before.noun != after.noun and "trace" in (before.noun, after.noun):
        yield (
            "One side is a whole trace and the other is not. Select the same part of both: "
            "--whole, --region or --step."
        )
    for old, new in pairs_of_other_shapes(before.kernels, after.kernels)[:1]:
        shapes = f"{old.op}: {_shapes_text(old.input_shapes)} and {_shapes_text(new.input_shapes)}"
        yield (
            f"The same ops had inputs of other shapes ({shapes}), so the two did not do the same "
            "work."
        )
    for label, side in zip(("Before", "After"), comparison.sides, strict=True):
        if side.problems or side.not_read:
            count = counted(len(side.problems), "problem")
            yield (
                f"{label}: {count} of launches and records. `kernelgauge trace` says what is "
                "missing."
            )


_CHANGES = tuple(
    Column(title, number=True) for title in ("before", "after", "change", "of the total")
)


def _change_cells(
    before_us: float | None, after_us: float | None, total_us: float
) -> tuple[str, ...]:
    """Return the cells of `_CHANGES`; None: nothing ran on that side."""
    sides = ("" if us is None else time_text(us) for us in (before_us, after_us))
    change = (after_us or 0.0) - (before_us or 0.0)
    return (*sides, _signed(change), f"{100 * change / total_us:+.1f} %" if total_us else "-")


def _change_table(comparison: TraceComparison, *, top: int) -> Section:
    """Return what changed, the largest changes first, and the rest in a row."""
    ordered = [each for each in comparison.differences if each.what is not ChangeKind.SAME]
    ordered.sort(key=lambda each: -abs(each.delta_us))
    same = [each for each in comparison.differences if each.what is ChangeKind.SAME]
    groups = [(each.what.value, [each], "\n".join(_change_lines(each))) for each in ordered[:top]]
    for what, rest in (
        (f"{len(ordered) - top} more rows", ordered[top:]),
        (ChangeKind.SAME.value, same),
    ):
        kinds = Counter(
            kernel.kind for each in rest for kernel in each.after or each.before
        ).most_common()
        texts = [counted(count, _NOUNS.get(kind, f"{kind} kernel")) for kind, count in kinds]
        groups += [(what, rest, ", ".join(texts))] if rest else []
    rows = []
    for what, group, _ in groups:
        before = (
            sum(each.before_us for each in group) if any(each.before for each in group) else None
        )
        after = sum(each.after_us for each in group) if any(each.after for each in group) else None
        rows.append((what, *_change_cells(before, after, comparison.before.device_time_us)))
    return Section(
        columns=(Column("what"), *_CHANGES), rows=rows, below=[below for *_, below in groups]
    )


def _change_lines(difference: Difference) -> list[str]:
    counts = [
        Counter(_name(kernel.identity) for kernel in side)
        for side in (difference.before, difference.after)
    ]
    old, new = (first(times(each.items()), _MOST_NAMES) for each in counts)
    lines = old if old == new else [*old, *(f"-> {name}" for name in new)]
    below = difference.details
    if difference.what in (ChangeKind.SLOWER, ChangeKind.FASTER):
        kernel = difference.before[0]
        op = f"by {kernel.op}" if kernel.op and kernel.op != kernel.identity.name else ""
        below = f"{op} in {cut(kernel.module)}".strip() if kernel.module else op
    elif difference.what in (
        ChangeKind.FUSED,
        ChangeKind.REPLACED,
        ChangeKind.APPEARED,
        ChangeKind.SPLIT,
    ):
        below = configuration_text(difference.after[0].identity)
    return [*lines, *([f"   {below}"] if below else [])]


def _signed(value_us: float) -> str:
    return f"{'-' if value_us < 0 else '+'}{time_text(abs(value_us))}"


def _change(before_us: float, after_us: float) -> str:
    """Return ``175.0 -> 140.0 ms (-20.0 %)``; no percents where nothing changed, or there was
    nothing before.
    """
    is_known = before_us > 0 and before_us != after_us
    return time_change(before_us, after_us) + (
        f" ({100 * (after_us / before_us - 1):+.1f} %)" if is_known else ""
    )


def _host_changes(host: HostDifference) -> Iterator[str]:
    before, after = host.dispatcher_ops
    yield f"dispatcher ops {before} -> {after}"
    for label, names in (("gone", host.gone), ("new ", host.new)):
        if names:
            yield f"{label}  {_ops_text(names)}"
    if host.synchronizations[0] != host.synchronizations[1]:
        yield f"waits for the GPU {host.synchronizations[0]} -> {host.synchronizations[1]}"
