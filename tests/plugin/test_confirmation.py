"""A time that looks slower is measured in a fresh process before its test fails."""

import json
from typing import Any

import pytest

from kernelgauge.errors import MeasurementError
from kernelgauge.judge import TIME_LABELS
from kernelgauge.processes import run_process
from tests.plugin.inner_project import COMPILED, ID, VERDICT, Project, fake, text_of

NO_TIME = "*no fresh process confirms it: it did not measure this time"
UNCONFIRMED = "*a fresh process does not confirm it: 9.0 us  -10.00 %*"


@pytest.mark.parametrize(
    ("changes", "options", "verdict", "lines"),
    [
        (
            {},
            "",
            "REGRESSED",
            ["  fresh    a fresh process confirms it: 11.5 us  +15.00 %*", NO_TIME],
        ),
        (
            {"fresh_gelu_us": 3.0},
            "--perf-strict",
            "NOT_JUDGED",
            ["*10.0 -> 11.5 us, not judged:*", UNCONFIRMED],
        ),
        (
            {"fresh_error": True},
            "",
            "REGRESSED",
            ["*no fresh process confirms it: the fake error: a fake"],
        ),
        (
            {"fresh_kernel": "another"},
            "",
            "REGRESSED",
            ["*no fresh process confirms it: it ran other kernels*"],
        ),
        ({}, "--perf-no-confirm", "REGRESSED", []),
        # which explains the time
        ({"counts": {"dispatcher_ops": 7}, "fresh_gelu_us": 4.0}, "", "REGRESSED", []),
    ],
)
def test_slower_time_is_measured_in_a_fresh_process(
    project: Project, changes: dict[str, Any], options: str, verdict: str, lines: list[str]
) -> None:
    project.record()
    project.set(fake(gelu_us=5.5, host_us=200.0, **changes))  # two times: one process
    result = project.run(*options.split())
    assert (project.verdicts()["device"], project.verdicts()["host"]) == (verdict, "REGRESSED")
    assert project.afresh() == ([ID] if lines else [])
    assert ("looks slower: measuring in a fresh process" in text_of(result)) == bool(lines)
    assert project.case("test_device_time").outcome == (
        "failure" if verdict == "REGRESSED" else "skipped"
    )
    result.stdout.fnmatch_lines(lines)


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"host_us": 60.0}, "host"),
        ({"host_us": 60.0, "counts": {"dispatcher_ops": 4}}, "host"),
        ({"gelu_us": 3.0}, "device"),
    ],
)
def test_faster_clock_of_the_same_code_is_not_to_be_accepted(
    project: Project, changes: dict[str, Any], subject: str
) -> None:
    project.record()
    project.set(fake(**changes))
    said = text_of(project.run())
    assert project.verdicts()[subject] == "IMPROVED"
    assert ("kernelgauge accept" in said) == (changes != {"host_us": 60.0}), said


def test_time_of_a_cpus_ops_is_shown_and_not_judged(project: Project) -> None:
    cpu: dict[str, Any] = {"arch": "cpu", "device": "CPU AMD EPYC, 1 threads"}
    project.set(fake(), **cpu)
    project.record()
    project.set(fake(gelu_us=55.0), **cpu)
    result = project.run()
    assert (project.case("test_device_time").outcome, project.afresh()) == ("skipped", [])
    assert [each.subject for each in project.results().verdicts if each.subject in TIME_LABELS] == [
        "end to end"
    ]
    result.stdout.re_match_lines([rf"{ID} +\d+ +200.9 +200.9 +-0.0 % +PASS"])  # latency


RATIO = "from kernelgauge.standard import test_faster_than_other_variant\n"


def test_ratio_is_judged_without_a_baseline(project: Project) -> None:
    project.write("test_perf.py", RATIO)
    fast = fake(variant="compiled", gelu_us=3.0, faster_than="eager", by=0.05)
    project.set(fake(faster_than="compiled"), fast, fake("linear"))  # which has no such test
    project.run()
    slow, fast = project.cases()
    assert (slow.outcome, slow.properties[VERDICT]) == ("failure", "REGRESSED")
    assert "not faster than compiled: GPU time" in slow.message
    assert (fast.parameters, fast.outcome, fast.properties[VERDICT]) == (COMPILED, "passed", "PASS")


def test_unconfirmed_time_is_shown_and_fails_nothing(project: Project) -> None:
    project.write("test_ratio.py", RATIO)
    other = fake(variant="compiled", gelu_us=9.0)
    project.set(fake(), other)
    project.record()
    project.set(fake(gelu_us=5.5, fresh_gelu_us=4.0, faster_than="compiled"), other)
    result = project.run("--perf-strict")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [f"{ID} *PASS *time not confirmed", f"{ID}: NOT_JUDGED*10.0 -> 11.5 us*"]
    )
    # -rA repeats it
    assert sum("does not confirm it: 10.0 us" in line for line in result.outlines) == 2
    assert "kernelgauge accept" not in text_of(result)  # a slower baseline would hide the next one
    assert (
        "1 slower time not confirmed by a fresh process"
        in (project.latest / "report.md").read_text()
    )


INI = "[pytest]\naddopts = -p no:cacheprovider --junitxml=ini.xml\n"
CHILD = """
import os, sys
run_process = None  # a real one
if "--perf-calibrate" in str(sys.argv):
    FAKES[WORKLOADS[0].id]["run"] = FAKES[WORKLOADS[0].id]["fresh"]
    (FOLDER / "child.json").write_text(json.dumps([sys.argv, dict(os.environ)]))
"""


def test_fresh_process_uses_the_gpu_of_its_parent(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for the lock for an hour, and overwrite files."""
    project.pytester.makeini(INI)
    project.record()
    project.add_to_conftest(CHILD)
    project.set(fake(gelu_us=5.5, fresh_gelu_us=4.0))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest --maxfail=9")
    result = project.run("-k", "mlp", "-x", "--perf-matrix=full")
    assert project.verdicts()["device"] == "NOT_JUDGED", text_of(result)  # of the parent's own file
    arguments, environment = json.loads((project.root / "perf" / "child.json").read_text())
    assert {"--perf-matrix=full", "addopts=", "no:hypothesispytest"} <= {*arguments}
    assert not {"-x", "-k", "--maxfail=9"} & {*arguments}
    assert environment["PYTEST_ADDOPTS"] == ""
    assert environment["KERNELGAUGE_HELD"].endswith("kernelgauge-gpu-one.lock")
    assert len(project.measured()) == 3  # the record, the run, and its one fresh process


def test_process_that_hangs_is_killed(project: Project) -> None:
    project.add_to_conftest("\ntime.sleep(600)\n")
    with pytest.raises(MeasurementError, match="it said nothing for 2 s"):
        run_process(["perf", "-p", "kernelgauge.plugin"], patience_s=2.0)
