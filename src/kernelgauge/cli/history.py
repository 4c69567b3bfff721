"""`kernelgauge history`: add results to a history, and show how workloads changed over it."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path

from ..errors import KernelgaugeError, StorageError, printable
from .output import Commands, Exit, check_destinations, note, say, terminal

__all__ = ["add_commands"]

_MOST_COLUMNS = 80
_TIMERS = {"device": "device_time", "latency": "end_to_end", "dispatch": "host_dispatch"}
_LOCATION = "a folder, or s3://BUCKET/PREFIX, gs://..., ..."


def add_commands(commands: Commands) -> None:
    history = commands.add_parser("history", help="keep the results of many runs, and show how workloads changed")
    actions = history.add_subparsers(required=True, metavar="ACTION")
    adding = actions.add_parser(
        "add",
        help="add results to a history",
        description="Add results to a history: one file for each run and GPU, which never changes. The same results again "
        "add nothing. To merge histories, copy them into one folder.",
        allow_abbrev=False,
    )
    adding.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="a results.json, or a folder with one or more"
    )
    adding.add_argument("--to", required=True, metavar="HISTORY", help=_LOCATION)
    adding.set_defaults(command=_add)
    showing = actions.add_parser(
        "show",
        help="show how workloads changed, when, and what changed in their environment",
        description="Print one line for each workload. With WORKLOAD, print the details of each too. Change points are "
        "advisory.",
        allow_abbrev=False,
    )
    showing.add_argument("history", metavar="HISTORY", help=_LOCATION)
    showing.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="a glob, or a part of a workload's id")
    showing.add_argument("--timer", choices=tuple(_TIMERS), default="device", help="default: device")
    showing.add_argument(
        "--since", type=_date, metavar="DATE", help="leave out earlier runs; for example 2026-11-01, UTC"
    )
    showing.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    showing.set_defaults(command=_show)


def _date(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a date such as 2026-11-01, got {text!r}") from None


def _add(options: argparse.Namespace) -> Exit:
    from ..results import find_results, read_results
    from ..results.history import add_to_history, open_history

    open_history(options.to)  # so that an invalid address is not reported for each of the results
    code = Exit.YES
    for path in options.results:
        for file in find_results(path):
            try:
                added = add_to_history(read_results(file), options.to)
                for key in added.written:
                    say(f"added: {printable(key)}")
                for key in added.there:
                    say(f"already there: {printable(key)}")
            except StorageError:  # the next file would fail too
                raise
            except KernelgaugeError as error:
                code = Exit.NO
                details = "; ".join(f"{label}: {text}" for label, text in error.details)
                say(printable(f"refused: {file}: {error.what}" + (f" ({details})" if details else "")))
    return code


def _show(options: argparse.Namespace) -> Exit:
    from ..files import write_atomically
    from ..report.trend import trend_html, trend_lines
    from ..report.wording import counted
    from ..results.history import read_trends
    from ..run import Timer

    check_destinations([options.html] if options.html else [])
    timer = Timer(_TIMERS[options.timer])
    trends = read_trends(options.history, timer=timer, patterns=options.workloads, since=options.since)
    if options.html:
        write_atomically(Path(options.html), trend_html(trends).encode())
        note(f"written: {options.html}")
    if not trends.charts:
        say(f"no workload to show: {counted(trends.files, 'file')} of the history read")
    width = min(_MOST_COLUMNS, terminal()[0])
    for line in trend_lines(trends, with_details=bool(options.workloads), width=width):
        say(line.rstrip())
    return Exit.YES if trends.charts else Exit.NO
