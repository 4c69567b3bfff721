"""Results as pytest-benchmark has them, read by its own command."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.stats import Stats

from kernelgauge.judge import Status
from kernelgauge.report.pytest_benchmark_json import benchmark_json
from kernelgauge.results import Results
from tests.builders import run
from tests.test_results import results, verdict, workload

FAST, SLOW = (200.0, 201.0, 202.0, 203.0), (220.0, 221.0, 222.0, 223.0)


def told(device: tuple[float, ...] = FAST) -> Results:
    return results(
        workload(verdict(), name="mlp-eager", run=run(workload="mlp-eager", device=device)),
        workload(name="linear-eager", run=run(workload="linear-eager", host=None, end_to_end=None)),
        workload(name="not-measured", run=None),
    )


def stats(device: tuple[float, ...] = FAST) -> dict[str, Any]:
    return dict(json.loads(benchmark_json(told(device)))["benchmarks"][0]["stats"])


def compare(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-m", "pytest_benchmark", "compare", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "first.json").write_bytes(benchmark_json(told()))
    (tmp_path / "second.json").write_bytes(benchmark_json(told(SLOW)))
    return tmp_path


def test_benchmarks_are_the_measured_timers() -> None:
    content = json.loads(benchmark_json(told()))
    assert [(each["name"], each["extra_info"]) for each in content["benchmarks"]] == [
        ("device_time[mlp-eager]", {"kernelgauge_verdict": Status.PASS.value}),
        ("end_to_end[mlp-eager]", {}),
        ("host_dispatch[mlp-eager]", {}),
        ("device_time[linear-eager]", {}),
    ]
    assert content["machine_info"]["device"] == "NVIDIA H200"


def test_stats_are_in_seconds_with_a_round_per_replicate() -> None:
    assert set(stats()) == {*Stats.fields, "data", "iterations"}
    assert stats()["data"] == pytest.approx([200e-6, 201e-6, 202e-6, 203e-6])
    assert (stats()["rounds"], stats()["iterations"]) == (4, 40)
    assert stats()["mean"] == pytest.approx(201.5e-6)
    assert stats()["stddev"] == pytest.approx(statistics.stdev(FAST) * 1e-6)
    assert stats()["ops"] == pytest.approx(1 / 201.5e-6)


def test_merged_results_name_the_gpu_of_each_benchmark() -> None:
    measured = (workload(name=gpu, run=run(workload=gpu, gpu=gpu, host=None, end_to_end=None)) for gpu in ("aa", "bb"))
    content = json.loads(benchmark_json(results(*measured, gpu=None)))
    assert content["machine_info"]["gpu"] is None
    assert [each["extra_info"]["kernelgauge_gpu"] for each in content["benchmarks"]] == ["aa", "bb"]


def test_compare_shows_two_files(files: Path) -> None:
    shown = compare(files, "first.json", "second.json", "--columns=min,max,mean,stddev,median,iqr,outliers,ops,rounds")
    assert "benchmark 'device time': 4 tests" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("device_time[mlp-eager]")]
    assert [row[1:3] for row in rows] == [["(first)", "200.0000"], ["(second)", "220.0000"]]
