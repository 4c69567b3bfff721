"""Histories: what is written, by whom and however it ends, and what is read of it, whatever lies there."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import msgspec
import pytest

from kernelgauge.errors import ResultsError, StorageError
from kernelgauge.history import SetAside, add_to_history, whole_entries
from kernelgauge.history import places as history_places
from kernelgauge.history.file import Stored, decode_entry, encode_entry, file_name, parse_name
from kernelgauge.history.places import place
from kernelgauge.history.rows import Entry, entries
from kernelgauge.history.trend import trends
from kernelgauge.judge import Status, observe
from kernelgauge.report.trend import Trends
from kernelgauge.report.trend_html import trend_html
from kernelgauge.report.trend_text import chart_lines, letters, table_lines
from kernelgauge.results import Results, WorkloadResult
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, H200, HERE, WORKLOAD, fingerprint, run, waits_for_a_writer
from tests.test_results import HOSTILE, hostile, results, verdict, workload

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 12, 1, tzinfo=timezone.utc)
FIRST = datetime(2026, 1, 5, 2, 30, tzinfo=timezone.utc)


def timed(us: float = 205.0, *, name: str = WORKLOAD, gpu: str | None = HERE, **changes: Any) -> WorkloadResult:
    return workload(verdict(workload=name), name=name, run=run(workload=name, device=(us, us), gpu=gpu, **changes))


def night(number: int, *workloads: WorkloadResult, gpu: str | None = HERE, **changes: Any) -> Results:
    when = (FIRST + timedelta(days=number)).isoformat()
    machine = workloads[0].run.fingerprint if workloads and workloads[0].run else H200
    return results(*workloads, started_at=when, gpu=gpu, fingerprint=machine, **({"host": "node"} | changes))


def read(location: str | Path, **options: Any) -> tuple[dict[str, Stored], list[SetAside]]:
    found = list(whole_entries(place(str(location)), **({"now": NOW} | options)))
    return dict(each for each in found if not isinstance(each, SetAside)), [
        each for each in found if isinstance(each, SetAside)
    ]


def shown(location: str | Path, **options: Any) -> Trends:
    pytest.importorskip("duckdb")
    pytest.importorskip("ruptures")
    return trends(str(location), **({"now": NOW} | options))


@pytest.fixture
def bucket() -> Iterator[str]:
    location = f"memory://{uuid4().hex}/history"
    yield location
    fsspec.filesystem("memory").store.clear()


# -- rows and names -----------------------------------------------------------------------------------------------------


def test_an_entry_has_what_a_run_measured_and_concluded() -> None:
    regressed = verdict(
        Status.REGRESSED, headline="device time 205.1 -> 221.8 us", reasons=[("why", "XBLOCK\n 1024 -> 512")]
    )
    told = results(
        workload(regressed, verdict(Status.PASS, "structure", "4 launches")),
        host="node-17",
        commit="abc+",
        exit_status=1,
    )
    (entry,) = entries(told)
    rows, times = entry.rows, entry.rows.device_time
    assert (entry.gpu, entry.host, entry.commit, entry.fingerprint) == (HERE, "node-17", "abc+", H200)
    assert entry.started_at == datetime(2026, 11, 20, 19, 10, 12, tzinfo=timezone.utc)
    assert (rows.workload, rows.module, rows.variant, rows.dtype, rows.pass_) == (
        (WORKLOAD,),
        ("mlp",),
        ("compiled",),
        ("bf16",),
        ("forward",),
    )
    assert (rows.launches, rows.worst, rows.structure) == ((4,), (Status.REGRESSED,), (Status.PASS,))
    sample = told.workloads[0].run.samples[Timer.DEVICE]  # type: ignore[union-attr]
    assert times.mean_us == pytest.approx((observe(sample).mean_us,), rel=1e-6)
    assert (times.replicates, times.baseline_us, times.status) == ((4,), (205.1,), (Status.REGRESSED,))
    assert times.said == rows.said == ("device time 205.1 -> 221.8 us; XBLOCK 1024 -> 512",)
    assert entry.rows.host_dispatch.status == (None,)


def test_a_workload_that_was_not_measured_has_a_row_that_says_why() -> None:
    invalid = verdict(Status.INVALID, headline="throttled for 30 ms")
    (entry,) = entries(
        results(timed(), workload(invalid, name="b", run=None), workload(name="c", run=None, unavailable="no liger"))
    )
    assert entry.rows.workload == (WORKLOAD, "b", "c")
    assert entry.rows.worst == (Status.PASS, Status.INVALID, None)
    assert entry.rows.said == ("", "throttled for 30 ms", "no liger")
    assert entry.rows.device_time.mean_us[1:] == (None, None)
    assert entry.rows.device_time.status[1] is Status.INVALID


def test_results_of_several_gpus_are_an_entry_for_each() -> None:
    told = results(timed(name="a"), timed(name="b", gpu=ELSEWHERE), timed(name="c"), gpu=None)
    assert [(entry.gpu, entry.rows.workload) for entry in entries(told)] == [(HERE, ("a", "c")), (ELSEWHERE, ("b",))]


def test_the_same_results_make_the_same_file_and_others_another() -> None:
    def name(told: Results) -> str:
        (entry,) = entries(told)
        return file_name(entry, encode_entry(entry))

    assert name(results(timed())) == name(results(timed()))
    assert name(results(timed())) != name(results(timed(205.001)))
    assert name(results(timed())).startswith(f"2026/11/20261120T191012Z-{HERE}-")


@pytest.mark.parametrize(
    ("started_at", "stamp"),
    [
        ("2026-11-20T23:30:00-02:00", "2026/11/20261121T013000Z"),
        ("2026-11-20T23:30:00Z", "2026/11/20261120T233000Z"),
        ("2026-11-20T23:30:00", "2026/11/20261120T233000Z"),
        ("0999-01-02T00:00:00.25+00:00", "0999/01/09990102T000000Z"),
    ],
)
def test_a_time_is_told_in_utc(started_at: str, stamp: str) -> None:
    (entry,) = entries(results(timed(), started_at=started_at))
    content = encode_entry(entry)
    name = file_name(entry, content)
    assert name.startswith(stamp)
    parsed = parse_name(name.rpartition("/")[2])
    assert parsed is not None
    assert decode_entry(content, parsed).started_at == entry.started_at


@pytest.mark.parametrize("started_at", ["", "yesterday", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-10:00", *HOSTILE])
def test_results_of_no_time_are_refused(tmp_path: Path, started_at: str) -> None:
    with pytest.raises(ResultsError, match="when these results were measured"):
        add_to_history(results(timed(), started_at=started_at), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_results_without_a_workload_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="nothing to add"):
        add_to_history(results(), str(tmp_path))


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_strangers_neither_leave_the_history_nor_break_it(tmp_path: Path, text: str) -> None:
    told = msgspec.structs.replace(hostile(text, Status.REGRESSED), started_at="2026-11-20T19:10:12+00:00")
    added = add_to_history(told, str(tmp_path / "history"))
    found, aside = read(tmp_path / "history")
    assert set(found) == set(added.written)
    assert aside == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history"]
    assert all(parse_name(key.rpartition("/")[2]) for key in added.written)
    assert max(len(said) for entry in entries(told) for said in entry.rows.said) <= 300


# -- adding -------------------------------------------------------------------------------------------------------------


def test_what_was_added_is_read_again(tmp_path: Path) -> None:
    told = night(0, timed(name="a"), timed(name="b", gpu=ELSEWHERE))
    added = add_to_history(told, str(tmp_path / "deep" / "history"))
    found, aside = read(tmp_path / "deep" / "history")
    assert (len(added.written), added.there, aside) == (2, (), [])
    assert sorted(found) == sorted(added.written)
    assert {entry.gpu: entry.times(Timer.DEVICE)[1] for entry in found.values()} == {HERE: [205.0], ELSEWHERE: [205.0]}


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_the_same_results_twice_add_nothing(tmp_path: Path, bucket: str, kind: str) -> None:
    location = bucket if kind == "bucket" else str(tmp_path)
    first = add_to_history(night(0, timed()), location)
    again = add_to_history(night(0, timed()), location)
    assert (first.there, again.written) == ((), ())
    assert again.there == first.written
    assert len(read(location)[0]) == 1


def test_a_file_that_was_cut_short_by_a_copy_is_mended_by_adding_again(tmp_path: Path) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    whole = (tmp_path / key).read_bytes()
    (tmp_path / key).write_bytes(whole[:100])
    assert [each.key for each in read(tmp_path)[1]] == [key]
    assert add_to_history(night(0, timed()), str(tmp_path)).written == (key,)
    assert (tmp_path / key).read_bytes() == whole


def test_histories_are_merged_by_copying(tmp_path: Path) -> None:
    for name, gpu in (("one", HERE), ("other", ELSEWHERE)):
        for number in range(3):
            add_to_history(night(number, timed(gpu=gpu), gpu=gpu), str(tmp_path / name))
    add_to_history(night(0, timed(gpu=HERE), gpu=HERE), str(tmp_path / "other"))  # one that both have
    shutil.copytree(tmp_path / "one", tmp_path / "all")
    shutil.copytree(tmp_path / "other", tmp_path / "all", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "one", tmp_path / "all" / "once" / "more")
    assert len(read(tmp_path / "all")[0]) == 6


@pytest.mark.parametrize("scheme", ["file://", "local://", ""])
def test_an_address_of_a_local_folder_is_that_folder(tmp_path: Path, scheme: str) -> None:
    (key,) = add_to_history(night(0, timed()), f"{scheme}{tmp_path}").written
    assert (tmp_path / key).is_file()


def test_a_bucket_that_fails_in_the_middle_of_a_write_has_no_file(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    real = type(store).pipe_file

    def broken(self: Any, path: str, value: bytes, **more: Any) -> None:
        real(self, path, value[:50])
        raise ConnectionResetError("the network has gone")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "pipe_file", broken)
        with pytest.raises(StorageError, match="cannot add") as caught:
            add_to_history(night(0, timed()), bucket)
    assert caught.value.got == "ConnectionResetError: the network has gone"
    assert read(bucket) == ({}, [])
    assert add_to_history(night(0, timed()), bucket).there == ()
    assert len(read(bucket)[0]) == 1


@pytest.mark.parametrize(
    "location",
    [
        "",
        "http://host/x",
        "HTTPS://host/x",
        "zip::file:///x",
        "a\0b",
        "file://",
        "local://",
        "://x",
        "://",
        "memory://",
    ],
)
def test_an_address_that_can_be_no_history_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsError, match="cannot lie there"):
        add_to_history(night(0, timed()), location)
    assert list(tmp_path.iterdir()) == []


def test_no_password_is_told() -> None:
    with pytest.raises(ResultsError, match="cannot be reached") as caught:
        add_to_history(night(0, timed()), "nosuch://user:secret@host/x")
    assert "secret" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    with pytest.raises(StorageError, match="cannot add to the history") as caught:
        add_to_history(night(0, timed()), str(tmp_path / "history"))
    assert "kernelgauge history add" in (caught.value.next_command or "")


# -- whoever is killed, whatever is full ----------------------------------------------------------------------------------

WRITERS = """
import os, random, signal, sys, time
sys.path[:0] = sys.argv[3:5]
from kernelgauge.history import add_to_history
from tests.history.test_history import night, timed

