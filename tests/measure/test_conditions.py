"""What the GPU went through, and what of it spoils a measurement."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernelgauge.measure.conditions import (
    HARDWARE_POWER_BRAKE,
    HARDWARE_SLOWDOWN,
    HARDWARE_THERMAL,
    POWER_CAP,
    SOFTWARE_THERMAL,
    SYNC_BOOST,
    Reading,
    conditions_of,
    conditions_of_all,
    disturbances,
    highest_clock_mhz,
)
from kernelgauge.run import Conditions

IDLE, SETTING, CAP, SLOWDOWN, BOOST, SOFT_HEAT, HEAT, BRAKE = (1 << bit for bit in range(8))
CAUSES = (POWER_CAP, SYNC_BOOST, SOFTWARE_THERMAL, HARDWARE_THERMAL, HARDWARE_POWER_BRAKE)
NEVER_USUAL = [
    (SLOWDOWN, HARDWARE_SLOWDOWN),
    (SOFT_HEAT, SOFTWARE_THERMAL),
    (HEAT, HARDWARE_THERMAL),
    (BRAKE, HARDWARE_POWER_BRAKE),
]

UNEXPLAINED = "where 1980 is usual, and no power cap explains it"


def quiet(**changed: Any) -> Reading:
    """A busy H200 on which all is well."""
    well: dict[str, Any] = {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "max_sm_clock_mhz": 1980,
        "event_reasons": 0,
        "power_watts": 420.0,
        "temperature_c": 50,
        "other_processes": 0,
        "other_utilization_percent": 0,
        "throttled_ns": dict.fromkeys(CAUSES, 7_000_000_000),
    }
    return Reading(**{**well, **changed})


def throttled(**milliseconds: float) -> dict[str, int]:
    """The counters of `quiet`, later: `power_cap=12`."""
    rose = {cause.replace("_", " "): ms for cause, ms in milliseconds.items()}
    assert set(rose) <= set(CAUSES)
    return {cause: 7_000_000_000 + int(rose.get(cause, 0) * 1e6) for cause in CAUSES}


def judged(
    before: Reading | None = None,
    *during: Reading,
    after: Reading | None = None,
    ms: float = 60,
    usual: float | None = 1980,
) -> tuple[str, ...]:
    return disturbances(
        before or quiet(), during or (quiet(),), after or quiet(), duration_s=ms / 1000, usual_clock_mhz=usual
    )


# -- nothing to say -------------------------------------------------------------------------------------------------


def test_a_quiet_gpu_is_not_disturbed() -> None:
    assert judged() == ()


def test_a_gpu_of_which_nothing_is_known_is_not_disturbed() -> None:
    assert judged(Reading(), Reading(), after=Reading(), usual=None) == ()


def test_without_readings_during_the_measurement_the_rest_is_still_judged() -> None:
    after = quiet(throttled_ns=throttled(hardware_thermal_slowdown=12))
    reasons = disturbances(quiet(), (), after, duration_s=0.06, usual_clock_mhz=1980)
    assert reasons == ("throttled for 12 ms of 60 by hardware thermal slowdown",)


@pytest.mark.parametrize("bits", [0, IDLE, SETTING, IDLE | SETTING, 0x100, 0x200, 0x400, 0x8000])
def test_how_the_machine_is_set_does_not_disturb(bits: int) -> None:
    reading = quiet(event_reasons=bits)
    assert judged(reading, reading, after=reading) == ()


# -- never usual: heat, slowdown, power brake -----------------------------------------------------------------------


@pytest.mark.parametrize(("bit", "cause"), NEVER_USUAL)
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_heat_and_slowdown_by_the_hardware_disturb_whenever_they_are_seen(bit: int, cause: str, when: str) -> None:
    hot = quiet(event_reasons=bit | SETTING)
    before, during, after = (hot if when == then else quiet() for then in ("before", "during", "after"))
    assert judged(before, during, after=after) == (f"throttled by {cause}",)


@pytest.mark.parametrize("cause", [cause for _, cause in NEVER_USUAL if cause != HARDWARE_SLOWDOWN])
def test_heat_disturbs_even_where_only_its_counter_noticed(cause: str) -> None:
    after = quiet(throttled_ns={**throttled(), cause: 7_000_000_000 + 500_000})
    assert judged(after=after) == (f"throttled for 0.5 ms of 60 by {cause}",)


def test_one_cause_is_one_reason_though_both_its_bit_and_its_counter_say_so() -> None:
    after = quiet(event_reasons=HEAT, throttled_ns=throttled(hardware_thermal_slowdown=30))
    assert judged(after=after) == ("throttled for 30 ms of 60 by hardware thermal slowdown",)


def test_every_cause_is_named() -> None:
    reasons = judged(quiet(event_reasons=SLOWDOWN | HEAT))
    assert reasons == ("throttled by hardware slowdown", "throttled by hardware thermal slowdown")


# -- usual: the power cap, a workload's own doing -------------------------------------------------------------------


@pytest.mark.parametrize("cause", [POWER_CAP, SYNC_BOOST])
@pytest.mark.parametrize("rose_ms", [0.1, 3.0, 60])
def test_the_power_cap_alone_does_not_disturb_however_long_it_acts(cause: str, rose_ms: float) -> None:
    after = quiet(throttled_ns=throttled(**{cause.replace(" ", "_"): rose_ms}))
    assert judged(after=after, ms=60) == ()


@pytest.mark.parametrize("bit", [CAP, BOOST])
def test_nor_does_the_sight_of_it(bit: int) -> None:
    reading = quiet(event_reasons=bit, throttled_ns=None)
    assert judged(reading, reading, after=reading) == ()


@pytest.mark.parametrize("when", ["before", "during", "after", "by its counter alone"])
def test_a_low_clock_is_explained_by_the_power_cap_wherever_it_was_noticed(when: str) -> None:
    slow = quiet(sm_clock_mhz=1500, event_reasons=CAP if when == "during" else 0)
    before = quiet(event_reasons=CAP if when == "before" else 0)
    counted = throttled(power_cap=0.1) if when == "by its counter alone" else throttled()
    after = quiet(event_reasons=CAP if when == "after" else 0, throttled_ns=counted)
    assert judged(before, slow, after=after) == ()


def test_sync_boost_explains_no_low_clock() -> None:
    slow = quiet(sm_clock_mhz=1500, event_reasons=BOOST)
    assert judged(quiet(), slow) == (f"SM clock 1500 MHz {UNEXPLAINED}",)


def test_the_power_cap_explains_no_heat() -> None:
    hot = quiet(event_reasons=CAP | HEAT)
    assert judged(hot, hot, after=hot) == ("throttled by hardware thermal slowdown",)


def test_counters_that_began_again_are_no_counters() -> None:
    after = quiet(throttled_ns=dict.fromkeys(CAUSES, 5))
    assert judged(after=after) == ()
    hot = quiet(event_reasons=HEAT)
    assert judged(quiet(), hot, after=after) == ("throttled by hardware thermal slowdown",)


def test_no_measurement_was_throttled_for_longer_than_it_took() -> None:
    after = quiet(throttled_ns=throttled(hardware_thermal_slowdown=100))
    assert judged(after=after, ms=67) == ("throttled for 67 ms of 67 by hardware thermal slowdown",)


# -- the clock ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clock", "disturbed"), [(1980, False), (1935, False), (1921, False), (1920, True)])
def test_a_clock_disturbs_that_is_three_percent_below_the_usual_one(clock: int, disturbed: bool) -> None:
    reasons = judged(quiet(), quiet(), quiet(sm_clock_mhz=clock), quiet())
    assert reasons == ((f"SM clock {clock} MHz {UNEXPLAINED}",) if disturbed else ())


def test_exactly_three_percent_is_not_below() -> None:
    assert judged(quiet(), quiet(sm_clock_mhz=1940), usual=2000) == ()


def test_the_clock_before_and_after_is_not_that_of_the_measurement() -> None:
    slow = quiet(sm_clock_mhz=345)
    assert judged(slow, quiet(), after=slow) == ()


def test_the_clock_of_an_idle_gpu_is_not_slow() -> None:
    assert judged(quiet(), quiet(sm_clock_mhz=345, event_reasons=IDLE)) == ()


def test_as_long_as_no_clock_is_usual_none_is_slow() -> None:
    assert judged(quiet(), quiet(sm_clock_mhz=345), usual=None) == ()


def test_the_slowest_clock_is_named() -> None:
    during = [quiet(sm_clock_mhz=clock) for clock in (1800, 1200, 1500)]
    assert judged(quiet(), *during) == (f"SM clock 1200 MHz {UNEXPLAINED}",)


def test_the_usual_clock_is_the_highest_of_a_busy_gpu() -> None:
    readings = [quiet(sm_clock_mhz=1965), quiet(sm_clock_mhz=2010, event_reasons=IDLE), Reading(), quiet()]
    assert highest_clock_mhz(readings) == 1980
    assert highest_clock_mhz([Reading()]) is None


# -- other processes ------------------------------------------------------------------------------------------------


def test_another_process_that_computes_disturbs() -> None:
    after = quiet(other_processes=1, other_pids=(4711,), other_utilization_percent=63)
    assert judged(after=after) == ("another process (pid 4711) used the GPU: 63 % of its SMs",)


def test_one_percent_of_the_sms_is_enough_and_a_pid_is_not_needed() -> None:
    during = quiet(other_processes=2, other_utilization_percent=1)
    assert judged(quiet(), during) == ("another process used the GPU: 1 % of its SMs",)


def test_of_several_readings_the_one_with_the_busiest_process_is_named() -> None:
    during = [quiet(other_pids=(pid,), other_utilization_percent=used) for pid, used in ((1, 5), (2, 40), (3, 7))]
    assert judged(quiet(), *during) == ("another process (pid 2) used the GPU: 40 % of its SMs",)


def test_what_another_process_did_before_is_over() -> None:
    assert judged(quiet(other_processes=1, other_pids=(4711,), other_utilization_percent=63)) == ()


def test_a_process_that_only_holds_memory_does_not_disturb_even_if_it_is_new() -> None:
    assert judged(after=quiet(other_processes=1, other_pids=(4711,))) == ()


def test_a_new_process_disturbs_if_nobody_says_what_it_uses() -> None:
    before = quiet(other_processes=1, other_pids=(8,))
    after = quiet(other_processes=2, other_pids=(8, 4711), other_utilization_percent=None)
    expected = "another process (pid 4711) has come to the GPU, and what it uses of it is not known"
    assert judged(before, after=after) == (expected,)
    assert judged(before, msgspec.structs.replace(after, other_pids=())) == (expected.replace(" (pid 4711)", ""),)


def test_one_process_is_one_reason_in_whichever_way_it_was_noticed() -> None:
    came = quiet(other_processes=1, other_pids=(4711,), other_utilization_percent=None)
    busy = msgspec.structs.replace(came, other_utilization_percent=63)
    assert judged(quiet(), came, after=busy) == ("another process (pid 4711) used the GPU: 63 % of its SMs",)


def test_processes_that_were_there_all_along_do_not_disturb_if_nobody_says_what_they_use() -> None:
    reading = quiet(other_processes=3, other_utilization_percent=None)
    assert judged(reading, reading, after=reading) == ()


def test_a_process_that_left_does_not_disturb() -> None:
    unknown = quiet(other_processes=0, other_utilization_percent=None)
    assert judged(quiet(other_processes=1), unknown, after=unknown) == ()


def test_without_a_list_from_before_nobody_is_new() -> None:
    after = quiet(other_processes=1, other_utilization_percent=None)
    assert judged(quiet(other_processes=None), after=after) == ()


# -- all of it ------------------------------------------------------------------------------------------------------


def test_reasons_add_up() -> None:
    slow = quiet(sm_clock_mhz=1200)
    after = quiet(
        throttled_ns=throttled(software_thermal_slowdown=12), other_pids=(4711,), other_utilization_percent=63
    )
    assert judged(quiet(), slow, after=after) == (
        "throttled for 12 ms of 60 by software thermal slowdown",
        f"SM clock 1200 MHz {UNEXPLAINED}",
        "another process (pid 4711) used the GPU: 63 % of its SMs",
    )


# -- the summary ----------------------------------------------------------------------------------------------------


def test_a_summary_says_what_was_lowest_and_highest() -> None:
    readings = [
        quiet(sm_clock_mhz=345, event_reasons=IDLE, other_utilization_percent=90),  # idle, and of the time before
        quiet(sm_clock_mhz=1980, power_watts=640.5, temperature_c=55),
        quiet(sm_clock_mhz=1500, event_reasons=CAP | 0x8000, other_processes=2),
        quiet(sm_clock_mhz=1800, temperature_c=58, other_utilization_percent=4, throttled_ns=throttled(power_cap=1.5)),
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


@pytest.mark.parametrize("readings", [[], [Reading()], [Reading(), Reading()]])
def test_of_nothing_there_is_no_summary(readings: list[Reading]) -> None:
    assert conditions_of(readings) is None


def test_a_summary_leaves_open_what_is_not_known() -> None:
    assert conditions_of([Reading(), Reading(temperature_c=40), Reading()]) == Conditions(max_temperature_c=40)


def test_counters_that_stood_still_are_known_to_have_cost_nothing() -> None:
    summary = conditions_of([quiet(), quiet()])
    assert summary is not None
    assert summary.throttled_ms == {}


def test_both_are_the_same_after_they_were_written_and_read() -> None:
    reading, summary = quiet(other_pids=(1, 2)), conditions_of([quiet(), quiet(throttled_ns=throttled(power_cap=0.1))])
    assert msgspec.json.decode(msgspec.json.encode(reading), type=Reading) == reading
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Conditions) == summary


@pytest.mark.parametrize("kind", [Reading, Conditions])
def test_unknown_fields_are_refused_and_nothing_can_be_changed(kind: type[Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"fan": 3}', type=kind)
    with pytest.raises(AttributeError):
        kind().other_processes = 1


def test_what_was_throttled_between_two_measurements_is_neither_s() -> None:
    first = [quiet(throttled_ns=throttled(power_cap=0)), quiet(throttled_ns=throttled(power_cap=10))]
    second = [quiet(throttled_ns=throttled(power_cap=500)), quiet(throttled_ns=throttled(power_cap=530))]
    whole = conditions_of_all([first, second])
    assert whole is not None
    assert whole.throttled_ms == {"power cap": pytest.approx(40.0)}
    assert conditions_of_all([]) is None
    assert conditions_of_all([[Reading(temperature_c=40)]]) == conditions_of([Reading(temperature_c=40)])
