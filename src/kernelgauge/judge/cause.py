"""Why a run differs from its baseline: what changed together, in one sentence, and the code that asks for it."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import repeat

from ..run import CompileEvent, Counts, Origin, Run, SourceLine, common_path
from ..trace.difference import LaunchDifference, What, join_launches, launch_differences
from ..trace.kernel import KernelIdentity, KernelRecord
from .verdict import REASON_WIDTH, Reason

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
        details: a line below.
        code: a line for each line of code that it comes from.
        delta_us: what it adds to a call, in microseconds; None: not known.
        is_first: whether other causes follow from it: a graph break changes kernels too.
    """

    text: str
    names: str = ""
    details: str = ""
    code: str = ""
    delta_us: float | None = None
    is_first: bool = False


def cause_reasons(causes: Sequence[Cause]) -> list[Reason]:
    """Return the causes as reasons, the most expensive first, each with the code that it comes from."""
    reasons: list[Reason] = []
    ordered = sorted(causes, key=lambda cause: (not cause.is_first, -abs(cause.delta_us or 0.0)))
    for cause in ordered[:_MOST_CAUSES]:
        reasons.append(Reason("cause", "\n".join(_lines(cause))))
        reasons += [Reason("code", cause.code)] if cause.code else []
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
    return [first + cost, *more, *filter(None, [cause.details])]


def _cut(text: str, width: int = REASON_WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip(' ,._')}…"


def _code(origins: Iterable[Origin | None], known: AbstractSet[str] = frozenset()) -> str:
    """Return the lines of code that launches come from; of `known` code and other the other."""
    found: dict[SourceLine, list[Origin]] = {}
    for origin in filter(None, origins):
        for line in origin.lines:
            found.setdefault(line, []).append(origin)
    lines = [line for line in found if line.code not in known] or list(found)
    left = len(lines[_MOST_LINES:])
    shown = [_code_line(line, found[line]) for line in lines[:_MOST_LINES]]
    return "\n".join([*shown, f"and {_count(left, 'more line')}"] if left else shown)


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


_Difference = LaunchDifference[_Launch]
_Said = tuple[str, str, str]  # text, names and details of a cause


def _launches(kernels: Sequence[KernelRecord], origins: Sequence[Origin | None]) -> list[_Launch]:
    known = origins if len(origins) == len(kernels) else [None] * len(kernels)
    return [_Launch(each.identity, each.device_time_us, origin) for each, origin in zip(kernels, known, strict=True)]


def kernel_causes(
    before: Sequence[KernelRecord],
    after: Sequence[KernelRecord],
    origins: Sequence[Origin | None] = (),
    old_origins: Sequence[Origin | None] = (),
    *,
    is_timed: bool = True,
) -> tuple[list[Cause], str]:
    """Return what changed between two launch sequences, and one line about what did not.

    Other launches in one place, or for the same lines of code, are one cause, and so are those of one kernel for the same lines.

    Args:
        origins, old_origins: of each launch after and before; empty if none is known.
        is_timed: whether times count. Else a kernel that is only slower is no cause, nor what the autotuner chose.
    """
    others: list[list[_Difference]] = []
    pairs: dict[object, list[_Difference]] = {}
    for each in launch_differences(_launches(before, old_origins), _launches(after, origins)):
        if each.what is What.REPLACED:
            _group_of(others, each).append(each)
        else:
            (old,), (new,) = each.before, each.after
            pairs.setdefault((old.identity, new.identity, new.lines), []).append(each)
    wholes = [(join_launches(group), len(group)) for group in others]
    found = [(whole, _other_launches(whole, places)) for whole, places in wholes]
    alike: list[_Difference] = []
    for each in map(join_launches, pairs.values()):
        if said := _other_identity(each, is_timed=is_timed):
            found.append((each, said))
        else:
            alike.append(each)
    if is_timed:
        total = sum(abs(each.delta_us) for each in (*alike, *(each for each, _ in found)))
        slower = [each for each in alike if total and abs(each.delta_us) >= _NAMED_SHARE * total]
        if total and not slower and not found:  # spread evenly over many kernels
            slower = sorted(alike, key=lambda each: -abs(each.delta_us))[:_NAMED_AT_LEAST]
        found += [(each, _slower(each)) for each in slower]
        alike = [each for each in alike if each not in slower]
    known = {line.code for origin in filter(None, old_origins) for line in origin.lines}
    causes = [
        Cause(
            *said,
            _code((launch.origin for launch in each.after or each.before), known),
            each.delta_us if is_timed else None,
        )
        for each, said in found
    ]
    return causes, _rest(alike)


