"""What one process injects and measures."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from detection import collect, injected, peers
from detection.data import Key
from detection.injected import Injection, SpinTime
from detection.levels import NONE, Level
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.device import CpuDevice
from kernelgauge.measure.instance import build, first_call
from tests.benchmarks.processes import HALF, TEN

LINEAR = Workload("linear", "eager", lambda: nn.Linear(8, 4), lambda: (torch.randn(16, 8),), dtype="fp32")
CALIBRATION = collect.Calibration(
    own=collect.OwnTimes(device_us=200.0, dispatch=4.0, loop=0.001),
    spin=SpinTime(0.9, 0.015),
    plain_us=40.0,
    spun_us=43.0,
)


@pytest.fixture
def spun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the kernel's launch; the turns of each launch are recorded."""
    turns: list[int] = []

    def spinner(count: int) -> Callable[[], None]:
        work = torch.arange(64.0 * count)  # random numbers would change the inputs

        def launch() -> None:
            turns.append(count)
            work.sort()

        return launch

    monkeypatch.setattr(injected, "spinner", spinner)
    return turns


class TestInjection:
    def test_slowed_by_nothing_is_the_workload(self) -> None:
        assert injected.slowed(LINEAR, Injection()) is LINEAR

    def test_slowed_workload_computes_the_same(self, spun: list[int]) -> None:
        device = CpuDevice()
        original = build(LINEAR, device)
        both = build(injected.slowed(LINEAR, Injection(turns=120, loops=3)), device)
        assert torch.equal(original.outputs(), both.outputs())
        assert spun == [120]

    def test_slowed_compiled_workload_compiles_once(self, spun: list[int]) -> None:
        workload = Workload(
            "linear", "compiled", LINEAR.build, LINEAR.inputs, dtype="fp32", compile={"backend": "eager"}
        )
        torch._dynamo.reset()
        counted = torch._dynamo.utils.counters
        counted.clear()
        with torch.no_grad():
            for injection in (Injection(), Injection(30), Injection(40, 5)):
                first_call(build(injected.slowed(workload, injection), CpuDevice()))
        assert spun == [30, 40]
        assert not counted["graph_break"]
        assert counted["stats"]["unique_graphs"] == 1

    def test_delayed_call_takes_longer_by_its_loops(self) -> None:
        def seconds(loops: int) -> float:
            call = injected.delayed(lambda: None, loops)
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

        assert seconds(2_000_000) > 10 * seconds(2_000)

    def test_packed_launch_passes_each_argument(self) -> None:
        got: list[Any] = []
        numbers = [ctypes.c_uint] * 7

        @ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, *numbers, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
        )
        def launch(function: int, *rest: Any) -> int:
            *sizes, stream, pointers, extra = rest
            turns = ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_int))[0]
            value = ctypes.cast(pointers[2], ctypes.POINTER(ctypes.c_float))[0]
            sink = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_void_p))[0]
            got.append((function, sizes, stream, sink, turns, value, extra))
            return 0

        arguments = (ctypes.c_void_p(4096), ctypes.c_int(77), ctypes.c_float(0.25))
        spin = injected.packed_launch(launch, ctypes.c_void_p(11), 132, arguments, 5)
        del arguments
        spin()
        assert got == [(11, [132, 1, 1, 1, 1, 1, 0], 5, 4096, 77, 0.25, None)]

    def test_packed_launch_that_fails_raises(self) -> None:
        spin = injected.packed_launch(lambda *_: 400, ctypes.c_void_p(11), 132, (), 0)
        with pytest.raises(RuntimeError, match="error 400"):
            spin()

    @pytest.mark.parametrize(("microseconds", "turns"), [(0.9, 20), (1.05, 30), (0.1, 1)])
    def test_spin_turns_last_so_long(self, microseconds: float, turns: int) -> None:
        assert CALIBRATION.spin.turns(microseconds) == turns


class TestCalibration:
    @pytest.mark.parametrize(
        ("level", "unslowed", "expected"),
        [
            (NONE, Injection(), Injection()),
            (Level("device", 0.5), Injection(), Injection(turns=27)),  # 1 us, 0.9 of it with 20 turns
            (Level("device", 0.5), Injection(20), Injection(turns=87)),  # 1 us more
            (TEN, Injection(), Injection(loops=400)),
            (TEN, Injection(20), Injection(20, loops=400)),
        ],
    )
    def test_injection_is_a_share_of_own_time(self, level: Level, unslowed: Injection, expected: Injection) -> None:
        assert CALIBRATION.injection(level, unslowed) == expected

    def test_calibrate_measures_what_levels_need(self, spun: list[int]) -> None:
        found = collect.calibrate(CpuDevice(), LINEAR, CALIBRATION.own)
        assert 0 < found.plain_us < found.spun_us
        assert found.spin.turn_us > 0
        assert found.spin.least_us > 0


