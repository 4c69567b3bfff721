"""Evidence -> words: the only module that words what `judge` found.

A new kind of evidence is a class in `judge/evidence.py`, and here one entry in a table: a sentence
with fields of the evidence (`it`), or a function where that is not enough. `name` is what the run
is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import printable
from ..judge import Status, Verdict
from ..judge import evidence as e
from ..judge.review import CodeMoved, Creep
from ..run import LINES
from ..trace import DTYPES, ChangeKind
from .text import (
    Line,
    bytes_change,
    counted,
    first,
    interval_text,
    megabytes,
    percent,
    ranges,
    sensitivity_text,
    time_change,
    time_text,
    times,
)

BASELINE = "the baseline"
_WIDTH = 69  # of a reason: with its label, 80 columns
_SEEN_HOST = 0.02  # a smaller difference of the host's speed says nothing
_MOST_NAMES = 8  # of the kernels of one cause
_ENGINE = "autograd::engine::evaluate_function: "  # before each node of a backward pass
_MOST_PARTS = 4  # of what differs in their tensors
_MOST_SIZES = 2  # of dimensions
_MOST_IN_LIST = 2  # of the tensors of a list


def headline(verdict: Verdict) -> str:
    """Return what a verdict says, in one line.

    Names in it may come from a file that nobody vouches for.
    """
    return printable(
        _HEADLINES[type(verdict.conclusion)](
            verdict.conclusion, verdict, verdict.against or BASELINE
        )
    )


def _structure(it: e.StructureCompared, verdict: Verdict, name: str) -> str:
    if it.kernels:
        return (
            f"{'launch ' if it.kernels == 'configurations' else ''}{it.kernels} differ from {name}"
        )
    if it.placed:
        return f"same kernels, other {' and '.join(it.placed)}"
    if verdict.status is not Status.PASS:
        return "other counts"
    is_other = any(isinstance(each, e.CountMoved) and each.is_judged for each in verdict.reasons)
    return f"same kernels, {'other' if is_other else 'same'} counts"


def _time(it: e.TimeCompared, verdict: Verdict, name: str) -> str:
    # no run leaves that
    if (change := verdict.change) is None or None in (verdict.before_us, verdict.after_us):
        return verdict.subject
    line = f"{verdict.subject} {baseline_us(verdict):.1f} -> {verdict.after_us:.1f} us"
    why = "" if it.doubt is None else reason_line(it.doubt, name).text
    if verdict.status is Status.NOT_JUDGED and why:
        return f"{line}, not judged: {why}"
    if (
        verdict.status is Status.REGRESSED
        and isinstance(it.doubt, e.Unclear)
        and it.doubt.why in e.SCATTERED
    ):
        return (
            f"{line}  {100 * change.estimate:+.0f} %: three of four replicates take more than "
            "twice as long"
        )
    if verdict.status is Status.REGRESSED and why:
        return f"{line}  {100 * change.estimate:+.0f} %, far more than hosts differ: {why}"
    line += f"  {interval_text(change)}{' at equal host speed' if it.at_host_speed else ''}"
    if (factor := slower_host(verdict)) != 1:
        line += f" ({host_speed([factor])})"
    if verdict.status is Status.UNDECIDED and why:
        return f"{line}: inconclusive: {why}"
    if verdict.status is Status.PASS:
        return f"{line}; {sensitivity_text(change)} or more would have failed"
    return line


def slower_host(verdict: Verdict) -> float:
    """Return `host_factor`, or 1 where nobody would see it."""
    factor = host_factor(verdict)
    return factor if abs(factor - 1) >= _SEEN_HOST else 1.0


def baseline_us(verdict: Verdict) -> float | None:
    """Return the baseline's time; at the speed of this host where the change is."""
    return verdict.before_us and verdict.before_us * host_factor(verdict)


def host_factor(verdict: Verdict) -> float:
    """Return how often as long this host takes as that of the baseline, where the change leaves it
    out; 1 where it does not.
    """
    change, before_us = verdict.change, verdict.before_us
    at_host_speed = getattr(verdict.conclusion, "at_host_speed", False)
    if not (at_host_speed and change is not None and before_us and verdict.after_us):
        return 1.0
    return verdict.after_us / (before_us * (1 + change.estimate))


def _doubted_time(it: e.TimeDoubted, verdict: Verdict, name: str) -> str:
    why = (
        reason_line(it.doubt, name).text
        if isinstance(it.doubt, e.Unclear)
        else f"that of {name} cannot be"
    )
    return f"{verdict.subject} {verdict.after_us or 0.0:.1f} us, not judged: {why}"


