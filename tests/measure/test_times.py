"""Times of the host, sessions of the profiler, and rounds of latency.

A session is believed only if its records pair, its iterations are alike, and it was held.
"""

import gc
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from kernelgauge.errors import (
    MeasurementError,
    StorageError,
    TimesError,
    WorkloadError,
)
from kernelgauge.measure import Settings, runner
from kernelgauge.measure.device import Device, HostSpeed
from kernelgauge.measure.instance import build
from kernelgauge.measure.profile import exported, profile_session
from kernelgauge.run import Timer
from kernelgauge.trace import REGION, KernelIdentity, parse
from tests.builders import FUSED, Event
from tests.measure.conftest import QUICK, Clock, FakeGpu, hot, latency, measured, tiny

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


def test_host_reference_is_longer_by_what_other_jobs_held_us_up(clock: Clock) -> None:
    """Of two threads one waits for a core for 3 of 4 ms, between references that fit between the
    other job's turns.
    """
    seconds = {"main": 0.0, "worker": 5.0}
    speed = HostSpeed(Work(clock, 200.0), waits=lambda: dict(seconds))
    speed.control_us()
    assert speed.control_us() == pytest.approx(200.0)
    clock.advance(3800.0)
    seconds.update(main=0.001, worker=5.003)
    assert speed.round_trip_us() == pytest.approx(800.0)
    assert speed.round_trip_us() == pytest.approx(200.0)


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="Linux alone counts the waits for a core"
)
def test_waits_for_a_core_are_those_of_each_thread() -> None:
    waits = Device().host.waits()
    assert len(waits) >= len(threading.enumerate())
    assert all(0 <= seconds < 1e6 for seconds in waits.values())


@pytest.mark.parametrize(("controls_us", "patience_s"), [((25.0, 25.0, 12.0), 5.0), ((25.0,), 0.1)])
def test_host_speed_waits_until_it_is_fast_or_tired(
    clock: Clock, controls_us: Any, patience_s: float
) -> None:
    work = Work(clock, *tens(10.0, *controls_us))
    speed = HostSpeed(work, patience_seconds=patience_s)
    speed.control_us()
    for expected in (10 + 3 * 10, 10 + 4 * 10):
        speed.wait_until_fast()
        assert work.done == expected
    assert clock.slept_s == pytest.approx(0.1)


def test_host_dispatch_is_the_lower_decile_of_calls(gpu: FakeGpu) -> None:
    before = 11 + 7  # to prepare; to warm up, and in the session of the profiler
    calls = Work(gpu.clock, *[0.0] * before, 11, 9000, 13, 12, 10, 14, 800, 16, 15, 17, 18)
    gpu.dispatch_us = 0.0
    gpu.host = HostSpeed(
        Work(gpu.clock, *tens(1.0), *[5.0] * 8, 25.0, 25.0, 6.0), wait=gpu.synchronize
    )
    sample = measured(
        gpu, gpu.workload(on_call=calls), replace(ONE, host_iterations=11)
    ).run.samples[Timer.HOST]
    found = sample.iterations, *sample.replicates_us, *sample.controls_us
    assert found == pytest.approx((11, 11.0, 5.0))


def test_host_dispatch_has_a_control_after_each_call(gpu: FakeGpu) -> None:
    is_collecting: list[bool] = []
    measured(gpu, gpu.workload(on_call=lambda: is_collecting.append(gc.isenabled())), ONE)
    one = ["synchronize", "call", "synchronize", "control"]  # no flush; the control waits too
    assert gpu.diary[-13:] == one * 3 + ["synchronize"]
    assert gpu.diary[-33:-13] == ["synchronize", "control"] * 10  # waits until the host is fast
    assert not any(is_collecting[-3:])
    assert all(is_collecting[:-3])


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 1), (0.0025, 3), (0.0045, 5)])
def test_warm_up_lasts_for_a_call_and_seconds(gpu: FakeGpu, seconds: float, calls: int) -> None:
    """Each call takes a millisecond, by its flush."""
    gpu.dispatch_us = 0.001
    measured(gpu, gpu.workload(), replace(ONE, warm_up_seconds=seconds))
    replicate = " ".join(gpu.diary).rpartition("build a ")[2]
    assert replicate.partition(" flush hold")[0] == " ".join(["flush call synchronize"] * calls)


# -- sessions of the profiler ----------------------------------------------------------------------


def first(events: list[Event], category: str) -> Event:
    return next(each for each in events if each["cat"] == category)


def last(events: list[Event], name: str) -> Event:
    return next(each for each in reversed(events) if each["name"] == name)


Damage = Callable[[list[Event]], object]
DAMAGES: dict[str, Damage] = {  # by what is said of it
    "lost: cudaLaunchKernel": lambda events: events.remove(first(events, "kernel")),
    "lost: 2 of 3 iterations are in the trace": lambda events: events.remove(last(events, REGION)),
    "the iterations differ: 2 launch sequences, of [2] launches": lambda events: last(events, "gelu")["args"].update(grid=[7, 1, 1]),
    "the iterations differ in launch calls: ": lambda events: first(events, "cuda_runtime").update(name="cuLaunchKernelEx"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "damage"), DAMAGES.items(), ids=DAMAGES)
