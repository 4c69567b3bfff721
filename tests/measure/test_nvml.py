"""NVML: the state of one GPU, its settings, who else computes there, and which GPUs there are."""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernelgauge.measure.nvml import (
    VISIBLE,
    Monitor,
    Reading,
    conditions_of,
    digest,
    digest_of,
    disturbances,
    visible_gpus,
)
from kernelgauge.run import Conditions
from tests.measure.conftest import Clock

UUID = "8d2c2c9a-0000-1111-2222-333344445555"
OWN = os.getpid()
OTHER, ANOTHER = OWN + 1, OWN + 2
Samples = list[tuple[int, int, int]]  # pid, microseconds, percent

NvmlError = type("NvmlError", (Exception,), {})
NvmlNotFoundError = type("NvmlNotFoundError", (NvmlError,), {})
# of a driver older than the library: pynvml's is no NVMLError
MismatchError = type("MismatchError", (Exception,), {})


class FakeNvml:
    """pynvml on a machine with these GPUs. What a test changes is what the next query answers.

    `gpus`: UUIDs; "lost" has fallen off the bus. `slices`: UUIDs by GPU. `failing`: queries that
    raise. `bogus_samples`: those that nobody took, whatever is asked for (nvtop#110).
    """

    NVMLError, NVMLError_NotFound = NvmlError, NvmlNotFoundError

    def __init__(self) -> None:
        self.gpus = [f"GPU-{UUID}"]
        self.slices: dict[str, list[str]] = {}
        self.failing: dict[str, type[Exception]] = {}
        self.reasons, self.mig, self.pids = 0, [0, 1], [OWN]
        self.samples, self.bogus_samples = Samples(), Samples()

    def __getattr__(self, query: str) -> Any:
        if query in self.failing:
            raise self.failing[query](f"{query} failed")
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: found(
                self.gpus[index], self.gpus[index] != "lost"
            ),
            "nvmlDeviceGetHandleByUUID": lambda uuid: found(uuid, uuid in self.gpus),
            "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self.slice,
            "nvmlDeviceGetUUID": lambda gpu: gpu,
            "nvmlDeviceGetMigMode": lambda _: self.mig,  # now, and after the next reset
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_500,
            "nvmlDeviceGetPowerUsage": lambda _: 420_500,
            "nvmlDeviceGetClockInfo": lambda _, clock: {1: 1980, 2: 3201}[clock],
            "nvmlDeviceGetTemperature": lambda _, sensor: {0: 50}[sensor],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.reasons,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid) for pid in self.pids
            ],
            "nvmlDeviceGetProcessUtilization": self.utilization,
            "nvmlDeviceGetFieldValues": lambda _, fields: [value(1000 * field) for field in fields],
        }
        if query not in answers:
            raise AttributeError(query)
        return answers[query]

    def slice(self, gpu: str, place: int) -> str:
        slices = self.slices.get(gpu, [])[place:]
        return found(slices and slices[0], bool(slices))

    def utilization(self, _: str, last: int) -> list[Any]:
        answer = [sample for sample in self.samples if sample[1] > last] + self.bogus_samples
        return found(
            [SimpleNamespace(pid=pid, timeStamp=at, smUtil=used) for pid, at, used in answer],
            bool(answer),
        )


def found(answer: Any, is_there: bool) -> Any:
    if not is_there:
        raise NvmlNotFoundError("Not Found")
    return answer


def value(nanoseconds: int) -> Any:
    return SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=nanoseconds))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv(VISIBLE, raising=False)
    return fake


COUNTERS = {
    "power cap": 74,
    "sync boost": 76,
    "software thermal slowdown": 269,
    "hardware thermal slowdown": 270,
}
COUNTERS["hardware power brake"] = 271
GPUS = ["GPU-0f9bcc5d-e367", "GPU-0f61ecf9-10f2", "GPU-bf353cdb-676b"]


def second_reading(clock: Clock, happens: Callable[[], object] = lambda: None) -> Reading:
    """Read twice with a second and an event between: of which time the samples of the first are,
    nobody knows.
    """
    monitor = Monitor(UUID)
    assert monitor.read(processes=True).other_utilization_percent is None
    happens()
    clock.advance(1e6)
    return monitor.read(processes=True)


