"""What replays CUDA graphs is measured on one instance: torch.compile would record each other one too, and keep them all."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernelgauge.observing import Observed
from torch import nn

from kernelgauge import Timer, Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure.compiler import reset_compiler
from kernelgauge.measure.profile import Session
from kernelgauge.measure.runner import Measured, measure
from kernelgauge.measure.settings import Settings
from kernelgauge.plugin.options import Options
from kernelgauge.trace import Trace
from tests.measure.conftest import Fake

Tiny = Callable[..., Workload]
SETTINGS = Settings(replicates=3, most_replicates=3, iterations=3, seconds=0.01, warm_up_seconds=0)


@pytest.mark.parametrize(("name", "replays"), [("mlp-cudagraph", True), ("mlp-compiled", False)])
def test_a_session_that_replays_graphs_is_told_by_its_launches(
    recorded: Callable[[str], object], as_trace: Callable[[object], Trace], name: str, replays: bool
) -> None:
    trace = as_trace(recorded(name))
    session = Session(trace=trace, windows=tuple(trace.steps()), executions=(), trace_json=b"", table="")
    assert session.replays_graphs is replays


class Builds:
    """How many modules were built, and what was measured of them."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny = tiny
        self.device = Fake()
        self.count = 0

    def workload(self, compiled: dict[str, str] | None) -> Workload:
        def build() -> nn.Module:
            self.count += 1
            return nn.Linear(4, 3)

        return self.tiny(build=build, compile=compiled)

    def __call__(self, *, compiled: dict[str, str] | None, suspicious: bool = False) -> Measured:
        workload, fingerprint = self.workload(compiled), self.device.fingerprint()
        suspects = [workload.id] if suspicious else []
        measured = measure([workload], self.device, fingerprint, SETTINGS, suspects=lambda _: suspects)[workload.id]
        assert isinstance(measured, Measured), measured
        return measured


@pytest.fixture
def builds(tiny: Tiny) -> Iterator[Builds]:
    yield Builds(tiny)
    reset_compiler()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with `mode="reduce-overhead"`: a CPU has none."""
    monkeypatch.setattr(Session, "replays_graphs", True)


@pytest.mark.usefixtures("graphs")
def test_all_replicates_of_a_recorded_graph_and_its_confirmation_are_made_on_the_profiled_instance(
    builds: Builds,
) -> None:
    measured = builds(compiled={"backend": "eager"}, suspicious=True)
    assert builds.count == 1
    assert len(measured.run.samples[Timer.DEVICE].replicates_us) == 9


def test_what_replays_no_graph_is_built_anew_for_each_replicate(builds: Builds) -> None:
    builds(compiled={"backend": "eager"})
    assert builds.count == 4


@pytest.mark.parametrize(("replays", "count"), [(True, 1), (False, 2)])
def test_the_latency_of_what_replays_graphs_is_timed_on_one_instance_and_others_on_fresh_ones(
    builds: Builds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replays: bool, count: int
) -> None:
    monkeypatch.setattr(Session, "replays_graphs", replays)
    options = Options(root=tmp_path, baselines=tmp_path, reports=tmp_path)
    observed = Observed(options=options, measurer=measure, choose=lambda _: builds.device, settings=SETTINGS)
    workload = builds.workload({"backend": "eager"})
    observed.measured(workload)
    builds.count = 0
    observed.rounds(workload, replicates=2).durations_s()
    assert builds.count == count


class Alive:
    """How many of the modules that were built are still there."""

    def __init__(self) -> None:
        self.modules: list[weakref.ref[nn.Module]] = []

    def keep(self, module: nn.Module) -> nn.Module:
        self.modules.append(weakref.ref(module))
        return module

    def __len__(self) -> int:
        gc.collect()  # a compiled module is part of a cycle
        return sum(module() is not None for module in self.modules)


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class FailsWhenTimed(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 10:
            raise ValueError("it fails")
        return x * 2


@pytest.mark.usefixtures("graphs")
def test_the_memory_of_what_was_measured_is_free_for_what_shares_its_code(tiny: Tiny) -> None:
    alive, seen, device = Alive(), list[int](), Fake()

    def build() -> nn.Module:
        seen.append(len(alive))
        return alive.keep(Doubles())

    measure(
        [tiny(module=module, build=build, compile={"backend": "eager"}) for module in "ab"],
        device,
        device.fingerprint(),
        SETTINGS,
    )
    reset_compiler()
    assert seen == [0, 1, 0]  # the second is put off until the first is measured


@pytest.mark.usefixtures("graphs")
def test_the_memory_of_what_failed_is_free_for_the_others(tiny: Tiny) -> None:
    alive, seen, device = Alive(), list[int](), Fake()

    def looks(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(alive))
        return x + 1

    workloads = [
        tiny(module="fails", build=lambda: alive.keep(FailsWhenTimed())),
        tiny(module="looks", build=lambda: looks),
    ]
    results = measure(workloads, device, device.fingerprint(), replace(SETTINGS, iterations=20))
    assert isinstance(results["fails-eager-fp32"], WorkloadError)
    assert (seen[0], seen[-1]) == (1, 0)
