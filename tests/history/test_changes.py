"""Change points and drifts, and the corrections before they are searched. All random numbers have fixed seeds."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from kernelgauge.results.history import LEAST_NIGHTS, find_shifts
from tests.builders import HERE, mlp_kernels, pair
from tests.history.conftest import History
from tests.history.nights import night, timed

NIGHTS = 40
Measured: TypeAlias = Callable[[int], dict[str, Any]]


def fill(history: History, measured: Measured) -> None:
    """Add what `measured` gives each night: the time in `us`, and arguments of `builders.run`."""
    nights = []
    for number in range(NIGHTS):
        each = measured(number)
        us = each.pop("us", 205.0) * noise(number, "us", 0.0002)
        nights.append(night(number, timed(us, **each)))
    assert history.add(*nights)[0] == 0


def noisy(seed: int, count: int, noise: float) -> np.ndarray:
    """Logarithms of times."""
    return np.log(200) + noise * np.random.default_rng(seed).normal(size=count)


def stepped(seed: int, step: float, noise: float, *, at: int = 60, count: int = 120) -> np.ndarray:
    return noisy(seed, count, noise) + np.log1p(step) * (np.arange(count) >= at)


def steps(*series: np.ndarray) -> list[list[int]]:
    return [[shift.index for shift in shifts] for shifts in find_shifts(series)]


@pytest.mark.parametrize(("step", "noise"), [(0.005, 0.0015), (0.01, 0.003), (0.05, 0.015), (-0.01, 0.003)])
def test_step_of_three_times_noise_is_found(step: float, noise: float) -> None:
    found = steps(*(stepped(seed, step, noise) for seed in range(50)))
    assert sum(len(each) == 1 and abs(each[0] - 60) <= 1 for each in found) >= 45


@pytest.mark.parametrize("count", [6, 8, 12, 30, 100, 365])
@pytest.mark.parametrize("noise", [0.0001, 0.002, 0.03])
def test_noise_has_change_in_one_of_hundred_at_most(count: int, noise: float) -> None:
    found = steps(*(noisy(seed, count, noise) for seed in range(1000)))
    assert sum(map(bool, found)) <= 10


@pytest.mark.parametrize("outlier", [0.5, 0.95, 1.05, 10.0])
@pytest.mark.parametrize("nights", [[0], [1, 2], [30], [30, 32], [57, 58], [58], [59]])
def test_bad_nights_are_no_change(outlier: float, nights: list[int]) -> None:
    series = [noisy(seed, 60, 0.002) for seed in range(10)]
    for each in series:
        each[nights] += np.log(outlier)
    assert steps(*series) == [[]] * 10


def test_new_level_is_found_in_third_night() -> None:
    series = [stepped(seed, 0.05, 0.002, at=60 - LEAST_NIGHTS, count=60) for seed in range(20)]
    assert steps(*series) == [[60 - LEAST_NIGHTS]] * 20


@pytest.mark.parametrize(("outlier", "first"), [({30: 0.3}, 30), ({29: 0.04}, 29), ({29: 0.3, 30: 0.3}, 29)])
def test_bad_night_at_step_joins_nearer_level(outlier: dict[int, float], first: int) -> None:
    values = stepped(2, 0.05, 0.002, at=30, count=60)
    for bad_night, size in outlier.items():
        values[bad_night] += size
    assert steps(values) == [[first]]


def test_step_is_same_at_every_scale_and_in_any_company() -> None:
    values = stepped(1, 0.02, 0.002)
    others = [stepped(seed, 0.005 * (seed % 4), 0.003, at=5 + seed, count=70 + seed) for seed in range(20)]
    assert steps(values, values - np.log(1e3), values + np.log(1e6)) == [[60]] * 3
    assert find_shifts(others) == [find_shifts([each])[0] for each in others]


def test_equal_values_have_no_step() -> None:
    assert steps(np.log([200.0] * 365), np.log([200.0] * 30 + [202.0] * 30)) == [[], [30]]
    assert steps(*(np.log([100.0, 200.0, 300.0, 400.0, 500.0][:count]) for count in range(1, 6))) == [[]] * 5


@pytest.mark.parametrize("slope", [0.001, -0.001, 0.0005])
def test_ramp_between_levels_is_one_drift(slope: float) -> None:
    for seed in range(10):
        values = noisy(seed, 200, 0.0006) + slope * np.clip(np.arange(200) - 100, 0, 40)
        (drift,) = find_shifts([values])[0]
        assert drift.nights == pytest.approx(40, abs=12)
        assert drift.change == pytest.approx(np.expm1(40 * slope), rel=0.3)


def test_drift_over_all_nights_is_one_shift() -> None:
    (drift,) = find_shifts([noisy(0, 365, 0.0006) + 0.0001 * np.arange(365)])[0]
    assert (drift.index, drift.nights) == (0, 365)
    assert drift.per_night == pytest.approx(0.0001, rel=0.05)


def test_step_in_drift_is_both() -> None:
    values = noisy(0, 100, 0.0006) + 0.001 * np.arange(100) + 0.02 * (np.arange(100) >= 50)
    assert [(shift.index, shift.nights) for shift in find_shifts([values])[0]] == [(0, 50), (50, 0), (50, 50)]


def noise(number: int, part: str, deviation: float) -> float:
    return 1 + random.Random(f"{part} {number}").gauss(0, deviation)


def is_slow(number: int) -> bool:
    return number // 8 % 2 == 1


def steady(number: int) -> dict[str, Any]:
    return {}


def two_speeds(number: int) -> dict[str, Any]:
    slow = 1.0067 if is_slow(number) else 1.0
    return {"us": 205 * (1 + 0.9 * (slow - 1)), "controls": pair(gemm=150 * slow * noise(number, "gemm", 0.001))}


def unrelated_speed(number: int) -> dict[str, Any]:
    return two_speeds(number) | {"us": 205.0}


def other_gemm(number: int) -> dict[str, Any]:
    late = number >= 20
    return {"us": 207.0 if late else 205.0, "controls": pair(gemm=152 if late else 150, gemm_kernel=f"gemm_{late}")}


def autotuned(number: int) -> dict[str, Any]:
    other = number % 12 in (3, 4, 5, 9)
    return {"us": 223.0 if other else 205.0, "kernels": mlp_kernels(xblock=512 if other else 1024)}


def autotuned_step(number: int) -> dict[str, Any]:
    each = autotuned(number)
    return each | {"us": each["us"] * (1.005 if number >= 20 else 1)}


def new_configuration(number: int) -> dict[str, Any]:
    return {"us": 223.0, "kernels": mlp_kernels(xblock=512)} if number >= 20 else {}


def other_kernels(number: int) -> dict[str, Any]:
    return {"us": 223.0, "kernels": mlp_kernels()[:3]} if 15 <= number < 25 else {}


def new_host_each_week(number: int) -> dict[str, Any]:
    speed = noise(number // 7, "speed", 0.1)
    times = {"host": (50 * speed,), "end_to_end": (300 * speed,)}
    return {"us": 100.0, "host_control_us": 14 * speed * noise(number, "host", 0.01)} | times


def busy_gpu(number: int) -> dict[str, Any]:
    return new_host_each_week(number) | {"us": 205.0, "end_to_end": (300.0,)}


def drift(number: int) -> dict[str, Any]:
    return {"us": 205 * 1.00104**number}


def point(day: str, before: float, after: float) -> str:
    change = f"{100 * (after / before - 1):+.1f}"
    return f"{day}  GPU {HERE}  {before} -> {after} us ({change} %), commit (unknown) -> (unknown)"


@pytest.mark.parametrize(
    ("measured", "timer", "corrected", "shifts"),
    [
        (steady, "device", "", []),
        (two_speeds, "device", "GPU speed", ["none"]),
        (unrelated_speed, "device", "", []),
        (other_gemm, "device", "", [point("2026-01-25", 205.0, 207.0)]),
        (autotuned, "device", "launch configuration", ["none"]),
        (autotuned_step, "device", "launch configuration", [point("2026-01-25", 205.0, 206.0)]),
        (new_configuration, "device", "", [point("2026-01-25", 205.0, 223.0)]),
        (other_kernels, "device", "", [point("2026-01-30", 223.0, 205.0), point("2026-01-20", 205.0, 223.0)]),
        (new_host_each_week, "dispatch", "host speed", ["none"]),
        (new_host_each_week, "latency", "host speed", ["none"]),
        (busy_gpu, "latency", "", []),
        (drift, "device", "", [f"2026-01-05  GPU {HERE}  drift: +0.10 % a night for 40 nights (+4.1 %)"]),
    ],
)
def test_changes_of_the_machine_are_corrected(
    history: History, tmp_path: Path, measured: Measured, timer: str, corrected: str, shifts: list[str]
) -> None:
    fill(history, measured)
    _, out, _ = history.show("mlp", "--timer", timer, "--html", str(tmp_path / "x.html"))
    text = re.sub(r"\n {6}", " ", out)  # wrapped lines
    found = re.search(r"Change points \(advisory(?:; corrected for (.*))?\):\n((?:    .*\n)*)", text)
    assert [line.strip() for line in found[2].splitlines()] == shifts if found else shifts == []
    assert (found[1] or "" if found else "") == corrected
    assert all(each in html.unescape((tmp_path / "x.html").read_text()) for each in shifts)


def test_schema_1_is_read_and_not_corrected(history: History) -> None:
    fill(history, autotuned)
    for key, told in list(history.entries().items()):
        for name in ("kernels", "configuration", "gemm_us", "gemm_kernel", "copy_us", "copy_kernel"):
            del told["rows"][name]
        for timer in ("device_time", "end_to_end", "host_dispatch"):
            for name in ("low", "high", "host_us"):
                del told["rows"][timer][name]
        content = json.dumps(told | {"schema_version": 1}).encode()
        stamp, gpu, _ = Path(key).name.split("-")
        (history.root / f"{stamp}-{gpu}-{sha256(content).hexdigest()[:16]}.v1.json").write_bytes(content)
    assert "corrected for launch configuration" in history.show("mlp")[1]  # the newer schema counts
    for path in history.root.rglob("*.v2.json"):
        path.unlink()
    out = history.show("mlp")[1]
    assert (f"{NIGHTS} runs" in out, "Change points (advisory):" in out) == (True, True)
