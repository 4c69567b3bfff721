"""What verdicts, their evidence and reviews read like: the only module that words what `judge` found.

A new kind of evidence needs a class in `judge/evidence.py`, and here a function for it and its label.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any, NamedTuple

import msgspec

from ..errors import printable
from ..judge import evidence as e
from ..judge.review import Fact, NotAdded
from ..judge.verdict import Status, Verdict
from ..results import Results
from ..trace.difference import What

_BASELINE = "the baseline"
_WIDTH = 69  # of a reason: with its label, 80 columns
_MOST_LINES = 12  # of a failure in the terminal
_LAST = ("baseline", "accept", "next")  # what to do about it
CAUSES_WITH_CODE = 2  # of a verdict; each other one has one line
_MOST_NAMES = 8  # of the kernels of one cause


class Line(NamedTuple):
    """A reason under a verdict: its label and its text, which may have several lines."""

    label: str
    text: str

    @property
    def rows(self) -> list[str]:
        """The rows of a terminal: the label stands before the first."""
        text = self.text.replace("\n", "\n" + 11 * " ")
        return [printable(row) for row in f"  {self.label:<8} {text}".split("\n")]


# -- verdicts -----------------------------------------------------------------------------------------------------------


def headline(verdict: Verdict) -> str:
    """Return what a verdict says, in one line."""
    return _headline(verdict.finding, verdict, verdict.against or _BASELINE)


def reasons(verdict: Verdict) -> list[Line]:
    """Return the reasons of a verdict: two causes with their code, the others in a line each."""
    lines: list[Line] = []
    causes, name = 0, verdict.against or _BASELINE
    for each in verdict.reasons:
        if isinstance(each, e.Cause):
            causes += 1
            text, details = cause_text(each)
            if causes > CAUSES_WITH_CODE:
                lines.append(Line("also", f"{text}  {dearest_code(each)}".rstrip()))
                continue
            lines.append(Line("cause", "\n".join([text, *details])))
            lines += [Line("code", "\n".join(code))] if (code := code_lines(each)) else []
        elif not (verdict.against and isinstance(each, e.Next) and each.step in _OF_BASELINES):
            lines.append(Line(_label(each), _say(each, name)))
    return lines


def in_full(verdict: Verdict) -> str:
    """Return a verdict with all of its reasons."""
    return "\n".join([_first(verdict), *(row for line in reasons(verdict) for row in line.rows)])


def brief(verdict: Verdict, *, see: str = "", width: int | None = None) -> str:
    """Return a verdict in at most twelve lines, without the kernels one by one.

    Args:
        see: the test that has named its causes already.
        width: of a terminal, in columns: longer lines are cut. None: lines stay whole.
    """
    every = reasons(verdict)
    left_out = ("kernels", "counts", "trace", *_LAST, *(("cause", "code", "also") if see else ()))
    lines = [line for line in every if line.label not in left_out]
    lines[:0] = [Line("cause", f"see {see}")] if see else []
    counts = ", ".join(line.text for line in every if line.label == "counts")
    lines += [Line("counts", counts)] if counts else []
    rows = [_first(verdict), *(row for line in lines for row in line.rows)]
    last = [row for line in every if line.label in _LAST for row in line.rows]
    most = _MOST_LINES - len(last)
    if len(rows) > most:
        rows = [*rows[: most - 1], f"  {'more':<8} in the report, or with pytest -v"]
    return "\n".join(row if width is None else cut_row(row, width) for row in [*rows, *last])


def only(verdict: Verdict, kind: type[e.Evidence]) -> Verdict:
    """Return a verdict with the reasons of one kind."""
    return replace(verdict, reasons=tuple(each for each in verdict.reasons if isinstance(each, kind)))


def said(verdict: Verdict) -> str:
    """Return the headline of a verdict and its first cause, in one line."""
    cause = next((line.text for line in reasons(verdict) if line.label in ("cause", "why")), "")
    return " ".join((f"{headline(verdict)}; {cause}" if cause else headline(verdict)).split())


def with_words(results: Results) -> Results:
    """Return the results with what each verdict says: for who reads the file without kernelgauge."""
    workloads = (
        msgspec.structs.replace(
            workload,
            verdicts=tuple(replace(each, said=tuple(in_full(each).split("\n"))) for each in workload.verdicts),
        )
        for workload in results.workloads
    )
    return msgspec.structs.replace(results, workloads=tuple(workloads))


def _first(verdict: Verdict) -> str:
    return printable(f"{verdict.workload}: {verdict.status.value}  {headline(verdict)}")


def cut_row(row: str, width: int) -> str:
    """Return a row that fits: the folders of a path and the middle of a module's path go first, then the end."""
    for pattern in (_FOLDERS, _MODULE):
        if len(row) > width:
            row = pattern.sub(r"\1…\2", row, count=1)
    return row if len(row) <= width else f"{row[: width - 1].rstrip(' ,._')}…"


