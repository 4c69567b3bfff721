"""`kernelgauge compare`: two revisions in turns, each in a working tree of its own, and judged by each other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.baselines import calibration
from kernelgauge.cli import main
from kernelgauge.results import Results, read_results
from tests.builders import counts, mlp_kernels
from tests.plugin.told_processes import FIRST, measured, results_of

Compare = Callable[..., tuple[int, str, str]]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose `model.txt` says how long its workload takes; committed at 205 us."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "suite.txt").write_text("old")
    (tmp_path / "model.txt").write_text("205")
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "a")
        monkeypatch.setenv(f"{name}_EMAIL", "a@b.c")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path


class Process:
    """Stands in for a process of pytest: it takes as long as the model of its folder says."""

    def __init__(self, baselines: Path) -> None:
        self.baselines = baselines
        self.seen: list[tuple[str, str, Path, list[str]]] = []
        self.packages: list[list[str]] = []
        self.noise = 0.0

    def __call__(self, arguments: list[str], *, folder: Path, packages: Sequence[Path] = (), **_: Any) -> Results:
        self.packages.append([each.joinpath("installed.txt").read_text() for each in packages])
        model = (folder / "model.txt").read_text()
        self.seen.append((model, (folder / "perf" / "suite.txt").read_text(), folder, list(arguments)))
        sign = 1 if len(self.seen) % 3 else -1
        center = float(model.split()[0]) * (1 + sign * self.noise)
        kernels = mlp_kernels()[:3] if "fewer" in model else mlp_kernels()
        return results_of((measured(center=center, kernels=kernels, place=len(self.seen) % 3),), self.baselines)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    told = Process(tmp_path / "baselines")
    monkeypatch.setattr(calibration, "run_process", told)
    return told


@pytest.fixture
def compare(project: Path, process: Process, capsys: pytest.CaptureFixture[str]) -> Compare:
    assert project
    assert process

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["compare", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_unchanged_revision_passes_after_the_fewest_processes(compare: Compare, process: Process) -> None:
    code, out, err = compare("HEAD")
    assert code == 0
    assert [line.split()[-1] for line in err.splitlines()] == ["BASE", "HEAD", "HEAD", "BASE", "BASE", "HEAD"]
    assert "PASS" in out
    assert "3 processes of each side" in out
    results = read_results(Path("reports/compare/results.json"))
    assert len(results.workloads[0].baseline.entries[0].processes) == 3  # type: ignore[union-attr]
    assert Path("reports/compare/report.html").is_file()
    assert not process.baselines.exists()


def test_working_tree_that_is_slower_fails_and_stays_as_it_is(
    compare: Compare, process: Process, project: Path
) -> None:
    (project / "model.txt").write_text("209")
    (project / "perf" / "suite.txt").write_text("new")
    code, out, _ = compare("HEAD", "-k", "mlp")
    assert code == 1
    assert f"{FIRST}: REGRESSED  GPU time 205.0 -> 209.0 us" in out
    assert {each[:2] for each in process.seen} == {("205", "new"), ("209", "new")}  # one suite for both
    assert {tuple(each[3]) for each in process.seen} == {("perf", "-k", "mlp")}
    assert git("status", "--porcelain", "--untracked-files=no").split() == ["M", "model.txt", "M", "perf/suite.txt"]
    assert len(git("worktree", "list").splitlines()) == 1
    assert not any(folder.exists() for *_, folder, _ in process.seen if folder != project)


def test_two_revisions_are_told_apart_by_their_kernels(compare: Compare, project: Path) -> None:
    (project / "model.txt").write_text("205 fewer")
    git("commit", "-qam", "second")
    (project / "model.txt").write_text("999")  # in the working tree, which is not asked for
    code, out, _ = compare("HEAD~1", "HEAD")
    assert code == 1
    assert "1 kernel less" in out
    assert compare("HEAD", "HEAD")[0] == 0


def test_undecided_comparison_goes_on_to_its_end_or_budget(compare: Compare, process: Process) -> None:
    process.noise = 0.05
    assert "12 processes of each side" in compare("HEAD")[1]
    assert "4 processes of each side" in compare("HEAD", "--processes", "4")[1]
    assert "1 processes of each side" in compare("HEAD", "--budget", "0")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "git rev-parse failed"),
        (["HEAD", "--suite", "absent"], "HEAD has no such suite"),
    ],
)
def test_comparison_that_cannot_begin_says_why(
    compare: Compare, process: Process, arguments: list[str], said: str
) -> None:
    code, _, err = compare(*arguments)
    assert code == 2
    assert said in err
    assert process.seen == []
    assert len(git("worktree", "list").splitlines()) == 1


def test_suite_that_is_the_whole_folder_is_refused(compare: Compare, process: Process) -> None:
    """Both sides would have the code of HEAD."""
    with pytest.raises(SystemExit, match="2"):
        compare("HEAD", "--suite", ".")
    assert process.seen == []


def test_suite_with_an_absolute_path_stays_in_the_working_tree(
    compare: Compare, process: Process, project: Path
) -> None:
    (project / "perf" / "untracked.txt").write_text("mine")
    (project / "perf" / "suite.txt").write_text("new")
    assert compare("HEAD", "--suite", str(project / "perf"))[0] == 0
    assert {each[1] for each in process.seen} == {"new"}
    assert (project / "perf" / "untracked.txt").read_text() == "mine"


def test_suite_behind_a_link_is_not_replaced(compare: Compare, project: Path) -> None:
    outside = project / "outside"
    (outside / "perf").mkdir(parents=True)
    (outside / "perf" / "suite.txt").write_text("mine")
    (project / "link").symlink_to(outside)
    git("add", "link")
    git("commit", "-qm", "link")
    code, _, err = compare("HEAD", "--suite", "link/perf")
    assert code == 2
    assert "outside of the working tree" in err
    assert (outside / "perf" / "suite.txt").read_text() == "mine"


def test_worktrees_of_others_are_not_forgotten(compare: Compare, tmp_path_factory: pytest.TempPathFactory) -> None:
    disk = tmp_path_factory.mktemp("disk") / "tree"
    git("worktree", "add", str(disk), "-b", "other")
    disk.rename(disk.with_name("not mounted"))
    assert compare("HEAD")[0] == 0
    assert len(git("worktree", "list").splitlines()) == 2


def test_head_without_times_is_judged_by_its_structure(compare: Compare, process: Process, monkeypatch: Any) -> None:
    """Code that compiles again in each replicate has no times, and its recompiles say why."""

    def run(*_: Any, folder: Path, **__: Any) -> Results:
        is_head = folder == Path.cwd()
        changes = {"incomplete": "other kernels", "counts": counts(recompiles=4)} if is_head else {}
        return results_of((measured(**changes),), process.baselines)

    monkeypatch.setattr(calibration, "run_process", run)
    code, out, _ = compare("HEAD", "--processes", "3")
    assert code == 1
    assert "recompiles 0 -> 4" in out
    assert "GPU time was not measured: other kernels" in out


def test_workload_that_one_side_lacks_is_invalid(compare: Compare, process: Process, monkeypatch: Any) -> None:
    def run(*arguments: Any, folder: Path, **more: Any) -> Results:
        results = Process.__call__(process, *arguments, folder=folder, **more)
        return results_of((), process.baselines) if folder != Path.cwd() else results

    monkeypatch.setattr(calibration, "run_process", run)
    code, out, _ = compare("HEAD", "--processes", "3")
    assert code == 1
    assert "BASE could not be measured" in out


def test_arguments_behind_two_dashes_go_to_pytest(compare: Compare, process: Process) -> None:
    assert compare("HEAD", "--", "--perf-device", "cpu")[0] == 0
    assert {tuple(each[3]) for each in process.seen} == {("perf", "--perf-device", "cpu")}


def test_base_alone_has_the_packages_of_with(compare: Compare, process: Process, tmp_path: Path) -> None:
    told = tmp_path / "python"  # stands in for pip: the last argument is the requirement, the fifth the folder
    told.write_text('#!/bin/sh\nmkdir -p "$5"\nfor last; do :; done\nprintf %s "$last" > "$5/installed.txt"\n')
    told.chmod(0o755)
    code, _, _ = compare("HEAD", "--with", "a==1", "--with", "b==2", "--base-python", str(told))
    assert code == 0
    assert process.packages[:4] == [["a==1", "b==2"], [], [], ["a==1", "b==2"]]
    told.write_text("#!/bin/sh\necho no such version >&2\nexit 1\n")
    code, _, err = compare("HEAD", "--with", "a==9", "--base-python", str(told))
    assert code == 2
    assert "a==9 cannot be installed" in err
    assert "no such version" in err
