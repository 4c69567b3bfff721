"""`kernelgauge history add` and `kernelgauge trend`."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path

from ..errors import KernelgaugeError, StorageError
from ..printable import printable
from .output import Commands, Exit, check_destinations, say, terminal

__all__ = ["add_commands"]

_MOST_COLUMNS = 80
_TIMERS = {"device": "device_time", "latency": "end_to_end", "dispatch": "host_dispatch"}
_LOCATION = "a folder, or s3://BUCKET/PREFIX, gs://..., ..."


def add_commands(commands: Commands) -> None:
    history = commands.add_parser("history", help="keep the results of many runs, as files in a folder or a bucket")
    actions = history.add_subparsers(required=True, metavar="ACTION")
    adding = actions.add_parser(
        "add",
        help="add results to a history",
        description="Add results to a history: a file for each run and GPU that is never changed. The same results again "
        "add nothing. Copy histories into one folder to merge them.",
        allow_abbrev=False,
    )
    adding.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="a results.json, or a folder with some"
    )
    adding.add_argument("--to", required=True, metavar="HISTORY", help=_LOCATION)
    adding.set_defaults(command=_add)
    trend = commands.add_parser(
        "trend",
        help="how workloads changed over a history, what changed around them, and when",
        description="A line for each workload; with WORKLOAD, also the details of each. Change points are advisory.",
        allow_abbrev=False,
    )
    trend.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="a glob, or a part of a workload's id")
    trend.add_argument("--history", required=True, metavar="HISTORY", help=_LOCATION)
    trend.add_argument("--timer", choices=tuple(_TIMERS), default="device", help="default: device")
    trend.add_argument("--since", type=_date, metavar="DATE", help="such as 2026-11-01, in UTC")
    trend.add_argument("--html", metavar="FILE", help="also write one page that needs no other file")
    trend.set_defaults(command=_trend)


def _date(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a date such as 2026-11-01, got {text!r}") from None


def _add(options: argparse.Namespace) -> Exit:
    from ..history import add_to_history, open_history
    from ..results import find_results, read_results

    open_history(options.to)  # an invalid address is not the fault of any of the results
    refused = False
    for path in options.results:
        for file in find_results(path):
            try:
                added = add_to_history(read_results(file), options.to)
                for key in added.written:
                    say(f"added: {printable(key)}")
                for key in added.there:
                    say(f"was there: {printable(key)}")
            except StorageError:  # what cannot be written now cannot be written for the next either
                raise
            except KernelgaugeError as error:
                refused = True
                named = path if file.parent == path else file  # as it was typed, where that says which
                details = "; ".join(f"{label}: {text}" for label, text in error.details)
                say(printable(f"refused: {named}: {error.what}" + (f" ({details})" if details else "")))
    return Exit.NO if refused else Exit.YES


def _trend(options: argparse.Namespace) -> Exit:
    from ..files import write_atomically
    from ..history import read_trends
    from ..report.trend import trend_html, trend_lines
    from ..report.wording import counted
    from ..run import Timer

    check_destinations([options.html] if options.html else [])
    timer = Timer(_TIMERS[options.timer])
    found = read_trends(options.history, timer=timer, patterns=options.workloads, since=options.since)
    if options.html:
        write_atomically(Path(options.html), trend_html(found).encode())
        print(f"written: {printable(options.html)}", file=sys.stderr)  # noqa: T201
    width, encoding = min(_MOST_COLUMNS, terminal()[0]), sys.stdout.encoding or "utf-8"
    lines = [*trend_lines(found, with_details=bool(options.workloads), width=width, encoding=encoding)]
    if not found.charts:
        asked = [*map(repr, options.workloads), *([f"--since {options.since:%Y-%m-%d}"] if options.since else [])]
        nothing = f", and nothing of {', '.join(asked)}" if asked else ""
        lines.insert(0, printable(f"no workload to show: {counted(found.files, 'file')} of the history read{nothing}"))
    say("\n".join(line.rstrip() for line in lines))
    return Exit.YES if found.charts else Exit.NO
