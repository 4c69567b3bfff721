"""Texts about what is stored: the plan of an update, a review, what a calibration found, and the
history of runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise, takewhile
from operator import attrgetter, itemgetter
from statistics import median

import msgspec
from markupsafe import Markup
from rich.text import Text

from ..errors import printable
from ..judge import Status, Verdict, worst
from ..judge import evidence as e
from ..judge.baseline import Baseline, gemm_kernel
from ..judge.review import (
    EFFECTS,
    Action,
    CodeMoved,
    Creep,
    Fact,
    Group,
    NotAdded,
    PlannedChange,
    Reviewed,
)
from ..judge.revisions import find_creep
from ..judge.time_verdict import Context, judge
from ..judge.timing import Scatter, prior_for, scatter, variance_between_processes
from ..results import Results
from ..results.history import Night, nights_of
from ..run import CALL_TIMERS, ProcessTime, Run, Timer, observe, on_same_host, on_the_fastest_host
from ..trace import grouped
from .findings import WHY, in_one_line, only_reasons, reasons
from .text import Column, Line, Section, counted, cut, first, short_commit, us
from .words import headline, reason_line

_ACTION_STYLES = {Action.CREATE: "green", Action.UPDATE: "yellow", Action.KEEP: "dim"}
_GROUPS = {  # heading and style
    Group.SAME_SPEED: ("same kernels, no other speed", "green"),
    Group.UNTIMED: ("same kernels, not timed", "green"),
    Group.SPEED: ("same kernels, slower or faster", "yellow"),
    Group.CONFIGURATION: ("same kernels, other launch configuration", "yellow"),
    Group.KERNELS: ("other kernels, or other counts", "yellow"),
    Group.NEW: ("new", "cyan"),
    Group.VANISHED: ("vanished", "red"),
    Group.NOT_MEASURED: ("not measured", "dim"),
}
_SEEN_CHANGE = 0.01
_LEAST_SPAN = 0.02  # of the time: in a chart, noise of a tenth of a percent is flat
_CHART = Markup(
    '<svg class="trend" role="img" aria-label="times of {}" viewBox="{}" '
    'preserveAspectRatio="none">{}</svg>'
)
_NIGHTS = 20_000  # that are drawn: one red night a year is 55 of them
_MOST_WORKLOADS = 3  # of a kernel
_MOST_KERNELS = 4  # of those that the new software changed in one way
_MOST_UNCHANGED = 8  # workloads: there is nothing to decide
_MOST_LINES = 12  # of the changes of a workload, and of files that are not shown
_HISTORY_COLUMNS = (
    *(Column(title, number=True) for title in ("first us", "last us", "change")),
    *(Column(title, is_whole=True) for title in ("verdict", "since")),
    # the last: no line begins with a part of a name, which GitHub could take for a command
    Column("workload"),
)


# -- baselines -------------------------------------------------------------------------------------


def plan_section(plan: Sequence[PlannedChange]) -> Section:
    """Return what an update would write, file by file."""
    rows = [
        (
            Text(change.action.value, style=_ACTION_STYLES[change.action]),
            change.workload,
            "\n".join(line.text for line in review_lines(change.details)),
        )
        for change in plan
    ]
    return Section(columns=[Column(is_whole=True), Column(is_cut=True), Column()], rows=rows)


def creep_lines(plan: Sequence[PlannedChange]) -> list[str]:
    """Return a line for each time of a plan that is slower than its anchor."""
    found = ((change.workload, each) for change in plan for each in _creeps(change.details))
    return [printable(f"creep: {workload}: {reason_line(each).text}") for workload, each in found]


def review_page(device: str, reviewed: Sequence[Reviewed]) -> list[Section]:
    """Return the review of a device's workloads, group by group."""
    moved = Counter(move for each in reviewed for move in each.environment)
    lines = [
        Line("moved", f"{move}   ({counted(count, 'workload')})") for move, count in moved.items()
    ]
    shared = {text: names for text, names in _refusals(reviewed).items() if len(names) > 1}
    lines += [
        Line("refused", f"{text}   ({', '.join(first(names, _MOST_WORKLOADS))})")
        for text, names in shared.items()
    ]
    head = Section(f"{device}: {counted(len(reviewed), 'workload')}", lines, style="bold")
    groups = ([each for each in reviewed if each.group is group] for group in _GROUPS)
    sections = (_group_section(found, shared) for found in groups if found)
    return [head, *_code_by_effect(reviewed), *sections]


