"""The raw data: one .npz for each process, and one archive of many.

Keys of a process's file: ``WORKLOAD/LEVEL/METHOD``, values in microseconds, and ``meta``, a JSON object with at least
``gpu`` (a hash, the same for one GPU), ``process`` (a number) and ``wall_seconds`` (by the same keys). Of METHOD

    do_bench, blocked_autorange, pytest_benchmark   1-D, in order of measurement
    ours-device                                     (replicate, iteration): summed kernel durations of one call
    ours-host                                       (replicate, call, 2): dispatch time, and the host's control

In an archive the keys of process 3 start with ``3/``, and values are whole nanoseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelgauge.run import Timer, summarize

from .levels import NONE, Level

__all__ = [
    "OURS",
    "TIMERS",
    "Key",
    "Measured",
    "Process",
    "Values",
    "by_gpu",
    "dispatch_in_controls",
    "load",
    "load_all",
    "replicate_times_us",
    "save",
    "save_archive",
]

Values = NDArray[np.float64]

TIMERS = {"device": Timer.DEVICE, "host": Timer.HOST}  # those that are judged here, as levels name them
OURS = {"device": "ours-device", "host": "ours-host"}  # by timer
_NANOSECONDS = 1000.0
_LONGEST = 2.0**32


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
    """One process on one GPU: everything that it measured."""

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
    """One process at one level: what a judge is given, of a baseline or of a test."""

    process: Process
    level: Level

    @property
    def gpu(self) -> str:
        return self.process.gpu

    def values(self, workload: str, method: str) -> Values | None:
        """None: not measured by this process."""
        return self.process.samples.get(Key(workload, self.level, method))


def save(path: Path, samples: Mapping[Key, Values], meta: Mapping[str, Any]) -> None:
    """Written aside and moved into place: a file that is there is whole."""
    arrays: dict[str, Any] = {str(key): np.asarray(values, dtype=np.float64) for key, values in samples.items()}
    _write(path, {**arrays, "meta": np.array(json.dumps(meta))})


def save_archive(path: Path, processes: Sequence[Process]) -> None:
    """All processes in one file, small enough to keep: whole nanoseconds, compressed."""
    if len({process.number for process in processes}) != len(processes):
        raise ValueError(f"two processes have one number: {sorted(process.number for process in processes)}")
    arrays: dict[str, Any] = {}
    for process in processes:
        for key, values in process.samples.items():
            nanoseconds = np.rint(values * _NANOSECONDS)
            if not (nanoseconds < _LONGEST).all():  # NaN fails too
                raise ValueError(f"process {process.number}, {key}: a time that is no number, or longer than 4 s")
            arrays[f"{process.number}/{key}"] = nanoseconds.astype(np.uint32)
        arrays[f"{process.number}/meta"] = np.array(json.dumps(dict(process.meta)))
    _write(path, arrays)


def load(path: Path) -> list[Process]:
    """The processes of a file: one, or those of an archive."""
    with np.load(path, allow_pickle=False) as file:
        if "meta" in file:
            return [_process(file["meta"], {Key.parse(name): file[name] for name in file if name != "meta"})]
        samples: dict[str, dict[Key, Values]] = {}
        for name in file:
            number, _, rest = name.partition("/")
            if rest != "meta":
                samples.setdefault(number, {})[Key.parse(rest)] = file[name] / _NANOSECONDS
        return [_process(file[f"{number}/meta"], arrays) for number, arrays in samples.items()]


def load_all(paths: Iterable[Path]) -> list[Process]:
    """Load the processes of several files. Those of several recordings, which have the same numbers, get new ones."""
    found = [process for path in paths for process in load(path)]
    if len({process.number for process in found}) < len(found):
        found = [replace(process, number=number) for number, process in enumerate(found)]
    return sorted(found, key=lambda process: process.number)


def replicate_times_us(device_us: Values) -> list[float]:
    """Of each replicate, in order, what the suite takes for its device time; `device_us`: (replicate, iteration)."""
    return [summarize(calls, Timer.DEVICE.statistic) for calls in device_us]


def dispatch_in_controls(host_us: Values) -> float:
    """Return a dispatch time in units of the host's control: the median of the replicates' ratios of lower deciles.

    `host_us`: (replicate, call, 2). The ratio is the same on a host that is slower as a whole.
    """
    deciles = np.quantile(host_us, 0.1, axis=1)
    return float(np.median(deciles[:, 0] / deciles[:, 1]))


def by_gpu(processes: Iterable[Process]) -> dict[str, list[Process]]:
    found: dict[str, list[Process]] = {}
    for process in processes:
        found.setdefault(process.gpu, []).append(process)
    return found


def _process(meta: NDArray[Any], samples: dict[Key, Values]) -> Process:
    said = json.loads(str(meta))
    return Process(gpu=said["gpu"], number=said["process"], samples=samples, meta=said)


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with aside.open("wb") as file:
        np.savez_compressed(file, **arrays)
    aside.replace(path)
