"""Each command that is printed selects and measures what the run did whose output it stands in: it
is pasted and run.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelgauge.judge import Status
from kernelgauge.results import read_results
from tests.commands.conftest import Command
from tests.plugin.inner_project import ID, LINEAR, TESTS, Project, fake, text_of

pytestmark = pytest.mark.timeout(300)

TEST = """
import os
import pytest, torch

def block(x):
    return x.softmax(-1) if "FAULT" not in os.environ else (x - x.amax(-1, keepdim=True)).exp() / 3

@pytest.mark.slow
@pytest.mark.parametrize("name", ["../x"])
def test_block(FIXTURE, name):
    FIXTURE(block, torch.randn(64, 64))

@pytest.mark.slow
@pytest.mark.kernelgauge(timing=False)
def test_block_again(FIXTURE):
    FIXTURE(torch.relu, torch.randn(8))

def test_other(FIXTURE):
    FIXTURE(torch.relu, torch.randn(9))
"""
INI = "[pytest]\nmarkers = slow: slow\naddopts = -m 'not slow'\nkernelgauge_replicates = 2\n"
Paste = Callable[[str], str]


@pytest.fixture
def paste(
    pytester: pytest.Pytester, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> Paste:
    """Run a command line that was printed, as a shell would. Return its output."""
    monkeypatch.setenv("COLUMNS", "400")  # a command of kernelgauge wraps its lines

    def run(command: str) -> str:
        name, *arguments = shlex.split(command)
        if name == "kernelgauge":
            return kernelgauge(*arguments)[1]
        assert name == "pytest"
        return text_of(pytester.runpytest_inprocess(*arguments))

    return run


def commands(said: str, before: str) -> list[str]:
    """Return the commands behind a text, each once, without what is said of them in parentheses."""
    found = re.findall(rf"{before} *((?:pytest|kernelgauge) .*?)(?:   \(.*)?$", said, re.MULTILINE)
    return list(dict.fromkeys(found))


BENCHMARKS = "ops --perf-device cpu --perf-benchmark -o python_files=x_*.py -p no:randomly"
ARGUMENTS = {  # the fixture, the root of the project, the file, and what pytest is given
    "fixture": (
        "kernelgauge",
        ".",
        "test_x.py",
        "test_x.py --perf-device=cpu -o kernelgauge_reports=out",
    ),
    "benchmark": ("benchmark", ".", "ops/x_x.py", BENCHMARKS),
    "root below": (
        "kernelgauge",
        "ops",
        "ops/test_x.py",
        "ops/test_x.py -pno:randomly -okernelgauge_baselines=../b",
    ),
}


@pytest.mark.parametrize(
    ("fixture", "root", "file", "given"), ARGUMENTS.values(), ids=list(ARGUMENTS)
)
def test_command_of_a_test_function_does_what_it_says(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    paste: Paste,
    fixture: str,
    root: str,
    file: str,
    given: str,
) -> None:
    (pytester.path / "ops").mkdir()
    (pytester.path / file).write_text(TEST.replace("FIXTURE", fixture))
    (pytester.path / root / "pytest.ini").write_text(INI)
    results = (
        pytester.path / root / ("out" if "out" in given else "reports") / "latest" / "results.json"
    )

    def measured() -> dict[str, tuple[Status | None, int]]:
        found = read_results(results).workloads
        return {each.id: (each.status, len(each.run.samples) if each.run else 0) for each in found}

    block, again = (f"{Path(file).stem}-test_block{part}" for part in ("-x", "_again"))
    one, other, both = commands(paste(f"pytest {given} -m slow"), "record one with:")
    assert "1 written" in paste(one)
    assert list(measured()) == [block]
    assert "1 written" in paste(other)
    assert list(measured()) == [again]
    assert "NO_BASELINE" not in paste(both)  # it finds those of the first two
    assert {name: times for name, (_, times) in measured().items()} == {block: 2, again: 0}

    monkeypatch.setenv("FAULT", "1")
    said = paste(f"pytest {given} -m 'slow and not timing'")
    assert measured() == {block: (Status.REGRESSED, 0), again: (Status.PASS, 0)}
    (measure,), (accept,) = commands(said, "^  accept"), commands(said, "^ {11}")
    (remeasure,) = commands(paste(accept), "on a quiet machine:")  # it refuses what has no times
    for command in (measure, remeasure):
        paste(command)
        assert [(name, times) for name, (_, times) in measured().items()] == [(block, 2)]
    assert "1 written" in paste(accept)
    assert "2 passed" in paste(f"pytest {given} -m 'slow and not timing'")


@pytest.mark.parametrize(
    ("given", "repeated"),
    [
        ("", ""),
        ("-m structure", ""),
        ("-m 'ours and not timing'", "-m ours"),
        ("-m 'not (timing or theirs)'", ""),
        (
            "-m 'ours or theirs' --perf-compile --perf-matrix=full",
            "-m 'ours or theirs' --perf-compile --perf-matrix full",
        ),
        ("-k mlp -x --perf-strict", ""),
        (
            "--import-mode=prepend --rootdir . -c tox.ini",
            "--import-mode prepend --rootdir . -c tox.ini",
        ),
    ],
)
def test_command_of_a_suite_repeats_what_selects_and_measures(
    project: Project, paste: Paste, given: str, repeated: str
) -> None:
    (project.root / "tox.ini").write_text("[pytest]\nmarkers =\n    ours\n    theirs\n")
    project.write("test_perf.py", f"{TESTS}\npytestmark = pytest.mark.ours")
    *_, command = commands(paste(f"pytest perf {given}"), "record one with:")
    assert command == " ".join(filter(None, ["pytest perf", repeated, "--perf-update"]))
    assert "1 written" in paste(command)
    project.set(fake(gelu_us=9.0))
    said = paste("pytest perf --perf-no-confirm -o kernelgauge_reports=out")
    assert "1 written" in paste(commands(said, "^  accept")[0])
    assert paste("pytest perf").count(" PASS") == 1  # in the table


def test_calibration_of_an_unclear_time_is_of_its_workload(project: Project, paste: Paste) -> None:
    project.set(fake(noise=0.1), fake("linear"))
    project.record()
    said = paste(
        "pytest perf -p kernelgauge.plugin -o 'kernelgauge_sensitivity=device_time = 0.01 %'"
    )
    command, *_ = commands(said, "next")
    said = paste(command.replace("calibrate", "calibrate --processes 2"))
    assert "1 written" in said
    assert (ID in said) is not (LINEAR in said)


def test_marks_of_a_file_are_overruled_by_a_command_that_measures(
    project: Project, paste: Paste
) -> None:
    project.write(
        "pytest.ini", "[pytest]\naddopts = -m 'not timing'\nkernelgauge_baselines=../baselines\n"
    )
    *_, command = commands(paste("pytest perf"), "record one with:")
    assert command == "pytest perf -m '' --perf-update"
    assert "1 written" in paste(command)


def test_update_under_ci_names_the_whole_command(
    project: Project, monkeypatch: pytest.MonkeyPatch, paste: Paste
) -> None:
    monkeypatch.setenv("CI", "1")
    said = paste("pytest perf --perf-update -o kernelgauge_baselines=there --perf-benchmark")
    (command,) = commands(said, "next")
    assert "1 written to there/test-gpu" in paste(command)


def test_several_changes_are_reviewed_where_the_reports_are(project: Project, paste: Paste) -> None:
    project.set(fake(), fake("linear"))
    project.record()
    project.set(fake(gelu_us=9.0), fake("linear", gelu_us=9.0))
    paste("pytest perf --perf-no-confirm -o kernelgauge_reports=out")
    command, *_ = commands((project.root / "out" / "latest" / "report.md").read_text(), "^")
    assert command == "kernelgauge review out/latest"
    assert all(name in paste(command) for name in (ID, LINEAR))


def test_baseline_of_another_number_of_threads_is_named(project: Project, paste: Paste) -> None:
    project.set(fake(), arch="cpu", device="CPU AMD EPYC, 1 threads")
    project.record()
    project.set(fake(), arch="cpu", device="CPU AMD EPYC, 16 threads")
    said = paste("pytest perf")
    assert (
        "in baselines/cpu-amd-epyc-16-threads/; baselines/cpu-amd-epyc-1-threads has one: OMP_NUM_THREADS=1;"
        in said
    )
    project.set(fake(), arch="cpu", device="CPU AMD EPYC 7, 16 threads")  # another CPU
    assert "has one" not in paste("pytest perf")
