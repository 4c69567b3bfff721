"""--perf-update: what it stores, leaves alone and refuses, and the command that a failure proposes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.errors import StorageError
from tests.plugin.inner_project import COMPILED, ID, LINEAR, VERDICT, Project, fake

THREE = (fake(), fake(variant="compiled"), fake("linear"))


def accept_command(result: pytest.RunResult) -> str:
    """Return the command that a failure proposes."""
    line = next(line for line in result.outlines if line.startswith("  accept "))
    return line.removeprefix("  accept ").strip()


def changed(project: Project, before: dict[str, bytes]) -> set[str]:
    return {name for name, content in project.stored().items() if before.get(name) != content}


def test_update_writes_what_changed_and_nothing_else(project: Project) -> None:
    project.set(*THREE)
    result = project.record()
    assert set(project.stored()) == {ID, COMPILED, LINEAR}
    result.stdout.fnmatch_lines(["*create*linear-eager*", "3 written to baselines/test-gpu"])
    before = project.stored()
    project.set(fake(gelu_us=5.5), fake(variant="compiled", gelu_us=4.02), fake("linear"))
    result = project.record()
    assert changed(project, before) == {ID}
    update = f"update*{ID}*GPU time 10.0 -> 11.5 us  +15.00 %*"
    result.stdout.fnmatch_lines(["keep *", "*unchanged within noise*", update])
    result.stdout.fnmatch_lines(["1 written to *"])
    assert project.confirmed() == []  # what is accepted as it is needs no confirmation
    assert project.run().ret == pytest.ExitCode.OK


def test_update_of_a_selection_keeps_the_rest(project: Project) -> None:
    project.set(*THREE, fake("conv", matrix="full"), fake("gone"))
    project.record("--perf-matrix", "full")
    before = project.stored()
    slower = (fake(gelu_us=9.0), fake(variant="compiled", gelu_us=9.0), fake("linear", gelu_us=9.0))
    project.set(*slower, fake("conv", matrix="full"))
    project.record("-k", "linear")
    project.run("--perf-update", suite=f"perf/test_perf.py::test_device_time[{LINEAR}]")
    assert changed(project, before) == {LINEAR}
    project.record()  # a baseline that is declared no more stays
    assert set(project.stored()) == set(before)
    assert changed(project, before) == {ID, COMPILED, LINEAR}


def test_update_refuses_what_is_not_sound(project: Project) -> None:
    faults: dict[str, dict[str, Any]] = {
        "fine": {"gelu_us": 9.0},
        "claim": {"gelu_us": 9.0, "counts": {"graph_breaks": 1}},
        "failed": {"error": "measurement"},
        "newer": {},
        "throttled": {},
        "lost": {"incomplete": "the GPU no longer answers"},
    }
    ids = {name: f"{name}-eager-bf16-4x8" for name in faults}
    project.set(*(fake(name) for name in faults if name != "lost"))
    project.record()
    newer = project.baselines / f"{ids['newer']}.json"
    newer.write_bytes(b'{"schema_version": 99}')
    before = project.stored()
    project.edit_baseline(ids["throttled"], fingerprint={"power_limit_watts": 350.0})
    project.set(*(fake(name, **fields) for name, fields in faults.items()))
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        [
            "not stored: claim-*: test_kernels_and_graphs_are_as_declared*failed",
            "not stored: lost-*",
            "mend what failed, or measure it again on a quiet machine, or store it as it is: kernelgauge accept --force",
            "*written by a newer version of kernelgauge; pip install --upgrade kernelgauge",
        ]
    )
    written = changed(project, before)
    assert {ids["fine"]} <= written <= {ids["fine"], ids["throttled"]}
    good, stored = (json.loads(each[ids["throttled"]]) | {"recorded": 0} for each in (before, project.stored()))
    assert stored == good


def test_baseline_of_another_suite_is_not_shared(project: Project) -> None:
    """A suite that was moved is another matter: its old folder is gone."""
    project.record()
    project.edit_baseline(ID, suite="other/perf")
    assert project.run().ret == pytest.ExitCode.OK
    (project.root / "other" / "perf").mkdir(parents=True)
    (project.root / "other" / "perf" / "conftest.py").write_text("")
    before = project.stored()
    for arguments in ((), ("--perf-update",)):
        result = project.run(*arguments)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        both = f"*{ID} in other/perf, which recorded it, and in perf"
        result.stdout.fnmatch_lines(["*two suites share this baseline*", both])
    assert project.stored() == before


def test_impossible_time_is_refused_named_and_replaced(project: Project) -> None:
    project.set(fake(gelu_us=20_000.0))
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"not stored: {ID}: GPU time cannot be: 20006.0 us cannot be a part of a call*"])
    assert project.stored() == {}
    assert project.run_command("kernelgauge accept --force").ret == pytest.ExitCode.OK
    project.set(fake())
    assert project.run().ret == pytest.ExitCode.OK
    assert project.case("test_device_time").properties[VERDICT] == "NOT_JUDGED"
    project.record()
    project.run()
    assert project.case("test_device_time").properties[VERDICT] == "PASS"


def test_plan_is_shown_before_anything_is_written(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(BaselineStore, "apply", refuse)
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*baselines: what changes*", f"*create*{ID}*", "the disk is full"])
    assert project.stored() == {}
    assert project.results().exit_status == 1


def test_update_under_ci_needs_force(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    text = project.refuse("--perf-update")
    assert "refused under CI" in text
    assert "--perf-update=force" in text
    assert not (project.root / "baselines").exists()
    assert project.run("--perf-update=force").ret == pytest.ExitCode.OK
    assert set(project.stored()) == {ID}


def test_update_of_too_few_tests_stores_nothing(project: Project) -> None:
    project.write("test_other.py", "def test_other(workload):\n    pass\n")
    missing = f"not stored: {ID}: end to end was not measured (was its test deselected[?])"
    for name, lines in (("test_other", []), ("device_time", [missing])):
        result = project.run("--perf-update", "-k", name)
        assert result.ret != pytest.ExitCode.OK
        result.stdout.fnmatch_lines([*lines, "*nothing to store*"])
        assert project.stored() == {}


def test_update_cut_short_writes_nothing(project: Project) -> None:
    project.record()
    before = project.stored()
    project.set(fake(gelu_us=9.0), fake(variant="compiled"))
    project.write("test_zz.py", "def test_interrupts():\n    raise KeyboardInterrupt\n")
    result = project.run("--perf-update", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert project.stored() == before
    result.stdout.fnmatch_lines(["*cut short: no baseline was written*"])


def test_leftovers_that_stay_are_a_usage_error(project: Project) -> None:
    project.latest.mkdir(parents=True)
    (project.latest / "traces").symlink_to(project.latest)
    assert re.search("(?s)cannot remove what another run has left.*where .*traces", project.refuse())


@pytest.mark.parametrize(("folder", "arguments"), [("reports", ()), ("baselines", ("--perf-update",))])
def test_unwritable_folder_is_a_usage_error(project: Project, folder: str, arguments: tuple[str, ...]) -> None:
    (project.root / folder).write_text("a file where the folder should be")
    assert re.search(rf"(?s)cannot write.*where .*{folder}", project.refuse(*arguments))


ELSEWHERE = ("-o", "kernelgauge_baselines=elsewhere/stored", "-o", "kernelgauge_reports=elsewhere/reports")


@pytest.mark.parametrize(
    ("suite", "arguments"),
    [(f"perf/test_perf.py::test_device_time[{ID}]", ()), ("perf", ("--perf-matrix", "full", *ELSEWHERE))],
    ids=["test", "options"],
)
def test_proposed_command_accepts_that_workload_only(project: Project, suite: str, arguments: tuple[str, ...]) -> None:
    matrix = "full" if arguments else "default"
    others = (f"{ID}0", f"gated-{ID}")
    for gelu_us in (4.0, 5.5):
        fields: dict[str, Any] = {"gelu_us": gelu_us, "matrix": matrix}
        project.set(fake(**fields), fake(shape=(4, 80), **fields), fake("gated-mlp", **fields))
        if gelu_us == 4.0:
            project.record(*arguments)
    folder = project.root / ("elsewhere/stored" if arguments else "baselines") / "test-gpu"
    before = [(folder / f"{other}.json").read_bytes() for other in others]
    failed = project.run(*arguments, suite=suite)
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    if arguments:
        assert (project.root / "elsewhere" / "reports" / "latest" / "traces" / f"{ID}.txt").exists()
        assert not {"baselines", "reports"} & {path.name for path in project.root.iterdir()}
    accepted = project.run_command(accept_command(failed))
    if "::" in suite:  # the other times were not measured: the refusal says how to go on
        (line,) = (line for line in accepted.outlines if line.startswith("to measure it again"))
        project.run_command(line.partition(": ")[2])
        accepted = project.run_command(accept_command(failed))
    assert accepted.ret == pytest.ExitCode.OK
    assert project.run("-k", f"[{ID}]", *arguments, suite=suite).ret == pytest.ExitCode.OK
    assert [(folder / f"{other}.json").read_bytes() for other in others] == before


def test_failure_without_times_proposes_to_measure_first(project: Project) -> None:
    project.record()
    project.set(fake(counts={"synchronizations": 1}))
    failed = project.run("-m", "structure")
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    measure, accept = f"pytest perf -k {ID}", f"kernelgauge accept -k {ID}"
    failed.stdout.fnmatch_lines([f"  accept   {measure}   (measures its times too)", f"  {'':8} {accept}"])
    assert f"{measure}; {accept}" in (project.latest / "report.md").read_text()
    project.run_command(measure)
    assert project.run_command(accept).ret == pytest.ExitCode.OK
    assert project.run().ret == pytest.ExitCode.OK
