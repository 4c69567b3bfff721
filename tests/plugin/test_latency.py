"""End-to-end latency is pytest-benchmark's: real rounds of a real call, judged like the other times."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  (an inner run forgets what it imported, and torch and triton load only once)

from kernelgauge.errors import OtherKernelsError
from kernelgauge.measure.latency import Rounds
from tests.plugin.inner_project import ID, VERDICT, Project


@pytest.fixture
def timed(project: Project) -> Project:
    """A project whose workload sleeps for a millisecond."""
    project.write("test_perf.py", "from kernelgauge.standard import *\n")
    return project


SLOW_FIRST = """
import pytest
from kernelgauge import Timer
from kernelgauge.report.words import headline
from kernelgauge.run import Sample

@pytest.mark.timing
def test_latency(workload, run, kernelgauge_test):
    session = kernelgauge_test.session
    first = Sample((9e6, 9e6, 9e6), 3, (20.0,) * 3)
    session.latencies[workload.id] = first
    for _ in range(2):
        verdict = session.judge_time(workload, Timer.END_TO_END)
        sample = session.run(workload).samples[Timer.END_TO_END]
        if "not confirmed" in headline(verdict):
            kernelgauge_test.conclude(verdict)
        assert sample.replicates_us[:3] == first.replicates_us
        assert len(sample.replicates_us) == len(sample.controls_us) == 3 + 2 * 3  # twice as many, once
        assert all(1000 <= time for time in sample.replicates_us[3:])
"""


def stored_entry(project: Project) -> Any:
    (entry,) = json.loads((project.baselines / f"{ID}.json").read_text())["entries"]
    return entry


def set_stored(project: Project, mean_us: float) -> None:
    """Put another latency into the baseline."""
    entry = stored_entry(project)
    entry["processes"][0]["timers"]["end_to_end"] |= {"mean_us": mean_us, "spread": 0.01}
    project.edit_baseline(ID, entries=[entry])


def test_latency_of_pytest_benchmark_is_judged(timed: Project) -> None:
    timed.record("-k", "not float64")
    end_to_end = stored_entry(timed)["processes"][0]["timers"]["end_to_end"]
    assert (end_to_end["iterations"], end_to_end["control_us"]) == (3, 20.0)
    assert 1 < end_to_end["replicates"] <= 4  # those on a fast host
    assert end_to_end["mean_us"] >= 1000  # slept, in microseconds
    set_stored(timed, 1.0)  # far enough for the busiest machine
    result = timed.run("-k", "end_to_end", "--benchmark-json=benchmark.json", "--benchmark-cprofile=cumtime")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert timed.verdicts() == {"latency": "REGRESSED"}
    result.stdout.fnmatch_lines(["*latency looks slower: measuring again"])
    (benchmark,) = json.loads((timed.root / "benchmark.json").read_text())["benchmarks"]
    assert benchmark["stats"]["rounds"] == 12
    timed.write("test_perf.py", SLOW_FIRST)  # still slower when it is judged again
    timed.run().assert_outcomes(passed=1)


def test_disabled_benchmark_skips_or_fails_if_strict(timed: Project) -> None:
    for options, outcome in (((), "skipped"), (("--perf-strict",), "failure")):
        timed.run("-k", "end_to_end", "--benchmark-disable", *options)
        case = timed.case("test_end_to_end_latency")
        assert (case.outcome, case.properties.get(VERDICT)) == (outcome, None)
        assert case.properties["kernelgauge_not_run"] == "pytest-benchmark is disabled, so nothing was timed"


@pytest.mark.parametrize(("hot", "verdict"), [(1, "IMPROVED"), (2, "INVALID")])
def test_disturbed_latency_is_timed_again_once(
    timed: Project, monkeypatch: pytest.MonkeyPatch, hot: int, verdict: str
) -> None:
    """`hot`: how many of the measurements meet a throttled GPU."""
    timed.record("-k", "not float64")
    set_stored(timed, 1e9)
    left = [("throttled by heat",)] * hot
    monkeypatch.setattr(Rounds, "disturbed_by", lambda _: left.pop() if left else ())
    result = timed.run("-k", "end_to_end")
    assert (timed.verdicts(), left) == ({"latency": verdict}, [])
    result.stdout.fnmatch_lines(["*the machine was disturbed: timing the latency again"])
    if verdict == "INVALID":
        result.stdout.fnmatch_lines(["*the machine cannot be trusted now*", "*throttled by heat*"])


def test_latency_of_other_kernels_is_not_judged(timed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once_with_other_kernels(*arguments: str) -> pytest.RunResult:
        differing = [True]

        def look(_: Rounds) -> None:
            if differing and differing.pop():
                what = f"{ID}: other kernels than were profiled"
                raise OtherKernelsError(what, got="a narrow one", expected="a wide one")

        with monkeypatch.context() as patch:
            patch.setattr(Rounds, "require_profiled_kernels", look)
            return timed.run(*arguments)

    monkeypatch.setattr(Rounds, "require_profiled_kernels", lambda _: None)
    result = run_once_with_other_kernels("-k", "not float64", "--perf-update")
    result.stdout.fnmatch_lines(["*it was not measured in full (*other kernels than were profiled)*"])
    assert not timed.baselines.exists()
    timed.record("-k", "not float64")
    result = run_once_with_other_kernels("-k", "not float64")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"*{ID}: UNDECIDED  end to end not compared: other kernels than were profiled*"])
    strict = run_once_with_other_kernels("-k", "end_to_end", "--perf-strict")
    assert strict.ret == pytest.ExitCode.TESTS_FAILED
    strict.stdout.fnmatch_lines(["*other kernels than were profiled*", "*a narrow one*", "*a wide one*"])
    timed.write("test_perf.py", SLOW_FIRST)
    run_once_with_other_kernels().assert_outcomes(skipped=1)
    assert timed.verdicts() == {"test_latency": "UNDECIDED"}


def test_worker_times_latency_without_pytest_benchmark(timed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-benchmark switches itself off there."""
    pytest.importorskip("xdist")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    result = timed.pytester.runpytest_inprocess("perf", "-n", "1", "-k", "not float64", "--perf-update")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=5)  # no warning of a fixture that was not used
    assert stored_entry(timed)["processes"][0]["timers"]["end_to_end"]["mean_us"] >= 1000
