"""Why a run differs from its baseline: what changed together, in one sentence, and the code that asks for it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from ..run import CompileEvent, Counts, Origin, Run, SourceLine, common_path
from ..trace.difference import Stretch, stretches
from ..trace.kernel import KernelIdentity, KernelRecord, configuration_change, was_autotuned
from .verdict import REASON_WIDTH, Reason

__all__ = ["Cause", "cause_reasons", "count_causes", "kernel_causes"]

# A kernel that is only slower is a cause if it carries this share of the total change; if none does, the first ones are.
_NAMED_SHARE = 0.10
_NAMED_AT_LEAST = 3
# Below this, kernels of the same identity are called unchanged: the spread of one kernel's median between processes.
_UNCHANGED = 0.01
_MOST_CAUSES = 3  # in a verdict; the kernels themselves are all in the results
_MOST_LINES = 2  # of code
_HEAD_WIDTH = 56  # and ``(+1234.5 us)`` after
_LEAST_MODULE = 16  # characters


@dataclass(frozen=True)
class Cause:
    """What changed together.

    Attributes:
        text: what happened.
        names: what it happened to. In the same line, and below if it does not fit.
        details: lines below.
        origins: of what is new, gone or slower.
        known_code: lines that the baseline's kernels come from: what is not among them is shown first.
        delta_us: what it adds to a call, in microseconds; None: not known.
        is_first: whether other causes follow from it: a graph break changes kernels too.
    """

    text: str
    names: str = ""
    details: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    known_code: frozenset[str] = frozenset()
    delta_us: float | None = None
    is_first: bool = False


def cause_reasons(causes: Sequence[Cause]) -> list[Reason]:
    """Return the causes as reasons, the most expensive first, each with the code that it comes from."""
    reasons: list[Reason] = []
    ordered = sorted(causes, key=lambda cause: (not cause.is_first, -abs(cause.delta_us or 0.0)))
    for cause in ordered[:_MOST_CAUSES]:
        reasons.append(Reason("cause", "\n".join(_lines(cause))))
        code = "\n".join(_code_lines(cause))
        reasons += [Reason("code", code)] if code else []
    left = ordered[_MOST_CAUSES:]
    if left:
        reasons.append(Reason("cause", f"{len(left)} more{_cost(left)}"))
    return reasons


def _cost(causes: Sequence[Cause]) -> str:
    known = [cause.delta_us for cause in causes if cause.delta_us is not None]
    return f" ({sum(known):+.1f} us)" if known else ""


def _lines(cause: Cause) -> list[str]:
    cost = _cost([cause])
    first, *more = textwrap.wrap(cause.text, REASON_WIDTH - len(cost)) or [""]
    if cause.names:
        whole = f"{first}: {cause.names}"
        first = _cut(whole, _HEAD_WIDTH)
        more = [_cut(cause.names)] if first != whole else []
    return [first + cost, *more, *cause.details]


def _cut(text: str, width: int = REASON_WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip(' ,._')}…"


def _code_lines(cause: Cause) -> list[str]:
    """Return a line for each line of code; of known and new ones the new ones."""
    origins: dict[SourceLine, list[Origin]] = {}
    for origin in cause.origins:
        for line in origin.lines:
            origins.setdefault(line, []).append(origin)
    lines = [line for line in origins if line.code not in cause.known_code] or list(origins)
    left = len(lines[_MOST_LINES:])
    shown = [_code_line(line, origins[line]) for line in lines[:_MOST_LINES]]
    return [*shown, f"and {_count(left, 'more line')}"] if left else shown


def _code_line(line: SourceLine, origins: Sequence[Origin]) -> str:
    """Return ``layers.*.mlp (backward)  model.py:12  x * y``: without the start of a long path, and the end of long code."""
    passes = {origin.is_backward for origin in origins}
    pass_ = " (forward and backward)" if len(passes) > 1 else " (backward)" if True in passes else ""
    place = f"{pass_}  {line.file}:{line.line}"
    module = common_path([origin.module for origin in origins])
    room = max(REASON_WIDTH - 1 - len(place), _LEAST_MODULE)
    module = module if len(module) <= room else f"…{module[1 - room :]}"
    return _cut(f"{module}{place}  {line.code}".strip())


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


# -- kernels --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Launch:
    """A kernel of a sequence, and where it comes from."""

    identity: KernelIdentity
    device_time_us: float
    origin: Origin | None

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        return self.origin.lines if self.origin is not None else ()

    @property
    def is_dynamic(self) -> bool:
        return self.origin is not None and bool(self.origin.is_dynamic)


def _launches(kernels: Sequence[KernelRecord], origins: Sequence[Origin | None]) -> list[_Launch]:
    known = origins if len(origins) == len(kernels) else [None] * len(kernels)
    return [
        _Launch(kernel.identity, kernel.device_time_us, origin) for kernel, origin in zip(kernels, known, strict=True)
    ]


@dataclass(eq=False)
class _Group:
    """Launches that changed together, and in how many places they did."""

    before: list[_Launch] = field(default_factory=list)
    after: list[_Launch] = field(default_factory=list)
    places: int = 0

    def add(self, before: Iterable[_Launch], after: Iterable[_Launch]) -> None:
        self.before += before
        self.after += after
        self.places += 1

    @property
    def times_us(self) -> tuple[float, float]:
        """What they took together, before and after."""
        return sum(each.device_time_us for each in self.before), sum(each.device_time_us for each in self.after)

    @property
    def delta_us(self) -> float:
        before, after = self.times_us
        return after - before

    def cause(self, text: str, names: str = "", *details: str) -> Cause:
        origins = _known(each.origin for each in self.after or self.before)
        return Cause(text, names, details, origins, delta_us=self.delta_us)


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
    the same lines of code, are one cause, and so are those of one kernel for the same lines.

    Args:
        origins, old_origins: of each launch after and before; empty if none is known.
        is_timed: whether times count. Else a kernel that is only slower is no cause, nor what the autotuner chose.
    """
    others: list[_Group] = []
    pairs: dict[object, _Group] = {}
    for stretch in stretches(_launches(before, old_origins), _launches(after, origins)):
        if stretch.same_names:
            for old, new in zip(stretch.before, stretch.after, strict=True):
                pairs.setdefault((old.identity, new.identity, new.lines), _Group()).add([old], [new])
        elif stretch.before or stretch.after:
            _group_of(others, stretch).add(stretch.before, stretch.after)
    causes = [_other_launches(group) for group in others]
    alike: list[_Group] = []
    for group in pairs.values():
        changes = _changes_of_identity(group, is_timed=is_timed)
        causes += changes
        alike += [] if changes else [group]
    if is_timed:
        total = sum(abs(group.delta_us) for group in (*others, *pairs.values()))
        slower = [group for group in alike if total and abs(group.delta_us) >= _NAMED_SHARE * total]
        if total and not slower and not causes:  # spread evenly over many kernels
            slower = sorted(alike, key=lambda group: -abs(group.delta_us))[:_NAMED_AT_LEAST]
        causes += map(_slower, slower)
        alike = [group for group in alike if group not in slower]
    code = frozenset(line.code for origin in _known(old_origins) for line in origin.lines)
    causes = [replace(each, known_code=code, delta_us=each.delta_us if is_timed else None) for each in causes]
    return causes, _rest(alike)


