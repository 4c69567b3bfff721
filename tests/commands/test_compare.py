"""`kernelgauge compare`: two revisions in turns, each in a working tree of its own, and judged by
each other.
"""

import math
import os
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kernelgauge import processes
from kernelgauge.judge import MEASUREMENT, Status, Verdict
from kernelgauge.judge.evidence import Detail, Failed
from kernelgauge.results import Results, read_results
from kernelgauge.run import Run
from tests import builders
from tests.builders import one_test
from tests.commands.conftest import (
    FIRST,
    SECOND,
    Command,
    Process,
    commit_all,
    commit_fixture_test,
    git,
    measured,
)


@pytest.fixture
def project(repository: Path) -> Path:
    """A repository whose `model.txt` says how long its workload takes; committed at 205 us."""
    (repository / "perf").mkdir()
    (repository / "perf" / "suite.txt").write_text("old")
    (repository / "model.txt").write_text("205")
    commit_all("first")
    return repository


@pytest.fixture
def compare(
    project: Path, process: Process, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> Command:
    process.noise = 0.0001
    # BASE first, and not by chance
    monkeypatch.setattr("random.Random.sample", lambda _, sides, k: list(sides))
    return partial(kernelgauge, "compare")


def worktrees() -> int:
    return len(git("worktree", "list").splitlines())


def test_unchanged_revision_passes_after_few_processes(compare: Command, process: Process) -> None:
    code, out, err = compare("HEAD", "--", "--perf-device", "cpu")
    assert (code, "PASS" in out, "processes of each side: 3 " in out) == (0, True, True)
    assert {tuple(each.arguments[-2:]) for each in process.seen} == {("--perf-device", "cpu")}
    *lines, last = err.splitlines()
    begun = [
        f"{side}: process {number} of at most 12"
        for number in "123"
        for side in ("HEAD", "the working tree")
    ]
    assert [each.removesuffix(", at most 0 s left") for each in lines] == begun
    assert last == "after process 3 of each side: 1 of 1 workloads decided"
    results = read_results(Path("reports/compare/results.json"))
    assert len(results.workloads[0].baseline.entries[0].processes) == 3  # type: ignore[union-attr]
    assert "traces/" not in out + Path("reports/compare/report.html").read_text()
    assert not process.baselines.exists()


def test_order_within_a_pair_is_drawn(compare: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([1, -1, -1])  # as it was drawn
    monkeypatch.setattr("random.Random.sample", lambda _, sides, k: list(sides)[:: next(turns)])
    sides = [line.partition(": process")[0] for line in compare("HEAD")[2].splitlines()[:-1]]
    assert sides == [
        "HEAD",
        "the working tree",
        "the working tree",
        "HEAD",
        "the working tree",
        "HEAD",
    ]


def test_time_left_is_that_of_the_processes_or_the_budget(
    compare: Command, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    # seconds
    monkeypatch.setattr("kernelgauge.processes.time.monotonic", lambda: 10.0 * len(process.seen))
    left = re.findall(r"at most (\d+) s left", compare("HEAD", "--processes", "2")[2])
    assert left == ["30", "20", "10"]  # of four processes
    process.seen.clear()
    assert "at most 15 s left" in compare("HEAD", "--budget", "25")[2]


def test_slower_working_tree_fails_and_stays_as_it_is(
    compare: Command, process: Process, project: Path
) -> None:
    (project / "model.txt").write_text("209")
    (project / "perf" / "suite.txt").write_text("new")
    code, out, _ = compare("HEAD", "-k", "mlp")
    assert (code, f"{FIRST}: REGRESSED  GPU time 205.0 -> 209.0 us" in out) == (1, True)
    # one suite for both
    assert {(each.model, each.suite) for each in process.seen} == {("205", "new"), ("209", "new")}
    assert {tuple(each.arguments) for each in process.seen} == {("perf", "-k", "mlp")}
    assert git("status", "--porcelain", "--untracked-files=no").split() == [
        "M",
        "model.txt",
        "M",
        "perf/suite.txt",
    ]
    assert worktrees() == 1
    assert not any(each.folder.exists() for each in process.seen if each.folder != project)


def test_github_shows_a_slower_revision_as_an_error(
    compare: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "model.txt").write_text("209")
    for variable, marks in (("GITHUB_ACTIONS", 1), (None, 0)):
        monkeypatch.setenv(variable, "true") if variable else monkeypatch.delenv("GITHUB_ACTIONS")
        out = compare("HEAD")[1]
        assert out.count("::error title=kernelgauge%3A ") == out.count("::") // 2 == marks


def test_two_revisions_are_told_apart_by_their_kernels(compare: Command, project: Path) -> None:
    (project / "model.txt").write_text("205 fewer")
    commit_all("second")
    (project / "model.txt").write_text("999")  # in the working tree, which is not asked for
    code, out, _ = compare("HEAD~1", "HEAD")
    assert (code, "kernels differ from HEAD~1" in out) == (1, True)
    err = compare("HEAD", "HEAD")[2].splitlines()
    assert len(set(err)) == len(err)


def test_comparison_goes_on_to_its_end_or_budget(
    compare: Command, process: Process, project: Path
) -> None:
    process.noise = 0.05
    _, out, err = compare("HEAD")
    assert "processes of each side: 12 " in out
    assert err.count(f"0 of 1 workloads decided; undecided: {FIRST} (GPU time)") == 3
    assert "processes of each side: 4 " in compare("HEAD", "--processes", "4")[1]
    assert "processes of each side: 1 " in compare("HEAD", "--budget", "0")[1]
    (project / "model.txt").write_text("205 fewer")  # which is exact
    assert "processes of each side: 3 " in compare("HEAD")[1]


def test_comparison_on_a_noisy_host_says_so_and_ends(compare: Command, process: Process) -> None:
    """Latencies of a CPU scatter by a factor of three. A quiet one beside them is decided."""
    cpu = builders.fingerprint(device="a CPU", arch="cpu", sm_count=None)
    rng = random.Random(20261130)

    def on_cpu(workload: str, spread: float) -> Run:
        us = 300.0 * math.exp(rng.gauss(0, spread))
        times = [us * math.exp(rng.gauss(0, spread)) for _ in range(4)]
        return measured(workload, device=None, end_to_end=times, machine=cpu, gpu=None)

    process.runs = [(on_cpu(FIRST, 1.0), on_cpu(SECOND, 0.01)) for _ in range(24)]
    _, out, err = compare("HEAD")
    too_noisy = (
        r"this host is too noisy to decide 1 workload: that takes \d+ processes of each side"
    )
    assert "processes of each side: 3 " in out
    first, *_ = (line for line in err.splitlines() if ": process " not in line)
    assert re.match(too_noisy, first)  # after one process of each side
    assert err.count("too noisy") == 1
    assert f"1 of 2 workloads decided; undecided: {FIRST} (end to end)" in err

    process.runs = [(on_cpu(FIRST, 0.15),) for _ in range(24)]
    _, out, err = compare("HEAD")
    assert not re.search(too_noisy, err)


def test_decided_workloads_are_not_measured_again(compare: Command, process: Process) -> None:
    """FIRST is decided after three processes of each side, and SECOND is too noisy."""
    noisy = [
        measured(SECOND, center=205 * (1 + 0.05 * (-1) ** (number // 3))) for number in range(1, 13)
    ]
    both = [(measured(place=number % 3), each) for number, each in enumerate(noisy[:6])]
    process.runs = [*both, *((each,) for each in noisy[6:])]
    times = [
        one_test("test_gpu_time", workload=name, subject="GPU time") for name in (FIRST, SECOND)
    ]
    latency = one_test("test_latency", workload=SECOND, subject="end to end")
    process.change = lambda results: replace(results, tests=(*times, latency))
    code, _, err = compare("HEAD", "--processes", "6")
    left_out = [f"--deselect={each.node}" for each in (times[0], latency)]
    assert [each.arguments[1:] for each in process.seen] == [[]] * 6 + [left_out] * 6
    assert (code, f"1 of 2 workloads decided; undecided: {SECOND} (GPU time)" in err) == (0, True)
    results = read_results(Path("reports/compare/results.json"))
    sizes = [len(each.baseline.entries[0].processes) for each in results.workloads]  # type: ignore[union-attr]
    assert ([each.id for each in results.workloads], sizes) == ([FIRST, SECOND], [3, 6])


def test_same_code_is_measured_once(compare: Command, process: Process) -> None:
    """FIRST is the same code in both, and of SECOND another function runs."""

    def runs(functions: str, latency_us: float = 300.0) -> tuple[Run, ...]:
        kernels = [replace(each, op="aten::mm") for each in measured().kernels]
        facts = {"kernels": tuple(kernels), "host_work": {"len": 2}}
        pairs = ((FIRST, "a"), (SECOND, functions))
        timed = partial(measured, end_to_end=[latency_us + each for each in range(4)])
        return tuple(replace(timed(name), functions=it, **facts) for name, it in pairs)

    pairs = [runs("a"), runs("b")], [runs("a")[1:], runs("b")[1:]] * 5
    process.runs = [each for several in pairs for each in several]
    tests = [
        one_test("test_gpu_time", workload=name, subject="GPU time") for name in (FIRST, SECOND)
    ]
    process.change = lambda results: replace(results, tests=tuple(tests))
    code, out, err = compare("HEAD", "--", "--perf-changed")
    assert code == 0, out
    assert "after process 1 of each side: 1 of 2 workloads decided" in err
    assert "2 of 4 times not compared: the same code" in out
    left_out = ["--perf-changed", f"--deselect={tests[0].node}"]
    assert [each.arguments[1:] for each in process.seen] == [["--perf-changed"]] * 2 + [
        left_out
    ] * 4
    # without the option, all is measured until it is decided
    process.seen.clear()
    process.runs = [runs("a")] * 6
    compare("HEAD")
    assert [each.arguments[1:] for each in process.seen] == [[]] * 6
    # and with it, a pair is enough for what is the same
    process.seen.clear()
    process.runs = [runs("a")] * 2
    _, out, _ = compare("HEAD", "--", "--perf-changed")
    assert len(process.seen) == 2
    assert "4 of 4 times not compared: the same code" in out
    # values may take longer, which no structure tells
    process.seen.clear()
    process.runs = [runs("a"), runs("a", 400.0)] * 6
    _, out, _ = compare("HEAD", "--", "--perf-changed")
    assert len(process.seen) > 2
    assert "not compared" not in out


def test_code_without_times_is_judged_by_its_structure(compare: Command, project: Path) -> None:
    for model, code, text in (("205", 0, "PASS"), ("205 fewer", 1, "kernels differ from HEAD")):
        (project / "model.txt").write_text(model)
        found, out, _ = compare("HEAD", "--", "-m", "not timing")
        assert (found, text in out, "processes of each side: 1 " in out) == (code, True, True)
    # in each replicate: it has no times, and this says why
    (project / "model.txt").write_text("205 recompiles")
    code, out, _ = compare("HEAD", "--processes", "3")
    texts = (
        "recompiles 0 -> ",
        "processes of each side: 3 ",
        "GPU time was not measured: other kernels",
    )
    assert (code, [text in out for text in texts]) == (1, [True] * 3)


def test_failed_or_interrupted_process_loses_no_verdicts(
    compare: Command, process: Process
) -> None:
    def lose_the_machine(results: Results) -> Results:
        process.is_machine_lost = len(process.seen) == 8
        return results

    process.noise, process.change = 0.05, lose_the_machine
    code, out, err = compare("HEAD")
    assert (code, "processes of each side: 4 " in out) == (2, True)
    assert "HEAD: a process that measures failed\n  got      ImportError" in err
    for after, text in ((1, ""), (7, "processes of each side: 3 ")):
        process.seen, process.after, process.is_machine_lost = [], after, False
        code, out, _ = compare("HEAD")
        assert (code, text in out, "processes of" in out, worktrees()) == (130, True, bool(text), 1)


def test_comparison_that_is_interrupted_says_so(compare: Command, process: Process) -> None:
    assert "CUT SHORT" not in compare("HEAD")[1]
    for after, said in ((1, "there are no verdicts"), (3, "CUT SHORT: ")):
        process.seen, process.after = [], after
        assert said in "".join(compare("HEAD")[1:])
    results = read_results(Path("reports/compare/results.json"))
    assert results.was_cut_short
    assert "**CUT SHORT**" in Path("reports/compare/report.md").read_text()


def test_spoilt_times_of_one_side_leave_the_others(compare: Command, process: Process) -> None:
    spoilt = measured(device=None, incomplete="the machine was disturbed")
    process.runs = [(measured(),)] * 4 + [(spoilt,), (measured(),)]
    code, out, _ = compare("HEAD", "--processes", "3")
    assert (code, "PASS" in out, "processes of each side: 3 " in out) == (0, True, True)


def test_times_of_fixture_tests_are_measured_until_decided(
    compare: Command, process: Process
) -> None:
    """One test has all times of its workload: none of them is left out while another is undecided."""
    noisy = [measured(center=205 * (1 + 0.05 * (-1) ** (number // 2))) for number in range(8)]
    process.runs = [(each,) for each in noisy]
    test = one_test("test_mlp", subject="end to end")
    process.change = lambda results: replace(
        results, tests=(replace(test, node="test_ops.py::test_mlp", workload=FIRST),)
    )
    compare("HEAD", "--processes", "4")
    assert [each.arguments for each in process.seen] == [["perf"]] * 8


def test_budget_ends_a_pair(
    compare: Command, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process takes 10 s: the budget is over in the middle of the third pair."""
    process.noise = 0.05
    monkeypatch.setattr("kernelgauge.cli.compare.time.monotonic", lambda: 10.0 * len(process.seen))
    assert "processes of each side: 2 " in compare("HEAD", "--budget", "45")[1]
    assert len(process.seen) == 5


def test_revision_that_hangs_ends_the_comparison(
    repository: Path, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LEAST_OF_BUDGET_S", 3.0)
    monkeypatch.setattr("random.Random.sample", lambda _, sides, k: list(sides))
    commit_fixture_test("Hang", "import time\nwhile True:\n    time.sleep(1)")
    code, _, err = kernelgauge("compare", "HEAD", "--budget", "1")
    assert (
        code,
        "HEAD: a process that measures hangs: it said nothing for 3 s" in err,
        worktrees(),
    ) == (2, True, 1)


def failing(results: Results, **why: Any) -> Results:
    boom = (Detail("got", "RuntimeError: boom"),)
    invalid = Verdict(Status.INVALID, FIRST, MEASUREMENT, Failed("running failed"), boom)
    return replace(
        results,
        workloads=(replace(results.workloads[0], run=None, **(why or {"verdicts": (invalid,)})),),
    )


@pytest.mark.parametrize(
    ("first", "why", "said"),
    [
        (2, {"unavailable": "no RuntimeError: boom"}, "the working tree could not be measured"),
        (2, {}, "the working tree could not be measured"),  # more processes would fail as well
        (6, {}, "the working tree could not be measured in every process"),
    ],
)
def test_workload_that_fails_says_why(
    compare: Command, process: Process, first: int, why: Any, said: str
) -> None:
    process.change = lambda results: (
        failing(results, **why) if len(process.seen) == first else results
    )
    code, out, _ = compare("HEAD", "--processes", "3")
    assert (code, said in out, "RuntimeError: boom" in out, len(process.seen)) == (
        1,
        True,
        True,
        first,
    )


@pytest.mark.parametrize(
    ("known", "status", "code"), [((), "INVALID", 1), (("old",), "NO_BASELINE", 0)]
)
def test_new_workload_fails_if_nothing_else_is_compared(
    compare: Command, process: Process, known: tuple[str, ...], status: str, code: int
) -> None:
    def without_new(results: Results) -> Results:
        if process.seen[-1].folder == Path.cwd():
            return results
        kept = [each for each in results.workloads if each.id in known]
        return replace(results, workloads=tuple(kept), tests=())

    names = (FIRST, *known)
    process.runs = [
        tuple(measured(each, place=number // 2) for each in names) for number in range(6)
    ]
    process.change = without_new
    found, out, _ = compare("HEAD", "--processes", "3")
    said = f"{FIRST}: {status}  nothing to compare with: HEAD has no such workload, or fails"
    assert (found, said in out) == (code, True), out


def test_workload_that_ran_in_base_alone_fails(compare: Command, process: Process) -> None:
    process.runs = [(measured(), measured(SECOND)), (measured(),)] * 3
    code, out, _ = compare("HEAD", "--processes", "3")
    assert (code, f"{SECOND}: INVALID  the working tree could not be measured" in out) == (1, True)


def test_comparison_of_nothing_fails(compare: Command, process: Process) -> None:
    lost = {"run": None, "verdicts": (), "unavailable": "no GPU"}
    process.change = lambda each: replace(
        each, workloads=tuple(replace(it, **lost) for it in each.workloads)
    )
    code, out, _ = compare("HEAD", "--processes", "3")
    assert (code, "nothing to compare: no workload ran in HEAD" in out) == (1, True), out


def test_test_of_another_id_in_base_is_the_same(compare: Command, process: Process) -> None:
    """A test file moved, and the id of its copy in BASE tells it from the one that is still there."""
    process.runs = [
        (measured(f"perf-{FIRST}" if number % 2 == 0 else FIRST),) for number in range(6)
    ]
    test = one_test("test_mlp", subject="end to end")
    process.change = lambda results: replace(
        results, tests=(replace(test, workload=results.workloads[0].id),)
    )
    code, out, _ = compare("HEAD", "--processes", "3")
    assert (code, FIRST in out, f"perf-{FIRST}" in out, "PASS" in out) == (0, True, False, True), (
        out
    )


def test_base_of_which_nothing_runs_is_no_comparison(compare: Command, process: Process) -> None:
    """Each change would pass beside a base that is broken."""
    process.change = lambda each: each if process.seen[-1].folder == Path.cwd() else failing(each)
    code, out, _ = compare("HEAD", "--processes", "3")
    assert (code, "HEAD could not be measured" in out, "boom" in out) == (1, True, True), out


def test_unwritable_reports_lose_no_verdict(compare: Command, project: Path) -> None:
    (project / "model.txt").write_text("209")
    (project / "reports").write_text("a file")
    code, out, err = compare("HEAD", "--processes", "3")
    assert (code, "REGRESSED" in out, "cannot write" in err) == (2, True, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "a shallow clone lacks old ones: git fetch --unshallow"),
        (["HEAD", "perf"], "--suite perf   (it is a path here, and not a revision)"),
        (["HEAD", "--suite", "absent"], "--suite PATH names it (default: perf)"),
        (["HEAD", "--budget", "nan"], "got nan, expected"),
        (["HEAD", "--processes", "0"], "got 0, expected"),
    ],
)
def test_wrong_arguments_measure_nothing(
    compare: Command, process: Process, arguments: list[str], text: str
) -> None:
    code, _, err = compare(*arguments)
    assert (code, process.seen, worktrees()) == (2, [], 1)
    assert text in err


def test_suite_outside_of_the_worktree_is_refused(
    compare: Command, process: Process, project: Path
) -> None:
    """Nothing there is replaced; and with "." both sides would have the code of HEAD."""
    (project / "outside" / "perf").mkdir(parents=True)
    (project / "link").symlink_to(project / "outside")
    commit_all("link")
    mine = [project / "outside" / "perf" / "suite.txt", project / "perf" / "untracked.txt"]
    for path in mine:
        path.write_text("mine")
    for suite in (".", "..", str(project / "perf"), "link/perf"):
        code, _, err = compare("HEAD", "--suite", suite)
        assert (code, process.seen, "outside of the working tree" in err) == (2, [], True)
    assert [path.read_text() for path in mine] == ["mine", "mine"]


def test_worktrees_of_others_are_not_forgotten(
    compare: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = tmp_path_factory.mktemp("disk") / "tree"
    git("worktree", "add", str(disk), "-b", "other")
    disk.rename(disk.with_name("not mounted"))
    assert (compare("HEAD", "--suite", "perf/suite.txt")[0], worktrees()) == (0, 2)


def test_base_alone_has_the_packages_of_with(
    compare: Command, process: Process, tmp_path: Path
) -> None:
    pip = tmp_path / "python"  # the last arguments are the folder and the requirement
    pip.write_text('#!/bin/sh\nmkdir -p "$8"\nprintf %s "$9" > "$8/installed.txt"\n')
    pip.chmod(0o755)
    assert (
        compare("HEAD", "--with", "a==1", "--with", "b==2", "--base-python", os.path.relpath(pip))[
            0
        ]
        == 0
    )
    assert [each.packages for each in process.seen[:4]] == [["a==1", "b==2"], []] * 2
    assert [each.python for each in process.seen[:2]] == [str(pip), None]
    pip.write_text("#!/bin/sh\necho no such version >&2\nexit 1\n")
    code, _, err = compare("HEAD", "--with", "a==9", "--base-python", str(pip))
    assert (code, "a==9 cannot be installed" in err, "no such version" in err) == (2, True, True)
