"""Times on the host: its own speed, the dispatch of a call, warming up, and the rounds of latency for pytest-benchmark."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernelgauge.errors import DisturbedError, KernelgaugeError, OtherKernelsError, WorkloadError
from kernelgauge.measure import Settings
from kernelgauge.measure.device import Device, HostSpeed
from kernelgauge.measure.latency import Rounds
from kernelgauge.run import Sample, Timer
from kernelgauge.trace import KernelIdentity
from tests.builders import FUSED
from tests.measure.conftest import Clock, FakeGpu, hot, measured, tiny

ONE = Settings(replicates=1, most_replicates=1, iterations=3, host_iterations=3, warm_up_seconds=0)


class Work:
    """Takes these microseconds, one after the other, and the last one ever after."""

    def __init__(self, clock: Clock, *durations_us: float) -> None:
        self.clock, self.left, self.done = clock, list(durations_us), 0
        clock.tick_us = 0.0

    def __call__(self) -> None:
        self.done += 1
        self.clock.advance(self.left.pop(0) if len(self.left) > 1 else self.left[0])


def tens(*controls_us: float) -> list[float]:
    """Return works that make these controls: each takes ten of them."""
    return [control for control in controls_us for _ in range(10)]


def test_host_speed_times_the_work_on_an_idle_device(clock: Clock) -> None:
    waits = Work(clock, 1000.0, 1000.0, 5.0)
    speed = HostSpeed(Work(clock, 14.0), wait=waits)
    assert (speed.once_us(), waits.done) == (14.0, 1)
    assert (speed.round_trip_us(), waits.done) == (19.0, 3)


def test_host_reference_is_longer_by_what_other_jobs_held_us_up(clock: Clock) -> None:
    """Of two threads one waits for a core for 3 of 4 ms, between references that fit between the other job's turns."""
    seconds = {"main": 0.0, "worker": 5.0}
    speed = HostSpeed(Work(clock, 200.0), waits=lambda: dict(seconds))
    speed.control_us()
    assert speed.control_us() == pytest.approx(200.0)
    clock.advance(3800.0)
    seconds.update(main=0.001, worker=5.003)
    assert speed.round_trip_us() == pytest.approx(800.0)
    assert speed.round_trip_us() == pytest.approx(200.0)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux alone counts the waits for a core")
def test_waits_for_a_core_are_those_of_each_thread() -> None:
    waits = Device().host.waits()
    assert len(waits) >= len(threading.enumerate())
    assert all(0 <= seconds < 1e6 for seconds in waits.values())


@pytest.mark.parametrize(
    ("controls_us", "patience_seconds", "looks"),
    [((25.0, 25.0, 12.0), 5.0, (3, 1)), ((25.0,), 0.1, (3, 1))],
    ids=["until it is fast", "patience is spent once"],
)
def test_host_speed_waits_until_it_is_fast(clock: Clock, controls_us: Any, patience_seconds: float, looks: Any) -> None:
    work = Work(clock, *tens(10.0, *controls_us))
    speed = HostSpeed(work, patience_seconds=patience_seconds)
    speed.control_us()
    for expected in looks:
        before = work.done
        speed.wait_until_fast()
        assert work.done - before == 10 * expected
    assert clock.slept_s == pytest.approx(0.1)


CALLS_BEFORE = 11 + 9  # to prepare; to warm up, and in the session of the profiler


def host_sample(gpu: FakeGpu, dispatch_us: list[float], control_us: list[float]) -> Sample:
    """Measure one replicate, in which the calls, and the controls beside them, take this long."""
    calls = Work(gpu.clock, *[0.0] * CALLS_BEFORE, *dispatch_us)
    gpu.dispatch_us = 0.0
    gpu.host = HostSpeed(Work(gpu.clock, *tens(1.0), *control_us), wait=gpu.synchronize)
    settings = replace(ONE, host_iterations=len(dispatch_us))
    return measured(gpu, gpu.workload(on_call=calls), settings).run.samples[Timer.HOST]


def test_host_dispatch_is_the_lower_decile_of_calls(gpu: FakeGpu) -> None:
    sample = host_sample(gpu, [11, 9000, 13, 12, 10, 14, 800, 16, 15, 17, 18], [5.0] * 8 + [25.0, 25.0, 6.0])
    assert sample.iterations == 11
    assert sample.replicates_us == pytest.approx((11.0,))
    assert sample.controls_us == pytest.approx((5.0,))


