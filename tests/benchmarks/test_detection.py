from __future__ import annotations

import math
import random
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu, norm
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from detection import collect, injected, peers, replay, run
from detection.data import OURS, Key, Measured, Process, load, load_all, save, save_archive
from detection.evaluate import Share, comparisons, evaluate, wilson
from detection.judge_peers import (
    PEERS,
    alpha_threshold,
    mann_whitney_z,
    matched_threshold,
    median_peer,
    relative_change,
)
from detection.levels import LEVELS, NONE, WORKLOAD_IDS, Level, chosen_levels, rotation, rotation_slot
from detection.table import markdown, plot

from kernelgauge import Workload
from kernelgauge.measure.device import choose_device
from kernelgauge.measure.instance import build, first_call

HALF, FIVE, TEN = Level("device", 0.5), Level("device", 5), Level("host", 10)


def process(
    number: int, gpu: str = "a", *, us: float = 100.0, levels: Sequence[Level] = (FIVE,), **meta: Any
) -> Process:
    """Two workloads; a device level shifts kernel durations and what peers read, a host level the dispatch time."""
    chance = np.random.default_rng(number)
    samples = {}
    for workload in ("mlp-eager", "linear-eager"):
        for level in (NONE, *levels):
            factor = 1 + level.percent / 100
            device = us * (factor if level.kind == "device" else 1) * (1 + chance.normal(0, 0.0005, (4, 20)))
            host = 10 * (factor if level.kind == "host" else 1) * (1 + chance.normal(0, 0.001, (4, 20)))
            samples[Key(workload, level, "ours-device")] = device
            samples[Key(workload, level, "ours-host")] = np.stack([host, np.ones_like(host)], axis=-1)
            for method in ("do_bench", "blocked_autorange", "pytest_benchmark"):
                samples[Key(workload, level, method)] = device.ravel()
    return Process(gpu=gpu, number=number, samples=samples, meta={"gpu": gpu, "process": number, **meta})


def above_one_percent(
    workload: str, timer: str, baseline_processes: Sequence[Measured], test_process: Measured, /
) -> bool:
    def typical(measured: Measured) -> float:
        values = measured.values(workload, f"ours-{timer}")
        assert values is not None
        return float(np.median(values[..., 0] if timer == "host" else values))

    return typical(test_process) > 1.01 * float(np.median([typical(one) for one in baseline_processes]))


class TestLevels:
    @pytest.mark.parametrize("text", ["none", "device+0.25%", "host+10%"])
    def test_a_level_reads_back_as_it_is_written(self, text: str) -> None:
        assert str(Level.parse(text)) == text

    @pytest.mark.parametrize("text", ["device", "device+5", "gpu+5%", "none+5%", "device+0%", "host+x%"])
    def test_another_text_is_no_level(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"level|float"):
            Level.parse(text)

    def test_the_rotation_gives_each_level_equally_often(self) -> None:
        for levels in LEVELS.values():
            seen = [level for slot in range(len(levels)) for level in rotation(levels, slot, 2)]
            assert sorted(seen) == sorted(list(levels) * 2)

    @pytest.mark.parametrize("gpus", [1, 2, 4, 8])
    def test_every_gpu_goes_through_all_levels(self, gpus: int) -> None:
        for workload in WORKLOAD_IDS:
            for gpu in range(gpus):
                slots = [rotation_slot(number, gpus) for number in range(gpu, 8 * gpus, gpus)]
                assert {level for slot in slots for level in chosen_levels(workload, slot, 2)} == {
                    NONE,
                    *LEVELS[workload],
                }

    def test_the_suite_has_every_workload(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "perf"))
        from workloads import WORKLOADS

        assert set(WORKLOAD_IDS) <= {workload.id for workload in WORKLOADS}


