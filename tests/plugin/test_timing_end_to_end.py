"""End-to-end latency is pytest-benchmark's: real rounds of a real call, judged like the other times."""

from __future__ import annotations

import json

import pytest
import torch._dynamo  # noqa: F401  (an inner run forgets what it imported, and torch and triton load only once)

from kernelgauge.errors import OtherKernelsError
from kernelgauge.measure.latency import Rounds
from tests.plugin.inner_project import Project, table_verdict

ID = "mlp-eager-bf16-4x8"


@pytest.fixture
def timed(project: Project) -> Project:
    """A project whose workload sleeps for a millisecond."""
    test_file = project.root / "perf" / "test_perf.py"
    test_file.write_text("from kernelgauge.standard import *\n")
    return project


def judge(project: Project, stored_us: float) -> tuple[pytest.RunResult, str]:
    """Record, put another end-to-end latency into the baseline, and run again."""
    project.record("-k", "not float64")
    (entry,) = json.loads((project.baselines / f"{ID}.json").read_text())["entries"]
    end_to_end = entry["processes"][0]["timers"]["end_to_end"]
    assert end_to_end["iterations"] == 3
    assert 1 < end_to_end["replicates"] <= 4  # those on a fast host
    assert 1000 <= end_to_end["mean_us"] < 100_000  # slept, in microseconds
    assert end_to_end["control_us"] == 20.0
    end_to_end |= {"mean_us": stored_us, "spread": 0.01}
    project.edit_baseline(ID, entries=[entry])
    result = project.run("-k", "end_to_end")
    return result, project.case("test_end_to_end_latency").properties["kernelgauge_verdict"]


def test_slower_than_the_baseline_fails(timed: Project) -> None:
    result, verdict = judge(timed, 1.0)  # far enough for the busiest machine
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdict == "REGRESSED"
    assert table_verdict(result, ID) == "REGRESSED end to end"
    result.stdout.fnmatch_lines(["*latency looks slower: measuring again"])


def test_faster_than_the_baseline_passes(timed: Project) -> None:
    result, verdict = judge(timed, 1e9)
    assert result.ret == pytest.ExitCode.OK
    assert verdict == "IMPROVED"


def test_slower_latency_is_measured_again_and_all_counts(timed: Project) -> None:
    timed.record("-k", "not float64")
    (timed.root / "perf" / "test_perf.py").write_text(
        """
import pytest
from kernelgauge import Timer
from kernelgauge.run import Sample

@pytest.mark.timing
def test_latency(workload, run, kernelgauge_test):
    session = kernelgauge_test.session
    first = Sample((9e6, 9e6, 9e6), 3, (20.0,) * 3)
    session.set_latency(workload, first)
    for _ in range(2):
        session.judge_time(workload, Timer.END_TO_END)
        sample = session.run(workload).samples[Timer.END_TO_END]
        assert sample.replicates_us[:3] == first.replicates_us
        assert len(sample.replicates_us) == len(sample.controls_us) == 3 + 2 * 3  # twice as many, once
        assert all(1000 <= time < 100_000 for time in sample.replicates_us[3:])
"""
    )
    timed.run().assert_outcomes(passed=1)


@pytest.mark.parametrize(("hot", "ends"), [(1, "passed"), (2, "failed")])
def test_a_latency_that_the_machine_spoilt_is_timed_again_and_then_invalid(timed: Project, hot: int, ends: str) -> None:
    """`hot`: how many of the measurements meet a throttled GPU."""
    timed.record("-k", "not float64")
    (timed.root / "perf" / "test_perf.py").write_text(
        f"""
import pytest
from kernelgauge import Timer
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.latency import Rounds

@pytest.mark.timing
def test_latency(workload, run, kernelgauge_test):
    session = kernelgauge_test.session
    left = {hot}
    real = Rounds.disturbed_by
    def told(rounds):
        nonlocal left
        left -= 1
        return ("throttled by heat",) if left >= 0 else real(rounds)
    Rounds.disturbed_by = told
    try:
        rounds = session.rounds(workload)
        with rounds.torch_set_up():
            for _ in range(rounds.total):
                rounds.setup()
                rounds.call()
        kernelgauge_test.ask(session.keep_latency, workload, rounds, [9.0] * rounds.total, subject="end to end")
    finally:
        Rounds.disturbed_by = real
    assert all(time < 1e6 for time in session.run(workload).samples[Timer.END_TO_END].replicates_us)  # the second ones
"""
    )
    result = timed.run()
    result.assert_outcomes(**{ends: 1})
    if ends == "failed":
        result.stdout.fnmatch_lines(["*the machine cannot be trusted now*", "*throttled by heat*"])
        assert timed.case("test_latency").properties["kernelgauge_verdict"] == "INVALID"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """From here on, whether each latency is of the kernels that were profiled, one after the other; the rest are."""
    told: list[bool] = []

    def look(_: Rounds) -> None:
        if told and not told.pop(0):
            raise OtherKernelsError(
                f"{ID}: other kernels than were profiled", got="a narrow one", expected="a wide one"
            )

    monkeypatch.setattr(Rounds, "require_profiled_kernels", look)
    return told


