"""`kernelgauge report`, as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelgauge.judge import Status
from kernelgauge.results import Results, encode_results
from tests.builders import run
from tests.commands.conftest import Command
from tests.test_results import HOSTILE, hostile, one_test, results, verdict, workload


@pytest.fixture
def command(kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "120")
    return partial(kernelgauge, "report")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """An HTML page that a test can tell from any other."""

    def html(told: list[Results]) -> str:
        return f"<p>{len(told)} runs of {told[0].gpu}</p>"

    monkeypatch.setitem(sys.modules, "kernelgauge.report.html", SimpleNamespace(html=html))


def left(folder: Path, told: Results) -> Path:
    """A folder that a run has left."""
    folder.mkdir()
    (folder / "results.json").write_bytes(encode_results(told))
    return folder


def told(gpu: str = "aa", status: Status = Status.REGRESSED) -> Results:
    worse = verdict(status, reasons=[("why", "a kernel  1.0 -> 2.0 us")])
    return results(
        workload(worse, run=run(gpu=gpu)), gpu=gpu, tests=(one_test("test_device_time", "failed", said=str(worse)),)
    )


@pytest.mark.usefixtures("page")
def test_the_newest_results_are_found_by_their_time(command: Command, tmp_path: Path) -> None:
    """A shell sorts file names, not runs."""
    newest = results(workload(), gpu="new", started_at="2026-11-20T03:00:00+00:00")
    oldest = results(workload(), gpu="old", started_at="2026-11-18T03:00:00+00:00")
    first, second = left(tmp_path / "a", newest), left(tmp_path / "b", oldest)
    command(first, second)
    assert (first / "report.html").read_text() == "<p>2 runs of old</p>"
    assert not (second / "report.html").exists()


@pytest.mark.usefixtures("page")
def test_without_an_option_the_reports_are_beside_the_newest(command: Command, tmp_path: Path) -> None:
    first, second = left(tmp_path / "a", told("aa")), left(tmp_path / "b", told("bb"))
    code, out, err = command(first, second)
    assert (code, out) == (0, "")
    assert err.splitlines() == [f"written: {second / 'report.html'}", f"written: {second / 'report.md'}"]
    assert (second / "report.html").read_text() == "<p>2 runs of aa</p>"
    assert (second / "report.md").read_text().startswith("**REGRESSED**  2 runs, ")
    assert sorted(path.name for path in first.iterdir()) == ["results.json"]


def test_a_folder_and_the_file_in_it_are_the_same(command: Command, tmp_path: Path) -> None:
    folder = left(tmp_path / "a", told())
    assert command(folder, "--markdown", "-")[1] == command(folder / "results.json", "--markdown", "-")[1] != ""


def test_every_form_is_written_where_it_is_asked_for(command: Command, tmp_path: Path) -> None:
    folder = left(tmp_path / "a", told())
    names = {"--markdown": "x.md", "--benchmark-json": "deep/er/x.json"}
    code, out, _ = command(folder, *(part for option, name in names.items() for part in (option, tmp_path / name)))
    assert (code, out) == (0, "")
    assert (tmp_path / "x.md").read_text().startswith("**REGRESSED**")
    assert len(json.loads((tmp_path / "deep" / "er" / "x.json").read_text())["benchmarks"]) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["results.json"]


def test_the_real_page_is_made(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("kernelgauge.report.html")
    code, out, _ = command(left(tmp_path / "a", told()), "--html", "-")
    assert code == 0
    assert out.startswith("<!")


@pytest.mark.parametrize(("option", "start"), [("--markdown", "**REGRESSED**"), ("--benchmark-json", "{")])
def test_a_minus_is_the_standard_output(command: Command, tmp_path: Path, option: str, start: str) -> None:
    code, out, err = command(left(tmp_path / "a", told()), option, "-")
    assert (code, err) == (0, "")
    assert out.startswith(start)
    assert not Path("-").exists()


def test_print_shows_the_table_and_every_failure(command: Command, tmp_path: Path) -> None:
    absent = workload(name="absent", run=None, unavailable="not installed")
    noisy = workload(verdict(Status.UNDECIDED, headline="too noisy", workload="noisy"), name="noisy")
    shown = results(*told().workloads, absent, noisy, warnings=("not\x1bwritten",))
    code, out, _ = command(left(tmp_path / "a", shown), "--print")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("NVIDIA H200, driver 580.159.04")
    assert any(line.split()[-2:] == ["%", "REGRESSED"] for line in lines)
    assert "  why      a kernel  1.0 -> 2.0 us" in lines
    assert "noisy: UNDECIDED  too noisy" in lines
    assert "not run: absent: not installed" in lines
    assert lines[-1] == "warning: not\\x1bwritten"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["results.json"]


def test_print_and_a_file_may_be_asked_for_together(command: Command, tmp_path: Path) -> None:
    _, out, err = command(left(tmp_path / "a", told()), "--print", "--markdown", tmp_path / "x.md")
    assert "NVIDIA H200" in out
    assert err == f"written: {tmp_path / 'x.md'}\n"


def test_a_form_with_room_for_one_run_refuses_two_and_writes_nothing(command: Command, tmp_path: Path) -> None:
    option = "--benchmark-json"
    folders = [left(tmp_path / name, told(name)) for name in ("a", "b")]
    code, out, err = command(*folders, "--markdown", tmp_path / "x.md", option, tmp_path / "x")
    assert (code, out) == (2, "")
    assert f"{option} has room for one run" in err
    assert "got      2 results" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    "places",
    [
        ("--benchmark-json", "-", "--markdown", "-"),
        ("--benchmark-json", "-", "--print"),
        ("--benchmark-json", "x", "--markdown", "x"),
        ("--benchmark-json", "x", "--markdown", "./x"),
        ("--benchmark-json", "x", "--markdown", "a/../x"),
        ("--benchmark-json", "x", "--markdown", "link"),
    ],
)
def test_two_forms_do_not_share_a_place(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("x")
    code, out, err = command(left(tmp_path / "a", told()), *places)
    assert (code, out) == (2, "")
    assert "two forms cannot go to the same place" in err
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs")
def test_what_is_no_file_is_not_replaced_by_one(command: Command, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for place in (fifo, tmp_path):
        code, _, err = command(left(tmp_path / f"of-{place.name}", told()), "--markdown", place)
        assert code == 2
        assert "not a regular file" in err
    assert fifo.is_fifo()


def test_results_are_not_written_over(command: Command, tmp_path: Path) -> None:
    folder = left(tmp_path / "a", told())
    (tmp_path / "link").symlink_to(folder / "results.json")
    for place in (folder / "results.json", tmp_path / "link", folder / ".." / "a" / "results.json"):
        code, _, err = command(folder, "--markdown", place)
        assert code == 2
        assert "not written over the results" in err
    assert (folder / "results.json").read_bytes() == encode_results(told())


def test_a_folder_that_cannot_be_written_says_where(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = command(left(tmp_path / "a", told()), "--markdown", tmp_path / "file" / "x.md")
    assert code == 2
    assert str(tmp_path / "file" / "x.md") in err


def test_a_run_that_failed_is_reported_without_failing(command: Command, tmp_path: Path) -> None:
    assert command(left(tmp_path / "a", told()), "--markdown", "-")[0] == 0


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"schema_version": 99}'])
def test_what_is_no_results_file_is_trouble_and_nothing_is_written(
    command: Command, tmp_path: Path, content: bytes | None
) -> None:
    good, bad = left(tmp_path / "a", told()), tmp_path / "b"
    bad.mkdir()
    if content is not None:
        (bad / "results.json").write_bytes(content)
    code, out, err = command(good, bad, "--markdown", tmp_path / "x.md")
    assert (code, out) == (2, "")
    assert str(bad / "results.json") in err
    assert not (tmp_path / "x.md").exists()


def test_a_path_that_is_too_long_is_named(command: Command, tmp_path: Path) -> None:
    code, out, err = command(left(tmp_path / "a", told()), "x" * 10_000, "--markdown", "-")
    assert (code, out) == (2, "")
    assert err.startswith("the results cannot be read\n")
    assert "File name too long" in err


def test_what_the_system_refuses_is_told_in_one_line_that_steers_no_terminal(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied\x1b[31m")

    monkeypatch.setattr("kernelgauge.results_file.find_results", refused)
    code, out, err = command(left(tmp_path / "a", told()), "--markdown", "-")
    assert (code, out) == (2, "")
    assert err == "system error: [Errno 13] Permission denied\\x1b[31m\n"


def test_arguments_that_are_none_are_told_and_steer_no_terminal(command: Command, tmp_path: Path) -> None:
    code, out, err = command(tmp_path, "--no\x1b[31m")
    assert (code, out) == (2, "")
    assert "unrecognized arguments: --no\\x1b[31m\n" in err


@pytest.mark.skipif(sys.platform == "win32", reason="no such redirection")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("form", ["--print", "--benchmark-json -"])
def test_a_stream_that_is_closed_changes_nothing_else(tmp_path: Path, closed: str, form: str) -> None:
    folder = left(tmp_path / "a", told())
    script = f'"$0" -m kernelgauge report "$1" {form} --markdown "$1/x.md" {closed}'
    done = subprocess.run(["bash", "-c", script, sys.executable, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (closed == "2>&-")
    assert (folder / "x.md").read_text().startswith("**REGRESSED**")
    assert (folder / "results.json").read_bytes() == encode_results(told())


def test_trouble_that_nobody_listens_to_is_trouble_all_the_same(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "kernelgauge", "report", tmp_path / "nowhere", "--markdown", "-"],
        stdout=subprocess.PIPE,
        stderr=writer,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stdout) == (2, b"")


def test_no_results_at_all_is_asked_wrongly(command: Command) -> None:
    code, _, err = command("--markdown", "-")
    assert code == 2
    assert "RESULTS" in err


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_steers_the_terminal(command: Command, tmp_path: Path, text: str) -> None:
    folder = left(tmp_path / "a", hostile(text, Status.REGRESSED, Status.IMPROVED))
    for form in (["--print"], ["--markdown", "-"], ["--benchmark-json", "-"]):
        code, out, err = command(folder, *form)
        assert (code, err) == (0, "")
        assert all(line.isprintable() for line in out.replace("\r\n", "\n").split("\n"))


def test_neither_torch_nor_pytest_nor_scipy_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from kernelgauge.cli import main; "
        "main(['report', sys.argv[1], '--markdown', sys.argv[1] + '/x.md', "
        "'--benchmark-json', sys.argv[1] + '/x.json', '--print']);"
        "sys.exit(','.join(name for name in ('torch', 'pytest', 'scipy', 'numpy') if name in sys.modules) or 0)"
    )
    folder = left(tmp_path / "a", told())
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
