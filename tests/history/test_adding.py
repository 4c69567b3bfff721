"""Adding results to a history, in a folder or a bucket."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from kernelgauge.errors import ResultsError, StorageError
from kernelgauge.history import add_to_history
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, HERE
from tests.history.nights import night, read, timed


def test_what_was_added_is_read_again(tmp_path: Path) -> None:
    told = night(0, timed(name="a"), timed(name="b", gpu=ELSEWHERE))
    added = add_to_history(told, str(tmp_path / "deep" / "history"))
    found, aside = read(tmp_path / "deep" / "history")
    assert (len(added.written), added.there, aside) == (2, (), [])
    assert sorted(found) == sorted(added.written)
    assert {entry.gpu: entry.columns(Timer.DEVICE).mean_us for entry in found.values()} == {
        HERE: [205.0],
        ELSEWHERE: [205.0],
    }


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
