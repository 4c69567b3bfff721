"""Recorded samples, judged again without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from detection import replay
from detection.data import OURS, Measured
from detection.evaluate import alarms_of, our_detector
from detection.levels import Level
from runs_file import RunsFile, write_runs

from kernelgauge.run import ControlTime
from tests.benchmarks.processes import FIVE, TEN
from tests.builders import run


def recorded_in(folder: str) -> list[Path]:
    return sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "data" / folder).glob("*.json"))


class TestReplay:
    def test_runs_of_the_suite_are_replayed_with_their_host_times(self) -> None:
        recorded = recorded_in("nine_processes")
        processes = replay.load_runs(recorded)
        assert len(processes) == len(recorded) == 9
        workload = "mlp-eager-bf16-64x128x768x3072"
        for level, device, host in ((FIVE, 1.05, 1.0), (TEN, 1.0, 1.1)):
            for method, factor in (
                (OURS["device"], device),
                (OURS["host"], [host, 1.0]),
            ):  # the control stays as it was
                before = processes[0].at().values(workload, method)
                after = processes[0].at(level).values(workload, method)
                assert before is not None
                assert after is not None
                assert np.allclose(after, before * np.array(factor))

    def test_half_a_percent_of_an_mlp_is_caught_in_the_recorded_noise(self) -> None:
        from detection import ours

        recorded = recorded_in("nine_processes")
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

    def test_of_a_cpu_device_times_alone_are_replayed(self) -> None:
        asked = set()

        def decide(workload: str, timer: str, baseline: Sequence[Measured], test: Measured, /) -> bool:
            asked.add(timer)
            return test.level.percent > 1

        recorded = recorded_in("cpu")
        evaluation = replay.evaluate_recorded(recorded, decide)
        assert asked == {"device"}
        assert list(evaluation.processes.values()) == [len(recorded)]  # of one machine
        found = {row.level: row.share.share for row in evaluation.caught if row.method == "kernelgauge"}
        assert found == {level: float(level.percent > 1) for level in replay.LEVELS}

    def test_times_of_a_cpu_are_judged_as_those_of_a_cpu(self) -> None:
        """By the rule for a GPU two of these eight unchanged suites are flagged."""
        from detection import ours

        processes = replay.load_runs(recorded_in("cpu"))
        alarms = alarms_of(our_detector(ours.decide), processes, "all others", "same GPU")
        assert (alarms.suites.hits, alarms.suites.trials) == (0, 8)

    def test_the_control_pair_is_that_of_the_runs_that_have_it(self, tmp_path: Path) -> None:
        copies = {"a": {}, "b": {"copy": ControlTime("copies", 60.0)}, "c": {"copy": ControlTime("copies", 70.0)}}
        runs = tuple(run(workload=name, controls=controls) for name, controls in copies.items())
        write_runs(tmp_path / "1.json", RunsFile("baselines", {}, runs, 3))
        (process,) = replay.load_runs([tmp_path / "1.json"])
        assert process.meta["control_pair_us"] == {"copy": [65.0]}
        assert process.workloads == ["a", "b", "c"]