def _group_of(groups: list[_Group], stretch: Stretch[_Launch]) -> _Group:
    """Return the group that a stretch belongs to: one with a line in common, or one that lost the same kernels."""

    def marks(before: Sequence[_Launch], after: Sequence[_Launch]) -> set[object]:
        lines = {line for launch in after or before for line in launch.lines}
        return {*lines} or {frozenset(launch.identity.unnumbered for launch in before)}

    own = marks(stretch.before, stretch.after)
    for group in groups:
        if own & marks(group.before, group.after):
            return group
    groups.append(_Group())
    return groups[-1]


def _other_launches(group: _Group) -> Cause:
    """Return ``1 new kernel: NAME``, or ``9 kernels instead of 1`` and the names below."""
    old, new = len(group.before), len(group.after)
    if not old:
        text = _count(new, "new kernel")
    elif not new:
        text = f"{_count(old, 'kernel')} less"
    elif old == new:
        text = "another kernel" if new == 1 else f"{new} other kernels"
    else:
        text = f"{_count(new, 'kernel')} instead of {old}"
    text += f", in {group.places} places" if group.places > 1 else ""
    old_types, new_types = (
        {dtype for each in side if (dtype := each.identity.decoded.dtype)} for side in (group.before, group.after)
    )
    if old_types and old_types < new_types:
        text += f", now also in {' and '.join(sorted(new_types - old_types))}"
    elif old_types and new_types and old_types != new_types:
        text += f", in {' and '.join(sorted(new_types))} instead of {' and '.join(sorted(old_types))}"
    was = [_cut(f"was {_names(group.before)}")] if old and new else []
    return group.cause(text, _names(group.after or group.before), *was)


