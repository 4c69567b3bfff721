"""Baselines while other processes write them, wait for them, and are killed: whole files, and no lock that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelgauge import baselines
from kernelgauge.baselines import BaselineStore
from kernelgauge.errors import StorageError
from tests.baselines.conftest import DEVICE, create, files
from tests.builders import baseline

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

PRELUDE = """
import sys
from pathlib import Path
from kernelgauge.judge import Action, PlannedChange
from kernelgauge.baselines import BaselineStore
from tests.builders import baseline, counts, launched

store = BaselineStore(Path(sys.argv[1]))
"""
HOLD = """
with store.locked():
    print("ready", flush=True)
    sys.stdin.read()
"""
# The kernel ends the process in the middle of a write, at a byte that the test chooses.
END_WITHIN_A_WRITE = """
import resource
import signal

print("ready", flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL if sys.argv[3] == "kill" else signal.SIG_IGN)
with store.locked():
    store.apply({"NVIDIA H200": [PlannedChange(Action.UPDATE, "a-x-bf16-1", baseline(workload="a-x-bf16-1", device=(9.0,)))]})
"""


@contextmanager
def python(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another Python process, once it says that it is ready. It does not outlive the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def answer(process: subprocess.Popen[str]) -> str:
    """Let the process go on, and return the next line that it prints."""
    process.stdin.write("go\n")
    process.stdin.flush()
    return process.stdout.readline()


def leftovers(store: BaselineStore) -> list[str]:
    return [name for name in files(store.root) if name.endswith(".tmp")]


def test_lock_of_another_process_is_named(store: BaselineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_LOCK_TIMEOUT_SECONDS", 0.2)
    with python(HOLD, store.root):
        started = time.monotonic()
        with (
            pytest.raises(StorageError, match="another update of these baselines is running") as caught,
            store.locked(),
        ):
            pytest.fail("the lock was taken twice")
        assert time.monotonic() - started < 5
    assert caught.value.where == str(store.root / ".update.lock")
    # Not to delete the file: another update would take a new one, beside the one that is still held.
    assert caught.value.next_command == f"fuser -v {store.root / '.update.lock'}   (which process holds it?)"


def test_lock_is_free_after_its_process_was_killed(store: BaselineStore) -> None:
    with python(HOLD, store.root) as process:
        threading.Timer(0.2, process.kill).start()
        with store.locked():
            assert process.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.parametrize(("written_bytes", "how"), [(0, "kill"), (1, "kill"), (500, "kill"), (500, "fail")])
def test_process_ended_within_a_write_leaves_the_old_file(store: BaselineStore, written_bytes: int, how: str) -> None:
    store.apply({DEVICE: [create("a-x-bf16-1")]})
    with python(END_WITHIN_A_WRITE, store.root, written_bytes, how) as process:
        answer(process)
        assert process.wait(timeout=10) == (-signal.SIGXFSZ if how == "kill" else 1)
    assert store.stored(DEVICE) == {"a-x-bf16-1": baseline(workload="a-x-bf16-1")}
    assert how == "kill" or leftovers(store) == []
