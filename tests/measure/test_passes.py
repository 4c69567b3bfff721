"""Passes go round all workloads and the reference kernels until each is pinned down or given up."""

from __future__ import annotations

import gc
import re
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge.errors import MeasurementError, WorkloadError, WorkloadUnavailable
from kernelgauge.measure import controls
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.controls import control_pair, roof
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.runner import Measured
from kernelgauge.measure.settings import Settings
from kernelgauge.run import ControlTime, Timer
from tests.measure.conftest import QUICK, WILD, Clock, FakeGpu, measured, raising, results_of, times, tiny

SETTINGS = Settings(replicates=3, most_replicates=6, warm_up_seconds=0)
SIX = Settings(replicates=6, most_replicates=6, iterations=40, warm_up_seconds=0)

# -- order and number -------------------------------------------------------------------------------------------------


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


def test_passes_end_with_the_budget(gpu: FakeGpu, clock: Clock) -> None:
    workload = gpu.workload("wild", WILD, on_build=lambda _: clock.advance(1e6 / 3))
    assert len(times(measured(gpu, workload, SETTINGS))) == 4  # of 1.5 s


def test_passes_are_limited_by_the_device(gpu: FakeGpu) -> None:
    gpu.most_replicates, gpu.most_busy_seconds = 4, 1e-9
    run = measured(gpu, gpu.workload("wild", WILD), Settings(replicates=2, iterations=12)).run
    sample = run.samples[Timer.DEVICE]
    assert (len(sample.replicates_us), sample.iterations) == (4, 8)


def test_kernel_time_is_the_mean_over_replicates(gpu: FakeGpu) -> None:
    run = measured(gpu, gpu.workload(us=[8.0, 12.0, 13.0], kernels=("gemm", "gelu")), Settings.of(3)).run
    assert [kernel.device_time_us for kernel in run.kernels] == [5.5, 5.5]
    assert run.samples[Timer.DEVICE].replicates_us == (8.0, 12.0, 13.0)


@pytest.mark.parametrize(("seconds", "announced"), [(0.0, [1]), (2.1, [1, 2, 3, 4, 5, 6])])
def test_progress_names_passes_now_and_then(gpu: FakeGpu, clock: Clock, seconds: float, announced: list[int]) -> None:
    said: list[str] = []
    workloads = [gpu.workload("a", on_build=lambda _: clock.advance(1e6 * seconds)), gpu.workload("b", WILD)]
    settings = replace(SETTINGS, budget_seconds=1e9)
    gpu.controls = (gpu.workload("copy", on_build=lambda _: clock.advance(1e6 * seconds)),)
    results_of(gpu, *workloads, settings=settings, progress=said.append)
    assert said[:2] == ["a-eager-fp32: profiling", "b-eager-fp32: profiling"]
    assert [re.sub(", .*?(:|$)| s at least", r"\1", each) for each in said[2:]] == [
        f"timing: {2 if number < 4 else 1} of 2 workloads" for number in announced
    ]
    assert [int(each.split()[2].rstrip(":")) for each in said[2:]] == announced


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([2.0], ["", ", 14 s at least", ", 12 s at least"]),
        ([2.0, 1.0], ["", ", 21 s at least", ", 18 s at least"]),
        ([0.01], [""]),
    ],
    ids=["one", "two", "no time"],
)
def test_progress_says_how_long_it_takes(gpu: FakeGpu, clock: Clock, seconds: list[float], expected: list[str]) -> None:
    said: list[str] = []
    workloads = [
        gpu.workload(module, on_build=lambda number, s=each: clock.advance(1e6 * s if number else 0))
        for module, each in zip("ab", seconds, strict=False)
    ]
    results_of(gpu, *workloads, settings=replace(Settings.of(8), warm_up_seconds=0), progress=said.append)
    assert [each.partition("workloads")[2] for each in said if each.startswith("timing")][: len(expected)] == expected


# -- what is disturbed ------------------------------------------------------------------------------------------------


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
    assert isinstance(results["b"], Measured)
    error = results["a"]
    assert isinstance(error, MeasurementError) is is_given_up
    if isinstance(error, MeasurementError):
        assert error.what == "a-eager-fp32: the machine cannot be trusted now"
        assert error.got == "throttled by hardware thermal slowdown"
        assert "4 times in all" in (error.expected or "")
        assert "nvidia-smi" in (error.next_command or "")


def test_disturbed_replicates_count_against_the_budget(gpu: FakeGpu, clock: Clock) -> None:
    gpu.hot["a"] = {1, 2}
    workload = gpu.workload("a", WILD, on_build=lambda _: clock.advance(0.2e6))
    result = measured(gpu, workload, Settings(replicates=3, most_replicates=9, budget_seconds=1.0))
    assert len(times(result)) == 3  # of 5 that took a second together


