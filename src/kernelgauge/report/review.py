"""A review: what moved between the baselines and the saved results, as text for a terminal and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ..errors import printable
from ..judge import Group, Review, Reviewed, TimeChange
from .page import Column, render, table_text
from .wording import counted, short_commit, us

__all__ = ["Line", "review_markdown", "review_text"]

_STYLES = {
    Group.SAME_SPEED: "green",
    Group.SPEED: "yellow",
    Group.CONFIGURATION: "yellow",
    Group.KERNELS: "yellow",
    Group.NEW: "cyan",
    Group.VANISHED: "red",
    Group.NOT_MEASURED: "dim",
}
_MOST_LINES = 12  # of evidence: beyond, `kernelgauge diff` of the traces is the tool
_MOST_RECORDED = 5
_MARKDOWN_WIDTH = 100


@dataclass(frozen=True)
class Line:
    """One line with a label: where a review comes from, and what it found."""

    label: str
    text: str
    style: str = ""


def review_text(review: Review, *, sources: Sequence[Line], width: int, color: bool) -> str:
    """Return a review for a terminal, or plain for a log."""

    style: dict[str, Any] = {"width": width, "color": color}
    title = f"{printable(review.device)}: {counted(len(review.reviewed), 'workload')}"
    parts = [render(Text(title, style="bold"), **style) + _table([*sources, *_origins(review)], **style)]
    for group in Group:
        found = review.of(group)
        if not found:
            continue
        heading = Text(f"{group.heading}: {len(found)}", style=f"bold {_STYLES[group]}")
        if any(each.waits for each in found):
            heading.append(f"   (--group {group.value})", style="not bold dim")
        body = render(heading, **style)
        for each in found:
            body += render(Text(f"  {printable(each.workload)}"), **style) + _table(
                _lines(each), indent="    ", **style
            )
        parts.append(body)
    return "\n".join(parts)


def review_markdown(review: Review, *, sources: Sequence[Line]) -> str:
    """Return the text for a pull request, as a block of code: in it nothing is markup, a link or a mention."""
    text = review_text(review, sources=sources, width=_MARKDOWN_WIDTH, color=False)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}{fence}\n"


def _origins(review: Review) -> Iterator[Line]:
    """Yield when the baselines were recorded, from which commits, and what changed in the environment since."""
    for recorded, workloads in review.recorded[:_MOST_RECORDED]:
        commit = short_commit(recorded.commit if recorded else None)
        day = recorded.at.partition("T")[0] if recorded and recorded.at else "a day that is not known"
        yield Line("recorded", f"{day}, commit {commit}   ({counted(workloads, 'workload')})")
    if len(review.recorded) > _MOST_RECORDED:
        yield Line("recorded", f"and {counted(len(review.recorded) - _MOST_RECORDED, 'other time')}")
    for change, workloads in review.environment:
        yield Line("moved", f"{change}   ({counted(workloads, 'workload')})")


def _lines(each: Reviewed) -> Iterator[Line]:
    decided = [change for change in each.times if not (change.moved or change.undecided)]
    for change in each.times:
        if change not in decided:
            yield Line("time", _in_full(change))
    if decided:
        others = "as before: " if len(decided) < len(each.times) else ""
        yield Line("time", others + ", ".join(map(_briefly, decided)))
    for text in each.evidence[:_MOST_LINES]:
        yield Line("what", text)
    if len(each.evidence) > _MOST_LINES:
        yield Line("what", f"and {len(each.evidence) - _MOST_LINES} more")
    if each.change is not None and not each.waits:
        yield Line("file", "stays as it is")
    for text in each.refused:
        yield Line("refused", text, "red")


def _briefly(change: TimeChange) -> str:
    after = "(none)" if change.after_us is None else f"{us(change.after_us)} us"
    relative = f" {100 * change.decision.change.estimate:+.1f} %" if change.decision else ""
    return f"{change.timer.label} {after}{relative}"


def _in_full(change: TimeChange) -> str:
    before, after = ("(none)" if each is None else us(each) for each in (change.before_us, change.after_us))
    said = f"{change.timer.label} {before} -> {after} us"
    if change.decision is None:
        return said
    measured = change.decision.change
    if change.not_judged:
        return f"{said}  not compared: {change.decision.reason}"
    at_equal_speed = " at equal host speed" if change.decision.before[0].is_by_host else ""
    said += f"  {100 * measured.estimate:+.1f} %{at_equal_speed}"
    if measured.low is None or measured.high is None:
        return f"{said} [no interval]"
    interval = f"{100 * measured.low:+.1f}, {100 * measured.high:+.1f}"
    return f"{said} [{100 * measured.confidence:.2f} % CI {interval}]  {change.decision.status.value}"


def _table(lines: Iterable[Line], *, indent: str = "", width: int, color: bool) -> str:
    rows = (
        (
            Text(f"{indent}{line.label:<8}", style=line.style or "dim"),
            Text("\n".join(map(printable, line.text.split("\n"))), style=line.style),
        )
        for line in lines
    )
    return table_text([Column(is_whole=True), Column()], rows, width=width, color=color)