def test_session_is_repeated_until_it_is_sound(gpu: FakeGpu, words: str, damage: Damage) -> None:
    gpu.damages = [damage] * 2
    assert measured(gpu, gpu.workload(kernels=("gemm", "gelu"))).run.counts.launches == 2
    assert gpu.sessions == 3 + QUICK.replicates
    for sound in (0, 1):  # the session of the structure, and that of the times
        gpu.sessions, gpu.damages = 0, [lambda _: None] * sound + [damage] * 3
        what = (
            "its calls differ in their work"
            if "differ" in words
            else "the profiler's records cannot be trusted"
        )
        with pytest.raises(MeasurementError, match=f"a-eager-fp32: {what}") as raised:
            measured(gpu, gpu.workload(kernels=("gemm", "gelu")))
        assert words in (raised.value.got or "")
        assert "in each of 3 sessions" in (raised.value.got or "")
        assert gpu.sessions == sound + 3


def holds(gpu: FakeGpu, replicates: int, **launch: Any) -> list[float]:
    """Measure two launches; return how long the device was held in each session."""
    settings = Settings(
        replicates=replicates, most_replicates=replicates, iterations=10, warm_up_seconds=0
    )
    measured(gpu, gpu.workload(kernels=("gemm", "gelu"), launch=launch), settings)
    held = [float(each.removeprefix("hold ")) for each in gpu.diary if each.startswith("hold")]
    return held[:: len(held) // (gpu.sessions - 1)]


# dispatch and hold of one session after the other
HOLDS: dict[str, tuple[list[float], int, list[float]]] = {
    "least": ([5.0], 1, [50.0]),
    "dispatch and a half": ([50.0], 1, [150.0]),
    "most": ([1e4], 1, [20_000.0]),
    "doubled": ([50.0, 500.0], 1, [150.0, 300.0, 600.0]),
    "gives up": ([5000.0, 30_000.0], 1, [15_000.0, 20_000.0]),
    "one that grew stays": ([50.0, 200.0, 200.0, 5.0], 3, [150.0, 300.0, 300.0, 300.0]),
    "shortened once": ([1000.0, 100.0, 20.0], 3, [3000.0, 300.0, 300.0]),
}


@pytest.mark.parametrize(("dispatch_us", "replicates", "expected"), HOLDS.values(), ids=HOLDS)
def test_hold_lasts_until_calls_are_dispatched(
    gpu: FakeGpu, dispatch_us: Any, replicates: int, expected: Any
) -> None:
    gpu.dispatch_us, *later = dispatch_us
    gpu.damages = [lambda _, us=us: setattr(gpu, "dispatch_us", us) for us in later]
    assert holds(gpu, replicates) == expected


def test_hold_stays_if_calls_wait_or_one_is_slow(gpu: FakeGpu) -> None:
    gpu.dispatch_us, gpu.damages = 50.0, [lambda _: setattr(gpu, "dispatch_us", 200.0)]
    assert holds(gpu, 2, synchronizes=True) == [150.0, 150.0]
    gpu.dispatch_us, gpu.sessions = 1000.0, 0
    gpu.diary.clear()
    gpu.damages = [
        lambda _: setattr(gpu, "dispatch_us", 100.0),
        lambda events: last(events, REGION).update(dur=1500.0),
    ]
    assert holds(gpu, 2) == [3000.0, 300.0]


def diary_of(gpu: FakeGpu, **how: Any) -> list[str]:
    instance = build(gpu.workload(), gpu)
    gpu.diary.clear()
    profile_session(gpu, instance, **how)
    return gpu.diary


@pytest.mark.parametrize(("iterations", "warmup", "looks"), [(14, 2, [8, 16]), (3, 1, [5])])
def test_session_looks_while_the_device_works(
    gpu: FakeGpu, iterations: int, warmup: int, looks: list[int]
) -> None:
    seen: list[tuple[int, str]] = []
    gpu.monitor = SimpleNamespace(
        read=lambda: seen.append((gpu.diary.count("call"), gpu.diary[-1]))
    )
    calls = 1 + warmup + iterations
    diary = diary_of(gpu, iterations=iterations, warmup=warmup, hold_us=70.0)
    assert diary == ["flush", "hold 70", "call", "synchronize"] * calls
    assert seen == [(calls, "call") for calls in looks]
    diary_of(gpu, iterations=iterations, warmup=warmup)
    assert len(seen) == len(looks)  # where nothing is timed, nobody looks


@pytest.mark.parametrize("is_structure", [True, False])
def test_session_has_a_window_for_each_iteration(cpu: Device, is_structure: bool) -> None:
    with warnings.catch_warnings():
        # the profiler's own warning about its cycles is kept from the user
        warnings.simplefilter("error")
        session = profile_session(cpu, build(tiny(), cpu), iterations=3, is_structure=is_structure)
    assert [[each.identity.name for each in row] for row in session.executions] == [
        ["aten::addmm"]
    ] * 3
    assert [each.name for each in session.windows] == [REGION] * 3
    assert session.was_held  # a CPU has nothing to hold
    assert parse(session.trace_json) == session.trace
    (addmm,) = (each for each in session.windows[0].ops if each.name == "aten::addmm")
    assert addmm.input_shapes[:3] == (((3,), (5, 4), (4, 3)) if is_structure else ())


def test_exported_trace_that_is_not_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(StorageError, match=f"df -h {tmp_path}"):
        exported(Mock())


# -- rounds of latency -----------------------------------------------------------------------------


def test_round_is_prepared_outside_of_what_is_timed(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Linear(4, 3)

    def call(*_: object) -> None:
        gpu.diary.append("call")
        gpu.clock.advance(5)

    module.register_forward_pre_hook(call)
    monkeypatch.setattr(module, "zero_grad", lambda **_: gpu.diary.append("prepare"))
    latency(tiny(build=lambda: module, pass_="train"), gpu, iterations=1)
    prepared = ["synchronize", "control", "synchronize", "prepare", "flush", "synchronize"]
    assert gpu.diary[-8:] == [*prepared, "call", "synchronize"]


def test_rounds_build_each_replicate_in_order(gpu: FakeGpu, paddings: list[int]) -> None:
    gpu.held = []
    assert len(latency(gpu.workload(), gpu, replicates=3).replicates_us) == 3
    marks = " ".join(
        each
        for each in gpu.diary
        if each.startswith(("forget", "build", "flush", "call", "control"))
    )
    for each in marks.split("forget peak build a ")[1:]:
        assert each.rpartition("flush call control")[0].count("flush call") >= gpu.warm_up_calls
        assert each.count("control") == 10 + 2  # waits until the host is fast, and its own
    assert gpu.held == [0, 0, 0]  # two replicates are never held at once
    assert paddings == [512 * (1 + 2 * 7919 * place) for place in range(3)]


def test_sample_has_lower_deciles_of_replicates(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.host = SimpleNamespace(
        wait_until_fast=lambda: None, round_trip_us=iter(map(float, range(10, 30))).__next__
    )
    ends_us = chain.from_iterable((0, us) for us in (10, 11, 12, 13, 14, 20, 21, 22, 23, 70000))
    monkeypatch.setattr(runner, "warm_up", lambda *_, **__: None)
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(ends_us) / 1e6)
    sample = latency(gpu.workload(), gpu, replicates=2, iterations=5)
    assert sample.replicates_us == pytest.approx((11.2, 21.2))  # of three in a row
    assert sample.controls_us == pytest.approx((11.2, 16.2))  # of 10 to 14, and 15 to 19
    assert sample.iterations == 5


@pytest.mark.parametrize("pass_", ["forward", "train"])
def test_time_sets_autograd_and_pauses_the_collector(cpu: Device, pass_: Any) -> None:
    seen: set[tuple[bool, bool]] = set()
    module = nn.Linear(4, 3)
    module.register_forward_pre_hook(lambda *_: seen.add((torch.is_grad_enabled(), gc.isenabled())))
    with torch.set_grad_enabled(pass_ == "forward"):
        latency(tiny(build=lambda: module, pass_=pass_), cpu)
    assert seen == {(pass_ == "train", False)}
    assert gc.isenabled()


def test_time_of_disturbed_rounds_is_an_error(gpu: FakeGpu, paddings: list[int]) -> None:
    with pytest.raises(TimesError, match="throttled by hardware thermal slowdown"):
        latency(gpu.workload(reading=hot(1)), gpu, replicates=2)
    # other addresses when timed again
    assert paddings == [512 * (1 + 2 * 7919 * place) for place in range(4)]


def gemm(name: str = "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_bias_TNT") -> KernelIdentity:
    return KernelIdentity(name, "gemm", (8, 1, 1), (128, 1, 1))


def fused(threads: int = 128) -> KernelIdentity:
    return KernelIdentity(FUSED, "pointwise", (8, 1, 1), (threads, 1, 1))


OTHERS: dict[str, tuple[Any, Any]] = {
    "another choice": ([fused(256)], [fused()]),
    "one launch more": ([gemm(), fused(), fused()], [gemm(), fused()]),
    "another order": ([fused(), gemm()], [gemm(), fused()]),
    "nobody tuned it": (
        [gemm("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT"), fused()],
        [gemm(), fused()],
    ),
}


@pytest.mark.parametrize(("ran", "profiled"), OTHERS.values(), ids=OTHERS)
def test_other_kernels_than_were_profiled_are_an_error(
    gpu: FakeGpu, ran: Any, profiled: Any
) -> None:
    """An MLP of 223 us had the latency of one of 205 us, by a choice that another process left."""

    def call() -> None:
        for identity in ran:
            gpu.launch(identity.name, 5.0, block=list(identity.block))

    workload = gpu.workload(kernels=(), on_call=call, compile={})
    with pytest.raises(WorkloadError, match="other kernels when it was timed"):
        latency(workload, gpu, iterations=1, ran=profiled)
    latency(workload, gpu, iterations=1, ran=ran)
