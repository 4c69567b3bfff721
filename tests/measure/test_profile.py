"""A session of the profiler is believed only if its records pair, its iterations are alike, and it was held."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kernelgauge.errors import MeasurementError, StorageError
from kernelgauge.measure import Settings
from kernelgauge.measure.device import Device
from kernelgauge.measure.instance import build
from kernelgauge.measure.profile import exported, profile_session
from kernelgauge.trace import REGION, parse
from tests.builders import Event, call
from tests.measure.conftest import QUICK, FakeGpu, measured, tiny


def first(events: list[Event], category: str) -> Event:
    return next(each for each in events if each["cat"] == category)


def last(events: list[Event], name: str) -> Event:
    return next(each for each in reversed(events) if each["name"] == name)


def synchronizing(events: list[Event]) -> Event:
    return call(None, first(events, "cuda_runtime")["ts"] + 1, name="cudaDeviceSynchronize")


Damage = Callable[[list[Event]], object]
DAMAGES: dict[str, Damage] = {  # by what is said of it
    "lost: cudaLaunchKernel": lambda events: events.remove(first(events, "kernel")),
    "duplicated: ": lambda events: events.append(deepcopy(first(events, "kernel"))),
    "lost: 2 of 3 iterations are in the trace": lambda events: events.remove(last(events, REGION)),
    "the iterations differ: 2 launch sequences, of [2] launches": lambda events: last(events, "gelu")["args"].update(grid=[7, 1, 1]),
    "the iterations differ in launch calls: ": lambda events: first(events, "cuda_runtime").update(name="cuLaunchKernelEx"),
    "the iterations differ in synchronizations: ": lambda events: events.append(synchronizing(events)),
    "bad duration: ": lambda events: first(events, "kernel").update(dur=-1),
}  # fmt: skip


@pytest.mark.parametrize(("words", "damage"), DAMAGES.items(), ids=DAMAGES)
def test_session_is_repeated_until_it_is_sound(gpu: FakeGpu, words: str, damage: Damage) -> None:
    gpu.damages = [damage] * 2
    assert measured(gpu, gpu.workload(kernels=("gemm", "gelu"))).run.counts.launches == 2
    assert gpu.sessions == 3 + QUICK.replicates
    for sound in (0, 1):  # the session of the structure, and that of the times
        gpu.sessions, gpu.damages = 0, [lambda _: None] * sound + [damage] * 3
        with pytest.raises(MeasurementError) as raised:
            measured(gpu, gpu.workload(kernels=("gemm", "gelu")))
        assert raised.value.what == "a-eager-fp32: the profiler's records cannot be trusted"
        assert words in (raised.value.got or "")
        assert "in each of 3 sessions" in (raised.value.got or "")
        assert gpu.sessions == sound + 3


def holds(gpu: FakeGpu, replicates: int, **launch: Any) -> list[float]:
    """Measure two launches; return how long the device was held in each session."""
    settings = Settings(replicates=replicates, most_replicates=replicates, iterations=10, warm_up_seconds=0)
    measured(gpu, gpu.workload(kernels=("gemm", "gelu"), launch=launch), settings)
    held = [float(each.removeprefix("hold ")) for each in gpu.diary if each.startswith("hold")]
    return held[:: len(held) // (gpu.sessions - 1)]


@pytest.mark.parametrize(
    ("dispatch_us", "replicates", "expected"),  # of one session after the other
    [
        ([5.0], 1, [50.0]),
        ([50.0], 1, [150.0]),
        ([1e4], 1, [20_000.0]),
        ([50.0, 500.0], 1, [150.0, 300.0, 600.0]),
        ([5000.0, 30_000.0], 1, [15_000.0, 20_000.0]),
        ([50.0, 200.0, 200.0, 5.0], 3, [150.0, 300.0, 300.0, 300.0]),
        ([1000.0, 100.0, 20.0], 3, [3000.0, 300.0, 300.0]),
    ],
    ids=["least", "dispatch and a half", "most", "doubled", "gives up", "one that grew stays", "shortened once"],
)
def test_hold_lasts_until_calls_are_dispatched(gpu: FakeGpu, dispatch_us: Any, replicates: int, expected: Any) -> None:
    gpu.dispatch_us, *later = dispatch_us
    gpu.damages = [lambda _, us=us: setattr(gpu, "dispatch_us", us) for us in later]
    assert holds(gpu, replicates) == expected


def test_hold_stays_if_calls_wait(gpu: FakeGpu) -> None:
    gpu.dispatch_us = 50.0
    gpu.damages = [lambda _: setattr(gpu, "dispatch_us", 200.0)]
    assert holds(gpu, 2, synchronizes=True) == [150.0, 150.0]


def test_hold_is_that_of_nearly_all_calls(gpu: FakeGpu) -> None:
    """One slow call of ten does not make every later session long."""
    gpu.dispatch_us = 1000.0
    gpu.damages = [lambda _: setattr(gpu, "dispatch_us", 100.0), lambda events: last(events, REGION).update(dur=1500.0)]
    assert holds(gpu, 2) == [3000.0, 300.0]


def diary_of(gpu: FakeGpu, **how: Any) -> list[str]:
    instance = build(gpu.workload(), gpu)
    gpu.diary.clear()
    profile_session(gpu, instance, **how)
    return gpu.diary


def test_session_holds_flushes_calls_and_waits(gpu: FakeGpu) -> None:
    assert diary_of(gpu, iterations=2, hold_us=70.0) == ["flush", "hold 70", "call", "synchronize"] * 4


@pytest.mark.parametrize(("iterations", "warmup", "looks"), [(14, 2, [8, 16]), (3, 1, [5])])
def test_session_looks_while_the_device_works(gpu: FakeGpu, iterations: int, warmup: int, looks: list[int]) -> None:
    seen: list[tuple[int, str]] = []
    read = lambda: seen.append((gpu.diary.count("call"), gpu.diary[-1]))  # noqa: E731
    gpu.monitor = SimpleNamespace(read=read)
    diary_of(gpu, iterations=iterations, warmup=warmup, hold_us=1.0)
    assert seen == [(calls, "call") for calls in looks]
    diary_of(gpu, iterations=iterations, warmup=warmup)
    assert len(seen) == len(looks)  # where nothing is timed, nobody looks


@pytest.mark.parametrize("is_structure", [True, False])
def test_session_has_a_window_for_each_iteration(cpu: Device, is_structure: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the profiler's own warning about its cycles is kept from the user
        session = profile_session(cpu, build(tiny(), cpu), iterations=3, is_structure=is_structure)
    assert [[each.identity.name for each in row] for row in session.executions] == [["aten::addmm"]] * 3
    assert [each.name for each in session.windows] == [REGION] * 3
    assert session.was_held  # a CPU has nothing to hold
    assert parse(session.trace_json) == session.trace
    assert len(session.trace.steps()) == 3
    (addmm,) = (each for each in session.windows[0].ops if each.name == "aten::addmm")
    assert addmm.input_shapes[:3] == (((3,), (5, 4), (4, 3)) if is_structure else ())
    assert ("aten::addmm" in session.table) is is_structure


def test_exported_trace_that_is_not_written_is_no_fault_of_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(StorageError, match=f"df -h {tmp_path}"):
        exported(Mock())
