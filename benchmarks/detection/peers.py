"""The peers' own measuring, each within the same wall time, warm-up included. Values in microseconds per call.

A call launches work on the GPU and returns. Each peer waits for it as its users would.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import NoReturn

import torch

__all__ = [
    "METHODS",
    "Timed",
    "blocked_autorange",
    "do_bench",
    "fitting_min_run_time",
    "planned_seconds",
    "pytest_benchmark",
]

Call = Callable[[], object]

_DO_BENCH_WARMUP_MS = 25.0  # its default
_WARM_UP_ROUNDS = 5
_PROBES = 5


@dataclass(frozen=True)
class Timed:
    """What a method measured, and the wall time that it took for it."""

    values_us: list[float]
    wall_seconds: float


def do_bench(call: Call, seconds: float) -> Timed:
    """`triton.testing.do_bench`: CUDA events around each call, L2 cleared before it; one value for each call.

    Its `rep` is an estimate: of as many calls as would fit, clearing included, by five calls that it times first.
    """
    import triton.testing

    start = time.perf_counter()
    rep_ms = max(1.0, seconds * 1000 - _DO_BENCH_WARMUP_MS)
    values_ms = triton.testing.do_bench(call, warmup=_DO_BENCH_WARMUP_MS, rep=rep_ms, return_mode="all")
    return Timed([value * 1000 for value in values_ms], time.perf_counter() - start)


def blocked_autorange(call: Call, seconds: float) -> Timed:
    """`torch.utils.benchmark.Timer.blocked_autorange`: one value for each block, the mean over its calls.

    Its warm-up finds the size of a block and is not in `min_run_time`, which is therefore chosen such that both fit.
    """
    import torch.utils.benchmark

    start = time.perf_counter()
    synchronize = _synchronize()

    def f() -> None:
        call()
        synchronize()

    timer = torch.utils.benchmark.Timer(stmt="f()", globals={"f": f})
    f()
    call_seconds = median(timer.timeit(1).raw_times[0] for _ in range(_PROBES))
    overhead = median(timer._timeit(0) for _ in range(_PROBES))  # what it sets its blocks by
    left = seconds - (time.perf_counter() - start)
    raw: list[float] = []
    with suppress(_NoTimeLeftError):
        measured = timer.blocked_autorange(
            callback=_stop_at(start + 1.1 * seconds, raw),
            min_run_time=fitting_min_run_time(call_seconds, overhead, left),
        )
        # A slow host makes the plan too careful: what is left of the time is spent on more of its blocks.
        number = measured.number_per_run
        while time.perf_counter() + number * call_seconds < start + seconds:
            raw.append(timer.timeit(number).raw_times[0] / number)
    return Timed([value * 1e6 for value in raw], time.perf_counter() - start)


class _NoTimeLeftError(Exception):
    """Ends `blocked_autorange` from its callback."""


def _stop_at(deadline: float, raw: list[float]) -> Callable[[int, float], NoReturn]:
    """Keeps each block's seconds per call; stops when the next block would end after the deadline."""

    def callback(number: int, block_seconds: float) -> None:
        raw.append(block_seconds / number)
        if time.perf_counter() + block_seconds > deadline:
            raise _NoTimeLeftError

    return callback  # type: ignore[return-value]  # its own annotation says NoReturn, and it goes on when it returns


def fitting_min_run_time(call_seconds: float, overhead_seconds: float, seconds: float) -> float:
    """The largest `min_run_time` with which `blocked_autorange` ends in about `seconds`, its warm-up included."""
    candidates = [seconds * step / 20 for step in range(20, 0, -1)]
    plans = [(planned_seconds(call_seconds, overhead_seconds, candidate), candidate) for candidate in candidates]
    return next((candidate for plan, candidate in plans if plan <= seconds), min(plans)[1])


def planned_seconds(call_seconds: float, overhead_seconds: float, min_run_time: float) -> float:
    """How long `blocked_autorange` will take: growing its block tenfold, then blocks until `min_run_time` is full.

    The rule is that of `Timer._estimate_block_size`: a block is large enough when the timer's overhead is less than
    1e-4 of it and it takes a thousandth of the whole, or when it takes longer than the whole.
    """
    number, spent = 1, 0.0
    while True:
        block = number * call_seconds
        spent += block
        if (overhead_seconds <= 1e-4 * block and block >= min_run_time / 1000) or block > min_run_time:
            return spent + max(1, math.ceil(min_run_time / block)) * block
        number *= 10


def pytest_benchmark(call: Call, seconds: float) -> Timed:
    """Rounds as of pytest-benchmark's `pedantic`: the host's clock around one call and its synchronisation.

    A plain loop does what `pedantic` does with one iteration to a round, and can stop when the time is up.
    """
    start = time.perf_counter()
    synchronize = _synchronize()
    for _ in range(_WARM_UP_ROUNDS):
        call()
        synchronize()
    values: list[float] = []
    deadline = start + seconds
    while True:
        begin = time.perf_counter()
        call()
        synchronize()
        end = time.perf_counter()
        values.append((end - begin) * 1e6)
        if end >= deadline:
            return Timed(values, time.perf_counter() - start)


def _synchronize() -> Callable[[], object]:
    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


METHODS: dict[str, Callable[[Call, float], Timed]] = {
    "do_bench": do_bench,
    "blocked_autorange": blocked_autorange,
    "pytest_benchmark": pytest_benchmark,
}
