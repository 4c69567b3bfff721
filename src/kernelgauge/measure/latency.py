"""Rounds of end-to-end latency, for pytest-benchmark to time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from ..conditions import Reading, disturbances
from ..errors import DisturbedError
from ..run import Sample, Timer, summarize
from ..workload import Workload
from .compiler import reset_compiler
from .device import Device
from .instance import Instance, build, grad_mode
from .settings import LATENCY_WARM_UP_SECONDS
from .timing import collector_paused, warm_up

__all__ = ["Rounds"]


class Rounds:
    """`replicates` x `iterations` rounds: each replicate on fresh allocations, each round on a cold cache."""

    def __init__(self, workload: Workload, device: Device, *, replicates: int, iterations: int, first: int = 0) -> None:
        self.total = replicates * iterations
        self._workload = workload
        self._device = device
        self._iterations = iterations
        self._done = 0
        self._first = first  # replicates before it had other addresses
        reset_compiler()  # a graph that another test left behind, for a dynamic batch say, would be timed instead
        self._instance: Instance | None = None
        self._controls_us: list[float] = []
        self._timed_s = 0.0
        self._before = Reading()

    def grad_mode(self) -> AbstractContextManager[None]:
        """Autograd as the workload's pass wants it, entered around all rounds."""
        return grad_mode(self._workload)

    def setup(self) -> None:
        """Before each round, untimed."""
        if self._done == 0:
            self._before = self._device.monitor.read(processes=True)
        if self._done % self._iterations == 0:
            self._instance = None  # first, so that two replicates are never held at once
            self._instance = build(self._workload, self._device, replicate=self._first + self._done // self._iterations)
            self._device.host.wait_until_fast()
            warm_up(self._device, self._instance, calls=self._device.warm_up_calls, seconds=LATENCY_WARM_UP_SECONDS)
        self._done += 1
        assert self._instance is not None
        self._controls_us.append(self._device.host.round_trip_us())
        self._instance.prepare()
        self._device.flush_cache()
        self._device.synchronize()

    def call(self) -> None:
        """What is timed."""
        assert self._instance is not None  # setup comes first
        self._instance.call()
        self._device.synchronize()

    def disturbed_by(self) -> tuple[str, ...]:
        """Asked after `sample`: what the GPU went through that spoils them; empty if nothing speaks against them."""
        after = self._device.monitor.read(processes=True)
        return disturbances(self._before, (), after, duration_s=self._timed_s, usual_clock_mhz=None)

    def durations_s(self) -> list[float]:
        """Of all rounds, timed here instead of by pytest-benchmark."""
        durations_s: list[float] = []
        with self.grad_mode(), collector_paused():
            for _ in range(self.total):
                self.setup()
                start = time.perf_counter()
                self.call()
                durations_s.append(time.perf_counter() - start)
        return durations_s

    def time(self) -> Sample:
        """All rounds, timed here: to confirm what was suspicious, or in place of what was spoilt.

        Raises `DisturbedError` if the machine spoils them.
        """
        sample, disturbed_by = self.sample(self.durations_s()), self.disturbed_by()
        if disturbed_by:
            raise DisturbedError(
                self._workload.id,
                disturbed_by,
                expected="a GPU of its own that nothing slows down while a latency is timed",
            )
        return sample

    def sample(self, durations_s: Sequence[float]) -> Sample:
        """The sample that the rounds' durations, in seconds and in order, make."""
        self._timed_s = sum(durations_s)
        times = self._by_replicate([1e6 * duration for duration in durations_s])
        # --benchmark-cprofile makes one more round than it times.
        return Sample(times, self._iterations, self._by_replicate(self._controls_us[: len(durations_s)]))

    def _by_replicate(self, values: Sequence[float]) -> tuple[float, ...]:
        size, statistic = self._iterations, Timer.END_TO_END.statistic
        return tuple(summarize(values[start : start + size], statistic) for start in range(0, len(values), size))
