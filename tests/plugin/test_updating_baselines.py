"""--perf-update: what is stored, what is left alone, and what refuses."""

from __future__ import annotations

import json

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.errors import StorageError
from tests.plugin.inner_project import Project, told

EAGER, COMPILED, LINEAR = "mlp-eager-bf16-4x8", "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"
THREE = (told(), told(variant="compiled"), told("linear"))


def measured(project: Project) -> dict[str, dict[str, object]]:
    """What the baselines say of the workloads, without how and when they were recorded."""
    stored = {name: json.loads(content) for name, content in project.stored().items()}
    return {
        name: {field: value for field, value in each.items() if field != "recorded"} for name, each in stored.items()
    }


def accept_command(result: pytest.RunResult) -> str:
    """The command that a failure proposes for accepting what was measured."""
    line = next(line for line in result.outlines if line.startswith("  accept "))
    return line.removeprefix("  accept ").strip()


def test_the_first_update_creates_one_file_for_each_workload(project: Project) -> None:
    project.tell(*THREE)
    result = project.record()
    assert set(project.stored()) == {EAGER, COMPILED, LINEAR}
    result.stdout.fnmatch_lines(["*create*linear-eager*", "3 written to *baselines/told-gpu"])


def test_a_second_update_keeps_every_file_byte_for_byte(project: Project) -> None:
    project.tell(*THREE)
    project.record()
    before = project.stored()
    result = project.record()
    assert project.stored() == before
    result.stdout.fnmatch_lines(["*keep*unchanged within noise*", "0 written to *"])


def test_a_move_within_noise_keeps_the_file(project: Project) -> None:
    project.record()
    before = project.stored()
    project.tell(told(gelu_us=4.02))
    project.record()
    assert project.stored() == before


def test_a_changed_measurement_updates_its_file_alone_and_is_accepted_from_then_on(project: Project) -> None:
    project.tell(told(), told(variant="compiled"))
    project.record()
    before = project.stored()
    project.tell(told(gelu_us=5.5), told(variant="compiled"))
    result = project.record()
    result.stdout.fnmatch_lines([f"*update*{EAGER}*device time 10.0 -> 11.5 us (+15.0 %)*", "1 written to *"])
    after = project.stored()
    assert after[EAGER] != before[EAGER]
    assert after[COMPILED] == before[COMPILED]
    assert project.run().ret == pytest.ExitCode.OK


def test_a_workload_that_left_the_list_is_trimmed(project: Project) -> None:
    project.tell(*THREE)
    project.record()
    project.tell(told(), told(variant="compiled"))
    result = project.record()
    assert set(project.stored()) == {EAGER, COMPILED}
    result.stdout.fnmatch_lines([f"*trim*{LINEAR}*no longer declares it*"])


def test_baselines_of_another_suite_are_left_alone(project: Project) -> None:
    project.tell(*THREE)
    project.record()
    project.edit_baseline(LINEAR, suite="elsewhere/perf")
    project.tell(told(), told(variant="compiled"))
    project.record()
    assert set(project.stored()) == {EAGER, COMPILED, LINEAR}


def test_the_plan_is_shown_before_anything_is_written(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(BaselineStore, "apply", refuse)
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*baselines: what changes*", f"*create*{EAGER}*", "the disk is full"])
    assert project.stored() == {}


@pytest.mark.parametrize("value", ["1", "true"])
def test_under_ci_an_update_is_a_usage_error_and_writes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CI", value)
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*refused under CI*", "*--perf-update=force*"])
    assert project.measured() == []
    assert not (project.root / "baselines").exists()


def test_under_ci_a_forced_update_works(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    assert project.run("--perf-update=force").ret == pytest.ExitCode.OK
    assert set(project.stored()) == {EAGER}


def test_a_workload_with_a_failing_claim_is_not_stored(project: Project) -> None:
    project.tell(told(), told(variant="compiled", kinds=("gemm",)))
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"not stored: {COMPILED}: test_kernels_and_graphs_are_as_declared*failed"])
    assert set(project.stored()) == {EAGER}


def test_a_failing_claim_keeps_the_baseline_that_is_there(project: Project) -> None:
    project.record()
    before = project.stored()
    project.tell(told(gelu_us=9.0, graph_breaks=1), told(variant="compiled"))
    assert project.run("--perf-update").ret == pytest.ExitCode.TESTS_FAILED
    assert project.stored()[EAGER] == before[EAGER]


def test_a_measurement_that_failed_is_not_stored_and_its_baseline_stays(project: Project) -> None:
    project.tell(told(), told(variant="compiled"))
    project.record()
    before = project.stored()
    project.tell(told(error="measurement"), told(variant="compiled", gelu_us=9.0))
    assert project.run("--perf-update").ret == pytest.ExitCode.TESTS_FAILED
    assert project.stored()[EAGER] == before[EAGER]
    assert project.stored()[COMPILED] != before[COMPILED]


def test_an_update_that_can_measure_nothing_says_that_nothing_was_stored(project: Project) -> None:
    project.tell(told(error="unavailable"))
    result = project.run("--perf-update")
    assert not (project.root / "baselines" / "told-gpu").exists()
    result.stdout.fnmatch_lines(["*nothing to store*"])


def test_an_update_of_tests_that_measure_nothing_says_that_nothing_was_stored(project: Project) -> None:
    (project.root / "perf" / "test_other.py").write_text("def test_other(workload):\n    pass\n")
    result = project.run("--perf-update", "-k", "test_other")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*nothing to store*"])