def refusal_lines(reviewed: Iterable[Reviewed]) -> list[str]:
    """Return each reason why workloads are not stored, once, with their names before it."""
    found = _refusals(reviewed).items()
    return [printable(f"{', '.join(names)}: {text}") for text, names in found]


def _refusals(reviewed: Iterable[Reviewed]) -> dict[str, list[str]]:
    """Return the workloads that each reason refuses."""
    pairs = ((doubt_text(doubt), each.workload) for each in reviewed for doubt in each.doubts)
    return {
        text: [name for _, name in found] for text, found in grouped(pairs, itemgetter(0)).items()
    }


def _group_section(found: Sequence[Reviewed], shared: Container[str]) -> Section:
    title, style = _GROUPS[found[0].group]
    quiet = [
        each
        for each in found
        if each.group in (Group.SAME_SPEED, Group.UNTIMED)
        and not (each.doubts or _creeps(each.evidence))
    ]
    left_out = quiet[_MOST_UNCHANGED:]
    lines: list[Line] = []
    first_with: dict[tuple[e.Cause, ...], str] = {}  # these causes, which stand once
    for each in found:
        if each not in left_out:
            facts = [fact for fact in each.evidence if not isinstance(fact, CodeMoved)]
            causes = tuple(
                cause.identity
                for fact in facts
                if isinstance(fact, Verdict)
                for cause in fact.reasons
                if isinstance(cause, e.Cause)
            )
            known = first_with.setdefault(causes, each.workload) if causes else each.workload
            if known != each.workload:
                facts = [
                    only_reasons(fact, e.Cause, is_without=True)
                    if isinstance(fact, Verdict)
                    else fact
                    for fact in facts
                ]
            shown = review_lines(facts)
            shown += [Line("cause", f"as in {known}")] if known != each.workload else []
            doubts = (doubt_text(doubt) for doubt in each.doubts)
            shown += [Line("refused", text) for text in doubts if text not in shared]
            below = [line._replace(label=f"    {line.label}") for line in shown]
            lines += [Line("", f"  {each.workload}"), *below]
    lines += [Line("", f"  and {len(left_out)} more")] if left_out else []
    return Section(f"{title}: {len(found)}", lines, style=f"bold {style}")


def _creeps(facts: Iterable[Fact]) -> list[Creep]:
    return [each for each in facts if isinstance(each, Creep)]


def _code_by_effect(reviewed: Sequence[Reviewed]) -> Iterator[Section]:
    """Yield what the new software made of kernels, by what it does to the code: how many, and the
    largest changes.

    Each change stands once, with its workloads.
    """
    facts = [
        (fact, each.workload)
        for each in reviewed
        for fact in each.evidence
        if isinstance(fact, CodeMoved)
    ]
    for effect in EFFECTS:
        found = grouped([each for each in facts if each[0].effect == effect], itemgetter(0))
        if not found:
            continue
        growths = {fact: _growth(fact) for fact in found}
        signs = Counter("up" if each > 0 else "down" for each in growths.values() if each)
        directions = (
            " "
            f"({', '.join(f'{count} {way}' for way, count in sorted(signs.items(), reverse=True))})"
        ) * bool(signs)
        workloads = len({name for pairs in found.values() for _, name in pairs})
        heading = (
            f"other {effect}: {counted(len(found), 'kernel')}{directions} in "
            f"{counted(workloads, 'workload')}"
        )
        largest = sorted(found, key=lambda fact: -abs(growths[fact]))
        lines: list[Line] = []
        for fact in largest[:_MOST_KERNELS]:
            names = ", ".join(first([name for _, name in found[fact]], _MOST_WORKLOADS))
            lines += [
                Line("", f"  {fact.kernel}   ({names})"),
                Line("    ", ", ".join(map(str, fact.moves))),
            ]
        if len(largest) > _MOST_KERNELS:
            lines.append(
                Line(
                    "",
                    (
                        f"  and {len(largest) - _MOST_KERNELS} more: kernelgauge accept "
                        "--dry-run shows all"
                    ),
                )
            )
        yield Section(heading, lines, style="bold")


