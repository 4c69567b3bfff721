"""The command `kernelgauge`. What it does is done elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from .commands import accepting, calibration, history, merging, reporting, sharing, traces
from .commands.output import Exit
from .errors import KernelgaugeError
from .printable import printable

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (`Exit`)."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.passes_arguments_on:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.pytest_arguments = [argument for argument in rest if argument != "--"]
    try:
        return int(options.command(options))
    except KernelgaugeError as error:
        print("\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)  # noqa: T201
        return Exit.TROUBLE
    except BrokenPipeError:  # whoever read has seen enough: `| head`
        _discard_output()
        return Exit.TROUBLE
    except OSError as error:  # a full disk; what cannot be read has errors of its own
        print(f"cannot write: {error}", file=sys.stderr)  # noqa: T201
        _discard_output()
        return Exit.TROUBLE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _discard_output() -> None:
    """Else Python tries once more as it ends, and says so."""
    with suppress(OSError, ValueError):  # of a stand-in without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kernelgauge", description="Performance regression tests for PyTorch GPU code.", allow_abbrev=False
    )
    parser.set_defaults(passes_arguments_on=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (traces, sharing, reporting, history, calibration, merging, accepting):
        family.add_commands(commands)
    return parser