# ``transformers/models/llama/modeling_llama.py:12`` -> ``transformers/…/modeling_llama.py:12``
_FOLDERS = re.compile(r"((?:^|(?<=\s))[\w.-]+/)[\w./-]+(/[\w.-]+:\d+)")
# ``model.model.layers.*.self_attn  file.py:12`` -> ``model.…self_attn  file.py:12``
_MODULE = re.compile(r"(\s[\w*]+\.)\S{6,}(\.[\w*{},]+(?: \([a-z ]+\))?  \S+:\d+)")


# -- headlines ----------------------------------------------------------------------------------------------------------


@singledispatch
def _headline(finding: e.Finding, verdict: Verdict, name: str) -> str:
    raise TypeError(f"no words for {type(finding).__name__}")


@_headline.register
def _(_: e.SameStructure, verdict: Verdict, name: str) -> str:
    return "same kernels, same counts"


@_headline.register
def _(found: e.OtherStructure, verdict: Verdict, name: str) -> str:
    if found.kernels:
        return f"{'kernels' if found.kernels == 'kernels' else 'launch configurations'} differ from {name}"
    return f"same kernels, other {' and '.join(found.placed)}" if found.placed else "other counts"


@_headline.register
def _(found: e.Declared, verdict: Verdict, name: str) -> str:
    return "as declared" if found.is_so else "differs from what the workload declares"


@_headline.register
def _(found: e.TimeCompared, verdict: Verdict, name: str) -> str:
    change = verdict.change
    assert change is not None
    times, doubt = f"{verdict.subject} {verdict.before_us:.1f} -> {verdict.after_us:.1f} us", found.doubt
    if verdict.status is Status.NOT_JUDGED and doubt is not None:
        return f"{times}, not judged: {_say(doubt, name)}"
    if verdict.status is Status.REGRESSED and doubt is not None:
        return f"{times}  {100 * change.estimate:+.0f} %, far more than hosts differ: {_say(doubt, name)}"
    line = f"{times}  {interval_text(change)}{' at equal host speed' if found.at_host_speed else ''}"
    if verdict.status is Status.UNDECIDED and doubt is not None:
        return f"{line}: inconclusive: {_say(doubt, name)}"
    if verdict.status is Status.PASS and not found.is_other_choice:
        return f"{line}; {sensitivity_text(change)} or more would have failed"
    return line


@_headline.register
def _(found: e.RatioCompared, verdict: Verdict, name: str) -> str:
    asked = f"{100 * found.by:g} % faster than {found.other}" if found.by else f"faster than {found.other}"
    is_so = {Status.PASS: "", Status.REGRESSED: "not "}.get(verdict.status, "not known to be ")
    times = f"{found.us:.1f} us against {found.other_us:.1f} us"
    return f"{is_so}{asked}: {found.label} {times}, {interval_text(found.change)}"


@_headline.register
def _(found: e.UnknownChoice, verdict: Verdict, name: str) -> str:
    return f"{verdict.subject} {verdict.after_us:.1f} us, not judged: {_say(found, name)}"


@_headline.register(e.PartExceedsCall)
@_headline.register(e.SlowReference)
def _(found: e.Implausible, verdict: Verdict, name: str) -> str:
    return f"{verdict.subject} {verdict.after_us:.1f} us, not judged: that of {name} cannot be"


@_headline.register
def _(found: e.NumericsCompared, verdict: Verdict, name: str) -> str:
    if verdict.status is not Status.PASS:
        return f"result differs from the {found.reference} reference"
    rest = f" (rounding alone explains any error in {found.unjudged} tensors)" if found.unjudged else ""
    return f"as {found.reference} but for rounding: {found.worst}{rest}"