def _growth(fact: CodeMoved) -> float:
    """Return by how much the number of an effect grew, as a logarithm; 0 where it has none."""
    sides = next(
        ((each.before, each.after) for each in fact.moves if each.name.endswith(fact.effect)),
        ("", ""),
    )
    numbers = [re.match(r"\d+(?= %|$)", side or "") for side in sides]
    old, new = (int(each[0]) if each else 0 for each in numbers)
    return math.log((new + 1) / (old + 1)) if all(numbers) else 0.0


def review_lines(facts: Sequence[Fact]) -> list[Line]:
    """Return what differs from a baseline: verdicts without what to do next, and notes about the
    file.

    The causes stand once, if possible at a time: there they have costs.
    """
    verdicts = [each for each in facts if isinstance(each, Verdict)]
    structure = verdicts[:1]
    with_causes = [
        each
        for each in (*verdicts[1:], *structure)
        if any(isinstance(it, e.Cause) for it in each.reasons)
    ]
    lines, same = [Line("moved", str(each)) for each in facts if isinstance(each, e.Move)], []
    for verdict in verdicts:
        if verdict.status is Status.PASS and verdict.change is not None:
            same.append(f"{verdict.subject} {_same_time(verdict, verdict.change.estimate)}")
        elif verdict not in structure:
            lines.append(Line("time", headline(verdict)))
        left_out = (e.KernelMoved, e.Next, *([e.Cause] if verdict not in with_causes[:1] else []))
        left_out += WHY if verdict.status is Status.NOT_JUDGED else ()  # the headline has it
        counts = ", ".join(line.text for line in reasons(only_reasons(verdict, e.CountMoved)))
        lines += [Line("counts", counts)] if counts else []
        lines += reasons(only_reasons(verdict, e.CountMoved, *left_out, is_without=True))
    lines += [Line("time", ", ".join(same))] if same else []
    return [*lines, *(reason_line(each) for each in facts if isinstance(each, e.Evidence))]


def _same_time(verdict: Verdict, change: float) -> str:
    """Return ``18322.9 us -4.3 %``, with the time before where host or GPU had another speed, so
    that the ratio is another.
    """
    before_us, after_us = verdict.before_us or 0.0, verdict.after_us or 0.0
    text = f"{after_us:.1f} us {100 * change:+.1f} %"
    if abs(after_us - before_us * (1 + change)) < _SEEN_CHANGE * before_us:
        return text
    who = "host" if getattr(verdict.conclusion, "at_host_speed", False) else "GPU"
    return f"{before_us:.1f} -> {text} at equal {who} speed"


def doubt_text(doubt: Fact | NotAdded) -> str:
    """Return what speaks against storing a run, in one line."""
    if isinstance(doubt, NotAdded):
        facts = (
            headline(each) if isinstance(each, Verdict) else doubt_text(each)
            for each in doubt.facts
        )
        return f"it cannot be added: {', '.join(facts)}"
    if isinstance(doubt, Verdict):
        about = f"{doubt.subject}: {doubt.status.value}  " if doubt.status.fails else ""
        return f"{about}{headline(doubt)}"
    return str(doubt) if isinstance(doubt, e.Move) else reason_line(doubt).text