def _ratio(it: e.RatioCompared, verdict: Verdict, _: str) -> str:
    asked = f"{100 * it.by:g} % faster than {it.other}" if it.by else f"faster than {it.other}"
    is_so = {Status.PASS: "", Status.REGRESSED: "not "}.get(verdict.status, "not known to be ")
    return (
        f"{is_so}{asked}: {it.label} {it.us:.1f} us against {it.other_us:.1f} us, "
        f"{interval_text(it.change)}"
    )


def _numerics(it: e.NumericsCompared, verdict: Verdict, _: str) -> str:
    if verdict.status is not Status.PASS:
        return f"result differs from the {it.reference} reference"
    rest = f" (rounding alone explains any error in {it.unjudged} tensors)" if it.unjudged else ""
    return f"as {it.reference} but for rounding: {it.worst}{rest}"


def _overlap(it: e.OverlapCompared, verdict: Verdict, name: str) -> str:
    text = (
        f"communication on rank {it.rank}: "
        f"{'overlap lost: ' if verdict.status is Status.REGRESSED else ''}"
    )
    if it.now_behind < it.behind[0]:
        text += (
            f"launched later, {it.now_behind} kernels follow a collective instead of "
            f"{it.behind[0]}: "
        )
    shares = [
        f"{100 * share:.0f} % beside other kernels"
        for share in (it.after, it.before)
        if share is not None
    ]
    exposed = f"{text}{time_change(it.before_us, it.after_us)} exposed, "
    return exposed + (
        ", at least ".join(shares) + f" in {name}" if shares else "not known how much overlaps"
    )


def _not_measured(it: e.NotMeasured, *_: object) -> str:
    if it.is_known:
        return f"{it.label} not compared: the same code"
    side, why = f"{it.side}: " if it.side else "", f": {it.why}" if it.why else ""
    return f"{side}{it.label} was not measured{why}"


_NOTHING = {
    "missing": "nothing to compare with: {side} has no such workload, or fails",
    "failed": "{side} could not be measured",
    "failed in some": "{side} could not be measured in every process",
    "differ": "the processes of {side} differ: {why}",
}
_HEADLINES: dict[type, Callable[[Any, Verdict, str], str]] = {
    e.StructureCompared: _structure,
    e.DeclaredCompared: lambda _, verdict, __: (
        "as declared"
        if verdict.status is Status.PASS
        else "differs from what the workload declares"
    ),
    e.TimeCompared: _time,
    e.TimeDoubted: _doubted_time,
    e.RatioCompared: _ratio,
    e.NumericsCompared: _numerics,
    e.NotCompared: lambda it, verdict, _: (
        f"{verdict.subject} not compared: {', '.join(map(str, it.moves))}"
    ),
    e.OverlapCompared: _overlap,
    e.NotMeasured: _not_measured,
    e.NoBaseline: lambda it, verdict, name: (
        f"{name} has no {verdict.subject}"
        if it.is_partial
        else f"no baseline for {verdict.subject} on this machine"
    ),
    e.NothingToCompare: lambda it, *_: _NOTHING[it.how].format(side=it.side, why=it.why),
    e.Failed: lambda it, *_: f"{it.so}: {it.what}" if it.so else it.what,
}


# -- reasons, and facts of a review ----------------------------------------------------------------


def reason_line(evidence: e.Evidence, name: str = BASELINE) -> Line:
    """Return the words of a reason or of a fact of a review, with its label."""
    label, words = _REASONS[type(evidence)]
    text = words.format(it=evidence, name=name) if isinstance(words, str) else words(evidence, name)
    return Line(label if isinstance(label, str) else label(evidence), text)


def _count(it: e.CountMoved, _: str) -> str:
    what = {"kernels": "distinct kernels", "host_work": "calls of functions"}.get(
        it.field, it.field.replace("_", " ")
    )
    now = f" -> {it.after}" if it.after != it.before else ", of other functions"
    judged = "" if it.is_judged else ", not judged: another version of torch"
    return f"{what} {it.before}{now}{judged}"


def _kernel(it: e.KernelMoved, _: str) -> str:
    if it.before is None or it.after is None:
        return f"- {it.before}" if it.after is None else f"+ {it.after}"
    return f"{it.after}: {it.configuration}"


