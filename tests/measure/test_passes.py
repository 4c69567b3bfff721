"""Passes go round all workloads and the reference kernels until each is pinned down, given up, or the GPU is lost."""

from __future__ import annotations

import math
import unittest
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch

from kernelgauge.errors import MeasurementError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure import device
from kernelgauge.measure.device import CudaDevice, Device, control_pair
from kernelgauge.measure.nvml import Reading
from kernelgauge.measure.runner import Result
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.subject import Measured
from kernelgauge.run import ControlTime, Timer
from tests.measure.conftest import WILD, Alive, FakeGpu, cuda_device, measured, raising, results_of, times, tiny

SETTINGS = Settings(replicates=3, most_replicates=6, warm_up_seconds=0)
SIX = Settings(replicates=6, most_replicates=6, iterations=40, warm_up_seconds=0)


def test_passes_go_round_controls_and_workloads(gpu: FakeGpu) -> None:
    gpu.controls = (gpu.workload("copy"), gpu.workload("gemm"))
    results_of(gpu, *map(gpu.workload, "ab"), settings=SETTINGS)
    assert gpu.diary.index("build b") < gpu.diary.index("build copy")  # all are profiled before any is timed
    assert gpu.replicates == ["copy", "gemm", "a", "b"] * 3


def test_passes_add_replicates_to_what_is_not_steady(gpu: FakeGpu) -> None:
    results = results_of(gpu, gpu.workload("steady"), gpu.workload("wild", WILD), settings=SETTINGS)
    assert times(results["steady"]) == (10.0,) * 3
    assert times(results["wild"]) == tuple(WILD[:6])
    assert gpu.replicates == ["steady", "wild"] * 3 + ["wild"] * 3


def test_disturbed_replicates_are_repeated_later(gpu: FakeGpu) -> None:
    gpu.hot["a"] = {1, 2}
    result = results_of(gpu, gpu.workload("a", WILD), gpu.workload("b"), settings=Settings.of(3))["a"]
    assert gpu.replicates == ["a", "b"] * 3 + ["a"] * 2
    assert times(result) == tuple(WILD[2:5])
    assert isinstance(result, Measured)
    assert result.run.conditions is None  # of those that count nothing is known


@pytest.mark.parametrize(("disturbed", "made", "is_given_up"), [(3, 6, False), (4, 4, True)])
def test_disturbed_replicates_are_repeated_as_often_as_kept(
    gpu: FakeGpu, disturbed: int, made: int, is_given_up: bool
) -> None:
    gpu.hot["a"] = set(range(1, disturbed + 1))
    results = results_of(gpu, gpu.workload("a"), gpu.workload("b"), settings=Settings.of(3))
    assert gpu.replicates.count("a") == made
    found = {name: result.run for name, result in results.items() if isinstance(result, Measured)}
    assert (found["b"].incomplete, bool(found["b"].samples)) == (None, True)
    said = "the machine cannot be trusted now: throttled by hardware thermal slowdown"
    assert found["a"].incomplete == (said if is_given_up else None)
    assert bool(found["a"].samples) is not is_given_up
    assert found["a"].counts.launches == 1  # the structure is sound in any case


@pytest.mark.parametrize(("disturbed", "kept"), [(0, 5), (2, 3)])
def test_disturbed_replicates_use_up_the_budget(gpu: FakeGpu, disturbed: int, kept: int) -> None:
    """Else a machine that is disturbed now and then would be measured for ever."""
    gpu.hot["a"] = set(range(1, disturbed + 1))
    slow = gpu.workload("a", WILD, on_build=lambda _: gpu.clock.advance(1e6))
    result = measured(gpu, slow, settings=replace(SETTINGS, budget_seconds=5.5))
    assert len(times(result)) == kept


@pytest.mark.parametrize(("reasons", "kept"), [(0, False), (0x4, True)], ids=["unexplained", "power cap"])
def test_low_clock_spoils_unless_the_power_cap_explains_it(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, reasons: int, kept: bool
) -> None:
    """The usual clock is the highest of all subjects: `b` is slow from its first replicate on."""

    def reading(processes: bool) -> Reading:
        is_slow = gpu.current == "b"
        return Reading(sm_clock_mhz=1500 if is_slow else 1980, event_reasons=reasons if is_slow else 0)

    monkeypatch.setattr(gpu, "reading", reading)
    results = results_of(gpu, gpu.workload("a"), gpu.workload("b"))
    result = results["b"]
    assert isinstance(results["a"], Measured)
    assert isinstance(result, Measured)
    assert (result.run.incomplete is None) is kept
    if kept:
        assert result.run.conditions.lowest_sm_clock_mhz == 1500
        assert result.run.conditions.event_reasons == ("power cap",)
    else:
        assert "SM clock 1500 MHz where 1980 is usual, and no power cap" in (result.run.incomplete or "")


