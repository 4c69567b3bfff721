"""Change points are looked for in times of one GPU speed, one launch configuration and one host speed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.history import add_to_history
from kernelgauge.report.trend import Series
from kernelgauge.run import Timer
from tests.builders import mlp_kernels, pair
from tests.history.nights import night, shown, timed

NIGHTS = 40


def noise(number: int, part: str, deviation: float) -> float:
    return 1 + random.Random(f"{part} {number}").gauss(0, deviation)


def series(folder: Path, measured: Callable[[int], dict[str, Any]], timer: Timer = Timer.DEVICE) -> Series:
    """What `measured` gives each night: the time in `us`, and arguments of `builders.run`."""
    for number in range(NIGHTS):
        each = measured(number)
        us = each.pop("us", 205.0) * noise(number, "us", 0.0006)
        add_to_history(night(number, timed(us, **each)), str(folder))
    (chart,) = shown(folder, timer=timer).charts
    return chart.series[0]


def is_slow(number: int) -> bool:
    return number // 8 % 2 == 1


def two_speeds(number: int) -> dict[str, Any]:
    slow = 1.0067 if is_slow(number) else 1.0
    return {"us": 205 * (1 + 0.9 * (slow - 1)), "controls": pair(gemm=150 * slow * noise(number, "gemm", 0.001))}


def autotuned(number: int) -> dict[str, Any]:
    other = number % 12 in (3, 4, 5, 9)
    return {"us": 223.0 if other else 205.0, "kernels": mlp_kernels(xblock=512 if other else 1024)}


def test_gpu_of_two_speeds_has_no_change_point(tmp_path: Path) -> None:
    found = series(tmp_path, two_speeds)
    assert (found.shifts, found.corrected_for) == ((), ("GPU speed",))


def test_gpu_speed_is_ignored_where_series_does_not_follow(tmp_path: Path) -> None:
    found = series(tmp_path, lambda number: two_speeds(number) | {"us": 205.0})
    assert found.shifts == ()
    assert found.corrected_us == pytest.approx(found.values_us, rel=0.002)


def test_gpu_speed_of_another_gemm_kernel_is_ignored(tmp_path: Path) -> None:
    def upgraded(number: int) -> dict[str, Any]:
        late = number >= 20
        return {"us": 207.0 if late else 205.0, "controls": pair(gemm=152 if late else 150, gemm_kernel=f"gemm_{late}")}

    assert [shift.index for shift in series(tmp_path, upgraded).shifts] == [20]


def test_autotuner_choice_has_no_change_point(tmp_path: Path) -> None:
    found = series(tmp_path, autotuned)
    assert (found.shifts, found.corrected_for) == ((), ("launch configuration",))


def test_step_under_autotuner_choice_is_found(tmp_path: Path) -> None:
    def stepped(number: int) -> dict[str, Any]:
        each = autotuned(number)
        return each | {"us": each["us"] * (1.005 if number >= 20 else 1)}

    (shift,) = series(tmp_path, stepped).shifts
    assert (shift.index, shift.change) == (20, pytest.approx(0.005, abs=0.001))


def test_configuration_that_stays_is_a_step(tmp_path: Path) -> None:
    found = series(tmp_path, lambda number: {"us": 223.0, "kernels": mlp_kernels(xblock=512)} if number >= 20 else {})
    assert ([shift.index for shift in found.shifts], found.corrected_for) == ([20], ())


def test_other_kernels_for_some_nights_are_two_steps(tmp_path: Path) -> None:
    def reverted(number: int) -> dict[str, Any]:
        return {"us": 223.0, "kernels": mlp_kernels()[:3]} if 15 <= number < 25 else {}

    assert [shift.index for shift in series(tmp_path, reverted).shifts] == [15, 25]


def drifting_host(number: int) -> dict[str, Any]:
    speed = noise(number // 7, "speed", 0.1)
    return {
        "host": (50 * speed,),
        "end_to_end": (300 * speed,),
        "host_control_us": 14 * speed * noise(number, "host", 0.01),
    }


@pytest.mark.parametrize("timer", [Timer.HOST, Timer.END_TO_END])
def test_host_of_many_speeds_has_no_change_point(tmp_path: Path, timer: Timer) -> None:
    found = series(tmp_path, lambda number: drifting_host(number) | {"us": 100.0}, timer)
    assert (found.shifts, found.corrected_for) == ((), ("host speed",))


def test_latency_of_busy_gpu_is_not_corrected_for_host(tmp_path: Path) -> None:
    found = series(tmp_path, lambda number: drifting_host(number) | {"end_to_end": (300.0,)}, Timer.END_TO_END)
    assert (found.shifts, found.corrected_for) == ((), ())


def test_schema_1_is_read_and_not_corrected(tmp_path: Path) -> None:
    series(tmp_path / "new", autotuned)
    for path in (tmp_path / "new").rglob("*.json"):
        told = json.loads(path.read_bytes()) | {"schema_version": 1}
        for name in ("kernels", "configuration", "gemm_us", "gemm_kernel", "copy_us", "copy_kernel"):
            del told["rows"][name]
        for timer in Timer:
            for name in ("low", "high", "host_us"):
                del told["rows"][timer.value][name]
        content = json.dumps(told).encode()
        stamp, gpu, _ = path.name.split("-")
        (tmp_path / f"{stamp}-{gpu}-{sha256(content).hexdigest()[:16]}.v1.json").write_bytes(content)
    both = shown(tmp_path)
    assert (both.entries, both.charts[0].series[0].corrected_for) == (2 * NIGHTS, ("launch configuration",))
    for path in (tmp_path / "new").rglob("*.json"):
        path.unlink()
    found = shown(tmp_path)
    assert (found.entries, found.charts[0].series[0].corrected_for) == (NIGHTS, ())
    assert found.charts[0].series[0].shifts != ()