@_headline.register
def _(found: e.NotCompared, verdict: Verdict, name: str) -> str:
    return f"{verdict.subject} not compared: {moves_text(found.moves)}"


@_headline.register
def _(found: e.NotMeasured, verdict: Verdict, name: str) -> str:
    side, why = f"{found.side}: " if found.side else "", f": {found.why}" if found.why else ""
    return f"{side}{found.label} was not measured{why}"


@_headline.register
def _(found: e.NoBaseline, verdict: Verdict, name: str) -> str:
    if found.is_partial:
        return f"{name} has no {verdict.subject}"
    return f"no baseline for {verdict.subject} on this machine"


@_headline.register
def _(found: e.NothingToCompare, verdict: Verdict, name: str) -> str:
    return {
        "missing": f"nothing to compare with: {found.side} has no such workload, or fails",
        "failed": f"{found.side} could not be measured",
        "failed in some": f"{found.side} could not be measured in every process",
        "differ": f"the processes of {found.side} differ: {found.why}",
    }[found.how]


@_headline.register
def _(found: e.Failed, verdict: Verdict, name: str) -> str:
    return f"{found.so}: {found.what}" if found.so else found.what


# -- reasons ------------------------------------------------------------------------------------------------------------

_LABELS: Mapping[type, str] = {
    e.CountMoved: "counts",
    e.KernelMoved: "kernels",
    e.Rest: "rest",
    e.Choice: "tuning",
    e.Machine: "machine",
    e.Neighbours: "host",
    e.BaselineFile: "baseline",
    e.Launches: "counts",
    e.MeasuredTime: "time",
    e.FileNote: "file",
}  # of all others: "why"
_OF_BASELINES = (e.Step.REPLACE, e.Step.CALIBRATE)  # two revisions have none
_STEPS: Mapping[e.Step, str] = {
    e.Step.REPLACE: "kernelgauge accept   (replaces it, as pytest --perf-update does)",
    e.Step.REPLICATES: "measure at least two replicates: pytest -o kernelgauge_replicates=2",
    e.Step.CALIBRATE: "kernelgauge calibrate   (more processes make the verdict sharper)",
    e.Step.SAME_LAUNCHES: "make each call launch the same: look for a recompile, for a branch or\n"
    "shape that depends on data, and for an autotuner (cudnn.benchmark)",
    e.Step.LOOK_AT_GPU: "nvidia-smi -q -d PERFORMANCE,PIDS   (throttled, or shared?)",
    e.Step.AGAIN: "run it again on a quiet machine",
    e.Step.MEND: "mend or declare what fails above: it cannot be accepted",
}


def _label(reason: Any) -> str:
    if isinstance(reason, e.Detail):
        return reason.label
    if isinstance(reason, e.Next):
        return {e.Step.ACCEPT: "accept", e.Step.RECORD: "record"}.get(reason.step, "next")
    return _LABELS.get(type(reason), "why")


@singledispatch
def _say(reason: Any, name: str) -> str:
    raise TypeError(f"no words for {type(reason).__name__}")


@_say.register
def _(it: e.CountMoved, name: str) -> str:
    what = "distinct kernels" if it.field == "kernels" else it.field.replace("_", " ")
    return f"{what} {it.before} -> {it.after}{'' if it.is_judged else ', not judged: another version of torch'}"


@_say.register
def _(it: e.KernelMoved, name: str) -> str:
    if it.before is None or it.after is None:
        return f"- {it.before}" if it.after is None else f"+ {it.after}"
    return f"{it.after}: {it.configuration}"


@_say.register
def _(it: e.Mismatch, name: str) -> str:
    lines = [f"{it.what}: got {it.got}, expected {it.expected}"]
    for number, (shown, expected) in enumerate(it.launches, start=1):
        other = "" if expected is None else f"   <- expected {expected or '(nothing)'}"
        lines.append(f"    {number}. {shown or '(nothing)'}{other}")
    return "\n".join([*lines, f"    source   {it.source}"])


@_say.register
def _(it: e.GraphBreaks, name: str) -> str:
    accepts = f"Workload(..., graph_breaks={it.got}) accepts them"
    return f"graph breaks: got {it.got}, expected {it.expected}; {accepts}"


