"""The command `kernelgauge`. Each module adds the commands of one family, and wires them to the rest of the package.

A module imports what only one command needs when that command runs: a command of a tenth of a second must not wait for the
imports of the others.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from .. import __version__
from ..errors import KernelgaugeError, printable
from . import baselines, results, traces
from .output import Exit

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code (`Exit`)."""
    _prepare_streams()
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.passes_arguments_on:
        parser.error(f"unrecognized arguments: {printable(' '.join(rest))}")
    options.pytest_arguments = [argument for argument in rest if argument != "--"]
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
    parser = argparse.ArgumentParser(
        prog="kernelgauge", description="Performance regression tests for PyTorch GPU code.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"kernelgauge {__version__}")
    parser.set_defaults(passes_arguments_on=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (traces, results, baselines):
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
