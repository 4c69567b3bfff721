"""Why a run differs from its baseline: what changed together, in one sentence, and the code that asks for it."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..run import Counts, Origin, Run, SourceLine, common_path
from ..trace.difference import KernelChange, Stretch, stretches
from ..trace.kernel import KernelIdentity, KernelRecord, configuration_change, was_autotuned
from .verdict import REASON_WIDTH, Reason

__all__ = ["Cause", "cause_reasons", "compile_causes", "count_causes", "kernel_causes"]

# A kernel that did not change is named as a cause if it carries this share of the total change.
_NAMED_SHARE = 0.10
_NAMED_AT_LEAST = 3
# Below this, kernels of the same identity are called unchanged: the spread of one kernel's median between processes.
_UNCHANGED = 0.01
_MOST_CAUSES = 3  # in a verdict; the kernels themselves are all in the results
_NAMES_WIDTH = 63  # and ``was`` before: 80 columns
_HEAD_WIDTH = 56  # and ``(+1234.5 us)`` after
_LEAST_NAME = 16
_MOST_LINES = 2  # of code
_MOST_KINDS = 2  # of the kernels that did not change
_LEAST_MODULE = 16
_TIMES = {2: ", twice"}
_PASSES = {
    frozenset({False}): "",
    frozenset({True}): " (backward)",
    frozenset({False, True}): " (forward and backward)",
}


@dataclass(frozen=True)
class Cause:
    """What changed together.

    Attributes:
        text: what happened, in one line; the lines that follow name what it happened to.
        origins: of what is new, gone or slower.
        known_code: lines that the baseline's kernels come from: what is not among them is shown first.
        delta_us: what it adds to a call, in microseconds; None: not known.
        is_first: whether other causes follow from it: a graph break changes kernels too.
    """

    text: str
    origins: tuple[Origin, ...] = ()
    known_code: frozenset[str] = frozenset()
    delta_us: float | None = None
    is_first: bool = False


def cause_reasons(causes: Sequence[Cause]) -> list[Reason]:
    """Return the causes as reasons, the most expensive first, each with the code that it comes from."""
    reasons: list[Reason] = []
    ordered = sorted(causes, key=lambda cause: (not cause.is_first, -abs(cause.delta_us or 0.0)))
    for cause in ordered[:_MOST_CAUSES]:
        first, *rest = cause.text.split("\n")
        cost = "" if cause.delta_us is None else f" ({cause.delta_us:+.1f} us)"
        first, *more = textwrap.wrap(first, REASON_WIDTH - len(cost)) or [first]
        reasons.append(Reason("cause", "\n".join([first + cost, *more, *rest])))
        code = "\n".join(_code_lines(cause))
        reasons += [Reason("code", code)] if code else []
    left = ordered[_MOST_CAUSES:]
    if left:
        known = [cause.delta_us for cause in left if cause.delta_us is not None]
        cost = f" ({sum(known):+.1f} us)" if known else ""
        reasons.append(Reason("cause", f"{len(left)} more{cost}"))
    return reasons


def _code_lines(cause: Cause) -> list[str]:
    """Return ``layers.*.mlp  model.py:12  x * y`` for each line, with the modules that have it; of known and new lines the new ones."""
    modules: dict[SourceLine, list[str]] = {}
    passes: dict[SourceLine, set[bool]] = {}
    for origin in cause.origins:
        for line in origin.lines:
            modules.setdefault(line, []).append(origin.module)
            passes.setdefault(line, set()).add(origin.is_backward)
    new = [line for line in modules if line.code not in cause.known_code]
    lines = new if new and cause.known_code else list(modules)
    shown = [
        _code_line(common_path(list(dict.fromkeys(modules[line]))), _PASSES[frozenset(passes[line])], line)
        for line in lines[:_MOST_LINES]
    ]
    left = len(lines) - len(shown)
    return [*shown, f"and {left} more line{'s' if left > 1 else ''}"] if left > 0 else shown


def _code_line(module: str, pass_: str, line: SourceLine) -> str:
    """Return them in one line: where that is too long, without the end of the code, then without the start of the module's path."""
    place = f"{pass_}  {line.file}:{line.line}"
    room = max(REASON_WIDTH - len(place), _LEAST_MODULE)
    path = module if len(module) <= room else f"…{module[1 - room :]}"
    text = f"{path}{place}  {line.code}".strip()
    return text if len(text) <= REASON_WIDTH else f"{text[: max(REASON_WIDTH - 1, len(path + place))].rstrip()}…"


