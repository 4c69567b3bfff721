"""Texts about baselines: the plan of an update, a review of saved results, and what a calibration found."""

from __future__ import annotations

import math
import re
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
    Prior,
    ProcessTime,
    Review,
    Reviewed,
    TimeChange,
    decide,
    gemm_kernel,
    on_same_host,
    prior_for,
    variance_between_processes,
)
from ..run import Timer
from ..trace.kernel import configuration_text
from .page import Column, render, table_text
from .wording import counted, us

__all__ = ["Line", "calibration_text", "choices_text", "fenced", "plan_text", "review_text"]

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
_MOST_LINES = 12  # of evidence: beyond, `kernelgauge diff` of the traces is the tool

# -- an update --------------------------------------------------------------------------------------------------------


def plan_text(plan: Sequence[PlannedChange], *, width: int, color: bool) -> str:
    """Return what an update would write, file by file."""
    if not plan:
        return "nothing to update\n"
    rows = (
        (
            Text(change.action.value, style=_ACTION_STYLES[change.action]),
            change.workload,
            "\n".join(map(printable, change.details)) or "unchanged within noise: the file stays as it is",
        )
        for change in plan
    )
    return table_text([Column(is_whole=True), Column(), Column()], rows, width=width, color=color, gap=2)


# -- a review ---------------------------------------------------------------------------------------------------------


Line = tuple[str, str]  # a label, and what a review says of it


def review_text(review: Review, *, sources: Sequence[Line], width: int, color: bool) -> str:
    """Return a review for a terminal, or plain for a log."""

    style: dict[str, Any] = {"width": width, "color": color}
    moved = [("moved", f"{change}   ({counted(count, 'workload')})") for change, count in review.environment]
    title = f"{printable(review.device)}: {counted(len(review.reviewed), 'workload')}"
    parts = [render(Text(title, style="bold"), **style) + _table([*sources, *moved], **style)]
    for group, (title, group_style) in _GROUPS.items():
        found = review.of(group)
        if not found:
            continue
        heading = Text(f"{title}: {len(found)}", style=f"bold {group_style}")
        if any(each.waits for each in found):
            heading.append(f"   (--group {group.value})", style="not bold dim")
        body = render(heading, **style)
        for each in found:
            body += render(Text(f"  {printable(each.workload)}"), **style) + _table(
                _lines(each), indent="    ", **style
            )
        parts.append(body)
    return "\n".join(parts)


def fenced(text: str) -> str:
    """Return a text for a pull request, as a block of code: in it nothing is markup, a link or a mention."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}{fence}\n"


def _lines(each: Reviewed) -> Iterator[Line]:
    moved = [change for change in each.times if change.moved or change.undecided]
    for change in moved:
        yield ("time", f"{change}, inconclusive" if change.undecided else str(change))
    if alike := [_briefly(change) for change in each.times if change not in moved]:
        yield ("time", ("as before: " if moved else "") + ", ".join(alike))
    for text in each.evidence[:_MOST_LINES]:
        yield ("what", text)
    if len(each.evidence) > _MOST_LINES:
        yield ("what", f"and {len(each.evidence) - _MOST_LINES} more")
    if each.change is not None and not each.waits:
        yield ("file", "stays as it is")
    for text in each.doubts:
        yield ("refused", text)


def _briefly(change: TimeChange) -> str:
    after = "(none)" if change.after_us is None else f"{us(change.after_us)} us"
    relative = f" {100 * change.decision.change.estimate:+.1f} %" if change.decision else ""
    return f"{change.label} {after}{relative}"


def _table(lines: Iterable[Line], *, indent: str = "", width: int, color: bool) -> str:
    rows = (
        (
            Text(f"{indent}{label:<8}", style="red" if label == "refused" else "dim"),
            Text("\n".join(map(printable, text.split("\n"))), style="red" if label == "refused" else ""),
        )
        for label, text in lines
    )
    return table_text([Column(is_whole=True), Column()], rows, width=width, color=color)


# -- a calibration ----------------------------------------------------------------------------------------------------


def calibration_text(baselines: Mapping[str, Baseline], *, comparisons: int, width: int, color: bool) -> str:
    """Return one line for each timer of each workload.

    "seen from": the slowdown that is caught 95 times in 100, on the same GPU (or host of a CPU) and on another.
    """
    rows = []
    for workload, baseline in baselines.items():
        entry = baseline.entries[0]
        for timer in Timer:
            times = baseline.times(timer, entry, gemm=gemm_kernel(entry.processes[-1].controls))
            if times:
                prior = prior_for(timer, baseline.fingerprint)
                numbers = _numbers(times, prior, comparisons=comparisons, kernels=baseline.counts.launches)
                rows.append((workload, timer.label_on(baseline.fingerprint), *numbers))
    place = "host" if any(each.fingerprint.arch == "cpu" for each in baselines.values()) else "GPU"
    titles = ("us", "noise\n%", "seen\nfrom %", f"other\n{place} %")
    columns = [Column("workload"), Column("timer", is_whole=True), *(Column(title, number=True) for title in titles)]
    return table_text(columns, rows, width=width, color=color)


def _numbers(times: Sequence[ProcessTime], prior: Prior, *, comparisons: int, kernels: int) -> tuple[str, ...]:
    """Return the columns of one timer; each process stands for the one that measures next, and the median is shown."""

    def sensitivity(after: ProcessTime) -> float | None:
        return decide(times, after, prior, comparisons=comparisons, kernels=kernels).change.sensitivity

    def shown(values: Iterable[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{100 * median(known):.2f}" if known else "-"

    def spread(after: ProcessTime) -> float:
        alike = on_same_host(times, after) if after.is_host_clock else times
        return math.sqrt(variance_between_processes(alike, prior, kernels).value)

    return (
        f"{median(each.observation.mean_us for each in times):.1f}",
        shown(map(spread, times)),
        shown(map(sensitivity, times)),
        shown(sensitivity(replace(each, place="another")) for each in times),
    )


def choices_text(baselines: Mapping[str, Baseline]) -> list[str]:
    """Return the configurations that were chosen, for each workload that has more than one."""
    lines: list[str] = []
    for workload, baseline in baselines.items():
        if len(baseline.entries) < 2:
            continue
        draws = sum(entry.draws for entry in baseline.entries)
        lines.append(f"{workload}: the autotuner chose {len(baseline.entries)} launch configurations")
        for entry in baseline.entries:
            tuned = [
                f"{kernel.identity.shown} {kernel.device_time_us:.1f} us ({configuration_text(kernel.identity)})"
                for kernel in entry.kernels
                if kernel.identity.is_inductors
            ]
            lines.append(f"  {entry.draws} of {draws}: {entry.device_time_us:.1f} us  {', '.join(tuned)}")
    return [printable(line) for line in lines]
