"""What a run writes to a terminal, and to a file in its place: within its width, plain where colour is not wanted, quiet if asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.plugin.inner_project import Project, told

pty = pytest.importorskip("pty", reason="a terminal is made as Unix makes one")

COMMAND = [sys.executable, "-m", "pytest", "perf", "-p", "no:cacheprovider"]
LONG = told(module="a-module-with-a-name-that-is-far-too-long", variant="compiled-max-autotune", shape=(64, 128, 3072))
LONG_ID = "a-module-with-a-name-that-is-far-too-long-compiled-max-autotune-bf16-64x128x3072"
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # all but the end of a line


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "PY_COLORS")}
    return kept | {"COLUMNS": "80", "TERM": "xterm-256color"} | changes


def on_a_terminal(project: Project, *arguments: str, **changes: str) -> str:
    """What a run writes if its output is a terminal; the ends of lines as they were before the terminal made them."""
    here, there = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=project.root, env=environment(**changes), stdin=there, stdout=there, stderr=there
    ) as process:
        os.close(there)
        written = b""
        try:
            while chunk := os.read(here, 1 << 16):
                written += chunk
        except OSError:  # how Linux says that nobody writes any more
            pass
        os.close(here)
        process.wait(timeout=60)
    return written.decode().replace("\r\n", "\n")


def into_a_file(project: Project, *arguments: str, **changes: str) -> str:
    path = project.root / "output.txt"
    with path.open("wb") as file:
        subprocess.run(
            [*COMMAND, *arguments],
            cwd=project.root,
            env=environment(**changes),
            stdout=file,
            stderr=file,
            timeout=60,
            check=False,
        )
    return path.read_text()


def summary_of(text: str) -> str:
    return text[text.index("= kernelgauge =") :]


def table_of(text: str) -> list[str]:
    """The lines of the summary's table."""
    lines = summary_of(re.sub(r"\x1b\[[0-9;]*m", "", text)).splitlines()
    first = next(index for index, line in enumerate(lines) if line.split() == ["device", "stored"])
    last = next(index for index, line in enumerate(lines) if line.startswith("no baseline in"))
    return lines[first:last]


def test_a_terminal_of_80_columns_holds_the_table_and_a_long_name_is_folded(project: Project) -> None:
    project.tell(told(), LONG)
    lines = table_of(on_a_terminal(project))
    assert max(map(len, lines)) <= 80
    assert "".join(line.split(" ")[0] for line in lines if line[:1] not in (" ", "")).endswith(LONG_ID)
    assert sum(line.endswith("NO_BASELINE") for line in lines) == 2


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
def test_a_terminal_that_wants_no_colour_gets_no_escape_sequence(project: Project, changes: dict[str, str]) -> None:
    text = on_a_terminal(project, **changes)
    assert "NO_BASELINE" in summary_of(text)
    assert "\x1b" not in text
    assert STEERING.findall(summary_of(text)) == []  # before it, pytest itself writes over its "collecting ..."


def test_another_terminal_gets_colour(project: Project) -> None:
    assert "\x1b[33mNO_BASELINE" in summary_of(on_a_terminal(project))


def test_a_file_gets_plain_text_whatever_the_names_in_a_trace_are(project: Project) -> None:
    hostile = told(gelu_us=6.0)
    hostile["kernels"] = [
        ({"name": "a_gemm\x1b[31m\x9b2J\u202e", "kind": "gemm"}, 6.0),
        ({"name": "\x1b]0;title\x07a_gelu\r\x08", "kind": "pointwise"}, 6.0),
    ]
    project.record()
    project.tell(hostile)
    text = into_a_file(project)
    assert "REGRESSED" in summary_of(text)
    assert "a_gelu" in text
    assert STEERING.findall(text) == []


@pytest.mark.parametrize(("arguments", "told_of_progress"), [((), True), (("-q",), False), (("-qq",), False)])
def test_progress_is_told_line_by_line_and_not_to_who_wants_quiet(
    project: Project, arguments: tuple[str, ...], told_of_progress: bool
) -> None:
    text = into_a_file(project, *arguments)
    assert ("\n  compiling\n" in text) == told_of_progress
    assert "NO_BASELINE" in summary_of(text)
