"""One process's data: every workload, at its levels, by every method. Run once per process, on the visible GPU.

    python benchmarks/detection/collect.py --out p3.xz --process 3 --slot 3 --seconds 0.6
    python benchmarks/detection/collect.py --compile-only      fills the compilers' caches

First each level is calibrated: how many turns of the spinning kernel, and how many turns of the loop on the host, are so
many percent of what the unslowed workload takes in this process. Building, calibrating and the first call, which compiles,
count for no method; a method's own warm-up and fresh allocations count for it.

kernelgauge measures as in a suite: passes go round its reference kernels, all workloads and all levels, one replicate
each, until every one has had its time on average. The peers measure one thing after the other, after a pause each: the
unslowed workload and one level of it. The seed sets who comes first, and the order of everything.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean

# As kernelgauge sets it: else CUPTI stays attached after our profiler sessions and slows the peers' launches.
os.environ.setdefault("TEARDOWN_CUPTI", "1")
_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / folder) for folder in ("src", "perf", "benchmarks")]

import msgspec
import numpy as np
import torch

from detection.data import (
    BEHIND_A_SPIN,
    LEVELS,
    NONE,
    OURS,
    WORKLOAD_IDS,
    Key,
    Level,
    Process,
    Values,
    dispatch_in_controls,
    replicate_times_us,
    save,
)
from detection.injected import LEAST_TURNS, Injection, SpinTime, slowed
from kernelgauge import Timer, Workload
from kernelgauge.measure import Settings
from kernelgauge.measure.device import Device, choose_device
from kernelgauge.measure.instance import (
    Instance,
    build,
    call_duration_us,
    collector_paused,
    first_call,
    host_calls,
    warm_up,
)
from kernelgauge.measure.nvml import Reading
from kernelgauge.measure.profile import Pace, profile_session

Call = Callable[[], object]
CallBuilder = Callable[[int], Instance]


# A pause before each measurement of any method, counted for none. A peer's hot loop leaves the GPU at its power cap,
# slower for some tenths of a second.
SETTLE_S = 0.25
OWN_TIMES_S = 0.4  # for the times that levels are a percentage of
_MANY_TURNS = 1000
_PROBE_LOOPS = 20_000  # about 110 us before each call: dispatch itself is read to 1.5 us in that time
_PROBE_SHARE = 0.1  # the level whose excess is measured: the only one of the host
_CALLS_IN_TURN = 12
_ROUNDS = 150
_CALIBRATING_CALLS = 24
_HOLD_US = 1000.0
_OURS = "ours"  # in wall_seconds: one measurement gives both timers
_DO_BENCH_WARMUP_MS = 25.0  # its default
_WARM_UP_ROUNDS = 5


@dataclass
class Collected:
    """What one process has measured so far."""

    samples: dict[Key, Values] = field(default_factory=dict)
    wall_seconds: dict[str, float] = field(default_factory=dict)
    injected: dict[str, dict[str, int]] = field(default_factory=dict)
    calibration: dict[str, dict[str, float]] = field(default_factory=dict)
    control_pair_us: dict[str, list[float]] = field(default_factory=dict)
    clocks_mhz: dict[str, list[float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnTimes:
    """Times of one unslowed workload, in replicates as the suite takes them.

    Attributes:
        device_us: its GPU time.
        dispatch: its dispatch time, in units of the host's control.
        loop: what each turn of a loop before the call adds to that.
    """

    device_us: float
    dispatch: float
    loop: float

    def loops(self, share: float) -> int:
        """Return the turns that add such a share of the dispatch time; at least one."""
        return max(1, round(share * self.dispatch / self.loop))


@dataclass(frozen=True)
class Calibration:
    """What levels of one workload are made from, measured in this process before anything else.

    Attributes:
        own: times of the unslowed workload.
        spin: duration of the spinning kernel behind it.
        loop_excess: what a level of the host achieves beyond its share, as a share: the cost of a loop is not its turns alone.
        plain_us, spun_us: dispatch of the workload alone, and with a spin's launch.
    """

    own: OwnTimes
    spin: SpinTime
    loop_excess: float
    plain_us: float
    spun_us: float

    def injection(self, level: Level, unslowed: Injection) -> Injection:
        """Return what makes the workload slower by the level."""
        share = level.percent / 100
        if level.kind == "device":
            before_us = self.spin.least_us if unslowed.turns else 0.0
            return Injection(turns=self.spin.turns(before_us + share * self.own.device_us))
        if level.kind == "host":
            return Injection(unslowed.turns, self.own.loops(share - self.loop_excess))
        return unslowed


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
    """How one process measures. `methods`, `replicates` and `calibrate` stand for the peers, ours and the levels.

    `slot`: which level of each workload the peers measure.
    """

    device: Device
    seconds: float
    slot: int
    replicates: Callable[[Device, CallBuilder], Replicates]
    methods: Mapping[str, Callable[[Call, float], Timed]]
    calibrate: Callable[[Device, Workload, Injection, OwnTimes], Calibration]
    chance: random.Random

    def collect(self, workloads: Sequence[Workload], levels: Mapping[str, Sequence[Level]]) -> Collected:
        """Measure each workload unslowed and at its levels."""
        collected = Collected()
        entries: list[Entry] = []
        unslowed = {each.id: Injection(LEAST_TURNS if each.id in BEHIND_A_SPIN else 0) for each in workloads}
        own = self._own_times(workloads, unslowed)
        for place, workload in enumerate(workloads):
            chosen = levels[workload.id]
            for_peers = chosen[(self.slot + place) % len(chosen)]  # over consecutive slots each comes equally often
            calibration = self.calibrate(self.device, workload, unslowed[workload.id], own[workload.id])
            collected.calibration[workload.id] = {
                "device_us": calibration.own.device_us,
                "spin_us": calibration.spin.least_us,
                "loop_excess": calibration.loop_excess,
                "plain_us": calibration.plain_us,
                "spun_us": calibration.spun_us,
            }
            for level in (NONE, *chosen):
                injection = calibration.injection(level, unslowed[workload.id])
                collected.injected[f"{workload.id}/{level}"] = asdict(injection)
                made = slowed(workload, injection)
                entries.append(Entry(workload.id, level, made, ready(made, self.device), level in (NONE, for_peers)))
        parts = [self._measure_ours, self._measure_peers]
        self.chance.shuffle(parts)  # the second one finds a warmer machine
        for measure in parts:
            measure(entries, collected)
        return collected

    def _own_times(self, workloads: Sequence[Workload], unslowed: Mapping[str, Injection]) -> dict[str, OwnTimes]:
        """Measure each workload alone and behind a loop. All take turns, as when they are measured.

        A workload that follows itself finds its code in the host's caches: its dispatch takes some percent less.
        """
        arms: list[tuple[Instance, Replicates]] = []
        for workload in workloads:
            plain = unslowed[workload.id]
            made = [slowed(workload, each) for each in (plain, replace(plain, loops=_PROBE_LOOPS))]
            arms += [(ready(each, self.device), self._of(each)) for each in made]

        def go_round() -> None:
            for instance, replicates in arms:
                with instance.grad_mode():
                    replicates.take()

        _until(len(arms) * min(self.seconds, OWN_TIMES_S), go_round)
        own = {}
        for workload, (_, alone), (_, behind_a_loop) in zip(workloads, arms[::2], arms[1::2], strict=True):
            device_us, host_us = alone.values()
            dispatch = dispatch_in_controls(host_us)
            slower = dispatch_in_controls(behind_a_loop.values()[1])
            device = float(np.median(replicate_times_us(device_us)))
            own[workload.id] = OwnTimes(device, dispatch, (slower - dispatch) / _PROBE_LOOPS)
        return own

    def _measure_ours(self, entries: Sequence[Entry], collected: Collected) -> None:
        taken = [self._of(entry.slowed) for entry in entries]
        pair = {control.module: (ready(control, self.device), self._of(control)) for control in self.device.controls}
        spent_s = [0.0] * len(entries)
        order = list(range(len(entries)))
        chance = random.Random(self.chance.getrandbits(64))  # of its own: how many passes fit depends on the machine

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
    """Make as many steps as fit, if each takes as long as those before; at least one."""
    started, done = time.perf_counter(), 0
    while not done or (time.perf_counter() - started) * (done + 1) / done <= seconds:
        step()
        done += 1


def ready(workload: Workload, device: Device) -> Instance:
    """Build, compile and call once."""
    instance = build(workload, device)
    with instance.grad_mode():  # compiled code is for one mode
        first_call(instance)
    device.synchronize()
    return instance


def calibrate(device: Device, workload: Workload, unslowed: Injection, own: OwnTimes) -> Calibration:
    """Measure the spinning kernel behind the workload, what launching it costs, and what a loop really adds."""
    spun = {turns: ready(slowed(workload, Injection(turns)), device) for turns in (LEAST_TURNS, _MANY_TURNS)}
    least_us, many_us = (last_kernel_us(device, instance) for instance in spun.values())
    plain = ready(workload, device)
    with plain.grad_mode():
        plain_us, spun_us = interleaved_us(device, [plain.call, spun[LEAST_TURNS].call])
    spin = SpinTime(least_us, (many_us - least_us) / (_MANY_TURNS - LEAST_TURNS))
    looped = replace(unslowed, loops=own.loops(_PROBE_SHARE))
    added = added_dispatch(device, [ready(slowed(workload, each), device) for each in (unslowed, looped)])
    return Calibration(own, spin, added / own.dispatch - _PROBE_SHARE, plain_us, spun_us)


def added_dispatch(device: Device, pair: Sequence[Instance], rounds: int = _ROUNDS) -> float:
    """Return how much longer the second one's dispatch is, in units of the control. They take turns, a few calls each.

    A difference and no ratio: dispatch alone takes less here than in a replicate, after a profiler session.
    """
    taken: list[list[list[tuple[float, float]]]] = [[], []]
    for _ in range(rounds):
        for instance, calls in zip(pair, taken, strict=True):
            with instance.grad_mode():
                calls.append(list(zip(*host_calls(device, instance, _CALLS_IN_TURN), strict=True)))
    plain, looped = (dispatch_in_controls(np.array(calls)) for calls in taken)
    return looped - plain


def last_kernel_us(device: Device, instance: Instance) -> float:
    """Return the mean duration of a call's last kernel, as the profiler reads it."""
    with instance.grad_mode():
        session = profile_session(device, instance, iterations=_CALIBRATING_CALLS, warmup=8, hold_us=_HOLD_US)
    return float(np.mean([executions[-1].duration_us for executions in session.executions]))