class TestData:
    def test_a_process_reads_back_as_it_was_saved(self, tmp_path: Path) -> None:
        saved = process(3, gpu="b", levels=(HALF, TEN))
        save(tmp_path / "p.npz", saved.samples, saved.meta)
        (read,) = load(tmp_path / "p.npz")
        assert (read.gpu, read.number, read.levels) == ("b", 3, [HALF, TEN, NONE])
        assert set(read.samples) == set(saved.samples)
        assert all(np.array_equal(read.samples[key], values) for key, values in saved.samples.items())

    def test_an_archive_keeps_processes_apart_to_the_nanosecond(self, tmp_path: Path) -> None:
        saved = [process(0), process(11, gpu="b", us=3.0)]
        save_archive(tmp_path / "raw.npz", saved)
        read = load_all([tmp_path / "raw.npz"])
        assert [(one.number, one.gpu) for one in read] == [(0, "a"), (11, "b")]
        for before, after in zip(saved, read, strict=True):
            for key, values in before.samples.items():
                assert after.samples[key].shape == values.shape
                assert np.abs(after.samples[key] - values).max() <= 0.0005001

    @pytest.mark.parametrize("value", [math.nan, 5e6])
    def test_a_time_that_the_archive_cannot_hold_is_refused(self, value: float, tmp_path: Path) -> None:
        broken = Process("a", 1, {Key("mlp-eager", NONE, "do_bench"): np.array([value])}, {})
        with pytest.raises(ValueError, match="process 1, mlp-eager/none/do_bench"):
            save_archive(tmp_path / "raw.npz", [broken])

    def test_an_archive_of_an_archive_is_the_same(self, tmp_path: Path) -> None:
        save_archive(tmp_path / "raw.npz", [process(0)])
        first = load_all([tmp_path / "raw.npz"])
        save_archive(tmp_path / "again.npz", first)
        (again,) = load_all([tmp_path / "again.npz"])
        assert all(np.array_equal(again.samples[key], values) for key, values in first[0].samples.items())

    def test_two_processes_of_one_number_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="one number"):
            save_archive(tmp_path / "raw.npz", [process(1), process(1, gpu="b")])


class TestPeersJudgements:
    def test_the_baseline_of_several_processes_is_the_median_of_their_statistics(self) -> None:
        score = relative_change(lambda values: float(np.mean(values)))
        baseline = [np.array([90.0, 110.0]), np.array([99.0, 101.0]), np.array([1000.0])]
        assert score(baseline, np.array([106.0])) == pytest.approx(0.06)

    def test_a_change_of_exactly_the_threshold_is_not_slower(self) -> None:
        peer = median_peer("x", "m")
        assert not peer.flags([np.array([100.0])], np.array([150.0]), 0.5)
        assert peer.flags([np.array([100.0])], np.array([150.1]), 0.5)

    def test_a_faster_process_is_never_flagged(self) -> None:
        baseline, faster = [np.linspace(100, 110, 50)], np.linspace(80, 90, 50)
        for peer in PEERS:
            assert not any(peer.flags(baseline, faster, threshold) for _, threshold in peer.thresholds)

    @pytest.mark.parametrize("decimals", [1, 6])  # with ties, and without
    def test_the_z_of_mann_whitney_is_that_of_scipys_p_value(self, decimals: int) -> None:
        chance = np.random.default_rng(0)
        baseline, test = chance.normal(5, 1, 60).round(decimals), chance.normal(5.3, 1, 45).round(decimals)
        expected = mannwhitneyu(test, baseline, alternative="greater", method="asymptotic").pvalue
        assert norm.sf(mann_whitney_z([baseline], test)) == pytest.approx(expected)

    def test_the_z_of_mann_whitney_orders_what_no_p_value_can(self) -> None:
        values = np.arange(5000.0)
        assert mann_whitney_z([values], values + 9000) > mann_whitney_z([values], values + 2000) > 38

    def test_equal_values_are_no_slowdown(self) -> None:
        assert mann_whitney_z([np.ones(5)], np.ones(5)) == 0

    def test_alpha_is_one_sided(self) -> None:
        assert alpha_threshold(0.05) == pytest.approx(1.6449, abs=1e-4)

    def test_the_matched_threshold_keeps_the_rate_of_a_suite(self) -> None:
        scores = np.random.default_rng(1).normal(0, 0.01, (2000, 6))
        thresholds = np.array([matched_threshold(list(column), 6, 0.10) for column in scores.T])
        assert (scores > thresholds).any(axis=1).mean() == pytest.approx(0.10, abs=0.02)

    def test_no_lower_threshold_would_do(self) -> None:
        scores = [0.01, 0.05, 0.02, 0.03]
        assert matched_threshold(scores, 1, 0.0) == 0.05
        assert matched_threshold(scores, 1, 0.25) == 0.03
        assert matched_threshold(scores, 2, 0.25) == 0.05  # each of two has half of it

    def test_the_matched_threshold_flags_nothing_that_is_faster(self) -> None:
        assert matched_threshold([-0.02, -0.01], 1, 0.0) == 0


