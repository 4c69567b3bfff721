"""`kernelgauge merge`, as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge.cli import main
from kernelgauge.judge import Status
from kernelgauge.results import Results, encode_results
from kernelgauge.results_file import find_results, read_results
from tests.builders import run
from tests.commands.conftest import Command
from tests.parts import ended, ids, machine, measured, part
from tests.test_results import HOSTILE, hostile, workload

PASSED = {"one": Status.PASS, "two": Status.PASS}
SLOW = dict.fromkeys(PASSED, Status.REGRESSED)


@pytest.fixture
def command(kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return partial(kernelgauge, "merge")


def left(folder: Path, told: Results) -> Path:
    """A folder that a run has left, with a trace and a table of each workload."""
    (folder / "traces").mkdir(parents=True)
    workloads = tuple(msgspec.structs.replace(each, trace=f"traces/{each.id}.json.gz") for each in told.workloads)
    for each in workloads:
        (folder / "traces" / f"{each.id}.json.gz").write_text(f"trace of {each.id} in {folder.name}")
        (folder / "traces" / f"{each.id}.txt").write_text(f"table of {each.id}")
    (folder / "results.json").write_bytes(encode_results(msgspec.structs.replace(told, workloads=workloads)))
    return folder


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_shards_become_one_folder_with_traces_and_reports(command: Command, tmp_path: Path) -> None:
    shards = tmp_path / "artifacts"
    left(shards / "shard1", part("one", gpu="aa", arguments=("perf", "--perf-shard=1/2")))
    left(shards / "shard2", part("two", gpu="bb", second=1, arguments=("perf", "--perf-shard=2/2")))
    code, out, err = command(shards, "--to", tmp_path / "whole")
    assert (code, err) == (0, f"written: {tmp_path / 'whole'}\n")
    assert out.startswith("PASS  2 machines, 2 workloads (2 PASS)\n")
    assert files(tmp_path / "whole") == [
        "report.html",
        "report.md",
        "results.json",
        *(f"traces/{name}" for name in ("one.json.gz", "one.txt", "two.json.gz", "two.txt")),
    ]
    whole = read_results(tmp_path / "whole" / "results.json")
    assert ids([whole]) == [["one", "two"]]
    for each, shard in zip(whole.workloads, ("shard1", "shard2"), strict=True):
        assert each.trace is not None
        assert (tmp_path / "whole" / each.trace).read_text() == f"trace of {each.id} in {shard}"
    assert (tmp_path / "whole" / "report.md").read_text().startswith("**PASS  2 machines")
    assert 'href="traces/one.json.gz"' in (tmp_path / "whole" / "report.html").read_text()


def test_several_machines_have_a_folder_each(command: Command, tmp_path: Path) -> None:
    for name, statuses in (("aa", PASSED), ("bb", SLOW), ("cc", PASSED)):
        left(tmp_path / name, machine(name, statuses))
    code, out, _ = command(tmp_path / "aa", tmp_path / "bb" / "results.json", tmp_path / "cc", "--to", tmp_path / "all")
    assert code == 1
    passed = "PASS on NVIDIA H200 aa on node1 (+8.0 %), NVIDIA H200 cc on node1 (+8.0 %)"
    assert out.splitlines()[:2] == [
        "FAILED  3 machines, 2 workloads (2 REGRESSED)",
        f"one: REGRESSED on NVIDIA H200 bb on node1 (+8.0 %); {passed}",
    ]
    folders = [f"nvidia-h200-{gpu}" for gpu in ("aa", "bb", "cc")]
    assert [path for path in files(tmp_path / "all") if path.endswith(".json")] == [
        f"{f}/results.json" for f in folders
    ]
    assert find_results(tmp_path / "all") == [tmp_path / "all" / folder / "results.json" for folder in folders]
    slow = read_results(tmp_path / "all" / folders[1] / "results.json")
    assert (tmp_path / "all" / folders[1] / str(slow.workloads[0].trace)).read_text() == "trace of one in bb"
    assert f'href="{folders[2]}/traces/one.json.gz"' in (tmp_path / "all" / "report.html").read_text()
    page = (tmp_path / "all" / "report.md").read_text()
    assert page.index("**FAILED  3 machines") < page.index("**REGRESSED**  3 runs")


def test_merging_what_was_merged_gives_the_same(command: Command, tmp_path: Path) -> None:
    for name in ("aa", "bb"):
        left(tmp_path / "in" / name, machine(name, PASSED))
    command(tmp_path / "in", "--to", tmp_path / "once")
    command(tmp_path / "once", "--to", tmp_path / "twice")
    assert files(tmp_path / "once") == files(tmp_path / "twice")
    for name in files(tmp_path / "once"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_equal_results_in_two_folders_count_once(command: Command, tmp_path: Path) -> None:
    for name in ("a", "b"):
        left(tmp_path / "in" / name, part("one"))
    code, out, _ = command(tmp_path / "in", "--to", tmp_path / "all")
    assert (code, out.splitlines()[0]) == (0, "PASS  1 machine, 1 workload (1 PASS)")


def test_a_missing_shard_fails(command: Command, tmp_path: Path) -> None:
    left(tmp_path / "a", part("one", arguments=("perf", "--perf-shard=1/2")))
    code, out, _ = command(tmp_path / "a", "--to", tmp_path / "all")
    assert code == 1
    assert "shard 2/2 is missing" in out


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (machine("aa", {"one": Status.NO_BASELINE}), "UNDECIDED"),
        (part("one", workload(name="two", run=run(workload="two"))), "UNDECIDED"),
        (part(), "NOTHING JUDGED"),
        (machine("aa", PASSED, exit_status=3), "FAILED"),
        (part("one", tests=(ended("one", "failed"),)), "FAILED"),
        (part("one", workload(name="two", run=None, unavailable="not installed")), "PASS"),
    ],
)
def test_first_word_is_the_verdict(command: Command, tmp_path: Path, told: Results, word: str) -> None:
    left(tmp_path / "a", told)
    code, out, _ = command(tmp_path / "a", "--to", tmp_path / "all")
    assert out.startswith(f"{word}  ")
    assert (tmp_path / "all" / "report.md").read_text().startswith(f"**{word}  ")
    assert (code == 0) == (word == "PASS")


@pytest.mark.parametrize(("count", "lines"), [(3, 2), (10**15, 21)])
def test_missing_shards_are_listed_up_to_a_limit(command: Command, tmp_path: Path, count: int, lines: int) -> None:
    left(tmp_path / "a", part("one", arguments=("perf", "--perf-shard", f"1/{count}")))
    _, out, _ = command(tmp_path / "a", "--to", tmp_path / "all")
    assert sum(line.startswith("failed: ") for line in out.splitlines()) == lines


def test_shards_on_machines_that_do_not_join_are_all_there(command: Command, tmp_path: Path) -> None:
    for gpu, name, driver, shard in (("aa", "one", "580", "1/2"), ("bb", "two", "590", "2/2")):
        told = machine(gpu, {name: Status.PASS}, driver=driver, arguments=("perf", f"--perf-shard={shard}"))
        left(tmp_path / "in" / gpu, told)
    assert command(tmp_path / "in", "--to", tmp_path / "all")[0] == 0


# -- what is no results file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"[]", b"{}", b'"text"', b'{"schema_version": 1}', b'{"kernelgauge": "0.1"}'])
def test_json_of_something_else_in_a_folder_is_skipped_and_named(
    command: Command, tmp_path: Path, content: bytes
) -> None:
    left(tmp_path / "in" / "a", part("one"))
    other = tmp_path / "in" / "b" / "results.json"
    other.parent.mkdir()
    other.write_bytes(content)
    code, _, err = command(tmp_path / "in", "--to", tmp_path / "all")
    assert code == 0
    assert f"skipped: {other}: " in err
    code, _, err = command(tmp_path / "in" / "a", other, "--to", tmp_path / "named")
    assert code == 2
    assert f"refused: {other}: " in err
    assert ids([read_results(tmp_path / "named" / "results.json")]) == [["one"]]


def newer() -> bytes:
    return json.dumps(json.loads(encode_results(part("two"))) | {"schema_version": 99}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (newer(), "written by a newer version of kernelgauge (got 99)"),
        (encode_results(part("two"))[:-20], "cannot be read"),
        (b"", "cannot be read (got an empty file)"),
        (b'{"schema_version": 1, "kernelgauge": "0.1.0"}', "cannot be read"),
    ],
    ids=["newer", "truncated", "empty", "incomplete"],
)
def test_unreadable_results_are_refused_and_the_others_merged(
    command: Command, tmp_path: Path, content: bytes, said: str
) -> None:
    left(tmp_path / "in" / "a", part("one"))
    bad = tmp_path / "in" / "b" / "results.json"
    bad.parent.mkdir()
    bad.write_bytes(content)
    code, out, err = command(tmp_path / "in", "--to", tmp_path / "all")
    assert code == 2
    assert f"refused: {bad}: " in err
    assert said in err
    assert ids([read_results(tmp_path / "all" / "results.json")]) == [["one"]]
    assert out.startswith("FAILED  1 machine, 1 workload (1 PASS)\n")
    assert (tmp_path / "all" / "report.md").read_text().startswith("**FAILED  ")


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_nothing_to_merge_is_trouble_and_writes_nothing(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    code, out, err = command(tmp_path / name, "--to", tmp_path / "all")
    assert (code, out) == (2, "")
    assert "there is nothing to merge" in err
    assert f"refused: {tmp_path / name}" in err
    assert not (tmp_path / "all").exists()


def test_a_folder_that_is_not_empty_is_not_written_to(command: Command, tmp_path: Path) -> None:
    folder = left(tmp_path / "a", part("one"))
    before = files(tmp_path)
    for place in (folder, folder / "results.json", tmp_path):
        code, _, err = command(folder, "--to", place)
        assert code == 2
        assert "a new or empty folder" in err
    assert files(tmp_path) == before


@pytest.mark.parametrize("target", ["nowhere", "results.json"], ids=["dangling", "loop"])
def test_link_to_nothing_is_refused_and_the_others_merged(command: Command, tmp_path: Path, target: str) -> None:
    left(tmp_path / "in" / "a", part("one"))
    link = tmp_path / "in" / "broken" / "results.json"
    link.parent.mkdir()
    link.symlink_to(target)
    code, out, err = command(tmp_path / "in", "--to", tmp_path / "all")
    assert code == 2
    assert f"refused: {link}: the results cannot be read (got " in err
    assert out.startswith("FAILED  1 machine, 1 workload (1 PASS)\n")


@pytest.mark.parametrize(("owner", "call"), [(os, "scandir"), (Path, "lstat")], ids=["not listed", "not entered"])
def test_unreadable_folder_is_refused_and_the_others_merged(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, call: str
) -> None:
    for name in ("a", "b", "locked"):
        (tmp_path / "in" / name).mkdir(parents=True)
    left(tmp_path / "in" / "a" / "deep", part("one"))
    left(tmp_path / "in" / "b" / "deep", part("two", second=1))
    real = getattr(owner, call)

    def denied(path: Any) -> Any:
        if "locked" in Path(path).parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(owner, call, denied)
    code, out, err = command(tmp_path / "in", "--to", tmp_path / "all")
    assert code == 2
    assert f"refused: {tmp_path / 'in' / 'locked'}" in err
    assert out.startswith("FAILED  1 machine, 2 workloads (2 PASS)\n")


def test_too_long_path_is_refused_and_the_others_merged(command: Command, tmp_path: Path) -> None:
    code, _, err = command(left(tmp_path / "a", part("one")), "x" * 10_000, "--to", tmp_path / "all")
    assert code == 2
    assert "File name too long" in err
    assert ids([read_results(tmp_path / "all" / "results.json")]) == [["one"]]


def test_a_place_whose_path_is_too_long_cannot_be_written(command: Command, tmp_path: Path) -> None:
    code, _, err = command(left(tmp_path / "a", part("one")), "--to", "x" * 10_000)
    assert code == 2
    assert err.startswith("system error: ")


# -- traces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identifier", ["one", "../../secret", "a\x1b[31m", "k" * 242])
def test_trace_is_taken_from_the_traces_folder_only(command: Command, tmp_path: Path, identifier: str) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "secret.json.gz").write_text("secret")
    folder = tmp_path / "a"
    folder.mkdir()
    told = part(measured(identifier, trace="../secret.json.gz"))
    (folder / "results.json").write_bytes(encode_results(told))
    code, _, err = command(folder, "--to", tmp_path / "all")
    assert code == 0
    assert "its trace was not found beside its results" in err
    assert files(tmp_path / "all") == ["report.html", "report.md", "results.json"]
    assert read_results(tmp_path / "all" / "results.json").workloads[0].trace is None


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_steers_the_terminal_or_leaves_the_folder(command: Command, tmp_path: Path, text: str) -> None:
    for place, status in enumerate((Status.REGRESSED, Status.PASS)):
        told = msgspec.structs.replace(hostile(text, status), gpu=f"../../{place}", host=text)
        (tmp_path / "in" / str(place)).mkdir(parents=True)
        (tmp_path / "in" / str(place) / "results.json").write_bytes(encode_results(told))
    _, out, err = command(tmp_path / "in", "--to", tmp_path / "all")
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert {path.name for path in tmp_path.iterdir()} == {"in", "all"}


def test_machines_of_one_name_have_folders_of_their_own(command: Command, tmp_path: Path) -> None:
    for commit in ("a", "b", "c"):
        left(tmp_path / "in" / commit, machine("aa", PASSED, commit=commit))
    command(tmp_path / "in", "--to", tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all").iterdir() if path.is_dir()) == [
        "nvidia-h200-aa",
        "nvidia-h200-aa--2",
        "nvidia-h200-aa--3",
    ]


def test_the_longest_name_of_a_workload_is_a_name_of_a_trace(command: Command, tmp_path: Path) -> None:
    command(left(tmp_path / "a", part("k" * 200)), "--to", tmp_path / "all")
    assert (tmp_path / "all" / "traces" / f"{'k' * 200}.json.gz").is_file()


# -- finding ----------------------------------------------------------------------------------------------------------


def test_a_folder_with_results_is_not_searched_further(tmp_path: Path) -> None:
    left(tmp_path, part("one"))
    left(tmp_path / "workers" / "gw0", part("two"))
    assert find_results(tmp_path) == [tmp_path / "results.json"]


def test_results_are_found_in_folders_of_folders_and_through_no_link(tmp_path: Path) -> None:
    for name in ("b", "a/x", "a/y", "deep/er/est", "deep/er/est/too"):
        if name != "deep/er/est":
            left(tmp_path / "in" / name, part("one"))
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert [path.relative_to(tmp_path / "in").as_posix() for path in find_results(tmp_path / "in")] == [
        "a/x/results.json",
        "a/y/results.json",
        "b/results.json",
    ]


def test_report_takes_a_folder_of_folders_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("aa", "bb"):
        left(tmp_path / "in" / name, machine(name, PASSED))
    assert main(["report", str(tmp_path / "in"), "--markdown", "-"]) == 0
    assert capsys.readouterr().out.startswith("**PASS**  2 runs, 4 workloads")


def test_neither_torch_nor_pytest_is_imported(tmp_path: Path) -> None:
    folder = left(tmp_path / "a", part("one"))
    script = (
        "import sys; from kernelgauge.cli import main; main(['merge', sys.argv[1], '--to', sys.argv[1] + '-all']);"
        "sys.exit(','.join(name for name in ('torch', 'pytest', 'scipy', 'numpy') if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
