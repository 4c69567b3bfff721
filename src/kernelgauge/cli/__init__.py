"""The command `kernelgauge`. Each module adds the commands of one family, and wires them to the
rest of the package.

A module imports what only one command needs when that command runs: a command of a tenth of a
second must not wait for the imports of the others.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..errors import KernelgaugeError, clear_status, printable
from ..results import __version__

if TYPE_CHECKING:
    from ..report.text import Section

    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    Commands = object


_RUN_PYTEST = ("bisect", "calibrate", "compare")  # commands whose unknown arguments go to pytest
_GROUPS = {  # of the help, in the order of the work
    "After a run": ("review", "accept", "report"),
    "Two revisions": ("compare", "bisect"),
    "Traces of torch.profiler": ("trace", "check-trace"),
    "Machines and nights": ("calibrate", "history"),
}
SELECTION = (  # of -k, in each command
    "as in pytest, of parts of ids and test names: 'mlp and not eager', 'test_mlp[4]'; '[ID]' is "
    "one id"
)


class Exit(IntEnum):
    """Exit codes, as grep and diff have them: 0 and 1 are answers, 2 is none."""

    YES = 0
    NO = 1  # there are changes, or a workload is refused
    TROUBLE = 2  # wrong usage, or an error
    INTERRUPTED = 130


def add_command(
    commands: Commands,
    name: str,
    command: Callable[[argparse.Namespace], Exit],
    about: str,
    description: str = "",
) -> argparse.ArgumentParser:
    """Add a command. `about` is its line in a list, and its description if it has no other."""
    parser = commands.add_parser(
        name, help=about, description=description or about, allow_abbrev=False
    )
    parser.set_defaults(command=command, about=about)
    return parser


def say(text: str) -> None:
    """Print to standard output, at once."""
    clear_status()
    print(text.removesuffix("\n"), flush=True)  # noqa: T201


def say_page(sections: Sequence[Section], *, is_dense: bool = False) -> None:
    """Print sections as a terminal shows them."""
    from ..report.text import as_text

    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = shutil.get_terminal_size().columns
    say(as_text(sections, width=width, color=color, is_dense=is_dense))


def note(line: str) -> None:
    """Print one line about the work itself to standard error."""
    clear_status()
    print(printable(line), file=sys.stderr)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code (`Exit`)."""
    # One that is closed (`>&-`) is None: an AttributeError would exit with 1, which is an answer.
    sys.stdout, sys.stderr = (
        stream or open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr)
    )
    _interrupt_on_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # escapes characters that an encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        return int(_run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"]))
    except KernelgaugeError as error:
        _print_error(str(error))
    except OSError as error:  # a full disk, a folder that cannot be read
        if not isinstance(error, BrokenPipeError):  # the reader has seen enough: `| head`
            _print_error(f"system error: {error}")
        _discard_output()
    except KeyboardInterrupt:
        clear_status()
        return Exit.INTERRUPTED
    except Exception as error:  # Python's own exit code is 1, which is an answer
        _print_error(
            f"{traceback.format_exc()}this is a fault of kernelgauge: "
            f"{type(error).__name__}: {error}"
        )
    return Exit.TROUBLE


def _run(own: list[str]) -> Exit:
    parser, passed_on = _parser(), list[str]()
    # argparse would take what follows for a positional argument
    if own[:1] and own[0] in _RUN_PYTEST and "--" in own:
        place = own.index("--")
        own, passed_on = own[:place], own[place + 1 :]
    options, rest = parser.parse_known_args(own)
    if rest and own[0] not in _RUN_PYTEST:
        parser.error(f"unrecognized arguments: {printable(' '.join(rest))}")
    options.pytest_arguments = [*rest, *passed_on]
    return options.command(options)  # type: ignore[no-any-return]


def _interrupt_on_signals() -> None:
    """Let signals end a command as Ctrl-C does: worktrees and children go away.

    `nohup` ignores SIGHUP.
    """
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signal.default_int_handler)


