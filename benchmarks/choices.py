"""How many sets of launch configurations fresh processes run, where autotuners choose and where they
take recorded choices, and how much their times differ. Needs a CUDA GPU.

    python benchmarks/choices.py --anew 8 --processes 30 --at-once 8

Each process has empty compile caches, and compiles workloads of the bundled suite and the gallery.
Processes beside it disturb what its tuners time, as other jobs would. Once all that run at once have
compiled, each times its calls alone, on fresh allocations as a suite does: of `--only`, and the
eager ones.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kernelgauge.processes import compile_caches
from kernelgauge.run import KernelChoice

_ROOT = Path(__file__).resolve().parents[1]
_Choices = dict[str, tuple[KernelChoice, ...]]
_PATIENCE_S, _PLACES, _ROUNDS, _CALLS = 120, 8, 3, 20


class Found(msgspec.Struct):
    """What one process found, by workload."""

    choices: _Choices = {}
    configurations: dict[str, list[str]] = {}  # of its kernels, in launch order
    # of a call, the median over rounds, on each set of allocations
    times_us: dict[str, list[float]] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}


def _measure(only: Sequence[str], choices: _Choices, folder: Path, at_once: int) -> Found:
    sys.path[:0] = [str(_ROOT / each) for each in ("perf", "examples/gallery")]
    import torch

    import gallery
    import workloads
    from kernelgauge.measure.choices import Replay
    from kernelgauge.measure.compiler import torch_set_up
    from kernelgauge.measure.device import CudaDevice
    from kernelgauge.measure.instance import build, first_call, warm_up
    from kernelgauge.measure.profile import profile_session
    from kernelgauge.trace import configuration_text

    every = (*workloads.WORKLOADS, *gallery.WORKLOADS)
    asked = [each for each in every if any(each.id.startswith(name) for name in only)]
    device, found, compiled = CudaDevice(), Found(), list[Any]()
    started = time.monotonic()
    with torch_set_up():
        for each in asked:
            replay = Replay(choices.get(each.id, ()))
            try:
                instance = build(each, device)
                with instance.grad_mode():
                    with replay.active(each):
                        first_call(instance)
                        warm_up(device, instance, calls=3, seconds=0)
                    session = profile_session(device, instance, iterations=1, is_structure=True)
            except Exception as error:
                found.errors[each.id] = "".join(traceback.format_exception(error))
                continue
            found.configurations[each.id] = [
                f"{it.unnumbered} {configuration_text(it)}" for it in session.kernels
            ]
            found.choices[each.id] = replay.made
            compiled.append((each, replay, instance if session.replays_graphs else None))
            found.seconds[each.id] = time.monotonic() - started
        _wait(folder, at_once)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for each, replay, shared in compiled:
                for place in range(_PLACES):
                    timed = shared or build(each, device, replicate=place)
                    with timed.grad_mode(), replay.active(each):
                        warm_up(device, timed, calls=3, seconds=0)
                        time_us = _time_us(timed.call, torch)
                    found.times_us.setdefault(each.id, []).append(time_us)
    return found


def _wait(folder: Path, count: int) -> None:
    """Wait until as many processes have compiled."""
    (folder / f"compiled-{os.getpid()}").touch()
    until = time.monotonic() + _PATIENCE_S
    while len(list(folder.glob("compiled-*"))) < count and time.monotonic() < until:
        time.sleep(0.05)


def _time_us(call: Callable[[], object], torch: Any) -> float:
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        torch.cuda._sleep(60_000_000)  # 30 ms: the host queues all calls meanwhile
        start.record()
        for _ in range(_CALLS):
            call()
        end.record()
        end.synchronize()
        rounds.append(1000 * start.elapsed_time(end) / _CALLS)
    return statistics.median(rounds)


def _fresh(only: Sequence[str], choices: Path | None, at_once: int, folder: Path) -> Found | None:
    with tempfile.TemporaryDirectory() as own:
        out = Path(own, "out.json")
        command = [sys.executable, __file__, "--only", *only, "--out", str(out)]
        command += ["--folder", str(folder), "--at-once", str(at_once)]
        command += ["--choices", str(choices)] if choices else []
        environment = os.environ | compile_caches(own)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            print(done.stderr[-3000:], file=sys.stderr, flush=True)
            return None
        return msgspec.json.decode(out.read_bytes(), type=Found)


def _processes(
    only: Sequence[str], choices: Path | None, count: int, at_once: int
) -> list[Found | None]:
    found: list[Found | None] = []
    while len(found) < count:
        now = min(at_once, count - len(found))
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(now) as pool:
            fresh = partial(_fresh, only, choices, now)
            found += pool.map(fresh, [Path(folder)] * now)
        _report("so far", found, time.monotonic() - started)
    return found


def _report(title: str, measured: Iterable[Found | None], seconds: float) -> None:
    sets, times = defaultdict[str, Counter[str]](Counter), defaultdict[str, list[list[float]]](list)
    lost, errors, processes = list[KernelChoice](), Counter[str](), 0
    for each in measured:
        if each is None:
            errors["a process failed"] += 1
            continue
        processes += 1
        errors.update(f"{name}: {error}" for name, error in each.errors.items())
        lost += [it for made in each.choices.values() for it in made if it.recorded]
        for name, configurations in each.configurations.items():
            sets[name][json.dumps(configurations)] += 1
            times[name].append(each.times_us.get(name) or [math.nan])
    several = sum(len(count) > 1 for count in sets.values())
    print(f"{title}: {processes} processes, {seconds:.0f} s")
    print(f"  {several} of {len(sets)} workloads ran several sets of configurations")
    for name, found in sorted(sets.items()):
        means = list(map(statistics.fmean, times[name]))
        mean = statistics.fmean(means)
        spread = statistics.stdev(means) / mean if len(means) > 1 else 0
        within = statistics.fmean(map(statistics.pstdev, times[name])) / mean
        counts = sorted(found.values(), reverse=True)
        print(
            f"  {name}: sets {counts}, {mean:.1f} us, spread of processes {100 * spread:.2f} %, "
            f"of allocations {100 * within:.2f} %"
        )
        for place in zip(*map(json.loads, found), strict=False):
            if len(set(place)) > 1:
                print(f"      {sorted(set(place))}")
    for error, number in errors.items():
        print(f"  error in {number}: {error}")
    for choice in lost[:5]:
        print(f"  lost: {choice}")
    sys.stdout.flush()


def main() -> None:
    """Run processes that choose anew, then processes that take what the first one chose."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--anew", type=int, default=8, help="processes that choose anew")
    parser.add_argument("--processes", type=int, default=30, help="that take recorded choices")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--only", nargs="+", default=[""], help="how workloads' ids begin")
    for hidden in ("--choices", "--out", "--folder"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        given = options.choices.read_bytes() if options.choices else b"{}"
        choices = msgspec.json.decode(given, type=_Choices)
        found = _measure(options.only, choices, options.folder, options.at_once)
        options.out.write_bytes(msgspec.json.encode(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        file: Path | None = None
        for title, count in (
            ("chosen anew", options.anew),
            ("recorded choices", options.processes),
        ):
            started = time.monotonic()
            measured = _processes(options.only, file, count, options.at_once)
            _report(title, measured, time.monotonic() - started)
            first = next(each for each in measured if each is not None)
            file = Path(folder, "choices.json")
            file.write_bytes(msgspec.json.encode(first.choices))


if __name__ == "__main__":
    main()
