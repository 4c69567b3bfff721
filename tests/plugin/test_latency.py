"""End-to-end latency is pytest-benchmark's: real rounds of a real call, judged like the other
times.
"""

import json
from typing import Any
from unittest.mock import Mock

import pytest

from kernelgauge.errors import OtherKernelsError
from kernelgauge.measure import runner
from tests.plugin.inner_project import ID, Project


@pytest.fixture
def timed(project: Project) -> Project:
    """A project whose workload sleeps for a millisecond."""
    project.write("test_perf.py", "from kernelgauge.standard import *\n")
    project.add_to_conftest("\ntime_latency = None  # a real one\n")
    return project


def stored_entry(project: Project) -> Any:
    (entry,) = json.loads((project.baselines / f"{ID}.json").read_text())["entries"]
    return entry


def set_stored(project: Project, mean_us: float) -> None:
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
    timed.run("-k", "end_to_end", "--benchmark-json=benchmark.json", "--benchmark-cprofile=cumtime")
    assert timed.verdicts() == {"latency": "REGRESSED"}
    assert timed.afresh() == []  # it is more than twice as long
    (benchmark,) = json.loads((timed.root / "benchmark.json").read_text())["benchmarks"]
    assert benchmark["stats"]["rounds"] == 12
    assert 1e6 * benchmark["stats"]["min"] >= 1000


def test_disabled_benchmark_skips_or_fails_if_strict(timed: Project) -> None:
    for options, outcome in (((), "skipped"), (("--perf-strict",), "failure")):
        timed.run("-k", "end_to_end", "--benchmark-disable", *options)
        case = timed.case("test_end_to_end_latency")
        not_run = {"kernelgauge_not_run": "pytest-benchmark is disabled, so nothing was timed"}
        assert (case.outcome, case.properties) == (outcome, not_run)


def test_disturbed_latency_is_timed_again_once(
    timed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed.record("-k", "not float64")
    set_stored(timed, 1e9)
    # how many of the measurements meet a throttled GPU
    for hot, verdict in ((1, "IMPROVED"), (2, "INVALID")):
        left = [("throttled by heat",)] * hot
        monkeypatch.setattr(runner, "disturbances", lambda _, left=left: left.pop() if left else ())
        result = timed.run("-k", "end_to_end")
        assert (timed.verdicts(), left) == ({"latency": verdict}, [])
        result.stdout.fnmatch_lines(["*the machine was disturbed: timing the latency again"])
    result.stdout.fnmatch_lines(["*the machine cannot be trusted now*", "*throttled by heat*"])


def test_latency_of_other_kernels_is_not_judged(
    timed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OtherKernelsError(
        f"{ID}: other kernels than were profiled", got="a narrow one", expected="a wide one"
    )

    def run(*arguments: str, text: str) -> pytest.RunResult:
        with monkeypatch.context() as patch:
            patch.setattr(
                runner, "_require_profiled_kernels", Mock(side_effect=[other, None, None])
            )
            result = timed.run(*arguments)
        result.stdout.fnmatch_lines([f"*other kernels than were profiled{text}*"])
        return result

    monkeypatch.setattr(runner, "_require_profiled_kernels", lambda *_: None)
    run("-k", "not float64", "--perf-update", text=")")
    assert not timed.baselines.exists()
    timed.record("-k", "not float64")
    assert run("-k", "not float64", text="").ret == pytest.ExitCode.OK
    assert timed.verdicts()["latency"] == "UNDECIDED"
    strict = run("-k", "end_to_end", "--perf-strict", text="")
    strict.assert_outcomes(failed=1, deselected=5)
    strict.stdout.fnmatch_lines(["*a narrow one*", "*a wide one*"])


def test_worker_times_latency_without_pytest_benchmark(
    timed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest-benchmark switches itself off there."""
    pytest.importorskip("xdist")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    result = timed.pytester.runpytest_inprocess(
        "perf", "-n", "1", "-k", "not float64", "--perf-update"
    )
    result.assert_outcomes(passed=5)  # no warning of a fixture that was not used
    assert stored_entry(timed)["processes"][0]["timers"]["end_to_end"]["mean_us"] >= 1000