def _parser() -> argparse.ArgumentParser:
    from . import results, traces  # they import the names above

    parser = argparse.ArgumentParser(
        prog="kernelgauge",
        usage="kernelgauge COMMAND ...   (kernelgauge COMMAND --help says more)",
        description="Performance regression tests for PyTorch GPU code. `pytest` measures.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kernelgauge {__version__}")
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", prog="kernelgauge", help=argparse.SUPPRESS
    )
    for add_commands in (results.add_commands, _add_revision_commands, traces.add_commands):
        add_commands(commands)
    parser.epilog = "\n\n".join(
        f"{group}:\n"
        + "\n".join(f"  {each:12} {commands.choices[each].get_default('about')}" for each in names)
        for group, names in _GROUPS.items()
    )
    return parser


def _print_error(text: str) -> None:
    with suppress(OSError):  # nobody reads it, and the exit code says the same
        for line in text.split("\n"):
            note(line)


def _discard_output() -> None:
    """Close standard output for good.

    Otherwise Python flushes it at exit and prints a second error.
    """
    with suppress(OSError, ValueError):  # a stand-in has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- the arguments of compare and bisect, which import much ----------------------------------------


def _add_revision_commands(commands: Commands) -> None:
    description = (
        "Measure two revisions in turns, with the suite of HEAD, and judge HEAD by BASE. "
        "Arguments after -- go to pytest. "
        "Exits with 1 if HEAD is slower or launches other kernels."
    )
    comparing = add_command(
        commands, "compare", _compare, "tell two revisions apart on this machine", description
    )
    add = comparing.add_argument
    add("base", metavar="BASE", help="a revision of git, for example main or HEAD~1")
    add("head", metavar="HEAD", nargs="?", help="another one (default: the working tree as it is)")
    add("-k", dest="expression", metavar="EXPRESSION", help=SELECTION)
    # A process runs in another folder. Links stay: the interpreter of a venv is one.
    add(
        "--base-python",
        type=lambda name: os.path.abspath(shutil.which(name) or name),
        default=sys.executable,
        metavar="PATH",
        help="the interpreter for BASE",
    )
    packages = "a package for BASE alone, without what it depends on; may be repeated"
    add(
        "--with",
        dest="packages",
        action="append",
        default=[],
        metavar="PACKAGE==VERSION",
        help=packages,
    )

    about = "find the commit or the package that changed a workload"
    description = (
        "Measure revisions between a good and a bad one until one change is the cause, with "
        "the suite of the bad one. "
        "Arguments after -- go to pytest. Exits with 1 if the cause was not found, and 2 if "
        "it could not be looked for."
    )
    bisecting = add_command(commands, "bisect", _bisect, about, description)
    add = bisecting.add_argument
    add("--good", metavar="REF", help="a revision of git before the change")
    add("--bad", metavar="REF", help="a later one with the change")
    lists = "outputs of 'pip freeze' instead of revisions, from good to bad"
    add("--packages", nargs="+", default=[], type=Path, metavar="LIST", help=lists)
    add(
        "-k",
        dest="workload",
        required=True,
        metavar="EXPRESSION",
        help=f"one workload; {SELECTION}",
    )

    suite = "the tests: a folder or a file (default: perf)"
    for parser in (comparing, bisecting):
        parser.add_argument("--suite", default="perf", metavar="PATH", help=suite)
    add = comparing.add_argument
    count = "of each side, at most (default: 12)"
    add("--processes", type=_at_least(1, int), default=12, metavar="N", help=count)
    budget = "begin no further processes after this"
    add("--budget", type=_at_least(0, float), default=float("inf"), metavar="SECONDS", help=budget)


def _at_least(least: float, kind: Callable[[str], float]) -> Callable[[str], float]:
    """Return the type of an argument, for argparse."""

    def number(text: str) -> float:
        if not (value := kind(text)) >= least:  # a NaN is not either
            raise argparse.ArgumentTypeError(f"got {text}, expected {least} or more")
        return value

    return number


def _compare(options: argparse.Namespace) -> Exit:
    from .compare import compare_revisions

    return compare_revisions(options)


def _bisect(options: argparse.Namespace) -> Exit:
    from .bisect import bisect

    return bisect(options)
