"""Baselines on a real disk: whole at every moment, one writer at a time, and every failure named;
and those committed.
"""

import functools
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock, patch

import pytest

from kernelgauge import baselines
from kernelgauge.baselines import BaselineStore
from kernelgauge.errors import BaselineError, StorageError
from kernelgauge.judge.baseline import decode_baseline, encode_baseline
from kernelgauge.judge.review import Action, PlannedChange
from kernelgauge.judge.structure import judge_structure
from kernelgauge.results.files import slug
from tests.builders import DEVICE, WORKLOAD, baseline, judged_time, run

NAMES = ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")
FULL = OSError(28, "No space left on device")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def create(workload: str = WORKLOAD, **changes: Any) -> PlannedChange:
    return PlannedChange(Action.CREATE, workload, baseline(workload=workload, **changes))


FOLDERS = {
    "NVIDIA A100-SXM4-80GB": "nvidia-a100-sxm4-80gb",
    "  Intel(R) Xeon(R) CPU @ 2.20GHz": "intel-r-xeon-r-cpu-2-20ghz",
    "../../etc/passwd": "etc-passwd",
    **dict.fromkeys(("..", "", "\u4e2d\u6587"), "unknown"),
    "k" * 10_000: "k" * 200,
}


def test_path_is_in_the_folder_of_its_device(store: BaselineStore) -> None:
    found = {device: store.path(device, "v1.5_a") for device in FOLDERS}
    assert found == {
        device: store.root / folder / "v1.5_a.json" for device, folder in FOLDERS.items()
    }


@pytest.mark.parametrize(
    "workload", ["../x", "a/b", "/etc/x", "..", ".x", "", "a\\b", "a\x00b", "\u202ex", "x" * 300]
)
def test_id_that_is_no_file_name_is_refused(store: BaselineStore, workload: str) -> None:
    plan = {DEVICE: [PlannedChange(Action.CREATE, workload, baseline())]}
    for attempt in (lambda: store.load(DEVICE, workload), lambda: store.apply(plan)):
        with pytest.raises(StorageError, match="becomes a file name"):
            attempt()
    assert files(store.root) == []


def test_load_returns_what_was_applied(store: BaselineStore) -> None:
    assert (store.load(DEVICE, WORKLOAD), store.stored(DEVICE)) == (None, {})
    store.apply({DEVICE: [create(), create(NAMES[0])]})
    assert store.load(DEVICE, WORKLOAD) == baseline()
    assert set(store.stored(DEVICE)) == {WORKLOAD, NAMES[0]}
    path = store.path(DEVICE, WORKLOAD)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (encode_baseline(baseline()), 0o644)
    assert store.load("NVIDIA A100", WORKLOAD) is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda path: path.write_bytes(encode_baseline(baseline(workload="another"))),
            "belongs to another workload",
        ),
        (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
    ],
)
def test_file_that_cannot_be_used_is_not_missing(
    store: BaselineStore, spoil: Any, message: str
) -> None:
    store.apply({DEVICE: [create(), create(NAMES[0])]})
    path = store.path(DEVICE, WORKLOAD)
    spoil(path)
    with pytest.raises(BaselineError, match=message) as caught:
        store.load(DEVICE, WORKLOAD)
    assert str(caught.value.where).startswith(str(path))
    found = store.stored(DEVICE)
    assert str(found[WORKLOAD]) == str(caught.value)
    assert set(found) == {WORKLOAD, NAMES[0]}


TIMER = ("entries", 0, "processes", 0, "timers", "device_time")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ((*TIMER, "replicates"), (0, -1, 2**70)),
        ((*TIMER, "iterations"), (0, -1)),
        ((*TIMER, "spread"), (-0.1, 1e308, -1e308)),
        (("entries", 0, "kernels", 0, "device_time_us"), (-1, 1e308)),
        (("entries", 0, "processes", 0, "day"), ("x", "")),
        (("counts", "copies"), (-1, 2**70)),
    ],
)
def test_number_that_nobody_measures_is_refused(
    store: BaselineStore, field: tuple[Any, ...], values: Any
) -> None:
    path = store.path(DEVICE, WORKLOAD)
    for value in values:
        store.apply({DEVICE: [create(day="2026-11-20")]})
        content = json.loads(path.read_text())
        functools.reduce(lambda part, name: part[name], field[:-1], content)[field[-1]] = value
        path.write_text(json.dumps(content))
        with pytest.raises(BaselineError, match="the baseline cannot be read") as caught:
            store.load(DEVICE, WORKLOAD)
        # Rows become launches before the types are checked: their names stay.
        assert f".{field[-1]}`" in str(caught.value.got)


