"""Signals to the commands that measure: their processes end at once, and nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.conftest import git
from tests.plugin.inner_project import Project

HANG = """
import os, time
(Path(os.environ["PIDS"]) / str(os.getpid())).touch()
time.sleep(600)
"""
COMMANDS = {
    "calibrate": ("calibrate", "perf", "--processes", "3"),
    "compare": ("compare", "HEAD"),
    "bisect": ("bisect", "--good", "HEAD~1", "--bad", "HEAD", "-k", "mlp"),
}


def is_running(pid: str) -> bool:
    """Whether a process runs: not if it only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def forget_signals() -> None:
    """Take no signal as ignored: under nohup, and in the background of a shell, some are."""
    for each in (signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("command", COMMANDS)
def test_signal_ends_what_measures(
    project: Project,
    tmp_path_factory: pytest.TempPathFactory,
    command: str,
    number: int,
) -> None:
    pids, temporary = tmp_path_factory.mktemp("pids"), tmp_path_factory.mktemp("temporary")
    project.add_to_conftest(HANG)
    (project.root / "pytest.ini").write_text("[pytest]\n")
    git("init", "-q")
    git("config", "user.email", "ann@example.org")
    git("config", "user.name", "Ann")
    for name in ("first", "second"):
        (project.root / name).touch()
        git("add", ".")
        git("commit", "-qm", name)
    environment = {**os.environ, "PIDS": str(pids), "TMPDIR": str(temporary)}
    arguments = [sys.executable, "-m", "kernelgauge", *COMMANDS[command]]
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL, preexec_fn=forget_signals) as process:
        assert eventually(lambda: len(list(pids.iterdir())) == 1)
        process.send_signal(number)
        assert process.wait(10) == (-9 if number == signal.SIGKILL else 130)
    assert eventually(lambda: not any(is_running(path.name) for path in pids.iterdir()))
    assert len(list(pids.iterdir())) == 1
    if number != signal.SIGKILL:
        assert not list(temporary.glob("kernelgauge-*"))
        assert len(git("worktree", "list").splitlines()) == 1