def _group_of(groups: list[list[_Difference]], other: _Difference) -> list[_Difference]:
    """Return the group that other launches belong to: one with a line in common, or one that lost the same kernels."""

    def marks(difference: _Difference) -> set[object]:
        lines = {line for launch in difference.after or difference.before for line in launch.lines}
        return {*lines} or {frozenset(launch.identity.unnumbered for launch in difference.before)}

    for group in groups:
        if marks(other) & marks(join_launches(group)):
            return group
    groups.append([])
    return groups[-1]


def _other_launches(whole: _Difference, places: int) -> _Said:
    """Return ``1 new kernel: NAME``, or ``9 kernels instead of 1`` and the names below."""
    before, after = whole.before, whole.after
    old, new = len(before), len(after)
    if not old:
        text = _count(new, "new kernel")
    elif not new:
        text = f"{_count(old, 'kernel')} less"
    elif old == new:
        text = "another kernel" if new == 1 else f"{new} other kernels"
    else:
        text = f"{_count(new, 'kernel')} instead of {old}"
    text += f", in {places} places" if places > 1 else ""
    old_types, new_types = (
        {dtype for each in side if (dtype := each.identity.decoded.dtype)} for side in (before, after)
    )
    if old_types and old_types < new_types:
        text += f", now also in {' and '.join(sorted(new_types - old_types))}"
    elif old_types and new_types and old_types != new_types:
        text += f", in {' and '.join(sorted(new_types))} instead of {' and '.join(sorted(old_types))}"
    return text, _names(after or before), _cut(f"was {_names(before)}") if old and new else ""


def _names(kernels: Iterable[_Launch]) -> str:
    """Return ``pow, mul x2``."""
    counts = Counter(kernel.identity.shown for kernel in kernels)
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts.items())


def _other_identity(pair: _Difference, *, is_timed: bool) -> _Said | None:
    """Return what differs between launches of one kernel besides their times."""
    (old, *_), (new, *_) = pair.before, pair.after
    configuration = pair.details if is_timed or not new.identity.is_inductors else ""
    source = ""
    if is_timed and pair.what is What.SOURCE:
        source = f"source {str(old.identity.source_hash)[:8]} -> {str(new.identity.source_hash)[:8]}"
    if not configuration and not source:
        return None
    text = "another launch configuration" if configuration else "the same name, other source"
    if is_timed and pair.was_autotuned:
        text = "Inductor's autotuner chose another launch configuration"
    if source and new.origin and new.origin.is_dynamic and not (old.origin and old.origin.is_dynamic):
        text, configuration = "Inductor compiled for dynamic shapes", ""
    return text, "", f"{new.identity.shown}: {', '.join(filter(None, (configuration, source)))}"


def _slower(same: _Difference) -> _Said:
    times = f"{same.before_us:.1f} -> {same.after_us:.1f} us"
    return (
        f"the same kernel, {'slower' if same.delta_us > 0 else 'faster'}",
        f"{_names(same.after)}  {times}",
        "",
    )


def _rest(same: Sequence[_Difference]) -> str:
    if not same:
        return ""
    all_of_them = join_launches(same)
    share = all_of_them.after_us / all_of_them.before_us - 1 if all_of_them.before_us else 0.0
    word = "unchanged" if abs(share) < _UNCHANGED else "of the same identity"
    return f"{_count(len(all_of_them.after), 'kernel')} {word} ({100 * share:+.1f} %, {all_of_them.delta_us:+.2f} us)"


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
        Cause(f"{text}, {len(origins)} times" if len(origins) > 1 else text, code=_code(origins), is_first=True)
        for text, origins in found.items()
    ]


def _origin_of(event: CompileEvent) -> Origin | None:
    return Origin(event.module, (SourceLine(event.file, event.line, event.code),)) if event.file else None
