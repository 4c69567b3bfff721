"""Times a suite: workloads together, in passes; rounds of end-to-end latency; and first calls that compile.

A drift of the machine shows between passes, and not between workloads.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from ..errors import OTHER_KERNELS, DisturbedError, KernelgaugeError, OtherKernelsError, TimesError, WorkloadError
from ..run import COMPILE_TIMERS, Fingerprint, Sample, Timer, summarize
from ..trace import KernelIdentity
from ..workload import Workload
from . import Settings
from .compiler import (
    GeneratedCode,
    compile_counts,
    empty_compile_caches,
    generated_code,
    reset_compiler,
    torch_set_up,
)
from .device import Device
from .instance import Instance, build, collector_paused, grad_mode, reporting, warm_up
from .nvml import Reading, disturbances, highest_clock_mhz
from .profile import multiset_difference, names_with_configurations, profile_session
from .subject import DeviceLost, Measured, Subject, without_frames

Result = Measured | KernelgaugeError
Progress = Callable[[str], None]

_PROGRESS_INTERVAL_S = 2.0  # a pass over a few workloads takes a tenth of that, and a log keeps every line


def measure_groups(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
    *,
    timed: bool = True,
) -> Iterator[dict[str, Result]]:
    """Profile workloads and, if `timed`, time them, interleaved, as many at once as can share compiled code.

    Yield the results of those, by id, each with its run or with why there is none: a `WorkloadUnavailable` if it cannot run
    here, a `WorkloadError` if it fails, a `MeasurementError` if its records cannot be trusted.
    """
    settings = settings.limited(device.most_replicates, device.most_busy_seconds)
    waiting: Sequence[Workload] = workloads
    roots: dict[str, object] = {}
    with torch_set_up():
        while waiting:
            results, waiting = _Group(device, fingerprint, settings, progress, roots).measure(waiting, timed=timed)
            yield results


@dataclass(eq=False)
class _Group:
    """Workloads whose compiled code is there together."""

    device: Device
    fingerprint: Fingerprint
    settings: Settings
    progress: Progress
    # What a workload compiles (`_compiled_root`), if an earlier group built it: some are large.
    roots: dict[str, object]
    subjects: list[Subject] = field(default_factory=list)
    _controls: list[Subject] = field(default_factory=list)

    def measure(self, workloads: Sequence[Workload], *, timed: bool) -> tuple[dict[str, Result], list[Workload]]:
        """Measure as many workloads as can share a process's compiled code. Return the results, and the other workloads."""
        failed: dict[str, Result] = {}
        deferred = self._prepare(workloads, failed)
        if self.subjects and timed:
            try:
                for each in self.device.controls:  # each instance is gone before the next one is built
                    control = Subject(each, build(each, self.device), self.device, self.settings, is_control=True)
                    self._controls.append(control)
            except KernelgaugeError as error:
                ending = without_frames(error, self.device)
                for subject in self.subjects:
                    subject.error = ending
            else:
                self._go_round()
        controls = {each.workload.module: each.control_time for each in self._controls if each.replicates}
        results = {each.workload.id: each.result(self.fingerprint, controls) for each in self.subjects}
        return results | failed, deferred

    def _prepare(self, workloads: Sequence[Workload], failed: dict[str, Result]) -> list[Workload]:
        """Compile and profile those that can share compiled code; those that fail are put into `failed`. Return the others."""
        reset_compiler()
        deferred: list[Workload] = []
        roots: set[object] = set()

        def must_wait(workload: Workload) -> bool:
            # After a graph break functions are compiled on their own that the next workload may call too.
            has_breaks = workload.compile is not None and compile_counts().graph_breaks > 0
            return has_breaks or self.roots.get(workload.id) in roots

        for number, workload in enumerate(workloads, 1):
            instance: Instance | None = None  # gone before the next one is built
            if must_wait(workload):
                deferred.append(workload)
                continue
            try:
                instance = build(workload, self.device)
                root = None if workload.compile is None else _compiled_root(instance.module)
                self.roots[workload.id] = root
                if must_wait(workload):
                    deferred.append(workload)
                    continue
                if root is not None:
                    roots.add(root)  # before it runs: one that fails may have compiled as well
                doing = "profiling" if root is None else "compiling and profiling"
                self.progress(f"{number} of {len(workloads)}: {doing} {workload.id}")
                self.subjects.append(Subject(workload, instance, self.device, self.settings))
            except KernelgaugeError as error:
                failed[workload.id] = without_frames(error, self.device)
        return deferred

    def _go_round(self) -> None:
        """Measure all and the controls, the reference kernels, in turn until each is pinned down or out of budget."""
        usual_mhz: int | None = None  # the highest clock that any of them has shown
        progress_at = -math.inf
        for number in itertools.count():
            active = [subject for subject in self.subjects if not subject.is_done]
            if not active:
                break
            broken = next((control.error for control in self._controls if control.error is not None), None)
            ending = DeviceLost() if self.device.lost() else broken  # else nobody watches the machine
            if ending is not None:
                for subject in active:
                    subject.error = ending
                break
            if (now := time.perf_counter()) - progress_at >= _PROGRESS_INTERVAL_S:
                progress_at = now
                left = math.fsum(subject.seconds_left for subject in active)
                about = f", about {left:.0f} s left" if 1 <= left < math.inf else ""
                self.progress(f"timing, pass {number + 1}: {len(active)} of {len(self.subjects)} workloads{about}")
            for subject in (*self._controls, *active):
                readings = subject.measure_once(number, usual_mhz)
                usual_mhz = max(filter(None, (usual_mhz, highest_clock_mhz(readings))), default=None)
        # Believe nothing that was measured on a machine that changed its speed meanwhile.
        tolerated = self.device.tolerated_drift
        drifts = {control.workload.module: control.drift for control in self._controls}
        too_far = [f"{name} {100 * drift:+.1f} %" for name, drift in drifts.items() if abs(drift) > tolerated]
        if too_far:
            drifted = TimesError(
                "the machine changed its speed while it measured",
                got=", ".join(too_far),
                expected=f"a copy and a GEMM of our own to stay within {100 * tolerated:g} %",
                next_command="nvidia-smi -q -d PERFORMANCE,CLOCK   (is it throttled, or shared?)",
            )
            for subject in self.subjects:
                if subject.error is None or isinstance(subject.error, DeviceLost):
                    subject.error = drifted


