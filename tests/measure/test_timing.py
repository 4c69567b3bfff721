"""Times on the host, with a clock that a test turns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from kernelgauge import Workload
from kernelgauge.measure import timing
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.host import HostSpeed
from kernelgauge.measure.instance import Instance, build
from kernelgauge.measure.timing import call_duration_us, collector_paused, host_calls, host_dispatch, warm_up


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.entries: list[str] = []  # what took its time, in order

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def perf_counter(self) -> float:
        return self.now_ns / 1e9


class ToldHost(HostSpeed):
    """A host whose controls last these microseconds, one after the other, and the last one ever after."""

    def __init__(self, clock: Clock, *controls_us: float) -> None:
        super().__init__(lambda: None, patience_seconds=0.0)
        self.clock = clock
        self.left = list(controls_us)
        self.waits = 0

    def once_us(self) -> float:
        control = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        self.clock.now_ns += int(1000 * control)
        self.clock.entries.append("control")
        return control

    def wait_until_fast(self) -> float:
        self.waits += 1
        return self.left[0]


class SlowDevice(CpuDevice):
    """Waiting takes a millisecond, and so does flushing: as on an asynchronous device."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.host = ToldHost(clock, 10.0)
        self.clock = clock
        self.flushes = 0

    def synchronize(self) -> None:
        self.clock.now_ns += 1_000_000
        self.clock.entries.append("synchronize")

    def flush_cache(self) -> None:
        self.flushes += 1
        self.clock.now_ns += 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(timing, "time", fake)
    return fake


@pytest.fixture
def device(clock: Clock) -> SlowDevice:
    return SlowDevice(clock)


@pytest.fixture
def lasting(tiny: Callable[..., Workload], clock: Clock, device: SlowDevice) -> Callable[..., Instance]:
    """Makes an instance whose calls last these many microseconds, one after the other, and the last one ever after."""

    def make(*durations_us: int) -> Instance:
        left = list(durations_us)

        def function(x: torch.Tensor) -> torch.Tensor:
            clock.now_ns += 1000 * (left.pop(0) if len(left) > 1 else left[0])
            clock.entries.append("call")
            return x

        return build(tiny(build=lambda: function), device)

    return make


@pytest.fixture
def collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


# -- the garbage collector ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_paused_and_left_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


@pytest.mark.usefixtures("collector")
def test_the_collector_is_restored_after_an_error() -> None:
    gc.enable()
    with pytest.raises(RuntimeError), collector_paused():
        raise RuntimeError
    assert gc.isenabled()


def test_the_collector_is_paused_while_the_host_is_timed(
    tiny: Callable[..., Workload], device: SlowDevice, clock: Clock
) -> None:
    seen: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        clock.now_ns += 1000
        return x

    host_dispatch(device, build(tiny(build=lambda: function), device), iterations=3)
    assert seen == [False] * 3


# -- the host's time ------------------------------------------------------------------------------------------------


def test_host_dispatch_is_the_call_without_waiting_for_the_device(
    lasting: Callable[..., Instance], device: SlowDevice
) -> None:
    assert host_dispatch(device, lasting(50), iterations=10).dispatch_us == pytest.approx(50)
    assert device.flushes == 0


def test_host_dispatch_is_the_lower_decile_of_its_iterations(
    lasting: Callable[..., Instance], device: SlowDevice
) -> None:
    durations = [11, 9000, 13, 12, 10, 14, 800, 16, 15, 17, 18]
    assert host_dispatch(device, lasting(*durations), iterations=11).dispatch_us == pytest.approx(11)


def test_one_call_is_timed_until_the_device_is_done(lasting: Callable[..., Instance], device: SlowDevice) -> None:
    assert call_duration_us(device, lasting(50)) == pytest.approx(50 + 1000)


# -- warming up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("calls", "seconds", "made"), [(3, 0, 3), (1, 0.01, 4), (7, 0.01, 7), (0, 0, 0)])
def test_warming_up_lasts_for_the_calls_and_for_the_time_that_were_asked(
    lasting: Callable[..., Instance], device: SlowDevice, calls: int, seconds: float, made: int
) -> None:
    warm_up(device, lasting(500), calls=calls, seconds=seconds)  # 2.5 ms each, with the flush and the wait
    assert device.flushes == made


# -- the control beside it ------------------------------------------------------------------------------------------


def test_the_control_comes_after_each_call_so_that_both_see_the_same_host(
    lasting: Callable[..., Instance], device: SlowDevice, clock: Clock
) -> None:
    instance = lasting(50)
    clock.entries.clear()
    host_dispatch(device, instance, iterations=3)
    assert clock.entries == ["synchronize", "call", "control"] * 3 + ["synchronize"]


def test_every_call_and_every_control_is_kept(
    lasting: Callable[..., Instance], device: SlowDevice, clock: Clock
) -> None:
    device.host = ToldHost(clock, 10.0, 25.0, 11.0)
    assert host_calls(device, lasting(50, 80, 51), 3) == ([50.0, 80.0, 51.0], [10.0, 25.0, 11.0])


def test_a_host_that_is_slow_for_a_moment_shows_in_neither(
    lasting: Callable[..., Instance], device: SlowDevice, clock: Clock
) -> None:
    device.host = ToldHost(clock, *[10.0] * 8, 25.0, 25.0, 10.0)
    taken = host_dispatch(device, lasting(*[50] * 8, 120, 120, 50), iterations=11)
    assert (taken.dispatch_us, taken.control_us) == (pytest.approx(50.0), pytest.approx(10.0))


def test_a_host_that_is_slow_throughout_shows_in_both(
    lasting: Callable[..., Instance], device: SlowDevice, clock: Clock
) -> None:
    device.host = ToldHost(clock, 25.0)
    taken = host_dispatch(device, lasting(120), iterations=5)
    assert (taken.dispatch_us, taken.control_us) == (pytest.approx(120.0), pytest.approx(25.0))


def test_a_slow_host_is_waited_for_once_before_the_calls(lasting: Callable[..., Instance], device: SlowDevice) -> None:
    host_dispatch(device, lasting(50), iterations=5)
    assert device.host.waits == 1
