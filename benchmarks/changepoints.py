"""False change points in a year of nightly looks, and how late a real change is found. Simulated, with fixed seeds.

    python benchmarks/changepoints.py                20 series of 365 nights for each row: three minutes on one core
    python benchmarks/changepoints.py --series 2     a first look

Every night, the script looks at the series so far as `kernelgauge history show` does. A change point or drift counts once: when it is
new, three nights or more from the earlier ones. The tables go to docs/history.md. All series are simulated, with lognormal noise
of the size that was measured on H200s: 0.06 % from night to night for an MLP, 0.1 % for the reference GEMM, 1.5 % for dispatch
and for the host reference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge.results.history import LEAST_NIGHTS, Shift, correct, find_shifts
from kernelgauge.run import Timer

NIGHTS = 365
MLP, GEMM, DISPATCH, HOST = 0.0006, 0.001, 0.015, 0.015  # standard deviations from night to night
CHANGE = 100  # the night of a real change
NAMES = ("gemm_kernel", "kernels", "configuration")

Series: TypeAlias = "tuple[dict[str, np.ndarray[Any, Any]], Timer]"  # the columns of `correct`
Make: TypeAlias = "Callable[[np.random.Generator], Series]"


def quiet(random: np.random.Generator, noise: float = MLP) -> Series:
    """Simulate an MLP of 200 us on a steady machine."""
    same = np.zeros(NIGHTS, dtype=np.int64)
    times = {
        "device_us": np.full(NIGHTS, 200.0),
        "host_us": np.full(NIGHTS, 14.0),
        "gemm_us": 150 * np.exp(GEMM * random.normal(size=NIGHTS)),
        "us": 200 * np.exp(noise * random.normal(size=NIGHTS)),
    }
    return {**times, "gemm_kernel": same, "kernels": same, "configuration": same}, Timer.DEVICE


def two_speeds(random: np.random.Generator, nights: float = 10) -> Series:
    """Simulate a GPU that changes its speed every `nights` nights on average: 0.67 % in the GEMM, 0.6 % in the MLP."""
    series, timer = quiet(random)
    slow = np.cumsum(random.random(NIGHTS) < 1 / nights) % 2
    speeds = {"us": series["us"] * np.exp(0.006 * slow), "gemm_us": series["gemm_us"] * np.exp(0.0067 * slow)}
    return series | speeds, timer


def autotuner(random: np.random.Generator, share: float) -> Series:
    """205 us, or 223 us in this share of the nights."""
    series, timer = quiet(random)
    other = random.random(NIGHTS) < share
    return series | {"us": series["us"] * (223 / 205) ** other, "configuration": other.astype(np.int64)}, timer


def new_host_each_week(random: np.random.Generator) -> Series:
    """Dispatch on a host that changes its speed each week, sd 5 %; it follows the reference at a slope of 1.08."""
    series, _ = quiet(random, DISPATCH)
    speed = np.repeat(0.05 * random.normal(size=NIGHTS // 7 + 1), 7)[:NIGHTS]
    host_us = 14 * np.exp(speed + HOST * random.normal(size=NIGHTS))
    return series | {"us": series["us"] * np.exp(1.08 * speed), "host_us": host_us}, Timer.HOST


def changed(make: Make, *, step: float = 0.0, drift: float = 0.0, nights: int = NIGHTS) -> Make:
    """Add a step in night 100, or a drift from there on for so many nights."""

    def made(random: np.random.Generator) -> Series:
        series, timer = make(random)
        late = np.arange(NIGHTS) - CHANGE
        return series | {"us": series["us"] * np.exp(step * (late >= 0) + drift * np.clip(late, 0, nights))}, timer

    return made


def uncorrected(series: Series) -> Series:
    columns, timer = series
    unknown, same = np.full(NIGHTS, np.nan), np.zeros(NIGHTS, dtype=np.int64)
    return dict.fromkeys(columns, unknown) | {"us": columns["us"]} | dict.fromkeys(NAMES, same), timer


def nightly_shifts(series: Series) -> list[list[Shift]]:
    """Return the change points and drifts that each night's look finds."""
    columns, timer = series
    so_far = [
        correct({name: column[:night] for name, column in columns.items()}, timer)[0] for night in range(1, NIGHTS + 1)
    ]
    return find_shifts(so_far)