def test_reading_is_the_state_of_the_gpu(nvml: FakeNvml) -> None:
    nvml.reasons = 4
    monitor = Monitor(UUID)
    assert not monitor.why_not
    assert monitor.read() == Reading(
        sm_clock_mhz=1980, event_reasons=4, power_watts=420.5, temperature_c=50
    )
    assert monitor.read(processes=True).throttled_ns == {
        cause: 1000 * field for cause, field in COUNTERS.items()
    }


@pytest.mark.parametrize("error", [NvmlError, MismatchError, AttributeError])
def test_reading_lacks_what_no_query_tells(
    nvml: FakeNvml, clock: Clock, error: type[Exception]
) -> None:
    known = second_reading(clock)
    assert None not in (getattr(known, field) for field in Reading.__struct_fields__)
    asked = (
        "ClockInfo",
        "PowerUsage",
        "Temperature",
        "FieldValues",
        "ComputeRunningProcesses",
        "ProcessUtilization",
    )
    nvml.failing = {f"nvmlDeviceGet{each}": error for each in asked}
    assert second_reading(clock) == Reading(event_reasons=0)


@pytest.mark.parametrize("failing", [None, "nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_monitor_without_library_driver_or_gpu_knows_nothing(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, failing: str | None
) -> None:
    nvml.failing = {str(failing): NvmlError}
    if not failing:
        monkeypatch.setitem(sys.modules, "pynvml", None)  # makes the import raise ImportError
        assert visible_gpus() == ()
    monitor = Monitor(UUID)
    assert (bool(monitor.why_not), monitor.read(), monitor.read(processes=True)) == (
        True,
        Reading(),
        Reading(),
    )
    assert (monitor.driver, monitor.power_limit_watts, monitor.mig) == (None, None, None)


OTHERS = {
    "own": ([OWN], [(OWN, 5, 97)], (0, 0, 0)),
    "others": (
        [OWN, OTHER, ANOTHER],
        [(OWN, 5, 30), (OTHER, 6, 2), (ANOTHER, 6, 63)],
        (2, ANOTHER, 63),
    ),
    "the most it used": (
        [OWN, OTHER],
        [(OTHER, 5, 3), (OTHER, 6, 63), (OTHER, 7, 0)],
        (1, OTHER, 63),
    ),
    "not listed": ([OWN], [(OTHER, 6, 63)], (1, OTHER, 63)),
    "no sample in a second": ([OWN, OTHER], [], (1, OTHER, 0)),
    # In a container NVML counts processes as the host does.
    "container, one": ([OTHER], [(OTHER, 5, 97)], (0, 0, 0)),
    "container, one listed": ([OTHER], [(OTHER, 5, 30), (ANOTHER, 5, 60)], (1, ANOTHER, 60)),
    "container, several": (
        [OTHER, ANOTHER, OWN + 3],
        [(OTHER, 5, 90), (ANOTHER, 5, 20)],
        (2, 0, 20),
    ),
}


def others(reading: Reading) -> tuple[int | None, int, int | None]:
    return reading.other_processes, reading.other_pid, reading.other_utilization_percent


@pytest.mark.parametrize(("pids", "samples", "expected"), OTHERS.values(), ids=OTHERS)
def test_reading_has_other_processes(
    nvml: FakeNvml, clock: Clock, pids: Any, samples: Any, expected: Any
) -> None:
    nvml.pids = pids
    assert others(second_reading(clock, lambda: nvml.samples.extend(samples))) == expected


def test_reading_without_a_new_sample_has_the_last(nvml: FakeNvml, clock: Clock) -> None:
    nvml.pids = [OWN, OTHER]
    monitor = Monitor(UUID)

    def used(*sample: tuple[int, int, int], after_us: float = 1e5) -> int | None:
        nvml.samples += sample
        clock.advance(after_us)  # a replicate takes less than NVML's period
        return others(monitor.read(processes=True))[2]

    assert [used(), used((OTHER, 5, 63), after_us=1e6)] == [None, 63]
    assert [used() for _ in range(12)] == [63] * 9 + [None] * 3
    assert [used((OTHER, 20, 40)), used((OWN, 21, 9)), used((OTHER, 22, 0)), used()] == [
        40,
        40,
        0,
        None,
    ]


def test_process_that_has_ended_is_forgotten(nvml: FakeNvml) -> None:
    monitor = Monitor(UUID)
    monitor.read(processes=True)
    nvml.samples.append((OTHER, 5, 63))  # a process that this one has waited for
    monitor.forget_others()
    assert [others(monitor.read(processes=True)) for _ in range(2)] == [(0, 0, None)] * 2


def test_reading_drops_samples_nobody_took(nvml: FakeNvml, clock: Clock) -> None:
    nvml.pids, nvml.samples = [OWN, OTHER], [(OTHER, 50, 1)]
    nvml.bogus_samples = [(OTHER, 20, 99), (ANOTHER, 10**18, 4_294_967_295)]
    assert others(second_reading(clock, lambda: nvml.samples.append((OTHER, 60, 7)))) == (
        1,
        OTHER,
        7,
    )


@pytest.mark.parametrize(
    ("gpu", "failing", "expected"),
    [
        ("GPU", "nvmlDeviceGetMigMode", ("580.159.04", 700.5, False)),
        ("GPU", "nvmlSystemGetDriverVersion", (None, 700.5, True)),
        ("MIG", "nvmlDeviceGetMigMode", ("580.159.04", 700.5, True)),
    ],
)
def test_monitor_knows_the_settings_of_its_gpu(
    nvml: FakeNvml, gpu: str, failing: str, expected: object
) -> None:
    nvml.gpus, nvml.mig, nvml.failing = [f"{gpu}-{UUID}"], [1, 0], {failing: NvmlError}
    monitor = Monitor(UUID)
    assert (monitor.driver, monitor.power_limit_watts, monitor.mig) == expected


# two begin with GPU-0f
NAMES = {"1": 1, GPUS[1]: 1, "GPU-0f61": 1, "3": None, "GPU-0f": None, "GPU-nobody": None}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, GPUS),
        (" 1 , 0 ", ["1", "0"]),
        ("GPU-0f9b", ["GPU-0f9b"]),
        ("0,-1,1", ["0"]),
        ("0,,1", ["0"]),
        ("", []),
    ],
)
def test_visible_gpus_are_as_cuda_reads_the_variable(
    monkeypatch: Any, nvml: Any, visible: Any, found: Any
) -> None:
    nvml.gpus = GPUS
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    assert visible_gpus() == tuple(found)
    bare = GPUS[1].removeprefix("GPU-")
    assert digest(f"MIG-{bare}") == digest(bare) != digest(GPUS[0])
    assert {name: digest_of(name) for name in NAMES} == {
        name: gpu and digest(bare) for name, gpu in NAMES.items()
    }


