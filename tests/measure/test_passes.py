"""Passes go round all workloads and the reference kernels until each is pinned down, given up, or
the GPU is lost.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure import Settings, device
from kernelgauge.measure.device import CudaDevice, Device, control_pair
from kernelgauge.measure.measurement import Measured
from kernelgauge.measure.nvml import Reading
from kernelgauge.measure.reach import moved_to, reached_tensors
from kernelgauge.measure.runner import Result, measure_groups
from kernelgauge.run import ControlTime, Timer
from tests.measure.conftest import QUICK, FakeGpu, hot, measured, raising, results_of, times, tiny

# what each workload does, by module; "copy" and "gemm" are reference kernels
Rows = dict[str, dict[str, Any]]

SETTINGS = Settings(replicates=3, most_replicates=6, warm_up_seconds=0)
EIGHT = replace(SETTINGS, most_replicates=8)
SIX = replace(SETTINGS, replicates=6, iterations=40)
THREE = Settings.of(3)
TENS, WILD = [10.0] * 3, [10.0, 13.0, 9.0, 12.0, 8.0, 11.0, 14.0, 9.5, 12.5, 10.5]
LOST = "the GPU no longer answers"
BUS = f"DeviceLost: {LOST}: *illegal memory access*"
HEAT = "throttled by hardware thermal slowdown"
UNTRUSTED = f"the machine cannot be trusted now: {HEAT}"
SLOW = "the machine cannot be trusted now: SM clock 1500 MHz where 1980 is usual, and no power cap*"
DRIFTED = "the machine changed its speed while it measured"
NO, ZERO = ZeroDivisionError("no"), "ZeroDivisionError: no"


def set_up(gpu: FakeGpu, rows: Rows) -> list[Workload]:
    made = {module: gpu.workload(module, **fields) for module, fields in rows.items()}
    gpu.controls = tuple(made.pop(module) for module in ("copy", "gemm") if module in made)
    return list(made.values())


def outcome(result: Result) -> Any:
    """Return the time of each replicate, or why there is none."""
    if not isinstance(result, Measured):
        return f"{type(result).__name__}: {result.what}: {result.got}"
    run = result.run
    assert bool(run.samples) is (run.incomplete is None)
    assert run.counts.launches == 1  # the structure is sound in any case
    return list(times(result)) if run.samples else run.incomplete


def require(results: dict[str, Result], expected: dict[str, Any]) -> None:
    """Require these times, or errors of these patterns."""
    found = {module: outcome(result) for module, result in results.items()}
    assert found == {
        module: found[module] if fnmatchcase(str(found[module]), str(pattern)) else pattern
        for module, pattern in expected.items()
    }


def at(number: int, error: BaseException) -> dict[str, Any]:
    return {"on_build": lambda replicate: replicate == number and raising(error)()}


def clock(mhz: int, reasons: int = 0) -> dict[str, Any]:
    return {"reading": lambda _: Reading(sm_clock_mhz=mhz, event_reasons=reasons)}


BUILDING, RUNNING = (
    f"WorkloadError: ?-eager-fp32: {doing} failed: " for doing in ("building", "running")
)
# settings, workloads, passes, results
SCENARIOS: dict[str, tuple[Settings, Rows, str, dict[str, Any]]] = {
    "controls": (SETTINGS, {"copy": {}, "gemm": {}, "a": {}, "b": {}}, "cgab" * 3, {"a": TENS, "b": TENS}),
    "not steady": (SETTINGS, {"a": {}, "b": {"us": WILD}}, "ababab" + "bbb", {"a": TENS, "b": WILD[:6]}),
    "hot as often as kept": (THREE, {"a": {"reading": hot(1, 2, 3)}}, "aaa" + "aaa", {"a": TENS}),
    "hot too often": (THREE, {"a": {"reading": hot(1, 2, 3, 4)}, "b": {}}, "ababab" + "a", {"a": UNTRUSTED, "b": TENS}),
    # The usual clock is the highest of all: b is slow from its first replicate on.
    "low clock": (THREE, {"a": clock(1980), "b": clock(1500)}, "ababab" + "b", {"a": TENS, "b": SLOW}),
    "power cap": (THREE, {"a": clock(1980), "b": clock(1500, 0x4)}, "ababab", {"a": TENS, "b": TENS}),
    "no time": (THREE, {"a": {"us": [0.0]}, "b": {}}, "ababab", {"a": "MeasurementError: a-eager-fp32: a time that no call*", "b": TENS}),
    "failures": (
        SETTINGS,
        {"a": {}, "b": at(0, NO), "c": {"on_call": raising(NO)}, "d": at(2, NO), "e": {"on_cpu": "Triton"} | at(0, NO), "f": {}},
        "adfadfaf",  # d is not tried again
        {"a": TENS, "b": BUILDING + ZERO, "c": RUNNING + ZERO, "d": BUILDING + ZERO, "e": "WorkloadUnavailable: Triton: *", "f": TENS},
    ),
    "what ends a test": (
        THREE, {"a": at(0, pytest.skip.Exception("needs flash_attn")), "b": {"on_call": raising(SystemExit(2))}, "c": {}},
        "ccc", {"a": "WorkloadUnavailable: a-eager-fp32: needs flash_attn: None", "b": f"{RUNNING}SystemExit: 2", "c": TENS},
    ),
    "control fails at once": (SIX, {"gemm": at(0, NO), "a": {}, "b": at(0, NO)}, "", {"a": "WorkloadError: gemm*", "b": "WorkloadError: b*"}),
    "control fails later": (SIX, {"gemm": at(3, NO), "a": {}}, "gagaga", {"a": "WorkloadError: gemm*"}),
    "control slower": (SIX, {"copy": {"us": [50.0] * 4 + [52.0] * 2}, "a": {}, "b": {}}, "cab" * 6, {"a": f"{DRIFTED}: copy +4.0 %", "b": DRIFTED + "*"}),
    "control faster": (SIX, {"gemm": {"us": [200.0] * 4 + [190.0] * 2}, "a": {}}, "ga" * 6, {"a": f"{DRIFTED}: gemm -5.0 %"}),
    "2 percent slower": (SIX, {"copy": {"us": [50.0, 50.0, 50.5, 50.5, 51.0, 51.0]}, "a": {}}, "ca" * 6, {"a": TENS * 2}),
    "slower meanwhile": (SIX, {"copy": {"us": [50.0, 50.0, 90.0, 90.0, 50.0, 50.0]}, "a": {}}, "ca" * 6, {"a": TENS * 2}),
    "lost while profiling": (SETTINGS, {"copy": {}, "a": {}, "b": {"loses": 0}, "c": {}}, "", {"a": LOST, "b": BUS, "c": BUS}),
    "lost before enough": (EIGHT, {"a": {"us": WILD}, "b": {"us": WILD, "loses": 2}}, "abab", {"a": LOST, "b": LOST}),
    "lost after enough": (EIGHT, {"a": {"us": WILD}, "b": {"us": WILD, "loses": 4}}, "abababab", {"a": WILD[:4], "b": WILD[:3]}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "rows", "passes", "expected"), SCENARIOS.values(), ids=SCENARIOS
)
def test_passes_measure_all_that_can_be(
    gpu: FakeGpu, settings: Any, rows: Rows, passes: str, expected: Any
) -> None:
    require(results_of(gpu, *set_up(gpu, rows), settings=settings), expected)
    assert "".join(module[0] for module in gpu.replicates) == passes


@pytest.mark.parametrize(("disturbed", "kept"), [((), 5), ((1, 2), 3)])
def test_disturbed_replicates_use_up_the_budget(
    gpu: FakeGpu, disturbed: tuple[int, ...], kept: int
) -> None:
    """Else a machine that is disturbed now and then would be measured for ever."""
    slow = gpu.workload(
        "a", WILD, reading=hot(*disturbed), on_build=lambda _: gpu.clock.advance(1e6)
    )
    assert len(times(measured(gpu, slow, replace(SETTINGS, budget_seconds=5.5)))) == kept


def test_conditions_are_those_of_what_counts(gpu: FakeGpu) -> None:
    hot, capped = (
        Reading(sm_clock_mhz=mhz, event_reasons=reasons)
        for mhz, reasons in ((900, 0x40), (1500, 0x4))
    )
    run = measured(
        gpu, gpu.workload("a", reading=lambda number: hot if number == 1 else capped)
    ).run
    assert run.conditions.lowest_sm_clock_mhz == 1500


def test_controls_are_kept_as_medians(gpu: FakeGpu) -> None:
    copy, gemm = (
        {"us": [50.0, 50.2, 50.4, 50.4, 50.2, 50.0]},
        {"us": [200.0], "kernels": ("gemm", "splitk")},
    )
    results = results_of(
        gpu, *set_up(gpu, {"copy": copy, "gemm": gemm, "a": {}, "b": {}}), settings=SIX
    )
    # all are profiled before any is timed
    assert gpu.diary.index("build b") < gpu.diary.index("build copy")
    expected = {
        "copy": ControlTime("gemm", pytest.approx(50.2)),
        "gemm": ControlTime("gemm + splitk", 200.0),
    }
    assert [result.run.controls for result in results.values()] == [expected] * 2


def test_machine_may_drift_more_on_an_unknown_gpu(gpu: FakeGpu) -> None:
    gpu.tolerated_drift = 0.12
    rows = {"copy": {"us": [50.0] * 4 + [55.0] * 2}, "a": clock(1980), "b": clock(1780)}
    require(results_of(gpu, *set_up(gpu, rows), settings=SIX), {"a": TENS * 2, "b": TENS * 2})


def test_control_pair_is_a_copy_and_a_gemm(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied,) = (workload for workload in control_pair() if workload.module == "copy")
    # in fp16; the L2 of a B200 has 126 MiB
    assert torch.Size(copied.shape).numel() * 2 >= 128 << 20
    monkeypatch.setattr(device, "_COPIED", (2, 8))
    monkeypatch.setattr(device, "_GEMM", (4, 4, 4))
    names = {
        name: result.run.kernel_names() for name, result in results_of(cpu, *control_pair()).items()
    }
    assert names == {"copy": ["aten::neg"], "gemm": ["aten::mm"]}


def test_out_of_memory_leaves_the_others(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has taken the memory: what is allocated before `build` fails too."""
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")
    monkeypatch.setattr(gpu, "forget_peak", Mock(side_effect=[None, error, None, None]))
    results = results_of(gpu, gpu.workload("a"), gpu.workload("b"))
    require(results, {"a": TENS[:2], "b": f"{BUILDING}OutOfMemoryError: CUDA out*"})


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [(torch.OutOfMemoryError("CUDA out of memory."), True), (RuntimeError("no such kind"), False)],
)
def test_call_that_reaches_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError, is_refused: bool
) -> None:
    x = torch.ones(3)
    workload = tiny(build=lambda: lambda _: x + 1)
    monkeypatch.setattr(torch.Tensor, "to", raising(error))
    refused = pytest.raises(WorkloadError, match="meta has no memory for what the call reaches")
    with refused if is_refused else nullcontext(), moved_to(torch.device("meta"), [workload]):
        assert not is_refused
    assert x.device.type == "cpu"