def _mismatch(it: e.Mismatch, _: str) -> str:
    lines = [f"{it.what}: got {it.got}, expected {it.expected}"]
    if name := {"graph_breaks": "graph break", "compiles": "compiled graph"}.get(it.what):
        lines = [f"{counted(it.got, name)}, {it.expected} declared"]
    for number, (shown, expected) in enumerate(it.launches, start=1):
        other = "" if expected is None else f"   <- expected {expected or '(nothing)'}"
        lines.append(f"    {number}. {shown or '(nothing)'}{other}")
    return "\n".join([*lines, *([f"    source   {it.source}"] if it.source else [])])


def _rest(it: e.Rest, _: str) -> str:
    word = "unchanged" if it.is_unchanged else "of the same identity"
    return (
        f"{counted(it.kernels, 'kernel')} {word} ({100 * it.share:+.1f} %, {it.delta_us:+.2f} us)"
    )


def _host_speed(it: e.OtherHostSpeed, _: str) -> str:
    how = host_speed([it.after_us / it.before_us])
    return f"{how} (reference {it.before_us:.1f} -> {it.after_us:.1f} us)"


def host_speed(factors: Sequence[float]) -> str:
    """Return ``this host was 12 % faster to 45 % slower``, by how often as long it took."""
    words: dict[str, list[str]] = {}
    for factor in sorted({min(factors), max(factors)}, key=lambda it: (it > 1, abs(it - 1))):
        words.setdefault("slower" if factor > 1 else "faster", []).append(
            f"{100 * abs(factor - 1):.0f}"
        )
    ends = (f"{' to '.join(dict.fromkeys(its))} % {word}" for word, its in words.items())
    return f"this host was {' to '.join(ends)}"


def _fresh(it: e.FreshProcess, _: str) -> str:
    word = {
        "REGRESSED": "confirms",
        "PASS": "does not confirm",
        "IMPROVED": "does not confirm",
    }.get(it.status)
    status = f", {it.status}" if word is None else ""
    return (
        f"a fresh process {word or 'cannot confirm'} it: {it.us:.1f} us  "
        f"{interval_text(it.change)}{status}"
    )


def _choice(it: e.ChoiceMoved, name: str) -> str:
    if it.is_lost:
        if it.compiled is not None:
            some, why = "{} of {}".format(*it.compiled), f" ({it.error})" if it.error else ""
            gone = "does not" if it.error else "is not offered by its code"
            return f"{it.kernel}: {some} configurations compile{why}; {it.before} {gone}"
        why = f"does not compile ({it.error})" if it.error else "is not offered by its code"
        return f"{it.kernel} runs with {it.after}: {it.before}, which {name} has, {why}"
    how = "slower" if it.gain is not None and it.gain < 0 else "faster"
    gain = "" if it.gain is None else f"  {100 * abs(it.gain):.1f} % {how} when it was tuned"
    return f"{it.kernel}: the autotuner chose {it.after} instead of {it.before}{gain}"


def _dispatcher_ops(it: e.DispatcherOps, _: str) -> str:
    if it.before != it.after:
        return f"dispatcher ops {it.before} -> {it.after}"
    return (
        f"the host is {'slower' if it.is_slower else 'faster'} in the same {it.after} dispatcher "
        "ops, or around them"
    )


def _part(it: e.PartOfLatency, _: str) -> str:
    bound = "launch-bound" if it.is_launch_bound else "host-bound or launch-bound"
    transfers = f"{it.transfers_us:.1f} us of it in copies and memsets"
    note = {
        "ops": ", without Python and other jobs",
        "without kernels": f": {transfers if it.transfers_us else bound}",
    }.get(it.part, "")
    return (
        f"{it.part} {it.before_us:.1f} -> {it.after_us:.1f} us "
        f"({it.after_us - it.before_us:+.1f}){note}"
    )


def _machine(it: e.Machine, name: str) -> str:
    limits = "".join(
        f"; its clock was held down for {ms:.0f} ms by {cause}"
        for cause, ms in it.limits_ms
        if ms >= 1
    )
    if it.moves is None:
        moved = (
            f"; workloads with the same kernels moved by {100 * it.twins:+.1f} %"
            if it.twins is not None
            else ""
        )
        return f"this GPU is not in {name}{moved}{limits}"
    shown = ", ".join(
        f"{reference} {round(100 * move, 1) + 0.0:+.1f} %" for reference, move in it.moves
    )
    return f"{'the GPU itself changed its speed' if it.is_own else 'unchanged'} (reference {shown}){limits}"


