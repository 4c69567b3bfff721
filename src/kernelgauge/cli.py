"""The command `kernelgauge`. What it does is done elsewhere."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .commands import calibration, sharing, traces
from .commands.output import Exit
from .errors import KernelgaugeError

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
        print(error, file=sys.stderr)  # noqa: T201
        return Exit.TROUBLE
    except BrokenPipeError:  # whoever read has seen enough: `| head`
        sys.stderr.close()
        return Exit.TROUBLE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kernelgauge", description="Performance regression tests for PyTorch GPU code.", allow_abbrev=False
    )
    parser.set_defaults(passes_arguments_on=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (traces, sharing, calibration):
        family.add_commands(commands)
    return parser
