"""What torch.compile records CUDA graphs of is measured on one instance: each other one would have a recording of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

from kernelgauge import Timer, Workload
from kernelgauge.measure.compiler import reset_compiler
from kernelgauge.measure.profile import Session
from kernelgauge.measure.runner import Measured, measure
from kernelgauge.measure.settings import Settings
from kernelgauge.observing import Observed
from kernelgauge.suites import Options
from kernelgauge.trace import Trace
from tests.measure.conftest import Fake

Tiny = Callable[..., Workload]
SETTINGS = Settings(replicates=3, most_replicates=3, iterations=3, seconds=0.01, warm_up_seconds=0)


@pytest.mark.parametrize(("name", "replays"), [("mlp-cudagraph", True), ("mlp-compiled", False)])
def test_a_session_that_replays_graphs_is_told_by_its_launches(
    recorded: Callable[[str], object], as_trace: Callable[[object], Trace], name: str, replays: bool
) -> None:
    windows = tuple(as_trace(recorded(name)).steps())
    session = Session(trace=as_trace(recorded(name)), windows=windows, executions=(), trace_json=b"", table="")
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


@pytest.mark.usefixtures("graphs")
def test_a_graph_that_a_module_records_itself_is_gone_with_it(builds: Builds) -> None:
    builds(compiled=None)
    assert builds.count == 4


def test_what_replays_no_graph_is_built_anew_for_each_replicate(builds: Builds) -> None:
    builds(compiled={"backend": "eager"})
    assert builds.count == 4


@pytest.mark.parametrize(("replays", "count"), [(True, 1), (False, 2)])
def test_so_are_the_replicates_of_its_latency(
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
