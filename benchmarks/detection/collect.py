"""One process's data: every workload, at some levels, by every method. Run once per process, on the visible GPU.

    python benchmarks/detection/collect.py --out p3.npz --process 3 --seed 3 --seconds 1.2 --levels none,device+0.5%
    python benchmarks/detection/collect.py --out p3.npz --process 3 --seed 3 --levels-per-process 2 --slot 4
    python benchmarks/detection/collect.py --compile-only      fills the compilers' caches

A level is a percentage of what the unslowed twin takes, as our own timers read it in the same process before anything
else is measured. Building and the first call, which compiles, are outside every method's time; all that a method does
itself, warm-up and fresh allocations, is inside.

Ours measures as the suite does: passes go round the control pair, all workloads and all levels, one replicate each, until
every one has had its time on average. The peers measure one thing after the other, after a rest each: of each workload
the unslowed twin and the first levels. Who comes first, and the order of everything, is drawn by the seed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

# As kernelgauge sets it: else CUPTI stays attached after our profiler sessions and slows the peers' launches.
os.environ.setdefault("TEARDOWN_CUPTI", "1")
_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / folder) for folder in ("src", "perf", "benchmarks")]

import msgspec
import numpy as np

from detection.data import OURS, Key, Values, replicate_times_us, save
from detection.injected import twin
from detection.levels import LEVELS, NONE, SETTLE_S, WORKLOAD_IDS, Level, chosen_levels
from detection.peers import METHODS, Call, Timed
from kernelgauge import Workload
from kernelgauge.measure.device import Device, choose_device
from kernelgauge.measure.instance import Instance, build, first_call

CallBuilder = Callable[[int], Instance]


class Replicates(Protocol):
    """`detection.ours.Replicates`, or a stand-in for it."""

    def take(self) -> None: ...

    def values(self) -> tuple[Values, Values]: ...

    @property
    def clocks_mhz(self) -> list[float | None]: ...


ALONE_S = 0.4  # at most, of what only sets how much is injected
_OURS = "ours"  # in wall_seconds: one measurement gives both timers


@dataclass
class Collected:
    """What one process has measured so far."""

    samples: dict[Key, Values] = field(default_factory=dict)
    wall_seconds: dict[str, float] = field(default_factory=dict)
    injected_us: dict[str, dict[str, float]] = field(default_factory=dict)
    control_pair_us: dict[str, list[float]] = field(default_factory=dict)
    clocks_mhz: dict[str, list[float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One workload at one level, built and compiled."""

    workload: str
    level: Level
    slowed: Workload
    instance: Instance
    for_peers: bool

    def key(self, method: str) -> Key:
        return Key(self.workload, self.level, method)


@dataclass(frozen=True)
class Collector:
    """How one process measures. `methods` and `replicates` stand for the peers and for ours.

    `peer_levels`: at how many of a workload's levels the peers measure, the unslowed twin besides.
    """

    device: Device
    seconds: float
    peer_levels: int
    replicates: Callable[[Device, CallBuilder], Replicates]
    methods: Mapping[str, Callable[[Call, float], Timed]]
    chance: random.Random

    def collect(self, workloads: Sequence[Workload], levels_of: Callable[[str], Sequence[Level]]) -> Collected:
        collected = Collected()
        entries = [
            entry for workload in workloads for entry in self._entries(workload, levels_of(workload.id), collected)
        ]
        parts = [self._measure_ours, self._measure_peers]
        self.chance.shuffle(parts)  # whoever comes second finds a warmer machine
        for measure in parts:
            measure(entries, collected)
        return collected

    def _entries(self, workload: Workload, levels: Sequence[Level], collected: Collected) -> Iterator[Entry]:
        device_us, host_us = self._own_times(workload)
        for place, level in enumerate(levels):
            injected = injected_us(level, device_us, host_us)
            collected.injected_us[f"{workload.id}/{level}"] = injected
            slowed = twin(workload, **injected)
            yield Entry(workload.id, level, slowed, ready(slowed, self.device), for_peers=place <= self.peer_levels)

    def _own_times(self, workload: Workload) -> tuple[float, float]:
        """Device and dispatch time of the unslowed twin: what levels are percentages of."""
        unslowed = twin(workload)
        with ready(unslowed, self.device).grad_mode():
            device_us, host_us = self.alone(unslowed)
        return float(np.median(device_us)), float(np.median(host_us[..., 0]))

    def alone(self, workload: Workload) -> tuple[Values, Values]:
        """One replicate after the other."""
        taken = self._of(workload)
        _until(min(self.seconds, ALONE_S), taken.take)
        return taken.values()

    def _measure_ours(self, entries: Sequence[Entry], collected: Collected) -> None:
        taken = [self._of(entry.slowed) for entry in entries]
        pair = {control.module: (ready(control, self.device), self._of(control)) for control in self.device.controls}
        spent_s = [0.0] * len(entries)
        order = list(range(len(entries)))
        chance = random.Random(self.chance.getrandbits(64))  # of its own: how many passes fit is the machine's

        def go_round() -> None:
            for instance, replicates in pair.values():
                with instance.grad_mode():
                    replicates.take()
            chance.shuffle(order)
            for place in order:
                start = time.perf_counter()
                with entries[place].instance.grad_mode():
                    taken[place].take()
                spent_s[place] += time.perf_counter() - start

        time.sleep(SETTLE_S)
        _until(self.seconds * (len(entries) + len(pair)), go_round)
        for name, (_, replicates) in pair.items():
            device_us, _ = replicates.values()
            collected.control_pair_us[name] = replicate_times_us(device_us)
            collected.clocks_mhz[name] = replicates.clocks_mhz
        for entry, replicates, seconds in zip(entries, taken, spent_s, strict=True):
            device_us, host_us = replicates.values()
            collected.wall_seconds[str(entry.key(_OURS))] = seconds
            collected.samples[entry.key(OURS["device"])] = device_us
            collected.samples[entry.key(OURS["host"])] = host_us
            collected.clocks_mhz[str(entry.key(_OURS))] = replicates.clocks_mhz

    def _measure_peers(self, entries: Sequence[Entry], collected: Collected) -> None:
        steps = [(entry, method) for entry in entries if entry.for_peers for method in self.methods]
        self.chance.shuffle(steps)
        for entry, method in steps:
            time.sleep(SETTLE_S)
            with entry.instance.grad_mode():
                timed = self.methods[method](entry.instance.call, self.seconds)
            collected.samples[entry.key(method)] = np.asarray(timed.values_us, dtype=np.float64)
            collected.wall_seconds[str(entry.key(method))] = timed.wall_seconds

    def _of(self, workload: Workload) -> Replicates:
        return self.replicates(self.device, lambda replicate: build(workload, self.device, replicate=replicate))


