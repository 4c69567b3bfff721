"""Change points: steps are found, noise and a bad night are not. All random numbers come from fixed seeds."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from kernelgauge.errors import ResultsError
from kernelgauge.history import changepoints as module
from kernelgauge.history.changepoints import LEAST_NIGHTS, changepoints

pytest.importorskip("ruptures")


def night_after_night(seed: int, nights: int, noise: float, *, us: float = 200.0) -> np.ndarray:
    return us * np.exp(noise * np.random.default_rng(seed).normal(size=nights))


def stepped(seed: int, step: float, noise: float, *, at: int = 60, nights: int = 120) -> list[float]:
    values = night_after_night(seed, nights, noise)
    values[at:] *= 1 + step
    return list(values)


@pytest.mark.parametrize(("step", "noise"), [(0.005, 0.0015), (0.01, 0.003), (0.05, 0.015), (-0.01, 0.003)])
def test_a_step_of_three_times_the_noise_is_found_where_it_is(step: float, noise: float) -> None:
    found = [changepoints(stepped(seed, step, noise)) for seed in range(50)]
    assert sum(len(each) == 1 and abs(each[0] - 60) <= 1 for each in found) >= 45


@pytest.mark.parametrize("nights", [6, 8, 10, 12, 20, 30, 100, 365])
@pytest.mark.parametrize("noise", [0.0001, 0.002, 0.03])
def test_noise_alone_has_a_change_point_in_one_series_of_a_hundred_at_most(nights: int, noise: float) -> None:
    alarms = sum(bool(changepoints(list(night_after_night(seed, nights, noise)))) for seed in range(1000))
    assert alarms <= 10


@pytest.mark.parametrize("outlier", [0.5, 0.95, 1.05, 1.3, 10.0])
@pytest.mark.parametrize("at", [0, 1, 2, 30, 57, 58, 59])
@pytest.mark.parametrize("bad_nights", [1, 2])
def test_one_or_two_bad_nights_are_no_change_point(outlier: float, at: int, bad_nights: int) -> None:
    for seed in range(10):
        values = night_after_night(seed, 60, 0.002)
        values[at : at + bad_nights] *= outlier
        assert changepoints(list(values)) == []


def test_a_new_level_is_seen_from_its_third_night_on() -> None:
    for seed in range(20):
        values = night_after_night(seed, 60, 0.002)
        values[-LEAST_NIGHTS:] *= 1.05
        assert changepoints(list(values)) == [60 - LEAST_NIGHTS]


def test_several_steps_are_told_apart_with_a_bad_night_between_them() -> None:
    values = night_after_night(3, 200, 0.002)
    values[50:120] *= 1.02
    values[120:] *= 0.99
    values[80] *= 1.4
    assert changepoints(list(values)) == [50, 120]


def test_a_bad_night_at_a_step_belongs_to_the_nearer_level() -> None:
    for night, first in ((30, 30), (29, 29)):
        values = np.asarray(stepped(2, 0.05, 0.002, at=30, nights=60))
        values[night] *= 1.04
        assert changepoints(list(values)) == [first]


def test_a_step_is_the_same_at_every_scale() -> None:
    values = np.asarray(stepped(1, 0.02, 0.002))
    assert changepoints(list(values)) == changepoints(list(values / 1000)) == changepoints(list(values * 1e6)) == [60]


def test_equal_values_and_a_rounded_step_of_them() -> None:
    assert changepoints([200.0] * 365) == []
    assert changepoints([200.0] * 30 + [202.0] * 30) == [30]


@pytest.mark.parametrize("nights", range(2 * LEAST_NIGHTS))
def test_too_few_nights_have_none(nights: int) -> None:
    assert changepoints([100.0, 200.0, 300.0, 400.0, 500.0][:nights]) == []


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        changepoints([1.0] * 10 + [value])


def test_the_compiled_part_and_the_public_way_of_ruptures_agree() -> None:
    direct = module._segmentation()
    assert direct is not module._public  # this version has it where it is looked for
    for seed in range(60):
        values = np.log(stepped(seed, 0.01 * (seed % 4), 0.003, at=5 + seed, nights=70 + seed))
        for penalty in (1e-5, 1e-4, 1e-3):
            found = direct(values, penalty)
            assert found == module._public(values, penalty)
            assert all(after - before >= LEAST_NIGHTS for before, after in pairwise([0, *found, len(values)]))


def test_the_public_way_is_taken_where_the_compiled_part_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_compiled", lambda folders: None)
    module._segmentation.cache_clear()
    try:
        assert module._segmentation() is module._public
        assert changepoints(stepped(0, 0.02, 0.002)) == [60]
    finally:
        module._segmentation.cache_clear()


def test_scipy_is_not_waited_for() -> None:
    script = (
        "import sys; from kernelgauge.history.changepoints import changepoints; "
        "assert changepoints([1.0] * 9 + [2.0] * 9) == [9]; print('scipy' in sys.modules, 'ruptures' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "False False\n"


def test_without_ruptures_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    module._segmentation.cache_clear()
    try:
        with pytest.raises(ResultsError, match="ruptures") as caught:
            changepoints([1.0] * 10)
        assert caught.value.next_command == "pip install 'kernelgauge[history]'"
    finally:
        module._segmentation.cache_clear()
