"""`kernelgauge merge`: the results of shards and machines in one folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import ResultsError, StorageError
from ..printable import printable
from ..results import Results
from .output import Commands, Exit, note, say, terminal

__all__ = ["add_commands"]

_LARGEST_PAGE_BYTES = 1_000_000  # GitHub takes a little more for the summary of a step


def add_commands(commands: Commands) -> None:
    merging = commands.add_parser(
        "merge",
        help="combine the results of shards and machines",
        description="Join the results of shards, and put those of other GPUs side by side. Writes results.json (one "
        "machine) or MACHINE/results.json (several), with their traces, report.html and report.md. "
        "Exit code: 0 if everything was decided and nothing failed, 1 if not, 2 if something could not be read.",
        allow_abbrev=False,
    )
    merging.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="a results.json, or a folder with one or with folders of them",
    )
    merging.add_argument("--to", required=True, type=Path, metavar="DIR", help="a new or empty folder")
    merging.set_defaults(command=_merge)


def _merge(options: argparse.Namespace) -> Exit:
    from ..files import write_atomically
    from ..merge import copy_traces, find_problems, merge, outcome, summary_lines, with_trace_prefix
    from ..report.html import html
    from ..report.markdown import summary_markdown
    from ..report.page import Section, markdown, text, unlinked
    from ..results import NAME, encode_results, folder_names

    _check_destination(options.to)
    parts, folders, refused = _read(options.results)
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
        merged[place] = whole = copy_traces(results, folders, options.to / name)
        write_atomically(options.to / name / NAME, encode_results(whole))
        linked.append(with_trace_prefix(whole, f"{name}/" if name else ""))
    problems = [*refused, *find_problems(merged)]
    headline, *lines = summary_lines(merged, problems)
    head = unlinked(markdown([Section(headline, tuple(lines))]))
    rest = summary_markdown(linked, limit_bytes=_LARGEST_PAGE_BYTES - len(head.encode()))
    write_atomically(options.to / "report.md", f"{head}\n{rest}".encode())
    write_atomically(options.to / "report.html", html(linked).encode())
    width, color = terminal()
    say(text([Section(lines=(headline, *lines))], width=width, color=color))
    for each in merged:
        for warning in each.warnings:
            note(f"warning: {warning}")
    note(f"written: {options.to}")
    if refused:
        return Exit.TROUBLE
    return Exit.YES if outcome(merged, problems) == "PASS" else Exit.NO


def _read(paths: Sequence[Path]) -> tuple[list[Results], list[Path], list[str]]:
    """Return the parts, their folders, and the reasons why others were refused.

    The path of each trace gets the number of its folder as a prefix.
    """
    from ..merge import with_trace_prefix
    from ..results import find_results, is_of_something_else, read_results

    parts: list[Results] = []
    folders: list[Path] = []
    refused: list[str] = []
    for path in paths:
        for file in find_results(path):
            try:
                results = read_results(file)
            except ResultsError as error:
                reason = f"{file}: {error.what}" + (f" (got {error.got})" if error.got else "")
                is_foreign = file != path and is_of_something_else(file)
                note(f"{'skipped' if is_foreign else 'refused'}: {reason}")
                refused += [] if is_foreign else [reason]
                continue
            parts.append(with_trace_prefix(results, f"{len(folders)}/"))
            folders.append(file.parent)
    return parts, folders, refused


def _check_destination(folder: Path) -> None:
    """Raise `StorageError` if there is anything in the folder: files of an earlier merge would pass for new ones."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError("the folder is not empty", where=printable(str(folder)), expected="a new or empty folder")
