"""The state of a GPU while it is measured, as NVML tells it. It is only read: nothing is ever set."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Collection, Mapping
from typing import Any, final

from ..conditions import (
    HARDWARE_POWER_BRAKE,
    HARDWARE_THERMAL,
    POWER_CAP,
    SOFTWARE_THERMAL,
    SYNC_BOOST,
    Reading,
)
from .environment import _handle

__all__ = ["Monitor"]

# Nanoseconds since the driver was loaded. An older pynvml lacks some of the names, an older driver some of the values.
_COUNTERS = {
    POWER_CAP: "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP",
    SYNC_BOOST: "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST",
    SOFTWARE_THERMAL: "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    HARDWARE_THERMAL: "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    HARDWARE_POWER_BRAKE: "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
# Of nvml.h, and part of its binary interface.
_SM_CLOCK, _MEMORY_CLOCK, _GPU_SENSOR = 1, 2, 0

# NVML samples who uses the SMs "between 1 second and 1/6 second" (nvml.h): no sample in less time is no news. On an
# H200 a process that took 99 % of the SMs was missing from a window of 60 ms.
_SAMPLING_PERIOD_S = 1.0


@final
class Monitor:
    """One GPU, found by UUID. Where there is no NVML, the monitor is there all the same, and knows nothing.

    NVML stays initialised until `close`, or until the monitor is gone.
    """

    def __init__(self, nvml: Any = None, handle: Any = None, *, why_not: str = "") -> None:
        self.why_not = why_not  # empty if it is available
        self._nvml = nvml  # the module, which has no types
        self._handle = handle
        self._shut_down = weakref.finalize(self, _shut_down, nvml)
        self._counters = {cause: field for cause, name in _COUNTERS.items() if (field := getattr(nvml, name, None))}
        self._seen_until_us = 0  # the newest sample of utilisation: NVML's clock
        self._asked_s: float | None = None  # when that was: ours
        self._max_sm_clock_mhz = self._ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)  # 1 ms, and always the same
        self.read()  # the first query of each kind takes 1 to 2 ms, the later ones some us

    @classmethod
    def open(cls, uuid: str) -> Monitor:
        """Never raises: see `available` and `why_not`."""
        try:
            import pynvml
        except ImportError as error:
            return cls(why_not=f"no NVML: {error}")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return cls(why_not=f"no NVML: {error}")
        try:
            handle, _is_mig = _handle(pynvml, uuid)
        except pynvml.NVMLError as error:
            _shut_down(pynvml)
            return cls(why_not=f"NVML does not know the GPU {uuid}: {error}")
        return cls(pynvml, handle)

    @property
    def available(self) -> bool:
        return self._nvml is not None

    def read(self, *, processes: bool = False) -> Reading:
        """A look at the GPU. What it does not tell is None.

        Takes 50 to 130 us on an H200, whose driver refreshes these values about every 100 ms; power is a mean over
        the last second. So what has just begun is not in them yet.

        `processes` adds the counters of throttling and who else computes here: 2 to 3 ms, for before and after a
        measurement. Utilisation is that since the last such reading, and unknown in the first. This process must
        have begun to use the GPU: in a container, where NVML may not know it by its number, it else takes another
        for itself.
        """
        power_milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        others, pids, utilization = _others(self._processes(), self._utilization()) if processes else (None, (), None)
        return Reading(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            max_sm_clock_mhz=self._max_sm_clock_mhz,
            event_reasons=self._event_reasons(),
            power_watts=None if power_milliwatts is None else power_milliwatts / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", _GPU_SENSOR),
            other_processes=others,
            other_pids=pids,
            other_utilization_percent=utilization,
            throttled_ns=self._throttled_ns() if processes else None,
        )

    def close(self) -> None:
        """Shut NVML down, once. A closed monitor knows nothing."""
        if self.available:
            self._shut_down()
            self._nvml, self._max_sm_clock_mhz, self.why_not = None, None, "closed"

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, query: str, *arguments: Any) -> Any:
        """One query. None: this GPU, driver or library does not answer it."""
        if self._nvml is None:
            return None
        try:
            return getattr(self._nvml, query)(self._handle, *arguments)
        except self._refusals:
            return None

    @property
    def _refusals(self) -> tuple[type[Exception], ...]:
        # A library without the function; NVML's own; and a driver older than the library, which is no NVMLError.
        mismatch = getattr(self._nvml, "NVMLLibraryMismatchError", AttributeError)
        return AttributeError, self._nvml.NVMLError, mismatch

    def _event_reasons(self) -> Any:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        # Its name until driver 535.
        return self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons

    def _throttled_ns(self) -> dict[str, int] | None:
        if not self._counters:
            return None
        values = self._ask("nvmlDeviceGetFieldValues", list(self._counters.values())) or ()
        counted = zip(self._counters, values, strict=False)
        return {cause: int(value.value.ullVal) for cause, value in counted if value.nvmlReturn == 0} or None

    def _processes(self) -> set[int] | None:
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else {process.pid for process in processes}

    def _utilization(self) -> dict[int, int] | None:
        """Percent of the SMs, by process, since it was last asked for. It also has processes that the list lacks."""
        if self._nvml is None:
            return None
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_until_us)
        except getattr(self._nvml, "NVMLError_NotFound", ()):  # there is none
            samples = []
        except self._refusals:
            return None
        last_s, self._asked_s = self._asked_s, time.monotonic()
        # Some drivers add samples that nobody took: old, or of 4294967295 % (nvtop#110).
        taken = [sample for sample in samples if sample.timeStamp > self._seen_until_us and sample.smUtil <= 100]
        self._seen_until_us = max((sample.timeStamp for sample in taken), default=self._seen_until_us)
        if last_s is None or (not taken and self._asked_s - last_s < _SAMPLING_PERIOD_S):
            return None
        return {sample.pid: sample.smUtil for sample in sorted(taken, key=lambda sample: int(sample.smUtil))}


def _others(
    listed: Collection[int] | None, used: Mapping[int, int] | None
) -> tuple[int | None, tuple[int, ...], int | None]:
    """How many processes are not ours, which, and the percentage that the busiest of them has used."""
    percent = {**dict.fromkeys(listed or (), 0), **(used or {})}
    own = os.getpid()
    if own not in percent and listed is not None and len(listed) == 1:
        (own,) = listed  # in a container: NVML counts as the host does, and we are the one that is here
    if own in percent:
        others = sorted((pid for pid in percent if pid != own), key=lambda pid: -percent[pid])
        shares = [percent[pid] for pid in others]
        pids = tuple(others) if all(others) else ()  # 0: somebody without a number here
    else:
        # One of them is ours, and most likely the busiest. What the second has used, another has used at least.
        shares = sorted(percent.values(), reverse=True)[1:]
        pids = ()
    return (
        None if listed is None else len(shares),
        pids,
        None if used is None else max(shares, default=0),
    )


def _shut_down(nvml: Any) -> None:
    if nvml is None:
        return
    with contextlib.suppress(nvml.NVMLError):  # the end of the process does the same
        nvml.nvmlShutdown()
