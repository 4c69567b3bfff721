"""Baselines on a real disk: whole at every moment, one writer at a time, and every failure named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelgauge import baselines
from kernelgauge.baselines import BaselineStore, is_file_name, slug
from kernelgauge.errors import BaselineError, NewerBaselineError, StorageError
from kernelgauge.files import write_atomically
from kernelgauge.judge import Action, PlannedChange, encode_baseline
from tests.baselines.changes import DEVICE, create, files
from tests.builders import WORKLOAD, baseline, waits_for_a_writer

# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-r-xeon-r-cpu-2-20ghz"),
        ("  AMD EPYC 9654 ", "amd-epyc-9654"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "unknown"),
        ("", "unknown"),
        ("\u4e2d\u6587", "unknown"),
        ("a/b\x00c\nd", "a-b-c-d"),
        pytest.param("k" * 10_000, "k" * 200, id="longer than a file system takes"),
    ],
)
def test_a_device_becomes_the_name_of_one_folder(device: str, folder: str) -> None:
    assert slug(device) == folder


def test_a_baseline_lies_in_the_folder_of_its_device(tmp_path: Path) -> None:
    path = BaselineStore(tmp_path).path(DEVICE, WORKLOAD)
    assert path == tmp_path / "nvidia-h200" / f"{WORKLOAD}.json"


# -- one file -------------------------------------------------------------------------------------------------------


def test_a_file_is_written_with_the_folders_above_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.json"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert files(tmp_path) == ["x.json"]


def test_a_file_is_replaced_and_readable_by_everybody(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"a much longer old content")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(1), OSError(28, "No space left on device")])
@pytest.mark.parametrize("moment", ["fsync", "chmod", "replace"])
def test_write_interrupted_before_the_rename_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException, moment: str
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"old")
    reached = []

    def interrupted(*_: object) -> None:
        reached.append(moment)
        raise interruption

    monkeypatch.setattr(os, moment, interrupted)
    with pytest.raises((StorageError, KeyboardInterrupt, SystemExit)) as caught:
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert reached == [moment]
    assert path.read_bytes() == b"old"
    assert files(tmp_path) == ["x.json"]
    if isinstance(interruption, OSError):
        assert isinstance(caught.value, StorageError)
        assert caught.value.where == str(path)
        assert "No space left" in str(caught.value.got)
    else:
        assert caught.value is interruption  # Ctrl-C stays Ctrl-C


def test_an_interruption_before_a_first_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "x.json", b"new")
    assert files(tmp_path) == []


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("not a folder")
    with pytest.raises(StorageError, match="cannot write") as caught:
        write_atomically(tmp_path / "baselines" / "nvidia-h200" / "x.json", b"new")
    assert str(tmp_path / "baselines") in str(caught.value.where)
    assert caught.value.expected == "a folder that can be written"


def test_a_folder_in_the_place_of_the_file_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(StorageError, match="cannot write"):
        write_atomically(tmp_path / "x.json", b"new")
    assert files(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="cannot write"):
        write_atomically(tmp_path / "x.json", b"new")


# -- the store ------------------------------------------------------------------------------------------------------


def test_what_is_applied_is_what_is_loaded(store: BaselineStore) -> None:
    store.apply(DEVICE, [create(WORKLOAD), create("linear-eager-bf16-1")])
    assert store.load(DEVICE, WORKLOAD) == baseline()
    assert set(store.stored(DEVICE)) == {WORKLOAD, "linear-eager-bf16-1"}
    assert store.path(DEVICE, WORKLOAD).read_bytes() == encode_baseline(baseline())


def test_a_missing_file_is_no_baseline_and_no_error(store: BaselineStore) -> None:
    assert store.load(DEVICE, WORKLOAD) is None
    assert store.stored(DEVICE) == {}


def test_another_device_has_baselines_of_its_own(store: BaselineStore) -> None:
    store.apply(DEVICE, [create(WORKLOAD)])
    assert store.load("NVIDIA A100-SXM4-80GB", WORKLOAD) is None


def test_keep_does_not_touch_the_file_and_trim_removes_it(store: BaselineStore) -> None:
    store.apply(DEVICE, [create("a-x-bf16-1"), create("b-x-bf16-1")])
    kept = store.path(DEVICE, "a-x-bf16-1")
    kept.write_bytes(kept.read_bytes().replace(b"\n", b"\r\n"))  # as a checkout may have it
    before = kept.read_bytes(), kept.stat().st_mtime_ns
    store.apply(
        DEVICE, [PlannedChange(Action.KEEP, "a-x-bf16-1", None), PlannedChange(Action.TRIM, "b-x-bf16-1", None)]
    )
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == before
    assert files(store.root) == ["a-x-bf16-1.json"]


def test_trimming_what_is_gone_already_is_no_error(store: BaselineStore) -> None:
    store.apply(DEVICE, [create("a-x-bf16-1"), PlannedChange(Action.TRIM, "b-x-bf16-1", None)])
    assert files(store.root) == ["a-x-bf16-1.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"<<<<<<< HEAD\n"])
def test_a_file_that_cannot_be_used_is_an_error_and_not_missing(store: BaselineStore, content: bytes) -> None:
    path = store.path(DEVICE, WORKLOAD)
    write_atomically(path, content)
    with pytest.raises(BaselineError) as caught:
        store.load(DEVICE, WORKLOAD)
    assert caught.value.where == str(path)
    assert store.stored(DEVICE) == {WORKLOAD: None}


def test_a_folder_in_the_place_of_a_baseline_is_an_error_and_not_missing(store: BaselineStore) -> None:
    store.path(DEVICE, WORKLOAD).mkdir(parents=True)
    with pytest.raises(BaselineError, match="cannot be read"):
        store.load(DEVICE, WORKLOAD)


def test_a_renamed_baseline_is_an_error(store: BaselineStore) -> None:
    store.apply(DEVICE, [create(WORKLOAD)])
    store.path(DEVICE, WORKLOAD).rename(store.path(DEVICE, "mlp-eager-bf16-1"))
    with pytest.raises(BaselineError, match="another workload"):
        store.load(DEVICE, "mlp-eager-bf16-1")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_apply_interrupted_between_files_replaces_none(
    store: BaselineStore, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    names = ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")
    store.apply(DEVICE, [create(name) for name in names])
    before = {name: store.path(DEVICE, name).read_bytes() for name in names}
    synced: list[int] = []
    fsync = os.fsync

    def third_fails(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 3:
            raise interruption
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", third_fails)
    moved = [PlannedChange(Action.UPDATE, name, baseline(workload=name, device=(300.0, 301.0)), ()) for name in names]
    with pytest.raises((StorageError, KeyboardInterrupt)):
        store.apply(DEVICE, [*moved, PlannedChange(Action.TRIM, "a-x-bf16-1", None)])
    assert {name: store.path(DEVICE, name).read_bytes() for name in names} == before
    assert files(store.root) == [f"{name}.json" for name in names]


def test_what_a_killed_writer_left_is_not_taken_for_a_baseline(store: BaselineStore) -> None:
    store.apply(DEVICE, [create(WORKLOAD)])
    (store.path(DEVICE, WORKLOAD).parent / f".{WORKLOAD}.json.abc123.tmp").write_bytes(b"half")
    assert set(store.stored(DEVICE)) == {WORKLOAD}


def test_what_a_killed_writer_left_is_swept_when_its_file_is_written_again(store: BaselineStore) -> None:
    folder = store.path(DEVICE, "a-x-bf16-1").parent
    folder.mkdir(parents=True)
    for name in (".a-x-bf16-1.json.abc123.tmp", ".b-x-bf16-1.json.abc123.tmp", "a-x-bf16-1.json.tmp"):
        (folder / name).write_bytes(b"half")
    with store.locked():
        store.apply(DEVICE, [create("a-x-bf16-1")])
    assert files(folder) == [".b-x-bf16-1.json.abc123.tmp", "a-x-bf16-1.json", "a-x-bf16-1.json.tmp"]


def test_what_is_wrong_with_a_file_comes_with_all_others(store: BaselineStore) -> None:
    store.apply(DEVICE, [create("a-x-bf16-1")])
    for name, content in (("b-x-bf16-1", b"<<<<<<< HEAD\n"), ("c-x-bf16-1", b'{"schema_version": 99}')):
        store.path(DEVICE, name).write_bytes(content)
    found = store.stored_or_wrong(DEVICE)
    assert found["a-x-bf16-1"] == baseline(workload="a-x-bf16-1")
    assert "merge conflict" in str(found["b-x-bf16-1"])
    assert isinstance(found["c-x-bf16-1"], NewerBaselineError)
    assert store.stored(DEVICE) == {"a-x-bf16-1": found["a-x-bf16-1"], "b-x-bf16-1": None, "c-x-bf16-1": None}


def test_stored_names_foreign_files_and_ignores_hidden_ones(store: BaselineStore) -> None:
    store.apply(DEVICE, [create("a-x-bf16-1")])
    folder = store.path(DEVICE, "a-x-bf16-1").parent
    for name in ("copy of x (1).json", "\u202ex.json", "README.md"):
        (folder / name).write_bytes(b"x")
    (folder / ".#a-x-bf16-1.json").symlink_to("someone@host.1234:567")  # an editor's lock
    (folder / ".hidden.json").write_bytes(b"x")
    found = store.stored_or_wrong(DEVICE)
    assert set(found) == {"a-x-bf16-1", "copy of x (1)", "\u202ex"}
    wrong = found["copy of x (1)"]
    assert isinstance(wrong, BaselineError)
    assert wrong.where == str(folder / "copy of x (1).json")
    assert wrong.what == "a file among the baselines is none"


@pytest.mark.parametrize("what", ["a file", "a loop"])
def test_a_folder_that_cannot_be_listed_is_an_error_and_not_empty(store: BaselineStore, what: str) -> None:
    folder = store.path(DEVICE, WORKLOAD).parent
    store.root.mkdir()
    if what == "a file":
        folder.write_bytes(b"")
    else:
        folder.symlink_to(folder)
    for attempt in (store.stored_or_wrong, store.stored):
        with pytest.raises(BaselineError, match="cannot be listed") as caught:
            attempt(DEVICE)
        assert caught.value.where == str(folder)
    with pytest.raises(BaselineError, match="cannot be read"):
        store.load(DEVICE, WORKLOAD)


def test_a_folder_without_permission_is_an_error_and_not_empty(
    store: BaselineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kernelgauge.baselines.os.scandir", refuses)  # root may list whatever there is
    with pytest.raises(BaselineError, match="cannot be listed") as caught:
        store.stored(DEVICE)
    assert "Permission denied" in str(caught.value.got)


def test_a_folder_that_is_not_there_has_no_baselines(store: BaselineStore) -> None:
    assert store.stored_or_wrong(DEVICE) == {}


def test_a_file_that_is_too_large_is_not_read_into_memory(store: BaselineStore) -> None:
    path = store.path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(60 << 30)  # sparse: it takes no room
    with pytest.raises(BaselineError, match="cannot be read") as caught:
        store.load(DEVICE, WORKLOAD)
    assert caught.value.got == f"more than {16 << 20} bytes"
    assert caught.value.next_command == f"ls -l {path}"


@pytest.mark.parametrize(
    "workload", ["../x", "a/b", "/etc/passwd", "..", ".hidden", "", "a\\b", "a\x00b", "a\nb", "\u202ex", "x" * 300]
)
def test_an_id_that_is_no_file_name_becomes_no_path(store: BaselineStore, workload: str) -> None:
    assert not is_file_name(workload)
    for attempt in (
        lambda: store.path(DEVICE, workload),
        lambda: store.load(DEVICE, workload),
        lambda: store.apply(DEVICE, [PlannedChange(Action.CREATE, workload, baseline())]),
        lambda: store.apply(DEVICE, [PlannedChange(Action.TRIM, workload, None)]),
    ):
        with pytest.raises(StorageError, match="becomes a file name"):
            attempt()
    assert files(store.root) == []


@pytest.mark.parametrize("workload", [WORKLOAD, "x", "mlp-compiled-fwd-bf16-4x8", "v1.5_a"])
def test_an_id_of_a_workload_is_a_file_name(workload: str) -> None:
    assert is_file_name(workload)


def test_a_fifo_in_the_place_of_a_baseline_is_refused_and_not_waited_for(store: BaselineStore) -> None:
    path = store.path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    waits, caught = waits_for_a_writer(path, lambda: store.load(DEVICE, WORKLOAD))
    assert not waits
    assert isinstance(caught, BaselineError)


# -- the lock ---------------------------------------------------------------------------------------------------------


def test_the_lock_can_be_taken_again_after_it_was_given_back(store: BaselineStore) -> None:
    for _ in range(2):
        with store.locked():
            store.apply(DEVICE, [create(WORKLOAD)])


def test_an_error_inside_gives_the_lock_back_and_comes_out_as_it_is(
    store: BaselineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "_LOCK_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(ZeroDivisionError), store.locked():
        _ = 1 / 0
    with store.locked():
        pass


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("not a folder")
    with pytest.raises(StorageError, match="cannot write") as caught, BaselineStore(tmp_path / "baselines").locked():
        pass
    assert caught.value.where == str(tmp_path / "baselines")


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), TimeoutError("the device hangs")])
def test_an_error_of_the_system_inside_is_not_blamed_on_the_folder(store: BaselineStore, error: OSError) -> None:
    with pytest.raises(type(error)), store.locked():
        raise error
