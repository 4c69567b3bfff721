"""The benchmark of tools that read traces: what is an equal answer, the tables, and a run of it."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRACE = Path(__file__).resolve().parents[2] / "benchmarks" / "trace"
sys.path.append(str(TRACE))  # scripts side by side; a package of this folder's name would hide the standard library's
contest = importlib.import_module("contest")


def answer(*kernels: tuple[str, int, float]) -> contest.Answer:
    return contest.Answer(tuple(contest.Kernel(*kernel) for kernel in kernels), 1.0)


def measured(tool: str, mb: float, seconds: float, *, work: float = 1.0, peak: float = 50.0) -> contest.Measured:
    return contest.Measured(tool, mb, seconds, work, peak)


def cells(text: str, *starts: str) -> list[str]:
    """The one row of a table whose first cells are `starts`."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    (row,) = [row for row in rows if row[: len(starts)] == list(starts)]
    return row[len(starts) :]


class TestAnswers:
    def test_launch_configurations_of_one_name_are_one_kernel(self) -> None:
        said = {
            "kernels": [
                {"name": "gemm", "launches": 2, "device_time_us": 3.0, "grid": [1, 1, 1]},
                {"name": "add", "launches": 9, "device_time_us": 4.0},
                {"name": "gemm", "launches": 1, "device_time_us": 2.0, "grid": [2, 1, 1]},
            ],
            "work_seconds": 0.5,
        }
        found = contest.read_answer(json.dumps(said))
        assert found.kernels == (contest.Kernel("gemm", 3, 5.0), contest.Kernel("add", 9, 4.0))
        assert found.work_seconds == 0.5

    def test_a_tool_that_does_not_time_itself_has_no_work_time(self) -> None:
        assert math.isnan(contest.read_answer('{"kernels": []}').work_seconds)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"kernels": [{"name": "a"}]}', '{"kernels": 3}'])
    def test_what_is_no_answer_is_refused(self, text: str) -> None:
        with pytest.raises((ValueError, KeyError, TypeError)):
            contest.read_answer(text)

    def test_a_sum_in_another_order_is_the_same_answer(self) -> None:
        assert contest.differences(answer(("a", 2, 1e6)), answer(("a", 2, 1e6 + 0.9))) == []

    def test_a_time_beyond_rounding_is_another_answer(self) -> None:
        (found,) = contest.differences(answer(("a", 2, 1e6)), answer(("a", 2, 1e6 + 1.1)))
        assert found == "1000001.100 us instead of 1000000.000: a"

    def test_one_launch_more_is_another_answer(self) -> None:
        assert contest.differences(answer(("a", 2, 5.0)), answer(("a", 3, 5.0))) == ["3 launches instead of 2: a"]

    def test_a_kernel_too_few_and_one_too_many_are_named(self) -> None:
        assert contest.differences(answer(("a", 1, 1.0)), answer(("b", 1, 1.0))) == ["has b", "has no a"]

    def test_many_differences_are_counted(self) -> None:
        found = contest.differences(answer(), answer(*((f"k{i}", 1, 1.0) for i in range(5))))
        assert found == ["has k0", "has k1", "has k2", "and 2 more"]


class TestGrowth:
    @pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
    def test_the_exponent_of_size_is_found(self, exponent: float) -> None:
        runs = [measured("a", mb, 9.0, work=3 * mb**exponent) for mb in (20.0, 500.0, 200.0)]
        assert contest.growth(contest.seconds_per_megabyte(runs)) == pytest.approx(exponent)

    def test_one_size_says_nothing_of_growth(self) -> None:
        assert contest.growth({20.0: 0.1}) is None

    def test_unknown_times_say_nothing_of_growth(self) -> None:
        assert contest.growth({20.0: 0.1, 200.0: math.nan}) is None

    def test_a_megabyte_costs_the_median_of_the_repetitions(self) -> None:
        runs = [measured("a", 10.0, 9.0, work=work) for work in (1.0, 2.0, 60.0)]
        assert contest.seconds_per_megabyte(runs) == {10.0: 0.2}


