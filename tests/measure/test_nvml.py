"""The state of a GPU, with an NVML that only exists here."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from kernelgauge.measure.conditions import (
    HARDWARE_POWER_BRAKE,
    HARDWARE_THERMAL,
    POWER_CAP,
    SOFTWARE_THERMAL,
    SYNC_BOOST,
    Reading,
    disturbances,
)
from kernelgauge.measure.nvml import Monitor
from tests.measure.fake_nvml import FIELDS, OTHER, QUERIES, UUID, Clock, FakeNvml

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
        "SM clock 990 MHz where 1980 is usual, and no power cap explains it",
    )


@pytest.mark.parametrize("noticed", ["bit", "counter"])
def test_a_clock_that_fell_by_the_power_limit_is_no_reason(
    nvml: FakeNvml, monitor: Monitor, clock: Clock, noticed: str
) -> None:
    def draw() -> None:
        nvml.clocks[1] = 1620
        if noticed == "bit":
            nvml.reasons = 4
        else:
            nvml.counters[74] += 120_000_000

    assert reasons(nvml, monitor, clock, draw) == ()


def test_a_neighbour_is_noticed(nvml: FakeNvml, monitor: Monitor, clock: Clock) -> None:
    def move_in() -> None:
        nvml.pids.append(OTHER)
        nvml.samples.append((OTHER, 9, 63))

    assert reasons(nvml, monitor, clock, move_in) == (f"another process (pid {OTHER}) used the GPU: 63 % of its SMs",)
