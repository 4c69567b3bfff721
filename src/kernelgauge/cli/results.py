"""`kernelgauge report`, `merge` and `history`: commands on saved results, without a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..errors import ResultsError, StorageError, printable
from ..judge.verdict import Status
from ..results import NAME, Results, find_results, read_results
from ..run import Timer
from . import Commands, Exit, add_command, note, say, terminal

_STDOUT = "-"  # in place of a file
_GREEN = (Status.PASS, Status.IMPROVED, Status.NOT_JUDGED)
_TIMERS = {"device": Timer.DEVICE, "latency": Timer.END_TO_END, "dispatch": Timer.HOST}
_LOCATION = "a folder, or s3://BUCKET/PREFIX, gs://..., ..."


def add_commands(commands: Commands) -> None:
    report = add_command(commands, "report", _report, "make HTML, Markdown or text of results, without a GPU")
    report.epilog = (
        "FILE may be -, for standard output. Without an option: report.html and report.md beside the newest."
    )
    report.add_argument("--html", metavar="FILE", help="write one self-contained page")
    report.add_argument("--markdown", metavar="FILE", help="write Markdown for a pull request")
    report.add_argument("--print", action="store_true", help="print the summary that pytest ends with")
    merging = add_command(commands, "merge", _merge, "combine the results of shards")
    merging.epilog = (
        "Writes results.json with its traces, report.html and report.md. Exit code: 0 if everything was decided and nothing "
        "failed, 1 if not, 2 if something could not be read."
    )
    merging.add_argument("--to", required=True, type=Path, metavar="DIR", help="a new or empty folder")
    history = commands.add_parser("history", help="keep the results of many runs, and show how workloads changed")
    actions = history.add_subparsers(required=True, metavar="ACTION")
    adding = add_command(actions, "add", _add, "add results: one file for each run, which never changes")
    adding.epilog = "The same results again add nothing. To merge histories, copy them into one folder."
    adding.add_argument("--to", required=True, metavar="HISTORY", help=_LOCATION)
    about = "show how workloads changed, when, and what changed in their environment"
    showing = add_command(actions, "show", _show, about)
    showing.add_argument("history", metavar="HISTORY", help=_LOCATION)
    showing.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="show details: a part of an id, which may have * and ?"
    )
    showing.add_argument("--timer", choices=tuple(_TIMERS), default="device", help="default: device")
    showing.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    saved = "a results.json, or a folder with one or more"
    for parser in (report, merging, adding):
        parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help=saved)


def _refusal(file: Path, error: ResultsError) -> str:
    return f"{file}: {error.what}" + (f" (got {error.got})" if error.got else "")


# -- report -----------------------------------------------------------------------------------------------------------


def _report(options: argparse.Namespace) -> Exit:
    from ..report.html import html
    from ..report.markdown import summary_markdown
    from ..results.files import write_atomically

    read = sorted(
        ((read_results(file), file.parent) for file in find_results(options.results)),
        key=lambda each: each[0].started_at,
    )
    results = [each for each, _ in read]
    targets = {options.html: html, options.markdown: summary_markdown}
    if not any(targets) and not options.print:
        beside = read[-1][1]
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
        say(_summary(results))
    return Exit.YES


def _summary(several: Iterable[Results]) -> str:
    """Return the summaries that runs of pytest end with, with every verdict that fails."""
    from ..report.terminal import summary

    return "\n\n".join(summary(each, **terminal(), failures=True) for each in several)


# -- merge ------------------------------------------------------------------------------------------------------------


def _merge(options: argparse.Namespace) -> Exit:
    from ..report.html import html
    from ..report.markdown import summary_markdown
    from ..report.wording import counts_text, overall
    from ..report.words import with_words
    from ..results import encode_results
    from ..results.files import write_atomically
    from ..results.merge import copy_traces, join, missing_shards, with_traces_in

    target: Path = options.to
    if target.exists() and (not target.is_dir() or any(target.iterdir())):  # earlier files would pass for new ones
        raise StorageError("the folder is not empty", where=printable(str(target)), expected="a new or empty folder")
    parts: list[Results] = []
    refused: list[str] = []
    for file in find_results(options.results):
        try:
            parts.append(with_traces_in(read_results(file), str(file.parent)))
        except ResultsError as error:
            refused.append(_refusal(file, error))
            note(f"refused: {refused[-1]}")
    if not parts:
        raise ResultsError("there is nothing to merge", expected="a results.json of a run, or folders that hold some")
    whole = copy_traces(join(parts), target)
    write_atomically(target / NAME, encode_results(with_words(whole)))
    if problems := (*refused, *missing_shards(whole)):  # not in the file: a shard may come later
        warnings = (*whole.warnings, *problems)
        whole = msgspec.structs.replace(whole, warnings=warnings, exit_status=max(whole.exit_status, Exit.NO))
    write_atomically(target / "report.md", summary_markdown([whole]).encode())
    write_atomically(target / "report.html", html([whole]).encode())
    word = overall([whole])
    say("\n".join([_summary([whole]), ", ".join([word, *counts_text([whole])])]))
    note(f"written: {target}")
    if refused:
        return Exit.TROUBLE
    return Exit.YES if word in _GREEN else Exit.NO


# -- history ----------------------------------------------------------------------------------------------------------


def _add(options: argparse.Namespace) -> Exit:
    from ..results.files import open_location
    from ..results.history import add_to_history

    open_location(options.to)  # so that an invalid address is not reported for each of the results
    code = Exit.YES
    for file in find_results(options.results):
        try:
            key = add_to_history(read_results(file), options.to)
        except ResultsError as error:
            code = Exit.NO
            note(f"refused: {_refusal(file, error)}")
        else:
            say(f"added: {printable(key)}")
    return code


def _show(options: argparse.Namespace) -> Exit:
    from ..report.trend import trend_html, trend_text
    from ..results.files import write_atomically
    from ..results.history import read_nights

    nights, not_shown = read_nights(options.history, timer=_TIMERS[options.timer], patterns=options.workloads)
    if options.html:
        write_atomically(Path(options.html), trend_html(nights, not_shown).encode())
        note(f"written: {options.html}")
    if not nights:
        say("no workload to show")
    if text := trend_text(nights, not_shown, with_details=bool(options.workloads), **terminal()):
        say(text)
    return Exit.YES if nights else Exit.NO
