"""What is read of a history: the charts, and what is left out, whatever lies there."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import pytest

from kernelgauge.errors import ResultsError
from kernelgauge.history import add_to_history, read_trends
from kernelgauge.judge import Status
from kernelgauge.report.trend import trend_html, trend_lines
from kernelgauge.run import Timer
from tests.builders import ELSEWHERE, H200, HERE, fingerprint, run, waits_for_a_writer
from tests.history.nights import FIRST, ROOT, night, shown, timed, year
from tests.test_results import results, verdict, workload


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_step_is_found_beside_the_upgrade(tmp_path: Path, bucket: str, kind: str) -> None:
    location = bucket if kind == "bucket" else str(tmp_path)
    year(location)
    found = shown(location)
    assert [(chart.workload, len(chart.series)) for chart in found.charts] == [("same", 2), ("slow", 2)]
    assert (found.files, found.not_shown) == (80, ())
    same, slow = found.charts
    assert [series.gpu for series in slow.series] == [f"GPU {HERE}", f"GPU {ELSEWHERE}"]
    assert all(series.shifts == () for series in same.series)
    for series in slow.series:
        assert series.marks == {20: ("driver 580.1 -> 585.1",)}
        (shift,) = series.shifts
        assert (shift.index, shift.change) == (20, pytest.approx(0.05, abs=0.002))
        assert series.nights[20].commit == f"{20:040x}"


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
    assert (len(found.charts), found.not_shown) == (2, ())
    assert len(list(trend_lines(found, with_details=False, width=80, encoding="utf-8"))) == 4
    assert any("▁█▁█▁▁" in line for line in trend_lines(found, with_details=True, width=80, encoding="utf-8"))
    assert "nan" not in trend_html(found)


def test_since_leaves_the_rest_out(tmp_path: Path) -> None:
    year(tmp_path, nights=10)
    (late, _) = shown(tmp_path, since=FIRST + timedelta(days=7)).charts
    assert [len(series.values_us) for series in late.series] == [3, 3]


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


def test_cpu_is_named_by_its_host(tmp_path: Path) -> None:
    cpu = fingerprint(device="AMD EPYC", arch="cpu", sm_count=None, power_limit_watts=None, mig=None, driver=None)
    for host in ("one", "other"):
        told = night(0, timed(gpu=None, machine=cpu), gpu=None, host=host)
        assert "-cpu-" in add_to_history(told, str(tmp_path)).written[0]
    found = shown(tmp_path)
    assert [series.gpu for series in found.charts[0].series] == ["host one", "host other"]
    assert "host one: last 205.0 us" in trend_html(found)


def test_contradicting_files_are_named_and_not_shown(tmp_path: Path) -> None:
    add_to_history(night(0, timed(205.0, name="a"), timed(100.0, name="b")), str(tmp_path))
    add_to_history(night(0, timed(207.0, name="a"), timed(100.0, name="b")), str(tmp_path))
    add_to_history(night(1, timed(206.0, name="a")), str(tmp_path))
    found = shown(tmp_path)
    assert [(chart.workload, chart.series[0].values_us) for chart in found.charts] == [("a", (206.0,)), ("b", (100.0,))]
    assert found.not_shown == ("a: files differ in its time in the run that started at 2026-01-05T02:30:00+00:00",)


@pytest.mark.parametrize("other", [{"commit": "b"}, {"kernelgauge": "9.9"}])
def test_other_times_of_one_run_contradict_whatever_else_differs(tmp_path: Path, other: dict[str, str]) -> None:
    add_to_history(night(0, timed(205.0), commit="a"), str(tmp_path))
    add_to_history(night(0, timed(205.1), **({"commit": "a"} | other)), str(tmp_path))
    found = shown(tmp_path)
    assert found.charts == ()
    assert len(found.not_shown) == 1


def test_equal_times_of_one_run_are_one_night(tmp_path: Path) -> None:
    add_to_history(night(0, timed(name="a")), str(tmp_path))
    add_to_history(night(0, timed(name="a"), timed(name="b")), str(tmp_path))  # merged with another part
    found = shown(tmp_path)
    assert [(chart.workload, chart.series[0].values_us) for chart in found.charts] == [("a", (205.0,)), ("b", (205.0,))]
    assert found.not_shown == ()


def test_invalid_time_is_counted_and_not_shown(tmp_path: Path) -> None:
    spoiled = workload(verdict(Status.INVALID, headline="throttled"), run=run(device=(999.0,)))
    add_to_history(night(0, timed()), str(tmp_path))
    add_to_history(night(1, spoiled), str(tmp_path))
    found = shown(tmp_path)
    assert found.charts[0].series[0].values_us == (205.0,)
    assert found.not_shown == ("1 time whose verdict is INVALID",)


def test_a_run_that_measured_nothing_is_read_and_has_no_chart(tmp_path: Path) -> None:
    nothing = workload(verdict(Status.INVALID, headline="CUDA error"), run=None)
    (key,) = add_to_history(results(nothing, fingerprint=None, gpu=None), str(tmp_path)).written
    assert "-unknown-" in key
    found = shown(tmp_path)
    assert (found.charts, found.files, found.not_shown) == ((), 1, ())


def test_query_of_the_documentation_reads_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    add_to_history(night(0, timed(name="a"), timed(206.0, name="b")), str(tmp_path / "history"))
    query = (ROOT / "docs" / "history.md").read_text().split("```sql\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT gpu, workload, us FROM ({query})").fetchall()
    assert found == [(HERE, "a", 205.0), (HERE, "b", 206.0)]


def test_without_duckdb_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    add_to_history(night(0, timed()), str(tmp_path))
    with pytest.raises(ResultsError, match="without duckdb") as caught:
        read_trends(str(tmp_path))
    assert caught.value.next_command == "pip install 'kernelgauge[history]'"


# -- files that are left out ------------------------------------------------------------------------------------------


def reasons(location: Path | str) -> dict[str, str]:
    found = (line.partition(": ") for line in shown(location).not_shown)
    return {key: why for key, _, why in found}


def test_foreign_files_are_named_and_not_used(tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    names = {"README.md", "2026/results.json", "x-1-0.v1.json"}
    for name in names:
        (tmp_path / name).write_text("{}")
    (tmp_path / ".hidden").write_text("a file of a writer")
    assert reasons(tmp_path) == dict.fromkeys(names, "not a file of a history")
    assert shown(tmp_path).files == 1


@pytest.mark.parametrize("version", [0, 3])
def test_file_of_another_schema_is_named_and_not_used(tmp_path: Path, version: int) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    other = key.replace(".v2.", f".v{version}.")
    (tmp_path / key).rename(tmp_path / other)
    assert reasons(tmp_path)[other].endswith(f"(schema {version}, this one reads 1 and 2)")


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_file_that_is_not_whole_is_named(tmp_path: Path, length: int) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    (tmp_path / key).write_bytes((tmp_path / key).read_bytes()[:length])
    assert shown(tmp_path).files == 0
    assert "digest differs" in reasons(tmp_path)[key]


def test_byte_that_changed_is_noticed(tmp_path: Path) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    (tmp_path / key).write_bytes((tmp_path / key).read_bytes().replace(b"205.0", b"105.0"))
    assert "digest differs" in reasons(tmp_path)[key]


def forged(folder: Path, change: dict[str, Any], *, rows: bool = False) -> tuple[Path, str]:
    """A history whose one file is not what is written, and its name, with a digest that is right."""
    (key,) = add_to_history(night(0, timed()), str(folder / "real")).written
    told = json.loads((folder / "real" / key).read_bytes())
    (told["rows"] if rows else told).update(change)
    content = json.dumps(told, indent=1).encode()
    stamp, gpu, _ = key.rpartition("/")[2].split("-")
    name = f"{stamp}-{gpu}-{sha256(content).hexdigest()[:16]}.v2.json"
    (folder / "history").mkdir()
    (folder / "history" / name).write_bytes(content)
    return folder / "history", name


@pytest.mark.parametrize("change", [{"started_at": "2026-01-05T02:30:00"}, {"gpu": 7}, {"fingerprint": {}}])
def test_forged_header_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    history, name = forged(tmp_path, change)
    assert set(reasons(history)) == {name}


@pytest.mark.parametrize(
    "change",
    [
        {"workload": []},
        {"device_time": None},
        {"device_time": {"mean_us": [-1.0], "status": [None]}},
        {"device_time": {"mean_us": [1.1e12], "status": [None]}},
        {"device_time": {"mean_us": [0.0009], "status": [None]}},
    ],
)
def test_forged_time_is_not_shown(tmp_path: Path, change: dict[str, Any]) -> None:
    history, _ = forged(tmp_path, change, rows=True)
    assert shown(history).charts == ()


@pytest.mark.parametrize(
    "change", [{"workload": 7}, {"device_time": {"mean_us": ["x"], "status": [None]}}, {"gemm_us": {"a": 1}}]
)
def test_forged_column_is_an_error(tmp_path: Path, change: dict[str, Any]) -> None:
    history, _ = forged(tmp_path, change, rows=True)
    with pytest.raises(ResultsError, match="the history cannot be read"):
        shown(history)


def test_reference_time_of_zero_or_less_is_not_used(tmp_path: Path) -> None:
    history, _ = forged(tmp_path, {"gemm_us": [-1.0], "copy_us": [0.0]}, rows=True)
    assert shown(history).charts[0].series[0].corrected_us == pytest.approx((205.0,))


def test_fifo_in_place_of_a_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    (key,) = add_to_history(night(0, timed()), str(tmp_path)).written
    (tmp_path / key).unlink()
    os.mkfifo(tmp_path / key)
    waits, _ = waits_for_a_writer(tmp_path / key, lambda: shown(tmp_path))
    assert not waits
    assert "not a regular file" in reasons(tmp_path)[key]


def test_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "01":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(ResultsError, match="cannot be reached") as caught:
        shown(tmp_path)
    assert "Permission denied" in (caught.value.got or "")


def test_object_that_stands_for_a_folder_is_not_a_file(bucket: str) -> None:
    add_to_history(night(0, timed()), bucket)
    store = fsspec.filesystem("memory")
    root = bucket.removeprefix("memory:/")
    store.store[f"{root}/2027/"] = store.store[next(iter(store.store))]
    assert (shown(bucket).files, shown(bucket).not_shown) == (1, ())


def test_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    add_to_history(night(0, timed()), str(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert shown(tmp_path).files == 1


def test_run_of_the_future_is_named_and_not_shown(tmp_path: Path) -> None:
    for minutes in (1, 30):
        when = datetime.now(timezone.utc) + timedelta(minutes=minutes)
        add_to_history(results(timed(), started_at=when.isoformat()), str(tmp_path))
    assert shown(tmp_path).files == 1
    assert "in the future" in next(iter(reasons(tmp_path).values()))


def test_nights_are_in_order_of_time(tmp_path: Path) -> None:
    for number in (40, 3, 300, 7):
        add_to_history(night(number, timed()), str(tmp_path))
    nights = shown(tmp_path).charts[0].series[0].nights
    assert [(each.started_at - FIRST).days for each in nights] == [3, 7, 40, 300]


def test_missing_folder_is_an_error_and_missing_prefix_is_empty(tmp_path: Path, bucket: str) -> None:
    assert (shown(bucket).files, shown(bucket).charts) == (0, ())
    with pytest.raises(ResultsError, match="cannot be reached") as caught:
        shown(tmp_path / "nowhere")
    assert caught.value.got == "there is no such folder"
