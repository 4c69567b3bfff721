"""The state of a GPU, with an NVML that only exists here."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernelgauge.conditions import (
    HARDWARE_POWER_BRAKE,
    HARDWARE_THERMAL,
    POWER_CAP,
    SOFTWARE_THERMAL,
    SYNC_BOOST,
    Reading,
    disturbances,
)
from kernelgauge.measure import conditions
from kernelgauge.measure.conditions import Monitor

UUID = "8d2c2c9a-0000-1111-2222-333344445555"
OWN = os.getpid()
OTHER, ANOTHER = OWN + 1, OWN + 2
FIELDS = {"SW_POWER_CAP": 74, "SYNC_BOOST": 76, "SW_THERM_SLOWDOWN": 269, "HW_THERM_SLOWDOWN": 270}
FIELDS["HW_POWER_BRAKE_SLOWDOWN"] = 271
QUERIES = {  # and the fields of a reading that hang on it
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"max_sm_clock_mhz"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetFieldValues": {"throttled_ns"},
    "nvmlDeviceGetComputeRunningProcesses": {"other_processes"},
    "nvmlDeviceGetProcessUtilization": {"other_utilization_percent"},
}


class FakeNvml(ModuleType):
    """One GPU. What a test changes on it is what the next query answers. `failing`: calls that raise."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801
        pass

    class NVMLLibraryMismatchError(Exception):  # no NVMLError, in pynvml as here
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.known = f"GPU-{UUID}"
        self.failing: dict[str, type[Exception]] = {}
        self.open = 0
        self.asked: list[str] = []
        self.clocks = {1: 1980, 2: 3201}
        self.reasons = 0
        self.milliwatts = 420_500
        self.temperature = 50
        self.pids = [OWN]
        self.samples: list[tuple[int, int, int]] = []  # pid, microseconds, percent
        self.counters = dict.fromkeys(FIELDS.values(), 0)
        self.unsupported: set[int] = set()
        for name, field in FIELDS.items():
            setattr(self, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}", field)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("nvml"):
            self.asked.append(name)
            if name in self.failing:
                raise self.failing[name](f"{name} failed")
        return value

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.known:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return self.clocks[clock]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return {1: 1985, 2: 3205}[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self.milliwatts

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert sensor == 0
        return self.temperature

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, handle: str, last: int) -> list[Any]:
        new = [SimpleNamespace(pid=pid, timeStamp=at, smUtil=used) for pid, at, used in self.samples if at > last]
        if not new:
            raise self.NVMLError_NotFound("Not Found")
        return new

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:
        return [
            SimpleNamespace(
                nvmlReturn=3 if field in self.unsupported else 0, value=SimpleNamespace(ullVal=self.counters[field])
            )
            for field in fields
        ]