def _file(it: e.BaselineFile, _: str) -> str:
    if it.moves is None:
        return it.path
    environment = f"environment: {', '.join(map(str, it.moves)) or 'identical'}"
    return (
        f"{it.path}{'   ' if len(f'{it.path}   {environment}') <= _WIDTH else chr(10)}{environment}"
    )


def _next(it: e.Next, _: str) -> str:
    measure = f"{it.measure}   (measures its times too)\n" if it.measure else ""
    allow = "if that is right: " if it.step is e.Advice.TOLERATE else ""
    usual, *note = _STEPS.get(it.step, "").partition("   ")
    return f"{measure}{allow}{it.command or usual}{''.join(note)}"


_STEPS = {
    e.Advice.REPLACE: "kernelgauge accept   (replaces it, as pytest --perf-update does)",
    e.Advice.REPLICATES: "measure at least two replicates: pytest -o kernelgauge_replicates=2",
    e.Advice.CALIBRATE: "kernelgauge calibrate   (more processes make the verdict sharper)",
    e.Advice.SAME_LAUNCHES: "make each call launch the same: look for a recompile, for a branch or\n"
    "shape that depends on data, and for an autotuner (cudnn.benchmark)",
    e.Advice.LOOK_AT_GPU: "nvidia-smi -q -d PERFORMANCE,PIDS   (throttled, or shared?)",
    e.Advice.AGAIN: "run it again on a quiet machine",
    e.Advice.MEND: "not accepted while a declaration fails: mend the code or declare it",
}
_UNCLEAR = {
    "unknown machine": "{name} does not know this machine",
    "scattered replicates": "the replicates scatter too much on this host",
    "scattered processes": "the processes of {name} scatter too much on this host",
    "one replicate": "one replicate shows no spread",
    "both possible": "the interval holds the fraction that is asked for",
}
_NOISES = {
    "replicates": "the scatter of replicates",
    "processes": "the noise between processes and machines",
    "gpu": "the GPU's own change of speed",
}
_IN_TRACE = {"seldom": "in few steps, not judged: ", "new": "new, not judged: ", "gone": "not judged, gone: ",
             "unknown": "not in the trace: ", "moved": "in another place, not counted as a change: "}  # fmt: skip
_NOT_FRESH = {
    "failed": "{it.text}",
    "other structure": "it ran other kernels, or had other counts",
    "not measured": "it did not measure this time",
}
_FILE_NOTES = {
    "accepted already": "accepted already",
    "unchanged": "unchanged within noise: it stays as it is",
    "untimed": "not timed: it stays as it is",
    "undeclared": "no test asks for it any more: git rm its baseline, if that is meant",
    "times stay": "its times stay: this run has none to trust",
    "facts": "gets {it.after} of this run, which it lacked or which are of other code. Its times stay",
    "result": "result with float64: {it.before} -> {it.after}",
    "fewer processes": "its new times are of {it.after} process{es}, the old ones of {it.before} (kernelgauge calibrate records more)",
    "times": "its old times are dropped, as this run measured none: {it.after}{option}",
    "processes": "{it.after} process{es}",
    "launches": "{it.after} launch{es}",
    "graph_breaks": "{it.after} graph break{s}: recorded",
    "recompiles": "{it.after} recompile{s}: recorded",
    "unsteady": "its tensors are others in each call: what begins in a later one is not seen",
}
_RUN_DOUBTS = {
    "cut short": "the run was cut short",
    "test failed": "{it.text} failed",
    "not checked": "what it declares was not checked (was the test deselected?)",
    "incomplete": "it was not measured in full ({it.text})",
    "not measured": "{it.text} was not measured (was its test deselected?)",
    "unmeasured": "it was not measured",
    "older": "older than the baseline: measured {it.text}, and that was recorded {it.other}",
    "other source": "generated source of its kernels",
    "error": "{it.text}",
}


def _in_trace(it: e.InTrace, _: str) -> str:
    texts = first(it.names, _MOST_NAMES)
    texts += [f"rank{'s' * bool(it.ranks[1:])} {ranges(sorted(it.ranks))}"] * bool(it.ranks)
    if it.what == "straggler":
        return (
            f"others wait for {', '.join(texts)}: {' -> '.join(map(time_text, it.numbers))} a step"
        )
    if it.what == "outside":
        texts = [f"{' of '.join(f'{number:g}' for number in it.numbers[:2])} launches"]
        texts += [f"{percent(share)} of the time" for share in it.numbers[2:]]
        return f"outside of the steady steps, not judged: {', '.join(texts)}"
    if it.what == "blocks":
        own, usual, most = (*it.numbers, 0, 0, 0)[:3]
        others = f"{most:g} other{'s' * (most != 1)} {usual:g}"
        return f"{''.join(texts[-1:])}: {''.join(texts[:1])} with {own:g} threads, {others}"
    if it.what in ("phase", "module"):
        return f"{it.what} renamed, not counted as a change: {' -> '.join(name or 'none' for name in it.names)}"
    texts += [" of ".join(f"{number:g}" for number in it.numbers) + " steps"] * bool(it.numbers)
    return _IN_TRACE.get(it.what, "") + ", ".join(texts)


