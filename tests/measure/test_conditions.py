"""Readings of a GPU: which of them spoil a measurement, and what they say together."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.measure.nvml import CAUSES, Reading, conditions_of, disturbances
from kernelgauge.run import Conditions

IDLE, _, CAP, SLOWDOWN, BOOST, _, HEAT, _ = (1 << bit for bit in range(8))
SLOW = "SM clock 1500 MHz where 1980 is usual, and no power cap explains it"
HOT = "throttled by hardware thermal slowdown"
BUSY = "another process (pid 4711) used the GPU: 63 % of its SMs"
NEW = "another process has come to the GPU, and what it uses of it is not known"
COUNTERS = [cause.name for cause in CAUSES if cause.counter]


def counted(**rose_ms: float) -> dict[str, int]:
    """Return counters of throttling that rose by this since `well`: `power_cap=12`."""
    return {cause: 7_000_000_000 + int(1e6 * rose_ms.get(cause.replace(" ", "_"), 0)) for cause in COUNTERS}


def well(**changed: Any) -> Reading:
    """Return the reading of a busy H200 on which all is well."""
    fields: dict[str, Any] = {
        "sm_clock_mhz": 1980,
        "event_reasons": 0,
        "power_watts": 420.0,
        "temperature_c": 50,
        "other_processes": 0,
        "other_utilization_percent": 0,
        "throttled_ns": counted(),
    }
    return Reading(**(fields | changed))


ALONE: dict[str, Any] = {"other_processes": 1, "other_pid": 4711}
USES: dict[str, Any] = {**ALONE, "other_utilization_percent": 63}
SILENT: dict[str, Any] = {**ALONE, "other_utilization_percent": None}
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], tuple[str, ...]]] = {
    "calm": ({}, [{}], {}, ()),
    "no reading in between": ({}, [], {"throttled_ns": counted(hardware_thermal_slowdown=12)}, (HOT,)),
    "seen and counted": ({}, [{"event_reasons": HEAT}], {"throttled_ns": counted(hardware_thermal_slowdown=30)}, (HOT,)),
    "counted a little": ({}, [{}], {"throttled_ns": counted(hardware_thermal_slowdown=0.5)}, (HOT,)),
    "counters began again": ({}, [{}], {"throttled_ns": dict.fromkeys(COUNTERS, 5)}, ()),
    "seen, counters began again": ({}, [{"event_reasons": HEAT}], {"throttled_ns": dict.fromkeys(COUNTERS, 5)}, (HOT,)),
    "power cap counted": ({}, [{}], {"throttled_ns": counted(power_cap=60, sync_boost=60)}, ()),
    "heat under a power cap": ({}, [{"event_reasons": CAP | HEAT}], {}, (HOT,)),
    "slowest clock": ({}, [{"sm_clock_mhz": 1800}, {"sm_clock_mhz": 1500}, {"sm_clock_mhz": 1700}], {}, (SLOW,)),
    "slow outside": ({"sm_clock_mhz": 345}, [{}], {"sm_clock_mhz": 345}, ()),
    "slow when idle": ({}, [{"sm_clock_mhz": 345, "event_reasons": IDLE}], {}, ()),
    "slow, capped before": ({"event_reasons": CAP}, [{"sm_clock_mhz": 1500}], {}, ()),
    "slow, capped meanwhile": ({}, [{"sm_clock_mhz": 1500, "event_reasons": CAP}], {}, ()),
    "slow, capped after": ({}, [{"sm_clock_mhz": 1500}], {"event_reasons": CAP}, ()),
    "slow, cap counted": ({}, [{"sm_clock_mhz": 1500}], {"throttled_ns": counted(power_cap=0.1)}, ()),
    "slow, sync boost": ({}, [{"sm_clock_mhz": 1500, "event_reasons": BOOST}], {}, (SLOW,)),
    "other is busy": ({}, [{}], USES, (BUSY,)),
    "other without pid": ({}, [{"other_utilization_percent": 1}], {}, (BUSY.replace(" (pid 4711)", "").replace("63", "1"),)),
    "busiest of the others": ({}, [{"other_pid": 1, "other_utilization_percent": 5}], USES, (BUSY,)),
    "other was busy before": (USES, [{}], {}, ()),
    "other holds memory": ({}, [{}], ALONE, ()),
    "other came": ({"other_processes": 1, "other_pid": 8}, [{}], {**SILENT, "other_processes": 2}, (NEW,)),
    "other came and is busy": ({}, [SILENT], USES, (BUSY,)),
    "others were there": (SILENT, [SILENT], SILENT, ()),
    "other left": (ALONE, [{}], {**SILENT, "other_processes": 0}, ()),
    "no list from before": ({"other_processes": None}, [{}], SILENT, ()),
    "all": (
        {},
        [{"sm_clock_mhz": 1500, "event_reasons": SLOWDOWN}],
        {**USES, "throttled_ns": counted(hardware_thermal_slowdown=12)},
        ("throttled by hardware slowdown", HOT, SLOW, BUSY),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "during", "after", "expected"), CASES.values(), ids=CASES)
def test_disturbances_name_what_spoils(before: Any, during: Any, after: Any, expected: tuple[str, ...]) -> None:
    window = [well(**each) for each in (before, *during, after)]
    assert disturbances(window, usual_clock_mhz=1980, tolerated_drift=0.03) == expected


@pytest.mark.parametrize(
    ("tolerated", "found"),
    [(0.03, ("SM clock 1780 MHz where 1980 is usual, and no power cap explains it",)), (0.12, ())],
)
def test_disturbances_allow_a_clock_of_unknown_gpu_more(tolerated: float, found: tuple[str, ...]) -> None:
    window = [well(), well(sm_clock_mhz=1780), well()]
    assert disturbances(window, usual_clock_mhz=1980, tolerated_drift=tolerated) == found


def test_conditions_hold_extremes_of_one_measurement() -> None:
    readings = [
        well(sm_clock_mhz=345, event_reasons=IDLE, other_utilization_percent=90),  # idle, and of the time before
        well(sm_clock_mhz=1980, power_watts=640.5, temperature_c=55),
        well(sm_clock_mhz=1500, event_reasons=CAP, other_processes=2),
        well(sm_clock_mhz=1800, temperature_c=58, other_utilization_percent=4, throttled_ns=counted(power_cap=1.5)),
    ]
    assert conditions_of([readings]) == Conditions(
        lowest_sm_clock_mhz=1500,
        median_sm_clock_mhz=1800.0,
        max_temperature_c=58,
        max_power_watts=640.5,
        event_reasons=("idle", "power cap"),
        throttled_ms={"power cap": 1.5},
        other_processes=2,
        other_utilization_percent=4,
    )


def test_conditions_skip_throttling_between_measurements() -> None:
    rose = [[0, 10], [500, 530]]
    whole = conditions_of([[well(throttled_ns=counted(power_cap=ms)) for ms in window] for window in rose])
    assert whole.throttled_ms == {"power cap": pytest.approx(40.0)}
