"""Rounds of end-to-end latency, for pytest-benchmark to time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import OTHER_KERNELS, DisturbedError, OtherKernelsError, WorkloadError
from ..run import Sample, Timer, summarize
from ..trace import KernelIdentity
from ..workload import Workload
from .compiler import reset_compiler, torch_set_up
from .conditions import Reading, disturbances
from .device import Device
from .instance import Instance, build, collector_paused, grad_mode, reporting, warm_up
from .profile import are_alike, listed, profile_session, without

__all__ = ["Rounds"]

_WARM_UP_SECONDS = 0.02


class Rounds:
    """`replicates` x `iterations` rounds: each round on a cold cache, each replicate on fresh allocations as a rule.

    `profiled`: the kernels of the run that the latency belongs to. `one_instance`: all replicates are made on one
    (`Subject.only_instance`). `deterministic`: see `torch_set_up`.
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
        one_instance: bool = False,
        deterministic: bool = False,
    ) -> None:
        self.total = replicates * iterations
        self._workload = workload
        self._device = device
        self._iterations = iterations
        self._done = 0
        self._first = first  # replicates before it had other addresses
        self._profiled = profiled
        self._one_instance = one_instance
        self._deterministic = deterministic
        reset_compiler()  # a graph that another test left behind, for a dynamic batch say, would be timed instead
        self._instance: Instance | None = None
        self._controls_us: list[float] = []
        self._timed_s = 0.0
        self._before = Reading()

    @contextmanager
    def torch_set_up(self) -> Iterator[None]:
        """Set torch up as the workload's pass wants it. Enter it around all rounds."""
        with torch_set_up(deterministic=self._deterministic), grad_mode(self._workload):
            yield

    def setup(self) -> None:
        """Before each round, untimed."""
        if self._done == 0:
            self._before = self._device.monitor.read(processes=True)
        if self._done % self._iterations == 0:
            instance = self._next_instance()
            self._device.host.wait_until_fast()
            warm_up(self._device, instance, calls=self._device.warm_up_calls, seconds=_WARM_UP_SECONDS)
        self._done += 1
        assert self._instance is not None
        self._controls_us.append(self._device.host.round_trip_us())
        self._instance.prepare()
        self._device.flush_cache()
        self._device.synchronize()

    def _next_instance(self) -> Instance:
        if self._instance is None or not self._one_instance:
            self._instance = None  # first, so that two replicates are never held at once
            number = self._first + self._done // self._iterations
            self._instance = build(self._workload, self._device, replicate=number)
        return self._instance

    def call(self) -> None:
        """Make the call that is timed."""
        assert self._instance is not None  # setup comes first
        self._instance.call()
        self._device.synchronize()

    def disturbed_by(self) -> tuple[str, ...]:
        """Asked after `sample`: what the GPU went through that spoils them; empty if nothing speaks against them."""
        after = self._device.monitor.read(processes=True)
        return disturbances(self._before, (), after, duration_s=self._timed_s)

    def require_profiled_kernels(self) -> None:
        """Asked after the last round, of code that was compiled: what was timed must be what was `profiled`.

        It was compiled anew for these rounds, by a choice of Inductor's autotuner that was read from the compile cache:
        another process that compiles the same may have left another one there, and without a cache there is a new one
        each time.

        Raises `OtherKernelsError` if it is not, `WorkloadError` if none of the kernels that differ is Inductor's,
        `MeasurementError` if the profiler cannot be trusted.
        """
        if self._workload.compile is None or all(identity.grid is None for identity in self._profiled):
            return  # nothing chooses: no compiler, or that of a CPU
        assert self._instance is not None  # a round comes first
        with reporting(self._workload, "profiling"), grad_mode(self._workload):
            session = profile_session(self._device, self._instance, iterations=1, record_shapes=True)
        timed = [execution.identity for execution in session.executions[0]]
        if are_alike(timed, self._profiled):
            return
        got, expected = without(timed, self._profiled), without(self._profiled, timed)
        if not any(identity.is_inductors for identity in (*got, *expected)):
            raise WorkloadError(
                f"{self._workload.id}: {OTHER_KERNELS}",
                got=listed(got),
                expected=listed(expected),
            )
        raise OtherKernelsError(
            f"{self._workload.id}: compiled again to be timed, it ran other kernels than were profiled",
            got=listed(got),
            expected=listed(expected),
            next_command="run it again, with a compile cache that no other process fills at the same time "
            "(TORCHINDUCTOR_CACHE_DIR)",
        )

    def durations_s(self) -> list[float]:
        """Of all rounds, timed here instead of by pytest-benchmark."""
        durations_s: list[float] = []
        with self.torch_set_up(), collector_paused():
            for _ in range(self.total):
                self.setup()
                start = time.perf_counter()
                self.call()
                durations_s.append(time.perf_counter() - start)
        return durations_s

    def time(self) -> Sample:
        """All rounds, timed here: to confirm what looks slower, or in place of what was spoilt.

        Raises `DisturbedError` if the machine spoils them, and what `require_profiled_kernels` raises.
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
        """Make a sample of the rounds' durations, in seconds and in order."""
        self._timed_s = sum(durations_s)
        times = self._by_replicate([1e6 * duration for duration in durations_s])
        # --benchmark-cprofile makes one more round than it times.
        return Sample(times, self._iterations, self._by_replicate(self._controls_us[: len(durations_s)]))

    def _by_replicate(self, values: Sequence[float]) -> tuple[float, ...]:
        size, statistic = self._iterations, Timer.END_TO_END.statistic
        return tuple(summarize(values[start : start + size], statistic) for start in range(0, len(values), size))
