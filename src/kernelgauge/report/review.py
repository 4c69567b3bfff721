"""A review: what moved between the baselines and the saved results, as text for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..judge import Ancestor, Group, Review, Reviewed, SinceFirst, TimeChange
from ..printable import printable
from ..revision import short
from .page import Column, Grid, Section, markdown, unlinked
from .terminal import render
from .wording import change_text, counted, us

__all__ = ["Source", "commit_text", "review_markdown", "review_text"]

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
_COLUMNS = (Column("workload"), Column("what"), Column("since the first accepted"), Column("refused"))


@dataclass(frozen=True)
class Source:
    """Where a review comes from: results and when they were measured, or what was left aside."""

    label: str
    text: str


@dataclass(frozen=True)
class _Line:
    label: str
    text: str
    style: str = ""


def review_text(review: Review, *, sources: Sequence[Source], width: int, color: bool) -> str:
    """For a terminal, or plain for a log."""
    head = [_Line(each.label, each.text) for each in (*sources, *_recorded(review), *_environment(review))]
    parts = [_printed(Text(_title(review), style="bold"), width, color) + _rows(head, width, color, indent="")]
    for group in Group:
        found = review.of(group)
        if not found:
            continue
        waiting = any(each.waits for each in found)
        title = Text(f"{group.heading}: {len(found)}", style=f"bold {_STYLES[group]}")
        title.append(f"   (--group {group.value})" if waiting else "", style="not bold dim")
        body = _printed(title, width, color)
        for each in found:
            body += _printed(Text(f"  {printable(each.workload)}"), width, color)
            body += _rows(list(_lines(each)), width, color, indent="    ")
        parts.append(body)
    return "\n".join(parts)


def review_markdown(review: Review, *, sources: Sequence[Source]) -> str:
    """For a pull request: nothing in it is markup, a link, or a mention."""
    head = tuple(f"{each.label}: {each.text}" for each in (*sources, *_recorded(review), *_environment(review)))
    sections = [Section(_title(review), head)]
    for group in Group:
        found = review.of(group)
        if found:
            rows = tuple(_cells(each) for each in found)
            sections.append(Section(f"{group.heading}: {len(found)}", grid=Grid(_COLUMNS, rows)))
    return unlinked(markdown(sections))


def _title(review: Review) -> str:
    return f"{printable(review.device)}: {counted(len(review.reviewed), 'workload')}"


def _environment(review: Review) -> Iterator[Source]:
    for change, workloads in review.environment:
        yield Source("moved", f"{change}   ({counted(workloads, 'workload')})")


def _recorded(review: Review) -> Iterator[Source]:
    """When the baselines were recorded, and from which commits."""
    for recorded, workloads in review.recorded[:_MOST_RECORDED]:
        commit = commit_text(recorded.commit if recorded else None)
        day = _day(recorded.at if recorded else None)
        yield Source("recorded", f"{day}, commit {commit}   ({counted(workloads, 'workload')})")
    if len(review.recorded) > _MOST_RECORDED:
        yield Source("recorded", f"and {counted(len(review.recorded) - _MOST_RECORDED, 'other time')}")


def _cells(each: Reviewed) -> tuple[str, ...]:
    by_label: dict[str, list[str]] = {"": [], "since": [], "refused": []}
    for line in _lines(each):
        by_label[line.label if line.label in by_label else ""].append(line.text)
    return (each.workload, *("\n".join(by_label[label]) for label in ("", "since", "refused")))


def _lines(each: Reviewed) -> Iterator[_Line]:
    decided = [change for change in each.times if not (change.moved or change.undecided)]
    for change in each.times:
        if change not in decided:
            yield _Line("time", _in_full(change))
    if decided:
        yield _Line(
            "time", ("as before: " if len(decided) < len(each.times) else "") + ", ".join(map(_briefly, decided))
        )
    for text in each.evidence[:_MOST_LINES]:
        yield _Line("what", text)
    if len(each.evidence) > _MOST_LINES:
        yield _Line("what", f"and {len(each.evidence) - _MOST_LINES} more")
    if each.change is not None and not each.waits:
        yield _Line("file", "stays as it is")
    if each.since_first is not None:
        yield _Line("since", _since(each.since_first))
    for text in each.refused:
        yield _Line("refused", text, "red")


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


def _since(since: SinceFirst) -> str:
    parts = [
        f"{change.timer.label} {change_text(change.before_us, change.after_us)}"
        for change in since.times
        if change.before_us is not None and change.after_us is not None
    ]
    if since.first.launches != since.launches:
        parts.append(f"launches {since.first.launches} -> {since.launches}")
    if since.other_configuration:
        parts.append("its kernels or launch configurations were others")
    return f"{_when(since.first)}, {counted(since.accepted, 'acceptance')} ago: {'; '.join(parts)}"


def _when(first: Ancestor) -> str:
    """When the first was recorded, and with what."""
    commit = [f"commit {commit_text(first.commit)}"] if first.commit else []
    versions = (("driver", first.driver), ("CUDA", first.cuda), ("torch", first.torch), ("triton", first.triton))
    known = [*commit, *(f"{name} {version}" for name, version in versions if version)]
    return f"{_day(first.at)} ({', '.join(known)})"


def commit_text(commit: str | None) -> str:
    return short(commit) if commit else "not known"


def _day(at: str | None) -> str:
    """Of a time in ISO 8601."""
    return at.partition("T")[0] if at else "a day that is not known"


def _rows(lines: Sequence[_Line], width: int, color: bool, *, indent: str) -> str:
    if not lines:
        return ""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        text = "\n".join(map(printable, line.text.split("\n")))
        table.add_row(Text(f"{indent}{line.label:<8}", style=line.style or "dim"), Text(text, style=line.style))
    return render(table, width=width, color=color)


def _printed(text: Text, width: int, color: bool) -> str:
    stream = StringIO()
    Console(
        file=stream, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    ).print(text, overflow="fold")
    return stream.getvalue()
