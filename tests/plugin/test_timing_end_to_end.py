"""End-to-end latency is pytest-benchmark's: real rounds of a real call, judged like the other times."""

from __future__ import annotations

import json
from statistics import median

import pytest
import torch._dynamo  # noqa: F401  (an inner run forgets what it imported, and torch and triton load only once)

from tests.plugin.inner_project import Project, table_verdict

ID = "mlp-eager-bf16-4x8"


@pytest.fixture
def timed(project: Project) -> Project:
    """A project whose workload sleeps for a millisecond."""
    test_file = project.root / "perf" / "test_perf.py"
    test_file.write_text("from kernelgauge.standard import *\n")
    return project


def judge(project: Project, *stored_us: float) -> tuple[pytest.RunResult, str]:
    """Record, put another end-to-end latency into the baseline, and run again."""
    project.record("-k", "not float64")
    path = project.baselines / f"{ID}.json"
    baseline = json.loads(path.read_text())
    end_to_end = baseline["timers"]["end_to_end"]
    assert end_to_end["iterations"] == 3
    assert len(end_to_end["replicates_us"]) == 4
    assert all(1000 <= value < 100_000 for value in end_to_end["replicates_us"])  # slept, in microseconds
    project.edit_baseline(
        ID,
        timers=baseline["timers"]
        | {"end_to_end": end_to_end | {"replicates_us": stored_us, "median_us": median(stored_us)}},
    )
    result = project.run("-k", "end_to_end")
    return result, project.case("test_end_to_end_latency").properties["kernelgauge_verdict"]


def test_slower_than_the_baseline_fails(timed: Project) -> None:
    result, verdict = judge(timed, 1.0, 1.01, 0.99, 1.0)  # far enough for the busiest machine
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdict == "REGRESSED"
    assert table_verdict(result, ID) == "REGRESSED end to end"


def test_faster_than_the_baseline_passes(timed: Project) -> None:
    result, verdict = judge(timed, 1e9, 1.01e9, 0.99e9, 1e9)
    assert result.ret == pytest.ExitCode.OK
    assert verdict == "IMPROVED"


def test_the_verdict_stands_in_the_benchmark_s_own_json(timed: Project) -> None:
    timed.run("-k", "end_to_end", "--benchmark-json=benchmark.json")
    (benchmark,) = json.loads((timed.root / "benchmark.json").read_text())["benchmarks"]
    assert benchmark["extra_info"]["kernelgauge_verdict"] == "NO_BASELINE"
    assert benchmark["stats"]["rounds"] == 12


def test_without_benchmarks_nothing_is_timed_and_the_test_skips(timed: Project) -> None:
    result = timed.run("-k", "end_to_end", "--benchmark-disable")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(skipped=1, deselected=5)