def new_points(looked: list[list[Shift]]) -> list[tuple[int, int]]:
    """Return the night of the look, and the place, of each change point or drift that is new."""
    found: list[tuple[int, int]] = []
    for night, shifts in enumerate(looked):
        for each in shifts:
            if all(abs(each.index - place) >= LEAST_NIGHTS for _, place in found):
                found.append((night, each.index))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--series", type=int, default=20)
    seeds = range(parser.parse_args().series)
    print("| nothing changes | change points a year | without the correction |\n|---|---|---|")
    for name, make in QUIET.items():
        series = [make(np.random.default_rng(seed)) for seed in seeds]
        means = [
            np.mean([len(new_points(nightly_shifts(each))) for each in some])
            for some in (series, map(uncorrected, series))
        ]
        print(f"| {name} | {means[0]:.2f} | {means[1]:.1f} |", flush=True)
    print("\n| step | found | nights until then: median (90 %) | others a year |\n|---|---|---|---|")
    for name, make in STEPS.items():
        delays, others = [], 0
        for seed in seeds:
            found = new_points(nightly_shifts(make(np.random.default_rng(seed))))
            right = [night for night, place in found if abs(place - CHANGE) < LEAST_NIGHTS]
            delays += [right[0] - CHANGE + 1] if right else []
            others += len(found) - bool(right)
        late = f"{median(delays):g} ({np.quantile(delays, 0.9):.0f})" if delays else "-"
        print(f"| {name} | {len(delays)} of {len(seeds)} | {late} | {others / len(seeds):.2f} |", flush=True)
    print(
        "\n| drift | first reported, as a step or drift | first reported as a drift | change points on the way | in the last night |"
    )
    print("|---|---|---|---|---|")
    for name, make in DRIFTS.items():
        looked = [nightly_shifts(make(np.random.default_rng(seed))) for seed in seeds]
        first = [min(night for night, _ in new_points(each)) - CHANGE + 1 for each in looked]
        line = [
            next(night for night, some in enumerate(each) if some and some[-1].nights) - CHANGE + 1 for each in looked
        ]
        many = np.mean([len(new_points(each)) for each in looked])
        last = [
            (sum(some.nights > 0 for some in each[-1]), sum(some.nights == 0 for some in each[-1])) for each in looked
        ]
        drifts, steps = np.mean(last, axis=0)
        print(
            f"| {name} | night {median(first):g} | night {median(line):g} | {many:.1f} "
            f"| {drifts:.2f} drifts, {steps:.2f} steps |",
            flush=True,
        )


QUIET: dict[str, Make] = {
    "independent noise of 0.06 % (an MLP)": quiet,
    "GPU of two speeds, stays 10 nights on average": two_speeds,
    "GPU of two speeds, stays 2 nights on average": partial(two_speeds, nights=2),
    "autotuner: 223 us in 9 of 28 nights, else 205 us": partial(autotuner, share=9 / 28),
    "autotuner: 223 us in 1 of 12 nights": partial(autotuner, share=1 / 12),
    "dispatch, host of another speed each week (sd 5 %)": new_host_each_week,
}
STEPS: dict[str, Make] = {
    **{f"MLP {100 * step:+.1f} %": changed(quiet, step=step) for step in (0.001, 0.002, 0.005, 0.01)},
    "MLP +0.5 %, GPU of two speeds": changed(two_speeds, step=0.005),
    "MLP +0.5 %, autotuner 9 of 28": changed(partial(autotuner, share=9 / 28), step=0.005),
    "dispatch +5 %, host of another speed each week": changed(new_host_each_week, step=0.05),
}
DRIFTS: dict[str, Make] = {
    "MLP +0.1 % a night for 40 nights": changed(quiet, drift=0.001, nights=40),
    "MLP +0.01 % a night for 265 nights": changed(quiet, drift=0.0001),
    "MLP +0.1 % a night for 40 nights, GPU of two speeds": changed(two_speeds, drift=0.001, nights=40),
}

if __name__ == "__main__":
    main()
