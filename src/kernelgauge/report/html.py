"""Results -> one HTML page that needs nothing else: no network, no library, and no script to be
read.

The templates walk through the results; here is what a template cannot do well. Every text may come
from a stranger's trace: the environment cuts each one, makes it printable and escapes it. The
page's policy (CSP) allows the one style sheet and the one script in it by their hashes, so that no
other markup could run or load anything.
"""

from __future__ import annotations

import math
import re
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec
from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..errors import printable
from ..judge import STRUCTURE, WORST_FIRST, Status, Verdict
from ..judge.baseline import compare_fingerprints
from ..judge.cause import at_edited_lines, compare_launches
from ..judge.evidence import Advice, Cause, RelativeChange, TraceFile
from ..judge.steps import PhaseCompared
from ..judge.structure import placement_changes
from ..results import Results, TestResult, WorkloadResult, __version__
from ..results.files import slug
from ..run import Timer
from ..trace import ChangeKind, Difference, KernelRecord, configuration_text, grouped, join_launches
from .findings import (
    Finding,
    baseline_commits,
    change_text,
    findings,
    next_step,
    notable_verdicts,
    reasons,
)
from .stored import Trend, times_beside, trends_of
from .summary import Row, conditions_text, counts_text, describe, mean, notes, overall, scope
from .text import (
    Column,
    Line,
    Section,
    bounds_text,
    counted,
    percent,
    sensitivity_text,
    short_commit,
    us,
)
from .words import headline

_PACKAGE = "kernelgauge.report"
_LONGEST_NAME, _LONGEST_TEXT = 200, 4000  # characters
_MOST_ROWS = 40  # of a phase
_PHASE_COLUMNS = (
    *map(Column, ("kernel", "kind", "module and op")),
    *(
        Column(title, number=True)
        for title in ("times in the baseline", "now", "us in the baseline", "now", "change")
    ),
)
_SHOWN_BARS, _MOST_BARS = 8, 30  # of a time, and if more need a look; the others are folded
_FINE = 80  # launches: of more, neighbours in a strip are one
# of a strip, for a kernel that is gone or new, but at most _LEAST_WIDTHS for all of them
_LEAST_WIDTH = 0.012
_LEAST_WIDTHS = 0.3
_FARTHEST = 1e9  # gates: what a chart shows
_TICKS = (-0.9, -0.5, -0.1, -0.01, 0.0, 0.01, 0.1, 1.0, 10.0, 100.0)
_BETWEEN_TICKS = 11.0  # % of the width of a chart
# beside the page, or in a machine's folder
_TRACE = re.compile(r"(?:\w[\w.-]*/)?traces/\w[\w.-]*\.json\.gz", re.ASCII)


def html(results: Sequence[Results]) -> str:
    """Return the page of one run, or of several: runs or kinds of GPU, the newest last.

    Of each kind of machine the newest run is shown. Links lead to files beside the newest run's
    `results.json`: the page belongs into the same folder.
    """
    newest: dict[str, Results] = {}
    for one in reversed(results):
        newest.setdefault(one.fingerprint.device if one.fingerprint else "", one)
    shown = list(newest.values())
    workloads = _workloads(shown, results)
    found = findings(shown)
    environments = [
        compare_fingerprints(baseline.fingerprint, run.fingerprint)
        for each in workloads
        if (baseline := each.result.baseline) and (run := each.result.run)
    ]
    return render_page(
        "page.html",
        script="report.js",
        status=overall(shown),
        scope=scope(shown),
        sentence=", ".join(counts_text(shown)),
        findings=found,
        panels=_panels(workloads),
        strips=_strips(found, workloads),
        not_failing=[verdict for one in shown for verdict in notable_verdicts(one)],
        next_step=next_step(shown),
        commits=", ".join(dict.fromkeys(short_commit(one.commit) for one in shown)),
        baseline_commits=baseline_commits(shown),
        shown=shown,
        workloads=workloads,
        # of twins on two GPUs that of the worse
        anchors={each.result.id: each.anchor for each in reversed(workloads)},
        timers=dict.fromkeys(
            (it, it.label_on(each.result.run.fingerprint))
            for each in workloads
            for it in each.times
            if each.result.run and it.is_judged_on(each.result.run.fingerprint)
        ),
        # No section of a workload shows these: none may be lost.
        other_tests=[
            test
            for one in shown
            for test in one.tests
            if test.workload not in {x.id for x in one.workloads}
        ],
        notes=[
            line
            for one in shown
            for line in (*notes(one), *conditions_text(one.runs, one.not_watched))
        ],
        changes=dict.fromkeys(str(each) for each in environments if not each.identical),
    )


