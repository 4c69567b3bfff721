"""NVML, the one client of it: which GPUs there are, how one is set, and its state while it is measured.

Nothing is ever set. No torch: asking torch would start CUDA on one of the GPUs.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, final

from .conditions import (
    HARDWARE_POWER_BRAKE,
    HARDWARE_THERMAL,
    POWER_CAP,
    SOFTWARE_THERMAL,
    SYNC_BOOST,
    Reading,
)

__all__ = ["VISIBLE", "Monitor", "digest", "digest_of", "visible_gpus"]

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Nanoseconds since the driver was loaded. An older pynvml lacks some of the names, an older driver some of the values.
_COUNTERS = {
    POWER_CAP: "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP",
    SYNC_BOOST: "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST",
    SOFTWARE_THERMAL: "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    HARDWARE_THERMAL: "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    HARDWARE_POWER_BRAKE: "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
# Of nvml.h, and part of its binary interface.
_SM_CLOCK, _GPU_SENSOR = 1, 0

# NVML samples who uses the SMs "between 1 second and 1/6 second" (nvml.h): no sample in less time is no news. On an
# H200 a process that took 99 % of the SMs was missing from a window of 60 ms.
_SAMPLING_PERIOD_S = 1.0


# -- which GPUs there are ---------------------------------------------------------------------------------------------


def visible_gpus() -> tuple[str, ...]:
    """Return what to set CUDA_VISIBLE_DEVICES to for each GPU that this process may use; empty without NVML and the variable.

    The caller's own names where the variable is set, up to the first that CUDA refuses; else the UUIDs of all, of the
    slices where a GPU is cut into some (MIG).
    """
    named = os.environ.get(VISIBLE)
    if named is None:
        with _nvml() as nvml:
            return tuple(_uuids(nvml)) if nvml else ()
    found: list[str] = []
    for name in (name.strip() for name in named.split(",")):
        if not name or name.startswith("-") or name in found:
            break  # so does CUDA: what stands behind an invalid name is not visible
        found.append(name)
    return tuple(found)


def digest(uuid: str) -> str:
    """Which GPU of its kind, for files that are shared: its UUID, with or without ``GPU-`` before it, not in clear."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    return hashlib.sha256(bare.encode()).hexdigest()[:8]


def digest_of(name: str) -> str | None:
    """Return the digest of a GPU that CUDA_VISIBLE_DEVICES names by number or by the beginning of its UUID; None: not known.

    Numbers are CUDA's, which are NVML's where all GPUs are of one model and none is cut into slices.
    """
    with _nvml() as nvml:
        uuids = list(_uuids(nvml)) if nvml else []
        alike = nvml is not None and _numbered_alike(nvml)
    if name.isdecimal() and not alike:
        return None
    if name.isdecimal():
        return digest(uuids[int(name)]) if int(name) < len(uuids) else None
    matching = [uuid for uuid in uuids if uuid.startswith(name)]
    return digest(matching[0]) if len(matching) == 1 else None


@contextmanager
def _nvml() -> Iterator[Any]:  # pynvml has no types
    """Return the module, initialised; None where there is no driver or no library."""
    nvml, _ = _initialised()
    try:
        yield nvml
    finally:
        _shut_down(nvml)


