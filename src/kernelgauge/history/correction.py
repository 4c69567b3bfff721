"""Correct times for the speed of the machine and for the launch configuration, before change points are looked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..run import Timer
from .changepoints import LEAST_NIGHTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values: TypeAlias = "NDArray[np.float64]"
    Codes: TypeAlias = "NDArray[np.int64]"  # a number for each name

__all__ = ["Context", "correct"]

# Logarithm. On one H200 a reference kernel spreads by 0.1 % between nine processes (benchmarks/data/nine_processes). Two
# nights then differ by 0.14 %; a difference of three times as much is a change of the GPU's speed.
_GPU_MOVED = 0.004
_IDLE = 0.5  # share of a latency: a GPU that computes for less than this waits for the host


@dataclass(frozen=True)
class Context:
    """What else was measured with the times of a series. Each array has a value for each night; NaN: unknown."""

    device_us: Values
    host_us: Values  # of the host reference
    gemm_us: Values  # of the reference kernels
    copy_us: Values
    gemm_kernel: Codes
    copy_kernel: Codes
    kernels: Codes
    configuration: Codes


def correct(times_us: Sequence[float], context: Context, timer: Timer) -> tuple[Values, tuple[str, ...]]:
    """Return the logarithms of the times, corrected, and what they are corrected for."""
    logs = np.log(np.asarray(times_us, dtype=np.float64))
    busy = (context.device_us / np.exp(logs))[np.isfinite(context.device_us)]
    if timer is Timer.HOST or (timer is Timer.END_TO_END and (not len(busy) or np.median(busy) < _IDLE)):
        host = _relative(context.host_us, np.zeros(len(logs), np.int64))
        return logs - host, ("host speed",) if host.any() else ()
    uncorrected = logs
    for reference_us, kernel in ((context.gemm_us, context.gemm_kernel), (context.copy_us, context.copy_kernel)):
        logs = _at_one_speed(logs, _relative(reference_us, kernel), kernel, context.configuration)
    at_one_speed = logs
    logs = _in_one_configuration(logs, context.kernels, context.configuration)
    found = {"launch configuration": logs is not at_one_speed, "GPU speed": at_one_speed is not uncorrected}
    return logs, tuple(name for name, is_corrected in found.items() if is_corrected)


def _relative(reference_us: Values, kernel: Codes) -> Values:
    """Return logarithms of the ratio to the median of the same kernel; 0 where unknown."""
    logs = np.log(reference_us)
    known = np.isfinite(logs)
    for name in np.unique(kernel[known]):
        logs[kernel == name] -= np.median(logs[known & (kernel == name)])
    return np.nan_to_num(logs)


def _at_one_speed(logs: Values, speed: Values, kernel: Codes, configuration: Codes) -> Values:
    """Subtract the reference's speed, at the slope that the series followed it with.

    The slope is the median over all pairs of nights, one to three apart, between which the GPU's speed changed.
    """
    slopes = []
    for nights in range(1, LEAST_NIGHTS + 1):
        same = (kernel[nights:] == kernel[:-nights]) & (configuration[nights:] == configuration[:-nights])
        change, reference = logs[nights:] - logs[:-nights], speed[nights:] - speed[:-nights]
        moved = same & (np.abs(reference) > _GPU_MOVED)
        slopes.extend(change[moved] / reference[moved])
    slope = float(np.clip(np.median(slopes), 0, 1)) if slopes else 0.0
    return logs - slope * speed if slope else logs


def _in_one_configuration(logs: Values, kernels: Codes, configuration: Codes) -> Values:
    """Move each configuration to the level of a more frequent one that it alternates with.

    The two run the same kernels. One that replaces another for good may be a change of the code: it stays as it is.
    """
    names, counts = np.unique(configuration, return_counts=True)
    aligned: list[np.int64] = []
    for name in names[np.argsort(-counts, kind="stable")]:
        for other in aligned:
            nights = np.flatnonzero((configuration == name) | (configuration == other))
            mine = configuration[nights] == name
            switches = np.flatnonzero(mine[1:] != mine[:-1])
            if len(switches) > 1 and len(set(kernels[nights])) == 1:
                changes = np.diff(logs[nights])[switches] * np.where(mine[switches], -1, 1)
                logs = np.where(configuration == name, logs - np.median(changes), logs)
                break
        if (configuration == name).sum() > 1:
            aligned.append(name)
    return logs
