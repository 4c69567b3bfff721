"""--perf-update: what is stored, what is left alone, what refuses, and the command that a failure proposes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.errors import StorageError
from tests.plugin.inner_project import ID, VERDICT, Project, told

COMPILED, LINEAR = "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"
THREE = (told(), told(variant="compiled"), told("linear"))


def accept_command(result: pytest.RunResult) -> str:
    """Return the command that a failure proposes."""
    line = next(line for line in result.outlines if line.startswith("  accept "))
    return line.removeprefix("  accept ").strip()


def changed(project: Project, before: dict[str, bytes]) -> set[str]:
    return {name for name, content in project.stored().items() if before[name] != content}


def test_update_writes_what_changed_and_nothing_else(project: Project) -> None:
    project.tell(*THREE)
    result = project.record()
    assert set(project.stored()) == {ID, COMPILED, LINEAR}
    result.stdout.fnmatch_lines(["*create*linear-eager*", "3 written to baselines/told-gpu"])
    before = project.stored()
    project.tell(told(gelu_us=5.5), told(variant="compiled", gelu_us=4.02), told("linear"))
    result = project.record()
    assert changed(project, before) == {ID}
    result.stdout.fnmatch_lines(
        ["keep *", "*unchanged within noise*", f"update*{ID}*GPU time 10.0 -> 11.5 us  +15.00 %*"]
    )
    result.stdout.fnmatch_lines(["1 written to *"])
    assert project.confirmed() == []  # what is accepted as it is needs no confirmation
    assert project.run().ret == pytest.ExitCode.OK


def test_update_of_a_selection_keeps_the_rest(project: Project) -> None:
    project.tell(*THREE, told("conv", matrix="full"), told("gone"), told("other"))
    project.record("--perf-matrix", "full")
    project.edit_baseline("other-eager-bf16-4x8", suite="elsewhere/perf")
    before = project.stored()
    project.tell(*(told(each["module"], each["variant"], gelu_us=9.0) for each in THREE), told("conv", matrix="full"))
    project.record("-k", "linear")
    project.run("--perf-update", suite=f"perf/test_perf.py::test_device_time[{LINEAR}]")
    assert set(project.stored()) == set(before)
    assert changed(project, before) == {LINEAR}
    project.record()  # a baseline that is declared no more stays
    assert set(project.stored()) == set(before)
    assert changed(project, before) == {ID, COMPILED, LINEAR}


def test_update_refuses_what_is_not_sound(project: Project) -> None:
    names = ["fine", "claim", "failed", "newer", "lost", "throttled"]
    project.tell(*(told(name) for name in names if name != "lost"))
    project.record()
    before = project.stored()
    paths = {name: project.baselines / f"{name}-eager-bf16-4x8.json" for name in names}
    newer = b'{"schema_version": 99}'
    paths["newer"].write_bytes(newer)
    project.edit_fingerprint("throttled-eager-bf16-4x8", power_limit_watts=350.0)
    faults = {
        "fine": {"gelu_us": 9.0},
        "claim": {"gelu_us": 9.0, "counts": {"graph_breaks": 1}},
        "failed": {"error": "measurement"},
        "lost": {"incomplete": "the GPU no longer answers"},
    }
    project.tell(*(told(name, **faults.get(name, {})) for name in names))
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
    assert not paths["lost"].exists()
    assert paths["newer"].read_bytes() == newer
    for name in ("claim", "failed"):
        assert paths[name].read_bytes() == before[paths[name].stem]
    good = json.loads(before[paths["throttled"].stem])
    assert json.loads(paths["throttled"].read_bytes()) | {"recorded": 0} == good | {"recorded": 0}
    assert b'"mean_us": 14.9' in paths["fine"].read_bytes() or b'"mean_us": 15' in paths["fine"].read_bytes()


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
        result.stdout.fnmatch_lines(
            ["*two suites share this baseline*", f"*{ID} in other/perf, which recorded it, and in perf"]
        )
    assert project.stored() == before


def test_time_that_cannot_be_is_refused_named_and_replaced(project: Project) -> None:
    project.tell(told(gelu_us=20_000.0))
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [f"not stored: {ID}: GPU time cannot be: 20006.0 us cannot be a part of a call of 200.*"]
    )
    assert project.stored() == {}
    assert project.run_command("kernelgauge accept --force").ret == pytest.ExitCode.OK
    project.tell(told())
    result = project.run()
    assert result.ret == pytest.ExitCode.OK
    assert project.of("test_device_time", ID).properties[VERDICT] == "NOT_JUDGED"
    result.stdout.fnmatch_lines(["*GPU time 10.0 us, not judged: that of the baseline cannot be*"])
    project.record()
    project.run()
    assert project.of("test_device_time", ID).properties[VERDICT] == "PASS"


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
    for value in ("1", "true"):
        monkeypatch.setenv("CI", value)
        said = project.refuse("--perf-update")
        assert "refused under CI" in said
        assert "--perf-update=force" in said
        assert not (project.root / "baselines").exists()
    assert project.run("--perf-update=force").ret == pytest.ExitCode.OK
    assert set(project.stored()) == {ID}


def test_update_of_too_few_tests_stores_nothing(project: Project) -> None:
    project.write("test_other.py", "def test_other(workload):\n    pass\n")
    missing = f"not stored: {ID}: end to end was not measured (was its test deselected[?])"
    for name, said in (("test_other", []), ("device_time", [missing])):
        result = project.run("--perf-update", "-k", name)
        assert result.ret != pytest.ExitCode.OK
        result.stdout.fnmatch_lines([*said, "*nothing to store*"])
        assert project.stored() == {}


def test_update_cut_short_writes_nothing(project: Project) -> None:
    project.record()
    before = project.stored()
    project.tell(told(gelu_us=9.0), told(variant="compiled"))
    project.write("test_zz.py", "def test_interrupts():\n    raise KeyboardInterrupt\n")
    result = project.run("--perf-update", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert project.stored() == before
    result.stdout.fnmatch_lines(["*cut short: no baseline was written*"])


@pytest.mark.parametrize(("folder", "arguments"), [("reports", ()), ("baselines", ("--perf-update",))])
def test_unwritable_folder_is_a_usage_error(project: Project, folder: str, arguments: tuple[str, ...]) -> None:
    (project.root / folder).write_text("a file where the folder should be")
    said = project.refuse(*arguments)
    assert "cannot write" in said
    assert re.search(rf"where .*{folder}", said)


ELSEWHERE = ("-o", "kernelgauge_baselines=elsewhere/stored", "-o", "kernelgauge_reports=elsewhere/reports")


@pytest.mark.parametrize(
    ("suite", "arguments"),
    [
        ("perf/test_perf.py", ()),
        (f"perf/test_perf.py::test_device_time[{ID}]", ()),
        ("perf", ("--perf-matrix", "full", *ELSEWHERE)),
    ],
    ids=["file", "test", "options"],
)
def test_proposed_command_accepts_that_workload_only(project: Project, suite: str, arguments: tuple[str, ...]) -> None:
    matrix = "full" if arguments else "default"
    others = (f"{ID}0", f"gated-{ID}")
    for gelu_us in (4.0, 5.5):
        fields: dict[str, Any] = {"gelu_us": gelu_us, "matrix": matrix}
        project.tell(told(**fields), told(shape=(4, 80), **fields), told("gated-mlp", **fields))
        if gelu_us == 4.0:
            project.record(*arguments)
    folder = project.root / ("elsewhere/stored" if arguments else "baselines") / "told-gpu"
    before = [(folder / f"{other}.json").read_bytes() for other in others]
    failed = project.run(*arguments, suite=suite)
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    if arguments:
        assert (project.root / "elsewhere" / "reports" / "latest" / "traces" / f"{ID}.txt").exists()
        assert not (project.root / "baselines").exists()
        assert not (project.root / "reports").exists()
    accepted = project.run_command(accept_command(failed))
    if "::" in suite:  # the other times were not measured: the refusal says how to go on
        (line,) = (line for line in accepted.outlines if line.startswith("to measure it again"))
        project.run_command(f"{line.partition(': ')[2]}")
        accepted = project.run_command(accept_command(failed))
    assert accepted.ret == pytest.ExitCode.OK
    assert project.run("-k", f"[{ID}]", *arguments, suite=suite).ret == pytest.ExitCode.OK
    assert [(folder / f"{other}.json").read_bytes() for other in others] == before


def test_proposed_command_works_where_pytest_was_started(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "pytest.ini").write_text("[pytest]\n")
    project.record()
    project.tell(told(gelu_us=5.5))
    monkeypatch.chdir(project.root / "perf")
    failed = project.pytester.runpytest_inprocess()
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    assert project.run_command(accept_command(failed)).ret == pytest.ExitCode.OK


def test_failure_without_times_proposes_to_measure_them_first(project: Project) -> None:
    project.record()
    project.tell(told(counts={"synchronizations": 1}))
    failed = project.run("-m", "structure")
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    measure, accept = f"pytest perf -k {ID}", f"kernelgauge accept -k {ID}"
    failed.stdout.fnmatch_lines([f"  accept   {measure}   (measures its times too)", f"  {'':8} {accept}"])
    assert f"{measure}; {accept}" in (project.latest / "report.md").read_text()
    project.run_command(measure)
    assert project.run_command(accept).ret == pytest.ExitCode.OK
    assert project.run().ret == pytest.ExitCode.OK
