"""What one process injects and measures."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from detection import collect, injected, peers
from detection.data import Key
from detection.levels import NONE, Level
from torch import nn

from kernelgauge import Workload
from kernelgauge.measure.device import CpuDevice, choose_device
from kernelgauge.measure.instance import build, first_call
from tests.benchmarks.processes import HALF, TEN

LINEAR = Workload("linear", "eager", lambda: nn.Linear(8, 4), lambda: (torch.randn(16, 8),), dtype="fp32")


class TestInjection:
    @pytest.fixture
    def spun(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        turns: list[int] = []
        monkeypatch.setattr(injected, "spin", turns.append)
        monkeypatch.setattr(injected, "sm_clock_mhz", lambda: 1450.0)
        return turns

    def test_the_unslowed_twin_spins_too(self, spun: list[int]) -> None:
        slowed, unslowed = (injected.Slowed(nn.Identity(), microseconds) for microseconds in (1.0, 0.0))
        ones = torch.ones(2)
        assert torch.equal(slowed(ones), ones)
        unslowed(ones)
        assert spun == [20 + 50, 20]

    def test_the_host_waits_before_the_call(self) -> None:
        called: list[int] = []
        slowed = injected.HostSlowed(lambda: called.append(time.perf_counter_ns()), 2000)
        start = time.perf_counter_ns()
        slowed()
        assert called[0] - start >= 2_000_000

    def test_a_clock_in_khz_is_read_in_mhz(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Properties:
            clock_rate = 1_980_000

        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
        assert injected.sm_clock_mhz(0) == 1980

    def test_without_a_clock_nvml_is_asked_by_uuid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pynvml = pytest.importorskip("pynvml")

        class Properties:
            uuid = "1234"

        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
        clocks = {("GPU-1234", pynvml.NVML_CLOCK_SM): 1755}
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxClockInfo", lambda handle, clock: clocks[handle, clock])
        assert injected.sm_clock_mhz(0) == 1755

    def test_a_twin_computes_what_the_workload_does(self, spun: list[int]) -> None:
        device = choose_device("cpu")
        original, slowed = build(LINEAR, device), build(injected.twin(LINEAR, device_us=2.0), device)
        assert torch.equal(original.outputs(), slowed.outputs())
        assert spun == [120]

    def test_a_compiled_twin_compiles_the_inner_module_alone(self, spun: list[int]) -> None:
        workload = Workload(
            "linear", "compiled", LINEAR.build, LINEAR.inputs, dtype="fp32", compile={"backend": "eager"}
        )
        torch._dynamo.reset()
        counted = torch._dynamo.utils.counters
        counted.clear()
        device = choose_device("cpu")
        with torch.no_grad():
            for device_us in (0.0, 1.0, 1.0):
                instance = build(injected.twin(workload, device_us=device_us), device)
                first_call(instance)
                instance.call()
        assert spun == [20, 20, 70, 70, 70, 70]
        assert not counted["graph_break"]
        assert counted["stats"]["unique_graphs"] == 1


class TestPeersMeasuring:
    @pytest.mark.parametrize(
        ("call", "overhead"), [(225e-6, 5e-6), (20e-6, 5e-6), (225e-6, 30e-6), (3e-3, 1e-6), (20e-6, 60e-6)]
    )
    @pytest.mark.parametrize("seconds", [0.25, 0.5, 1.0])
    def test_blocked_autorange_is_planned_to_end_in_time(self, call: float, overhead: float, seconds: float) -> None:
        chosen = peers.fitting_min_run_time(call, overhead, seconds)
        least = min(peers.planned_seconds(call, overhead, seconds * step / 20) for step in range(1, 21))
        assert peers.planned_seconds(call, overhead, chosen) <= max(seconds, least)

    def test_the_plan_is_what_blocked_autorange_does(self) -> None:
        import torch.utils.benchmark

        class Clock:
            now = 0.0

            def __call__(self) -> float:
                self.now += 1e-5  # what reading it costs
                return self.now

        clock = Clock()

        def f() -> None:
            clock.now += 225e-6

        timer = torch.utils.benchmark.Timer(stmt="f()", globals={"f": f}, timer=clock)
        timer.blocked_autorange(min_run_time=0.5)
        assert peers.planned_seconds(225e-6, 1e-5, 0.5) == pytest.approx(clock.now, rel=0.02)

    @pytest.mark.parametrize("method", ["blocked_autorange", "pytest_benchmark"])
    def test_a_method_ends_in_time_and_reads_the_calls_duration(
        self, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def call() -> None:
            until = time.perf_counter() + 300e-6
            while time.perf_counter() < until:
                pass

        timed = peers.METHODS[method](call, 0.4)
        assert 0.25 < timed.wall_seconds < 0.4 * 1.2
        assert (
            300 <= float(np.median(timed.values_us)) < 6000
        )  # of its unit: what the loop overruns by is the machine's

    def test_do_bench_keeps_every_value_in_microseconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        testing = pytest.importorskip("triton.testing")
        asked: dict[str, Any] = {}

        def do_bench(call: object, **options: Any) -> list[float]:
            asked.update(options)
            return [0.2, 0.3]

        monkeypatch.setattr(testing, "do_bench", do_bench)
        assert peers.do_bench(lambda: None, 0.5).values_us == [200.0, 300.0]
        assert asked == {"warmup": 25.0, "rep": 475.0, "return_mode": "all"}


class TestCollecting:
    @pytest.fixture(autouse=True)
    def _no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(injected, "spin", lambda turns: None)
        monkeypatch.setattr(injected, "sm_clock_mhz", lambda: 1980.0)
        monkeypatch.setattr(collect, "SETTLE_S", 0.0)

    def collected(self, seed: int, peer_levels: int = 2) -> tuple[collect.Collected, list[str]]:
        order: list[str] = []
        alive: list[object] = []

        class Replicates:
            def __init__(self, device: object, builder: collect.CallBuilder) -> None:
                self.builder, self.taken = builder, 0

            def take(self) -> None:
                assert not torch.is_grad_enabled()
                instance = self.builder(self.taken)
                instance.prepare()
                instance.call()
                self.taken += 1
                order.append(f"ours {id(self)}")
                alive.append(self)  # else the next one may have its address

            def values(self) -> tuple[Any, Any]:
                count = self.taken
                device_us = np.full((count, 3), 200.0)
                return device_us, np.stack([np.full((count, 5), 40.0), np.full((count, 5), 9.0)], axis=-1)

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
            device=choose_device("cpu"),
            seconds=0.02,
            peer_levels=peer_levels,
            replicates=Replicates,
            methods={name: method(name) for name in ("x", "y", "z")},
            chance=random.Random(seed),
        )
        return collector.collect([LINEAR], lambda _: [NONE, HALF, TEN]), order

    def test_every_level_is_measured_by_every_method(self) -> None:
        collected, _ = self.collected(0)
        methods = ("x", "y", "z", "ours-device", "ours-host")
        assert set(collected.samples) == {
            Key(LINEAR.id, level, method) for level in (NONE, HALF, TEN) for method in methods
        }
        assert set(collected.wall_seconds) == {
            f"{LINEAR.id}/{level}/{method}"
            for level in ("none", "device+0.5%", "host+10%")
            for method in "x y z ours".split()
        }

    @pytest.mark.parametrize(("peer_levels", "levels"), [(0, [NONE]), (1, [NONE, HALF]), (2, [NONE, HALF, TEN])])
    def test_the_peers_measure_the_twin_and_the_first_levels(self, peer_levels: int, levels: list[Level]) -> None:
        collected, _ = self.collected(0, peer_levels)
        assert {key.level for key in collected.samples if key.method == "x"} == set(levels)
        assert {key.level for key in collected.samples if key.method == "ours-host"} == {NONE, HALF, TEN}

    def test_a_level_is_a_share_of_the_twins_own_time(self) -> None:
        collected, _ = self.collected(0)
        assert collected.injected_us == {
            f"{LINEAR.id}/none": {"device_us": 0.0, "host_us": 0.0},
            f"{LINEAR.id}/device+0.5%": {"device_us": 1.0, "host_us": 0.0},
            f"{LINEAR.id}/host+10%": {"device_us": 0.0, "host_us": 4.0},
        }

    def test_ours_goes_round_everything_as_the_suite_does(self) -> None:
        _, order = self.collected(0)
        own = [name for name in order if name.startswith("ours")]
        alone = own[0]
        passes = own[own.count(alone) :]
        assert len(set(passes)) == 3  # levels
        for start in range(0, len(passes), 3):
            assert len(set(passes[start : start + 3])) == 3

    def test_the_control_pair_is_measured_in_every_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CpuDevice, "controls", (replace(LINEAR, module="copy"), replace(LINEAR, module="gemm")))
        collected, order = self.collected(0)
        for name in ("copy", "gemm"):
            assert set(collected.control_pair_us[name]) == {200.0}
            assert len(collected.clocks_mhz[name]) == len(collected.control_pair_us[name])
        own = [name for name in order if name.startswith("ours")]
        passes = own[own.count(own[0]) :]
        assert len(passes) % 5 == 0
        assert {tuple(passes[start : start + 2]) for start in range(0, len(passes), 5)} == {tuple(passes[:2])}

    def test_the_order_follows_the_seed(self) -> None:
        orders = [self.order_of_peers_and_ours(seed) for seed in (0, 0, 1, 2)]
        assert orders[0] == orders[1]
        assert len(set(orders)) == 3
        assert {order.index("ours") for order in orders} == {0, 9}  # three methods at three levels: before, or after

    def order_of_peers_and_ours(self, seed: int) -> tuple[str, ...]:
        """Ours as one: how many passes fit is the machine's."""
        _, order = self.collected(seed)
        alone = order[0]
        later = order[order.count(alone) :]
        names = [each.partition(" ")[0] for each in later]
        return tuple(
            name for name, before in zip(names, [None, *names], strict=False) if (name, before) != ("ours",) * 2
        )