def _until(seconds: float, step: Callable[[], None]) -> None:
    """As many steps as fit, if each takes as long as those before; at least one."""
    started, done = time.perf_counter(), 0
    while not done or (time.perf_counter() - started) * (done + 1) / done <= seconds:
        step()
        done += 1


def ready(workload: Workload, device: Device) -> Instance:
    """Built, compiled and called once."""
    instance = build(workload, device)
    with instance.grad_mode():  # compiled code is for one mode
        first_call(instance)
    device.synchronize()
    return instance


def injected_us(level: Level, device_us: float, host_us: float) -> dict[str, float]:
    """The arguments of `injected.twin` for a level of a workload that takes so long by itself."""
    return {
        "device_us": level.percent / 100 * device_us if level.kind == "device" else 0.0,
        "host_us": level.percent / 100 * host_us if level.kind == "host" else 0.0,
    }


def metadata(device: Device) -> dict[str, Any]:
    """The machine, and which GPU of its kind it is."""
    return {"gpu": device.gpu, "machine": msgspec.to_builtins(device.fingerprint())}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--process", type=int, default=0, help="its number, in the data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.2, help="wall time of one measurement by one method")
    parser.add_argument("--levels", type=_levels, help="such as none,device+0.5%%,host+10%%: for every workload")
    parser.add_argument("--levels-per-process", type=int, default=2, help="without --levels: beside none and the bars")
    parser.add_argument(
        "--peer-levels", type=int, default=1, help="of those, the first: the peers measure at none and these"
    )
    parser.add_argument("--no-peers", action="store_true", help="measure by our own method alone")
    parser.add_argument("--slot", type=int, default=0, help="without --levels: which of each workload's own")
    parser.add_argument("--workload", choices=WORKLOAD_IDS, action="append", help="instead of all of them")
    parser.add_argument("--compile-only", action="store_true", help="call each workload once, and measure nothing")
    arguments = parser.parse_args()
    if arguments.out is None and not arguments.compile_only:
        parser.error("--out is missing")
    return arguments


def _levels(text: str) -> list[Level]:
    levels = [Level.parse(part) for part in text.split(",")]
    return list(dict.fromkeys([NONE, *levels]))  # nothing can be compared without the unslowed twin


def main() -> None:
    arguments = _arguments()
    from workloads import WORKLOADS

    by_id = {workload.id: workload for workload in WORKLOADS}
    workloads = [by_id[name] for name in arguments.workload or LEVELS]
    device = choose_device("cuda")
    device.host.patience_seconds = 0.0  # ours would wait for a faster host, in time that the peers do not have
    if arguments.compile_only:
        for workload in workloads:
            ready(twin(workload), device)
        return

    from detection import ours

    def levels_of(workload: str) -> Sequence[Level]:
        return arguments.levels or chosen_levels(workload, arguments.slot, arguments.levels_per_process)

    chance = random.Random(arguments.seed)
    methods = {} if arguments.no_peers else METHODS
    collector = Collector(device, arguments.seconds, arguments.peer_levels, ours.Replicates, methods, chance)
    collected = collector.collect(workloads, levels_of)
    meta = {
        "control_pair_us": collected.control_pair_us,
        "clocks_mhz": collected.clocks_mhz,
        **metadata(device),
        "process": arguments.process,
        "seed": arguments.seed,
        "seconds": arguments.seconds,
        "wall_seconds": collected.wall_seconds,
        "injected_us": collected.injected_us,
    }
    save(arguments.out, collected.samples, meta)


if __name__ == "__main__":
    main()
