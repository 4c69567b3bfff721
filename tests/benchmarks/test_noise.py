"""The judge on what was recorded on H200s, as `benchmarks/noise.py` shows it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import msgspec
import noise
import pytest

from kernelgauge.judge import Status, compare, judge_time
from kernelgauge.run import Timer
from kernelgauge.runs_file import read_runs
from tests.builders import ONE_TOKEN, ONE_TOKEN_US, of_grids, run

ROOT = Path(__file__).resolve().parents[2]
RECORDED = sorted(map(str, (ROOT / "benchmarks" / "data" / "host_states").glob("*.json")))
BUSY_HOST = ROOT / "benchmarks" / "data" / "busy_host"
COMMITTED = ROOT / "baselines"  # GPUs of four hosts
EIGHT = ROOT / "benchmarks" / "data" / "eight_gpus"  # of one host
of_each_baseline = pytest.mark.parametrize("baselines", [COMMITTED, EIGHT], ids=["ten GPUs", "eight GPUs"])


def stored_in(baselines: Path) -> list[str]:
    return sorted(map(str, (baselines / "nvidia-h200").glob("*.json")))


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """The rows of the table, without its head: a workload each."""
    monkeypatch.setattr(sys, "argv", ["noise.py", *arguments])
    noise.main()
    lines = capsys.readouterr().out.splitlines()
    return [re.split(r"\s{2,}", line) for line in lines if re.match(r"\S+-(eager|compiled|liger)-", line)]


def test_no_process_is_called_slower_than_another_whatever_the_host_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = shown(monkeypatch, capsys, *RECORDED)
    # Seven workloads, three timers. The configuration that the autotuner drew once has nothing to be held against.
    assert len(rows) == 21
    assert {row[1] for row in rows} == {"device time", "end to end", "host dispatch"}
    assert [row for row in rows if row[7] != "0"] == []  # alarms


def test_no_process_on_a_cpu_is_called_slower_than_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the policies of a GPU, 59 of these 448 comparisons were false alarms."""
    runs = sorted(map(str, (ROOT / "benchmarks" / "data" / "cpu").glob("*.json")))
    rows = shown(monkeypatch, capsys, *runs)
    assert [(row[7], row[9]) for row in rows] == [("0", "56")] * 8  # alarms, pairs
    assert all(20 < float(row[6]) < 40 for row in rows)  # seen from so many percent, of a baseline of these eight