def interleaved_us(device: Device, calls: Sequence[Call], rounds: int = _ROUNDS) -> list[float]:
    """Return the lower decile of each call's host time. They take turns, at one host speed."""
    times_us: list[list[float]] = [[] for _ in calls]
    with collector_paused():
        for _ in range(rounds):
            for call, taken in zip(calls, times_us, strict=True):
                device.synchronize()
                start = time.perf_counter_ns()
                call()
                taken.append((time.perf_counter_ns() - start) / 1000)
        device.synchronize()
    return [float(np.quantile(taken, 0.1)) for taken in times_us]


# -- ours ------------------------------------------------------------------------------------------------------------


class Replicates:
    """Those of one workload, each on fresh allocations, taken one at a time: in between, others take theirs.

    ``call_builder(replicate)`` returns an instance that is warm in so far as the workload was called before in this process.
    """

    def __init__(self, device: Device, call_builder: Callable[[int], Instance]) -> None:
        self._device = device
        self._build = call_builder
        self._settings = Settings().limited(device.most_replicates, device.most_busy_seconds)
        self._pace: Pace | None = None
        self._device_us: list[list[float]] = []
        self._host_us: list[list[tuple[float, float]]] = []
        self._readings: list[Sequence[Reading]] = []

    def take(self) -> None:
        """One more. The first also makes the session that tells how long to hold the device."""
        device, settings = self._device, self._settings
        if self._pace is None:
            instance = self._build(0)
            warm_up(device, instance, calls=device.warm_up_calls, seconds=0)
            self._pace = Pace.of(call_duration_us(device, instance), profile_session(device, instance, iterations=3))
        instance = self._build(len(self._device_us))
        warm_up(device, instance, calls=device.warm_up_calls, seconds=settings.warm_up_seconds)
        session = self._pace.held_session(device, instance, settings)
        self._device_us.append([sum(each.duration_us for each in executions) for executions in session.executions])
        self._readings.append(session.readings)
        calls = host_calls(device, instance, settings.iterations_for(self._pace.call_us, Timer.HOST))
        self._host_us.append(list(zip(*calls, strict=True)))

    def values(self) -> tuple[Values, Values]:
        """(replicate, iteration) of the device, and (replicate, call, 2) of the host: the dispatch time and its control."""
        return np.array(self._device_us), np.array(self._host_us)

    @property
    def clocks_mhz(self) -> list[float | None]:
        """Return the SM clock of each replicate, in MHz, as NVML read it. None: not known."""
        known = [[clock for each in during if (clock := each.sm_clock_mhz) is not None] for during in self._readings]
        return [fmean(clocks) if clocks else None for clocks in known]


