"""The commit that is measured, as git tells it; what git does not tell is not known."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from kernelgauge.revision import revision, short

from kernelgauge import revision as module


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One commit, of one file."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    (tmp_path / "measured.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "one")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_clean_tree_is_its_commit_and_a_changed_one_has_a_plus(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "not_tracked.py").write_text("2\n")
    assert revision(repository) == commit
    (repository / "measured.py").write_text("3\n")
    assert revision(repository) == f"{commit}+"


def test_where_no_repository_is_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert revision(tmp_path) is None


def test_a_tree_of_which_git_does_not_say_whether_it_changed_is_not_known(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(b"no index")
    assert git(repository, "rev-parse", "HEAD")
    assert revision(repository) is None


def test_a_tree_that_git_does_not_get_through_in_time_is_not_known(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def slow(command: list[str], **options: Any) -> Any:
        if "status" in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return run(command, **options)

    monkeypatch.setattr(module.subprocess, "run", slow)
    assert revision(repository) is None


def test_a_commit_is_shown_short_with_the_mark_of_local_changes() -> None:
    assert (short("0123456789abcdef"), short("0123456789abcdef+"), short("-")) == ("0123456789", "0123456789+", "-")
