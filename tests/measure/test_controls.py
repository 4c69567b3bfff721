"""The control pair: measured beside the workloads, and a machine that it shows to drift is not believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelgauge import Timer, Workload
from kernelgauge.errors import MeasurementError, WorkloadError
from kernelgauge.measure import controls
from kernelgauge.measure.controls import control_pair, roof
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.runner import Measured, Result
from kernelgauge.measure.settings import Settings
from kernelgauge.run import ControlTime
from tests.measure.conftest import Fake, ToldReplicates

Tiny = Callable[..., Workload]
ObserveAll = Callable[..., dict[str, Result]]


@pytest.fixture
def settings() -> Settings:
    return Settings(replicates=6, most_replicates=6, iterations=40)


@pytest.fixture
def pair(tiny: Tiny) -> Fake:
    return Fake(tiny(module="copy", variant="control"), tiny(module="gemm", variant="control"))


@pytest.fixture
def measured(tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, pair: Fake, settings: Settings):
    """Measures two workloads beside a pair of controls with these times."""

    def run(**times_us: list[float]) -> dict[str, Result]:
        replicates.times_us |= times_us
        return observe_all(tiny(module="a"), tiny(module="b"), device=pair, settings=settings)

    return run


# -- what they are --------------------------------------------------------------------------------------------------


def test_each_of_the_pair_is_one_kernel_that_no_suite_can_change(
    observe_all: ObserveAll, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "_COPIED", (2, 8))
    monkeypatch.setattr(controls, "_GEMM", (4, 4, 4))
    results = observe_all(*control_pair())
    names = {}
    for name, result in results.items():
        assert isinstance(result, Measured)
        names[name] = result.run.kernel_names()
    assert names == {"copy control": ["aten::neg"], "gemm control": ["aten::mm"]}


def test_the_copy_is_larger_than_any_cache() -> None:
    (copied,) = [workload for workload in control_pair() if workload.module == "copy"]
    assert torch.Size(copied.shape).numel() * 2 >= 128 << 20  # fp16; the L2 of a B200 has 126 MiB


# -- what is kept of them -------------------------------------------------------------------------------------------


def test_every_run_of_a_session_has_the_median_of_each_control(measured) -> None:
    results = measured(copy=[50.0, 50.2, 50.4, 50.4, 50.2, 50.0], gemm=[200.0])
    for result in results.values():
        assert isinstance(result, Measured)
        assert {name: control.device_time_us for name, control in result.run.controls.items()} == {
            "copy": pytest.approx(50.2),
            "gemm": 200.0,
        }
        assert result.run.controls["copy"].kernel == "aten::addmm"


def test_controls_are_no_workloads_of_the_suite(measured) -> None:
    assert list(measured()) == ["a eager", "b eager"]


def test_a_control_is_called_less_often_than_a_workload(measured, replicates: ToldReplicates) -> None:
    measured()
    assert replicates.iterations["copy"] < replicates.iterations["a"] == 40


def test_a_control_is_counted_on_a_disturbed_machine_too(measured, replicates: ToldReplicates) -> None:
    """It is there to show the disturbance."""
    replicates.disturbed["copy"] = (99, "throttled")
    results = measured()
    assert all(isinstance(result, Measured) and "copy" in result.run.controls for result in results.values())


def test_a_workload_of_a_suite_that_is_called_control_is_none_of_ours(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.disturbed["a"] = (1, "throttled")
    result = observe_all(tiny(module="a", variant="control"), device=Fake(), settings=settings)["a control"]
    assert isinstance(result, Measured)
    assert len(replicates.asked) == 7  # the disturbed one was repeated
    assert replicates.iterations["a"] == 40


# -- drift ----------------------------------------------------------------------------------------------------------

DRIFTS = [
    ({"copy": [50.0, 50.0, 50.0, 50.0, 52.0, 52.0]}, "copy +4.0 %"),
    ({"gemm": [200.0, 200.0, 200.0, 200.0, 190.0, 190.0]}, "gemm -5.0 %"),
    ({"copy": [50.0] * 3 + [60.0] * 3, "gemm": [100.0] * 3 + [110.0] * 3}, "copy +20.0 %, gemm +10.0 %"),
]


@pytest.mark.parametrize(("times_us", "got"), DRIFTS, ids=["slower", "faster", "both"])
def test_a_control_that_drifts_within_a_run_spoils_all_of_it(measured, times_us, got: str) -> None:
    results = measured(**times_us)
    assert len(results) == 2
    for result in results.values():
        assert isinstance(result, MeasurementError)
        assert result.what == "the machine changed its speed while it measured"
        assert result.got == got
        assert "3 %" in (result.expected or "")
        assert "nvidia-smi" in (result.next_command or "")


@pytest.mark.parametrize(
    "times_us",
    [[50.0, 50.0, 50.5, 50.5, 51.0, 51.0], [50.0, 50.0, 90.0, 90.0, 50.0, 50.0], [50.0]],
    ids=["2 %", "a hump", "none"],
)
def test_a_control_that_comes_back_or_hardly_moves_spoils_nothing(measured, times_us: list[float]) -> None:
    assert all(isinstance(result, Measured) for result in measured(copy=times_us).values())


def test_an_error_of_a_workload_itself_is_not_hidden_by_the_drift(measured, replicates: ToldReplicates) -> None:
    replicates.fails["a"] = (1, lambda: WorkloadError("a: measuring failed"))
    results = measured(copy=[50.0] * 3 + [60.0] * 3)
    assert isinstance(results["a eager"], WorkloadError)
    assert isinstance(results["b eager"], MeasurementError)


# -- failures -------------------------------------------------------------------------------------------------------


def test_controls_that_cannot_be_built_are_an_error_of_each_workload_and_not_of_the_session(
    tiny: Tiny, observe_all: ObserveAll
) -> None:
    device = Fake(tiny(module="copy", variant="control", build=lambda: nn.Linear(-1, 2)))
    results = observe_all(tiny(module="a"), tiny(module="b", build=lambda: nn.Linear(-1, 2)), device=device)
    assert [type(result) for result in results.values()] == [WorkloadError, WorkloadError]
    assert str(results["a eager"]).startswith("copy-control-fp32: building failed")
    assert str(results["b eager"]).startswith("b-eager-fp32: building failed")


def test_a_device_without_controls_gives_none(tiny: Tiny, observe_all: ObserveAll) -> None:
    result = observe_all(tiny())["tiny eager"]
    assert isinstance(result, Measured)
    assert result.run.controls == {}
    assert result.run.sample(Timer.DEVICE) is not None


def test_without_a_control_nobody_watches_the_machine_and_nothing_is_believed(
    measured, replicates: ToldReplicates
) -> None:
    broken = WorkloadError("gemm: other kernels on fresh allocations than when it was profiled")
    replicates.fails["gemm"] = (2, lambda: broken)
    results = measured(copy=[50.0], gemm=[200.0])
    assert {str(result) for result in results.values()} == {str(broken)}
    assert replicates.order().count("a") == 3  # and nothing more is measured


def test_a_control_that_splits_into_two_kernels_is_their_sum(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.times_us["gemm"] = [30.0]
    split = Fake(tiny(module="gemm", variant="control", build=lambda: lambda x: (x @ x.T) * 2))
    result = observe_all(tiny(module="a"), device=split, settings=settings)["a eager"]
    assert isinstance(result, Measured)
    control = result.run.controls["gemm"]
    assert (control.kernel, control.device_time_us) == ("aten::mm + aten::mul", pytest.approx(30.0))


def test_what_the_pair_reached_follows_from_its_times() -> None:
    # 128 MiB read and written in 62.7 us, and 2 x 4096^3 in 181.68 us: an H200.
    reached = roof({"copy": ControlTime("neg", 62.7), "gemm": ControlTime("nvjet", 181.68)})
    assert reached is not None
    assert reached.memory_gb_per_s == pytest.approx(2 * 64 * 1024 * 1024 * 2 / 62.7e-6 / 1e9)
    assert reached.gemm_tflop_per_s == pytest.approx(756.5, abs=0.1)


def test_half_a_pair_reached_nothing() -> None:
    assert roof({}) is None
    assert roof({"copy": ControlTime("neg", 62.7)}) is None
