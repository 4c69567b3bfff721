"""Baselines while other processes write them, wait for them, and are killed: whole files, and no lock that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelgauge import baselines
from kernelgauge.baselines import BaselineStore, slug
from kernelgauge.errors import StorageError
from tests.baselines.changes import DEVICE, create, files
from tests.builders import WORKLOAD, baseline

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
# Each version has many kernels, so that a write takes long enough to be met in its middle, and says in each file by whom
# it was written.
UPDATE = """
version, rounds = float(sys.argv[2]), int(sys.argv[3])
plan = [
    PlannedChange(
        Action.UPDATE,
        name,
        baseline(workload=name, device=(version, version), kernels=tuple(launched("k", version) for _ in range(1000)), counts=counts(launches=1000, kernels=1)),
    )
    for name in ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")
]
print("ready", flush=True)
sys.stdin.readline()
for round in range(rounds):
    with store.locked():
        store.apply("NVIDIA H200", plan)
        for change in plan:  # nobody else has written as long as the lock is held
            assert store.load("NVIDIA H200", change.workload) == change.baseline
    if round == 0:
        print("updated once", flush=True)
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
    store.apply("NVIDIA H200", [PlannedChange(Action.UPDATE, "a-x-bf16-1", baseline(workload="a-x-bf16-1", device=(9.0,)))])
"""

# Forked, so that a process takes no more than a millisecond to come: each writes its own number into all files, under the
# lock, and the sum of what it finds there into the file that counts.
MANY_WRITERS = """
import os
from kernelgauge import baselines

baselines._LOCK_TIMEOUT_SECONDS = 300.0  # however slow the machine is that runs this
print("ready", flush=True)
sys.stdin.readline()
names = ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")
children = []
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        try:
            with store.locked():
                before = store.load("NVIDIA H200", "count-x-bf16-1")
                count = 1.0 + (before.entries[0].kernels[0].device_time_us if before else 0.0)
                of = {name: number + 1.0 for name in names} | {"count-x-bf16-1": count}
                store.apply("NVIDIA H200", [
                    PlannedChange(Action.UPDATE, name, baseline(workload=name, kernels=(launched("k", value),), counts=counts(launches=1, kernels=1)))
                    for name, value in of.items()
                ])
            os._exit(0)
        finally:
            os._exit(1)
    children.append(child)
print(sum(os.waitpid(child, 0)[1] != 0 for child in children), flush=True)
"""

# Kills itself in the middle of applying, by SIGKILL, again and again: after a random time, in a fork of its own.
MANY_KILLED = """
import os
import random
import signal
import time

print("ready", flush=True)
sys.stdin.readline()
random.seed(7)
names = ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")

def plan(version):
    return [
        PlannedChange(Action.UPDATE, name, baseline(workload=name, kernels=tuple(launched("k", version) for _ in range(200)), counts=counts(launches=200, kernels=1)))
        for name in names
    ]

versions = [plan(1.0), plan(2.0)]
with store.locked():
    store.apply("NVIDIA H200", versions[0])
