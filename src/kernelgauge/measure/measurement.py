"""One workload while it is measured: prepared, timed in replicates, and the run that comes of them,
or the error.
"""

from __future__ import annotations

import gc
import math
import platform
import time
from collections import Counter
from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import chain
from statistics import fmean, median

import msgspec

from ..errors import (
    NO_TIMES,
    OTHER_KERNELS,
    KernelgaugeError,
    MeasurementError,
    NoKernelsError,
    OtherKernelsError,
    TimesError,
    WorkloadError,
    disturbed,
)
from ..run import (
    NO_COUNTS,
    CallRecord,
    CompileEvent,
    ControlTime,
    Counts,
    Fingerprint,
    Lack,
    OpRecord,
    Run,
    Sample,
    Timer,
    on_the_fastest_host,
    summarize,
)
from ..trace import (
    CALL,
    IN_LISTS,
    KernelIdentity,
    KernelRecord,
    Resources,
    busy_us,
    common_arguments,
    dispatcher_ops,
    executions,
    input_texts,
    kernels_of_ops,
    metadata_ops_that_launched,
    number_streams,
    ops_within_ops,
)
from ..workload import Workload
from . import Settings
from .choices import Replay
from .code import resources_of_call
from .compiler import CompileCounts, compile_counts, cpp_source
from .device import Device
from .host import HostWork, host_work_of
from .instance import (
    Instance,
    build,
    first_call,
    host_calls,
    old_objects_frozen,
    reporting,
    steady_call,
    warm_up,
)
from .nvml import Reading, conditions_of, digest, disturbances, highest_clock_mhz
from .origins import Modules, origins_of
from .profile import (
    HoldTime,
    multiset_difference,
    names_with_configurations,
    parameters_of,
    profile_session,
)
from .reach import held_bytes

_NOTHING_COMPILED = CompileEvent(
    "graph break", "torch.compile is switched off: all of it runs eagerly"
)
# the article's schedule (claim c24 in perf/test_fusion.py): wait=1, warmup=1, active=3
_STRUCTURE_ITERATIONS = 3
_SHOWN_ORIGINS = 3  # of memory that is left behind
_SHOWN_KERNELS = 2  # of those that differ, in an error


class DeviceLost(MeasurementError):
    """Nothing can be measured any more. What was before is sound."""

    def __init__(self, error: KernelgaugeError | None = None) -> None:
        super().__init__(
            "the GPU no longer answers",
            got=None if error is None else str(error),
            expected="no CUDA error: after one, nothing in this process can be measured",
            next_command="dmesg | grep -i xid   (what happened to it?)",
        )


def without_frames(error: KernelgaugeError, device: Device) -> KernelgaugeError:
    """Return the error as it is reported: without the frames, which hold a workload's memory while
    others are measured.
    """
    if device.lost():
        return DeviceLost(error)
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


@dataclass
class Measured:
    """A run and its artifacts.

    Whoever writes `trace_json` and `table` empties them: all those of a suite take gigabytes.
    """

    run: Run
    latency_replicates: int  # of what is timed later
    latency_iterations: int  # calls in each of them
    trace_json: bytes
    table: str
    one_instance: bool = (
        False  # whether all replicates are made on one (`Measurement.only_instance`)
    )
    problem: str = ""  # `Origins.problem`
    durations_s: Sequence[float] = ()  # of each round of the latency, in order


def without_kernels(
    workload: Workload,
    error: NoKernelsError,
    device: Device,
    fingerprint: Fingerprint,
    settings: Settings,
) -> Measured:
    """Return the run of a call that runs no kernel.

    Only its latency has a meaning, which is timed later.
    """
    host = digest(platform.node()) if platform.node() else None
    run = Run(
        workload.id,
        fingerprint,
        kernels=(),
        counts=NO_COUNTS,
        samples={},
        gpu=device.gpu,
        host=host,
    )
    own = settings.for_call(error.call_us)
    return Measured(
        run, own.latency_replicates, own.iterations_for(error.call_us, Timer.END_TO_END), b"", ""
    )