@_say.register
def _(it: e.Recompiles, name: str) -> str:
    return f"recompiles: got {it.got}, expected 0 on fresh allocations of one shape"


@_say.register
def _(it: e.Rest, name: str) -> str:
    word = "unchanged" if it.is_unchanged else "of the same identity"
    return f"{counted(it.kernels, 'kernel')} {word} ({100 * it.share:+.1f} %, {it.delta_us:+.2f} us)"


@_say.register
def _(it: e.Why, name: str) -> str:
    return _say(it.doubt, name)


@_say.register
def _(it: e.UnknownMachine, name: str) -> str:
    return f"{name} does not know this machine"


@_say.register
def _(it: e.OtherHostSpeed, name: str) -> str:
    how = f"{100 * abs(it.after_us / it.before_us - 1):.0f} % {'slower' if it.after_us > it.before_us else 'faster'}"
    return f"this host was {how} (reference {it.before_us:.1f} -> {it.after_us:.1f} us)"


@_say.register
def _(it: e.NoHostReference, name: str) -> str:
    return f"the host reference is missing in {'the run' if it.side == 'run' else name}"


@_say.register
def _(it: e.ScatteredReplicates, name: str) -> str:
    return "the replicates scatter too much on this host"


_NOISES = {
    "replicates": "the scatter of replicates",
    "processes": "the noise between processes and machines",
    "gpu": "the GPU's own change of speed",
}


@_say.register
def _(it: e.Noise, name: str) -> str:
    return f"{_NOISES[it.of]} hides +{100 * it.sensitivity:g} %"


@_say.register
def _(it: e.OneReplicate, name: str) -> str:
    return "one replicate shows no spread"


@_say.register
def _(it: e.BothPossible, name: str) -> str:
    return "the interval holds the fraction that is asked for"


@_say.register
def _(it: e.PartExceedsCall, name: str) -> str:
    return f"{it.part_us:.1f} us cannot be a part of a call of {it.call_us:.1f} us"


@_say.register
def _(it: e.SlowReference, name: str) -> str:
    on_host = f"{it.us:.1f} us, on a host where it takes {it.fastest_us:.1f} us"
    return f"the host reference beside it took {on_host}"


@_say.register
def _(it: e.Doubted, name: str) -> str:
    return f"{it.label} cannot be: {_say(it.why, name)}"


@_say.register
def _(it: e.UnknownChoice, name: str) -> str:
    return f"the autotuner's choice is not in {name}"


@_say.register
def _(it: e.Choice, name: str) -> str:
    cost = f"{it.cost_us:+.1f} us against the fastest that {name} knows"
    line = f"the autotuner chose a launch configuration that is not in {name} ({cost})"
    return "\n".join([line, *(_say(each, name) for each in it.kernels)])


@_say.register
def _(it: e.DispatcherOps, name: str) -> str:
    if it.before != it.after:
        return f"dispatcher ops {it.before} -> {it.after}"
    return f"the host is {'slower' if it.is_slower else 'faster'} in the same {it.after} dispatcher ops, or around them"


@_say.register
def _(it: e.PartOfLatency, name: str) -> str:
    times = f"{it.before_us:.1f} -> {it.after_us:.1f} us ({it.after_us - it.before_us:+.1f})"
    if it.part == "cpu":
        return f"CPU time {times}: its test names the ops"
    if it.part == "kernels":
        return f"kernels {times}"
    bound = "launch-bound" if it.is_launch_bound else "host-bound or launch-bound"
    return f"without kernels {times}: {f'{it.transfers_us:.1f} us of it in copies and memsets' if it.transfers_us else bound}"


@_say.register
def _(it: e.Machine, name: str) -> str:
    if it.moves is None:
        return f"this GPU is not in {name}"
    shown = ", ".join(f"{reference} {round(100 * move, 1) + 0.0:+.1f} %" for reference, move in it.moves)
    return f"{'the GPU itself changed its speed' if it.is_own else 'unchanged'} (reference {shown})"


@_say.register
def _(it: e.Neighbours, name: str) -> str:
    return f"other workers of this run that measured on this host as well: {it.workers}"


@_say.register
def _(it: e.NotImproved, name: str) -> str:
    return f"not called IMPROVED: {it.subject} is {it.status}"


@_say.register
def _(it: e.ProcessesDiffer, name: str) -> str:
    return f"in {it.other} of {it.processes} processes of {it.side}"


