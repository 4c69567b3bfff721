"""`kernelgauge merge`: results of shards and machines, brought together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ResultsError, StorageError
from ..printable import printable
from .output import Commands, Exit, say, terminal

if TYPE_CHECKING:
    from ..fleet.folders import Written
    from ..fleet.verdict import Fleet

__all__ = ["add_commands"]

_LARGEST_PAGE_BYTES = 1_000_000  # GitHub takes a little more for the summary of a step


def add_commands(commands: Commands) -> None:
    merging = commands.add_parser(
        "merge",
        help="results of shards and machines as one, and what the machines say together",
        description="Join the results of shards, and put those of other GPUs side by side: is the build slower, or one "
        "GPU? Writes results.json (one machine) or MACHINE/results.json (several), with their traces, report.html and "
        "report.md. Exit code: 0 if everything was decided and nothing failed, 1 if not, 2 if something could not be read.",
        allow_abbrev=False,
    )
    merging.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="a results.json, or a folder of it, or of such folders"
    )
    merging.add_argument("--to", required=True, type=Path, metavar="DIR", help="a folder that is new, or empty")
    merging.add_argument("--no-traces", action="store_true", help="leave the traces where they are")
    merging.set_defaults(command=_merge)


def _merge(options: argparse.Namespace) -> Exit:
    from ..fleet import fleet
    from ..fleet.folders import bring_together, found_parts
    from ..fleet.merging import merge
    from ..report.fleet import fleet_text

    _check_destination(options.to)
    found = found_parts(options.results)
    _tell([f"skipped: {each}" for each in found.skipped] + [f"refused: {each}" for each in found.refused])
    if not found.parts:
        raise ResultsError(
            "there is nothing to merge",
            where=printable(", ".join(map(str, options.results))),
            expected="a results.json that a run has left, or folders that hold some",
            next_command="pytest perf",
        )
    merged = merge(found.parts, now=datetime.now(timezone.utc))
    machines = bring_together(merged, found, options.to, traces=not options.no_traces)
    together = fleet([machine.results for machine in machines], lost=found.refused)
    _write_pages(together, machines, options.to)
    width, color = terminal()
    say(fleet_text(together, width=width, color=color))
    _tell([f"warning: {warning}" for machine in machines for warning in machine.results.warnings])
    _tell([f"written: {options.to}"])
    if found.refused:
        return Exit.TROUBLE
    return Exit.YES if together.passes else Exit.NO


def _write_pages(together: Fleet, machines: Sequence[Written], destination: Path) -> None:
    """The reports of all machines, the fleet first. Raises `StorageError` if they cannot be written."""
    from ..baselines import write_atomically
    from ..report.fleet import fleet_markdown
    from ..report.html import html
    from ..report.pull_request import summary_markdown

    results = [machine.linked for machine in machines]
    head = fleet_markdown(together)
    left = max(0, _LARGEST_PAGE_BYTES - len(head.encode()) - 1)
    write_atomically(destination / "report.md", f"{head}\n{summary_markdown(results, limit_bytes=left)}".encode())
    write_atomically(destination / "report.html", html(results).encode())


def _check_destination(folder: Path) -> None:
    """Raises `StorageError` if there is anything: what another merge has left would pass for this one's."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (OSError, ValueError) as error:
        raise StorageError("cannot write", where=printable(str(folder)), got=printable(str(error))) from error
    if taken:
        raise StorageError(
            "what was merged goes to a folder of its own",
            where=printable(str(folder)),
            got="something is there already",
            expected="a folder that is new, or empty",
        )


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        print(printable(line), file=sys.stderr)  # noqa: T201
