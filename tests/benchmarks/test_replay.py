"""Recorded samples, judged again without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from detection import replay
from detection.data import OURS, Measured
from detection.levels import NONE, Level

from tests.benchmarks.processes import FIVE


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
