"""What the machine spoilt is measured again, and given up with the reason when it does not stop."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kernelgauge import Timer, Workload
from kernelgauge.errors import MeasurementError
from kernelgauge.measure.conditions import HARDWARE_THERMAL, Reading
from kernelgauge.measure.runner import Measured, Result
from kernelgauge.measure.settings import Settings
from tests.measure.conftest import Fake, ToldMonitor, ToldReplicates

Tiny = Callable[..., Workload]
ObserveAll = Callable[..., dict[str, Result]]

CALM = Reading(sm_clock_mhz=1980, event_reasons=0, other_processes=0, throttled_ns={HARDWARE_THERMAL: 0})
HOT = Reading(sm_clock_mhz=1980, event_reasons=0x40, throttled_ns={HARDWARE_THERMAL: 0})
HOTTER = Reading(sm_clock_mhz=1980, event_reasons=0x40, throttled_ns={HARDWARE_THERMAL: 100_000})
SHARED = Reading(sm_clock_mhz=1980, event_reasons=0, other_processes=1, other_pids=(77,), other_utilization_percent=60)
SLOW = Reading(sm_clock_mhz=1500, event_reasons=0)
SLOW_BY_THE_CAP = Reading(sm_clock_mhz=1500, event_reasons=0x4)

# Seven calls, three to warm up and one to wait: eleven, with one look at the GPU.
SETTINGS = Settings(replicates=2, most_replicates=2, iterations=7, seconds=0.01, warm_up_seconds=0)


def readings(*replicates: tuple[Reading, Reading, Reading]) -> ToldMonitor:
    """Before, during and after each replicate."""
    return ToldMonitor(*(reading for replicate in replicates for reading in replicate))


@pytest.fixture
def under(tiny: Tiny, observe_all: ObserveAll) -> Callable[[ToldMonitor], Result]:
    """Measures a workload in two replicates under these readings."""

    def run(monitor: ToldMonitor) -> Result:
        device = Fake()
        device.monitor = monitor  # type: ignore[assignment]
        return observe_all(tiny(), device=device, settings=SETTINGS)["tiny eager"]

    return run


# -- what the monitor sees ------------------------------------------------------------------------------------------


def test_calm_machine_is_measured_once(under) -> None:
    monitor = readings(*[(CALM, CALM, CALM)] * 2, (HOT, HOT, HOT))
    result = under(monitor)
    assert isinstance(result, Measured)
    assert monitor.left == [HOT] * 3  # nobody looked any further
    assert result.run.conditions is not None
    assert result.run.conditions.lowest_sm_clock_mhz == 1980
    assert result.run.conditions.event_reasons == ()


@pytest.mark.parametrize(
    "spoilt",
    [(CALM, CALM, HOTTER), (CALM, HOT, CALM), (CALM, CALM, SHARED), (CALM, SLOW, CALM)],
    ids=["throttled", "throttled in between", "another process", "a clock that drops in mid-run"],
)
def test_disturbed_replicate_is_repeated(under, spoilt: tuple[Reading, Reading, Reading]) -> None:
    calm = (CALM, CALM, CALM)
    monitor = readings(calm, spoilt, calm, (HOT, HOT, HOT))
    result = under(monitor)
    assert isinstance(result, Measured)
    assert len(result.run.samples[Timer.DEVICE].replicates_us) == 2
    assert monitor.left == [HOT] * 3
    assert result.run.conditions is not None
    assert result.run.conditions.event_reasons == ()  # what was not kept is not of this measurement
    assert result.run.conditions.lowest_sm_clock_mhz == 1980


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        ((HOT, HOT, HOTTER), r"throttled for 0\.1 ms of [\d.]+ by hardware thermal slowdown"),
        ((HOT, HOT, HOT), "throttled by hardware thermal slowdown"),
        ((CALM, CALM, SHARED), r"another process \(pid 77\) used the GPU: 60 % of its SMs"),
    ],
    ids=["heat, counted", "heat, seen", "another process"],
)
def test_machine_that_stays_disturbed_is_an_error(under, spoilt, reason: str) -> None:
    result = under(readings(*[spoilt] * 9))
    assert isinstance(result, MeasurementError)
    assert result.what == "tiny-eager-fp32: the machine cannot be trusted now"
    assert re.search(reason, result.got or ""), result.got
    assert "3 times in all" in (result.expected or "")
    assert "nvidia-smi" in (result.next_command or "")


def test_clock_that_stays_low_is_an_error_with_the_usual_one(under) -> None:
    result = under(readings((CALM, CALM, CALM), *[(SLOW, SLOW, SLOW)] * 9))
    assert isinstance(result, MeasurementError)
    assert result.got == "SM clock 1500 MHz where 1980 is usual, and no power cap explains it"


def test_low_clock_under_a_power_cap_is_kept(under) -> None:
    result = under(readings((CALM, CALM, CALM), (CALM, SLOW_BY_THE_CAP, CALM)))
    assert isinstance(result, Measured)
    assert result.run.conditions is not None
    assert result.run.conditions.lowest_sm_clock_mhz == 1500
    assert result.run.conditions.event_reasons == ("power cap",)


def test_several_reasons_are_named_once_each(under) -> None:
    hot, shared = (HOT, HOT, HOT), (CALM, CALM, SHARED)
    result = under(readings(hot, shared, hot))
    assert isinstance(result, MeasurementError)
    assert (result.got or "").split("; ") == [
        "throttled by hardware thermal slowdown",
        "another process (pid 77) used the GPU: 60 % of its SMs",
    ]


# -- the budget for repeating ---------------------------------------------------------------------------------------


@pytest.fixture
def settings() -> Settings:
    return Settings(replicates=3, most_replicates=3, iterations=3)


def test_repetitions_come_later_at_other_addresses(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.disturbed["a"] = (2, "throttled")
    results = observe_all(tiny(module="a"), tiny(module="b"), device=Fake(), settings=settings)
    assert replicates.order() == ["a", "b"] * 3 + ["a"] * 2
    assert replicates.places("a") == sorted(set(replicates.places("a")))
    assert all(isinstance(result, Measured) for result in results.values())


@pytest.mark.parametrize(("disturbed", "given_up"), [(3, False), (4, True)])
def test_repetitions_are_as_many_as_replicates_at_most(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings, disturbed: int, given_up: bool
) -> None:
    replicates.disturbed["a"] = (disturbed, "throttled")
    result = observe_all(tiny(module="a"), device=Fake(), settings=settings)["a eager"]
    assert isinstance(result, MeasurementError) is given_up
    assert len(replicates.asked) == (4 if given_up else 6)


def test_one_workload_that_is_given_up_leaves_the_others(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.disturbed["a"] = (99, "throttled")
    results = observe_all(tiny(module="a"), tiny(module="b"), device=Fake(), settings=settings)
    assert isinstance(results["a eager"], MeasurementError)
    assert isinstance(results["b eager"], Measured)


def test_disturbed_replicates_count_against_the_budget(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates
) -> None:
    settings = Settings(replicates=3, most_replicates=9, budget_seconds=1.0)
    replicates.times_us["a"] = [10.0, 13.0, 9.0, 12.0, 8.0, 11.0, 14.0, 9.5, 12.5]
    replicates.seconds = 0.2
    replicates.disturbed["a"] = (2, "throttled")
    result = observe_all(tiny(module="a"), device=Fake(), settings=settings)["a eager"]
    assert isinstance(result, Measured)
    assert len(result.run.samples[Timer.DEVICE].replicates_us) == 3  # of 5 that took a second together


# -- the usual clock ------------------------------------------------------------------------------------------------


def test_usual_clock_is_the_highest_of_all_subjects(
    tiny: Tiny, observe_all: ObserveAll, replicates: ToldReplicates, settings: Settings
) -> None:
    replicates.readings = (CALM, SLOW)
    observe_all(tiny(module="a"), tiny(module="b"), device=Fake(tiny(module="copy")), settings=settings)
    assert replicates.usual_clocks == [None] + [1980] * 8