def test_controls_are_kept_as_medians(gpu: FakeGpu) -> None:
    copy = [50.0, 50.2, 50.4, 50.4, 50.2, 50.0]
    gpu.controls = (gpu.workload("copy", copy), gpu.workload("gemm", [200.0], kernels=("gemm", "splitk")))
    results = results_of(gpu, gpu.workload("a"), gpu.workload("b"), settings=SIX)
    assert list(results) == ["a", "b"]
    for result in results.values():
        assert isinstance(result, Measured)
        assert result.run.controls == {
            "copy": ControlTime("gemm", pytest.approx(50.2)),
            "gemm": ControlTime("gemm + splitk", 200.0),
        }


@pytest.mark.parametrize(
    ("copy", "gemm", "tolerated", "got"),
    [
        ([50.0] * 4 + [52.0] * 2, [100.0], 0.03, "copy +4.0 %"),
        ([50.0], [200.0] * 4 + [190.0] * 2, 0.03, "gemm -5.0 %"),
        ([50.0] * 3 + [60.0] * 3, [100.0] * 3 + [110.0] * 3, 0.03, "copy +20.0 %, gemm +10.0 %"),
        ([50.0, 50.0, 50.5, 50.5, 51.0, 51.0], [100.0], 0.03, None),
        ([50.0, 50.0, 90.0, 90.0, 50.0, 50.0], [100.0], 0.03, None),
        ([50.0] * 4 + [55.0] * 2, [100.0], 0.12, None),
        ([50.0] * 4 + [57.0] * 2, [100.0], 0.12, "copy +14.0 %"),
    ],
    ids=["slower", "faster", "both", "2 percent", "a hump", "10 percent of an unknown GPU", "14 percent of it"],
)
def test_controls_that_drift_invalidate_every_time(
    gpu: FakeGpu, copy: list[float], gemm: list[float], tolerated: float, got: str | None
) -> None:
    gpu.tolerated_drift = tolerated
    gpu.controls = (gpu.workload("copy", copy), gpu.workload("gemm", gemm))
    for result in results_of(gpu, gpu.workload("a"), gpu.workload("b"), settings=SIX).values():
        assert isinstance(result, Measured)
        said = f"the machine changed its speed while it measured: {got}"
        assert result.run.incomplete == (said if got else None)
        assert bool(result.run.samples) is not bool(got)


@pytest.mark.parametrize(("fails_in", "replicates"), [(0, 0), (3, 3)], ids=["profiling", "timing"])
def test_controls_that_fail_end_everything(gpu: FakeGpu, fails_in: int, replicates: int) -> None:
    error = WorkloadError("gemm: it broke")
    gpu.controls = (gpu.workload("gemm", on_build=lambda number: number == fails_in and raising(error)()),)
    results = results_of(gpu, gpu.workload("a"), tiny(module="b", build=raising(ValueError("no"))), settings=SIX)
    assert str(results["a"]) == "gemm: it broke"
    assert str(results["b"]).startswith("b-eager-fp32: building failed")
    assert gpu.replicates.count("a") == replicates


def test_control_pair_is_a_copy_and_a_gemm(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied,) = (workload for workload in control_pair() if workload.module == "copy")
    assert torch.Size(copied.shape).numel() * 2 >= 128 << 20  # in fp16; the L2 of a B200 has 126 MiB
    monkeypatch.setattr(device, "_COPIED", (2, 8))
    monkeypatch.setattr(device, "_GEMM", (4, 4, 4))
    results = results_of(cpu, *control_pair())
    names = {name: result.run.kernel_names() for name, result in results.items() if isinstance(result, Measured)}
    assert names == {"copy": ["aten::neg"], "gemm": ["aten::mm"]}


def test_failures_leave_the_other_workloads(gpu: FakeGpu) -> None:
    no = ZeroDivisionError("no such thing")
    workloads = [
        gpu.workload("first"),
        gpu.workload("unbuildable", on_build=raising(no)),
        gpu.workload("uncallable", on_call=raising(no)),
        gpu.workload("later", on_build=lambda number: number == 2 and raising(no)()),
        gpu.workload("unavailable", on_cpu="Triton code"),
        gpu.workload("last"),
    ]
    results = results_of(gpu, *workloads, settings=SETTINGS)
    assert {name for name, result in results.items() if isinstance(result, Measured)} == {"first", "last"}
    assert isinstance(results["unavailable"], WorkloadUnavailable)
    assert gpu.replicates.count("later") == 2  # it is not tried again
    for name in ("unbuildable", "uncallable", "later"):
        result = results[name]
        assert isinstance(result, WorkloadError)
        assert result.what.startswith(f"{name}-eager-fp32: ")
        assert result.got == "ZeroDivisionError: no such thing"


