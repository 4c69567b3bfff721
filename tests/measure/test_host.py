"""How fast the host is: a fixed piece of work, timed with a clock that a test turns."""

from __future__ import annotations

import pytest

from kernelgauge.measure import host
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.host import HostSpeed


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.slept_s = 0.0

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


class Work:
    """Lasts for these microseconds, one after the other, and for the last one ever after."""

    def __init__(self, clock: Clock, *durations_us: float) -> None:
        self.clock, self.left, self.done = clock, list(durations_us), 0

    def __call__(self) -> None:
        self.done += 1
        self.clock.now_ns += int(1000 * (self.left.pop(0) if len(self.left) > 1 else self.left[0]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(host, "time", fake)
    return fake


def tens(*controls_us: float) -> list[float]:
    """Works that make these controls: each takes ten of them."""
    return [control for control in controls_us for _ in range(10)]


def test_one_control_is_the_work_alone_on_an_idle_device(clock: Clock) -> None:
    waits = Work(clock, 1000.0)
    speed = HostSpeed(Work(clock, 14.0), wait=waits)
    assert speed.once_us() == 14.0
    assert waits.done == 1  # before


def test_a_round_trip_is_the_work_and_the_wait_for_its_end(clock: Clock) -> None:
    waits = Work(clock, 1000.0, 5.0)
    speed = HostSpeed(Work(clock, 14.0), wait=waits)
    assert speed.round_trip_us() == 19.0
    assert waits.done == 2


def test_the_control_is_the_lower_decile_of_ten(clock: Clock) -> None:
    work = Work(clock, 900.0, 800.0, 10.0, 20.0, 700.0, 600.0, 500.0, 400.0, 300.0, 200.0)
    assert HostSpeed(work).control_us() == pytest.approx(19.0)
    assert work.done == 10


def test_slow_is_held_against_the_fastest_that_was_seen(clock: Clock) -> None:
    speed = HostSpeed(Work(clock, *tens(20.0, 10.0, 15.0)))
    assert not speed.is_slow(speed.control_us())  # nothing faster is known yet
    speed.control_us()
    assert speed.fastest_us == 10.0
    assert not speed.is_slow(12.9)
    assert speed.is_slow(13.1)


def test_waiting_ends_when_the_host_is_fast_again(clock: Clock) -> None:
    work = Work(clock, *tens(10.0, 25.0, 25.0, 12.0, 25.0))
    speed = HostSpeed(work, patience_seconds=5.0)
    speed.control_us()
    assert speed.wait_until_fast() == 12.0
    assert clock.slept_s == pytest.approx(0.1)
    assert len(work.left) == 10


def test_patience_is_spent_once_a_session(clock: Clock) -> None:
    work = Work(clock, *tens(10.0, 25.0))
    speed = HostSpeed(work, patience_seconds=0.1)
    speed.control_us()
    assert speed.wait_until_fast() == 25.0
    assert clock.slept_s == pytest.approx(0.1)
    before = work.done
    assert speed.wait_until_fast() == 25.0
    assert work.done == before + 10  # one look, no more waiting
    assert clock.slept_s == pytest.approx(0.1)


def test_the_control_of_a_cpu_is_a_time_of_real_work() -> None:
    speed = CpuDevice().host
    for control in (speed.control_us(), speed.once_us(), speed.round_trip_us()):
        assert 0.1 < control < 100_000
