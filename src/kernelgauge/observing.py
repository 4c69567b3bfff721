"""What one run of pytest observed: it is measured on first demand, once. This state has this one owner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from .errors import KernelgaugeError, OtherKernelsError
from .files import GpuLock
from .measure.nvml import digest_of, visible_gpus
from .revision import revision
from .run import Fingerprint, Run, Sample, Timer
from .suites import Options
from .workload import Workload

if TYPE_CHECKING:
    from .measure.device import Device, DeviceChoice
    from .measure.latency import Rounds
    from .measure.runner import Measured, Result
    from .measure.settings import Settings

__all__ = ["CONFIRMED_WHERE_MEASURED", "Observed"]

CONFIRMED_WHERE_MEASURED = (Timer.DEVICE, Timer.HOST)  # by one session of the profiler, which gives both


@dataclass
class Observed:
    """What was observed of all selected workloads, which are measured together.

    `measurer` is `measure.runner.measure`, or a stand-in for it in a test. `suspects` says of runs by id which ones are to
    be measured further before anything is said of them; `arrived` is told each result once, a failure too.
    """

    options: Options
    measurer: Callable[..., Mapping[str, Result]]
    choose: Callable[[DeviceChoice], Device]
    settings: Settings
    progress: Callable[[str], None] = lambda _: None
    waiting: Callable[[str], None] = lambda _: None  # says what is waited for
    lock: GpuLock | None = None  # None: whoever asks knows that nobody else is there
    suspects: Callable[[Mapping[str, Run]], Collection[str]] = lambda _: ()
    arrived: Callable[[Workload, Result], None] = lambda *_: None
    selected: list[Workload] = field(default_factory=list)  # those that this process has tests for
    _measured: dict[str, Result] = field(default_factory=dict)
    _latency_confirmed: dict[str, KernelgaugeError | None] = field(default_factory=dict)  # or why it could not be
    _samples: dict[str, dict[Timer, Sample]] = field(default_factory=dict)
    _latency_of_others: dict[str, OtherKernelsError] = field(default_factory=dict)  # why there is no sample of it

    # -- the machine --------------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> Device:
        """Nobody else of ours uses it from now on, until the run of pytest ends: what compiles disturbs what is timed."""
        if self.lock is not None and self.options.device != "cpu":
            # Before CUDA starts: a process that waits on the GPU would be a stranger to the one that times there.
            first = next(iter(visible_gpus()), None)
            gpu = digest_of(first) if first is not None else None
            if gpu is not None:
                self.lock.hold(gpu, self.waiting)
        device = self.choose(self.options.device)
        if self.lock is not None:
            if device.gpu is None:  # a torch without CUDA beside a driver
                self.lock.release()
            else:  # without NVML, or with other numbers than CUDA's
                self.lock.hold_only(device.gpu, self.waiting)
        return device

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return self.device.fingerprint()

    @cached_property
    def commit(self) -> str | None:
        """That is measured; None: not known."""
        return revision(self.options.root)

    @property
    def not_watched(self) -> str:
        """Why nothing is known of the GPU's clocks and of its other users; empty if it is, or if there is no GPU."""
        monitor = self.device.monitor
        return "" if monitor.available or self.fingerprint.arch == "cpu" else monitor.why_not

    # -- what was measured --------------------------------------------------------------------------------------

    def measured(self, workload: Workload) -> Measured:
        """What was measured of a workload, with all that are selected. A failure is kept, and not tried again."""
        if workload.id not in self._measured:
            self._measure_with(workload)
        result = self._measured[workload.id]
        if isinstance(result, KernelgaugeError):
            raise result
        return result

    def _measure_with(self, workload: Workload) -> None:
        together = [each for each in self.selected if each.id not in self._measured]
        if workload not in together:  # another one to compare with, which this run has no tests for
            together = [workload]
        results = self.measurer(together, self.device, self.fingerprint, self.settings, self.progress, self.suspects)
        for each in together:
            self._measured[each.id] = results[each.id]
            self.arrived(each, results[each.id])

    def run(self, workload: Workload) -> Run:
        """What was observed of a workload so far, the times that were taken since included."""
        return self._with_times_since(self.measured(workload).run)

    def runs(self) -> list[Run]:
        """Every run so far, in order of measurement."""
        results = self._measured.values()
        return [self._with_times_since(result.run) for result in results if not isinstance(result, KernelgaugeError)]

    def _with_times_since(self, run: Run) -> Run:
        worker, error = self.options.worker, self._latency_of_others.get(run.workload)
        return msgspec.structs.replace(
            run,
            incomplete=run.incomplete or (None if error is None else error.what),
            samples={**run.samples, **self._samples.get(run.workload, {})},
            neighbours=worker.others if worker else 0,
        )

    # -- times that are taken outside of the measurer -----------------------------------------------------------

    def rounds(self, workload: Workload, *, first: int = 0, replicates: int | None = None) -> Rounds:
        """Rounds of end-to-end latency, to be timed."""
        from .measure.latency import Rounds

        measured = self.measured(workload)
        return Rounds(
            workload,
            self.device,
            replicates=replicates or measured.latency_replicates,
            iterations=measured.latency_iterations,
            first=first,
            profiled=[kernel.identity for kernel in measured.run.kernels],
            one_instance=measured.one_instance,
        )

    def add_sample(self, workload: Workload, timer: Timer, sample: Sample) -> None:
        """Add a time that was taken outside of the measurer, in place of what was taken before."""
        self._samples.setdefault(workload.id, {})[timer] = sample
        if timer is Timer.END_TO_END:
            self._latency_of_others.pop(workload.id, None)

    def keep_latency(self, workload: Workload, rounds: Rounds, durations_s: Sequence[float]) -> None:
        """Keep what the rounds took; if the machine spoilt them, take others in their place.

        What is of other kernels than were profiled is not kept. Raises `DisturbedError` if the machine spoils the others
        too, and what else `Rounds.require_profiled_kernels` raises.
        """
        sample = rounds.sample(durations_s)
        self._forget_latency(workload)
        try:
            if rounds.disturbed_by():
                self.progress(f"{workload.id}: the machine was disturbed: timing the latency again")
                sample = self.rounds(workload, first=len(sample.replicates_us)).time()
            else:
                rounds.require_profiled_kernels()
        except OtherKernelsError as error:
            self._latency_of_others[workload.id] = error
        else:
            self.add_sample(workload, Timer.END_TO_END, sample)

    def _forget_latency(self, workload: Workload) -> None:
        """Of an earlier time: a test that is run again times anew."""
        self._samples.get(workload.id, {}).pop(Timer.END_TO_END, None)
        self._latency_of_others.pop(workload.id, None)
        self._latency_confirmed.pop(workload.id, None)

    def of_other_kernels(self, workload: Workload, timer: Timer) -> OtherKernelsError | None:
        """Why a time was not kept; None: it was, or it was not taken."""
        return self._latency_of_others.get(workload.id) if timer is Timer.END_TO_END else None

    def time_latency(self, workload: Workload) -> None:
        """Time the rounds here, where pytest-benchmark does not. Raises `DisturbedError` as `keep_latency`."""
        rounds = self.rounds(workload)
        self.keep_latency(workload, rounds, rounds.durations_s())

    # -- what looks slower --------------------------------------------------------------------------------------

    def confirm(self, workload: Workload, timer: Timer) -> KernelgaugeError | None:
        """Measure a time that looks slower further, once. None: it was done, now or before; else why it could not be."""
        if timer in CONFIRMED_WHERE_MEASURED:
            return self.measured(workload).not_confirmed
        if workload.id not in self._latency_confirmed:
            self._latency_confirmed[workload.id] = None
            try:
                self._confirm_latency(workload)
            except KernelgaugeError as error:
                self._latency_confirmed[workload.id] = error
        return self._latency_confirmed[workload.id]

    def _confirm_latency(self, workload: Workload) -> None:
        """Measure again, so that what follows judges more of the same. Raises what measuring raises."""
        self.progress(f"{workload.id}: latency looks slower: measuring again")
        before = self._samples[workload.id][Timer.END_TO_END]
        count = len(before.replicates_us)
        again = self.rounds(workload, first=count, replicates=2 * count).time()
        self.add_sample(workload, Timer.END_TO_END, before.joined(again))