@pytest.mark.parametrize("pin_memory", [False, True])
def test_tensors_of_a_loader_move_unless_it_pins_them(pin_memory: bool) -> None:
    data = TensorDataset(torch.ones(4))
    loader = DataLoader(data, batch_size=2, pin_memory=pin_memory)
    found = reached_tensors([tiny(build=lambda: lambda _: [batch for (batch,) in loader])])
    assert any(each is data.tensors[0] for each in found) == (not pin_memory)


def test_factory_that_changes_torch_for_all_is_refused(gpu: FakeGpu) -> None:
    was = torch.get_num_threads()
    change = lambda _: (torch.set_default_dtype(torch.float64), torch.set_num_threads(was + 1))  # noqa: E731
    changes = f"default_dtype: torch.float32 -> torch.float64, num_threads: {was} -> {was + 1}"
    require(
        results_of(gpu, gpu.workload("a", on_build=change)), {"a": f"WorkloadError: *: {changes}"}
    )
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, was)


@pytest.mark.parametrize(
    ("kernel", "after", "is_timed"),
    [
        ("gemm", {"name": "cos"}, False),
        ("triton_poi_fused_gelu_0", {"block": [256, 1, 1]}, False),
        ("nvjet_sm90_tst_64x8", {"block": [256, 1, 1]}, True),
    ],
)
def test_other_kernels_than_were_profiled_have_no_time(
    gpu: FakeGpu, kernel: str, after: Any, is_timed: bool
) -> None:
    """Their structure is judged all the same: a recompile may be why."""
    names, launch = [kernel], {"block": [128, 1, 1]}

    def change(number: int) -> None:
        if number:
            names[0] = after.get("name", kernel)
            launch.update(block=after.get("block", launch["block"]))

    run = measured(gpu, gpu.workload(kernels=names, launch=launch, on_build=change)).run
    assert (run.kernel_names(), bool(run.samples)) == ([kernel], is_timed)
    assert (run.incomplete is None) is is_timed