def numbers_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container that has a number, and the number's key in it."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, (dict, list)):
            yield from numbers_in(part)
        elif isinstance(part, (int, float)) and not isinstance(part, bool):
            yield value, key


def test_every_other_number_is_refused_or_judged(store: BaselineStore) -> None:
    store.apply({DEVICE: [create(day="2026-11-20")]})
    content, measured, judged = json.loads(store.path(DEVICE, WORKLOAD).read_text()), run(), 0
    for container, key in list(numbers_in(content)):
        was = container[key]
        for container[key] in (0, -1, 1e308, -1e308, 2**70, "NaN", None):
            store.path(DEVICE, WORKLOAD).write_text(json.dumps(content))
            with suppress(BaselineError):
                if (stored := store.load(DEVICE, WORKLOAD)) is not None:
                    judge_structure(measured, stored)
                    times = [
                        judged_time(timer, measured, stored, comparisons=3)
                        for timer in measured.samples
                    ]
                    judged += len(times)
        container[key] = was
    assert judged > 100


def test_text_of_a_file_is_escaped_in_its_error(store: BaselineStore) -> None:
    store.apply({DEVICE: [create()]})
    path = store.path(DEVICE, WORKLOAD)
    path.write_text(
        path.read_text().replace(
            f'"workload": "{WORKLOAD}"', '"workload": "\\u001b[2J' + "x" * 10_000 + '"'
        )
    )
    with pytest.raises(BaselineError) as caught:
        store.load(DEVICE, WORKLOAD)
    assert "another workload, \\x1b[2Jxxx" in str(caught.value)
    assert len(str(caught.value)) < 1000


def link_to(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "large"])
def test_file_that_has_no_end_is_refused(store: BaselineStore, kind: str) -> None:
    path = store.path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        link_to(path, Path("/dev/zero"))
    said = {"large": "too large", "device": "a link to /dev/zero, which is outside of"}
    with pytest.raises(BaselineError, match=said.get(kind, "not a regular file")):
        store.load(DEVICE, WORKLOAD)
    assert str(path) in str(store.stored(DEVICE)[WORKLOAD])


@pytest.mark.parametrize("place", ["file", "folder", "root"])
@pytest.mark.parametrize("target", ["outside", "project/.git/hooks"])
def test_links_out_of_the_repository_are_refused(tmp_path: Path, place: str, target: str) -> None:
    folder = tmp_path / target
    folder.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir(exist_ok=True, parents=True)
    store = BaselineStore(tmp_path / "project" / "baselines")
    path = store.path(DEVICE, WORKLOAD)
    link = {"file": path, "folder": path.parent, "root": store.root}[place]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder / "any" if place == "file" else folder)
    with pytest.raises(StorageError, match=f"(?s){path}.*a link to {folder}.*, which is outside"):
        store.apply({DEVICE: [create()]})
    assert files(folder) == []
    with pytest.raises(BaselineError, match="a link to"):
        store.load(DEVICE, WORKLOAD)


def test_links_within_the_repository_are_followed(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "shared" / "gpus").mkdir(parents=True)
    store = BaselineStore(tmp_path / "baselines")
    store.root.symlink_to("shared")
    path = store.path(DEVICE, WORKLOAD)
    path.parent.symlink_to("gpus")
    store.apply({DEVICE: [create()]})
    assert (store.load(DEVICE, WORKLOAD), files(tmp_path / "shared" / "gpus")) == (
        baseline(),
        [path.name],
    )


def test_lock_that_is_a_link_is_refused(store: BaselineStore) -> None:
    """Locking empties the file."""
    (store.root / ".lock").mkdir(parents=True)
    mine = store.root.parent / "mine"
    mine.write_text("mine")
    (store.root / ".lock" / "update").symlink_to(mine)
    with pytest.raises(StorageError, match="update is a link"), store.locked():
        pytest.fail("it was locked")
    assert mine.read_text() == "mine"