def test_visible_gpus_are_slices_where_one_is_cut_and_not_lost(nvml: FakeNvml) -> None:
    nvml.gpus, nvml.slices = [GPUS[0], "lost", GPUS[1]], {GPUS[1]: ["MIG-a", "MIG-b"]}
    assert visible_gpus() == (GPUS[0], "MIG-a", "MIG-b")
    assert digest_of("MIG-b") == digest("MIG-b")


# -- what readings say of a measurement ------------------------------------------------------------

IDLE, _, CAP, _, BOOST, _, HEAT, _ = (1 << bit for bit in range(8))
SLOW = "SM clock 1500 MHz where 1980 is usual, and no power cap explains it"
HOT = "throttled by hardware thermal slowdown"
BUSY = "another process (pid 4711) used the GPU: 63 % of its SMs"
NEW = "another process has come to the GPU, and what it uses of it is not known"


def counted(**rose_ms: float) -> dict[str, int]:
    """Return counters of throttling that rose by this since `well`: `power_cap=12`."""
    return {
        cause: 7_000_000_000 + int(1e6 * rose_ms.get(cause.replace(" ", "_"), 0))
        for cause in COUNTERS
    }


def well(**changed: Any) -> Reading:
    """Return the reading of a busy H200 on which all is well."""
    zero = dict.fromkeys(("event_reasons", "other_processes", "other_utilization_percent"), 0)
    known = {
        "sm_clock_mhz": 1980,
        "power_watts": 420.0,
        "temperature_c": 50,
        "throttled_ns": counted(),
    }
    return Reading(**(zero | known | changed))