def _compiled_root(module: Any) -> object:
    """Return what Dynamo keeps the compiled code under. Two workloads of one root would see each other's."""
    # Another shape of the same code compiles for dynamic shapes, with other kernels.
    if isinstance(module, nn.Module):
        # A module of torch itself is compiled through a wrapper that all of them share (torch/_dynamo/eval_frame.py).
        if type(module).__module__.startswith("torch.nn."):
            return "torch.nn"
        return getattr(getattr(type(module), "forward", None), "__code__", type(module))
    return getattr(module, "__code__", type(module))


# -- rounds of end-to-end latency -------------------------------------------------------------------------------------

_WARM_UP_SECONDS = 0.02
_OWN_CACHE = "run it again, with a compile cache that no other process fills at the same time (TORCHINDUCTOR_CACHE_DIR)"


@dataclass(eq=False)
class Rounds:
    """`replicates` x `iterations` rounds: each round on a cold cache, each replicate on fresh allocations as a rule."""

    workload: Workload
    device: Device
    _: KW_ONLY
    replicates: int
    iterations: int
    first: int = 0  # replicates before these, which had other addresses
    profiled: Sequence[KernelIdentity] = ()  # the kernels of the run that the latency belongs to
    one_instance: bool = False  # for all replicates (`Subject.only_instance`)
    _instance: Instance | None = field(default=None, init=False)
    _controls_us: list[float] = field(default_factory=list, init=False)
    _before: Reading = field(default_factory=Reading, init=False)

    def __post_init__(self) -> None:
        reset_compiler()  # a graph that another test left behind, for a dynamic batch say, would be timed instead

    @property
    def total(self) -> int:
        return self.replicates * self.iterations

    @contextmanager
    def torch_set_up(self) -> Iterator[None]:
        """Set torch up as the workload's pass wants it. Enter it around all rounds."""
        with torch_set_up(), grad_mode(self.workload), reporting(self.workload, "timing"):
            yield

    def setup(self) -> None:
        """Before each round, untimed."""
        number, place = divmod(len(self._controls_us), self.iterations)
        if number == place == 0:
            self._before = self.device.monitor.read(processes=True)
        if place == 0:
            if self._instance is None or not self.one_instance:
                self._instance = None  # first, so that two replicates are never held at once
                self._instance = build(self.workload, self.device, replicate=self.first + number)
            self.device.host.wait_until_fast()
            warm_up(self.device, self._instance, calls=self.device.warm_up_calls, seconds=_WARM_UP_SECONDS)
        assert self._instance is not None
        self._controls_us.append(self.device.host.round_trip_us())
        self._instance.prepare()
        self.device.flush_cache()
        self.device.synchronize()

    def call(self) -> None:
        """Make the call that is timed."""
        assert self._instance is not None  # setup comes first
        self._instance.call()
        self.device.synchronize()

    def disturbed_by(self) -> tuple[str, ...]:
        """Return, after the last round, why they cannot be trusted; empty if nothing speaks against them."""
        return disturbances((self._before, self.device.monitor.read(processes=True)))

    def require_profiled_kernels(self) -> None:
        """Require, after the last round, that these rounds ran the `profiled` kernels.

        They were compiled anew, by a choice of Inductor's autotuner that was read from the compile cache: another process may
        have left another one there, and without a cache there is a new one each time.

        Raises `OtherKernelsError` if they did not, `WorkloadError` if none of the kernels that differ is Inductor's,
        `MeasurementError` if the profiler cannot be trusted.
        """
        if self.workload.compile is None or all(identity.grid is None for identity in self.profiled):
            return  # nothing chooses: no compiler, or that of a CPU
        assert self._instance is not None  # a round comes first
        with grad_mode(self.workload), reporting(self.workload, "profiling"):
            session = profile_session(self.device, self._instance, iterations=1, is_structure=True)
        timed = session.kernels
        if [each.without_source for each in timed] == [each.without_source for each in self.profiled]:
            return
        got, expected = multiset_difference(timed, self.profiled), multiset_difference(self.profiled, timed)
        is_chosen = any(identity.is_inductors for identity in (*got, *expected))
        raise (OtherKernelsError if is_chosen else WorkloadError)(
            f"{self.workload.id}: {OTHER_KERNELS}",
            got=names_with_configurations(got),
            expected=names_with_configurations(expected),
            next_command=_OWN_CACHE if is_chosen else None,
        )

    def durations_s(self) -> list[float]:
        """Time all rounds here instead of by pytest-benchmark, in seconds."""
        durations_s: list[float] = []
        with self.torch_set_up(), collector_paused():
            for _ in range(self.total):
                self.setup()
                start = time.perf_counter()
                self.call()
                durations_s.append(time.perf_counter() - start)
        return durations_s

    def time(self) -> Sample:
        """Time all rounds here, in place of spoilt ones.

        Raises `DisturbedError` if the machine spoils them, and what `require_profiled_kernels` raises.
        """
        sample = self.sample(self.durations_s())
        if disturbed_by := self.disturbed_by():
            expected = "a GPU of its own that nothing slows down while a latency is timed"
            raise DisturbedError(self.workload.id, disturbed_by, expected=expected)
        self.require_profiled_kernels()
        return sample

    def sample(self, durations_s: Sequence[float]) -> Sample:
        """Make a sample of the rounds' durations, in seconds and in order."""
        # --benchmark-cprofile makes one more round than it times.
        controls_us = self._controls_us[: len(durations_s)]
        return Sample(self._summed([1e6 * each for each in durations_s]), self.iterations, self._summed(controls_us))

    def _summed(self, values: Sequence[float]) -> tuple[float, ...]:
        """Return one value for each replicate."""
        size, statistic = self.iterations, Timer.END_TO_END.timing.statistic
        return tuple(summarize(values[start : start + size], statistic) for start in range(0, len(values), size))