# -- peers: a call launches work on the GPU and returns; each peer waits for it as its documentation does ----------------


@dataclass(frozen=True)
class Timed:
    """What a method measured, and the wall time that it took for it."""

    values_us: list[float]
    wall_seconds: float


def do_bench(call: Call, seconds: float) -> Timed:
    """Run `triton.testing.do_bench`: CUDA events around each call, L2 cleared before it; one value for each call.

    It estimates from five calls how many fit into its `rep`, clearing included.
    """
    import triton.testing

    start = time.perf_counter()
    rep_ms = max(1.0, seconds * 1000 - _DO_BENCH_WARMUP_MS)
    values_ms = triton.testing.do_bench(call, warmup=_DO_BENCH_WARMUP_MS, rep=rep_ms, return_mode="all")
    return Timed([value * 1000 for value in values_ms], time.perf_counter() - start)


def blocked_autorange(call: Call, seconds: float) -> Timed:
    """Run `torch.utils.benchmark.Timer.blocked_autorange`: one value for each block, the mean over its calls.

    The timer synchronises once for each block, by itself. Half of the time is its `min_run_time`: the search for a
    block's size comes on top of that, and takes about as long.
    """
    import torch.utils.benchmark

    start = time.perf_counter()
    timer = torch.utils.benchmark.Timer(stmt="call()", globals={"call": call})
    measured = timer.blocked_autorange(min_run_time=seconds / 2)
    return Timed([value * 1e6 for value in measured.times], time.perf_counter() - start)