ALONE: dict[str, Any] = {"other_processes": 1, "other_pid": 4711}
USES, SILENT = ({**ALONE, "other_utilization_percent": used} for used in (63, None))
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], tuple[str, ...]]] = {
    "calm": ({}, [{}], {}, ()),
    "no reading in between": (
        {},
        [],
        {"throttled_ns": counted(hardware_thermal_slowdown=12)},
        (HOT,),
    ),
    "counted a little": (
        {},
        [{}],
        {"throttled_ns": counted(hardware_thermal_slowdown=0.5)},
        (HOT,),
    ),
    "counters began again": ({}, [{}], {"throttled_ns": dict.fromkeys(COUNTERS, 5)}, ()),
    "power cap counted": ({}, [{}], {"throttled_ns": counted(power_cap=60, sync_boost=60)}, ()),
    "heat under a power cap": ({}, [{"event_reasons": CAP | HEAT}], {}, (HOT,)),
    "slowest clock": (
        {},
        [{"sm_clock_mhz": 1800}, {"sm_clock_mhz": 1500}, {"sm_clock_mhz": 1700}],
        {},
        (SLOW,),
    ),
    "a little slow": ({}, [{"sm_clock_mhz": 1780}], {}, (SLOW.replace("1500", "1780"),)),
    "slow outside": ({"sm_clock_mhz": 345}, [{}], {"sm_clock_mhz": 345}, ()),
    "slow when idle": ({}, [{"sm_clock_mhz": 345, "event_reasons": IDLE}], {}, ()),
    "slow, capped after": ({}, [{"sm_clock_mhz": 1500}], {"event_reasons": CAP}, ()),
    "slow, cap counted": (
        {},
        [{"sm_clock_mhz": 1500}],
        {"throttled_ns": counted(power_cap=0.1)},
        (),
    ),
    "slow, sync boost": ({}, [{"sm_clock_mhz": 1500, "event_reasons": BOOST}], {}, (SLOW,)),
    "other is busy": ({}, [{}], USES, (BUSY,)),
    "other was busy before": (USES, [{}], {}, ()),
    "other holds memory": ({}, [{}], ALONE, ()),
    "other came": (
        {"other_processes": 1, "other_pid": 8},
        [{}],
        {**SILENT, "other_processes": 2},
        (NEW,),
    ),
    "others were there": (SILENT, [SILENT], SILENT, ()),
    "no list from before": ({"other_processes": None}, [{}], SILENT, ()),
}


@pytest.mark.parametrize(("before", "during", "after", "expected"), CASES.values(), ids=CASES)
def test_disturbances_name_what_spoils(
    before: Any, during: Any, after: Any, expected: tuple[str, ...]
) -> None:
    window = [well(**each) for each in (before, *during, after)]
    assert disturbances(window, usual_clock_mhz=1980, tolerated_drift=0.03) == expected


def test_conditions_hold_extremes_of_all_measurements() -> None:
    """What rose between two of them is not theirs."""
    readings = [
        well(sm_clock_mhz=345, event_reasons=IDLE),
        well(sm_clock_mhz=1980, power_watts=640.5, temperature_c=55),
        well(sm_clock_mhz=1500, event_reasons=CAP),
        well(sm_clock_mhz=1800, temperature_c=58, throttled_ns=counted(power_cap=1.5)),
    ]
    later = [well(sm_clock_mhz=1700, throttled_ns=counted(power_cap=ms)) for ms in (500, 530)]
    throttled = {"power cap": pytest.approx(31.5)}
    expected = Conditions(1500, 1700.0, 58, 640.5, throttled)
    assert conditions_of([readings, later]) == expected
