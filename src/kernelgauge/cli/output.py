"""What all commands share: the terminal and the exit codes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from ..errors import printable

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    Commands = object

__all__ = ["Commands", "Exit", "note", "say", "terminal"]


class Exit(IntEnum):
    """Exit codes, as grep and diff have them: 0 and 1 are answers, 2 is none."""

    YES = 0
    NO = 1  # there are changes, or a workload is refused
    TROUBLE = 2  # wrong usage, or an error
    INTERRUPTED = 130


def terminal() -> tuple[int, bool]:
    """Return the number of columns, and whether to use colours."""
    return shutil.get_terminal_size().columns, sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str) -> None:
    """Print to standard output, at once."""
    print(text.removesuffix("\n"), flush=True)  # noqa: T201


def note(line: str) -> None:
    """Print one line about the work itself to standard error."""
    print(printable(line), file=sys.stderr)  # noqa: T201