def calibration_section(baselines: Mapping[str, Baseline], *, comparisons: int) -> Section:
    """Return one line for each timer of each workload.

    "caught from": the slowdown that is caught 95 times in 100; "elsewhere": on another GPU.
    """
    rows = [
        (workload, timer.label, *_numbers(baseline, timer, comparisons))
        for workload, baseline in baselines.items()
        for timer in Timer
        if timer.is_judged_on(baseline.fingerprint) and baseline.times(timer)
    ]
    titles = ("us", "spread\n%", "caught\nfrom %", "else-\nwhere %")
    columns = [
        Column("workload", is_cut=True),
        Column("timer", is_whole=True),
        *(Column(title, number=True) for title in titles),
    ]
    return Section(columns=columns, rows=rows, gap=1)


def red_nights_a_year(baselines: Mapping[str, Baseline], *, comparisons: int) -> float:
    """Return in how many nights of a year unchanged code is red on the machine of these baselines:
    the model's answer.

    A night is red if one time is, in the run and in the fresh process that confirms it. The noise
    is that which `judge.timing` expects and the baselines show; drawn with a fixed seed.
    """
    import numpy as np

    chance, red = np.random.default_rng(0), np.zeros(_NIGHTS, dtype=bool)
    for timer in CALL_TIMERS:
        known = []
        for baseline in baselines.values():
            times = baseline.times(timer)
            if times and timer.is_judged_on(baseline.fingerprint):
                here = on_same_host(
                    [each for each in times if each.place == times[-1].place], times[-1]
                )
                known.append((here, prior_for(timer, baseline.fingerprint), baseline.kernels))
        scatters = [scatter(here, prior, len(kernels)) for here, prior, kernels in known]
        whole = Scatter(*map(math.fsum, zip(*scatters, strict=True))) if scatters else Scatter()
        ranks = chance.permutation(_NIGHTS)  # of this machine among all, by its noise
        for (here, prior, kernels), own in zip(known, scatters, strict=True):
            shown = Scatter(whole.squares - own.squares, whole.dof - own.dof)
            process = variance_between_processes(here, prior, len(kernels), shown=shown)
            spread = np.sqrt(
                process.value * process.dof / np.sort(chance.chisquare(process.dof, _NIGHTS))[ranks]
            )
            drawn = chance.standard_normal((4, _NIGHTS)) * spread
            nights = len({each.night for each in here})
            expected = math.sqrt(1 / len(here) + prior.noise.night / nights) * drawn[0]
            tonight = math.sqrt(prior.noise.night) * drawn[1] - expected
            change = judge(
                here, here[-1:], prior, Context(comparisons), kernels=kernels, shown=shown
            ).change
            margin = math.log1p(change.estimate) - math.log1p(change.low or 0.0)
            needed = max(margin, math.log1p(prior.gate))
            red |= (tonight + drawn[2] > needed) & (tonight + drawn[3] > needed)
    return 365 * float(red.mean())


