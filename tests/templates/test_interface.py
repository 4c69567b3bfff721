"""What the templates and their page say of pytest and kernelgauge is so: options, commands, exit codes."""

import re

import pytest

from kernelgauge.cli import main
from kernelgauge.commands.output import Exit
from tests.plugin.inner_project import Project, told

from .sandbox import TEMPLATES

ROOT = TEMPLATES.parent
PAGE = ROOT / "docs" / "nightly.md"
FILES = [path for path in sorted(TEMPLATES.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
TEXT = "\n".join(path.read_text() for path in [*FILES, PAGE])


def test_every_option_of_pytest_perf_that_is_used_exists(pytestconfig):
    used = set(re.findall(r"--perf-[a-z]+(?:-[a-z]+)*", TEXT))
    assert "--perf-strict" in used
    unknown = object()
    assert {option for option in used if pytestconfig.getoption(option, default=unknown) is unknown} == set()


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("merge", ["RESULTS", "--to"]),
        ("review", ["RESULTS", "--markdown"]),
        ("accept", ["RESULTS", "-k"]),
        ("trend", ["--history", "--html"]),
        ("history", ["add"]),
        ("report", ["RESULTS"]),
        ("publish", ["REPORTS", "DEST"]),
        ("calibrate", []),
        ("diff", ["--fail-on-change"]),
        ("show", []),
        ("open", []),
    ],
)
def test_a_command_that_is_used_exists_with_its_options(command, options, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert [option for option in options if option not in said] == []


def test_no_other_command_is_used():
    used = set(re.findall(r"(?m)(?:^|[`/ ])kernelgauge (merge|[a-z]+) (?=\"|-|reports|DOWNLOADED)", TEXT))
    assert used == {"accept", "merge", "review", "trend"}


def table(after: str) -> dict[str, str]:
    """The first column of the first table after a line of the page, and the rest of the row."""
    lines = PAGE.read_text().partition(after)[2].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {row[0]: " ".join(row[1:]) for row in rows}


def test_every_exit_code_of_pytest_is_documented():
    documented = set(table("`pytest perf`:"))
    assert documented >= {str(code.value) for code in pytest.ExitCode}
    assert documented <= {"0", "1", "2", "3", "4", "5", "6"}  # an older pytest has no 6


def test_every_exit_code_of_kernelgauge_is_documented():
    assert set(table("`kernelgauge`:")) == {str(code.value) for code in Exit}


def test_of_every_command_the_page_says_what_1_means(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = set(re.findall(r"(?m)^    ([a-z]+)(?: |$)", capsys.readouterr().out))
    told_of = {each.split()[0] for cell in table("130 |") for each in re.findall("`([^`]+)`", cell)}
    assert commands == told_of
    assert "merge" in commands


# -- exit codes, as they are -----------------------------------------------------------------------------------------


@pytest.fixture
def project(pytester, monkeypatch, tmp_path) -> Project:
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERNELGAUGE_LOCKS", str(tmp_path))
    return Project(pytester)


def test_0_is_that_everything_passed_or_was_skipped_and_strictly_that_everything_was_decided(project):
    assert project.run().ret == 0  # without a baseline
    assert project.run("--perf-strict").ret == 1
    project.record()
    assert project.run("--perf-strict").ret == 0


def test_1_is_that_something_failed(project):
    project.record()
    project.tell(told(gelu_us=5.5))
    assert project.run().ret == 1
    project.tell(told(error="measurement"))
    assert project.run().ret == 1


def test_1_is_strictly_what_was_too_noisy_or_cannot_run_here(project):
    project.record()
    project.tell(told(noise=0.2))
    assert (project.run().ret, project.run("--perf-strict").ret) == (0, 1)
    project.tell(told(error="unavailable"))
    assert (project.run().ret, project.run("--perf-strict").ret) == (0, 1)


def test_2_is_a_test_file_that_cannot_be_imported(project):
    (project.root / "perf" / "test_broken.py").write_text("import nothing_of_this_name\n")
    assert project.run().ret == 2


@pytest.mark.parametrize("arguments", [["--perf-shard", "3/2"], ["--perf-device", "abacus"], ["--no-such-option"]])
def test_4_is_that_it_was_used_wrongly(project, arguments):
    assert project.run(*arguments).ret == 4


def test_4_is_an_update_under_ci(project, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert project.run("--perf-update").ret == 4


def test_5_is_that_nothing_was_selected(project):
    assert project.run("-k", "gone_stale").ret == 5