history, acknowledged = sys.argv[1:3]
COUNT, KILLED, FINISHED_NIGHTS = 200, 150, 3
log = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
waiting, go = os.pipe()

def write(number):
    os.close(go)
    os.read(waiting, 1)  # until all are there
    gpu = f"{number:08x}"
    last = 10_000 if number < KILLED else FINISHED_NIGHTS  # those that are killed never end by themselves
    for each in range(last):
        for key in add_to_history(night(each % 300, timed(200.0 + each, gpu=gpu), gpu=gpu), history).written:
            os.write(log, f"{key}\\n".encode())

pids = []
for number in range(COUNT):
    pid = os.fork()
    if not pid:
        try:
            write(number)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    pids.append(pid)
os.close(go)
while os.fstat(log).st_size < 200 * 50:  # all are busy: those that end by themselves write 150 of these lines
    time.sleep(0.01)
chance = random.Random(0)
for pid in chance.sample(pids[:KILLED], KILLED):
    time.sleep(chance.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
ends = [os.waitpid(pid, 0)[1] for pid in pids]
print(sum(os.WIFSIGNALED(end) for end in ends), sum(end == 0 for end in ends))
"""


def test_of_200_writers_at_once_killed_at_any_moment_no_file_is_half_written_or_lost(tmp_path: Path) -> None:
    history, acknowledged = tmp_path / "history", tmp_path / "acknowledged"
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, history, acknowledged, ROOT / "src", ROOT],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stderr == ""
    assert done.stdout == "150 50\n"
    told = acknowledged.read_text().splitlines()
    found, aside = read(history)
    assert aside == []  # every file that has a name is whole
    assert set(told) <= set(found)  # and every one that was acknowledged is there
    assert len(told) >= 50 * 3
    assert any(int(str(entry.gpu), 16) < 150 for entry in found.values())  # those that were killed had written
    assert {str(path.relative_to(history)) for path in history.rglob("[!.]*.json")} == set(found)


WITHIN_A_WRITE = """
import resource, signal, sys
sys.path[:0] = sys.argv[4:6]
from kernelgauge.errors import StorageError
from kernelgauge.history import add_to_history
from tests.history.test_history import night, timed

told = night(1, timed())
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL if sys.argv[3] == "kill" else signal.SIG_IGN)
try:
    add_to_history(told, sys.argv[1])