@pytest.mark.parametrize("where", ["on_build", "on_call"])
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (pytest.skip.Exception("needs flash_attn"), WorkloadUnavailable, "odd-eager-fp32: needs flash_attn"),
        (unittest.SkipTest("needs flash_attn"), WorkloadUnavailable, "odd-eager-fp32: needs flash_attn"),
        (SystemExit(2), WorkloadError, "SystemExit: 2"),
        (pytest.fail.Exception("no"), WorkloadError, "Failed: no"),
    ],
)
def test_what_ends_a_test_ends_one_workload(
    gpu: FakeGpu, where: str, error: BaseException, kind: type[Exception], said: str
) -> None:
    odd: dict[str, Any] = {where: raising(error)}
    results = results_of(gpu, gpu.workload("odd", **odd), gpu.workload("last"))
    assert isinstance(results["odd"], kind)
    assert said in str(results["odd"])
    assert isinstance(results["last"], Measured)


def test_factory_that_changes_torch_for_all_is_refused(gpu: FakeGpu) -> None:
    def change(_: int) -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(threads + 1)

    threads = torch.get_num_threads()
    odd = results_of(gpu, gpu.workload("odd", on_build=change))["odd"]
    assert isinstance(odd, WorkloadError)
    changes = f"default_dtype: torch.float32 -> torch.float64, num_threads: {threads} -> {threads + 1}"
    assert odd.got == changes
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)


def test_workload_of_zero_time_is_an_error(gpu: FakeGpu) -> None:
    results = results_of(gpu, gpu.workload("a", [0.0]), gpu.workload("b"))
    assert isinstance(results["a"], MeasurementError)
    assert results["a"].what == "a-eager-fp32: a time that no call takes"
    assert isinstance(results["b"], Measured)


@pytest.mark.parametrize(
    ("kernel", "after", "why"),
    [
        ("gemm", {"name": "cos"}, "other kernels when it was timed than when it was profiled: cos"),
        ("triton_poi_fused_gelu_0", {"block": [256, 1, 1]}, "other kernels when it was timed than when it was profiled: triton_poi"),
        ("nvjet_sm90_tst_64x8", {"block": [256, 1, 1]}, None),
    ],
)  # fmt: skip
def test_other_kernels_than_were_profiled_have_no_time(gpu: FakeGpu, kernel: str, after: Any, why: str | None) -> None:
    """Their structure is judged all the same: a recompile may be why."""
    names, block = [kernel], {"block": [128, 1, 1]}

    def change(number: int) -> None:
        if number:
            names[0] = after.get("name", kernel)
            block.update({"block": after.get("block", block["block"])})

    run = measured(gpu, gpu.workload(kernels=names, launch=block, on_build=change)).run
    assert run.kernel_names() == [kernel]
    assert ": ".join(filter(None, (run.incomplete, run.other_kernels))).startswith(why or "")
    assert bool(run.samples) is (why is None)


@pytest.mark.parametrize(
    ("stage", "api", "builds", "held"),
    [
        ("profiling", "cudaLaunchKernel", 1, 0),
        ("timing", "cudaLaunchKernel", 2, 0),
        ("timing", "cudaGraphLaunch", 1, 1),  # its one instance, until it has failed
    ],
)
def test_failed_workload_holds_no_memory(
    gpu: FakeGpu, alive: Alive, stage: str, api: str, builds: int, held: int
) -> None:
    seen: list[int] = []
    fail = lambda: (stage == "profiling" or gpu.held_us) and 1 / 0  # noqa: E731
    fails = alive.kept(gpu.workload("fails", on_call=fail, launch={"api": api}))
    results = results_of(gpu, fails, gpu.workload("looks", on_build=lambda _: seen.append(len(alive))))
    assert isinstance(results["fails"], WorkloadError)
    assert (len(alive.built), seen) == (builds, [held, 0, 0])


CALLS = Settings(iterations=40, host_iterations=100, latency_iterations=10, seconds=1.0)


@pytest.mark.parametrize(
    ("call_us", "calls", "warm_up"),
    [(100.0, (40, 100, 10), 21), (5e4, (20, 20, 10), 11), (2e5, (5, 5, 5), 3), (1e6, (3, 3, 3), 1)],
)
def test_slow_calls_are_fewer_and_three_at_least(call_us: float, calls: tuple[int, ...], warm_up: int) -> None:
    timers = (Timer.DEVICE, Timer.HOST, Timer.END_TO_END)
    assert tuple(CALLS.iterations_for(call_us, timer) for timer in timers) == calls
    assert CALLS.warm_up_calls_for(call_us) == warm_up
    heavy = CALLS.limited(None, CudaDevice.most_busy_seconds)  # few in a row on a GPU
    assert heavy.iterations_for(call_us) == (40 if call_us == 100.0 else min(8, calls[0]))
    assert heavy.iterations_for(call_us, Timer.END_TO_END) == calls[2]


