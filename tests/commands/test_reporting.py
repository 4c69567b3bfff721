"""`kernelgauge report`, as it is typed; and the imports of every command on saved files."""

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.cli import results as results_commands
from kernelgauge.judge import Status
from kernelgauge.results import Results, encode_results, history
from tests.builders import one_test, results, run, verdict, workload
from tests.commands.conftest import Command


@pytest.fixture
def report(command: Command) -> Command:
    return partial(command, "report")


def save(folder: str, content: Results) -> Path:
    Path(folder).mkdir()
    (Path(folder) / "results.json").write_bytes(encode_results(content))
    return Path(folder)


def slow(gpu: str = "aa", **changes: object) -> Results:
    worse = verdict(Status.REGRESSED, reasons=[("why", "a kernel  1.0 -> 2.0 us")])
    tests = (one_test("test_device_time", "failed", said=str(worse)),)
    return results(workload(worse, run=run(gpu=gpu)), **({"gpu": gpu, "tests": tests} | changes))


def test_reports_are_beside_the_newest_results(report: Command) -> None:
    save("a", slow("new", started_at="2026-11-20T03:00:00+00:00"))
    save("b", slow("old", started_at="2026-11-18T03:00:00+00:00"))  # a shell sorts names, not runs
    code, out, err = report("a", "b")
    assert (code, out, err.splitlines()) == (
        0,
        "",
        ["written: a/report.html", "written: a/report.md"],
    )
    assert (Path("a") / "report.html").read_text().startswith("<!")
    assert (Path("a") / "report.md").read_text().startswith("**REGRESSED**  2 runs, ")
    assert [path.name for path in Path("b").iterdir()] == ["results.json"]


def test_each_form_is_written_where_asked(report: Command) -> None:
    save("a", slow())
    assert report("a/results.json", "--html", "deep/er/x.html") == (
        0,
        "",
        "written: deep/er/x.html\n",
    )
    assert Path("deep/er/x.html").read_text().startswith("<!")
    code, out, err = report("a", "--markdown")
    assert (code, err, out.startswith("**REGRESSED**")) == (0, "", True)
    assert [path.name for path in Path("a").iterdir()] == ["results.json"]


def test_results_are_read_once(report: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = results_commands.read_results, []
    monkeypatch.setattr(
        results_commands, "read_results", lambda path: (seen.append(path), real(path))[1]
    )
    paths = [save("a", slow()), save("b", slow("old", started_at="2026-11-18T03:00:00+00:00"))]
    assert report(*paths)[0] == 0
    assert seen == [path / "results.json" for path in paths]


@pytest.mark.parametrize("fault", [ZeroDivisionError, MemoryError, RecursionError, KeyError])
@pytest.mark.parametrize("arguments", ["report a", "history a", "review a", "accept a --dry-run"])
def test_fault_is_no_answer(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: str, fault: Any
) -> None:
    """The exit code 1 of Python is one."""

    def fail(*_: object, **__: object) -> None:
        raise fault("by chance")

    save("a", slow())
    monkeypatch.setattr(results_commands, "read_results", fail)
    monkeypatch.setattr(history, "decode_results", fail)
    code, out, err = command(*arguments.split())
    assert (code, out, err.splitlines()[0]) == (2, "", "Traceback (most recent call last):")
    assert re.search(rf"this is a fault of kernelgauge: {fault.__name__}: '?by chance'?\n", err)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("a --html fifo", "not a regular file"),
        ("a c --html x", "where    c\n"),
        ("a fifo --html x", "not a regular file"),
        ("a /dev/zero --html x", "not a regular file"),
        ("a bad --html x", "bad/results.json"),
        (f"a {'x' * 10_000} --html x", "File name too long"),
        ("a --no\x1b[31m", "unrecognized arguments: --no\\x1b[31m\n"),
    ],
)
def test_trouble_writes_nothing(report: Command, arguments: str, reason: str) -> None:
    save("a", slow("a"))
    Path("bad").mkdir()
    Path("bad/results.json").write_bytes(b'{"schema_version": 99}')
    os.mkfifo("fifo")
    code, out, err = report(*arguments.split(" "))
    assert (code, out, reason in err) == (2, "", True)
    assert (Path("a/results.json").read_bytes(), Path("fifo").is_fifo()) == (
        encode_results(slow("a")),
        True,
    )
    assert not {path.name for path in Path().rglob("*")} & {"x", "report.md"}


def test_no_command_prints_the_help_in_groups(kernelgauge: Command) -> None:
    code, out, err = kernelgauge()
    assert (code, err) == (0, "")
    groups = re.findall(r"(?m)^([A-Z].*):\n((?:  \S+ +.*\n?)+)", out)
    assert {title: [line.split()[0] for line in lines.splitlines()] for title, lines in groups} == {
        "After a run": ["review", "accept", "report"],
        "Two revisions": ["compare", "bisect"],
        "Traces of torch.profiler": ["trace", "check-trace"],
        "Machines and nights": ["calibrate", "history"],
    }


def test_help_fits_a_terminal(kernelgauge: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands = re.findall(r"(?m)^  ([a-z]\S+) ", kernelgauge()[1])
    assert 6 < len(commands) <= 9
    for arguments in ([], *([each] for each in commands)):
        lines = kernelgauge(*arguments, "--help")[1].splitlines()
        assert (len(lines) <= 24 + 2 * (not arguments), max(map(len, lines)) <= 80) == (True, True)


def test_same_option_has_one_name(kernelgauge: Command) -> None:
    """One meaning has one name, and one name takes the same kind of value in each command."""
    commands, values = re.findall(r"(?m)^  ([a-z]\S+) ", kernelgauge()[1]), dict[str, set[str]]()
    for command in commands:
        for name, value in re.findall(
            r"(?m)^  (-\S+)(?: ([A-Z]+))?", kernelgauge(command, "--help")[1]
        ):
            values.setdefault(name, set()).add(value)
    assert values.pop("--baselines") == {"DIR", "PATH"}  # that of traces may be a file
    assert {name: each for name, each in values.items() if len(each) > 1} == {}
    assert values["-k"] == {"EXPRESSION"}