except StorageError as error:
    print(error.what)
"""


@pytest.mark.parametrize("written_bytes", [0, 1, 700])
@pytest.mark.parametrize("how", ["kill", "fail"])
def test_a_write_that_the_system_ends_at_any_byte_leaves_the_history_as_it_was(
    tmp_path: Path, written_bytes: int, how: str
) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    before, _ = read(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WITHIN_A_WRITE, tmp_path, str(written_bytes), how, ROOT / "src", ROOT],
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended = (-signal.SIGXFSZ, "") if how == "kill" else (0, "cannot add to the history\n")
    assert (done.returncode, done.stdout) == ended
    assert read(tmp_path) == (before, [])
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert len(left) == (1 if how == "kill" else 0)
    assert len(add_to_history(night(1, timed()), str(tmp_path)).written) == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_is_full_at_the_last_moment_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(StorageError, match="cannot add") as caught:
            add_to_history(night(0, timed()), str(tmp_path))
    assert "No space left" in (caught.value.got or "")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# -- reading what anybody may have put there ------------------------------------------------------------------------------


def reasons(location: Path | str, **options: Any) -> dict[str, str]:
    return {each.key: each.why for each in read(location, **options)[1]}


def test_a_folder_of_somebody_else_is_named_and_nothing_of_it_is_used(tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    for name in ("README.md", "2026/results.json", "x-1-0.v1.json", "20261399T000000Z-aa-0123456789abcdef.v1.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / ".hidden").write_text("a writer's own")
    assert set(reasons(tmp_path)) == {
        "README.md",
        "2026/results.json",
        "x-1-0.v1.json",
        "20261399T000000Z-aa-0123456789abcdef.v1.json",
    }
    assert set(reasons(tmp_path).values()) == {"no file of a history"}
    assert len(read(tmp_path)[0]) == 1


def test_a_file_of_a_newer_version_is_named_and_not_opened(tmp_path: Path) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    newer = key.replace(".v1.", ".v2.")
    (tmp_path / newer).mkdir()  # to read it would be an error
    (tmp_path / newer).rmdir()
    (tmp_path / newer).write_bytes(b"\0")
    assert "newer version of kernelgauge (schema 2, this one reads 1)" in reasons(tmp_path)[newer]
    (tmp_path / key).rename(tmp_path / key.replace(".v1.", ".v0."))
    assert "another version" in reasons(tmp_path)[key.replace(".v1.", ".v0.")]


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_file_that_is_not_whole_is_named(tmp_path: Path, length: int) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    (tmp_path / key).write_bytes((tmp_path / key).read_bytes()[:length])
    assert read(tmp_path)[0] == {}
    assert "digest differs" in reasons(tmp_path)[key]


def test_a_byte_that_changed_is_noticed(tmp_path: Path) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    (tmp_path / key).write_bytes((tmp_path / key).read_bytes().replace(b"205.0", b"105.0"))
    assert "digest differs" in reasons(tmp_path)[key]


def forged(folder: Path, content: bytes, key: str) -> str:
    """A file whose digest is right."""
    from hashlib import sha256

    stamp, gpu, _ = key.split("-")
    name = f"{stamp}-{gpu}-{sha256(content).hexdigest()[:16]}.v1.json"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return name


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"started_at": "2026-01-06T02:30:00Z"}, "disagree"),
        ({"started_at": "2026-01-05T02:30:00"}, "disagree"),
        ({"started_at": "0001-01-01T00:00:00+10:00"}, "disagree"),
        ({"started_at": "9999-12-31T23:59:59-10:00"}, "disagree"),
        ({"schema_version": 2}, "disagree"),
        ({"rows": []}, "no entry of a history"),
        ({"gpu": 7}, "no entry of a history"),
    ],
)
def test_an_entry_that_is_not_what_its_name_says_is_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path / "real")).written
    told = json.loads((tmp_path / "real" / key).read_bytes()) | change
    name = forged(tmp_path / "history", json.dumps(told).encode(), key)
    assert why in reasons(tmp_path / "history")[name]


@pytest.mark.parametrize(
    "rows",
    [
        {"workload": []},
        {"workload": [7]},
        {"device_time": None},
        {"device_time": {"mean_us": ["x"], "status": [None]}},
        {"device_time": {"mean_us": [-1.0], "status": [None]}},
        {"device_time": {"mean_us": [1e308], "status": [None]}},
        {"device_time": {"mean_us": [1.1e12], "status": [None]}},
        {"device_time": {"mean_us": [5e-324], "status": [None]}},
        {"device_time": {"mean_us": [0.0009], "status": [None]}},
        {"device_time": {"mean_us": [1.0], "status": []}},
    ],
)
def test_columns_that_are_none_are_named(tmp_path: Path, rows: dict[str, Any]) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path / "real")).written
    told = json.loads((tmp_path / "real" / key).read_bytes())
    told["rows"] |= rows
    name = forged(tmp_path / "history", json.dumps(told).encode(), key)
    found = shown(tmp_path / "history")
    assert (found.charts, found.entries) == ((), 0)
    assert found.set_aside[0].startswith(f"{name}: no columns of a history")


def test_a_column_of_another_length_is_never_written() -> None:
    (entry,) = entries(results(timed()))
    with pytest.raises(ValueError, match="2 values of launches for 1 workloads"):
        msgspec.convert(
            msgspec.to_builtins(entry) | {"rows": {**msgspec.to_builtins(entry.rows), "launches": [1, 2]}}, Entry
        )


def test_a_fifo_and_a_folder_in_the_place_of_a_file_are_named_and_not_waited_for(tmp_path: Path) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    (tmp_path / key).unlink()
    os.mkfifo(tmp_path / key)
    waits, _ = waits_for_a_writer(tmp_path / key, lambda: read(tmp_path))
    assert not waits
    assert "not a regular file" in reasons(tmp_path)[key]


def test_a_file_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    monkeypatch.setattr(history_places, "MOST_BYTES", 100)
    assert reasons(tmp_path) == {key: "it cannot be read: more than 100 bytes"}


def test_a_folder_that_cannot_be_listed_is_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    (tmp_path / "2026" / "02").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path) in forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    forbidden = {tmp_path / "2026" / "02"}
    assert reasons(tmp_path) == {"2026/02/": "this folder cannot be listed"}
    assert len(read(tmp_path)[0]) == 1
    forbidden = {tmp_path}
    with pytest.raises(ResultsError, match="cannot be reached") as caught:
        read(tmp_path)
    assert "Permission denied" in (caught.value.got or "")


def test_an_object_that_stands_for_a_folder_is_no_file(bucket: str) -> None:
    add_to_history(night(0, timed()), bucket)
    store = fsspec.filesystem("memory")
    root = bucket.removeprefix("memory:/")
    store.store[f"{root}/2027/"] = store.store[next(iter(store.store))]
    assert place(bucket).keys() != []
    assert reasons(bucket) == {}


def test_a_link_to_a_folder_above_is_not_followed_for_ever(tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(read(tmp_path)[0]) == 1


def test_what_was_measured_in_the_future_is_named_and_not_shown(tmp_path: Path) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    assert "in the future" in reasons(tmp_path, now=FIRST - timedelta(hours=1))[key]
    assert len(read(tmp_path, now=FIRST - timedelta(minutes=5))[0]) == 1


def test_entries_come_in_order_of_time_whatever_order_they_were_added_in(tmp_path: Path) -> None:
    for number in (40, 3, 300, 7):
        add_to_history(night(number, timed()), str(tmp_path))
    days = [(entry.started_at - FIRST).days for entry in read(tmp_path)[0].values()]
    assert days == [3, 7, 40, 300]


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_history_that_is_not_there_is_an_error_or_empty(tmp_path: Path, kind: str, bucket: str) -> None:
    if kind == "bucket":
        assert read(bucket) == ({}, [])
    else:
        with pytest.raises(ResultsError, match="cannot be reached") as caught:
            read(tmp_path / "nowhere")
        assert caught.value.got == "there is no such folder"


# -- trends ---------------------------------------------------------------------------------------------------------------


def year(location: str | Path, *, nights: int = 40, gpus: tuple[str, ...] = (HERE, ELSEWHERE)) -> None:
    """A driver upgrade at half time that makes "slow" 5 % slower."""
    for number in range(nights):
        late = number >= nights // 2
        machine = fingerprint(driver="585.1" if late else "580.1")
        for gpu in gpus:
            wobble = 1 + random.Random(f"{gpu} {number}").gauss(0, 0.001)
            both = [
                timed(us * wobble, name=name, gpu=gpu, machine=machine)
                for name, us in (("slow", 210.0 if late else 200.0), ("same", 100.0))
            ]
            add_to_history(night(number, *both, gpu=gpu, commit=f"{number:040x}"), str(location))


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_step_is_found_beside_the_upgrade_that_it_came_with(tmp_path: Path, bucket: str, kind: str) -> None:
    location = bucket if kind == "bucket" else str(tmp_path)
    year(location)
    found = shown(location)
    assert [(chart.workload, len(chart.series)) for chart in found.charts] == [("same", 2), ("slow", 2)]
    assert (found.entries, found.set_aside) == (80, ())
    same, slow = found.charts
    assert [series.gpu for series in slow.series] == [HERE, ELSEWHERE]
    assert all(series.shifts == () for series in same.series)
    for series in slow.series:
        ((index, changes),) = [(mark.index, mark.changes) for mark in series.marks]
        assert (index, changes) == (20, ("driver 580.1 -> 585.1",))
        (shift,) = series.shifts
        assert (shift.index, series.changes_beside(shift)) == (20, changes)
        assert shift.change == pytest.approx(0.05, abs=0.002)
        assert series.moments[20].commit == f"{20:040x}"


def test_a_pattern_is_a_glob_or_a_part_of_an_id(tmp_path: Path) -> None:
    add_to_history(night(0, timed(name="mlp-eager"), timed(name="mlp-liger"), timed(name="norm")), str(tmp_path))

    def names(*patterns: str) -> list[str]:
        return [chart.workload for chart in shown(tmp_path, patterns=patterns).charts]

    assert names() == ["mlp-eager", "mlp-liger", "norm"]
    assert names("mlp") == names("mlp-*") == ["mlp-eager", "mlp-liger"]
    assert names("liger", "no*") == ["mlp-liger", "norm"]
    assert names("lp") == ["mlp-eager", "mlp-liger"]
    assert names("lp*") == names("'; DROP TABLE rows; --") == []


def test_times_of_any_size_are_drawn(tmp_path: Path) -> None:
    for number, us in enumerate((2e-3, 9e11, 2e-3, 9e11, 205.0, 1.0)):
        add_to_history(night(number, timed(us, name="wide")), str(tmp_path))
    for number in range(2):
        add_to_history(night(number, timed(1e-3, name="small", gpu=ELSEWHERE), gpu=ELSEWHERE), str(tmp_path))
    found = shown(tmp_path)
    assert (len(found.charts), found.set_aside) == (2, ())
    table = list(table_lines(found.charts, width=80, letters=letters("utf-8")))
    assert len(table) == 4
    for chart in found.charts:
        drawn = list(chart_lines(chart, "device time", width=80, letters=letters("utf-8")))
        assert sum("1" in line[11:] for line in drawn[2:11]) == (2 if chart.workload == "wide" else 1)
    assert "nan" not in trend_html(found)


@pytest.mark.parametrize("us", [5e-324, 1e308])
def test_times_that_leave_no_room_between_low_and_high_are_drawn_all_the_same(tmp_path: Path, us: float) -> None:
    add_to_history(night(0, timed(name="a")), str(tmp_path))
    (chart,) = shown(tmp_path).charts
    strange = replace(chart, series=tuple(replace(each, values_us=(us,)) for each in chart.series))
    assert len(list(chart_lines(strange, "device time", width=80, letters=letters("utf-8")))) > 10
    assert len(list(table_lines([strange], width=80, letters=letters("utf-8")))) == 3


def test_a_pattern_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    with pytest.raises(ResultsError, match="the name of no workload") as caught:
        shown(tmp_path, patterns=("mlp", os.fsdecode(b"\xff")))
    assert caught.value.got == "\\udcff"


def test_since_and_gpu_leave_the_rest_out(tmp_path: Path) -> None:
    year(tmp_path, nights=10)
    (late, _) = shown(tmp_path, since=FIRST + timedelta(days=7)).charts
    assert [len(series.values_us) for series in late.series] == [3, 3]
    (one, _) = shown(tmp_path, gpu=HERE[:4]).charts
    assert [series.gpu for series in one.series] == [HERE]


@pytest.mark.parametrize(("timer", "us"), [(Timer.DEVICE, 205.0), (Timer.END_TO_END, 301.5), (Timer.HOST, 50.7)])
def test_each_timer_has_its_history(tmp_path: Path, timer: Timer, us: float) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    (chart,) = shown(tmp_path, timer=timer).charts
    assert chart.last_us == pytest.approx(us, rel=0.001)


def test_kinds_of_machine_are_charts_of_their_own(tmp_path: Path) -> None:
    for number, machine in enumerate((H200, fingerprint(power_limit_watts=500.0), fingerprint(mig=True))):
        add_to_history(night(number, timed(machine=machine)), str(tmp_path))
    assert [chart.machine for chart in shown(tmp_path).charts] == [
        "NVIDIA H200, sm_90, 132 SMs, 500 W",
        "NVIDIA H200, sm_90, 132 SMs, 700 W",
        "NVIDIA H200, sm_90, 132 SMs, 700 W, MIG",
    ]


def test_a_cpu_is_told_by_its_host(tmp_path: Path) -> None:
    cpu = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, power_limit_watts=None, mig=None, driver=None)
    for host in ("one", "other"):
        added = add_to_history(night(0, timed(gpu=None, machine=cpu), gpu=None, host=host), str(tmp_path))
        assert "-cpu-" in added.written[0]
    (chart,) = shown(tmp_path).charts
    assert [series.named for series in chart.series] == ["host one", "host other"]
    drawn = "\n".join(chart_lines(chart, "device time", width=80, letters=letters("ascii")))
    assert "  1  host one: 1 run, last 205.0 us" in drawn.splitlines()
    assert "  #  several hosts" in drawn.splitlines()
    page = trend_html(Trends(Timer.DEVICE, (chart,), 2, ()))
    assert "host one: last 205.0 us" in page
    assert "on 2 hosts" in page
    assert "GPU one" not in drawn + page


def test_files_that_contradict_each_other_are_named_and_neither_is_shown(tmp_path: Path) -> None:
    add_to_history(night(0, timed(205.0, name="a"), timed(100.0, name="b")), str(tmp_path))
    add_to_history(night(0, timed(207.0, name="a"), timed(100.0, name="b")), str(tmp_path))
    add_to_history(night(1, timed(206.0, name="a")), str(tmp_path))
    found = shown(tmp_path)
    assert [(chart.workload, chart.series[0].values_us) for chart in found.charts] == [("a", (206.0,)), ("b", (100.0,))]
    assert found.set_aside == ("a: 2 files say 2 different times of the run that started at 2026-01-05T02:30:00+00:00",)


@pytest.mark.parametrize("other", [{"commit": "b"}, {"kernelgauge": "9.9"}])
def test_files_that_say_different_times_of_one_run_contradict_each_other_whatever_else_they_say(
    tmp_path: Path, other: dict[str, str]
) -> None:
    add_to_history(night(0, timed(205.0), commit="a"), str(tmp_path))
    add_to_history(night(0, timed(205.1), **({"commit": "a"} | other)), str(tmp_path))
    found = shown(tmp_path)
    assert found.charts == ()
    assert len(found.set_aside) == 1


def test_files_that_say_the_same_times_of_one_run_are_one_night(tmp_path: Path) -> None:
    add_to_history(night(0, timed(name="a")), str(tmp_path))
    add_to_history(night(0, timed(name="a"), timed(name="b")), str(tmp_path))  # merged with another part
    found = shown(tmp_path)
    assert [(chart.workload, chart.series[0].values_us) for chart in found.charts] == [("a", (205.0,)), ("b", (205.0,))]
    assert found.set_aside == ()


def test_a_time_that_cannot_be_trusted_is_counted_and_not_shown(tmp_path: Path) -> None:
    spoiled = workload(verdict(Status.INVALID, headline="throttled"), run=run(device=(999.0,)))
    add_to_history(night(0, timed()), str(tmp_path))
    add_to_history(night(1, spoiled), str(tmp_path))
    found = shown(tmp_path)
    assert found.charts[0].series[0].values_us == (205.0,)
    assert found.set_aside == ("1 time whose verdict is INVALID",)


def test_a_run_that_measured_nothing_is_read_and_has_no_chart(tmp_path: Path) -> None:
    nothing = workload(verdict(Status.INVALID, headline="CUDA error"), run=None)
    (key,) = add_to_history(results(nothing, fingerprint=None, gpu=None), str(tmp_path)).written
    assert "-unknown-" in key
    found = shown(tmp_path)
    assert (found.charts, found.entries, found.set_aside) == ((), 1, ())


def test_the_query_of_the_documentation_reads_the_files_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = pytest.importorskip("duckdb")
    add_to_history(night(0, timed(name="a"), timed(206.0, name="b")), str(tmp_path / "history"))
    query = (ROOT / "docs" / "history.md").read_text().split("```sql\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT gpu, workload, us FROM ({query})").fetchall()
    assert found == [(HERE, "a", 205.0), (HERE, "b", 206.0)]


def test_without_duckdb_the_error_says_what_to_install_and_adding_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    add_to_history(night(0, timed()), str(tmp_path))
    with pytest.raises(ResultsError, match="without duckdb") as caught:
        trends(str(tmp_path), now=NOW)
    assert caught.value.next_command == "pip install 'kernelgauge[history]'"


def test_adding_imports_neither_duckdb_nor_ruptures_nor_numpy() -> None:
    script = (
        "import sys, kernelgauge.history; print({'duckdb', 'ruptures', 'numpy', 'torch', 'fsspec'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