GRAPH = {"api": "cudaGraphLaunch"}


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        (lambda gpu: {"a": {"on_call": lambda: gpu.held_us and 1 / 0}, "b": {}}, "00000"),
        (
            lambda gpu: {"a": {"on_call": lambda: gpu.held_us and 1 / 0, "launch": GRAPH}, "b": {}},
            "0100",
        ),
        # b waits until a is measured
        (lambda _: {name: {"launch": GRAPH, "compile": {}} for name in "ab"}, "010"),
        (lambda _: {"copy": {}, "gemm": {}, "a": {}}, "000000000"),
    ],
    ids=["timing fails", "timing of a graph fails", "graphs", "reference kernels"],
)
def test_memory_is_free_for_the_next(
    gpu: FakeGpu, rows: Callable[[FakeGpu], Rows], held: str
) -> None:
    """All replicates of a CUDA graph are made on one instance: it alone is there when others are
    built.
    """
    gpu.held = []
    results_of(gpu, *set_up(gpu, rows(gpu)))
    assert "".join(map(str, gpu.held)) == held


@pytest.mark.parametrize(
    ("call_us", "calls", "warm_up", "heavy"),  # heavy: few in a row on a GPU
    [
        (100.0, (40, 100, 10), 21, 40),
        (5e4, (20, 20, 8), 2, 5),
        (2e5, (5, 5, 5), 2, 5),
        (1e6, (3, 3, 3), 1, 3),
    ],
)
def test_slow_calls_are_fewer_and_three_at_least(
    call_us: float, calls: Any, warm_up: int, heavy: int
) -> None:
    settings = Settings(iterations=40, host_iterations=100, latency_iterations=10, seconds=1.0)
    of_gpu = settings.limited(None, CudaDevice.most_busy_seconds)
    timers = (Timer.DEVICE, Timer.HOST, Timer.END_TO_END)
    assert tuple(settings.iterations_for(call_us, timer) for timer in timers) == calls
    assert settings.warm_up_calls_for(call_us) == warm_up
    assert (of_gpu.iterations_for(call_us), of_gpu.iterations_for(call_us, Timer.END_TO_END)) == (
        heavy,
        calls[2],
    )