@dataclass(frozen=True)
class Replicate:
    """The times of one replicate, and what the machine went through."""

    # interquartile mean over the calls of each kernel, in launch order
    kernel_us: tuple[float, ...]
    readings: tuple[Reading, ...]  # of the GPU's state, before, during and after
    disturbed_by: tuple[str, ...]  # reasons not to count it
    seconds: float  # that it took
    # lower decile of the host dispatch time; None where that has no meaning
    dispatch_us: float | None
    host_us: float | None  # the host reference beside it, likewise
    # time with a kernel running over the sum of their durations: below 1 where streams overlap
    busy_share: float = 1.0

    @property
    def device_us(self) -> float:
        """The time with a kernel running.

        On one stream it is the sum, so that changes of kernels add up to its change.
        """
        return sum(self.kernel_us) * self.busy_share


class Measurement:
    """One workload while it is measured, on code that is compiled once."""

    def __init__(
        self,
        workload: Workload,
        instance: Instance,
        device: Device,
        settings: Settings,
        *,
        is_control: bool = False,
        replay: Replay | None = None,
    ) -> None:
        """Compile, call and profile it.

        `is_control`: a workload of our own, which the machine is measured by. `replay`: the choices
        of its autotuners.
        """
        self.workload, self.device, self.replay = workload, device, replay or Replay()
        self.settings, self.is_control = settings, is_control
        self.replicates: list[Replicate] = []  # those that count
        self.spoilt: list[Replicate] = []  # those measured on a disturbed machine
        self.error: KernelgaugeError | None = None  # why it is measured no more
        with instance.grad_mode(), reporting(workload, "measuring"):
            before = compile_counts()
            with self.replay.active(workload):
                self.graphs = first_call(instance)  # that each call compiled
                held_at_first = held_bytes(instance.module)
                after = compile_counts()
                if device.gpu is not None and not is_control:
                    gc.collect()  # once for all calls of this one; and what others have left is freed
                with old_objects_frozen():
                    warm_up(device, instance, calls=device.warm_up_calls, seconds=0)
            with old_objects_frozen():
                call_us, self.autograd_nodes = steady_call(device, instance)
                self.structure = profile_session(
                    device, instance, iterations=_STRUCTURE_ITERATIONS, is_structure=True
                )
                if not self.structure.kernels:
                    _require_work(instance)
                    error = NoKernelsError(
                        f"{workload.id}: it runs no kernel, so there is nothing to measure",
                        expected="a kernel; the fixture `benchmark` measures host time",
                        next_command="pytest --perf-benchmark",
                    )
                    error.call_us = call_us
                    raise error
                instance.prepare()
                prepared = compile_counts()
                self.peak_bytes = device.peak_allocated_bytes(instance.call)
            has_compiled = bool(prepared.traced > before.traced or prepared.since(before).events)
            self.modules = Modules(
                instance.module,
                before.traced,
                are_compiled=has_compiled,
                arguments=instance.calls[0][0],
            )
            self._count_compiles(before, after, prepared)
            self.resources = resources_of_call(self.structure)
            self.hold_time = HoldTime.of(call_us, self.structure)
            has_compiled |= workload.compile is not None or self.structure.runs_compiled_code
            self.host = (
                HostWork()
                if is_control
                else host_work_of(instance, device, is_compiled=has_compiled)
            )
            self.origins = origins_of(instance, self.modules, self.structure, device, held_at_first)
            # For all replicates. Inductor records a CUDA graph for the addresses of each instance,
            # and keeps them all: a call looks for its own among them, so that its dispatch would
            # take longer with each (docs/measuring.md). A compiled optimizer has the addresses of
            # its parameters in its guards.
            training = workload.training
            self.is_alone = self.structure.replays_graphs or (
                training is not None and training.compile is not None
            )
            self.only_instance: Instance | None = None
            if self.is_alone:
                self._keep(instance)

    def _keep(self, instance: Instance) -> None:
        """Make all replicates that follow on one instance."""
        self.is_alone, self.only_instance = True, instance
        if instance.training is not None:
            instance.training.save()

    def _count_compiles(
        self, before: CompileCounts, after: CompileCounts, prepared: CompileCounts
    ) -> None:
        """Count what the first call compiled, and later ones. If nothing was, that is a graph break."""
        self.recompiles = prepared.since(after).recompiles
        self.graph_breaks = after.since(before).graph_breaks
        self.compiled_ops = prepared.since(before).ops
        self.compile_events = self.modules.located(prepared.since(before).events)
        is_asked = self.workload.compile is not None
        if is_asked and not self.compile_events and not self.structure.runs_compiled_code:
            self.graph_breaks += 1
            self.compile_events = (_NOTHING_COMPILED,)

    @property
    def _seconds(self) -> float:
        return math.fsum(each.seconds for each in (*self.replicates, *self.spoilt))

    @property
    def seconds_left(self) -> float:
        """How long it may still be timed. Few replicates of a slow call take longer."""
        return max(0.0, self._own_settings.budget_seconds - self._seconds)

    @property
    def is_done(self) -> bool:
        return self.error is not None or self._own_settings.is_enough(self.device_us, self._seconds)

    @property
    def device_us(self) -> tuple[float, ...]:
        """The device time of each replicate."""
        return tuple(each.device_us for each in self.replicates)

    @property
    def _own_settings(self) -> Settings:
        return self.settings.for_call(self.hold_time.call_us)

    def measure_once(self, index: int, usual_clock_mhz: int | None) -> Sequence[Reading]:
        """Measure one replicate more.

        Return its readings; none if it failed, or was disturbed and does not count.
        """
        before = compile_counts()
        try:
            measured = self.replicate(index, usual_clock_mhz)
        except KernelgaugeError as error:
            self._end(without_frames(error, self.device))
            return ()
        finally:  # other kernels than were profiled may come of a recompile
            compiled = compile_counts().since(before)
            self.recompiles += compiled.recompiles
            self.compile_events += self.modules.located(compiled.events)
        if not measured.disturbed_by or self.is_control:
            self.replicates.append(measured)
            return measured.readings
        self.spoilt.append(measured)
        if len(self.spoilt) > self.settings.replicates:  # repeated as often as are kept at least
            reasons = (reason for each in self.spoilt for reason in each.disturbed_by)
            expected = f"a GPU of its own at its usual clock: replicates were repeated, {len(self.spoilt)} times in all"
            self._end(disturbed(self.workload.id, reasons, expected=expected))
        return ()

    def replicate(self, index: int, usual_clock_mhz: int | None = None) -> Replicate:
        """Measure one replicate, on fresh allocations (`index` tells their addresses) or on the
        only instance.

        Of a control neither the dispatch time is measured nor who else computes on the GPU: that
        takes 2 to 3 ms each.

        Raises `WorkloadError` if it fails, `OtherKernelsError` if it runs others than `structure`,
        `MeasurementError` if the profiler cannot be trusted.
        """
        device, settings = self.device, self.settings
        started = time.perf_counter()
        instance = self.only_instance or build(self.workload, device, replicate=index)
        if instance.training is not None:
            instance.training.restore()
        device.host.start()
        self.replay.restore()
        before = device.monitor.read(processes=not self.is_control)
        with instance.grad_mode(), reporting(self.workload, "measuring"):
            graphs = compile_counts().graphs
            # the session has more of its own
            warm_up(device, instance, calls=1, seconds=settings.warm_up_seconds)
            if not self.is_alone and compile_counts().graphs > graphs:
                # Its guards are of the module itself, as of a `torch.fx.GraphModule`: each instance
                # would compile anew, up to Dynamo's limit.
                self._keep(instance)
            session = self.hold_time.held_session(device, instance, settings)
            got, expected = session.kernels, self.structure.kernels
            if _choices(got) != _choices(expected):
                both = multiset_difference(got, expected), multiset_difference(expected, got)
                more, fewer = (names_with_configurations(each[:_SHOWN_KERNELS]) for each in both)
                what = f"{self.workload.id}: {OTHER_KERNELS}"
                raise OtherKernelsError(what, got=more, expected=fewer)
            after = device.monitor.read(processes=not self.is_control)
            dispatch_us = host_us = None
            if Timer.HOST not in device.timers:
                host_us = device.host.control_us()
            # after the session: a hot loop heats the device, and its clock falls for a while
            elif not self.is_control:
                calls = host_calls(
                    device, instance, settings.iterations_for(self.hold_time.call_us, Timer.HOST)
                )
                dispatch_us, host_us = (
                    summarize(each, Timer.HOST.timing.statistic) for each in calls
                )
        durations = [
            [execution.duration_us for execution in executions] for executions in session.executions
        ]
        total_us = sum(map(sum, durations)) or 1.0  # zero, as of a broken clock, is refused later
        seconds = time.perf_counter() - started
        readings = (before, *session.readings, after)
        usual = max(
            filter(None, (usual_clock_mhz, highest_clock_mhz(session.readings))), default=None
        )
        return Replicate(
            kernel_us=tuple(
                summarize(column, Timer.DEVICE.timing.statistic)
                for column in zip(*durations, strict=True)
            ),
            readings=readings,
            disturbed_by=disturbances(
                readings, usual_clock_mhz=usual, tolerated_drift=device.tolerated_drift
            ),
            seconds=seconds,
            dispatch_us=dispatch_us,
            host_us=host_us,
            busy_share=sum(map(busy_us, session.executions)) / total_us,
        )

    def _end(self, error: KernelgaugeError) -> None:
        """Measure it no more. The memory of its instance is for the others."""
        self.error = error
        self.only_instance = None

    @property
    def drift(self) -> float:
        """How far it moved from its first replicates to its last, as a fraction."""
        third = len(self.replicates) // 3
        return (
            median(self.device_us[-third:]) / median(self.device_us[:third]) - 1 if third else 0.0
        )

    @property
    def control_time(self) -> ControlTime:
        # A GEMM may split K: two kernels.
        return ControlTime(
            " + ".join(kernel.name for kernel in self.structure.kernels), median(self.device_us)
        )

    def result(
        self, fingerprint: Fingerprint, controls: dict[str, ControlTime]
    ) -> Measured | KernelgaugeError:
        """Return what was observed, or why there is nothing."""
        if self.error is not None and not isinstance(self.error, (DeviceLost, TimesError)):
            return self.error
        own = self._own_settings
        try:
            samples = {} if self._incomplete()[0] else self._samples()
        except ValueError as error:  # of a `Sample`: a clock or a profiler that gives zero
            return MeasurementError(
                f"{self.workload.id}: a time that no call takes",
                got=str(error),
                expected="kernels and calls that take at least a nanosecond",
                next_command="run again in a fresh process; no other profiler (CUPTI has one subscriber) may be attached",
            )
        return Measured(
            self._run(fingerprint, controls, samples),
            latency_replicates=own.latency_replicates,
            latency_iterations=own.iterations_for(self.hold_time.call_us, Timer.END_TO_END),
            trace_json=self.structure.trace_json,
            table=self.structure.table,
            one_instance=self.is_alone,
            problem=self.origins.problem or self.host.problem,
        )

    def _run(
        self,
        fingerprint: Fingerprint,
        controls: dict[str, ControlTime],
        samples: dict[Timer, Sample],
    ) -> Run:
        session, window = self.structure, self.structure.windows[-1]
        incomplete, lack = self._incomplete()
        transfers = [(*each.copies, *each.memsets) for each in session.windows]
        # a steady call has the fewest
        allocating_ops = min((each.allocating_ops for each in session.windows), key=len)
        return Run(
            workload=self.workload.id,
            fingerprint=fingerprint,
            kernels=self._kernels(),
            counts=self._counts(len(allocating_ops)),
            samples=samples,
            incomplete=incomplete,
            lack=lack,
            other_kernels=(self.error and self.error.got) or ""
            if lack is Lack.OTHER_KERNELS
            else "",
            gpu=self.device.gpu,
            host=digest(platform.node()) if platform.node() else None,
            controls=controls,
            conditions=conditions_of([each.readings for each in self.replicates]),
            ops=tuple(OpRecord(*each) for each in ops_within_ops(window)),
            op_kernels=tuple(kernels_of_ops(window, session.executions[-1])),
            launch_apis=tuple(launch.call.name for launch in window.launches),
            occupancy_queries=window.occupancy_queries,
            metadata_ops_that_launched=tuple(metadata_ops_that_launched(window)),
            steps=len(session.trace.steps()),
            transfers_us=fmean(sum(one.time_us for one in each) for each in transfers),
            synchronizing_ops=tuple(text for text, _ in window.synchronizing_ops),
            copying_ops=tuple(text for text, _ in window.copying_ops),
            origins=self.origins.kernels,
            synchronization_origins=self.origins.synchronizations,
            copy_origins=self.origins.copies,
            op_origins=dict(self.origins.ops),
            growth_origins=self.origins.growth[:_SHOWN_ORIGINS],
            host_growth_origins=self.origins.host_growth[:_SHOWN_ORIGINS],
            cyclic_origins=self.origins.cyclic[:_SHOWN_ORIGINS],
            host_peak_origins=self.origins.host_peak,
            keeping_origins=self.origins.keeping[:_SHOWN_ORIGINS],
            allocating_ops=tuple(text for text, _ in allocating_ops),
            allocation_origins=self.origins.allocations[:_SHOWN_ORIGINS],
            data=self._data(),
            peak=self.origins.peak,
            host_work=dict(self.host.counts),
            host_spread=dict(self.host.spread),
            host_us=dict(self.host.us),
            host_work_callers={name: dict(each) for name, each in self.host.callers.items()},
            host_work_origins=self.host.located(self.origins.calls),
            compiled_origins=self.origins.compiled,
            calling_code=self.host.with_runs(self.origins.calling_code),
            statements=self.host.that_run(self.origins.statements, self.origins.used),
            statement_keys=self.origins.statement_keys,
            recorded_origins=self.origins.recorded,
            functions=self.host.functions,
            day=datetime.now(timezone.utc).date().isoformat(),
            trains=self.workload.pass_ in ("train", "step")
            or any("_backward" in op.name for op in window.ops),
            calls=self._calls(),
            compile_events=self.compile_events,
            choices=self.replay.made,
        )

    def _counts(self, allocator_calls: int) -> Counts:
        kernels, window = self.structure.kernels, self.structure.windows[-1]
        return Counts(
            launches=len(kernels),
            kernels=len({kernel.name for kernel in kernels}),
            memsets=len(window.memsets),
            copies=len(window.copies),
            synchronizations=window.synchronizations,
            dispatcher_ops=len(dispatcher_ops(window)),
            graph_breaks=self.graph_breaks,
            recompiles=self.recompiles,
            peak_allocated_bytes=self.origins.peak_bytes
            if self.device.gpu is None
            else self.peak_bytes,
            grown_bytes=self.origins.grown_bytes,
            grown_host_bytes=self.origins.grown_host_bytes,
            cyclic_bytes=self.origins.cyclic_bytes,
            peak_host_bytes=self.origins.peak_host_bytes,
            held_bytes=self.origins.held_bytes,
            allocator_calls=None if self.device.gpu is None else allocator_calls,
            graph_launches=None if self.device.gpu is None else window.graph_launches,
            compiled_ops=self.compiled_ops,
            autograd_nodes=self.autograd_nodes,
            graphs=None if self.workload.compile is None else sum(self.graphs),
        )

    def _calls(self) -> tuple[CallRecord, ...]:
        """Return the calls of a sequence."""
        if len(self.graphs) == 1:
            return ()
        windows = [
            self.structure.trace.regions(f"{CALL}{number}")[-1]
            for number in range(len(self.graphs))
        ]
        pairs = zip(windows, self.graphs, strict=True)
        return tuple(
            CallRecord(len(list(executions(each, on_cpu=self.device.gpu is None))), graphs)
            for each, graphs in pairs
        )

    def _incomplete(self) -> tuple[str | None, Lack | None]:
        """Return why times are missing, without the workload's name.

        The structure is sound, whatever disturbed the times.
        """
        error = self.error
        if isinstance(error, DeviceLost) and len(self.replicates) >= self._own_settings.replicates:
            return None, None  # it fell off when there were enough
        if error is not None:
            what, is_of_times = (
                error.what.removeprefix(f"{self.workload.id}: "),
                isinstance(error, TimesError),
            )
            if isinstance(error, OtherKernelsError):
                return what, Lack.OTHER_KERNELS
            return f"{what}: {error.got}" if is_of_times else what, None
        return (None, None) if self.replicates else (NO_TIMES, Lack.NOT_ASKED)

    @property
    def _controls_us(self) -> tuple[float, ...]:
        """The host reference beside each device time: on a CPU, where the host does the work."""
        return tuple(
            each.host_us
            for each in self.replicates
            if each.host_us is not None and each.dispatch_us is None
        )

    def _samples(self) -> dict[Timer, Sample]:
        device, host = (
            self.settings.iterations_for(self.hold_time.call_us, timer)
            for timer in (Timer.DEVICE, Timer.HOST)
        )
        samples = {Timer.DEVICE: Sample(self.device_us, device, self._controls_us)}
        timed = [
            (each.dispatch_us, each.host_us)
            for each in self.replicates
            if each.dispatch_us is not None
        ]
        if timed:
            dispatches_us, hosts_us = zip(*timed, strict=True)
            samples[Timer.HOST] = Sample(dispatches_us, host, hosts_us)
        return samples

    def _kernels(self) -> tuple[KernelRecord, ...]:
        timed = [
            tuple(execution.duration_us for execution in executions)
            for executions in self.structure.executions
        ]
        if self.replicates:  # those that the time of the whole is a mean of
            kept = on_the_fastest_host(len(self.replicates), self._controls_us)
            timed = [self.replicates[place].kernel_us for place in kept]
        last = self.structure.executions[-1]
        streams = number_streams(each.stream for each in last)
        return tuple(
            KernelRecord(
                each.identity,
                fmean(times[place] for times in timed),
                op=each.op.name if each.op is not None and self.device.gpu is not None else "",
                inputs=self._inputs(place),
                stream=streams[each.stream],
                resources=self._resources(place),
                arguments=self._arguments(place),
            )
            for place, each in enumerate(last)
        )

    def _inputs(self, place: int) -> tuple[str, ...]:
        """Return the inputs of a launch, ``fp32[8,4 or 8,16]`` where the calls have others."""
        every = [
            input_texts(each.op.input_shapes, each.op.input_types) if each.op else ()
            for each in (execution[place] for execution in self.structure.executions)
        ]
        if len({len(each) for each in every}) > 1:
            return every[-1]
        parts = [
            [text.rstrip("]").partition("[") for text in of_one]
            for of_one in zip(*every, strict=True)
        ]
        return tuple(
            f"{_either(dtype for dtype, _, _ in each)}[{_either(shape for *_, shape in each)}]"
            for each in parts
        )

    def _arguments(self, place: int) -> tuple[str, ...] | None:
        """Return the arguments of a launch.

        A counter has another value in each call, and none is recorded.
        """
        found = []
        for op in (execution[place].op for execution in self.structure.executions):
            if op is None:
                return None
            texts = op.arguments(
                parameters_of(op.name, len(op.concrete_inputs)), follows_data=self._reads_data
            )
            found.append(tuple(f"{name}={text}" for name, text in texts.items()))
        op = self.structure.executions[-1][place].op
        given = self._given.get(op.external_id, {}) if op else {}
        own = tuple(f"{name}={text}" for name, text in given.items())
        return common_arguments([(*each, *own) for each in found])

    @cached_property
    def _reads_data(self) -> bool:
        """Whether numbers may follow from data: the host reads a tensor."""
        names = {each.rpartition(".")[2] for each in self.host.counts}
        return self.origins.reads_data or bool(names & {"tolist", "numpy", "__array__"})

    @cached_property
    def _given(self) -> dict[int | None, Mapping[str, str]]:
        """What each op is given beside what the profiler records, by its id."""
        ops: dict[str, list[int | None]] = {}
        for op in dispatcher_ops(self.structure.windows[-1]):
            ops.setdefault(op.name, []).append(op.external_id)
        found: dict[int | None, Mapping[str, str]] = {}
        for name, given in self.origins.given.items():
            numbers = ops.get(name, [])
            if len(given) == len(numbers):
                found |= zip(numbers, given, strict=True)
            else:  # nobody knows which of them has what
                found |= dict.fromkeys(numbers, dict.fromkeys(chain.from_iterable(given), ""))
        return found

    def _data(self) -> dict[str, tuple[str, ...]]:
        """Return what ops do by their data, and what they are given where no launch has it."""
        of_launches = {each.op.external_id for each in self.structure.executions[-1] if each.op}
        told = {id(texts) for number, texts in self._given.items() if number in of_launches}
        data = dict(self.origins.data)
        for name, given in self.origins.given.items():
            texts = Counter(
                f"{key}={text}"
                for each in given
                if id(each) not in told
                for key, text in each.items()
            )
            own = (f"{text} x{count}" if count > 1 else text for text, count in texts.items())
            if found := (*data.get(name, ()), *own):
                data[name] = found
        return data

    def _resources(self, place: int) -> Resources | None:
        """Return the resources of a launch, with each layout that a call has."""
        found = self.resources[place]
        if source := cpp_source(self.structure.kernels[place].name):
            found = msgspec.structs.replace(found or Resources(), code=source)
        if found is None:
            return None
        every = [each[place].resources or Resources() for each in self.structure.executions]
        sides = [each.layout.split(IN_LISTS) for each in every]
        is_alike = len({len(each) for each in sides}) == 1
        layout = IN_LISTS.join(map(_either, zip(*sides, strict=True))) if is_alike else ""
        return msgspec.structs.replace(found, layout=layout)


def _either(texts: Iterable[str]) -> str:
    """Return what calls have, each once."""
    return " or ".join(sorted(set(texts)))


def _require_work(instance: Instance) -> None:
    """Raise `WorkloadError` if a call returns a coroutine or a generator: nobody has run it."""
    returned = instance.call()
    if isinstance(returned, (Coroutine, Generator)):
        if isinstance(returned, Coroutine):
            returned.close()  # else Python warns that it was never awaited
        what = f"{instance.workload.id}: its call returns a {type(returned).__name__}, and nothing runs it"
        raise WorkloadError(
            what,
            expected="a function that runs it: lambda x: asyncio.run(f(x)), or lambda x: list(f(x))",
        )


def _choices(kernels: Sequence[KernelIdentity]) -> list[tuple[object, ...]]:
    """Return the name of each kernel, and grid and block of one that Inductor tunes: they show what
    its autotuner chose.
    """
    return [
        (each.name, each.grid, each.block) if each.is_inductors else (each.name,)
        for each in kernels
    ]
