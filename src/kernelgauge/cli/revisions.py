"""`kernelgauge compare` and `bisect`: their arguments, revisions in git worktrees, and packages in folders."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ..errors import KernelgaugeError, MeasurementError, printable
from ..results.files import temporary_folder
from . import Commands, Exit

_SHOWN_LINES = 15  # of a program that failed


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
    add("--base-python", type=_program, default=sys.executable, metavar="PATH", help="the interpreter for BASE")
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
        (comparing, "compare", 12, "of each side"),
        (bisecting, "bisect", 100, "in all"),
    ):
        parser.set_defaults(command=partial(_run, command))
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


def _program(name: str) -> str:
    """Return the absolute path of a program, since it runs in another folder. Links stay: a venv's interpreter is one."""
    return os.path.abspath(shutil.which(name) or name)


def _run(command: str, options: argparse.Namespace) -> Exit:
    from . import bisect, compare

    return compare.compare_revisions(options) if command == "compare" else bisect.bisect(options)


# -- code -------------------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """Return what git prints. Raises `KernelgaugeError` if it fails."""
    # In a hook, git names the index of the commit that is being made: that of a worktree would replace it.
    return _output("env", "-u", "GIT_INDEX_FILE", "git", *arguments, failure=f"git {arguments[0]} failed")


def commit(revision: str) -> str:
    """Return the hash of a commit. Raises `KernelgaugeError` if there is none of that name."""
    failure = f"git knows no revision {revision}"
    try:
        return _output("git", "rev-parse", "--verify", f"{revision}^{{commit}}", failure=failure)
    except KernelgaugeError as error:
        if Path(revision).exists():
            error.next_command = f"--suite {shlex.quote(revision)}   (it is a path here, and not a revision)"
        raise


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check out a commit into a folder of its own. The working tree that the command is called in is not touched.

    Yields the folder that corresponds to the current one.
    """
    prefix = git("rev-parse", "--show-prefix")
    with temporary_folder() as folder:
        tree = folder / "tree"
        try:
            git("worktree", "add", "--detach", str(tree), commit)
            yield tree / prefix
        finally:
            # Twice, because a checkout that was interrupted is locked. Pruning would forget worktrees of others too, which
            # are on a disk that is not mounted now.
            with suppress(KernelgaugeError):
                git("worktree", "remove", "--force", "--force", str(tree))


def copy_suite(source: Path, tree: Path, suite: str, *, owner: str) -> None:
    """Put the suite of `owner` in place of that in a tree: every side is asked the same.

    Raises `KernelgaugeError` if it would lie outside of the tree: what is there is removed.
    """
    target = tree / suite
    if tree.resolve() not in target.resolve().parents:
        expected = "a path from the current folder to a part of it"
        raise KernelgaugeError("the suite is outside of the working tree", got=suite, expected=expected)
    if not source.exists():
        expected = "a folder or a file, which --suite names"
        raise KernelgaugeError(f"{owner} has no such suite", got=source.name, expected=expected)
    shutil.rmtree(target, ignore_errors=True)
    if target.is_file() or target.is_symlink():
        target.unlink()
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=ignored, symlinks=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def install(requirement: str, folder: Path, python: str = sys.executable) -> Path:
    """Install one package, without what it depends on, into a folder that modules can be imported from. Return the folder.

    Raises `MeasurementError` if pip fails.
    """
    pip = "pip install --no-deps --quiet --disable-pip-version-check --target".split()
    failure = f"{requirement} cannot be installed"
    _output(python, "-m", *pip, str(folder), requirement, failure=failure, raises=MeasurementError)
    return folder


def _output(*command: str, failure: str, raises: type[KernelgaugeError] = KernelgaugeError) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-_SHOWN_LINES:]
        raise raises(failure, got="\n".join(map(printable, lines)))
    return done.stdout.strip()