def test_a_busy_host_is_seldom_called_a_regression(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code was the same; of 120 host clocks eleven had been called slower or faster."""
    runs = sorted(map(str, BUSY_HOST.glob("*.json")))
    monkeypatch.setattr(sys, "argv", ["noise.py", "--against", str(BUSY_HOST / "baselines"), *runs])
    noise.main()
    _, _, counted = capsys.readouterr().out.partition("all 2 files:")
    said = {(timer, status): int(count) for timer, status, count in re.findall(r"  (\S.*?)  +([A-Z]+) +(\d+)", counted)}
    hosts = {key: count for key, count in said.items() if key[0] in ("end to end", "host dispatch")}
    assert sum(hosts.values()) == 120
    assert sum(count for (_, status), count in hosts.items() if status in ("REGRESSED", "IMPROVED")) <= 2
    assert ("host dispatch", "REGRESSED") not in hosts


@of_each_baseline
def test_each_timer_of_a_stored_baseline_has_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], baselines: Path
) -> None:
    files = stored_in(baselines)
    rows = shown(monkeypatch, capsys, "--stored", *files)
    assert len(rows) == 3 * len(files)
    mlps = [row for row in rows if row[0].startswith("mlp") and row[1] == "device time"]
    assert all(float(row[4]) < 0.7 for row in mlps)  # seen from so many percent


@of_each_baseline
def test_gpus_of_a_baseline_differ_by_less_than_a_percent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], baselines: Path
) -> None:
    rows = shown(monkeypatch, capsys, "--between-gpus", *stored_in(baselines))
    assert all(0 < float(row[3]) < 1 for row in rows)


@of_each_baseline
def test_an_unknown_gpu_is_not_called_slower_and_a_slowdown_of_two_percent_of_an_mlp_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], baselines: Path
) -> None:
    files = stored_in(baselines)
    rows = shown(monkeypatch, capsys, "--unknown-gpu", *files)
    assert len(rows) == len(files) + 1  # two configurations of one
    for workload, _, unchanged, *_, two_percent in rows:
        assert unchanged.startswith("0/")
        caught, of = map(int, two_percent.split("/"))
        assert caught == of or not workload.startswith("mlp")


def test_of_kernels_of_few_blocks_only_a_large_change_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    for grids in (ONE_TOKEN, [(128, 1, 1)] * 5):
        noise.report("mlp", Timer.DEVICE, [run(kernels=of_grids(*grids), device=ONE_TOKEN_US)] * 4, comparisons=21)
    few, many = (float(line.split()[-4]) for line in capsys.readouterr().out.splitlines())
    assert few > 3 > 1 > many  # per cent


NINE = sorted((ROOT / "benchmarks" / "data" / "nine_processes").glob("*.json"))
MORE = sorted((ROOT / "benchmarks" / "data" / "more_gpus").glob("host*/*-*-*-*.json"))


def latencies(slower: float) -> Counter[Status]:
    """What is said of nine processes on another H200 by a baseline of five hosts, three of them half as slow again and more."""
    stored = noise.stored([*map(Path, stored_in(EIGHT)), *MORE])
    said: Counter[Status] = Counter()
    for measured in (each for path in NINE for each in read_runs(path).runs):
        sample = measured.samples[Timer.END_TO_END]
        longer = msgspec.structs.replace(sample, replicates_us=tuple(slower * us for us in sample.replicates_us))
        observed = msgspec.structs.replace(measured, samples={**measured.samples, Timer.END_TO_END: longer})
        baseline = stored[measured.workload]
        comparison = compare(baseline.fingerprint, measured.fingerprint)
        said[judge_time(Timer.END_TO_END, observed, baseline, comparison, comparisons=21).status] += 1
    return said


def test_a_baseline_of_several_hosts_still_tells_latencies_apart() -> None:
    """Held against all processes, whatever their host's speed, 44 were UNDECIDED, and 18 of those slower REGRESSED."""
    assert latencies(1.0) == {Status.PASS: 60, Status.UNDECIDED: 3}
    assert latencies(1.3) == {Status.REGRESSED: 52, Status.UNDECIDED: 11}


def test_twenty_eight_gpus_of_nine_hosts_predict_an_mlp_on_each_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = shown(monkeypatch, capsys, "--unknown-gpu", *stored_in(COMMITTED), *stored_in(EIGHT), *map(str, MORE))
    assert all(row[2].startswith("0/") for row in rows)
    mlps = [row[4] for row in rows if row[0].startswith("mlp")]
    assert mlps == ["34/34", "28/28", "62/62", "62/62"]  # slower by 1.5 %


@pytest.mark.parametrize(
    ("baselines", "passed", "undecided"), [(COMMITTED, 91, 0), (EIGHT, 89, 2)], ids=["ten GPUs", "eight GPUs"]
)
def test_runs_of_the_unchanged_suite_on_thirteen_gpus_are_not_called_slower(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    baselines: Path,
    passed: int,
    undecided: int,
) -> None:
    """Once one of them was: two kernels together were expected to differ by as much as one."""
    runs = sorted(map(str, (ROOT / "benchmarks" / "data" / "more_gpus").glob("host*/run-*.json")))
    monkeypatch.setattr(sys, "argv", ["noise.py", "--against", str(baselines), *runs])
    noise.main()
    _, _, counted = capsys.readouterr().out.partition("all 13 files:")
    assert "REGRESSED" not in counted
    said = {status: int(count) for status, count in re.findall(r"device time +([A-Z]+) +(\d+)", counted)}
    assert Counter(said) == Counter(PASS=passed, UNDECIDED=undecided)
