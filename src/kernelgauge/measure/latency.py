"""Rounds of end-to-end latency, for pytest-benchmark to time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from ..conditions import Reading, disturbances
from ..errors import DisturbedError, OtherKernelsError
from ..run import Sample, Timer, summarize
from ..trace import KernelIdentity
from ..workload import Workload
from .chosen import are_chosen, told_apart
from .compiler import reset_compiler
from .device import Device
from .instance import Instance, build, grad_mode, reporting
from .profile import profile_session
from .settings import LATENCY_WARM_UP_SECONDS
from .timing import collector_paused, warm_up

__all__ = ["Rounds"]


class Rounds:
    """`replicates` x `iterations` rounds: each replicate on fresh allocations, each round on a cold cache.

    `profiled`: the kernels of the run that the latency belongs to.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        *,
        replicates: int,
        iterations: int,
        first: int = 0,
        profiled: Sequence[KernelIdentity] = (),
    ) -> None:
        self.total = replicates * iterations
        self._workload = workload
        self._device = device
        self._iterations = iterations
        self._done = 0
        self._first = first  # replicates before it had other addresses
        self._profiled = profiled
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

    def require_profiled_kernels(self) -> None:
        """Asked after the last round. Raises `OtherKernelsError` if what was timed ran other kernels than `profiled`.

        The workload was compiled anew for these rounds, by a choice of Inductor's autotuner that was read from the compile
        cache: another process that compiles the same may have left another one there, and without a cache there is a
        new one each time.
        """
        if not are_chosen(self._profiled):
            return  # a session less; it would see what was seen
        assert self._instance is not None  # a round comes first
        with reporting(self._workload, "profiling"), self.grad_mode():
            session = profile_session(self._device, self._instance, iterations=1)
        expected = told_apart(self._profiled)
        got = told_apart(execution.identity for execution in session.executions[0])
        if got == expected:
            return
        raise OtherKernelsError(
            f"{self._workload.id}: compiled again to be timed, it ran other kernels than were profiled",
            got=", ".join(name for name in got if name not in expected) or ", ".join(got),
            expected=", ".join(name for name in expected if name not in got) or ", ".join(expected),
            next_command="run it again; processes that compile at the same time each need a TORCHINDUCTOR_CACHE_DIR of their own",
        )

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

        Raises `DisturbedError` if the machine spoils them, `OtherKernelsError` as `require_profiled_kernels`.
        """
        sample, disturbed_by = self.sample(self.durations_s()), self.disturbed_by()
        if disturbed_by:
            raise DisturbedError(
                self._workload.id,
                disturbed_by,
                expected="a GPU of its own that nothing slows down while a latency is timed",
            )
        self.require_profiled_kernels()
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