def test_several_disturbances_are_named_once_each(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Reading(other_pids=(77,), other_utilization_percent=60)
    cycle = [Reading(event_reasons=0x40), shared]
    monkeypatch.setattr(gpu, "reading", lambda processes: cycle[gpu.builds["a"] % 2])
    with pytest.raises(MeasurementError) as raised:
        measured(gpu, gpu.workload("a"))
    assert sorted((raised.value.got or "").split("; ")) == [
        "another process (pid 77) used the GPU: 60 % of its SMs",
        "throttled by hardware thermal slowdown",
    ]


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
    assert isinstance(result, Measured) is kept
    if isinstance(result, Measured):
        assert result.run.conditions is not None
        assert result.run.conditions.lowest_sm_clock_mhz == 1500
        assert result.run.conditions.event_reasons == ("power cap",)
    else:
        assert result.got == "SM clock 1500 MHz where 1980 is usual, and no power cap explains it"


def test_clock_that_drops_within_a_replicate_spoils_it(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([1980, 1980, 1500, 1980])
    slow = Settings(replicates=1, most_replicates=1, iterations=12)
    monkeypatch.setattr(gpu, "reading", lambda processes: Reading(sm_clock_mhz=next(clocks, 1980), event_reasons=0))
    assert len(times(measured(gpu, gpu.workload(), slow))) == 1
    assert gpu.replicates == ["a", "a"]


def test_readings_are_before_during_and_after(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int]] = []

    def reading(processes: bool) -> Reading:
        asked.append((processes, gpu.diary.count("call")))
        return Reading(temperature_c=40 + len(asked))

    monkeypatch.setattr(gpu, "reading", reading)
    gpu.controls = (gpu.workload("copy"),)
    run = measured(gpu, gpu.workload(), Settings(replicates=1, most_replicates=1, iterations=3, warm_up_seconds=0)).run
    assert [processes for processes, _ in asked] == [False] * 4 + [
        True,
        False,
        True,
    ]  # two looks at the control's calls
    assert run.conditions is not None
    assert run.conditions.max_temperature_c == 47


# -- the reference kernels --------------------------------------------------------------------------------------------


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
        assert result.run.roof is not None


def test_controls_cost_less_than_workloads(gpu: FakeGpu) -> None:
    gpu.controls = (gpu.workload("copy"),)
    measured(gpu, gpu.workload("a"), SIX)
    assert {session for session in gpu.sessions if session[1] > 3} == {("copy", 12), ("a", 40)}
    assert gpu.diary.count("control") == 6 * (10 + 30)  # no host dispatch of a control


def test_controls_count_on_a_disturbed_machine(gpu: FakeGpu) -> None:
    gpu.hot["copy"] = set(range(99))
    gpu.controls = (gpu.workload("copy"),)
    assert "copy" in measured(gpu, gpu.workload()).run.controls


def test_workload_called_control_is_no_control(gpu: FakeGpu) -> None:
    gpu.hot["a"] = {1}
    measured(gpu, gpu.workload("a", variant="control"), SIX)
    assert gpu.sessions[1:] == [("a", 40)] * 7  # one of them was repeated


@pytest.mark.parametrize(
    ("copy", "gemm", "got"),
    [
        ([50.0] * 4 + [52.0] * 2, [100.0], "copy +4.0 %"),
        ([50.0], [200.0] * 4 + [190.0] * 2, "gemm -5.0 %"),
        ([50.0] * 3 + [60.0] * 3, [100.0] * 3 + [110.0] * 3, "copy +20.0 %, gemm +10.0 %"),
        ([50.0, 50.0, 50.5, 50.5, 51.0, 51.0], [100.0], None),
        ([50.0, 50.0, 90.0, 90.0, 50.0, 50.0], [100.0], None),
    ],
    ids=["slower", "faster", "both", "2 percent", "a hump"],
)
def test_controls_that_drift_invalidate_everything(
    gpu: FakeGpu, copy: list[float], gemm: list[float], got: str | None
) -> None:
    gpu.controls = (gpu.workload("copy", copy), gpu.workload("gemm", gemm))
    for result in results_of(gpu, gpu.workload("a"), gpu.workload("b"), settings=SIX).values():
        assert isinstance(result, MeasurementError) is bool(got)
        if isinstance(result, MeasurementError):
            assert result.what == "the machine changed its speed while it measured"
            assert result.got == got
            assert "3 %" in (result.expected or "")
            assert "nvidia-smi" in (result.next_command or "")


def test_controls_that_drift_hide_no_error_of_a_workload(gpu: FakeGpu) -> None:
    gpu.controls = (gpu.workload("copy", [50.0] * 3 + [60.0] * 3),)
    fails = gpu.workload("a", on_build=lambda number: number > 1 and raising(ValueError("no"))())
    results = results_of(gpu, fails, gpu.workload("b"), settings=SIX)
    assert isinstance(results["a"], WorkloadError)
    assert isinstance(results["b"], MeasurementError)


@pytest.mark.parametrize(("fails_in", "replicates"), [(0, 0), (3, 3)], ids=["profiling", "timing"])
def test_controls_that_fail_end_everything(gpu: FakeGpu, fails_in: int, replicates: int) -> None:
    error = WorkloadError("gemm: it broke")
    gpu.controls = (gpu.workload("gemm", on_build=lambda number: number == fails_in and raising(error)()),)
    results = results_of(gpu, gpu.workload("a"), tiny(module="b", build=raising(ValueError("no"))), settings=SIX)
    assert str(results["a"]) == "gemm: it broke"
    assert str(results["b"]).startswith("b-eager-fp32: building failed")
    assert gpu.replicates.count("a") == replicates


def test_control_pair_is_a_copy_and_a_gemm(cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied,) = (workload for workload in control_pair() if workload.module == "copy")
    assert torch.Size(copied.shape).numel() * 2 >= 128 << 20  # in fp16; the L2 of a B200 has 126 MiB
    monkeypatch.setattr(controls, "_COPIED", (2, 8))
    monkeypatch.setattr(controls, "_GEMM", (4, 4, 4))
    results = results_of(cpu, *control_pair())
    names = {name: result.run.kernel_names() for name, result in results.items() if isinstance(result, Measured)}
    assert names == {"copy": ["aten::neg"], "gemm": ["aten::mm"]}


def test_roof_follows_from_the_control_pair() -> None:
    reached = roof({"copy": ControlTime("neg", 62.7), "gemm": ControlTime("nvjet", 181.68)})  # of an H200
    assert reached is not None
    assert reached.memory_gb_per_s == pytest.approx(4281, abs=1)
    assert reached.gemm_tflop_per_s == pytest.approx(756.5, abs=0.1)
    assert roof({"copy": ControlTime("neg", 62.7)}) is None


# -- failures ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("error", "what", "got"),
    [
        (RuntimeError("CUDA error: illegal\nCompile with"), "measuring failed", "RuntimeError: CUDA error: illegal"),
        (RuntimeError(), "measuring failed", "RuntimeError: RuntimeError()"),
        (
            torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB"),
            "out of device memory while measuring",
            "CUDA out of memory",
        ),
    ],
)
@pytest.mark.parametrize("calls", [2, 7, 12], ids=["warming up", "profiling", "timing"])
def test_failing_call_is_an_error_of_the_workload(
    gpu: FakeGpu, error: Exception, what: str, got: str, calls: int
) -> None:
    workload = gpu.workload(on_call=lambda: gpu.diary.count("call") >= calls and raising(error)())
    with pytest.raises(WorkloadError) as raised:
        measured(gpu, workload)
    assert (raised.value.what, raised.value.got) == (f"a-eager-fp32: {what}", got)


