"""The one client of NVML: the GPUs, their settings, their state during a measurement, and what of
it spoils that measurement.

Nothing is ever set. No torch: asking torch would start CUDA on one of the GPUs.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter, itemgetter
from statistics import median
from typing import Any, NamedTuple, final

import msgspec

from ..run import Conditions

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Of nvml.h, and part of its binary interface, as the counters are.
_SM_CLOCK, _GPU_SENSOR = 1, 0
_IDLE, _POWER_CAP = "idle", "power cap"
# NVML samples who uses the SMs "between 1 second and 1/6 second" (nvml.h): no sample in less time
# is no news. On an H200 a process that took 99 % of the SMs was missing from a window of 60 ms.
_SAMPLING_PERIOD_S = 1.0


def _start() -> tuple[Any, str]:
    """Return pynvml, which has no types, initialised until the process ends; or None, and why."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no library, or NVML's own: no driver
        return None, f"no NVML: {error}"
    return pynvml, ""


def _ask(pynvml: Any, query: str, *arguments: Any, if_none_found: Any = None) -> Any:
    """Return the answer.

    None: there is no NVML, or the GPU, the driver or the library does not answer.
    """
    try:
        return getattr(pynvml, query)(*arguments)
    except getattr(pynvml, "NVMLError_NotFound", ()):
        return if_none_found
    # AttributeError, NVMLError, NVMLLibraryMismatchError: they share no other base
    except Exception:
        return None


def visible_gpus() -> tuple[str, ...]:
    """Return what to set CUDA_VISIBLE_DEVICES to for each GPU that this process may use; empty
    without NVML and the variable.

    The names in the variable if it is set, up to the first that CUDA refuses. Else the UUIDs of all
    GPUs, or of the slices of a GPU that is cut (MIG).
    """
    named = os.environ.get(VISIBLE)
    if named is None:
        return tuple(_uuids())
    # What stands behind an invalid name is not visible.
    names = takewhile(
        lambda name: name and not name.startswith("-"), map(str.strip, named.split(","))
    )
    return tuple(dict.fromkeys(names))


def digest(uuid: str) -> str:
    """Return which GPU of its kind it is, for files that are shared: its UUID, with or without
    ``GPU-``, not in clear.
    """
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    return hashlib.sha256(bare.encode()).hexdigest()[:8]


def digest_of(name: str) -> str | None:
    """Return the digest of a GPU that CUDA_VISIBLE_DEVICES names by number or by the beginning of
    its UUID; None: not known.

    A number is taken for NVML's. CUDA may count otherwise where GPUs differ or are cut into slices.
    """
    uuids = list(_uuids())
    found = (
        uuids[int(name) :][:1]
        if name.isdecimal()
        else [uuid for uuid in uuids if uuid.startswith(name)]
    )
    return digest(found[0]) if len(found) == 1 else None