@_say.register(e.TensorError)
@_say.register(e.Detail)
def _(it: e.TensorError | e.Detail, name: str) -> str:
    return it.text


@_say.register
def _(it: e.BaselineFile, name: str) -> str:
    environment = f"environment: {moves_text(it.moves)}"
    between = "   " if len(f"{it.path}   {environment}") <= _WIDTH else "\n"
    return f"{it.path}{between}{environment}"


@_say.register
def _(it: e.Next, name: str) -> str:
    measure = f"{it.measure}   (measures its times too)\n" if it.measure else ""
    allow = "if that is right: " if it.step is e.Step.TOLERATE else ""
    return f"{measure}{allow}{it.command}" if it.command else _STEPS[it.step]


# -- causes -------------------------------------------------------------------------------------------------------------


def cause_text(cause: e.Cause, cost: str | None = None) -> tuple[str, list[str]]:
    """Return a cause with its cost in one line, and the lines below it. `cost`: in other words than ``+1.5 us``."""
    text, details = _change(cause.change) if cause.change is not None else ("", [])
    host = [_times(*each) for each in cause.waits]
    copies = sum(count for _, count in cause.copies)
    names = [name for name, _ in cause.copies]
    host += [f"{copies} copies: {', '.join(names[:_MOST_NAMES])}"] if copies > 1 else names
    if cause.waits and not cause.had_kernels:  # the wait is what a reader looks for
        details = [*([text] if text else []), *details, *host[1:]]
        text = f"the host waits: {host[0]}"
    elif text:
        details += ["with " + ", ".join(host)] if host else []
    else:
        text = ", ".join(host)
    if cause.delta_us is not None:
        text += f" ({f'{cause.delta_us:+.1f} us' if cost is None else cost})"
    return text, details


def code_lines(cause: e.Cause) -> list[str]:
    """Return the lines of code of a cause: the user's, then the library's with its module."""
    shown: dict[str, None] = {}
    for place in cause.places:
        outer = [msgspec.structs.replace(place.line, inner=None)] if place.line.inner else []
        shown |= dict.fromkeys([*map(str, outer), _place_text(place)])
    more = [f"and {counted(cause.more_places, 'more line')}"] if cause.more_places else []
    return [*shown, *more]


def dearest_code(cause: e.Cause) -> str:
    """Return the deepest line of the most expensive place; empty if none is known."""
    return _place_text(cause.places[cause.dearest]) if cause.places else ""


def _place_text(place: e.Place) -> str:
    passes = " (forward and backward)" if len(place.passes) > 1 else " (backward)" if "backward" in place.passes else ""
    return f"{place.module}{passes}  {place.deepest}".strip()


@singledispatch
def _change(change: Any) -> tuple[str, list[str]]:
    raise TypeError(f"no words for {type(change).__name__}")


@_change.register
def _(it: e.OtherKernels) -> tuple[str, list[str]]:
    """``9 kernels instead of 1, in 4 layers, bf16 -> fp32: pow, mean x2``."""
    old, new = (sum(count for _, count in side) for side in (it.before, it.after))
    if not old:
        text = counted(new, "new kernel")
    elif not new:
        text = f"{counted(old, 'kernel')} less"
    elif old == new:
        text = "another kernel" if new == 1 else f"{new} other kernels"
    else:
        text = f"{counted(new, 'kernel')} instead of {old}"
    text = {
        What.FUSED: f"{it.author.capitalize()} fused {counted(old, f'{it.kind} kernel'.strip())} into {new}",
        What.FOLDED: f"{counted(old - new, 'kernel')} went into the epilogue of {counted(new, 'GEMM')}",
        What.MOVED: f"{counted(new, 'kernel')} moved",
    }.get(What(it.what), text)
    if it.layers > 1 or it.places > 1:
        text += f", in {counted(it.layers, 'layer') if it.layers > 1 else counted(it.places, 'place')}"
    is_moved = it.what == What.MOVED.value
    parts = [text, _dtypes_text(*it.dtypes), _sizes_text(it.sizes)]
    parts += [f"by {' and '.join(it.ops)}"] if it.ops and not is_moved else []
    was = [f"was {_names(it.before)}"] if old and new and not is_moved else []
    return f"{', '.join(filter(None, parts))}: {_names(it.after or it.before)}", was