def _creep(it: Creep, _: str) -> str:
    """Return ``GPU time +1.8 % since v1.2 (2026-03-01), in 12 accepted steps``."""
    since = (
        f"{it.release} ({it.at[:10] or 'the anchor'})" if it.release else it.at[:10] or "the anchor"
    )
    return f"{it.label} {100 * it.change:+.1f} % since {since}, in {counted(it.accepted, 'accepted step')}"


_REASONS: dict[type, tuple[str | Callable[[Any], str], str | Callable[[Any, str], str]]] = {
    e.CountMoved: ("counts", _count),
    e.KernelMoved: ("kernels", _kernel),
    e.Mismatch: ("why", _mismatch),
    e.Rest: ("rest", _rest),
    e.Unclear: ("why", lambda it, name: _UNCLEAR[it.why].format(name=name)),
    e.OtherHostSpeed: ("why", _host_speed),
    e.NoHostReference: (
        "why",
        lambda it, name: (
            f"the host reference is missing in {name if it.side == 'baseline' else 'the run'}"
        ),
    ),
    e.Noise: ("why", lambda it, _: f"{_NOISES[it.of]} hides +{100 * it.sensitivity:g} %"),
    e.PartExceedsCall: (
        "why",
        "{it.part_us:.1f} us cannot be a part of a call of {it.call_us:.1f} us",
    ),
    e.SlowReference: (
        "why",
        "the host reference beside it took {it.us:.1f} us, on a host where it takes {it.fastest_us:.1f} us",
    ),
    e.FreshProcess: ("fresh", _fresh),
    e.NoFreshProcess: (
        "fresh",
        lambda it, _: f"no fresh process confirms it: {_NOT_FRESH[it.why].format(it=it)}",
    ),
    e.ChoiceMoved: ("tuning", _choice),
    e.DispatcherOps: ("why", _dispatcher_ops),
    e.PartOfLatency: ("why", _part),
    e.Machine: ("machine", _machine),
    e.Neighbours: (
        "host",
        "other workers of this run that measured on this host as well: {it.workers}",
    ),
    e.NotImproved: ("why", "not called IMPROVED: {it.subject} is {it.status}"),
    e.SlowerInPairs: (
        "why",
        "slower in {it.pairs} pairs of processes: by chance in {it.probability:.2%} of such runs",
    ),
    e.ProcessesDiffer: ("why", "in {it.other} of {it.processes} processes of {it.side}"),
    e.Detail: (lambda it: str(it.label), "{it.text}"),
    e.TraceFile: ("trace", "{it.path}"),
    e.BaselineFile: (lambda it: "expected" if it.moves is None else "baseline", _file),
    e.Next: (
        lambda it: {e.Advice.ACCEPT: "accept", e.Advice.RECORD: "record"}.get(it.step, "next"),
        _next,
    ),
    e.InTrace: (lambda it: {"where": "where", "unknown": "unknown"}.get(it.what, "why"), _in_trace),
    # Of a review.
    e.MeasuredTime: ("time", "{it.label} {it.us:.1f} us"),
    e.FileNote: (
        lambda it: "counts" if it.what in ("launches", "graph_breaks", "recompiles") else "file",
        lambda it, _: _FILE_NOTES[it.what].format(
            it=it,
            s="s" * (it.after != "1"),
            es="es" * (it.after != "1"),
            option="   (--perf-compile)" * ("compile" in it.after),
        ),
    ),
    e.RunDoubt: ("refused", lambda it, _: _RUN_DOUBTS[it.what].format(it=it)),
    Creep: ("creep", _creep),
    CodeMoved: ("code", lambda it, _: f"{it.kernel}: {_code(it.moves)[0]}"),
    e.ImpossibleTime: (
        "refused",
        lambda it, name: f"{it.label} cannot be: {reason_line(it.why, name).text}",
    ),
}


# -- causes ----------------------------------------------------------------------------------------


