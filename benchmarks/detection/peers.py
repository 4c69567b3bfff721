"""The peers' own measuring, each within about the same wall time. Values in microseconds per call.

A call launches work on the GPU and returns. Each peer waits for it as its documentation does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["METHODS", "Timed", "blocked_autorange", "do_bench", "pytest_benchmark"]

Call = Callable[[], object]

_DO_BENCH_WARMUP_MS = 25.0  # its default
_WARM_UP_ROUNDS = 5


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
