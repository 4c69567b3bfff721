"""`kernelgauge report` and `history`: commands on saved results, without a GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..results import find_results, read_results
from ..run import Timer
from . import Commands, Exit, add_command, note, say, terminal

_STDOUT = "-"  # in place of a file
_TIMERS = {"device": Timer.DEVICE, "latency": Timer.END_TO_END, "dispatch": Timer.HOST}


def add_commands(commands: Commands) -> None:
    report = add_command(commands, "report", _report, "make HTML, Markdown or text of results, without a GPU")
    report.epilog = (
        "FILE may be -, for standard output. Without an option: report.html and report.md beside the newest."
    )
    report.add_argument("--html", metavar="FILE", help="write one self-contained page")
    report.add_argument("--markdown", metavar="FILE", help="write Markdown for a pull request")
    report.add_argument("--print", action="store_true", help="print the summary that pytest ends with")
    report.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="a results.json, or a folder with some"
    )
    about = "show how workloads changed over many runs, when, and what changed in their environment"
    history = add_command(commands, "history", _history, about)
    where = "a folder with a results.json of each run, under any names; or s3://BUCKET/PREFIX, gs://..., ..."
    history.add_argument("history", metavar="HISTORY", help=where)
    details = "show details: a part of an id, which may have * and ?"
    history.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=details)
    history.add_argument("--timer", choices=tuple(_TIMERS), default="device", help="default: device")
    history.add_argument("--html", metavar="FILE", help="also write one self-contained page")


def _report(options: argparse.Namespace) -> Exit:
    from ..report.html import html
    from ..report.summary import summary, summary_markdown
    from ..results.files import write_atomically

    files = find_results(options.results)
    results = sorted(map(read_results, files), key=lambda each: each.started)
    targets = {options.html: html, options.markdown: summary_markdown}
    if not any(targets) and not options.print:
        beside = max(files, key=lambda file: read_results(file).started).parent
        targets = {str(beside / "report.html"): html, str(beside / "report.md"): summary_markdown}
    # All are made before any is written: an error leaves nothing half done.
    for target, content in [(target, form(results).encode()) for target, form in targets.items() if target]:
        if target == _STDOUT:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        else:
            write_atomically(Path(target), content)
            note(f"written: {target}")
    if options.print:
        say("\n\n".join(summary(each, **terminal(), failures=True) for each in results))
    return Exit.YES


def _history(options: argparse.Namespace) -> Exit:
    from ..report.stored import history_html, history_text
    from ..results.files import write_atomically
    from ..results.history import read_nights

    nights, not_shown = read_nights(options.history, timer=_TIMERS[options.timer], patterns=options.workloads)
    if options.html:
        write_atomically(Path(options.html), history_html(nights, not_shown).encode())
        note(f"written: {options.html}")
    if not nights:
        say("no workload to show")
    if text := history_text(nights, not_shown, with_details=bool(options.workloads), **terminal()):
        say(text)
    return Exit.YES if nights else Exit.NO
