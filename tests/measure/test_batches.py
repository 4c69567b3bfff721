"""Compiled workloads of the same code are measured apart: one would run what the other left in the compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from kernelgauge.observing import Observed
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure import runner
from kernelgauge.measure.runner import Measured, Result, measure
from kernelgauge.measure.settings import Settings
from kernelgauge.plugin.options import Options
from tests.measure.conftest import Diary, Fake, ToldReplicates

Tiny = Callable[..., Workload]
ObserveAll = Callable[..., dict[str, Result]]
CAPTURED = {"backend": "eager"}  # Dynamo alone: nothing waits for a C++ compiler


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class DoublesToo(Doubles):
    """Another class, the same code."""


class Triples(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y * 3


class FailsWhenTimed(Doubles):
    """Compiles, and fails at a later call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = count()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if next(self.calls) > 2:
            raise ValueError("later")
        return super().__call__(x)


class Delegates(nn.Module):
    """Its `forward` is no function, and has no code of its own."""

    forward = functools.partial(torch.mul, 5)


def quadruples(x: torch.Tensor) -> torch.Tensor:
    return x * 4


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch, tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates):
    """Measures compiled workloads of these modules; returns the batches in which they were timed."""
    together: list[list[str]] = []
    real = runner.Passes

    def spy(subjects, *arguments):
        together.append([subject.workload.module for subject in subjects])
        return real(subjects, *arguments)

    monkeypatch.setattr(runner, "Passes", spy)

    def run(how: dict[str, object] | None = CAPTURED, **builds: Callable[[], object]) -> list[list[str]]:
        results = observe_all(
            *(tiny(module=name, build=build, compile=how) for name, build in builds.items()), device=Fake()
        )
        assert list(results) == [f"{name} eager" for name in builds]
        return together

    return run


def test_workloads_of_different_code_are_measured_together(batches) -> None:
    assert batches(a=Doubles, b=Triples, c=lambda: quadruples) == [["a", "b", "c"]]


def test_workloads_of_the_same_code_are_measured_apart(batches) -> None:
    assert batches(a=Doubles, b=Triples, c=Doubles, d=Doubles) == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Doubles, DoublesToo),
        (lambda: quadruples, lambda: quadruples),
        (lambda: nn.Linear(4, 3), nn.GELU),  # compiled through a wrapper that all modules of torch share
    ],
    ids=["a subclass", "a function", "modules of torch"],
)
def test_code_is_the_same_wherever_it_comes_from(batches, one, other) -> None:
    assert batches(a=one, b=other) == [["a"], ["b"]]


def test_what_shows_no_code_is_told_apart_by_its_type(batches) -> None:
    assert batches(a=Doubles, b=Delegates, c=Delegates) == [["a", "b"], ["c"]]


def test_what_is_not_compiled_is_measured_with_all_others(batches) -> None:
    assert batches(how=None, a=Doubles, b=Doubles, c=Broken) == [["a", "b", "c"]]


def test_a_graph_break_closes_the_batch_for_what_is_compiled(batches) -> None:
    assert batches(a=Doubles, b=Broken, c=Triples, d=lambda: quadruples) == [["a", "b"], ["c", "d"]]


def test_a_workload_that_failed_after_it_was_compiled_shares_no_batch_with_its_code(batches) -> None:
    assert batches(a=FailsWhenTimed, b=Doubles, c=Triples) == [["c"], ["b"]]


def test_a_workload_of_another_shape_is_compiled_as_in_a_process_of_its_own(
    tiny: Tiny, observe_all: ObserveAll
) -> None:
    shapes: list[tuple[object, ...]] = []

    def backend(graph, inputs):
        shapes.append(tuple(value.shape for value in inputs if isinstance(value, torch.Tensor)))
        return graph.forward

    results = observe_all(
        *(
            tiny(
                module=f"rows{rows}",
                build=Doubles,
                compile={"backend": backend},
                inputs=lambda n=rows: (torch.randn(n, 4),),
            )
            for rows in (5, 6, 7)
        )
    )
    assert all(isinstance(result, Measured) for result in results.values())
    assert shapes == [((5, 4),), ((6, 4),), ((7, 4),)]  # a dynamic shape would be compiled once, as ((s0, 4),)


def test_each_workload_counts_its_own_breaks_and_recompiles(tiny: Tiny, observe_all: ObserveAll) -> None:
    results = observe_all(
        tiny(module="broken", build=Broken, compile=CAPTURED),
        tiny(module="whole", build=Doubles, compile=CAPTURED),
        tiny(module="eager", build=Doubles),
    )
    counts = {}
    for name, result in results.items():
        assert not isinstance(result, WorkloadError)
        counts[name] = (result.run.counts.graph_breaks, result.run.counts.recompiles)
    assert counts == {"broken eager": (1, 0), "whole eager": (0, 0), "eager eager": (0, 0)}


def test_each_workload_is_built_as_in_a_new_process(
    tiny: Tiny, quick: Settings, replicates: ToldReplicates, tmp_path: Path
) -> None:
    """Inductor's autotuner asks for it."""
    device = Diary()

    def build() -> nn.Module:
        device.entries.append("build")
        return nn.Linear(4, 3)

    workloads = [tiny(module=module, build=build) for module in "ab"]
    options = Options(root=tmp_path, baselines=tmp_path, reports=tmp_path)
    observed = Observed(options, measure, lambda _: device, quick, selected=workloads)
    observed.measured(workloads[0])
    assert [entry for entry in device.entries if "peak" in entry or entry == "build"] == ["no peak before", "build"] * 2
    device.entries.clear()
    observed.rounds(workloads[0], replicates=1).durations_s()
    assert device.entries[:2] == ["no peak before", "build"]  # what is compiled again to be timed
