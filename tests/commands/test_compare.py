"""`kernelgauge compare`: two revisions in turns, each in a working tree of its own, and judged by each other."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kernelgauge import processes
from kernelgauge.judge.evidence import Detail, Failed
from kernelgauge.judge.verdict import MEASUREMENT, Status, Verdict
from kernelgauge.processes import revisions
from kernelgauge.results import Results, TestResult, read_results
from tests.commands.conftest import Command, Process, git
from tests.plugin.told_processes import FIRST, SECOND, measured, results_of


def result_of(workload: str, subject: str) -> TestResult:
    test = subject.lower().replace(" ", "_")
    return TestResult(f"perf/test_perf.py::test_{test}[{workload}]", workload, "passed", 1.0, subject=subject)


LATENCY = result_of(SECOND, "end to end")


@pytest.fixture
def project(repository: Path) -> Path:
    """A repository whose `model.txt` says how long its workload takes; committed at 205 us."""
    (repository / "perf").mkdir()
    (repository / "perf" / "suite.txt").write_text("old")
    (repository / "model.txt").write_text("205")
    git("add", ".")
    git("commit", "-qm", "first")
    return repository


@pytest.fixture
def compare(project: Path, process: Process, kernelgauge: Command) -> Command:
    assert project
    process.noise = 0.0001
    return partial(kernelgauge, "compare")


def test_unchanged_revision_passes_after_the_fewest_processes(compare: Command, process: Process) -> None:
    code, out, err = compare("HEAD", "--", "--perf-device", "cpu")
    assert code == 0
    assert {tuple(each.arguments[-2:]) for each in process.seen} == {("--perf-device", "cpu")}
    *processes, last = err.splitlines()
    base, head = "HEAD: process", "the working tree: process"
    assert processes == [f"{base} 1", f"{head} 1", f"{head} 2", f"{base} 2", f"{base} 3", f"{head} 3"]
    assert last == "after process 3 of each side: 1 of 1 workloads decided"
    assert "PASS" in out
    assert "processes of each side: 3 " in out
    results = read_results(Path("reports/compare/results.json"))
    assert len(results.workloads[0].baseline.entries[0].processes) == 3  # type: ignore[union-attr]
    assert "traces/" not in out + Path("reports/compare/report.html").read_text()
    assert not process.baselines.exists()


def test_working_tree_that_is_slower_fails_and_stays_as_it_is(
    compare: Command, process: Process, project: Path
) -> None:
    (project / "model.txt").write_text("209")
    (project / "perf" / "suite.txt").write_text("new")
    code, out, _ = compare("HEAD", "-k", "mlp")
    assert code == 1
    assert f"{FIRST}: REGRESSED  GPU time 205.0 -> 209.0 us" in out
    assert {each[:2] for each in process.seen} == {("205", "new"), ("209", "new")}  # one suite for both
    assert {tuple(each.arguments) for each in process.seen} == {("perf", "-k", "mlp")}
    assert git("status", "--porcelain", "--untracked-files=no").split() == ["M", "model.txt", "M", "perf/suite.txt"]
    assert len(git("worktree", "list").splitlines()) == 1
    assert not any(each.folder.exists() for each in process.seen if each.folder != project)


def test_two_revisions_are_told_apart_by_their_kernels(compare: Command, project: Path) -> None:
    (project / "model.txt").write_text("205 fewer")
    git("commit", "-qam", "second")
    (project / "model.txt").write_text("999")  # in the working tree, which is not asked for
    code, out, _ = compare("HEAD~1", "HEAD")
    assert code == 1
    assert "kernels differ from HEAD~1" in out
    assert "1 kernel less" in out
    code, _, err = compare("HEAD", "HEAD")
    assert code == 0
    assert len(set(err.splitlines())) == len(err.splitlines())


def test_undecided_comparison_goes_on_to_its_end_or_budget(compare: Command, process: Process) -> None:
    process.noise = 0.05
    _, out, err = compare("HEAD")
    assert "processes of each side: 12 " in out
    assert err.count(f"0 of 1 workloads decided; undecided: {FIRST} (GPU time)") == 3
    assert "processes of each side: 4 " in compare("HEAD", "--processes", "4")[1]
    assert "processes of each side: 1 " in compare("HEAD", "--budget", "0")[1]


def test_decided_workloads_are_not_measured_again(
    compare: Command, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FIRST is decided after three processes of each side, and SECOND is too noisy."""
    seen: list[list[str]] = []

    def run(arguments: list[str], **_: Any) -> Results:
        seen.append(arguments)
        noisy = measured(SECOND, center=205 * (1 + 0.05 * (-1) ** (len(seen) // 3)))
        runs = (measured(place=len(seen) % 3), noisy) if len(seen) <= 6 else (noisy,)
        results = results_of(runs, process.baselines)
        return replace(results, tests=(*(result_of(each, "GPU time") for each in (FIRST, SECOND)), LATENCY))

    monkeypatch.setattr(processes, "run_process", run)
    code, _, err = compare("HEAD", "--processes", "6")
    assert code == 0
    left_out = [f"--deselect=perf/test_perf.py::test_gpu_time[{FIRST}]", f"--deselect={LATENCY.node}"]
    assert [arguments[1:] for arguments in seen] == [[]] * 6 + [left_out] * 6
    assert f"1 of 2 workloads decided; undecided: {SECOND} (GPU time)" in err
    results = read_results(Path("reports/compare/results.json"))
    sizes = [len(each.baseline.entries[0].processes) for each in results.workloads]  # type: ignore[union-attr]
    assert ([each.id for each in results.workloads], sizes) == ([FIRST, SECOND], [3, 6])


def test_other_kernels_end_the_wait_however_noisy(compare: Command, process: Process, project: Path) -> None:
    process.noise = 0.05
    (project / "model.txt").write_text("205 fewer")
    assert "processes of each side: 3 " in compare("HEAD")[1]


@pytest.mark.parametrize(("after", "told"), [(1, 0), (7, 3)])
def test_interrupted_comparison_says_what_is_known(compare: Command, process: Process, after: int, told: int) -> None:
    process.noise = 0.05
    process.after = after
    code, out, _ = compare("HEAD")
    assert code == 130
    assert (f"processes of each side: {told} " in out) == bool(told)
    assert len(git("worktree", "list").splitlines()) == 1


def test_process_that_fails_is_named_and_what_was_measured_is_told(
    compare: Command, process: Process, monkeypatch: Any
) -> None:
    def run(*arguments: Any, **more: Any) -> Results:
        process.is_machine_lost = len(process.seen) == 8
        return Process.__call__(process, *arguments, **more)

    process.noise = 0.05
    monkeypatch.setattr(processes, "run_process", run)
    code, out, err = compare("HEAD")
    assert code == 2
    assert "processes of each side: 4 " in out
    assert "HEAD: a process that measures failed\n  got      ImportError" in err


def test_second_interruption_loses_no_verdicts(compare: Command, process: Process, monkeypatch: Any) -> None:
    def interrupted(*arguments: str) -> str:
        if arguments[:2] == ("worktree", "remove"):
            raise KeyboardInterrupt
        return real(*arguments)

    real = revisions.git
    monkeypatch.setattr(revisions, "git", interrupted)
    process.noise, process.after = 0.05, 7
    code, out, _ = compare("HEAD")
    assert code == 130
    assert "processes of each side: 3 " in out


@pytest.mark.parametrize("before", ["file", "link"])
def test_suite_of_head_replaces_what_base_has(compare: Command, process: Process, project: Path, before: str) -> None:
    git("mv", "perf", "elsewhere")
    if before == "link":
        (project / "perf").symlink_to("elsewhere")
    else:
        (project / "perf").write_text("no folder")
    git("add", ".")
    git("commit", "-qm", "before")
    (project / "perf").unlink()
    (project / "perf").mkdir()
    (project / "perf" / "suite.txt").write_text("new")
    (project / "perf" / "data").symlink_to("nowhere")
    assert compare("HEAD")[0] == 0
    assert {each.suite for each in process.seen} == {"new"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "git knows no revision nowhere"),
        (["HEAD", "perf"], "--suite perf   (it is a path here, and not a revision)"),
        (["HEAD", "--suite", "absent"], "the working tree has no such suite"),
    ],
)
def test_comparison_that_cannot_begin_says_why(
    compare: Command, process: Process, arguments: list[str], said: str
) -> None:
    code, _, err = compare(*arguments)
    assert code == 2
    assert said in err
    assert process.seen == []
    assert len(git("worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("suite", [".", "..", "{project}/perf", "link/perf"])
def test_suite_outside_of_the_worktree_is_refused(
    compare: Command, process: Process, project: Path, suite: str
) -> None:
    """Nothing there is replaced; and with "." both sides would have the code of HEAD."""
    (project / "outside" / "perf").mkdir(parents=True)
    (project / "link").symlink_to(project / "outside")
    git("add", "link")
    git("commit", "-qm", "link")
    (project / "outside" / "perf" / "suite.txt").write_text("mine")
    (project / "perf" / "untracked.txt").write_text("mine")
    code, _, err = compare("HEAD", "--suite", suite.format(project=project))
    assert code == 2
    assert "outside of the working tree" in err
    assert process.seen == []
    assert (project / "outside" / "perf" / "suite.txt").read_text() == "mine"
    assert (project / "perf" / "untracked.txt").read_text() == "mine"


def test_links_in_the_suite_stay_links(compare: Command, process: Process, project: Path) -> None:
    """Followed, two links to a parent would multiply the suite for ever."""
    for name in ("a", "b"):
        (project / "perf" / name).symlink_to("..")
    with revisions.worktree("HEAD") as tree:
        revisions.copy_suite(project / "perf", tree, "perf", owner="HEAD")
        assert sorted(path.name for path in (tree / "perf").iterdir() if path.is_symlink()) == ["a", "b"]


@pytest.mark.parametrize(
    "arguments", [("--budget", "nan"), ("--budget", "-1"), ("--processes", "-3"), ("--processes", "0")]
)
def test_number_that_is_none_is_a_usage_error(compare: Command, process: Process, arguments: tuple[str, str]) -> None:
    code, _, err = compare("HEAD", *arguments)
    assert (code, process.seen) == (2, [])
    assert f"got {arguments[1]}, expected" in err


def test_worktrees_of_others_are_not_forgotten(compare: Command, tmp_path_factory: pytest.TempPathFactory) -> None:
    disk = tmp_path_factory.mktemp("disk") / "tree"
    git("worktree", "add", str(disk), "-b", "other")
    disk.rename(disk.with_name("not mounted"))
    assert compare("HEAD")[0] == 0
    assert len(git("worktree", "list").splitlines()) == 2


def test_head_without_times_is_judged_by_its_structure(compare: Command, project: Path) -> None:
    """Code that compiles again in each replicate has no times, and its recompiles say why."""
    (project / "model.txt").write_text("205 recompiles")
    code, out, _ = compare("HEAD", "--processes", "3")
    assert code == 1
    assert re.search(r"recompiles 0 -> \d", out)
    assert "GPU time was not measured: other kernels" in out


def test_workload_that_is_new_is_compared_with_nothing(compare: Command, process: Process, monkeypatch: Any) -> None:
    def run(*arguments: Any, folder: Path, **more: Any) -> Results:
        results = Process.__call__(process, *arguments, folder=folder, **more)
        return results_of((), process.baselines) if folder != Path.cwd() else results

    monkeypatch.setattr(processes, "run_process", run)
    code, out, _ = compare("HEAD", "--processes", "3")
    assert code == 0
    assert "NO_BASELINE  nothing to compare with: HEAD has no such workload, or fails" in out


@pytest.mark.parametrize("unavailable", [True, False])
def test_workload_that_fails_says_why(compare: Command, process: Process, monkeypatch: Any, unavailable: bool) -> None:
    invalid = Verdict(
        Status.INVALID, FIRST, MEASUREMENT, Failed("running failed"), (Detail("got", "RuntimeError: boom"),)
    )

    def run(*arguments: Any, folder: Path, **more: Any) -> Results:
        results = Process.__call__(process, *arguments, folder=folder, **more)
        why: dict[str, Any] = {"unavailable": "no RuntimeError: boom"} if unavailable else {"verdicts": (invalid,)}
        failed = replace(results.workloads[0], run=None, **why)
        return replace(results, workloads=(failed,)) if folder == Path.cwd() else results

    monkeypatch.setattr(processes, "run_process", run)
    code, out, _ = compare("HEAD", "--processes", "3")
    assert code == 1
    assert "the working tree could not be measured" in out
    assert "RuntimeError: boom" in out
    assert len(process.seen) == 2  # more processes would fail as well


def test_failure_of_one_process_is_no_pass(compare: Command, process: Process, monkeypatch: Any) -> None:
    invalid = Verdict(
        Status.INVALID, FIRST, MEASUREMENT, Failed("running failed"), (Detail("got", "RuntimeError: flaky"),)
    )

    def run(*arguments: Any, **more: Any) -> Results:
        results = Process.__call__(process, *arguments, **more)
        failed = replace(results.workloads[0], run=None, verdicts=(invalid,))
        return replace(results, workloads=(failed,)) if len(process.seen) == 6 else results

    monkeypatch.setattr(processes, "run_process", run)
    code, out, _ = compare("HEAD", "--processes", "3")
    assert code == 1
    assert "the working tree could not be measured in every process" in out
    assert "RuntimeError: flaky" in out


@pytest.mark.parametrize(("model", "code"), [("205", 0), ("205 fewer", 1)])
def test_structure_is_judged_without_times(compare: Command, project: Path, model: str, code: int) -> None:
    (project / "model.txt").write_text(model)
    found, out, _ = compare("HEAD", "--", "-m", "structure")
    assert found == code
    assert "processes of each side: 1 " in out
    assert ("kernels differ from HEAD" in out) is bool(code)
    assert "not measured" not in out


def test_reports_that_cannot_be_written_lose_no_verdict(compare: Command, project: Path) -> None:
    (project / "model.txt").write_text("209")
    (project / "reports").write_text("a file")
    code, out, err = compare("HEAD", "--processes", "3")
    assert code == 2
    assert "REGRESSED" in out
    assert "cannot write" in err


def test_base_alone_has_the_packages_of_with(compare: Command, process: Process, tmp_path: Path) -> None:
    told = tmp_path / "python"  # stands in for pip: the last arguments are the folder and the requirement
    told.write_text('#!/bin/sh\nmkdir -p "$8"\nprintf %s "$9" > "$8/installed.txt"\n')
    told.chmod(0o755)
    relative = os.path.relpath(told)
    code, _, _ = compare("HEAD", "--with", "a==1", "--with", "b==2", "--base-python", relative)
    assert code == 0
    assert [each.packages for each in process.seen[:4]] == [["a==1", "b==2"], [], [], ["a==1", "b==2"]]
    assert [each.python for each in process.seen[:2]] == [str(told), None]
    told.write_text("#!/bin/sh\necho no such version >&2\nexit 1\n")
    code, _, err = compare("HEAD", "--with", "a==9", "--base-python", str(told))
    assert code == 2
    assert "a==9 cannot be installed" in err
    assert "no such version" in err
