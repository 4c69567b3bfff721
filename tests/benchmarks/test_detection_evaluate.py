"""What each method catches, how that is shown, and what the recording on four H200s shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from detection.data import NONE, Level, Process, load
from detection.evaluate import (
    Evaluation,
    Share,
    Where,
    alarms_of,
    caught_by,
    comparisons,
    evaluate,
    is_slower,
    mann_whitney,
    matched_threshold,
    our_detector,
    peers,
    relative_change,
    ties,
    wilson,
)
from detection.table import markdown, plot
from scipy.stats import mannwhitneyu

from tests.benchmarks.processes import FIVE, HALF, TEN, above_one_percent, process

ALL_SESSIONS = "kernel durations, all sessions > 0.35 %"


@pytest.mark.parametrize(
    ("test", "floor_us", "score"), [(106, 0, 0.06), (100.2, 0.15, 0.002), (100.1, 0.15, 0), (99, 0, -0.01)]
)
def test_relative_change_is_against_the_median_process(test: float, floor_us: float, score: float) -> None:
    baseline = [np.array([90.0, 110.0]), np.array([99.0, 101.0]), np.array([1000.0])]
    assert relative_change(np.mean, floor_us)(baseline, np.array([test])) == pytest.approx(score)


def flagging(baseline: np.ndarray, test: np.ndarray) -> list[str]:
    return [
        peer.name
        for peer in peers(6)
        if any(peer.score([baseline], test) > threshold for _, threshold in peer.thresholds)
    ]


def test_peers_never_flag_a_faster_process() -> None:
    assert not flagging(np.linspace(100, 110, 60).reshape(5, 12), np.linspace(80, 90, 60).reshape(5, 12))


def test_kernel_peers_read_their_number_of_sessions() -> None:
    baseline = np.full((8, 12), 200.0)
    flagged = flagging(baseline, baseline * np.array([1.03, *[1.0] * 7])[:, None])
    expected = ["1 session", "1 session", "3 sessions", "6 sessions", "all sessions"]
    assert [name for name in flagged if "kernel" in name] == [f"kernel durations, {each}" for each in expected]


def test_mann_whitney_compares_sessions() -> None:
    chance = np.random.default_rng(0)
    baseline, test = chance.normal(5, 1, (2, 9, 12)), chance.normal(5.3, 1, (9, 12))
    medians = np.median(test, axis=1), np.median(baseline, axis=2).ravel()
    expected = -np.log10(mannwhitneyu(*medians, alternative="greater").pvalue)
    assert mann_whitney(list(baseline), test) == pytest.approx(expected)
    assert mann_whitney([np.ones(5)], np.ones(5)) < 1


@pytest.mark.parametrize(
    ("scores", "size", "rate", "threshold"),
    [
        ([0.01, 0.05, 0.02, 0.03], 1, 0.0, 0.05),
        ([0.01, 0.05, 0.02, 0.03], 1, 0.25, 0.03),
        ([0.01, 0.05, 0.02, 0.03], 2, 0.25, 0.05),  # 0.13 of each workload's comparisons
        ([0.01, 0.05, 0.02, 0.03], 2, 0.45, 0.03),  # 0.26
        ([-0.02, -0.01], 1, 0.0, 0.0),
    ],
)
def test_matched_threshold_is_the_lowest(scores: list[float], size: int, rate: float, threshold: float) -> None:
    assert matched_threshold(scores, size, rate) == threshold


def caught_of(evaluation: Evaluation, baseline: str = "all others", where: str = "same GPU") -> dict:
    return {
        (row.method, row.module, row.level): row.share
        for row in evaluation.caught
        if (row.baseline, row.where) == (baseline, where)
    }


def alarms_in(evaluation: Evaluation, baseline: str = "all others", where: str = "same GPU") -> dict[str, Share]:
    return {row.method: row.suites for row in evaluation.alarms if (row.baseline, row.where) == (baseline, where)}


def test_comparisons_leave_the_process_itself_out() -> None:
    processes = [process(number, gpu="ab"[number % 2]) for number in range(5)]  # a has 3, b has 2
    counts = []
    for where in ("same GPU", "other GPU"):
        for kind in ("all others", "one process"):
            found = list(comparisons(processes, kind, where))
            counts.append(len(found))
            for baseline, test in found:
                assert test not in [one.process for one in baseline]
                assert {(one.gpu == test.gpu, one.level) for one in baseline} == {(where == "same GPU", NONE)}
    assert counts == [5, 3 * 2 + 2 * 1, 5, 2 * 3 * 2]


@pytest.mark.parametrize(("share", "expected"), [(0, (0, 0.2775)), (0.5, (0.2366, 0.7634)), (1, (0.7225, 1))])
def test_wilson_of_ten_is_that_of_the_literature(share: float, expected: tuple[float, float]) -> None:
    assert wilson(share, 10) == pytest.approx(expected, abs=1e-4)


def test_interval_counts_processes_and_not_trials() -> None:
    assert Share(0, 100, 10).interval == Share(0, 10, 10).interval
    found = caught_of(evaluate([process(number) for number in range(4)], above_one_percent), "one process")
    share = found["kernelgauge", "mlp", FIVE]
    assert (share.trials, share.processes) == (12, 4)


def test_slowdown_is_caught_by_its_own_timer() -> None:
    processes = [process(number, levels=(HALF, FIVE, TEN)) for number in range(4)]
    evaluation = evaluate(processes, above_one_percent)
    found = {(method, level): share.share for (method, module, level), share in caught_of(evaluation).items()}
    assert [found["kernelgauge", level] for level in (HALF, FIVE, TEN)] == [0, 1, 1]  # 0.5 % is less than its 1 %
    assert found[ALL_SESSIONS, HALF] == 1
    assert (ALL_SESSIONS, TEN) not in found  # it reads no dispatch
    assert found["do_bench, median > 5 %", HALF] == 0
    assert found["do_bench, median, matched", HALF] == 1
    achieved = evaluation.achieved
    assert achieved["mlp", FIVE].median == pytest.approx(0.05, abs=0.001)
    assert achieved["linear", TEN].low < achieved["linear", TEN].median < achieved["linear", TEN].high
    assert achieved["linear", TEN].median == pytest.approx(0.10, abs=0.001)


def test_level_is_judged_by_the_timer_that_was_slowed() -> None:
    asked: set[tuple[str, str]] = set()
    evaluate(
        [process(0, levels=(FIVE, TEN)), process(1)], lambda _, timer, __, test: asked.add((test.level.kind, timer))
    )
    assert asked == {("none", "device"), ("none", "host"), ("device", "device"), ("host", "host")}


def test_other_gpu_is_a_row_of_its_own() -> None:
    processes = [process(number, gpu="ab"[number // 3], us=100 + 10 * (number // 3)) for number in range(6)]
    evaluation = evaluate(processes, above_one_percent)
    for where, caught, alarms in (("same GPU", 6, 0), ("other GPU", 3, 3)):  # of the slower GPU
        assert caught_of(evaluation, where=where)["kernelgauge", "mlp", FIVE].hits == caught
        assert alarms_in(evaluation, where=where)["kernelgauge"].hits == alarms


def test_alarm_counts_once_for_a_suite() -> None:
    evaluation = evaluate([process(0), process(1), process(2, us=120.0)], above_one_percent)
    assert alarms_in(evaluation)["kernelgauge"] == Share(1, 3, 3)
    assert alarms_in(evaluation, "one process")["do_bench, median > 5 %"] == Share(2, 6, 3)
    assert alarms_in(evaluation, where="other GPU")["kernelgauge"].trials == 0
    assert evaluation.matched_rate["all others"] == pytest.approx(1 / 3)


def test_missing_measurements_are_no_trials() -> None:
    processes = [process(number) for number in range(3)]
    bare = Process("a", 9, {key: v for key, v in processes[0].samples.items() if key.method == "ours-device"}, {})
    alarms = alarms_in(evaluate([*processes, bare], above_one_percent))
    assert (alarms["kernelgauge"].trials, alarms["do_bench, median > 5 %"].trials) == (4, 3)


def test_ties_need_as_many_catches_and_no_more_alarms() -> None:
    processes = [process(number, levels=(HALF, FIVE)) for number in range(4)]
    found = {(tie.method, tie.level) for tie in ties(evaluate(processes, above_one_percent))}
    assert ("kernel durations, 1 session > 1 %", FIVE) in found
    assert ("do_bench, median > 5 %", FIVE) not in found  # it catches some, not all
    assert {level for _, level in found} == {FIVE}  # ours catches nothing else
    assert not ties(evaluate([*processes, process(9, us=102.0)], lambda *_: False))


def test_table_has_counts_intervals_and_ties() -> None:
    wall = {"mlp-eager/none/do_bench": 0.48, "linear-eager/none/do_bench": 0.52}
    calibration = {"mlp-eager": {"device_us": 200.0, "spin_us": 0.9, "plain_us": 40.0, "spun_us": 43.0}}
    processes = [process(number, wall_seconds=wall, calibration=calibration) for number in range(4)]
    text = markdown(evaluate(processes, above_one_percent), processes)
    assert "| kernelgauge | 4/4 = 100% [51%, 100%] |" in text
    assert "- **kernel durations, 1 session > 1 %** ties with kernelgauge at linear, GPU time +5 %; mlp" in text
    assert "| mlp-eager | 200.00 | 0.90 | 40.00 | 43.00 |" in text
    assert "| do_bench | 8 | 0.500 | 0.520 |" in text
    assert all(line.endswith("|") for line in text.splitlines() if line.startswith("|"))


def test_table_labels_levels_by_the_achieved_one() -> None:
    text = markdown(evaluate([process(0, achieved={TEN: 1.14}, levels=(TEN,))], above_one_percent))
    assert "| kernelgauge | - | - | - |" in text  # no trials
    processes = [process(number, achieved={TEN: 1.14}, levels=(TEN,)) for number in range(3)]
    assert "+14.0 % (intended: 10 %)" in markdown(evaluate(processes, above_one_percent))


def test_plot_is_a_small_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    evaluation = evaluate([process(number, levels=(HALF, FIVE, TEN)) for number in range(3)], above_one_percent)
    plot(evaluation, tmp_path / "caught.svg")
    assert 5_000 < (tmp_path / "caught.svg").stat().st_size < 100_000


@pytest.mark.parametrize(
    ("level", "gemm", "us", "flagged"),
    [
        *((FIVE, gemm, 200.0, True) for gemm in (None, 0.95, 1.0, 1.002, 1.01)),
        (FIVE, 1.05, 200.0, False),  # as slow as the machine itself
        (NONE, 1.006, 200.0 * 1.006, False),
        (NONE, None, 200.0 * 1.006, True),
        (Level("host", 20), 2.0, 200.0, True),  # dispatch, whatever the GPU does
    ],
)
def test_slower_machine_explains_gpu_time_alone(level: Level, gemm: float | None, us: float, flagged: bool) -> None:
    """`gemm`: how much longer the reference GEMM took beside the process; None: it was not measured."""
    pair = {"copy": [67.0], "gemm": [178.0]}
    known = [process(number, us=200.0, control_pair_us=pair).at() for number in range(6)]
    meta = {} if gemm is None else {"control_pair_us": {**pair, "gemm": [gemm * 178.0]}}
    test = process(6, us=us, levels=() if level == NONE else (level,), **meta)
    assert is_slower("mlp-eager", "host" if level.kind == "host" else "device", known, test.at(level)) is flagged


@pytest.fixture(scope="module")
def recorded() -> list[Process]:
    return load(Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "detection_h200.xz")


def test_recorded_slowdowns_are_caught(recorded: list[Process]) -> None:
    """At least as often as docs/detection.md says."""
    rows = caught_by(our_detector(is_slower), recorded, "all others", "same GPU")
    found = {(row.module, str(row.level)): row.share for row in rows}
    least = {
        ("mlp", "device+0.5%"): (97, 111),
        ("mlp", "device+1%"): (111, 111),
        ("mlp", "device+2%"): (111, 111),
        ("linear", "device+3%"): (37, 37),
        ("mlp", "host+10%"): (31, 33),
        ("linear", "host+10%"): (10, 11),
    }
    assert {key: share.trials for key, share in found.items()} == {key: trials for key, (_, trials) in least.items()}
    assert not [key for key, (hits, _) in least.items() if found[key].hits < hits]


@pytest.mark.parametrize(("where", "hits", "trials"), [("same GPU", 1, 37), ("other GPU", 3, 259)])
def test_recorded_unchanged_suites_are_silent(recorded: list[Process], where: Where, hits: int, trials: int) -> None:
    suites = alarms_of(our_detector(is_slower), recorded, "all others", where).suites
    assert suites.trials == trials
    assert suites.hits <= hits
