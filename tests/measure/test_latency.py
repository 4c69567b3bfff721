"""Rounds for pytest-benchmark: each replicate on fresh allocations, each round prepared before its clock starts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import OtherKernelsError, WorkloadError
from kernelgauge.measure import latency
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.host import HostSpeed
from kernelgauge.measure.instance import Instance, build
from kernelgauge.measure.latency import Rounds
from kernelgauge.run import Sample
from kernelgauge.trace import KernelIdentity
from tests.builders import FUSED
from tests.measure.conftest import Diary, ToldMonitor

Tiny = Callable[..., Workload]


class WrittenHost(HostSpeed):
    """Controls of 10 us, 11 us, ... that are written down; waiting for a fast host too."""

    def __init__(self, entries: list[str]) -> None:
        super().__init__(lambda: None)
        self.entries = entries
        self.controls_us = count(10.0)

    def round_trip_us(self) -> float:
        self.entries.append("control")
        return next(self.controls_us)

    def wait_until_fast(self) -> float:
        self.entries.append("wait until fast")
        return 10.0


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Diary]:
    """Builds are written down with the number of the replicate; warming up is one entry."""
    device = Diary()
    device.host = WrittenHost(device.entries)

    def written(workload: Workload, target: CpuDevice, *, replicate: int) -> Instance:
        device.entries.append(f"build {replicate}")
        return build(workload, target, replicate=replicate)

    monkeypatch.setattr(latency, "build", written)
    monkeypatch.setattr(latency, "warm_up", lambda *_, **__: device.entries.append("warm up"))
    return device


@pytest.fixture
def written(tiny: Tiny, diary: Diary) -> Workload:
    """A workload that writes its calls and its preparations into the diary."""

    class Module(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            diary.entries.append("call")
            return super().forward(x)

        def zero_grad(self, set_to_none: bool = True) -> None:
            diary.entries.append("prepare")
            super().zero_grad(set_to_none)

    return tiny(build=lambda: Module(4, 3), pass_="train")


class Ticks:
    """Stands in for the module `time`: a second later at each look."""

    def __init__(self, entries: list[str]) -> None:
        self.entries = entries
        self.seconds = count(1.0)

    def perf_counter(self) -> float:
        self.entries.append("tick")
        return next(self.seconds)


def play(rounds: Rounds, count: int) -> None:
    with rounds.grad_mode():
        for _ in range(count):
            rounds.setup()
            rounds.call()


def test_a_round_is_prepared_flushed_and_synchronised_before_its_call_and_synchronised_after(
    written: Workload, diary: Diary
) -> None:
    rounds = Rounds(written, diary, replicates=1, iterations=2)
    play(rounds, 1)
    assert diary.entries == [
        *("build 0", "no peak before", "wait until fast", "warm up", "control"),
        *("prepare", "flush", "synchronize", "call", "synchronize"),
    ]


def test_what_is_timed_is_the_call_and_its_synchronisation_alone(written: Workload, diary: Diary) -> None:
    rounds = Rounds(written, diary, replicates=1, iterations=1)
    with rounds.grad_mode():
        rounds.setup()
        diary.entries.clear()
        rounds.call()
    assert diary.entries == ["call", "synchronize"]


def test_replicates_are_built_in_order_each_for_its_rounds(written: Workload, diary: Diary) -> None:
    rounds = Rounds(written, diary, replicates=3, iterations=2)
    assert rounds.total == 6
    play(rounds, rounds.total)
    seen = [entry for entry in diary.entries if entry.startswith(("build", "warm", "call"))]
    assert seen == [
        *("build 0", "warm up", "call", "call"),
        *("build 1", "warm up", "call", "call"),
        *("build 2", "warm up", "call", "call"),
    ]


def test_where_each_instance_would_have_a_graph_of_its_own_there_is_one(written: Workload, diary: Diary) -> None:
    rounds = Rounds(written, diary, replicates=2, iterations=1, first=8, one_instance=True)
    play(rounds, rounds.total)
    seen = [entry for entry in diary.entries if entry.startswith(("build", "wait", "warm", "call"))]
    assert seen == ["build 8", *("wait until fast", "warm up", "call") * 2]


def test_two_replicates_are_never_held_at_once(tiny: Tiny, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(tiny(), cpu, replicates=2, iterations=1)
    held: list[Instance | None] = []

    def spy(workload: Workload, device: CpuDevice, **how: Any) -> Instance:
        held.append(rounds._instance)
        return build(workload, device, **how)

    monkeypatch.setattr(latency, "build", spy)
    play(rounds, 2)
    assert held == [None, None]


def test_autograd_is_as_the_pass_wants_it(tiny: Tiny, cpu: CpuDevice) -> None:
    with Rounds(tiny(), cpu, replicates=1, iterations=1).grad_mode():
        assert not torch.is_grad_enabled()
    with torch.no_grad(), Rounds(tiny(pass_="train"), cpu, replicates=1, iterations=1).grad_mode():
        assert torch.is_grad_enabled()


def test_a_replicate_that_cannot_be_built_is_an_error_of_the_workload(tiny: Tiny, cpu: CpuDevice) -> None:
    rounds = Rounds(tiny(build=lambda: nn.Linear(-1, 3)), cpu, replicates=1, iterations=1)
    with pytest.raises(WorkloadError, match="tiny-eager-fp32: building failed"):
        rounds.setup()


# -- the sample -----------------------------------------------------------------------------------------------------


def measured(rounds: Rounds, durations_s: list[float]) -> Sample:
    """The sample of rounds that took so long."""
    with rounds.grad_mode():
        for _ in range(rounds.total):
            rounds.setup()
    return rounds.sample(durations_s)


@pytest.fixture
def rounds(tiny: Tiny, cpu: CpuDevice) -> Rounds:
    cpu.host = WrittenHost([])
    return Rounds(tiny(), cpu, replicates=2, iterations=5)


def test_seconds_become_microseconds(rounds: Rounds) -> None:
    assert measured(rounds, [2e-6] * 10).replicates_us == pytest.approx((2.0, 2.0))


def test_consecutive_rounds_make_one_replicate(rounds: Rounds) -> None:
    sample = measured(rounds, [1e-6] * 5 + [3e-6] * 5)
    assert sample.replicates_us == pytest.approx((1.0, 3.0))
    assert sample.iterations == 5


def test_a_replicate_is_its_lower_decile_so_that_disturbed_rounds_do_not_count(rounds: Rounds) -> None:
    quiet, disturbed = [10e-6, 11e-6, 12e-6, 13e-6, 14e-6], [10e-6, 11e-6, 900e-6, 5000e-6, 70000e-6]
    assert measured(rounds, quiet + disturbed).replicates_us == pytest.approx((10.4, 10.4))


def test_the_controls_are_those_of_the_replicates_own_rounds(rounds: Rounds) -> None:
    assert measured(rounds, [1e-6] * 10).controls_us == pytest.approx((10.4, 15.4))  # of 10 to 14, and 15 to 19


def test_a_round_that_was_made_and_not_timed_counts_for_nothing(rounds: Rounds) -> None:
    """As pytest-benchmark makes one for its --benchmark-cprofile."""
    with rounds.grad_mode():
        for _ in range(rounds.total + 1):
            rounds.setup()
            rounds.call()
    sample = rounds.sample([1e-6] * rounds.total)
    assert sample.replicates_us == pytest.approx((1.0, 1.0))
    assert sample.controls_us == pytest.approx((10.4, 15.4))


# -- a confirmation -------------------------------------------------------------------------------------------------


def test_a_confirmation_goes_on_where_the_first_rounds_ended(written: Workload, diary: Diary) -> None:
    play(Rounds(written, diary, replicates=2, iterations=1, first=8), 2)
    assert [entry for entry in diary.entries if entry.startswith("build")] == ["build 8", "build 9"]


def test_all_rounds_can_be_timed_here(written: Workload, diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "time", Ticks(diary.entries))
    sample = Rounds(written, diary, replicates=2, iterations=3).time()
    assert sample.replicates_us == pytest.approx((1e6, 1e6))  # one tick each: the call and its synchronisation alone
    assert sample.controls_us == pytest.approx((10.2, 13.2))
    assert sample.iterations == 3
    start = diary.entries.index("tick")
    assert diary.entries[start : start + 4] == ["tick", "call", "synchronize", "tick"]


@pytest.mark.parametrize("pass_", ["forward", "train"])
def test_rounds_that_are_timed_here_run_as_their_pass_wants_it_and_without_the_collector(
    tiny: Tiny, cpu: CpuDevice, pass_: str
) -> None:
    seen: set[tuple[bool, bool]] = set()

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.add((torch.is_grad_enabled(), gc.isenabled()))
            return super().forward(x)

    Rounds(tiny(build=lambda: Looks(4, 3), pass_=pass_), cpu, replicates=1, iterations=2).time()
    assert seen == {(pass_ == "train", False)}


# -- what the machine went through ----------------------------------------------------------------------------------

COOL, HOT = Reading(event_reasons=0), Reading(event_reasons=0x40)  # hardware thermal slowdown


@pytest.mark.parametrize(
    ("readings", "reasons"),
    [((COOL, COOL), ()), ((COOL, HOT), ("throttled by hardware thermal slowdown",)), ((Reading(), Reading()), ())],
)
def test_the_machine_is_read_before_the_first_round_and_after_the_last(
    tiny: Tiny, readings: tuple[Reading, Reading], reasons: tuple[str, ...]
) -> None:
    device = CpuDevice()
    device.monitor = ToldMonitor(*readings, COOL)  # type: ignore[assignment]
    rounds = Rounds(tiny(), device, replicates=2, iterations=2)
    play(rounds, 4)
    rounds.sample([1.0] * 4)
    assert rounds.disturbed_by() == reasons


# -- which kernels were timed ---------------------------------------------------------------------------------------

GEMM = KernelIdentity("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_bias_TNT", "gemm", (2, 64, 1), (384, 1, 1))
OTHER_GEMM = KernelIdentity("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT", "gemm", (2, 64, 1), (384, 1, 1))
WIDE, NARROW = (
    KernelIdentity(FUSED, "pointwise", (grid, 1, 1), (128, 1, 1), f"XBLOCK={xblock}", warps, 1)
    for grid, xblock, warps in ((24576, 1024, 4), (49152, 512, 8))
)


@pytest.fixture
def compiled(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """Makes workloads for a compiler that leaves the module as it is."""
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    return lambda **fields: tiny(compile={}, **fields)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[list[KernelIdentity]]:
    """Of each session of the profiler, from here on, the kernels that it sees."""
    told: list[list[KernelIdentity]] = []

    def session(device: CpuDevice, instance: Instance, *, iterations: int, record_shapes: bool) -> SimpleNamespace:
        assert record_shapes  # else it does not see what was tuned
        instance.call()  # autograd is as the pass wants it
        return SimpleNamespace(executions=[[SimpleNamespace(identity=each) for each in told.pop(0)]] * iterations)

    monkeypatch.setattr(latency, "profile_session", session)
    return told


def timed(workload: Workload, device: CpuDevice, *kernels: KernelIdentity) -> Rounds:
    """Rounds of a latency that belongs to a run of these kernels."""
    rounds = Rounds(workload, device, replicates=1, iterations=1, profiled=kernels)
    rounds.durations_s()
    return rounds


@pytest.mark.parametrize("pass_", ["forward", "train"])
def test_the_kernels_that_were_profiled_are_the_ones_that_were_timed(
    compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]], pass_: str
) -> None:
    sessions += [[GEMM, WIDE]]
    timed(compiled(pass_=pass_), cpu, GEMM, WIDE).require_profiled_kernels()
    assert sessions == []


def test_another_choice_of_the_autotuner_is_another_kernel(
    compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]
) -> None:
    """Two processes filled one compile cache at the same time: an MLP of 223 us had the latency of one of 205 us."""
    sessions += [[GEMM, NARROW]]
    with pytest.raises(OtherKernelsError) as raised:
        timed(compiled(), cpu, GEMM, WIDE).require_profiled_kernels()
    assert raised.value.got == f"{FUSED} grid 49152x1x1 block 128x1x1 XBLOCK=512 num_warps=8 num_stages=1"
    assert raised.value.expected == f"{FUSED} grid 24576x1x1 block 128x1x1 XBLOCK=1024 num_warps=4 num_stages=1"
    assert "TORCHINDUCTOR_CACHE_DIR" in str(raised.value)


def test_a_choice_that_no_grid_shows_is_seen_too(
    compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]
) -> None:
    staged = msgspec.structs.replace(WIDE, num_stages=3)
    sessions += [[GEMM, staged]]
    with pytest.raises(OtherKernelsError):
        timed(compiled(), cpu, GEMM, WIDE).require_profiled_kernels()


def test_the_file_that_inductor_generated_may_be_another_one(
    compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]
) -> None:
    sessions += [[msgspec.structs.replace(WIDE, source_hash="other")]]
    timed(compiled(), cpu, msgspec.structs.replace(WIDE, source_hash="clr6kkgz")).require_profiled_kernels()


def test_one_launch_more_of_the_same_kernel_is_seen_too(
    compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]
) -> None:
    sessions += [[GEMM, WIDE, WIDE]]
    with pytest.raises(OtherKernelsError) as raised:
        timed(compiled(), cpu, GEMM, WIDE).require_profiled_kernels()
    assert raised.value.expected == "nothing else"


def test_another_order_is_seen_too(compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]) -> None:
    sessions += [[WIDE, GEMM]]
    with pytest.raises(OtherKernelsError, match="ran other kernels than were profiled"):
        timed(compiled(), cpu, GEMM, WIDE).require_profiled_kernels()


def test_other_kernels_that_no_autotuner_chose_are_an_error_of_the_workload(
    compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]
) -> None:
    sessions += [[OTHER_GEMM, WIDE]]
    with pytest.raises(WorkloadError, match="other kernels when it was timed"):
        timed(compiled(), cpu, GEMM, WIDE).require_profiled_kernels()


def test_what_was_timed_is_seen_by_a_session_of_the_profiler(compiled: Tiny, cpu: CpuDevice) -> None:
    with pytest.raises(OtherKernelsError) as raised:
        timed(compiled(), cpu, WIDE).require_profiled_kernels()
    assert raised.value.got == "addmm"


def test_where_no_compiler_chooses_nothing_is_profiled_again(
    tiny: Tiny, compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]
) -> None:
    timed(tiny(), cpu, GEMM, WIDE).require_profiled_kernels()  # a session would find nothing told
    timed(compiled(), cpu, KernelIdentity("graph_0_cpp_fused_gelu_0", "pointwise")).require_profiled_kernels()


def test_rounds_that_are_timed_here_are_looked_at_too(
    compiled: Tiny, cpu: CpuDevice, sessions: list[list[KernelIdentity]]
) -> None:
    sessions += [[NARROW], [WIDE]]
    rounds = Rounds(compiled(), cpu, replicates=1, iterations=1, profiled=(WIDE,))
    with pytest.raises(OtherKernelsError):
        rounds.time()
    Rounds(compiled(), cpu, replicates=1, iterations=1, profiled=(WIDE,)).time()