def test_stored_ignores_files_of_others(store: BaselineStore) -> None:
    store.apply({DEVICE: [create()]})
    kept = store.path(DEVICE, WORKLOAD)
    for name in (
        "copy of x (1).json",
        "\u202ex.json",
        "README.md",
        ".a-x-bf16-1.json.abc123.tmp",
        ".hidden.json",
    ):
        (kept.parent / name).write_bytes(b"x")
    assert set(store.stored(DEVICE)) == {WORKLOAD}
    kept.write_bytes(kept.read_bytes().replace(b"\n", b"\r\n"))  # as a checkout may have it
    before = kept.read_bytes()
    store.apply({DEVICE: [PlannedChange(Action.KEEP, WORKLOAD, None)]})
    assert kept.read_bytes() == before


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), FULL], ids=["ctrl-c", "full"])
@pytest.mark.parametrize(
    ("moment", "call"), [("fsync", 1), ("fsync", 3), ("chmod", 1), ("replace", 1)]
)
def test_apply_interrupted_replaces_no_file(
    store: BaselineStore, interruption: BaseException, moment: str, call: int
) -> None:
    store.apply({DEVICE: [create(name) for name in NAMES[1:]]})  # the first one is to be created
    before = {path: path.read_bytes() for path in store.root.glob("*/*")}
    interrupted = Mock(
        wraps=getattr(os, moment),
        side_effect=[*[DEFAULT] * (call - 1), interruption, *[DEFAULT] * 9],
    )
    plan = [create(name, device=(300.0, 301.0)) for name in NAMES]
    with (
        pytest.raises((StorageError, KeyboardInterrupt)) as caught,
        patch.object(os, moment, interrupted),
    ):
        store.apply({DEVICE: plan[:2], "another": plan[2:]})
    assert {path: path.read_bytes() for path in store.root.glob("*/*")} == before
    if interruption is FULL:
        assert caught.value.where == str(
            store.path(*(("another", NAMES[2]) if call == 3 else (DEVICE, NAMES[0])))
        )
        assert "No space left" in str(caught.value.got)
    else:
        assert caught.value is interruption  # Ctrl-C stays Ctrl-C


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_store_in_the_place_of_something_else_is_refused(store: BaselineStore, depth: int) -> None:
    path = store.path(DEVICE, WORKLOAD)
    place = (store.root, path.parent, path / "a file in it")[depth]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("not a folder")
    if depth < 2:
        with pytest.raises(BaselineError, match="cannot be listed"):  # it is not empty
            store.stored(DEVICE)
    with (
        pytest.raises(
            StorageError, match=r"(?s)cannot write.*a folder that can be written"
        ) as caught,
        store.locked(),
    ):
        store.apply({DEVICE: [create()]})
    assert caught.value.where == str(path if depth else store.root / ".lock")
    assert not [name for name in files(store.root) if name.endswith(".tmp")]


def test_lock_is_given_back_and_its_holder_is_named(
    store: BaselineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (
        ZeroDivisionError(),
        BrokenPipeError(32, "Broken pipe"),
        TimeoutError("it hangs"),
    ):
        with pytest.raises(type(error)) as caught, store.locked():
            raise error
        assert caught.value is error  # not blamed on the folder
    monkeypatch.setattr(baselines, "_LOCK_TIMEOUT_SECONDS", 0.2)
    reason = "another update of these baselines is running"
    with store.locked(), pytest.raises(StorageError, match=reason), store.locked():
        pytest.fail("the lock was taken twice")


ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "baselines").glob("*/*.json"))


def test_committed_baselines_are_whole_and_in_their_folders() -> None:
    assert {path.parent.name for path in FILES} >= {"nvidia-h200", "nvidia-h100-80gb-hbm3"}
    for path in FILES:
        baseline = decode_baseline(path.read_bytes(), where=str(path), workload=path.stem)
        assert slug(baseline.fingerprint.device) == path.parent.name
        assert baseline.suite in (
            "perf",
            "examples/gallery",
            "examples/gallery/test_targets.py",
            "examples/models",
        )
        # byte for byte: no edit by hand
        assert path.read_bytes() == encode_baseline(baseline), path