def _numbers(baseline: Baseline, timer: Timer, comparisons: int) -> tuple[str, ...]:
    """Return the columns of one timer; each process stands for the one that measures next, and the
    median is shown.
    """
    kernels = baseline.counts.launches
    times = baseline.times(timer, gemm=gemm_kernel(baseline.processes[-1].controls))
    prior = prior_for(timer, baseline.fingerprint)

    def sensitivity(after: ProcessTime) -> float | None:
        return judge(
            times, [after], prior, Context(comparisons), kernels=baseline.kernels
        ).change.sensitivity

    def spread(after: ProcessTime) -> float:
        alike = on_same_host(times, after) if after.is_host_clock else times
        return math.sqrt(variance_between_processes(alike, prior, kernels).value)

    def shown(values: Iterable[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{100 * median(known):.2f}" if known else "-"

    return (
        f"{median(each.observation.mean_us for each in times):.1f}",
        shown(map(spread, times)),
        shown(map(sensitivity, times)),
        shown(sensitivity(replace(each, place="another")) for each in times),
    )


def times_beside(
    baseline: Baseline, run: Run, timer: Timer, name: str
) -> list[tuple[str, list[tuple[float, bool]]]]:
    """Return the processes of the anchors and of the baseline, and the replicates of the run, in
    microseconds.

    Beside each time stands whether the verdict is founded on it: another machine, or a host at
    another speed, is left out. Where the host alone fills the time, all are at the host speed of
    this run.
    """
    sample, before = run.samples[timer], baseline.times(timer)
    if not before:
        return []
    now = observe(sample, is_by_host=before[0].is_by_host)
    after = replace(before[0], observation=now, place=run.place)

    def judged(times: Iterable[ProcessTime]) -> list[tuple[ProcessTime, bool]]:
        return [
            (each, each.place == after.place and bool(on_same_host([each], after)))
            for each in times
        ]

    sides: list[tuple[str, list[tuple[ProcessTime, bool]]]] = []
    for anchor in baseline.anchors:
        stored = [each for each in anchor.processes if timer in each.timers]
        times = [
            replace(after, observation=each.timers[timer], place=each.place) for each in stored
        ]
        sides.append((f"anchor, {anchor.release or anchor.at[:10]}", judged(times)))
    kept = on_the_fastest_host(len(sample.replicates_us), sample.controls_us)
    pairs = zip(
        sample.replicates_us, sample.controls_us or [None] * len(sample.replicates_us), strict=True
    )
    replicates = [
        msgspec.structs.replace(now, mean_us=us, control_us=control_us) for us, control_us in pairs
    ]
    of_run = [
        (replace(after, observation=each), number in kept) for number, each in enumerate(replicates)
    ]
    unit_us = (now.control_us or 1.0) if after.is_by_host else 1.0
    return [
        (label, [(unit_us * math.exp(each.logarithm), is_judged) for each, is_judged in times])
        for label, times in (*sides, (name, judged(before)), ("this run", of_run))
        if times
    ]


# -- history ---------------------------------------------------------------------------------------


class Trend:
    """A workload on one kind of machine. Times are medians over its GPUs."""

    def __init__(self, nights: Iterable[Night]) -> None:
        self.series = {
            place: list(each) for place, each in groupby(nights, key=attrgetter("place"))
        }
        self.nights = [night for each in self.series.values() for night in each]
        self.machine, self.workload, *_ = self.nights[0]

    @property
    def cells(self) -> tuple[str | Text, ...]:
        """Return a line of the table.

        `since`: the first day that had the last verdict, the worst, without a break.
        """
        series = self.series.values()
        before, after = (us(median(nights[place].us for nights in series)) for place in (0, -1))
        change = f"{100 * median(nights[-1].us / nights[0].us - 1 for nights in series):+.1f} %"
        status = worst([nights[-1].status for nights in series if nights[-1].status is not None])
        with_it = [
            list(takewhile(lambda night: night.status is status, reversed(nights)))
            for nights in series
        ]
        since = min(nights[-1].at for nights in with_it if nights)
        return before, after, change, Text(_status(status)), str(since.date()), self.workload

    @property
    def places(self) -> list[str]:
        """Return a line for each GPU."""
        rows = [
            (place, len(nights), nights[0].at.date(), nights[-1])
            for place, nights in self.series.items()
        ]
        return [
            f"{place}: {counted(count, 'run')}, {begin} to {last.at.date()}, last {us(last.us)} us"
            for place, count, begin, last in rows
        ]

    @property
    def creep(self) -> str:
        """Return ``+0.45 % since 2026-01-25, on 2 of 4 GPUs``; empty if no GPU is above an earlier
        level.
        """
        found = [
            (find_creep([(it.logarithm, it.noise) for it in each]), each)
            for each in self.series.values()
        ]
        levels = [
            (level.change, nights[level.since].at.date())
            for level, nights in found
            if level is not None
        ]
        if not levels:
            return ""
        kind = self.nights[0].place.split()[0]  # GPU or host
        on = f", on {len(levels)} of {counted(len(found), kind)}" if len(found) > 1 else ""
        return (
            f"{100 * median(change for change, _ in levels):+.2f} % since "
            f"{min(day for _, day in levels)}{on}"
        )

    @property
    def changes(self) -> list[str]:
        """Return what changed from one night of a GPU to the next, the latest first."""
        pairs = (pair for nights in self.series.values() for pair in pairwise(nights))
        found = [
            (after.at, after.place, line)
            for before, after in pairs
            for line in _changes(before, after)
        ]
        # of one night the verdict last, which is what the rest led to
        found.sort(key=itemgetter(0, 1))
        return [cut(f"{at.date()}  {place}  {line}") for at, place, line in reversed(found)]

    @property
    def chart(self) -> Markup:
        """Return a drawing with a line for each GPU, in seconds and microseconds."""
        begin, end = (pick(night.at for night in self.nights) for pick in (min, max))
        low, high = (pick(night.us for night in self.nights) for pick in (min, max))
        box = (
            f"0 0 {max((end - begin).total_seconds(), 1):.0f} "
            f"{max(high - low, _LEAST_SPAN * high):.6g}"
        )
        points = (
            " ".join(
                f"{(night.at - begin).total_seconds():.0f},{high - night.us:.6g}" for night in each
            )
            for each in self.series.values()
        )
        lines = Markup().join(Markup('<polyline points="{}"/>').format(each) for each in points)
        return _CHART.format(cut(self.workload), box, lines)


def _changes(before: Night, after: Night) -> Iterator[str]:
    old, new = before.environment, after.environment
    yield from (f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name])
    if before.kernels != after.kernels:
        yield "other kernels"
    if before.status is not after.status:
        commits = f"commit {short_commit(before.commit)} -> {short_commit(after.commit)}"
        why = (
            in_one_line(after.verdict)
            if after.verdict is not None and after.status is not Status.PASS
            else ""
        )
        yield f"{_status(before.status)} -> {_status(after.status)}, {commits}" + (
            f": {why}" if why else ""
        )


def _status(status: Status | None) -> str:
    return "no verdict" if status is None else status.value


def trends_of(results: Iterable[Results]) -> dict[tuple[str, str], Trend]:
    """Return the GPU time of each workload that several runs have, by device and id."""
    nights = [
        (one.fingerprint.device, night)
        for one in results
        if one.fingerprint
        for night in nights_of(one)
    ]
    nights.sort(key=lambda pair: (pair[0], *pair[1][1:4]))
    groups = groupby(nights, key=lambda pair: (pair[0], pair[1].workload))
    found = {key: [night for _, night in group] for key, group in groups}
    return {key: Trend(group) for key, group in found.items() if len(group) > 1}


def history_page(
    nights: Iterable[Night], not_shown: Sequence[str], *, with_details: bool
) -> list[Section]:
    """Return a table for each kind of machine, with a line for each workload, and the creep of all
    of them.

    `with_details`: below it, the GPUs of each workload, and what changed: the environment, the
    kernels, the verdict.
    """
    sections: list[Section] = []
    of_each = [Trend(each) for _, each in groupby(nights, key=attrgetter("machine", "workload"))]
    for machine, group in groupby(of_each, key=attrgetter("machine")):
        trends = list(group)
        sections.append(
            Section(machine, columns=_HISTORY_COLUMNS, rows=[trend.cells for trend in trends])
        )
        if slower := [f"slower: {it.workload} {creep}" for it in trends if (creep := it.creep)]:
            sections.append(Section(lines=slower))
        for trend in trends if with_details else ():
            changes = first(trend.changes, _MOST_LINES)
            lines = [*(f"  {line}" for line in trend.places), *(f"    {line}" for line in changes)]
            sections.append(Section(f"workload {trend.workload}", lines, picture=trend.chart))
    if not_shown:
        sections.append(
            Section(lines=first([f"not shown: {each}" for each in not_shown], _MOST_LINES))
        )
    return sections