class TestEvaluation:
    def test_a_process_is_never_its_own_baseline(self) -> None:
        processes = [process(number, gpu="ab"[number % 2]) for number in range(5)]
        for where in ("same GPU", "other GPU"):
            for kind in ("all others", "one process"):
                for baseline, test in comparisons(processes, kind, where):
                    assert test not in [one.process for one in baseline]
                    assert {one.gpu == test.gpu for one in baseline} == {where == "same GPU"}
                    assert {one.level for one in baseline} == {NONE}
                    assert len({one.gpu for one in baseline}) == 1

    def test_every_baseline_is_tried(self) -> None:
        processes = [process(number, gpu="ab"[number % 2]) for number in range(5)]  # a has 3, b has 2
        counts = {
            (kind, where): len(list(comparisons(processes, kind, where)))
            for kind in ("all others", "one process")
            for where in ("same GPU", "other GPU")
        }
        assert counts == {
            ("all others", "same GPU"): 5,
            ("one process", "same GPU"): 3 * 2 + 2 * 1,
            ("all others", "other GPU"): 5,
            ("one process", "other GPU"): 2 * 3 * 2,
        }

    def test_wilsons_interval_is_that_of_the_literature(self) -> None:
        assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
        assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
        assert wilson(1, 10) == pytest.approx((0.7225, 1), abs=1e-4)

    def test_trials_that_differ_in_the_baseline_alone_do_not_narrow_the_interval(self) -> None:
        assert Share(0, 100, 10).interval == Share(0, 10, 10).interval

    def test_a_slowdown_is_caught_by_who_can_see_it(self) -> None:
        evaluation = evaluate([process(number, levels=(HALF, FIVE, TEN)) for number in range(4)], above_one_percent)
        found = {
            (row.method, row.level): row.share
            for row in evaluation.caught
            if row.module == "mlp" and row.baseline == "all others"
        }
        assert found["kernelgauge", FIVE].hits == found["kernelgauge", FIVE].trials == 4
        assert found["kernelgauge", HALF].hits == 0  # less than its 1 %
        assert found["kernelgauge", TEN].hits == 4
        assert found["kernelgauge, device time alone", TEN].hits == 0
        assert found["kernelgauge, host time alone", FIVE].hits == 0
        assert found["do_bench, median > 10 %", FIVE].hits == 0
        assert found["do_bench, median, matched", HALF].hits == 4

    def test_an_alarm_counts_for_the_suite_once(self) -> None:
        processes = [process(0), process(1), process(2, us=120.0)]
        evaluation = evaluate(processes, above_one_percent)
        alarms = {(row.method, row.baseline, row.where): row for row in evaluation.alarms}
        everyone = alarms["kernelgauge", "all others", "same GPU"]
        assert (everyone.suites.hits, everyone.suites.trials) == (1, 3)
        assert (everyone.single.hits, everyone.single.trials) == (2, 6)  # both of its workloads
        pairs = alarms["do_bench, median > 10 %", "one process", "same GPU"].suites
        assert (pairs.hits, pairs.trials, pairs.independent) == (2, 6, 3)
        assert alarms["kernelgauge", "all others", "other GPU"].suites.trials == 0

    def test_another_gpu_that_is_slower_alarms_there_alone(self) -> None:
        processes = [process(number, gpu="a") for number in range(3)]
        processes += [process(number, gpu="b", us=110) for number in range(3, 6)]
        alarms = {(row.method, row.where): row.suites for row in evaluate(processes, above_one_percent).alarms}
        assert alarms["kernelgauge", "same GPU"].hits == 0
        assert alarms["do_bench, median > 5 %", "other GPU"].share == 0.5  # the slower one's, and not the faster one's

    def test_peers_are_matched_to_our_own_rate(self) -> None:
        processes = [process(0), process(1), process(2, us=120.0)]
        evaluation = evaluate(processes, above_one_percent)
        assert evaluation.matched_rate["all others"] == pytest.approx(1 / 3)
        assert evaluate(processes, above_one_percent, rate=0.0).matched_rate["all others"] == 0

    def test_our_timer_says_how_much_was_injected(self) -> None:
        seen = evaluate([process(number, levels=(FIVE, TEN)) for number in range(3)], above_one_percent).seen
        assert seen["mlp", FIVE] == pytest.approx(0.05, abs=0.001)
        assert seen["linear", TEN] == pytest.approx(0.10, abs=0.001)

    def test_what_was_not_measured_is_no_trial(self) -> None:
        processes = [process(number) for number in range(3)]
        bare = Process("a", 9, {key: v for key, v in processes[0].samples.items() if key.method == "ours-device"}, {})
        alarms = {
            (row.method, row.baseline): row.suites
            for row in evaluate([*processes, bare], above_one_percent).alarms
            if row.where == "same GPU"
        }
        assert alarms["kernelgauge", "all others"].trials == 4
        assert alarms["do_bench, median > 5 %", "all others"].trials == 3
        # Three pairs, each both ways; with the bare one there is nothing to compare.
        assert alarms["kernelgauge, host time alone", "one process"].trials == 6