class TestPeersMeasuring:
    @pytest.mark.parametrize("method", ["blocked_autorange", "pytest_benchmark"])
    def test_method_ends_in_time(self, method: str) -> None:
        def call() -> None:
            until = time.perf_counter() + 300e-6
            while time.perf_counter() < until:
                pass

        timed = peers.METHODS[method](call, 0.4)
        assert 0.2 < timed.wall_seconds < 1.0
        assert 300 <= float(np.median(timed.values_us)) < 6000  # microseconds; a busy machine makes them longer

    def test_do_bench_keeps_every_value(self, monkeypatch: pytest.MonkeyPatch) -> None:
        testing = pytest.importorskip("triton.testing")
        asked: dict[str, Any] = {}

        def do_bench(call: object, **options: Any) -> list[float]:
            asked.update(options)
            return [0.2, 0.3]

        monkeypatch.setattr(testing, "do_bench", do_bench)
        assert peers.do_bench(lambda: None, 0.5).values_us == [200.0, 300.0]
        assert asked == {"warmup": 25.0, "rep": 475.0, "return_mode": "all"}


class TestCollecting:
    METHODS = ("x", "y", "z")

    def collected(self, seed: int = 0, slot: int = 0) -> tuple[collect.Collected, list[str]]:
        order: list[str] = []
        made: list[object] = []

        class Replicates:
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

            @property
            def clocks_mhz(self) -> list[float | None]:
                return [1980.0] * self.taken

        def method(name: str) -> Any:
            def measure(call: peers.Call, seconds: float) -> peers.Timed:
                assert not torch.is_grad_enabled()
                call()
                order.append(name)
                return peers.Timed([seconds], 0.1)

            return measure

        collector = collect.Collector(
            device=CpuDevice(),
            seconds=0.02,
            slot=slot,
            replicates=Replicates,
            methods={name: method(name) for name in self.METHODS},
            calibrate=lambda _device, _workload, own: replace(CALIBRATION, own=own),
            chance=random.Random(seed),
        )
        return collector.collect([LINEAR], {LINEAR.id: [HALF, TEN]}), order

    @pytest.fixture(autouse=True)
    def _without_pauses(self, spun: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(collect, "SETTLE_S", 0.0)

    @pytest.mark.parametrize(("slot", "level"), [(0, HALF), (1, TEN), (2, HALF)])
    def test_peers_measure_one_level_and_ours_all(self, slot: int, level: Level) -> None:
        collected, _ = self.collected(slot=slot)
        expected = {Key(LINEAR.id, one, f"ours-{timer}") for one in (NONE, HALF, TEN) for timer in ("device", "host")}
        expected |= {Key(LINEAR.id, one, name) for one in (NONE, level) for name in self.METHODS}
        assert set(collected.samples) == expected
        assert len(collected.wall_seconds) == 3 + 2 * len(self.METHODS)

    def test_injections_are_recorded(self) -> None:
        collected, _ = self.collected()
        assert collected.injected[f"{LINEAR.id}/device+0.5%"] == {"turns": 27, "loops": 0}
        assert collected.injected[f"{LINEAR.id}/host+10%"] == {"turns": 0, "loops": 4000}
        assert collected.calibration[LINEAR.id]["spun_us"] == 43

    def test_ours_goes_round_all_levels(self) -> None:
        _, order = self.collected()
        own = [name for name in order if name.startswith("ours")]
        passes = [name for name in own if name not in ("ours 0", "ours 1")]  # after the workload's own times
        assert len(set(passes)) == 3
        for start in range(0, len(passes), 3):
            assert len(set(passes[start : start + 3])) == 3

    def test_reference_kernels_are_in_every_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CpuDevice, "controls", (LINEAR,))
        collected, _ = self.collected()
        count = len(collected.control_pair_us["linear"])
        assert count == len(collected.samples[Key(LINEAR.id, NONE, "ours-device")])
        assert len(collected.clocks_mhz["linear"]) == count

    def test_order_follows_the_seed(self) -> None:
        def peers_order(seed: int) -> list[str]:
            return [name for name in self.collected(seed)[1] if name in self.METHODS]

        assert peers_order(0) == peers_order(0)
        assert len({tuple(peers_order(seed)) for seed in range(5)}) > 1
