"""The arguments of `kernelgauge compare` and `bisect`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from . import Commands, Exit


def add_commands(commands: Commands) -> None:
    comparing = commands.add_parser(
        "compare",
        help="tell two revisions apart on this machine",
        description="Measure two revisions in turns, each in fresh processes and a git worktree of its own, with the suite of "
        "HEAD, and judge the second by the first. Arguments after -- go to pytest.",
        epilog="Exits with 1 if HEAD is slower or launches other kernels.",
        allow_abbrev=False,
    )
    add = comparing.add_argument
    add("base", metavar="BASE", help="a revision of git, for example main or HEAD~1")
    add("head", metavar="HEAD", nargs="?", help="another one (default: the working tree as it is)")
    add("-k", dest="expression", metavar="EXPRESSION", help="as in pytest, for example 'mlp and not eager'")
    # A process runs in another folder. Links stay: the interpreter of a venv is one.
    add(
        "--base-python",
        type=lambda name: os.path.abspath(shutil.which(name) or name),
        default=sys.executable,
        metavar="PATH",
        help="the interpreter for BASE",
    )
    packages = "install this package for BASE alone, without what it depends on; several times for several packages"
    add("--with", dest="packages", action="append", default=[], metavar="PACKAGE==VERSION", help=packages)

    bisecting = commands.add_parser(
        "bisect",
        help="find the commit or the package that changed a workload",
        description="Measure revisions between a good and a bad one until one change is the cause, each in a fresh process "
        "and a git worktree of its own, with the suite of the bad one. Arguments after -- go to pytest.",
        epilog="Exits with 1 if the cause was not found, and 2 if it could not be looked for.",
        allow_abbrev=False,
    )
    add = bisecting.add_argument
    add("--good", metavar="REF", help="a revision of git before the change")
    add("--bad", metavar="REF", help="a later one with the change")
    lists = "outputs of 'pip freeze' instead of revisions, from good to bad: one package after the other is installed as in "
    add("--packages", nargs="+", default=[], type=Path, metavar="LIST", help=lists + "the next list")
    add("-k", dest="workload", required=True, metavar="WORKLOAD", help="its id, or as in pytest")

    for parser, command, most, counted in (
        (comparing, _compare, 12, "of each side"),
        (bisecting, _bisect, 100, "in all"),
    ):
        parser.set_defaults(command=command)
        add = parser.add_argument
        add("--suite", default="perf", metavar="PATH", help="of the suite, from the current folder (default: perf)")
        count = f"{counted}, at most (default: {most})"
        add("--processes", type=_at_least(1, int), default=most, metavar="N", help=count)
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
