"""A GPU that falls off in the middle of a suite: what was measured before is kept, and the rest says why it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kernelgauge import Timer, Workload
from kernelgauge.errors import KernelgaugeError, MeasurementError, WorkloadError
from kernelgauge.measure import subject
from kernelgauge.measure.device.cuda import CudaDevice
from kernelgauge.measure.runner import Measured, Result
from kernelgauge.measure.settings import Settings
from tests.measure.conftest import Fake, ToldReplicates

Tiny = Callable[..., Workload]
ObserveAll = Callable[..., dict[str, Result]]

LOST = "the GPU no longer answers"
CUDA_ERROR = "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`"
STEADY, WILD = [10.0], [10.0, 13.0, 9.0, 12.0, 8.0, 11.0, 14.0, 9.5, 12.5, 10.5]


class Fragile(Fake):
    """Falls off at one of the calls that workloads make: that one fails, and so does everything after it."""

    def __init__(self, lost_after: int, *controls: Workload) -> None:
        super().__init__(*controls)
        self.lost_after = lost_after
        self.calls = 0

    def lost(self) -> bool:
        return self.calls > self.lost_after

    def use(self) -> None:
        self.calls += 1
        if self.lost():
            raise RuntimeError(CUDA_ERROR)


def on(device: Fragile) -> dict[str, Any]:
    """What a workload of that device is."""

    def call(x: torch.Tensor) -> torch.Tensor:
        device.use()
        return x * 2

    def build() -> Any:
        if device.lost():
            raise RuntimeError(CUDA_ERROR)
        return call

    return {"build": build}


def words(result: Result) -> str:
    assert isinstance(result, KernelgaugeError)
    return str(result)


@pytest.fixture
def settings() -> Settings:
    return Settings(replicates=2, most_replicates=2, iterations=3, seconds=0.01, warm_up_seconds=0)


# -- with real calls ------------------------------------------------------------------------------------------------

# The first call, three to warm up, one to find its length, and the profiler's five.
PREPARED = 10
# A replicate: three to warm up, and the profiler's six.
REPLICATE = 9


def test_lost_while_the_second_workload_is_prepared(tiny: Tiny, observe_all: ObserveAll, settings: Settings) -> None:
    device = Fragile(PREPARED + 3, tiny(module="copy", variant="control"))
    names = ("a", "b", "c")
    results = observe_all(*(tiny(module=name, **on(device)) for name in names), device=device, settings=settings)
    first = results["a eager"]
    assert isinstance(first, Measured)  # its structure was seen
    assert first.run.kernel_names() == ["aten::mul"]
    assert first.run.samples == {}
    assert first.run.incomplete == LOST
    for name in ("b", "c"):
        assert words(results[f"{name} eager"]).startswith(LOST)
        assert "CUDA error: an illegal memory access was encountered" in words(results[f"{name} eager"])


def test_lost_before_anything_was_prepared_is_an_error_of_each(
    tiny: Tiny, observe_all: ObserveAll, settings: Settings
) -> None:
    device = Fragile(0)
    results = observe_all(*(tiny(module=name, **on(device)) for name in "ab"), device=device, settings=settings)
    for result in results.values():
        assert isinstance(result, MeasurementError)
        assert result.what == LOST
        assert "dmesg" in (result.next_command or "")


@pytest.mark.parametrize("lost", [False, True])
def test_out_of_memory_keeps_what_was_measured(
    tiny: Tiny, observe_all: ObserveAll, settings: Settings, lost: bool
) -> None:
    """Another process has taken the memory, or the device is gone."""

    class Full(Fake):
        asked = 0

        def forget_peak(self) -> None:
            self.asked += 1
            if self.asked == 2:
                self.is_lost = lost
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    results = observe_all(*(tiny(module=name) for name in "ab"), device=Full(), settings=settings)
    assert isinstance(results["a eager"], Measured)
    assert words(results["b eager"]).startswith(LOST if lost else "b-eager-fp32: out of device memory while building")


@pytest.mark.parametrize("lost_after", range(2 * PREPARED, 2 * PREPARED + 4 * REPLICATE, 7))
def test_lost_while_timing_no_time_of_too_few_replicates_is_reported(
    tiny: Tiny, observe_all: ObserveAll, settings: Settings, lost_after: int
) -> None:
    device = Fragile(lost_after)
    results = observe_all(*(tiny(module=name, **on(device)) for name in "ab"), device=device, settings=settings)
    replicates_done = (lost_after - 2 * PREPARED) // REPLICATE  # a, b, a, b
    complete = {"a": replicates_done >= 3, "b": replicates_done >= 4}
    for name, whole in complete.items():
        result = results[f"{name} eager"]
        assert isinstance(result, Measured)
        assert result.run.kernel_names() == ["aten::mul"]
        assert result.run.incomplete == (None if whole else LOST)
        sample = result.run.sample(Timer.DEVICE)
        assert (sample is not None and len(sample.replicates_us) == 2) is whole


# -- with told replicates -------------------------------------------------------------------------------------------


@pytest.fixture
def lose(replicates: ToldReplicates, tiny: Tiny, observe_all: ObserveAll):
    """Measures a and b; the device is lost in this replicate of b."""

    def run(in_replicate: int, least: int = 3, most: int = 8) -> dict[str, Result]:
        device = Fake()

        def error() -> KernelgaugeError:
            device.is_lost = True
            return WorkloadError("b-eager-fp32: measuring failed", got="RuntimeError: CUDA error")

        replicates.times_us |= {"a": WILD, "b": WILD}
        replicates.fails["b"] = (in_replicate, error)
        settings = Settings(replicates=least, most_replicates=most)
        return observe_all(tiny(module="a"), tiny(module="b"), device=device, settings=settings)

    return run


def test_what_has_enough_replicates_is_kept(lose, replicates: ToldReplicates) -> None:
    results = lose(in_replicate=4)
    assert replicates.order() == ["a", "b"] * 5  # and not one more
    for name, count in (("a", 5), ("b", 4)):
        result = results[f"{name} eager"]
        assert isinstance(result, Measured)
        assert result.run.samples[Timer.DEVICE].replicates_us == tuple(WILD[:count])
        assert result.run.incomplete is None


def test_what_has_too_few_has_no_times_wherever_the_loss_was_noticed(lose) -> None:
    results = lose(in_replicate=1)
    for result in results.values():  # a was not the one that failed, and has two replicates of three
        assert isinstance(result, Measured)
        assert result.run.samples == {}
        assert result.run.incomplete == LOST


def test_a_loss_that_no_call_has_noticed_ends_the_passes_too(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    class Silent(Fake):
        def lost(self) -> bool:
            return len(replicates.asked) >= 2

    results = observe_all(tiny(module="a"), tiny(module="b"), device=Silent(), settings=Settings(replicates=3))
    assert replicates.order() == ["a", "b"]
    assert [result.run.incomplete for result in results.values() if isinstance(result, Measured)] == [LOST, LOST]


def test_an_error_that_came_before_is_no_loss(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Fake()

    def lost() -> KernelgaugeError:
        device.is_lost = True
        return WorkloadError("lost")

    replicates.times_us |= {"a": WILD, "b": WILD}
    replicates.fails |= {"a": (3, lambda: WorkloadError("a: other kernels")), "b": (5, lost)}
    results = observe_all(
        tiny(module="a"), tiny(module="b"), device=device, settings=Settings(replicates=3, most_replicates=8)
    )
    assert words(results["a eager"]) == "a: other kernels"  # though it has three replicates
    assert isinstance(results["b eager"], Measured)


def test_a_drift_before_the_loss_spoils_what_is_kept(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    device = Fake(tiny(module="copy", variant="control"))

    def lost() -> KernelgaugeError:
        device.is_lost = True
        return WorkloadError("lost")

    replicates.times_us |= {"a": WILD, "copy": [50.0, 50.0, 50.0, 60.0, 60.0, 60.0]}
    replicates.fails["a"] = (5, lost)
    results = observe_all(tiny(module="a"), device=device, settings=Settings(replicates=3, most_replicates=8))
    assert words(results["a eager"]).startswith("the machine changed its speed")


# -- how a CUDA device knows ----------------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[CudaDevice, list[Exception]]]:
    """A device that needs no GPU, and the errors that synchronizing raises."""
    device = object.__new__(CudaDevice)
    device.torch_device = torch.device("cpu")
    errors: list[Exception] = []

    def synchronize(_: object) -> None:
        if errors:
            raise errors[0]

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return device, errors


def test_a_device_that_synchronizes_is_there(cuda) -> None:
    device, _ = cuda
    assert not device.lost()


def test_a_device_whose_context_is_broken_is_lost(cuda) -> None:
    device, errors = cuda
    errors.append(RuntimeError(CUDA_ERROR))
    assert device.lost()


def test_the_error_itself_names_the_first_call_that_failed(tiny: Tiny) -> None:
    device = Fake()
    device.is_lost = True
    told = subject.told(WorkloadError("mlp: measuring failed", got="RuntimeError: CUDA error"), device)
    assert told.what == LOST
    assert "mlp: measuring failed" in (told.got or "")
