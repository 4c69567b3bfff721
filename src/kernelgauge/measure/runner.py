"""Times a suite: workloads together, in passes; rounds of end-to-end latency; and first calls that
compile.

A drift of the machine shows between passes, and not between workloads.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ..errors import (
    OTHER_KERNELS,
    KernelgaugeError,
    TimesError,
    WorkloadError,
    disturbed,
)
from ..run import COMPILE_TIMERS, Fingerprint, Run, Sample, Timer, summarize
from ..trace import KernelIdentity
from ..workload import Workload
from . import Settings
from .choices import Replay
from .compiler import (
    compile_counts,
    empty_compile_caches,
    generated_code,
    reset_compiler,
    torch_set_up,
)
from .device import Device
from .instance import (
    Instance,
    build,
    call_duration_us,
    collector_paused,
    grad_mode,
    reporting,
    warm_up,
)
from .measurement import DeviceLost, Measured, Measurement, without_frames
from .nvml import disturbances, highest_clock_mhz
from .profile import multiset_difference, names_with_configurations, profile_session

Result = Measured | KernelgaugeError
Progress = Callable[[str], None]
KeepsTimes = Callable[[Run, Callable[[], Sample]], bool]

# a pass over a few workloads takes a tenth of that, and a log keeps every line
_PROGRESS_INTERVAL_S = 2.0


def measure_groups(
    workloads: Sequence[Workload],
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
    progress: Progress = lambda _: None,
    *,
    timed: bool = True,
    keeps_times: KeepsTimes | None = None,
    replays: Mapping[str, Replay] = MappingProxyType({}),
) -> Iterator[dict[str, Result]]:
    """Profile workloads and, if `timed`, time them, interleaved, as many at once as can share
    compiled code.

    Yield the results of those, by id, each with its run or with why there is none: a
    `WorkloadUnavailable` if it cannot run here, a `WorkloadError` if it fails, a `MeasurementError`
    if its records cannot be trusted. `replays`: the choices of autotuners, by workload.
    `keeps_times`: whether a run needs no times, though the others do. It may ask for one replicate
    of the latency.
    """
    settings = settings.limited(device.most_replicates, device.most_busy_seconds)
    waiting: Sequence[Workload] = workloads
    roots: dict[str, object] = {}
    with torch_set_up():
        while waiting:
            group = _Group(device, fingerprint, settings, progress, roots, replays)
            results, waiting = group.measure(waiting, timed=timed, keeps_times=keeps_times)
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
    replays: Mapping[str, Replay]
    measurements: list[Measurement] = field(default_factory=list)
    _timed: list[Measurement] = field(default_factory=list)
    _controls: list[Measurement] = field(default_factory=list)

    def measure(
        self,
        workloads: Sequence[Workload],
        *,
        timed: bool,
        keeps_times: KeepsTimes | None,
    ) -> tuple[dict[str, Result], list[Workload]]:
        """Measure as many workloads as can share a process's compiled code.

        Return the results, and the other workloads.
        """
        failed: dict[str, Result] = {}
        deferred = self._prepare(workloads, failed)
        for measurement in self.measurements if timed else ():
            untimed = measurement.result(self.fingerprint, {}) if keeps_times else None
            if keeps_times and isinstance(untimed, Measured):
                look = partial(_look_at_latency, measurement.workload, self.device, untimed)
                with suppress(KernelgaugeError):  # its replicates say that again
                    if keeps_times(untimed.run, look):
                        continue
            self._timed.append(measurement)
        if self._timed:
            try:
                # each instance is gone before the next one is built
                for each in self.device.controls:
                    control = Measurement(
                        each, build(each, self.device), self.device, self.settings, is_control=True
                    )
                    self._controls.append(control)
            except KernelgaugeError as error:
                ending = without_frames(error, self.device)
                for measurement in self._timed:
                    measurement.error = ending
            else:
                self._go_round()
        controls = {
            each.workload.module: each.control_time for each in self._controls if each.replicates
        }
        results = {
            each.workload.id: each.result(self.fingerprint, controls) for each in self.measurements
        }
        return results | failed, deferred

    def _prepare(self, workloads: Sequence[Workload], failed: dict[str, Result]) -> list[Workload]:
        """Compile and profile those that can share compiled code; those that fail are put into
        `failed`. Return the others.
        """
        reset_compiler()
        deferred: list[Workload] = []
        roots: set[object] = set()

        def must_wait(workload: Workload) -> bool:
            # After a graph break functions are compiled on their own that the next workload may
            # call too.
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
                replay = self.replays.get(workload.id)
                self.measurements.append(
                    Measurement(workload, instance, self.device, self.settings, replay=replay)
                )
            except KernelgaugeError as error:
                failed[workload.id] = without_frames(error, self.device)
        return deferred

    def _go_round(self) -> None:
        """Measure all and the controls, the reference kernels, in turn until each is pinned down or
        out of budget.
        """
        usual_mhz: int | None = None  # the highest clock that any of them has shown
        progress_at = -math.inf
        for number in itertools.count():
            active = [measurement for measurement in self._timed if not measurement.is_done]
            if not active:
                break
            broken = next(
                (control.error for control in self._controls if control.error is not None), None
            )
            # else nobody watches the machine
            ending = DeviceLost() if self.device.lost() else broken
            if ending is not None:
                for measurement in active:
                    measurement.error = ending
                break
            if (now := time.perf_counter()) - progress_at >= _PROGRESS_INTERVAL_S:
                progress_at = now
                left = math.fsum(measurement.seconds_left for measurement in active)
                about = f", about {left:.0f} s left" if 1 <= left < math.inf else ""
                self.progress(
                    f"timing, pass {number + 1}: {len(active)} of {len(self._timed)} workloads{about}"
                )
            for measurement in (*self._controls, *active):
                readings = measurement.measure_once(number, usual_mhz)
                usual_mhz = max(
                    filter(None, (usual_mhz, highest_clock_mhz(readings))), default=None
                )
        # Believe nothing that was measured on a machine that changed its speed meanwhile.
        tolerated = self.device.tolerated_drift
        drifts = {control.workload.module: control.drift for control in self._controls}
        too_far = [
            f"{name} {100 * drift:+.1f} %"
            for name, drift in drifts.items()
            if abs(drift) > tolerated
        ]
        if too_far:
            drifted = TimesError(
                "the machine changed its speed while it measured",
                got=", ".join(too_far),
                expected=f"a copy and a GEMM of our own to stay within {100 * tolerated:g} %",
                next_command="nvidia-smi -q -d PERFORMANCE,CLOCK   (is it throttled, or shared?)",
            )
            for measurement in self._timed:
                if measurement.error is None or isinstance(measurement.error, DeviceLost):
                    measurement.error = drifted


def _compiled_root(module: Any) -> object:
    """Return what Dynamo keeps the compiled code under.

    Two workloads of one root would see each other's.
    """
    # Another shape of the same code compiles for dynamic shapes, with other kernels.
    if isinstance(module, nn.Module):
        # A module of torch itself is compiled through a wrapper that all of them share
        # (torch/_dynamo/eval_frame.py).
        if type(module).__module__.startswith("torch.nn."):
            return "torch.nn"
        return getattr(getattr(type(module), "forward", None), "__code__", type(module))
    return getattr(module, "__code__", type(module))


# -- rounds of end-to-end latency ------------------------------------------------------------------

_WARM_UP_SECONDS = 0.02


def time_latency(
    workload: Workload, device: Device, measured: Measured, progress: Progress = lambda _: None
) -> Sample:
    """Time the end-to-end latency of what was measured, and put the duration of each round there.
    If the machine disturbs it, once more.

    Raises `TimesError` if the machine spoils that too, and what `_require_profiled_kernels`
    raises.
    """
    disturbed_by: tuple[str, ...] = ()
    for first in (0, measured.latency_replicates):
        # a graph that another test left behind, for a dynamic batch say, would be timed instead
        reset_compiler()
        with torch_set_up(), grad_mode(workload), reporting(workload, "timing"), collector_paused():
            before = device.monitor.read(processes=True)
            instance, sample = _time_rounds(workload, device, measured, first)
            disturbed_by = disturbances((before, device.monitor.read(processes=True)))
        if not disturbed_by:
            profiled = [kernel.identity for kernel in measured.run.kernels]
            _require_profiled_kernels(workload, device, instance, profiled)
            return sample
        if not first:
            progress(f"{workload.id}: the machine was disturbed: timing the latency again")
    expected = "a GPU of its own that nothing slows down while a latency is timed"
    raise disturbed(workload.id, disturbed_by, expected=expected)


def _look_at_latency(workload: Workload, device: Device, measured: Measured) -> Sample:
    """Time one replicate of the latency, while other code stays compiled."""
    one = replace(measured, latency_replicates=1)
    with grad_mode(workload), reporting(workload, "timing"), collector_paused():
        return _time_rounds(workload, device, one, 0)[1]


def _time_rounds(
    workload: Workload, device: Device, measured: Measured, first: int
) -> tuple[Instance, Sample]:
    """Time rounds, each on a cold cache, each replicate on fresh allocations as a rule. Return the
    last instance too.

    `first`: how many replicates came before these, which had other addresses.
    """
    durations_s: list[float] = []
    times_us: list[float] = []
    controls_us: list[float] = []
    instance: Instance | None = None
    replay = Replay(measured.run.choices)
    for number in range(measured.latency_replicates):
        if instance is None or not measured.one_instance:
            instance = None  # first, so that two replicates are never held at once
            instance = build(workload, device, replicate=first + number)
        device.host.wait_until_fast()
        with replay.active(workload):
            warm_up(device, instance, calls=device.warm_up_calls, seconds=_WARM_UP_SECONDS)
        references_us: list[float] = []
        for _ in range(measured.latency_iterations):
            references_us.append(device.host.round_trip_us())
            instance.prepare()
            device.flush_cache()
            device.synchronize()
            start = time.perf_counter()
            instance.call()
            device.synchronize()
            durations_s.append(time.perf_counter() - start)
        own_us = [1e6 * each for each in durations_s[-measured.latency_iterations :]]
        for values, of_rounds in ((times_us, own_us), (controls_us, references_us)):
            values.append(summarize(of_rounds, Timer.END_TO_END.timing.statistic))
    measured.durations_s = durations_s
    assert instance is not None  # there is a replicate
    return instance, Sample(tuple(times_us), measured.latency_iterations, tuple(controls_us))


def _require_profiled_kernels(
    workload: Workload, device: Device, instance: Instance, profiled: Sequence[KernelIdentity]
) -> None:
    """Require, after the last round, that the rounds ran the `profiled` kernels: they were compiled
    anew.

    Raises `WorkloadError` if they did not, `MeasurementError` if the profiler cannot be trusted.
    """
    if workload.compile is None or all(identity.grid is None for identity in profiled):
        return  # nothing chooses: no compiler, or that of a CPU
    with grad_mode(workload), reporting(workload, "profiling"):
        timed = profile_session(device, instance, iterations=1, is_structure=True).kernels
    if [each.without_source for each in timed] == [each.without_source for each in profiled]:
        return
    got, expected = multiset_difference(timed, profiled), multiset_difference(profiled, timed)
    raise WorkloadError(
        f"{workload.id}: {OTHER_KERNELS}",
        got=names_with_configurations(got),
        expected=names_with_configurations(expected),
    )


# -- first calls that compile ----------------------------------------------------------------------

# Cold starts, and warm ones. Within one process on an H100 they spread by 8 to 20 %, which the host
# reference did not explain.
_STARTS = 5
_REFERENCES = 10  # host references before each start
_FEWEST_STARTS = 2  # they show a spread
_START_SECONDS = 20.0  # then no more are made than the fewest: with max-autotune one takes a minute


@cache
def _load_compiler(device: torch.device) -> None:
    """Compile once, so that imports and the start of the compiler's workers are in no time.

    Where its caches were full, much of the compiler was never loaded: the first cold start took
    three to five times as long.
    """
    with empty_compile_caches():
        torch.compile(torch.relu)(torch.ones(64, device=device))


def _first_call_us(instance: Instance, device: Device) -> float:
    with reporting(instance.workload, "compiling"), collector_paused():
        return call_duration_us(device, instance)


def compile_starts(
    workload: Workload, device: Device
) -> tuple[dict[Timer, Sample], dict[str, int]]:
    """Compile a workload with empty caches, and again with the caches that this filled, each time
    in a new instance.

    Return the times of both, and the counts of kernels, configurations and uncached graphs.

    Raises `WorkloadError` if a call fails.
    """
    times: dict[Timer, list[float]] = {timer: [] for timer in COMPILE_TIMERS}
    counts: dict[Timer, dict[str, int]] = {}
    # the fastest of all: one moment says little of seconds, but tells a host at another speed
    reference_us = math.inf
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
                    reference_us = min(
                        reference_us, *(device.host.once_us() for _ in range(_REFERENCES))
                    )
                    before = generated_code()
                    times[timer].append(_first_call_us(instance, device))
                    after = generated_code()
                    counts[timer] = {name: after[name] - before[name] for name in after}
                    del instance
    samples = {
        timer: Sample(tuple(each), 1, (reference_us,) * len(each)) for timer, each in times.items()
    }
    uncached = counts[Timer.WARM_COMPILE]["uncached_graphs"]
    return samples, counts[Timer.COLD_COMPILE] | {"uncached_graphs": uncached}