@pytest.mark.parametrize(("factor", "is_enough"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize(("mean", "precision_us"), [(100.0, 0.04), (2.0, 0.006)], ids=["share", "resolution"])
def test_standard_error_decides_what_is_steady(
    mean: float, precision_us: float, factor: float, is_enough: bool
) -> None:
    settings = Settings(replicates=4, most_replicates=10, precision=0.0004, precision_us=0.006, budget_seconds=1.5)
    # Two above and two below: the deviation is d * sqrt(4 / 3), the standard error half of that.
    distance = factor * precision_us * math.sqrt(3)
    times = (mean - distance, mean + distance) * 2
    assert settings.is_enough(times, seconds=0.1) is is_enough
    assert [settings.is_enough(times[:count], seconds=1000.0) for count in range(4)] == [False] * 4
    assert settings.is_enough((90.0, 110.0) * 2, seconds=1.21)  # a quarter more would be more than the budget


def test_replicates_asked_for_are_made_at_any_cost() -> None:
    settings = Settings.of(20)
    assert not settings.is_enough([100.0] * 19, seconds=1000.0)
    assert settings.is_enough([100.0] * 20, seconds=1000.0)
    assert settings.for_call(6e6) is settings
    limits = [
        (each.replicates, each.most_replicates) for each in (settings.limited(4, 1.0), Settings().limited(4, 1.0))
    ]
    assert limits == [(20, 20), (4, 4)]
    slow = Settings().for_call(6e6)
    assert slow == replace(Settings(), replicates=2, most_replicates=2, latency_replicates=2)


# -- a GPU that falls off in the middle of a suite ---------------------------------------------------------------------

LOST = "the GPU no longer answers"
EIGHT = Settings(replicates=3, most_replicates=8, warm_up_seconds=0)


def losing(gpu: FakeGpu, when: Callable[[int], bool]) -> Callable[[int], None]:
    """Return a hook for a build, or a call, that loses the GPU."""

    def use(number: int) -> None:
        gpu.is_lost |= when(number)
        if gpu.is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    return use


def incomplete(result: Result) -> str | None:
    assert isinstance(result, Measured), result
    assert bool(result.run.samples) is (result.run.incomplete is None)
    assert result.run.kernel_names() == ["gemm"]
    return result.run.incomplete


def test_lost_while_preparing_keeps_structures(gpu: FakeGpu) -> None:
    calls = count()
    lose = losing(gpu, lambda number: number == 3)
    lost = losing(gpu, lambda _: False)
    gpu.controls = (gpu.workload("copy", on_build=lost),)
    loses = gpu.workload("b", on_call=lambda: lose(next(calls)))
    results = results_of(gpu, gpu.workload("a"), loses, gpu.workload("c", on_build=lost))
    assert incomplete(results["a"]) == LOST
    for result in (results["b"], results["c"]):
        assert isinstance(result, MeasurementError)
        assert result.what == LOST
        assert "illegal memory access" in (result.got or "")
        assert "dmesg" in (result.next_command or "")


@pytest.mark.parametrize(
    ("in_replicate", "kept"), [(2, {"a": 0, "b": 0}), (4, {"a": 4, "b": 3}), (5, {"a": 5, "b": 4})]
)
def test_lost_while_timing_keeps_what_has_enough(gpu: FakeGpu, in_replicate: int, kept: dict[str, int]) -> None:
    lose = losing(gpu, lambda number: number == in_replicate)
    results = results_of(gpu, gpu.workload("a", WILD), gpu.workload("b", WILD, on_build=lose), settings=EIGHT)
    assert gpu.replicates == ["a", "b"] * in_replicate  # and not one more
    for name, replicates in kept.items():
        assert incomplete(results[name]) == (None if replicates else LOST)
        assert not replicates or times(results[name]) == tuple(WILD[:replicates])


@pytest.mark.parametrize("lost", [False, True])
def test_out_of_memory_keeps_what_was_measured(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """Another process has taken the memory, or the device is gone."""
    prepared = count()

    def forget_peak() -> None:
        if next(prepared) == 1:
            gpu.is_lost = lost
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    monkeypatch.setattr(gpu, "forget_peak", forget_peak)
    results = results_of(gpu, gpu.workload("a"), gpu.workload("b"))
    assert incomplete(results["a"]) == (LOST if lost else None)
    said = str(results["b"])
    assert said.startswith(LOST) if lost else "got      OutOfMemoryError: CUDA out of memory" in said


@pytest.mark.parametrize("error", [None, RuntimeError("CUDA error")])
def test_cuda_device_is_lost_once_it_fails_to_synchronize(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", raising(error) if error else lambda _: None)
    assert cuda_device().lost() is bool(error)
