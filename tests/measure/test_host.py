"""Times on the host: the speed of the host itself, the dispatch of a call, and warming up."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kernelgauge.measure import Settings
from kernelgauge.measure.device import Device, HostSpeed
from kernelgauge.run import Sample, Timer
from tests.measure.conftest import Clock, FakeGpu, measured

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
def test_host_speed_waits_until_it_is_fast(
    clock: Clock, controls_us: tuple[float, ...], patience_seconds: float, looks: tuple[int, ...]
) -> None:
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