# -- first calls that compile -----------------------------------------------------------------------------------------

# Cold starts, and warm ones. Within one process on an H100 they spread by 8 to 20 %, which the host reference did not explain.
_STARTS = 5
_REFERENCES = 10  # host references before each start
_FEWEST_STARTS = 2  # they show a spread
_START_SECONDS = 20.0  # then no more are made than the fewest: with max-autotune one takes a minute


@cache
def _load_compiler(device: torch.device) -> None:
    """Compile once, so that imports and the start of the compiler's workers are in no time.

    Where its caches were full, much of the compiler was never loaded: the first cold start took three to five times as long.
    """
    with empty_compile_caches():
        torch.compile(torch.relu)(torch.ones(64, device=device))


def compile_starts(workload: Workload, device: Device) -> tuple[dict[Timer, Sample], dict[str, int]]:
    """Compile a workload with empty caches, and again with the caches that this filled, each time in a new instance.

    Return the times of both, and the counts of kernels, configurations and uncached graphs.

    Raises `WorkloadError` if a call fails.
    """
    times: dict[Timer, list[float]] = {timer: [] for timer in COMPILE_TIMERS}
    counts: dict[Timer, GeneratedCode] = {}
    reference_us = math.inf  # the fastest of all: one moment says little of seconds, but tells a host at another speed
    with torch_set_up(), grad_mode(workload):
        _load_compiler(device.torch_device)
        started = time.perf_counter()
        for number in range(_STARTS):
            if number >= _FEWEST_STARTS and time.perf_counter() - started > _START_SECONDS:
                break
            with empty_compile_caches() as forget_loaded:
                for timer in COMPILE_TIMERS:
                    reset_compiler()
                    forget_loaded()
                    gc.collect()  # a training step refers to itself: its memory is for the next one
                    instance = build(workload, device, replicate=number)
                    reference_us = min(reference_us, *(device.host.once_us() for _ in range(_REFERENCES)))
                    before = generated_code()
                    with reporting(workload, "compiling"):
                        instance.prepare()
                        device.synchronize()
                        with collector_paused():
                            start = time.perf_counter_ns()
                            instance.call()
                            device.synchronize()
                    times[timer].append((time.perf_counter_ns() - start) / 1000)
                    counts[timer] = generated_code().since(before)
                    del instance
    cold, warm = (counts[timer] for timer in COMPILE_TIMERS)
    samples = {timer: Sample(tuple(each), 1, (reference_us,) * len(each)) for timer, each in times.items()}
    return samples, {
        "generated_kernels": cold.kernels,
        "autotuned_configurations": cold.configurations,
        "uncached_graphs": warm.uncached,
    }
