"""`kernelgauge report`, `merge` and `history`: commands on saved results, without a GPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from ..errors import KernelgaugeError, ResultsError, StorageError, printable
from ..judge import Status
from ..results import NAME, Results, WorkloadResult, find_results, read_results
from ..run import Timer
from . import Commands, Exit, note, say, terminal

__all__ = ["add_commands"]

_STDOUT = "-"  # in place of a file
_TIMERS = {"device": "device_time", "latency": "end_to_end", "dispatch": "host_dispatch"}
_LOCATION = "a folder, or s3://BUCKET/PREFIX, gs://..., ..."


def add_commands(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="write results as HTML, Markdown or text",
        description="Make reports of results.json files, without a GPU. FILE may be -, for standard output. Without an "
        "option, write report.html and report.md beside the newest of RESULTS.",
        allow_abbrev=False,
    )
    _add_results(report)
    report.add_argument("--html", metavar="FILE", help="write one self-contained page")
    report.add_argument("--markdown", metavar="FILE", help="write Markdown for a pull request")
    report.add_argument("--print", action="store_true", help="print the summary that pytest ends with")
    report.set_defaults(command=_report)
    merging = commands.add_parser(
        "merge",
        help="combine the results of shards and machines",
        description="Join the results of shards, and put those of other GPUs side by side. Writes results.json (one "
        "machine) or MACHINE/results.json (several), with their traces, report.html and report.md. "
        "Exit code: 0 if everything was decided and nothing failed, 1 if not, 2 if something could not be read.",
        allow_abbrev=False,
    )
    _add_results(merging)
    merging.add_argument("--to", required=True, type=Path, metavar="DIR", help="a new or empty folder")
    merging.set_defaults(command=_merge)
    history = commands.add_parser("history", help="keep the results of many runs, and show how workloads changed")
    actions = history.add_subparsers(required=True, metavar="ACTION")
    adding = actions.add_parser(
        "add",
        help="add results to a history",
        description="Add results to a history: one file for each run and GPU, which never changes. The same results again "
        "add nothing. To merge histories, copy them into one folder.",
        allow_abbrev=False,
    )
    _add_results(adding)
    adding.add_argument("--to", required=True, metavar="HISTORY", help=_LOCATION)
    adding.set_defaults(command=_add)
    showing = actions.add_parser(
        "show",
        help="show how workloads changed, when, and what changed in their environment",
        description="Print one line for each workload. With WORKLOAD, print the details of each too.",
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


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="a results.json, or a folder with one or more"
    )


def _find(paths: Iterable[Path]) -> list[Path]:
    return [file for path in paths for file in find_results(path)]


# -- report -----------------------------------------------------------------------------------------------------------


def _report(options: argparse.Namespace) -> Exit:
    from ..report.html import html
    from ..report.markdown import summary_markdown
    from ..results.files import write_atomically

    read = sorted(((read_results(file), file) for file in _find(options.results)), key=lambda each: each[0].started_at)
    results = [each for each, _ in read]
    wanted = {"html": options.html, "markdown": options.markdown}
    if not any(wanted.values()) and not options.print:
        beside = read[-1][1].parent
        wanted = {"html": str(beside / "report.html"), "markdown": str(beside / "report.md")}
    places = {form: place for form, place in wanted.items() if place}
    if any(os.path.realpath(place) == os.path.realpath(file) for place in places.values() for _, file in read):
        raise ResultsError("a report is not written over the results", got=printable(", ".join(places.values())))
    # All are made before any is written: an error leaves nothing half done.
    contents = [
        (place, html(results) if form == "html" else summary_markdown(results)) for form, place in places.items()
    ]
    for place, content in contents:
        if place == _STDOUT:
            sys.stdout.buffer.write(content.encode())
            sys.stdout.flush()
        else:
            write_atomically(Path(place), content.encode())
            note(f"written: {place}")
    if options.print:
        say("\n\n".join(map(_summary, results)))
    return Exit.YES


def _summary(results: Results) -> str:
    """Return the summary that the run of pytest ended with, and every verdict that fails."""
    from ..report.terminal import summary

    width, color = terminal()
    return summary(results, width=width, color=color, failures=True)


# -- merge ------------------------------------------------------------------------------------------------------------


def _merge(options: argparse.Namespace) -> Exit:
    from ..report.html import html
    from ..report.markdown import summary_markdown
    from ..report.page import Section, markdown, text
    from ..results import encode_results, folder_names
    from ..results.files import write_atomically
    from ..results.merge import copy_traces, find_problems, merge, outcome, with_trace_prefix

    target: Path = options.to
    if target.exists() and (not target.is_dir() or any(target.iterdir())):  # earlier files would pass for new ones
        raise StorageError("the folder is not empty", where=printable(str(target)), expected="a new or empty folder")
    parts: list[Results] = []
    folders: list[Path] = []
    refused: list[str] = []
    for file in _find(options.results):
        try:
            results = read_results(file)
        except ResultsError as error:
            refused.append(f"{file}: {error.what}" + (f" (got {error.got})" if error.got else ""))
            note(f"refused: {refused[-1]}")
        else:
            parts.append(with_trace_prefix(results, f"{len(folders)}/"))  # the place of its folder in `folders`
            folders.append(file.parent)
    if not parts:
        raise ResultsError(
            "there is nothing to merge",
            where=printable(", ".join(map(str, options.results))),
            expected="a results.json of a run, or folders that hold some",
            next_command="pytest perf",
        )
    merged = merge(parts)
    linked: list[Results] = []
    for place, (results, name) in enumerate(zip(merged, folder_names(merged), strict=True)):
        merged[place] = whole = copy_traces(results, folders, target / name)
        write_atomically(target / name / NAME, encode_results(whole))
        linked.append(with_trace_prefix(whole, f"{name}/" if name else ""))
    problems = [*refused, *find_problems(merged)]
    word = outcome(merged, problems)
    headline, *lines = _merge_lines(word, merged, problems)
    head = markdown([Section(headline, tuple(lines))])
    write_atomically(target / "report.md", f"{head}\n{summary_markdown(linked)}".encode())
    write_atomically(target / "report.html", html(linked).encode())
    width, color = terminal()
    say(text([Section(lines=(headline, *lines))], width=width, color=color))
    for warning in (warning for each in merged for warning in each.warnings):
        note(f"warning: {warning}")
    note(f"written: {target}")
    if refused:
        return Exit.TROUBLE
    return Exit.YES if word == "PASS" else Exit.NO


def _merge_lines(word: str, merged: Sequence[Results], problems: Sequence[str]) -> list[str]:
    """Return the headline, the problems, and a line for each workload of a machine that did not pass."""
    from ..report.wording import counted, counts_text, cut

    workloads = [
        _workload_line(results, workload)
        for results in merged
        for workload in results.workloads
        if workload.status not in (Status.PASS, Status.IMPROVED) and not workload.unavailable
    ]
    headline = ", ".join([f"{word}  {counted(len(merged), 'machine')}", *counts_text(merged)])
    return [headline, *(cut(f"failed: {each}") for each in problems), *map(cut, workloads)]


def _workload_line(results: Results, workload: WorkloadResult) -> str:
    """Return ``mlp: REGRESSED +8.1 % on NVIDIA H200 a1b2 on node-1``."""
    from ..report.wording import Row, change_text

    fingerprint, gpu = results.machine_of(workload)
    change = change_text(workload.time_verdict(Timer.DEVICE))
    machine = [
        fingerprint.device if fingerprint else "nothing measured",
        gpu,
        f"on {results.host}" if results.host else "",
    ]
    return " ".join(part for part in (f"{workload.id}:", Row(workload).status, change, "on", *machine) if part)


# -- history ----------------------------------------------------------------------------------------------------------


def _date(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a date such as 2026-11-01, got {text!r}") from None


def _add(options: argparse.Namespace) -> Exit:
    from ..results.history import add_to_history, open_history

    open_history(options.to)  # so that an invalid address is not reported for each of the results
    code = Exit.YES
    for file in _find(options.results):
        try:
            added = add_to_history(read_results(file), options.to)
        except StorageError:  # the next file would fail too
            raise
        except KernelgaugeError as error:
            code = Exit.NO
            details = "; ".join(f"{label}: {text}" for label, text in error.details)
            say(printable(f"refused: {file}: {error.what}" + (f" ({details})" if details else "")))
        else:
            for key, is_new in added.items():
                say(f"{'added' if is_new else 'already there'}: {printable(key)}")
    return code


def _show(options: argparse.Namespace) -> Exit:
    from ..report.trend import trend_html, trend_text
    from ..report.wording import counted
    from ..results.files import write_atomically
    from ..results.history import read_trends

    timer = Timer(_TIMERS[options.timer])
    trends = read_trends(options.history, timer=timer, patterns=options.workloads, since=options.since)
    if options.html:
        write_atomically(Path(options.html), trend_html(trends).encode())
        note(f"written: {options.html}")
    if not trends.charts:
        say(f"no workload to show: {counted(trends.files, 'file')} of the history read")
    width, color = terminal()
    if text := trend_text(trends, with_details=bool(options.workloads), width=width, color=color):
        say(text)
    return Exit.YES if trends.charts else Exit.NO