def check_page(verdicts: Sequence[Verdict], phases: Sequence[PhaseCompared]) -> list[Section]:
    """Return what became of traces that were held to a baseline."""
    bars: dict[str, list[_Bar]] = {}
    for number, (phase, verdict, _) in enumerate(phases):
        bars.setdefault(f"{verdict.subject} of {verdict.workload}", []).append(
            _Bar(verdict, f"p{number}", phase)
        )
    parts = _environment().get_template("workload.html").module
    panels = [parts.panel(_Panel(*each)) for each in bars.items()]  # type: ignore[attr-defined]
    chart = parts.key() + Markup('<div class="panels">{}</div>').format(Markup().join(panels))  # type: ignore[attr-defined]
    return [
        *(
            Section(f"{it.workload}: {headline(it)}", reasons(it), status=it.status.value)
            for it in verdicts
        ),
        Section("Changes by phase", picture=chart),
        *(_phase_section(f"p{number}", each) for number, each in enumerate(phases)),
    ]


def _phase_section(anchor: str, it: PhaseCompared) -> Section:
    cells = [
        (
            *(row.name, row.kind, "  ".join(filter(None, (row.module, row.op)))),
            *(f"{low}" if low == high else f"{low} … {high}", f"{round(count, 2):g}"),
            *(us(before_us), us(after_us), f"{after_us - before_us:+.2f}"),
        )
        for row, (low, high), before_us, count, after_us in it.rows[:_MOST_ROWS]
    ]
    left, verdict = len(it.rows) - len(cells), it.verdict
    lines = [
        "Mean of a step, the largest change first"
        + (f"; {left} more are in the trace" if left else "")
    ]
    title = (
        f"{it.phase} {verdict.workload} {us(verdict.before_us or 0.0)} -> "
        f"{us(verdict.after_us or 0.0)} us"
    )
    return Section(
        title,
        lines,
        _PHASE_COLUMNS,
        cells,
        is_folded=True,
        status=verdict.status.value,
        anchor=anchor,
    )


def as_html(
    sections: Sequence[Section], *, title: str, status: str = "", facts: Mapping[str, str]
) -> str:
    """Return one page. `facts`: labels and texts about all of it."""
    return render_page("sections.html", sections=sections, title=title, status=status, facts=facts)


def render_page(template: str, *, script: str = "", **content: object) -> str:
    """Return a page whose policy allows its own style sheet and script, and nothing else.

    `script` is a file beside the template.
    """
    style, code = _asset("report.css"), _asset(script) if script else ""
    sources = f"style-src {_source(style)}; script-src {_source(code)}"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    page = _environment().get_template(template)
    return page.render(content, style=Markup(style), script=Markup(code), policy=policy)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        bytecode_cache=_compiled_templates(),
        autoescape=True,
        finalize=_written,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        clip=_clip, lines=_lines, value=_value, css=_css, us=us, percent=percent, shell=shlex.join
    )
    made.filters.update(headline=headline, reasons=_reasons, conditions=conditions_text)
    made.filters.update(
        configuration=configuration_text,
        bounds=bounds_text,
        sensitivity=sensitivity_text,
        mean=mean,
        change=change_text,
        kernel=_kernel,
    )
    # The newline stands between lines that are untrusted themselves.
    made.globals.update(
        STRUCTURE=STRUCTURE,
        MARKS=_MARKS,
        DEVICE=Timer.DEVICE,
        counted=counted,
        describe=describe,
        newline=Markup("\n"),
    )
    return made


def _compiled_templates() -> FileSystemBytecodeCache | None:
    """Return where templates that were compiled are kept: compiling them takes 0.1 s."""
    with suppress(OSError, RuntimeError):  # no temporary folder that is this user's alone
        return FileSystemBytecodeCache(pattern=f"{_PACKAGE}-{__version__}-%s.cache")
    return None