def test_a_selection_by_name_stores_what_was_selected_and_trims_nothing_that_is_declared(project: Project) -> None:
    project.tell(*THREE)
    project.record()
    before = project.stored()
    project.tell(*(entry | {"samples": told(gelu_us=9.0)["samples"]} for entry in THREE))
    project.record("-k", "linear")
    after = project.stored()
    assert after[LINEAR] != before[LINEAR]
    assert (after[EAGER], after[COMPILED]) == (before[EAGER], before[COMPILED])


def test_an_update_of_the_default_matrix_keeps_the_baselines_of_the_full_one(project: Project) -> None:
    project.tell(told(), told("linear", matrix="full"))
    project.record("--perf-matrix", "full")
    project.record()
    assert set(project.stored()) == {EAGER, LINEAR}


def test_a_selection_of_some_timers_is_refused_with_the_reason(project: Project) -> None:
    result = project.run("--perf-update", "-k", "device_time")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"not stored: {EAGER}: end to end was not measured (was its test deselected[?])"])
    result.stdout.fnmatch_lines(["nothing to store*"])
    assert project.stored() == {}


def test_ctrl_c_writes_nothing(project: Project) -> None:
    project.record()
    before = project.stored()
    project.tell(told(gelu_us=9.0), told(variant="compiled"))
    (project.root / "perf" / "test_zz.py").write_text("def test_interrupts():\n    raise KeyboardInterrupt\n")
    result = project.run("--perf-update", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert project.stored() == before
    result.stdout.fnmatch_lines(["*cut short: no baseline was written*"])


@pytest.mark.parametrize("content", [b"", b"<<<<<<< HEAD\n{}", b'{"schema_version": 0}'])
def test_an_update_replaces_a_corrupt_baseline(project: Project, content: bytes) -> None:
    project.record()
    good = measured(project)
    (project.baselines / f"{EAGER}.json").write_bytes(content)
    assert project.run().ret == pytest.ExitCode.TESTS_FAILED
    project.record()
    assert measured(project) == good


def test_an_update_leaves_a_baseline_of_a_newer_version_alone(project: Project) -> None:
    project.record()
    newer = b'{"schema_version": 99}'
    (project.baselines / f"{EAGER}.json").write_bytes(newer)
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*written by a newer version of kernelgauge; pip install --upgrade kernelgauge"])
    assert (project.baselines / f"{EAGER}.json").read_bytes() == newer


def test_an_update_replaces_a_baseline_of_another_machine(project: Project) -> None:
    project.record()
    good = measured(project)
    project.edit_fingerprint(EAGER, power_limit_watts=350.0)
    project.record()
    assert measured(project) == good


@pytest.mark.parametrize(
    ("folder", "arguments"), [("reports", ()), ("reports", ("--perf-update",)), ("baselines", ("--perf-update",))]
)
def test_a_folder_that_cannot_be_written_is_a_usage_error_before_anything_is_measured(
    project: Project, folder: str, arguments: tuple[str, ...]
) -> None:
    (project.root / folder).write_text("a file where the folder should be")
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    result.stderr.fnmatch_lines(["*cannot write*", f"*where *{folder}*", "*expected *"])
    assert project.measured() == []


def test_the_folders_can_be_put_elsewhere(project: Project) -> None:
    project.record("-o", "kernelgauge_baselines=elsewhere/stored", "-o", "kernelgauge_reports=elsewhere/reports")
    assert (project.root / "elsewhere" / "stored" / "told-gpu" / f"{EAGER}.json").exists()
    assert (project.root / "elsewhere" / "reports" / "latest" / "traces" / f"{EAGER}.txt").exists()
    assert not (project.root / "baselines").exists()
    assert not (project.root / "reports").exists()


@pytest.mark.parametrize(
    ("suite", "arguments"),
    [
        ("perf", ()),
        ("perf/test_perf.py", ()),
        (f"perf/test_perf.py::test_device_time[{EAGER}]", ()),
        ("perf", ("--perf-matrix", "full")),
        ("perf", ("-o", "kernelgauge_baselines=elsewhere")),
    ],
    ids=["a folder", "a file", "one test", "the full matrix", "baselines elsewhere"],
)
def test_the_command_that_a_failure_proposes_accepts_it(
    project: Project, suite: str, arguments: tuple[str, ...]
) -> None:
    matrix = "full" if "full" in arguments else "default"
    project.tell(told(matrix=matrix))
    project.record(*arguments)
    project.tell(told(gelu_us=5.5, matrix=matrix))
    failed = project.run(*arguments, suite=suite)
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    assert project.run_command(accept_command(failed)).ret == pytest.ExitCode.OK
    assert project.run(*arguments, suite=suite).ret == pytest.ExitCode.OK


def test_the_command_that_a_failure_proposes_works_where_pytest_was_started(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "pytest.ini").write_text("[pytest]\n")
    project.record()
    project.tell(told(gelu_us=5.5))
    monkeypatch.chdir(project.root / "perf")
    failed = project.pytester.runpytest_inprocess()
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    assert project.run_command(accept_command(failed)).ret == pytest.ExitCode.OK


def test_the_command_that_a_failure_proposes_accepts_nothing_else(project: Project) -> None:
    project.tell(told(shape=(4, 8)), told(shape=(4, 80)))
    project.record()
    before = project.stored()
    project.tell(told(shape=(4, 8), gelu_us=5.5), told(shape=(4, 80), gelu_us=5.5))
    assert project.run_command(accept_command(project.run())).ret == pytest.ExitCode.OK
    assert project.stored()[EAGER] != before[EAGER]
    assert project.stored()[EAGER + "0"] == before[EAGER + "0"]
