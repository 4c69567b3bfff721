"""What the GPU went through while it was measured, and what of it spoils the measurement. Readings in, reasons out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec

from ..run import Conditions

_IDLE, _POWER_CAP = "idle", "power cap"


class Cause(NamedTuple):
    """Why the clock is what it is. `counter`: NVML's field of the nanoseconds since the driver was loaded."""

    bit: int
    name: str
    counter: int | None = None
    spoils: bool = False


# The bits are nvmlClocksEventReasons of nvml.h, the counters its NVML_FI_DEV_CLOCKS_EVENT_REASON_*. Heat, a failing power
# supply, and the hardware halving its clock to protect itself are never usual, however short. A workload causes its power cap
# itself: an H200 under MLPs of 200 us is capped most of the time, at 1620 to 1905 MHz of 1980, and was when the baseline was
# recorded. The reference kernels show whether the machine is another one.
CAUSES = (
    Cause(0x1, _IDLE),
    Cause(0x2, "application clocks"),
    Cause(0x4, _POWER_CAP, counter=74),
    Cause(0x8, "hardware slowdown", spoils=True),
    Cause(0x10, "sync boost", counter=76),
    Cause(0x20, "software thermal slowdown", counter=269, spoils=True),
    Cause(0x40, "hardware thermal slowdown", counter=270, spoils=True),
    Cause(0x80, "hardware power brake", counter=271, spoils=True),
    Cause(0x100, "display clocks"),
)


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One look at the GPU. None: not known. "Other" is every compute process that is not ours."""

    sm_clock_mhz: int | None = None
    event_reasons: int | None = None  # NVML's bits
    power_watts: float | None = None
    temperature_c: int | None = None
    other_processes: int | None = None
    other_pid: int = 0  # of the busiest; 0: not known
    other_utilization_percent: int | None = None  # of the SMs, by the busiest, since the last reading
    throttled_ns: dict[str, int] | None = None  # by cause, counted since the driver was loaded

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of `event_reasons`."""
        return tuple(cause.name for cause in CAUSES if (self.event_reasons or 0) & cause.bit)


def conditions_of(windows: Sequence[Sequence[Reading]]) -> Conditions | None:
    """Sum up measurements, each with its readings in order of time. Return None if they know nothing.

    What happened between two measurements is not theirs.
    """
    readings = [reading for window in windows for reading in window]
    if all(reading == Reading() for reading in readings):
        return None
    clocks = _busy_clocks_mhz(readings)
    counted = [ms for window in windows if (ms := _throttled_ms(window)) is not None]
    throttled = {cause: sum(ms.get(cause, 0.0) for ms in counted) for each in counted for cause in each}
    later = [reading for window in windows for reading in window[1:]]  # the first speaks of the time before it
    return Conditions(
        lowest_sm_clock_mhz=min(clocks, default=None),
        median_sm_clock_mhz=float(median(clocks)) if clocks else None,
        max_temperature_c=_most(readings, "temperature_c"),
        max_power_watts=_most(readings, "power_watts"),
        event_reasons=tuple(dict.fromkeys(name for reading in readings for name in reading.reasons)),
        throttled_ms={cause: ms for cause, ms in throttled.items() if ms > 0} if counted else None,
        other_processes=_most(readings, "other_processes"),
        other_utilization_percent=_most(later, "other_utilization_percent"),
    )


def highest_clock_mhz(readings: Iterable[Reading]) -> int | None:
    """Return the highest SM clock of a busy GPU: what is usual, once a session has seen enough readings."""
    return max(_busy_clocks_mhz(readings), default=None)


def disturbances(
    window: Sequence[Reading], *, usual_clock_mhz: float | None = None, tolerated_drift: float = 0.0
) -> tuple[str, ...]:
    """Why a measurement with these readings, from before it to after it, cannot be trusted: fragments of a sentence.

    Empty: all was well, or nothing is known. `usual_clock_mhz`: None if not known yet. `tolerated_drift`: the share by which
    a clock may lie below it.
    """
    before, later = window[0], window[1:]
    seen = {name for reading in window for name in reading.reasons}
    seen.update(cause for cause, ms in (_throttled_ms(window) or {}).items() if ms > 0)
    found = [f"throttled by {cause.name}" for cause in CAUSES if cause.spoils and cause.name in seen]
    slowest, usual = min(_busy_clocks_mhz(window[1:-1]), default=math.inf), usual_clock_mhz or 0.0
    if slowest < (1 - tolerated_drift) * usual and _POWER_CAP not in seen:
        found.append(f"SM clock {slowest:.0f} MHz where {usual:.0f} is usual, and no power cap explains it")
    # A process that only holds memory takes no time from us: a notebook left open, a server without requests. Where nobody
    # says what the others do, only a new one counts: it loads its data and its kernels now.
    busiest = max(later, key=lambda reading: reading.other_utilization_percent or 0)
    silent = [reading for reading in later if reading.other_utilization_percent is None]
    if used := busiest.other_utilization_percent:
        pid = f" (pid {busiest.other_pid})" if busiest.other_pid else ""
        found.append(f"another process{pid} used the GPU: {used} % of its SMs")
    elif before.other_processes is not None and (_most(silent, "other_processes") or 0) > before.other_processes:
        found.append("another process has come to the GPU, and what it uses of it is not known")
    return tuple(found)


def _busy_clocks_mhz(readings: Iterable[Reading]) -> list[int]:
    """Return the known SM clocks, without those of an idle GPU: it saves power, and is not slow."""
    clocks = (reading.sm_clock_mhz for reading in readings if _IDLE not in reading.reasons)
    return [clock for clock in clocks if clock is not None]


def _throttled_ms(window: Sequence[Reading]) -> dict[str, float] | None:
    """By cause: those that the first and the last reading have counted. A counter that fell has begun again: it says nothing."""
    first, last = window[0].throttled_ns, window[-1].throttled_ns
    if first is None or last is None:
        return None
    return {cause: (last[cause] - ns) / 1e6 for cause, ns in first.items() if last.get(cause, -1) >= ns}


def _most(readings: Iterable[Reading], field: str) -> Any:
    return max((value for reading in readings if (value := getattr(reading, field)) is not None), default=None)
