"""The exit codes of `pytest perf` and `kernelgauge`, and the page that documents them."""

import re
from pathlib import Path

import pytest

from kernelgauge.cli import main
from kernelgauge.cli.output import Exit

from .inner_project import Project, told

PAGE = Path(__file__).parents[2] / "docs" / "nightly.md"


def table(after: str) -> dict[str, str]:
    """Return the first table after a line of the page: its first column, and the rest of the row."""
    rows = re.search(r"\|---.*\n((?:\|.*\n)+)", PAGE.read_text().partition(after)[2])
    assert rows is not None
    return {cells[0].strip(): " ".join(cells[1:]) for cells in (row.split("|")[1:] for row in rows[1].splitlines())}


def test_every_exit_code_is_documented():
    documented = set(table("`pytest perf`:"))
    assert {str(code.value) for code in pytest.ExitCode} <= documented <= set("0123456")  # an older pytest has no 6
    assert set(table("`kernelgauge`:")) == {str(code.value) for code in Exit}


def test_exit_code_1_is_documented_for_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = set(re.findall(r"(?m)^    ([a-z]+)(?: |$)", capsys.readouterr().out))
    documented = {each.split()[0] for cell in table("130 |") for each in re.findall("`([^`]+)`", cell)}
    assert commands == documented
    assert "merge" in commands


@pytest.fixture
def project(pytester, monkeypatch, tmp_path) -> Project:
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERNELGAUGE_LOCKS", str(tmp_path))
    return Project(pytester)


def test_strict_run_passes_only_with_a_baseline(project):
    assert project.run().ret == 0
    assert project.run("--perf-strict").ret == 1
    project.record()
    assert project.run("--perf-strict").ret == 0


@pytest.mark.parametrize("fault", [{"gelu_us": 5.5}, {"error": "measurement"}], ids=str)
def test_failure_exits_with_1(project, fault):
    project.record()
    project.tell(told(**fault))
    assert project.run().ret == 1


@pytest.mark.parametrize("fault", [{"noise": 0.2}, {"error": "unavailable"}], ids=str)
def test_inconclusive_or_unavailable_exits_with_1_if_strict(project, fault):
    project.record()
    project.tell(told(**fault))
    assert (project.run().ret, project.run("--perf-strict").ret) == (0, 1)


def test_broken_test_file_exits_with_2(project):
    (project.root / "perf" / "test_broken.py").write_text("import nothing_of_this_name\n")
    assert project.run().ret == 2


@pytest.mark.parametrize("arguments", [["--perf-shard", "3/2"], ["--perf-device", "abacus"], ["--no-such-option"]])
def test_wrong_use_exits_with_4(project, arguments):
    assert project.run(*arguments).ret == 4


def test_update_under_ci_exits_with_4(project, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert project.run("--perf-update").ret == 4


def test_empty_selection_exits_with_5(project):
    assert project.run("-k", "gone_stale").ret == 5
