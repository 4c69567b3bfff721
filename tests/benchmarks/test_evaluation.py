"""What each method catches, and how that is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from detection.data import Process
from detection.evaluate import Share, comparisons, evaluate, wilson
from detection.judge_peers import (
    PEERS,
    alpha_threshold,
    mann_whitney_z,
    matched_threshold,
    median_peer,
    relative_change,
)
from detection.levels import NONE
from detection.table import markdown, plot
from scipy.stats import mannwhitneyu, norm

from tests.benchmarks.processes import FIVE, HALF, TEN, above_one_percent, process


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


_USUAL = ("all others", "same GPU")


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

    def test_what_is_caught_against_another_gpu_is_a_row_of_its_own(self) -> None:
        processes = [process(number, gpu="a", levels=(FIVE,)) for number in range(3)]
        processes += [process(number, gpu="b", us=110, levels=(FIVE,)) for number in range(3, 6)]
        found = {
            row.where: (row.share.hits, row.share.trials)
            for row in evaluate(processes, above_one_percent).caught
            if (row.method, row.baseline, row.module, row.level) == ("kernelgauge", "all others", "mlp", FIVE)
        }
        assert found["same GPU"] == (6, 6)
        assert found["other GPU"] == (3, 6)  # those of the slower GPU; the faster one's seem to be faster

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

    def test_a_threshold_that_was_chosen_on_the_others_does_not_know_the_process_that_it_judges(self) -> None:
        processes = [process(0), process(1), process(2), process(3, us=104.0)]
        evaluation = evaluate(processes, above_one_percent, rate=0.0)
        alarms = {row.method: row.suites for row in evaluation.alarms if (row.baseline, row.where) == _USUAL}
        assert alarms["do_bench, median, matched"].hits == 0  # in hindsight 4 % are known to be nothing
        assert alarms["do_bench, median, matched on the others"].hits >= 1
        assert alarms["do_bench, median, matched on the others"].trials == 4

    def test_without_others_to_choose_on_there_is_no_such_threshold(self) -> None:
        alarms = {row.method: row.suites for row in evaluate([process(0), process(1)], above_one_percent).alarms}
        assert alarms["do_bench, median, matched on the others"].trials == 0

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
