"""`kernelgauge history`, as it is typed."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kernelgauge.cli import main
from kernelgauge.history import add_to_history
from kernelgauge.judge import Status
from kernelgauge.results import Results, encode_results
from tests.builders import ELSEWHERE, HERE, mlp_kernels
from tests.commands.conftest import Command
from tests.history.nights import ROOT, night, timed, year
from tests.test_results import HOSTILE, hostile, results


@pytest.fixture
def command(kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return kernelgauge


@pytest.fixture
def needs_engine() -> None:
    pytest.importorskip("duckdb")


def left(folder: Path, told: Results) -> Path:
    """A folder that a run has left."""
    folder.mkdir()
    (folder / "results.json").write_bytes(encode_results(told))
    return folder


# -- history add --------------------------------------------------------------------------------------------------------


def test_add_prints_added_there_and_refused(command: Command, tmp_path: Path) -> None:
    first, second = left(tmp_path / "a", night(0, timed())), left(tmp_path / "b", night(1, timed()))
    none = left(tmp_path / "c", results())
    history = tmp_path / "history"
    code, out, err = command("history", "add", first, "--to", history)
    assert (code, err) == (0, "")
    assert out.startswith(f"added: 2026/01/20260105T023000Z-{HERE}-")
    code, out, err = command(
        "history", "add", first / "results.json", none, tmp_path / "nowhere", second, "--to", history
    )
    lines = out.splitlines()
    assert (code, err, len(lines)) == (1, "", 4)
    assert lines[0].startswith("already there: 2026/01/")
    assert lines[1].startswith(
        f"refused: {none / 'results.json'}: there is nothing to add to a history (got: no workload"
    )
    assert lines[2].startswith(f"refused: {tmp_path / 'nowhere'}: the results cannot be read (")
    assert "got: there is no such file" in lines[2]
    assert lines[3].startswith("added: 2026/01/20260106T023000Z-")
    assert len(list(history.rglob("*.json"))) == 2


def test_add_takes_folder_of_several_machines(command: Command, tmp_path: Path) -> None:
    """As a run on GPUs of several models leaves them. Which of them is refused is said."""
    latest = tmp_path / "latest"
    latest.mkdir()
    for gpu in (HERE, ELSEWHERE):
        left(latest / gpu, night(0, timed(gpu=gpu), gpu=gpu))
    none = left(latest / "none", results())
    code, out, err = command("history", "add", latest, "--to", tmp_path / "history")
    first, second, refused = sorted(out.splitlines())
    assert (code, err) == (1, "")
    assert first.startswith(f"added: 2026/01/20260105T023000Z-{HERE}-")
    assert second.startswith(f"added: 2026/01/20260105T023000Z-{ELSEWHERE}-")
    assert refused.startswith(f"refused: {none / 'results.json'}: there is nothing to add to a history")


def test_a_history_that_cannot_be_written_is_trouble(command: Command, tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    code, out, err = command("history", "add", left(tmp_path / "a", night(0, timed())), "--to", tmp_path / "history")
    assert (code, out) == (2, "")
    assert err.startswith("cannot add to the history\n")


@pytest.mark.parametrize("location", ["", "file://", "://x", "http://host/x", "nosuch://x", "nosuch2://user:word@x/y"])
def test_add_to_invalid_address_is_trouble(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    folder = left(tmp_path / "a", night(0, timed()))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    code, out, err = command("history", "add", folder, folder, "--to", location)
    assert (code, out) == (2, "")
    assert err.startswith(("invalid history location\n", "the history cannot be reached\n"))
    assert "word" not in err
    assert list((tmp_path / "empty").iterdir()) == []


def test_add_refuses_too_long_path_and_adds_others(command: Command, tmp_path: Path) -> None:
    folder = left(tmp_path / "a", night(0, timed()))
    code, out, err = command("history", "add", "x" * 10_000, folder, "--to", tmp_path / "history")
    assert (code, err) == (1, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == ["refused", "added"]


@pytest.mark.parametrize("arguments", [[], ["add"], ["add", "x"], ["grow", "x", "--to", "y"]])
def test_history_asked_wrongly_is_trouble(command: Command, arguments: list[str]) -> None:
    code, out, err = command("history", *arguments)
    assert (code, out) == (2, "")
    assert "usage: kernelgauge history" in err


# -- trend: the table -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("needs_engine")
def test_without_a_pattern_there_is_a_line_for_each_workload(command: Command, tmp_path: Path) -> None:
    year(tmp_path)
    code, out, err = command("history", "show", tmp_path)
    assert (code, err) == (0, "")
    machine, heading, same, slow = out.splitlines()
    assert machine == "NVIDIA H200, sm_90, 132 SMs, 700 W, device time"
    assert heading.split() == ["workload", "history", "last", "us", "change", "change", "point"]
    assert same.split()[0] == "same"
    assert same.split()[2:] == ["100.1", "+0.1", "%", "-"]
    assert slow.split()[2:] == ["210.2", "+5.1", "%", "2026-01-25", "+5.0", "%"]
    assert slow.split()[1] == "▁▁▁▁████"
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.usefixtures("needs_engine")
def test_a_change_point_of_some_gpus_says_of_how_many(command: Command, tmp_path: Path) -> None:
    for number in range(20):
        for gpu in (HERE, ELSEWHERE):
            us = 210.0 if number >= 10 and gpu == HERE else 200.0
            add_to_history(night(number, timed(us + number % 3 / 10, name="a", gpu=gpu), gpu=gpu), str(tmp_path))
    assert "2026-01-15 +5.0 % 1/2" in command("history", "show", tmp_path)[1]


@pytest.mark.usefixtures("needs_engine")
def test_an_id_that_leaves_no_room_has_a_line_of_its_own(command: Command, tmp_path: Path) -> None:
    name = "mlp-" + "x" * 60
    add_to_history(night(0, timed(name=name)), str(tmp_path))
    lines = command("history", "show", tmp_path)[1].splitlines()
    assert lines[2] == name
    assert lines[3].startswith(" " * 30)
    assert max(map(len, lines)) <= 80


# -- trend: details ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("needs_engine")
def test_pattern_shows_gpus_changes_and_change_points(command: Command, tmp_path: Path) -> None:
    year(tmp_path)
    code, out, err = command("history", "show", tmp_path, "slow")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["workload", "slow"]
    assert lines[3].startswith("  ▁")
    assert lines[3].endswith("█")
    assert lines[4].startswith(f"  GPU {HERE}: 40 runs, 2026-01-05 to 2026-02-13, last 2")
    assert "    2026-01-25  driver 580.1 -> 585.1  (2 GPUs)" in lines
    here, other = [at for at, line in enumerate(lines) if line.startswith("    2026-01-25  GPU ")]
    assert (lines[here].split()[2], lines[other].split()[2], other) == (HERE, ELSEWHERE, here + 1)
    assert re.fullmatch(r".* 200\.\d -> 2(09|10)\.\d us \(\+[45]\.\d %\)", lines[other])
    assert lines[other + 1] == "      commit 0000000000 -> 0000000000"
    assert lines[other + 2] == "      with driver 580.1 -> 585.1"
    assert "  Change points (advisory):" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("needs_engine")
def test_one_night_has_details_too(command: Command, tmp_path: Path) -> None:
    add_to_history(night(0, timed(name="a")), str(tmp_path))
    code, out, _ = command("history", "show", tmp_path, "a")
    assert code == 0
    assert "  GPU 0f1e2d3c: 1 run, 2026-01-05 to 2026-01-05, last 205.0 us" in out.splitlines()


@pytest.mark.usefixtures("needs_engine")
def test_ascii_terminal_gets_ascii_and_no_colour(tmp_path: Path) -> None:
    year(tmp_path, nights=8)
    for arguments in ([], ["slow"]):
        done = subprocess.run(
            [sys.executable, "-m", "kernelgauge", "history", "show", tmp_path, *arguments],
            capture_output=True,
            check=True,
            timeout=60,
            env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"},
        )
        text = done.stdout.decode("ascii")
        assert "\\u" not in text
        assert "\x1b" not in text


@pytest.mark.usefixtures("needs_engine")
def test_missing_workload_is_no_and_missing_history_trouble(command: Command, tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    code, out, _ = command("history", "show", tmp_path, "nothing")
    assert (code, out) == (1, "no workload to show: 1 file of the history read\n")
    code, out, _ = command("history", "show", tmp_path, "--since", "2026-11-01")
    assert (code, out) == (1, "no workload to show: 0 files of the history read\n")
    code, out, err = command("history", "show", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "kernelgauge history add RESULTS --to HISTORY" in err


@pytest.mark.usefixtures("needs_engine")
def test_files_not_shown_are_named_then_counted(command: Command, tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    for number in range(14):
        (tmp_path / f"{number:02}\x1b.txt").write_text("")
    lines = command("history", "show", tmp_path)[1].splitlines()
    assert lines[-13] == "not shown: 00\\x1b.txt: not a file of a history"
    assert lines[-1] == "not shown: and 2 more"


@pytest.mark.parametrize("option", [["--since", "yesterday"], ["--timer", "gpu"]])
def test_invalid_option_is_trouble(command: Command, option: list[str]) -> None:
    code, out, err = command("history", "show", "x", *option)
    assert (code, out) == (2, "")
    assert option[0] in err
    assert "_" not in err.partition("error:")[2]  # no name of a function


# -- trend: files -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("needs_engine")
def test_drift_is_one_sentence_in_both_forms(command: Command, tmp_path: Path) -> None:
    for number in range(40):
        us = 205 * 1.00104**number * (1 + random.Random(number).gauss(0, 0.0002))
        add_to_history(night(number, timed(us, name="a")), str(tmp_path / "history"))
    sentence = "drift: +0.10 % a night for 40 nights (+4.1 %)"
    _, out, _ = command("history", "show", tmp_path / "history", "a", "--html", tmp_path / "x.html")
    assert f"    2026-01-05  GPU {HERE}  {sentence}" in out.splitlines()
    assert sentence in (tmp_path / "x.html").read_text()
    assert command("history", "show", tmp_path / "history")[1].splitlines()[-1].endswith(" drift +4.1 %")


@pytest.mark.usefixtures("needs_engine")
def test_correction_is_named_in_both_forms(command: Command, tmp_path: Path) -> None:
    for number in range(12):
        other = number % 4 == 3
        chosen = timed(223.0 if other else 205.0, name="a", kernels=mlp_kernels(xblock=512 if other else 1024))
        add_to_history(night(number, chosen), str(tmp_path / "history"))
    sentence = "Change points are corrected for launch configuration."
    _, out, _ = command("history", "show", tmp_path / "history", "a", "--html", tmp_path / "x.html")
    assert f"  {sentence}" in out.splitlines()
    assert sentence in (tmp_path / "x.html").read_text()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.usefixtures("needs_engine")
def test_page_has_line_for_each_gpu_and_needs_nothing(command: Command, tmp_path: Path) -> None:
    year(tmp_path / "history")
    code, _, err = command("history", "show", tmp_path / "history", "slow", "--html", tmp_path / "x.html")
    assert (code, err) == (0, f"written: {tmp_path / 'x.html'}\n")
    text = (tmp_path / "x.html").read_text()
    page = _Page()
    page.feed(text)
    assert sum(tag == "polyline" for tag, _ in page.tags) == 2
    assert [found["class"] for tag, found in page.tags if tag == "line"] == ["shift", "upgrade"]
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert "driver 580.1 -&gt; 585.1 (2 GPUs)" in text


@pytest.mark.usefixtures("needs_engine")
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_steer_neither_terminal_nor_page(command: Command, tmp_path: Path, text: str) -> None:
    for day in ("20", "21"):
        told = hostile(text if day == "20" else f"{text}x", Status.REGRESSED)
        stamped = json.loads(encode_results(told)) | {"started_at": f"2026-11-{day}T19:10:12+00:00", "commit": text}
        left(tmp_path / day, told)
        (tmp_path / day / "results.json").write_text(json.dumps(stamped))
    assert command("history", "add", tmp_path / "20", tmp_path / "21", "--to", tmp_path / "history")[0] == 0
    for arguments in ((), ("*",)):
        code, out, _ = command("history", "show", tmp_path / "history", *arguments, "--html", tmp_path / "x.html")
        # The two kinds of machine differ in their device, and are charts of their own.
        assert code == 0
        assert all(line.isprintable() and not line.startswith("::") for line in out.split("\n"))
    page = _Page()
    page.feed((tmp_path / "x.html").read_text())
    assert not {"script", "img"} & {tag for tag, _ in page.tags}


@pytest.mark.usefixtures("needs_engine")
def test_a_page_is_not_written_over_a_device(command: Command, tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path / "history"))
    os.mkfifo(tmp_path / "fifo")
    code, _, err = command("history", "show", tmp_path / "history", "--html", tmp_path / "fifo")
    assert code == 2
    assert "not a regular file" in err


@pytest.mark.usefixtures("needs_engine")
def test_without_utf_8_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    year(tmp_path, nights=8)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["history", "show", str(tmp_path)]) == 0
    stream.seek(0)
    assert "____####" in stream.read()