def cause_text(cause: e.Cause, cost: str | None = None) -> tuple[str, list[str]]:
    """Return a cause with its cost in one line, and the lines below it.

    `cost`: in other words than ``+1.5 us``.
    """
    text, details = (
        _CHANGES[type(cause.change)](cause.change) if cause.change is not None else ("", [])
    )
    host = times(cause.waits)
    copies = sum(count for _, count in cause.copies)
    names = [name for name, _ in cause.copies]
    host += [f"{copies} copies: {', '.join(names[:_MOST_NAMES])}"] if copies > 1 else names
    host = [each.replace(_ENGINE, "") for each in host]
    if cause.waits and not cause.had_kernels:  # the wait is what a reader looks for
        text, details = (
            f"the host waits: {host[0]}",
            [*([text] if text else []), *details, *host[1:]],
        )
    elif text:
        details = [*details, *(["with " + ", ".join(host)] if host else [])]
    else:
        text = ", ".join(host)
    if cause.calls:
        text += f", in {'call' if len(cause.calls) == 1 else 'calls'} {ranges([number + 1 for number in cause.calls])}"
    if cause.delta_us is not None:
        text += f" ({f'{cause.delta_us:+.1f} us' if cost is None else cost})"
    return text, details


def dearest_code(cause: e.Cause) -> str:
    """Return the deepest line of the most expensive place; empty if none is known."""
    return next(map(place_text, cause.places[cause.dearest :]), "")


def place_text(place: e.Place) -> str:
    passes = (
        " (forward and backward)"
        if len(place.passes) > 1
        else " (backward)"
        if "backward" in place.passes
        else ""
    )
    line = place.line.deepest
    parts = (line.at, f"{place.module}{passes}".strip(), line.code, runs_text(place.runs))
    return "  ".join(filter(None, parts))


def runs_text(runs: tuple[int, int] | None) -> str:
    """Return how often a line ran and runs now, in brackets; empty if that is not known."""
    if not runs:
        return ""
    return f"({runs[0]:,} -> {runs[1]:,} times)" if any(runs) else "(gone)"


def _other_kernels(it: e.OtherKernels) -> tuple[str, list[str]]:
    """Return ``9 kernels instead of 1, in 4 layers, bf16 -> fp32: pow, mean x2``, and what was
    there.
    """
    old, new = (sum(count for _, count in side) for side in (it.before, it.after))
    dtypes = _dtypes(*it.dtypes)
    # What was there is among what is there now: the others are more.
    is_alike = it.what == ChangeKind.REPLACED.value and not (dtypes or it.sizes or it.layouts)
    befores, afters = Counter(dict(it.before)), Counter(dict(it.after))
    more = afters - befores if old and is_alike and befores < afters else Counter[str]()
    if not old or not new:
        text = counted(new, "new kernel") if new else f"{counted(old, 'kernel')} gone"
    elif old == new:
        text = "another kernel" if new == 1 else f"{new} other kernels"
    elif more:
        text = f"{new - old} more kernel{'s' * (new - old != 1)}"
    else:
        text = f"{counted(new, 'kernel')} instead of {old}"
    text = {
        ChangeKind.FUSED.value: f"{it.author.capitalize()} fused {counted(old, f'{it.kind} kernel'.strip())} into {new}",
        ChangeKind.FOLDED.value: f"{counted(old - new, 'kernel')} went into the epilogue of {counted(new, 'GEMM')}",
        ChangeKind.MOVED.value: f"{counted(new, 'kernel')} moved",
    }.get(it.what, text)
    if it.layers > 1 or it.places > 1:
        text += (
            f", in {counted(it.layers, 'layer') if it.layers > 1 else counted(it.places, 'place')}"
        )
    is_moved = it.what == ChangeKind.MOVED.value
    by = f"by {' and '.join(it.ops)}" if it.ops and not is_moved else ""
    inputs = f"inputs {' -> '.join(it.layouts)}" if it.layouts else ""
    parts = [text, dtypes, *_sizes(it.sizes), inputs, by]
    was = [f"was {_names(it.before)}"] if old and new and not (is_moved or more) else []
    names = tuple(more.items()) or it.after or it.before
    return f"{', '.join(filter(None, parts))}: {_names(names)}", [
        *was,
        *_repeated(it.repeated),
    ]


def _repeated(repeated: Iterable[tuple[str, int, int]]) -> list[str]:
    """Return ``10 all_reduce instead of 1``, in all of a call."""
    texts = [f"{now} {name} instead of {before}" for name, before, now in repeated]
    return [f"in all {', '.join(first(texts, _MOST_NAMES))}"] if texts else []


