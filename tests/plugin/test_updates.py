"""--perf-update: what it stores, leaves alone and refuses, and the command that a failure proposes."""

import json
import re
import shlex
import shutil
from typing import Any

import pytest
from msgspec.structs import replace

from kernelgauge.baselines import BaselineStore, Mode, plan_update
from kernelgauge.errors import StorageError
from tests.commands.conftest import Command
from tests.plugin.inner_project import COMPILED, ID, LINEAR, Project, fake, text_of


def changed(project: Project, before: dict[str, bytes]) -> set[str]:
    return {name for name, content in project.stored().items() if before.get(name) != content}


def test_update_writes_what_changed_and_nothing_else(project: Project) -> None:
    project.set(fake(), fake(variant="compiled"), fake("linear"))
    project.record().stdout.fnmatch_lines(
        ["linear-eager*RECORDED*", "3 written to baselines/test-gpu"]
    )
    before = project.stored()
    project.set(fake(gelu_us=5.5), fake(variant="compiled", gelu_us=4.02), fake("linear"))
    update = f"update*{ID}*GPU time 10.0 -> 11.5 us  +15.00 %*"
    project.record().stdout.fnmatch_lines(
        ["keep *", "*unchanged within noise*", update, "*", "1 written to *"]
    )
    assert (set(before), changed(project, before)) == ({ID, COMPILED, LINEAR}, {ID})
    assert project.afresh() == []  # what is accepted as it is needs no confirmation
    assert project.run().ret == pytest.ExitCode.OK


def test_undeclared_breaks_are_recorded_and_more_of_them_fail(project: Project) -> None:
    project.set(fake(counts={"graph_breaks": 1, "recompiles": 2}))
    result = project.record()
    notes = [f"{ID}: 1 graph break: recorded", f"{ID}: 2 recompiles: recorded", "1 written to *"]
    result.stdout.fnmatch_lines([f"{ID}*RECORDED*", *notes])
    assert "what changes" not in text_of(result)  # of one baseline among all that are new
    assert project.run().ret == pytest.ExitCode.OK
    # without times it makes fewer calls, and recompiles less often
    project.set(fake(counts={"graph_breaks": 1}))
    assert project.run("-m", "not timing").ret == pytest.ExitCode.OK
    for more in ({"graph_breaks": 2, "recompiles": 2}, {"graph_breaks": 1, "recompiles": 3}):
        project.set(fake(counts=more))
        assert re.search(
            r"  counts   (graph breaks 1 -> 2|recompiles 2 -> 3)\n",
            text_of(project.run("-m", "not timing")),
        )
        assert project.verdicts() == {"declared": "PASS", "structure": "REGRESSED"}


def test_update_refuses_what_is_not_sound(project: Project) -> None:
    faults: dict[str, dict[str, Any]] = {
        "fine": {"gelu_us": 9.0},
        "claim": {"gelu_us": 9.0, "counts": {"graph_breaks": 1}, "graph_breaks": 0},
        "failed": {"error": "measurement"},
        "newer": {},
        "impossible": {"gelu_us": 20_000.0},
        "lost": {"incomplete": "the GPU no longer answers"},
    }
    project.set(*(fake(name) for name in faults if name != "lost"))
    project.record()
    (project.baselines / "newer-eager-bf16-4x8.json").write_bytes(b'{"schema_version": 99}')
    before = project.stored()
    project.set(*(fake(name, **fields) for name, fields in faults.items()))
    result = project.run("--perf-update")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = [
        "not stored: claim-*: test_kernels_and_graphs_are_as_declared*failed",
        "not stored: lost-*",
        "not stored: impossible-*: GPU time cannot be: 20006.0 us cannot be a part of a call*",
        "mend what failed, or measure it again on a quiet machine, or store it as it is: kernelgauge accept --force",
        "*written by a newer version of kernelgauge; pip install --upgrade kernelgauge",
    ]
    result.stdout.fnmatch_lines_random(lines)
    assert changed(project, before) == {"fine-eager-bf16-4x8"}
    project.set(fake("fine"), fake("impossible", **faults["impossible"]))  # every test passes
    assert (
        project.run("--perf-update").ret
        == project.results().exit_status
        == pytest.ExitCode.TESTS_FAILED
    )


def test_baseline_that_lacks_times_is_no_missing_baseline(
    project: Project, kernelgauge: Command
) -> None:
    """As one without compile times is, beside --perf-compile."""
    assert "no baseline in baselines/test-gpu/" in text_of(project.run("-k", "not latency"))
    kernelgauge("accept", "--force")
    said = text_of(project.run())
    assert (
        "the baselines in baselines/test-gpu/ have no end to end; record them with: pytest perf --perf-update"
        in said
    )
    assert "no baseline in" not in said


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
        assert (result.ret, project.stored()) == (pytest.ExitCode.TESTS_FAILED, before)
        both = f"*{ID} in other/perf, which recorded it, and in perf"
        result.stdout.fnmatch_lines(["*two suites share this baseline*", both])


