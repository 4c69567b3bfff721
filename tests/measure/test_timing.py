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
from kernelgauge.measure.settings import Settings
from kernelgauge.measure.timing import call_duration_us, collector_paused, host_dispatch, warm_up


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def perf_counter(self) -> float:
        return self.now_ns / 1e9


class ToldHost(HostSpeed):
    """A host whose controls are told: 10 us where nothing else is said."""

    def __init__(self, *controls_us: float, patience_seconds: float = 0.0) -> None:
        super().__init__(patience_seconds=patience_seconds)
        self.left = list(controls_us)

    def control_us(self) -> float:
        control = self.left.pop(0) if self.left else 10.0
        self.fastest_us = min(self.fastest_us, control)
        return control


class SlowDevice(CpuDevice):
    """Waiting takes a millisecond, and so does flushing: as on an asynchronous device."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.host = ToldHost()
        self.clock = clock
        self.flushes = 0

    def synchronize(self) -> None:
        self.clock.now_ns += 1_000_000

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


# -- how long -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call_us", "iterations"), [(0.0, 40), (100.0, 40), (50_000.0, 20), (1e6, 3), (60e6, 3)], ids=str
)
def test_slow_calls_are_made_less_often_and_never_less_than_three_times(call_us: float, iterations: int) -> None:
    assert Settings(iterations=40, seconds=1.0).iterations_for(call_us) == iterations


def test_the_host_may_be_timed_more_often() -> None:
    settings = Settings(iterations=40, host_iterations=100, seconds=1.0)
    assert settings.host_iterations_for(100.0) == 100
    assert settings.host_iterations_for(50_000.0) == 20
    assert settings.host_iterations_for(60e6) == 3


# -- the host's own speed -------------------------------------------------------------------------------------------


def test_a_replicate_on_a_slow_host_is_taken_again(lasting: Callable[..., Instance], device: SlowDevice) -> None:
    device.host = ToldHost(10.0, 25.0, 10.0, 10.0, patience_seconds=1.0)  # slow after the first, fast around the second
    taken = host_dispatch(device, lasting(80, 80, 80, 50), iterations=3)
    assert (taken.dispatch_us, taken.control_us) == (50, 10.0)


def test_without_patience_a_slow_host_is_told_and_not_hidden(
    lasting: Callable[..., Instance], device: SlowDevice
) -> None:
    device.host = ToldHost(10.0, 25.0, patience_seconds=0.0)
    taken = host_dispatch(device, lasting(80), iterations=3)
    assert (taken.dispatch_us, taken.control_us) == (80, 25.0)


def test_patience_is_spent_once_a_session() -> None:
    host = ToldHost(10.0, *[25.0] * 100, patience_seconds=0.1)
    host.control_us()
    assert host.wait_until_fast() == 25.0
    left = len(host.left)
    assert host.wait_until_fast() == 25.0
    assert len(host.left) == left - 1  # one look, no more waiting


def test_waiting_ends_when_the_host_is_fast_again() -> None:
    host = ToldHost(10.0, 25.0, 25.0, 12.0, 25.0, patience_seconds=5.0)
    host.control_us()
    assert host.wait_until_fast() == 12.0
    assert host.left == [25.0]


def test_the_control_is_a_time_of_real_work() -> None:
    host = HostSpeed()
    control = host.control_us()
    assert 0.1 < control < 100_000
    assert host.fastest_us == control
