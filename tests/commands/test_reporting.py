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
    code, out, err = report("a/results.json", "--markdown", "x.md", "--html", "deep/er/x.html")
    assert (code, err.splitlines(), out) == (0, ["written: deep/er/x.html", "written: x.md"], "")
    assert [Path(name).read_text()[:2] for name in ("x.md", "deep/er/x.html")] == ["**", "<!"]
    for option, start in (("--markdown", "**REGRESSED**"), ("--html", "<!")):
        code, out, err = report("a", option, "-")
        assert (code, err, out.startswith(start)) == (0, "", True)
    assert [path.name for path in Path("a").iterdir()] == ["results.json"]
    assert not Path("-").exists()


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
        ("a --markdown fifo", "not a regular file"),
        ("a c --markdown x", "where    c\n"),
        ("a fifo --markdown x", "not a regular file"),
        ("a /dev/zero --markdown x", "not a regular file"),
        ("a bad --markdown x", "bad/results.json"),
        (f"a {'x' * 10_000} --markdown x", "File name too long"),
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


def test_no_command_prints_the_help(kernelgauge: Command) -> None:
    code, out, err = kernelgauge()
    assert (code, err) == (0, "")
    assert "accept" in out