def _placement(it: e.OtherPlacement) -> tuple[str, list[str]]:
    parts = [*(f"{old} -> {new}" for old, new in it.dtypes), *_sizes(it.sizes)]
    parts += ["another number of tensors or dimensions"] if it.other_tensors else []
    parts += [_argument(old, new) for old, new in it.arguments]
    parts += [f"{old or 'no'} -> {new or 'no'} {kind}" for kind, old, new in it.amounts]
    parts += [f"inputs {' -> '.join(it.layouts)}"] if it.layouts else []
    if it.stream is not None:
        old, new = it.stream
        parts.append("on a second stream" if new and not old else f"stream {old} -> {new}")
    what = ", ".join(first(parts, _MOST_PARTS))
    return f"{what} in {counted(sum(n for _, n in it.kernels), 'kernel')}", [_names(it.kernels)]


def _argument(old: str, new: str) -> str:
    """Return ``float32 -> float64``; of lists of tensors those that differ: ``float32[64] x2``."""
    name, _, old = old.rpartition("=")
    new = new.rpartition("=")[2]
    lists = [text.partition(" numbers, ")[2].split(", ") for text in (old, new)]
    if [""] not in lists:
        pairs = (lists, lists[::-1])
        own = ([each for each in side if each not in other] or side for side, other in pairs)
        return " -> ".join(", ".join(first(each, _MOST_IN_LIST)) for each in own)
    is_plain = name in ("", "other", "self") or name.isdigit()
    what = "" if {old, new}.issubset(DTYPES.values()) else "an argument" if is_plain else name
    return f"{what} {old} -> {new}".strip()


def _speed(it: e.OtherSpeed) -> tuple[str, list[str]]:
    word = "slower" if it.after_us > it.before_us else "faster"
    text = (
        f"the same kernel, {word}: {_names(it.kernels)}  {it.before_us:.1f} -> {it.after_us:.1f} us"
    )
    return text, _code(it.moves)


def _code(moves: Sequence[e.Move]) -> list[str]:
    """Return ``registers 64 -> 72, occupancy 50 % -> 44 %``, or that the code is the same; empty if
    nothing is known.
    """
    texts = [str(each) if each.before != each.after else "the same machine code" for each in moves]
    return [", ".join(texts)] if texts else []


def _identity(it: e.OtherIdentity) -> tuple[str, list[str]]:
    if it.is_dynamic:
        text = "Inductor compiled for dynamic shapes"
    elif it.is_autotuned:
        text = "Inductor's autotuner chose another launch configuration"
    else:
        text = "another launch configuration" if it.configuration else "the same name, other source"
    parts = [
        "" if it.is_dynamic else it.configuration,
        f"source {' -> '.join(it.source)}" if it.source else "",
    ]
    return text, [f"{it.kernel}: {', '.join(filter(None, parts))}", *_code(it.moves)]


def _ops(it: e.OtherOps) -> tuple[str, list[str]]:
    sides = [(word, ops) for word, ops in (("new", it.new), ("fewer", it.gone)) if ops]
    texts = [
        f"{counted(sum(n for _, n in ops), f'{word} op')}: {', '.join(times(ops))}"
        for word, ops in sides
    ]
    return ", ".join(texts[:1]), [*texts[1:], *_repeated(it.repeated)]


def _host_calls(it: e.HostCalls) -> tuple[str, list[str]]:
    """Return ``host: copy.deepcopy 1 -> 4,812 calls``, and how many calls of all functions the line
    makes.
    """
    if it.function == LINES:
        return f"host: {it.before:,} -> {it.after:,} lines of your code run", []
    name = it.function.strip("<>") if it.function.startswith("<") else it.function
    name = (
        name.rpartition(": ")[2].removeprefix("builtins.").replace("torch._C.TensorBase", "Tensor")
    )
    others = it.more - it.after + it.before
    details = [f"and {others:,} more calls at that line"] if it.more and others > 0 else []
    details += [f"with {', '.join(_ops(e.OtherOps(it.ops))[:1])}"] if it.ops else []
    return f"host: {name} {it.before:,} -> {it.after:,} call{'s' * (it.after != 1)}", details


def _beside(it: e.BesideKernels) -> str:
    if it.what == "idle":
        return (
            f"the GPU is idle for {time_text(it.after)} of a step instead of {time_text(it.before)}"
        )
    return f"{it.after:g} copies and memsets {'as before' if it.before == it.after else f'instead of {it.before:g}'}"