# -- kernels --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Launch:
    """A kernel of a sequence, and where it comes from."""

    identity: KernelIdentity
    device_time_us: float
    origin: Origin | None


def _launches(kernels: Sequence[KernelRecord], origins: Sequence[Origin | None]) -> list[_Launch]:
    known = origins if len(origins) == len(kernels) else [None] * len(kernels)
    return [
        _Launch(kernel.identity, kernel.device_time_us, origin) for kernel, origin in zip(kernels, known, strict=True)
    ]


@dataclass
class _Group:
    """Launches that changed together, and how often they did."""

    before: list[_Launch] = field(default_factory=list)
    after: list[_Launch] = field(default_factory=list)
    places: Counter[tuple[tuple[str, ...], ...]] = field(default_factory=Counter)  # by the names before and after

    def add(self, before: Sequence[_Launch], after: Sequence[_Launch]) -> None:
        self.before += before
        self.after += after
        self.places[tuple(tuple(kernel.identity.unnumbered for kernel in side) for side in (before, after))] += 1

    @property
    def origins(self) -> tuple[Origin, ...]:
        return _origins(self.after or self.before)

    @property
    def delta_us(self) -> float:
        return sum(each.device_time_us for each in self.after) - sum(each.device_time_us for each in self.before)


def kernel_causes(
    before: Sequence[KernelRecord],
    after: Sequence[KernelRecord],
    origins: Sequence[Origin | None] = (),
    old_origins: Sequence[Origin | None] = (),
    *,
    is_timed: bool = True,
) -> tuple[list[Cause], str]:
    """Return what changed between two launch sequences, and one line about what did not.

    Launches are aligned by what they are: Inductor's number of a kernel is no part of that. Other launches in one place, or for
    the same lines of code, are one cause.

    Args:
        origins, old_origins: of each launch after and before; empty if none is known.
        is_timed: whether times count. Else a kernel that is only slower is no cause, nor what the autotuner chose.
    """
    code = frozenset(line.code for origin in old_origins if origin is not None for line in origin.lines)
    other: list[_Group] = []
    paired: list[KernelChange[_Launch]] = []
    for stretch in stretches(_launches(before, old_origins), _launches(after, origins)):
        if stretch.same_names:
            paired += map(KernelChange, stretch.before, stretch.after)
        elif stretch.before or stretch.after:
            _group_of(other, stretch).add(stretch.before, stretch.after)
    changed, rest = _changed_pairs(paired, sum(abs(group.delta_us) for group in other), is_timed=is_timed)
    causes = [Cause(_other_launches(group), group.origins, code, group.delta_us) for group in other]
    causes += [Cause(text, group.origins, code, group.delta_us) for text, group in changed.items()]
    if not is_timed:
        causes = [replace(cause, delta_us=None) for cause in causes]
    return causes, _rest(rest)


def _origins(launches: Iterable[_Launch]) -> tuple[Origin, ...]:
    return tuple(launch.origin for launch in launches if launch.origin is not None)


def _group_of(groups: list[_Group], stretch: Stretch[_Launch]) -> _Group:
    """Return the group that a stretch belongs to: one with a line in common, or one that lost the same kernels."""
    lines = {line for origin in _origins(stretch.after or stretch.before) for line in origin.lines}
    names = {launch.identity.unnumbered for launch in stretch.before}
    for group in groups:
        if lines & {line for origin in group.origins for line in origin.lines}:
            return group
        if not lines and not group.origins and names == {launch.identity.unnumbered for launch in group.before}:
            return group
    groups.append(_Group())
    return groups[-1]


