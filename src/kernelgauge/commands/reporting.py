"""`kernelgauge report`: what a run has left, in other forms."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ResultsError
from ..printable import printable
from ..results import Results
from .output import STDOUT, Commands, Exit, check_destinations, say, terminal

__all__ = ["add_commands"]


@dataclass(frozen=True)
class _Form:
    """One form of the report. `one`: it has room for a single run."""

    option: str
    what: str
    made: Callable[[Sequence[Results]], bytes]
    one: bool = False


def add_commands(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="results of a run as HTML, Markdown, JSON of pytest-benchmark, or text",
        description="Make reports of results.json files, without a GPU. FILE may be -, for the standard output. Without an "
        "option, report.html and report.md are written beside the newest of RESULTS.",
        allow_abbrev=False,
    )
    report.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="a results.json, or a folder that holds one, or folders that do",
    )
    for form in _FORMS:
        report.add_argument(f"--{form.option}", metavar="FILE", help=form.what + (", of one run" if form.one else ""))
    report.add_argument("--print", action="store_true", help="the table that pytest ends with, on the standard output")
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> Exit:
    from ..baselines import write_atomically
    from ..results_file import find_results, read_results

    files = [file for path in options.results for file in find_results(path)]
    read = sorted(((read_results(file), file) for file in files), key=lambda each: each[0].started_at)
    results = [each for each, _ in read]
    wanted = _wanted(options, read[-1][1].parent)
    _check([*(where for _, where in wanted), *([STDOUT] if options.print else [])], files)
    # All are made before any is written: an error leaves nothing half done.
    made = [(where, _made(form, results)) for form, where in wanted]
    for where, content in made:
        if where == STDOUT:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        else:
            write_atomically(Path(where), content)
            print(f"written: {printable(where)}", file=sys.stderr)  # noqa: T201
    if options.print:
        say("\n\n".join(map(_summary, results)))
    return Exit.YES


def _wanted(options: argparse.Namespace, beside: Path) -> list[tuple[_Form, str]]:
    given = {form.option: getattr(options, form.option.replace("-", "_")) for form in _FORMS}
    if not any(given.values()) and not options.print:
        given |= {"html": str(beside / "report.html"), "markdown": str(beside / "report.md")}
    return [(form, given[form.option]) for form in _FORMS if given[form.option]]


def _check(destinations: Sequence[str], results: Sequence[Path]) -> None:
    """Raises `ResultsError` or `StorageError` for what would be written over something else."""
    check_destinations(destinations)
    for path in destinations:
        if any(os.path.exists(path) and os.path.exists(each) and os.path.samefile(path, each) for each in results):
            raise ResultsError("a report is not written over the results", where=printable(path))


def _made(form: _Form, results: Sequence[Results]) -> bytes:
    if form.one and len(results) > 1:
        raise ResultsError(
            f"--{form.option} has room for one run",
            got=f"{len(results)} results",
            expected="one",
            next_command=f"kernelgauge report RESULTS --{form.option} FILE   (once for each)",
        )
    return form.made(results)


# Each form is imported when it is asked for: what one needs, another does not wait for.
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
    _Form("html", "one page that needs no other file", _html),
    _Form("markdown", "for a pull request", _markdown),
    _Form("benchmark-json", "for pytest-benchmark compare", _benchmark_json, one=True),
)


def _summary(results: Results) -> str:
    """What the run of pytest ended with, and every verdict that fails."""
    from ..report.terminal import summary

    width, color = terminal()
    return "\n".join(block.text for block in summary(results, width=width, color=color, failures=True))