class TestShown:
    def test_the_table_has_counts_and_intervals_and_wall_times(self) -> None:
        wall = {"mlp-eager/none/do_bench": 0.48, "linear-eager/none/do_bench": 0.52}
        processes = [process(number, wall_seconds=wall) for number in range(4)]
        text = markdown(evaluate(processes, above_one_percent), processes)
        assert "| kernelgauge | 4/4 = 100% [51%, 100%] |" in text
        assert "| do_bench | 8 | 0.500 | 0.520 |" in text
        for line in text.splitlines():
            assert not line.startswith("|") or line.endswith("|")

    def test_the_plot_is_a_small_file(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        evaluation = evaluate([process(number, levels=(HALF, FIVE, TEN)) for number in range(3)], above_one_percent)
        plot(evaluation, tmp_path / "caught.svg")
        assert 5_000 < (tmp_path / "caught.svg").stat().st_size < 200_000


class TestReplay:
    @pytest.fixture
    def recorded(self, tmp_path: Path) -> Path:
        arrays = {
            f"mlp-eager/gpu{gpu}/process{number}/replicate{replicate}/pass{pass_}": np.full(
                6, 100 + replicate + 0.1 * pass_
            )
            for gpu in "AB"
            for number in (1, 2)
            for replicate in range(4)
            for pass_ in range(3)
        }
        np.savez(tmp_path / "samples.npz", **arrays)
        return tmp_path / "samples.npz"

    def test_the_passes_of_a_replicate_are_its_iterations(self, recorded: Path) -> None:
        processes = replay.load_recorded(recorded)
        assert [(one.gpu, one.number) for one in processes] == [("gpuA", 0), ("gpuA", 1), ("gpuB", 2), ("gpuB", 3)]
        values = processes[0].at().values("mlp-eager", "ours-device")
        assert values is not None
        assert values.shape == (4, 18)
        assert values[3].tolist() == [103.0] * 6 + [103.1] * 6 + [103.2] * 6

    def test_a_slowed_process_is_the_recorded_one_times_the_level(self, recorded: Path) -> None:
        one = replay.load_recorded(recorded)[0]
        slowed, unslowed = one.at(FIVE).values("mlp-eager", "ours-device"), one.at().values("mlp-eager", "ours-device")
        assert slowed is not None
        assert unslowed is not None
        assert np.allclose(slowed, 1.05 * unslowed)

    def test_ours_is_asked_for_device_time_alone(self, recorded: Path) -> None:
        asked = set()

        def decide(workload: str, timer: str, baseline: Sequence[Measured], test: Measured, /) -> bool:
            asked.add(timer)
            return test.level.percent > 1

        evaluation = replay.evaluate_recorded([recorded], decide)
        assert asked == {"device"}
        found = {row.level.percent: row.share.share for row in evaluation.caught if row.method == "kernelgauge"}
        assert found == {0.25: 0, 0.5: 0, 1: 0, 2: 1, 3: 1, 5: 1}

    def test_runs_of_the_suite_are_replayed_with_their_host_times(self) -> None:
        recorded = sorted(
            (Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "nine_processes").glob("*.json")
        )
        processes = replay.load_runs(recorded)
        assert len(processes) == len(recorded) == 9
        workload = "mlp-eager-bf16-64x128x768x3072"
        plain, slower = (processes[0].at(level) for level in (NONE, Level("host", 10)))
        for method, factor in ((OURS["device"], 1.0), (OURS["host"], [1.1, 1.0])):  # the control stays as it was
            before, after = plain.values(workload, method), slower.values(workload, method)
            assert before is not None
            assert after is not None
            assert np.allclose(after, before * np.array(factor))

    def test_half_a_percent_of_an_mlp_is_caught_in_the_recorded_noise(self) -> None:
        from detection import ours

        recorded = sorted(
            (Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "nine_processes").glob("*.json")
        )
        evaluation = replay.evaluate_recorded(recorded, ours.decide)
        found = {
            row.level: row.share.share
            for row in evaluation.caught
            if (row.method, row.module, row.baseline) == ("kernelgauge", "mlp", "all others")
        }
        assert found[Level("device", 0.5)] >= 0.95
        assert all(
            row.suites.hits == 0 for row in evaluation.alarms if row.method == "kernelgauge" and row.where == "same GPU"
        )

    def test_a_file_of_another_format_is_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "other.npz", **{"mlp/none/do_bench": np.ones(3)})
        with pytest.raises(ValueError, match="unknown key"):
            replay.load_recorded(tmp_path / "other.npz")


