"""The exit codes of `pytest perf` and `kernelgauge`, and the page that documents them."""

import re
from pathlib import Path

import pytest

from kernelgauge.cli import Exit, main

from .inner_project import Project

DOCS = Path(__file__).parents[2] / "docs"


def table(page: str, after: str) -> dict[str, str]:
    """Return the first table after a line of a page: its first column, and the rest of the row."""
    rows = re.search(r"\|---.*\n((?:\|.*\n)+)", (DOCS / page).read_text().partition(after)[2])
    assert rows is not None
    return {cells[0].strip(): " ".join(cells[1:]) for cells in (row.split("|")[1:] for row in rows[1].splitlines())}


def test_every_exit_code_is_documented():
    documented = set(table("pytest.md", "## Exit codes"))
    assert {str(code.value) for code in pytest.ExitCode} <= documented <= set("0123456")  # an older pytest has no 6
    assert set(table("commands.md", "## Exit codes")) == {str(code.value) for code in Exit}


def test_exit_code_1_is_documented_for_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = set(re.findall(r"(?m)^    ([a-z]+)(?: |$)", capsys.readouterr().out))
    documented = {each.split()[0] for cell in table("commands.md", "130 |") for each in re.findall("`([^`]+)`", cell)}
    assert commands == documented
    assert "merge" in commands


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--perf-shard", "3/2"], 4),
        (["--perf-shard", "half"], 4),
        (["--perf-device", "abacus"], 4),
        (["-o", "kernelgauge_replicates=1"], 4),
        (["-o", "kernelgauge_replicates=many"], 4),
        (["--no-such-option"], 4),
        (["-k", "gone_stale"], 5),
    ],
)
def test_wrong_use_measures_nothing(project: Project, arguments: list[str], code: int) -> None:
    assert project.run(*arguments).ret == code
    assert project.measured() == []


def test_broken_test_file_exits_with_2(project: Project) -> None:
    project.write("test_broken.py", "import nothing_of_this_name\n")
    assert project.run().ret == 2
    assert project.measured() == []