def test_a_latency_of_other_kernels_than_were_profiled_is_not_judged(timed: Project, looks: list[bool]) -> None:
    timed.record("-k", "not float64")
    looks += [False]
    result = timed.run("-k", "not float64", "-rs")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"*{ID}: UNDECIDED  end to end not compared: other kernels than were profiled*"])
    assert table_verdict(result, ID) == "UNDECIDED end to end"
    assert timed.case("test_end_to_end_latency").properties["kernelgauge_verdict"] == "UNDECIDED"
    looks += [False]
    strict = timed.run("-k", "end_to_end", "--perf-strict")
    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    strict.stdout.fnmatch_lines(["*other kernels than were profiled*", "*a narrow one*", "*a wide one*"])


def test_a_latency_of_other_kernels_is_no_baseline(timed: Project, looks: list[bool]) -> None:
    looks += [False]
    result = timed.run("-k", "not float64", "--perf-update")
    result.stdout.fnmatch_lines(["*end to end was not measured (*other kernels than were profiled)*"])
    assert not timed.baselines.exists()
    timed.record("-k", "not float64")
    assert [path.stem for path in timed.baselines.iterdir()] == [ID]


TWICE = """
import pytest
from kernelgauge import Timer

@pytest.mark.timing
def test_latency(workload, run, kernelgauge_test):
    session = kernelgauge_test.session
    for expected in {expected}:
        session.time_latency(workload)
        verdict = session.judge_time(workload, Timer.END_TO_END)
        assert ("not compared" in verdict.headline) == (not expected)
        run = session.run(workload)
        assert (Timer.END_TO_END in run.samples) == (run.incomplete is None) == expected
"""


@pytest.mark.parametrize("expected", [(False, True), (True, False)])
def test_the_last_time_counts_where_a_latency_is_timed_twice(
    timed: Project, looks: list[bool], expected: tuple[bool, bool]
) -> None:
    timed.record("-k", "not float64")
    (timed.root / "perf" / "test_perf.py").write_text(TWICE.format(expected=expected))
    looks += expected
    timed.run().assert_outcomes(passed=1)


def test_confirmation_by_other_kernels_is_not_judged(timed: Project, looks: list[bool]) -> None:
    timed.record("-k", "not float64")
    looks += [False]
    (timed.root / "perf" / "test_perf.py").write_text(
        """
import pytest
from kernelgauge import Timer
from kernelgauge.run import Sample

@pytest.mark.timing
def test_latency(workload, run, kernelgauge_test):
    session = kernelgauge_test.session
    session.set_latency(workload, Sample((9e6, 9e6, 9e6), 3, (20.0,) * 3))
    kernelgauge_test.conclude(session.judge_time(workload, Timer.END_TO_END))
"""
    )
    result = timed.run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["*UNDECIDED  end to end not confirmed: other kernels than were profiled*", "*a narrow one*", "*a wide one*"]
    )
    assert timed.case("test_latency").properties["kernelgauge_verdict"] == "UNDECIDED"


def test_the_verdict_stands_in_the_benchmark_s_own_json(timed: Project) -> None:
    timed.run("-k", "end_to_end", "--benchmark-json=benchmark.json")
    (benchmark,) = json.loads((timed.root / "benchmark.json").read_text())["benchmarks"]
    assert benchmark["extra_info"]["kernelgauge_verdict"] == "NO_BASELINE"
    assert benchmark["stats"]["rounds"] == 12


def test_without_benchmarks_nothing_is_timed_and_the_test_skips(timed: Project) -> None:
    result = timed.run("-k", "end_to_end", "--benchmark-disable")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(skipped=1, deselected=5)


def test_a_profile_of_the_host_may_be_taken_as_well(timed: Project) -> None:
    result = timed.run("-k", "end_to_end", "--benchmark-cprofile=cumtime")
    assert result.ret == pytest.ExitCode.OK
    assert timed.case("test_end_to_end_latency").properties["kernelgauge_verdict"] == "NO_BASELINE"


def test_a_worker_of_several_times_it_too(timed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-benchmark switches itself off there."""
    pytest.importorskip("xdist")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    result = timed.pytester.runpytest_subprocess("perf", "-n", "2", "-k", "not float64", "--perf-update")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=5)  # no warning of a fixture that was not used
    (entry,) = json.loads((timed.baselines / f"{ID}.json").read_text())["entries"]
    assert entry["processes"][0]["timers"]["end_to_end"]["mean_us"] >= 1000


def test_a_worker_does_not_time_what_the_command_line_switched_off(
    timed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    result = timed.pytester.runpytest_subprocess("perf", "-n", "2", "-k", "end_to_end", "--benchmark-disable", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*pytest-benchmark is disabled, so nothing was timed*"])