def pytest_benchmark(call: Call, seconds: float) -> Timed:
    """Time rounds as pytest-benchmark's `pedantic` does: the host's clock around one call and its synchronisation.

    A plain loop does what `pedantic` does with one iteration to a round, and can stop when the time is up.
    """
    start = time.perf_counter()
    synchronize: Call = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(_WARM_UP_ROUNDS):
        call()
        synchronize()
    values: list[float] = []
    while True:
        begin = time.perf_counter()
        call()
        synchronize()
        end = time.perf_counter()
        values.append((end - begin) * 1e6)
        if end >= start + seconds:
            return Timed(values, time.perf_counter() - start)


METHODS: dict[str, Callable[[Call, float], Timed]] = {
    "do_bench": do_bench,
    "blocked_autorange": blocked_autorange,
    "pytest_benchmark": pytest_benchmark,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--process", type=int, default=0, help="its number in the data, and its seed")
    parser.add_argument("--slot", type=int, default=0, help="which level of each workload the peers measure")
    parser.add_argument("--seconds", type=float, default=0.6, help="wall time of one measurement by one method")
    parser.add_argument("--workload", choices=WORKLOAD_IDS, action="append", help="instead of all of them")
    parser.add_argument("--compile-only", action="store_true", help="call each workload once, and measure nothing")
    arguments = parser.parse_args()
    if arguments.out is None and not arguments.compile_only:
        parser.error("--out is missing")
    return arguments


def main() -> None:
    """Measure one process and write its file."""
    arguments = _arguments()
    from workloads import WORKLOADS

    by_id = {workload.id: workload for workload in WORKLOADS}
    workloads = [by_id[name] for name in arguments.workload or WORKLOAD_IDS]
    device = choose_device("cuda")
    device.host.patience_seconds = 0.0  # ours would wait for a faster host, in time that the peers do not have
    if arguments.compile_only:
        for workload in workloads:
            ready(slowed(workload, Injection(LEAST_TURNS)), device)
            ready(workload, device)
        return

    chance = random.Random(arguments.process)
    collector = Collector(device, arguments.seconds, arguments.slot, Replicates, METHODS, calibrate, chance)
    collected = collector.collect(workloads, LEVELS)
    meta = {
        "gpu": device.gpu,
        "machine": msgspec.to_builtins(device.fingerprint()),
        "process": arguments.process,
        "seconds": arguments.seconds,
        "control_pair_us": collected.control_pair_us,
        "clocks_mhz": collected.clocks_mhz,
        "wall_seconds": collected.wall_seconds,
        "injected": collected.injected,
        "calibration": collected.calibration,
    }
    save(arguments.out, [Process(str(device.gpu), arguments.process, collected.samples, meta)])


if __name__ == "__main__":
    main()
