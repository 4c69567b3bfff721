"""The commit that is measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["revision"]

_TIMEOUT_S = 5.0  # of a working tree on a slow network file system: then it is not known


def revision(folder: Path) -> str | None:
    """The commit of the working tree that `folder` is in, with ``+`` behind it if tracked files differ; None: not known.

    Git's own answer, with git's own rules about whose repositories it trusts.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if changes is None:  # no answer is no clean tree
        return None
    return f"{commit}+" if changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
