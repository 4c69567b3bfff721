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
from kernelgauge.printable import printable
from kernelgauge.report.pytest_benchmark_json import benchmark_json
from kernelgauge.results import Results
from tests.builders import run
from tests.test_results import HOSTILE, hostile, results, verdict, workload

FAST, SLOW = (200.0, 201.0, 202.0, 203.0), (220.0, 221.0, 222.0, 223.0)


def told(device: tuple[float, ...] = FAST) -> Results:
    return results(
        workload(verdict(), name="mlp-eager", run=run(workload="mlp-eager", device=device)),
        workload(name="linear-eager", run=run(workload="linear-eager", host=None, end_to_end=None)),
        workload(name="not-measured", run=None),
    )


def benchmarks(of: Results) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(benchmark_json(of))["benchmarks"]}


def compare(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest_benchmark", "compare", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "first.json").write_bytes(benchmark_json(told()))
    (tmp_path / "second.json").write_bytes(benchmark_json(told(SLOW)))
    return tmp_path


def test_each_timer_that_was_measured_is_a_benchmark() -> None:
    assert list(benchmarks(told())) == [
        "device_time[mlp-eager]",
        "end_to_end[mlp-eager]",
        "host_dispatch[mlp-eager]",
        "device_time[linear-eager]",
    ]


def test_times_are_seconds_and_a_round_is_a_replicate() -> None:
    stats = benchmarks(told())["device_time[mlp-eager]"]["stats"]
    assert stats["data"] == pytest.approx([200e-6, 201e-6, 202e-6, 203e-6])
    assert (stats["rounds"], stats["iterations"]) == (4, 40)
    assert stats["mean"] == pytest.approx(201.5e-6)
    assert stats["stddev"] == pytest.approx(statistics.stdev(FAST) * 1e-6)
    assert stats["ops"] == pytest.approx(1 / 201.5e-6)


def test_the_statistics_have_every_field_of_pytest_benchmark() -> None:
    stats = benchmarks(told())["device_time[mlp-eager]"]["stats"]
    assert set(stats) == {*Stats.fields, "data", "iterations"}


def test_one_replicate_has_no_spread() -> None:
    measured = run(workload="mlp-eager", device=(200.0,))
    stats = benchmarks(results(workload(name="mlp-eager", run=measured)))["device_time[mlp-eager]"]["stats"]
    assert (stats["stddev"], stats["iqr"], stats["min"]) == (0, 0, pytest.approx(200e-6))


def test_the_verdict_and_the_machine_are_told() -> None:
    content = json.loads(benchmark_json(told()))
    assert content["machine_info"]["device"] == "NVIDIA H200"
    assert content["benchmarks"][0]["extra_info"] == {"kernelgauge_verdict": Status.PASS.value}
    assert content["benchmarks"][1]["extra_info"] == {}


def test_of_several_gpus_each_benchmark_names_its_own() -> None:
    measured = (workload(name=gpu, run=run(workload=gpu, gpu=gpu, host=None, end_to_end=None)) for gpu in ("aa", "bb"))
    content = json.loads(benchmark_json(results(*measured, gpu=None)))
    assert content["machine_info"]["gpu"] is None
    assert [each["extra_info"] for each in content["benchmarks"]] == [
        {"kernelgauge_gpu": "aa"},
        {"kernelgauge_gpu": "bb"},
    ]


def test_pytest_benchmark_compares_two_files(files: Path) -> None:
    shown = compare(files, "first.json", "second.json", "--columns=min,max,mean,stddev,median,iqr,outliers,ops,rounds")
    assert "benchmark 'device time': 4 tests" in shown
    rows = [line for line in shown.splitlines() if line.startswith("device_time[mlp-eager]")]
    assert [line.split()[1] for line in rows] == ["(first)", "(second)"]
    assert "200.0000" in rows[0]
    assert "220.0000" in rows[1]


def test_pytest_benchmark_sets_the_same_name_side_by_side(files: Path) -> None:
    shown = compare(files, "first.json", "second.json", "--between=median")
    (row,) = [line for line in shown.splitlines() if line.startswith("device_time[mlp-eager]")]
    assert row.split()[1:] == ["201.5000", "221.5000", "+9.9%"]


@pytest.mark.parametrize(
    "group", ["name", "fullname", "func", "fullfunc", "param", "param:variant", "group,param:dtype"]
)
def test_pytest_benchmark_groups_by_every_key(files: Path, group: str) -> None:
    assert "mlp-eager" in compare(files, "first.json", "second.json", f"--group-by={group}", "--name=long")


def test_pytest_benchmark_selects_and_writes_its_own_csv(files: Path) -> None:
    shown = compare(files, "first.json", "-k", "mlp and device_time", "--csv=out.csv")
    assert "linear" not in shown
    assert (
        (files / "out.csv")
        .read_text()
        .startswith("name,param:dtype,param:module,param:pass,param:shape,param:variant,")
    )


def test_hostile_names_are_data_and_steer_no_terminal(tmp_path: Path) -> None:
    for place, text in enumerate(HOSTILE):
        content = benchmark_json(hostile(text, Status.REGRESSED))
        assert json.loads(content)["benchmarks"][0]["param"] == printable(text)
        (tmp_path / f"{place}.json").write_bytes(content)
    shown = compare(tmp_path, *(f"{place}.json" for place in range(len(HOSTILE))), "--columns=median", "--name=long")
    assert shown.count("device_time[") == len(HOSTILE)
    assert all(line.isprintable() for line in shown.splitlines())
