"""Workloads are measured together, in passes that go round all of them, until each is pinned down."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge import Timer, Workload
from kernelgauge.errors import KernelgaugeError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure import passes
from kernelgauge.measure.passes import _left
from kernelgauge.measure.replicate import Pace, Replicate
from kernelgauge.measure.runner import Measured, Result
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.subject import Subject
from tests.measure.conftest import Fake, ToldReplicates

Tiny = Callable[..., Workload]
ObserveAll = Callable[..., dict[str, Result]]

WILD = [10.0, 13.0, 9.0, 12.0, 8.0, 11.0, 14.0, 9.5, 12.5, 10.5]


def device_times(result: Result) -> tuple[float, ...]:
    assert isinstance(result, Measured), result
    return result.run.samples[Timer.DEVICE].replicates_us


@pytest.fixture
def settings() -> Settings:
    return Settings(replicates=3, most_replicates=6, iterations=3, seconds=0.01, warm_up_seconds=0)


# -- order ----------------------------------------------------------------------------------------------------------


def test_replicates_go_round_all_workloads_and_never_through_one(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    observe_all(tiny(module="a"), tiny(module="b"), tiny(module="c"), device=Fake(), settings=settings)
    assert replicates.order() == ["a", "b", "c"] * 3


def test_the_control_pair_opens_each_pass_and_is_made_as_often(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    device = Fake(tiny(module="copy"), tiny(module="gemm"))
    observe_all(tiny(module="a"), tiny(module="b"), device=device, settings=settings)
    assert replicates.order() == ["copy", "gemm", "a", "b"] * 3


def test_every_workload_is_profiled_before_any_is_timed(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    timed_before_build: list[int] = []

    def build() -> nn.Module:
        timed_before_build.append(len(replicates.asked))
        return nn.Linear(4, 3)

    observe_all(tiny(module="a", build=build), tiny(module="b", build=build))
    assert timed_before_build == [0, 0]


def test_the_replicates_of_a_workload_are_numbered(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    observe_all(tiny(module="a"), tiny(module="b"), device=Fake(), settings=settings)
    assert replicates.places("a") == replicates.places("b") == [0, 1, 2]


@pytest.mark.parametrize(("every_s", "announced"), [(0.0, [1, 2, 3, 4, 5, 6]), (3600.0, [1])])
def test_the_passes_are_announced_now_and_then_with_the_workloads_that_are_left(
    tiny: Tiny,
    replicates: ToldReplicates,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    every_s: float,
    announced: list[int],
) -> None:
    from kernelgauge.measure.runner import measure

    monkeypatch.setattr(passes, "_TOLD_EVERY_S", every_s)
    said: list[str] = []
    replicates.times_us["b"] = WILD
    device = Fake()
    measure([tiny(module="a"), tiny(module="b")], device, device.fingerprint(), settings, said.append)
    assert said[:2] == ["a-eager-fp32: profiling", "b-eager-fp32: profiling"]
    assert said[2:] == [f"timing, pass {number}: {2 if number < 4 else 1} of 2 workloads" for number in announced]


def measured(*seconds: float, call_us: float = 100.0) -> Subject:
    """A workload whose replicates took that long."""
    made = [Replicate(index, (10.0,), None, (), (), each) for index, each in enumerate(seconds)]
    return Subject(Any, Any, Pace(call_us, 50.0), 0, None, replicates=made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("active", "left"),
    [
        pytest.param([measured()], "", id="nothing is known yet"),
        pytest.param([measured(2.0)], ", 14 s at least", id="seven more"),
        pytest.param([measured(1.0, 3.0)], ", 12 s at least", id="six more, by the mean"),
        pytest.param([measured(2.0), measured(1.0)], ", 21 s at least", id="of two workloads"),
        pytest.param([measured(30.0, call_us=6e6), measured(0.01)], ", 30 s at least", id="a slow one has fewer"),
        pytest.param([measured(*[2.0] * 8)], "", id="the rest is for precision"),
        pytest.param([measured(0.01)], "", id="no time"),
    ],
)
def test_how_long_it_will_take_is_told_from_what_each_took(active: list[Subject], left: str) -> None:
    assert _left(active, Settings(replicates=8)) == left


def test_results_are_those_of_their_workloads(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.times_us = {"a": [5.0], "b": [7.0, 7.5, 7.0, 7.5, 7.0, 7.5]}
    results = observe_all(tiny(module="a"), tiny(module="b"), device=Fake(), settings=settings)
    assert device_times(results["a eager"]) == (5.0, 5.0, 5.0)
    assert device_times(results["b eager"]) == (7.0, 7.5, 7.0, 7.5, 7.0, 7.5)
    measured = results["b eager"]
    assert isinstance(measured, Measured)
    assert measured.run.kernels[0].device_time_us == 7.25  # the mean over the replicates


# -- how many -------------------------------------------------------------------------------------------------------


def test_a_steady_workload_gets_the_least_and_a_wild_one_the_most(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.times_us["wild"] = WILD
    results = observe_all(tiny(module="steady"), tiny(module="wild"), device=Fake(), settings=settings)
    assert len(device_times(results["steady eager"])) == 3
    assert device_times(results["wild eager"]) == tuple(WILD[:6])
    assert replicates.order() == ["steady", "wild"] * 3 + ["wild"] * 3


def test_a_slow_workload_gets_no_more_than_its_budget_allows(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.times_us["wild"] = WILD
    replicates.seconds = settings.budget_seconds / 4.5
    results = observe_all(tiny(module="wild"), device=Fake(), settings=settings)
    assert len(device_times(results["wild eager"])) == 4


def test_a_cpu_makes_no_more_than_its_claims_need(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    replicates.times_us["wild"] = WILD
    results = observe_all(tiny(module="wild"), settings=Settings())
    assert len(device_times(results["wild eager"])) == 4


def test_fewer_than_the_devices_limit_may_be_asked_for(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    replicates.times_us["wild"] = WILD
    results = observe_all(tiny(module="wild"), settings=Settings(replicates=2, most_replicates=2))
    assert len(device_times(results["wild eager"])) == 2


# -- failures -------------------------------------------------------------------------------------------------------


def failing(*_: object) -> object:
    raise ZeroDivisionError("no such thing")


def test_a_workload_that_fails_at_any_stage_does_not_take_the_others_with_it(
    tiny: Tiny, observe_all: ObserveAll, quick: Settings
) -> None:
    calls: list[int] = []

    def fails_later(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 12:  # it was profiled, and is being timed
            raise ZeroDivisionError("later")
        return x * 2

    results = observe_all(
        tiny(module="first"),
        tiny(module="unbuildable", build=failing),
        tiny(module="uncallable", build=lambda: failing),
        tiny(module="fails_later", build=lambda: fails_later),
        tiny(module="unavailable", needs_gpu="Triton code"),
        tiny(module="last"),
    )
    assert len(calls) > 12
    assert {name for name, result in results.items() if isinstance(result, Measured)} == {"first eager", "last eager"}
    assert len(device_times(results["last eager"])) == quick.replicates
    for name in ("unbuildable", "uncallable", "fails_later"):
        result = results[f"{name} eager"]
        assert isinstance(result, WorkloadError)
        assert result.what.startswith(f"{name}-eager-fp32: ")
        assert "ZeroDivisionError" in (result.got or "")
    assert isinstance(results["unavailable eager"], WorkloadUnavailable)


def test_a_workload_that_fails_is_not_tried_in_later_passes(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.fails["a"] = (1, lambda: WorkloadError("a: measuring failed"))
    results = observe_all(tiny(module="a"), tiny(module="b"), device=Fake(), settings=settings)
    assert replicates.order() == ["a", "b", "a", "b", "b"]
    assert str(results["a eager"]) == "a: measuring failed"


@pytest.mark.parametrize("stage", ["profiling", "timing"])
def test_a_workload_that_failed_holds_no_memory_while_the_others_are_timed(
    tiny: Tiny, observe_all: ObserveAll, stage: str
) -> None:
    held: list[Any] = []
    alive: list[int] = []

    class Failing(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Failing.calls += 1
            if stage == "profiling" or Failing.calls > 12:
                raise ValueError("no")
            return super().forward(x)

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gc.collect()
            alive.append(sum(reference() is not None for reference in held))
            return super().forward(x)

    def build() -> nn.Module:
        module = Failing(4, 3)
        held.append(weakref.ref(module))
        return module

    results = observe_all(tiny(module="fails", build=build), tiny(module="looks", build=lambda: Looks(4, 3)))
    assert isinstance(results["fails eager"], KernelgaugeError)
    assert held
    assert set(alive) == {0}


def test_a_device_may_ask_for_fewer_calls_in_a_row(tiny: Tiny, observe_all: ObserveAll) -> None:
    device = Fake()
    device.most_busy_seconds = 1e-9
    results = observe_all(
        tiny(module="a"), device=device, settings=Settings(replicates=2, most_replicates=2, iterations=12)
    )
    measured = results["a eager"]
    assert isinstance(measured, Measured)
    assert measured.run.samples[Timer.DEVICE].iterations == 8
