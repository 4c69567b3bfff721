"""What all commands share: how wide and colourful the terminal is, and what an exit code means."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    Commands = object

__all__ = ["Commands", "Exit", "say", "terminal"]


class Exit(IntEnum):
    """As of grep and diff: 0 and 1 are answers, 2 is none."""

    YES = 0
    NO = 1  # what was asked for is not so: there are changes, or a workload is refused
    TROUBLE = 2  # asked wrongly, or it could not be done
    INTERRUPTED = 130


def terminal() -> tuple[int, bool]:
    """(columns, whether to use colours)."""
    return shutil.get_terminal_size().columns, sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(what: str) -> None:
    """Print, at once: a name may have any character, a terminal not."""
    encoding = sys.stdout.encoding or "utf-8"
    print(what.removesuffix("\n").encode(encoding, "backslashreplace").decode(encoding), flush=True)  # noqa: T201
