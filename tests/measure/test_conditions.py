"""Readings of a GPU: which of them spoil a measurement, and what they say together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernelgauge.measure.conditions import Reading, conditions_of, conditions_of_all, disturbances, highest_clock_mhz
from kernelgauge.run import Conditions
from tests.measure.conftest import COUNTERS

IDLE, SETTING, CAP, SLOWDOWN, BOOST, SOFT_HEAT, HEAT, BRAKE = (1 << bit for bit in range(8))
NEVER_USUAL = {
    SLOWDOWN: "hardware slowdown",
    SOFT_HEAT: "software thermal slowdown",
    HEAT: "hardware thermal slowdown",
    BRAKE: "hardware power brake",
}
SLOW = "SM clock 1500 MHz where 1980 is usual, and no power cap explains it"
BUSY = "another process (pid 4711) used the GPU: 63 % of its SMs"
NEW = "another process{} has come to the GPU, and what it uses of it is not known"


def counted(**rose_ms: float) -> dict[str, int]:
    """Return counters of throttling that rose by this since `well`: `power_cap=12`."""
    return {cause: 7_000_000_000 + int(1e6 * rose_ms.get(cause.replace(" ", "_"), 0)) for cause in COUNTERS}


def well(**changed: Any) -> Reading:
    """Return the reading of a busy H200 on which all is well."""
    fields: dict[str, Any] = {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "max_sm_clock_mhz": 1980,
        "event_reasons": 0,
        "power_watts": 420.0,
        "temperature_c": 50,
        "other_processes": 0,
        "other_utilization_percent": 0,
        "throttled_ns": counted(),
    }
    return Reading(**(fields | changed))


def reasons(
    before: Reading | None = None,
    *during: Reading,
    after: Reading | None = None,
    ms: float = 60,
    usual: float | None = 1980,
) -> tuple[str, ...]:
    window = during or (well(),)
    return disturbances(before or well(), window, after or well(), duration_s=ms / 1000, usual_clock_mhz=usual)


@pytest.mark.parametrize("bits", [0, IDLE, SETTING, IDLE | SETTING, CAP, BOOST, 0x100, 0x200, 0x400, 0x8000])
def test_disturbances_of_settings_and_power_cap_are_none(bits: int) -> None:
    reading = well(event_reasons=bits)
    assert reasons(reading, reading, after=reading) == ()


def test_disturbances_of_unknown_state_are_none() -> None:
    assert reasons(Reading(), Reading(), after=Reading(), usual=None) == ()


@pytest.mark.parametrize("cause", ["power_cap", "sync_boost"])
@pytest.mark.parametrize("rose_ms", [0.1, 60])
def test_disturbances_of_counted_power_cap_are_none(cause: str, rose_ms: float) -> None:
    assert reasons(after=well(throttled_ns=counted(**{cause: rose_ms}))) == ()


@pytest.mark.parametrize("bit", NEVER_USUAL)
@pytest.mark.parametrize("place", range(3), ids=["before", "during", "after"])
def test_disturbances_name_heat_whenever_it_is_seen(bit: int, place: int) -> None:
    window = [well(), well(), well()]
    window[place] = well(event_reasons=bit | SETTING)
    assert reasons(*window[:2], after=window[2]) == (f"throttled by {NEVER_USUAL[bit]}",)


@pytest.mark.parametrize("cause", [cause for bit, cause in NEVER_USUAL.items() if bit != SLOWDOWN])
@pytest.mark.parametrize(("rose_ms", "took"), [(0.5, "0.5 ms of 60"), (12, "12 ms of 60"), (100, "60 ms of 60")])
def test_disturbances_name_heat_that_was_counted(cause: str, rose_ms: float, took: str) -> None:
    after = well(throttled_ns=counted(**{cause.replace(" ", "_"): rose_ms}))
    assert reasons(after=after) == (f"throttled for {took} by {cause}",)


def test_disturbances_need_no_reading_in_between() -> None:
    after = well(throttled_ns=counted(hardware_thermal_slowdown=12))
    (reason,) = disturbances(well(), (), after, duration_s=0.06, usual_clock_mhz=1980)
    assert reason == "throttled for 12 ms of 60 by hardware thermal slowdown"


def test_disturbances_name_a_cause_once() -> None:
    after = well(event_reasons=HEAT, throttled_ns=counted(hardware_thermal_slowdown=30))
    assert reasons(after=after) == ("throttled for 30 ms of 60 by hardware thermal slowdown",)


@pytest.mark.parametrize("seen", [0, HEAT])
def test_disturbances_ignore_restarted_counters(seen: int) -> None:
    after = well(throttled_ns=dict.fromkeys(COUNTERS, 5))
    found = reasons(well(), well(event_reasons=seen), after=after)
    assert found == (("throttled by hardware thermal slowdown",) if seen else ())


@pytest.mark.parametrize(
    ("clock", "usual", "is_slow"),
    [(1980, 1980, False), (1921, 1980, False), (1920, 1980, True), (1940, 2000, False), (345, None, False)],
)
def test_disturbances_tolerate_three_percent_of_the_clock(clock: int, usual: float | None, is_slow: bool) -> None:
    assert bool(reasons(well(), well(), well(sm_clock_mhz=clock), usual=usual)) is is_slow


def test_disturbances_name_the_slowest_clock() -> None:
    assert reasons(well(), *(well(sm_clock_mhz=clock) for clock in (1800, 1500, 1700))) == (SLOW,)


def test_disturbances_ignore_the_clock_outside_and_when_idle() -> None:
    slow = well(sm_clock_mhz=345)
    assert reasons(slow, well(sm_clock_mhz=345, event_reasons=IDLE), after=slow) == ()


@pytest.mark.parametrize(
    ("before", "during", "after"),
    [({"event_reasons": CAP}, {}, {}), ({}, {"event_reasons": CAP}, {}), ({}, {}, {"event_reasons": CAP})]
    + [({}, {}, {"throttled_ns": counted(power_cap=0.1)})],
    ids=["before", "during", "after", "counted"],
)
def test_disturbances_accept_clock_lowered_by_power_cap(before: Any, during: Any, after: Any) -> None:
    assert reasons(well(**before), well(**{"sm_clock_mhz": 1500} | during), after=well(**after)) == ()


def test_disturbances_by_sync_boost_leave_a_low_clock() -> None:
    assert reasons(well(), well(sm_clock_mhz=1500, event_reasons=BOOST)) == (SLOW,)


def test_disturbances_by_power_cap_leave_heat() -> None:
    hot = well(event_reasons=CAP | HEAT)
    assert reasons(hot, hot, after=hot) == ("throttled by hardware thermal slowdown",)


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "busy": ({}, {}, {"other_pids": (4711,), "other_utilization_percent": 63}, (BUSY,)),
    "one percent, no pid": (
        {},
        {"other_utilization_percent": 1},
        {},
        (BUSY.replace(" (pid 4711)", "").replace("63", "1"),),
    ),
    "the busiest": (
        {},
        {"other_pids": (1,), "other_utilization_percent": 5},
        {"other_pids": (4711,), "other_utilization_percent": 63},
        (BUSY,),
    ),
    "busy before": ({"other_pids": (4711,), "other_utilization_percent": 63}, {}, {}, ()),
    "holds memory": ({}, {}, {"other_processes": 1, "other_pids": (4711,)}, ()),
    "came": (
        {"other_processes": 1, "other_pids": (8,)},
        {},
        {"other_processes": 2, "other_pids": (8, 4711), "other_utilization_percent": None},
        (NEW.format(" (pid 4711)"),),
    ),
    "came without pid": ({}, {}, {"other_processes": 1, "other_utilization_percent": None}, (NEW.format(""),)),
    "came and busy": (
        {},
        {"other_processes": 1, "other_pids": (4711,), "other_utilization_percent": None},
        {"other_processes": 1, "other_pids": (4711,), "other_utilization_percent": 63},
        (BUSY,),
    ),
    "there all along": (
        {"other_processes": 3, "other_utilization_percent": None},
        {"other_processes": 3, "other_utilization_percent": None},
        {"other_processes": 3, "other_utilization_percent": None},
        (),
    ),
    "left": ({"other_processes": 1}, {}, {"other_processes": 0, "other_utilization_percent": None}, ()),
    "no list before": ({"other_processes": None}, {}, {"other_processes": 1, "other_utilization_percent": None}, ()),
}


@pytest.mark.parametrize(("before", "during", "after", "expected"), OTHERS.values(), ids=OTHERS)
def test_disturbances_by_other_processes(before: Any, during: Any, after: Any, expected: tuple[str, ...]) -> None:
    assert reasons(well(**before), well(**during), after=well(**after)) == expected


def test_disturbances_add_up() -> None:
    after = well(
        event_reasons=SLOWDOWN,
        throttled_ns=counted(software_thermal_slowdown=12),
        other_pids=(4711,),
        other_utilization_percent=63,
    )
    assert reasons(well(), well(sm_clock_mhz=1500), after=after) == (
        "throttled by hardware slowdown",
        "throttled for 12 ms of 60 by software thermal slowdown",
        SLOW,
        BUSY,
    )


def test_highest_clock_of_busy_gpu_is_usual() -> None:
    readings = [well(sm_clock_mhz=1965), well(sm_clock_mhz=2010, event_reasons=IDLE), Reading(), well()]
    assert highest_clock_mhz(readings) == 1980
    assert highest_clock_mhz([Reading()]) is None


def test_conditions_hold_extremes_of_one_measurement() -> None:
    readings = [
        well(sm_clock_mhz=345, event_reasons=IDLE, other_utilization_percent=90),  # idle, and of the time before
        well(sm_clock_mhz=1980, power_watts=640.5, temperature_c=55),
        well(sm_clock_mhz=1500, event_reasons=CAP | 0x8000, other_processes=2),
        well(sm_clock_mhz=1800, temperature_c=58, other_utilization_percent=4, throttled_ns=counted(power_cap=1.5)),
    ]
    assert conditions_of(readings) == Conditions(
        lowest_sm_clock_mhz=1500,
        median_sm_clock_mhz=1800.0,
        max_temperature_c=58,
        max_power_watts=640.5,
        event_reasons=("idle", "power cap", "reason 0x8000"),
        throttled_ms={"power cap": 1.5},
        other_processes=2,
        other_utilization_percent=4,
    )


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([], None),
        ([Reading(), Reading()], None),
        ([Reading(), Reading(temperature_c=40)], Conditions(max_temperature_c=40)),
        ([Reading(throttled_ns=counted())] * 2, Conditions(throttled_ms={})),
    ],
    ids=["empty", "unknown", "partial", "counters stood still"],
)
def test_conditions_leave_unknown_open(readings: list[Reading], expected: Conditions | None) -> None:
    assert conditions_of(readings) == expected
    assert conditions_of_all([readings]) == expected


def test_conditions_of_all_skip_throttling_between() -> None:
    rose = [[0, 10], [500, 530]]
    whole = conditions_of_all([[well(throttled_ns=counted(power_cap=ms)) for ms in window] for window in rose])
    assert whole is not None
    assert whole.throttled_ms == {"power cap": pytest.approx(40.0)}


@pytest.mark.parametrize("value", [well(other_pids=(1, 2)), Conditions(throttled_ms={"power cap": 0.1})])
def test_reading_and_conditions_are_plain_frozen_data(value: Any) -> None:
    kind = type(value)
    assert msgspec.json.decode(msgspec.json.encode(value), type=kind) == value
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"fan": 3}', type=kind)
    with pytest.raises(AttributeError):
        value.other_processes = 1