def _other_launches(group: _Group) -> str:
    """Return ``1 new kernel: NAME``, or ``9 kernels instead of 1, twice`` and the names below."""
    old, new, times = len(group.before), len(group.after), group.places.total()
    often = f", in {times} places" if times > 1 else ""
    if len(group.places) == 1 and times > 1:
        old, new, often = old // times, new // times, _TIMES.get(times, f", {times} times")
    if not old:
        head = f"{_count(new, 'new kernel')}{often}"
    elif not new:
        head = f"{_count(old, 'kernel')} less{often}"
    elif old == new:
        head = f"{'another kernel' if new == 1 else f'{new} other kernels'}{often}"
    else:
        head = f"{_count(new, 'kernel')} instead of {old}{often}"
    dtypes = [
        sorted({dtype for each in side if (dtype := each.identity.decoded.dtype)})
        for side in (group.before, group.after)
    ]
    if all(dtypes) and dtypes[0] != dtypes[1]:
        head += f", in {' and '.join(dtypes[1])} instead of {' and '.join(dtypes[0])}"
    named = group.after or group.before
    first = _names(named, _HEAD_WIDTH - len(f"{head}: "))
    is_cut = (
        len({kernel.identity.shown for kernel in named}) > 1 and "…" in first
    )  # the start of one of several says little
    head = head if is_cut else f"{head}: {first}"
    whole = [] if first == _names(named) else [f"now {_names(named)}" if old and new else _names(named)]
    return "\n".join([head, *([f"was {_names(group.before)}"] if old and new else []), *whole])


def _names(kernels: Sequence[_Launch], width: int = _NAMES_WIDTH) -> str:
    """Return as many names as fit into the width; if none does, the start of the first."""
    names = list(dict.fromkeys(kernel.identity.shown for kernel in kernels))
    for count in range(len(names), 0, -1):
        left = f" and {_count(len(names) - count, 'other')}" if count < len(names) else ""
        text = ", ".join(names[:count])
        if len(text) + len(left) <= width:
            return text + left
    return f"{names[0][: max(width - len(left), _LEAST_NAME) - 1].rstrip('._')}…{left}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def _changed_pairs(
    paired: Sequence[KernelChange[_Launch]], other_us: float, *, is_timed: bool
) -> tuple[dict[str, _Group], list[KernelChange[_Launch]]]:
    """Group launches that are there on both sides by what happened to them; return those to which nothing did, too."""
    said = {id(change): _what_changed(change, is_timed=is_timed) for change in paired}
    alike = [change for change in paired if not said[id(change)]]
    if is_timed:
        total = other_us + sum(abs(change.delta_us) for change in paired)
        slower = [change for change in alike if total > 0 and abs(change.delta_us) >= _NAMED_SHARE * total]
        if not slower and total > 0 and not other_us and len(alike) == len(paired):  # spread evenly over many kernels
            slower = sorted(alike, key=lambda change: -abs(change.delta_us))[:_NAMED_AT_LEAST]
        said |= {id(change): _slower(change) for change in slower}
    groups: dict[str, _Group] = {}
    for change in paired:
        if text := said[id(change)]:
            sides = ([one] if one is not None else [] for one in (change.before, change.after))
            groups.setdefault(text, _Group()).add(*sides)
    return groups, [change for change in paired if not said[id(change)]]


def _what_changed(change: KernelChange[_Launch], *, is_timed: bool) -> str:
    """Return what differs between two launches of one kernel besides their times; empty if nothing does."""
    assert change.before is not None
    assert change.after is not None
    before, after = change.before.identity, change.after.identity
    configuration, source = configuration_change(before, after), _other_source(before, after)
    if is_timed and source and _is_dynamic(change.after) and not _is_dynamic(change.before):
        return f"Inductor compiled for dynamic shapes\n{after.shown}: other source ({source})"
    if is_timed and was_autotuned(before, after):
        return f"Inductor's autotuner chose another launch configuration\n{after.shown}: {configuration}"
    if configuration and (is_timed or not after.is_inductors):
        return f"another launch configuration\n{after.shown}: {configuration}{f', other source ({source})' if source else ''}"
    if is_timed and source:
        return _headed("the same name, other source: ", change.after, source)
    return ""


