"""The commit that is measured; it is unknown where git does not say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelgauge.results import revision


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of one commit, of one file."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    (tmp_path / "measured.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "one")
    return tmp_path


def test_revision_of_changed_tree_has_a_plus(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "not_tracked.py").write_text("2\n")
    assert revision(repository) == commit
    (repository / "measured.py").write_text("3\n")
    assert revision(repository) == f"{commit}+"


def test_revision_with_broken_index_is_unknown(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(b"no index")
    assert revision(repository) is None