@_change.register
def _(it: e.OtherPlacement) -> tuple[str, list[str]]:
    said = [*(f"{old} -> {new}" for old, new in it.dtypes), *(f"size {_size(*each)}" for each in it.sizes)]
    said += ["other tensors"] if it.other_tensors else []
    if it.stream is not None:
        old, new = it.stream
        said.append("on a second stream" if new and not old else f"stream {old} -> {new}")
    return f"{', '.join(said)} in {counted(sum(n for _, n in it.kernels), 'kernel')}", [_names(it.kernels)]


@_change.register
def _(it: e.OtherSpeed) -> tuple[str, list[str]]:
    word = "slower" if it.after_us > it.before_us else "faster"
    times = f"{it.before_us:.1f} -> {it.after_us:.1f} us"
    return f"the same kernel, {word}: {_names(it.kernels)}  {times}", []


@_change.register
def _(it: e.OtherIdentity) -> tuple[str, list[str]]:
    source = f"source {' -> '.join(it.source)}" if it.source else ""
    configuration = "" if it.is_dynamic else it.configuration
    text = "another launch configuration" if it.configuration else "the same name, other source"
    if it.is_autotuned:
        text = "Inductor's autotuner chose another launch configuration"
    if it.is_dynamic:
        text = "Inductor compiled for dynamic shapes"
    return text, [f"{it.kernel}: {', '.join(filter(None, (configuration, source)))}"]


@_change.register
def _(it: e.CompilerEvent) -> tuple[str, list[str]]:
    return f"{it.event}: {it.reason}" + (f", {it.times} times" if it.times > 1 else ""), []


@_change.register
def _(it: e.MemoryGrowth) -> tuple[str, list[str]]:
    return f"each call leaves {it.bytes} bytes more in memory", []


@_change.register
def _(it: e.CompiledOps) -> tuple[str, list[str]]:
    return f"torch.compile was given {it.after} ops instead of {it.before}", []


@_change.register
def _(it: e.OtherOps) -> tuple[str, list[str]]:
    texts = [
        f"{counted(sum(count for _, count in ops), f'{word} op')}: {', '.join(_times(*each) for each in ops)}"
        for word, ops in (("new", it.new), ("missing", it.gone))
        if ops
    ]
    return texts[0], texts[1:]


@_change.register
def _(it: e.OtherDtype) -> tuple[str, list[str]]:
    return f"{it.before} -> {it.after} in most kernels", []


def _dtypes_text(old: Sequence[str], new: Sequence[str]) -> str:
    """Return ``bf16 -> fp32``, or ``now also fp32``; empty if nothing changed or one side is not known."""
    more, less = (sorted({*one} - {*other}) for one, other in ((new, old), (old, new)))
    if not old or not new or not more:
        return ""
    return f"{' and '.join(less)} -> {' and '.join(more)}" if less else f"now also {' and '.join(more)}"


def _sizes_text(sizes: Iterable[tuple[str, str]]) -> str:
    return " and ".join(f"size {_size(*each)}" for each in sizes)


def _size(old: str, new: str) -> str:
    return f"{old or 'none'} -> {new or 'none'}"


def _names(kernels: e.Counted) -> str:
    """Return ``pow, mul x2``."""
    names = [_times(*each) for each in kernels]
    left = len(names) - _MOST_NAMES
    return ", ".join(names if left <= 0 else [*names[:_MOST_NAMES], f"and {left} more"])


def _times(text: str, count: int) -> str:
    return f"{text} x{count}" if count > 1 else text


# -- reviews ------------------------------------------------------------------------------------------------------------


