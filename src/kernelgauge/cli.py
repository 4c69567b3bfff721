"""The command `kernelgauge`. What it does is done elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from . import __version__, merge
from .commands import calibration, history, reporting, review, sharing, traces
from .commands.output import Exit
from .errors import KernelgaugeError
from .printable import printable

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (`Exit`)."""
    _open_closed_streams()
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.passes_arguments_on:
        parser.error(f"unrecognized arguments: {printable(' '.join(rest))}")
    options.pytest_arguments = [argument for argument in rest if argument != "--"]
    try:
        return int(options.command(options))
    except KernelgaugeError as error:
        _complain("\n".join(map(printable, str(error).split("\n"))))
        return Exit.TROUBLE
    except BrokenPipeError:  # whoever read has seen enough: `| head`
        _discard_output()
        return Exit.TROUBLE
    except OSError as error:  # a full disk, a folder that cannot be read
        _complain(f"it could not be done: {printable(str(error))}")
        _discard_output()
        return Exit.TROUBLE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _open_closed_streams() -> None:
    """A stream that was closed (``>&-``) is None: what is said goes nowhere, and what is asked is done all the same."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)


def _complain(text: str) -> None:
    """Nobody may listen (``2>&1 | head``): the exit code says the same."""
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201


def _discard_output() -> None:
    """Else Python tries once more as it ends, and says so."""
    with suppress(OSError, ValueError):  # of a stand-in without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kernelgauge", description="Performance regression tests for PyTorch GPU code.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"kernelgauge {__version__}")
    parser.set_defaults(passes_arguments_on=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (traces, sharing, reporting, history, calibration, merge, review):
        family.add_commands(commands)
    return parser