def _held(count: int) -> str:
    return f"{megabytes(count)} more held between calls"


def _growth(it: e.MemoryGrowth) -> tuple[str, list[str]]:
    if it.is_held:
        return _held(it.bytes), []
    text = f"each call leaves {megabytes(it.bytes)} more in "
    text += "the memory of the process" if it.is_host else "memory"
    if it.is_cyclic:
        return f"{text}, in cycles of references that Python collects later", []
    note = "what keeps it is unknown"
    notes = [f"below: lines that allocate it, or are new; {note}" if it.is_kept is False else note]
    return text, [] if it.is_kept else notes


_NO_LONGER = {
    "detach": "the graph of autograd is kept: a tensor is no longer detached",
    "compile": "nothing is compiled any more: each op runs by itself",
    "skip autograd": "autograd records {more}the call: has a no_grad, inference_mode or detach gone{new}?",
    "drop gradients": "gradients are added to those of the last call: they are no longer dropped",
}


def _no_longer(it: e.NoLonger) -> tuple[str, list[str]]:
    nodes = [f"{' -> '.join(map(str, it.nodes))} autograd nodes"] if it.nodes else []
    more, new = ("more of ", ", or create_graph come") if it.nodes else ("", "")
    text = _NO_LONGER[it.what].format(more=more, new=new)
    return text, [*nodes, *([_held(it.held_bytes)] if it.held_bytes else [])]


_CHANGES: dict[type, Callable[[Any], tuple[str, list[str]]]] = {
    e.OtherKernels: _other_kernels,
    e.OtherPlacement: _placement,
    e.OtherSpeed: _speed,
    e.OtherCode: lambda it: (
        f"the same kernel, compiled otherwise: {_names(it.kernels)}",
        _code(it.moves),
    ),
    e.OtherIdentity: _identity,
    e.CompilerEvent: lambda it: (
        f"{it.event}: {it.reason}" + (f", {it.times} times" if it.times > 1 else ""),
        [],
    ),
    e.MemoryGrowth: _growth,
    e.AllocatorCalls: lambda it: (
        f"each call allocates or frees memory {it.after} times instead of {it.before}, past torch's cache",
        times(it.ops),
    ),
    e.LostGraph: lambda _: ("no CUDA graph any more: each kernel is launched by itself", []),
    e.NoLonger: _no_longer,
    e.BesideKernels: lambda it: (_beside(it), []),
    e.PeakMemory: lambda it: (
        f"peak memory{' of Python' * it.is_host} {bytes_change(it.before, it.after)}",
        [
            f"{megabytes(it.more)} of it at the first line below"
            if it.is_new_line
            else f"+{megabytes(it.more)} at the first line below"
        ]
        * bool(it.more),
    ),
    e.CompiledOps: lambda it: (
        f"torch.compile was given {it.after} ops instead of {it.before}",
        [
            f"{word}: {', '.join(names)}"
            for word, names in (("new", it.new), ("gone", it.gone))
            if names
        ],
    ),
    e.OtherOps: _ops,
    e.HostCalls: _host_calls,
    e.OtherDtype: lambda it: (f"{it.before} -> {it.after} in most kernels", []),
}


def _dtypes(old: Sequence[str], new: Sequence[str]) -> str:
    """Return ``bf16 -> fp32``, or ``now also fp32``; empty if nothing changed or one side is not
    known.
    """
    more, less = (
        " and ".join(sorted({*one} - {*other})) for one, other in ((new, old), (old, new))
    )
    if not old or not new or not more:
        return ""
    return f"{less} -> {more}" if less else f"now also {more}"


def _sizes(sizes: Sequence[tuple[str, str]]) -> list[str]:
    """Return ``input dimensions 1 -> 17, 2 -> 34, and 3 more`` and ``input shape [16] -> [2,16]``;
    empty if none differs.
    """
    nouns: dict[str, list[str]] = {}
    for old, new in sizes:
        noun = "input shape" if old.startswith("[") else "input dimension"
        nouns.setdefault(noun, []).append(f"{old or 'none'} -> {new or 'none'}")
    return [
        f"{noun}{'s' * (len(texts) > 1)} {', '.join(first(texts, _MOST_SIZES))}"
        for noun, texts in nouns.items()
    ]


def _names(kernels: e.Counted) -> str:
    """Return ``pow, mul x2``, of many names the first ones."""
    return ", ".join(first(times(kernels), _MOST_NAMES))
