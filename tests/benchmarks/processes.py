"""Processes as the detection benchmark records them, made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from detection.data import NONE, Key, Level, Measured, Process

HALF, FIVE, TEN = Level("device", 0.5), Level("device", 5), Level("host", 10)


def process(
    number: int,
    gpu: str = "a",
    *,
    us: float = 100.0,
    levels: Sequence[Level] = (FIVE,),
    passes: Sequence[float] = (1.0,) * 4,
    achieved: Mapping[Level, float] = MappingProxyType({}),
    **meta: Any,
) -> Process:
    """Return two workloads, slower by such a factor in each of the passes.

    A device level shifts kernel durations and what peers read, a host level the dispatch time. `achieved`: by which
    factor a level does so, if not by its own percentage.
    """
    chance = np.random.default_rng(number)
    samples = {}
    for workload in ("mlp-eager", "linear-eager"):
        for level in (NONE, *levels):
            factor = achieved.get(level, 1 + level.percent / 100)
            device = us * (factor if level.kind == "device" else 1) * (1 + chance.normal(0, 0.0005, (len(passes), 20)))
            device *= np.array(passes)[:, None]
            host = 10 * (factor if level.kind == "host" else 1) * (1 + chance.normal(0, 0.001, (len(passes), 20)))
            samples[Key(workload, level, "ours-device")] = device
            samples[Key(workload, level, "ours-host")] = np.stack([host, np.ones_like(host)], axis=-1)
            for method in ("do_bench", "blocked_autorange", "pytest_benchmark"):
                samples[Key(workload, level, method)] = device.ravel()
    return Process(gpu=gpu, number=number, samples=samples, meta={"gpu": gpu, "process": number, **meta})


def above_one_percent(
    workload: str, timer: str, baseline_processes: Sequence[Measured], test_process: Measured, /
) -> bool:
    def typical(measured: Measured) -> float:
        values = measured.values(workload, f"ours-{timer}")
        return float(np.median(values[..., 0] if timer == "host" else values))

    return typical(test_process) > 1.01 * float(np.median([typical(one) for one in baseline_processes]))