def test_host_dispatch_has_a_control_after_each_call(gpu: FakeGpu) -> None:
    is_collecting: list[bool] = []
    measured(gpu, gpu.workload(on_call=lambda: is_collecting.append(gc.isenabled())), ONE)
    one = ["synchronize", "call", "synchronize", "control"]  # no flush; the control waits too
    assert gpu.diary[-13:] == one * 3 + ["synchronize"]
    assert gpu.diary[-33:-13] == ["synchronize", "control"] * 10  # waits until the host is fast
    assert not any(is_collecting[-3:])
    assert all(is_collecting[:-3])


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 3), (0.0025, 3), (0.0045, 5)])
def test_warm_up_lasts_for_calls_and_seconds(gpu: FakeGpu, seconds: float, calls: int) -> None:
    """Each call takes a millisecond, by its flush."""
    gpu.dispatch_us = 0.001
    measured(gpu, gpu.workload(), replace(ONE, warm_up_seconds=seconds))
    replicate = " ".join(gpu.diary).rpartition("build a ")[2]
    assert replicate.partition(" flush hold")[0] == " ".join(["flush call synchronize"] * calls)


# -- rounds of latency ------------------------------------------------------------------------------------------------


def play(rounds: Rounds, count: int) -> None:
    with rounds.torch_set_up():
        for _ in range(count):
            rounds.setup()
            rounds.call()


def test_round_is_prepared_outside_of_what_is_timed(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(4, 3)
    module.register_forward_pre_hook(lambda *_: gpu.diary.append("call"))
    monkeypatch.setattr(module, "zero_grad", lambda **_: gpu.diary.append("prepare"))
    rounds = Rounds(tiny(build=lambda: module, pass_="train"), gpu, replicates=1, iterations=2)
    play(rounds, 1)
    assert gpu.diary[-8:-2] == ["synchronize", "control", "synchronize", "prepare", "flush", "synchronize"]
    assert gpu.diary[-2:] == ["call", "synchronize"]


def test_rounds_build_each_replicate_in_order(gpu: FakeGpu, paddings: list[int]) -> None:
    gpu.held = []
    rounds = Rounds(gpu.workload(), gpu, replicates=3, iterations=2, first=8)
    assert rounds.total == 6
    play(rounds, 6)
    marks = " ".join(each for each in gpu.diary if each.startswith(("forget", "build", "flush", "call", "control")))
    for each in marks.split("forget peak build a ")[1:]:
        assert each.rpartition("flush call control")[0].count("flush call") >= gpu.warm_up_calls
        assert each.count("control") == 10 + 2  # waits until the host is fast, and its own
    assert gpu.held == [0, 0, 0]  # two replicates are never held at once
    assert paddings == [512 * (1 + 2 * 7919 * place) for place in (8, 9, 10)]


@pytest.mark.parametrize("extra", [0, 1], ids=["", "one round that is not timed"])
def test_sample_has_lower_deciles_of_replicates(gpu: FakeGpu, extra: int) -> None:
    controls = iter(range(10, 30))
    gpu.host = HostSpeed(lambda: None)
    gpu.host.round_trip_us = lambda: float(next(controls))
    rounds = Rounds(gpu.workload(), gpu, replicates=2, iterations=5)
    play(rounds, 10 + extra)
    durations_us = [10.0, 11.0, 12.0, 13.0, 14.0, 20.0, 21.0, 900.0, 5000.0, 70000.0]
    sample = rounds.sample([us / 1e6 for us in durations_us])
    assert sample.replicates_us == pytest.approx((10.4, 20.4))
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


MANY, ONCE = f"{SHOWN} grid 8x1x1 block 256x1x1", f"{SHOWN} grid 8x1x1 block 128x1x1"
OTHERS: dict[str, tuple[Any, Any, type[KernelgaugeError], str | None, str | None]] = {
    "another choice": ([fused(256)], [fused()], OtherKernelsError, MANY, ONCE),
    "one launch more": ([gemm(), fused(), fused()], [gemm(), fused()], OtherKernelsError, ONCE, "nothing else"),
    "another order": ([fused(), gemm()], [gemm(), fused()], OtherKernelsError, None, None),
    "nobody tuned it": (
        [gemm("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT"), fused()],
        [gemm(), fused()],
        WorkloadError,
        None,
        None,
    ),
}


@pytest.mark.parametrize(("ran", "profiled", "kind", "got", "expected"), OTHERS.values(), ids=OTHERS)
def test_other_kernels_than_were_profiled_are_an_error(
    gpu: FakeGpu, ran: Any, profiled: Any, kind: type[KernelgaugeError], got: str | None, expected: str | None
) -> None:
    """Two processes filled one compile cache at the same time: an MLP of 223 us had the latency of one of 205 us."""

    def call() -> None:
        for identity in ran:
            gpu.launch(identity.name, 5.0, block=list(identity.block))

    workload = gpu.workload(kernels=(), on_call=call, compile={})
    with pytest.raises(kind, match="other kernels when it was timed") as raised:
        Rounds(workload, gpu, replicates=1, iterations=1, profiled=profiled).time()
    assert got is None or (raised.value.got, raised.value.expected) == (got, expected)
    is_chosen = kind is OtherKernelsError
    assert ("TORCHINDUCTOR_CACHE_DIR" in (raised.value.next_command or "")) is is_chosen
    Rounds(workload, gpu, replicates=1, iterations=1, profiled=ran).time()
