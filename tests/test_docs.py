"""The tutorial runs as it is written, the README fits a screen, and the reference has all that the
code has.
"""

import linecache
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools import size

from tests.commands.conftest import Command
from tests.conftest import command_options, named_options
from tests.plugin.inner_project import text_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What differs between machines and between runs: numbers with a point, the machine, and where a
# folder is.
MASKS = {
    r"^warning: a run like this one cannot judge .*\n": "",  # on a busy host
    r"\d+\.\d+": "0.0",
    r"^CPU .*": "CPU",
    r"cpu-[a-z0-9-]+-threads?": "cpu",
    r"written to \S*baselines/": "written to baselines/",
    r"[-=_]{3,}": "-",
    r"dispatcher ops \d+ -> \d+": "dispatcher ops",
    r"[+-]?0\.0 (?:us|ms|s|%)": "0.0",  # how long, and more or less
    r"0\.0 -> 0\.0": "0.0",
    r"[^\S\n]+": " ",
}


def masked(text: str) -> list[str]:
    for pattern, replacement in MASKS.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return [line.strip() for line in text.splitlines() if line.strip()]


def differences(shown: str, printed: str, *, has_others: bool = False) -> list[str]:
    """Return the shown lines that are not printed, in order.

    A line of three points stands for any lines.
    """
    rest, missing, is_next = masked(printed), [], not has_others
    for line in masked(shown):
        if line == "...":
            is_next = False
        elif line in (rest[:1] if is_next else rest):
            rest, is_next = rest[rest.index(line) + 1 :], not has_others
        else:
            missing.append(line)
    return missing


def run(command: str, pytester: pytest.Pytester, kernelgauge: Command) -> str:
    linecache.clearcache()  # a file may be another one since the last run
    name, *arguments = shlex.split(command)
    if name == "pytest":
        return text_of(pytester.runpytest_inprocess(*arguments))
    if name == "kernelgauge":
        return kernelgauge(*arguments)[1]
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.timeout(300)
def test_tutorial_prints_what_it_shows(
    pytester: pytest.Pytester, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CI", "GITHUB_ACTIONS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    for language, block in BLOCK.findall((DOCS / "tutorial.md").read_text(encoding="utf-8")):
        if language == "console":
            for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, shown = step.partition("\n")
                printed = run(command, pytester, kernelgauge)
                of_trace = command.startswith("kernelgauge trace")
                # the rest is of this run and this torch
                shown = shown.partition("unchanged")[0] if of_trace else shown
                assert not differences(shown, printed, has_others=of_trace), (
                    f"$ {command}\n{printed}"
                )
        elif language == "diff":
            subprocess.run(["git", "apply"], input=block, cwd=pytester.path, text=True, check=True)
        elif language == "python":
            file = pytester.path / block.partition("\n")[0].removeprefix("# ")
            file.write_text(block)


def test_prose_finds_sentences_that_begin_with_a_genitive() -> None:
    fronted = runpy.run_path(str(ROOT / "tools" / "prose.py"))["fronted_sentences"]
    wrong = ["Of the workloads, three are slower.", "Its name the kernel has from Inductor."]
    right = [
        "Its name is that of the kernel.",
        "Three of the workloads are slower.",
        "Of course it runs.",
    ]
    assert list(fronted(" ".join([*wrong, *right]))) == wrong


def help_of(module: str) -> str:
    command = [sys.executable, "-m", module, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "reference.py"))


@pytest.fixture(scope="module")
def reference(tool: dict[str, Any]) -> str:
    return "\n".join(part() for part in tool["PARTS"].values())


def test_reference_has_every_option_setting_and_mark(
    reference: str, pytestconfig: pytest.Config
) -> None:
    described = help_of("pytest")
    for pattern in (r"(--perf-[a-z-]+)", r"(kernelgauge_\w+)"):
        names = set(re.findall(rf"^\| `{pattern}", reference, re.MULTILINE))
        assert names == set(re.findall(rf"^  {pattern}[ =]", described, re.MULTILINE))
    marks = [line.partition(":")[0] for line in pytestconfig.getini("markers")]
    ours = {
        mark
        for mark in marks
        if mark.partition("(")[0] in ("workloads", "structure", "timing", "numerics", "gpu")
    }
    assert len(ours) == 5
    assert not {mark for mark in ours if f"| `{mark}` |" not in reference}


def test_reference_has_every_command(tool: dict[str, Any], reference: str) -> None:
    parsers = list(tool["command_parsers"]())
    commands = set(re.findall(r"^  ([a-z][a-z-]+)  ", help_of("kernelgauge"), re.MULTILINE))
    assert {parser.prog.split()[1] for parser in parsers} == commands
    for parser in parsers:
        options = {name for action in parser._actions for name in action.option_strings} - {
            "-h",
            "--help",
        }
        chapter = reference.partition(f"### {parser.prog}\n")[2].partition("\n### ")[0]
        assert chapter
        assert not {name for name in options if name not in chapter}, parser.prog


def test_pages_name_options_that_their_commands_take() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("templates/*"), ROOT / "README.md"]
    texts = [(each.name, each.read_text(encoding="utf-8")) for each in pages if each.is_file()]
    found = {
        (name, *named)
        for name, text in texts
        for command in re.findall(r"kernelgauge [^`\n]*", text)
        for named in named_options("", command)
    }
    assert len(found) > 10
    assert not {it for it in found if it[2] not in command_options()[it[1]]}


def test_page_has_every_environment_variable() -> None:
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\.setdefault\(|\[)\"([A-Z_]+)\"", source)) | {
        "KERNELGAUGE_LOCKS"
    }
    assert len(read) > 5
    page = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert not {name for name in read if f"`{name}`" not in page}


def test_pictures_are_of_the_baselines() -> None:
    subprocess.run([sys.executable, "tools/pictures.py", "--check"], cwd=ROOT, check=True)


def test_readme_fits_a_screen_and_shows_the_tutorial() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert max(map(len, readme.splitlines())) <= 90
    (failure, *_) = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)
    assert failure in (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_docs_stay_short() -> None:
    """The manual beside the reference, and the evidence behind it."""
    assert (len(size.pages("docs")), size.words("docs") <= 18_000) == (16, True)
    assert size.words("docs/design") <= 10_350
