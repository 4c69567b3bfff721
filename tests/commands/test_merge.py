"""`kernelgauge merge`, as it is typed."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge.judge.verdict import Status
from kernelgauge.results import Results, encode_results, read_results
from tests.commands.conftest import Command, imported_modules
from tests.parts import ids, machine, measured, part
from tests.test_results import HOSTILE, hostile, workload

PASSED = {"one": Status.PASS, "two": Status.PASS}
SLOW = dict.fromkeys(PASSED, Status.REGRESSED)


@pytest.fixture
def command(kernelgauge: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Merge folders below the current one into "all"."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return partial(kernelgauge, "merge", "--to", "all")


def save(folder: str, told: Results) -> str:
    """Write what a run leaves: results, and a trace and a table of each workload."""
    traces = Path(folder) / "traces"
    traces.mkdir(parents=True)
    workloads = tuple(msgspec.structs.replace(each, trace=f"traces/{each.id}.json.gz") for each in told.workloads)
    for each in workloads:
        (traces / f"{each.id}.json.gz").write_text(f"trace of {each.id} in {folder}")
        (traces / f"{each.id}.txt").write_text(f"table of {each.id}")
    save_bytes(folder, encode_results(msgspec.structs.replace(told, workloads=workloads)))
    return folder


def save_bytes(folder: str, content: bytes) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "results.json").write_bytes(content)


def files(folder: str = "all") -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def merged_ids() -> list[str]:
    return ids([read_results(Path("all/results.json"))])[0]


def test_shards_become_one_folder(command: Command) -> None:
    save("in/a", part("one", gpu="aa", arguments=("perf", "--perf-shard=1/2")))
    save("in/b", part("k" * 200, gpu="bb", second=1, arguments=("perf", "--perf-shard", "2/2")))
    code, out, err = command("in")
    assert (code, err, out.splitlines()[-1]) == (0, "written: all\n", "PASS, 2 workloads (2 PASS), 2 tests")
    traces = [f"traces/{name}.{kind}" for name in ("k" * 200, "one") for kind in ("json.gz", "txt")]
    assert files() == ["report.html", "report.md", "results.json", *traces]
    whole = read_results(Path("all/results.json"))
    assert [Path("all", str(each.trace)).read_text().split()[-1] for each in whole.workloads] == ["in/a", "in/b"]
    assert Path("all/report.md").read_text().startswith("**PASS**")
    assert 'href="traces/one.json.gz"' in Path("all/report.html").read_text()


def test_worst_of_several_gpus_counts(command: Command) -> None:
    for name, statuses in (("aa", PASSED), ("bb", SLOW), ("cc", PASSED)):
        save(name, machine(name, statuses))
    code, out, _ = command("aa", "bb/results.json", "cc")
    assert (code, out.splitlines()[-1]) == (1, "REGRESSED, 2 workloads (2 REGRESSED), 2 tests")
    (whole,) = [read_results(Path("all/results.json"))]
    assert [each.run.gpu for each in whole.workloads] == ["bb", "bb"]
    assert Path("all", str(whole.workloads[0].trace)).read_text() == "trace of one in bb"


def test_merging_again_changes_nothing(command: Command) -> None:
    for name in ("aa", "bb"):
        save(f"in/{name}", machine(name, PASSED))
    command("in", "--to", "once")
    command("once")
    assert files("once") == files()
    assert all(Path("once", name).read_bytes() == Path("all", name).read_bytes() for name in files())


def test_results_are_found_in_folders_of_folders(command: Command) -> None:
    for number, name in enumerate(("b", "b/workers/gw0", "a/x", "a/y", "deep/er/est")):
        save(f"in/{name}", part(f"from-{name.replace('/', '-')}", second=number))
    Path("in/loop").symlink_to(Path("in").absolute())
    save("in/a/z", part("from-a-x", second=2))  # the same results again
    command("in")
    assert sorted(merged_ids()) == ["from-a-x", "from-a-y", "from-b", "from-deep-er-est"]


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (machine("aa", {"one": Status.NO_BASELINE}), "NO_BASELINE"),
        (machine("aa", {"one": Status.IMPROVED}), "IMPROVED"),
        (machine("aa", PASSED, exit_status=1), "FAILED"),
        (part("one", workload(name="two", run=None, unavailable="not installed")), "PASS"),
    ],
)
def test_first_word_is_the_verdict(command: Command, told: Results, word: str) -> None:
    code, out, _ = command(save("a", told))
    assert (code == 0, out.splitlines()[-1].partition(",")[0]) == (word in ("PASS", "IMPROVED"), word)
    assert Path("all/report.md").read_text().startswith(f"**{word}**")


@pytest.mark.parametrize(
    ("shards", "failed"),
    [
        ({"aa": "1/2", "bb": "2/2"}, []),
        ({"aa": "1/2"}, ["shard 2/2 is missing"]),
        ({"aa": "2/3"}, ["shard 1/3 is missing", "shard 3/3 is missing"]),
    ],
)
def test_missing_shards_fail(command: Command, shards: dict[str, str], failed: list[str]) -> None:
    for gpu, shard in shards.items():
        save(f"in/{gpu}", machine(gpu, {gpu: Status.PASS}, arguments=("perf", "--perf-shard", shard)))
    code, out, _ = command("in")
    lines = [line.removeprefix("warning: ") for line in out.splitlines() if line.startswith("warning: ")]
    assert (code, lines) == (1 if failed else 0, failed)
    assert all(each in Path("all/report.html").read_text() for each in failed)
    assert command("all", "--to", "again")[0] == code


NEWER = json.dumps(json.loads(encode_results(part("two"))) | {"schema_version": 99}).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (NEWER, "cannot be read (got Invalid enum value 99 - at `$.schema_version`)"),
        ("nowhere", "cannot be read (got "),
        ("results.json", "cannot be read (got "),
    ],
    ids=["newer", "dangling link", "loop"],
)
def test_unreadable_results_are_refused(command: Command, content: bytes | str, reason: str) -> None:
    save("in/a", part("one"))
    Path("in/b").mkdir()
    if isinstance(content, str):
        Path("in/b/results.json").symlink_to(content)
    else:
        save_bytes("in/b", content)
    code, out, err = command("in", "x" * 10_000)
    assert (code, out.splitlines()[-1], merged_ids()) == (2, "FAILED, 1 workload (1 PASS), 1 test", ["one"])
    assert all(text in err for text in ("refused: in/b/results.json: ", reason, "File name too long"))
    assert Path("all/report.md").read_text().startswith("**FAILED**")


def test_unreadable_folder_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    save("in/a/deep", part("one"))
    Path("in/locked").mkdir()
    real = os.scandir

    def denied(path: Any) -> Any:
        if "locked" in Path(path).parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    code, _, err = command("in")
    assert (code, "refused: in/locked" in err, merged_ids()) == (2, True, ["one"])


@pytest.mark.parametrize(
    ("source", "to", "reason"),
    [
        ("empty", "all", "there is nothing to merge"),
        ("a", "a", "a new or empty folder"),
        ("a", "a/results.json", "a new or empty folder"),
        ("a", "x" * 10_000, "system error: [Errno 36] File name too long"),
    ],
)
def test_trouble_writes_nothing(command: Command, source: str, to: str, reason: str) -> None:
    save("a", part("one"))
    Path("empty").mkdir()
    before = files(".")
    code, out, err = command(source, "--to", to)
    assert (code, out, reason in err, files(".")) == (2, "", True, before)


@pytest.mark.parametrize("identifier", ["one", "../../secret", "a\x1b[31m", "k" * 242])
def test_trace_is_taken_from_the_traces_folder_only(command: Command, identifier: str) -> None:
    Path("a/traces").mkdir(parents=True)
    Path("secret.json.gz").write_text("secret")
    save_bytes("a", encode_results(part(measured(identifier, trace="../secret.json.gz"))))
    code, out, _ = command("a")
    assert (code, "its trace was not found beside its results" in out) == (0, True)
    assert (files(), {path.name for path in Path().iterdir()}) == (
        ["report.html", "report.md", "results.json"],
        {"a", "all", "secret.json.gz"},
    )
    assert read_results(Path("all/results.json")).workloads[0].trace is None


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_in_the_folder(command: Command, text: str) -> None:
    for place, status in enumerate((Status.REGRESSED, Status.PASS)):
        told = msgspec.structs.replace(hostile(text, status), gpu=f"../../{place}", host=text)
        save_bytes(f"in/{place}", encode_results(told))
    _, out, err = command("in")
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert {path.name for path in Path().iterdir()} == {"in", "all"}


def test_merge_imports_no_heavy_packages(command: Command) -> None:
    assert not imported_modules("merge", save("a", part("one")), "--to", "all") & {"torch", "pytest", "scipy", "numpy"}
