"""The command `kernelgauge`. Each module adds the commands of one family, and wires them to the rest of the package.

A module imports what only one command needs when that command runs: a command of a tenth of a second must not wait for the
imports of the others.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import __version__
from ..errors import KernelgaugeError, printable

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    Commands = object


_RUN_PYTEST = ("bisect", "calibrate", "compare")  # commands whose unknown arguments go to pytest


class Exit(IntEnum):
    """Exit codes, as grep and diff have them: 0 and 1 are answers, 2 is none."""

    YES = 0
    NO = 1  # there are changes, or a workload is refused
    TROUBLE = 2  # wrong usage, or an error
    INTERRUPTED = 130


def terminal() -> dict[str, Any]:
    """Return the number of columns as `width`, and whether to use colours as `color`."""
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return {"width": shutil.get_terminal_size().columns, "color": color}


def say(text: str) -> None:
    """Print to standard output, at once."""
    print(text.removesuffix("\n"), flush=True)  # noqa: T201


def note(line: str) -> None:
    """Print one line about the work itself to standard error."""
    print(printable(line), file=sys.stderr)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code (`Exit`)."""
    _prepare_streams()
    parser = _parser()
    own, passed_on = list(sys.argv[1:] if arguments is None else arguments), []
    if own[:1] and own[0] in _RUN_PYTEST and "--" in own:  # argparse would take what follows for a positional argument
        place = own.index("--")
        own, passed_on = own[:place], own[place + 1 :]
    options, rest = parser.parse_known_args(own)
    if rest and own[0] not in _RUN_PYTEST:
        parser.error(f"unrecognized arguments: {printable(' '.join(rest))}")
    options.pytest_arguments = [*rest, *passed_on]
    try:
        return int(options.command(options))
    except KernelgaugeError as error:
        _print_error("\n".join(map(printable, str(error).split("\n"))))
        return Exit.TROUBLE
    except BrokenPipeError:  # the reader has seen enough: `| head`
        _discard_output()
        return Exit.TROUBLE
    except OSError as error:  # a full disk, a folder that cannot be read
        _print_error(f"system error: {printable(str(error))}")
        _discard_output()
        return Exit.TROUBLE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    from . import baselines, results, revisions, traces  # they import what is above

    parser = argparse.ArgumentParser(
        prog="kernelgauge", description="Performance regression tests for PyTorch GPU code.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"kernelgauge {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (traces, results, baselines, revisions):
        family.add_commands(commands)
    return parser


def _prepare_streams() -> None:
    """Escape characters that an encoding lacks. Replace a closed stream (``>&-``), which is None, by one that discards."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _print_error(text: str) -> None:
    """Print to standard error, if somebody reads it: the exit code says the same."""
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201


def _discard_output() -> None:
    """Close standard output for good. Otherwise Python flushes it at exit and prints a second error."""
    with suppress(OSError, ValueError):  # a stand-in has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
