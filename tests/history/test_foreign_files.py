"""What is read of a history, whatever lies there."""

from __future__ import annotations

import errno
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest

from kernelgauge.errors import ResultsError
from kernelgauge.history import add_to_history
from kernelgauge.history import places as history_places
from kernelgauge.history.places import place
from kernelgauge.history.rows import Entry, entries
from tests.builders import waits_for_a_writer
from tests.history.nights import FIRST, night, read, shown, timed
from tests.test_results import results


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
    newer = key.replace(".v2.", ".v3.")
    (tmp_path / newer).mkdir()  # to read it would be an error
    (tmp_path / newer).rmdir()
    (tmp_path / newer).write_bytes(b"\0")
    assert "newer version of kernelgauge (schema 3, this one reads 1 and 2)" in reasons(tmp_path)[newer]
    (tmp_path / key).rename(tmp_path / key.replace(".v2.", ".v0."))
    assert "another version" in reasons(tmp_path)[key.replace(".v2.", ".v0.")]


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
    name = f"{stamp}-{gpu}-{sha256(content).hexdigest()[:16]}.v2.json"
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
        ({"schema_version": 1}, "disagree"),
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
        {"gemm_us": [-1.0]},
        {"gemm_us": []},
        {"configuration": [7]},
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
