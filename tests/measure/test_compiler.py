"""Setting torch up for measuring, and restoring what that changes for all of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor

from kernelgauge.measure.compiler import torch_set_up
from kernelgauge.measure.device import CpuDevice
from kernelgauge.measure.latency import Rounds
from kernelgauge.measure.numerics import compare_with_float64
from kernelgauge.measure.runner import measure_groups
from tests.measure.conftest import QUICK, measured, tiny

LOGGER = logging.getLogger("torch.__trace")


@pytest.mark.parametrize("initialized", [True, False])
def test_torch_set_up_restores_numbers_of_the_gpu(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    restored: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: f"state of {gpu}")
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, gpu: restored.append((state, gpu)))
    with pytest.raises(ZeroDivisionError), torch_set_up():
        raise ZeroDivisionError
    assert restored == ([("state of 1", 1)] if initialized else [])


def measure(device: CpuDevice, workload: Any) -> None:
    list(measure_groups([workload], device, device.fingerprint(), QUICK, deterministic=True))


def time_latency(device: CpuDevice, workload: Any) -> None:
    Rounds(workload, device, replicates=1, iterations=1, deterministic=True).time()


def compare(device: CpuDevice, workload: Any) -> None:
    compare_with_float64(workload, device, seed=1, deterministic=True)


@pytest.mark.parametrize("do", [measure, time_latency, compare])
def test_everything_measures_in_torch_set_up(cpu: CpuDevice, do: Callable[[CpuDevice, Any], None]) -> None:
    seen: set[tuple[bool, bool]] = set()

    def build() -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            seen.add((inductor.deterministic, inductor.cpp.enable_kernel_profile))
            return x * 2

        return run

    numbers = torch.get_rng_state()
    do(cpu, tiny(build=build))
    assert seen == {(True, True)}
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (inductor.deterministic, inductor.cpp.enable_kernel_profile) == (False, False)


@pytest.mark.parametrize(("asked", "is_silent"), [(None, True), ("folder", False)])
def test_structured_trace_is_silent_unless_asked_for(
    cpu: CpuDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    asked: str | None,
    is_silent: bool,
) -> None:
    monkeypatch.setattr(LOGGER, "disabled", False)
    monkeypatch.delenv("TORCH_TRACE", raising=False)
    if asked:
        monkeypatch.setenv("TORCH_TRACE", asked)
    with caplog.at_level(logging.DEBUG, "torch.__trace"):
        LOGGER.addHandler(caplog.handler)
        try:
            measured(cpu, tiny(build=lambda: lambda x: LOGGER.debug("seen") or x * 2))
        finally:
            LOGGER.removeHandler(caplog.handler)
    assert ("seen" not in caplog.messages) is is_silent
    assert not LOGGER.disabled
