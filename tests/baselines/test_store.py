"""Baselines on a real disk: whole at every moment, one writer at a time, and every failure named; and those committed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kernelgauge import baselines
from kernelgauge.baselines import BaselineStore
from kernelgauge.errors import BaselineError, NewerBaselineError, StorageError
from kernelgauge.judge.baseline import decode_baseline, encode_baseline
from kernelgauge.judge.review import Action, PlannedChange
from kernelgauge.results.files import slug, write_atomically
from kernelgauge.run import CompileEvent, OpRecord
from kernelgauge.trace import KernelIdentity, KernelRecord
from tests.builders import DEVICE, WORKLOAD, baseline, counts

NAMES = ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")
FULL = OSError(28, "No space left on device")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def create(workload: str, **changes: object) -> PlannedChange:
    return PlannedChange(Action.CREATE, workload, baseline(workload=workload, **changes))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def written(store: BaselineStore, content: bytes, workload: str = WORKLOAD) -> Path:
    path = store.path(DEVICE, workload)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-r-xeon-r-cpu-2-20ghz"),
        ("  AMD EPYC 9654 ", "amd-epyc-9654"),
        ("../../etc/passwd", "etc-passwd"),
        *((device, "unknown") for device in ("..", "", "\u4e2d\u6587")),
        ("a/b\x00c\nd", "a-b-c-d"),
        pytest.param("k" * 10_000, "k" * 200, id="longer than a file system takes"),
    ],
)
def test_path_is_in_the_folder_of_its_device(store: BaselineStore, device: str, folder: str) -> None:
    assert store.path(device, "v1.5_a") == store.root / folder / "v1.5_a.json"


@pytest.mark.parametrize(
    "workload", ["../x", "a/b", "/etc/passwd", "..", ".hidden", "", "a\\b", "a\x00b", "a\nb", "\u202ex", "x" * 300]
)
def test_id_that_is_no_file_name_is_refused(store: BaselineStore, workload: str) -> None:
    for attempt in (
        lambda: store.path(DEVICE, workload),
        lambda: store.load(DEVICE, workload),
        lambda: store.apply({DEVICE: [PlannedChange(Action.CREATE, workload, baseline())]}),
    ):
        with pytest.raises(StorageError, match="becomes a file name"):
            attempt()
    assert files(store.root) == []


def test_load_returns_what_was_applied(store: BaselineStore) -> None:
    assert (store.load(DEVICE, WORKLOAD), store.stored(DEVICE)) == (None, {})
    store.apply({DEVICE: [create(WORKLOAD), create("a-x-bf16-1")]})
    assert store.load(DEVICE, WORKLOAD) == baseline()
    assert set(store.stored(DEVICE)) == {WORKLOAD, "a-x-bf16-1"}
    path = store.path(DEVICE, WORKLOAD)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (encode_baseline(baseline()), 0o644)
    assert store.load("NVIDIA A100", WORKLOAD) is None


def test_load_returns_ops_waits_and_inputs(store: BaselineStore) -> None:
    kernel = KernelRecord(
        KernelIdentity("gemm", "gemm"), 1.5, op="aten::mm", inputs=("bf16[8,4]", "bf16[4,2]"), stream=1
    )
    names = ("aten::linear", "aten::mm", "aten::mm", "autograd::engine::evaluate_function: MmBackward0", "a_region")
    wait, copy = "aten::item: cudaStreamSynchronize", "aten::clone: Memcpy DtoD (Device -> Device), 64 bytes"
    event = CompileEvent("graph break", "a branch that depends on data", "model.py", 7, "if x.sum() > 0:", "Net")
    changes: dict[str, Any] = {
        "kernels": (kernel,),
        "counts": counts(launches=1, kernels=1, grown_bytes=512, compiled_ops=3),
    }
    changes |= {"ops": tuple(OpRecord(name) for name in names), "compile_events": (event,)}
    changes |= {"synchronizing_ops": (wait, wait), "copying_ops": (copy,)}
    store.apply({DEVICE: [create(WORKLOAD, **changes)]})
    loaded = store.load(DEVICE, WORKLOAD)
    assert loaded == baseline(**changes)
    assert (loaded.entries[0].kernels, loaded.compile_events) == ((kernel,), (event,))
    assert (loaded.counts.grown_bytes, loaded.counts.compiled_ops) == (512, 3)
    assert loaded.ops == {"aten::linear": 1, "aten::mm": 2}  # of the dispatcher alone
    assert loaded.host_calls == {wait: 2, copy: 1}


def test_file_without_newer_fields_knows_none_of_them(store: BaselineStore) -> None:
    stored = json.loads(encode_baseline(baseline()))
    for field in ("grown_bytes", "compiled_ops"):
        del stored["counts"][field]
    written(store, json.dumps(stored).encode())
    loaded = store.load(DEVICE, WORKLOAD)
    assert loaded == baseline()
    assert (loaded.counts.grown_bytes, loaded.ops, loaded.host_calls, loaded.compile_events) == (None, {}, {}, ())


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b'{"schema_version": 99}'), "a newer version"),
        (lambda path: path.write_bytes(encode_baseline(baseline(workload="another"))), "belongs to another workload"),
        (a_folder, "cannot be read"),
    ],
)
def test_file_that_cannot_be_used_is_not_missing(store: BaselineStore, spoil: Any, said: str) -> None:
    store.apply({DEVICE: [create("a-x-bf16-1")]})
    path = written(store, b"")
    spoil(path)
    with pytest.raises(BaselineError) as caught:
        store.load(DEVICE, WORKLOAD)
    assert str(caught.value.where).startswith(str(path))
    assert said in str(caught.value)
    found = store.stored(DEVICE)
    assert str(found[WORKLOAD]) == str(caught.value)
    assert isinstance(found[WORKLOAD], NewerBaselineError) is ("newer" in said)
    assert set(found) == {WORKLOAD, "a-x-bf16-1"}


def test_stored_ignores_files_of_others(store: BaselineStore) -> None:
    store.apply({DEVICE: [create("a-x-bf16-1")]})
    folder = store.path(DEVICE, "a-x-bf16-1").parent
    for name in ("copy of x (1).json", "\u202ex.json", "README.md", ".a-x-bf16-1.json.abc123.tmp", ".hidden.json"):
        (folder / name).write_bytes(b"x")
    (folder / ".#a-x-bf16-1.json").symlink_to("someone@host.1234:567")  # an editor's lock
    assert set(store.stored(DEVICE)) == {"a-x-bf16-1"}


@pytest.mark.parametrize("what", ["a file", "a loop"])
def test_folder_that_cannot_be_listed_is_not_empty(store: BaselineStore, what: str) -> None:
    folder = store.path(DEVICE, WORKLOAD).parent
    store.root.mkdir()
    if what == "a file":
        folder.write_bytes(b"")
    else:
        folder.symlink_to(folder)
    with pytest.raises(BaselineError, match="cannot be listed") as caught:
        store.stored(DEVICE)
    assert caught.value.where == str(folder)


def test_apply_keeps_a_file_as_it_is(store: BaselineStore) -> None:
    store.apply({DEVICE: [create(NAMES[0])]})
    kept = store.path(DEVICE, NAMES[0])
    kept.write_bytes(kept.read_bytes().replace(b"\n", b"\r\n"))  # as a checkout may have it
    before = kept.read_bytes(), kept.stat().st_mtime_ns
    store.apply({DEVICE: [PlannedChange(Action.KEEP, NAMES[0], None)]})
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == before
    assert files(store.root) == [f"{NAMES[0]}.json"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(1), FULL])
@pytest.mark.parametrize(("moment", "call"), [("fsync", 1), ("fsync", 3), ("chmod", 1), ("replace", 1)])
@pytest.mark.parametrize("exists", [True, False])
def test_apply_interrupted_replaces_no_file(
    store: BaselineStore,
    monkeypatch: pytest.MonkeyPatch,
    interruption: BaseException,
    moment: str,
    call: int,
    exists: bool,
) -> None:
    store.apply({DEVICE: [create(name) for name in NAMES] if exists else []})
    before = {path: path.read_bytes() for path in store.root.glob("*/*")}
    calls, real = [], getattr(os, moment)

    def interrupted(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == call:
            raise interruption
        real(*arguments)

    monkeypatch.setattr(os, moment, interrupted)
    plan = [PlannedChange(Action.UPDATE, name, baseline(workload=name, device=(300.0, 301.0))) for name in NAMES]
    with pytest.raises((StorageError, KeyboardInterrupt, SystemExit)) as caught:
        store.apply({DEVICE: plan[:2], "another": plan[2:]})
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in store.root.glob("*/*")} == before
    if interruption is FULL:
        assert isinstance(caught.value, StorageError)
        assert caught.value.where == str(store.path(*(("another", NAMES[2]) if call == 3 else (DEVICE, NAMES[0]))))
        assert "No space left" in str(caught.value.got)
    else:
        assert caught.value is interruption  # Ctrl-C stays Ctrl-C


@pytest.mark.parametrize("what", ["a file for the folder", "a folder for the file"])
def test_apply_where_nothing_can_be_written_says_where(store: BaselineStore, what: str) -> None:
    path = store.path(DEVICE, WORKLOAD)
    store.root.mkdir()
    if what == "a file for the folder":
        path.parent.write_text("not a folder")
    else:
        path.mkdir(parents=True)
    before = files(store.root)
    with pytest.raises(StorageError, match="cannot write") as caught:
        store.apply({DEVICE: [create(WORKLOAD)]})
    assert str(path.parent) in str(caught.value.where)
    assert caught.value.expected == "a folder that can be written"
    assert files(store.root) == before


@pytest.mark.parametrize("error", [ZeroDivisionError(), BrokenPipeError(32, "Broken pipe"), TimeoutError("it hangs")])
def test_locked_gives_the_lock_back_after_an_error(store: BaselineStore, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, store.locked():
        raise error
    assert caught.value is error  # not blamed on the folder
    with store.locked():
        store.apply({DEVICE: [create(WORKLOAD)]})


def test_locked_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("not a folder")
    with pytest.raises(StorageError, match="cannot write") as caught, BaselineStore(tmp_path / "baselines").locked():
        pass
    assert caught.value.where == str(tmp_path / "baselines")


def test_lock_of_another_update_is_named(store: BaselineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_LOCK_TIMEOUT_SECONDS", 0.2)
    with (
        store.locked(),
        pytest.raises(StorageError, match="another update of these baselines is running") as caught,
        store.locked(),
    ):
        pytest.fail("the lock was taken twice")
    assert caught.value.where == str(store.root / ".update.lock")
    # Not to delete the file: another update would take a new one, beside the one that is still held.
    assert caught.value.next_command == f"fuser -v {store.root / '.update.lock'}   (which process holds it?)"


# -- those of this repository -----------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "baselines").glob("*/*.json"))


def test_baselines_of_a_real_gpu_are_committed() -> None:
    assert {path.parent.name for path in FILES} >= {"nvidia-h200", "nvidia-h100-80gb-hbm3"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_committed_baseline_is_whole_and_in_its_folder(path: Path) -> None:
    content = path.read_bytes()
    baseline = decode_baseline(content, where=str(path), workload=path.stem)
    assert slug(baseline.fingerprint.device) == path.parent.name
    assert baseline.suite in ("perf", "examples/gallery", "examples/models")
    assert content == encode_baseline(baseline)  # byte for byte: no edit by hand


def test_linked_file_is_written_where_it_lies(tmp_path: Path) -> None:
    target, link = tmp_path / "kept" / "file", tmp_path / "link"
    target.parent.mkdir()
    for text in (b"first", b"second"):
        link.unlink(missing_ok=True)
        link.symlink_to("kept/file")  # the first one leads nowhere yet
        write_atomically(link, text)
        assert (link.is_symlink(), target.read_bytes()) == (True, text)
