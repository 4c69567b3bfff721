"""An NVML that only exists here, and the clock that goes with it."""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace
from typing import Any

UUID = "8d2c2c9a-0000-1111-2222-333344445555"
OWN = os.getpid()
OTHER, ANOTHER = OWN + 1, OWN + 2
FIELDS = {"SW_POWER_CAP": 74, "SYNC_BOOST": 76, "SW_THERM_SLOWDOWN": 269, "HW_THERM_SLOWDOWN": 270}
FIELDS["HW_POWER_BRAKE_SLOWDOWN"] = 271
QUERIES = {  # and the fields of a reading that hang on it
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"max_sm_clock_mhz"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetFieldValues": {"throttled_ns"},
    "nvmlDeviceGetComputeRunningProcesses": {"other_processes"},
    "nvmlDeviceGetProcessUtilization": {"other_utilization_percent"},
}


class FakeNvml(ModuleType):
    """One GPU. What a test changes on it is what the next query answers. `failing`: calls that raise."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801
        pass

    class NVMLLibraryMismatchError(Exception):  # no NVMLError, in pynvml as here
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.known = f"GPU-{UUID}"
        self.failing: dict[str, type[Exception]] = {}
        self.open = 0
        self.asked: list[str] = []
        self.clocks = {1: 1980, 2: 3201}
        self.reasons = 0
        self.milliwatts = 420_500
        self.temperature = 50
        self.pids = [OWN]
        self.samples: list[tuple[int, int, int]] = []  # pid, microseconds, percent
        self.counters = dict.fromkeys(FIELDS.values(), 0)
        self.unsupported: set[int] = set()
        for name, field in FIELDS.items():
            setattr(self, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}", field)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("nvml"):
            self.asked.append(name)
            if name in self.failing:
                raise self.failing[name](f"{name} failed")
        return value

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.known:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return self.clocks[clock]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return {1: 1985, 2: 3205}[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self.milliwatts

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert sensor == 0
        return self.temperature

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, handle: str, last: int) -> list[Any]:
        new = [SimpleNamespace(pid=pid, timeStamp=at, smUtil=used) for pid, at, used in self.samples if at > last]
        if not new:
            raise self.NVMLError_NotFound("Not Found")
        return new

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:
        return [
            SimpleNamespace(
                nvmlReturn=3 if field in self.unsupported else 0, value=SimpleNamespace(ullVal=self.counters[field])
            )
            for field in fields
        ]


class Clock:
    """`time`, as the monitor sees it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s