def review_lines(facts: Sequence[Fact]) -> list[Line]:
    """Return what differs from a baseline: verdicts without what to do next, and notes about the file.

    The causes stand once, if possible at a time: there they have costs.
    """
    verdicts = [each for each in facts if isinstance(each, Verdict)]
    structure = verdicts[:1]
    with_causes = [each for each in (*verdicts[1:], *structure) if any(isinstance(it, e.Cause) for it in each.reasons)]
    lines, same = [Line("moved", str(each)) for each in facts if isinstance(each, e.Move)], []
    for verdict in verdicts:
        if verdict.status is Status.PASS and verdict.change is not None:
            same.append(f"{verdict.subject} {verdict.after_us:.1f} us {100 * verdict.change.estimate:+.1f} %")
        elif verdict not in structure:
            lines.append(Line("time", headline(verdict)))
        left_out = ("kernels", "next", *(("cause", "code", "also") if verdict not in with_causes[:1] else ()))
        left_out += ("why",) if verdict.status is Status.NOT_JUDGED else ()  # the headline has it
        found = sorted(reasons(verdict), key=lambda line: line.label != "counts")  # the counts first
        lines += [line for line in found if line.label not in left_out]
    lines += [Line("time", ", ".join(same))] if same else []
    notes = (each for each in facts if isinstance(each, e.Evidence))
    return [*lines, *(Line(_label(each), _say(each, _BASELINE)) for each in notes)]


def doubt_text(doubt: Fact | NotAdded) -> str:
    """Return what speaks against storing a run, in one line."""
    if isinstance(doubt, NotAdded):
        facts = (headline(each) if isinstance(each, Verdict) else doubt_text(each) for each in doubt.facts)
        return f"it cannot be added: {', '.join(facts)}"
    if isinstance(doubt, Verdict):
        about = f"{doubt.subject}: {doubt.status.value}  " if doubt.status.fails else ""
        return f"{about}{headline(doubt)}"
    return str(doubt) if isinstance(doubt, e.Move) else _say(doubt, _BASELINE)


@_say.register
def _(it: e.Launches, name: str) -> str:
    return counted(it.count, "launch")


@_say.register
def _(it: e.MeasuredTime, name: str) -> str:
    return f"{it.label} {it.us:.1f} us"


@_say.register
def _(it: e.FileNote, name: str) -> str:
    return {
        "accepted already": "accepted already",
        "unchanged": "unchanged within noise: it stays as it is",
        "undeclared": "the suite no longer declares it: git rm its baseline, if that is meant",
        "suite": f"suite {it.before} -> {it.after}",
        "fewer processes": f"processes that it knows {it.before} -> {it.after} (kernelgauge calibrate records more)",
        "processes": f"{it.after} processes",
    }[it.what]


@_say.register
def _(it: e.RunDoubt, name: str) -> str:
    return {
        "cut short": "the run was cut short",
        "test failed": f"{it.text} failed",
        "not checked": "what it declares was not checked (was the test deselected?)",
        "incomplete": f"it was not measured in full ({it.text})",
        "not measured": f"{it.text} was not measured (was its test deselected?)",
        "unmeasured": "it was not measured",
        "error": it.text,
    }[it.what]


@_say.register
def _(it: e.OlderRun, name: str) -> str:
    return f"older than {name}: measured {it.measured}, and that was recorded {it.recorded}"


@_say.register
def _(it: e.DisturbedHost, name: str) -> str:
    times = f"{it.after_us / it.before_us:.0f} times as slow as in {name}"
    return f"this host was {times} (reference {it.before_us:.1f} -> {it.after_us:.1f} us)"


@_say.register
def _(it: e.OtherSource, name: str) -> str:
    return "generated source of its kernels"


# -- numbers ------------------------------------------------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """Return ``1 kernel``, ``2 kernels``, ``2 launches``."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}" + ("" if count == 1 else plural)


def moves_text(moves: Sequence[e.Move]) -> str:
    """Return ``driver 580.1 -> 580.2``, or that nothing moved."""
    return ", ".join(map(str, moves)) or "identical"


def interval_text(change: e.RelativeChange) -> str:
    """Return ``+8.10 % (+7.90 … +8.40)``."""
    estimate = f"{100 * change.estimate:+.2f} %"
    if change.low is None or change.high is None:
        return f"{estimate} (no interval)"
    return f"{estimate} ({100 * change.low:+.2f} … {100 * change.high:+.2f})"


def sensitivity_text(change: e.RelativeChange) -> str:
    """Return the sensitivity in percent with two digits, rounded up: no smaller slowdown is promised."""
    if change.sensitivity is None:
        return "-"
    percent = 100 * change.sensitivity
    unit = 10.0 ** (math.floor(math.log10(percent)) - 1)
    rounded = math.ceil(percent / unit) * unit
    return f"+{rounded:.0f} %" if rounded >= 100 else f"+{rounded:.3g} %"
