"""A group of workloads can be measured further: three times as long in all, at other addresses. All of it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure.device import Device
from kernelgauge.measure.runner import MeasuredGroup, measure_groups
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.subject import Measured
from tests.measure.conftest import QUICK, Alive, FakeGpu, raising, times, tiny

SETTINGS = replace(Settings.of(3), most_replicates=6, budget_seconds=1.5, warm_up_seconds=0)
TWELVE = [10.0] * 3 + [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]


def confirmed(
    device: Device,
    *workloads: Workload,
    slower: str,
    then: Callable[[], object] = lambda: None,
    said: Callable[[str], None] = lambda _: None,
    **more: Any,
) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """Measure workloads, and those of these modules further; results by module, before and after."""
    settings = more.pop("settings", SETTINGS)
    groups = measure_groups(workloads, device, device.fingerprint(), settings, said, **more)
    group = next(groups)
    before = dict(group.results)
    then()
    group.confirm(workload.id for workload in workloads if workload.module in slower.split())
    assert list(groups) == []
    return tuple(  # type: ignore[return-value]
        {workload.module: results[workload.id] for workload in workloads} for results in (before, group.results)
    )


def test_confirm_measures_those_twice_as_long_and_controls(gpu: FakeGpu) -> None:
    gpu.controls = (gpu.workload("copy", [50.0] * 3 + [50.5] * 6),)
    said: list[str] = []
    workloads = gpu.workload("a"), gpu.workload("b", TWELVE), gpu.workload("c")
    before, after = confirmed(gpu, *workloads, slower="b c", said=said.append)
    assert (times(before["b"]), times(after["b"])) == ((10.0,) * 3, tuple(TWELVE))
    assert after["b"].run.kernels[0].device_time_us == pytest.approx(111 / 9)
    assert "b-eager-fp32: looks slower: measuring again, twice as long" in said
    assert gpu.replicates == ["copy", "a", "b", "c"] * 3 + ["copy", "b", "c"] * 6
    assert {module: len(times(result)) for module, result in after.items()} == {"a": 3, "b": 9, "c": 9}
    assert {module: result.run.controls["copy"].device_time_us for module, result in after.items()} == {
        "a": 50.0,
        "b": 50.5,  # of all passes
        "c": 50.5,
    }
    assert after["a"] is before["a"]


def test_confirm_uses_other_addresses(gpu: FakeGpu, paddings: list[int]) -> None:
    gpu.hot["a"] = {1, 2}
    confirmed(gpu, gpu.workload("a"), slower="a")
    assert len(paddings) == 1 + 2 + 9
    assert len(set(paddings[1:])) == 2 + 9


def drifts(gpu: FakeGpu) -> None:
    gpu.controls = (gpu.workload("copy", [50.0] * 3 + [52.0] * 6),)


def is_hot(gpu: FakeGpu) -> None:
    gpu.hot["a"] = set(range(4, 99))


@pytest.mark.parametrize(
    ("before", "then", "what", "got"),
    [
        (drifts, None, "the machine changed its speed while it measured", "copy +4.0 %"),
        (is_hot, None, "a-eager-fp32: the machine cannot be trusted now", "throttled by hardware thermal slowdown"),
        (None, lambda gpu: setattr(gpu, "is_lost", True), "the GPU no longer answers", None),
    ],
    ids=["drift", "heat", "lost"],
)
def test_confirm_that_fails_keeps_the_first(gpu: FakeGpu, before: Any, then: Any, what: str, got: str | None) -> None:
    said: list[str] = []
    if before:
        before(gpu)
    workloads = gpu.workload("a"), gpu.workload("b")
    old, new = confirmed(gpu, *workloads, slower="a", then=lambda: then and then(gpu), said=said.append)
    error = new["a"].not_confirmed
    assert (error.what, error.got) == (what, got)
    assert new["a"].run == old["a"].run
    assert new["b"] is old["b"]
    assert said[-1] == f"a-eager-fp32: not measured again: {what}"


def test_confirm_of_compiled_code_compiles_nothing(cpu: Device) -> None:
    before, after = confirmed(cpu, tiny(compile={"backend": "eager"}), slower="tiny", settings=QUICK)
    assert len(times(after["tiny"])) == 3 * len(times(before["tiny"])) == 6
    assert after["tiny"].run.counts == before["tiny"].run.counts
    assert after["tiny"].run.ops == before["tiny"].run.ops
    assert after["tiny"].run.counts.recompiles == 0


def test_groups_not_timed_have_structure_only(gpu: FakeGpu) -> None:
    gpu.controls = (gpu.workload("copy"),)
    workloads = [gpu.workload("a", [8.0], kernels=("gemm", "gelu")), gpu.workload("b", on_call=raising(ValueError()))]
    (group,) = measure_groups(workloads, gpu, gpu.fingerprint(), QUICK, timed=False)
    result, error = group.results.values()
    assert isinstance(error, WorkloadError)
    assert isinstance(result, Measured)
    assert result.run.incomplete == "no test of a time was selected"
    assert (result.run.samples, result.run.controls, result.run.conditions) == ({}, {}, None)
    assert [kernel.device_time_us for kernel in result.run.kernels] == [4.0, 4.0]  # as they were profiled
    assert (result.run.counts.launches, result.run.steps) == (2, 3)
    assert gpu.replicates == []


GRAPH = {"api": "cudaGraphLaunch"}


@pytest.mark.parametrize(("launch", "builds"), [(GRAPH, 1), ({}, 10)], ids=["graph", "launches"])
def test_group_of_graphs_measures_one_instance(gpu: FakeGpu, launch: dict[str, str], builds: int) -> None:
    _, after = confirmed(gpu, gpu.workload("a", launch=launch), slower="a")
    assert len(times(after["a"])) == 9
    assert gpu.builds["a"] == builds
    assert after["a"].one_instance is bool(launch)


def test_groups_of_graphs_free_the_group_before(gpu: FakeGpu, alive: Alive, plain_compiler: None) -> None:
    seen: list[int] = []
    workloads = [
        alive.kept(gpu.workload(name, launch=GRAPH, compile={}, on_build=lambda _: seen.append(len(alive))))
        for name in "ab"
    ]
    groups: list[MeasuredGroup] = list(measure_groups(workloads, gpu, gpu.fingerprint(), SETTINGS))
    assert len(groups) == 2
    assert seen == [0, 1, 0]  # the second is put off until the first is measured


def test_reference_kernels_hold_no_memory(gpu: FakeGpu, alive: Alive) -> None:
    seen: list[int] = []
    look = lambda _: seen.append(len(alive))  # noqa: E731
    gpu.controls = tuple(alive.kept(gpu.workload(name, on_build=look)) for name in ("copy", "gemm"))
    list(measure_groups([gpu.workload("a", on_build=look)], gpu, gpu.fingerprint(), SETTINGS))
    assert set(seen) == {0}
