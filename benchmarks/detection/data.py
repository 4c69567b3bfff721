"""What is slowed down and by how much, what each process measured, and the file that holds it.

A recording is an xz file: a line of JSON, then every time in whole nanoseconds. `arrays` of that
line names each array by ``[process, "WORKLOAD/LEVEL/METHOD", shape]``, in the order of the times.
`processes` has the rest of each process: at least ``gpu`` (a hash, the same for one GPU),
``process`` (its number) and ``wall_seconds`` (by the same keys). Of METHOD

    ours-device     (replicate, iteration): summed kernel durations of one call
    ours-host       (replicate, 2, call): dispatch time, and the host's control
    any other       1-D, a peer's values

Along the last axis the shortest is first: nobody reads the order of calls, and sorted they take a
fraction of the bytes. The times are unsigned 32-bit differences within their array, modulo 2**32
and by bytes: all lowest bytes first.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelgauge.run import Timer, summarize

Values = NDArray[np.float64]
Kind = Literal["none", "device", "host"]

# those that are judged here, as levels name them
TIMERS = {"device": Timer.DEVICE, "host": Timer.HOST}
OURS = {"device": "ours-device", "host": "ours-host"}  # by timer
_NANOSECONDS = 1000.0


@dataclass(frozen=True, order=True)
class Level:
    """An injected slowdown, in percent of the unslowed workload's own GPU time or dispatch time."""

    kind: Kind
    percent: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "device", "host") or (self.kind == "none") != (
            self.percent == 0
        ):
            raise ValueError(
                f"a level is none, or device or host with a percentage: got {self.kind} {self.percent}"
            )

    def __str__(self) -> str:
        return "none" if self.kind == "none" else f"{self.kind}+{self.percent:g}%"

    @classmethod
    def parse(cls, text: str) -> Level:
        """Parse ``none``, ``device+0.5%`` or ``host+10%``. Raise ValueError for anything else."""
        if text == "none":
            return NONE
        kind, plus, percent = text.partition("+")
        if kind not in ("device", "host") or not plus or not percent.endswith("%"):
            raise ValueError(f"unknown level {text!r}: expected none, device+0.5% or host+10%")
        return cls(kind, float(percent[:-1]))  # type: ignore[arg-type]  # one of the two


NONE = Level("none")
_LINEAR = "linear-eager-bf16-1024x32x64"
_MLP_LEVELS = [Level("device", 0.5), Level("device", 1), Level("device", 2), Level("host", 10)]

# Three MLPs of 200 us and more, and a linear of 3 us. None of them needs a package beside torch.
LEVELS: dict[str, list[Level]] = {
    **{
        f"mlp-{variant}-64x128x768x3072": _MLP_LEVELS
        for variant in ("eager-bf16", "compiled-bf16", "eager-fp16")
    },
    _LINEAR: [Level("device", 3), Level("host", 10)],
}
WORKLOAD_IDS = tuple(LEVELS)

# 3 % of 3 us are less than the shortest kernel takes: here the unslowed workload launches a
# spinning kernel too.
BEHIND_A_SPIN = frozenset({_LINEAR})


class Key(NamedTuple):
    """What an array holds."""

    workload: str
    level: Level
    method: str

    def __str__(self) -> str:
        return f"{self.workload}/{self.level}/{self.method}"

    @classmethod
    def parse(cls, text: str) -> Key:
        workload, level, method = text.split("/")
        return cls(workload, Level.parse(level), method)


@dataclass(frozen=True, eq=False)
class Process:
    """One process on one GPU: everything that it measured, in microseconds."""

    gpu: str
    number: int
    samples: Mapping[Key, Values]
    meta: Mapping[str, Any]

    def at(self, level: Level = NONE) -> Measured:
        return Measured(self, level)

    @property
    def levels(self) -> list[Level]:
        return sorted({key.level for key in self.samples})

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(key.workload for key in self.samples))


@dataclass(frozen=True, eq=False)
class Measured:
    """One process at one level: what a method judges, of a baseline or of a test."""

    process: Process
    level: Level

    @property
    def gpu(self) -> str:
        return self.process.gpu

    def values(self, workload: str, method: str) -> Values | None:
        """Return the times; None if this process did not measure them."""
        return self.process.samples.get(Key(workload, self.level, method))


def load(path: Path) -> list[Process]:
    """Read the processes of a recording."""
    head, _, planes = lzma.decompress(path.read_bytes()).partition(b"\n")
    said = json.loads(head)
    differences = (
        np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(4, -1).T).view("<u4").ravel()
    )
    samples: dict[int, dict[Key, Values]] = {meta["process"]: {} for meta in said["processes"]}
    start = 0
    for number, key, shape in said["arrays"]:
        end = start + math.prod(shape)
        nanoseconds = np.cumsum(differences[start:end], dtype=np.uint32)
        samples[number][Key.parse(key)] = _calls_last(nanoseconds.reshape(shape)) / _NANOSECONDS
        start = end
    return [
        Process(meta["gpu"], meta["process"], samples[meta["process"]], meta)
        for meta in said["processes"]
    ]


def load_all(paths: Iterable[Path]) -> list[Process]:
    """Read several recordings. Processes get new numbers where two recordings have the same."""
    found = [process for path in paths for process in load(path)]
    if len({process.number for process in found}) < len(found):
        found = [
            replace(process, number=number, meta={**process.meta, "process": number})
            for number, process in enumerate(found)
        ]
    return sorted(found, key=lambda process: process.number)


def _calls_last(values: NDArray[Any]) -> NDArray[Any]:
    """Swap the calls of dispatch times and the host's control."""
    return values.swapaxes(1, 2) if values.ndim == 3 else values


def replicate_times_us(device_us: Values) -> list[float]:
    """Return the GPU time of each replicate as the suite summarizes it; `device_us`: (replicate,
    iteration).
    """
    return [summarize(calls, Timer.DEVICE.timing.statistic) for calls in device_us]


def dispatch_in_controls(host_us: Values) -> float:
    """Return a dispatch time in units of the host's control: the median of the replicates' ratios
    of lower deciles.

    `host_us`: (replicate, call, 2). The ratio is the same on a host that is slower as a whole.
    """
    deciles = np.quantile(host_us, 0.1, axis=1)
    return float(np.median(deciles[:, 0] / deciles[:, 1]))


def by_gpu(processes: Iterable[Process]) -> dict[str, list[Process]]:
    """Return the processes of each GPU."""
    found: dict[str, list[Process]] = {}
    for process in processes:
        found.setdefault(process.gpu, []).append(process)
    return found