def _initialised() -> tuple[Any, str]:
    """Return the module, or None and why."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError) as error:
        return None, f"no NVML: {error}"
    except pynvml.NVMLError as error:
        return None, f"no NVML: {error}"
    return pynvml, ""


def _shut_down(nvml: Any) -> None:
    if nvml is not None:
        with suppress(nvml.NVMLError):  # the end of the process does the same
            nvml.nvmlShutdown()


def _uuids(nvml: Any) -> Iterator[str]:
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # one that has fallen off the bus
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            slices = list(_slices(nvml, gpu))
            yield from slices or [_text(nvml.nvmlDeviceGetUUID(gpu))]


def _numbered_alike(nvml: Any) -> bool:
    """CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER says PCI_BUS_ID; NVML goes by the bus."""
    try:
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        one_model = len({_text(nvml.nvmlDeviceGetName(gpu)) for gpu in gpus}) == 1
        return (by_bus or one_model) and not any(list(_slices(nvml, gpu)) for gpu in gpus)
    except nvml.NVMLError:  # one that has fallen off the bus: the others may have moved up
        return False


def _slices(nvml: Any, gpu: Any) -> Iterator[str]:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if current else 0
    except nvml.NVMLError:  # a GPU without MIG says so by an error
        return
    for index in range(most):
        with suppress(nvml.NVMLError):  # a place that is free
            yield _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older versions give bytes


# -- one GPU ----------------------------------------------------------------------------------------------------------


@final
class Monitor:
    """One GPU, found by UUID. Where there is no NVML, the monitor is there all the same, and knows nothing.

    NVML stays initialised until the monitor is gone.
    """

    def __init__(self, nvml: Any = None, handle: Any = None, *, is_slice: bool = False, why_not: str = "") -> None:
        self.why_not = why_not  # empty if it is available
        self._nvml = nvml  # the module, which has no types
        self._handle = handle
        self._is_slice = is_slice
        weakref.finalize(self, _shut_down, nvml)
        self._counters = {cause: field for cause, name in _COUNTERS.items() if (field := getattr(nvml, name, None))}
        self._seen_until_us = 0  # the newest sample of utilisation: NVML's clock
        self._asked_s: float | None = None  # when that was: ours
        self._others_used = (-math.inf, 0)  # the last sample of another process: our clock, and percent
        self.read()  # the first query of each kind takes 1 to 2 ms, the later ones some us

    @classmethod
    def open(cls, uuid: str) -> Monitor:
        """Find a GPU by UUID, because NVML's index is not CUDA's (nsight-python#35). Never raises: see `why_not`."""
        nvml, why_not = _initialised()
        if nvml is None:
            return cls(why_not=why_not)
        with suppress(nvml.NVMLError):
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
        try:
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}"), is_slice=True)
        except nvml.NVMLError as error:
            _shut_down(nvml)
            return cls(why_not=f"NVML does not know the GPU {uuid}: {error}")

    @property
    def available(self) -> bool:
        return self._nvml is not None

    @property
    def driver(self) -> str | None:
        """Version of the driver."""
        return self._query("nvmlSystemGetDriverVersion")  # type: ignore[no-any-return]

    @property
    def power_limit_watts(self) -> float | None:
        milliwatts = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return None if milliwatts is None else float(milliwatts) / 1000

    @property
    def mig(self) -> bool | None:
        """Whether the GPU is cut into slices. A GPU without MIG answers by an error."""
        if not self.available:
            return None
        current, _pending = self._ask("nvmlDeviceGetMigMode") or (False, False)
        return self._is_slice or bool(current)

    def read(self, *, processes: bool = False) -> Reading:
        """Look at the GPU. A field that it does not know is None.

        Takes 50 to 130 us on an H200, whose driver refreshes these values about every 100 ms; power is a mean over
        the last second. So what has just begun is not in them yet.

        `processes` adds the counters of throttling and who else computes here: 2 to 3 ms, for before and after a
        measurement. Utilisation is that since the last such reading, and unknown in the first. NVML samples it about
        once a second: until the next sample, who used the GPU is taken to use it still. This process must have begun
        to use the GPU: in a container, where NVML may not know it by its number, it else takes another for itself.
        """
        power_milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        others, pids, utilization = _others(self._processes(), self._utilization()) if processes else (None, (), None)
        return Reading(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            event_reasons=self._event_reasons(),
            power_watts=None if power_milliwatts is None else power_milliwatts / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", _GPU_SENSOR),
            other_processes=others,
            other_pids=pids,
            other_utilization_percent=self._still_used(utilization) if processes else None,
            throttled_ns=self._throttled_ns() if processes else None,
        )

    def _ask(self, query: str, *arguments: Any) -> Any:
        """Ask about this GPU. None: the GPU, driver or library does not answer."""
        return self._query(query, self._handle, *arguments)

    def _query(self, query: str, *arguments: Any) -> Any:
        if self._nvml is None:
            return None
        try:
            return getattr(self._nvml, query)(*arguments)
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

    def _still_used(self, percent: int | None) -> int | None:
        """Return what others use; what they used by the last sample, if there is no newer one."""
        if percent is not None and self._asked_s is not None:
            self._others_used = self._asked_s, percent
        sampled_s, last = self._others_used
        if percent is None and last and self._asked_s is not None and self._asked_s - sampled_s < _SAMPLING_PERIOD_S:
            return last
        return percent


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
