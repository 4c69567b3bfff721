"""`kernelgauge show` and `kernelgauge diff`: any trace of torch.profiler, without a GPU."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import TraceError
from ..printable import printable
from ..trace import Trace, Window, read
from .output import Commands, Exit, say, terminal

if TYPE_CHECKING:
    from ..report.page import Section
    from ..report.traces import Comparison
    from ..trace.summary import Summary

__all__ = ["add_commands"]

_TOP = 20


def add_commands(commands: Commands) -> None:
    show = commands.add_parser(
        "show",
        help="what a trace says: its kernels, who launched them, what the GPU waited for",
        description="Explain a trace of torch.profiler (.json or .json.gz): kernels in order and in groups, launch "
        "configurations, launching ops and shapes, idle time, the host's ops.",
        allow_abbrev=False,
    )
    show.add_argument("trace", metavar="TRACE")
    _add_choices(show)
    show.set_defaults(command=_show)
    diff = commands.add_parser(
        "diff",
        help="what changed between two traces, and one sentence of conclusion",
        description="Compare two traces of torch.profiler: kernels that were fused, exchanged, launched otherwise, that "
        "vanished or appeared, what got slower or faster, and what the host's lane lost or gained.",
        allow_abbrev=False,
    )
    diff.add_argument("before", metavar="BEFORE")
    diff.add_argument("after", metavar="AFTER")
    _add_choices(diff)
    diff.add_argument("--all", action="store_true", help="unchanged kernels one by one too")
    diff.add_argument(
        "--fail-on-change",
        action="store_true",
        help="exit with 1 if other kernels ran, or the same ones were launched otherwise (times alone do not count); "
        "with 2 if a trace lacks records or kernels, so that nobody can say",
    )
    diff.set_defaults(command=_diff)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--top", type=int, default=_TOP, metavar="N", help=f"rows of a table; 0: all (default: {_TOP})")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--step", type=int, metavar="N", help="only ProfilerStep#N")
    what.add_argument("--region", metavar="NAME", help="only what ran inside record_function(NAME)")
    what.add_argument("--whole", action="store_true", help="everything at once, profiler steps or not")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for machines; times in microseconds, names whole")
    form.add_argument("--markdown", action="store_true", help="for a pull request")


def _show(options: argparse.Namespace) -> Exit:
    from ..report.traces import json_text, show_data, show_page

    summary = _summary(options.trace, options)
    if options.json:
        say(json_text(show_data(summary, name=printable(options.trace))))
    else:
        say(_formed(show_page(summary, name=Path(options.trace).name, top=_top(options)), options))
    return Exit.YES


def _diff(options: argparse.Namespace) -> Exit:
    from ..report.traces import compare_data, compare_page, compare_traces, json_text

    comparison = compare_traces(_summary(options.before, options), _summary(options.after, options))
    if options.json:
        say(json_text(compare_data(comparison, names=(printable(options.before), printable(options.after)))))
    else:
        names = (Path(options.before).name, Path(options.after).name)
        if names[0] == names[1]:
            names = (options.before, options.after)
        say(_formed(compare_page(comparison, names=names, top=_top(options), everything=options.all), options))
    return _verdict(comparison) if options.fail_on_change else Exit.YES


def _verdict(comparison: Comparison) -> Exit:
    """Fails closed: of a trace that lacks what it shows, nobody can say that nothing changed."""
    if comparison.gpu_changed:
        return Exit.NO
    sides = (comparison.before, comparison.after)
    blind = any(side.problems_inside or side.not_read or not side.lane.kernels for side in sides)
    return Exit.TROUBLE if blind else Exit.YES


def _top(options: argparse.Namespace) -> int:
    return options.top if options.top > 0 else sys.maxsize


def _summary(path: str, options: argparse.Namespace) -> Summary:
    from ..trace.summary import summarize_trace

    # A trace is a million small objects without a cycle: looking for one takes a seventh of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        trace = read(path)
        return summarize_trace(trace, _windows(trace, path, options))
    finally:
        if collecting:
            gc.enable()


def _windows(trace: Trace, path: str, options: argparse.Namespace) -> list[Window] | None:
    """What the options choose; None: all profiler steps, or the whole trace if there are none."""
    if options.whole:
        return [trace.whole()]
    if options.region is not None:
        chosen, wanted = trace.regions(options.region), f"record_function({options.region!r})"
        there = sorted({mark.name for mark in trace.annotations})
    elif options.step is not None:
        wanted = f"ProfilerStep#{options.step}"
        chosen = trace.regions(wanted)
        there = [mark.name for mark in trace.annotations if mark.name.startswith("ProfilerStep#")]
    else:
        return None
    if not chosen:
        shown = ", ".join(there[:_TOP]) + (f" and {len(there) - _TOP} more" if len(there) > _TOP else "")
        raise TraceError(f"there is no {wanted} in the trace", where=path, got=shown or "no annotations")
    return chosen


def _formed(page: list[Section], options: argparse.Namespace) -> str:
    from ..report.page import markdown, text

    if options.markdown:
        return markdown(page)
    width, color = terminal()
    return text(page, width=width, color=color)
