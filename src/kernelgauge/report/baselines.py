"""Texts about baselines: the plan of an update, a review of saved results, and what a calibration found."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from rich.text import Text

from ..errors import printable
from ..judge import (
    Action,
    Baseline,
    Group,
    PlannedChange,
    ProcessTime,
    Reviewed,
    decide,
    gemm_kernel,
    on_same_host,
    prior_for,
    variance_between_processes,
)
from ..run import Timer
from ..trace.kernel import configuration_text
from .page import Column, render, table_text
from .wording import counted

_ACTION_STYLES = {Action.CREATE: "green", Action.UPDATE: "yellow", Action.TRIM: "red", Action.KEEP: "dim"}
_GROUPS = {  # heading and style
    Group.SAME_SPEED: ("same kernels, same speed", "green"),
    Group.SPEED: ("same kernels, slower or faster", "yellow"),
    Group.CONFIGURATION: ("same kernels, other launch configuration", "yellow"),
    Group.KERNELS: ("other kernels, or other counts", "yellow"),
    Group.NEW: ("new", "cyan"),
    Group.VANISHED: ("vanished", "red"),
    Group.NOT_MEASURED: ("not measured", "dim"),
}


def plan_text(plan: Sequence[PlannedChange], *, width: int, color: bool) -> str:
    """Return what an update would write, file by file."""
    rows = (
        (Text(change.action.value, style=_ACTION_STYLES[change.action]), change.workload, "\n".join(change.details))
        for change in plan
    )
    return table_text([Column(is_whole=True), Column(), Column()], rows, width=width, color=color, gap=2)


def review_text(device: str, reviewed: Sequence[Reviewed], *, width: int, color: bool) -> str:
    """Return the review of a device's workloads for a terminal, or plain for a log."""
    style: dict[str, Any] = {"width": width, "color": color}
    moved = Counter(change for each in reviewed for change in each.environment)
    title = f"{printable(device)}: {counted(len(reviewed), 'workload')}"
    lines = [("moved", f"{change}   ({counted(count, 'workload')})") for change, count in moved.items()]
    parts = [render(Text(title, style="bold"), **style) + lines_text(lines, **style)]
    for group, (title, group_style) in _GROUPS.items():
        found = [each for each in reviewed if each.group is group]
        if not found:
            continue
        heading = Text(f"{title}: {len(found)}", style=f"bold {group_style}")
        if any(each.change is not None and each.change.action is not Action.KEEP for each in found):
            heading.append(f"   (--group {group.value})", style="not bold dim")
        body = render(heading, **style)
        for each in found:
            lines = [(reason.label, reason.text) for reason in each.evidence]
            lines += [("refused", text) for text in each.doubts]
            body += render(Text(f"  {printable(each.workload)}"), **style) + lines_text(lines, indent=4, **style)
        parts.append(body)
    return "\n".join(parts)


def lines_text(lines: Iterable[tuple[str, str]], *, width: int, color: bool, indent: int = 0) -> str:
    """Return a label and a text on each line."""
    rows = (
        (Text(f"{'':{indent}}{label:<8}", style="red" if label == "refused" else "dim"), text) for label, text in lines
    )
    return table_text([Column(is_whole=True), Column()], rows, width=width, color=color)


def fenced(text: str) -> str:
    """Return a text for a pull request, as a block of code: in it nothing is markup, a link or a mention."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}{fence}\n"


def calibration_text(baselines: Mapping[str, Baseline], *, comparisons: int, width: int, color: bool) -> str:
    """Return one line for each timer of each workload.

    "seen from": the slowdown that is caught 95 times in 100; "elsewhere": on another GPU, or on another host of a CPU.
    """
    rows = [
        (workload, timer.label_on(baseline.fingerprint), *_numbers(baseline, timer, comparisons))
        for workload, baseline in baselines.items()
        for timer in Timer
        if baseline.times(timer, baseline.entries[0])
    ]
    titles = ("us", "noise\n%", "seen\nfrom %", "else-\nwhere %")
    columns = [Column("workload"), Column("timer", is_whole=True), *(Column(title, number=True) for title in titles)]
    return table_text(columns, rows, width=width, color=color)


def _numbers(baseline: Baseline, timer: Timer, comparisons: int) -> tuple[str, ...]:
    """Return the columns of one timer; each process stands for the one that measures next, and the median is shown."""
    entry, kernels = baseline.entries[0], baseline.counts.launches
    times = baseline.times(timer, entry, gemm=gemm_kernel(entry.processes[-1].controls))
    prior = prior_for(timer, baseline.fingerprint)

    def sensitivity(after: ProcessTime) -> float | None:
        return decide(times, after, prior, comparisons=comparisons, kernels=kernels).change.sensitivity

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


def choices_text(baselines: Mapping[str, Baseline]) -> Iterator[str]:
    """Yield the configurations that were chosen, for each workload that has more than one."""
    for workload, baseline in baselines.items():
        if len(baseline.entries) == 1:
            continue
        draws = sum(entry.draws for entry in baseline.entries)
        yield printable(f"{workload}: the autotuner chose {len(baseline.entries)} launch configurations")
        for entry in baseline.entries:
            tuned = ", ".join(
                f"{kernel.identity.shown} {kernel.device_time_us:.1f} us ({configuration_text(kernel.identity)})"
                for kernel in entry.kernels
                if kernel.identity.is_inductors
            )
            yield printable(f"  {entry.draws} of {draws}: {entry.device_time_us:.1f} us  {tuned}")