class TestInjection:
    @pytest.fixture
    def slept(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        cycles: list[int] = []
        monkeypatch.setattr(torch.cuda, "_sleep", cycles.append)
        monkeypatch.setattr(injected, "sm_clock_mhz", lambda: 1980.0)
        return cycles

    def test_the_unslowed_twin_sleeps_too(self, slept: list[int]) -> None:
        slowed, unslowed = (injected.Slowed(nn.Identity(), microseconds) for microseconds in (1.0, 0.0))
        ones = torch.ones(2)
        assert torch.equal(slowed(ones), ones)
        unslowed(ones)
        assert slept == [1981, 1]

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

    def test_a_twin_computes_what_the_workload_does(self, slept: list[int]) -> None:
        device = choose_device("cpu")
        original, slowed = build(LINEAR, device), build(injected.twin(LINEAR, device_us=2.0), device)
        assert torch.equal(original.outputs(), slowed.outputs())
        assert slept == [3961]

    def test_a_compiled_twin_compiles_the_inner_module_alone(self, slept: list[int]) -> None:
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
        assert slept == [1, 1, 1981, 1981, 1981, 1981]
        assert not counted["graph_break"]
        assert counted["stats"]["unique_graphs"] == 1


LINEAR = Workload("linear", "eager", lambda: nn.Linear(8, 4), lambda: (torch.randn(16, 8),), dtype="fp32")


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
        assert 300 <= float(np.median(timed.values_us)) < 600  # what the loop overruns by is the machine's

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
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        monkeypatch.setattr(injected, "sm_clock_mhz", lambda: 1980.0)
        monkeypatch.setattr(collect, "SETTLE_S", 0.0)

    def collected(self, seed: int) -> tuple[collect.Collected, list[str]]:
        order: list[str] = []

        def device_and_host(device: object, builder: collect.CallBuilder, seconds: float) -> tuple[Any, Any]:
            for replicate in range(2):
                instance = builder(replicate)
                instance.prepare()
                instance.call()
            order.append("ours")
            return np.full((2, 3), 200.0), np.stack([np.full((2, 5), 40.0), np.full((2, 5), 9.0)], axis=-1)

        def method(name: str) -> Any:
            def measure(call: peers.Call, seconds: float) -> peers.Timed:
                assert not torch.is_grad_enabled()
                call()
                order.append(name)
                return peers.Timed([seconds], 0.1)

            return measure

        collector = collect.Collector(
            device=choose_device("cpu"),
            seconds=0.5,
            device_and_host=device_and_host,
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

    def test_a_level_is_a_share_of_the_twins_own_time(self) -> None:
        collected, _ = self.collected(0)
        assert collected.injected_us == {
            f"{LINEAR.id}/none": {"device_us": 0.0, "host_us": 0.0},
            f"{LINEAR.id}/device+0.5%": {"device_us": 1.0, "host_us": 0.0},
            f"{LINEAR.id}/host+10%": {"device_us": 0.0, "host_us": 4.0},
        }

    def test_the_order_follows_the_seed(self) -> None:
        orders = [tuple(self.collected(seed)[1]) for seed in (0, 0, 1, 2)]
        assert orders[0] == orders[1]
        assert len(set(orders)) == 3


class TestRunner:
    def child(self, source: str, timeout_s: float = 20.0) -> run.Child:
        return run.Child("process 7", (sys.executable, "-c", source), {"MARK": "here"}, timeout_s)

    def test_a_failed_process_is_named_with_its_last_lines(self) -> None:
        failure = run.run_child(self.child("import os, sys; print(os.environ['MARK'], file=sys.stderr); sys.exit(3)"))
        assert failure == "process 7 failed: exit status 3\n    here"

    def test_a_process_that_hangs_is_stopped_with_what_it_started(self) -> None:
        start = time.perf_counter()
        failure = run.run_child(
            self.child(
                "import subprocess, sys, time\n"
                "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
                "print(one.pid, flush=True)\n"
                "time.sleep(60)",
                timeout_s=2.0,
            )
        )
        assert time.perf_counter() - start < 10
        assert failure is not None
        assert failure.startswith("process 7 failed: stopped after 2 s")
        assert not _runs(int(failure.splitlines()[-1]))

    def test_a_failure_does_not_stop_the_rest(self, capsys: pytest.CaptureFixture[str]) -> None:
        failures = run.run_queue([self.child("raise SystemExit('broken')"), self.child("pass")])
        assert len(failures) == 1
        assert "broken" in failures[0]
        assert capsys.readouterr().out.splitlines() == ["process 7: FAILED", "process 7: done"]

    def test_a_report_is_of_what_it_archives(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ours = types.ModuleType("detection.ours")
        ours.decide = above_one_percent  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "detection.ours", ours)
        monkeypatch.setattr(run, "plot", lambda *_: None)
        run.report([process(number, us=3.0) for number in range(4)], tmp_path / "first", None)
        run.report(load(tmp_path / "first" / "raw.npz"), tmp_path / "second", None)
        assert (tmp_path / "first" / "table.md").read_text() == (tmp_path / "second" / "table.md").read_text()

    def test_gpus_are_named_as_the_environment_names_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1234")
        assert run.visible_gpus() == ["3", "GPU-1234"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert run.visible_gpus() == []

    def test_a_process_has_time_for_what_it_measures(self) -> None:
        # Six workloads: ours once, then four methods at three levels.
        assert run.planned_seconds(0.5, 2) == 6 * (0.5 + (0.5 + run.SETTLE_S) * 12)


def _runs(pid: int) -> bool:
    for _ in range(50):  # a killed process is there until init has seen it
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True
