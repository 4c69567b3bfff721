"""Change points and drifts: which are found, and in times corrected for what. All random numbers come from fixed seeds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelgauge.history import LEAST_NIGHTS, Series, add_to_history, segment_series
from kernelgauge.run import Timer
from tests.builders import mlp_kernels, pair
from tests.history.nights import night, shown, timed

# -- segments --------------------------------------------------------------------------------------------------------


def noisy(seed: int, count: int, noise: float) -> np.ndarray:
    """Logarithms of times."""
    return np.log(200) + noise * np.random.default_rng(seed).normal(size=count)


def stepped(seed: int, step: float, noise: float, *, at: int = 60, count: int = 120) -> np.ndarray:
    return noisy(seed, count, noise) + np.log1p(step) * (np.arange(count) >= at)


def steps(*series: np.ndarray) -> list[list[int]]:
    return [[segment.start for segment in segments if segment.jumps] for segments in segment_series(series)]


@pytest.mark.parametrize(("step", "noise"), [(0.005, 0.0015), (0.01, 0.003), (0.05, 0.015), (-0.01, 0.003)])
def test_step_of_three_times_noise_is_found(step: float, noise: float) -> None:
    found = steps(*(stepped(seed, step, noise) for seed in range(50)))
    assert sum(len(each) == 1 and abs(each[0] - 60) <= 1 for each in found) >= 45


@pytest.mark.parametrize("count", [6, 8, 10, 12, 20, 30, 100, 365])
@pytest.mark.parametrize("noise", [0.0001, 0.002, 0.03])
def test_noise_has_change_in_one_of_hundred_at_most(count: int, noise: float) -> None:
    found = segment_series([noisy(seed, count, noise) for seed in range(1000)])
    assert sum(len(each) > 1 or each[0].drifts for each in found) <= 10


@pytest.mark.parametrize("outlier", [0.5, 0.95, 1.05, 1.3, 10.0])
@pytest.mark.parametrize("at", [0, 1, 2, 30, 57, 58, 59])
@pytest.mark.parametrize("bad_nights", [1, 2])
def test_one_or_two_bad_nights_are_no_change(outlier: float, at: int, bad_nights: int) -> None:
    series = [noisy(seed, 60, 0.002) for seed in range(10)]
    for each in series:
        each[at : at + bad_nights] += np.log(outlier)
    assert steps(*series) == [[]] * 10


def test_new_level_is_found_in_third_night() -> None:
    series = [stepped(seed, 0.05, 0.002, at=60 - LEAST_NIGHTS, count=60) for seed in range(20)]
    assert steps(*series) == [[60 - LEAST_NIGHTS]] * 20


def test_several_steps_with_bad_night_are_found() -> None:
    values = noisy(3, 200, 0.002)
    values[50:120] += 0.02
    values[120:] -= 0.01
    values[80] += 0.34
    assert steps(values) == [[50, 120]]


@pytest.mark.parametrize(("bad_night", "first"), [(30, 30), (29, 29)])
def test_bad_night_at_step_joins_nearer_level(bad_night: int, first: int) -> None:
    values = stepped(2, 0.05, 0.002, at=30, count=60)
    values[bad_night] += 0.04
    assert steps(values) == [[first]]


def test_step_is_same_at_every_scale() -> None:
    values = stepped(1, 0.02, 0.002)
    assert steps(values, values - np.log(1e3), values + np.log(1e6)) == [[60]] * 3


def test_equal_values_have_no_step_and_one_rounded_step() -> None:
    assert steps(np.log([200.0] * 365), np.log([200.0] * 30 + [202.0] * 30)) == [[], [30]]


@pytest.mark.parametrize("count", range(1, 2 * LEAST_NIGHTS))
def test_too_few_nights_have_no_step(count: int) -> None:
    assert steps(np.log([100.0, 200.0, 300.0, 400.0, 500.0][:count])) == [[]]


def test_series_cut_together_or_alone_are_the_same() -> None:
    series = [stepped(seed, 0.005 * (seed % 4), 0.003, at=5 + seed, count=70 + seed) for seed in range(20)]
    assert segment_series(series) == [segment_series([each])[0] for each in series]


@pytest.mark.parametrize("slope", [0.001, -0.001, 0.0002])
def test_ramp_between_levels_is_one_drift_without_step(slope: float) -> None:
    for seed in range(10):
        values = noisy(seed, 200, 0.0006) + slope * np.clip(np.arange(200) - 100, 0, 40)
        before, drift, after = segment_series([values])[0]
        assert [before.drifts, drift.drifts, after.drifts] == [False, True, False]
        assert not any(segment.jumps for segment in (before, drift, after))
        assert after.first - before.first == pytest.approx(40 * slope, rel=0.1)


def test_drift_over_all_nights_is_one_segment() -> None:
    (drift,) = segment_series([noisy(0, 365, 0.0006) + 0.0001 * np.arange(365)])[0]
    assert (drift.start, drift.end, drift.drifts) == (0, 365, True)


def test_step_in_drift_is_both() -> None:
    values = noisy(0, 100, 0.0006) + 0.001 * np.arange(100)
    values[50:] += 0.02
    first, second = segment_series([values])[0]
    assert (first.drifts, second.drifts, second.start, second.jumps) == (True, True, 50, True)


# -- corrected series -------------------------------------------------------------------------------------------------

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
    assert (both.files, both.charts[0].series[0].corrected_for) == (2 * NIGHTS, ("launch configuration",))
    for path in (tmp_path / "new").rglob("*.json"):
        path.unlink()
    found = shown(tmp_path)
    assert (found.files, found.charts[0].series[0].corrected_for) == (NIGHTS, ())
    assert found.charts[0].series[0].shifts != ()