def test_plan_is_shown_before_anything_is_written(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(BaselineStore, "apply", refuse)
    result = project.run("--perf-update")
    assert result.ret == project.results().exit_status == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"{ID}*RECORDED*", "the disk is full"])


def test_update_is_reviewed_once_and_locked(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the table calls RECORDED is what is written."""
    reviewed = []

    def plan(several: Any, store: BaselineStore, mode: Mode) -> Any:
        monkeypatch.setattr("kernelgauge.baselines._LOCK_TIMEOUT_SECONDS", 0.1)
        with pytest.raises(StorageError, match="another update"), store.locked():
            pass
        reviewed.append(mode)
        return plan_update(several, store, mode)

    monkeypatch.setattr("kernelgauge.plugin.record.plan_update", plan)
    result = project.record()
    result.stdout.fnmatch_lines([f"{ID}*RECORDED*", "report: *", "1 written to *"])
    assert reviewed == [Mode.UPDATE]
    assert "what changes" not in text_of(result)  # the table has said it


def test_update_under_ci_needs_force(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert re.search("(?s)refused under CI.*--perf-update=force", project.refuse("--perf-update"))
    assert project.stored() == {}
    assert project.run("--perf-update=force").ret == pytest.ExitCode.OK
    assert set(project.stored()) == {ID}


def test_update_of_too_few_tests_stores_nothing(project: Project) -> None:
    project.write("test_other.py", "def test_other(workload):\n    pass\n")
    missing = f"not stored: {ID}: end to end was not measured (was its test deselected[?])"
    for name, lines in (("test_other", []), ("device_time", [missing])):
        result = project.run("--perf-update", "-k", name)
        result.stdout.fnmatch_lines([*lines, "*nothing to store*"])
        assert (result.ret, project.stored()) == (pytest.ExitCode.TESTS_FAILED, {})


def test_update_cut_short_writes_nothing(project: Project) -> None:
    project.write("test_zz.py", "def test_interrupts():\n    raise KeyboardInterrupt\n")
    result = project.run("--perf-update", no_reraise_ctrlc=True)
    assert (result.ret, project.stored()) == (pytest.ExitCode.INTERRUPTED, {})
    result.stdout.fnmatch_lines(["*cut short: no baseline was written*"])


def test_unwritable_folder_is_a_usage_error(project: Project) -> None:
    project.latest.mkdir(parents=True)
    (project.latest / "traces").symlink_to(project.latest)
    assert re.search(
        "(?s)cannot remove what another run has left.*where .*traces", project.refuse()
    )
    shutil.rmtree(project.root / "reports")
    for folder, arguments in (("reports", ()), ("baselines", ("--perf-update",))):
        (project.root / folder).write_text("a file where the folder should be")
        assert re.search(rf"(?s)cannot write.*where .*{folder}", project.refuse(*arguments))
        (project.root / folder).unlink()


def test_proposed_command_accepts_that_workload_only(
    project: Project, kernelgauge: Command
) -> None:
    arguments = [
        f"-okernelgauge_{each}"
        for each in ("baselines=elsewhere/stored", "reports=elsewhere/reports")
    ]
    for gelu_us in (4.0, 5.5):
        project.set(
            *(
                fake(**each, gelu_us=gelu_us)
                for each in ({}, {"shape": (4, 80)}, {"module": "gated-mlp"})
            )
        )
        if gelu_us == 4.0:
            project.record(*arguments)
    before = {
        path: path.read_bytes()
        for path in (project.root / "elsewhere" / "stored" / "test-gpu").iterdir()
    }
    failed = project.run(*arguments)
    assert failed.ret == pytest.ExitCode.TESTS_FAILED
    line = next(line for line in failed.outlines if line.startswith("  accept "))
    assert kernelgauge(*shlex.split(line)[2:])[0] == 0
    assert not {"baselines", "reports"} & {path.name for path in project.root.iterdir()}
    assert project.run("-k", f"[{ID}]", *arguments).ret == pytest.ExitCode.OK
    assert [path.stem for path, content in before.items() if path.read_bytes() != content] == [ID]


def of_slow_host(**changes: Any) -> dict[str, Any]:
    """Return a workload on a host eight times as slow."""
    slow = fake(host_us=180.0, **changes)
    samples = {
        timer: replace(each, controls_us=tuple(8 * us for us in each.controls_us))
        for timer, each in slow["run"].samples.items()
    }
    return slow | {"run": replace(slow["run"], samples=samples)}


def test_accept_on_a_slow_host_takes_counts_alone(project: Project, kernelgauge: Command) -> None:
    project.record()
    timers = [
        each["timers"] for each in json.loads(project.stored()[ID])["entries"][0]["processes"]
    ]
    memsets = {"counts": {"memsets": 3}}
    project.set(of_slow_host(**memsets))
    assert project.run().ret == pytest.ExitCode.TESTS_FAILED
    code, out, _ = kernelgauge("accept")
    assert (code, "its times stay" in out) == (0, True), out
    stored = json.loads(project.stored()[ID])
    assert stored["counts"]["memsets"] == 3
    assert [each["timers"] for each in stored["entries"][0]["processes"]] == timers
    project.set(fake(**memsets))
    assert project.run().ret == pytest.ExitCode.OK


@pytest.mark.parametrize("how", ["noisy", "stopped"])
def test_accept_of_a_run_without_times_takes_its_structure(
    project: Project, kernelgauge: Command, how: str
) -> None:
    def times() -> list[Any]:
        stored = json.loads(project.stored()[ID])
        return [each["timers"] for each in stored["entries"][0]["processes"]]

    noisy: dict[str, Any] = {"incomplete": "the machine cannot be trusted now"}
    faults = noisy if how == "noisy" else {}
    memsets = {"counts": {"memsets": 3}}
    project.set(fake())
    project.record()
    before = times()
    project.set(fake(**faults))
    assert project.run().ret == (1 if faults else 0)
    assert ("refused" in kernelgauge("accept", "--dry-run")[1]) == (how == "noisy")
    project.set(fake(**memsets, **faults))
    if how == "stopped":  # in the last test: all was judged before
        project.write("test_zz.py", "def test_interrupts():\n    raise KeyboardInterrupt\n")
    project.run(no_reraise_ctrlc=True)
    assert project.results().was_cut_short == (how == "stopped")
    code, out, _ = kernelgauge("accept")
    assert (code, "its times stay" in out) == (0, True), out
    assert (json.loads(project.stored()[ID])["counts"]["memsets"], times()) == (3, before)
    (project.root / "perf" / "test_zz.py").unlink(missing_ok=True)
    project.set(fake(**memsets))
    assert project.run().ret == pytest.ExitCode.OK
    project.set(fake(**memsets, gelu_us=9.0))  # by the times before
    assert project.run().ret == pytest.ExitCode.TESTS_FAILED
    project.set(fake(**noisy, counts={"memsets": 4}))
    assert project.run("--perf-update").ret == pytest.ExitCode.TESTS_FAILED
    assert json.loads(project.stored()[ID])["counts"]["memsets"] == 3


SCATTERED = """
def time_latency(workload, measured):
    quiet, us = workload.module == "linear", (200.0, 9000.0, 400.0, 30_000.0)
    return Sample((200.0, 201.0, 202.0, 200.5) if quiet else us, 40, (20.0,) * 4)
"""


def test_recording_says_which_times_are_too_noisy(project: Project, kernelgauge: Command) -> None:
    project.set(fake(), fake(variant="compiled"), fake("linear"))
    project.record().stdout.no_fnmatch_line("warning: *")
    project.add_to_conftest(SCATTERED)
    shutil.rmtree(project.baselines)
    said = f"warning: a run like this one cannot judge 2 of 9 times that were recorded ({ID}, {COMPILED}): the replicates scatter too much on this host; *"
    project.record().stdout.fnmatch_lines([said])
    result = project.run()
    result.stdout.fnmatch_lines(["PASS*end to end * in 1 of 3*"])
    result.stdout.no_fnmatch_line("warning: *")
    shutil.rmtree(project.baselines)
    assert said.removesuffix("*") in kernelgauge("accept")[1]


@pytest.mark.timeout(120)
def test_update_without_times_names_those_that_it_drops(pytester: pytest.Pytester) -> None:
    test = """
import pytest, torch

@pytest.mark.kernelgauge(timing=True)
def test_x(kernelgauge):
    kernelgauge(lambda x: x + 1, torch.ones(4, 8))
"""
    arguments = ("-q", "--perf-device=cpu", "--perf-update")
    pytester.makepyfile(test_x=test)
    said = text_of(pytester.runpytest_inprocess(*arguments, "-m", "not timing"))
    assert "\nselect the tests of its times too, or store it as it is: kernelgauge" in said
    assert "1 written" in text_of(pytester.runpytest_inprocess(*arguments))
    pytester.makepyfile(test_x=test.replace("+", "*").replace("True", "False"))
    said = " ".join(text_of(pytester.runpytest_inprocess(*arguments)).split())
    assert "its old times are dropped, as this run measured none: CPU time, end to end" in said
    assert "kernelgauge calibrate" not in said
