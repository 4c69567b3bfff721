"""What one process injects and measures, and the processes of a whole run."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detection import collect, injected, run
from detection.data import NONE, WORKLOAD_IDS, Key, Level
from detection.injected import Injection, SpinTime
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.device import Device
from kernelgauge.measure.instance import build, first_call
from tests.benchmarks.processes import HALF, TEN

LINEAR = Workload("linear", "eager", lambda: nn.Linear(8, 4), lambda: (torch.randn(16, 8),), dtype="fp32")
CALIBRATION = collect.Calibration(
    own=collect.OwnTimes(device_us=200.0, dispatch=4.0, loop=0.001),
    spin=SpinTime(0.9, 0.015),
    loop_excess=0.02,
    plain_us=40.0,
    spun_us=43.0,
)


@pytest.fixture
def spun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the kernel's launch; record the turns of each launch."""
    turns: list[int] = []

    def spinner(count: int) -> Callable[[], None]:
        work = torch.arange(64.0 * count)  # random numbers would change the inputs
        return lambda: (turns.append(count), work.sort())

    monkeypatch.setattr(injected, "spinner", spinner)
    return turns


def test_slowed_workload_computes_the_same(spun: list[int]) -> None:
    assert injected.slowed(LINEAR, Injection()) is LINEAR
    workloads = injected.slowed(LINEAR, Injection(turns=120, loops=20)), LINEAR
    both, plain = (build(workload, Device()) for workload in workloads)
    assert torch.equal(both.function(*both.arguments[0]), plain.function(*plain.arguments[0]))
    assert spun == [120]


def test_slowed_compiled_workload_compiles_once(spun: list[int]) -> None:
    workload = dataclasses.replace(LINEAR, variant="compiled", compile={"backend": "eager"})
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()
    with torch.no_grad():
        for injection in (Injection(), Injection(30), Injection(40, 5)):
            first_call(build(injected.slowed(workload, injection), Device()))
    assert spun == [30, 40]
    assert not counted["graph_break"]
    assert counted["stats"]["unique_graphs"] == 1


def test_packed_launch_passes_arguments_and_raises() -> None:
    got: list[Any] = []
    pointer = ctypes.c_void_p

    @ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[ctypes.c_uint] * 7, pointer, ctypes.POINTER(pointer), pointer)
    def launch(function: int, *rest: Any) -> int:
        *sizes, stream, pointers, extra = rest
        kinds = (pointer, ctypes.c_int, ctypes.c_float)
        values = [ctypes.cast(pointers[i], ctypes.POINTER(kind))[0] for i, kind in enumerate(kinds)]
        got.append((function, sizes, stream, values, extra))
        return 400

    arguments = (pointer(4096), ctypes.c_int(77), ctypes.c_float(0.25))
    spin = injected.packed_launch(launch, pointer(11), 132, arguments, 5)
    del arguments
    with pytest.raises(RuntimeError, match="error 400"):
        spin()
    assert got == [(11, [132, 1, 1, 1, 1, 1, 0], 5, [4096, 77, 0.25], None)]


@pytest.mark.parametrize(
    ("level", "unslowed", "expected"),
    [
        (NONE, Injection(), Injection()),
        (Level("device", 0.5), Injection(), Injection(turns=27)),  # 1 us, 0.9 of it with 20 turns
        (Level("device", 0.5), Injection(20), Injection(turns=87)),  # 1 us more
        (Level("device", 0.05), Injection(), Injection(turns=1)),  # less than the shortest spin
        (TEN, Injection(), Injection(loops=320)),  # 10 % are 400 turns of 0.001, and would be 12 %
        (TEN, Injection(20), Injection(20, loops=320)),
    ],
)
def test_injection_is_a_share_of_own_time(level: Level, unslowed: Injection, expected: Injection) -> None:
    assert CALIBRATION.injection(level, unslowed) == expected


def test_calibrate_measures_what_levels_need(spun: list[int]) -> None:
    found = collect.calibrate(Device(), LINEAR, Injection(), CALIBRATION.own)
    assert 0 < found.plain_us < found.spun_us
    assert min(found.spin.turn_us, found.spin.least_us) > 0
    assert found.loop_excess > -0.1


def test_added_dispatch_is_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, looped = (build(LINEAR, Device()) for _ in range(2))
    order: list[object] = []

    def host_calls(_device: object, instance: object, calls: int) -> tuple[list[float], list[float]]:
        order.append(instance)
        return [11.8 if instance is looped else 10.0] * calls, [5.0] * calls

    monkeypatch.setattr(collect, "host_calls", host_calls)
    assert collect.added_dispatch(Device(), [plain, looped], rounds=3) == pytest.approx(0.36)  # 1.8 of 5.0
    assert order == 3 * [plain, looped]


def test_do_bench_keeps_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    do_bench = lambda _, **options: asked.update(options) or [0.2, 0.3]  # noqa: E731
    monkeypatch.setattr(pytest.importorskip("triton.testing"), "do_bench", do_bench)
    assert collect.do_bench(lambda: None, 0.5).values_us == [200.0, 300.0]
    assert asked == {"warmup": 25.0, "rep": 475.0, "return_mode": "all"}


def test_ours_measures_as_many_calls_as_the_suite() -> None:
    device = Device()
    device.most_busy_seconds = 1e-9
    taken = collect.Replicates(device, lambda replicate: build(LINEAR, device, replicate=replicate))
    taken.take()
    device_us, host_us = taken.values()
    assert device_us.shape == (1, 8)
    assert host_us.shape == (1, 8, 2)


