"""Texts about baselines: the plan of an update, a review of saved results, and what a calibration found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..errors import printable
from ..judge import evidence as e
from ..judge.baseline import Baseline, gemm_kernel
from ..judge.review import Action, Fact, Group, NotAdded, PlannedChange, Reviewed
from ..judge.timing import ProcessTime, decide, on_same_host, prior_for, variance_between_processes
from ..judge.verdict import Status, Verdict
from ..run import Timer
from .findings import reasons
from .text import Column, counted, table
from .words import Line, headline, reason_line

_ACTION_STYLES = {Action.CREATE: "green", Action.UPDATE: "yellow", Action.KEEP: "dim"}
_GROUPS = {  # heading and style
    Group.SAME_SPEED: ("same kernels, same speed", "green"),
    Group.SPEED: ("same kernels, slower or faster", "yellow"),
    Group.CONFIGURATION: ("same kernels, other launch configuration", "yellow"),
    Group.KERNELS: ("other kernels, or other counts", "yellow"),
    Group.NEW: ("new", "cyan"),
    Group.VANISHED: ("vanished", "red"),
    Group.NOT_MEASURED: ("not measured", "dim"),
}


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
    return [*lines, *(reason_line(each) for each in facts if isinstance(each, e.Evidence))]


def doubt_text(doubt: Fact | NotAdded) -> str:
    """Return what speaks against storing a run, in one line."""
    if isinstance(doubt, NotAdded):
        facts = (headline(each) if isinstance(each, Verdict) else doubt_text(each) for each in doubt.facts)
        return f"it cannot be added: {', '.join(facts)}"
    if isinstance(doubt, Verdict):
        about = f"{doubt.subject}: {doubt.status.value}  " if doubt.status.fails else ""
        return f"{about}{headline(doubt)}"
    return str(doubt) if isinstance(doubt, e.Move) else reason_line(doubt).text


def plan_table(plan: Sequence[PlannedChange]) -> Table:
    """Return what an update would write, file by file."""
    rows = (
        (
            Text(change.action.value, style=_ACTION_STYLES[change.action]),
            change.workload,
            "\n".join(line.text for line in review_lines(change.details)),
        )
        for change in plan
    )
    return table([Column(is_whole=True), Column(), Column()], rows, gap=2)


def review_page(device: str, reviewed: Sequence[Reviewed]) -> Iterator[RenderableType]:
    """Yield the review of a device's workloads, group by group."""
    yield Text(f"\n{printable(device)}: {counted(len(reviewed), 'workload')}", style="bold")
    moved = Counter(move for each in reviewed for move in each.environment)
    yield lines_table(("moved", f"{move}   ({counted(count, 'workload')})") for move, count in moved.items())
    for group, (title, style) in _GROUPS.items():
        found = [each for each in reviewed if each.group is group]
        if not found:
            continue
        yield Text(f"\n{title}: {len(found)}", style=f"bold {style}")
        for each in found:
            yield Text(f"  {printable(each.workload)}")
            doubts = [("refused", doubt_text(doubt)) for doubt in each.doubts]
            yield lines_table([*review_lines(each.evidence), *doubts], indent=4)


def lines_table(lines: Iterable[tuple[str, str]], *, indent: int = 0) -> Table:
    """Return a label and a text on each line."""
    rows = (
        (Text(f"{'':{indent}}{label:<8}", style="red" if label == "refused" else "dim"), text) for label, text in lines
    )
    return table([Column(is_whole=True), Column()], rows)


def calibration_table(baselines: Mapping[str, Baseline], *, comparisons: int) -> Table:
    """Return one line for each timer of each workload.

    "caught from": the slowdown that is caught 95 times in 100; "elsewhere": on another GPU, or on another host of a CPU.
    """
    rows = [
        (workload, timer.label_on(baseline.fingerprint), *_numbers(baseline, timer, comparisons))
        for workload, baseline in baselines.items()
        for timer in Timer
        if baseline.times(timer, baseline.entries[0])
    ]
    titles = ("us", "spread\n%", "caught\nfrom %", "else-\nwhere %")
    columns = [Column("workload"), Column("timer", is_whole=True), *(Column(title, number=True) for title in titles)]
    return table(columns, rows)


def _numbers(baseline: Baseline, timer: Timer, comparisons: int) -> tuple[str, ...]:
    """Return the columns of one timer; each process stands for the one that measures next, and the median is shown."""
    entry, kernels = baseline.entries[0], baseline.counts.launches
    times = baseline.times(timer, entry, gemm=gemm_kernel(entry.processes[-1].controls))
    prior = prior_for(timer, baseline.fingerprint)

    def sensitivity(after: ProcessTime) -> float | None:
        return decide(times, [after], prior, comparisons=comparisons, kernels=kernels).change.sensitivity

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
