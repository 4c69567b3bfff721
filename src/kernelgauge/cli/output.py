"""What all commands share: the terminal, where files may be written, and the exit codes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ResultsError, StorageError, printable

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    Commands = object

__all__ = ["STDOUT", "Commands", "Exit", "check_destinations", "note", "say", "terminal"]

STDOUT = "-"  # in place of a file


class Exit(IntEnum):
    """Exit codes, as grep and diff have them: 0 and 1 are answers, 2 is none."""

    YES = 0
    NO = 1  # there are changes, or a workload is refused
    TROUBLE = 2  # wrong usage, or an error
    INTERRUPTED = 130


def terminal() -> tuple[int, bool]:
    """Return the number of columns, and whether to use colours."""
    return shutil.get_terminal_size().columns, sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def check_destinations(destinations: Sequence[str]) -> None:
    """Check the files, or `STDOUT`, that one command writes, before it writes any.

    Raises `ResultsError` if two are the same, however they are spelled, and `StorageError` for anything but a file.
    """
    places = {where if where == STDOUT else os.path.realpath(where) for where in destinations}
    if len(places) < len(destinations):
        raise ResultsError(
            "two forms cannot go to the same place",
            got=printable(", ".join(destinations)),
            expected="one form for each file, and one for the standard output",
        )
    for where in destinations:
        # Renaming over a device would replace it by a file.
        if where != STDOUT and os.path.exists(where) and not os.path.isfile(where):
            raise StorageError("cannot write", where=printable(where), got="not a regular file")


def say(text: str) -> None:
    """Print to standard output, at once. Characters that its encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.removesuffix("\n").encode(encoding, "backslashreplace").decode(encoding), flush=True)  # noqa: T201


def note(line: str) -> None:
    """Print one line about the work itself to standard error."""
    print(printable(line), file=sys.stderr)  # noqa: T201