def _uuids() -> Iterator[str]:
    pynvml, _ = _start()
    for index in range(_ask(pynvml, "nvmlDeviceGetCount") or 0):
        gpu = _ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            continue  # it has fallen off the bus
        places = range(_ask(pynvml, "nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)
        slices = [
            _ask(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, place) for place in places
        ]
        handles = [each for each in slices if each is not None] or [gpu]  # a place may be free
        yield from filter(None, (_ask(pynvml, "nvmlDeviceGetUUID", each) for each in handles))


class EventReason(NamedTuple):
    """Why the clock is what it is.

    `counter`: NVML's field of the nanoseconds since the driver was loaded.
    """

    bit: int
    name: str
    counter: int | None = None
    spoils: bool = False


# The bits are nvmlClocksEventReasons of nvml.h, the counters its NVML_FI_DEV_CLOCKS_EVENT_REASON_*.
# Heat, a failing power supply, and the hardware halving its clock to protect itself are never
# usual, however short. A workload causes its power cap itself: an H200 under MLPs of 200 us is
# capped most of the time, at 1620 to 1905 MHz of 1980, and was when the baseline was recorded. The
# reference kernels show whether the machine is another one.
EVENT_REASONS = (
    EventReason(0x1, _IDLE),
    EventReason(0x4, _POWER_CAP, counter=74),
    EventReason(0x8, "hardware slowdown", spoils=True),
    EventReason(0x10, "sync boost", counter=76),
    EventReason(0x20, "software thermal slowdown", counter=269, spoils=True),
    EventReason(0x40, "hardware thermal slowdown", counter=270, spoils=True),
    EventReason(0x80, "hardware power brake", counter=271, spoils=True),
)
_COUNTERS = {cause.name: cause.counter for cause in EVENT_REASONS if cause.counter}


class Reading(msgspec.Struct, frozen=True):
    """One look at the GPU. None: not known. "Other" is every compute process that is not ours."""

    sm_clock_mhz: int | None = None
    event_reasons: int | None = None  # NVML's bits
    power_watts: float | None = None
    temperature_c: int | None = None
    other_processes: int | None = None
    other_pid: int = 0  # of the busiest; 0: not known
    # of the SMs, by the busiest, since the last reading
    other_utilization_percent: int | None = None
    throttled_ns: dict[str, int] | None = None  # by cause, counted since the driver was loaded

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of `event_reasons`."""
        return tuple(cause.name for cause in EVENT_REASONS if (self.event_reasons or 0) & cause.bit)


@final
class Monitor:
    """One GPU, found by UUID, because NVML's index is not CUDA's (nsight-python#35).

    Without NVML it knows nothing.
    """

    def __init__(self, uuid: str | None) -> None:
        self._pynvml: Any
        self._pynvml, self.why_not = _start() if uuid else (None, "no GPU")
        whole, part = (
            _ask(self._pynvml, "nvmlDeviceGetHandleByUUID", f"{kind}-{uuid}")
            for kind in ("GPU", "MIG")
        )
        self._handle = whole or part
        if not self._handle:
            self._pynvml, self.why_not = None, self.why_not or f"NVML does not know the GPU {uuid}"
        self.driver: str | None = _ask(self._pynvml, "nvmlSystemGetDriverVersion")
        self.power_limit_watts = self._watts("nvmlDeviceGetEnforcedPowerLimit")
        # a GPU without MIG answers by an error
        is_cut, _after_reset = self._ask("nvmlDeviceGetMigMode") or (0, 0)
        self.mig = bool(part or is_cut) if self._handle else None  # whether it is cut into slices
        self._seen_until_us = 0  # the newest sample of utilisation: NVML's clock
        self._asked_s: float | None = None  # when that was: ours
        # the last sample of each process: our clock, and percent
        self._used: dict[int, tuple[float, int]] = {}
        self.read()  # the first query of each kind takes 1 to 2 ms, the later ones some us

    def read(self, *, processes: bool = False) -> Reading:
        """Look at the GPU. A field that it does not know is None.

        Takes 50 to 130 us on an H200, whose driver refreshes these values about every 100 ms; power
        is a mean over the last second. So what has just begun is not in them yet.

        `processes` adds the counters of throttling and who else computes here: 2 to 3 ms, for
        before and after a measurement. Utilisation is that since the last such reading, and unknown
        in the first; until NVML's next sample, who used the GPU is taken to use it still. This
        process must have begun to use the GPU: in a container, where NVML may not know it by its
        number, it else takes another for itself.
        """
        power_watts = self._watts("nvmlDeviceGetPowerUsage")
        others, pid, used = self._others() if processes else (None, 0, None)
        counters = (
            self._ask("nvmlDeviceGetFieldValues", list(_COUNTERS.values())) if processes else None
        )
        counted = zip(_COUNTERS, counters or (), strict=False)
        return Reading(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            event_reasons=self._ask("nvmlDeviceGetCurrentClocksEventReasons"),
            power_watts=power_watts,
            temperature_c=self._ask("nvmlDeviceGetTemperature", _GPU_SENSOR),
            other_processes=others,
            other_pid=pid,
            other_utilization_percent=used,
            throttled_ns={
                cause: int(each.value.ullVal) for cause, each in counted if each.nvmlReturn == 0
            }
            or None,
        )

    def _watts(self, query: str) -> float | None:
        milliwatts: int | None = self._ask(query)
        return None if milliwatts is None else milliwatts / 1000

    def _ask(self, query: str, *arguments: Any, **how: Any) -> Any:
        return _ask(self._pynvml, query, self._handle, *arguments, **how)

    def _others(self) -> tuple[int | None, int, int | None]:
        """Return how many processes are not ours, the pid of the busiest, and the percentage of the
        SMs that it uses.
        """
        listed, used = self._ask("nvmlDeviceGetComputeRunningProcesses"), self._utilization()
        percent = dict.fromkeys((process.pid for process in listed or ()), 0)
        own = os.getpid()
        if len(percent) == 1 and own not in (used or ()):
            # in a container: NVML counts as the host does, and we are the one that is here
            (own,) = percent
        # Each process has samples of its own: one that this batch lacks was busy at its last.
        now = time.monotonic()
        self._used.update((pid, (now, share)) for pid, share in (used or {}).items())
        percent.update(
            (pid, share) for pid, (at, share) in self._used.items() if now - at < _SAMPLING_PERIOD_S
        )
        others = sorted(
            ((share, pid) for pid, share in percent.items() if pid != own),
            key=itemgetter(0),
            reverse=True,
        )
        if own not in percent:
            # One of them is ours, and most likely the busiest. What the second has used, another
            # has used at least.
            others = [(share, 0) for share, _ in others[1:]]
        most, pid = others[0] if others else (0, 0)
        return (
            None if listed is None else len(others),
            pid,
            most if used is not None or most else None,
        )

    def forget_others(self) -> None:
        """Forget who has used the GPU, when NVML has told: a process that has ended would pass for
        one that uses it still.
        """
        if self._handle:
            time.sleep(_SAMPLING_PERIOD_S)
            self._utilization()

    def _utilization(self) -> dict[int, int] | None:
        """Return the percent of the SMs by process since the last call, also of processes that the
        list lacks.
        """
        samples = self._ask(
            "nvmlDeviceGetProcessUtilization", self._seen_until_us, if_none_found=()
        )
        if samples is None:
            return None
        last_s, self._asked_s = self._asked_s, time.monotonic()
        # Some drivers add samples that nobody took: old, or of 4294967295 % (nvtop#110).
        taken = [
            sample
            for sample in samples
            if sample.timeStamp > self._seen_until_us and sample.smUtil <= 100
        ]
        self._seen_until_us = max(
            (sample.timeStamp for sample in taken), default=self._seen_until_us
        )
        if last_s is None or (not taken and self._asked_s - last_s < _SAMPLING_PERIOD_S):
            return None
        return {sample.pid: sample.smUtil for sample in sorted(taken, key=attrgetter("smUtil"))}


# -- what a measurement went through: readings in, reasons out -------------------------------------


def conditions_of(windows: Sequence[Sequence[Reading]]) -> Conditions | None:
    """Sum up measurements, each with its readings in order of time, and nothing between them.

    None: nothing is known.
    """
    readings = [reading for window in windows for reading in window]
    if all(reading == Reading() for reading in readings):
        return None
    clocks = _busy_clocks_mhz(readings)
    counted = [ms for window in windows if (ms := _throttled_ms(window)) is not None]
    throttled = {
        cause: sum(ms.get(cause, 0.0) for ms in counted) for each in counted for cause in each
    }
    return Conditions(
        lowest_sm_clock_mhz=min(clocks, default=None),
        median_sm_clock_mhz=float(median(clocks)) if clocks else None,
        max_temperature_c=_most(readings, "temperature_c"),
        max_power_watts=_most(readings, "power_watts"),
        throttled_ms={cause: ms for cause, ms in throttled.items() if ms > 0} if counted else None,
    )


def highest_clock_mhz(readings: Iterable[Reading]) -> int | None:
    """Return the highest SM clock of a busy GPU: what is usual, once a session has seen enough
    readings.
    """
    return max(_busy_clocks_mhz(readings), default=None)


def disturbances(
    window: Sequence[Reading], *, usual_clock_mhz: float | None = None, tolerated_drift: float = 0.0
) -> tuple[str, ...]:
    """Return why a measurement with these readings, from before it to after it, cannot be trusted:
    fragments of a sentence.

    Empty if all was well, or nothing is known. `tolerated_drift`: the share by which a clock may
    lie below the usual one.
    """
    before, later = window[0], window[1:]
    seen = {name for reading in window for name in reading.reasons}
    seen.update(cause for cause, ms in (_throttled_ms(window) or {}).items() if ms > 0)
    found = [
        f"throttled by {cause.name}"
        for cause in EVENT_REASONS
        if cause.spoils and cause.name in seen
    ]
    slowest, usual = min(_busy_clocks_mhz(window[1:-1]), default=math.inf), usual_clock_mhz or 0.0
    if slowest < (1 - tolerated_drift) * usual and _POWER_CAP not in seen:
        found.append(
            f"SM clock {slowest:.0f} MHz where {usual:.0f} is usual, and no power cap explains it"
        )
    # A process that only holds memory takes no time from us: a notebook left open, a server without
    # requests. Where nobody says what the others do, only a new one counts: it loads its data and
    # its kernels now.
    busiest = max(later, key=lambda reading: reading.other_utilization_percent or 0)
    silent = [reading for reading in later if reading.other_utilization_percent is None]
    if used := busiest.other_utilization_percent:
        pid = f" (pid {busiest.other_pid})" if busiest.other_pid else ""
        found.append(f"another process{pid} used the GPU: {used} % of its SMs")
    elif (
        before.other_processes is not None
        and (_most(silent, "other_processes") or 0) > before.other_processes
    ):
        found.append("another process has come to the GPU, and what it uses of it is not known")
    return tuple(found)


def _busy_clocks_mhz(readings: Iterable[Reading]) -> list[int]:
    """Return the known SM clocks, without those of an idle GPU: it saves power, and is not slow."""
    clocks = (reading.sm_clock_mhz for reading in readings if _IDLE not in reading.reasons)
    return [clock for clock in clocks if clock is not None]


def _throttled_ms(window: Sequence[Reading]) -> dict[str, float] | None:
    """Return the time by cause that both ends have counted.

    A counter that fell has begun again: it says nothing.
    """
    first, last = window[0].throttled_ns, window[-1].throttled_ns
    if first is None or last is None:
        return None
    return {
        cause: (last[cause] - ns) / 1e6 for cause, ns in first.items() if last.get(cause, -1) >= ns
    }


def _most(readings: Iterable[Reading], field: str) -> Any:
    return max(
        (value for reading in readings if (value := getattr(reading, field)) is not None),
        default=None,
    )