def test_workload_without_kernels_is_an_error(gpu: FakeGpu) -> None:
    with pytest.raises(WorkloadError, match="no kernel"):
        measured(gpu, gpu.workload(kernels=()))


def test_workload_of_zero_time_is_an_error(gpu: FakeGpu) -> None:
    results = results_of(gpu, gpu.workload("a", [0.0]), gpu.workload("b"))
    assert isinstance(results["a"], MeasurementError)
    assert results["a"].what == "a-eager-fp32: a time that no call takes"
    assert isinstance(results["b"], Measured)


def test_workload_that_changes_its_kernels_is_an_error(gpu: FakeGpu) -> None:
    names = ["gemm"]
    workload = gpu.workload(kernels=names, on_build=lambda number: number and names.__setitem__(0, "cos"))
    with pytest.raises(WorkloadError, match="other kernels when it was timed than when it was profiled") as raised:
        measured(gpu, workload)
    assert (raised.value.got, raised.value.expected) == ("cos", "gemm")


@pytest.mark.parametrize(("kernel", "is_refused"), [("triton_poi_fused_gelu_0", True), ("nvjet_sm90_tst_64x8", False)])
def test_kernel_tuned_anew_is_another_kernel(gpu: FakeGpu, kernel: str, is_refused: bool) -> None:
    block: dict[str, Any] = {"block": [128, 1, 1]}
    workload = gpu.workload(
        kernels=(kernel,), launch=block, on_build=lambda number: number and block.update(block=[256, 1, 1])
    )
    assert isinstance(results_of(gpu, workload)["a"], WorkloadError) is is_refused


@pytest.mark.parametrize("stage", ["profiling", "timing"])
def test_failed_workload_holds_no_memory(cpu: CpuDevice, stage: str) -> None:
    built: list[weakref.ref[nn.Module]] = []
    calls, alive = [], set()

    class Fails(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            if stage == "profiling" or len(calls) > 10:
                raise ValueError("no")
            return super().forward(x)

    def build() -> nn.Module:
        module = Fails(4, 3)
        built.append(weakref.ref(module))
        return module

    def looks() -> nn.Module:
        gc.collect()
        alive.add(sum(module() is not None for module in built))
        return nn.Linear(4, 3)

    results = results_of(cpu, tiny(module="fails", build=build), tiny(module="looks", build=looks), settings=QUICK)
    assert isinstance(results["fails"], WorkloadError)
    assert built
    assert alive == {0}