wrong = 0
for round in range(int(sys.argv[2])):
    begun, beginning = os.pipe()
    child = os.fork()
    if child == 0:
        for number in range(1, 1_000_000):  # first the version that the last round did not begin with
            with store.locked():
                os.write(beginning, b".")
                store.apply("NVIDIA H200", versions[(round + number) % 2])
    os.read(begun, 1)  # it is applying now
    os.close(begun)
    os.close(beginning)
    time.sleep(random.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    found = [store.load("NVIDIA H200", name) for name in names]  # raises for a file that is not whole
    seen = [{kernel.device_time_us for kernel in each.entries[0].kernels} if each else set() for each in found]
    wrong += any(one not in ({1.0}, {2.0}) for one in seen)
print(wrong, flush=True)
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
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def whole_versions(store: BaselineStore) -> dict[str, set[float]]:
    """The versions in each file. A file that is not whole raises `BaselineError`, as loading it would."""
    found = {}
    for path in sorted((store.root / slug(DEVICE)).glob("*.json")):
        stored = store.load(DEVICE, path.stem)
        assert stored is not None
        (entry,) = stored.entries
        assert len(entry.kernels) == 1000
        found[path.stem] = {kernel.device_time_us for kernel in entry.kernels}
    return found


def test_a_lock_that_another_process_holds_is_named(store: BaselineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_LOCK_TIMEOUT_SECONDS", 0.2)
    with python(HOLD, store.root):
        started = time.monotonic()
        with (
            pytest.raises(StorageError, match="another update of these baselines is running") as caught,
            store.locked(),
        ):
            pytest.fail("the lock was taken twice")
        assert time.monotonic() - started < 5
    assert caught.value.where == str(store.root)
    assert caught.value.expected == "the lock within 0.2 s"
    # Not to delete the file: another update would take a new one, beside the one that is still held.
    assert caught.value.next_command == f"fuser -v {store.root / '.update.lock'}   (which process holds it?)"


def test_a_process_that_was_killed_holds_no_lock(store: BaselineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_LOCK_TIMEOUT_SECONDS", 2)
    with python(HOLD, store.root) as process:
        process.kill()
        process.wait(timeout=10)
        with store.locked():
            store.apply(DEVICE, [create(WORKLOAD)])
    assert store.load(DEVICE, WORKLOAD) is not None


def test_a_waiting_update_goes_on_when_the_other_one_ends(store: BaselineStore) -> None:
    with python(HOLD, store.root) as process:
        assert process.stdin is not None
        threading.Timer(0.2, process.stdin.close).start()
        with store.locked():
            assert process.wait(timeout=10) == 0


def test_two_processes_that_update_at_once_leave_only_whole_files(store: BaselineStore) -> None:
    with python(UPDATE, store.root, 1.5, 15) as one, python(UPDATE, store.root, 2.5, 15) as other:
        seen: set[float] = set()
        go(one)
        go(other)
        while one.poll() is None or other.poll() is None:
            with suppress(FileNotFoundError):
                for versions in whole_versions(store).values():  # a reader in between sees whole files too
                    assert len(versions) == 1
                    seen |= versions
        assert (one.returncode, other.returncode) == (0, 0)
    last = whole_versions(store)
    assert len(last) == 3
    assert len(set(map(frozenset, last.values()))) == 1  # the lock covers a whole update, not one file
    assert seen <= {1.5, 2.5}
    assert [name for name in files(store.root) if name.endswith(".tmp")] == []


@pytest.mark.parametrize("after_seconds", [0.0, 0.017, 0.031])
def test_a_process_killed_while_updating_leaves_whole_files(store: BaselineStore, after_seconds: float) -> None:
    with python(UPDATE, store.root, 1.5, 100_000) as process:
        go(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "updated once\n"
        time.sleep(after_seconds)
        assert process.poll() is None  # it was still updating
        process.kill()
        assert process.wait(timeout=10) == -9
    assert whole_versions(store) == {name: {1.5} for name in ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")}
    with store.locked():
        store.apply(DEVICE, [create("a-x-bf16-1")])
    assert store.load(DEVICE, "a-x-bf16-1") == baseline(workload="a-x-bf16-1")


@pytest.mark.parametrize("written_bytes", [0, 1, 500])
def test_a_process_killed_within_a_write_leaves_the_old_file(store: BaselineStore, written_bytes: int) -> None:
    store.apply(DEVICE, [create("a-x-bf16-1")])
    with python(END_WITHIN_A_WRITE, store.root, written_bytes, "kill") as process:
        go(process)
        assert process.wait(timeout=10) == -signal.SIGXFSZ
    assert store.load(DEVICE, "a-x-bf16-1") == baseline(workload="a-x-bf16-1")
    assert set(store.stored(DEVICE)) == {"a-x-bf16-1"}


def test_a_file_that_grows_too_large_leaves_the_old_one_and_nothing_else(store: BaselineStore) -> None:
    store.apply(DEVICE, [create("a-x-bf16-1")])
    with python(END_WITHIN_A_WRITE, store.root, 500, "fail") as process:
        go(process)
        assert process.wait(timeout=10) == 1
    assert store.load(DEVICE, "a-x-bf16-1") == baseline(workload="a-x-bf16-1")
    assert [name for name in files(store.root) if name.endswith(".tmp")] == []


def test_two_hundred_updates_at_once_lose_none(store: BaselineStore) -> None:
    with python(MANY_WRITERS, store.root, 200) as process:
        go(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"  # none failed
    found = {
        name: stored.entries[0].kernels[0].device_time_us for name, stored in store.stored(DEVICE).items() if stored
    }
    assert found.pop("count-x-bf16-1") == 200.0  # no update was lost
    assert len(found) == 3
    assert len(set(found.values())) == 1  # the last one's, in all files
    assert [name for name in files(store.root) if name.endswith(".tmp")] == []


def test_processes_killed_while_applying_leave_files_old_or_new(store: BaselineStore) -> None:
    with python(MANY_KILLED, store.root, 150) as process:
        go(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
    with store.locked():  # and nobody holds the lock
        store.apply(DEVICE, [create(name) for name in ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")])
    assert [name for name in files(store.root) if name.endswith(".tmp")] == []