@pytest.mark.parametrize(("factor", "is_enough"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize(
    ("mean", "precision_us"), [(100.0, 0.04), (2.0, 0.006)], ids=["share", "resolution"]
)
def test_standard_error_tells_what_is_steady(
    mean: float, precision_us: float, factor: float, is_enough: bool
) -> None:
    settings = Settings(
        replicates=4, most_replicates=10, precision=0.0004, precision_us=0.006, budget_seconds=1.5
    )
    # Two above and two below: the deviation is d * sqrt(4 / 3), the standard error half of that.
    distance = factor * precision_us * math.sqrt(3)
    times = (mean - distance, mean + distance) * 2
    assert settings.is_enough(times, seconds=0.1) is is_enough
    assert not any(settings.is_enough(times[:count], seconds=1000.0) for count in range(4))
    # a quarter more would be more than the budget
    assert settings.is_enough((90.0, 110.0) * 2, seconds=1.21)


def test_replicates_asked_for_are_made_at_any_cost() -> None:
    asked, usual = Settings.of(20), Settings()
    assert [asked.is_enough([100.0] * count, seconds=1000.0) for count in (19, 20)] == [False, True]
    four = [usual.is_enough([90.0, 110.0] * 2, seconds=seconds) for seconds in (0.2, 2.0)]
    assert four == [False, True]  # beyond the budget four will do
    assert asked.for_call(6e6) is asked
    limits = [
        (each.replicates, each.most_replicates)
        for each in (asked.limited(4, 1.0), usual.limited(4, 1.0))
    ]
    assert limits == [(20, 20), (4, 4)]
    assert usual.for_call(6e6) == replace(
        usual, replicates=2, most_replicates=2, latency_replicates=2
    )


@pytest.mark.parametrize(("launch", "builds"), [(GRAPH, 1), ({}, 4)], ids=["graph", "launches"])
def test_graphs_are_measured_on_one_instance(
    gpu: FakeGpu, launch: dict[str, str], builds: int
) -> None:
    result = measured(gpu, gpu.workload("a", launch=launch), THREE)
    assert (len(times(result)), gpu.builds["a"], result.one_instance) == (3, builds, bool(launch))


def test_groups_not_timed_have_structure_only(gpu: FakeGpu) -> None:
    workloads = set_up(
        gpu, {"copy": {}, "a": {"us": [8.0], "kernels": ("gemm", "gelu")}, "b": at(0, NO)}
    )
    (group,) = measure_groups(workloads, gpu, gpu.fingerprint(), QUICK, timed=False)
    result, error = group.values()
    assert "building failed" in str(error)
    run = result.run
    assert (run.incomplete, run.samples, run.controls) == ("no test of a time was selected", {}, {})
    assert [kernel.device_time_us for kernel in run.kernels] == [4.0, 4.0]  # as they were profiled
    assert (run.conditions, run.counts.launches, run.steps, gpu.replicates) == (None, 2, 3, [])
