"""What the tests of measuring share: a clock, a GPU with its profiler, and an NVML, all of which
only exist here.
"""

import gc
import json
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from kernelgauge import Timer, Workload
from kernelgauge.measure import Settings, device, instance, measurement, profile, runner
from kernelgauge.measure import nvml as nvml_client
from kernelgauge.measure.compiler import reset_compiler
from kernelgauge.measure.device import Device, HostSpeed
from kernelgauge.measure.host import HostWork
from kernelgauge.measure.measurement import Measured
from kernelgauge.measure.nvml import Reading
from kernelgauge.measure.origins import Origins
from kernelgauge.measure.runner import Result, measure_groups, time_latency
from kernelgauge.run import Sample
from kernelgauge.trace import REGION
from tests.builders import HERE, MAIN_THREAD, Event, call, event, region, step

# Long enough to have every part of a measurement, and no longer.
QUICK = Settings(
    replicates=2,
    most_replicates=2,
    iterations=3,
    host_iterations=3,
    seconds=0.01,
    warm_up_seconds=0,
)


class Clock:
    """Stands in for the module `time`.

    `tick_us`: how far each look turns it, so that waiting for it ends.
    """

    def __init__(self) -> None:
        self.now_ns, self.tick_us, self.slept_s = 0, 1000.0, 0.0

    def advance(self, us: float) -> None:
        self.now_ns += round(1000 * us)

    def perf_counter_ns(self) -> int:
        self.advance(self.tick_us)
        return self.now_ns

    def perf_counter(self) -> float:
        return self.perf_counter_ns() / 1e9

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.advance(1e6 * seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    # Of kernelgauge alone: by this clock torch's locks on its compile cache would time out at once.
    for module in (device, instance, nvml_client, runner, measurement):
        monkeypatch.setattr(module, "time", fake)
    return fake


class FakeGpu(Device):
    """A GPU with a queue. Its workloads launch kernels that take as long as a test tells, in each
    replicate.

    `diary`: what it was asked to do, in order. `replicates`: modules in the order of their
    replicates. `sessions`: how many the profiler had. `damages`: what happens to the records of the
    next ones. `held`: unless None, how many instances were still there before each build.
    """

    timers = (Timer.DEVICE, Timer.END_TO_END, Timer.HOST)
    warm_up_calls = 3
    most_replicates = None
    most_busy_seconds = math.inf
    tolerated_drift = 0.03  # of an H200
    gpu = HERE

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.host = HostSpeed(self._control, wait=self.synchronize)
        self.monitor = SimpleNamespace(read=self.reading)
        self.is_lost, self.current, self.sessions = False, "", 0
        self.diary: list[str] = []
        self.replicates: list[str] = []
        self.held: list[int] | None = None
        self.instances: list[weakref.ref[Any]] = []
        self.damages: list[Callable[[list[Event]], None]] = []
        self.dispatch_us, self.control_us, self.held_us = 5.0, 14.0, 0.0
        self.readings: dict[str, Callable[[int], Reading]] = {}
        self.builds: Counter[str] = Counter()
        self.launches: list[dict[str, Any]] = []

    def workload(
        self,
        module: str = "a",
        us: Sequence[float] = (10.0,),
        *,
        kernels: Sequence[str] = ("gemm",),
        on_build: Callable[[int], object] = lambda _: None,
        on_call: Callable[[], object] = lambda: None,
        launch: dict[str, Any] | None = None,
        reading: Callable[[int], Reading] = lambda _: Reading(),
        loses: int | None = None,
        **fields: Any,
    ) -> Workload:
        """Return a workload that launches these kernels, which take `us` together in its first
        replicate and so on.

        `on_build` and `reading` are called with the number of the replicate; 0 is the one whose
        structure is profiled. `loses`: the replicate in which the GPU falls off the bus.
        """
        self.readings[module] = reading

        def build() -> Callable[[Any], Any]:
            self.current = module
            number = self.builds[module]
            self.builds[module] += 1
            self.replicates += [module] if number else []
            self.diary.append(f"build {module}")
            if self.held is not None:
                gc.collect()  # an instance may be part of a cycle
                self.held.append(sum(instance() is not None for instance in self.instances))
            on_build(number)
            self.is_lost |= number == loses
            if self.is_lost:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            taken_us = us[min(max(number - 1, 0), len(us) - 1)]

            def run(x: Any) -> Any:
                self.current = module
                self.diary.append("call")
                on_call()
                for name in kernels:
                    self.launch(name, taken_us / len(kernels), **(launch or {}))
                return x

            self.instances.append(weakref.ref(run))
            return run

        declared: dict[str, Any] = {
            "variant": "eager",
            "inputs": lambda: (torch.ones(2),),
            "dtype": "fp32",
        }
        return Workload(module=module, build=build, **(declared | fields))

    def launch(self, name: str, us: float, **how: Any) -> None:
        self.clock.advance(self.dispatch_us)
        self.launches.append({"name": name, "us": us, **how})

    def reading(self, *, processes: bool = False) -> Reading:
        return self.readings.get(self.current, hot())(self.builds[self.current] - 1)

    def window(self, start: float, first_correlation: int) -> list[Event]:
        """Return the records of the launches since the last window, whose call began at `start`."""
        events: list[Event] = []
        free: dict[int, float] = {}  # by stream
        for place, each in enumerate(self.launches):
            at, stream, ids = (
                start + place * self.dispatch_us,
                each.get("stream", 7),
                first_correlation + place,
            )
            events.append(call(ids, at, name=each.get("api", "cudaLaunchKernel"), external_id=ids))
            if "op" in each:
                events.append(
                    event(
                        "cpu_op", each["op"], at, 2, MAIN_THREAD, External_id=ids, **each["inputs"]
                    )
                )
            begins = max(free.get(stream, start + self.held_us), at + 2)
            free[stream] = begins + each["us"]
            shape = {
                "grid": [8, 1, 1],
                "block": each.get("block", [128, 1, 1]),
                "stream": stream,
                "correlation": ids,
            }
            shape |= {"registers_per_thread": each.get("registers"), "shared_memory": 0}
            events.append(
                event("kernel", each["name"], begins, each["us"], stream, External_id=ids, **shape)
            )
            if each.get("synchronizes"):
                events.append(call(None, at + 2, name="cudaStreamSynchronize"))
        took_us = max(3.0, len(self.launches) * self.dispatch_us)
        self.launches, self.held_us = [], 0.0
        return [region(REGION, start, took_us), *events]

    def _control(self) -> None:
        self.diary.append("control")
        self.clock.advance(self.control_us)

    def synchronize(self) -> None:
        self.diary.append("synchronize")

    def flush_cache(self) -> None:
        self.diary.append("flush")
        self.clock.advance(1000)

    def hold(self, microseconds: float) -> None:
        self.diary.append(f"hold {microseconds:g}")
        self.held_us = microseconds

    def lost(self) -> bool:
        return self.is_lost

    def forget_peak(self) -> None:
        self.diary.append("forget peak")

    def peak_allocated_bytes(self, call: Callable[[], object]) -> int | None:
        call()
        return 1 << 20


class FakeProfiler:
    """Stands in for `torch.profiler.profile` and exports what the GPU was given between its steps."""

    def __init__(self, gpu: FakeGpu, *, schedule: Any, on_trace_ready: Any, **_: Any) -> None:
        self.gpu, self.schedule, self.on_trace_ready, self.number = gpu, schedule, on_trace_ready, 0
        self.events: list[Event] = []

    def __enter__(self) -> None:
        self.gpu.launches = []

    def __exit__(self, *_: object) -> None: ...

    def step(self) -> None:
        action = self.schedule(self.number).name
        window = self.gpu.window(1e5 * self.number + 10, 100 * self.number + 1)
        if action.startswith("RECORD"):
            self.events += [step(self.number, 1e5 * self.number, 9e4), *window]
        self.number += 1
        if action == "RECORD_AND_SAVE":
            if self.gpu.damages:
                self.gpu.damages.pop(0)(self.events)
            self.gpu.sessions += 1
            self.on_trace_ready(self)

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(json.dumps({"traceEvents": self.events}))

    def key_averages(self) -> Any:
        return SimpleNamespace(table=lambda **_: "the profiler's table")


def hot(*replicates: int) -> Callable[[int], Reading]:
    """Return the reading of a GPU that is throttled by heat in these replicates, counted from 1."""
    return lambda number: Reading(event_reasons=0x40 if number in replicates else None)


@pytest.fixture(autouse=True)
def old_objects_skipped(skip_old_objects: Callable[[], None]) -> None:
    skip_old_objects()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> FakeGpu:
    clock.tick_us = 0.0
    fake = FakeGpu(clock)
    monkeypatch.setattr(profile, "Profiler", lambda **how: FakeProfiler(fake, **how))
    # the fake's calls have no stack
    monkeypatch.setattr(measurement, "origins_of", lambda *_, **__: Origins())
    monkeypatch.setattr(measurement, "host_work_of", lambda *_, **__: HostWork())
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    return fake


@pytest.fixture
def paddings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes, in bytes, of what is put before each instance in memory."""
    sizes, empty = list[int](), torch.empty

    def spy(*size: Any, **how: Any) -> torch.Tensor:
        sizes.extend(size if how.get("dtype") is torch.int8 else ())
        return empty(*size, **how)

    monkeypatch.setattr(torch, "empty", spy)
    return sizes


@pytest.fixture
def cpu() -> Iterator[Device]:
    yield Device()
    reset_compiler()


def tiny(**fields: Any) -> Workload:
    """A linear of 4 x 3 on five rows, with the fields that a test is about."""
    linear: dict[str, Any] = {
        "module": "tiny",
        "variant": "eager",
        "dtype": "fp32",
        "build": lambda: nn.Linear(4, 3),
    }
    return Workload(**(linear | {"inputs": lambda: (torch.randn(5, 4),)} | fields))


def results_of(
    device: Device, *workloads: Workload, settings: Settings = QUICK, **more: Any
) -> dict[str, Result]:
    """Measure workloads together; results by module."""
    groups = measure_groups(workloads, device, device.fingerprint(), settings, **more)
    results = {name: result for group in groups for name, result in group.items()}
    return {workload.module: results[workload.id] for workload in workloads}


def measured(
    device: Device, workload: Workload, settings: Settings = QUICK, **more: Any
) -> Measured:
    """Measure one workload; raise the error if it could not be."""
    (result,) = results_of(device, workload, settings=settings, **more).values()
    if not isinstance(result, Measured):
        raise result
    return result


def times(result: Result) -> tuple[float, ...]:
    """Return the GPU time of each replicate."""
    assert isinstance(result, Measured), result
    return result.run.samples[Timer.DEVICE].replicates_us


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises this."""

    def function(*_: object) -> Any:
        raise error

    return function


def latency(
    workload: Any, device: Any, replicates: int = 1, iterations: int = 2, ran: Any = ()
) -> Sample:
    """Time the latency of a workload whose profile had the kernels `ran`."""
    kernels = [SimpleNamespace(identity=each) for each in ran]
    how = {
        "latency_replicates": replicates,
        "latency_iterations": iterations,
        "one_instance": False,
    }
    return time_latency(
        workload,
        device,
        cast("Any", SimpleNamespace(run=SimpleNamespace(kernels=kernels, choices=()), **how)),
    )