def _asset(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def _source(content: str) -> str:
    """Return how a policy names a style sheet or a script within the page."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _written(value: object) -> object:
    """Return what a template's expression writes: of a text, a short one without control
    characters.
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(_clip(value, _LONGEST_TEXT))


def _clip(text: str, longest: int = _LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _lines(text: str) -> list[str]:
    return _clip(text.strip("\n"), _LONGEST_TEXT).splitlines()


def _reasons(verdict: Verdict) -> list[Line]:
    """Return the reasons of a verdict without those that the page begins with, and without
    paths.
    """

    def is_shown(reason: object) -> bool:
        is_said = isinstance(reason, Cause) or getattr(reason, "step", None) is Advice.ACCEPT
        return not (isinstance(reason, TraceFile) or (verdict.status.fails and is_said))

    return reasons(replace(verdict, reasons=tuple(filter(is_shown, verdict.reasons))))


def _css(text: str) -> str:
    """Return a status or a kind of kernel as part of a class: one word, whatever it was."""
    return re.sub(r"[^a-z0-9-]", "-", text.lower())[:40]


def _value(value: object) -> str:
    """Return a field of a fingerprint or a count as text."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else _clip(str(value))


# All launches of a module, with its path, and those of its kernels that changed.
_Module = tuple[str, Difference, Sequence[Difference]]


def _kernel(launch: Difference) -> KernelRecord:
    """Return the kernel of this run; of a launch that is gone, that of the baseline."""
    return (launch.after or launch.before)[0]


class _Piece(NamedTuple):
    """Launches of one side in a strip. Place and width are in percent of the strip."""

    mark: str
    kind: str
    text: str
    x: float
    width: float


@dataclass(frozen=True)
class _Workload(Row):
    """What the templates ask about a workload."""

    anchor: str  # its name for links within the page
    tests: Sequence[TestResult]
    is_beside: bool  # the page lies beside its trace
    trend: Trend | None  # of its GPU time, where the page is of several runs

    @property
    def trace(self) -> str:
        """Return a link to the trace.

        A results file is untrusted: nothing but a trace below the page's folder is one.
        """
        trace = self.result.trace or ""
        return trace if self.is_beside and _TRACE.fullmatch(trace) else ""

    @cached_property
    def launches(self) -> list[Difference]:
        """Return each launch of this run, with its partner, and those that it lacks, in order.

        Beside a baseline, launches of a run that was not timed have no times: it profiled one call.
        """
        run, baseline = self.result.run, self.result.baseline
        if run is None:
            return []
        is_timed = baseline is None or Timer.DEVICE in run.samples
        stored: Sequence[KernelRecord] = run.kernels
        if baseline is not None:  # in the time that the run is compared with
            run = at_edited_lines(run, baseline)
            judged = self.result.time_verdict(Timer.DEVICE)
            stored = baseline.entry.kernels_in(judged.before_us if judged is not None else None)
        if not is_timed:
            stored, kernels = (
                [msgspec.structs.replace(each, device_time_us=0.0) for each in side]
                for side in (stored, run.kernels)
            )
            run = msgspec.structs.replace(run, kernels=tuple(kernels))
        found: list[Difference] = []
        for each in compare_launches(baseline, stored, run):
            if not each.what.is_pair:
                found += (Difference(ChangeKind.VANISHED, (kernel,), ()) for kernel in each.before)
                found += (Difference(ChangeKind.APPEARED, (), (kernel,)) for kernel in each.after)
                continue
            others = placement_changes([each], run.fingerprint)
            others = ["configuration"] if each.details else others
            what = ChangeKind.CONFIGURATION if others else ChangeKind.SAME
            found.append(replace(each, what=what, details=f"other {' and '.join(others)}"))
        return found

    @cached_property
    def marked(self) -> Mapping[str, Difference]:
        """Return the launches by how they differ, with those that do not."""
        found = grouped(self.launches, lambda launch: _MARKS[launch.what])
        return {mark: join_launches(found[mark]) for mark in _MARKS.values() if mark in found}

    @property
    def strip(self) -> list[tuple[str, list[_Piece]]]:
        """Return the kernels of the baseline and of this run as two lanes, with those that are in
        both below each other.

        Widths are times; without any time, all are equal. What is gone or new has a least width.
        """
        times = [(each.before_us, each.after_us) for each in self.launches]
        if not any(map(any, times)):
            times = [(len(each.before), len(each.after)) for each in self.launches]
        marks = sum(each.what is not ChangeKind.SAME for each in self.launches)
        least = min(_LEAST_WIDTH, _LEAST_WIDTHS / max(1, marks)) * max(
            map(sum, zip(*times, strict=True)), default=0.0
        )
        ends, lanes = [0.0, 0.0], (list[_Piece](), list[_Piece]())
        for launch, widths in zip(self.launches, times, strict=True):
            mark = _MARKS[launch.what]
            if launch.before and launch.after:
                ends = [max(ends)] * 2
            for side, kernel in ((0, launch.before), (1, launch.after)):
                for each in kernel:
                    width = max(widths[side], least if mark else 0.0)
                    text, time_us = each.identity.shown, each.device_time_us
                    text += f": {us(time_us)} us" if time_us else ""
                    lanes[side].append(_Piece(mark, each.identity.kind, text, ends[side], width))
                    ends[side] += width
        scale = max(ends) / 100 or 1.0
        # each alone, or neighbours as one
        key = id if len(self.launches) <= _FINE else attrgetter("mark")
        groups = ([list(group) for _, group in groupby(lane, key)] for lane in lanes)
        names = ("baseline", "this run")
        return [
            (name, [_joined(each, scale) for each in lane])
            for name, lane in zip(names, groups, strict=True)
        ]

    @cached_property
    def modules(self) -> tuple[list[_Module], list[_Module]]:
        """Return the modules that changed, and the others.

        Kernels of one differ, or move the call by its gate.
        """
        verdict = self.result.time_verdict(Timer.DEVICE)
        least_us = math.inf  # a time that is not judged hides and shows nothing
        if (
            verdict is not None
            and verdict.change is not None
            and verdict.status is not Status.NOT_JUDGED
        ):
            least_us = (verdict.change.gate or 0.0) * (verdict.before_us or 0.0)
        by_module = grouped(
            self.launches, lambda it: _kernel(it).module if _kernel(it).origin else "not known"
        )
        sides: tuple[list[_Module], list[_Module]] = [], []
        for name, launches in sorted(by_module.items()):
            kernels = grouped(launches, lambda it: (it.what, _kernel(it).identity.shown))
            parts = [*map(join_launches, kernels.values())]
            changed = [
                it for it in parts if it.what is not ChangeKind.SAME or abs(it.delta_us) > least_us
            ]
            whole = join_launches(launches)
            sides[not changed and abs(whole.delta_us) <= least_us].append((name, whole, changed))
        if (
            not sides[0]
            and verdict is not None
            and verdict.status in (Status.REGRESSED, Status.IMPROVED)
        ):
            sides = sides[::-1]  # each moved a little
        sides[0].sort(key=lambda each: -abs(each[1].delta_us))
        return sides

    def dots(self, timer: Timer) -> list[tuple[str, str, Sequence[tuple[float, bool]]]]:
        """Return the replicates of a judged time beside the processes of the baseline and of its
        anchors.

        For each side its name, its times, and the dots: the place of each in percent of the width,
        and whether it counts.
        """
        run, baseline, verdict = self.result.run, self.result.baseline, self.times[timer]
        if run is None or baseline is None or verdict is None or not change_text(verdict):
            return []
        rows = times_beside(baseline, run, timer, verdict.against or "baseline")
        low, high = (
            pick((it for _, times in rows for it, _ in times), default=0.0) for pick in (min, max)
        )
        scale = (high - low) / 94 or 1.0
        return [
            (
                label,
                " … ".join(us(pick(times)[0]) for pick in (min, max)[: len(times)]),
                [(3 + (it - low) / scale, is_used) for it, is_used in times],
            )
            for label, times in rows
        ]


_MARKS = {
    ChangeKind.VANISHED: "gone",
    ChangeKind.APPEARED: "new",
    ChangeKind.CONFIGURATION: "changed",
    ChangeKind.SAME: "",
}


def _joined(group: Sequence[_Piece], scale: float) -> _Piece:
    """Return neighbours in a strip as one piece."""
    it, last = group[0], group[-1]
    x, width = it.x / scale, (last.x + last.width - it.x) / scale
    is_one = len(group) == 1
    return _Piece(
        it.mark,
        it.kind if is_one else "",
        it.text if is_one else counted(len(group), "kernel"),
        x,
        width,
    )


def _strips(
    found: Sequence[Sequence[Finding]], workloads: Sequence[_Workload]
) -> dict[int, _Workload]:
    """Return the workload whose kernels stand above a cause, by the number of the cause: each once,
    if kernels differ.
    """
    others = {
        each.result.id: each
        for each in reversed(workloads)
        if each.result.baseline and set(each.marked) - {""}
    }
    strips: dict[int, _Workload] = {}
    for number, cases in enumerate(found):
        shown = (
            others.pop(case.workload, None)
            for case in cases
            if case.verdicts and case.verdicts[0].is_by_baseline
        )
        if workload := next(filter(None, shown), None):
            strips[number] = workload
    return strips


class _Bar(NamedTuple):
    """A time in the chart of its timer."""

    verdict: Verdict
    anchor: str
    name: str
    workload: WorkloadResult | None = None

    @property
    def change(self) -> RelativeChange | None:
        """Return the change; None for a time that is not judged."""
        return self.verdict.change if self.verdict.status is not Status.NOT_JUDGED else None

    @property
    def fails(self) -> bool:
        """Whether its workload does."""
        return (
            self.workload is not None
            and self.workload.status is not None
            and self.workload.status.fails
        )

    @property
    def is_quiet(self) -> bool:
        return self.verdict.status is Status.PASS and not self.fails

    @property
    def rank(self) -> tuple[bool, float]:
        return (
            not self.verdict.status.fails,
            -self.change.estimate if self.change is not None else -math.inf,
        )


class _Panel:
    """The changes of one time, the worst first, on one scale: linear within the gate, and
    logarithmic beyond it.
    """

    def __init__(self, label: str, bars: Sequence[_Bar]) -> None:
        self.label = label
        judged = sorted(
            (each for each in bars if each.change or each.verdict.status.fails),
            key=attrgetter("rank"),
        )
        self.unjudged = [each for each in bars if not (each.change or each.verdict.status.fails)]
        loud = sum(not each.is_quiet for each in judged)
        room = max(_SHOWN_BARS, min(loud, _MOST_BARS))
        room += len(judged) == room + 1  # a fold of one saves nothing
        by_need = sorted(judged, key=attrgetter("is_quiet"))
        self.shown, self.folded = sorted(by_need[:room], key=attrgetter("rank")), by_need[room:]
        self.changes = [each.change for each in judged if each.change is not None]
        self.gates = sorted({each.gate for each in self.changes if each.gate is not None})
        self._unit = self.gates[0] if self.gates else 0.01
        values = chain.from_iterable(
            (each.estimate, each.low, each.high, each.sensitivity) for each in self.changes
        )
        places = [
            self._place(each)
            for each in (*values, -2 * self._unit, 2 * self._unit)
            if each is not None
        ]
        self._low, self._high = min(places), max(places)

    def _place(self, change: float) -> float:
        return math.asinh(max(-_FARTHEST, min(_FARTHEST, change / self._unit)))

    def x(self, change: float) -> float:
        """Return the place of a change, in percent of the width."""
        return round(2 + 96 * (self._place(change) - self._low) / (self._high - self._low), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Return the places on the axis that have a number: zero, and others that leave room
        between them.
        """
        found = [0.0]
        for change in sorted(_TICKS, key=abs):
            is_free = all(abs(self.x(change) - self.x(other)) >= _BETWEEN_TICKS for other in found)
            if is_free and 2 <= self.x(change) <= 98:
                found.append(change)
        return [(self.x(change), f"{100 * change:+g} %" if change else "0") for change in found]


def _panels(workloads: Sequence[_Workload]) -> list[_Panel]:
    """Return a chart for each time, and for each device if there are several; those without a
    judged time come last.
    """
    devices = {each.result.run.fingerprint.device for each in workloads if each.result.run}
    bars: dict[str, list[_Bar]] = {}
    for timer in Timer:
        for each in workloads:
            if (verdict := each.result.time_verdict(timer)) is not None:
                on = (
                    f", {each.result.run.fingerprint.device}"
                    if each.result.run and len(devices) > 1
                    else ""
                )
                bars.setdefault(f"{verdict.subject}{on}", []).append(
                    _Bar(verdict, each.anchor, each.result.id, each.result)
                )
    return sorted((_Panel(*each) for each in bars.items()), key=lambda panel: not panel.changes)


def _workloads(shown: Sequence[Results], results: Sequence[Results]) -> list[_Workload]:
    """Return the workloads of all runs, the worst status first.

    Links are made for the newest run only, which is the first.
    """
    trends = trends_of(results)
    found: list[_Workload] = []
    for one in shown:
        for result in one.workloads:
            tests = [test for test in one.tests if test.workload == result.id]
            trend = trends.get((one.fingerprint.device if one.fingerprint else "", result.id))
            found.append(
                _Workload(result, f"w{len(found)}-{slug(result.id)}", tests, one is shown[0], trend)
            )
    places = {status: place for place, status in enumerate((*WORST_FIRST, None))}
    return sorted(found, key=lambda each: places[each.result.status])
