"""`kernelgauge history` and `kernelgauge trend`: results of many runs, and what became of a workload's time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ..argument_types import at_least
from ..errors import KernelgaugeError, StorageError
from ..printable import printable
from .output import STDOUT, Commands, Exit, check_destinations, say, terminal

if TYPE_CHECKING:
    from ..report.trend import Trends

__all__ = ["add_commands"]

_MOST_COLUMNS = 80
_MOST_CHARTS = 20
_TIMERS = {"device": "device_time", "latency": "end_to_end", "dispatch": "host_dispatch"}


def add_commands(commands: Commands) -> None:
    history = commands.add_parser("history", help="keep the results of many runs, as files in a folder or a bucket")
    actions = history.add_subparsers(required=True, metavar="ACTION")
    adding = actions.add_parser(
        "add",
        help="add results to a history",
        description="Add results to a history: a file for each run and GPU that is never changed. The same results again "
        "add nothing. Histories are merged by copying them into one folder.",
        allow_abbrev=False,
    )
    adding.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="a results.json, or a folder that holds one, or folders that do",
    )
    adding.add_argument("--to", required=True, metavar="HISTORY", help="a folder, or s3://BUCKET/PREFIX, gs://..., ...")
    adding.set_defaults(command=_add)
    trend = commands.add_parser(
        "trend",
        help="how workloads changed over a history, what changed around them, and when",
        description="Without WORKLOAD, a table of all workloads; with it, a chart of each. Change points are advisory.",
        allow_abbrev=False,
    )
    trend.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="a glob, or a part of a workload's id")
    trend.add_argument(
        "--history", required=True, metavar="HISTORY", help="a folder, or s3://BUCKET/PREFIX, gs://..., ..."
    )
    trend.add_argument("--timer", choices=tuple(_TIMERS), default="device", help="default: device")
    trend.add_argument("--since", type=_date, metavar="DATE", help="such as 2026-11-01, in UTC")
    trend.add_argument("--gpu", default="", metavar="DIGEST", help="one GPU: how its digest starts; or cpu")
    trend.add_argument("--html", metavar="FILE", help="one page that needs no other file")
    trend.add_argument("--json", metavar="FILE", help="all values; - is the standard output")
    trend.add_argument(
        "--limit", type=at_least(1), metavar="N", help=f"workloads to print; default: all, {_MOST_CHARTS} charts"
    )
    trend.set_defaults(command=_trend)


def _date(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a date such as 2026-11-01, got {text!r}") from None


def _add(options: argparse.Namespace) -> Exit:
    from ..history import add_to_history
    from ..history.places import place
    from ..results_file import find_results, read_results

    place(options.to)  # an address that is none is not the results' fault: it would be told of each
    refused = False
    for path in options.results:
        for file in find_results(path):
            try:
                say("\n".join(add_to_history(read_results(file), options.to).lines))
            except StorageError:  # what cannot be written now cannot be written for the next either
                raise
            except KernelgaugeError as error:
                refused = True
                named = path if file.parent == path else file  # as it was typed, where that says which
                details = "; ".join(f"{label}: {text}" for label, text in error.details)
                say(printable(f"refused: {named}: {error.what}" + (f" ({details})" if details else "")))
    return Exit.NO if refused else Exit.YES


def _trend(options: argparse.Namespace) -> Exit:
    from ..history.trend import trends
    from ..run import Timer

    check_destinations([where for where in (options.html, options.json) if where])
    found = trends(
        options.history,
        now=datetime.now(timezone.utc),
        timer=Timer(_TIMERS[options.timer]),
        patterns=options.workloads,
        since=options.since,
        gpu=options.gpu,
    )
    _write(options, found)
    if options.json != STDOUT:
        say("\n".join(_lines(options, found)))
    return Exit.YES if found.charts else Exit.NO


def _lines(options: argparse.Namespace, found: Trends) -> Iterator[str]:
    from ..report.trend_text import chart_lines, letters, set_aside_lines, table_lines
    from ..report.wording import counted

    shown = letters(sys.stdout.encoding or "utf-8")
    width = min(_MOST_COLUMNS, terminal()[0])
    limit = options.limit or (_MOST_CHARTS if options.workloads else len(found.charts))
    some = found.charts[:limit]
    if not found.charts:
        yield f"no workload to show: {counted(found.entries, 'file')} of the history read{_but_none_of(options)}"
    elif not options.workloads:
        yield from table_lines(some, width=width, letters=shown)
    for chart in some if options.workloads else ():
        yield from chart_lines(chart, found.timer.label, width=width, letters=shown)
        yield ""
    if len(found.charts) > limit:
        yield f"and {len(found.charts) - limit} more   (--limit {len(found.charts)})"
    yield from set_aside_lines(found)


def _but_none_of(options: argparse.Namespace) -> str:
    """What was asked for, where nothing is of it; empty if all was."""
    asked = [f"{pattern!r}" for pattern in options.workloads]
    asked += [f"--gpu {options.gpu}"] if options.gpu else []
    asked += [f"--since {options.since:%Y-%m-%d}"] if options.since else []
    asked += [f"--timer {options.timer}"] if options.timer != "device" else []
    return printable(f", and nothing of {', '.join(asked)}") if asked else ""


def _write(options: argparse.Namespace, found: Trends) -> None:
    from ..baselines import write_atomically

    made: list[tuple[str, bytes]] = []
    if options.html:
        from ..report.trend_html import trend_html

        made.append((options.html, trend_html(found).encode()))
    if options.json:
        from ..report.trend_json import trend_json

        made.append((options.json, trend_json(found)))
    for where, content in made:
        if where == STDOUT:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
            continue
        write_atomically(Path(where), content)
        print(f"written: {printable(where)}", file=sys.stderr)  # noqa: T201
