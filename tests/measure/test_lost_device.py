"""A GPU that falls off in the middle of a suite: what was measured before is kept, the rest says why it is not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch

from kernelgauge.errors import MeasurementError
from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.runner import Result
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.subject import Measured
from tests.measure.conftest import WILD, FakeGpu, raising, results_of, times

LOST = "the GPU no longer answers"
SETTINGS = Settings(replicates=3, most_replicates=8, warm_up_seconds=0)


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
    results = results_of(gpu, gpu.workload("a", WILD), gpu.workload("b", WILD, on_build=lose), settings=SETTINGS)
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
    device = object.__new__(CudaDevice)  # needs no GPU
    device.torch_device = torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", raising(error) if error else lambda _: None)
    assert device.lost() is bool(error)
