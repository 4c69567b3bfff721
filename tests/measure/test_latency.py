"""Rounds for pytest-benchmark: each replicate on fresh allocations, each round prepared before its clock starts."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge.errors import DisturbedError, OtherKernelsError, WorkloadError
from kernelgauge.measure.device import Device, HostSpeed
from kernelgauge.measure.latency import Rounds
from kernelgauge.trace import KernelIdentity
from tests.builders import FUSED
from tests.measure.conftest import FakeGpu, hot, tiny


def play(rounds: Rounds, count: int | None = None) -> None:
    with rounds.torch_set_up():
        for _ in range(rounds.total if count is None else count):
            rounds.setup()
            rounds.call()


def test_round_is_prepared_outside_of_what_is_timed(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    class Module(nn.Linear):
        def zero_grad(self, set_to_none: bool = True) -> None:
            gpu.diary.append("prepare")
            super().zero_grad(set_to_none)

    module = Module(4, 3)
    module.register_forward_pre_hook(lambda *_: gpu.diary.append("call"))
    monkeypatch.setattr(gpu, "warm_up_calls", 0)
    rounds = Rounds(tiny(build=lambda: module, pass_="train"), gpu, replicates=1, iterations=2)
    with rounds.torch_set_up():
        rounds.setup()
        before = gpu.diary[-6:]
        gpu.diary.clear()
        rounds.call()
    assert before == ["synchronize", "control", "synchronize", "prepare", "flush", "synchronize"]
    assert gpu.diary == ["call", "synchronize"]


def test_rounds_build_each_replicate_in_order(gpu: FakeGpu, paddings: list[int]) -> None:
    gpu.held = []
    rounds = Rounds(gpu.workload(), gpu, replicates=3, iterations=2, first=8)
    assert rounds.total == 6
    play(rounds)
    marks = " ".join(each for each in gpu.diary if each.startswith(("forget", "build", "flush", "call", "control")))
    for each in marks.split("forget peak build a ")[1:]:
        assert each.rpartition("flush call control")[0].count("flush call") >= gpu.warm_up_calls
        assert each.count("control") == 10 + 2  # waits until the host is fast, and its own
    assert gpu.held == [0, 0, 0]  # two replicates are never held at once
    assert paddings == [512 * (1 + 2 * 7919 * place) for place in (8, 9, 10)]


@pytest.mark.parametrize(
    ("durations_us", "replicates_us"),
    [
        ([1.0] * 5 + [3.0] * 5, (1.0, 3.0)),
        ([10.0, 11.0, 12.0, 13.0, 14.0, 10.0, 11.0, 900.0, 5000.0, 70000.0], (10.4, 10.4)),  # lower deciles
    ],
)
@pytest.mark.parametrize("extra", [0, 1], ids=["", "one round that is not timed"])
def test_sample_has_replicates_of_consecutive_rounds(
    gpu: FakeGpu, durations_us: list[float], replicates_us: tuple[float, ...], extra: int
) -> None:
    controls = iter(range(10, 30))
    gpu.host = HostSpeed(lambda: None)
    gpu.host.round_trip_us = lambda: float(next(controls))  # type: ignore[method-assign]
    rounds = Rounds(gpu.workload(), gpu, replicates=2, iterations=5)
    play(rounds, 10 + extra)
    sample = rounds.sample([us / 1e6 for us in durations_us])
    assert sample.replicates_us == pytest.approx(replicates_us)
    assert sample.controls_us == pytest.approx((10.4, 15.4))  # of 10 to 14, and 15 to 19
    assert sample.iterations == 5


@pytest.mark.parametrize("pass_", ["forward", "train"])
def test_time_sets_autograd_and_pauses_the_collector(cpu: Device, pass_: Any) -> None:
    seen: set[tuple[bool, bool]] = set()
    module = nn.Linear(4, 3)
    module.register_forward_pre_hook(lambda *_: seen.add((torch.is_grad_enabled(), gc.isenabled())))
    with torch.set_grad_enabled(pass_ == "forward"):
        Rounds(tiny(build=lambda: module, pass_=pass_), cpu, replicates=1, iterations=2).time()
    assert seen == {(pass_ == "train", False)}
    assert gc.isenabled()


def test_time_of_disturbed_rounds_is_an_error(gpu: FakeGpu) -> None:
    rounds = Rounds(gpu.workload(reading=hot(1)), gpu, replicates=2, iterations=2)
    with pytest.raises(DisturbedError) as raised:
        rounds.time()
    assert raised.value.got == "throttled by hardware thermal slowdown"


SHOWN = FUSED.removesuffix("_0")  # Inductor's number is no part of what is compared


def gemm(name: str = "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_bias_TNT") -> KernelIdentity:
    return KernelIdentity(name, "gemm", (8, 1, 1), (128, 1, 1))


def fused(threads: int = 128) -> KernelIdentity:
    return KernelIdentity(FUSED, "pointwise", (8, 1, 1), (threads, 1, 1))


def timed(gpu: FakeGpu, ran: Sequence[KernelIdentity], profiled: Sequence[KernelIdentity], **fields: Any) -> Rounds:
    """Time rounds that run these kernels, of a run in which those were profiled."""

    def call() -> None:
        for identity in ran:
            gpu.launch(identity.name, 5.0, block=list(identity.block or ()))

    workload = gpu.workload(kernels=(), on_call=call, **({"compile": {}} | fields))
    rounds = Rounds(workload, gpu, replicates=1, iterations=1, profiled=profiled)
    rounds.time()
    return rounds


@pytest.mark.parametrize(
    ("ran", "profiled", "got", "expected"),
    [
        ([fused(256)], [fused()], f"{SHOWN} grid 8x1x1 block 256x1x1", f"{SHOWN} grid 8x1x1 block 128x1x1"),
        ([gemm(), fused(), fused()], [gemm(), fused()], f"{SHOWN} grid 8x1x1 block 128x1x1", "nothing else"),
        ([fused(), gemm()], [gemm(), fused()], None, None),
    ],
    ids=["another choice", "one launch more", "another order"],
)
def test_other_kernels_of_the_autotuner_are_an_error(
    gpu: FakeGpu, ran: list[KernelIdentity], profiled: list[KernelIdentity], got: str | None, expected: str | None
) -> None:
    """Two processes filled one compile cache at the same time: an MLP of 223 us had the latency of one of 205 us."""
    with pytest.raises(OtherKernelsError, match="other kernels when it was timed") as raised:
        timed(gpu, ran, profiled)
    assert got is None or (raised.value.got, raised.value.expected) == (got, expected)
    assert "TORCHINDUCTOR_CACHE_DIR" in (raised.value.next_command or "")


def test_other_kernels_nobody_tuned_are_the_workloads_error(gpu: FakeGpu) -> None:
    with pytest.raises(WorkloadError, match="other kernels when it was timed"):
        timed(gpu, [gemm("nvjet_other"), fused()], [gemm(), fused()])
    assert timed(gpu, [gemm(), fused()], [gemm(), fused()]).disturbed_by() == ()
