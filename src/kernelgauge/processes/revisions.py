"""Revisions in git worktrees, and packages in folders."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import KernelgaugeError, MeasurementError, printable

_SHOWN_LINES = 15  # of a program that failed


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
    with tempfile.TemporaryDirectory(prefix="kernelgauge-") as folder:
        tree = Path(folder, "tree")
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
