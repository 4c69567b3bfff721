"""What `compare` and `bisect` share: options, revisions in git worktrees, and packages in folders."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import KernelgaugeError, printable

__all__ = ["add_options", "commit", "copy_suite", "git", "install", "until_terminated", "worktree"]

_SHOWN_LINES = 15  # of a program that failed


def add_options(parser: argparse.ArgumentParser, *, fewest: int, most: int, processes: str) -> None:
    """Add the options that both commands have. `processes`: which ones `--processes` counts."""
    parser.add_argument(
        "--suite",
        type=_path_below,
        default="perf",
        metavar="DIR",
        help="folder or file of the suite, below the current folder (default: perf)",
    )
    parser.add_argument(
        "--processes",
        type=_whole_number(fewest),
        default=most,
        metavar="N",
        help=f"{processes}, at most (default: {most})",
    )
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no further processes after this"
    )


def _path_below(text: str) -> str:
    """Return a path from the current folder: a suite is replaced in other working trees, and never in this one."""
    path = os.path.relpath(text)
    if path.split(os.sep)[0] in (os.curdir, os.pardir):
        raise argparse.ArgumentTypeError(f"a path below the current folder, got {text!r}")
    return path


def _whole_number(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers, for argparse."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number from {least}, got {text!r}")
        return int(text)

    return parse


# -- code -------------------------------------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """Return what git prints. Raises `KernelgaugeError` if it fails."""
    # In a hook, git names the index of the commit that is being made: that of a worktree would replace it.
    environment = {name: value for name, value in os.environ.items() if name != "GIT_INDEX_FILE"}
    return _output(["git", *arguments], f"git {arguments[0]} failed", environment)


def commit(revision: str) -> str:
    """Return the hash of a commit. Raises `KernelgaugeError` if there is none."""
    return git("rev-parse", "--verify", f"{revision}^{{commit}}")


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check out a commit into a folder of its own. The working tree that the command is called in is not touched.

    Yields the folder that corresponds to the current one.
    """
    prefix = git("rev-parse", "--show-prefix")
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder:
        tree = Path(folder) / "tree"
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
        raise KernelgaugeError("the suite is outside of the working tree", got=str(target.resolve()))
    if not source.exists():
        raise KernelgaugeError(
            f"{owner} has no such suite", got=str(source), expected="a folder or a file, which --suite names"
        )
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def install(requirement: str, folder: Path, *, python: str = sys.executable) -> Path:
    """Install one package, without what it depends on, into a folder that modules can be imported from. Return the folder.

    Raises `KernelgaugeError` if pip fails.
    """
    where = ["--target", str(folder), "--no-deps", "--quiet", "--disable-pip-version-check"]
    _output([python, "-m", "pip", "install", *where, requirement], f"{requirement} cannot be installed")
    return folder


def _output(command: Sequence[str], failure: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=environment)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-_SHOWN_LINES:]
        raise KernelgaugeError(failure, got="\n".join(map(printable, lines)))
    return done.stdout.strip()


@contextmanager
def until_terminated() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what it made is removed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