METHODS = ("x", "y", "z")


@pytest.fixture
def collected(spun: list[int], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[collect.Collected, list[str]]]:
    """Return what one process collects with stand-ins for all methods, and their order."""
    monkeypatch.setattr(collect, "SETTLE_S", 0.0)

    def collect_once(seed: int = 0, slot: int = 0) -> tuple[collect.Collected, list[str]]:
        order: list[str] = []
        made: list[object] = []

        class Replicates(collect.Replicates):
            def __init__(self, device: object, builder: collect.CallBuilder) -> None:
                self.builder, self.taken = builder, 0
                self.controls = 4.0 + 2.0 * len(made)  # 6 for the second: the one behind a loop
                made.append(self)

            def take(self) -> None:
                assert not torch.is_grad_enabled()
                self.builder(self.taken).call()
                self.taken += 1
                order.append(f"ours {made.index(self)}")

            def values(self) -> tuple[Any, Any]:
                return np.full((self.taken, 3), 200.0), np.full((self.taken, 5, 2), (10.0 * self.controls, 10.0))

            clocks_mhz = property(lambda self: [1980.0] * self.taken)  # type: ignore[assignment]

        def method(name: str) -> Any:
            def measure(call: collect.Call, seconds: float) -> collect.Timed:
                assert not torch.is_grad_enabled()
                call()
                order.append(name)
                return collect.Timed([seconds], 0.1)

            return measure

        def calibrate(
            _device: object, _workload: object, _unslowed: object, own: collect.OwnTimes
        ) -> collect.Calibration:
            return dataclasses.replace(CALIBRATION, own=own)

        methods = {name: method(name) for name in METHODS}
        one = collect.Collector(Device(), 0.02, slot, Replicates, methods, calibrate, random.Random(seed))
        return one.collect([LINEAR], {LINEAR.id: [HALF, TEN]}), order

    return collect_once


@pytest.mark.parametrize(("slot", "level"), [(0, HALF), (1, TEN), (2, HALF)])
def test_peers_measure_one_level_and_ours_all(collected: Callable, slot: int, level: Level) -> None:
    found, _ = collected(slot=slot)
    expected = {Key(LINEAR.id, one, f"ours-{timer}") for one in (NONE, HALF, TEN) for timer in ("device", "host")}
    expected |= {Key(LINEAR.id, one, name) for one in (NONE, level) for name in METHODS}
    assert set(found.samples) == expected
    assert len(found.wall_seconds) == 3 + 2 * len(METHODS)
    assert found.injected[f"{LINEAR.id}/device+0.5%"] == {"turns": 27, "loops": 0}
    assert found.injected[f"{LINEAR.id}/host+10%"] == {"turns": 0, "loops": 3200}
    assert found.calibration[LINEAR.id]["spun_us"] == 43


def test_passes_go_round_levels_and_reference_kernels(collected: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    _, order = collected()
    passes = [name for name in order if name.startswith("ours") and name not in ("ours 0", "ours 1")]  # after own times
    assert {len(set(passes[start : start + 3])) for start in range(0, len(passes), 3)} == {3} == {len(set(passes))}
    monkeypatch.setattr(Device, "controls", (LINEAR,))
    found, _ = collected()
    count = len(found.samples[Key(LINEAR.id, NONE, "ours-device")])
    assert len(found.control_pair_us["linear"]) == len(found.clocks_mhz["linear"]) == count


def test_order_follows_the_seed(collected: Callable) -> None:
    orders = [tuple(name for name in collected(seed)[1] if name in METHODS) for seed in (0, 0, 1, 2, 3, 4)]
    assert orders[0] == orders[1]
    assert len(set(orders)) > 1


def child(source: str, timeout_s: float = 20.0) -> run.Child:
    return run.Child("process 7", (sys.executable, "-c", source), {"MARK": "here"}, timeout_s)


def test_failed_process_is_named_and_the_rest_run(capsys: pytest.CaptureFixture[str]) -> None:
    failing = child("import os, sys; print(os.environ['MARK'], file=sys.stderr); sys.exit(3)")
    assert run.run_queue([failing, child("pass")]) == ["process 7 failed: exit status 3\n    here"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["process 7: FAILED", "process 7: done"]


def test_measure_compiles_then_runs_chosen_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[run.Child] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1234")
    monkeypatch.setattr(run, "run_child", ran.append)
    chosen = list(WORKLOAD_IDS[:2])
    options = argparse.Namespace(out=tmp_path, seconds=0.5, timeout=180.0, workload=chosen, first=0, processes=8)
    assert run.measure(options) == []
    assert ran[0].command[2:] == ("--compile-only", "--workload", chosen[0], "--workload", chosen[1])
    on_first = [one.command for one in ran[1:] if one.environment["CUDA_VISIBLE_DEVICES"] == "3"]
    assert [command[command.index("--slot") + 1] for command in on_first] == ["0", "1", "2", "3"]
    assert {command[-4:] for command in on_first} == {("--workload", chosen[0], "--workload", chosen[1])}
    monkeypatch.setattr(run, "run_child", lambda one: "it fails")
    assert run.measure(options) == ["it fails"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run.measure(options) == ["no GPU is visible"]
    monkeypatch.setattr(sys, "argv", list(on_first[0][1:]))
    assert collect._arguments().workload == chosen