class TestTables:
    runs = (
        measured("ours", 20.0, 2.0, work=1.0, peak=50.0),
        measured("ours", 20.0, 4.0, work=1.0, peak=60.0),
        measured("ours", 20.0, 2.5, work=1.0, peak=40.0),
        measured("ours", 200.0, 20.0, work=10.0),
        measured("loop", 20.0, 5.0, work=4.0, peak=100.0),
        measured("loop", 200.0, 90.0, work=80.0, peak=1000.0),
    )
    text = contest.markdown(runs, {"absent": "not available: no network"}, ["ours", "loop", "absent"])

    def test_seconds_are_median_least_and_most_and_memory_is_the_most(self) -> None:
        assert cells(self.text, "20", "ours") == ["2.50 (2.00-4.00)", "1.00", "8", "60", "3.00", "1.00"]

    def test_others_are_relative_to_the_first_tool(self) -> None:
        assert cells(self.text, "20", "loop")[-1] == "2.00"
        assert cells(self.text, "200", "loop")[-1] == "4.50"

    def test_a_tool_that_is_not_there_has_an_empty_row_and_its_reason(self) -> None:
        assert cells(self.text, "20", "absent") == ["-"] * 6
        assert self.text.endswith("absent: not available: no network\n")

    def test_growth_is_of_the_work_and_not_of_the_process(self) -> None:
        assert cells(self.text, "ours") == ["50.00", "50.00", "size^1.00", "yes"]
        assert cells(self.text, "loop") == ["200.00", "400.00", "size^1.30", "no"]

    def test_work_that_is_not_known_is_a_dash(self) -> None:
        text = contest.markdown([measured("ours", 20.0, 2.0, work=math.nan)], {}, ["ours"])
        assert cells(text, "20", "ours")[1] == "-"
        assert cells(text, "ours") == ["-", "-", "-"]


class TestLauncher:
    def launch(self, folder: Path, source: str, timeout_s: float = 60.0) -> dict[str, float]:
        report = folder / "report"
        launcher = [sys.executable, "-I", "-S", str(TRACE / "launch.py"), str(report), str(timeout_s), "-1"]
        subprocess.run([*launcher, sys.executable, "-I", "-S", "-c", source], check=True, timeout=60)
        return json.loads(report.read_text())

    def test_the_memory_of_whoever_asks_is_not_counted(self, tmp_path: Path) -> None:
        held = bytearray(b"x") * 300_000_000
        found = self.launch(tmp_path, "pass")
        assert len(held) == 300_000_000
        assert found["exit_code"] == 0
        assert 1 < found["peak_rss_mb"] < 100

    def test_the_memory_of_a_process_that_the_tool_started_is(self, tmp_path: Path) -> None:
        inner = "x = bytearray(b'x') * 200_000_000"
        found = self.launch(tmp_path, f'import subprocess, sys; subprocess.run([sys.executable, "-c", "{inner}"])')
        assert 200 < found["peak_rss_mb"] < 300

    def test_a_tool_that_hangs_is_ended(self, tmp_path: Path) -> None:
        start = time.perf_counter()
        found = self.launch(tmp_path, "import time; time.sleep(50)", timeout_s=0.5)
        assert found["exit_code"] == -15
        assert 0.5 <= found["seconds"] <= time.perf_counter() - start < 10


class TestRun:
    LOOP = (TRACE / "peers" / "json_loop.py").read_text(encoding="utf-8")

    def run(self, folder: Path, ours: str) -> subprocess.CompletedProcess[str]:
        """With an interpreter that has no peers."""
        script = folder / "ours.py"
        script.write_text(ours, encoding="utf-8")
        bare = folder / "python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
        bare.chmod(0o755)
        command = [sys.executable, str(TRACE / "run.py"), "--out", str(folder / "out"), "--sizes", "0.3,0.9"]
        command += ["--repeats", "2", "--python", str(bare), "--ours", f"{sys.executable} {script}"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def test_equal_answers_are_a_success_and_absent_peers_are_no_failure(self, tmp_path: Path) -> None:
        ended = self.run(tmp_path, self.LOOP)
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / "out" / "table.md").read_text() == ended.stdout.rstrip("\n") + "\n"
        assert "HTA, parser alone: not available: No module named 'hta'" in ended.stdout
        results = json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=pytest.fail)
        assert [run["tool"] for run in results["runs"]].count("kernelgauge show") == 4
        assert len(results["top"]) == 2
        for top in results["top"].values():
            assert len(top) == 10
            assert top[0]["launches"] > 0

    def test_another_answer_is_a_failure(self, tmp_path: Path) -> None:
        ended = self.run(tmp_path, self.LOOP.replace("sum(us)", "sum(us) * 1.001"))
        assert ended.returncode == 1
        assert "kernelgauge show: WRONG with 0.2 MB: " in ended.stdout

    def test_a_tool_that_fails_is_a_failure_and_not_asked_again(self, tmp_path: Path) -> None:
        ended = self.run(tmp_path, "import sys; sys.exit('no such command \x1b[31m')")
        assert ended.returncode == 1
        assert ended.stderr.count("kernelgauge show: FAILED") == 1
        assert "exit status 1 after" in ended.stdout
        assert "no such command \\x1b[31m" in ended.stdout
