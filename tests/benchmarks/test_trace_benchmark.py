"""The benchmark of tools that read traces: equal answers, the tables, the launcher, and a whole run."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = Path(__file__).resolve().parents[2] / "benchmarks" / "trace"
sys.path.append(str(TRACE))  # scripts side by side; a package of this folder's name would hide the standard library's
contest = importlib.import_module("contest")


def answer(*kernels: tuple[str, int, float]) -> contest.Answer:
    return contest.Answer(tuple(contest.Kernel(*kernel) for kernel in kernels), 1.0)


def test_read_answer_of_one_name_twice_is_one_kernel() -> None:
    times = (("gemm", 2, 3.0), ("add", 9, 4.0), ("gemm", 1, 2.0))
    kernels = [{"name": name, "launches": count, "device_time_us": us} for name, count, us in times]
    found = contest.read_answer(json.dumps({"kernels": kernels, "work_seconds": 0.5}))
    assert found == contest.Answer((contest.Kernel("gemm", 3, 5.0), contest.Kernel("add", 9, 4.0)), 0.5)
    assert math.isnan(contest.read_answer('{"kernels": []}').work_seconds)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ([("a", 2, 1e6)], [("a", 2, 1e6 + 0.9)], []),  # a sum in another order
        ([("a", 2, 1e6)], [("a", 2, 1e6 + 1.1)], ["1000001.100 us instead of 1000000.000: a"]),
        ([("a", 2, 5.0)], [("a", 3, 5.0)], ["3 launches instead of 2: a"]),
        ([("a", 1, 1.0)], [("b", 1, 1.0)], ["has b", "has no a"]),
        ([], [(f"k{i}", 1, 1.0) for i in range(5)], ["has k0", "has k1", "has k2", "and 2 more"]),
    ],
)
def test_differences_beyond_rounding_are_named(ours: list, theirs: list, found: list[str]) -> None:
    assert contest.differences(answer(*ours), answer(*theirs)) == found


def run_contest(folder: Path, script: Path, tool: str) -> subprocess.CompletedProcess[str]:
    """Run it with a tool of a script as ours, and an interpreter that has no peers."""
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    command = [sys.executable, str(TRACE / "run.py"), "--out", str(folder / "out"), "--sizes", "0.3,0.9"]
    command += ["--repeats", "2", "--python", str(bare), "--ours", f"{sys.executable} {script} {tool}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_run_of_equal_answers_succeeds_without_peers(tmp_path: Path) -> None:
    ended = run_contest(tmp_path, TRACE / "peers.py", "ours")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "table.md").read_text() == ended.stdout.rstrip("\n") + "\n"
    assert "HTA, parser alone: not available: No module named 'hta'" in ended.stdout
    assert "Perfetto, Python package: not available: No module named 'perfetto'" in ended.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=pytest.fail)
    assert [run["tool"] for run in results["runs"]].count("kernelgauge show") == 4
    assert [(len(top), top[0]["launches"] > 0) for top in results["top"].values()] == [(10, True)] * 2


def test_run_of_another_answer_fails(tmp_path: Path) -> None:
    script = tmp_path / "ours.py"
    script.write_text((TRACE / "peers.py").read_text(encoding="utf-8").replace("sum(us)", "sum(us) * 1.001"))
    ended = run_contest(tmp_path, script, "json_loop")
    assert ended.returncode == 1
    assert "kernelgauge show: WRONG with 0.2 MB: " in ended.stdout