def _names(kernels: Iterable[_Launch]) -> str:
    return ", ".join(dict.fromkeys(kernel.identity.shown for kernel in kernels))


def _changes_of_identity(group: _Group, *, is_timed: bool) -> list[Cause]:
    """Return what differs between launches of one kernel besides their times."""
    (old, *_), (new, *_) = group.before, group.after
    before, after = old.identity, new.identity
    configuration = configuration_change(before, after) if is_timed or not after.is_inductors else ""
    hashes = [str(each.source_hash)[:8] for each in (before, after) if is_timed and each.source_hash is not None]
    source = f"source {' -> '.join(hashes)}" if len(set(hashes)) > 1 else ""
    if not configuration and not source:
        return []
    text = "another launch configuration" if configuration else "the same name, other source"
    if configuration and is_timed and was_autotuned(before, after):
        text = "Inductor's autotuner chose another launch configuration"
    if source and new.is_dynamic and not old.is_dynamic:
        text, configuration = "Inductor compiled for dynamic shapes", ""
    return [group.cause(text, "", f"{after.shown}: {', '.join(filter(None, (configuration, source)))}")]


def _slower(group: _Group) -> Cause:
    before, after = group.times_us
    often = f" x{len(group.after)}" if len(group.after) > 1 else ""
    text = f"the same kernel, {'slower' if after > before else 'faster'}"
    return group.cause(text, f"{_names(group.after)}{often}  {before:.1f} -> {after:.1f} us")


def _rest(groups: Sequence[_Group]) -> str:
    if not groups:
        return ""
    before, after = (sum(times) for times in zip(*(group.times_us for group in groups), strict=True))
    count = _count(sum(len(group.after) for group in groups), "kernel")
    share = after / before - 1 if before else 0.0
    word = "unchanged" if abs(share) < _UNCHANGED else "of the same identity"
    return f"{count} {word} ({100 * share:+.1f} %, {after - before:+.2f} us)"


# -- what is counted ------------------------------------------------------------------------------------------------------


def count_causes(run: Run, usual: Counts) -> list[Cause]:
    """Return why there are more graph breaks, recompiles, copies or synchronising calls than usual, each with its lines."""
    compiled = [(each.kind, f"{each.kind}: {each.reason}", _origin_of(each)) for each in run.compile_events]
    events = {
        "graph_breaks": [(text, origin) for kind, text, origin in compiled if kind == "graph break"],
        "recompiles": [(text, origin) for kind, text, origin in compiled if kind == "recompile"],
        "copies": zip(run.copying_ops, run.copy_origins or repeat(None), strict=False),
        "synchronizations": zip(run.synchronizing_ops, run.synchronization_origins or repeat(None), strict=False),
    }
    found: dict[str, list[Origin | None]] = {}
    for name, causes in events.items():
        if getattr(run.counts, name) > getattr(usual, name):
            for text, origin in causes:
                found.setdefault(text, []).append(origin)
    return [
        Cause(f"{text}, {len(origins)} times" if len(origins) > 1 else text, origins=_known(origins), is_first=True)
        for text, origins in found.items()
    ]


def _origin_of(event: CompileEvent) -> Origin | None:
    return Origin(event.module, (SourceLine(event.file, event.line, event.code),)) if event.file else None


def _known(origins: Iterable[Origin | None]) -> tuple[Origin, ...]:
    return tuple(origin for origin in origins if origin is not None)