class Clock:
    """`time`, as the monitor sees it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(conditions, "time", fake)
    return fake


@pytest.fixture
def monitor(nvml: FakeNvml) -> Monitor:
    return Monitor.open(UUID)


@pytest.fixture
def after_a_second(nvml: FakeNvml, clock: Clock, monitor: Monitor) -> Callable[..., Reading]:
    """The second reading, a second after the first, in which `samples` were taken and `pids` were there."""

    def read(samples: list[tuple[int, int, int]], *, pids: list[int], seconds: float = 1.0) -> Reading:
        nvml.pids = pids
        monitor.read(processes=True)
        nvml.samples += samples
        clock.now_s += seconds
        return monitor.read(processes=True)

    return read


# -- a reading ------------------------------------------------------------------------------------------------------


def test_a_reading_says_what_the_gpu_does_now(nvml: FakeNvml, monitor: Monitor) -> None:
    assert (monitor.available, monitor.why_not) == (True, "")
    nvml.reasons = 4
    assert monitor.read() == Reading(
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        max_sm_clock_mhz=1985,
        event_reasons=4,
        power_watts=420.5,
        temperature_c=50,
    )


def test_a_cheap_reading_asks_for_nothing_that_is_slow(nvml: FakeNvml, monitor: Monitor) -> None:
    nvml.asked.clear()
    monitor.read()
    slow = {"MaxClockInfo", "FieldValues", "ComputeRunningProcesses", "ProcessUtilization"}
    assert not {f"nvmlDeviceGet{query}" for query in slow} & set(nvml.asked)
    assert "nvmlInit" not in nvml.asked


def test_the_first_query_of_each_kind_is_over_when_the_monitor_is_open(nvml: FakeNvml, monitor: Monitor) -> None:
    opened = set(nvml.asked)
    nvml.asked.clear()
    monitor.read()
    assert set(nvml.asked) <= opened


def test_counters_stand_under_their_causes(nvml: FakeNvml, monitor: Monitor) -> None:
    nvml.counters = {74: 1, 76: 2, 269: 3, 270: 4, 271: 5}
    assert monitor.read(processes=True).throttled_ns == {
        POWER_CAP: 1,
        SYNC_BOOST: 2,
        SOFTWARE_THERMAL: 3,
        HARDWARE_THERMAL: 4,
        HARDWARE_POWER_BRAKE: 5,
    }


def test_nothing_is_ever_set(nvml: FakeNvml) -> None:
    with Monitor.open(UUID) as monitor:
        monitor.read(processes=True)
    assert {name for name in nvml.asked if not name.startswith("nvmlDeviceGet")} == {"nvmlInit", "nvmlShutdown"}


# -- what NVML does not tell ----------------------------------------------------------------------------------------


def unknown(monitor: Monitor, clock: Clock) -> set[str]:
    """The fields that stay open in the second reading: the first knows no utilisation."""
    assert monitor.available
    monitor.read(processes=True)
    clock.now_s += 1
    reading = monitor.read(processes=True)
    return {field for field in Reading.__struct_fields__ if getattr(reading, field) is None}


@pytest.mark.parametrize("error", ["NVMLError", "NVMLLibraryMismatchError", "missing"])
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_that_fails_leaves_open_only_what_it_asked_for(
    nvml: FakeNvml, clock: Clock, query: str, error: str
) -> None:
    nvml.failing[query] = AttributeError if error == "missing" else getattr(nvml, error)
    assert unknown(Monitor.open(UUID), clock) == QUERIES[query]


def test_if_no_query_fails_all_is_known(nvml: FakeNvml, clock: Clock) -> None:
    assert unknown(Monitor.open(UUID), clock) == set()


def test_an_older_driver_knows_the_reasons_by_their_former_name(nvml: FakeNvml, monitor: Monitor) -> None:
    nvml.reasons = 0x40
    nvml.failing["nvmlDeviceGetCurrentClocksEventReasons"] = nvml.NVMLError
    assert monitor.read().event_reasons == 0x40
    nvml.failing["nvmlDeviceGetCurrentClocksThrottleReasons"] = nvml.NVMLError
    assert monitor.read().event_reasons is None


def test_a_counter_that_this_gpu_lacks_is_missing_and_the_others_are_not(nvml: FakeNvml, monitor: Monitor) -> None:
    nvml.counters = {74: 1, 76: 2, 269: 3, 270: 4, 271: 5}
    nvml.unsupported = {76, 269}
    assert monitor.read(processes=True).throttled_ns == {POWER_CAP: 1, HARDWARE_THERMAL: 4, HARDWARE_POWER_BRAKE: 5}
    nvml.unsupported = set(FIELDS.values())
    assert monitor.read(processes=True).throttled_ns is None


def test_a_counter_that_an_older_library_cannot_name_is_missing(nvml: FakeNvml) -> None:
    nvml.counters = {74: 1, 76: 2, 269: 3, 270: 4, 271: 5}
    for name in ("SW_POWER_CAP", "HW_THERM_SLOWDOWN"):
        delattr(nvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}")
    counted = Monitor.open(UUID).read(processes=True).throttled_ns
    assert counted == {SYNC_BOOST: 2, SOFTWARE_THERMAL: 3, HARDWARE_POWER_BRAKE: 5}


def test_a_library_without_any_counter_is_not_asked(nvml: FakeNvml) -> None:
    for name in FIELDS:
        delattr(nvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}")
    assert Monitor.open(UUID).read(processes=True).throttled_ns is None
    assert "nvmlDeviceGetFieldValues" not in nvml.asked


# -- no NVML --------------------------------------------------------------------------------------------------------


def knows_nothing(monitor: Monitor) -> bool:
    return not monitor.available and monitor.read() == Reading() == monitor.read(processes=True)


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what the import system raises ImportError for
    with Monitor.open(UUID) as monitor:
        assert knows_nothing(monitor)
        assert monitor.why_not.startswith("no NVML: import of pynvml")


def test_without_a_driver_nothing_is_known(nvml: FakeNvml) -> None:
    nvml.failing["nvmlInit"] = nvml.NVMLError
    monitor = Monitor.open(UUID)
    assert knows_nothing(monitor)
    assert monitor.why_not == "no NVML: nvmlInit failed"


def test_of_an_unknown_gpu_nothing_is_known_and_nvml_is_closed(nvml: FakeNvml) -> None:
    nvml.known = "GPU-another"
    monitor = Monitor.open(UUID)
    assert knows_nothing(monitor)
    assert monitor.why_not == f"NVML does not know the GPU {UUID}: Not Found"
    assert nvml.open == 0


def test_a_slice_of_a_gpu_is_found_by_its_own_uuid(nvml: FakeNvml) -> None:
    nvml.known = f"MIG-{UUID}"
    assert Monitor.open(UUID).read().sm_clock_mhz == 1980


# -- its life -------------------------------------------------------------------------------------------------------


def test_nvml_stays_open_until_the_monitor_is_closed_and_is_closed_once(nvml: FakeNvml) -> None:
    with Monitor.open(UUID) as monitor:
        monitor.read()
        assert nvml.open == 1
    assert nvml.open == 0
    monitor.close()
    assert nvml.open == 0
    assert knows_nothing(monitor)
    assert monitor.why_not == "closed"


def test_nvml_is_closed_when_the_monitor_is_gone(nvml: FakeNvml) -> None:
    monitor = Monitor.open(UUID)
    del monitor
    gc.collect()
    assert nvml.open == 0


def test_an_nvml_that_cannot_be_closed_is_no_crash(nvml: FakeNvml, monitor: Monitor) -> None:
    nvml.failing["nvmlShutdown"] = nvml.NVMLError
    monitor.close()
    assert not monitor.available


# -- other processes ------------------------------------------------------------------------------------------------


def others(reading: Reading) -> tuple[int | None, tuple[int, ...], int | None]:
    return reading.other_processes, reading.other_pids, reading.other_utilization_percent


def test_our_own_process_is_no_other(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OWN, 5, 97)], pids=[OWN])) == (0, (), 0)


def test_another_busy_process_is_seen_with_its_pid(after_a_second: Callable[..., Reading]) -> None:
    reading = after_a_second([(OWN, 5, 30), (OTHER, 6, 2), (ANOTHER, 6, 63)], pids=[OWN, OTHER, ANOTHER])
    assert others(reading) == (2, (ANOTHER, OTHER), 63)


def test_the_most_that_a_process_used_counts(after_a_second: Callable[..., Reading]) -> None:
    reading = after_a_second([(OTHER, 5, 3), (OTHER, 6, 63), (OTHER, 7, 0)], pids=[OWN, OTHER])
    assert others(reading) == (1, (OTHER,), 63)


def test_a_process_that_the_list_lacks_is_seen_by_what_it_uses(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OTHER, 6, 63)], pids=[OWN])) == (1, (OTHER,), 63)


def test_a_process_without_a_number_has_no_pid(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(0, 6, 63)], pids=[OWN, OTHER])) == (2, (), 63)


def test_the_first_reading_knows_no_utilisation(nvml: FakeNvml, monitor: Monitor) -> None:
    nvml.pids, nvml.samples = [OWN, OTHER], [(OTHER, 5, 63)]
    assert others(monitor.read(processes=True)) == (1, (OTHER,), None)


def test_what_was_sampled_before_the_last_reading_is_over(
    nvml: FakeNvml, after_a_second: Callable[..., Reading]
) -> None:
    nvml.samples = [(OTHER, 5, 63)]
    assert others(after_a_second([], pids=[OWN, OTHER])) == (1, (OTHER,), 0)


def test_no_sample_within_a_second_says_nothing(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([], pids=[OWN, OTHER], seconds=0.06)) == (1, (OTHER,), None)


def test_a_sample_counts_however_short_the_time(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OWN, 5, 80)], pids=[OWN, OTHER], seconds=0.06)) == (1, (OTHER,), 0)


def test_samples_that_nobody_took_are_left_out(nvml: FakeNvml, after_a_second: Callable[..., Reading]) -> None:
    nvml.samples = [(OTHER, 50, 1)]
    # nvtop#110: what the driver returned beside the true samples, whatever it was asked for.
    nvml.nvmlDeviceGetProcessUtilization = lambda handle, last: [  # type: ignore[method-assign]
        SimpleNamespace(pid=pid, timeStamp=at, smUtil=used) for pid, at, used in nvml.samples
    ]
    bogus = [(OTHER, 20, 99), (ANOTHER, 10**18, 4_294_967_295), (OTHER, 60, 7)]
    assert others(after_a_second(bogus, pids=[OWN, OTHER])) == (1, (OTHER,), 7)


def test_after_an_error_utilisation_begins_anew(nvml: FakeNvml, clock: Clock, monitor: Monitor) -> None:
    nvml.samples = [(OTHER, 5, 63)]
    nvml.failing["nvmlDeviceGetProcessUtilization"] = nvml.NVMLError
    monitor.read(processes=True)
    nvml.failing.clear()
    clock.now_s += 1
    assert monitor.read(processes=True).other_utilization_percent is None


# -- in a container: NVML counts processes as the host does ---------------------------------------------------------


def test_the_only_process_is_ours_whatever_its_number(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OTHER, 5, 97)], pids=[OTHER])) == (0, (), 0)


def test_the_only_listed_process_is_ours_and_one_that_is_only_sampled_is_not(
    after_a_second: Callable[..., Reading],
) -> None:
    assert others(after_a_second([(OTHER, 5, 30), (ANOTHER, 5, 60)], pids=[OTHER])) == (1, (ANOTHER,), 60)


def test_of_several_strange_processes_all_but_one_are_others(after_a_second: Callable[..., Reading]) -> None:
    reading = after_a_second([(OTHER, 5, 90), (ANOTHER, 5, 20)], pids=[OTHER, ANOTHER, OWN + 3])
    assert others(reading) == (2, (), 20)


def test_of_several_strange_processes_the_only_busy_one_is_ours(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([(OTHER, 5, 90)], pids=[OTHER, ANOTHER])) == (1, (), 0)


def test_an_empty_list_has_no_others(after_a_second: Callable[..., Reading]) -> None:
    assert others(after_a_second([], pids=[])) == (0, (), 0)


# -- from NVML to a reason ------------------------------------------------------------------------------------------


def reasons(nvml: FakeNvml, monitor: Monitor, clock: Clock, happens: Callable[[], None]) -> tuple[str, ...]:
    """What is said of a second in which something happens."""
    before = monitor.read(processes=True)
    happens()
    during = [monitor.read()]
    clock.now_s += 1
    return disturbances(before, during, monitor.read(processes=True), duration_s=1.0, usual_clock_mhz=1980)


def test_nothing_that_happens_is_no_reason(nvml: FakeNvml, monitor: Monitor, clock: Clock) -> None:
    assert reasons(nvml, monitor, clock, lambda: None) == ()


def test_a_gpu_that_gets_hot_is_noticed(nvml: FakeNvml, monitor: Monitor, clock: Clock) -> None:
    def heat() -> None:
        nvml.temperature, nvml.reasons, nvml.clocks[1] = 92, 0x8 | 0x40, 990
        nvml.counters[270] += 400_000_000

    assert reasons(nvml, monitor, clock, heat) == (
        "throttled by hardware slowdown",
        "throttled for 400 ms of 1000 by hardware thermal slowdown",
        "SM clock 990 MHz where 1980 is usual",
    )


def test_a_gpu_at_its_power_limit_is_noticed(nvml: FakeNvml, monitor: Monitor, clock: Clock) -> None:
    def draw() -> None:
        nvml.reasons = 4
        nvml.counters[74] += 120_000_000

    assert reasons(nvml, monitor, clock, draw) == ("throttled for 120 ms of 1000 by power cap",)


def test_a_neighbour_is_noticed(nvml: FakeNvml, monitor: Monitor, clock: Clock) -> None:
    def move_in() -> None:
        nvml.pids.append(OTHER)
        nvml.samples.append((OTHER, 9, 63))

    assert reasons(nvml, monitor, clock, move_in) == (f"another process (pid {OTHER}) used the GPU: 63 % of its SMs",)