def _is_dynamic(launch: _Launch) -> bool:
    return launch.origin is not None and bool(launch.origin.is_dynamic)


def _other_source(before: KernelIdentity, after: KernelIdentity) -> str:
    if None in (before.source_hash, after.source_hash) or before.source_hash == after.source_hash:
        return ""
    return f"{str(before.source_hash)[:8]} -> {str(after.source_hash)[:8]}"


def _slower(change: KernelChange[_Launch]) -> str:
    assert change.before is not None
    assert change.after is not None
    how = "slower" if change.delta_us > 0 else "faster"
    times = f"{change.before.device_time_us:.1f} -> {change.after.device_time_us:.1f} us"
    return _headed(f"the same kernel, {how}: ", change.after, times)


def _headed(head: str, kernel: _Launch, details: str) -> str:
    """Return all in one line if it fits; else the first line has the kernel's name, or the start of it."""
    name, shown = kernel.identity.shown, _names([kernel], _HEAD_WIDTH - len(head))
    text = f"{head}{name}  {details}"
    return text if len(text) <= _HEAD_WIDTH else f"{head}{shown}\n{details if shown == name else f'{name}  {details}'}"


def _rest(rest: Sequence[KernelChange[_Launch]]) -> str:
    if not rest:
        return ""
    before = sum(change.before.device_time_us for change in rest if change.before)
    delta = sum(change.delta_us for change in rest)
    kinds = Counter(change.after.identity.kind for change in rest if change.after)
    named = kinds.most_common(_MOST_KINDS)
    left = kinds.total() - sum(count for _, count in named)
    counted = ", ".join(_count(count, "GEMM" if kind == "gemm" else f"{kind} kernel") for kind, count in named)
    counted += f" and {_count(left, 'other')}" if left else ""
    share = delta / before if before else 0.0
    word = "unchanged" if abs(share) < _UNCHANGED else "of the same identity"
    return f"{counted} {word} ({100 * share:+.1f} %, {delta:+.2f} us)"


# -- what is counted ------------------------------------------------------------------------------------------------------


def count_causes(run: Run, usual: Counts) -> list[Cause]:
    """Return why there are more graph breaks, recompiles, copies and synchronising calls than usual."""
    return [*compile_causes(run, usual), *_op_causes(run, usual)]


def compile_causes(run: Run, usual: Counts) -> list[Cause]:
    """Return where the code breaks the graph or is compiled again, if that is more often than usual."""
    more = {
        "graph break": run.counts.graph_breaks > usual.graph_breaks,
        "recompile": run.counts.recompiles > usual.recompiles,
    }
    causes: dict[str, list[Origin]] = {}
    for event in (each for each in run.compile_events if more[each.kind]):
        line = SourceLine(event.file, event.line, event.code) if event.file else None
        causes.setdefault(f"{event.kind}: {event.reason}", []).extend([Origin(event.module, (line,))] if line else [])
    return [Cause(text, tuple(origins), is_first=True) for text, origins in causes.items()]


def _op_causes(run: Run, usual: Counts) -> list[Cause]:
    """Return the ops behind copies and synchronising calls, if there are more of them than usual."""
    found: dict[tuple[str, Origin | None], list[str]] = {}
    for now, before, ops, origins in (
        (run.counts.copies, usual.copies, run.copying_ops, run.copy_origins),
        (run.counts.synchronizations, usual.synchronizations, run.synchronizing_ops, run.synchronization_origins),
    ):
        if now > before:
            for place, text in enumerate(ops):
                op, _, what = text.rpartition(": ")
                origin = origins[place] if place < len(origins) else None
                found.setdefault((op, origin), []).append(what)
    causes: dict[str, list[Origin]] = {}
    for (op, origin), whats in found.items():
        counted = "; ".join(f"{what}, {count} times" if count > 1 else what for what, count in Counter(whats).items())
        causes.setdefault(f"{op}: {counted}" if op else counted, []).extend([origin] if origin is not None else [])
    return [Cause(text, tuple(origins), is_first=True) for text, origins in causes.items()]
