"""Histories drawn: the charts, the steps and what is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kernelgauge.errors import ResultsError
from kernelgauge.history import add_to_history
from kernelgauge.history.trend import trends
from kernelgauge.judge import Status
from kernelgauge.report.trend import Trends
from kernelgauge.report.trend_html import trend_html
from kernelgauge.report.trend_text import chart_lines, letters, table_lines
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, H200, HERE, fingerprint, run
from tests.history.nights import FIRST, NOW, ROOT, night, shown, timed, year
from tests.test_results import results, verdict, workload


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_step_is_found_beside_the_upgrade_that_it_came_with(tmp_path: Path, bucket: str, kind: str) -> None:
    location = bucket if kind == "bucket" else str(tmp_path)
    year(location)
    found = shown(location)
    assert [(chart.workload, len(chart.series)) for chart in found.charts] == [("same", 2), ("slow", 2)]
    assert (found.entries, found.set_aside) == (80, ())
    same, slow = found.charts
    assert [series.gpu for series in slow.series] == [HERE, ELSEWHERE]
    assert all(series.shifts == () for series in same.series)
    for series in slow.series:
        ((index, changes),) = [(mark.index, mark.changes) for mark in series.marks]
        assert (index, changes) == (20, ("driver 580.1 -> 585.1",))
        (shift,) = series.shifts
        assert (shift.index, series.changes_beside(shift)) == (20, changes)
        assert shift.change == pytest.approx(0.05, abs=0.002)
        assert series.moments[20].commit == f"{20:040x}"


def test_a_pattern_is_a_glob_or_a_part_of_an_id(tmp_path: Path) -> None:
    add_to_history(night(0, timed(name="mlp-eager"), timed(name="mlp-liger"), timed(name="norm")), str(tmp_path))

    def names(*patterns: str) -> list[str]:
        return [chart.workload for chart in shown(tmp_path, patterns=patterns).charts]

    assert names() == ["mlp-eager", "mlp-liger", "norm"]
    assert names("mlp") == names("mlp-*") == ["mlp-eager", "mlp-liger"]
    assert names("liger", "no*") == ["mlp-liger", "norm"]
    assert names("lp") == ["mlp-eager", "mlp-liger"]
    assert names("lp*") == names("'; DROP TABLE rows; --") == []


def test_times_of_any_size_are_drawn(tmp_path: Path) -> None:
    for number, us in enumerate((2e-3, 9e11, 2e-3, 9e11, 205.0, 1.0)):
        add_to_history(night(number, timed(us, name="wide")), str(tmp_path))
    for number in range(2):
        add_to_history(night(number, timed(1e-3, name="small", gpu=ELSEWHERE), gpu=ELSEWHERE), str(tmp_path))
    found = shown(tmp_path)
    assert (len(found.charts), found.set_aside) == (2, ())
    table = list(table_lines(found.charts, width=80, letters=letters("utf-8")))
    assert len(table) == 4
    for chart in found.charts:
        drawn = list(chart_lines(chart, "device time", width=80, letters=letters("utf-8")))
        assert sum("1" in line[11:] for line in drawn[2:11]) == (2 if chart.workload == "wide" else 1)
    assert "nan" not in trend_html(found)


@pytest.mark.parametrize("us", [5e-324, 1e308])
def test_times_that_leave_no_room_between_low_and_high_are_drawn_all_the_same(tmp_path: Path, us: float) -> None:
    add_to_history(night(0, timed(name="a")), str(tmp_path))
    (chart,) = shown(tmp_path).charts
    strange = replace(chart, series=tuple(replace(each, values_us=(us,)) for each in chart.series))
    assert len(list(chart_lines(strange, "device time", width=80, letters=letters("utf-8")))) > 10
    assert len(list(table_lines([strange], width=80, letters=letters("utf-8")))) == 3


def test_a_pattern_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    with pytest.raises(ResultsError, match="the name of no workload") as caught:
        shown(tmp_path, patterns=("mlp", os.fsdecode(b"\xff")))
    assert caught.value.got == "\\udcff"


def test_since_and_gpu_leave_the_rest_out(tmp_path: Path) -> None:
    year(tmp_path, nights=10)
    (late, _) = shown(tmp_path, since=FIRST + timedelta(days=7)).charts
    assert [len(series.values_us) for series in late.series] == [3, 3]
    (one, _) = shown(tmp_path, gpu=HERE[:4]).charts
    assert [series.gpu for series in one.series] == [HERE]


@pytest.mark.parametrize("wanted", ["cpu", "CPU"])
def test_the_runs_on_a_cpu_are_those_without_a_gpu(tmp_path: Path, wanted: str) -> None:
    epyc = fingerprint(device="AMD EPYC", arch="cpu")
    add_to_history(night(0, timed(gpu=None, machine=epyc), gpu=None), str(tmp_path))
    add_to_history(night(1, timed()), str(tmp_path))
    (one,) = shown(tmp_path, gpu=wanted).charts
    assert [series.gpu for series in one.series] == ["node"]
    assert shown(tmp_path, gpu=HERE[:4]).entries == shown(tmp_path, gpu=HERE[:4].upper()).entries == 1
    assert shown(tmp_path, gpu="-").entries == 0


@pytest.mark.parametrize(("timer", "us"), [(Timer.DEVICE, 205.0), (Timer.END_TO_END, 301.5), (Timer.HOST, 50.7)])
def test_each_timer_has_its_history(tmp_path: Path, timer: Timer, us: float) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    (chart,) = shown(tmp_path, timer=timer).charts
    assert chart.last_us == pytest.approx(us, rel=0.001)


def test_kinds_of_machine_are_charts_of_their_own(tmp_path: Path) -> None:
    for number, machine in enumerate((H200, fingerprint(power_limit_watts=500.0), fingerprint(mig=True))):
        add_to_history(night(number, timed(machine=machine)), str(tmp_path))
    assert [chart.machine for chart in shown(tmp_path).charts] == [
        "NVIDIA H200, sm_90, 132 SMs, 500 W",
        "NVIDIA H200, sm_90, 132 SMs, 700 W",
        "NVIDIA H200, sm_90, 132 SMs, 700 W, MIG",
    ]


def test_a_cpu_is_told_by_its_host(tmp_path: Path) -> None:
    cpu = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, power_limit_watts=None, mig=None, driver=None)
    for host in ("one", "other"):
        added = add_to_history(night(0, timed(gpu=None, machine=cpu), gpu=None, host=host), str(tmp_path))
        assert "-cpu-" in added.written[0]
    (chart,) = shown(tmp_path).charts
    assert [series.named for series in chart.series] == ["host one", "host other"]
    drawn = "\n".join(chart_lines(chart, "device time", width=80, letters=letters("ascii")))
    assert "  1  host one: 1 run, last 205.0 us" in drawn.splitlines()
    assert "  #  several hosts" in drawn.splitlines()
    page = trend_html(Trends(Timer.DEVICE, (chart,), 2, ()))
    assert "host one: last 205.0 us" in page
    assert "on 2 hosts" in page
    assert "GPU one" not in drawn + page


def test_files_that_contradict_each_other_are_named_and_neither_is_shown(tmp_path: Path) -> None:
    add_to_history(night(0, timed(205.0, name="a"), timed(100.0, name="b")), str(tmp_path))
    add_to_history(night(0, timed(207.0, name="a"), timed(100.0, name="b")), str(tmp_path))
    add_to_history(night(1, timed(206.0, name="a")), str(tmp_path))
    found = shown(tmp_path)
    assert [(chart.workload, chart.series[0].values_us) for chart in found.charts] == [("a", (206.0,)), ("b", (100.0,))]
    assert found.set_aside == ("a: 2 files say 2 different times of the run that started at 2026-01-05T02:30:00+00:00",)


@pytest.mark.parametrize("other", [{"commit": "b"}, {"kernelgauge": "9.9"}])
def test_files_that_say_different_times_of_one_run_contradict_each_other_whatever_else_they_say(
    tmp_path: Path, other: dict[str, str]
) -> None:
    add_to_history(night(0, timed(205.0), commit="a"), str(tmp_path))
    add_to_history(night(0, timed(205.1), **({"commit": "a"} | other)), str(tmp_path))
    found = shown(tmp_path)
    assert found.charts == ()
    assert len(found.set_aside) == 1


def test_files_that_say_the_same_times_of_one_run_are_one_night(tmp_path: Path) -> None:
    add_to_history(night(0, timed(name="a")), str(tmp_path))
    add_to_history(night(0, timed(name="a"), timed(name="b")), str(tmp_path))  # merged with another part
    found = shown(tmp_path)
    assert [(chart.workload, chart.series[0].values_us) for chart in found.charts] == [("a", (205.0,)), ("b", (205.0,))]
    assert found.set_aside == ()


def test_a_time_that_cannot_be_trusted_is_counted_and_not_shown(tmp_path: Path) -> None:
    spoiled = workload(verdict(Status.INVALID, headline="throttled"), run=run(device=(999.0,)))
    add_to_history(night(0, timed()), str(tmp_path))
    add_to_history(night(1, spoiled), str(tmp_path))
    found = shown(tmp_path)
    assert found.charts[0].series[0].values_us == (205.0,)
    assert found.set_aside == ("1 time whose verdict is INVALID",)


def test_a_run_that_measured_nothing_is_read_and_has_no_chart(tmp_path: Path) -> None:
    nothing = workload(verdict(Status.INVALID, headline="CUDA error"), run=None)
    (key,) = add_to_history(results(nothing, fingerprint=None, gpu=None), str(tmp_path)).written
    assert "-unknown-" in key
    found = shown(tmp_path)
    assert (found.charts, found.entries, found.set_aside) == ((), 1, ())


def test_the_query_of_the_documentation_reads_the_files_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = pytest.importorskip("duckdb")
    add_to_history(night(0, timed(name="a"), timed(206.0, name="b")), str(tmp_path / "history"))
    query = (ROOT / "docs" / "history.md").read_text().split("```sql\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT gpu, workload, us FROM ({query})").fetchall()
    assert found == [(HERE, "a", 205.0), (HERE, "b", 206.0)]


def test_without_duckdb_the_error_says_what_to_install_and_adding_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    add_to_history(night(0, timed()), str(tmp_path))
    with pytest.raises(ResultsError, match="without duckdb") as caught:
        trends(str(tmp_path), now=NOW)
    assert caught.value.next_command == "pip install 'kernelgauge[history]'"


def test_adding_imports_neither_duckdb_nor_numpy() -> None:
    script = "import sys, kernelgauge.history; print({'duckdb', 'numpy', 'torch', 'fsspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
