"""What the tests of measuring share: a workload of a few numbers, GPUs that only exist here, replicates that are told."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import KernelgaugeError
from kernelgauge.measure import nvml as nvml_module
from kernelgauge.measure import passes
from kernelgauge.measure.compiler import reset_compiler
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.device.cuda import CudaDevice
from kernelgauge.measure.nvml import Monitor
from kernelgauge.measure.profile import Session
from kernelgauge.measure.replicate import Replicate
from kernelgauge.measure.runner import Measured, Result, measure
from kernelgauge.measure.settings import Settings
from kernelgauge.trace import Trace, parse
from tests.measure.fake_nvml import UUID, Clock, FakeNvml

RECORDED = Path(__file__).parents[1] / "data" / "h200"


class RecordedGpu(CudaDevice):
    """Reads the launches of recorded traces; needs no GPU, because it never touches one."""

    def __init__(self) -> None:
        pass


class ToldMonitor:
    """Gives these readings, one after the other, and the last one ever after."""

    def __init__(self, *readings: Reading) -> None:
        self.left = list(readings) or [Reading()]

    def read(self, *, processes: bool = False) -> Reading:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


class Fake(CpuDevice):
    """A CPU with the limits of no device: as many replicates as the settings ask for."""

    warm_up_calls = 3
    most_replicates = None
    most_busy_seconds = math.inf

    def __init__(self, *controls: Workload) -> None:
        super().__init__()
        self.controls = controls
        self.is_lost = False

    def lost(self) -> bool:
        return self.is_lost


class Diary(Fake):
    """Writes down what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []

    def synchronize(self) -> None:
        self.entries.append("synchronize")

    def flush_cache(self) -> None:
        self.entries.append("flush")

    def hold(self, microseconds: float) -> None:
        self.entries.append(f"hold {microseconds:g}")

    def forget_peak(self) -> None:
        self.entries.append("no peak before")


class ToldReplicates:
    """Stands in for `replicate`: what each workload's replicates are, and who was asked for one, in order.

    `times_us`: device times by module, one after the other, and the last one ever after; 10 us where nothing is told.
    `disturbed`: how many of its first replicates are disturbed, and why. `fails`: in which of its replicates it raises what.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.times_us: dict[str, list[float]] = {}
        self.disturbed: dict[str, tuple[int, str]] = {}
        self.fails: dict[str, tuple[int, Callable[[], KernelgaugeError]]] = {}
        self.seconds = 0.01
        self.readings: tuple[Reading, ...] = ()
        self.usual_clocks: list[float | None] = []
        self.iterations: dict[str, int] = {}

    def __call__(
        self,
        workload: Workload,
        device: CpuDevice,
        settings: Settings,
        *,
        index: int,
        structure: Session,
        usual_clock_mhz: float | None,
        **_: Any,
    ) -> Replicate:
        name = workload.module
        done = [module for module, _ in self.asked].count(name)
        self.asked.append((name, index))
        self.usual_clocks.append(usual_clock_mhz)
        self.iterations[name] = settings.iterations
        failing_from, error = self.fails.get(name, (10**9, KernelgaugeError))
        if done >= failing_from:
            raise error()
        times = self.times_us.get(name, [10.0])
        spoilt, why = self.disturbed.get(name, (0, ""))
        launches = len(structure.executions[0])
        return Replicate(
            index=index,
            kernel_us=(times[min(done, len(times) - 1)] / launches,) * launches,
            host=None,
            readings=self.readings,
            disturbed_by=(why,) if done < spoilt else (),
            seconds=self.seconds,
        )

    def order(self) -> list[str]:
        return [name for name, _ in self.asked]

    def places(self, module: str) -> list[int]:
        return [index for name, index in self.asked if name == module]


@pytest.fixture
def replicates(monkeypatch: pytest.MonkeyPatch) -> ToldReplicates:
    told = ToldReplicates()
    monkeypatch.setattr(passes, "replicate", told)
    return told


@pytest.fixture
def observe_all(quick: Settings) -> Iterator[Callable[..., dict[str, Result]]]:
    """Measures workloads together, and gives the results by module and variant."""

    def run(*workloads: Workload, device: CpuDevice | None = None, settings: Settings = quick) -> dict[str, Result]:
        target = device or CpuDevice()
        results = measure(workloads, target, target.fingerprint(), settings)
        return {f"{workload.module} {workload.variant}": results[workload.id] for workload in workloads}

    yield run
    reset_compiler()


@pytest.fixture
def observe(cpu: CpuDevice, quick: Settings) -> Iterator[Callable[..., Measured]]:
    """Measures one workload alone; raises why it could not be."""

    def run(workload: Workload, settings: Settings = quick, **more: Any) -> Measured:
        result = measure([workload], cpu, cpu.fingerprint(), settings, **more)[workload.id]
        if isinstance(result, KernelgaugeError):
            raise result
        return result

    yield run
    reset_compiler()


@pytest.fixture
def cpu() -> CpuDevice:
    return CpuDevice()


@pytest.fixture
def gpu() -> RecordedGpu:
    return RecordedGpu()


@pytest.fixture
def quick() -> Settings:
    """Long enough to have every part of a measurement, and no longer."""
    return Settings(replicates=2, most_replicates=2, iterations=3, seconds=0.01, warm_up_seconds=0)


@pytest.fixture
def tiny() -> Callable[..., Workload]:
    """Makes a workload: a linear of 4 x 3 on five rows, with the fields that a test is about."""

    def make(**fields: Any) -> Workload:
        linear: dict[str, Any] = {
            "module": "tiny",
            "variant": "eager",
            "build": lambda: nn.Linear(4, 3),
            "inputs": lambda: (torch.randn(5, 4),),
            "dtype": "fp32",
        }
        return Workload(**{**linear, **fields})

    return make


@pytest.fixture
def recorded() -> Callable[[str], dict[str, Any]]:
    """Reads a trace of an H200 as JSON, for a test to damage."""

    def load(name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
        return content

    return load


@pytest.fixture
def as_trace() -> Callable[[dict[str, Any]], Trace]:
    return lambda content: parse(json.dumps(content).encode())


# -- an NVML that only exists in these tests --------------------------------------------------------------------------


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(nvml_module, "time", fake)
    return fake


@pytest.fixture
def monitor(nvml: FakeNvml) -> Monitor:
    return Monitor.open(UUID)


@pytest.fixture
def after_a_second(nvml: FakeNvml, clock: Clock, monitor: Monitor) -> Callable[..., Reading]:
    """The second reading, a second after the first, in which `samples` were taken and `pids` were there."""

    def read(samples: list[tuple[int, int, int]], *, pids: list[int], seconds: float = 1.0) -> Reading:
        nvml.pids = pids
        monitor.read(processes=True)
        nvml.samples += samples
        clock.now_s += seconds
        return monitor.read(processes=True)

    return read
