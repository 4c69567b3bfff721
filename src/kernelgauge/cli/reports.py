"""`kernelgauge report`: the results of a run as HTML, Markdown, JSON or text."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ResultsError, printable
from ..results import Results
from .output import STDOUT, Commands, Exit, check_destinations, note, say, terminal

__all__ = ["add_commands"]


@dataclass(frozen=True)
class _Form:
    """One form of the report. `is_of_one_run`: it has room for a single run."""

    option: str
    help: str
    make: Callable[[Sequence[Results]], bytes]
    is_of_one_run: bool = False


def add_commands(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="write results as HTML, Markdown, pytest-benchmark JSON or text",
        description="Make reports of results.json files, without a GPU. FILE may be -, for standard output. Without an "
        "option, write report.html and report.md beside the newest of RESULTS.",
        allow_abbrev=False,
    )
    report.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="a results.json, or a folder with one or with folders of them",
    )
    for form in _FORMS:
        report.add_argument(f"--{form.option}", metavar="FILE", help=form.help)
    report.add_argument("--print", action="store_true", help="print the summary that pytest ends with")
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> Exit:
    from ..files import write_atomically
    from ..results import find_results, read_results

    files = [file for path in options.results for file in find_results(path)]
    read = sorted(((read_results(file), file) for file in files), key=lambda each: each[0].started_at)
    results = [each for each, _ in read]
    wanted = _wanted(options, read[-1][1].parent)
    _check([*(where for _, where in wanted), *([STDOUT] if options.print else [])], files)
    # All are made before any is written: an error leaves nothing half done.
    contents = [(where, _make(form, results)) for form, where in wanted]
    for where, content in contents:
        if where == STDOUT:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        else:
            write_atomically(Path(where), content)
            note(f"written: {where}")
    if options.print:
        say("\n\n".join(map(_summary, results)))
    return Exit.YES


def _wanted(options: argparse.Namespace, beside: Path) -> list[tuple[_Form, str]]:
    given = {form.option: getattr(options, form.option.replace("-", "_")) for form in _FORMS}
    if not any(given.values()) and not options.print:
        given |= {"html": str(beside / "report.html"), "markdown": str(beside / "report.md")}
    return [(form, given[form.option]) for form in _FORMS if given[form.option]]


def _check(destinations: Sequence[str], results: Sequence[Path]) -> None:
    """Check that no report replaces its own results, another report, or a device. Raises `ResultsError`, `StorageError`."""
    check_destinations(destinations)
    for path in destinations:
        if any(os.path.exists(path) and os.path.exists(each) and os.path.samefile(path, each) for each in results):
            raise ResultsError("a report is not written over the results", where=printable(path))


def _make(form: _Form, results: Sequence[Results]) -> bytes:
    if form.is_of_one_run and len(results) > 1:
        raise ResultsError(
            f"--{form.option} has room for one run",
            got=f"{len(results)} results",
            expected="one",
            next_command=f"kernelgauge report RESULTS --{form.option} FILE   (once for each)",
        )
    return form.make(results)


def _html(results: Sequence[Results]) -> bytes:
    from ..report.html import html

    return html(results).encode()


def _markdown(results: Sequence[Results]) -> bytes:
    from ..report.markdown import summary_markdown

    return summary_markdown(results).encode()


def _benchmark_json(results: Sequence[Results]) -> bytes:
    from ..report.pytest_benchmark_json import benchmark_json

    return benchmark_json(results[0])


_FORMS = (
    _Form("html", "write one self-contained page", _html),
    _Form("markdown", "write Markdown for a pull request", _markdown),
    _Form("benchmark-json", "write one run for pytest-benchmark compare", _benchmark_json, is_of_one_run=True),
)


def _summary(results: Results) -> str:
    """Return the summary that the run of pytest ended with, and every verdict that fails."""
    from ..report.terminal import summary

    width, color = terminal()
    return "\n".join(block.text for block in summary(results, width=width, color=color, failures=True))
