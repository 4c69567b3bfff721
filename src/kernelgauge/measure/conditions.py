"""What the GPU went through while it was measured, and what of it spoils the measurement. Readings in, reasons out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

import msgspec

from ..run import Conditions

__all__ = [
    "HARDWARE_POWER_BRAKE",
    "HARDWARE_SLOWDOWN",
    "HARDWARE_THERMAL",
    "POWER_CAP",
    "SOFTWARE_THERMAL",
    "SYNC_BOOST",
    "Reading",
    "conditions_of",
    "disturbances",
    "highest_clock_mhz",
]

POWER_CAP = "power cap"
HARDWARE_SLOWDOWN = "hardware slowdown"
SYNC_BOOST = "sync boost"
SOFTWARE_THERMAL = "software thermal slowdown"
HARDWARE_THERMAL = "hardware thermal slowdown"
HARDWARE_POWER_BRAKE = "hardware power brake"

_Number = TypeVar("_Number", int, float)

_IDLE = 0x1
# NVML's bits: nvmlClocksEventReasons in nvml.h.
_REASONS = {
    _IDLE: "idle",
    0x2: "application clocks",
    0x4: POWER_CAP,
    0x8: HARDWARE_SLOWDOWN,
    0x10: SYNC_BOOST,
    0x20: SOFTWARE_THERMAL,
    0x40: HARDWARE_THERMAL,
    0x80: HARDWARE_POWER_BRAKE,
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}

# Heat, a failing power supply, and the hardware halving its clock to protect itself: never usual, however short.
_NEVER_USUAL = frozenset({HARDWARE_SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, HARDWARE_POWER_BRAKE})
# A workload causes its power cap itself: an H200 under MLPs of 200 us is capped most of the time, at 1620 to 1905 MHz of
# 1980, and was when the baseline was recorded. The reference kernels show whether the machine is another one. `Conditions`
# say how long it was capped, which explains a slow clock.


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One look at the GPU. None: not known. "Other" is every compute process that is not ours."""

    sm_clock_mhz: int | None = None
    event_reasons: int | None = None  # NVML's bits
    power_watts: float | None = None
    temperature_c: int | None = None
    other_processes: int | None = None
    other_pids: tuple[int, ...] = ()  # of those, the ones whose pid is known: the busiest first
    other_utilization_percent: int | None = None  # of the SMs, by the busiest other, since the last reading
    throttled_ns: dict[str, int] | None = None  # by cause, counted since the driver was loaded

    @property
    def busy_clock_mhz(self) -> int | None:
        """The SM clock, unless the GPU says that it is idle: then it saves power, and is not slow."""
        return None if (self.event_reasons or 0) & _IDLE else self.sm_clock_mhz

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of `event_reasons`."""
        bits = self.event_reasons or 0
        known = tuple(name for bit, name in _REASONS.items() if bits & bit)
        unknown = bits & ~sum(_REASONS)
        return (*known, f"reason {unknown:#x}") if unknown else known


def conditions_of(windows: Sequence[Sequence[Reading]]) -> Conditions | None:
    """Sum up measurements, each with its readings in order of time. Return None if they know nothing.

    What happened between two measurements is not theirs.
    """
    readings = [reading for window in windows for reading in window]
    if all(reading == Reading() for reading in readings):
        return None
    clocks = [clock for reading in readings if (clock := reading.busy_clock_mhz) is not None]
    seen = {name: None for reading in readings for name in reading.reasons}  # a set that keeps its order
    counted = [ms for window in windows if (ms := _throttled_ms(window[0], window[-1])) is not None]
    throttled: dict[str, float] = {}
    for cause, rose_ms in (item for each in counted for item in each.items()):
        throttled[cause] = throttled.get(cause, 0.0) + rose_ms
    return Conditions(
        lowest_sm_clock_mhz=min(clocks, default=None),
        median_sm_clock_mhz=float(median(clocks)) if clocks else None,
        max_temperature_c=_most(reading.temperature_c for reading in readings),
        max_power_watts=_most(reading.power_watts for reading in readings),
        event_reasons=tuple(seen),
        throttled_ms={cause: ms for cause, ms in throttled.items() if ms > 0} if counted else None,
        other_processes=_most(reading.other_processes for reading in readings),
        # What the first reading says is of the time before it.
        other_utilization_percent=_most(
            reading.other_utilization_percent for window in windows for reading in window[1:]
        ),
    )


def highest_clock_mhz(readings: Iterable[Reading]) -> int | None:
    """Return the highest SM clock of a busy GPU: what is usual, once a session has seen enough readings."""
    return _most(reading.busy_clock_mhz for reading in readings)


def disturbances(
    before: Reading,
    during: Sequence[Reading],
    after: Reading,
    *,
    duration_s: float,
    usual_clock_mhz: float | None = None,
    tolerated_drift: float = 0.0,
) -> tuple[str, ...]:
    """Why a measurement that took `duration_s` from `before` to `after` cannot be trusted. Empty: nothing speaks
    against it, be it that all was well or that nothing is known.

    Each reason is a fragment of a sentence. `usual_clock_mhz`: None if not known yet. `tolerated_drift`: the share by which
    a clock may lie below it.
    """
    window = (before, *during, after)
    throttled = _throttled_ms(before, after) or {}
    seen = {name for reading in window for name in reading.reasons}
    return (
        *_throttling(seen, throttled, duration_ms=duration_s * 1e3),
        *_slow_clock(
            during, usual_clock_mhz, tolerated_drift, capped=POWER_CAP in seen or throttled.get(POWER_CAP, 0) > 0
        ),
        *_company(before, (*during, after)),
    )


def _throttling(seen: Collection[str], throttled_ms: Mapping[str, float], *, duration_ms: float) -> Iterator[str]:
    for cause in _REASONS.values():
        ms = throttled_ms.get(cause, 0.0)
        if cause in _NEVER_USUAL and (cause in seen or ms > 0):
            yield (
                f"throttled for {_shown(min(ms, duration_ms))} ms of {_shown(duration_ms)} by {cause}"
                if ms
                else f"throttled by {cause}"
            )


def _slow_clock(
    during: Sequence[Reading], usual_mhz: float | None, tolerated_drift: float, *, capped: bool
) -> Iterator[str]:
    slowest = min((clock for reading in during if (clock := reading.busy_clock_mhz) is not None), default=None)
    if slowest is None or usual_mhz is None or capped:
        return
    if slowest < (1 - tolerated_drift) * usual_mhz:
        yield f"SM clock {slowest} MHz where {usual_mhz:.0f} is usual, and no power cap explains it"


def _company(before: Reading, window: Sequence[Reading]) -> Iterator[str]:
    """Other processes on the GPU, since `before`.

    One that only holds memory there takes no time from us: a notebook left open, a server without requests.
    """
    busiest = max(window, key=lambda reading: reading.other_utilization_percent or 0)
    if used := busiest.other_utilization_percent:
        yield f"another process{_pid(busiest.other_pids)} used the GPU: {used} % of its SMs"
        return
    # Where nobody says what the others do, only a new one counts: it loads its data and its kernels now. Those that
    # were there before have been in every measurement so far, often for days.
    silent = [reading for reading in window if reading.other_utilization_percent is None]
    most = max(silent, key=lambda reading: reading.other_processes or 0, default=Reading())
    if before.other_processes is not None and (most.other_processes or 0) > before.other_processes:
        new = tuple(pid for pid in most.other_pids if pid not in before.other_pids)
        yield f"another process{_pid(new)} has come to the GPU, and what it uses of it is not known"


def _throttled_ms(before: Reading, after: Reading) -> dict[str, float] | None:
    """By cause: those that both readings have counted. A counter that fell has begun again, and says nothing."""
    if before.throttled_ns is None or after.throttled_ns is None:
        return None
    rose = {cause: after.throttled_ns.get(cause, -1) - ns for cause, ns in before.throttled_ns.items()}
    return {cause: ns / 1e6 for cause, ns in rose.items() if ns >= 0}


def _most(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def _shown(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.2g}"


def _pid(pids: tuple[int, ...]) -> str:
    return f" (pid {pids[0]})" if pids else ""
